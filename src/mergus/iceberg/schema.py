"""Iceberg schemas: fields with ids, as the specification writes them in JSON.

A type is the name of a primitive ("long", "decimal(10, 2)"), or a Struct, List or Map whose parts are fields again. Ids
are unique within a schema at every level, and equal fields keep their id through all schemas of a table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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

    def walk(self) -> Iterator["Field"]:
        """Itself and everything below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Schema:
    fields: tuple[Field, ...]

    def walk(self) -> Iterator[Field]:
        for field in self.fields:
            yield from field.walk()

    @property
    def highest_field_id(self) -> int:
        return max((field.id for field in self.walk()), default=0)

    @property
    def format_version(self) -> int:
        """The oldest that a table with this schema may have."""
        return 3 if any(isinstance(f.type, str) and f.type in V3_TYPES for f in self.walk()) else 2


def schema_json(schema: Schema, schema_id: int) -> dict[str, Any]:
    return {"type": "struct", "schema-id": schema_id, "fields": [_field_json(f) for f in schema.fields]}


def _field_json(field: Field) -> dict[str, Any]:
    json = {"id": field.id, "name": field.name, "required": field.required, "type": _type_json(field.type)}
    return json if field.doc is None else {**json, "doc": field.doc}


def _type_json(kind: Type) -> str | dict[str, Any]:
    match kind:
        case str():
            return kind
        case Struct(fields):
            return {"type": "struct", "fields": [_field_json(f) for f in fields]}
        case List(element):
            return {
                "type": "list",
                "element-id": element.id,
                "element-required": element.required,
                "element": _type_json(element.type),
            }
        case Map(key, value):
            return {
                "type": "map",
                "key-id": key.id,
                "key": _type_json(key.type),
                "value-id": value.id,
                "value-required": value.required,
                "value": _type_json(value.type),
            }
