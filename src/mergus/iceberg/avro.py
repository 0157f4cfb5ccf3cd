"""Avro files as Iceberg writes them: every field has an id, and a map is an array of keys and values.

    Obj 1  metadata  sync marker  { records  bytes  data  sync marker } …

Types are described once, by `Record`, `Mapping`, `Sequence` and the names of Avro's primitives; from that come the
schema and the way from objects to Avro and back. What is read is found by id, so other writers may use other names
and leave out fields that are optional.

Equal input gives equal bytes, because objects are named by their content: maps are sorted by key, and the sync marker
is a hash of everything else. Values are the plain ones of Avro, never what a logical type makes of them: a date is a
number of days, and not all of Iceberg's dates are Python's.
"""

import hashlib
import zlib
from collections import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias

import fastavro
import orjson

# fastavro's types have holes, and JSON has none to speak of; what leaves this module is checked.
Untyped: TypeAlias = Any
_fastavro: Untyped = fastavro

MAGIC = b"Obj\x01"
SCHEMA = "avro.schema"
CODEC = "avro.codec"

_SYNC_SIZE = 16
# What is packed at once, before compression; a reader has to hold that much.
_BLOCK_SIZE = 64_000
_LEVEL = 6
# Deflate without the header and checksum of zlib, as Avro wants it.
_RAW = -15

_HEADER = _fastavro.parse_schema(
    {
        "type": "record",
        "name": "org.apache.avro.file.Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": len(MAGIC)}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": _SYNC_SIZE}},
        ],
    }
)

_INTEGERS = frozenset({"int", "long"})


@dataclass(frozen=True, slots=True)
class Mapping:
    """From ints."""

    key_id: int
    value_id: int
    value: str


@dataclass(frozen=True, slots=True)
class Sequence:
    element_id: int
    element: "str | Record"


@dataclass(frozen=True, slots=True)
class Record:
    """`make` takes the fields by name."""

    name: str
    fields: tuple["Field", ...]
    make: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value that is not written as it is."""

    avro: str | dict[str, Any]
    encode: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """A tuple of which each table has its own kind."""

    fields: tuple["Field", ...] = ()


Type: TypeAlias = str | Scalar | Mapping | Sequence | Record | Partition
Coder: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Field:
    id: int
    name: str
    type: Type
    required: bool = False


def write(record: Record, values: Iterable[object], metadata: abc.Mapping[str, str]) -> bytes:
    schema = _schema(record)
    meta = {**metadata, SCHEMA: orjson.dumps(schema).decode(), CODEC: "deflate"}
    try:
        blocks = list(_blocks(_fastavro.parse_schema(_plain(schema)), map(_encoder(record), values)))
        header = {"magic": MAGIC, "meta": {k: meta[k].encode() for k in sorted(meta)}, "sync": bytes(_SYNC_SIZE)}
        start = _encoded(_HEADER, header)[:-_SYNC_SIZE]
    except (TypeError, OverflowError, AttributeError) as e:
        raise ValueError(f"{record.name} cannot be written: {e}") from None
    sync = hashlib.sha256(b"".join([start, *blocks])).digest()[:_SYNC_SIZE]
    return b"".join([start, sync, *(block + sync for block in blocks)])


def read(record: Record, data: bytes) -> tuple[dict[str, str], list[Any]]:
    """The metadata but for Avro's own, and every record."""
    try:
        return _read(record, data)
    except ValueError:
        raise
    except Exception as e:
        # fastavro checks nothing in advance: what it raises depends on which byte is wrong.
        raise ValueError(f"Not a readable Avro file of {record.name}: {type(e).__name__}: {e}") from None


def _read(record: Record, data: bytes) -> tuple[dict[str, str], list[Any]]:
    stream = BytesIO(data)
    if not data.startswith(MAGIC):
        raise ValueError("Not an Avro file")
    header: Untyped = _fastavro.schemaless_reader(stream, _HEADER, None)
    schema: Untyped = orjson.loads(header["meta"].pop(SCHEMA))
    decode = _decoder(record, schema)
    codec = header["meta"].pop(CODEC, b"null")
    meta = {SCHEMA: orjson.dumps(_plain(schema, by_id=True)), CODEC: codec}
    body = data[stream.tell() :]
    _check_blocks(body, header["sync"])
    # The same file under a schema without names that Avro forbids and Java allows, and without logical types.
    plain = _encoded(_HEADER, {"magic": MAGIC, "meta": meta, "sync": header["sync"]}) + body
    records: Iterable[Any] = _fastavro.reader(BytesIO(plain))
    metadata = {k: v.decode() for k, v in header["meta"].items() if not k.startswith("avro.")}
    return metadata, [decode(x) for x in records]


