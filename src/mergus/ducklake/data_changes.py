"""Writing what changes in the rows of a table: files that come or end, deletes from files, inlined rows that end.

Called within a commit, so nobody else can commit, and everything is checked against the rows as they are: what is to be
ended or replaced and is not there any more fails the commit, and nothing is half done.

What must hold, and why:
- Row ids of new files follow on `next_row_id`, file after file, unless the file has the row ids inside.
- `record_count` of the table is how many rows were ever inserted. DuckDB answers `count(*)` from the rows of files, and
  `min(x)` from the table's bounds if the two counts agree, that is, if nothing was ever deleted. A rewrite puts the
  same rows into other files and leaves the count alone, as DuckLake's own merge does.
- A column's bounds in the whole table are widened by every file, or their row goes (`stats`). Those of elements of
  lists and maps always go: DuckDB plans by them, too, and Iceberg tells nothing of them that would do.
- A data file has one live delete file at most: with two, DuckDB reads it twice. One that takes over the rows of another
  keeps their snapshot ids, so that the other's row is deleted and not ended, and takes over the inlined deletes of the
  file as well: a position in both would bring deleted rows back.
- Whatever ends or deletes is called both `deleted_from_table` and `inlined_delete`. With the first alone, the inlined
  delete of a DuckDB session that began before would be lost without an error (H32).
- A delete file that takes over older deletes is `inserted_into_table` as well. DuckDB looks for deletes of the same
  file among those whose row began since: it would not find this one, and its own would take its place (H32).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, LiteralString

from psycopg import sql

from mergus.ducklake import files, inlined, listed_paths, scheduled, stats
from mergus.ducklake.changes import deleted_from_table, inlined_delete, inserted_into_table
from mergus.ducklake.commit import Commit
from mergus.ducklake.files import ColumnStats
from mergus.ducklake.paths import TablePaths
from mergus.ducklake.stats import GONE, NOTHING_KNOWN, GlobalStats
from mergus.errors import BadRequest, CommitFailed

END_DATA_FILES: Final = """
    UPDATE ducklake_data_file SET end_snapshot = %(snapshot_id)s
    WHERE table_id = %(table_id)s AND data_file_id = ANY(%(ids)s) AND end_snapshot IS NULL
"""
END_DELETE_FILES: Final = """
    UPDATE ducklake_delete_file SET end_snapshot = %(snapshot_id)s
    WHERE table_id = %(table_id)s AND data_file_id = ANY(%(ids)s) AND end_snapshot IS NULL
"""
END_INLINED_ROWS: Final = """
    UPDATE {} AS r SET end_snapshot = %(snapshot_id)s
    FROM unnest(%(row_ids)s::bigint[], %(begins)s::bigint[]) AS e(row_id, begin_snapshot)
    WHERE r.row_id = e.row_id AND r.begin_snapshot = e.begin_snapshot AND r.end_snapshot IS NULL
"""

COUNT_LIVE: Final = """
    SELECT count(*) FROM ducklake_data_file
    WHERE table_id = %(table_id)s AND data_file_id = ANY(%(ids)s) AND end_snapshot IS NULL
"""
REMOVE_DELETE_FILES: Final = """
    DELETE FROM ducklake_delete_file d USING unnest(%(ids)s::bigint[], %(data_files)s::bigint[]) AS r(id, data_file_id)
    WHERE d.table_id = %(table_id)s AND d.delete_file_id = r.id AND d.data_file_id = r.data_file_id
      AND d.end_snapshot IS NULL
    RETURNING d.delete_file_id, d.path, d.path_is_relative
"""
COUNT_DELETE_FILES: Final = """
    SELECT count(*) FROM ducklake_delete_file
    WHERE table_id = %(table_id)s AND data_file_id = ANY(%(ids)s) AND end_snapshot IS NULL
"""
REMOVE_INLINED_DELETES: Final = "DELETE FROM {} WHERE file_id = ANY(%(ids)s)"

SCHEDULE: Final = """
    INSERT INTO ducklake_files_scheduled_for_deletion (data_file_id, path, path_is_relative, schedule_start)
    VALUES (%(id)s, %(path)s, %(relative)s, now())
"""

COPY_DATA_FILES: Final = """
    COPY ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative, file_format, record_count,
                             file_size_bytes, footer_size, row_id_start, partition_id, mapping_id) FROM STDIN
"""
COPY_COLUMN_STATS: Final = """
    COPY ducklake_file_column_stats (data_file_id, table_id, column_id, column_size_bytes, value_count, null_count,
                                     min_value, max_value, contains_nan) FROM STDIN
