"""The files of a table at a snapshot: data files with their statistics, and everything that deletes from them.

Three things delete rows of a data file, and a reader takes all of them together: delete files (one for each data file
as the extension writes it, but two can be live at once after a rewrite and a flush, H12), positions inlined in
Postgres, and, in a file with rows of several snapshots (`partial_max`), what came after the snapshot asked for.

What is asked for is a difference: from a `Base`, which somebody has seen before, to a snapshot. The queries find what
changed by indexes, and their number does not depend on that of files, columns or snapshots.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

from psycopg import sql

from mergus.ducklake.connect import Conn
from mergus.ducklake.listed_paths import on_s3, one_spelling, spellings
from mergus.ducklake.paths import TablePaths
from mergus.ducklake.visible import VISIBLE

_FILE: Final = """
    SELECT data_file_id, path, path_is_relative, record_count, file_size_bytes, row_id_start, begin_snapshot,
           end_snapshot, partial_max, partition_id, mapping_id
    FROM ducklake_data_file WHERE table_id = %(table_id)s
"""

# What came and went since the base is nobody's business.
CHANGED_DATA_FILES: Final = f"""
    {_FILE} AND begin_snapshot <= %(at)s
      AND (end_snapshot IS NULL OR end_snapshot > %(at)s OR (begin_snapshot <= %(base)s AND data_file_id < %(horizon)s))
      AND (begin_snapshot > %(base)s OR data_file_id >= %(horizon)s OR partial_max > %(base)s
           OR (end_snapshot > %(base)s AND end_snapshot <= %(at)s))
    ORDER BY data_file_id
"""
READ_DATA_FILES: Final = f"{_FILE} AND data_file_id = ANY(%(ids)s) AND {VISIBLE} ORDER BY data_file_id"

# A file that the extension writes anew has a new id; one written by a flush has no `partial_max` though its rows are of
# several snapshots, so it counts whenever the base may have been read before the end of them.
CHANGED_DELETE_FILES: Final = """
    SELECT DISTINCT data_file_id FROM ducklake_delete_file
    WHERE table_id = %(table_id)s AND begin_snapshot <= %(at)s
      AND (begin_snapshot > %(base)s OR delete_file_id >= %(horizon)s OR partial_max > %(base)s
           OR (end_snapshot > %(base)s AND end_snapshot <= %(at)s)
           OR (partial_max IS NULL AND %(in_the_past)s))
"""
READ_DELETE_FILES: Final = f"""
    SELECT delete_file_id, data_file_id, path, path_is_relative, format, delete_count, file_size_bytes,
           begin_snapshot, partial_max
    FROM ducklake_delete_file
    WHERE table_id = %(table_id)s AND {VISIBLE} AND data_file_id = ANY(%(ids)s)
    ORDER BY delete_file_id
"""

READ_STATS: Final = """
    SELECT data_file_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, contains_nan
    FROM ducklake_file_column_stats WHERE table_id = %(table_id)s AND data_file_id = ANY(%(ids)s)
"""

READ_PARTITION_VALUES: Final = """
    SELECT data_file_id, partition_value FROM ducklake_file_partition_value
    WHERE table_id = %(table_id)s AND data_file_id = ANY(%(ids)s) ORDER BY data_file_id, partition_key_index
"""

# As the client told it who committed the file.
READ_PLACES: Final = """
    SELECT data_file_id, sort_order_id, spec_id, partition FROM committed_file WHERE data_file_id = ANY(%(ids)s)
"""

# Sources of a merge have no rows any more: whoever saw them has to look for what is missing.
READ_PATHS: Final = """
    SELECT path, path_is_relative FROM ducklake_data_file
    WHERE table_id = %(table_id)s AND begin_snapshot >= %(first)s AND begin_snapshot <= %(last)s
"""

READ_AT_PATHS: Final = f"{_FILE} AND end_snapshot IS NULL AND path = ANY(%(spellings)s)"

# Those that were added by name, and those that may be from before a change of type. A file without a start was
# rewritten by DuckLake, which keeps the types of what it was made from.
READ_SUSPECTS: Final = f"""
    {_FILE} AND (mapping_id IS NOT NULL
                 OR (%(last)s::bigint IS NOT NULL AND (begin_snapshot <= %(last)s::bigint OR row_id_start IS NULL)
                     AND (end_snapshot IS NULL OR end_snapshot > %(first)s::bigint)))
    ORDER BY data_file_id
"""
OLDEST_BEGIN: Final = """
    SELECT min(begin_snapshot) FROM ducklake_data_file
    WHERE table_id = %(table_id)s AND data_file_id >= %(first)s AND data_file_id < %(end)s
"""

LAST_VECTOR: Final = """
    SELECT max(begin_snapshot) FROM ducklake_delete_file
    WHERE table_id = %(table_id)s AND begin_snapshot > %(after)s AND format = 'puffin'
