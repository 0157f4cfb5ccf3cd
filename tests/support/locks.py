"""Locks in a lake's Postgres that hold up whoever comes, so that a test can do something meanwhile."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from tests.support.lakes import TestLake
from tests.support.listeners import eventually
from tests.support.waits import lock_waiters


@asynccontextmanager
async def held_up(lake: TestLake, table: str, mode: str = "EXCLUSIVE") -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
    """Whoever writes a table of the lake's Postgres waits, until the transaction of this connection ends; with ACCESS
    EXCLUSIVE who reads, too."""
    async with await psycopg.AsyncConnection.connect(lake.superuser_dsn) as other:
        path = f"{lake.settings.annex_schema}, {lake.settings.metadata_schema}"
        await other.execute(f"SET search_path = {path}".encode())
        await other.execute(f"LOCK TABLE {table} IN {mode} MODE".encode())
        yield other


async def until_held_up(lake: TestLake) -> None:
    await asyncio.to_thread(eventually, lambda: lock_waiters(lake), 10, lambda: "nobody waits for the lock")