def _check_blocks(body: bytes, sync: bytes) -> None:
    """fastavro takes a file that ends in the middle of a number for one that ends before it."""
    if body and not body.endswith(sync):
        raise ValueError("Avro file is cut off: it does not end with its sync marker")


def _blocks(schema: Untyped, records: Iterable[Any]) -> Iterable[bytes]:
    stream, count = BytesIO(), 0
    for record in records:
        _fastavro.schemaless_writer(stream, schema, record)
        count += 1
        if stream.tell() >= _BLOCK_SIZE:
            yield _block(stream.getvalue(), count)
            stream, count = BytesIO(), 0
    if count:
        yield _block(stream.getvalue(), count)


def _block(data: bytes, count: int) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    packed = packer.compress(data) + packer.flush()
    return _encoded("long", count) + _encoded("bytes", packed)


def _encoded(schema: Untyped, value: Untyped) -> bytes:
    stream = BytesIO()
    _fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


def _schema(kind: Type) -> Untyped:
    match kind:
        case str():
            return kind
        case Scalar(avro):
            return avro
        case Mapping(key_id, value_id, value):
            fields = (Field(key_id, "key", "int", required=True), Field(value_id, "value", value, required=True))
            items = _schema(Record(f"k{key_id}_v{value_id}", fields, dict))
            return {"type": "array", "items": items, "logicalType": "map"}
        case Sequence(element_id, element):
            return {"type": "array", "items": _schema(element), "element-id": element_id}
        case Record(name, fields):
            return {"type": "record", "name": name, "fields": [_field_schema(f) for f in fields]}
        case Partition(fields):
            return {"type": "record", "name": "r102", "fields": [_field_schema(f) for f in fields]}


def _field_schema(field: Field) -> Untyped:
    kind, name = _schema(field.type), _avro_name(field.name)
    found: Untyped = {"name": name, "type": kind if field.required else ["null", kind], "field-id": field.id}
    if not field.required:
        found["default"] = None
    return found if name == field.name else found | {"iceberg-field-name": field.name}


def _avro_name(name: str) -> str:
    """As Iceberg does it, but for letters outside of ASCII, which Avro's specification forbids."""
    found = "".join(x if x.isascii() and (x.isalnum() or x == "_") else f"_x{ord(x):X}" for x in name)
    return f"_{found}" if not found or found[0].isdigit() else found


def _plain(schema: Untyped, *, by_id: bool = False) -> Untyped:
    """What of the schema says how bytes are read, with fields named by their ids if that is wanted."""
    if _is_union(schema):
        return [_plain(x, by_id=by_id) for x in schema]
    if not _is_complex(schema):
        return schema
    found: dict[str, Untyped] = {k: schema[k] for k in ("type", "name", "namespace", "size", "symbols") if k in schema}
    found["type"] = _plain(found["type"], by_id=by_id)
    for part in ("items", "values"):
        if part in schema:
            found[part] = _plain(schema[part], by_id=by_id)
    if "fields" in schema:
        fields: list[Untyped] = schema["fields"]
        found["fields"] = [
            {"name": _key(f.get("field-id", f"x{i}")) if by_id else f["name"], "type": _plain(f["type"], by_id=by_id)}
            for i, f in enumerate(fields)
        ]
    return found


def _key(field_id: int | str) -> str:
    return f"f{field_id}"


def _encoder(kind: Type) -> Coder:
    match kind:
        case str() | Scalar(_, None):
            return _same
        case Scalar(_, encode) if encode is not None:
            return encode
        case Mapping():
            return lambda found: [{"key": k, "value": found[k]} for k in sorted(found)]
        case Sequence(_, element):
            one = _encoder(element)
            return _same if one is _same else lambda found: [one(x) for x in found]
        case Record(_, fields):
            coders = [(f.name, f, None if (c := _encoder(f.type)) is _same else c) for f in fields]
            return lambda found: {name: _checked(f, getattr(found, name), c) for name, f, c in coders}
        case Partition(fields):
            return _partition_encoder(fields)
        case _:
            return _same


