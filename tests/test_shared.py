"""Shared calls: every caller gets what a call gave that began no sooner than it came, and few calls are made."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergus.shared import Shared


class Clock:
    """Calls that take a while: each gives the moment at which it began."""

    def __init__(self) -> None:
        self.now = 0
        self.began: list[int] = []
        self.at_once = 0
        self.first = asyncio.Event()

    async def call(self) -> int:
        self.now += 1
        began = self.now
        self.began.append(began)
        self.first.set()
        self.at_once += 1
        assert self.at_once == 1
        for _ in range(5):
            await asyncio.sleep(0)
        self.at_once -= 1
        return began


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # pyright: ignore[reportArgumentType]


def test_concurrent_callers_share_one_call() -> None:
    async def story() -> None:
        clock = Clock()
        shared = Shared(clock.call)
        assert await asyncio.gather(*(shared() for _ in range(50))) == [1] * 50
        assert clock.began == [1]

    run(story)


def test_a_caller_during_a_running_call_waits_for_the_next_call() -> None:
    async def story() -> None:
        clock = Clock()
        shared = Shared(clock.call)
        first = asyncio.create_task(shared())
        await clock.first.wait()
        later = [asyncio.create_task(shared()) for _ in range(20)]
        assert await first == 1
        assert await asyncio.gather(*later) == [2] * 20
        assert await shared() == 3

    run(story)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60))
@settings(max_examples=60)
def test_no_caller_gets_the_result_of_a_call_that_began_earlier(pauses: list[int]) -> None:
    async def story() -> None:
        clock = Clock()
        shared = Shared(clock.call)

        async def ask() -> None:
            clock.now += 1
            came = clock.now
            assert await shared() > came

        asked: list[asyncio.Task[None]] = []
        for pause in pauses:
            asked.append(asyncio.create_task(ask()))
            for _ in range(pause):
                await asyncio.sleep(0)
        await asyncio.gather(*asked)
        assert len(clock.began) <= len(pauses)

    run(story)


def test_a_failed_call_fails_its_waiting_callers_only() -> None:
    async def story() -> None:
        calls = 0

        async def call() -> int:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0)
            if calls == 1:
                raise OSError("no")
            return calls

        shared = Shared(call)
        for outcome in await asyncio.gather(shared(), shared(), return_exceptions=True):
            assert isinstance(outcome, OSError)
        assert await shared() == 2

    run(story)


def test_a_cancelled_caller_does_not_cancel_the_shared_call() -> None:
    async def story() -> None:
        clock = Clock()
        shared = Shared(clock.call)
        first, second = asyncio.create_task(shared()), asyncio.create_task(shared())
        await clock.first.wait()
        first.cancel()
        assert await second == 1
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await shared() == 2

    run(story)
