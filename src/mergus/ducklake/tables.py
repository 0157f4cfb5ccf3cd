"""Rows of `ducklake_table`: the tables of a schema, now or at an older snapshot, and what one of them is; making,
renaming and ending one.

A name is compared as DuckDB compares it, without regard to the case of ASCII letters, and tables share their names with
views. Postgres has no constraint that would do it for us (H40): a clash is looked for under the lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from psycopg import sql

from mergus.ducklake import inlined_tables, schemas
from mergus.ducklake.changes import created_table, dropped_table
from mergus.ducklake.columns import Span
from mergus.ducklake.commit import Commit
from mergus.ducklake.connect import Conn
from mergus.ducklake.paths import Path, TablePaths
from mergus.ducklake.visible import ListNames, timed

LIST: Final = timed("""
    SELECT table_name FROM ducklake_table
    WHERE schema_id = %(schema_id)s AND {visible}
      AND (%(after)s::text IS NULL OR table_name COLLATE "C" > %(after)s::text)
      AND (%(only)s::text[] IS NULL OR table_name = ANY(%(only)s::text[]))
    ORDER BY table_name COLLATE "C" LIMIT %(limit)s
""")
list_names: Final = ListNames(LIST)

FIND: Final = timed("""
    SELECT table_id FROM ducklake_table
    WHERE schema_id = %(schema_id)s AND table_name = %(name)s AND {visible}
""")

# A rename ends the row and adds one; so do a drop and an undrop, with a gap. The last row says what the table is, or
# was when it was dropped, and so does the comment that ends with it.
READ: Final = """
    SELECT t.table_id, t.table_uuid, t.table_name, s.schema_name,
           (SELECT array_agg(ARRAY[begin_snapshot, end_snapshot] ORDER BY begin_snapshot)
            FROM ducklake_table WHERE table_id = t.table_id),
           (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL),
           s.path, s.path_is_relative, t.path, t.path_is_relative,
           (SELECT value FROM ducklake_tag
            WHERE object_id = t.table_id AND key = 'comment' AND end_snapshot IS NOT DISTINCT FROM t.end_snapshot
            ORDER BY begin_snapshot LIMIT 1)
    FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id
    WHERE t.table_id = %(table_id)s ORDER BY t.end_snapshot DESC NULLS FIRST LIMIT 1
"""

NEXT_ROW_ID: Final = "SELECT next_row_id FROM ducklake_table_stats WHERE table_id = %(table_id)s"

EVERY: Final = "SELECT table_id FROM ducklake_table WHERE end_snapshot IS NULL ORDER BY table_id DESC"
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

WAS_THERE: Final = "SELECT EXISTS (SELECT FROM ducklake_table WHERE table_uuid = %(uuid)s)"
FIND_BY_UUID: Final = "SELECT table_id FROM ducklake_table WHERE table_uuid = %(uuid)s AND end_snapshot IS NULL"

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
    # when it was there, under one name or another, oldest first
    spans: Sequence[Span]
    paths: TablePaths
    comment: str | None

    @property
    def begin(self) -> int:
        return self.spans[0].begin

    @property
    def dropped_at(self) -> int | None:
        """None if it is there now."""
        ends = [span.end for span in self.spans]
        return None if None in ends else max(end for end in ends if end is not None)

    def was_there(self, snapshot_id: int) -> bool:
        return any(span.at(snapshot_id) for span in self.spans)


async def find(conn: Conn, schema_id: int, name: str, at: int | None = None) -> int | None:
    """The id of the table that has this name, or had it at a snapshot."""
    key = {"schema_id": schema_id, "name": name, "at": at}
    row = await (await conn.execute(FIND.at(at), key)).fetchone()
    return None if row is None else int(row[0])


async def live(conn: Conn) -> list[int]:
    """Of the whole catalog, the newest first."""
    return [row[0] for row in await (await conn.execute(EVERY)).fetchall()]


async def begun(conn: Conn, after: int) -> list[int]:
    """Those that were made or renamed since a snapshot."""
    return [row[0] for row in await (await conn.execute(BEGUN, {"after": after})).fetchall()]


async def read(conn: Conn, table_id: int) -> Table | None:
    """As it is now; None if it has been dropped."""
    table = await read_last(conn, table_id)
    return None if table is None or table.dropped_at is not None else table


async def read_last(conn: Conn, table_id: int) -> Table | None:
    """As it is now, or was when it was dropped; None if nobody knows any more."""
    row = await (await conn.execute(READ, {"table_id": table_id})).fetchone()
    if row is None:
        return None
    table_id, uuid, name, schema_name, spans, data_path, *paths, comment = row
    where = TablePaths(data_path, Path(*paths[:2]), Path(*paths[2:]))
    return Table(table_id, uuid, name, schema_name, [Span(*span) for span in spans], where, comment)


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
    await begin(tx, table_id, uuid, schema, name, Path(schemas.directory(name, uuid), relative=True))
    tx.record(created_table(schema.name, name))
    await record_schema_version(tx, table_id)
    return table_id


async def rename(tx: Commit, table: Table, schema: schemas.Schema, name: str) -> None:
    """Its files stay where they are: in another schema, the table's path is not relative to that."""
    stays = schema.name == table.schema_name
    path = table.paths.table if stays else Path(table.paths.directory, relative=False)
    await tx.conn.execute(END, {"table_id": table.id, "snapshot_id": tx.snapshot_id})
    await begin(tx, table.id, table.uuid, schema, name, path)
    tx.record(created_table(schema.name, name))
    await record_schema_version(tx, table.id)
    await inlined_tables.add(tx, table.id)


async def drop(tx: Commit, table_id: int) -> None:
    for rows, of in ROWS_OF_A_TABLE.items():
        statement = sql.SQL(END_ROWS).format(rows=sql.Identifier(rows), of=sql.Identifier(of))
        await tx.conn.execute(statement, {"table_id": table_id, "snapshot_id": tx.snapshot_id})
    tx.record(dropped_table(table_id))


async def find_by_uuid(conn: Conn, uuid: UUID) -> int | None:
    """The id of the live table with this uuid."""
    row = await (await conn.execute(FIND_BY_UUID, {"uuid": uuid})).fetchone()
    return None if row is None else int(row[0])


async def was_there(conn: Conn, uuid: UUID) -> bool:
    """Whether a table has this uuid, or had it at a snapshot that is there still."""
    row = await (await conn.execute(WAS_THERE, {"uuid": uuid})).fetchone()
    return row is not None and bool(row[0])


async def record_schema_version(tx: Commit, table_id: int) -> None:
    """Says that the table looks different from this snapshot on, which tells what inlined rows of it mean."""
    row = {"snapshot_id": tx.snapshot_id, "schema_version": tx.altered_schema_version, "table_id": table_id}
    await tx.conn.execute(INSERT_SCHEMA_VERSION, row)


async def begin(tx: Commit, table_id: int, uuid: UUID, schema: schemas.Schema, name: str, path: Path) -> None:
    """What a table is called, and where it is, from this snapshot on."""
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
