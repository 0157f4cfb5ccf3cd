"""Rows of `ducklake_column`: the schema of a table now and at every snapshot before.

A column's id is its Iceberg field id: it stays through renames and retypes and is never used again after a drop, so
both sides agree on what a value in an old file belongs to. DuckLake's `nulls_allowed` is right at the top level only
(adding or renaming a nested field writes false although NULLs are legal), so every nested field is optional.

Two defaults go with a column. `initial_default` is what rows of a file without the column have, as DuckDB prints a
value of the type that the column had when it came; `default_value` is what the next INSERT puts, as somebody typed it.
The first must be shown exactly or the table not at all; the second is left out where its text is not plain.

DuckDB allows changes of type that Iceberg readers cannot follow in files that are there already: `retypes` lists them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeAlias

from mergus.ducklake.connect import Conn
from mergus.ducklake.types import iceberg_primitive, why_refused
from mergus.iceberg import schema_change, values
from mergus.iceberg.schema import Field, JsonValue, List, Map, Schema, Struct, Type, value_json
from mergus.iceberg.schema_parse import MAX_DEPTH

READ: Final = """
    SELECT column_id, begin_snapshot, end_snapshot, column_name, column_type, nulls_allowed, parent_column,
           initial_default, default_value, default_value_type
    FROM ducklake_column WHERE table_id = %(table_id)s ORDER BY column_order, begin_snapshot
"""
READ_COMMENTS: Final = """
    SELECT column_id, begin_snapshot, end_snapshot, value FROM ducklake_column_tag
    WHERE table_id = %(table_id)s AND key = 'comment' AND value IS NOT NULL
"""

# Columns with a default that are not in every file: DuckLake has statistics of each column that a file has.
READ_LACKING: Final = """
    SELECT DISTINCT c.column_id FROM ducklake_column c
    WHERE c.table_id = %(table_id)s AND c.initial_default IS NOT NULL AND EXISTS (
        SELECT FROM ducklake_data_file f WHERE f.table_id = c.table_id AND NOT EXISTS (
            SELECT FROM ducklake_file_column_stats s
            WHERE s.table_id = f.table_id AND s.data_file_id = f.data_file_id AND s.column_id = c.column_id))
