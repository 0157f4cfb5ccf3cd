"""Objects to Avro's bytes, by functions that are put together once for each type of record.

A manifest of ten thousand files is millions of small numbers, and a call for each would be most of the time. So
numbers are looked up, two bytes of them at once, and a map is one template, which files with the same columns share,
into which its values are put.

Nothing is rounded, cut off or taken for what it is not: a value that its type does not have is an error.
"""

import struct
from collections import abc
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias

from mergus.iceberg.avro_schema import Field, Mapping, Partition, Record, Scalar, Sequence, Type

Untyped: TypeAlias = Any
Encode: TypeAlias = Callable[[Any], bytes]
EncodeMany: TypeAlias = Callable[[list[Any]], list[bytes]]

# What a value of the wrong type makes of the functions below.
_WRONG = (TypeError, OverflowError, AttributeError, LookupError, struct.error)

# The end of an array or a map, and the two branches of an optional field.
_END, _NULL, _PRESENT = b"\0", b"\0", b"\2"

# A long is written zig-zag (0, -1, 1, -2, …) in groups of seven bits, the lowest first, of which all but the last have
# the high bit set. Two groups, 14 bits, at once: those that others follow, and those at the end.
_MORE = [bytes((x & 127 | 128, x >> 7 | 128)) for x in range(1 << 14)]
_LAST = [bytes((x,) if x < 128 else (x & 127 | 128, x >> 7)) for x in range(1 << 14)]
# Numbers of up to 13 bits, from 0 on.
_SMALL = _LAST[::2]


def encoder(kind: Type) -> Encode:
    match kind:
        case str():
            return _PRIMITIVES[kind]
        case Scalar(avro, encode):
            one = _scalar(avro)
            return one if encode is None else lambda value: one(encode(value))
        case Mapping(_, _, "bytes"):
            return _mapping_to_bytes
        case Mapping(_, _, value):
            return _mapping(encoder(value), _many(value))
        case Sequence(_, element):
            return _sequence(_many(element))
        case Record(_, fields):
            return _record(fields)
        case Partition(fields):
            return _partition(fields)


def long(value: int) -> bytes:
    # a bool is an int to Python
    if isinstance(value, bool):
        raise TypeError(f"{value} is no number")
    if 0 <= value < 0x2000:
        return _SMALL[value]
    left = value << 1 if value >= 0 else ~(value << 1)
    if left >> 64:
        raise OverflowError(f"{value} does not fit into 64 bits")
    found = b""
    while left >> 14:
        found += _MORE[left & 0x3FFF]
        left >>= 14
    return found + _LAST[left]


def binary(value: Untyped) -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise TypeError(f"{type(value).__name__} is not bytes")
    return long(len(value)) + value


def string(value: str) -> bytes:
    # not value.encode(), which other classes may have too
    found = str.encode(value)
    return long(len(found)) + found


def strings_to_bytes(found: abc.Mapping[str, bytes]) -> bytes:
    """A map as Avro itself has them, in the order given."""
    items = [string(k) + binary(v) for k, v in found.items()]
    return b"".join([long(len(items)), *items, _END]) if items else _END


def _int(value: int) -> bytes:
    if not -(2**31) <= value < 2**31:
        raise OverflowError(f"{value} does not fit into an int")
    return long(value)


def _boolean(value: Untyped) -> bytes:
    if not isinstance(value, bool):
        raise TypeError(f"{value} is no boolean")
    return b"\1" if value else b"\0"


def _floating(layout: str) -> Encode:
    pack = struct.Struct(layout).pack

    def encode(value: Untyped) -> bytes:
        if isinstance(value, bool) or not isinstance(value, float | int):
            raise TypeError(f"{value} is no number")
        return pack(value)

    return encode


_PRIMITIVES: dict[str, Encode] = {
    "boolean": _boolean,
    "int": _int,
    "long": long,
    "float": _floating("<f"),
    "double": _floating("<d"),
    "string": string,
    "bytes": binary,
}


def _scalar(avro: str | dict[str, Any]) -> Encode:
    if isinstance(avro, str):
        return _PRIMITIVES[avro]
    if avro["type"] != "fixed":
        return _PRIMITIVES[avro["type"]]
    size: int = avro["size"]

    def fixed(value: Untyped) -> bytes:
        if not isinstance(value, bytes | bytearray) or len(value) != size:
            raise TypeError(f"{value!r} is not {size} bytes")
        return bytes(value)

    return fixed


