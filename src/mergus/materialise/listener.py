"""The listener: a commit is on storage as Iceberg before anyone asks.

Each process has one, on a connection of its own to Postgres. One of them leads (see `annex.leadership`): it hears of
every snapshot, finds the tables that changed, and has them put on storage by what serves them, as a load would. The
others wait for their turn. All of them hear when a table has been put on storage, and keep it ready if it is asked for.

It is latency, never correctness. The snapshot table is the queue: a signal that is missed is made good by a look at the
next beat, and one who takes over begins at the snapshot up to which all was done. Two that believe to lead do the same
work twice, which does no harm: objects are named by their content, and rows are written by whoever is further.
"""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import psycopg
from psycopg import Notify

from mergus import tracing
from mergus.annex import leadership
from mergus.annex import listener as annex
from mergus.annex.migrate import channel
from mergus.annex.tables import made_channel
from mergus.config import Settings
from mergus.ducklake import snapshots, tables
from mergus.ducklake.changes import names_stay, tables_named
from mergus.ducklake.connect import Conn, dedicated, listen, unlisten
from mergus.ducklake.snapshots import Head
from mergus.errors import ApiError, InternalServerError, MergusError, NotFound, Unsupported
from mergus.logs import log
from mergus.materialise.backlog import Backlog
from mergus.materialise.causes import MOST_MADE, Causes
from mergus.metrics import LISTENER_FAILURES, LISTENER_LEADS, LISTENER_MADE, LISTENER_TABLES, WORK, Work

# Who missed more snapshots than this looks at every table: what they say would be more to read.
MOST_SNAPSHOTS: Final = 10_000
REPORT_SECONDS: Final = 0.5
PROGRESS_SECONDS: Final = 5.0
SAID_SECONDS: Final = 10.0
# The lake is measured once a minute at most, and for a hundredth of the time at most, however large it is.
MEASURE_SECONDS: Final = 60.0
MEASURE_SHARE: Final = 0.01

Measure = Callable[[], Awaitable[dict[str, Any]]]


class Tables(Protocol):
    """What puts tables on storage."""

    async def bring(self, table_id: int) -> tuple[Head, int | None]: ...
    async def finish(self, table_id: int) -> None: ...
    def is_wanted(self, table_id: int) -> bool: ...
    def hear(self, table_id: int) -> None: ...


@dataclass(slots=True)
class Listener:
    settings: Settings
    tables: Callable[[], Awaitable[Tables]]
    # tables that it puts on storage at once
    at_once: int
    # whether it would lead
    stands: bool
    # numbers of the lake, for who leads to tell; `measured-at` among them
    measure: Measure
    # what it saw last of the lake: if that is gone, Postgres has come back from a backup
    _seen: Head | None = None

    async def run(self) -> None:
        """Until it is cancelled: whatever happens to Postgres, it comes back. What goes wrong again and again is said
        once."""
        said = ""
        while True:
            began = time.monotonic()
            try:
                async with dedicated(self.settings, "mergus listener") as conn:
                    await self._attend(conn)
            except Exception as e:
                if repr(e) != said or time.monotonic() > began + SAID_SECONDS:
                    said = repr(e)
                    foreseen = isinstance(e, psycopg.Error | MergusError | OSError)
                    log.warning("the listener begins anew: %s", e, exc_info=None if foreseen else e)
            await asyncio.sleep(leadership.BEAT)

    async def _attend(self, conn: Conn) -> None:
        served = await self.tables()
        made = made_channel(self.settings)
        await listen(conn, made)
        while not self.stands or not await leadership.try_to_lead(conn):
            if self.stands and (pid := await leadership.depose_the_silent(conn)) is not None:
                log.warning("the leading listener was silent: its Postgres session %s is ended", pid)
                continue
            for note in await _hear(conn):
                # anyone may say anything on a channel
                if note.channel == made and note.payload.isdecimal():
                    served.hear(int(note.payload))
        # what the leader puts on storage is ready here already
        await unlisten(conn, made)
        await listen(conn, channel(self.settings))
        leader = await Leader.begin(conn, served, self.at_once, self._seen, self.measure)
        try:
            await leader.lead()
        finally:
            self._seen = leader.backlog.seen


