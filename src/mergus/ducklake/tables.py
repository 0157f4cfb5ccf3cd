"""Rows of `ducklake_table`: the live tables of a schema."""

from typing import Final

from mergus.ducklake.connect import Conn

LIST: Final = """
    SELECT table_name FROM ducklake_table
    WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
      AND (%(after)s::text IS NULL OR table_name COLLATE "C" > %(after)s::text)
    ORDER BY table_name COLLATE "C" LIMIT %(limit)s
"""

EXISTS: Final = """
    SELECT EXISTS (SELECT FROM ducklake_table
                   WHERE schema_id = %(schema_id)s AND table_name = %(name)s AND end_snapshot IS NULL)
"""


async def list_names(conn: Conn, schema_id: int, after: str | None, limit: int | None) -> list[str]:
    """In byte order."""
    found = await conn.execute(LIST, {"schema_id": schema_id, "after": after, "limit": limit})
    return [row[0] for row in await found.fetchall()]


async def exists(conn: Conn, schema_id: int, name: str) -> bool:
    row = await (await conn.execute(EXISTS, {"schema_id": schema_id, "name": name})).fetchone()
    return row is not None and bool(row[0])
