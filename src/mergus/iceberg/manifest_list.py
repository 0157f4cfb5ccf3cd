"""Manifest lists: one Avro file per snapshot that names its manifests, with what a scan may skip them by."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

from mergus.iceberg import avro

# As an Avro file has it.
Untyped: TypeAlias = Any

DATA, DELETES = 0, 1


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """What the values of one partition field are in all files of a manifest; bounds as in a data file."""

    contains_null: bool
    contains_nan: bool | None = None
    lower_bound: bytes | None = None
    upper_bound: bytes | None = None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """`first_row_id` is what the rows of data files that have none of their own are counted from."""

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    content: int
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int
    added_files_count: int
    existing_files_count: int
    deleted_files_count: int
    added_rows_count: int
    existing_rows_count: int
    deleted_rows_count: int
    partitions: Sequence[FieldSummary] | None = None
    key_metadata: bytes | None = None
    first_row_id: int | None = None


def write(
    manifests: Iterable[ManifestFile],
    *,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    format_version: int,
    first_row_id: int | None = None,
) -> bytes:
    """In the order given. From version 3 on the snapshot and every manifest of data have a first row id."""
    if format_version not in (2, 3):
        raise ValueError(f"Manifest lists of format version {format_version} are not supported")
    if (format_version >= 3) != (first_row_id is not None):
        raise ValueError("A snapshot has a first row id from format version 3 on, and not before")
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_snapshot_id is None else str(parent_snapshot_id),
        "sequence-number": str(sequence_number),
        "format-version": str(format_version),
    }
    if first_row_id is not None:
        metadata["first-row-id"] = str(first_row_id)
    return avro.write(_record(format_version), (_checked(x, format_version) for x in manifests), metadata)


def read(data: bytes, allowance: avro.Allowance | None = None) -> tuple[dict[str, str], list[ManifestFile]]:
    """The file's metadata and its manifests."""
    metadata, manifests = avro.read(_record(format_version=3), data, allowance)
    return metadata, [_valid(x) for x in manifests]


def read_given(data: bytes, allowance: avro.Allowance | None = None) -> list[ManifestFile]:
    """The manifests of a list of any version. What one of version 1 leaves out is 0, and every manifest of it is of
    data: counts are not to be relied on."""
    _, manifests = avro.read(_GIVEN, data, allowance)
    return [_valid(x) for x in manifests]


def _checked(manifest: ManifestFile, format_version: int) -> ManifestFile:
    _valid(manifest)
    expected = format_version >= 3 and manifest.content == DATA
    if expected != (manifest.first_row_id is not None):
        raise ValueError(f"Manifest needs a first row id: {expected}, and has {manifest.first_row_id}")
    return manifest


def _valid(manifest: ManifestFile) -> ManifestFile:
    if manifest.content not in (DATA, DELETES):
        raise ValueError(f"Manifest has unknown content {manifest.content}: {manifest.manifest_path}")
    return manifest


_SUMMARY = avro.Record(
    "r508",
    (
        avro.Field(509, "contains_null", "boolean", required=True),
        avro.Field(518, "contains_nan", "boolean"),
        avro.Field(510, "lower_bound", "bytes"),
        avro.Field(511, "upper_bound", "bytes"),
    ),
    FieldSummary,
)


@cache
def _record(format_version: int) -> avro.Record:
    fields = (
        avro.Field(500, "manifest_path", "string", required=True),
        avro.Field(501, "manifest_length", "long", required=True),
        avro.Field(502, "partition_spec_id", "int", required=True),
        avro.Field(517, "content", "int", required=True),
        avro.Field(515, "sequence_number", "long", required=True),
        avro.Field(516, "min_sequence_number", "long", required=True),
        avro.Field(503, "added_snapshot_id", "long", required=True),
        avro.Field(504, "added_files_count", "int", required=True),
        avro.Field(505, "existing_files_count", "int", required=True),
        avro.Field(506, "deleted_files_count", "int", required=True),
        avro.Field(512, "added_rows_count", "long", required=True),
        avro.Field(513, "existing_rows_count", "long", required=True),
        avro.Field(514, "deleted_rows_count", "long", required=True),
        avro.Field(507, "partitions", avro.Sequence(508, _SUMMARY)),
        avro.Field(519, "key_metadata", "bytes"),
        avro.Field(520, "first_row_id", "long"),
    )
    known = fields if format_version >= 3 else fields[:-1]
    return avro.Record("manifest_file", known, ManifestFile)


def _given(*values: Untyped) -> ManifestFile:
    return ManifestFile(*values[:3], *(0 if x is None else x for x in values[3:13]), *values[13:])


# What lists of version 1 may leave out.
_OPTIONAL = frozenset({517, 515, 516, 503, 504, 505, 506, 512, 513, 514})
_GIVEN = avro.Record(
    "manifest_file",
    tuple(replace(f, required=f.required and f.id not in _OPTIONAL) for f in _record(3).fields),
    _given,
)
