"""Rows that DuckLake keeps in Postgres instead of in files.

Small inserts go into a table `ducklake_inlined_data_{table}_{version}`: row id, begin and end snapshot, and then the
table's top-level columns by the names that they had at that schema version. Every change of the columns makes another
such table, and rows stay where they were put, so that several can hold live rows of one table (H4). An update ends a
row and adds one of the same row id (H2).

Which columns stand behind the names is a matter of truth. The extension takes those at the snapshot that
`ducklake_schema_versions` has for the version, else those that the table was created with. The latter is wrong for an
inlined table that was made late, by the first small insert, for its version is in no row there: a fresh DuckDB session
then shows defaults instead of values, or breaks. We take the newest version that is not after it, and insist that the
names are those that Postgres has.

All of this is about one state of the lake: call it inside one REPEATABLE READ transaction, and end that soon, since a
flush waits with dropping an inlined table that somebody reads. One query for each inlined table, at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import sql

from mergus.ducklake.columns import Column, Columns
from mergus.ducklake.connect import Conn
from mergus.iceberg.schema_parse import folded

# From pg_class as this transaction sees it, not from to_regclass: a table that a flush has dropped meanwhile is to
# fail the query for its rows. If it were only left out, its rows would be missing from a state that still has them.
TABLES: Final = """
    SELECT i.table_name, i.schema_version,
           coalesce(
               (SELECT v.begin_snapshot FROM ducklake_schema_versions v
                WHERE v.table_id = i.table_id AND v.schema_version <= i.schema_version
                ORDER BY v.schema_version DESC, v.begin_snapshot DESC LIMIT 1),
               (SELECT min(t.begin_snapshot) FROM ducklake_table t WHERE t.table_id = i.table_id)
           ),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
    FROM ducklake_inlined_data_tables i
    JOIN pg_class r ON r.relname = i.table_name
    JOIN pg_namespace n ON n.oid = r.relnamespace AND n.nspname = %(schema)s
    WHERE i.table_id = %(table_id)s ORDER BY i.schema_version
"""
READ: Final = """
    SELECT {columns} FROM {table}
    WHERE begin_snapshot > %(after)s AND begin_snapshot <= %(upto)s
      AND begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s)
    ORDER BY begin_snapshot, row_id
"""
ENDED: Final = """
    SELECT row_id, begin_snapshot FROM {table} WHERE end_snapshot > %(after)s AND end_snapshot <= %(upto)s
"""
KEYS: Final = """
    SELECT row_id, begin_snapshot FROM {table}
    WHERE begin_snapshot > %(after)s AND begin_snapshot <= %(upto)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s)
"""
LIVE: Final = """
    SELECT count(*), min(begin_snapshot), max(begin_snapshot) FROM {table}
    WHERE begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s)
"""

SYSTEM_COLUMNS: Final = ("row_id", "begin_snapshot", "end_snapshot")

# Fetched in Postgres's own binary form, which loses nothing whatever a role's settings are. All others come as text:
# most are text in Postgres already, and Python has no time of 24:00 and no other use for decimals and UUIDs.
FETCHED_AS_THEY_ARE: Final = frozenset(
    {"boolean", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64"}
    | {"varchar", "json", "blob"}  # bytes
)

Value = bool | int | float | bytes | str | None


class Unreadable(Exception):
    """Inlined rows that cannot be shown as what they are: the column (or the inlined table), and the reason."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"inlined rows, {column}: {reason}")
        self.column = column
        self.reason = reason


