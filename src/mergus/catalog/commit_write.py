"""Writing plans as one transaction: everything here happens under the lock.

What a table is comes first, then its data, one snapshot of the lake for each that the client added. A commit that
changes nothing that DuckLake knows of adds no snapshot, and raises the epoch instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import orjson

from mergus.annex import catalog as annex_catalog
from mergus.annex import garbage, once, tags
from mergus.annex import iceberg_tables as annex
from mergus.annex import tables as annex_tables
from mergus.catalog.commit_data import DataStep
from mergus.catalog.commit_files import PlannedFile
from mergus.catalog.commit_plan import COMMENT, ColumnStep, Plan
from mergus.catalog.delete_files import Drawer
from mergus.catalog.find import find_schema
from mergus.catalog.restore import RestoreStep
from mergus.ducklake import alter, data_changes, inlined_restore, mappings, sort_expressions, tables
from mergus.ducklake.changes import altered_table, deleted_from_table, inlined_delete, inserted_into_table
from mergus.ducklake.commit import Commit
from mergus.ducklake.data_changes import DataChanges, NewFile
from mergus.ducklake.files import DataFile as LakeFile
from mergus.ducklake.sorts import Key as SortKey
from mergus.ducklake.tables import Table
from mergus.ducklake.told import KEY as TOLD
from mergus.faults import point
from mergus.iceberg.metadata import MAIN, Ref
from mergus.iceberg.ref_update import Statistics
from mergus.iceberg.sort_order import UNSORTED, SortOrder
from mergus.materialise.at_once import each
from mergus.materialise.layout import ducklake_directory
from mergus.materialise.reading import FORMAT_VERSION, Place, schema_text
from mergus.storage.location import Location
from mergus.storage.objects import Objects

PUTS_AT_ONCE: Final = 8


@dataclass(slots=True)
class Writing:
    """One table of a commit, on its way."""

    tx: Commit
    objects: Objects
    place: Place
    plan: Plan
    table: Table
    litter: list[Location]
    # the spec ids that the client knows, as they are from now on
    spec_ids: dict[int, int] = field(default_factory=dict[int, int])
    # the partitioning that DuckLake has for the default spec, if it has any keys
    partition_id: int | None = None
    # files that came with this commit, by path
    new: dict[str, int] = field(default_factory=dict[str, int])
    # snapshots that the commit adds, by the client's ids
    snapshots: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def table_id(self) -> int:
        return self.table.id

    @property
    def drawer(self) -> Drawer:
        return Drawer(self.objects, ducklake_directory(self.place.root, self.table.uuid), self.litter)


async def write(tx: Commit, objects: Objects, place: Place, plans: Sequence[Plan], litter: list[Location]) -> list[int]:
    """The ids of the tables. `litter` gets what is written to storage."""
    writings = [Writing(tx, objects, place, plan, await _table(tx, plan), litter) for plan in plans]
    for writing in writings:
        await _write_definition(writing)
    point("commit.defined")
    for index in range(max((len(plan.steps) for plan in plans), default=0)):
        if index:
            await tx.advance()
        told: dict[str, Any] = {}
        for writing in writings:
            if index < len(writing.plan.steps):
                step = writing.plan.steps[index]
                if isinstance(step, ColumnStep):
                    await alter.write_columns(tx, writing.table_id, step.columns, is_new=False)
                    continue
                told[str(writing.table_id)] = step.told.json()
                await (_write_data(writing, step) if isinstance(step, DataStep) else _restore(writing, step))
        if told:
            tx.tell(TOLD, told)
        point("commit.step")
    for writing in writings:
        await _write_refs(writing)
        update = writing.plan.update
        if not (update.creates or update.changes_nothing or tx.names(writing.table_id)):
            await annex_catalog.raise_epoch(tx.conn)
    return [writing.table_id for writing in writings]


async def _table(tx: Commit, plan: Plan) -> Table:
    if plan.table is not None:
        return plan.table.reading.view.table
    schema = await find_schema(tx.conn, plan.change.namespace)
    table_id = await tables.create(tx, schema, plan.change.name, UUID(plan.update.uuid))
    table = await tables.read(tx.conn, table_id)
    assert table is not None  # noqa: S101  (inserted above, in this transaction)
    return table


async def _write_definition(w: Writing) -> None:
    tx, plan, update = w.tx, w.plan, w.plan.update
    if update.creates:
        await alter.write_columns(tx, w.table_id, plan.columns, is_new=True)
    await _write_specs(w)
    await _write_orders(w)
    if not update.creates:
        await alter.write_columns(tx, w.table_id, plan.columns, is_new=False)
    if plan.arrangement is not None:
        await annex.arrange(tx.conn, w.table_id, tx.snapshot_id, plan.arrangement)
        if not update.creates:
            # nothing to DuckLake, but it holds from a snapshot on
            tx.record(altered_table(w.table_id))
    await _write_schemas(w)
    await _write_properties(w)
    if update.location is not None:
        await annex.set_location(tx.conn, w.table_id, update.location)


async def _write_schemas(w: Writing) -> None:
    update, conn = w.plan.update, w.tx.conn
    listed = [schema_text(schema) for schema in update.schemas_added if schema != update.schema]
    if listed:
        numbers = await annex_tables.add_schemas(conn, w.table_id, listed)
        for text in listed:
            await annex.list_schema(conn, w.table_id, numbers[text], listed=True)
    for schema_id in update.schemas_removed:
        await annex.list_schema(conn, w.table_id, schema_id, listed=False)


async def _write_specs(w: Writing) -> None:
    """DuckLake has as much of the default spec as it knows, be it nothing."""
    tx, update = w.tx, w.plan.update
    w.spec_ids = dict(update.spec_ids)
    added = {spec.spec_id: spec for spec in update.specs_added}
    for spec in added.values():
        if spec.fields:
            await annex.add_spec(tx.conn, w.table_id, spec, tx.next_catalog_id())
    made: int | None = None
    if update.default_spec is not None:
        default = update.spec_ids.get(update.default_spec, update.default_spec)
        is_plain = default in added and not added[default].fields
        if not (update.creates and is_plain):
            made = await alter.set_partitioning(tx, w.table_id, w.plan.keys)
            w.partition_id = made if w.plan.keys else None
            await annex.add_partitioning(tx.conn, w.table_id, made, default)
    for spec_id in update.specs_removed:
        await annex.remove_spec(tx.conn, w.table_id, spec_id)
    if made is None and w.plan.table is not None:
        reading = w.plan.table.reading
        w.partition_id = reading.partitions.current(reading.head.snapshot_id)


async def _write_orders(w: Writing) -> None:
    """DuckLake sorts by columns: of an order that asks for more it has the beginning."""
    tx, update = w.tx, w.plan.update
    added = {order.order_id: order for order in update.orders_added if order.fields}
    for order in added.values():
        await annex.add_order(tx.conn, w.table_id, order)
    if update.default_order is None:
        return
    default = update.order_ids.get(update.default_order, update.default_order)
    known = {} if w.plan.table is None else _served_orders(w)
    order = (known | added).get(default, UNSORTED)
    if not (update.creates and not order.fields):
        await alter.set_sort(tx, w.table_id, _sort_keys(w, order))
        await annex.set_default_order(tx.conn, w.table_id, tx.snapshot_id, default)


def _served_orders(w: Writing) -> dict[int, SortOrder]:
    assert w.plan.table is not None  # noqa: S101  (asked for by who knows)
    reading = w.plan.table.reading
    orders = reading.sorts.orders(reading.view.columns, reading.schema, reading.kept.orders)
    return {order.order_id: order for order in orders}


def _sort_keys(w: Writing, order: SortOrder) -> list[SortKey]:
    names = {f.id: f.name for f in w.plan.schema.fields}
    found: list[SortKey] = []
    for f in order.fields:
        if f.transform != "identity" or f.source_id not in names:
            break
        found.append(sort_expressions.by_column(names[f.source_id], f.direction, f.null_order))
    return found


async def _write_properties(w: Writing) -> None:
    tx, update = w.tx, w.plan.update
    if COMMENT in update.set_properties or COMMENT in update.removed_properties:
        await alter.set_comment(tx, w.table_id, update.set_properties.get(COMMENT))
    changes: dict[str, str | None] = {**dict.fromkeys(update.removed_properties), **update.set_properties}
    if update.creates or update.upgraded:
        changes[FORMAT_VERSION] = str(update.format_version)
    for key, value in changes.items():
        if key != COMMENT:
            await annex_tables.set_property(tx.conn, w.table_id, key, value)


async def _write_data(w: Writing, step: DataStep) -> None:
    tx = w.tx
    if (key := step.told.summary.get(once.PROPERTY)) is not None:
        await once.take(tx.conn, w.table_id, key, step.told.snapshot_id)
    w.snapshots[step.told.snapshot_id] = tx.snapshot_id
    added = [await _new_file(w, planned) for planned in step.added]
    changes = DataChanges(
        added=added,
        ended=[*step.ended, *(w.new.pop(path) for path in step.ended_paths)],
        deletes=await each(
            lambda d: w.drawer.settle(d.prepared, d.file.id, d.replaces, w.tx.snapshot_id), step.deletes, PUTS_AT_ONCE
        ),
        ended_rows=step.ended_rows,
        is_rewrite=step.is_rewrite,
    )
    ids = await _apply(w, changes)
    w.new |= zip((file.path for file in added), ids, strict=True)
    if ids:
        await annex.place_files(tx.conn, (_placed(w, i, p) for i, p in zip(ids, step.added, strict=True)))
    deletes = await each(
        lambda item: w.drawer.settle(item[1], w.new[item[0]], (), tx.snapshot_id),
        step.deletes_on_new.items(),
        PUTS_AT_ONCE,
    )
    await _apply(w, DataChanges(deletes=deletes))
    if step.leftovers:
        await garbage.add(tx.conn, w.table_id, step.leftovers)
    if step.deletes_are_elsewhere:
        tx.record(deleted_from_table(w.table_id), inlined_delete(w.table_id))
    elif changes.is_empty:
        # the client's snapshot is one all the same
        tx.record(inserted_into_table(w.table_id))


def _placed(w: Writing, data_file_id: int, planned: PlannedFile) -> tuple[int, int, Mapping[str, Any], int]:
    """By the table's numbers of specs and sort orders, where the client has others for those that it adds."""
    order_ids = w.plan.update.order_ids
    return (
        data_file_id,
        w.spec_ids.get(planned.spec_id, planned.spec_id),
        planned.partition,
        order_ids.get(planned.sort_order_id, planned.sort_order_id),
    )