"""

# The first file id that is free. Snapshots may say less (duckdb/ducklake#1335).
HORIZON: Final = """
    SELECT greatest((SELECT max(next_file_id) FROM ducklake_snapshot
                     WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)),
                    (SELECT max(data_file_id) + 1 FROM ducklake_data_file WHERE table_id = %(table_id)s),
                    (SELECT max(delete_file_id) + 1 FROM ducklake_delete_file WHERE table_id = %(table_id)s))
"""

# Made by the extension when it first inlines a delete on a file of this table, and registered nowhere.
FIND_INLINED_DELETES: Final = (
    "SELECT to_regclass(quote_ident(%(schema)s) || '.ducklake_inlined_delete_' || %(table_id)s)"
)
CHANGED_INLINED_DELETES: Final = """
    SELECT DISTINCT file_id FROM {} WHERE begin_snapshot > %(base)s AND begin_snapshot <= %(at)s
"""
READ_INLINED_DELETES: Final = """
    SELECT file_id, row_id FROM {} WHERE begin_snapshot <= %(at)s AND file_id = ANY(%(ids)s) ORDER BY file_id, row_id
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
    end_snapshot: int | None
    partial_max: int | None
    partition_id: int | None
    mapping_id: int | None
    stats: dict[int, ColumnStats] = field(default_factory=dict[int, ColumnStats])
    partition_values: list[str | None] = field(default_factory=list[str | None])
    delete_files: list[DeleteFile] = field(default_factory=list[DeleteFile])
    # positions in the file, not row ids, whatever DuckLake calls the column
    inlined_deletes: list[int] = field(default_factory=list[int])
    # the partition spec that a client committed the file under, and the values of its fields by their ids, as JSON
    placed: tuple[int, dict[str, Any]] | None = None
    # that the client wrote its rows in; 0 for none, and for all files of DuckDB's
    sort_order_id: int = 0

    def is_whole_at(self, snapshot_id: int) -> bool:
        """Whether every row of the file was there by then."""
        return self.partial_max is None or self.partial_max <= snapshot_id

    def is_live_at(self, snapshot_id: int) -> bool:
        return self.begin_snapshot <= snapshot_id and (self.end_snapshot is None or self.end_snapshot > snapshot_id)


@dataclass(frozen=True, slots=True)
class Base:
    """What somebody has seen: the table at a snapshot, when the files from `horizon` on were not there yet.

    `in_the_past` says that the table had later snapshots by then.
    """

    snapshot_id: int
    horizon: int
    in_the_past: bool = False


NOTHING: Final = Base(-1, 0)


@dataclass(frozen=True, slots=True)
class Changes:
    """From a base to a snapshot, each in the order of ids. `added` and `touched` come with statistics and deletes."""

    added: list[DataFile]
    removed: list[DataFile]
    # there before and now, with deletes that may be others
    touched: list[DataFile]


async def read(conn: Conn, schema: str, table_id: int, paths: TablePaths, at: int) -> list[DataFile]:
    """All files. Call inside a REPEATABLE READ transaction: one state of the lake."""
    return (await changes(conn, schema, table_id, paths, NOTHING, at)).added


async def changes(conn: Conn, schema: str, table_id: int, paths: TablePaths, base: Base, at: int) -> Changes:
    """Call inside a REPEATABLE READ transaction: one state of the lake."""
    key: dict[str, Any] = {
        "table_id": table_id,
        "at": at,
        "base": base.snapshot_id,
        "horizon": base.horizon,
        "in_the_past": base.in_the_past,
    }
    inlined = await inlined_delete_table(conn, schema, table_id)
    rows = [_data_file(row, paths) for row in await _rows(conn, CHANGED_DATA_FILES, key)]
    touched = {row[0] for row in await _rows(conn, CHANGED_DELETE_FILES, key)}
    if inlined is not None:
        found = await conn.execute(sql.SQL(CHANGED_INLINED_DELETES).format(inlined), key)
        touched |= {row[0] for row in await found.fetchall()}
    files: dict[int, DataFile] = {}
    added: list[DataFile] = []
    removed: list[DataFile] = []
    for file in rows:
        known = file.id < base.horizon and file.is_live_at(base.snapshot_id)
        if file.is_live_at(at):
            files[file.id] = file
            if not known:
                added.append(file)
        elif known:
            removed.append(file)
    key["ids"] = sorted(touched - files.keys())
    if key["ids"]:
        files |= {row[0]: _data_file(row, paths) for row in await _rows(conn, READ_DATA_FILES, key)}
    await _complete(conn, files, paths, inlined, key)
    new = {file.id for file in added}
    return Changes(added, removed, [files[i] for i in sorted(files.keys() - new)])


async def paths_begun(conn: Conn, table_id: int, paths: TablePaths, first: int, last: int) -> set[str]:
    """Of every file that the lake knows and that begins between these snapshots."""
    found = await _rows(conn, READ_PATHS, {"table_id": table_id, "first": first, "last": last})
    return {on_s3(paths.resolve(*row)) for row in found}


