"""How many rows, and how many deletes of rows in files, DuckLake keeps in Postgres, of many tables at once.

Each inlined table is counted by itself, many in one statement. Most of them are empty, since every change of a table's
columns makes another; and the size of a relation tells that without a look inside. Call it inside one REPEATABLE READ
transaction, as `inlined.py` says.
"""

from collections.abc import Sequence
from typing import Any, Final, LiteralString

from psycopg import sql

from mergus.ducklake.connect import Conn

COUNTED_AT_ONCE: Final = 50

# A relation without a page has no row, for whoever looks. One that is gone has no size: it has to fail the count.
# Looked up first and measured then, or Postgres might measure whatever else is in the schema.
INLINED: Final = """
    WITH found AS MATERIALIZED (
        SELECT i.table_id, i.table_name, r.oid FROM ducklake_inlined_data_tables i
        JOIN pg_class r ON r.relname = i.table_name
                       AND r.relnamespace = to_regnamespace(quote_ident(%(schema)s))
        WHERE i.table_id = ANY(%(ids)s)
    )
    SELECT table_id, table_name FROM found WHERE coalesce(pg_relation_size(oid), 1) > 0
"""
COUNT_ROWS: Final = """
    SELECT {id}::bigint, count(*) FILTER (WHERE end_snapshot IS NULL), count(end_snapshot) FROM {table}
"""

# Registered nowhere: known by their names.
INLINED_DELETES: Final = """
    WITH found AS MATERIALIZED (
        SELECT a.table_id, a.name, r.oid
        FROM unnest(%(ids)s::bigint[], %(names)s::text[]) AS a(table_id, name)
        JOIN pg_class r ON r.relname = a.name AND r.relnamespace = to_regnamespace(quote_ident(%(schema)s))
    )
    SELECT table_id, name FROM found WHERE coalesce(pg_relation_size(oid), 1) > 0
"""
COUNT_DELETES: Final = "SELECT {id}::bigint, file_id, count(DISTINCT row_id) FROM {table} GROUP BY file_id"


async def rows(conn: Conn, schema: str, ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """(table id, live rows, ended rows) of each inlined table that may have any."""
    named = await (await conn.execute(INLINED, {"schema": schema, "ids": ids})).fetchall()
    return await _count(conn, COUNT_ROWS, schema, named)


async def deletes(conn: Conn, schema: str, ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """(table id, file id, positions) of each file that has any."""
    names = [f"ducklake_inlined_delete_{table_id}" for table_id in ids]
    named = await (await conn.execute(INLINED_DELETES, {"schema": schema, "ids": ids, "names": names})).fetchall()
    return await _count(conn, COUNT_DELETES, schema, named)


async def _count(
    conn: Conn, statement: LiteralString, schema: str, tables: Sequence[tuple[Any, ...]]
) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for start in range(0, len(tables), COUNTED_AT_ONCE):
        parts = [
            sql.SQL(statement).format(id=sql.Literal(table_id), table=sql.Identifier(schema, name))
            for table_id, name in tables[start : start + COUNTED_AT_ONCE]
        ]
        rows = await (await conn.execute(sql.SQL(" UNION ALL ").join(parts))).fetchall()
        found += [(row[0], row[1], row[2]) for row in rows]
    return found
