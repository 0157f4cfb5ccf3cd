"""How records are described that go into Avro files, and the schema in Avro's JSON that comes of it.

Every field has the id that Iceberg's specification gives it, and a map is an array of keys and values, because Avro's
own maps have strings for keys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

# JSON has no types to speak of.
Untyped: TypeAlias = Any


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


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """`make` takes the fields in their order, None for those that a file leaves out.

    A record equals itself alone, so that what is made of it can be found again without a look inside.
    """

    name: str
    fields: tuple["Field", ...]
    make: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A primitive or fixed type that has more to it than its name, for values that may not be written as they are."""

    avro: str | dict[str, Any]
    encode: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """A tuple of which each table has its own kind."""

    fields: tuple["Field", ...] = ()


Type: TypeAlias = str | Scalar | Mapping | Sequence | Record | Partition


@dataclass(frozen=True, slots=True)
class Field:
    id: int
    name: str
    type: Type
    required: bool = False


def schema(kind: Type) -> Untyped:
    match kind:
        case str():
            return kind
        case Scalar(avro):
            return avro
        case Mapping():
            return {"type": "array", "items": schema(pairs(kind)), "logicalType": "map"}
        case Sequence(element_id, element):
            return {"type": "array", "items": schema(element), "element-id": element_id}
        case Record(name, fields):
            return {"type": "record", "name": name, "fields": _field_schemas(fields)}
        case Partition(fields):
            return {"type": "record", "name": "r102", "fields": _field_schemas(fields)}


def pairs(kind: Mapping) -> Record:
    """What a map is an array of."""
    fields = (Field(kind.key_id, "key", "int", required=True), Field(kind.value_id, "value", kind.value, required=True))
    return Record(f"k{kind.key_id}_v{kind.value_id}", fields, _pair)


def _pair(key: Untyped, value: Untyped) -> tuple[Untyped, Untyped]:
    return key, value


def _field_schemas(fields: tuple[Field, ...]) -> list[Untyped]:
    # Also two names that Avro has the same spelling for
    names, ids = {_avro_name(f.name) for f in fields}, {f.id for f in fields}
    if not len(names) == len(ids) == len(fields):
        raise ValueError(f"Avro has no two fields of one name or id: {', '.join(f'{f.id} {f.name}' for f in fields)}")
    return [_field_schema(f) for f in fields]


def _field_schema(field: Field) -> Untyped:
    kind, name = schema(field.type), _avro_name(field.name)
    found: Untyped = {"name": name, "type": kind if field.required else ["null", kind], "field-id": field.id}
    if not field.required:
        found["default"] = None
    return found if name == field.name else found | {"iceberg-field-name": field.name}


def _avro_name(name: str) -> str:
    """As Iceberg does it, but for letters outside of ASCII, which Avro's specification forbids."""
    found = "".join(x if x.isascii() and (x.isalnum() or x == "_") else f"_x{ord(x):X}" for x in name)
    return f"_{found}" if not found or found[0].isdigit() else found
