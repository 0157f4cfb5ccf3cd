"""Writing a DuckLake snapshot: the one way in which anything of ours changes the lake.

    async with commit(pool, info) as tx:
        ...                      # check every requirement: nobody else can commit now
        id = tx.next_catalog_id()
        await tx.conn.execute(INSERT_…, …)
        tx.record(created_schema("s"))
                                 # leaving the block writes the snapshot row and commits

`tx.advance()` ends one snapshot and begins another in the same transaction: others see all of them or none.

What must hold, and why:
- The lock on `ducklake_snapshot` is the first thing the transaction does. It waits for a DuckDB commit in
  flight, keeps new ones out, and never blocks a reader; taken first, it cannot be part of a deadlock, which
  DuckDB would not retry (H47).
- The snapshot id is the newest plus one, without a gap: DuckDB's conflict detection rests on the primary key,
  and a stale DuckDB transaction would commit into a gap unchecked (H30).
- Snapshot times never go back, else `AT (TIMESTAMP)` picks a wrong snapshot (H46).
- DuckDB's writers get their turn. They cannot queue as we do: a snapshot that we add makes their insert fail, and
  after ten tries they give up. So a commit that sees one of them waiting says so in its snapshot, and the next commit
  of ours, from whichever process, first leaves the catalog alone for a moment.
- `next_file_id` moves with every change of a table. Open DuckDB sessions keep a table's statistics for as long as it
  stands still, the next row id among them (H27), and bounds of a column as it was before it got another type (H48).
- A block that records no change leaves no snapshot behind.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson
import psycopg
from psycopg.errors import LockNotAvailable

from mergus import tracing
from mergus.ducklake.changes import TABLES_STAY, Change, changes_made
from mergus.ducklake.connect import Conn, Pool, connection
from mergus.ducklake.metadata import SUPPORTED_VERSION
from mergus.errors import CommitStateUnknown, ServiceUnavailable
from mergus.metrics import COMMIT_STAGES

LOCK: Final = "LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE"

# A snapshot of DuckDB's may say of the next file id less than is true (duckdb/ducklake#1335).
READ_HEAD: Final = """
    SELECT s.snapshot_id, schema_version, next_catalog_id,
           greatest(next_file_id, (SELECT max(data_file_id) + 1 FROM ducklake_data_file),
                    (SELECT max(delete_file_id) + 1 FROM ducklake_delete_file)),
           (SELECT value FROM ducklake_metadata WHERE key = 'version' AND scope IS NULL),
           CASE WHEN commit_extra_info LIKE '%%"contended":true%%'
                THEN extract(epoch FROM snapshot_time - clock_timestamp())::float8 + %(give_way)s
                ELSE 0 END
    FROM ducklake_snapshot s LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id
    ORDER BY s.snapshot_id DESC LIMIT 1
"""

# An insert into the table that we have locked: only DuckDB sessions do that without locking it first.
# pg_locks shows the locks of all databases, and a table of another one may have the same oid.
IS_CONTENDED: Final = """
    SELECT EXISTS (SELECT FROM pg_locks
                   WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
                     AND relation = 'ducklake_snapshot'::regclass AND mode = 'RowExclusiveLock' AND NOT granted)
"""

# clock_timestamp, not now(): the transaction began before the lock was granted.
INSERT_SNAPSHOT: Final = """
    INSERT INTO ducklake_snapshot
    SELECT %(snapshot_id)s, greatest(clock_timestamp(), snapshot_time),
           %(schema_version)s, %(next_catalog_id)s, %(next_file_id)s
    FROM ducklake_snapshot WHERE snapshot_id = %(head)s
"""

INSERT_CHANGES: Final = """
    INSERT INTO ducklake_snapshot_changes
    VALUES (%(snapshot_id)s, %(changes_made)s, %(author)s, %(message)s, %(extra_info)s)
"""


# Among the last so many snapshots.
FIND_MARKER: Final = """
    SELECT FROM (SELECT commit_extra_info AS told FROM ducklake_snapshot_changes
                 ORDER BY snapshot_id DESC LIMIT %(last)s) AS made
    WHERE strpos(told, %(marker)s) > 0
"""
LOOKED_AT: Final = 10_000

# DuckDB waits 50 to 100 ms before its first new try, and up to 225 ms before its third.
GIVE_WAY_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Head:
    """The newest snapshot row: where every counter stands."""

    snapshot_id: int
    schema_version: int
    next_catalog_id: int
    next_file_id: int


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Who did it and why, for `ducklake_snapshot_changes`; DuckDB shows it in `snapshots()`."""

    author: str | None = None
    message: str | None = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


