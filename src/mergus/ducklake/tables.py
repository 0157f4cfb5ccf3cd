"""Rows of `ducklake_table`: the live tables of a schema, and what one of them is."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mergus.ducklake.connect import Conn
from mergus.ducklake.paths import Path, TablePaths

LIST: Final = """
    SELECT table_name FROM ducklake_table
    WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
      AND (%(after)s::text IS NULL OR table_name COLLATE "C" > %(after)s::text)
    ORDER BY table_name COLLATE "C" LIMIT %(limit)s
"""

FIND: Final = """
    SELECT table_id FROM ducklake_table
    WHERE schema_id = %(schema_id)s AND table_name = %(name)s AND end_snapshot IS NULL
"""

# A rename ends the row and adds one: `begin` is that of the oldest, where the table began.
READ: Final = """
    SELECT t.table_id, t.table_uuid, t.table_name, s.schema_name,
           (SELECT min(begin_snapshot) FROM ducklake_table WHERE table_id = t.table_id),
           (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL),
           s.path, s.path_is_relative, t.path, t.path_is_relative,
           (SELECT value FROM ducklake_tag
            WHERE object_id = t.table_id AND key = 'comment' AND end_snapshot IS NULL)
    FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
    WHERE t.table_id = %(table_id)s AND t.end_snapshot IS NULL
"""

NEXT_ROW_ID: Final = "SELECT next_row_id FROM ducklake_table_stats WHERE table_id = %(table_id)s"

LIVE: Final = "SELECT table_id FROM ducklake_table WHERE end_snapshot IS NULL ORDER BY table_id DESC"
BEGUN: Final = "SELECT table_id FROM ducklake_table WHERE end_snapshot IS NULL AND begin_snapshot > %(after)s"


@dataclass(frozen=True, slots=True)
class Table:
    id: int
    uuid: UUID
    name: str
    schema_name: str
    begin: int
    paths: TablePaths
    comment: str | None


async def list_names(conn: Conn, schema_id: int, after: str | None, limit: int | None) -> list[str]:
    """In byte order."""
    found = await conn.execute(LIST, {"schema_id": schema_id, "after": after, "limit": limit})
    return [row[0] for row in await found.fetchall()]


async def find(conn: Conn, schema_id: int, name: str) -> int | None:
    """The id of the live table of this name."""
    row = await (await conn.execute(FIND, {"schema_id": schema_id, "name": name})).fetchone()
    return None if row is None else int(row[0])


async def live(conn: Conn) -> list[int]:
    """Of the whole catalog, the newest first."""
    return [row[0] for row in await (await conn.execute(LIVE)).fetchall()]


async def begun(conn: Conn, after: int) -> list[int]:
    """Those that were made or renamed since a snapshot."""
    return [row[0] for row in await (await conn.execute(BEGUN, {"after": after})).fetchall()]


async def read(conn: Conn, table_id: int) -> Table | None:
    """As it is now; None if it has been dropped."""
    row = await (await conn.execute(READ, {"table_id": table_id})).fetchone()
    if row is None:
        return None
    table_id, uuid, name, schema_name, begin, data_path, *paths, comment = row
    return Table(
        table_id, uuid, name, schema_name, begin, TablePaths(data_path, Path(*paths[:2]), Path(*paths[2:])), comment
    )


async def next_row_id(conn: Conn, table_id: int) -> int:
    """The row id that the next row gets; a table that never had a row has no statistics."""
    row = await (await conn.execute(NEXT_ROW_ID, {"table_id": table_id})).fetchone()
    return 0 if row is None else int(row[0])