def _partition_encoder(fields: tuple[Field, ...]) -> Coder:
    coders = [(_avro_name(f.name), f, None if (c := _encoder(f.type)) is _same else c) for f in fields]

    def encode(found: tuple[Any, ...]) -> dict[str, Any]:
        if len(found) != len(coders):
            raise ValueError(f"Partition has {len(found)} values, and its type has {len(coders)}")
        return {name: _checked(f, value, c) for (name, f, c), value in zip(coders, found, strict=True)}

    return encode


def _checked(field: Field, value: Untyped, code: Coder | None) -> Untyped:
    if value is None:
        if field.required:
            raise ValueError(f"Avro field {field.name} is required and has no value")
        return None
    # fastavro checks this for optional fields alone
    if field.type == "int" and not -(2**31) <= value < 2**31:
        raise ValueError(f"Avro field {field.name} is an int and cannot be {value}")
    return value if code is None else code(value)


def _same(value: Untyped) -> Untyped:
    return value


def _decoder(kind: Type, schema: Untyped) -> Coder:
    """Checks the schema of a file, so that nothing about its values is left to check but whether there is one."""
    match kind:
        case str() | Scalar():
            if kind != (name := _name(schema)) and not {kind, name} <= _INTEGERS:
                raise ValueError(f"Avro file has {name} where {kind} is expected")
            return _same
        case Mapping(key_id, value_id, value):
            fields = _fields_by_id(_part(schema, "array", "items"))
            if not {key_id, value_id} <= fields.keys():
                raise ValueError(f"Avro file has a map without the fields {key_id} and {value_id}")
            _decoder("int", fields[key_id]["type"])
            _decoder(value, fields[value_id]["type"])
            k, v = _key(key_id), _key(value_id)
            return lambda found: {x[k]: x[v] for x in found}
        case Sequence(_, element):
            one = _decoder(element, _part(schema, "array", "items"))
            return _same if one is _same else lambda found: [one(x) for x in found]
        case Record():
            return _record_decoder(kind, schema)
        case Partition():
            return _partition_decoder(schema)


def _record_decoder(record: Record, schema: Untyped) -> Coder:
    theirs = _fields_by_id(schema)
    if missing := [f.name for f in record.fields if f.required and f.id not in theirs]:
        raise ValueError(f"Avro file of {record.name} has no {', '.join(missing)}")
    coders = [
        (f.name, _key(f.id), f.required, _decoder(f.type, _without_null(theirs[f.id]["type"])))
        for f in record.fields
        if f.id in theirs
    ]

    def decode(found: dict[str, Any]) -> Untyped:
        values: dict[str, Any] = {}
        for name, key, required, one in coders:
            value = found[key]
            if value is None and required:
                raise ValueError(f"Avro field {name} is required and has no value")
            values[name] = None if value is None else one(value)
        return record.make(**values)

    return decode


def _partition_decoder(schema: Untyped) -> Coder:
    """The values in the order of the file. A decimal is a number without its scale."""
    fields: list[Untyped] = _part(schema, "record", "fields")
    named: dict[str, Untyped] = {}
    decimals: list[bool] = []
    for field in fields:
        kind = _without_null(field["type"])
        if _is_complex(kind) and "name" in kind:
            named[kind["name"]] = kind
        found: Untyped = named.get(kind, kind) if isinstance(kind, str) else kind
        decimals.append(_is_complex(found) and found.get("logicalType") == "decimal")

    def decode(found: dict[str, Any]) -> tuple[Any, ...]:
        pairs = zip(found.values(), decimals, strict=True)
        return tuple(int.from_bytes(x, "big", signed=True) if d and x is not None else x for x, d in pairs)

    return decode


def _is_complex(schema: Untyped) -> bool:
    return isinstance(schema, dict)


def _is_union(schema: Untyped) -> bool:
    return isinstance(schema, list)


def _name(schema: Untyped) -> Untyped:
    return schema["type"] if _is_complex(schema) else schema


def _part(schema: Untyped, kind: str, part: str) -> Untyped:
    if not _is_complex(schema) or schema["type"] != kind:
        raise ValueError(f"Avro file has {_name(schema)} where {kind} is expected")
    return schema[part]


def _fields_by_id(schema: Untyped) -> dict[int, Untyped]:
    fields: list[Untyped] = _part(schema, "record", "fields")
    return {f["field-id"]: f for f in fields if "field-id" in f}


def _without_null(schema: Untyped) -> Untyped:
    if not _is_union(schema):
        return schema
    parts: list[Untyped] = [x for x in schema if x != "null"]
    if len(parts) != 1:
        raise ValueError(f"Avro file has a union of {len(parts)} types")
    return parts[0]
