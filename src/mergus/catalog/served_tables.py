"""Tables as one process serves them: names found, answers made once for all who wait, and kept while they are true.

Clients, and a listener that runs in the process, come here for the same thing and get it from the same work: `answer`
for what is newest, `finish` for the rest of a long history, `bring` for both with the signs to it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from mergus.catalog.find import find_table
from mergus.catalog.newest import keep_newest
from mergus.catalog.table_cache import Answer, Body, Snapshots, TableCache
from mergus.ducklake import tables
from mergus.ducklake.connect import Pool, connection
from mergus.ducklake.snapshots import Head
from mergus.errors import ApiError, NoSuchTable, ServiceUnavailable, Unsupported
from mergus.iceberg.namespace import Namespace
from mergus.logs import log
from mergus.materialise import metadata_file
from mergus.materialise.metadata_file import Signpost
from mergus.materialise.table import Materialised, Materialiser
from mergus.shared import Shared

T = TypeVar("T")
K = TypeVar("K")
# table, snapshot of the lake, and what of it is shown
PastKey = tuple[int, int, Snapshots, bool]

# How long history is made before those who ask meanwhile are shown what there is, and others have their turn.
BEHIND_SECONDS: Final = 5.0
BEHIND_AT_ONCE: Final = 2
# How long older snapshots are waited for by one whom nobody waits for: in a burst they are a few, and one version of
# the metadata tells of all of them.
SHORTLY: Final = 0.25
SIGNED_AFTER: Final = (0, 1, 5, 25)
# How long history is made for one who asks for the past of a table that is not there any more.
PAST_SECONDS: Final = 10.0
# So many documents about the past are kept: there are as many as there are snapshots, and each is soon made again.
PAST_BODIES: Final = 64
# How long one who needs a sign waits for it: a process that is paused in the middle may keep others from setting it.
SIGNED_WITHIN: Final = 2.0


@dataclass(slots=True)
class ServedTables:
    pool: Pool
    materialiser: Materialiser
    cache: TableCache
    # for how long clients wait for older snapshots
    patience: float
    look: Shared[Head] = field(init=False)
    _working: dict[int, asyncio.Task[Answer]] = field(default_factory=dict[int, asyncio.Task[Answer]])
    _behind: dict[int, asyncio.Task[None]] = field(default_factory=dict[int, asyncio.Task[None]])
    # of tables that clients ask for, and of others
    _turns: tuple[asyncio.Semaphore, asyncio.Semaphore] = field(init=False)
    _signs: dict[int, Signpost] = field(default_factory=dict[int, Signpost])
    _signing: dict[int, asyncio.Task[None]] = field(default_factory=dict[int, asyncio.Task[None]])
    # what clients asked for last: kept ready, and nothing else is
    _wanted: dict[int, None] = field(default_factory=dict[int, None])
    _heard: dict[int, None] = field(default_factory=dict[int, None])
    _warming: dict[int, asyncio.Task[None]] = field(default_factory=dict[int, asyncio.Task[None]])
    # dropped tables that were asked for last, by when they were dropped and the state of the lake
    _past: dict[int, tuple[tuple[int, int, int], Materialised]] = field(
        default_factory=dict[int, tuple[tuple[int, int, int], Materialised]]
    )
    _past_bodies: dict[PastKey, tuple[Head, Body]] = field(default_factory=dict[PastKey, tuple[Head, Body]])

    def __post_init__(self) -> None:
        self.look = Shared(self.cache.look)
        self._turns = asyncio.Semaphore(BEHIND_AT_ONCE), asyncio.Semaphore(BEHIND_AT_ONCE)

    async def resolve(self, namespace: Namespace, name: str, head: Head) -> int:
        schema = namespace.schema_name
        if (known := self.cache.table_id(schema, name)) is not None:
            return known
        async with connection(self.pool) as conn:
            found = await find_table(conn, namespace, name)
        self.cache.name(schema, name, found, head)
        return found

    async def answer(self, table_id: int, head: Head) -> Answer:
        """For a client: about the table as it was at `head` or later."""
        keep_newest(self._wanted, table_id, None, self.cache.limit)
        deadline = time.monotonic() + self.patience
        answer = await self._answer(table_id, head, self.patience)
        # one who has less patience may have begun it
        while answer.missing_from is not None and (left := deadline - time.monotonic()) > 0:
            if not await self.complete(table_id, left):
                break
            answer = await self._answer(table_id, head, left)
        return answer

    def is_wanted(self, table_id: int) -> bool:
        return table_id in self._wanted

    async def _answer(self, table_id: int, head: Head, patience: float) -> Answer:
        """Requests that miss at once wait for one piece of work; one that began before may have read too old a state,
        and is not enough. Nor is its failure: a table that has come back did not exist in that state."""
        began_before = self._working.get(table_id)
        while True:
            if (kept := self.cache.answer(table_id)) is not None:
                return kept
            task = _only(self._working, table_id, lambda: self._make(table_id, patience))
            try:
                # a client that goes away does not take the work from others
                answer = await asyncio.shield(task)
            except ApiError:
                if task is began_before:
                    continue
                raise
            is_new = (answer.head.epoch, answer.head.snapshot_id) >= (head.epoch, head.snapshot_id)
            if is_new and answer.generation == self.cache.generation:
                return answer
            # the lake may have gone back behind the head, which would never be reached then
            head = await self.look()

    async def _make(self, table_id: int, patience: float) -> Answer:
        generation = self.cache.generation
        table = await self.materialiser.table(table_id, patience=0)
        if table.missing_from is not None and patience > 0:
            await self.complete(table_id, patience)
            table = await self.materialiser.table(table_id, patience=0)
        written = await metadata_file.write(self.pool, self.materialiser.objects, table)
        if written.sign is not None:
            self._sign_later(table_id, written.sign)
        answer = Answer(table.reading.head, replace(written, sign=None), table, generation)
        if self.is_wanted(table_id):
            self.cache.keep(table_id, answer)
        if table.missing_from is not None:
            self._finish(table_id)
        return answer

    async def past(self, table_id: int, head: Head, at: int) -> Materialised:
        """A table with all that it was at a snapshot. It may have been dropped since, or be nothing to Iceberg now."""
        try:
            return (await self.answer(table_id, head)).table
        except NoSuchTable:
            self._wanted.pop(table_id, None)
            return await self._dropped(table_id, head, at)
        except Unsupported:
            return await self.materialiser.table(table_id, PAST_SECONDS, upto=at)

    async def _dropped(self, table_id: int, head: Head, at: int) -> Materialised:
        """As it was when it was dropped, which only an expiry changes; then the epoch is another."""
        async with connection(self.pool) as conn:
            last = await tables.read_last(conn, table_id)
        if last is None or last.dropped_at is None:
            raise ServiceUnavailable("The table was dropped, or brought back, while it was looked for; try again")
        key = (last.dropped_at, head.epoch, self.cache.generation)
        known, table = self._past.get(table_id, (None, None))
        if table is None or known != key or table.missing_from is not None:
            try:
                table = await self.materialiser.table(table_id, PAST_SECONDS, upto=last.dropped_at - 1)
            except Unsupported:
                return await self.materialiser.table(table_id, PAST_SECONDS, upto=at)
            if table.reading.head.epoch == head.epoch:
                keep_newest(self._past, table_id, (key, table), self.cache.limit)
        return table

    def past_body(self, key: PastKey, head: Head) -> Body | None:
        """That was made of the table as it was read at this head."""
        known, body = self._past_bodies.get(key, (None, None))
        return body if known == head else None

    def keep_past_body(self, key: PastKey, head: Head, body: Body) -> None:
        keep_newest(self._past_bodies, key, (head, body), PAST_BODIES)

    async def bring(self, table_id: int) -> tuple[Head, int | None]:
        """Puts the table on storage as it is now, with the signs to it. The head that it is about, or a later one, and
        the oldest snapshot that is missing still."""
        head = await self.look()
        answer = await self._answer(table_id, head, SHORTLY)
        if (signing := self._signing.get(table_id)) is not None:
            done, _ = await asyncio.wait({signing}, timeout=SIGNED_WITHIN)
            if not done:
                raise ServiceUnavailable("The signs to the table's metadata are not set yet")
            signing.result()
        return head, answer.missing_from

    async def finish(self, table_id: int) -> None:
        """Makes the rest of the table's history."""
        await asyncio.shield(self._finish(table_id))

    async def complete(self, table_id: int, seconds: float) -> bool:
        """Waits for the rest of a table's history, so long at most; whether it is there."""
        done, _ = await asyncio.wait({self._finish(table_id)}, timeout=seconds)
        return any(task.exception() is None for task in done)

    def _finish(self, table_id: int) -> asyncio.Task[None]:
        what = f"the history of table {table_id} is not complete"
        return _only(self._behind, table_id, lambda: self._make_history(table_id), what)

    async def _make_history(self, table_id: int) -> None:
        """Tables take turns, so that a long history does not keep others waiting."""
        missing: int | None = 0
        while missing is not None:
            async with self._turns[0 if self.is_wanted(table_id) else 1]:
                missing = (await self.materialiser.table(table_id, patience=BEHIND_SECONDS)).missing_from
            # an answer that lists what there is now
            self.cache.forget(table_id)

    def _sign_later(self, table_id: int, sign: Signpost) -> None:
        """Nobody who loads the table waits for it."""
        self._signs[table_id] = sign
        _only(self._signing, table_id, lambda: self._sign(table_id), f"no sign leads to table {table_id}")

    async def _sign(self, table_id: int) -> None:
        """Tried for a while; after that, the next process that makes an answer about the table does it."""
        while (sign := self._signs.pop(table_id, None)) is not None:
            for seconds in SIGNED_AFTER:
                await asyncio.sleep(seconds)
                try:
                    await metadata_file.signpost(self.pool, self.materialiser.objects, sign)
                    break
                except ServiceUnavailable:
                    if seconds == SIGNED_AFTER[-1]:
                        raise

    def hear(self, table_id: int) -> None:
        """Another process may have put the table on storage: if clients ask for it here, it is made ready for them."""
        if self.is_wanted(table_id):
            self._heard[table_id] = None
            _only(self._warming, 0, self._warm, "tables are not kept ready")

    async def _warm(self) -> None:
        while self._heard:
            table_id = next(iter(self._heard))
            del self._heard[table_id]
            with suppress(ApiError):
                await self._answer(table_id, await self.look(), SHORTLY)


def _only(
    tasks: dict[int, asyncio.Task[T]], table_id: int, work: Callable[[], Coroutine[Any, Any, T]], failed: str = ""
) -> asyncio.Task[T]:
    """The one task for a table: that which is under way, or a new one. `failed` is said of one that nobody may be
    waiting for."""
    task = tasks.get(table_id)
    if task is not None and not task.done():
        return task
    task = tasks[table_id] = asyncio.create_task(work())

    def ended(task: asyncio.Task[T]) -> None:
        if tasks.get(table_id) is task:
            del tasks[table_id]
        # asked for in any case: those who waited for it may have gone away
        if not task.cancelled() and (e := task.exception()) is not None and failed:
            log.warning("%s: %s", failed, e)

    task.add_done_callback(ended)
    return task
