"""Manifests: Avro files that list data files or delete files, with their statistics.

All files of a manifest have the same partition spec and are either data or deletes. Values that the commit decides
(snapshot id, sequence numbers, first row id) may be left out of entries that it adds: readers take them from the
manifest list.

A partition value is the plain value of its Avro type: days for a date, microseconds or nanoseconds for times, the
unscaled number for a decimal, 16 bytes for a uuid.
"""

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import isnan
from typing import Any, Literal, TypeAlias

import orjson

from mergus.iceberg import avro
from mergus.iceberg.values import as_float32

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2

PartitionValue: TypeAlias = bool | int | float | str | bytes | None
Content: TypeAlias = Literal["data", "deletes"]
Untyped: TypeAlias = Any

_STATUSES = (EXISTING, ADDED, DELETED)
_CONTENTS = {"data": (DATA,), "deletes": (POSITION_DELETES, EQUALITY_DELETES)}
_V3_ONLY = frozenset({"first_row_id", "content_offset", "content_size_in_bytes"})

# Ids of an entry's field and of that field's field
_DATA_FILE, _PARTITION = 2, 102

_DECIMAL = re.compile(r"decimal\( *([0-9]{1,2}) *, *([0-9]{1,2}) *\)")


@dataclass(frozen=True, slots=True)
class PartitionField:
    """`type` is the Iceberg type of the transformed value."""

    name: str
    field_id: int
    type: str


@dataclass(frozen=True, slots=True)
class DataFile:
    """Columns are known by their field ids. Bounds are in the specification's single-value serialisation."""

    content: int
    file_path: str
    file_format: str
    partition: tuple[PartitionValue, ...]
    record_count: int
    file_size_in_bytes: int
    column_sizes: Mapping[int, int] | None = None
    value_counts: Mapping[int, int] | None = None
    null_value_counts: Mapping[int, int] | None = None
    nan_value_counts: Mapping[int, int] | None = None
    lower_bounds: Mapping[int, bytes] | None = None
    upper_bounds: Mapping[int, bytes] | None = None
    key_metadata: bytes | None = None
    split_offsets: Sequence[int] | None = None
    equality_ids: Sequence[int] | None = None
    sort_order_id: int | None = None
    first_row_id: int | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    data_file: DataFile


def write(
    entries: Iterable[Entry],
    *,
    schema_json: Mapping[str, Any],
    schema_id: int,
    spec_json: Sequence[Mapping[str, Any]],
    spec_id: int,
    partition_types: Sequence[PartitionField],
    content: Content,
    format_version: int,
) -> bytes:
    """In the order given. `spec_json` are the fields of the partition spec."""
    if format_version not in (2, 3):
        raise ValueError(f"Manifests of format version {format_version} are not supported")
    if content not in _CONTENTS:
        raise ValueError(f"Manifest content is data or deletes, not {content}")
    metadata = {
        "schema": _json(schema_json),
        "schema-id": str(schema_id),
        "partition-spec": _json(spec_json),
        "partition-spec-id": str(spec_id),
        "format-version": str(format_version),
        "content": content,
    }
    record = _entry(tuple(partition_types), format_version)
    return avro.write(record, (_checked(x, content, format_version) for x in entries), metadata)


def read(data: bytes, allowance: avro.Allowance | None = None) -> tuple[dict[str, str], list[Entry]]:
    """The file's metadata and its entries, without what they inherit from the manifest list."""
    metadata, entries = avro.read(_entry((), format_version=3), data, allowance)
    return metadata, [_valid(x) for x in entries]


def read_given(data: bytes, allowance: avro.Allowance | None = None) -> tuple[dict[str, str], list[Entry]]:
    """The same of a manifest of any version: version 1 knows no other content than data."""
    metadata, entries = avro.read(_GIVEN, data, allowance)
    return metadata, [_valid(x) for x in entries]


def partition_field_ids(data: bytes) -> list[int | None]:
    """What the values of partition tuples are, in their order, by ids of partition fields."""
    files = _part(avro.schema_of(data), _DATA_FILE)
    return [field_id for field_id, _ in _part(files, _PARTITION).fields]


def _part(record: avro.Theirs, field_id: int) -> avro.Theirs:
    found = dict(record.fields).get(field_id)
    if found is None:
        raise ValueError(f"Manifest has no field {field_id}")
    return next((x for x in found.branches if x.kind != "null"), found)


def _checked(entry: Entry, content: Content, format_version: int) -> Entry:
    _valid(entry)
    file = entry.data_file
    if file.content not in _CONTENTS[content]:
        raise ValueError(f"Manifest of {content} cannot list a file of content {file.content}: {file.file_path}")
    if entry.status != ADDED and None in (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number):
        raise ValueError(f"Only an added file inherits snapshot and sequence number: {file.file_path}")
    if (file.content_offset is None) != (file.content_size_in_bytes is None):
        raise ValueError(f"Content offset and size come together: {file.file_path}")
    if format_version < 3 and any(getattr(file, name) is not None for name in _V3_ONLY):
        raise ValueError(f"Format version {format_version} has no row ids and no deletion vectors: {file.file_path}")
    return entry


def _valid(entry: Entry) -> Entry:
    if entry.status not in _STATUSES:
        raise ValueError(f"Manifest entry has unknown status {entry.status}")
    if entry.data_file.content not in (DATA, POSITION_DELETES, EQUALITY_DELETES):
        raise ValueError(f"Manifest entry has unknown content {entry.data_file.content}")
    return entry


