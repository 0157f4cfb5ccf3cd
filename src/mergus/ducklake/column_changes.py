"""Which rows of `ducklake_column` make a table look as an Iceberg schema says.

Only what differs between what clients are shown and what they want is translated, field by field, by id: a TINYINT
that is shown as `int` stays one for as long as nobody asks for another type. A row is never changed: it ends, and one
of the same id takes its place. What DuckLake has no room for is either left out, being of no consequence to a reader
(the order of columns, for DuckLake's is that of their ids; whether a nested field is required), or refused by name.

Whether a table may go from one schema to the other at all is `iceberg.schema_change`'s to say, before.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from mergus.ducklake.columns import Column, default_json
from mergus.ducklake.types import ducklake_type, iceberg_primitive, why_not_stored
from mergus.errors import Unsupported
from mergus.iceberg import values
from mergus.iceberg.schema import Field, JsonValue, List, Map, Schema, Struct, Type, value_json
from mergus.iceberg.schema_parse import folded
from mergus.iceberg.single_value import parse_value

# What DuckLake has for a column without a default.
NO_DEFAULT: Final = "NULL"

_BARE_IN_BLOBS: Final = frozenset(range(0x20, 0x7F)) - frozenset(b"\\'\"")


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """A row of `ducklake_column`, but for what is the same in all of one commit."""

    id: int
    name: str
    type: str
    initial_default: str | None
    default_value: str | None
    nulls_allowed: bool
    parent: int | None
    default_type: str | None


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """`ended` are the ids whose live rows end; those of columns that only change are in `inserted` again.

    `reshapes` says that rows have other columns than before, or columns of other names or types, on any level.
    `renamed` (from and to) and `dropped` (by id) are columns of the top level.
    """

    ended: tuple[int, ...] = ()
    inserted: tuple[ColumnRow, ...] = ()
    comments: Mapping[int, str | None] = field(default_factory=dict[int, str | None])
    reshapes: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    dropped: Mapping[int, str] = field(default_factory=dict[int, str])

    def __bool__(self) -> bool:
        return bool(self.ended or self.inserted or self.comments)


@dataclass(frozen=True, slots=True)
class _Place:
    """A field, the one that it is directly in, and the names from the top down to it, as DuckLake has them."""

    field: Field
    parent: int | None
    path: tuple[str, ...]

    def refused(self, reason: str) -> Unsupported:
        return Unsupported(f"Column {'.'.join(self.path)}: {reason}")


def created(schema: Schema) -> ColumnChanges:
    """Of a new table. Raises Unsupported for what DuckLake cannot hold."""
    places = _places(schema)
    return ColumnChanges(
        inserted=tuple(_new_row(place) for place in places.values()),
        comments={i: place.field.doc for i, place in places.items() if place.field.doc is not None},
        reshapes=True,
    )


def altered(live: Sequence[Column], current: Schema, wanted: Schema) -> ColumnChanges:
    """From `current`, which is what clients are shown of the `live` rows, to `wanted`.

    Shown is meant to the letter: of a table of format version 2 no write defaults, for a client's silence about one is
    taken for its wish. Raises Unsupported for what DuckLake cannot hold.
    """
    rows = {column.id: column for column in live}
    old, new = {f.id: f for f in current.walk()}, _places(wanted)
    gone = [rows[i] for i in old if i not in new]
    changed = {i: _changed_row(rows[i], old[i], place) for i, place in new.items() if i in old}
    changed = {i: row for i, row in changed.items() if row != row_of(rows[i])}
    added = [_new_row(place) for i, place in new.items() if i not in old]
    docs = {i: (old[i].doc if i in old else None, place.field.doc) for i, place in new.items()}
    renamed = {i: row for i, row in changed.items() if row.name != rows[i].name}
    retyped = [i for i, row in changed.items() if row.type != rows[i].type]
    return ColumnChanges(
        ended=tuple(sorted([*(column.id for column in gone), *changed])),
        inserted=(*changed.values(), *added),
        comments={i: doc for i, (before, doc) in docs.items() if doc != before},
        reshapes=bool(gone or added or renamed or retyped),
        renamed={rows[i].name: row.name for i, row in renamed.items() if row.parent is None},
        dropped={column.id: column.name for column in gone if column.parent is None},
    )


def default_text(ducklake_type: str, value: JsonValue) -> str | None:
    """As DuckDB writes a value of this type; None where it has no text that means this value and nothing else."""
    primitive = iceberg_primitive(ducklake_type)
    if primitive is None:
        return None
    try:
        exact = parse_value(primitive, value)
    except ValueError:
        return None
    text = _text(ducklake_type, exact)
    # to DuckDB the text NULL is no default, even for a string; and a text in Postgres has no zero character
    if text is None or text == NO_DEFAULT or "\0" in text:
        return None
    return text if default_json(ducklake_type, text) == value_json(primitive, exact) else None


def _text(ducklake_type: str, value: int | float | bytes | str) -> str | None:
    match ducklake_type, value:
        case "boolean", int():
            return str(bool(value)).lower()
        case "varchar", str():
            return value
        case "json", str():
            return value if _is_json(value) else None
        case "float32", float():
            return values.write_float32(value)
        case "float64", float():
            return values.write_float64(value)
        case "uuid", bytes():
            return str(UUID(bytes=value))
        case "blob", bytes():
            return "".join(chr(byte) if byte in _BARE_IN_BLOBS else f"\\x{byte:02X}" for byte in value)
        case _, int():
            counted = values.counted(ducklake_type.replace(" ", ""))
            return None if counted is None else counted.write(value)
        case _:
            return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _places(schema: Schema) -> dict[int, _Place]:
    """Of all fields by id, parents first. Raises Unsupported for names that DuckDB could not tell apart."""
    if not schema.fields:
        raise Unsupported("DuckLake has no table without columns")
    found: dict[int, _Place] = {}
    _place(schema.fields, None, (), found)
    return found


def _place(fields: Sequence[Field], parent: int | None, above: tuple[str, ...], found: dict[int, _Place]) -> None:
    taken: dict[str, str] = {}
    for f in fields:
        place = _Place(f, parent, (*above, f.name))
        if not f.name or "\0" in f.name:
            raise place.refused("DuckLake cannot keep this name")
        if other := taken.get(folded(f.name)):
            raise place.refused(f"DuckDB takes its name for that of {other}")
        taken[folded(f.name)] = f.name
        found[f.id] = place
        _place(_named_parts(place), f.id, place.path, found)


def _named_parts(place: _Place) -> tuple[Field, ...]:
    """By the names that DuckLake gives the parts of lists and maps."""
    match place.field.type:
        case Struct(()):
            raise place.refused("DuckDB has no struct without fields")
        case List(element):
            return (replace(element, name="element"),)
        case Map(key, value):
            return replace(key, name="key"), replace(value, name="value")
        case _:
            return place.field.children


def _new_row(place: _Place) -> ColumnRow:
    f = place.field
    kind = _stored_type(place)
    initial, default = (_default(place, kind, value) for value in (f.initial_default, f.write_default))
    # DuckLake's column of a nested type has no kind of default when it is new
    default_type = "literal" if isinstance(f.type, str) else ""
    nulls_allowed = place.parent is not None or not f.required
    return ColumnRow(f.id, f.name, kind, initial, default or NO_DEFAULT, nulls_allowed, place.parent, default_type)


def _changed_row(column: Column, old: Field, place: _Place) -> ColumnRow:
    row, new = row_of(column), place.field
    if new.name != column.name:
        row = replace(row, name=new.name)
    if isinstance(new.type, str) and isinstance(old.type, str) and new.type != old.type:
        stored = _stored_type(place)
        # two spellings of one type are no change
        row = row if stored == ducklake_type(old.type) else replace(row, type=stored)
    if new.required != old.required and place.parent is None:
        row = replace(row, nulls_allowed=not new.required)
    if new.write_default != old.write_default:
        default = _default(place, row.type, new.write_default) or NO_DEFAULT
        row = replace(row, default_value=default, default_type="literal")
    return row


def row_of(column: Column) -> ColumnRow:
    return ColumnRow(
        column.id,
        column.name,
        column.type,
        column.initial_default,
        column.default_value,
        column.nulls_allowed,
        column.parent,
        column.default_type,
    )


def _stored_type(place: _Place) -> str:
    kind = place.field.type
    if not isinstance(kind, str):
        return _nested_type(kind)
    stored = ducklake_type(kind)
    if stored is None:
        raise place.refused(f"its type {kind} cannot be kept: {why_not_stored(kind)}")
    return stored


def _nested_type(kind: Type) -> str:
    match kind:
        case List():
            return "list"
        case Map():
            return "map"
        case _:
            return "struct"


def _default(place: _Place, kind: str, value: JsonValue | None) -> str | None:
    text = None if value is None else default_text(kind, value)
    if value is not None and text is None:
        raise place.refused(f"DuckLake has no form for the default {value!r} of its type {kind}")
    return text