"""

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_WIDENED: Final = ("int", "long")
_PROMOTIONS: Final = frozenset({_WIDENED, ("float", "double")})
# DuckDB's text of a blob: printable ASCII, anything else as \xHH
_BLOB_PART: Final = re.compile(r"\\x([0-9A-Fa-f]{2})|([ -\[\]-~])")


class Unrepresentable(Exception):
    """Something that Iceberg cannot hold, or would show wrong: what it is, and the reason.

    `can_hide` says that the rest of the table can be shown without it.
    """

    def __init__(self, what: str, reason: str, *, can_hide: bool = False) -> None:
        super().__init__(f"{what}: {reason}")
        self.can_hide = can_hide


# From each snapshot on at which they changed, what a table's columns were: a schema, or why there is none.
Timeline: TypeAlias = list[tuple[int, "Schema | Unrepresentable"]]


@dataclass(frozen=True, slots=True)
class Span:
    """When a row holds: from `begin` up to but without `end`."""

    begin: int
    end: int | None

    def at(self, snapshot_id: int) -> bool:
        return self.begin <= snapshot_id and (self.end is None or snapshot_id < self.end)


@dataclass(frozen=True, slots=True)
class Column:
    """Defaults are None where there is none; `default_value` is the text NULL as well."""

    id: int
    span: Span
    name: str
    type: str
    nulls_allowed: bool
    parent: int | None
    initial_default: str | None = None
    default_value: str | None = None
    default_type: str | None = None


@dataclass(frozen=True, slots=True)
class Comment:
    column_id: int
    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Retype:
    """A column whose files from before Iceberg readers cannot read as what it is since."""

    column_id: int
    snapshot_id: int
    name: str
    old: str
    new: str

    def affects(self, at: int, begin: int, *, rewritten: bool) -> bool:
        """Whether a file that begins at `begin` may have the old type, read under the schema at `at`.

        A file of the very snapshot of the retype may have been written before it, in the same transaction. And a
        file that DuckLake rewrote (one without `row_id_start`) keeps the types of its sources, however late it begins.
        """
        return self.snapshot_id <= at and (rewritten or begin <= self.snapshot_id)

    def __str__(self) -> str:
        return f"column {self.name} was changed from {self.old} to {self.new} at snapshot {self.snapshot_id}"


@dataclass(frozen=True, slots=True)
class Columns:
    """All rows that a table ever had, in column order.

    `lacking` are columns that some file does not have although they are as old as the table: the file was added
    without them, or inserted before them by the very transaction that created the table.

    With `hides`, schemas leave out each top-level column that Iceberg cannot hold, whole, for as long as it cannot.
    """

    columns: Sequence[Column]
    comments: Sequence[Comment] = ()
    lacking: frozenset[int] = frozenset()
    hides: bool = False

    def schema_at(self, snapshot_id: int) -> Schema:
        """Raises Unrepresentable for a type that Iceberg does not have, or a default that it cannot express."""
        fields, refused = self._fields_at(snapshot_id)
        for why in refused.values():
            if not self.hides or not fields:
                raise why
        schema = Schema(tuple(fields))
        if twice := schema.ambiguous_name():
            raise Unrepresentable(f"column {twice}", "Iceberg knows it and a part of a struct by the same name")
        return schema

    def hidden_at(self, snapshot_id: int) -> list[Column]:
        """The top-level columns that the schema of a snapshot leaves out."""
        return list(self._fields_at(snapshot_id)[1]) if self.hides else []

    def shown_by(self, schema: Schema) -> "Columns":
        """Without the rows, at any snapshot, of columns that this schema leaves out."""
        if not self.hides:
            return self
        parents = {c.id: c.parent for c in self.columns}
        shown = {field.id for field in schema.fields}

        def top(column_id: int) -> int:
            parent = parents.get(column_id)
            return column_id if parent is None else top(parent)

        return replace(self, columns=[c for c in self.columns if top(c.id) in shown])

    def _fields_at(self, snapshot_id: int) -> tuple[list[Field], dict[Column, Unrepresentable]]:
        """The top-level columns that Iceberg can hold, and the reason for each of the others."""
        children: defaultdict[int | None, list[Column]] = defaultdict(list)
        for column in self.columns:
            if column.span.at(snapshot_id):
                children[column.parent].append(column)
        docs = {c.column_id: c.text for c in self.comments if c.span.at(snapshot_id)}
        builder = _Builder(children, docs, _late(self.columns) | self.lacking)
        fields: list[Field] = []
        refused: dict[Column, Unrepresentable] = {}
        for column in children[None]:
            try:
                fields.append(builder.field(column, ()))
            except Unrepresentable as e:
                refused[column] = e
        return fields, refused

    def history(self, until: int | None = None) -> list[tuple[int, Schema]]:
        """Each schema that the table had, with the snapshot at which it came; two in a row are never equal."""
        found: list[tuple[int, Schema]] = []
        for snapshot_id in sorted(self._turning_points()):
            if until is not None and snapshot_id > until:
                break
            schema = self.schema_at(snapshot_id)
            if schema.fields and not (found and found[-1][1] == schema):
                found.append((snapshot_id, schema))
        return found

    def timeline(self) -> Timeline:
        """Oldest first."""
        found: Timeline = []
        for snapshot_id in sorted(self._turning_points()):
            try:
                found.append((snapshot_id, self.schema_at(snapshot_id)))
            except Unrepresentable as e:
                found.append((snapshot_id, e))
        return found

    def reshaped(self, turns: Timeline) -> list[int]:
        """The snapshots from which on older rows show something else: a column came that they have a default for, or
        one went that Iceberg has no type for, or a hidden one has got a type that Iceberg has."""
        shown_again = {
            point
            for (_, old), (point, new) in pairwise(turns)
            if isinstance(new, Schema) and (not isinstance(old, Schema) or self._uncovers(old, point, new))
        }
        late = _late(self.columns)
        born: dict[int, int] = {}
        for c in self.columns:
            if c.id in late and c.parent is None and c.initial_default is not None:
                born[c.id] = min(c.span.begin, born.get(c.id, c.span.begin))
        return sorted({*born.values(), *shown_again})

    def _uncovers(self, old: Schema, point: int, new: Schema) -> bool:
        """Whether a column is in the second schema only, from that snapshot on, which was there before."""
        came = {field.id for field in new.fields} - {field.id for field in old.fields}
        return bool(came) and any(c.id in came and c.span.end == point for c in self.columns)

    def turns_of(self, ids: Iterable[int]) -> list[int]:
        """The snapshots at which these columns were dropped or got another type."""
        wanted = frozenset(ids)
        next_types = {(c.id, c.span.begin): c.type for c in self.columns if c.id in wanted}
        ended = [(c, c.span.end) for c in self.columns if c.id in wanted and c.span.end is not None]
        return [end for c, end in ended if next_types.get((c.id, end)) != c.type]

    def retypes(self) -> list[Retype]:
        """Those that Iceberg has no promotion for, oldest first. Not those into a type that Iceberg does not have:
        no schema has the column before it is changed again."""
        found = [
            Retype(new.id, new.span.begin, new.name, old.type, new.type)
            for old, new in self._versions()
            if not promotes(old.type, new.type) and iceberg_primitive(new.type) is not None
        ]
        return sorted(found, key=lambda r: (r.snapshot_id, r.column_id))

    def widens_integers(self) -> bool:
        """Whether files may have ints where the table has longs. DuckDB annotates them in Parquet, and so Spark's
        vectorised reader (Iceberg 1.11) fails: such a table needs `read.parquet.vectorization.enabled=false`."""
        return any((iceberg_primitive(a.type), iceberg_primitive(b.type)) == _WIDENED for a, b in self._versions())

    def _versions(self) -> Iterator[tuple[Column, Column]]:
        """Each row of a column with the one that took its place."""
        rows: defaultdict[int, list[Column]] = defaultdict(list)
        for column in sorted(self.columns, key=lambda c: c.span.begin):
            rows[column.id].append(column)
        return (pair for versions in rows.values() for pair in pairwise(versions))

    def _turning_points(self) -> set[int]:
        spans = [row.span for row in (*self.columns, *self.comments)]
        return {point for span in spans for point in (span.begin, span.end) if point is not None}


def _late(columns: Iterable[Column]) -> frozenset[int]:
    """The ids of columns younger than the table: there may be files from before them."""
    born: dict[int, int] = {}
    for column in columns:
        born[column.id] = min(column.span.begin, born.get(column.id, column.span.begin))
    first = min(born.values(), default=0)
    return frozenset(i for i, begin in born.items() if begin > first)


@dataclass(frozen=True, slots=True)
class _Builder:
    """One schema, from the rows of one snapshot."""

    children: Mapping[int | None, Sequence[Column]]
    docs: Mapping[int, str]
    with_initial_default: frozenset[int]

    def field(self, column: Column, above: tuple[str, ...]) -> Field:
        path = (*above, column.name)
        if len(path) > MAX_DEPTH:
            reason = f"it is nested deeper than {MAX_DEPTH} levels"
            raise Unrepresentable(f"column {path[0]}", reason, can_hide=True)
        parts = tuple(self.field(c, path) for c in self.children.get(column.id, ()))
        required = not column.nulls_allowed and not above
        kind = _type(column, parts, path)
        initial = self._initial_default(column, path)
        return Field(column.id, column.name, kind, required, self.docs.get(column.id), initial, _write_default(column))

    def _initial_default(self, column: Column, path: tuple[str, ...]) -> JsonValue | None:
        text = column.initial_default
        if text is None or column.id not in self.with_initial_default:
            return None
        value = default_json(column.type, text)
        if value is None:
            reason = f"Iceberg has no form for its default {text!r}, which rows from before it was added have"
            raise Unrepresentable(_named(column, path), reason, can_hide=True)
        return value


def _write_default(column: Column) -> JsonValue | None:
    text = column.default_value
    # to DuckDB the text NULL is no default, even for a string
    if text is None or text == "NULL" or column.default_type != "literal":
        return None
    return default_json(column.type, text)


def default_json(ducklake_type: str, text: str) -> JsonValue | None:
    """The value of this text in Iceberg's JSON; None if the text is not plainly one value, or has no such form."""
    primitive = iceberg_primitive(ducklake_type)
    value = _value(ducklake_type, text)
    return None if primitive is None or value is None else value_json(primitive, value)


