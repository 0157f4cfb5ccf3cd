"""Avro's bytes to objects, by functions that are put together once for each file, from its own schema.

A function takes the bytes and a position, and gives the value and the position after it. What we want is found by id,
so other writers may use other names, another order and fields of their own, and leave out fields that are optional.

Nobody vouches for the bytes. A position never goes back, and whatever is repeated takes at least a byte, so reading
ends. Where bytes are missing, it ends with an error of Python's (IndexError, struct.error) or at a position after the
last byte; the caller looks at both.
"""

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from mergus.iceberg.avro_schema import Mapping, Partition, Record, Scalar, Sequence, Type, pairs
from mergus.iceberg.avro_theirs import Skip, Theirs, binary_at, count_at, long_at, string_at

Untyped: TypeAlias = Any
Decode: TypeAlias = Callable[[bytes, int], tuple[Any, int]]

_INTEGERS = frozenset({"int", "long"})


def decoder(kind: Type, theirs: Theirs) -> Decode:
    """Checks the schema of a file, so that nothing about its values is left to check but whether there is one."""
    match kind:
        case str():
            if kind != theirs.kind and not {kind, theirs.kind} <= _INTEGERS:
                raise ValueError(f"Avro file has {theirs.kind} where {kind} is expected")
            return _PRIMITIVES[kind]
        case Scalar():
            raise ValueError("Partition values are read as the file has them")
        case Mapping():
            return _mapping(kind, theirs)
        case Sequence(_, element):
            return _sequence(decoder(element, _items(theirs)))
        case Record():
            return _record(kind, theirs)
        case Partition():
            return _partition(theirs)


def _boolean_at(data: bytes, at: int) -> tuple[bool, int]:
    return data[at] != 0, at + 1


