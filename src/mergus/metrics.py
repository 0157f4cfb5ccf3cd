"""Prometheus metrics, summed over the server's processes.

With more than one worker each process writes its numbers to files in `PROMETHEUS_MULTIPROC_DIR` (set by
`mergus serve` before anything is imported), and whichever process is asked adds them up.
"""

import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client import generate_latest as _generate
from prometheus_client.multiprocess import (
    MultiProcessCollector,  # pyright: ignore[reportUnknownVariableType]
    mark_process_dead,  # pyright: ignore[reportUnknownVariableType]
)

MULTIPROC_DIR = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = CONTENT_TYPE_LATEST

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

REQUESTS = Counter("mergus_requests_total", "Requests answered.", ["operation", "status"])
LATENCY = Histogram(
    "mergus_request_seconds",
    "Time from the first byte of a request to the last of its answer.",
    ["operation"],
    buckets=SECONDS,
)
IN_FLIGHT = Gauge("mergus_requests_in_flight", "Requests being worked on.", multiprocess_mode="livesum")
COMMITS = Counter("mergus_commits_total", "DuckLake commits made through the server.", ["operation"])
COMMIT_STAGES = Histogram(
    "mergus_commit_stage_seconds",
    "Time of each stage of a commit: planned, while it holds the lock that keeps other writers out, shown.",
    ["stage"],
    buckets=SECONDS,
)
AUDIT_LOST = Counter("mergus_audit_lost_total", "Entries of the audit log that there was no room for.")
OBJECT_REQUESTS = Counter("mergus_object_requests_total", "Requests to the object store.", ["method"])
OBJECT_FAILURES = Counter("mergus_object_failures_total", "Requests to the object store that failed.", ["method"])
OBJECT_BYTES = Counter("mergus_object_bytes_total", "Bytes of objects read and written.", ["method"])
MATERIALISED = Counter("mergus_chains_total", "Snapshots of tables written as Iceberg manifest lists.")
STAGES = Histogram(
    "mergus_stage_seconds",
    "Time of each stage in which a table is put on storage.",
    ["stage"],
    buckets=SECONDS,
)
REPORTS = Counter("mergus_reports_total", "Reports of clients on their scans and commits.", ["type"])
REPORTED_SECONDS = Histogram(
    "mergus_reported_seconds",
    "Time that clients said a scan's planning, or a commit with all its attempts, took them.",
    ["type"],
    buckets=SECONDS,
)
REPORTED_FILES = Histogram(
    "mergus_reported_scan_files",
    "Files that clients said a scan reads.",
    ["content"],
    buckets=(0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 100_000),
)
REPORTED_ATTEMPTS = Histogram(
    "mergus_reported_commit_attempts", "Attempts that clients said a commit took.", buckets=(1, 2, 3, 4, 5, 10)
)
LISTENER_LEADS = Gauge("mergus_listener_leads", "Listeners here that lead.", multiprocess_mode="livesum")
LISTENER_TABLES = Gauge(
    "mergus_listener_tables", "Tables that the listener has to do with.", ["state"], multiprocess_mode="livesum"
)
LISTENER_MADE = Counter("mergus_listener_made_total", "Tables that the listener put on storage.")
LISTENER_FAILURES = Counter("mergus_listener_failures_total", "Attempts of the listener that failed.", ["type"])
JOBS = Counter("mergus_jobs_total", "Jobs that were worked on, by what became of them.", ["kind", "state"])
JOB_SECONDS = Histogram(
    "mergus_job_seconds",
    "Time that one was worked on without a break.",
    ["kind"],
    buckets=(*SECONDS, 60, 300, 900, 3600),
)
POOL_SIZE = Gauge("mergus_pool_connections", "Postgres connections of the server.", multiprocess_mode="livesum")
POOL_IDLE = Gauge("mergus_pool_connections_idle", "Postgres connections not in use.", multiprocess_mode="livesum")
POOL_WAITING = Gauge("mergus_pool_waiting", "Requests waiting for a Postgres connection.", multiprocess_mode="livesum")


@dataclass(slots=True)
class Work:
    """What this process has done so far, for those who cannot ask a counter."""

    chains: int = 0
    objects: int = 0
    bytes: int = 0
    stages: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])

    def since(self, before: "Work") -> "Work":
        stages: dict[str, tuple[int, float]] = {}
        for name, (times, seconds) in self.stages.items():
            times_before, seconds_before = before.stages.get(name, (0, 0.0))
            stages[name] = times - times_before, seconds - seconds_before
        return Work(self.chains - before.chains, self.objects - before.objects, self.bytes - before.bytes, stages)


WORK = Work()


@asynccontextmanager
async def timed(stage: str) -> AsyncGenerator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        STAGES.labels(stage).observe(seconds)
        times, before = WORK.stages.get(stage, (0, 0.0))
        WORK.stages[stage] = times + 1, before + seconds


# What is measured of a report, by the names that Iceberg's clients have for it. A client chooses no label.
_REPORTED_TIMERS = {"scan-report": "total-planning-duration", "commit-report": "total-duration"}
_REPORTED_FILES = {"data": "result-data-files", "delete": "result-delete-files"}


def measure_report(kind: str, timers: Mapping[str, float], counters: Mapping[str, int]) -> None:
    """What is not there or makes no sense is not measured."""
    REPORTS.labels(kind).inc()
    seconds = timers.get(_REPORTED_TIMERS[kind], -1)
    if seconds >= 0:
        REPORTED_SECONDS.labels(kind).observe(seconds)
    if kind == "commit-report":
        if counters.get("attempts", 0) > 0:
            REPORTED_ATTEMPTS.observe(counters["attempts"])
        return
    for content, name in _REPORTED_FILES.items():
        if counters.get(name, -1) >= 0:
            REPORTED_FILES.labels(content).observe(counters[name])


class Families:
    """Metrics that are looked up when they are asked for."""

    def __init__(self, found: Sequence[Metric]) -> None:
        self._found = found

    def collect(self) -> Sequence[Metric]:
        return self._found


def exposition(found: Sequence[Metric] = ()) -> bytes:
    registry = CollectorRegistry()
    registry.register(Families(found))  # pyright: ignore[reportArgumentType]
    if MULTIPROC_DIR not in os.environ:
        return _generate(REGISTRY) + _generate(registry)
    _forget_the_dead(Path(os.environ[MULTIPROC_DIR]))
    MultiProcessCollector(registry)
    return _generate(registry)


def _forget_the_dead(folder: Path) -> None:
    """Gauges of a worker that was killed would be counted for ever; what it counted stays."""
    pids = {file.stem.rpartition("_")[2] for file in folder.glob("gauge_live*.db")}
    for pid in pids:
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            mark_process_dead(int(pid))
