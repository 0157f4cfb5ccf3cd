"""Schemas from JSON that a client sent, and what must hold for them before they can be a table's.

`parse_schema` is the inverse of `schema_json`. It gives every type and default one form: clients write the same
decimal, geometry or time in several, and a schema that comes back unchanged must be equal to the one that was sent.

Ids in a request to create a table are the client's own, from 0 or 1 on or as it likes. The table gets ids of its own
(`with_fresh_ids`), and what refers to the client's has to be translated (`fresh_ids`).

Everything raises ValueError with the reason.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Final, TypeAlias

from mergus.iceberg.json_object import JsonObject, shown
from mergus.iceberg.name_mapping import ELEMENT, KEY, VALUE
from mergus.iceberg.schema import Field, JsonValue, List, Map, Schema, Struct, Type
from mergus.iceberg.single_value import parse_default

Untyped: TypeAlias = Any

# A struct takes three levels of JSON, and what writes our answers (orjson) goes 254 levels deep.
MAX_DEPTH: Final = 80
MAX_FIELDS: Final = 10_000
# Ids above it are those of Iceberg's metadata columns.
MAX_FIELD_ID: Final = 2**31 - 1 - 200

# Postgres cuts longer names, and DuckDB's small inserts would not find their column (H49).
MAX_NAME_BYTES: Final = 63
RESERVED: Final = frozenset(
    {
        # beside a table's columns where DuckDB keeps small inserts (H49)
        "row_id",
        "begin_snapshot",
        "end_snapshot",
        # in DuckLake's files
        "_ducklake_internal_row_id",
        "_ducklake_internal_snapshot_id",
        # what Iceberg's readers add to every table
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
    }
)

_PLAIN: Final = frozenset(
    {
        *("boolean", "int", "long", "float", "double", "date", "time", "string", "uuid", "binary"),
        *("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns", "variant", "unknown"),
    }
)
_DECIMAL: Final = re.compile(r"decimal\(\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*\)")
_FIXED: Final = re.compile(r"fixed\[\s*([1-9][0-9]{0,8})\s*\]")
# PyIceberg puts quotes around parameters, Java takes them for a part.
_PARAMETER: Final = r"""\s*['"]?([^(),'"\s]+)['"]?\s*"""
_GEOMETRY: Final = re.compile(rf"geometry(?:\s*\({_PARAMETER}\))?")
_GEOGRAPHY: Final = re.compile(rf"geography(?:\s*\({_PARAMETER}(?:,{_PARAMETER})?\))?")
_CRS: Final = "OGC:CRS84"
_ALGORITHMS: Final = ("spherical", "vincenty", "thomas", "andoyer", "karney")

_NO_IDENTIFIER: Final = frozenset({"float", "double", "variant"})
_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)


def parse_schema(json: Untyped) -> Schema:
    """From the specification's JSON; the schema's own id is not part of it."""
    top = JsonObject(json, "Schema")
    if (kind := top.text("type")) != "struct":
        raise ValueError(f"Schema must be a struct, not {shown(kind)}")
    fields = _Parser().fields(top, depth=1)
    identifiers = top.int32s("identifier-field-ids") if top.has("identifier-field-ids") else ()
    schema = Schema(fields, tuple(dict.fromkeys(identifiers)))
    _check_identifiers(schema)
    return schema


def parse_primitive(text: str) -> str:
    """The one form of a primitive type's name."""
    if text in _PLAIN:
        return text
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if not 1 <= precision <= 38 or scale > precision:
            raise ValueError(f"Not a decimal of 1 to 38 digits: {text}")
        return f"decimal({precision}, {scale})"
    if match := _FIXED.fullmatch(text):
        return f"fixed[{match[1]}]"
    # Java writes the defaults of these, others do not.
    if match := _GEOMETRY.fullmatch(text):
        return "geometry" if match[1] in {None, _CRS} else f"geometry({match[1]})"
    if match := _GEOGRAPHY.fullmatch(text):
        crs, algorithm = match[1] or _CRS, (match[2] or _ALGORITHMS[0]).lower()
        if algorithm not in _ALGORITHMS:
            raise ValueError(f"Not an algorithm for the edges of a geography: {algorithm}")
        return "geography" if (crs, algorithm) == (_CRS, _ALGORITHMS[0]) else f"geography({crs}, {algorithm})"
    raise ValueError(f"Unknown type: {shown(text)}")


def fresh_ids(schema: Schema, first: int = 1) -> dict[int, int]:
    """By the schema's ids, new ones, counted as Java does: all fields of a struct, then what is below each."""
    found: dict[int, int] = {}
    _count(schema.fields, found, first)
    return found


def with_fresh_ids(schema: Schema, first: int = 1) -> Schema:
    ids = fresh_ids(schema, first)
    return Schema(tuple(_renumbered(f, ids) for f in schema.fields), tuple(ids[i] for i in schema.identifier_ids))


def folded(name: str) -> str:
    """DuckDB takes two names for one if they differ in the case of ASCII letters alone."""
    return name.translate(_LOWER)


