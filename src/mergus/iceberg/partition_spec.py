"""Partition specs: by which values of which columns the files of a table are kept apart.

A spec is true for a file if its transforms give the same tuple for every row of the file: engines skip files by that
tuple, and take the value of an identity field for the column itself. A spec with fewer fields is true for more files.
Equal fields keep their id through all specs of a table.

Here are the transforms whose values DuckLake's files can have. A value is in the form that manifests have it in
(`manifest.PartitionValue`): whole numbers for dates and times.
"""

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from math import isnan
from typing import Any, Final, TypeAlias

from mergus.iceberg import manifest, values
from mergus.iceberg.manifest import PartitionValue
from mergus.iceberg.manifest_list import FieldSummary
from mergus.iceberg.schema import Schema

# a value that is not None, of the type that goes with it
Untyped: TypeAlias = Any

# Ids of partition fields are counted from here, so that they are not those of columns.
FIRST_FIELD_ID: Final = 1000

# From coarse to fine: each is a part of the one before.
CALENDAR: Final = ("year", "month", "day", "hour")

_BUCKET: Final = re.compile(r"bucket\[([1-9][0-9]{0,9})\]")
_DECIMAL: Final = re.compile(r"decimal\( *[0-9]+ *, *[0-9]+ *\)")

# How many units a day of the type has.
_DAY: Final = {
    "date": 1,
    "timestamp": 86_400 * 10**6,
    "timestamptz": 86_400 * 10**6,
    "timestamp_ns": 86_400 * 10**9,
    "timestamptz_ns": 86_400 * 10**9,
}
_IDENTITY: Final = frozenset({*_DAY, "boolean", "int", "long", "float", "double", "time", "string", "binary", "uuid"})
_HASHED: Final = _IDENTITY - {"boolean", "float", "double"}

_EPOCH: Final = date(1970, 1, 1)
# The Gregorian calendar repeats itself after so many years and days; Python's own ends at the year 9999.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097


@dataclass(frozen=True, slots=True)
class PartitionField:
    source_id: int
    field_id: int
    name: str
    transform: str


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    spec_id: int
    fields: tuple[PartitionField, ...]


UNPARTITIONED: Final = PartitionSpec(0, ())


def spec_json(spec: PartitionSpec) -> dict[str, Any]:
    return {
        "spec-id": spec.spec_id,
        "fields": [
            {"source-id": f.source_id, "field-id": f.field_id, "name": f.name, "transform": f.transform}
            for f in spec.fields
        ],
    }


def can_transform(transform: str, source_type: object) -> bool:
    """Whether a spec may have this transform of a column of this type; not for nested types, and not for fixed."""
    if not isinstance(source_type, str):
        return False
    decimal = _DECIMAL.fullmatch(source_type) is not None
    if transform == "identity":
        return decimal or source_type in _IDENTITY
    if transform == "hour":
        return source_type in _DAY and source_type != "date"
    if transform in CALENDAR:
        return source_type in _DAY
    return _is_bucket(transform) and (decimal or source_type in _HASHED)


def result_type(transform: str, source_type: object) -> str:
    """The type of the transformed value. A day is a date, as Java and PyIceberg write it, though a number to both."""
    if not isinstance(source_type, str) or not can_transform(transform, source_type):
        raise ValueError(f"Not a partition transform of {source_type}: {transform}")
    if transform == "identity":
        return source_type
    return "date" if transform == "day" else "int"


def partition_types(spec: PartitionSpec, schema: Schema) -> tuple[manifest.PartitionField, ...]:
    """The fields of a manifest's partition tuples; the schema must have every source column."""
    types = {field.id: field.type for field in schema.walk()}
    return tuple(
        manifest.PartitionField(f.name, f.field_id, result_type(f.transform, types.get(f.source_id)))
        for f in spec.fields
    )


def ordinal(transform: str, source_type: str, value: int) -> int:
    """The number of the year, month, day or hour since 1970, in UTC, that holds a date or a timestamp.

    Of a timestamp hundreds of thousands of years away the hour may be more than the int that it has to be.
    """
    if transform not in CALENDAR or not can_transform(transform, source_type):
        raise ValueError(f"Not a calendar transform of {source_type}: {transform}")
    if transform == "hour":
        return value // (_DAY[source_type] // 24)
    days = value // _DAY[source_type]
    if transform == "day":
        return days
    cycles, rest = divmod(days + _EPOCH.toordinal() - 1, _CYCLE_DAYS)
    within = date.fromordinal(rest + 1)
    years = within.year + cycles * _CYCLE_YEARS - _EPOCH.year
    return years if transform == "year" else years * 12 + within.month - 1


def identity_value(ducklake_type: str, text: str, *, retyped: bool) -> PartitionValue:
    """The one value that DuckLake's text of it stands for; None where it may be another, and for every blob.

    `retyped` says that the column has had another type before, and this text may be of that.
    """
    if ducklake_type in {"varchar", "json"}:
        return text
    if ducklake_type == "uuid":
        return values.read_uuid(text)
    if ducklake_type in {"float32", "float64"}:
        single = values.read_float32(text)
        value = single if ducklake_type == "float32" else values.read_float64(text)
        # the '1.1' of a single is not the double 1.1, and the 0.0 of a file stands for -0.0, too
        return None if retyped and single != value else value or None
    whole = values.counted(ducklake_type)
    count = None if whole is None else whole.read(text)
    return count if count is None or ducklake_type != "boolean" else bool(count)


def summaries(partitions: Iterable[Sequence[PartitionValue]], types: Sequence[str]) -> tuple[FieldSummary, ...]:
    """What the tuples of a manifest's entries have in common, field by field; `types` are those of the values."""
    rows = list(partitions)
    return tuple(_summary([row[i] for row in rows], kind) for i, kind in enumerate(types))


def _is_bucket(transform: str) -> bool:
    match = _BUCKET.fullmatch(transform)
    return match is not None and int(match[1]) < 2**31


def _summary(found: list[PartitionValue], kind: str) -> FieldSummary:
    known = [v for v in found if v is not None]
    numbers = [v for v in known if not (isinstance(v, float) and isnan(v))]
    lower, upper = _bounds(numbers, kind)
    return FieldSummary(len(known) < len(found), len(numbers) < len(known), lower, upper)


def _bounds(known: list[Untyped], kind: str) -> tuple[bytes | None, bytes | None]:
    if not known:
        return None, None
    low, high = min(known), max(known)
    # Versions of Iceberg's Java library differ on the order of uuids (apache/iceberg#14216), not on which are equal.
    if kind == "uuid" and low != high:
        return None, None
    if kind in {"float", "double"}:
        # both zeros are equal here, and -0.0 is the lower one to Iceberg
        low, high = low or -0.0, high or 0.0
    return _serialised(low, kind), _serialised(high, kind)


def _serialised(value: Untyped, kind: str) -> bytes:
    """The specification's single-value serialisation."""
    if _DECIMAL.fullmatch(kind):
        # the fewest bytes that hold the number and its sign
        return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)
    return _SERIALISED[kind](value)


def _packed(shape: str) -> Callable[[Untyped], bytes]:
    return struct.Struct(shape).pack


_SERIALISED: Final[dict[str, Callable[[Untyped], bytes]]] = {
    "boolean": _packed("<?"),
    "int": _packed("<i"),
    "date": _packed("<i"),
    "float": _packed("<f"),
    "double": _packed("<d"),
    "string": str.encode,
    "binary": bytes,
    "uuid": bytes,
    **dict.fromkeys(("long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), _packed("<q")),
}
