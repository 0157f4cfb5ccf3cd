"""Jobs: asking for one, waiting for it, looking at it, cancelling it.

Who may ask for something to be done to a table may look at the job, too: what a job is about is what has to be allowed.
"""

import asyncio
import time
from typing import Any, Final

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.annex import jobs
from mergus.annex.jobs import Job, Kind
from mergus.catalog.find import find_schema, find_table
from mergus.catalog.lake import Lake
from mergus.catalog.paging import PageRequest
from mergus.ducklake import targets
from mergus.ducklake.connect import Conn
from mergus.errors import NotFound
from mergus.iceberg.namespace import Namespace
from mergus.maintenance.policy import check_options

SHOWN_TABLES: Final = 1000
# Seconds between two looks: more and more of them.
FIRST_LOOK: Final = 0.05
LAST_LOOK: Final = 1.0


async def ask(
    lake: Lake,
    ctx: RequestContext,
    kind: Kind,
    options: dict[str, Any],
    namespace: Namespace | None = None,
    table: str | None = None,
    *,
    patience: float,
) -> tuple[dict[str, Any], bool]:
    """The job, and whether it has ended: it is waited for so many seconds."""
    await authorise(ctx, namespace, table)
    check_options(options)
    async with lake.read() as conn:
        table_id = None if namespace is None or table is None else await find_table(conn, namespace, table)
        schema_id = None
        if namespace is not None and table is None:
            schema_id = (await find_schema(conn, namespace)).schema_id
        job = await jobs.ask(conn, kind, schema_id, table_id, options, ctx.principal.name)
    job = await _wait(lake, job, patience)
    async with lake.read() as conn:
        return await _json(conn, job), not job.is_open


async def list_jobs(lake: Lake, ctx: RequestContext, page: PageRequest) -> tuple[list[dict[str, Any]], str | None]:
    """The newest first."""
    await authorise(ctx, None)

    async def fetch(after: str | None, limit: int | None) -> list[Job]:
        async with lake.read() as conn:
            return await jobs.read(conn, None if after is None else int(after), limit)

    found, token = await lake.page([ctx.operation], page, fetch, lambda job: str(job.id))
    async with lake.read() as conn:
        return await _heads(conn, found), token


async def load_job(lake: Lake, ctx: RequestContext, job_id: int) -> dict[str, Any]:
    async with lake.read() as conn:
        job = await _find(conn, ctx, job_id)
        return await _json(conn, job)


async def cancel_job(lake: Lake, ctx: RequestContext, job_id: int) -> dict[str, Any]:
    """What is being done stops within a second, and what has been done stays done."""
    async with lake.read() as conn:
        job = await _find(conn, ctx, job_id)
        return await _json(conn, await jobs.cancel(conn, job.id) or job)


async def _find(conn: Conn, ctx: RequestContext, job_id: int) -> Job:
    job = await jobs.find(conn, job_id)
    ((namespace, table),) = [(None, None)] if job is None else await _about(conn, [job])
    await authorise(ctx, namespace, table)
    if job is None:
        raise NotFound(f"Job does not exist: {job_id}")
    return job


async def _about(conn: Conn, found: list[Job]) -> list[tuple[Namespace | None, str | None]]:
    """By the names that they have now; the catalog, if nobody knows any more."""
    tables = await targets.named(conn, [job.table_id for job in found if job.table_id is not None])
    schemas = await targets.schema_names(conn, [job.schema_id for job in found if job.schema_id is not None])

    def one(job: Job) -> tuple[Namespace | None, str | None]:
        target = None if job.table_id is None else tables.get(job.table_id)
        if target is not None:
            return Namespace.of_schema(target.schema), target.table
        name = None if job.schema_id is None else schemas.get(job.schema_id)
        return None if name is None else Namespace.of_schema(name), None

    return [one(job) for job in found]


async def _wait(lake: Lake, job: Job, patience: float) -> Job:
    deadline, pause = time.monotonic() + patience, FIRST_LOOK
    while job.is_open and (left := deadline - time.monotonic()) > 0:
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, LAST_LOOK)
        async with lake.read() as conn:
            job = await jobs.find(conn, job.id) or job
    return job


async def _heads(conn: Conn, found: list[Job]) -> list[dict[str, Any]]:
    return [_head(job, *about) for job, about in zip(found, await _about(conn, found), strict=True)]


def _head(job: Job, namespace: Namespace | None, table: str | None) -> dict[str, Any]:
    return {
        "job-id": job.id,
        "kind": job.kind,
        "namespace": None if namespace is None else list(namespace.levels),
        "table": table,
        "options": job.options,
        "state": "cancelling" if job.is_cancelled and job.is_open else job.state,
        "asked-by": job.asked_by,
        "asked-at": job.asked_at,
        "due-at": job.due_at,
        "started-at": job.started_at,
        "ended-at": job.ended_at,
        "worker": job.worker,
        "progress": job.progress,
        "error": job.error,
    }


async def _json(conn: Conn, job: Job) -> dict[str, Any]:
    results = await jobs.tables(conn, job.id, SHOWN_TABLES)
    known = await targets.named(conn, list(results))
    done = [
        {"namespace": list(Namespace.of_schema(known[i].schema).levels), "table": known[i].table, **result}
        for i, result in results.items()
        if i in known
    ]
    (head,) = await _heads(conn, [job])
    return {**head, "tables": done}