async def _hear(conn: Conn) -> list[Notify]:
    """Waits until something is heard, or a beat has passed."""
    return [note async for note in conn.notifies(timeout=leadership.BEAT, stop_after=1)]


@dataclass(slots=True)
class Leader:
    conn: Conn
    served: Tables
    at_once: int
    backlog: Backlog
    measure: Measure
    _lake: dict[str, Any] | None = None
    _state: tuple[int, int, int, int] | None = None
    _working: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _causes: Causes = field(default_factory=Causes)
    _histories: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _began: Work = field(default_factory=lambda: WORK.since(Work()))
    _made: int = 0
    _reported: tuple[object, ...] = ()
    _reported_at: float = 0.0
    _progress_at: float = field(default_factory=time.monotonic)

    @classmethod
    async def begin(cls, conn: Conn, served: Tables, at_once: int, before: Head | None, measure: Measure) -> "Leader":
        """Where the one before it ended, unless the lake is not the one that this process saw before."""
        done = await annex.read_done(conn)
        if before is not None and not await snapshots.is_still(conn, before):
            # and nobody is told otherwise while every table is looked at
            await annex.forget_done(conn)
            done = None
        seen = done or Head(-1, (await snapshots.head(conn)).snapshot_time, -1)
        backlog = Backlog(seen, seen.epoch, served.is_wanted)
        backlog.resume(await annex.read_failures(conn))
        await annex.lead(conn, f"{socket.gethostname()}:{os.getpid()}")
        log.info("this listener leads: all is done up to snapshot %s", "none" if done is None else done.snapshot_id)
        return cls(conn, served, at_once, backlog, measure)

    async def lead(self) -> None:
        """Until the connection breaks, and the lead is lost with it."""
        LISTENER_LEADS.set(1)
        measuring = asyncio.create_task(self._measure())
        try:
            while True:
                await self._look()
                self._start()
                await self._report()
                await _hear(self.conn)
        finally:
            LISTENER_LEADS.set(0)
            for state in self.backlog.numbers:
                LISTENER_TABLES.labels(state).set(0)
            log.info("this listener does not lead any more")
            self.at_once = 0
            for task in (*self._working, *self._histories, measuring):
                task.cancel()

    async def _measure(self) -> None:
        """Beside all else, on another connection: whatever comes of it, tables go on. The next report tells it."""
        while True:
            began = time.monotonic()
            try:
                self._lake = await self.measure()
            except Exception as e:
                foreseen = isinstance(e, psycopg.Error | MergusError | OSError)
                log.warning("the lake could not be measured: %s", e, exc_info=None if foreseen else e)
            took = time.monotonic() - began
            await asyncio.sleep(max(MEASURE_SECONDS, took / MEASURE_SHARE))

    async def _look(self) -> None:
        """Finds out what has changed since the last time."""
        state = await snapshots.state(self.conn)
        if state == self._state:
            return
        known = self.backlog.seen
        if state[0] - known.snapshot_id > MOST_SNAPSHOTS:
            head, words = await snapshots.head(self.conn), None
        else:
            head, words = await snapshots.news(self.conn, known)
        if words is None:
            every = await tables.live(self.conn)
            self.backlog.sweep(every, head, holds=True)
            log.info("every table is looked at, %d of them", len(every))
        else:
            named = tables_named(words)
            if not names_stay(words):
                named |= set(await tables.begun(self.conn, known.snapshot_id))
            every = await tables.live(self.conn) if head.epoch != known.epoch else None
            if tracing.is_on():
                made = await snapshots.made_since(self.conn, known.snapshot_id, head.snapshot_id, MOST_MADE)
                self._causes.note(made, named)
            self.backlog.changed(named, head, time.monotonic())
            if every is not None:
                self.backlog.sweep(every, head, holds=False)
        # the state before the head: what came between the two queries is looked at again
        self._state = state

    def _start(self) -> None:
        while len(self._working) < self.at_once:
            now = time.monotonic()
            if (table_id := self.backlog.take(now)) is None:
                next_at = self.backlog.next_at
                # otherwise the next beat is soon enough
                if next_at is not None and next_at < now + leadership.BEAT:
                    asyncio.get_running_loop().call_later(next_at - now, self._start)
                return
            self._go(self._working, self._bring(table_id))

    def _go(self, among: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        among.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            among.discard(task)
            if not task.cancelled():
                self._start()

        # what begins then is another's, and in no trace yet
        task.add_done_callback(ended, context=Context())

    async def _bring(self, table_id: int) -> None:
        with self._causes.working(table_id) as span:
            try:
                head, missing = await self.served.bring(table_id)
            except NotFound:
                self._causes.done(table_id)
                self.backlog.gone(table_id)
            except Exception as e:
                self._failed(table_id, e, in_history=False)
                span.fail(type(e).__name__)
            else:
                self._causes.done(table_id)
                self._made += 1
                LISTENER_MADE.inc()
                if self.backlog.made(table_id, head, missing, time.monotonic()):
                    self._go(self._histories, self._finish(table_id))

    async def _finish(self, table_id: int) -> None:
        try:
            # whether it is there still is found out when it is told again
            with suppress(NotFound):
                await self.served.finish(table_id)
        except Exception as e:
            self._failed(table_id, e, in_history=True)
        else:
            self.backlog.history_made(table_id)

    def _failed(self, table_id: int, e: Exception, *, in_history: bool) -> None:
        known = isinstance(e, ApiError)
        # what else it says is for the log alone
        error = e if known else InternalServerError(f"{type(e).__name__}; the server's log has more")
        LISTENER_FAILURES.labels(error.type).inc()
        now = time.monotonic()
        failure = self.backlog.went_wrong(table_id, error.type, error.message, now, in_history=in_history)
        level = log.info if isinstance(e, Unsupported) else log.warning
        fields = {"table_id": table_id, "attempts": failure.attempts, "type": error.type}
        level("a table cannot be put on storage: %s", e, exc_info=None if known else e, extra={"fields": fields})

    async def _report(self) -> None:
        """What was done so far, for the next leader and for whoever asks. Nothing is said twice."""
        now = time.monotonic()
        # in a burst it is called for every commit, and counts what may be thousands of tables
        if now < self._reported_at + REPORT_SECONDS:
            return
        numbers, missing_from = self.backlog.numbers, self.backlog.missing_from
        for state, number in numbers.items():
            LISTENER_TABLES.labels(state).set(number)
        self._say_progress(now, numbers, self.backlog.seen.snapshot_id + 1 - missing_from)
        lake = self._lake
        known = (missing_from, self.backlog.epoch, self._made, *numbers.values(), lake and lake["measured-at"])
        if not (self.backlog.failed or self.backlog.cured) and known == self._reported:
            return
        failed, self.backlog.failed = self.backlog.failed, {}
        cured, self.backlog.cured = self.backlog.cured, set()
        work = WORK.since(self._began)
        report = {
            "tables": numbers,
            "made": self._made,
            "snapshots-made": work.chains,
            "objects-written": work.objects,
            "bytes-written": work.bytes,
            "stages": {name: {"times": n, "seconds": round(s, 6)} for name, (n, s) in sorted(work.stages.items())},
            "lake": lake,
        }
        await annex.report(self.conn, missing_from - 1, self.backlog.epoch, report, list(failed.values()), cured)
        self._reported, self._reported_at = known, now

    def _say_progress(self, now: float, numbers: dict[str, int], behind: int) -> None:
        left = numbers["waiting"] + numbers["working"]
        if behind == 0 and left <= self.at_once:
            self._progress_at = now
        elif now > self._progress_at + PROGRESS_SECONDS:
            self._progress_at = now
            made = WORK.since(self._began).chains
            log.info(
                "catching up: %d snapshots behind; made %d, %d tables; %d tables wait, %d have older ones to make",
                *(behind, made, self._made, left, numbers["history"]),
            )
