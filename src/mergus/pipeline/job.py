"""One run of a job: what it says while it works, what it has counted, how long its parts took.

A job is a function of a `Place` (where it works) and a `Run` (what it tells). Its end is a summary in JSON, and metrics
in Prometheus' text format for whatever collects those of batch jobs (node_exporter's textfile directory, a gateway).
"""

import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from mergus.client import Client, Levels, Refused
from mergus.errors import SetupError
from mergus.pipeline.canonical import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOT_FOUND: Final = 404

State = Literal["done", "found", "failed"]


class Failed(SetupError):
    """A job that has done a part of its work: `details` are for its summary."""

    def __init__(self, message: str, details: dict[str, Any]) -> None:
        super().__init__(message)
        self.details = details


@dataclass(frozen=True)
class Table:
    """Which table of the catalog."""

    namespace: Levels
    name: str

    def __str__(self) -> str:
        return ".".join([*self.namespace, self.name])

    def beside(self, name: str) -> "Table":
        return Table(self.namespace, name)


def table(text: str) -> Table:
    *namespace, name = text.split(".")
    if not namespace or not all([*namespace, name]):
        raise SetupError(f"{text!r} is not a table: NAMESPACE.TABLE is")
    return Table(tuple(namespace), name)


@dataclass(frozen=True)
class Place:
    """The catalog, from both sides: as a client of the server, and as a catalog of a Spark session."""

    client: Client
    spark: "SparkSession"
    catalog: str

    def sql_name(self, of: Table) -> str:
        return ".".join(map(SPARK.identifier, [self.catalog, *of.namespace, of.name]))

    def load(self, of: Table) -> dict[str, Any] | None:
        """What REST says of a table: its `metadata` and `config`; None if there is none."""
        try:
            return self.client.load_table(of.namespace, of.name)
        except Refused as e:
            if e.status == NOT_FOUND:
                return None
            raise

    def metadata(self, of: Table) -> dict[str, Any]:
        found = self.load(of)
        if found is None:
            raise SetupError(f"there is no table {of}")
        return found["metadata"]


@dataclass
class Run:
    job: str
    say: Callable[[str], None]
    id: str = field(default_factory=lambda: str(uuid4()))
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    counts: Counter[str] = field(default_factory=Counter[str])
    seconds: Counter[str] = field(default_factory=Counter[str])  # pyright: ignore[reportAssignmentType]

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        """A part of the work: its seconds are in the summary, added up."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - start  # pyright: ignore[reportArgumentType]

    def summary(self, state: State, details: dict[str, Any]) -> dict[str, Any]:
        return {
            "job": self.job,
            "run": self.id,
            "state": state,
            "started": self.started.isoformat(timespec="milliseconds"),
            "seconds": round((datetime.now(UTC) - self.started).total_seconds(), 3),
            "counts": dict(self.counts),
            "parts": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            **details,
        }

    def metrics(self, state: State) -> bytes:
        registry = CollectorRegistry()
        labels = ["job"]
        took = Gauge("mergus_job_seconds", "Time that the last run took.", labels, registry=registry)
        took.labels(self.job).set((datetime.now(UTC) - self.started).total_seconds())
        ended = Gauge("mergus_job_end_timestamp_seconds", "When the last run ended.", labels, registry=registry)
        ended.labels(self.job).set(time.time())
        good = Gauge("mergus_job_success", "1 if the last run did what was asked.", labels, registry=registry)
        good.labels(self.job).set(state != "failed")
        counted = Gauge("mergus_job_count", "What the last run counted.", ["job", "what"], registry=registry)
        for what, count in self.counts.items():
            counted.labels(self.job, what).set(count)
        parts = Gauge("mergus_job_part_seconds", "Time of its parts.", ["job", "part"], registry=registry)
        for name, seconds in self.seconds.items():
            parts.labels(self.job, name).set(seconds)
        return generate_latest(registry)
