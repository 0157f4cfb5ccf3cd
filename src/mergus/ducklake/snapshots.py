"""The snapshots of a table: those of the catalog that changed it.

DuckLake's snapshots are the whole catalog's. One is a table's if its change words name the table (H23). Expiry deletes
the words with the snapshot, and it can leave a change without its snapshot: what the table became at an expired
snapshot it still is at the next one that lives (H24). So a snapshot that follows a gap is the table's as well if
anything of the table's changed within the gap; one too many does no harm, since it shows the same rows as the one
before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg import sql

from mergus.ducklake.changes import ALTERED, DROPPED, parse, tables_named, words_about
from mergus.ducklake.connect import Conn
from mergus.ducklake.told import Committed, Told, about, trace

HEAD: Final = """
    SELECT snapshot_id, snapshot_time, (SELECT epoch FROM catalog)
    FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1
"""

# Asked before every load: no parameters, nothing that costs more than a number to read.
STATE: Final = """
    SELECT snapshot_id, (extract(epoch FROM snapshot_time) * 1000000)::bigint, epoch, access_version
    FROM ducklake_snapshot, catalog ORDER BY snapshot_id DESC LIMIT 1
"""

# What happened since a head that is known, if that is still one of the lake's snapshots.
NEWS: Final = f"""
    SELECT head.*,
           EXISTS (SELECT FROM ducklake_snapshot
                   WHERE snapshot_id = %(known_id)s AND snapshot_time = %(known_time)s),
           (SELECT string_agg(changes_made, ',') FROM ducklake_snapshot_changes WHERE snapshot_id > %(known_id)s)
    FROM ({HEAD}) AS head
"""

# What newer snapshots did, and what those that are in a trace tell of themselves. A table that is made or renamed is
# not named by its id.
MADE_SINCE: Final = """
    SELECT snapshot_id, changes_made,
           CASE WHEN strpos(commit_extra_info, '"traceparent"') > 0 THEN commit_extra_info END,
           ARRAY(SELECT table_id FROM ducklake_table WHERE begin_snapshot = snapshot_id)
    FROM ducklake_snapshot_changes WHERE snapshot_id > %(after)s AND snapshot_id <= %(upto)s
    ORDER BY snapshot_id DESC LIMIT %(most)s
"""

EXISTS: Final = "SELECT FROM ducklake_snapshot WHERE snapshot_id = %(id)s"
LAST_AT: Final = "SELECT max(snapshot_id) FROM ducklake_snapshot WHERE snapshot_time <= %(time)s"
IS_STILL: Final = "SELECT FROM ducklake_snapshot WHERE snapshot_id = %(id)s AND snapshot_time = %(time)s"

# Where all of them have expired, the oldest that is left: what they did was there by then.
LATEST_MS: Final = """
    SELECT (extract(epoch FROM coalesce(
        (SELECT max(snapshot_time) FROM ducklake_snapshot WHERE snapshot_id = ANY(%(ids)s)),
        (SELECT min(snapshot_time) FROM ducklake_snapshot))) * 1000)::bigint
"""

# Roughly those that name the table, exactly those after a gap; what was looked at before is not looked at again.
CANDIDATES: Final = """
    SELECT s.previous, s.first_file_id, c.changes_made, s.snapshot_id, s.snapshot_time, s.next_file_id, c.author,
           c.commit_message, c.commit_extra_info
    FROM (SELECT snapshot_id, snapshot_time, next_file_id, lag(snapshot_id) OVER (ORDER BY snapshot_id) AS previous,
                 coalesce(lag(next_file_id) OVER (ORDER BY snapshot_id), 0) AS first_file_id
          FROM ducklake_snapshot WHERE snapshot_id >= %(after)s) AS s
    LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id
    WHERE s.snapshot_id > %(after)s AND s.snapshot_id >= %(begin)s
      AND (c.changes_made ~ (':' || %(table_id)s || '(,|$)') OR s.previous IS DISTINCT FROM s.snapshot_id - 1
           OR s.snapshot_id = ANY(%(reshaped)s))
    ORDER BY s.snapshot_id
"""

MENTIONS: Final = """
    SELECT changes_made FROM ducklake_snapshot_changes
    WHERE snapshot_id > %(after)s AND changes_made ~ (':' || %(table_id)s || '(,|$)')
