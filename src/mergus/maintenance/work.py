"""A job that is being done: what its body needs, and how it says how far it is."""

import time
from dataclasses import dataclass, field
from typing import Any

from mergus.annex import jobs
from mergus.annex.jobs import Job
from mergus.config import Settings
from mergus.ducklake.connect import Conn, Pool
from mergus.ducklake.upkeep import Upkeep
from mergus.materialise.reading import Place
from mergus.storage.objects import Objects


class Cancelled(Exception):
    """Somebody does not want it any more."""


class PutOff(Exception):
    """It is not done yet, and goes on after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


@dataclass(slots=True)
class Work:
    job: Job
    # the session that holds the job: what is said about it is said here
    conn: Conn
    settings: Settings
    pool: Pool
    objects: Objects
    place: Place
    upkeep: Upkeep
    progress: dict[str, Any] = field(default_factory=dict[str, Any])
    _began: float = field(default_factory=time.monotonic)

    @property
    def is_dry(self) -> bool:
        return bool(self.job.options.get("dry-run", False))

    @property
    def has_had_its_time(self) -> bool:
        return time.monotonic() - self._began > self.settings.maintenance_seconds

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            key = name.replace("_", "-")
            self.progress[key] = self.progress.get(key, 0) + count

    async def say(self, **more: Any) -> None:  # noqa: ANN401  (JSON)
        """Where it stands. Raises Cancelled if it is not wanted any more: nothing is half done at such a point."""
        self.progress |= {name.replace("_", "-"): value for name, value in more.items()}
        if await jobs.say(self.conn, self.job.id, self.progress):
            raise Cancelled
