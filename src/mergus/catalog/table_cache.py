"""Finished answers about tables, as bytes, and the names that lead to them.

What may be served is decided by the lake alone: before each use the change words since the last look are read (see
`mergus.shared`), and whatever they name is forgotten. Processes share nothing and need not.
"""

import asyncio
import gzip
from dataclasses import dataclass, field
from typing import Literal

from mergus.catalog.newest import keep_newest
from mergus.ducklake import snapshots
from mergus.ducklake.changes import names_stay, tables_named
from mergus.ducklake.connect import Watch
from mergus.ducklake.snapshots import Head
from mergus.materialise.metadata_file import Written
from mergus.materialise.table import Materialised

Snapshots = Literal["all", "refs"]

# Below this, packing costs more than it saves.
SMALLEST_PACKED = 1024


@dataclass(frozen=True, slots=True)
class Form:
    """The bytes of a document, and the ETag that names these very bytes."""

    etag: str
    data: bytes
    is_packed: bool


class Body:
    """A JSON document, plain and packed."""

    def __init__(self, digest: str, plain: bytes) -> None:
        self._digest = digest
        self.plain = Form(f'"{digest}"', plain, is_packed=False)
        self._packed: Form | None = None

    async def packed(self) -> Form:
        """Still plain if packing is not worth it."""
        if len(self.plain.data) < SMALLEST_PACKED:
            return self.plain
        if self._packed is None:
            data = await asyncio.to_thread(gzip.compress, self.plain.data, 5, mtime=0)
            self._packed = Form(f'"{self._digest}-gzip"', data, is_packed=True)
        return self._packed


@dataclass(frozen=True, slots=True)
class Answer:
    """About a table as the lake was at `head`. Bodies by what of it is shown, made when they are first asked for."""

    head: Head
    written: Written
    table: Materialised
    # an answer of an earlier one may be about a lake that was another one
    generation: int
    bodies: dict[tuple[Snapshots, bool], Body] = field(default_factory=dict[tuple[Snapshots, bool], Body])

    @property
    def missing_from(self) -> int | None:
        """The oldest snapshot that is not on storage yet."""
        return self.table.missing_from


@dataclass(slots=True)
class TableCache:
    watch: Watch
    limit: int
    # raised when nothing that was known can be relied upon
    generation: int = 0
    _head: Head | None = None
    _state: tuple[int, int, int, int] | None = None
    _names: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _answers: dict[int, Answer] = field(default_factory=dict[int, Answer])
    # the head at which a table was last seen to change: an answer that was made before is not kept
    _changed: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def access_version(self) -> int:
        """Of who may do what, as of the last look."""
        return -1 if self._state is None else self._state[-1]

    async def look(self) -> Head:
        """Forgets whatever is not true any more."""
        state = await self.watch.ask(snapshots.state)
        known = self._head
        if known is not None and state == self._state:
            return known
        if known is None:
            self._head = await self.watch.ask(snapshots.head)
            self._state = state
            return self._head
        head, words = await self.watch.ask(lambda conn: snapshots.news(conn, known))
        if words is None or head.epoch != known.epoch:
            self.generation += 1
            self._names.clear()
            self._answers.clear()
            self._changed.clear()
        elif words:
            self._forget(words, head)
        # the state before the head: what came between the two queries is looked at again
        self._head, self._state = head, state
        return head

    def _forget(self, words: str, head: Head) -> None:
        for table_id in tables_named(words):
            self._answers.pop(table_id, None)
            self._changed[table_id] = head.snapshot_id
        if not names_stay(words):
            self._names.clear()

    def table_id(self, schema: str, name: str) -> int | None:
        return self._names.get((schema, name))

    def name(self, schema: str, name: str, table_id: int, head: Head) -> None:
        """`head` is what was looked at before the name was."""
        if head == self._head:
            self._names[schema, name] = table_id

    def answer(self, table_id: int) -> Answer | None:
        return self._answers.get(table_id)

    def keep(self, table_id: int, answer: Answer) -> None:
        current = self._head
        if current is None or answer.head.epoch != current.epoch or answer.generation != self.generation:
            return
        if answer.head.snapshot_id >= self._changed.get(table_id, -1):
            keep_newest(self._answers, table_id, answer, self.limit)

    def forget(self, table_id: int) -> None:
        self._answers.pop(table_id, None)
