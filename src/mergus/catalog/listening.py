"""A listener for a lake that this process serves."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from mergus.catalog.lake import FOR_READERS, Lake
from mergus.catalog.lake_health import measured
from mergus.catalog.served_tables import BEHIND_AT_ONCE
from mergus.materialise.listener import Listener


@asynccontextmanager
async def listening(lake: Lake, *, stands: bool) -> AsyncGenerator[None]:
    """Meanwhile the process hears of commits. `stands`: it leads when it is its turn."""
    # what the listener does never takes the last connections
    most = max(1, lake.settings.pool_max - FOR_READERS - 2 * BEHIND_AT_ONCE)
    at_once = min(lake.settings.listener_tables, most)
    listener = Listener(lake.settings, lake.tables, at_once, stands, lambda: measured(lake.pool, lake.settings))
    task = asyncio.create_task(listener.run())
    try:
        yield
    finally:
        # one that meets the end of its connection can lose a cancellation on the way
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=1)
