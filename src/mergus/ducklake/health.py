"""Numbers that tell how the lake is: of each live table its files, rows, deletes and what waits in Postgres; of the
whole catalog its snapshots and what is to be deleted.

They are counted for many tables at once, so that a catalog of any number of tables costs a few statements for each page
of it. A page is one state of the lake: call it inside one REPEATABLE READ transaction, and end that soon. A flush waits
with dropping an inlined table that somebody reads, and Postgres has room for some thousand locks in all. A table that a
flush has dropped meanwhile fails the query; then the page is read again (`settled`).
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from mergus.ducklake import inlined_counts
from mergus.ducklake.connect import Conn, Pool, one_state
from mergus.errors import TableGone

T = TypeVar("T")

# A flush drops several tables of inlined rows, and each look may meet another.
FLUSH_SECONDS: Final = 5.0

# As DuckLake has it where nobody says otherwise.
DEFAULT_TARGET_BYTES: Final = 1 << 29
# Of the target: what is smaller was not written by somebody who had that many rows at hand.
SMALL_SHARE: Final = 0.25
# Here a request to the object store takes longer than the reading.
TINY_BYTES: Final = 1 << 20
# Of a file's rows: beyond it a reader gets through the file for less than it could.
HEAVY_RATIO: Final = 0.3

TABLES_IN_A_PAGE: Final = 250

TABLES: Final = """
    SELECT t.table_id, t.schema_id, s.schema_name, t.table_name
    FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
    WHERE t.end_snapshot IS NULL AND t.table_id > %(after)s
      AND (%(schema_name)s::text IS NULL OR s.schema_name = %(schema_name)s)
      AND (%(only)s::bigint IS NULL OR t.table_id = %(only)s)
    ORDER BY t.table_id LIMIT %(limit)s
"""
OPTIONS: Final = """
    SELECT key, scope, scope_id, value FROM ducklake_metadata
    WHERE key IN ('target_file_size', 'auto_compact')
      AND (scope IS DISTINCT FROM 'table' OR scope_id = ANY(%(ids)s))
"""

# Whose rows are deleted by what: a delete row may outlive the data file that it is about (H10), and a file may have two
# (H12), which delete no more than all of it.
FILES: Final = """
    WITH asked AS (
        SELECT * FROM unnest(%(ids)s::bigint[], %(targets)s::bigint[]) AS a(table_id, target)
    ), inlined AS (
        SELECT * FROM unnest(%(file_ids)s::bigint[], %(counts)s::bigint[]) AS i(data_file_id, rows)
    ), deletes AS (
        SELECT data_file_id, count(*) AS files, sum(file_size_bytes) AS bytes, sum(delete_count) AS rows
        FROM ducklake_delete_file WHERE table_id = ANY(%(ids)s) AND end_snapshot IS NULL GROUP BY data_file_id
    ), file AS (
        SELECT f.table_id, a.target, f.end_snapshot IS NULL AS live, f.file_size_bytes AS bytes, f.record_count AS rows,
               coalesce(d.files, 0) AS delete_files, coalesce(d.bytes, 0) AS delete_bytes,
               least(f.record_count, coalesce(d.rows, 0)) AS deleted,
               least(f.record_count, coalesce(d.rows, 0) + coalesce(i.rows, 0)) AS gone
        FROM ducklake_data_file f JOIN asked a ON a.table_id = f.table_id
        LEFT JOIN deletes d ON d.data_file_id = f.data_file_id
        LEFT JOIN inlined i ON i.data_file_id = f.data_file_id
        WHERE f.table_id = ANY(%(ids)s)
    )
    SELECT table_id,
           count(*) FILTER (WHERE live),
           sum(bytes) FILTER (WHERE live),
           count(*) FILTER (WHERE live AND bytes < target * %(small)s),
           count(*) FILTER (WHERE live AND bytes < %(tiny)s),
           sum(rows) FILTER (WHERE live),
           sum(delete_files) FILTER (WHERE live),
           sum(delete_bytes) FILTER (WHERE live),
           sum(deleted) FILTER (WHERE live),
           sum(gone) FILTER (WHERE live),
           count(*) FILTER (WHERE live AND gone > 0 AND gone >= rows * %(heavy)s),
           sum(rows) FILTER (WHERE live AND gone > 0 AND gone >= rows * %(heavy)s),
           sum(gone) FILTER (WHERE live AND gone > 0 AND gone >= rows * %(heavy)s),
           sum(bytes) FILTER (WHERE live AND gone > 0 AND gone >= rows * %(heavy)s),
           count(*) FILTER (WHERE NOT live),
           sum(bytes) FILTER (WHERE NOT live)
    FROM file GROUP BY table_id