def _null_at(data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _floating(layout: str) -> Decode:
    of = struct.Struct(layout)

    def read(data: bytes, at: int) -> tuple[float, int]:
        return of.unpack_from(data, at)[0], at + of.size

    return read


_PRIMITIVES: dict[str, Decode] = {
    "null": _null_at,
    "boolean": _boolean_at,
    "int": long_at,
    "long": long_at,
    "float": _floating("<f"),
    "double": _floating("<d"),
    "string": string_at,
    "bytes": binary_at,
}


def _fixed(size: int) -> Decode:
    return lambda data, at: (data[at : at + size], at + size)


def _sequence(one: Decode) -> Decode:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while data[at]:
            count, at = count_at(data, at)
            for _ in range(count):
                value, at = one(data, at)
                found.append(value)
        return found, at + 1

    return read


def _mapping(kind: Mapping, theirs: Theirs) -> Decode:
    items = _of(_items(theirs), "record")
    ids = [x for x, _ in items.fields]
    if not {kind.key_id, kind.value_id} <= set(ids):
        raise ValueError(f"Avro file has a map without the fields {kind.key_id} and {kind.value_id}")
    of_pairs = _sequence(_record(pairs(kind), items))
    # Also where there is a faster way, since this has looked at the types
    if ids == [kind.key_id, kind.value_id] and kind.value == "long":
        return _longs_at
    if ids == [kind.key_id, kind.value_id] and kind.value == "bytes":
        return _binaries_at

    def read(data: bytes, at: int) -> tuple[dict[int, Any], int]:
        found, at = of_pairs(data, at)
        return dict(found), at

    return read


def _longs_at(data: bytes, at: int) -> tuple[dict[int, int], int]:
    """Most of a manifest is such maps, so what most of them have takes no call: keys of a byte, values of up to four.

    The high bits of bytes that others follow are taken off the sum at once.
    """
    found: dict[int, int] = {}
    while data[at]:
        count, at = count_at(data, at)
        for _ in range(count):
            key = data[at]
            if key < 128:
                at += 1
                key = ~(key >> 1) if key & 1 else key >> 1
            else:
                key, at = long_at(data, at)
            value = data[at]
            if value < 128:
                at += 1
            elif (second := data[at + 1]) < 128:
                at += 2
                value += (second << 7) - 0x80
            elif (third := data[at + 2]) < 128:
                at += 3
                value += (second << 7) + (third << 14) - 0x4080
            elif (fourth := data[at + 3]) < 128:
                at += 4
                value += (second << 7) + (third << 14) + (fourth << 21) - 0x204080
            else:
                found[key], at = long_at(data, at)
                continue
            found[key] = ~(value >> 1) if value & 1 else value >> 1
    return found, at + 1


def _binaries_at(data: bytes, at: int) -> tuple[dict[int, bytes], int]:
    """The same for keys of one byte and values of up to 63."""
    found: dict[int, bytes] = {}
    while data[at]:
        count, at = count_at(data, at)
        for _ in range(count):
            key = data[at]
            if key < 128:
                at += 1
                key = ~(key >> 1) if key & 1 else key >> 1
            else:
                key, at = long_at(data, at)
            size = data[at]
            if size < 128 and not size & 1:
                at += 1
                found[key] = data[at : (at := at + (size >> 1))]
            else:
                found[key], at = binary_at(data, at)
    return found, at + 1


def _record(record: Record, theirs: Theirs) -> Decode:
    ids = {x for x, _ in _of(theirs, "record").fields}
    if missing := [f.name for f in record.fields if f.required and f.id not in ids]:
        raise ValueError(f"Avro file of {record.name} has no {', '.join(missing)}")
    places = {f.id: i for i, f in enumerate(record.fields)}
    # What is skipped has a place too, behind those that are used.
    count = len(places)
    steps: list[tuple[int, Decode]] = []
    for field_id, their in theirs.fields:
        if field_id in places:
            field = record.fields[places[field_id]]
            one = _optional(field.type, their)
            may_miss = field.required and their.kind == "union"
            steps.append((places[field_id], _required(field.name, one) if may_miss else one))
        elif their.skip is not None:
            steps.append((count, _skipped(their.skip)))
    make, blank = record.make, [None] * (count + 1)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = blank.copy()
        for place, one in steps:
            values[place], at = one(data, at)
        return make(*values[:count]), at

    return read


def _partition(theirs: Theirs) -> Decode:
    """The values in the order of the file."""
    steps = [_optional(None, their) for _, their in _of(theirs, "record").fields]

    def read(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        values: list[Any] = []
        for one in steps:
            value, at = one(data, at)
            values.append(value)
        return tuple(values), at

    return read


def _partition_value(theirs: Theirs) -> Decode:
    """A decimal is a number without its scale."""
    if theirs.kind != "fixed" and theirs.kind not in _PRIMITIVES:
        raise ValueError(f"Avro file has {theirs.kind} where a partition value is expected")
    one = _fixed(theirs.size) if theirs.kind == "fixed" else _PRIMITIVES[theirs.kind]

    def unscaled(data: bytes, at: int) -> tuple[int, int]:
        found, at = one(data, at)
        return int.from_bytes(found, "big", signed=True), at

    return unscaled if theirs.decimal else one


def _optional(kind: Type | None, theirs: Theirs) -> Decode:
    """Whether it is optional is theirs to say. No type is that of a partition value."""
    parts = [x for x in theirs.branches if x.kind != "null"] if theirs.kind == "union" else [theirs]
    if len(parts) != 1 or len(theirs.branches) > 2:
        raise ValueError(f"Avro file has a union of {len(theirs.branches)} types, and not of one and null")
    one = _partition_value(parts[0]) if kind is None else decoder(kind, parts[0])
    if theirs.kind != "union":
        return one
    # The number of a branch, as the byte that it is written as
    present = theirs.branches.index(parts[0]) * 2
    null = 2 - present if len(theirs.branches) == 2 else None

    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch = data[at]
        if branch == present:
            return one(data, at + 1)
        if branch == null:
            return None, at + 1
        raise ValueError("Avro file has a value of none of the types of its union")

    return read


def _required(name: str, one: Decode) -> Decode:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        found = one(data, at)
        if found[0] is None:
            raise ValueError(f"Avro field {name} is required and has no value")
        return found

    return read


def _skipped(skip: Skip) -> Decode:
    return lambda data, at: (None, skip(data, at))


def _items(theirs: Theirs) -> Theirs:
    if theirs.kind != "array" or theirs.items is None:
        raise ValueError(f"Avro file has {theirs.kind} where array is expected")
    return theirs.items


def _of(theirs: Theirs, kind: str) -> Theirs:
    if theirs.kind != kind:
        raise ValueError(f"Avro file has {theirs.kind} where {kind} is expected")
    return theirs
