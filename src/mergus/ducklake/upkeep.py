"""DuckLake's own maintenance functions, called through a DuckDB session.

What they do to rows is DuckDB's affair, and so is finding out that somebody else was first: a commit that conflicts is
not made (`GaveWay`), and whoever asked may try again. The session has bounds for memory and threads, and what takes too
long, or is cancelled, is interrupted. Nothing of it is half done then: each call is a transaction.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import duckdb

from mergus.config import Settings, hide_password
from mergus.ducklake.session import attach, literal
from mergus.errors import SetupError
from mergus.logs import log

# In DuckLake's words, in ours (0017_lost_deletes.sql), and in those of Postgres where DuckLake's statements meet
# another's.
_CONFLICTS: Final = (
    "transaction conflict",
    "transaction cannot commit",
    "could not serialize access",
    "deadlock detected",
    "maximum retry count",
    "lock timeout",
)
# While one that was interrupted comes to an end.
_PATIENCE: Final = 30.0


class GaveWay(Exception):
    """Somebody else's commit was first, and excludes this one."""


class CallFailed(Exception):
    """DuckDB could not do it; the text says why, and holds no secret."""


@dataclass(frozen=True, slots=True)
class Compacted:
    files: int = 0
    into: int = 0

    def __add__(self, other: "Compacted") -> "Compacted":
        return Compacted(self.files + other.files, self.into + other.into)


class Upkeep:
    """One call at a time. Opens its session when it is needed, and another after a failure."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: duckdb.DuckDBPyConnection | None = None
        self._scratch: Path | None = None

    async def flush(self, schema: str, table: str) -> int:
        """Inlined rows and deletes become files; how many rows."""
        where = f"schema_name => {literal(schema)}, table_name => {literal(table)}"
        rows = await self.call(f"FROM ducklake_flush_inlined_data('lake', {where})")
        return sum(int(row[2]) for row in rows)

    async def merge(self, schema: str, table: str, *, most: int, max_file_size: int | None) -> Compacted:
        """Small files become larger ones: so many of those at most."""
        bounds = f"max_compacted_files => {most}"
        if max_file_size is not None:
            bounds += f", max_file_size => {max_file_size}"
        where = f"{literal(table)}, schema => {literal(schema)}, {bounds}"
        return _compacted(await self.call(f"FROM ducklake_merge_adjacent_files('lake', {where})"))

    @asynccontextmanager
    async def rewrite(self, schema: str, table: str, ratio: float) -> AsyncGenerator[Compacted]:
        """Files with more than this part of their rows deleted are written without them. Commits at the end, and not at
        all if something is raised meanwhile."""
        where = f"{literal(table)}, schema => {literal(schema)}, delete_threshold => {ratio!r}"
        await self.call("BEGIN")
        try:
            yield _compacted(await self.call(f"FROM ducklake_rewrite_data_files('lake', {where})"))
        except BaseException:
            await asyncio.to_thread(self._discard)
            raise
        await self.call("COMMIT")

    async def expire(self, versions: Sequence[int]) -> int:
        listed = ", ".join(map(str, versions))
        ((count,),) = await self.call(
            f"SELECT count(*) FROM ducklake_expire_snapshots('lake', versions => [{listed}]::UBIGINT[])"
        )
        return int(count)

    async def clean_up(self, before: datetime, *, dry_run: bool = False) -> int:
        """Removes files that no snapshot needs since then; how many."""
        return await self._remove("ducklake_cleanup_old_files", before, dry_run=dry_run)

    async def remove_orphans(self, before: datetime, *, dry_run: bool = False) -> int:
        """Removes Parquet files in the data path that no row names and that are older; how many."""
        return await self._remove("ducklake_delete_orphaned_files", before, dry_run=dry_run)

    async def _remove(self, function: str, before: datetime, *, dry_run: bool) -> int:
        options = f"older_than => TIMESTAMPTZ {literal(before.isoformat())}, dry_run => {str(dry_run).lower()}"
        ((count,),) = await self.call(f"SELECT count(*) FROM {function}('lake', {options})")
        return int(count)

    async def call(self, statement: str) -> list[tuple[Any, ...]]:
        """Interrupts the statement when it is cancelled itself, and returns only when DuckDB has stopped."""
        work = asyncio.create_task(asyncio.to_thread(self._call, statement))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await self._interrupt(work)
            raise

    def _call(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            if self._session is None:
                self._session = self._open()
            return self._session.execute(statement).fetchall()
        except duckdb.Error as e:
            # it may be in the middle of a transaction, or have found a fault of its own
            self._discard()
            if any(words in str(e).lower() for words in _CONFLICTS):
                raise GaveWay from None
            raise CallFailed(hide_password(str(e)).strip()) from None
        except SetupError as e:
            raise CallFailed(e.message) from None

    def _open(self) -> duckdb.DuckDBPyConnection:
        session = attach(self._settings)
        self._scratch = self._scratch or Path(tempfile.mkdtemp(prefix="mergus-upkeep-"))
        session.execute(f"SET memory_limit = {literal(self._settings.maintenance_memory)}")
        session.execute(f"SET threads = {self._settings.maintenance_threads}")
        session.execute(f"SET temp_directory = {literal(str(self._scratch))}")
        return session

    async def _interrupt(self, work: "asyncio.Task[list[tuple[Any, ...]]]") -> None:
        for _ in range(round(_PATIENCE / 0.1)):
            if (session := self._session) is not None:
                session.interrupt()
            done, _ = await asyncio.wait({work}, timeout=0.1)
            if done:
                break
        else:
            log.error("DuckDB does not stop what it was doing; its session is left to itself")
            self._session = None
            return
        work.exception()
        await asyncio.to_thread(self._discard)

    def _discard(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    async def close(self) -> None:
        await asyncio.to_thread(self._discard)
        if self._scratch is not None:
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)


def _compacted(rows: Sequence[tuple[Any, ...]]) -> Compacted:
    return sum((Compacted(int(row[2]), int(row[3])) for row in rows), Compacted())
