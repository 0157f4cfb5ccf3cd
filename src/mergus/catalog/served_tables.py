"""Tables as one process serves them: names found, answers made once for all who wait, and kept while they are true."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from mergus.catalog.find import find_table
from mergus.catalog.freshness import Shared
from mergus.catalog.table_cache import Answer, TableCache
from mergus.ducklake.connect import Pool, connection
from mergus.ducklake.snapshots import Head
from mergus.errors import ServiceUnavailable
from mergus.iceberg.namespace import Namespace
from mergus.logs import log
from mergus.materialise import metadata_file
from mergus.materialise.metadata_file import Signpost
from mergus.materialise.table import Materialiser

# How long history is made before those who ask meanwhile are shown what there is.
BEHIND_SECONDS = 5.0
SIGNED_AFTER = (0, 1, 5, 25)


@dataclass(slots=True)
class ServedTables:
    pool: Pool
    materialiser: Materialiser
    cache: TableCache
    look: Shared[Head] = field(init=False)
    _working: dict[int, asyncio.Task[Answer]] = field(default_factory=dict[int, asyncio.Task[Answer]])
    _signs: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _behind: dict[int, asyncio.Task[None]] = field(default_factory=dict[int, asyncio.Task[None]])

    def __post_init__(self) -> None:
        self.look = Shared(self.cache.look)

    async def resolve(self, namespace: Namespace, name: str, head: Head) -> int:
        schema = namespace.schema_name
        if (known := self.cache.table_id(schema, name)) is not None:
            return known
        async with connection(self.pool) as conn:
            found = await find_table(conn, namespace, name)
        self.cache.name(schema, name, found, head)
        return found

    async def answer(self, table_id: int, head: Head) -> Answer:
        """About the table as it was at `head` or later. Requests that miss at once wait for one piece of work; one that
        began before may have read too old a state, and is not enough."""
        while True:
            if (kept := self.cache.answer(table_id)) is not None:
                return kept
            task = self._working.get(table_id)
            if task is None:
                task = self._working[table_id] = asyncio.create_task(self._make(table_id))
                task.add_done_callback(lambda _: self._working.pop(table_id, None))
            # a client that goes away does not take the work from others
            answer = await asyncio.shield(task)
            is_new = (answer.head.epoch, answer.head.snapshot_id) >= (head.epoch, head.snapshot_id)
            if is_new and answer.generation == self.cache.generation:
                return answer
            # the lake may have gone back behind the head, which would never be reached then
            head = await self.look()

    async def _make(self, table_id: int) -> Answer:
        generation = self.cache.generation
        table = await self.materialiser.table(table_id)
        written = await metadata_file.write(self.pool, self.materialiser.objects, table)
        if written.sign is not None:
            self._later(self._sign(written.sign))
        ids = [snapshot.id for snapshot in table.reading.known.snapshots]
        answer = Answer(table.reading.head, replace(written, sign=None), ids, table.is_complete, generation)
        self.cache.keep(table_id, answer)
        if not table.is_complete:
            self._complete(table_id)
        return answer

    async def complete(self, table_id: int, seconds: float) -> None:
        """Waits for the rest of a table's history, so long at most."""
        await asyncio.wait({self._complete(table_id)}, timeout=seconds)

    def _complete(self, table_id: int) -> asyncio.Task[None]:
        task = self._behind.get(table_id)
        if task is None:
            task = self._behind[table_id] = asyncio.create_task(self._finish(table_id))
            task.add_done_callback(lambda _: self._behind.pop(table_id, None))
        return task

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """What nobody waits for."""
        task = asyncio.create_task(work)
        self._signs.add(task)
        task.add_done_callback(self._signs.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _sign(self, sign: Signpost) -> None:
        """Tried for a while; after that, the next process that makes an answer about the table does it."""
        for seconds in SIGNED_AFTER:
            await asyncio.sleep(seconds)
            try:
                await metadata_file.signpost(self.pool, self.materialiser.objects, sign)
            except ServiceUnavailable as e:
                log.warning("no sign leads to %s: %s", sign.file.location, e)
            else:
                return

    async def _finish(self, table_id: int) -> None:
        """The rest of a long history, and then an answer that lists it."""
        try:
            complete = False
            while not complete:
                complete = (await self.materialiser.table(table_id, patience=BEHIND_SECONDS)).is_complete
                self.cache.forget(table_id)
        except Exception as e:
            log.warning("the history of table %s is not complete: %s", table_id, e)
