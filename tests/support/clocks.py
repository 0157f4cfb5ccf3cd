"""A clock that stands still until a test turns it."""

import asyncio

from mergus.clock import Clock


class HandClock(Clock):
    def __init__(self) -> None:
        self._now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def read(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeper = (self._now + seconds, woken)
        self._sleepers.append(sleeper)
        try:
            await woken
        finally:
            self._sleepers.remove(sleeper)

    def advance(self, seconds: float) -> None:
        """Whoever's time is over by then runs when the test waits next."""
        self._now += seconds
        for until, woken in self._sleepers:
            if until <= self._now and not woken.done():
                woken.set_result(None)

    async def wait_for_sleepers(self, number: int) -> None:
        """Until so many sleep, and no more than those."""
        async with asyncio.timeout(20):
            while self.asleep < number:  # noqa: ASYNC110  (any number may be waited for)
                await asyncio.sleep(0.001)
        assert self.asleep == number

    @property
    def asleep(self) -> int:
        """How many sleep."""
        return sum(not woken.done() for _, woken in self._sleepers)
