"""Rows of `ducklake_column`: the schema of a table now and at every snapshot before.

A column's id is its Iceberg field id: it stays through renames and retypes and is never used again after a drop, so
both sides agree on what a value in an old file belongs to. DuckLake's `nulls_allowed` is right at the top level only
(adding or renaming a nested field writes false although NULLs are legal), so every nested field is optional.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mergus.ducklake.connect import Conn
from mergus.ducklake.types import iceberg_primitive, why_refused
from mergus.iceberg.schema import Field, List, Map, Schema, Struct, Type

READ: Final = """
    SELECT column_id, begin_snapshot, end_snapshot, column_name, column_type, nulls_allowed, parent_column
    FROM ducklake_column WHERE table_id = %(table_id)s ORDER BY column_order, begin_snapshot
"""
READ_COMMENTS: Final = """
    SELECT column_id, begin_snapshot, end_snapshot, value FROM ducklake_column_tag
    WHERE table_id = %(table_id)s AND key = 'comment' AND value IS NOT NULL
"""


class Unrepresentable(Exception):
    """A column that Iceberg cannot hold, by its full name, and the reason."""

    def __init__(self, column: str, ducklake_type: str) -> None:
        super().__init__(f"column {column} of type {ducklake_type}: {why_refused(ducklake_type)}")


@dataclass(frozen=True, slots=True)
class Span:
    """When a row holds: from `begin` up to but without `end`."""

    begin: int
    end: int | None

    def at(self, snapshot_id: int) -> bool:
        return self.begin <= snapshot_id and (self.end is None or snapshot_id < self.end)


@dataclass(frozen=True, slots=True)
class Column:
    id: int
    span: Span
    name: str
    type: str
    nulls_allowed: bool
    parent: int | None


@dataclass(frozen=True, slots=True)
class Comment:
    column_id: int
    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Columns:
    """All rows that a table ever had, in column order."""

    columns: Sequence[Column]
    comments: Sequence[Comment] = ()

    def schema_at(self, snapshot_id: int) -> Schema:
        """Raises Unrepresentable for a type that Iceberg does not have."""
        children: defaultdict[int | None, list[Column]] = defaultdict(list)
        for column in self.columns:
            if column.span.at(snapshot_id):
                children[column.parent].append(column)
        docs = {c.column_id: c.text for c in self.comments if c.span.at(snapshot_id)}
        return Schema(tuple(_field(c, children, docs, ()) for c in children[None]))

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

    def _turning_points(self) -> set[int]:
        spans: Iterable[Span] = [*(c.span for c in self.columns), *(c.span for c in self.comments)]
        return {point for span in spans for point in (span.begin, span.end) if point is not None}


def _field(
    column: Column, children: dict[int | None, list[Column]], docs: dict[int, str], above: tuple[str, ...]
) -> Field:
    path = (*above, column.name)
    parts = tuple(_field(c, children, docs, path) for c in children.get(column.id, []))
    required = not column.nulls_allowed and not above
    return Field(column.id, column.name, _type(column, parts, path), required, docs.get(column.id))


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
                raise Unrepresentable(".".join(path), column.type)
            return primitive


async def read(conn: Conn, table_id: int) -> Columns:
    rows = await (await conn.execute(READ, {"table_id": table_id})).fetchall()
    tags = await (await conn.execute(READ_COMMENTS, {"table_id": table_id})).fetchall()
    return Columns(
        [Column(i, Span(begin, end), name, kind, nulls, parent) for i, begin, end, name, kind, nulls, parent in rows],
        [Comment(i, Span(begin, end), text) for i, begin, end, text in tags],
    )
