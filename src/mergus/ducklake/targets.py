"""Tables that maintenance is about: by id, with the names by which DuckDB's functions know them."""

from dataclasses import dataclass
from typing import Final

from psycopg import sql

from mergus.ducklake.connect import Conn
from mergus.ducklake.files import inlined_delete_table

TARGETS: Final = """
    SELECT t.table_id, s.schema_name, t.table_name
    FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
    WHERE t.end_snapshot IS NULL
      AND (%(schema_id)s::bigint IS NULL OR t.schema_id = %(schema_id)s::bigint)
      AND (%(table_id)s::bigint IS NULL OR t.table_id = %(table_id)s::bigint)
    ORDER BY t.table_id
"""
NAMED: Final = """
    SELECT table_id, schema_name, table_name FROM (
        SELECT DISTINCT ON (t.table_id) t.table_id, s.schema_name, t.table_name
        FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id
        WHERE t.table_id = ANY(%(ids)s) ORDER BY t.table_id, t.begin_snapshot DESC
    ) AS last
"""
SCHEMA_NAMES: Final = """
    SELECT DISTINCT ON (schema_id) schema_id, schema_name FROM ducklake_schema
    WHERE schema_id = ANY(%(ids)s) ORDER BY schema_id, begin_snapshot DESC
"""
ANY_ROW: Final = "SELECT EXISTS (SELECT FROM {})"
# One at a time looks after a table, whoever it is.
HOLD: Final = "SELECT pg_try_advisory_lock(hashtextextended('mergus upkeep ' || current_schema(), %(table_id)s))"
LET_GO: Final = "SELECT pg_advisory_unlock(hashtextextended('mergus upkeep ' || current_schema(), %(table_id)s))"


@dataclass(frozen=True, slots=True)
class Target:
    table_id: int
    schema: str
    table: str


async def read(conn: Conn, schema_id: int | None, table_id: int | None) -> list[Target]:
    """Those that live; of one schema, or one of them."""
    found = await conn.execute(TARGETS, {"schema_id": schema_id, "table_id": table_id})
    return [Target(*row) for row in await found.fetchall()]


async def named(conn: Conn, ids: list[int]) -> dict[int, Target]:
    """By their last names, if they have been dropped since."""
    found = await conn.execute(NAMED, {"ids": ids})
    return {row[0]: Target(*row) for row in await found.fetchall()}


async def schema_names(conn: Conn, ids: list[int]) -> dict[int, str]:
    """The same of schemas."""
    found = await conn.execute(SCHEMA_NAMES, {"ids": ids})
    return {row[0]: row[1] for row in await found.fetchall()}


async def has_inlined_deletes(conn: Conn, metadata_schema: str, table_id: int) -> bool:
    """Whether rows of its files are deleted in Postgres alone."""
    name = await inlined_delete_table(conn, metadata_schema, table_id)
    if name is None:
        return False
    row = await (await conn.execute(sql.SQL(ANY_ROW).format(name))).fetchone()
    return row is not None and bool(row[0])


async def hold(conn: Conn, table_id: int) -> bool:
    """For this session, until it lets go or ends; false if another has it."""
    row = await (await conn.execute(HOLD, {"table_id": table_id})).fetchone()
    return row is not None and bool(row[0])


async def let_go(conn: Conn, table_id: int) -> None:
    await conn.execute(LET_GO, {"table_id": table_id})
