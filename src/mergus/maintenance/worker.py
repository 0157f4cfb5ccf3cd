"""Who does the jobs: one at a time in each process that works, and any process may.

A worker speaks to Postgres on one session, which holds the job (annex/jobs.py). If that session is lost, the job is
lost with it: what is being done is interrupted, since another will go on with it.
"""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg

from mergus.annex import jobs
from mergus.annex.jobs import Job, Kind, State
from mergus.config import Settings, hide_password
from mergus.ducklake.connect import Conn, Pool, dedicated, listen
from mergus.ducklake.upkeep import CallFailed, Upkeep
from mergus.errors import MergusError
from mergus.faults import point
from mergus.logs import log
from mergus.maintenance.cleaning import remove_orphans, sweep_garbage
from mergus.maintenance.compact import compact
from mergus.maintenance.expire import expire
from mergus.maintenance.work import Cancelled, PutOff, Work
from mergus.materialise.reading import Place
from mergus.metrics import JOB_SECONDS, JOBS
from mergus.storage.objects import Objects

BODIES: Final[dict[Kind, Callable[[Work], Awaitable[None]]]] = {
    "compact": compact,
    "expire": expire,
    "sweep": sweep_garbage,
    "orphans": remove_orphans,
}

# Seconds between two looks for what is due, and between two at whether the job being done is still wanted.
POLL: Final = 5.0
BEAT: Final = 0.5
RECONNECT: Final = 2.0
# A job over which so many workers in a row have died is not given to another.
MOST_DEATHS: Final = 5
SCHEDULER: Final = "schedule"
ORPHANS_EVERY: Final = 86_400


class Worker:
    def __init__(self, settings: Settings, pool: Pool, objects: Objects, place: Callable[[], Awaitable[Place]]) -> None:
        self._settings = settings
        self._pool = pool
        self._objects = objects
        self._place = place
        self._name = f"{socket.gethostname()}:{os.getpid()}"

    async def run(self) -> None:
        """For ever; whatever happens to Postgres."""
        while True:
            try:
                async with dedicated(self._settings, "mergus worker") as conn:
                    await listen(conn, jobs.channel(self._settings))
                    while True:
                        await self._schedule(conn)
                        if not await self.work(conn):
                            await _told(conn, POLL)
            except (psycopg.Error, MergusError, OSError) as e:
                log.warning("the worker has lost Postgres: %s", hide_password(str(e)).strip())
                await asyncio.sleep(RECONNECT)

    async def work(self, conn: Conn) -> bool:
        """Does the next job; false if there is none."""
        job = await jobs.take(conn, self._name)
        if job is None:
            return False
        start = time.monotonic()
        log.info("job %s (%s) begins", job.id, job.kind)
        state = await self._do(conn, job)
        JOBS.labels(job.kind, state).inc()
        JOB_SECONDS.labels(job.kind).observe(time.monotonic() - start)
        log.info("job %s (%s) is %s after %.1f s", job.id, job.kind, state, time.monotonic() - start)
        await jobs.forget(conn, self._settings.jobs_seconds)
        return True

    async def _schedule(self, conn: Conn) -> None:
        every = self._settings.maintenance_every
        if not every:
            return
        await jobs.ask_in_turn(conn, "compact", {}, SCHEDULER, every)
        await jobs.ask_in_turn(conn, "sweep", {}, SCHEDULER, every)
        # it lists everything, and only what is days old goes
        await jobs.ask_in_turn(conn, "orphans", {}, SCHEDULER, max(every, ORPHANS_EVERY))
        if self._settings.expire_seconds:
            options = {"older-than-seconds": self._settings.expire_seconds}
            await jobs.ask_in_turn(conn, "expire", options, SCHEDULER, every)

    async def _do(self, conn: Conn, job: Job) -> State:
        upkeep = Upkeep(self._settings)
        try:
            work = Work(
                job, conn, self._settings, self._pool, self._objects, await self._place(), upkeep, dict(job.progress)
            )
            return await self._finish(work)
        finally:
            await upkeep.close()

    async def _finish(self, work: Work) -> State:
        conn, job = work.conn, work.job
        try:
            await self._attend(work)
        except Cancelled:
            await jobs.end(conn, job.id, "cancelled", work.progress)
            return "cancelled"
        except PutOff as e:
            await jobs.put_off(conn, job.id, work.progress, e.seconds)
            return "waiting"
        except asyncio.CancelledError:
            # this process is being stopped: another goes on at once
            await jobs.put_off(conn, job.id, work.progress, 0)
            raise
        except (CallFailed, MergusError) as e:
            return await self._fail(work, str(e))
        except psycopg.OperationalError:
            # of the session that holds the job, or of another: if it still is ours, we go on with it soon
            raise
        except Exception as e:
            log.exception("job %s (%s) failed", job.id, job.kind)
            return await self._fail(work, f"{type(e).__name__}; the log of {self._name} says more")
        point("job.ending")
        await jobs.end(conn, job.id, "done", work.progress)
        return "done"

    async def _fail(self, work: Work, why: str) -> State:
        await jobs.end(work.conn, work.job.id, "failed", work.progress, hide_password(why))
        return "failed"

    async def _attend(self, work: Work) -> None:
        """Interrupts the job when somebody cancels it, or when it is not ours any more."""
        if work.job.is_cancelled:
            raise Cancelled
        if work.job.attempts > MOST_DEATHS:
            raise CallFailed(f"{MOST_DEATHS} workers in a row have ended in the middle of it")
        point("job.begun")
        body = asyncio.ensure_future(BODIES[work.job.kind](work))
        try:
            while not (await asyncio.wait({body}, timeout=BEAT))[0]:
                if await jobs.say(work.conn, work.job.id, work.progress):
                    raise Cancelled
        finally:
            body.cancel()
            await asyncio.wait({body})
        await body


async def _told(conn: Conn, seconds: float) -> None:
    """Until a job is asked for, or for so long."""
    async for _ in conn.notifies(timeout=seconds, stop_after=1):
        pass