@dataclass(frozen=True, slots=True)
class InlinedTable:
    name: str
    schema_version: int
    since: int  # a snapshot at which the lake's table has the columns that this one has
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one inlined table, in the order of begin snapshots and row ids.

    `values` has a list for each of `columns`, the top-level ones at snapshot `since`. Values are as Postgres holds
    them: texts and JSON as UTF-8 bytes, everything nested as DuckDB's text.
    """

    since: int
    columns: tuple[Column, ...]
    row_ids: list[int]
    begin_snapshots: list[int]
    values: list[list[Value]]


@dataclass(frozen=True, slots=True)
class Live:
    """How many rows are visible, and the first and the last snapshot that put some of them there."""

    count: int
    first_begin: int | None
    last_begin: int | None


async def tables(conn: Conn, schema: str, table_id: int) -> list[InlinedTable]:
    """In the order of their versions, with or without rows."""
    found = await (await conn.execute(TABLES, {"schema": schema, "table_id": table_id})).fetchall()
    return [
        InlinedTable(name, version, since, tuple(names[len(SYSTEM_COLUMNS) :])) for name, version, since, names in found
    ]


async def read(
    conn: Conn, schema: str, columns: Columns, tables: Sequence[InlinedTable], *, after: int, upto: int, at: int
) -> list[Batch]:
    """What is visible at `at` of the rows that came after `after` and up to `upto`; no batch is empty.

    Raises Unreadable if an inlined table has rows and not the columns that it should have.
    """
    batches: list[Batch] = []
    for table in tables:
        top = _top_level(columns, table)
        fetched = [sql.Identifier(name) for name in SYSTEM_COLUMNS[:2]]
        query = sql.SQL(READ).format(
            table=sql.Identifier(schema, table.name),
            columns=sql.SQL(", ").join([*fetched, *map(_fetched, table.columns, top or ())]),
        )
        cursor = await conn.execute(query, {"after": after, "upto": upto, "at": at}, binary=True)
        rows: list[tuple[Any, ...]] = await cursor.fetchall()
        if not rows:
            continue
        if top is None:
            raise Unreadable(table.name, f"its columns are not those of the table at snapshot {table.since}")
        row_ids, begins, *values = (list(column) for column in zip(*rows, strict=True))
        batches.append(Batch(table.since, top, row_ids, begins, values))
    return batches


async def ended(
    conn: Conn, schema: str, tables: Sequence[InlinedTable], *, after: int, upto: int
) -> list[tuple[int, int]]:
    """Row id and begin snapshot of each row that ended after `after` and up to `upto`, in the order of their keys."""
    rows = await _over_all(conn, ENDED, schema, tables, {"after": after, "upto": upto})
    return sorted((row_id, begin) for row_id, begin in rows)


async def live_begins(conn: Conn, schema: str, tables: Sequence[InlinedTable], *, at: int) -> Live:
    rows = [row for row in await _over_all(conn, LIVE, schema, tables, {"at": at}) if row[0]]
    if not rows:
        return Live(0, None, None)
    counts, firsts, lasts = zip(*rows, strict=True)
    return Live(sum(counts), min(firsts), max(lasts))


async def keys(
    conn: Conn, schema: str, tables: Sequence[InlinedTable], *, after: int, upto: int, at: int
) -> set[tuple[int, int]]:
    """Row id and begin snapshot of what is visible at `at` of the rows that came after `after` and up to `upto`."""
    rows = await _over_all(conn, KEYS, schema, tables, {"after": after, "upto": upto, "at": at})
    return {(row_id, begin) for row_id, begin in rows}


def _top_level(columns: Columns, table: InlinedTable) -> tuple[Column, ...] | None:
    """The columns behind the names, or None where they are not known.

    The extension quotes a name only if it must for DuckDB, so Postgres has folded the case of most. In the lake no two
    names differ in nothing but that.
    """
    top = {folded(c.name): c for c in columns.columns if c.parent is None and c.span.at(table.since)}
    names = [folded(name) for name in table.columns]
    return tuple(top[name] for name in names) if top.keys() == set(names) else None


def _fetched(name: str, column: Column) -> sql.Composable:
    # the client library takes a percent sign for a parameter, wherever it stands
    fetched = sql.Identifier(name.replace("%", "%%"))
    return sql.SQL("{}" if column.type in FETCHED_AS_THEY_ARE else "{}::text").format(fetched)


async def _over_all(
    conn: Conn, query: LiteralString, schema: str, tables: Sequence[InlinedTable], key: dict[str, int]
) -> list[tuple[Any, ...]]:
    if not tables:
        return []
    parts = [sql.SQL(query).format(table=sql.Identifier(schema, table.name)) for table in tables]
    return await (await conn.execute(sql.SQL(" UNION ALL ").join(parts), key)).fetchall()
