"""Iceberg schemas: fields with ids, as the specification writes them in JSON.

A type is the name of a primitive ("long", "decimal(10, 2)"), or a Struct, List or Map whose parts are fields again. Ids
are unique within a schema at every level, and equal fields keep their id through all schemas of a table.

A field may have two defaults, both in the JSON form that the specification gives a single value (`value_json`): what
files without the column stand for (`initial_default`; it never changes, and readers must know of it, so it takes
format version 3), and what writers put where they are given nothing (`write_default`; only a wish to writers, so a
table of version 2 goes without).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from math import isfinite
from typing import Any
from uuid import UUID

# A single value in JSON: whole numbers and floats as they are, all that JSON has no form for as text.
JsonValue = bool | int | float | str

# Types and features that only tables of this format version may have.
V3_TYPES = frozenset({"timestamp_ns", "timestamptz_ns", "variant", "geometry", "geography", "unknown"})


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple["Field", ...]


@dataclass(frozen=True, slots=True)
class List:
    element: "Field"


@dataclass(frozen=True, slots=True)
class Map:
    key: "Field"
    value: "Field"


Type = str | Struct | List | Map


@dataclass(frozen=True, slots=True)
class Field:
    id: int
    name: str
    type: Type
    required: bool = False
    doc: str | None = None
    initial_default: JsonValue | None = None
    write_default: JsonValue | None = None

    @property
    def children(self) -> tuple["Field", ...]:
        match self.type:
            case Struct(fields):
                return fields
            case List(element):
                return (element,)
            case Map(key, value):
                return (key, value)
            case _:
                return ()

    def full_names(self, above: str = "") -> Iterator[str]:
        """Its own name and those of everything below it, with dots between the levels."""
        yield above + self.name
        for child in self.children:
            yield from child.full_names(f"{above}{self.name}.")

    def walk(self) -> Iterator["Field"]:
        """Itself and everything below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Schema:
    """`identifier_ids` are the fields that tell rows apart, as somebody has promised; nobody checks it."""

    fields: tuple[Field, ...]
    identifier_ids: tuple[int, ...] = ()

    def walk(self) -> Iterator[Field]:
        for field in self.fields:
            yield from field.walk()

    def ambiguous_name(self) -> str | None:
        """A name that two fields have: with dots between its levels, a field of a struct is like any other."""
        seen: set[str] = set()
        for name in (name for field in self.fields for name in field.full_names()):
            if name in seen:
                return name
            seen.add(name)
        return None

    @property
    def highest_field_id(self) -> int:
        return max((field.id for field in self.walk()), default=0)

    @property
    def format_version(self) -> int:
        """The oldest that a table with this schema may have."""
        return 3 if any(_needs_v3(f) for f in self.walk()) else 2


def _needs_v3(field: Field) -> bool:
    return field.initial_default is not None or (isinstance(field.type, str) and field.type in V3_TYPES)


def schema_json(schema: Schema, schema_id: int, format_version: int = 3) -> dict[str, Any]:
    """Raises ValueError for a schema that a table of this version cannot have."""
    if format_version < schema.format_version:
        raise ValueError(f"Schema {schema_id} needs format version {schema.format_version}, not {format_version}")
    fields = [_field_json(f, format_version) for f in schema.fields]
    json: dict[str, Any] = {"type": "struct", "schema-id": schema_id, "fields": fields}
    return {**json, "identifier-field-ids": list(schema.identifier_ids)} if schema.identifier_ids else json


def _field_json(field: Field, version: int) -> dict[str, Any]:
    json: dict[str, Any] = {"id": field.id, "name": field.name, "required": field.required}
    json["type"] = _type_json(field.type, version)
    if field.doc is not None:
        json["doc"] = field.doc
    if field.initial_default is not None:
        json["initial-default"] = field.initial_default
    if field.write_default is not None and version >= 3:
        json["write-default"] = field.write_default
    return json


def _type_json(kind: Type, version: int) -> str | dict[str, Any]:
    match kind:
        case str():
            return kind
        case Struct(fields):
            return {"type": "struct", "fields": [_field_json(f, version) for f in fields]}
        case List(element):
            return {
                "type": "list",
                "element-id": element.id,
                "element-required": element.required,
                "element": _type_json(element.type, version),
            }
        case Map(key, value):
            return {
                "type": "map",
                "key-id": key.id,
                "key": _type_json(key.type, version),
                "value-id": value.id,
                "value-required": value.required,
                "value": _type_json(value.type, version),
            }


_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")
_EPOCH = date(1970, 1, 1).toordinal()


def value_json(primitive: str, value: int | float | bytes | str) -> JsonValue | None:
    """The specification's JSON form of a single value, or None where there is none that every reader takes.

    Values are as in Iceberg's files: days, micro- or nanoseconds, the unscaled decimal, the bytes of a uuid. Years
    need four digits, for outside of them Python has no dates and Java other texts.
    """
    match primitive, value:
        case "boolean", int():
            return bool(value)
        case (("int" | "long"), int()):
            return value
        case (("float" | "double"), float()):
            return value if isfinite(value) else None
        case "string", str():
            return value
        case "binary", bytes():
            return value.hex()
        case "uuid", bytes():
            return str(UUID(bytes=value))
        case "date", int():
            return _date_text(value)
        case "time", int():
            return _time_text(value, 10**6)
        case (("timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns"), int()):
            unit = 10**9 if primitive.endswith("_ns") else 10**6
            days, rest = divmod(value, 86_400 * unit)
            day = _date_text(days)
            zone = "+00:00" if primitive.startswith("timestamptz") else ""
            return None if day is None else f"{day}T{_time_text(rest, unit)}{zone}"
        case _, int() if decimal := _DECIMAL.fullmatch(primitive):
            return _decimal_text(value, int(decimal[2]))
        case _:
            return None


def _date_text(days: int) -> str | None:
    try:
        return date.fromordinal(days + _EPOCH).isoformat()
    except (ValueError, OverflowError):
        return None


def _time_text(count: int, unit: int) -> str:
    seconds, fraction = divmod(count, unit)
    digits = len(str(unit)) - 1
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:0{digits}}"


def _decimal_text(unscaled: int, scale: int) -> str:
    """With all digits of the scale: Java takes no other number of them."""
    sign, digits = "-" if unscaled < 0 else "", str(abs(unscaled)).zfill(scale + 1)
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits
