"""A table as Iceberg sees it, whole: every snapshot that can be shown, with the objects behind it written.

`Materialiser.table` is the one way for everybody who needs that. It reads one state of the lake, makes the chain of the
newest snapshot from the nearest one that is there, and then those of older snapshots that have none, or whose files a
merge has taken away. What takes longer than `patience` is left for another call: a snapshot is listed as soon as it can
be read, and nobody waits for history.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mergus.annex import chains as annex_chains
from mergus.annex import tables as annex_tables
from mergus.annex.chains import Chain, OutOfDate, Turn
from mergus.ducklake import files, snapshots
from mergus.ducklake.changes import FLUSHES, LAYOUT
from mergus.ducklake.columns import Unrepresentable
from mergus.ducklake.connect import Conn, Pool, connection, one_state
from mergus.ducklake.inlined import Unreadable
from mergus.ducklake.places import same_places, still_readable
from mergus.ducklake.snapshots import Snapshot
from mergus.errors import InternalServerError, ServiceUnavailable, TableGone, Unsupported
from mergus.iceberg.manifest import DELETED
from mergus.iceberg.schema import Schema
from mergus.logs import log
from mergus.materialise import chain as chains
from mergus.materialise import reading, suspects
from mergus.materialise.at_once import each
from mergus.materialise.chain import Goal, Start, Workshop
from mergus.materialise.deletes import DeletedRows
from mergus.materialise.footers import Footers, Unread
from mergus.materialise.layout import ManifestName
from mergus.materialise.manifests import Damaged, Manifests
from mergus.materialise.outbox import Outbox
from mergus.materialise.reading import Known, Place, Shown, TableReading, schema_text
from mergus.metrics import MATERIALISED, WORK, timed
from mergus.storage.location import Location
from mergus.storage.objects import Objects

ATTEMPTS: Final = 3
FLUSH_SECONDS: Final = 2.0

Rendered = dict[int, tuple[tuple[Snapshot, str, int | None, int], dict[str, Any]]]
# of the tables that were read last, what the next reading need not ask for
KEPT_TABLES: Final = 1000
# of the objects behind a table, so many are looked for when a process first sees it
CHECKED: Final = 1000
CHECKED_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Materialised:
    """A table with the chains of its snapshots, of those that are made."""

    reading: TableReading
    schema_ids: dict[str, int]
    chains: dict[int, Chain]
    # snapshots as JSON, with what they were made of: kept from one time to the next
    rendered: Rendered

    @property
    def listed(self) -> list[Shown]:
        return [s for s in self.reading.shown if s.listed and self.chain_of(s) is not None]

    def chain_of(self, shown: Shown) -> Chain | None:
        """What shows a snapshot. Main that was put back to an older one is shown as it was put back: DuckLake lists its
        rows anew, and they may be in other files than when they were first shown."""
        if shown is self.reading.main:
            return self.chains.get(self.reading.mains[-1][0].id)
        return self.chains.get(shown.snapshot.id)

    @property
    def missing_from(self) -> int | None:
        """The oldest snapshot that has no chain yet; None if all have."""
        return next((s.snapshot.id for s in self.reading.shown if s.snapshot.id not in self.chains), None)

    def schema_id(self, shown: Shown) -> int:
        return self.schema_ids[shown.schema_text]


@dataclass(slots=True)
class _Memory:
    """What is known of a table from the last time."""

    known: Known
    format_version: int
    chains: dict[int, Chain]
    rendered: Rendered
    # how often chains of the table had been replaced by then
    replaced: int


@dataclass(slots=True)
class Materialiser:
    pool: Pool
    objects: Objects
    place: Place
    shop: Workshop = field(init=False)
    _memory: dict[int, _Memory] = field(default_factory=dict[int, _Memory])
    _checked: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        footers = Footers(self.pool, self.objects)
        self.shop = Workshop(self.objects, Manifests(self.objects), DeletedRows(self.objects), footers)

    async def table(self, table_id: int, patience: float, upto: int | None = None) -> Materialised:
        """With `upto` as if that snapshot were the newest; the table may have been dropped since."""
        until = time.monotonic() + FLUSH_SECONDS
        while True:
            try:
                return await self._tried(table_id, patience, upto)
            except TableGone:
                # a flush drops several tables of inlined rows, and each look may meet another
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.02)

    async def _tried(self, table_id: int, patience: float, upto: int | None) -> Materialised:
        missing: FileNotFoundError | None = None
        for _ in range(ATTEMPTS):
            try:
                return await self._looked_at(table_id, patience, upto)
            except Damaged as e:
                log.warning("what was made of table %s is made again: %s", table_id, e)
                await self._distrust(table_id)
            except OutOfDate as e:
                log.info("table %s is looked at again: %s", table_id, e)
                self._memory.pop(table_id, None)
            except FileNotFoundError as e:
                # DuckLake may have cleaned a file up that it named a moment ago
                missing = e
            except Unreadable as e:
                raise Unsupported(f"The table cannot be shown as Iceberg: {e}") from e
        if missing is not None:
            raise InternalServerError("A file of the table that DuckLake names is missing") from missing
        raise ServiceUnavailable("Objects of the table are missing as soon as they are written; try again")

    async def _distrust(self, table_id: int) -> None:
        self._memory.pop(table_id, None)
        async with connection(self.pool) as conn:
            await annex_chains.forget(conn, table_id)

    async def _looked_at(self, table_id: int, patience: float, upto: int | None) -> Materialised:
        """With what only its files can tell, which is asked of them outside of any transaction."""
        unopened: dict[int, str] = {}
        while True:
            try:
                return await self._table(table_id, patience, unopened, upto)
            except Unread as e:
                unopened |= await self.shop.footers.read(e.files)

    async def _table(
        self, table_id: int, patience: float, unopened: Mapping[int, str], upto: int | None
    ) -> Materialised:
        memory = self._memory.get(table_id) if upto is None else None
        async with timed("read"), one_state(self.pool) as conn:
            if memory is not None and not await snapshots.is_still(conn, memory.known.head):
                memory = None
            known = memory.known if memory else None
            found = await reading.read(conn, self.place, table_id, known, self.shop.footers, unopened, upto)
            schema_ids = await annex_tables.read_schemas(conn, table_id)
            turn = await annex_chains.read_turn(conn, table_id)
            made = await self._made(conn, found, memory, turn)
            head: tuple[Goal, Start, chains.Reading] | None = None
            todo = _todo(found, made)
            if found.shown and found.shown[-1] in todo:
                goal = _goal(found, found.shown[-1], schema_ids)
                start = await self._start(found, goal, made)
                try:
                    head = goal, start, await self._read(conn, found, goal, start, unopened)
                except Unrepresentable as e:
                    table = found.view.table
                    name = f"{table.schema_name}.{table.name}"
                    raise Unsupported(f"Table {name} cannot be shown as Iceberg: {e}") from e
        if table_id not in self._checked:
            await self._check(made)
            self._checked.add(table_id)
        schema_ids = await self._number_schemas(found, schema_ids)
        if head is not None:
            goal, start, read = head
            goal = replace(goal, schema_id=_schema_number(goal.schema, schema_ids))
            turn = await self._make(found, made, goal, start, read, turn)
        await self._history(found, made, schema_ids, todo, turn, unopened, time.monotonic() + patience)
        version = found.view.format_version
        rendered = memory.rendered if memory and memory.format_version == version else {}
        if upto is None:
            self._remember(table_id, _Memory(found.known, version, made, rendered, turn.replaced))
        return Materialised(found, schema_ids, _valid(found, made), rendered)

    async def _made(self, conn: Conn, found: TableReading, memory: _Memory | None, turn: Turn) -> dict[int, Chain]:
        """The chains that there are. Those that this process knows are not asked for again."""
        view = found.view
        times = {s.snapshot.id: s.snapshot.time for s in found.shown}
        known = memory.chains if memory and memory.format_version == view.format_version else {}
        if memory and memory.replaced != turn.replaced:
            # one that was replaced is deleted some day
            known = {}
        newest = max(known.keys() & times.keys(), default=None)
        fresh = await self._stored(conn, found, [i for i in times if i not in known or i == newest])
        if newest is not None and not _is_same(fresh.get(newest), known[newest]):
            # another process has made it again, or thrown it away; what this one knows of others may be as old
            known, fresh = {}, await self._stored(conn, found, list(times))
        every = {**known, **fresh}
        if any(chain.as_of > found.head.snapshot_id for chain in every.values()):
            raise Damaged("it knows of snapshots that are gone")
        # most chains have the same layout
        readable = {key for key in {c.layout for c in every.values()} if still_readable(key, view.places.key)}
        # those that this process knows were looked at when it last read the table
        seen = memory.known.head.snapshot_id if memory and known else -1
        checked = {i: max(chain.as_of, seen if i in known else -1) for i, chain in every.items()}
        lost = await self._lost(conn, found, checked, every)
        return {
            i: chain
            for i, chain in every.items()
            if times.get(i) == chain.snapshot_time and chain.layout in readable and i not in lost
        }

    async def _lost(
        self, conn: Conn, found: TableReading, checked: Mapping[int, int], made: Mapping[int, Chain]
    ) -> set[int]:
        """Snapshots whose deletes DuckLake may have forgotten since they were `checked`. What it shows is the truth,
        so that a server which is asked for the first time shows the same. Only a table of which an older snapshot has
        delete files costs the query."""
        head = found.head.snapshot_id
        old = [i for i, chain in made.items() if chain.counts["totals"]["delete_files"] and checked[i] < head]
        if not old:
            return set()
        last = await files.last_vector(conn, found.view.table.id, min(checked[i] for i in old))
        return set() if last is None else {i for i in old if i < last and checked[i] < last}

    async def _stored(self, conn: Conn, found: TableReading, ids: Sequence[int]) -> dict[int, Chain]:
        view = found.view
        stored = await annex_chains.read(conn, view.table.id, view.format_version, ids) if ids else []
        return {chain.snapshot_id: chain for chain in stored}

    async def _check(self, made: dict[int, Chain]) -> None:
        """Once in a process: whether all objects of ours behind the newest chain are there, whole, and the manifest
        lists of the others. Raises Damaged; nobody else would notice before a reader does."""
        sizes: dict[str, int | None] = {}
        for chain in sorted(made.values(), key=lambda c: -c.snapshot_id)[:CHECKED]:
            if not sizes:
                for file in await self.shop.manifests.read_list(chain.manifest_list):
                    sizes[file.manifest_path] = file.manifest_length
                    name = ManifestName.of(file.manifest_path)
                    if name is not None and (name.kind, name.content) != ("files", "data"):
                        live = [e.data_file for e in await self.shop.manifests.read(file) if e.status != DELETED]
                        sizes |= {f.file_path: f.file_size_in_bytes for f in live}
            sizes[chain.manifest_list] = None

        async def one(path: str) -> None:
            size, wanted = await self.objects.size(Location.parse(path)), sizes[path]
            if size is None or size != (wanted or size):
                raise Damaged(f"missing or cut off: {path}")

        await each(one, list(sizes)[:CHECKED], CHECKED_AT_ONCE)

    async def _start(self, found: TableReading, goal: Goal, made: dict[int, Chain]) -> Start:
        """The nearest chain to begin with: the snapshot's own, from before a merge, or an older one."""
        key = goal.places.key
        same = {layout for layout in {c.layout for c in made.values()} if same_places(layout, key)}
        usable = (i for i, chain in made.items() if i <= goal.id and chain.layout in same)
        base = made.get(max(usable, default=-1))
        if base is None:
            return Start()
        # of all snapshots, shown or not; what expired may have been among those that the base knew
        after = [s for s in found.known.snapshots if s.id > base.snapshot_id]
        return await chains.start(
            self.shop,
            base,
            goal,
            in_the_past=any(s.id <= base.as_of or s.after_gap for s in after),
            flushed=any(s.after_gap or s.words & FLUSHES for s in after if s.id > base.as_of),
            vanished=[span for span in found.merges if span[1] > base.as_of],
        )

    async def _make(
        self,
        found: TableReading,
        made: dict[int, Chain],
        goal: Goal,
        start: Start,
        read: chains.Reading,
        turn: Turn,
    ) -> Turn:
        """`turn` was read before anything was written, and is if it was there. Raises OutOfDate."""
        key = found.view.table.id, found.view.format_version
        if turn.sweeps is None:
            async with connection(self.pool) as conn:
                turn = replace(await annex_chains.begin(conn, key[0]), replaced=turn.replaced)
        outbox = Outbox(self.objects)
        chain = await chains.write(self.shop, outbox, found.view, goal, start, read)
        async with connection(self.pool) as conn:
            written = await annex_chains.write(conn, *key, chain, start.chain, turn)
        if not written:
            # somebody deletes objects of the table, and some may be the very same
            async with connection(self.pool) as conn, conn.transaction():
                await annex_chains.hold(conn, key[0])
                await outbox.send_again()
                await annex_chains.write(conn, *key, chain, start.chain, None)
        made[goal.id] = chain
        MATERIALISED.inc()
        WORK.chains += 1
        return turn

    async def _history(
        self,
        found: TableReading,
        made: dict[int, Chain],
        schema_ids: dict[str, int],
        todo: Sequence[Shown],
        turn: Turn,
        unopened: Mapping[int, str],
        deadline: float,
    ) -> None:
        """Older snapshots, oldest first: each is the next one's base. One that cannot be shown is left out."""
        for shown in todo:
            if shown is found.shown[-1]:
                continue
            if time.monotonic() > deadline:
                return
            goal = _goal(found, shown, schema_ids)
            start = await self._start(found, goal, made)
            async with one_state(self.pool) as conn:
                if await self._has_moved(conn, found):
                    return
                try:
                    read = await self._read(conn, found, goal, start, unopened)
                except Unrepresentable as e:
                    log.info("snapshot %s of table %s is not shown: %s", goal.id, found.view.table.id, e)
                    found.shown.remove(shown)
                    continue
            turn = await self._make(found, made, goal, start, read, turn)

    async def _read(
        self, conn: Conn, found: TableReading, goal: Goal, start: Start, unopened: Mapping[int, str]
    ) -> chains.Reading:
        """Raises Unread with files that have to be looked at first, or Unrepresentable."""
        read = await chains.read(conn, found.view, goal, start)
        await suspects.check_field_ids(conn, self.shop.footers, unopened, read.changes.added)
        return read

    async def _has_moved(self, conn: Conn, found: TableReading) -> bool:
        """Whether history was rewritten since the reading: what is made of two states of the lake must not see that."""
        head = await snapshots.head(conn)
        if head.epoch != found.head.epoch or not await snapshots.is_still(conn, found.head):
            return True
        if head.snapshot_id == found.head.snapshot_id:
            return False
        return bool(await snapshots.words_since(conn, found.view.table.id, found.head.snapshot_id) & LAYOUT)

    async def _number_schemas(self, found: TableReading, known: dict[str, int]) -> dict[str, int]:
        texts = [schema_text(schema) for schema in found.schemas]
        if all(text in known for text in texts):
            return known
        async with connection(self.pool) as conn:
            return await annex_tables.add_schemas(conn, found.view.table.id, texts)

    def _remember(self, table_id: int, memory: _Memory) -> None:
        self._memory.pop(table_id, None)
        self._memory[table_id] = memory
        if len(self._memory) > KEPT_TABLES:
            self._memory.pop(next(iter(self._memory)))


