"""Objects on their way to storage.

Nothing refers to an object of a chain before all of them are there, so they can travel side by side: a chain costs one
round trip to the store, and not one for each of its objects.
"""

import asyncio
from typing import Final, Protocol

from mergus.storage.location import Location

AT_ONCE: Final = 8


class Store(Protocol):
    """Of `Objects`, what is needed to read and write whole ones."""

    async def get(self, location: Location) -> bytes | None: ...
    async def put(self, location: Location, content: bytes) -> None: ...


class Outbox:
    """A store that does not wait for what it writes, for one piece of work. It can write all of it once more."""

    def __init__(self, objects: Store) -> None:
        self._objects = objects
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._sent: list[asyncio.Task[None]] = []
        self._content: dict[Location, bytes] = {}

    async def put(self, location: Location, content: bytes) -> None:
        """Waits only while too many are under way."""
        await self._slots.acquire()
        task = asyncio.create_task(self._objects.put(location, content))
        task.add_done_callback(self._ended)
        self._sent.append(task)
        self._content[location] = content

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._slots.release()
        if not task.cancelled():
            # is raised where it is waited for; one who gives up before does not
            task.exception()

    async def get(self, location: Location) -> bytes | None:
        await self.arrived()
        return await self._objects.get(location)

    async def arrived(self) -> None:
        """All that was put is on storage. Raises if something is not."""
        await asyncio.gather(*self._sent)

    async def send_again(self) -> None:
        """All that was put is on storage once more, whoever has deleted it since."""
        for location, content in list(self._content.items()):
            await self.put(location, content)
        await self.arrived()