def _longs(values: list[int]) -> list[bytes]:
    """Numbers as they are here, not names for them, since it is here that most of the time is spent."""
    if set(map(type, values)) != {int}:
        return [long(x) for x in values]
    return [
        _MORE[x << 1 & 0x3FFF] + _LAST[x >> 13]
        if 0x2000 <= x < 0x8000000
        else _SMALL[x]
        if 0 <= x < 0x2000
        else long(x)
        for x in values
    ]


def _many(kind: str | Record) -> EncodeMany:
    if kind == "long":
        return _longs
    one = encoder(kind)
    return lambda values: [one(x) for x in values]


def _mapping(one: Encode, many: EncodeMany) -> Encode:
    def encode(found: abc.Mapping[int, Any]) -> bytes:
        keys, parts, _, order = _template(tuple(found))
        values = list(found.values()) if order is None else [found[k] for k in order]
        # No column of a file has more values than another, unless it is in a list, and most have no nulls. What
        # equals the first is written as the first is.
        if values and values.count(values[0]) == len(values):
            return one(values[0]).join(keys)
        parts = parts.copy()
        parts[1::2] = many(values)
        return b"".join(parts)

    return encode


def _mapping_to_bytes(found: abc.Mapping[int, bytes]) -> bytes:
    """Sizes and values have gaps of their own, so that they need not be joined first."""
    _, _, parts, order = _template(tuple(found))
    values = list(found.values()) if order is None else [found[k] for k in order]
    if others := set(map(type, values)) - {bytes}:
        raise TypeError(f"{others} are not bytes")
    parts = parts.copy()
    parts[1::3] = [_SMALL[size] if (size := len(x)) < 0x2000 else long(size) for x in values]
    parts[2::3] = values
    return b"".join(parts)


@lru_cache(maxsize=256)
def _template(keys: tuple[int, ...]) -> tuple[list[bytes], list[bytes], list[bytes], list[int] | None]:
    """A map without its values: with none, one and two gaps after each key; and the keys in order, unless they are.

    A key that equals a number is that number, of whatever type it is, since that is how templates are found again.
    """
    order = sorted(keys)
    if order != (numbers := [int(x) for x in order]):
        raise TypeError(f"{order} are not all numbers")
    encoded = [_int(x) for x in numbers]
    if encoded:
        encoded[0] = long(len(encoded)) + encoded[0]
    none, one, two = ([part for key in encoded for part in (key, *gaps)] for gaps in ((), (b"",), (b"", b"")))
    return [*none, _END], [*one, _END], [*two, _END], None if order == list(keys) else order


def _is_sequence(value: Untyped) -> bool:
    return isinstance(value, abc.Sequence) and not isinstance(value, str | bytes | bytearray)


def _sequence(many: EncodeMany) -> Encode:
    def encode(found: abc.Sequence[Any]) -> bytes:
        # Not whatever can be gone through: some can only once, and the letters of a string are no list.
        if not _is_sequence(found):
            raise TypeError(f"{type(found).__name__} is no list")
        items = many(list(found))
        return b"".join([long(len(items)), *items, _END]) if items else _END

    return encode


def _record(fields: tuple[Field, ...]) -> Encode:
    of_values = _fields(fields)
    # attrgetter gives a tuple for two names or more, which every record has
    values = attrgetter(*(f.name for f in fields))
    return lambda found: of_values(values(found))


def _partition(fields: tuple[Field, ...]) -> Encode:
    of_values = _fields(fields)

    def encode(found: tuple[Any, ...]) -> bytes:
        if len(found) != len(fields):
            raise ValueError(f"Partition has {len(found)} values, and its type has {len(fields)}")
        return of_values(found)

    return encode


def _fields(fields: tuple[Field, ...]) -> Encode:
    # What stands for no value: where there has to be one, nothing that could be joined.
    steps: list[tuple[Untyped, bytes, Encode]] = [
        (None, b"", encoder(f.type)) if f.required else (_NULL, _PRESENT, encoder(f.type)) for f in fields
    ]

    def encode(values: tuple[Any, ...]) -> bytes:
        try:
            return b"".join(
                [
                    null if value is None else present + one(value)
                    for (null, present, one), value in zip(steps, values, strict=True)
                ]
            )
        except _WRONG:
            raise ValueError(fault(values)) from None

    def fault(values: tuple[Any, ...]) -> str:
        for field, (_, _, one), value in zip(fields, steps, values, strict=True):
            if value is None and field.required:
                return f"Avro field {field.name} is required and has no value"
            try:
                _ = None if value is None else one(value)
            except _WRONG as e:
                return f"Avro field {field.name} cannot be written: {e}"
        return "Avro record cannot be written"

    return encode
