"""RegisterTable: a table that lies on storage becomes one of the lake, and nothing of it is copied.

A table of another catalog is created as a client would create it, by the same plan, with the ids that its columns,
specs and sort orders have. The current snapshot and those that it came from, for as far back as DuckLake can tell them,
become snapshots of the lake in the same transaction, under the ids that they had. What was before them is not taken
over, and the summary of the first says so; nor are branches, tags of other snapshots, and files of statistics.

A metadata file of the lake's own is that of a table that was dropped. That table is put back by its own rows, whole
history and all, if the file tells of it as it was last: to list its files as those of another table would be to lose
them when the old one expires, and rows that DuckLake keeps in Postgres are in no file of DuckLake's.

What must hold: nothing is read that does not lie where a table may have files, and nothing that is another table's.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID, uuid4

from mergus.access.authorise import authorise, may
from mergus.access.context import RequestContext
from mergus.access.privileges import DROP, READ
from mergus.catalog import register_history, table_places
from mergus.catalog.commit import cleared, committed_body
from mergus.catalog.commit_data import DataStep
from mergus.catalog.commit_plan import Change, Plan, check_mappings, next_snapshot, plan, terms_of
from mergus.catalog.commit_write import write
from mergus.catalog.delete_files import Drawer
from mergus.catalog.find import find_schema
from mergus.catalog.lake import Lake
from mergus.catalog.locations import Premises, TablePlaces, parse
from mergus.catalog.names import check_name, find_clash, taken
from mergus.catalog.register_data import plan_steps, split_columns
from mergus.catalog.register_files import Adoption, doomed_reason
from mergus.catalog.register_history import History, known_as
from mergus.catalog.table_cache import Body
from mergus.catalog.table_places import Claims
from mergus.catalog.undrop import check_place
from mergus.ducklake import alter, dropped, scheduled, snapshots, tables
from mergus.ducklake.commit import Commit
from mergus.ducklake.connect import Conn
from mergus.errors import BadRequest, CommitFailed, Unsupported
from mergus.iceberg import metadata_parse
from mergus.iceberg.metadata_parse import GivenTable, plain
from mergus.iceberg.namespace import Namespace
from mergus.iceberg.ref_update import NO_RETENTION
from mergus.iceberg.requirements import AssertCreate
from mergus.iceberg.table_update import FORMAT_VERSION
from mergus.iceberg.updates import (
    AddSchema,
    AddSortOrder,
    AddSpec,
    AssignUuid,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    SetProperties,
    Update,
    UpgradeFormatVersion,
)
from mergus.materialise.given import read_object
from mergus.materialise.layout import Layout, ducklake_directory, metadata_as_of
from mergus.materialise.metadata import GC_ENABLED
from mergus.storage.location import Location

# In the summary of each snapshot.
REGISTERED_FROM: Final = "mergus.registered-from"
# In that of the oldest: how many the other catalog knows besides these, and what the first of them was left out for.
EARLIER_SNAPSHOTS: Final = "mergus.earlier-snapshots-left-out"
LEFT_OUT_FOR: Final = "mergus.earlier-snapshots-left-out-for"


async def register_table(
    lake: Lake, ctx: RequestContext, namespace: Namespace, name: str, metadata_location: str, *, overwrite: bool
) -> Body:
    await authorise(ctx, namespace, name)
    if overwrite:
        await authorise(ctx, namespace, name, DROP)
    check_name(name)
    async with lake.read() as conn:
        old = await _replaced(conn, namespace, name, overwrite=overwrite)
    premises = await table_places.premises(lake)
    place = parse(plain(metadata_location))
    if premises.root.contains(place):
        table_id = await _put_back(lake, ctx, premises, (namespace, name), place, overwrite=overwrite)
    else:
        async with cleared(lake) as litter:
            made, last_column_id = await _plan(lake, ctx, premises, (namespace, name), place, old, litter)
            table_id = await _adopt(lake, ctx, made, last_column_id, litter, overwrite=overwrite)
    return await committed_body(lake, ctx, table_id)


async def _replaced(conn: Conn, namespace: Namespace, name: str, *, overwrite: bool) -> int | None:
    """The table that the new one takes the place of. Raises AlreadyExists if it may not, or if it is a view."""
    schema = await find_schema(conn, namespace)
    clash = await find_clash(conn, schema.schema_id, name)
    if clash is None:
        return None
    if not overwrite or clash != f"table {name}":
        raise taken(namespace, name, clash)
    return await tables.find(conn, schema.schema_id, name)


async def _plan(
    lake: Lake,
    ctx: RequestContext,
    premises: Premises,
    named: tuple[Namespace, str],
    place: Location,
    old: int | None,
    litter: list[Location],
) -> tuple[Plan, int]:
    """And the highest column id that the table ever had."""
    among = await table_places.among_others(lake, TablePlaces(premises, ()), old)
    data = await read_object(lake.objects, among.check, str(place), metadata_parse.MOST_BYTES, "Metadata file")
    try:
        table = metadata_parse.parse(data)
    except ValueError as e:
        raise BadRequest(f"Metadata file {place} cannot be read: {e}") from None
    among.check_directory(table.location)
    uuid = await _uuid(lake, ctx, table, old)
    own = [Layout.of(premises.root, uuid).directory, parse(table.location)]
    places = replace(among, own=own)
    made = await plan(lake, Change(*named, [AssertCreate()], _updates(table, uuid)), None, None, places, litter)
    table_places.check_properties(places, made.update.set_properties)
    if table.current is None:
        return made, table.last_column_id
    terms = terms_of(made, None)
    adoption = Adoption(
        lake.objects,
        among.check,
        partial(_doomed, lake),
        table,
        terms,
        Drawer(lake.objects, ducklake_directory(premises.root, uuid), litter),
        # what DuckLake has no room for, and what names stand for, is said of all columns at once
        grows=made.arrangement is None and not terms.name_mapping,
    )
    history = await register_history.read(adoption, table.current)
    columns = split_columns(table, history, made.columns)
    told, told_first = {REGISTERED_FROM: str(place)}, _left_out(table, history)
    steps = await plan_steps(adoption, history, columns, told, told_first, await next_snapshot(lake))
    await check_mappings(lake, made, steps)
    kept = {moment.snapshot.snapshot_id: known_as(moment.snapshot) for moment in history.moments}
    update = replace(
        made.update,
        tags={
            name: replace(ref, snapshot_id=kept[ref.snapshot_id])
            for name, ref in table.tags.items()
            if ref.snapshot_id in kept
        },
        main_retention=replace(table.main, snapshot_id=NO_RETENTION.snapshot_id) if table.main else None,
    )
    return replace(made, update=update, columns=columns[0], steps=steps), table.last_column_id


def _left_out(table: GivenTable, history: History) -> dict[str, str]:
    """What the first snapshot tells of those that are not there."""
    told: dict[str, str] = {}
    if count := len(table.snapshots) - len(history.moments):
        told[EARLIER_SNAPSHOTS] = str(count)
    if history.why is not None:
        told[LEFT_OUT_FOR] = history.why
    return told


async def _doomed(lake: Lake, paths: Sequence[str]) -> list[str]:
    async with lake.read() as conn:
        return await scheduled.among(conn, paths)


async def _uuid(lake: Lake, ctx: RequestContext, table: GivenTable, old: int | None) -> UUID:
    """The table's own, if no other has it. A uuid is a directory: that of a table which was dropped goes to nobody
    who could not read it."""
    if table.uuid is None:
        return uuid4()
    uuid = UUID(table.uuid)
    async with lake.read() as conn:
        live = await tables.find_by_uuid(conn, uuid)
        if live is not None:
            return uuid if live == old else uuid4()
        gone = await dropped.newest_first(conn, None, uuid=uuid, limit=1)
        was_there = await tables.was_there(conn, uuid)
    is_ones_own = gone and may(ctx, READ, Namespace.of_schema(gone[0].schema_name), gone[0].name)
    return uuid if not was_there or is_ones_own else uuid4()


def _updates(table: GivenTable, uuid: UUID) -> Sequence[Update]:
    """Those of a client that creates such a table. Version 1 has no deletes, and becomes 2. Another catalog may still
    need its files."""
    properties = {k: v for k, v in table.properties.items() if not k.startswith("mergus.") and k != FORMAT_VERSION}
    properties[GC_ENABLED] = "false"
    specs = [table.specs[i] for i in sorted(table.specs)]
    return [
        AssignUuid(str(uuid)),
        UpgradeFormatVersion(max(2, table.format_version)),
        AddSchema(table.schema, 0),
        SetCurrentSchema(0),
        *(AddSpec(spec) for spec in specs),
        SetDefaultSpec(table.default_spec_id),
        *(AddSortOrder(order) for order in table.orders.values() if order.fields),
        SetDefaultSortOrder(table.default_order_id if table.orders[table.default_order_id].fields else 0),
        SetLocation(table.location),
        SetProperties(properties),
    ]


async def _adopt(
    lake: Lake, ctx: RequestContext, made: Plan, last_column_id: int, litter: list[Location], *, overwrite: bool
) -> int:
    change = made.change
    place = (await lake.tables()).materialiser.place
    async with lake.commit(ctx) as tx:
        old = await _replaced(tx.conn, change.namespace, change.name, overwrite=overwrite)
        await _check_still(tx, made, old)
        own = TablePlaces(await table_places.premises(lake), [Layout.of(place.root, UUID(made.update.uuid)).directory])
        await table_places.check_claims(tx.conn, [Claims.of(old, own, made.update)])
        if old is not None:
            await tables.drop(tx, old)
        (table_id,) = await write(tx, lake.objects, place, [made], litter)
        if last_column_id > made.schema.highest_field_id:
            await alter.reserve_column_ids(tx, table_id, last_column_id)
        ctx.table_id = table_id
        return table_id


async def _check_still(tx: Commit, made: Plan, old: int | None) -> None:
    """What may have happened since the plan was made."""
    if await tables.find_by_uuid(tx.conn, UUID(made.update.uuid)) not in (None, old):
        raise CommitFailed("Another table has been registered with the same uuid meanwhile; try again")
    paths = [added.file.path for step in made.steps if isinstance(step, DataStep) for added in step.added]
    if doomed := await scheduled.among(tx.conn, paths):
        raise BadRequest(doomed_reason(doomed[0]))


async def _put_back(
    lake: Lake,
    ctx: RequestContext,
    premises: Premises,
    named: tuple[Namespace, str],
    place: Location,
    *,
    overwrite: bool,
) -> int:
    namespace, name = named
    uuid, as_of = _of_ours(premises, place), metadata_as_of(str(place))
    if await lake.objects.size(place) is None:
        raise BadRequest(f"Metadata file does not exist: {place}")
    async with lake.commit(ctx) as tx:
        old = await _replaced(tx.conn, namespace, name, overwrite=overwrite)
        live = await tables.find_by_uuid(tx.conn, uuid)
        if live is not None:
            if live != old:
                raise await _lives(tx.conn, ctx, live, place)
            if await snapshots.changed_since(tx.conn, live, as_of, tx.head.snapshot_id):
                raise BadRequest(
                    f"{place} is not the newest metadata file of {namespace}.{name}, which has changed since. To have "
                    "the table as it was then, roll it back to a snapshot of its history"
                )
            ctx.table_id = live
            return live
        found = await dropped.newest_first(tx.conn, None, uuid=uuid, limit=1)
        # nobody gets to read in this way what they could not when it was there
        if not found or not may(ctx, READ, Namespace.of_schema(found[0].schema_name), found[0].name):
            raise BadRequest(f"{place} is of a table of this lake that is gone, or of which something has expired")
        (table,) = found
        if await snapshots.changed_since(tx.conn, table.id, as_of, table.dropped_at):
            raise Unsupported(
                f"{place} is not the last of its table, which changed before snapshot {table.dropped_at} dropped it: a "
                "table is put back as it was last, and can be rolled back then"
            )
        await check_place(tx.conn, table, old)
        if old is not None:
            await tables.drop(tx, old)
        await dropped.bring_back(tx, table, await find_schema(tx.conn, namespace), name)
        ctx.table_id = table.id
        return table.id


async def _lives(conn: Conn, ctx: RequestContext, table_id: int, place: Location) -> BadRequest:
    """One table has one name, and its rows are nobody else's: two would be two owners of the same files."""
    table = await tables.read(conn, table_id)
    if table is None or not may(ctx, READ, Namespace.of_schema(table.schema_name), table.name):
        return BadRequest(f"{place} is of another table, which is in the lake")
    name = f"{Namespace.of_schema(table.schema_name)}.{table.name}"
    return BadRequest(
        f"{place} is of table {name}, which is in the lake under that name, and a table has one. Rename {name}, or "
        "drop it without purging it and register it then; for a copy of its rows, create another table from it"
    )


def _of_ours(premises: Premises, place: Location) -> UUID:
    """The uuid of the table whose metadata file this is by its name."""
    try:
        found = UUID(place.parts[len(premises.root.parts)])
    except (ValueError, IndexError):
        raise BadRequest(f"{place} is no metadata file of a table of this lake") from None
    if Layout.of(premises.root, found).directory / f"metadata/{place.parts[-1]}" != place:
        raise BadRequest(f"{place} is no metadata file of a table of this lake")
    if metadata_as_of(str(place)) < 0:
        raise BadRequest(f"{place} does not tell by its name which state of the table it is of; name the other copy")
    return found
