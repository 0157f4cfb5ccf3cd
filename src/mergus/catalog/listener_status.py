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
        **standing_json(status),
        "last-report": {"by": status.leader, "at": _text(status.reported_at), **(status.report or {})},
    }


def standing_json(status: Status) -> dict[str, Any]:
    """Who leads, how far everything is, and what fails."""
    return {
        "leader": {"name": status.leader, "since": _text(status.leader_since)} if status.is_led else None,
        "head": {"snapshot-id": status.head_id, "epoch": status.epoch},
        "done": {"snapshot-id": status.done_id, "epoch": status.done_epoch} if status.is_known else None,
        "lag": {"snapshots": status.snapshots_behind, "seconds": _seconds(status)},
        "failing": [_failure(f) for f in status.failing],
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
        *_of_the_lake(status),
    ]


# By what the leader calls them in its report.
LAKE_GAUGES: Final = {
    "tables": ("mergus_lake_tables", "Live tables."),
    "snapshots": ("mergus_lake_snapshots", "Snapshots that are not expired."),
    "data-files": ("mergus_lake_data_files", "Live data files of all tables."),
    "data-bytes": ("mergus_lake_data_bytes", "Bytes in them."),
    "small-files": ("mergus_lake_small_files", "Of them, those under a quarter of their table's target size."),
    "inlined-rows": ("mergus_lake_inlined_rows", "Live rows that wait in Postgres to be flushed."),
    "scheduled-files": ("mergus_lake_scheduled_files", "Files that DuckLake's cleanup is to delete."),
    "deleted-rows-ratio": ("mergus_lake_deleted_rows_ratio", "Share of the rows in data files that are deleted."),
}


def _of_the_lake(status: Status) -> list[Metric]:
    """As the leader has measured it. What one measured that is gone by now says nothing of the lake of today."""
    found: dict[str, Any] = (status.report or {}).get("lake") or {}
    if not status.is_led or not found:
        return []
    measured_at = datetime.fromisoformat(found["measured-at"]).timestamp()
    return [
        *(_gauge(name, what, found[key]) for key, (name, what) in LAKE_GAUGES.items()),
        _gauge("mergus_lake_measured_timestamp_seconds", "When the leading listener measured it.", measured_at),
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
