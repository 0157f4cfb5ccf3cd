"""The schema of a file as its writer declared it, and how to get past values that nobody wants.

Types are put together from the inside out, and a name stands for the one type that was declared under it before: a
schema is never unfolded, however often it names a type, and no type contains itself.

A type whose values take no bytes is never repeated, so that a few bytes cannot stand for endless work.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Untyped: TypeAlias = Any
Skip: TypeAlias = Callable[[bytes, int], int]


@dataclass(frozen=True, slots=True, eq=False)
class Theirs:
    """`fields` are known by their ids, if they have any. `skip` is None if the values take no bytes."""

    kind: str
    skip: Skip | None
    fields: tuple[tuple[int | None, "Theirs"], ...] = ()
    items: "Theirs | None" = None
    branches: tuple["Theirs", ...] = ()
    size: int = 0
    decimal: bool = False


def long_at(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    found, shift = byte & 127, 7
    while byte > 127:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        shift += 7
        if shift > 70:
            raise ValueError("Avro file has a number of more than ten bytes")
    if found >> 64:
        raise ValueError("Avro file has a number of more than 64 bits")
    return (found >> 1) ^ -(found & 1), at


def size_at(data: bytes, at: int) -> tuple[int, int]:
    size, at = long_at(data, at)
    if size < 0:
        raise ValueError(f"Avro file has a size of {size}")
    return size, at


def binary_at(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = size_at(data, at)
    return data[at : at + size], at + size


def string_at(data: bytes, at: int) -> tuple[str, int]:
    found, at = binary_at(data, at)
    return found.decode(), at


def strings_to_bytes_at(data: bytes, at: int) -> tuple[dict[str, bytes], int]:
    """A map as Avro itself has them."""
    found: dict[str, bytes] = {}
    while data[at]:
        count, at = count_at(data, at)
        for _ in range(count):
            key, at = string_at(data, at)
            found[key], at = binary_at(data, at)
    return found, at + 1


def count_at(data: bytes, at: int) -> tuple[int, int]:
    """Of the items that follow, in an array or a map, which end with a zero. Their size in bytes may go with it."""
    count, at = long_at(data, at)
    if count < 0:
        _, at = size_at(data, at)
    # Each takes a byte at least, and not all that follows looks at the bytes that it passes.
    if not 0 < abs(count) <= len(data) - at:
        raise ValueError(f"Avro file is cut off or damaged: {abs(count)} items in {len(data) - at} bytes")
    return abs(count), at


def parse(schema: Untyped) -> Theirs:
    """From JSON."""
    return _parse(schema, {}, "")


def _parse(schema: Untyped, names: dict[str, Theirs], namespace: str) -> Theirs:
    match schema:
        case str():
            found = _PRIMITIVES.get(schema) or names.get(_full(schema, namespace))
            if found is None:
                raise ValueError(f"Avro file has a type of unknown name: {schema}")
            return found
        case [*_]:
            return _union(tuple(_parse(x, names, namespace) for x in _list(schema)))
        case {"type": "record" | "error", "name": str(name), "fields": [*_]}:
            name = _full(name, schema.get("namespace", namespace))
            names[name] = found = _record(_list(schema["fields"]), names, name.rpartition(".")[0])
            return found
        case {"type": "fixed", "name": str(name), "size": int(size)} if size >= 0:
            decimal = schema.get("logicalType") == "decimal"
            found = Theirs("fixed", _past(size) if size else None, size=size, decimal=decimal)
            names[_full(name, schema.get("namespace", namespace))] = found
            return found
        case {"type": "enum", "name": str(name)}:
            names[_full(name, schema.get("namespace", namespace))] = found = Theirs("enum", _past_long)
            return found
        case {"type": "array", "items": items}:
            of = _parse(items, names, namespace)
            return Theirs("array", _past_items(of.skip), items=of)
        case {"type": "map", "values": values}:
            # Of a key and a value
            return Theirs("map", _past_items(_past_all([_past_binary, _parse(values, names, namespace).skip])))
        case {"type": kind}:
            found = _parse(kind, names, namespace)
            decimal = found.kind == "bytes" and schema.get("logicalType") == "decimal"
            return Theirs("bytes", found.skip, decimal=True) if decimal else found
        case _:
            raise ValueError(f"Avro file has a type that is none: {schema}")


def _list(of_json: Untyped) -> list[Untyped]:
    return of_json


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _record(fields: list[Untyped], names: dict[str, Theirs], namespace: str) -> Theirs:
    found: list[tuple[int | None, Theirs]] = []
    ids: set[int] = set()
    for field in fields:
        field_id: int | None = field.get("field-id")
        if field_id in ids:
            raise ValueError(f"Avro file has two fields with the id {field_id}")
        if field_id is not None:
            ids.add(field_id)
        found.append((field_id, _parse(field["type"], names, namespace)))
    return Theirs("record", _past_all([x.skip for _, x in found]), tuple(found))


def _union(branches: tuple[Theirs, ...]) -> Theirs:
    skips = [x.skip for x in branches]

    def skip(data: bytes, at: int) -> int:
        branch, at = size_at(data, at)
        past = skips[branch]
        return at if past is None else past(data, at)

    return Theirs("union", skip, branches=branches)


def _past(size: int) -> Skip:
    def skip(data: bytes, at: int) -> int:
        # Types that hold another twice, and so on, are many steps: they end where the bytes do.
        if at >= len(data):
            raise ValueError("Avro file is cut off or damaged: a value is missing")
        return at + size

    return skip


def _past_long(data: bytes, at: int) -> int:
    return long_at(data, at)[1]


def _past_binary(data: bytes, at: int) -> int:
    size, at = size_at(data, at)
    return at + size


def _past_all(skips: list[Skip | None]) -> Skip | None:
    needed = [x for x in skips if x is not None]
    if not needed:
        return None

    def skip(data: bytes, at: int) -> int:
        for past in needed:
            at = past(data, at)
        return at

    return skip


def _past_items(one: Skip | None) -> Skip:
    if one is None:
        raise ValueError("Avro file has a list of what takes no bytes")

    def skip(data: bytes, at: int) -> int:
        while data[at]:
            count, at = count_at(data, at)
            for _ in range(count):
                at = one(data, at)
        return at + 1

    return skip


_PRIMITIVES = {
    "null": Theirs("null", None),
    "boolean": Theirs("boolean", _past(1)),
    "int": Theirs("int", _past_long),
    "long": Theirs("long", _past_long),
    "float": Theirs("float", _past(4)),
    "double": Theirs("double", _past(8)),
    "string": Theirs("string", _past_binary),
    "bytes": Theirs("bytes", _past_binary),
}
