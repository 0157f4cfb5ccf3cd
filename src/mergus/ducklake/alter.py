"""ALTER TABLE as rows, as a DuckDB session would have written them.

Each function writes one kind of change in full, with its ids, its word, the schema version, and the new inlined table
where one is due. Several may be part of one commit, and of a commit that creates the table: the word and the schema
version are written once, and the inlined table is that of the last one. What a table is sorted or partitioned by is set
before a column of it is dropped, in the same commit or an earlier one, since DuckDB does not drop such a column either.

Columns whose comment is set or that are renamed keep their statistics; those of a dropped one stay behind, as DuckDB
leaves them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final, LiteralString

from mergus.ducklake import inlined_tables, partitions, sort_expressions, sorts, tables
from mergus.ducklake.changes import altered_table
from mergus.ducklake.column_changes import ColumnChanges
from mergus.ducklake.commit import Commit
from mergus.errors import Unsupported
from mergus.iceberg.schema_parse import folded

END_COLUMNS: Final = """
    UPDATE ducklake_column SET end_snapshot = %(snapshot_id)s
    WHERE table_id = %(table_id)s AND column_id = ANY(%(ids)s) AND end_snapshot IS NULL
"""
INSERT_COLUMN: Final = """
    INSERT INTO ducklake_column
    VALUES (%(id)s, %(snapshot_id)s, NULL, %(table_id)s, %(id)s, %(name)s, %(type)s, %(initial_default)s,
            %(default_value)s, %(nulls_allowed)s, %(parent)s, %(default_type)s, 'duckdb')
"""
# A column that never was: the next one gets a higher id (N§3.2).
RESERVE_COLUMN: Final = """
    INSERT INTO ducklake_column
    VALUES (%(id)s, %(snapshot_id)s, %(snapshot_id)s, %(table_id)s, %(id)s, %(name)s, 'int32', NULL, 'NULL', true, NULL,
            'literal', 'duckdb')
"""
END_COLUMN_COMMENTS: Final = """
    UPDATE ducklake_column_tag SET end_snapshot = %(snapshot_id)s
    WHERE table_id = %(table_id)s AND column_id = ANY(%(ids)s) AND key = 'comment' AND end_snapshot IS NULL
"""
INSERT_COLUMN_COMMENT: Final = """
    INSERT INTO ducklake_column_tag
    VALUES (%(table_id)s, %(id)s, %(snapshot_id)s, NULL, 'comment', %(text)s)
"""

END_COMMENT: Final = """
    UPDATE ducklake_tag SET end_snapshot = %(snapshot_id)s
    WHERE object_id = %(table_id)s AND key = 'comment' AND end_snapshot IS NULL
"""
INSERT_COMMENT: Final = "INSERT INTO ducklake_tag VALUES (%(table_id)s, %(snapshot_id)s, NULL, 'comment', %(text)s)"

END_PARTITIONING: Final = """
    UPDATE ducklake_partition_info SET end_snapshot = %(snapshot_id)s
    WHERE table_id = %(table_id)s AND end_snapshot IS NULL
"""
INSERT_PARTITIONING: Final = "INSERT INTO ducklake_partition_info VALUES (%(id)s, %(table_id)s, %(snapshot_id)s, NULL)"
INSERT_PARTITION_KEY: Final = """
    INSERT INTO ducklake_partition_column VALUES (%(id)s, %(table_id)s, %(index)s, %(column_id)s, %(transform)s)
"""

END_SORT: Final = """
    UPDATE ducklake_sort_info SET end_snapshot = %(snapshot_id)s
    WHERE table_id = %(table_id)s AND end_snapshot IS NULL
"""
INSERT_SORT: Final = "INSERT INTO ducklake_sort_info VALUES (%(id)s, %(table_id)s, %(snapshot_id)s, NULL)"
INSERT_SORT_KEY: Final = """
    INSERT INTO ducklake_sort_expression
    VALUES (%(id)s, %(table_id)s, %(index)s, %(expression)s, %(dialect)s, %(direction)s, %(null_order)s)