def _json(value: object) -> str:
    try:
        # In the order given: that of fields has a meaning, and that of keys is the same in all that we make.
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as e:
        raise ValueError(f"Manifest metadata cannot be written: {e}") from None


def _read_data_file(content: int, file_path: str, file_format: str, *values: Untyped) -> DataFile:
    return DataFile(content, file_path, file_format.upper(), *values)


# A table's files have one partition type for long, and what avro makes of a record is kept with the record.
@lru_cache(maxsize=256)
def _entry(partition_types: tuple[PartitionField, ...], format_version: int) -> avro.Record:
    partition = avro.Partition(tuple(avro.Field(f.field_id, f.name, _avro_type(f)) for f in partition_types))
    fields = (
        avro.Field(0, "status", "int", required=True),
        avro.Field(1, "snapshot_id", "long"),
        avro.Field(3, "sequence_number", "long"),
        avro.Field(4, "file_sequence_number", "long"),
        avro.Field(_DATA_FILE, "data_file", _data_file(partition, format_version), required=True),
    )
    return avro.Record("manifest_entry", fields, Entry)


def _data_file(partition: avro.Partition, format_version: int) -> avro.Record:
    fields = (
        avro.Field(134, "content", "int", required=True),
        avro.Field(100, "file_path", "string", required=True),
        avro.Field(101, "file_format", "string", required=True),
        avro.Field(_PARTITION, "partition", partition, required=True),
        avro.Field(103, "record_count", "long", required=True),
        avro.Field(104, "file_size_in_bytes", "long", required=True),
        avro.Field(108, "column_sizes", avro.Mapping(117, 118, "long")),
        avro.Field(109, "value_counts", avro.Mapping(119, 120, "long")),
        avro.Field(110, "null_value_counts", avro.Mapping(121, 122, "long")),
        avro.Field(137, "nan_value_counts", avro.Mapping(138, 139, "long")),
        avro.Field(125, "lower_bounds", avro.Mapping(126, 127, "bytes")),
        avro.Field(128, "upper_bounds", avro.Mapping(129, 130, "bytes")),
        avro.Field(131, "key_metadata", "bytes"),
        avro.Field(132, "split_offsets", avro.Sequence(133, "long")),
        avro.Field(135, "equality_ids", avro.Sequence(136, "int")),
        avro.Field(140, "sort_order_id", "int"),
        avro.Field(142, "first_row_id", "long"),
        avro.Field(143, "referenced_data_file", "string"),
        avro.Field(144, "content_offset", "long"),
        avro.Field(145, "content_size_in_bytes", "long"),
    )
    known = tuple(f for f in fields if format_version >= 3 or f.name not in _V3_ONLY)
    return avro.Record("r2", known, _read_data_file)


def _given_data_file(content: int | None, *values: Untyped) -> DataFile:
    return _read_data_file(DATA if content is None else content, *values)


def _given() -> avro.Record:
    entry = _entry((), format_version=3)
    file = _data_file(avro.Partition(()), format_version=3)
    files = avro.Record(
        file.name,
        tuple(replace(f, required=False) if f.name == "content" else f for f in file.fields),
        _given_data_file,
    )
    fields = tuple(replace(f, type=files) if f.id == _DATA_FILE else f for f in entry.fields)
    return avro.Record(entry.name, fields, Entry)


_GIVEN = _given()


def _avro_type(field: PartitionField) -> avro.Type:
    """Not for fixed: Java's Iceberg 1.11 reads it as bytes that say their own length, and fails on the file."""
    if found := _AVRO_TYPES.get(field.type):
        return found
    # A name may be defined once in a schema, so it has the field's id in it.
    if field.type == "uuid":
        return _fixed(f"uuid_fixed_{field.field_id}", 16, logicalType="uuid")
    if match := _DECIMAL.fullmatch(field.type):
        precision, scale = int(match[1]), int(match[2])
        if 0 < precision <= 38 and scale <= precision:
            size = (10**precision - 1).bit_length() // 8 + 1
            logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
            kind = _fixed(f"decimal_{precision}_{scale}_{field.field_id}", size, **logical)
            return avro.Scalar(kind.avro, partial(_unscaled, precision, size))
    raise ValueError(f"Not a type of partition values: {field.type}")


def _fixed(name: str, size: int, **logical: str | int) -> avro.Scalar:
    return avro.Scalar({"type": "fixed", "name": name, "size": size, **logical})


def _unscaled(precision: int, size: int, value: int) -> bytes:
    if abs(value) >= 10**precision:
        raise ValueError(f"Partition value has more than {precision} digits: {value}")
    return value.to_bytes(size, "big", signed=True)


def _single(value: float) -> float:
    # To pack what is between two of them would be to round it.
    if not isnan(value) and as_float32(struct.pack("<f", value)) != value:
        raise ValueError(f"Partition value is not a float of 32 bits: {value}")
    return value


def _long(logical: str, **more: bool) -> avro.Scalar:
    return avro.Scalar({"type": "long", "logicalType": logical, **more})


_AVRO_TYPES: dict[str, avro.Type] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": avro.Scalar("float", _single),
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": avro.Scalar({"type": "int", "logicalType": "date"}),
    "time": _long("time-micros"),
    "timestamp": _long("timestamp-micros", **{"adjust-to-utc": False}),
    "timestamptz": _long("timestamp-micros", **{"adjust-to-utc": True}),
    "timestamp_ns": _long("timestamp-nanos", **{"adjust-to-utc": False}),
    "timestamptz_ns": _long("timestamp-nanos", **{"adjust-to-utc": True}),
}
