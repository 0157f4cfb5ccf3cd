"""Deleting objects, and telling of it: what a sweep and a look for orphans have in common.

What must hold:

- Nothing outside of the directories of tables below our root is deleted, whatever a row says.
- An object that a chain leads to is deleted only while no chain of the table can be written, and only if none that was
  written until then leads to it (`chained`). A process that has written the very same object for a chain which it has
  not noted yet writes it once more: it is told before anything is deleted (annex/chains.py). One thing no lock can
  rule out: a process that is paused right before its request, for longer than Postgres waits for it, deletes when it
  wakes up. What it takes then is noticed as any loss is, and made again.
- Whatever else may need an object is asked for right before (`plain`).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from mergus.annex import garbage
from mergus.ducklake import listed_paths
from mergus.ducklake.connect import Conn, Pool, connection
from mergus.faults import point
from mergus.maintenance.reach import Reach
from mergus.materialise.at_once import each
from mergus.materialise.layout import Layout, is_in_namespace
from mergus.storage.location import Location
from mergus.storage.objects import Objects

# What is done, and how many so far. May raise to put an end to it, which does no harm wherever it comes.
Progress = Callable[[str, int], Awaitable[None]]
# Those of these paths that are needed.
Needed = Callable[[Conn, Sequence[str]], Awaitable[set[str]]]

BATCH: Final = 500
HEADS_AT_ONCE: Final = 32
# Chains that come meanwhile are read outside of the turn so often; then within, where no more can come.
TRIES: Final = 5
# Of a dry run, so many are named.
NAMED: Final = 1000


async def quiet(_what: str, _done: int) -> None:
    pass


@dataclass(slots=True)
class Swept:
    """What was deleted, or what would be. `skipped` are tables that could not be looked at, with the reason."""

    tables: int = 0
    objects: int = 0
    bytes: int = 0
    kinds: dict[str, int] = field(default_factory=dict[str, int])
    # the first of them, in a dry run
    paths: list[str] = field(default_factory=list[str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    # whether there is more to do than one call may
    more: bool = False


@dataclass(slots=True)
class Removal:
    pool: Pool
    objects: Objects
    root: Location
    most: int
    dry_run: bool
    progress: Progress = quiet
    done: Swept = field(default_factory=Swept)

    @property
    def is_full(self) -> bool:
        return self.done.objects >= self.most

    @property
    def is_over(self) -> bool:
        """Whether there is something that cannot be done in this call."""
        return self.is_full and self.done.more

    def uuid_of(self, path: str) -> UUID | None:
        """Of the table whose directory an object is in; None for one that is in none."""
        try:
            location = Location.parse(path)
            return UUID(location.parts[len(self.root.parts)]) if self._is_inside(location) else None
        except (ValueError, IndexError):
            return None

    def is_tables(self, path: str) -> bool:
        """Whether an object is in the directory of a table, be it one that a client chose below that of a namespace."""
        try:
            return self.uuid_of(path) is not None or is_in_namespace(self.root, Location.parse(path))
        except ValueError:
            return False

    def _is_inside(self, location: Location) -> bool:
        return self.root.contains(location) and len(location.parts) > len(self.root.parts) + 1

    async def still_signed(self, conn: Conn, table_ids: Sequence[int]) -> set[str]:
        """The versions of the metadata that there are, their copies by number, and the sign to the newest."""
        versions = await garbage.metadata_files(conn, table_ids)
        kept = set(versions)
        for location, version in versions.items():
            if (uuid := self.uuid_of(location)) is not None:
                layout = Layout.of(self.root, uuid)
                kept |= {str(layout.version_hint), str(layout.numbered_metadata(version + 1))}
        return kept

    @asynccontextmanager
    async def turn(self, table_ids: Sequence[int], lists: Collection[str], grace: timedelta) -> AsyncGenerator[None]:
        """For `chained`: the lists are doomed, and those who write chains know that objects are deleted."""
        async with connection(self.pool) as conn:
            await garbage.doom(conn, table_ids, lists, grace)
        try:
            yield
        finally:
            async with connection(self.pool) as conn:
                await garbage.end(conn, table_ids)

    async def plain(self, kind: str, paths: Sequence[str], needed: Needed) -> None:
        """What no chain leads to."""
        for batch in _batches(paths):
            there = await self._there(batch)
            async with connection(self.pool) as conn:
                kept = await needed(conn, [str(location) for location, _ in there])
                kept |= await listed_paths.named(conn, [str(location) for location, _ in there])
            going = [item for item in there if str(item[0]) not in kept]
            if not self.dry_run:
                await self.objects.delete_all([location for location, _ in going])
            await self._count(kind, going)

    async def chained(self, kind: str, table_ids: Sequence[int], paths: Sequence[str], reach: Reach) -> None:
        """What chains may lead to; call within `turn`. `reach` is what those lead to that were there a while ago."""
        for batch in _batches(paths):
            there = await self._there(batch)
            going = there if self.dry_run or not there else await self._in_turn(table_ids, there, reach)
            await self._count(kind, going)

    async def _in_turn(
        self, table_ids: Sequence[int], there: Sequence[tuple[Location, int]], reach: Reach
    ) -> list[tuple[Location, int]]:
        tries = 0
        while True:
            async with connection(self.pool) as conn, conn.transaction():
                is_known = await garbage.hold(conn, table_ids)
                new = await garbage.kept_lists(conn, table_ids) - reach.lists
                live = await garbage.live_lists(conn, table_ids)
                if is_known and (not new or tries > TRIES):
                    await reach.add(new, live)
                    named = await listed_paths.named(conn, [str(location) for location, _ in there])
                    going = [i for i in there if not reach.holds(str(i[0])) and str(i[0]) not in named]
                    point("sweep.held")
                    await self.objects.delete_all([location for location, _ in going])
                    point("sweep.deleted")
                    return going
            tries += 1
            await reach.add(new, live)
            if not is_known:
                # another came to its end, or found that one had come to none
                async with connection(self.pool) as conn:
                    await garbage.doom(conn, table_ids, (), timedelta())

    async def _there(self, paths: Sequence[str]) -> list[tuple[Location, int]]:
        """As many as may be deleted still, of those that are there, with their sizes."""
        inside = [location for location in map(Location.parse, paths) if self._is_inside(location)]
        sizes = await each(self.objects.size, inside, HEADS_AT_ONCE)
        found = [(place, size) for place, size in zip(inside, sizes, strict=True) if size is not None]
        left = max(0, self.most - self.done.objects)
        self.done.more |= len(found) > left
        return found[:left]

    async def _count(self, kind: str, going: Sequence[tuple[Location, int]]) -> None:
        done = self.done
        if self.dry_run:
            done.paths += [str(location) for location, _ in going][: NAMED - len(done.paths)]
        done.objects += len(going)
        done.bytes += sum(size for _, size in going)
        if going:
            done.kinds[kind] = done.kinds.get(kind, 0) + len(going)
        await self.progress("objects", done.objects)


def _batches(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    return (paths[i : i + BATCH] for i in range(0, len(paths), BATCH))