"""

COUNT_BETWEEN: Final = """
    SELECT count(*) FROM ducklake_snapshot WHERE snapshot_id > %(after)s AND snapshot_id <= %(upto)s
"""

# Whether anything of the table changed after one snapshot and up to another, as far as rows still tell.
CHANGED_BETWEEN: Final = """
    SELECT EXISTS (SELECT FROM ducklake_data_file WHERE table_id = %(table_id)s AND (
                       (begin_snapshot > %(after)s AND begin_snapshot <= %(upto)s)
                       OR (end_snapshot > %(after)s AND end_snapshot <= %(upto)s)
                       OR (begin_snapshot <= %(upto)s AND partial_max > %(after)s)
                       OR (data_file_id >= %(first_file)s AND data_file_id < %(next_file)s)))
        OR EXISTS (SELECT FROM ducklake_delete_file WHERE table_id = %(table_id)s AND begin_snapshot <= %(upto)s AND (
                       begin_snapshot > %(after)s OR partial_max > %(after)s OR partial_max IS NULL
                       OR (end_snapshot > %(after)s AND end_snapshot <= %(upto)s)))
"""
INLINED_CHANGED: Final = """
    SELECT FROM {} WHERE (begin_snapshot > %(after)s AND begin_snapshot <= %(upto)s)
                      OR (end_snapshot > %(after)s AND end_snapshot <= %(upto)s)
"""
INLINED_DELETES_CHANGED: Final = "SELECT FROM {} WHERE begin_snapshot > %(after)s AND begin_snapshot <= %(upto)s"


@dataclass(frozen=True, slots=True)
class Head:
    """The newest snapshot of the catalog, and the epoch of what is no snapshot: together, the state of the lake."""

    snapshot_id: int
    snapshot_time: datetime
    epoch: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: int
    time: datetime
    # what it did to the table; empty where an expired snapshot did it
    words: frozenset[str]
    next_file_id: int
    author: str | None
    message: str | None
    extra_info: str | None
    # whether snapshots between it and the table's one before have expired: nobody knows what they did, whatever this
    # one did itself, and a merge may hide it
    after_gap: bool = False
    told: Told | None = None

    @property
    def iceberg_id(self) -> int:
        """What Iceberg's clients call it: the one who made it chose the number, if that was one of them."""
        return self.told.snapshot_id if isinstance(self.told, Committed) else self.id

    @property
    def timestamp_ms(self) -> int:
        return int(self.time.timestamp() * 1000)


async def head(conn: Conn) -> Head:
    row = await (await conn.execute(HEAD)).fetchone()
    assert row is not None  # noqa: S101  (a lake has a snapshot, the newest of which is never expired)
    return Head(*row)


async def state(conn: Conn) -> tuple[int, int, int, int]:
    """Equal as long as nothing has happened to the lake. The last is the version of who may do what in it."""
    row = await (await conn.execute(STATE, prepare=True)).fetchone()
    assert row is not None  # noqa: S101  (a lake has a snapshot)
    return row[0], row[1], row[2], row[3]


async def exists(conn: Conn, snapshot_id: int) -> bool:
    return (await conn.execute(EXISTS, {"id": snapshot_id})).rowcount == 1


async def last_at(conn: Conn, time: datetime) -> int | None:
    """The last snapshot at a time or before it, of those that live; as DuckDB's AT (TIMESTAMP) has it."""
    row = await (await conn.execute(LAST_AT, {"time": time})).fetchone()
    return None if row is None else row[0]


async def news(conn: Conn, known: Head) -> tuple[Head, str | None]:
    """The head, and the change words since the known one, as far as snapshots since then have not expired; None if it
    is not one of the lake's snapshots any more."""
    key = {"known_id": known.snapshot_id, "known_time": known.snapshot_time}
    row = await (await conn.execute(NEWS, key)).fetchone()
    assert row is not None  # noqa: S101  (a lake has a snapshot)
    *now, still, words = row
    return Head(*now), (words or "") if still else None


@dataclass(frozen=True, slots=True)
class Made:
    """A snapshot, the tables that it made others, and the trace of who made it; empty if that one told of none."""

    snapshot_id: int
    tables: frozenset[int]
    trace: Mapping[str, str]