"""

# What `merge_adjacent_files` takes together: files from which nothing was ever deleted, of the same columns and the
# same partition. It fills one file after the other up to the target.
MERGEABLE: Final = """
    WITH asked AS (
        SELECT * FROM unnest(%(ids)s::bigint[], %(targets)s::bigint[]) AS a(table_id, target)
    ), span AS (
        SELECT table_id, begin_snapshot,
               lead(begin_snapshot) OVER (PARTITION BY table_id ORDER BY begin_snapshot) AS next
        FROM ducklake_schema_versions WHERE table_id = ANY(%(ids)s)
    ), small AS (
        SELECT f.table_id, f.data_file_id, f.file_size_bytes, f.partition_id, f.begin_snapshot, a.target
        FROM ducklake_data_file f JOIN asked a ON a.table_id = f.table_id
        WHERE f.table_id = ANY(%(ids)s) AND f.end_snapshot IS NULL AND f.file_size_bytes < a.target * %(small)s
          AND NOT EXISTS (SELECT FROM ducklake_delete_file d
                          WHERE d.table_id = f.table_id AND d.data_file_id = f.data_file_id)
          AND NOT EXISTS (SELECT FROM unnest(%(file_ids)s::bigint[]) AS i(id) WHERE i.id = f.data_file_id)
    ), place AS (
        SELECT v.data_file_id, array_agg(v.partition_value::text ORDER BY v.partition_key_index) AS keys
        FROM ducklake_file_partition_value v
        WHERE v.table_id = ANY(%(ids)s)
          AND v.data_file_id IN (SELECT data_file_id FROM small WHERE partition_id IS NOT NULL)
        GROUP BY v.data_file_id
    ), run AS (
        SELECT s.table_id, count(*) AS files, sum(s.file_size_bytes) AS bytes,
               least(count(*), greatest(1, ceil(sum(s.file_size_bytes) / min(s.target)))) AS left_over
        FROM small s
        LEFT JOIN span ON span.table_id = s.table_id AND s.begin_snapshot >= span.begin_snapshot
                      AND (span.next IS NULL OR s.begin_snapshot < span.next)
        LEFT JOIN place ON place.data_file_id = s.data_file_id
        GROUP BY s.table_id, span.begin_snapshot, s.partition_id, place.keys
        HAVING count(*) > 1
    )
    SELECT table_id, sum(files), sum(left_over), sum(bytes) FROM run GROUP BY table_id
"""

CATALOG: Final = """
    SELECT (SELECT count(*) FROM ducklake_schema WHERE end_snapshot IS NULL),
           (SELECT count(*) FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id
            WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL),
           (SELECT count(*) FROM ducklake_view v JOIN ducklake_schema s ON s.schema_id = v.schema_id
            WHERE v.end_snapshot IS NULL AND s.end_snapshot IS NULL),
           s.number, s.oldest_id, s.newest_id,
           (SELECT snapshot_time FROM ducklake_snapshot WHERE snapshot_id = s.oldest_id),
           (SELECT snapshot_time FROM ducklake_snapshot WHERE snapshot_id = s.newest_id),
           d.number, d.since,
           (SELECT value FROM ducklake_metadata WHERE key = 'version' AND scope IS NULL),
           (SELECT value FROM ducklake_metadata WHERE key = 'created_by' AND scope IS NULL)
    FROM (SELECT count(*) AS number, min(snapshot_id) AS oldest_id, max(snapshot_id) AS newest_id
          FROM ducklake_snapshot) AS s,
         (SELECT count(*) AS number, min(schedule_start) AS since FROM ducklake_files_scheduled_for_deletion) AS d
