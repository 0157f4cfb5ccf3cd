"""Transforms: what partition specs and sort orders make of a column's value.

Values are in the form that manifests have them in (`manifest.PartitionValue`): whole numbers for dates and times. A
transform may have any column as its source that manifests have values of: not those of nested types, and not fixed.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Final

from mergus.iceberg.json_object import JsonObject, shown
from mergus.iceberg.schema import Field, Schema, Struct

# From coarse to fine: each is a part of the one before.
CALENDAR: Final = ("year", "month", "day", "hour")
IDENTITY: Final = "identity"
# What is left of a field that a spec has no more: NULL for every row.
VOID: Final = "void"

_SIZED: Final = re.compile(r"(bucket|truncate)\[([1-9][0-9]{0,9})\]")
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
_TRUNCATED: Final = frozenset({"int", "long", "string", "binary"})

_EPOCH: Final = date(1970, 1, 1)
# The Gregorian calendar repeats itself after so many years and days; Python's own ends at the year 9999.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097


def parse_transform(field: JsonObject, what: str) -> tuple[int, str]:
    """Of a field of a spec or an order, the id of its source column and the transform.

    Raises ValueError for a transform that we do not know, and for one of several columns, which version 3 has room for.
    """
    transform = field.text("transform")
    if transform not in {IDENTITY, VOID, *CALENDAR} and _sized(transform) is None:
        raise ValueError(f"{what} has an unknown transform: {shown(transform)}")
    sources = field.int32s("source-ids") if field.has("source-ids") else (field.int32("source-id"),)
    if len(sources) != 1:
        raise ValueError(f"{what} has {len(sources)} source columns, and only one is supported")
    if field.has("source-id") and field.int32("source-id") != sources[0]:
        raise ValueError(f"{what} has a source-id that is none of its source-ids")
    return sources[0], transform


def can_transform(transform: str, source_type: object) -> bool:
    """Whether a spec may have this transform of a column of this type; not for nested types, and not for fixed."""
    if not isinstance(source_type, str):
        return False
    decimal = _DECIMAL.fullmatch(source_type) is not None
    if transform in {IDENTITY, VOID}:
        return decimal or source_type in _IDENTITY
    if transform == "hour":
        return source_type in _DAY and source_type != "date"
    if transform in CALENDAR:
        return source_type in _DAY
    match _sized(transform):
        case "bucket":
            return decimal or source_type in _HASHED
        case "truncate":
            return decimal or source_type in _TRUNCATED
        case _:
            return False


def result_type(transform: str, source_type: object) -> str:
    """The type of the transformed value. A day is a date, as Java and PyIceberg write it, though a number to both."""
    if not isinstance(source_type, str) or not can_transform(transform, source_type):
        raise ValueError(f"Not a partition transform of {source_type}: {transform}")
    if transform in {IDENTITY, VOID} or _sized(transform) == "truncate":
        return source_type
    return "date" if transform == "day" else "int"


def paths(schema: Schema) -> dict[int, tuple[Field, ...]]:
    """All fields by their ids, each with those that it is inside of, from the top."""
    return {path[-1].id: path for path in _paths(schema.fields, ())}


def check_source(source_id: int, transform: str, fields: Mapping[int, tuple[Field, ...]], what: str) -> None:
    """Raises ValueError unless the source column is one of `fields` (the `paths` of a schema), of a type that the
    transform takes. A field of a struct is a column, too; an element of a list is none.
    """
    path = fields.get(source_id)
    if path is None:
        raise ValueError(f"{what} has a source column that does not exist: {source_id}")
    name, kind = ".".join(field.name for field in path), path[-1].type
    if any(not isinstance(field.type, Struct) for field in path[:-1]):
        raise ValueError(f"{what} has a source column inside of a list or map: {name}")
    if not can_transform(transform, kind):
        shown_type = kind if isinstance(kind, str) else type(kind).__name__.lower()
        raise ValueError(f"{what} cannot have the transform {transform} of {name}, which is of type {shown_type}")


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


def _sized(transform: str) -> str | None:
    """The name of a transform with a size, which is an int."""
    match = _SIZED.fullmatch(transform)
    return match[1] if match is not None and int(match[2]) < 2**31 else None


def _paths(fields: tuple[Field, ...], above: tuple[Field, ...]) -> Iterator[tuple[Field, ...]]:
    for field in fields:
        yield (*above, field)
        yield from _paths(field.children, (*above, field))
