"""Sweeps of a lake, in the process of the test, or in one of their own that may be killed."""

import asyncio
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from mergus import faults
from mergus.config import Settings
from mergus.ducklake.connect import Pool, connection, open_pool
from mergus.ducklake.metadata import check_served
from mergus.maintenance.orphans import OrphanOptions, orphans
from mergus.maintenance.removal import Progress, Swept, quiet
from mergus.maintenance.sweep import SweepOptions, sweep
from mergus.materialise.layout import root_beside
from mergus.materialise.reading import Place
from mergus.serve import environment
from mergus.storage.objects import Objects
from tests.support.lakes import TestLake
from tests.support.loads import Bucket

NONE = timedelta()
LONG = timedelta(hours=1)
# A store says times in whole seconds, and may round them up: what is there already may be from the next second.
ROUNDED_UP = timedelta(seconds=-1)


async def _with(settings: Settings, work: Callable[[Pool, Objects, Place], Awaitable[Swept]]) -> Swept:
    async with open_pool(settings) as pool:
        async with connection(pool) as conn:
            metadata = await check_served(conn, settings.metadata_schema)
        root = root_beside(metadata.location, settings.iceberg_path)
        place = Place(settings.metadata_schema, metadata.location, root, settings.format_version)
        return await work(pool, Objects(settings), place)


def swept(
    lake: TestLake, grace: timedelta = NONE, *, most: int = 10_000, dry: bool = False, progress: Progress = quiet
) -> Swept:
    options = SweepOptions(grace, most_objects=most, dry_run=dry)
    return asyncio.run(
        _with(lake.settings, lambda pool, objects, place: sweep(pool, objects, place, options, progress))
    )


def without_orphans(lake: TestLake, grace: timedelta = NONE, *, most: int = 10_000, dry: bool = False) -> Swept:
    options = OrphanOptions(grace or ROUNDED_UP, most_objects=most, dry_run=dry)
    return asyncio.run(_with(lake.settings, lambda pool, objects, place: orphans(pool, objects, place, options)))


def killed(lake: TestLake, what: Callable[[TestLake], Swept], at: str) -> None:
    """In a process of its own, which must come as far as that and die there. It is forked like servers are."""
    process = multiprocessing.get_context("forkserver").Process(
        target=_die, args=(what, environment(lake.settings), at), daemon=True
    )
    process.start()
    process.join(60)
    assert process.exitcode == -9


def _die(what: Callable[[TestLake], Swept], env: dict[str, str], at: str) -> None:
    os.environ.update(env)
    faults.arm(at)
    what(TestLake(Settings()))  # pyright: ignore[reportCallIssue]


@dataclass
class Store:
    """The objects in the directory of a table."""

    bucket: Bucket
    directory: str

    def names(self) -> set[str]:
        return {path.removeprefix(self.directory + "/") for path in self.bucket.below(self.directory + "/")}

    def has(self, start: str) -> bool:
        return any(name.startswith(start) for name in self.names())
