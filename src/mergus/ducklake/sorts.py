"""Rows of `ducklake_sort_info` and `ducklake_sort_expression`: how a table wants its rows sorted.

DuckLake sorts by SQL expressions that hold names; when a column is renamed, DuckDB writes the sort anew. A plain name
is an Iceberg sort field, and what is sorted by a list of keys is sorted by the first few of them too: a sort is shown
up to the first key that is more than a name. The order's id is the sort's, which is never used twice and never 0.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mergus.ducklake.columns import Columns, Span
from mergus.ducklake.connect import Conn
from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_parse import folded
from mergus.iceberg.sort_order import UNSORTED, Direction, NullOrder, SortField, SortOrder, check_sort_order

# A table that was dropped and came back has a row for each time: to Iceberg it was never away.
READ: Final = """
    SELECT s.sort_id, s.begin_snapshot, s.end_snapshot, e.expression, e.dialect, e.sort_direction, e.null_order
    FROM (SELECT sort_id, table_id, min(begin_snapshot) AS begin_snapshot,
                 CASE WHEN bool_and(end_snapshot IS NOT NULL) THEN max(end_snapshot) END AS end_snapshot
          FROM ducklake_sort_info WHERE table_id = %(table_id)s GROUP BY sort_id, table_id) AS s
    LEFT JOIN ducklake_sort_expression e ON e.sort_id = s.sort_id AND e.table_id = s.table_id
    ORDER BY s.sort_id, e.sort_key_index
"""

_NAME: Final = re.compile(r'[^\W\d]\w*|"((?:[^"]|"")+)"')
_DIRECTIONS: Final[dict[str, Direction]] = {"ASC": "asc", "DESC": "desc"}
_NULL_ORDERS: Final[dict[str, NullOrder]] = {"NULLS_FIRST": "nulls-first", "NULLS_LAST": "nulls-last"}
# Not nested ones, and none whose order Iceberg does not define.
_UNSORTABLE: Final = frozenset({"variant", "geometry", "geography", "unknown"})


@dataclass(frozen=True, slots=True)
class Key:
    expression: str
    dialect: str
    direction: str
    null_order: str


@dataclass(frozen=True, slots=True)
class Sort:
    id: int
    span: Span
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Sorts:
    """All that a table ever had, oldest first."""

    sorts: Sequence[Sort] = ()

    def orders(self, columns: Columns, schema: Schema, given: Mapping[int, SortOrder] | None = None) -> list[SortOrder]:
        """Those that Iceberg can express by columns of this schema, that of no sorting before them. `given` are those
        that Iceberg's clients wrote."""
        kept = {i: order for i, order in (given or {}).items() if _holds(order, schema)}
        # what DuckLake has of them is no other order
        alike = {order.fields for order in kept.values()}
        translated = [SortOrder(s.id, _fields(s, columns, schema)) for s in self.sorts]
        found = {order.order_id: order for order in translated if order.fields and order.fields not in alike} | kept
        return [UNSORTED, *(order for _, order in sorted(found.items()))]

    def order_at(self, snapshot_id: int, orders: Sequence[SortOrder]) -> SortOrder:
        """The one of `orders` that was in force then."""
        live = {s.id for s in self.sorts if s.span.at(snapshot_id)}
        return next((order for order in orders if order.order_id in live), UNSORTED)

    def default_order(
        self, snapshot_id: int, orders: Sequence[SortOrder], chosen: Sequence[tuple[int, int]]
    ) -> SortOrder:
        """The one in force: as a client chose it last, from a snapshot on, unless DuckDB has since sorted otherwise."""
        since, order_id = chosen[-1] if chosen else (-1, -1)
        turns = {t for s in self.sorts for t in (s.span.begin, s.span.end) if t is not None and t <= snapshot_id}
        if not chosen or any(turn > since for turn in turns):
            return self.order_at(snapshot_id, orders)
        return next((order for order in orders if order.order_id == order_id), UNSORTED)


def _holds(order: SortOrder, schema: Schema) -> bool:
    try:
        check_sort_order(order, schema)
    except ValueError:
        return False
    return True


def _fields(sort: Sort, columns: Columns, schema: Schema) -> tuple[SortField, ...]:
    ids = {folded(c.name): c.id for c in columns.columns if c.parent is None and c.span.at(sort.span.begin)}
    sortable = {f.id for f in schema.fields if isinstance(f.type, str) and f.type not in _UNSORTABLE}
    found: dict[int, SortField] = {}
    for key in sort.keys:
        source = ids.get(folded(_column_name(key)))
        direction, null_order = _DIRECTIONS.get(key.direction), _NULL_ORDERS.get(key.null_order)
        if source not in sortable or direction is None or null_order is None:
            break
        # sorting again by the same column changes nothing
        found.setdefault(source, SortField(source, direction, null_order))
    return tuple(found.values())


def _column_name(key: Key) -> str:
    """Empty, as no column's name is, for anything more than a name."""
    match = _NAME.fullmatch(key.expression) if key.dialect == "duckdb" else None
    if match is None:
        return ""
    return match[0] if match[1] is None else match[1].replace('""', '"')


async def read(conn: Conn, table_id: int) -> Sorts:
    rows = await (await conn.execute(READ, {"table_id": table_id})).fetchall()
    spans = {sort_id: Span(begin, end) for sort_id, begin, end, *_ in rows}
    keys = [(sort_id, Key(*key)) for sort_id, _, _, *key in rows if key[0] is not None]
    return Sorts([Sort(i, span, tuple(key for owner, key in keys if owner == i)) for i, span in spans.items()])
