"""Work that many wait for at once and that is done once for all of them.

Whether what a process remembers is still true is one small query, shared by every request that waits when it starts. A
request must see everything that was committed before it came. A query that began earlier cannot promise that, so a
request never joins one that is under way: it waits for the next, together with all others that have come meanwhile.
Reads are linearizable so, through any number of processes, at a fraction of a query each. Entries of the audit log are
written in the same way, many in one transaction.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Calls of one function, at most one at a time and as few as freshness allows."""

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call
        self._waiting: list[asyncio.Future[T]] = []
        self._runner: asyncio.Task[None] | None = None

    async def __call__(self) -> T:
        """What a call gives that starts now or later."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._runner is None:
            # for all who wait, and so in nobody's name or trace
            self._runner = asyncio.create_task(self._run(), context=Context())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                # others may have come in the same turn of the loop
                await asyncio.sleep(0)
                waiting, self._waiting = self._waiting, []
                try:
                    result = await self._call()
                except Exception as e:
                    for future in waiting:
                        if not future.done():
                            future.set_exception(e)
                else:
                    for future in waiting:
                        if not future.done():
                            future.set_result(result)
        finally:
            self._runner = None