async def made_since(conn: Conn, after: int, upto: int, most: int) -> list[Made]:
    """Newest first, so many at most."""
    rows = await (await conn.execute(MADE_SINCE, {"after": after, "upto": upto, "most": most})).fetchall()
    return [Made(i, frozenset(tables_named(words)).union(begun), trace(told)) for i, words, told, begun in rows]


async def is_still(conn: Conn, head: Head) -> bool:
    """Whether this is a snapshot of the lake still, and not another of the same number: Postgres may come back from a
    backup."""
    found = await conn.execute(IS_STILL, {"id": head.snapshot_id, "time": head.snapshot_time})
    return found.rowcount == 1


async def words_since(conn: Conn, table_id: int, after: int) -> frozenset[str]:
    """What later snapshots did to the table."""
    rows = await (await conn.execute(MENTIONS, {"table_id": table_id, "after": after})).fetchall()
    return frozenset(word for (changes,) in rows for word in words_about(table_id, changes))


async def changed_since(conn: Conn, table_id: int, after: int, upto: int) -> bool:
    """Whether snapshots after one, and up to another, did anything to the table but drop it, or may have: those that
    expired do not tell."""
    key = {"table_id": table_id, "after": after, "upto": upto}
    row = await (await conn.execute(COUNT_BETWEEN, key)).fetchone()
    if row is None or row[0] != max(0, upto - after):
        return True
    rows = await (await conn.execute(MENTIONS, key)).fetchall()
    return any(s == str(table_id) and word != DROPPED for (changes,) in rows for word, s in parse(changes))


async def latest_ms(conn: Conn, ids: Sequence[int]) -> int:
    """When the last of these snapshots was made."""
    row = await (await conn.execute(LATEST_MS, {"ids": list(ids)})).fetchone()
    assert row is not None  # noqa: S101  (a lake has a snapshot)
    return int(row[0])


@dataclass(frozen=True, slots=True)
class Subject:
    """A table, as far as it matters for which snapshots are its own."""

    table_id: int
    begin: int
    inlined: Sequence[sql.Identifier] = ()
    inlined_deletes: sql.Identifier | None = None
    # snapshots that changed how rows are shown, and none of them
    reshaped: Sequence[int] = ()
    # whether it was there at a snapshot: it may have been dropped for a while
    was_there: Callable[[int], bool] = lambda _: True


async def of_table(conn: Conn, subject: Subject, after: int, *, is_first: bool = True) -> list[Snapshot]:
    """Those later than `after`, oldest first; `is_first` says that there are none before."""
    key = {
        "table_id": subject.table_id,
        "begin": subject.begin,
        "after": after,
        "reshaped": list(subject.reshaped),
    }
    found: list[Snapshot] = []
    after_gap = False
    for previous, first_file, changes, snapshot_id, time, *info in await (
        await conn.execute(CANDIDATES, key)
    ).fetchall():
        words = words_about(subject.table_id, changes)
        gap = {
            "table_id": subject.table_id,
            "after": previous if previous is not None else subject.begin - 1,
            "upto": snapshot_id,
            "first_file": first_file,
            "next_file": info[0],
        }
        gapped = gap["after"] < snapshot_id - 1
        after_gap = after_gap or gapped
        if not subject.was_there(snapshot_id):
            continue
        reshaped = (found or not is_first) and any(gap["after"] < i <= snapshot_id for i in subject.reshaped)
        if not words and not (gapped and await _changed(conn, gap, subject)):
            if not reshaped:
                continue
            words = frozenset({ALTERED})
        told = about(subject.table_id, info[-1])
        found.append(Snapshot(snapshot_id, time, words, *info, after_gap=after_gap, told=told))
        after_gap = False
    return found


async def _changed(conn: Conn, gap: dict[str, int], subject: Subject) -> bool:
    row = await (await conn.execute(CHANGED_BETWEEN, gap)).fetchone()
    if row is not None and row[0]:
        return True
    parts = [sql.SQL(INLINED_CHANGED).format(name) for name in subject.inlined]
    if subject.inlined_deletes is not None:
        parts.append(sql.SQL(INLINED_DELETES_CHANGED).format(subject.inlined_deletes))
    if not parts:
        return False
    found = await conn.execute(sql.SQL("{} LIMIT 1").format(sql.SQL(" UNION ALL ").join(parts)), gap)
    return found.rowcount > 0