"""


async def write_columns(tx: Commit, table_id: int, changes: ColumnChanges, *, is_new: bool) -> None:
    """Raises Unsupported for a column that the table is sorted or partitioned by and that would be gone."""
    if not changes:
        return
    key = _key(tx, table_id)
    await _check_dropped(tx, table_id, changes)
    await _rename_in_sort(tx, table_id, changes)
    if changes.ended or changes.inserted:
        await tx.conn.execute(END_COLUMNS, {**key, "ids": list(changes.ended)})
        await _insert(tx, INSERT_COLUMN, [{**key, **asdict(row)} for row in changes.inserted])
        await tables.record_schema_version(tx, table_id)
    await tx.conn.execute(END_COLUMN_COMMENTS, {**key, "ids": list(changes.comments)})
    await _insert(tx, INSERT_COLUMN_COMMENT, [{**key, "id": i, "text": text} for i, text in changes.comments.items()])
    if changes.reshapes:
        await inlined_tables.add(tx, table_id)
    if not is_new:
        tx.record(altered_table(table_id))


async def reserve_column_ids(tx: Commit, table_id: int, last: int) -> None:
    """Columns that come get ids after this one: files of the table may have columns in them, by lower ids, that the
    table has no more."""
    await tx.conn.execute(RESERVE_COLUMN, {**_key(tx, table_id), "id": last, "name": f"reserved_{last}"})


async def set_partitioning(tx: Commit, table_id: int, keys: Sequence[partitions.Key]) -> int:
    """The new partition id. Without keys the table is not partitioned any more, which is a partitioning, too."""
    key = {**_key(tx, table_id), "id": tx.next_catalog_id()}
    await tx.conn.execute(END_PARTITIONING, key)
    await tx.conn.execute(INSERT_PARTITIONING, key)
    await _insert(tx, INSERT_PARTITION_KEY, [{**key, "index": i, **asdict(k)} for i, k in enumerate(keys)])
    await tables.record_schema_version(tx, table_id)
    await inlined_tables.add(tx, table_id)
    tx.record(altered_table(table_id))
    return key["id"]


async def set_sort(tx: Commit, table_id: int, keys: Sequence[sorts.Key]) -> int | None:
    """The new sort id; None without keys, when the sort only ends."""
    key = _key(tx, table_id)
    await tx.conn.execute(END_SORT, key)
    tx.record(altered_table(table_id))
    if not keys:
        return None
    key["id"] = tx.next_catalog_id()
    await tx.conn.execute(INSERT_SORT, key)
    await _insert(tx, INSERT_SORT_KEY, [{**key, "index": i, **asdict(k)} for i, k in enumerate(keys)])
    return key["id"]


async def set_comment(tx: Commit, table_id: int, text: str | None) -> None:
    """None takes the comment away, and leaves a row that says so."""
    key = _key(tx, table_id)
    await tx.conn.execute(END_COMMENT, key)
    await tx.conn.execute(INSERT_COMMENT, {**key, "text": text})
    tx.record(altered_table(table_id))


async def _check_dropped(tx: Commit, table_id: int, changes: ColumnChanges) -> None:
    if not changes.dropped:
        return
    partitioning = (await partitions.read(tx.conn, table_id)).partitionings
    partitioned = {key.column_id for p in partitioning if p.span.end is None for key in p.keys}
    sort = await _live_sort(tx, table_id)
    sorted_by = sort_expressions.named(sort.keys) if sort else set[str]()
    for column_id, name in changes.dropped.items():
        if column_id in partitioned:
            raise Unsupported(f"Column {name} cannot be dropped: DuckLake partitions the table by it")
        if folded(name) in sorted_by:
            raise Unsupported(f"Column {name} cannot be dropped: DuckLake sorts the table by it")


async def _rename_in_sort(tx: Commit, table_id: int, changes: ColumnChanges) -> None:
    sort = await _live_sort(tx, table_id) if changes.renamed else None
    # one that is set in this commit has the new names already
    if sort is None or sort.span.begin == tx.snapshot_id:
        return
    keys = sort_expressions.renamed(sort.keys, changes.renamed)
    if keys != sort.keys:
        await set_sort(tx, table_id, keys)


async def _live_sort(tx: Commit, table_id: int) -> sorts.Sort | None:
    return next((s for s in (await sorts.read(tx.conn, table_id)).sorts if s.span.end is None), None)


def _key(tx: Commit, table_id: int) -> dict[str, int]:
    return {"table_id": table_id, "snapshot_id": tx.snapshot_id}


async def _insert(tx: Commit, statement: LiteralString, rows: Sequence[Mapping[str, object]]) -> None:
    async with tx.conn.cursor() as cursor:
        await cursor.executemany(statement, rows)
