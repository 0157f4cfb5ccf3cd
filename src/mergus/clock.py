"""The clock of code that lets time pass before it does something again. A test gives it one that it turns itself."""

import asyncio
import time
from typing import Final


class Clock:
    """The machine's, in seconds; it never goes back."""

    def read(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


MACHINE_CLOCK: Final = Clock()