"""
COPY_PARTITION_VALUES: Final = """
    COPY ducklake_file_partition_value (data_file_id, table_id, partition_key_index, partition_value) FROM STDIN
"""
COPY_DELETE_FILES: Final = """
    COPY ducklake_delete_file (delete_file_id, table_id, begin_snapshot, data_file_id, path, path_is_relative, format,
                               delete_count, file_size_bytes, footer_size, partial_max) FROM STDIN
"""

READ_TABLE_STATS: Final = "SELECT next_row_id FROM ducklake_table_stats WHERE table_id = %(table_id)s FOR UPDATE"
INSERT_TABLE_STATS: Final = """
    INSERT INTO ducklake_table_stats (table_id, record_count, next_row_id, file_size_bytes)
    VALUES (%(table_id)s, %(rows)s, %(row_ids)s, %(bytes)s)
"""
UPDATE_TABLE_STATS: Final = """
    UPDATE ducklake_table_stats
    SET record_count = record_count + %(rows)s, next_row_id = next_row_id + %(row_ids)s,
        file_size_bytes = file_size_bytes + %(bytes)s
    WHERE table_id = %(table_id)s
"""

READ_GLOBAL_STATS: Final = """
    SELECT column_id, contains_null, contains_nan, min_value, max_value
    FROM ducklake_table_column_stats WHERE table_id = %(table_id)s
"""
INSERT_GLOBAL_STATS: Final = """
    INSERT INTO ducklake_table_column_stats (table_id, column_id, contains_null, contains_nan, min_value, max_value)
    VALUES (%(table_id)s, %(column_id)s, %(null)s, %(nan)s, %(min)s, %(max)s)
"""
UPDATE_GLOBAL_STATS: Final = """
    UPDATE ducklake_table_column_stats
    SET contains_null = %(null)s, contains_nan = %(nan)s, min_value = %(min)s, max_value = %(max)s
    WHERE table_id = %(table_id)s AND column_id = %(column_id)s
"""
DELETE_GLOBAL_STATS: Final = """
    DELETE FROM ducklake_table_column_stats WHERE table_id = %(table_id)s AND column_id = ANY(%(gone)s)
"""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A Parquet file that is in place. `path` is absolute.

    `stats` and `unknown` are the leaf columns outside of lists and maps that the file has; of the latter nothing is
    known. With `has_row_ids` the rows have ids already: each has its own in the file, or they are counted from
    `row_id_start`, as they were before. Some of the ids in the file may be new: so many as `takes` follow on those that
    were given before.
    """

    path: str
    record_count: int
    size_bytes: int
    stats: Mapping[int, ColumnStats]
    unknown: frozenset[int] = frozenset()
    partition_id: int | None = None
    partition_values: Sequence[str | None] = ()
    mapping_id: int | None = None
    has_row_ids: bool = False
    row_id_start: int | None = None
    takes: int = 0
    footer_size: int | None = None

    @property
    def taken(self) -> int:
        """How many row ids the file takes of those that are free."""
        return self.takes if self.has_row_ids else self.record_count


@dataclass(frozen=True, slots=True)
class NewDeletes:
    """All that is deleted from a data file, inlined deletes included, as one file of DuckLake's shape.

    `replaces` are the delete files whose rows it takes over.
    """

    data_file_id: int
    path: str
    delete_count: int
    size_bytes: int
    footer_size: int | None
    begin_snapshot: int
    partial_max: int | None
    replaces: Sequence[int]


@dataclass(frozen=True, slots=True)
class DataChanges:
    """`ended_rows` are inlined rows by row id and begin snapshot. A rewrite puts the same rows into other files."""

    added: Sequence[NewFile] = ()
    ended: Sequence[int] = ()
    deletes: Sequence[NewDeletes] = ()
    ended_rows: Sequence[tuple[int, int]] = ()
    is_rewrite: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.ended or self.deletes or self.ended_rows)


async def write(
    tx: Commit,
    metadata_schema: str,
    table_id: int,
    paths: TablePaths,
    leaf_types: Mapping[int, str],
    changes: DataChanges,
) -> list[int]:
    """The ids of the added files, in order. `leaf_types` are those of the leaf columns outside of lists and maps."""
    if changes.ended:
        await _end_files(tx, table_id, changes.ended)
    if changes.added:
        await _refuse_known(tx, table_id, paths, changes.added)
    if changes.ended_rows:
        await _end_rows(tx, metadata_schema, table_id, changes.ended_rows)
    if changes.deletes:
        await _delete(tx, metadata_schema, table_id, paths, changes.deletes)
    return await _add(tx, table_id, paths, leaf_types, changes) if changes.added else []