def check_names(schema: Schema) -> None:
    """Whether DuckLake can have these columns by their names, and Iceberg can tell them apart."""
    for field in schema.fields:
        if folded(field.name) in RESERVED:
            raise ValueError(f"Column name {field.name} is reserved")
        if len(field.name.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"Column name {field.name} is longer than {MAX_NAME_BYTES} bytes")
    for siblings in _structs(schema):
        seen: dict[str, str] = {}
        for field in siblings:
            if not field.name:
                raise ValueError(f"Name of field {field.id} is empty")
            if "\0" in field.name or "\0" in (field.doc or ""):
                raise ValueError(f"Name or doc of field {field.id} has a NUL character, which Postgres cannot hold")
            if (other := seen.get(folded(field.name))) is not None:
                raise ValueError(f"Column names {other} and {field.name} are the same to DuckDB")
            seen[folded(field.name)] = field.name
    if twice := schema.ambiguous_name():
        raise ValueError(f"Column name {twice} is that of a column and of a part of a struct")


class _Parser:
    """Of one schema: it knows the ids that it has met."""

    def __init__(self) -> None:
        self.ids: set[int] = set()

    def fields(self, struct: JsonObject, depth: int) -> tuple[Field, ...]:
        return tuple(self._field(x, depth) for x in struct.parts("fields"))

    def _field(self, json: JsonObject, depth: int) -> Field:
        field_id, name = self._id(json, "id"), json.text("name")
        what = f"Field {field_id} ({shown(name)})"
        field = json.named(what)
        kind = self._type(field, "type", what, depth)
        required = _flag(field, "required", what)
        doc = field.text("doc") if field.has("doc") else None
        initial, write = (_default(field, x, what, kind) for x in ("initial-default", "write-default"))
        return Field(field_id, name, kind, required, doc, initial, write)

    def _type(self, owner: JsonObject, member: str, what: str, depth: int) -> Type:
        if isinstance(owner.value(member), str):
            with _told(what):
                return parse_primitive(owner.text(member))
        if depth == MAX_DEPTH:
            raise ValueError(f"Schema is nested deeper than {MAX_DEPTH} levels")
        nested = owner.part(member)
        match nested.text("type"):
            case "struct":
                return Struct(self.fields(nested, depth + 1))
            case "list":
                return List(self._part(nested, ELEMENT, what, depth + 1))
            case "map":
                key = self._part(nested, KEY, what, depth + 1)
                return Map(key, self._part(nested, VALUE, what, depth + 1))
            case other:
                raise ValueError(f"{what}: Unknown type: {shown(other)}")

    def _part(self, nested: JsonObject, name: str, what: str, depth: int) -> Field:
        """An element, key or value. Every key is required."""
        required = name == KEY or _flag(nested, f"{name}-required", what)
        part_id = self._id(nested, f"{name}-id")
        return Field(part_id, name, self._type(nested, name, f"{name.capitalize()} {part_id}", depth), required)

    def _id(self, owner: JsonObject, member: str) -> int:
        found = owner.int32(member)
        if found > MAX_FIELD_ID:
            raise ValueError(f"Field id {found} is one of those of metadata columns")
        if found in self.ids:
            raise ValueError(f"Field id {found} is there twice")
        self.ids.add(found)
        if len(self.ids) > MAX_FIELDS:
            raise ValueError(f"Schema has more than {MAX_FIELDS} fields")
        return found


def _flag(json: JsonObject, name: str, what: str) -> bool:
    match json.value(name):
        case bool(found):
            return found
        case _:
            raise ValueError(f"{what}: {name} must be true or false")


def _default(field: JsonObject, member: str, what: str, kind: Type) -> JsonValue | None:
    if not field.has(member):
        return None
    match kind:
        case str():
            with _told(f"{what}: {member}"):
                return parse_default(kind, field.value(member))
        case _:
            raise ValueError(f"{what}: {member} is not supported for nested types")


@contextmanager
def _told(what: str) -> Generator[None]:
    """What is wrong with a part, told with the name of the whole."""
    try:
        yield
    except ValueError as e:
        raise ValueError(f"{what}: {e}") from None


def _check_identifiers(schema: Schema) -> None:
    """As Java: whatever a row has none of, or what is never equal to itself, tells no rows apart."""
    above = {child.id: field for field in schema.walk() for child in field.children}
    fields = {field.id: field for field in schema.walk()}
    for field_id in schema.identifier_ids:
        field = fields.get(field_id)
        if field is None:
            raise ValueError(f"Identifier field {field_id} does not exist")
        if not isinstance(field.type, str) or field.type in _NO_IDENTIFIER:
            raise ValueError(f"Identifier field {field_id} ({field.name}) is of a type that tells no rows apart")
        part: Field | None = field
        while part is not None:
            if not part.required:
                raise ValueError(f"Identifier field {field_id} ({field.name}) may be missing: {part.name} is optional")
            part = above.get(part.id)
            if part is not None and not isinstance(part.type, Struct):
                raise ValueError(f"Identifier field {field_id} ({field.name}) is inside of the list or map {part.name}")


def _count(fields: tuple[Field, ...], found: dict[int, int], first: int) -> int:
    """The next id after them."""
    found.update({field.id: first + i for i, field in enumerate(fields)})
    after = first + len(fields)
    for field in fields:
        after = _count(field.children, found, after)
    return after


def _renumbered(field: Field, ids: Mapping[int, int]) -> Field:
    match field.type:
        case Struct(fields):
            kind = Struct(tuple(_renumbered(f, ids) for f in fields))
        case List(element):
            kind = List(_renumbered(element, ids))
        case Map(key, value):
            kind = Map(_renumbered(key, ids), _renumbered(value, ids))
        case primitive:
            kind = primitive
    return replace(field, id=ids[field.id], type=kind)


def _structs(schema: Schema) -> Iterator[tuple[Field, ...]]:
    """The fields of every struct, from the top."""
    yield schema.fields
    yield from (field.type.fields for field in schema.walk() if isinstance(field.type, Struct))
