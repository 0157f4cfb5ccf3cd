"""Rows of `ducklake_table`: the live tables of a schema, and what one of them is; making, renaming and ending one.

A name is compared as DuckDB compares it, without regard to the case of ASCII letters, and tables share their names with
views. Postgres has no constraint that would do it for us (H40): a clash is looked for under the lock.
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from psycopg import sql

from mergus.ducklake import inlined_tables, schemas
from mergus.ducklake.changes import created_table, dropped_table
from mergus.ducklake.commit import Commit
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

FIND_CLASH: Final = """
    SELECT kind, name FROM (
        SELECT 'table' AS kind, table_name AS name FROM ducklake_table
        WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
        UNION ALL
        SELECT 'view', view_name FROM ducklake_view WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
    ) AS content
    WHERE lower(name COLLATE "C") = lower(%(name)s COLLATE "C") LIMIT 1
"""

INSERT: Final = """
    INSERT INTO ducklake_table
    VALUES (%(table_id)s, %(uuid)s, %(snapshot_id)s, NULL, %(schema_id)s, %(name)s, %(path)s, %(relative)s)
"""

END: Final = """
    UPDATE ducklake_table SET end_snapshot = %(snapshot_id)s WHERE table_id = %(table_id)s AND end_snapshot IS NULL
"""

# What ends with a table, and which column says whose it is. Statistics and inlined rows stay as they are.
END_ROWS: Final = "UPDATE {rows} SET end_snapshot = %(snapshot_id)s WHERE {of} = %(table_id)s AND end_snapshot IS NULL"
ROWS_OF_A_TABLE: Final = {
    "ducklake_table": "table_id",
    "ducklake_partition_info": "table_id",
    "ducklake_column": "table_id",
    "ducklake_column_tag": "table_id",
    "ducklake_data_file": "table_id",
    "ducklake_delete_file": "table_id",
    "ducklake_tag": "object_id",
    "ducklake_sort_info": "table_id",
}

# One row for a table and a snapshot, however many changes of the table the snapshot holds.
INSERT_SCHEMA_VERSION: Final = """
    INSERT INTO ducklake_schema_versions SELECT %(snapshot_id)s, %(schema_version)s, %(table_id)s
    WHERE NOT EXISTS (SELECT FROM ducklake_schema_versions
                      WHERE table_id = %(table_id)s AND begin_snapshot = %(snapshot_id)s)
"""


DIRECTORIES: Final = """
    SELECT (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL),
           s.path, s.path_is_relative, t.path, t.path_is_relative
    FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
    WHERE t.end_snapshot IS NULL AND t.table_id IS DISTINCT FROM %(except_for)s
"""


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


async def directories(conn: Conn, except_for: int | None) -> list[str]:
    """Of all live tables, where DuckLake has their files."""
    rows = await (await conn.execute(DIRECTORIES, {"except_for": except_for})).fetchall()
    return [TablePaths(row[0], Path(*row[1:3]), Path(*row[3:])).directory for row in rows]


async def next_row_id(conn: Conn, table_id: int) -> int:
    """The row id that the next row gets; a table that never had a row has no statistics."""
    row = await (await conn.execute(NEXT_ROW_ID, {"table_id": table_id})).fetchone()
    return 0 if row is None else int(row[0])


async def find_clash(conn: Conn, schema_id: int, name: str) -> str | None:
    """What has the name already, or one that DuckDB takes for it: "table x" or "view x". Ask under the lock."""
    row = await (await conn.execute(FIND_CLASH, {"schema_id": schema_id, "name": name})).fetchone()
    return None if row is None else f"{row[0]} {row[1]}"


async def create(tx: Commit, schema: schemas.Schema, name: str, uuid: UUID) -> int:
    """A table that has no columns yet, and so is none to DuckDB: `alter.write_columns` has to follow."""
    table_id = tx.next_catalog_id()
    await _insert(tx, table_id, uuid, schema, name, Path(schemas.directory(name, uuid), relative=True))
    tx.record(created_table(schema.name, name))
    await record_schema_version(tx, table_id)
    return table_id


async def rename(tx: Commit, table: Table, schema: schemas.Schema, name: str) -> None:
    """Its files stay where they are: in another schema, the table's path is not relative to that."""
    stays = schema.name == table.schema_name
    path = table.paths.table if stays else Path(table.paths.directory, relative=False)
    await tx.conn.execute(END, {"table_id": table.id, "snapshot_id": tx.snapshot_id})
    await _insert(tx, table.id, table.uuid, schema, name, path)
    tx.record(created_table(schema.name, name))
    await record_schema_version(tx, table.id)
    await inlined_tables.add(tx, table.id)


async def drop(tx: Commit, table_id: int) -> None:
    for rows, of in ROWS_OF_A_TABLE.items():
        statement = sql.SQL(END_ROWS).format(rows=sql.Identifier(rows), of=sql.Identifier(of))
        await tx.conn.execute(statement, {"table_id": table_id, "snapshot_id": tx.snapshot_id})
    tx.record(dropped_table(table_id))


async def record_schema_version(tx: Commit, table_id: int) -> None:
    """Says that the table looks different from this snapshot on, which tells what inlined rows of it mean."""
    row = {"snapshot_id": tx.snapshot_id, "schema_version": tx.altered_schema_version, "table_id": table_id}
    await tx.conn.execute(INSERT_SCHEMA_VERSION, row)


async def _insert(tx: Commit, table_id: int, uuid: UUID, schema: schemas.Schema, name: str, path: Path) -> None:
    await tx.conn.execute(
        INSERT,
        {
            "table_id": table_id,
            "uuid": uuid,
            "snapshot_id": tx.snapshot_id,
            "schema_id": schema.schema_id,
            "name": name,
            "path": path.text,
            "relative": path.relative,
        },
    )