async def _refuse_known(tx: Commit, table_id: int, paths: TablePaths, added: Sequence[NewFile]) -> None:
    candidates = {file.path for file in added}
    counted = Counter(listed_paths.one_spelling(file.path) for file in added)
    if twice := [path for path, count in counted.items() if count > 1]:
        raise BadRequest(f"File is added twice: {twice[0]}")
    if known := await listed_paths.live_paths(tx.conn, table_id, paths, candidates):
        raise BadRequest(f"File is in the table already: {min(known)}")
    if theirs := await listed_paths.of_another(tx.conn, table_id, candidates):
        raise BadRequest(f"File is one of another table: {theirs}")
    if doomed := await scheduled.among(tx.conn, list(candidates)):
        raise BadRequest(f"File was one of a table of the lake, and is about to be deleted: {doomed[0]}")


async def _end_files(tx: Commit, table_id: int, ended: Sequence[int]) -> None:
    key = {"table_id": table_id, "snapshot_id": tx.snapshot_id, "ids": list(ended)}
    if (await tx.conn.execute(END_DATA_FILES, key)).rowcount != len(ended):
        raise CommitFailed("A data file that the commit removes is not in the table any more")
    await tx.conn.execute(END_DELETE_FILES, key)
    tx.record(deleted_from_table(table_id), inlined_delete(table_id))


async def _end_rows(tx: Commit, schema: str, table_id: int, ended: Sequence[tuple[int, int]]) -> None:
    row_ids, begins = (list(part) for part in zip(*ended, strict=True))
    key = {"snapshot_id": tx.snapshot_id, "row_ids": row_ids, "begins": begins}
    count = 0
    for table in await inlined.tables(tx.conn, schema, table_id):
        statement = sql.SQL(END_INLINED_ROWS).format(sql.Identifier(schema, table.name))
        count += (await tx.conn.execute(statement, key)).rowcount
    if count != len(ended):
        raise CommitFailed("A row that the commit removes is not where it was any more")
    tx.record(inlined_delete(table_id))


async def _delete(tx: Commit, schema: str, table_id: int, paths: TablePaths, deletes: Sequence[NewDeletes]) -> None:
    data_files = [d.data_file_id for d in deletes]
    key: dict[str, Any] = {"table_id": table_id, "ids": data_files}
    if await _count(tx, COUNT_LIVE, key) != len(data_files):
        raise CommitFailed("A data file that the commit deletes rows from is not in the table any more")
    replaced = [(old, d.data_file_id) for d in deletes for old in d.replaces]
    old = {"table_id": table_id, "ids": [i for i, _ in replaced], "data_files": [f for _, f in replaced]}
    removed = await (await tx.conn.execute(REMOVE_DELETE_FILES, old)).fetchall()
    if len(removed) != len(replaced) or await _count(tx, COUNT_DELETE_FILES, key) > 0:
        raise CommitFailed("Other rows have been deleted from a data file that the commit deletes rows from")
    async with tx.conn.cursor() as cursor:
        await cursor.executemany(SCHEDULE, [_scheduled(i, paths.resolve(*path), paths) for i, *path in removed])
    inlined_deletes = await files.inlined_delete_table(tx.conn, schema, table_id)
    if inlined_deletes is not None:
        await tx.conn.execute(sql.SQL(REMOVE_INLINED_DELETES).format(inlined_deletes), key)
    rows = zip(tx.next_file_ids(len(deletes)), deletes, strict=True)
    await _copy(tx, COPY_DELETE_FILES, (_delete_row(i, table_id, paths, d) for i, d in rows))
    tx.record(deleted_from_table(table_id), inlined_delete(table_id))
    if any(d.begin_snapshot < tx.snapshot_id for d in deletes):
        tx.record(inserted_into_table(table_id))


def _scheduled(delete_file_id: int, path: str, paths: TablePaths) -> dict[str, Any]:
    # relative to the lake's data path, unlike the same path in the table of delete files
    scheduled = listed_paths.stored(path, paths.data_path)
    return {"id": delete_file_id, "path": scheduled.text, "relative": scheduled.relative}


def _delete_row(delete_file_id: int, table_id: int, paths: TablePaths, new: NewDeletes) -> tuple[Any, ...]:
    path = listed_paths.stored(new.path, paths.directory)
    return (
        *(delete_file_id, table_id, new.begin_snapshot, new.data_file_id, path.text, path.relative, "parquet"),
        *(new.delete_count, new.size_bytes, new.footer_size, new.partial_max),
    )