def _value(ducklake_type: str, text: str) -> int | float | bytes | str | None:
    if counted := values.counted(ducklake_type.replace(" ", "")):
        return counted.read(text)
    match ducklake_type:
        case "varchar" | "json":
            return text
        case "float32":
            return values.read_float32(text)
        case "float64":
            return values.read_float64(text)
        case "uuid":
            return values.read_uuid(text)
        case "blob":
            return _read_blob(text)
        case _:
            return None


def _read_blob(text: str) -> bytes | None:
    parts = list(_BLOB_PART.finditer(text))
    if sum(len(part[0]) for part in parts) != len(text):
        return None
    return b"".join(bytes.fromhex(part[1]) if part[1] else part[2].encode() for part in parts)


def promotes(old: str, new: str) -> bool:
    """Whether Iceberg readers read a file of one DuckLake type as the other."""
    if old == new:
        return True
    before, after = iceberg_primitive(old), iceberg_primitive(new)
    return before is not None and after is not None and schema_change.promotes(before, after)


def _type(column: Column, parts: tuple[Field, ...], path: tuple[str, ...]) -> Type:
    match column.type, parts:
        case "struct", _:
            return Struct(parts)
        case "list", (element,):
            return List(element)
        case "map", (key, value):
            # an Iceberg key is never null, and neither is one of DuckDB's
            return Map(Field(key.id, key.name, key.type, required=True, doc=key.doc), value)
        case _:
            primitive = iceberg_primitive(column.type)
            if primitive is None:
                raise Unrepresentable(_named(column, path), why_refused(column.type), can_hide=True)
            return primitive


def _named(column: Column, path: tuple[str, ...]) -> str:
    return f"column {'.'.join(path)} of type {column.type}"


async def read(conn: Conn, table_id: int) -> Columns:
    """Call inside a REPEATABLE READ transaction: one state of the lake."""
    key = {"table_id": table_id}
    rows = await (await conn.execute(READ, key)).fetchall()
    tags = await (await conn.execute(READ_COMMENTS, key)).fetchall()
    columns = [Column(i, Span(begin, end), *rest) for i, begin, end, *rest in rows]
    comments = [Comment(i, Span(begin, end), text) for i, begin, end, text in tags]
    lacking: frozenset[int] = frozenset()
    if {c.id for c in columns if c.initial_default is not None} - _late(columns):
        lacking = frozenset(i for (i,) in await (await conn.execute(READ_LACKING, key)).fetchall())
    return Columns(columns, comments, lacking)
