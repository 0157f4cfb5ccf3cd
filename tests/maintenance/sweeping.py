"""Sweeps of a lake, in the process of the test, or in one of their own that may be killed:

python -m tests.maintenance.sweeping sweep|orphans
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from mergus import faults
from mergus.config import Settings
from mergus.ducklake.connect import Pool, connection, open_pool
from mergus.ducklake.metadata import check_served
from mergus.maintenance.orphans import OrphanOptions, orphans
from mergus.maintenance.removal import Swept
from mergus.maintenance.sweep import SweepOptions, sweep
from mergus.materialise.layout import root_beside
from mergus.materialise.reading import Place
from mergus.process import end_with_parent
from mergus.serve import environment
from mergus.storage.objects import Objects
from tests.support.lakes import TestLake
from tests.support.loads import Bucket

NONE = timedelta()
LONG = timedelta(hours=1)


async def _with(settings: Settings, work: Callable[[Pool, Objects, Place], Awaitable[Swept]]) -> Swept:
    async with open_pool(settings) as pool:
        async with connection(pool) as conn:
            metadata = await check_served(conn, settings.metadata_schema)
        root = root_beside(metadata.location, settings.iceberg_path)
        place = Place(settings.metadata_schema, metadata.location, root, settings.format_version)
        return await work(pool, Objects(settings), place)


def swept(lake: TestLake, grace: timedelta = NONE, *, most: int = 10_000, dry: bool = False) -> Swept:
    options = SweepOptions(grace, most_objects=most, dry_run=dry)
    return asyncio.run(_with(lake.settings, lambda pool, objects, place: sweep(pool, objects, place, options)))


def without_orphans(lake: TestLake, grace: timedelta = NONE, *, most: int = 10_000, dry: bool = False) -> Swept:
    # a store says times in whole seconds, and may round them up
    if not grace:
        time.sleep(1.1)
    options = OrphanOptions(grace, most_objects=most, dry_run=dry)
    return asyncio.run(_with(lake.settings, lambda pool, objects, place: orphans(pool, objects, place, options)))


def killed(lake: TestLake, what: str, at: str) -> None:
    """In a process of its own, which must come as far as that and die there."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.maintenance.sweeping", what],
        env=environment(lake.settings) | {faults.VARIABLE: at},
        preexec_fn=end_with_parent,
        timeout=60,
        check=False,
    )
    assert done.returncode == -9


@dataclass
class Store:
    """The objects in the directory of a table."""

    bucket: Bucket
    directory: str

    def names(self) -> set[str]:
        return {path.removeprefix(self.directory + "/") for path in self.bucket.below(self.directory + "/")}

    def has(self, start: str) -> bool:
        return any(name.startswith(start) for name in self.names())


if __name__ == "__main__":
    of_environment = TestLake(Settings())  # pyright: ignore[reportCallIssue]
    {"sweep": swept, "orphans": without_orphans}[sys.argv[1]](of_environment)