async def _add(
    tx: Commit, table_id: int, paths: TablePaths, leaf_types: Mapping[int, str], changes: DataChanges
) -> list[int]:
    added = changes.added
    found = await (await tx.conn.execute(READ_TABLE_STATS, {"table_id": table_id})).fetchone()
    ids = tx.next_file_ids(len(added))
    row_id = 0 if found is None else int(found[0])
    starts: list[int | None] = []
    for file in added:
        starts.append(file.row_id_start if file.has_row_ids else row_id)
        row_id += file.taken

    def data_file(file_id: int, start: int | None, file: NewFile) -> tuple[Any, ...]:
        path = listed_paths.stored(file.path, paths.directory)
        return (
            *(file_id, table_id, tx.snapshot_id, path.text, path.relative, "parquet", file.record_count),
            *(file.size_bytes, file.footer_size, start, file.partition_id, file.mapping_id),
        )

    def column_stats(file_id: int, file: NewFile) -> Iterable[tuple[Any, ...]]:
        rows = {**dict.fromkeys(file.unknown, NOTHING_KNOWN), **file.stats}
        for column_id, s in sorted(rows.items()):
            counts = (s.size_bytes, s.value_count, s.null_count)
            yield (file_id, table_id, column_id, *counts, s.min_text, s.max_text, s.contains_nan)

    def partition_values(file_id: int, file: NewFile) -> Iterable[tuple[Any, ...]]:
        if file.partition_id is not None:
            yield from ((file_id, table_id, key, value) for key, value in enumerate(file.partition_values))

    await _copy(tx, COPY_DATA_FILES, map(data_file, ids, starts, added))
    await _copy(tx, COPY_COLUMN_STATS, chain.from_iterable(map(column_stats, ids, added)))
    await _copy(tx, COPY_PARTITION_VALUES, chain.from_iterable(map(partition_values, ids, added)))
    await _count_in(tx, table_id, changes, is_first=found is None)
    await _widen(tx, table_id, leaf_types, added, is_first=found is None)
    tx.record(inserted_into_table(table_id))
    return list(ids)


async def _count_in(tx: Commit, table_id: int, changes: DataChanges, *, is_first: bool) -> None:
    counted = () if changes.is_rewrite else changes.added
    key = {
        "table_id": table_id,
        "rows": sum(file.record_count for file in counted),
        "bytes": sum(file.size_bytes for file in counted),
        "row_ids": sum(file.taken for file in changes.added),
    }
    await tx.conn.execute(INSERT_TABLE_STATS if is_first else UPDATE_TABLE_STATS, key)


async def _widen(
    tx: Commit, table_id: int, leaf_types: Mapping[int, str], added: Sequence[NewFile], *, is_first: bool
) -> None:
    """The table's statistics. A column that came later than the first rows has none and gets none."""
    found = await (await tx.conn.execute(READ_GLOBAL_STATS, {"table_id": table_id})).fetchall()
    current = {column_id: GlobalStats(*row) for column_id, *row in found}
    gone = [column_id for column_id in current if column_id not in leaf_types]
    rows: list[dict[str, Any]] = []
    for column_id, kind in leaf_types.items():
        old = current.get(column_id)
        if old is None and not is_first:
            continue
        # what a file lacks has the column's default there, or NULL
        new = stats.widened(old, (file.stats.get(column_id, NOTHING_KNOWN) for file in added), kind)
        if new is GONE:
            gone.append(column_id)
        elif new != old:
            bounds = {"min": new.min_text, "max": new.max_text}
            flags = {"null": new.contains_null, "nan": new.contains_nan}
            rows.append({"table_id": table_id, "column_id": column_id, **flags, **bounds})
    if gone:
        await tx.conn.execute(DELETE_GLOBAL_STATS, {"table_id": table_id, "gone": gone})
    async with tx.conn.cursor() as cursor:
        await cursor.executemany(INSERT_GLOBAL_STATS if is_first else UPDATE_GLOBAL_STATS, rows)


async def _copy(tx: Commit, statement: LiteralString, rows: Iterable[tuple[Any, ...]]) -> None:
    """However many: they are never in memory at once."""
    async with tx.conn.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            await copy.write_row(row)


async def _count(tx: Commit, query: LiteralString, key: Mapping[str, Any]) -> int:
    row = await (await tx.conn.execute(query, key)).fetchone()
    return 0 if row is None else int(row[0])
