"""Prometheus metrics, summed over the server's processes.

With more than one worker each process writes its numbers to files in `PROMETHEUS_MULTIPROC_DIR` (set by
`mergus serve` before anything is imported), and whichever process is asked adds them up.
"""

import os
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import generate_latest as _generate
from prometheus_client.multiprocess import (
    MultiProcessCollector,  # pyright: ignore[reportUnknownVariableType]
    mark_process_dead,  # pyright: ignore[reportUnknownVariableType]
)

MULTIPROC_DIR = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = CONTENT_TYPE_LATEST

REQUESTS = Counter("mergus_requests_total", "Requests answered.", ["operation", "status"])
LATENCY = Histogram(
    "mergus_request_seconds",
    "Time from the first byte of a request to the last of its answer.",
    ["operation"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
IN_FLIGHT = Gauge("mergus_requests_in_flight", "Requests being worked on.", multiprocess_mode="livesum")
COMMITS = Counter("mergus_commits_total", "DuckLake commits made through the server.", ["operation"])
OBJECT_REQUESTS = Counter("mergus_object_requests_total", "Requests to the object store.", ["method"])
OBJECT_FAILURES = Counter("mergus_object_failures_total", "Requests to the object store that failed.", ["method"])
OBJECT_BYTES = Counter("mergus_object_bytes_total", "Bytes of objects read and written.", ["method"])
MATERIALISED = Counter("mergus_chains_total", "Snapshots of tables written as Iceberg manifest lists.")
POOL_SIZE = Gauge("mergus_pool_connections", "Postgres connections of the server.", multiprocess_mode="livesum")
POOL_IDLE = Gauge("mergus_pool_connections_idle", "Postgres connections not in use.", multiprocess_mode="livesum")
POOL_WAITING = Gauge("mergus_pool_waiting", "Requests waiting for a Postgres connection.", multiprocess_mode="livesum")


def exposition() -> bytes:
    if MULTIPROC_DIR not in os.environ:
        return _generate(REGISTRY)
    _forget_the_dead(Path(os.environ[MULTIPROC_DIR]))
    registry = CollectorRegistry()
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
