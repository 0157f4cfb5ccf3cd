"""`mergus listen`: a listener as a process of its own, without a server."""

import asyncio
import os
import signal
from typing import Final

import uvloop
from prometheus_client import start_http_server

from mergus import logs, tracing
from mergus.catalog.lake import open_lake
from mergus.catalog.listening import listening
from mergus.config import Settings
from mergus.errors import SetupError
from mergus.logs import log

NICE: Final = 5


def listen(settings: Settings) -> None:
    """Listens until SIGTERM or SIGINT. What it does can wait: those who commit on the same machine come first."""
    logs.configure(settings)
    tracing.setup(settings)
    os.nice(NICE)
    # nobody loads a table here
    uvloop.run(_listen(settings.model_copy(update={"cached_tables": 1})))


async def _listen(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if settings.listener_port is not None:
        try:
            start_http_server(settings.listener_port, settings.host)
        except OSError as e:
            raise SetupError(f"port {settings.listener_port} cannot be used for metrics: {e.strerror}") from None
    async with tracing.sent(), open_lake(settings) as lake, listening(lake, stands=True):
        log.info("listening for commits")
        await stop.wait()