"""


@dataclass(frozen=True, slots=True)
class LiveTable:
    id: int
    schema_name: str
    name: str
    # DuckLake's option as it was set for the table alone, and for its schema or the lake
    own_target: int | None
    wider_target: int | None
    # False where somebody has turned merging and rewriting off: DuckLake then does neither, whoever asks
    compacts: bool

    def target(self, wished: int | None) -> int:
        """What was said of the table alone counts before what was said of more: by DuckLake's option, by Iceberg's
        property, by the option of its schema or of the lake."""
        return self.own_target or wished or self.wider_target or DEFAULT_TARGET_BYTES


@dataclass(slots=True)
class TableHealth:
    """At the newest snapshot. What is said of rows deleted is at most that: two deletes may be about the same row."""

    table: LiveTable
    target_bytes: int
    data_files: int = 0
    data_bytes: int = 0
    small_files: int = 0
    tiny_files: int = 0
    # in files, deleted ones among them
    file_rows: int = 0
    delete_files: int = 0
    delete_bytes: int = 0
    # by delete files; and all that are not seen any more, by inlined deletes as well
    deleted_rows: int = 0
    gone_rows: int = 0
    # files with more than HEAVY_RATIO of their rows gone
    heavy_files: int = 0
    heavy_rows: int = 0
    heavy_gone: int = 0
    heavy_bytes: int = 0
    # ended, and kept for older snapshots
    historic_files: int = 0
    historic_bytes: int = 0
    # small files that can be merged with others, and how many they would become
    mergeable_files: int = 0
    merged_files: int = 0
    mergeable_bytes: int = 0
    inlined_rows: int = 0
    # of these, older versions and deleted ones: a flush takes them along
    inlined_ended: int = 0
    inlined_deletes: int = 0

    @property
    def rows(self) -> int:
        return self.file_rows - self.gone_rows + self.inlined_rows

    @property
    def deleted_ratio(self) -> float:
        return self.deleted_rows / self.file_rows if self.file_rows else 0.0


@dataclass(frozen=True, slots=True)
class CatalogHealth:
    schemas: int
    tables: int
    views: int
    snapshots: int
    oldest_id: int | None
    newest_id: int | None
    oldest_time: datetime | None
    newest_time: datetime | None
    scheduled_files: int
    scheduled_since: datetime | None
    version: str | None
    created_by: str | None


async def settled(pool: Pool, look: Callable[[Conn], Awaitable[T]]) -> T:
    """What is seen in one state of the lake. Where a flush has dropped a table since that state, the next one has its
    rows in a file."""
    until = time.monotonic() + FLUSH_SECONDS
    while True:
        try:
            async with one_state(pool) as conn:
                return await look(conn)
        except TableGone:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.02)


async def catalog(conn: Conn) -> CatalogHealth:
    row = await (await conn.execute(CATALOG)).fetchone()
    assert row is not None  # noqa: S101  (two aggregates)
    return CatalogHealth(*row)


async def tables(conn: Conn, after: int, schema_name: str | None = None, only: int | None = None) -> list[LiveTable]:
    """The live tables behind an id: a page of them, in the order of their ids; those of a schema, or one. A page that
    is not full is the last."""
    key = {"after": after, "schema_name": schema_name, "only": only, "limit": TABLES_IN_A_PAGE}
    rows = await (await conn.execute(TABLES, key)).fetchall()
    options = await (await conn.execute(OPTIONS, {"ids": [row[0] for row in rows]})).fetchall()
    set_for: dict[tuple[str, str | None, int | None], str] = {
        (option, scope, scope_id if scope else None): value for option, scope, scope_id, value in options
    }
    found: list[LiveTable] = []
    for table_id, schema_id, schema, name in rows:
        # it counts for the table, else for its schema, else for the lake
        scopes: tuple[tuple[str | None, int | None], ...] = (("table", table_id), ("schema", schema_id), (None, None))
        own, *wider = (number_of_bytes(set_for.get(("target_file_size", scope, of))) for scope, of in scopes)
        compacts = next((v for scope, of in scopes if (v := set_for.get(("auto_compact", scope, of)))), "true")
        found.append(LiveTable(table_id, schema, name, own, wider[0] or wider[1], compacts == "true"))
    return found


async def read(
    conn: Conn,
    schema: str,
    targets: Mapping[LiveTable, int],
    *,
    merging: bool = True,
    heavy: float = HEAVY_RATIO,
) -> list[TableHealth]:
    """Of a page of tables, with the size that each one's files should have. `schema` is that of DuckLake's tables.
    Files of which `heavy` or more is deleted are heavy. Without `merging` nobody looks for what can be merged, which is
    as much work as all else."""
    found = {table.id: TableHealth(table, target) for table, target in targets.items()}
    if not found:
        return []
    deletes = await inlined_counts.deletes(conn, schema, list(found))
    key: dict[str, Any] = {
        "ids": list(found),
        "targets": [health.target_bytes for health in found.values()],
        "file_ids": [file_id for _, file_id, _ in deletes],
        "counts": [number for _, _, number in deletes],
        "small": SMALL_SHARE,
        "tiny": TINY_BYTES,
        "heavy": heavy,
    }
    for table_id, *numbers in await (await conn.execute(FILES, key)).fetchall():
        _put(found[table_id], *(int(number or 0) for number in numbers))
    for table_id, *numbers in await (await conn.execute(MERGEABLE, key)).fetchall() if merging else ():
        health = found[table_id]
        health.mergeable_files, health.merged_files, health.mergeable_bytes = map(int, numbers)
    for health in found.values():
        # of files that are there
        health.inlined_deletes = health.gone_rows - health.deleted_rows
    for table_id, live, ended in await inlined_counts.rows(conn, schema, list(found)):
        found[table_id].inlined_rows += live
        found[table_id].inlined_ended += ended
    return list(found.values())


# Fits in a bigint, with room.
_BYTES: Final = re.compile(r"0*[1-9][0-9]{0,17}")

_COUNTED: Final = (
    *("data_files", "data_bytes", "small_files", "tiny_files", "file_rows", "delete_files", "delete_bytes"),
    *("deleted_rows", "gone_rows", "heavy_files", "heavy_rows", "heavy_gone", "heavy_bytes"),
    *("historic_files", "historic_bytes"),
)


def _put(health: TableHealth, *numbers: int) -> None:
    for name, number in zip(_COUNTED, numbers, strict=True):
        setattr(health, name, number)


def number_of_bytes(text: str | None) -> int | None:
    """What is not a number of bytes is nobody's wish. A client may have set it, to anything."""
    return int(text) if text is not None and _BYTES.fullmatch(text) else None
