"""Orphans: objects in the directories of tables that nothing names.

They come from work that was not finished: a chain whose row was never written, a commit of a client that was refused, a
table that was promised and not made; and metadata of the past, which nothing notes. To find them everything below our
root is listed, which `sweep` does without.

An object goes if it is older than the grace by the clock of the store, and nothing names it: no chain, nor one in its
grace; no version of the metadata; no row of DuckLake's, be it one of a table elsewhere; no statistics file; no row of
`garbage`, which is a sweep's own affair. What must hold:

- Only directories of tables that this lake has, or had, or promised are looked into: others below the root may be
  another lake's, or views'. One that is promised still is left alone.
- A client writes files before it commits them, and chains are written before they are noted: the grace has to be longer
  than either takes.

A directory is gone through as it is listed; what is kept in memory is what the chains of one table lead to, by name.
"""

from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from mergus.annex import garbage
from mergus.annex.garbage import Directory
from mergus.ducklake.connect import Conn, Pool, connection
from mergus.logs import log
from mergus.maintenance.reach import Reach
from mergus.maintenance.removal import Progress, Removal, Swept, quiet
from mergus.materialise.layout import Layout, ducklake_directory, is_chained, is_in_namespace
from mergus.materialise.manifests import Damaged, Manifests
from mergus.materialise.reading import Place
from mergus.storage.location import Location
from mergus.storage.objects import Objects

DIRECTORIES_AT_ONCE: Final = 1000
BEFORE_ALL: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class OrphanOptions:
    """`grace` is how old an object has to be: older than the longest job of any client takes."""

    grace: timedelta
    most_objects: int = 10_000
    dry_run: bool = False


async def orphans(
    pool: Pool, objects: Objects, place: Place, options: OrphanOptions, progress: Progress = quiet
) -> Swept:
    removal = Removal(pool, objects, place.root, options.most_objects, options.dry_run, progress)
    done = removal.done
    async with connection(pool) as conn:
        if not options.dry_run:
            await garbage.register(conn)
        before = await garbage.now(conn) - options.grace
    after = BEFORE_ALL
    while not removal.is_full:
        async with connection(pool) as conn:
            found = await garbage.directories(conn, after, DIRECTORIES_AT_ONCE)
        if not found:
            return done
        for directory in found:
            after = directory.uuid
            if directory.staged:
                continue
            await progress("directories", done.tables)
            try:
                await _look_into(removal, directory, before)
            except Damaged as e:
                log.warning("orphans of table %s stay: %s", directory.uuid, e)
                done.skipped[str(directory.uuid)] = str(e)
            done.tables += 1
            if removal.is_full:
                break
    done.more = True
    return done


async def _look_into(removal: Removal, directory: Directory, before: datetime) -> None:
    own = Layout.of(removal.root, directory.uuid).directory
    reach: Reach | None = None
    is_empty = True
    for place in (own, ducklake_directory(removal.root, directory.uuid), *_chosen(removal, directory)):
        async with aclosing(removal.objects.list(place)) as chunks:
            async for listed in chunks:
                is_empty = False
                old = [str(found.location) for found in listed if found.modified < before]
                # only we give such names, and only there
                if chained := [path for path in old if place == own and is_chained(path)]:
                    reach = reach or await _reach(removal, directory)
                    await _chained(removal, directory, chained, reach)
                if others := [path for path in old if place != own or not is_chained(path)]:
                    await removal.plain("others", others, lambda conn, paths: _needed(removal, directory, conn, paths))
                if removal.is_over:
                    return
    if is_empty and not directory.known and not removal.dry_run:
        async with connection(removal.pool) as conn:
            await garbage.unregister(conn, directory.uuid)


def _chosen(removal: Removal, directory: Directory) -> list[Location]:
    """What clients chose for the table below the location of its namespace: nothing there is another's."""
    found: list[Location] = []
    for text in directory.chosen:
        with suppress(ValueError):
            found.append(Location.parse(text))
    return [place for place in found if is_in_namespace(removal.root, place)]


async def _reach(removal: Removal, directory: Directory) -> Reach:
    found = Reach(Manifests(removal.objects))
    async with connection(removal.pool) as conn:
        live = await garbage.live_lists(conn, directory.table_ids)
        kept = await garbage.kept_lists(conn, directory.table_ids, doomed=True)
    await found.add(kept, live)
    return found


async def _chained(removal: Removal, directory: Directory, paths: Sequence[str], reach: Reach) -> None:
    going = [path for path in paths if not reach.holds(path)]
    if not going:
        return
    async with connection(removal.pool) as conn:
        # one may have been registered anew since the directory was found
        table_ids = sorted({*directory.table_ids, *await garbage.sharing(conn, [directory.uuid])})
    if removal.dry_run or not table_ids:
        # of a table that nobody has known nobody writes a chain
        await removal.plain("chained", going, garbage.noted_among)
        return
    async with removal.turn(table_ids, (), timedelta()):
        await removal.chained("chained", table_ids, going, reach)


async def _needed(removal: Removal, directory: Directory, conn: Conn, paths: Sequence[str]) -> set[str]:
    kept = await removal.still_signed(conn, directory.table_ids)
    return kept | await garbage.statistics_among(conn, paths) | await garbage.noted_among(conn, paths)