class Commit:
    """An open commit: the lock is held, `head` is the newest snapshot and stays it."""

    def __init__(self, conn: Conn, head: Head, info: CommitInfo) -> None:
        self.conn = conn
        self.head = head
        self._info = info
        self._next_catalog_id = head.next_catalog_id
        self._next_file_id: int = head.next_file_id
        self._changes: list[Change] = []
        self._told: dict[str, Any] = {}
        self._named: set[int] = set()
        self._is_told = False

    @property
    def snapshot_id(self) -> int:
        """Of the snapshot that is being made."""
        return self.head.snapshot_id + 1

    @property
    def is_told(self) -> bool:
        """Whether what has been written so far leaves a snapshot of the lake."""
        return self._is_told or bool(self._changes)

    @property
    def seen_from(self) -> int:
        """The snapshot that what has been written so far is seen from: the one that is being made, or the newest if
        there is nothing yet to make one for."""
        return self.snapshot_id if self._changes else self.head.snapshot_id

    @property
    def altered_schema_version(self) -> int:
        """The version that the snapshot has if it alters any schema."""
        return self.head.schema_version + 1

    def next_catalog_id(self) -> int:
        """Schemas, tables, views, partition and sort specs draw their ids from this one sequence."""
        self._next_catalog_id += 1
        return self._next_catalog_id - 1

    def next_file_ids(self, count: int) -> range:
        """Data files, delete files and mappings draw their ids from this one sequence."""
        first, self._next_file_id = self._next_file_id, self._next_file_id + count
        return range(first, self._next_file_id)

    def record(self, *changes: Change) -> None:
        self._changes.extend(changes)

    def names(self, table_id: int) -> bool:
        """Whether a snapshot of this commit says by its words that the table is another."""
        return table_id in self._named or any(c.subject == str(table_id) for c in self._changes)

    def tell(self, key: str, value: Any) -> None:  # noqa: ANN401  (JSON)
        """For `commit_extra_info` of the snapshot that is being made."""
        self._told[key] = value

    async def advance(self) -> None:
        """Writes the snapshot, if there is any change, and begins the next one."""
        if not self._changes:
            return
        contended = await (await self.conn.execute(IS_CONTENDED)).fetchone()
        # who puts it on storage goes on with this trace
        extra = {**self._info.extra, **tracing.carrier(), **self._told}
        if contended and contended[0]:
            extra["contended"] = True
        touches_tables = any(c.kind not in TABLES_STAY for c in self._changes)
        if touches_tables and self._next_file_id == self.head.next_file_id:
            self._next_file_id += 1
        made = Head(
            self.snapshot_id,
            self.head.schema_version + any(c.alters_schema for c in self._changes),
            self._next_catalog_id,
            self._next_file_id,
        )
        row = {
            **asdict(made),
            "head": self.head.snapshot_id,
            "changes_made": changes_made(self._changes),
            "author": self._info.author,
            "message": self._info.message,
            "extra_info": orjson.dumps(extra).decode() if extra else None,
        }
        await self.conn.execute(INSERT_SNAPSHOT, row)
        await self.conn.execute(INSERT_CHANGES, row)
        tracing.current().set("mergus.snapshot.id", made.snapshot_id)
        self._is_told = True
        self._named |= {int(c.subject) for c in self._changes if c.subject.isdecimal()}
        self.head, self._changes, self._told = made, [], {}


@asynccontextmanager
async def commit(pool: Pool, info: CommitInfo) -> AsyncGenerator[Commit]:
    async with connection(pool) as conn:
        written = False
        try:
            async with AsyncExitStack() as transaction:
                tx = Commit(conn, await _begin(conn, transaction), info)
                locked = time.perf_counter()
                yield tx
                await tx.advance()
                written = True
        except psycopg.OperationalError as e:
            if written and conn.broken:
                raise CommitStateUnknown("The connection to Postgres broke during the commit") from e
            raise
        COMMIT_STAGES.labels("locked").observe(time.perf_counter() - locked)


async def was_made(conn: Conn, marker: str) -> bool:
    """Whether a snapshot is in the lake whose extra info has this text. Ask under the lock: who began the commit holds
    it until that is made or gone."""
    return (await conn.execute(FIND_MARKER, {"marker": marker, "last": LOOKED_AT})).rowcount > 0


@asynccontextmanager
async def hold_still(pool: Pool) -> AsyncGenerator[Conn]:
    """A transaction in which nobody can commit to the lake, for changes to our own tables alone."""
    async with connection(pool) as conn, conn.transaction():
        await _lock(conn)
        yield conn


async def _begin(conn: Conn, transaction: AsyncExitStack) -> Head:
    """Opens the transaction with the lock held; gives way once if the newest snapshot says that DuckDB waits."""
    gave_way = False
    while True:
        async with AsyncExitStack() as attempt:
            await attempt.enter_async_context(conn.transaction())
            head, wait = await _lock(conn)
            if gave_way or wait <= 0:
                transaction.push_async_exit(attempt.pop_all())
                return head
        gave_way = True
        await asyncio.sleep(min(wait, GIVE_WAY_SECONDS))


async def _lock(conn: Conn) -> tuple[Head, float]:
    """The newest snapshot, and for how many seconds it asks that the catalog be left alone."""
    try:
        await conn.execute(LOCK, prepare=False)
    except LockNotAvailable as e:
        raise ServiceUnavailable("Other writers hold the catalog; try again") from e
    row = await (await conn.execute(READ_HEAD, {"give_way": GIVE_WAY_SECONDS})).fetchone()
    if row is None or row[4] != SUPPORTED_VERSION:
        raise ServiceUnavailable(
            f"The DuckLake catalog is not of version {SUPPORTED_VERSION} any more; nothing is written to it"
        )
    return Head(*row[:4]), row[5]
