"""What a process that serves a lake does beside: it hears of commits, and works on jobs."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager

from mergus.catalog.lake import FOR_READERS, Lake
from mergus.catalog.lake_health import measured
from mergus.catalog.served_tables import BEHIND_AT_ONCE
from mergus.maintenance.worker import Worker
from mergus.materialise.listener import Listener
from mergus.materialise.reading import Place


@asynccontextmanager
async def listening(lake: Lake, *, stands: bool) -> AsyncGenerator[None]:
    """Meanwhile the process hears of commits. `stands`: it leads when it is its turn."""
    # what the listener does never takes the last connections
    most = max(1, lake.settings.pool_max - FOR_READERS - 2 * BEHIND_AT_ONCE)
    at_once = min(lake.settings.listener_tables, most)
    listener = Listener(lake.settings, lake.tables, at_once, stands, lambda: measured(lake.pool, lake.settings))
    async with _beside(listener.run()):
        yield


@asynccontextmanager
async def working(lake: Lake) -> AsyncGenerator[None]:
    """Meanwhile the process works on jobs."""

    async def place() -> Place:
        return (await lake.tables()).materialiser.place

    worker = Worker(lake.settings, lake.pool, lake.objects, place)
    async with _beside(worker.run()):
        yield


@asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        # one that meets the end of its connection can lose a cancellation on the way
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=1)
