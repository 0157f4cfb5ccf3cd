"""Tables that were dropped and can come back, and bringing one back.

A table is there at a snapshot if a row of `ducklake_table` is. So that row is inserted again, from the new snapshot on:
in between, nobody finds the table, whatever else there is of it. All that is found by way of the table (columns, data
files, delete files, comments) is made as it was before the drop, by taking its end away. It is not inserted again: a
second row with the path of a file would lose the file when the first one expires, since DuckLake's cleaner goes by rows
and not by paths. Partitionings and sort orders are found without the table, and a session that meets one of a table
that is not there fails: those rows are inserted again, with their ids. Inlined rows, row ids and statistics have
stayed.

What must hold:
- The snapshot right before the drop lives. Only then is everything there that the table had: expiry takes each row
  away that no living snapshot sees, be it one of a table whose other rows are seen by an older one.
- The words say `created_table`, which conflicts with whoever takes the name or drops the schema, and `altered_table`,
  which names the table by its id.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from psycopg import sql

from mergus.ducklake import inlined_tables, tables
from mergus.ducklake.changes import altered_table, created_table
from mergus.ducklake.commit import Commit
from mergus.ducklake.connect import Conn
from mergus.ducklake.paths import Path, TablePaths
from mergus.ducklake.schemas import Schema

# Of the rows that a table had, the last one ends with the drop. The schema may have been dropped, too, or be another
# one of that name by now.
LIST: Final = """
    SELECT t.table_id, t.table_uuid, t.table_name, t.end_snapshot, d.snapshot_time,
           (SELECT count(*) FROM ducklake_data_file f
            WHERE f.table_id = t.table_id AND f.end_snapshot = t.end_snapshot),
           s.schema_id, s.schema_name, (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL),
           s.path, s.path_is_relative, t.path, t.path_is_relative
    FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id
    LEFT JOIN ducklake_snapshot d ON d.snapshot_id = t.end_snapshot
    WHERE (%(schema_name)s::text IS NULL OR s.schema_name = %(schema_name)s::text) AND t.end_snapshot IS NOT NULL
      AND NOT EXISTS (SELECT FROM ducklake_table l WHERE l.table_id = t.table_id
                      AND (l.end_snapshot IS NULL OR l.end_snapshot > t.end_snapshot))
      AND EXISTS (SELECT FROM ducklake_snapshot b WHERE b.snapshot_id = t.end_snapshot - 1)
      AND (%(name)s::text IS NULL OR t.table_name = %(name)s::text)
      AND (%(uuid)s::uuid IS NULL OR t.table_uuid = %(uuid)s::uuid)
      AND (%(before)s::bigint IS NULL OR (t.end_snapshot, t.table_id) < (%(before)s::bigint, %(before_id)s::bigint))
    ORDER BY t.end_snapshot DESC, t.table_id DESC LIMIT %(limit)s
"""

UNEND: Final = """
    UPDATE {rows} SET end_snapshot = NULL
    WHERE {of} = %(table_id)s AND end_snapshot = %(dropped_at)s AND begin_snapshot < %(dropped_at)s
"""
FOUND_BY_TABLE: Final = {
    "ducklake_column": "table_id",
    "ducklake_column_tag": "table_id",
    "ducklake_data_file": "table_id",
    "ducklake_delete_file": "table_id",
    "ducklake_tag": "object_id",
}

BEGIN_AGAIN: Final = """
    INSERT INTO {rows} ({id}, table_id, begin_snapshot, end_snapshot)
    SELECT {id}, table_id, %(snapshot_id)s, NULL FROM {rows}
    WHERE table_id = %(table_id)s AND end_snapshot = %(dropped_at)s AND begin_snapshot < %(dropped_at)s
"""
FOUND_ALONE: Final = {"ducklake_partition_info": "partition_id", "ducklake_sort_info": "sort_id"}


@dataclass(frozen=True, slots=True)
class Dropped:
    id: int
    uuid: UUID
    name: str
    dropped_at: int
    # None if that snapshot has expired
    time: datetime | None
    data_files: int
    schema_id: int
    schema_name: str
    paths: TablePaths


async def newest_first(
    conn: Conn,
    schema_name: str | None,
    *,
    name: str | None = None,
    uuid: UUID | None = None,
    after: tuple[int, int] | None = None,
    limit: int | None = None,
) -> list[Dropped]:
    """Those of a schema of this name, or of any, that can come back; `after` is the snapshot of the drop, and the id,
    of the last one that was seen."""
    before, before_id = after or (None, None)
    key = {"schema_name": schema_name, "name": name, "uuid": uuid, "limit": limit}
    rows = await (await conn.execute(LIST, {**key, "before": before, "before_id": before_id})).fetchall()
    return [
        Dropped(*about, paths=TablePaths(data_path, Path(*paths[:2]), Path(*paths[2:])))
        for *about, data_path, paths in ((*row[:9], row[9:]) for row in rows)
    ]


async def bring_back(tx: Commit, table: Dropped, schema: Schema, name: str) -> None:
    """Its files stay where they are: in another schema, the table's path is not relative to that."""
    key = {"table_id": table.id, "dropped_at": table.dropped_at, "snapshot_id": tx.snapshot_id}
    for rows, of in FOUND_BY_TABLE.items():
        parts = {"rows": sql.Identifier(rows), "of": sql.Identifier(of)}
        await tx.conn.execute(sql.SQL(UNEND).format(**parts), key)
    for rows, own_id in FOUND_ALONE.items():
        parts = {"rows": sql.Identifier(rows), "id": sql.Identifier(own_id)}
        await tx.conn.execute(sql.SQL(BEGIN_AGAIN).format(**parts), key)
    stays = schema.schema_id == table.schema_id
    path = table.paths.table if stays else Path(table.paths.directory, relative=False)
    await tables.begin(tx, table.id, table.uuid, schema, name, path)
    tx.record(created_table(schema.name, name), altered_table(table.id))
    await tables.record_schema_version(tx, table.id)
    await inlined_tables.add(tx, table.id)
