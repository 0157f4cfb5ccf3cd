"""Many small pieces of work at once, but not too many."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def each(work: Callable[[T], Awaitable[R]], items: Iterable[T], most: int) -> list[R]:
    """What the work gives for each item, in their order; no more than `most` are under way at a time."""
    turns = asyncio.Semaphore(most)

    async def one(item: T) -> R:
        async with turns:
            return await work(item)

    return list(await asyncio.gather(*map(one, items)))
