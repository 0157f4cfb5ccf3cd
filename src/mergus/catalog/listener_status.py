"""How far the listener is, as any process can tell: it is all in Postgres."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.annex import listener as annex
from mergus.annex.listener import FailingTable, Status
from mergus.catalog.lake import Lake
from mergus.ducklake.connect import one_state
from mergus.errors import ApiError

SHOWN_FAILURES: Final = 1000
# Each is a time series.
MEASURED_FAILURES: Final = 100
# A scrape that waits for Postgres would tell nothing of all else.
SECONDS: Final = 2.0


async def listener_status(lake: Lake, ctx: RequestContext) -> dict[str, Any]:
    await authorise(ctx, None)
    status = await _read(lake, SHOWN_FAILURES)
    return {
        "leader": {"name": status.leader, "since": _text(status.leader_since)} if status.is_led else None,
        "head": {"snapshot-id": status.head_id, "epoch": status.epoch},
        "done": {"snapshot-id": status.done_id, "epoch": status.done_epoch} if status.is_known else None,
        "lag": {"snapshots": status.snapshots_behind, "seconds": _seconds(status)},
        "failing": [_failure(f) for f in status.failing],
        "last-report": {"by": status.leader, "at": _text(status.reported_at), **(status.report or {})},
    }


async def measure(lake: Lake) -> Sequence[Metric]:
    """For `/metrics`; nothing while Postgres does not answer."""
    try:
        async with asyncio.timeout(SECONDS):
            status = await _read(lake, MEASURED_FAILURES)
    except (ApiError, TimeoutError):
        return []
    failing = GaugeMetricFamily(
        "mergus_listener_failing",
        "Tables that the listener could not put on storage, and how often it has tried.",
        labels=["namespace", "table", "type"],
    )
    for f in status.failing:
        failing.add_metric([f.schema_name or "", f.table_name or str(f.table_id), f.kind], f.attempts)
    return [
        _gauge("mergus_listener_led", "Whether any listener leads.", float(status.is_led)),
        _gauge("mergus_listener_lag_snapshots", "Snapshots that are not all on storage.", status.snapshots_behind),
        _gauge("mergus_listener_lag_seconds", "Age of the oldest of them.", _seconds(status)),
        failing,
    ]


async def _read(lake: Lake, limit: int) -> Status:
    async with one_state(lake.pool) as conn:
        return await annex.status(conn, limit)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value=value)


def _seconds(status: Status) -> float:
    # a snapshot has the time of the session that made it, whose clock may be ahead
    return round(max(0.0, status.oldest_seconds or 0.0), 3)


def _failure(f: FailingTable) -> dict[str, Any]:
    return {
        "table-id": f.table_id,
        "namespace": f.schema_name,
        "table": f.table_name,
        "type": f.kind,
        "message": f.message,
        "attempts": f.attempts,
        "since": _text(f.since),
        "tried-at": _text(f.tried_at),
    }


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
