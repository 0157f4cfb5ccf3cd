"""`mergus maintain`: jobs from the command line, done here and now, and a process that does nothing but jobs."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any, Final

import uvloop

from mergus import logs
from mergus.access.context import Principal, RequestContext
from mergus.access.privileges import ADMIN, ALL
from mergus.annex.jobs import Kind
from mergus.catalog import jobs
from mergus.catalog.lake import Lake, open_lake
from mergus.catalog.listening import working
from mergus.catalog.paging import PageRequest
from mergus.config import Settings
from mergus.iceberg.namespace import Namespace
from mergus.logs import log

NICE: Final = 5
LOOK: Final = 0.5
# of all jobs, the newest
SHOWN: Final = 50
OPERATOR: Final = Principal("operator")

Show = Callable[[str], None]


def maintain(
    settings: Settings, kind: Kind, options: dict[str, Any], namespace: str | None, table: str | None, show: Show
) -> dict[str, Any]:
    """Asks for it, and does it unless somebody else does; the job when it has ended. Ctrl-C cancels it."""
    about = None if namespace is None else Namespace.of_schema(namespace)
    return uvloop.run(_maintain(settings, kind, options, about, table, show))


async def _maintain(
    settings: Settings, kind: Kind, options: dict[str, Any], namespace: Namespace | None, table: str | None, show: Show
) -> dict[str, Any]:
    async with open_lake(settings) as lake, working(lake):
        job, ended = await jobs.ask(lake, _context(), kind, options, namespace, table, patience=0)
        number = job["job-id"]
        try:
            while not ended:
                job, ended = await _look(lake, number, job, show)
        except asyncio.CancelledError:
            await asyncio.shield(jobs.cancel_job(lake, _context(), number))
            raise
        return job


async def _look(lake: Lake, number: int, before: dict[str, Any], show: Show) -> tuple[dict[str, Any], bool]:
    await asyncio.sleep(LOOK)
    job = await jobs.load_job(lake, _context(), number)
    at, was = job["progress"].get("at"), before["progress"].get("at")
    if at is not None and at != was:
        show(f"{at} ({job['progress'].get('tables-done', 0) + 1} of {job['progress'].get('tables')})")
    if job["state"] == "waiting" and before["state"] == "running":
        show("it gave way to writers, and goes on in some seconds")
    return job, job["ended-at"] is not None


def list_jobs(settings: Settings) -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        async with open_lake(settings) as lake:
            found, _ = await jobs.list_jobs(lake, _context(), PageRequest(None, SHOWN))
            return found

    return uvloop.run(read())


def cancel(settings: Settings, number: int) -> dict[str, Any]:
    async def end() -> dict[str, Any]:
        async with open_lake(settings) as lake:
            return await jobs.cancel_job(lake, _context(), number)

    return uvloop.run(end())


def work(settings: Settings) -> None:
    """Until SIGTERM or SIGINT."""
    logs.configure(settings)
    os.nice(NICE)
    uvloop.run(_work(settings))


async def _work(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_lake(settings) as lake, working(lake):
        log.info("working on jobs")
        await stop.wait()


def _context() -> RequestContext:
    return RequestContext("maintain", "command-line", OPERATOR, needs=ADMIN, rights=ALL)