async def _new_file(w: Writing, planned: PlannedFile) -> NewFile:
    file = planned.file
    if file.partition_values and w.partition_id is not None:
        file = replace(file, partition_id=w.partition_id)
    if planned.mapping:
        file = replace(file, mapping_id=await _mapping_id(w, planned))
    return file


async def _mapping_id(w: Writing, planned: PlannedFile) -> int:
    columns = w.plan.columns_after.columns
    return await mappings.add_mapping(w.tx, w.table_id, planned.mapping, columns, planned.names_in_path)


async def _restore(w: Writing, step: RestoreStep) -> None:
    tx = w.tx
    again = [_again(file) for file, _ in step.again]
    ids = await _apply(w, DataChanges(added=again, ended=step.ended, is_rewrite=True))
    again_by_id = zip(ids, (file for file, _ in step.again), strict=True)
    placed = [(i, *file.placed, file.sort_order_id) for i, file in again_by_id if file.placed is not None]
    await annex.place_files(tx.conn, placed)
    deletes = [
        await w.drawer.settle(prepared, i, (), tx.snapshot_id)
        for i, (_, prepared) in zip(ids, step.again, strict=True)
        if prepared is not None
    ]
    await _apply(w, DataChanges(deletes=deletes))
    await inlined_restore.restore(tx, w.place.metadata_schema, w.table_id, step.to)
    if not tx.names(w.table_id):
        tx.record(inserted_into_table(w.table_id))


