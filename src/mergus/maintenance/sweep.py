"""Our own garbage: objects that rows of `garbage` name, and all that only they lead to.

Nothing is listed. What nobody needs any more was noted when it ceased to be needed (annex/garbage.py); what has been
noted for longer than the grace is deleted, unless something needs it all the same: a chain that was made again under
the same name, one that is in its grace, a row of DuckLake's. Readers that hold older metadata have the grace to finish.

It can be killed at any time and run again, and two at once do no harm: a row goes last, and what was deleted twice is
gone. Each call does so much at most, and says whether there is more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from mergus.annex import garbage
from mergus.annex.garbage import Garbage
from mergus.ducklake.connect import Conn, Pool, connection
from mergus.faults import point
from mergus.logs import log
from mergus.maintenance.moving import move_delete_files
from mergus.maintenance.reach import Reach, refuse
from mergus.maintenance.removal import Progress, Removal, Swept, quiet
from mergus.materialise.layout import Layout, metadata_version
from mergus.materialise.manifests import Damaged, Manifests
from mergus.materialise.metadata_file import KEPT_VERSIONS, PREVIOUS_VERSIONS
from mergus.materialise.reading import Place
from mergus.storage.objects import Objects

# Rows of one table that are looked at together.
ROWS: Final = 5000


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """`grace` is for how long what nobody needs any more stays: longer than any reader reads by one metadata."""

    grace: timedelta
    most_objects: int = 10_000
    most_tables: int = 1000
    dry_run: bool = False


async def sweep(pool: Pool, objects: Objects, place: Place, options: SweepOptions, progress: Progress = quiet) -> Swept:
    removal = Removal(pool, objects, place.root, options.most_objects, options.dry_run, progress)
    done = removal.done
    async with connection(pool) as conn:
        if not options.dry_run:
            await progress("retire", 0)
            await move_delete_files(conn, objects, place.root)
            await garbage.retire(conn, PREVIOUS_VERSIONS, KEPT_VERSIONS)
        due = await garbage.tables_due(conn, options.grace, options.most_tables + 1)
    done.more = len(due) > options.most_tables
    for table_id in due[: options.most_tables]:
        if removal.is_full:
            done.more = True
            break
        await progress("tables", done.tables)
        try:
            await _sweep_table(removal, options.grace, table_id)
        except Damaged as e:
            # what is needed cannot be told; whoever loads the table makes it whole
            log.warning("garbage of table %s stays: %s", table_id, e)
            done.skipped[str(table_id)] = str(e)
        done.tables += 1
    await progress("tables", done.tables)
    return done


async def _sweep_table(removal: Removal, grace: timedelta, table_id: int) -> None:
    async with connection(removal.pool) as conn:
        rows = await garbage.read(conn, table_id, grace, ROWS)
        if not removal.dry_run and (strays := [row.path for row in rows if not removal.is_tables(row.path)]):
            # of a root that is not ours any more
            await garbage.remove(conn, table_id, strays)
    removal.done.more |= len(rows) == ROWS
    found = [row for row in rows if removal.is_tables(row.path)]
    await _lists(removal, grace, table_id, [row.path for row in found if row.kind == "list"])
    await _plain(removal, table_id, [row for row in found if row.kind != "list"])


async def _lists(removal: Removal, grace: timedelta, table_id: int, lists: Sequence[str]) -> None:
    if not lists:
        return
    uuids = {uuid for path in lists if (uuid := removal.uuid_of(path)) is not None}
    async with connection(removal.pool) as conn:
        # a table that was registered again has the directory of the one that was dropped
        table_ids = sorted({table_id, *await garbage.sharing(conn, uuids)})
        live = await garbage.live_lists(conn, table_ids)
        kept = await garbage.kept_lists(conn, table_ids, except_for=lists)
    manifests = Manifests(removal.objects)
    reach = Reach(manifests)
    await reach.add(kept, live)
    found = await refuse(manifests, lists, reach)
    in_order = (("files", found.files), ("manifests", found.manifests), ("lists", found.lists))
    if removal.dry_run:
        for kind, paths in in_order:
            await removal.chained(kind, table_ids, paths, reach)
        return
    async with removal.turn(table_ids, lists, grace):
        point("sweep.doomed")
        for kind, paths in in_order:
            await removal.chained(kind, table_ids, paths, reach)
            if removal.is_over:
                return
        async with connection(removal.pool) as conn:
            await garbage.remove(conn, table_id, lists)


async def _plain(removal: Removal, table_id: int, rows: Sequence[Garbage]) -> None:
    """Versions of the metadata with their copies by number, signs to them, and what clients left."""

    async def needed(conn: Conn, paths: Sequence[str]) -> set[str]:
        uuids = {uuid for path in paths if (uuid := removal.uuid_of(path)) is not None}
        table_ids = [table_id, *await garbage.sharing(conn, uuids)]
        return await removal.still_signed(conn, table_ids) | await garbage.statistics_among(conn, paths)

    paths = [row.path for row in rows]
    # the sign first: it leads to what goes next
    signs = [row.path for row in rows if row.kind == "hint"]
    metadata = [row.path for row in rows if row.kind == "metadata"]
    copies = [
        str(Layout.of(removal.root, uuid).numbered_metadata(version + 1))
        for path in metadata
        if (version := metadata_version(path)) is not None and (uuid := removal.uuid_of(path)) is not None
    ]
    clients = [row.path for row in rows if row.kind == "client"]
    for kind, some in (("signs", signs), ("metadata", [*copies, *metadata]), ("clients", clients)):
        await removal.plain(kind, some, needed)
        if removal.is_over:
            return
    if paths and not removal.dry_run:
        async with connection(removal.pool) as conn:
            await garbage.remove(conn, table_id, paths)
