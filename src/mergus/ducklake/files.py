"""The files of a table at a snapshot: data files with their statistics, and everything that deletes from them.

Three things delete rows of a data file, and a reader takes all of them together: delete files (one for each data file
as the extension writes it, but two can be live at once after a rewrite and a flush, H12), positions inlined in
Postgres, and, in a file with rows of several snapshots (`partial_max`), what came after the snapshot asked for.
The number of queries does not depend on the number of files.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

from psycopg import sql

from mergus.ducklake.connect import Conn
from mergus.ducklake.paths import TablePaths

VISIBLE: Final = "begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s)"

READ_DATA_FILES: Final = f"""
    SELECT data_file_id, path, path_is_relative, record_count, file_size_bytes, row_id_start, begin_snapshot,
           partial_max, partition_id, mapping_id
    FROM ducklake_data_file WHERE table_id = %(table_id)s AND {VISIBLE} ORDER BY data_file_id
"""

# From the files: a delete file whose data file has ended deletes from nothing (H10).
READ_DELETE_FILES: Final = f"""
    SELECT delete_file_id, data_file_id, path, path_is_relative, format, delete_count, file_size_bytes,
           begin_snapshot, partial_max
    FROM ducklake_delete_file
    WHERE table_id = %(table_id)s AND {VISIBLE}
      AND data_file_id IN (SELECT data_file_id FROM ducklake_data_file WHERE table_id = %(table_id)s AND {VISIBLE})
    ORDER BY delete_file_id
"""

READ_STATS: Final = f"""
    SELECT data_file_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, contains_nan
    FROM ducklake_file_column_stats
    WHERE table_id = %(table_id)s
      AND data_file_id IN (SELECT data_file_id FROM ducklake_data_file WHERE table_id = %(table_id)s AND {VISIBLE})
"""

READ_PARTITION_VALUES: Final = f"""
    SELECT data_file_id, partition_value FROM ducklake_file_partition_value
    WHERE table_id = %(table_id)s
      AND data_file_id IN (SELECT data_file_id FROM ducklake_data_file WHERE table_id = %(table_id)s AND {VISIBLE})
    ORDER BY data_file_id, partition_key_index
"""

# Made by the extension when it first inlines a delete on a file of this table, and registered nowhere.
HAS_INLINED_DELETES: Final = (
    "SELECT to_regclass(quote_ident(%(schema)s) || '.ducklake_inlined_delete_' || %(table_id)s)"
)
READ_INLINED_DELETES: Final = """
    SELECT file_id, row_id FROM {} WHERE begin_snapshot <= %(at)s ORDER BY file_id, row_id
"""


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """Of one leaf column in one file. None is "not known", never zero; texts are as DuckDB writes them."""

    size_bytes: int | None
    value_count: int | None  # without NULLs
    null_count: int | None
    min_text: str | None
    max_text: str | None
    contains_nan: bool | None


@dataclass(frozen=True, slots=True)
class DeleteFile:
    id: int
    path: str
    format: str
    delete_count: int
    size_bytes: int
    begin_snapshot: int
    partial_max: int | None


@dataclass(slots=True)
class DataFile:
    id: int
    path: str
    record_count: int
    size_bytes: int
    row_id_start: int | None
    begin_snapshot: int
    partial_max: int | None
    partition_id: int | None
    mapping_id: int | None
    stats: dict[int, ColumnStats] = field(default_factory=dict[int, ColumnStats])
    partition_values: list[str | None] = field(default_factory=list[str | None])
    delete_files: list[DeleteFile] = field(default_factory=list[DeleteFile])
    # positions in the file, not row ids, whatever DuckLake calls the column
    inlined_deletes: list[int] = field(default_factory=list[int])

    def is_whole_at(self, snapshot_id: int) -> bool:
        """Whether every row of the file was there by then."""
        return self.partial_max is None or self.partial_max <= snapshot_id


async def read(conn: Conn, schema: str, table_id: int, paths: TablePaths, at: int) -> list[DataFile]:
    """In the order in which they were added. Call inside a REPEATABLE READ transaction: one state of the lake."""
    key = {"table_id": table_id, "at": at}
    files = {
        row[0]: DataFile(row[0], paths.resolve(row[1], row[2]), *row[3:])
        for row in await _rows(conn, READ_DATA_FILES, key)
    }
    for file_id, column_id, *stats in await _rows(conn, READ_STATS, key):
        files[file_id].stats[column_id] = ColumnStats(*stats)
    for file_id, value in await _rows(conn, READ_PARTITION_VALUES, key):
        files[file_id].partition_values.append(value)
    for delete_id, file_id, path, relative, *rest in await _rows(conn, READ_DELETE_FILES, key):
        files[file_id].delete_files.append(DeleteFile(delete_id, paths.resolve(path, relative), *rest))
    for file_id, positions in (await _inlined_deletes(conn, schema, table_id, at)).items():
        if file_id in files:
            files[file_id].inlined_deletes = positions
    return list(files.values())


async def _inlined_deletes(conn: Conn, schema: str, table_id: int, at: int) -> dict[int, list[int]]:
    ((present,),) = await _rows(conn, HAS_INLINED_DELETES, {"schema": schema, "table_id": table_id})
    found: defaultdict[int, list[int]] = defaultdict(list)
    if present is not None:
        query = sql.SQL(READ_INLINED_DELETES).format(sql.Identifier(f"ducklake_inlined_delete_{table_id}"))
        for file_id, position in await (await conn.execute(query, {"at": at})).fetchall():
            found[file_id].append(position)
    return found


async def _rows(conn: Conn, query: LiteralString, key: dict[str, Any]) -> list[tuple[Any, ...]]:
    return await (await conn.execute(query, key)).fetchall()