async def at_paths(
    conn: Conn, schema: str, table_id: int, paths: TablePaths, at: int, wanted: Collection[str]
) -> list[DataFile]:
    """The files of now that have these paths, by whichever spelling, with all that is known of them."""
    asked = set(map(one_spelling, wanted))
    key: dict[str, Any] = {"table_id": table_id, "at": at, "spellings": spellings(wanted, paths.directory)}
    found = [_data_file(row, paths) for row in await _rows(conn, READ_AT_PATHS, key)]
    files = {file.id: file for file in found if one_spelling(file.path) in asked}
    await _complete(conn, files, paths, await inlined_delete_table(conn, schema, table_id), key)
    return list(files.values())


async def of_ids(
    conn: Conn, schema: str, table_id: int, paths: TablePaths, at: int, ids: Collection[int]
) -> list[DataFile]:
    """Those of these files that are there at a snapshot, with all that is known of them then."""
    key: dict[str, Any] = {"table_id": table_id, "at": at, "ids": list(ids)}
    files = {row[0]: _data_file(row, paths) for row in await _rows(conn, READ_DATA_FILES, key)}
    await _complete(conn, files, paths, await inlined_delete_table(conn, schema, table_id), key)
    return list(files.values())


async def horizon(conn: Conn, table_id: int) -> int:
    ((found,),) = await _rows(conn, HORIZON, {"table_id": table_id})
    return int(found)


async def last_vector(conn: Conn, table_id: int, after: int) -> int | None:
    """The last snapshot after this one that wrote a deletion vector. DuckLake has one row for the vector of a file, the
    last: what an earlier snapshot deleted is deleted since then, and was there before."""
    ((found,),) = await _rows(conn, LAST_VECTOR, {"table_id": table_id, "after": after})
    return found


async def suspects(conn: Conn, table_id: int, paths: TablePaths, retyped: tuple[int, int] | None) -> list[DataFile]:
    """Files whose columns may not be what the table's are, without statistics and deletes. `retyped` are the first and
    the last snapshot at which a column got a type that old files cannot be read as."""
    first, last = retyped or (None, None)
    rows = await _rows(conn, READ_SUSPECTS, {"table_id": table_id, "first": first, "last": last})
    return [_data_file(row, paths) for row in rows]


async def read_stats(conn: Conn, table_id: int, files: Sequence[DataFile]) -> None:
    """Fills in the statistics of their columns."""
    by_id = {file.id: file for file in files}
    for file_id, column_id, *stats in await _rows(conn, READ_STATS, {"table_id": table_id, "ids": list(by_id)}):
        by_id[file_id].stats[column_id] = ColumnStats(*stats)


async def oldest_begin(conn: Conn, table_id: int, first: int, end: int) -> int | None:
    """The first snapshot that a file with one of these ids shows rows of."""
    ((found,),) = await _rows(conn, OLDEST_BEGIN, {"table_id": table_id, "first": first, "end": end})
    return found


async def inlined_delete_table(conn: Conn, schema: str, table_id: int) -> sql.Identifier | None:
    ((present,),) = await _rows(conn, FIND_INLINED_DELETES, {"schema": schema, "table_id": table_id})
    return None if present is None else sql.Identifier(schema, f"ducklake_inlined_delete_{table_id}")


def _data_file(row: tuple[Any, ...], paths: TablePaths) -> DataFile:
    return DataFile(row[0], on_s3(paths.resolve(row[1], row[2])), *row[3:])


async def _complete(
    conn: Conn, files: dict[int, DataFile], paths: TablePaths, inlined: sql.Identifier | None, key: dict[str, Any]
) -> None:
    """Everything else about these files."""
    if not files:
        return
    key["ids"] = list(files)
    for file_id, column_id, *stats in await _rows(conn, READ_STATS, key):
        files[file_id].stats[column_id] = ColumnStats(*stats)
    for file_id, value in await _rows(conn, READ_PARTITION_VALUES, key):
        files[file_id].partition_values.append(value)
    for file_id, sort_order_id, spec_id, partition in await _rows(conn, READ_PLACES, key):
        files[file_id].placed = spec_id, partition
        files[file_id].sort_order_id = sort_order_id
    for delete_id, file_id, path, relative, *rest in await _rows(conn, READ_DELETE_FILES, key):
        files[file_id].delete_files.append(DeleteFile(delete_id, paths.resolve(path, relative), *rest))
    if inlined is not None:
        found: defaultdict[int, list[int]] = defaultdict(list)
        rows = await conn.execute(sql.SQL(READ_INLINED_DELETES).format(inlined), key)
        for file_id, position in await rows.fetchall():
            found[file_id].append(position)
        for file_id, positions in found.items():
            files[file_id].inlined_deletes = positions


async def _rows(conn: Conn, query: LiteralString, key: dict[str, Any]) -> list[tuple[Any, ...]]:
    return await (await conn.execute(query, key)).fetchall()