def _again(file: LakeFile) -> NewFile:
    return NewFile(
        path=file.path,
        record_count=file.record_count,
        size_bytes=file.size_bytes,
        stats=file.stats,
        partition_id=file.partition_id,
        partition_values=file.partition_values,
        mapping_id=file.mapping_id,
        has_row_ids=True,
        row_id_start=file.row_id_start,
    )


async def _apply(w: Writing, changes: DataChanges) -> list[int]:
    if changes.is_empty:
        return []
    leaf_types: Mapping[int, str] = w.plan.leaf_types
    return await data_changes.write(w.tx, w.place.metadata_schema, w.table_id, w.table.paths, leaf_types, changes)


async def _write_refs(w: Writing) -> None:
    conn, update = w.tx.conn, w.plan.update
    known = {} if w.plan.table is None else {s.iceberg_id: s.id for s in w.plan.table.reading.known.snapshots}
    ids = known | w.snapshots
    if update.tags:
        await tags.give_name(conn)
    for name, ref in update.tags.items():
        await annex.set_ref(conn, w.table_id, name, ids[ref.snapshot_id], _retention(ref))
    for name in update.refs_removed:
        await annex.remove_ref(conn, w.table_id, name)
    if update.main_retention is not None:
        await annex.set_ref(conn, w.table_id, MAIN, None, _retention(update.main_retention))
    for snapshot_id in update.snapshots_removed:
        await annex.remove_snapshot(conn, w.table_id, ids[snapshot_id])
    await _write_statistics(w, "statistics", ids, {**dict.fromkeys(update.statistics_removed), **update.statistics})
    of_partitions = {**dict.fromkeys(update.partition_statistics_removed), **update.partition_statistics}
    await _write_statistics(w, "partition-statistics", ids, of_partitions)


async def _write_statistics(
    w: Writing, kind: annex.Kind, ids: Mapping[int, int], changes: Mapping[int, Statistics | None]
) -> None:
    for snapshot_id, content in changes.items():
        if snapshot_id in ids:
            text = None if content is None else orjson.dumps(content).decode()
            await annex.set_statistics(w.tx.conn, w.table_id, kind, ids[snapshot_id], text)


def _retention(ref: Ref) -> dict[str, int]:
    kept = {
        "max-ref-age-ms": ref.max_ref_age_ms,
        "max-snapshot-age-ms": ref.max_snapshot_age_ms,
        "min-snapshots-to-keep": ref.min_snapshots_to_keep,
    }
    return {name: value for name, value in kept.items() if value is not None}