def _goal(found: TableReading, shown: Shown, schema_ids: dict[str, int]) -> Goal:
    number = _schema_number(shown.schema, schema_ids)
    parent_id = shown.parent.iceberg_id if shown.parent else None
    places = found.view.places.within(shown.schema)
    return Goal(shown.snapshot, shown.previous, parent_id, shown.schema, number, places)


def _schema_number(schema: Schema, schema_ids: dict[str, int]) -> int:
    """One without a number is new: nothing was made for it."""
    return schema_ids.get(schema_text(schema), -1)


def _is_same(stored: Chain | None, known: Chain) -> bool:
    return stored is not None and (stored.manifest_list, stored.as_of) == (known.manifest_list, known.as_of)


def _is_stale(chain: Chain, merges: Sequence[tuple[int, int]]) -> bool:
    """Whether a merge has taken files away that the chain lists."""
    return any(first <= chain.snapshot_id < merge and merge > chain.as_of for first, merge in merges)


def _valid(found: TableReading, made: dict[int, Chain]) -> dict[int, Chain]:
    return {i: chain for i, chain in made.items() if not _is_stale(chain, found.merges)}


def _todo(found: TableReading, made: dict[int, Chain]) -> list[Shown]:
    valid = _valid(found, made)
    return [s for s in found.shown if s.snapshot.id not in valid]
