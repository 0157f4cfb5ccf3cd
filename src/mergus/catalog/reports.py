"""What clients tell of their scans and commits: measured, kept for a while, and shown to those who run the server.

A client sends its report after the query, and nothing depends on it. So it takes no lock of the lake, one statement,
and of the connections one at most: however many come, those who read and commit do not notice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.annex import reports, staged
from mergus.annex.reports import Report
from mergus.catalog.find import find_asked
from mergus.catalog.lake import USER_AGENT_KEPT, Lake
from mergus.catalog.paging import PageRequest
from mergus.errors import NoSuchTable
from mergus.iceberg.namespace import Namespace
from mergus.metrics import measure_report

# Of one page; a report may be large.
MOST_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class NewReport:
    """`timers` in seconds and `counters` are what of the content can be measured, by the names that it has for them."""

    kind: str
    content: bytes
    timers: Mapping[str, float]
    counters: Mapping[str, int]


async def report_metrics(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str, new: NewReport) -> None:
    await authorise(ctx, namespace, name)
    agent = (ctx.user_agent or "")[:USER_AGENT_KEPT]
    settings = lake.settings
    async with lake.aside() as conn:
        try:
            table_id = await find_asked(conn, ctx, namespace, name)
        except NoSuchTable:
            # a client that makes a table with rows in it reports on those before it commits the table
            if not await staged.is_promised(conn, namespace.schema_name, name, settings.staged_seconds):
                raise
            table_id = None
        if settings.reports_seconds and table_id is not None:
            await reports.add(
                conn,
                table_id,
                new.kind,
                ctx.principal.name,
                agent,
                new.content.decode(),
                seconds=settings.reports_seconds,
                most=settings.reports_per_table,
            )
    measure_report(new.kind, new.timers, new.counters)


async def list_reports(
    lake: Lake, ctx: RequestContext, namespace: Namespace, name: str, page: PageRequest
) -> tuple[list[dict[str, Any]], str | None]:
    """The newest first, and the token of the next page if there is one: never all at once."""
    await authorise(ctx, namespace, name)
    async with lake.read() as conn:
        table_id = await find_asked(conn, ctx, namespace, name)

    async def fetch(after: str | None, limit: int | None) -> list[Report]:
        async with lake.read() as conn:
            before = None if after is None else int(after)
            return await reports.newest(conn, table_id, before, limit, lake.settings.reports_seconds)

    listing = [ctx.operation, str(table_id)]
    found, token = await lake.page(listing, page.at_most(MOST_SHOWN), fetch, lambda r: str(r.report_id))
    return [_shown(report) for report in found], token


def _shown(report: Report) -> dict[str, Any]:
    return {
        "report-id": report.report_id,
        "reported-at": report.made_at.isoformat(),
        "principal": report.principal,
        "user-agent": report.user_agent,
        "report": orjson.Fragment(report.content),
    }
