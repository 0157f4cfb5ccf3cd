"""What a client's commit means for a table, found out before any lock is taken.

The plan is made against one state of the table, as clients are shown it, and says which rows of DuckLake's change. It
holds as long as nothing happens to the table; who writes it makes sure of that under the lock, and plans again if
something has. So requirements, conflicts and everything that reads objects are in one place, and nothing is judged
twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final
from uuid import UUID

from mergus.catalog import commit_data, hidden_columns
from mergus.catalog.commit_data import DataStep, Progress, Scene
from mergus.catalog.commit_files import FileTerms
from mergus.catalog.commit_fit import check_fit, find_brought
from mergus.catalog.delete_files import Drawer
from mergus.catalog.lake import Lake
from mergus.catalog.locations import TablePlaces
from mergus.catalog.rebase import rebased
from mergus.catalog.restore import RestoreStep, plan_restore
from mergus.ducklake import column_changes, mappings, partition_keys
from mergus.ducklake.column_changes import ColumnChanges, row_of
from mergus.ducklake.columns import Column, Columns, Comment, Span, Unrepresentable
from mergus.ducklake.mappings import Mappings
from mergus.ducklake.partitions import Key
from mergus.errors import BadRequest, CommitFailed, Unsupported
from mergus.iceberg import requirements, table_update
from mergus.iceberg.arrangement import arranged
from mergus.iceberg.manifest_list import ManifestFile
from mergus.iceberg.metadata import TableMetadata
from mergus.iceberg.name_mapping import PROPERTY, MappedField, parse_name_mapping
from mergus.iceberg.namespace import Namespace
from mergus.iceberg.requirements import AssertCreate, Requirement
from mergus.iceberg.schema import Field, Schema, schema_json
from mergus.iceberg.schema_parse import check_names, parse_schema
from mergus.iceberg.table_update import TableUpdate
from mergus.iceberg.transforms import can_transform, result_type
from mergus.iceberg.updates import AddedSnapshot, AddSnapshot, AssignUuid, Update
from mergus.materialise import suspects
from mergus.materialise.chain import Workshop
from mergus.materialise.entries import leaves
from mergus.materialise.layout import ducklake_directory
from mergus.materialise.reading import Shown
from mergus.materialise.table import Materialised
from mergus.storage.location import Location

COMMENT: Final = "comment"
# Of DuckLake's types, those that Iceberg has no less wide one than another for: its writers know nothing of the limit.
_WIDER: Final = dict.fromkeys(("int8", "int16", "uint8", "uint16"), "int32") | {"timestamp_s": "timestamp"}


@dataclass(frozen=True, slots=True)
class ColumnStep:
    """Columns change between two snapshots of one commit: a snapshot of the lake, and none to Iceberg."""

    columns: ColumnChanges


Step = DataStep | RestoreStep | ColumnStep


@dataclass(frozen=True, slots=True)
class Change:
    """What a client asks of one table."""

    namespace: Namespace
    name: str
    requirements: Sequence[Requirement]
    updates: Sequence[Update]

    @property
    def snapshot_ids(self) -> list[int]:
        return [u.snapshot.snapshot_id for u in self.updates if isinstance(u, AddSnapshot)]

    @property
    def creates(self) -> bool:
        return any(isinstance(r, AssertCreate) for r in self.requirements)

    @property
    def uuid(self) -> str | None:
        return next((u.uuid for u in self.updates if isinstance(u, AssignUuid)), None)


@dataclass(frozen=True, slots=True)
class Plan:
    """`table` is what the plan was made against; None for one that is created. `schema` is the one after the commit,
    `arrangement` what of it DuckLake has no room for. `keys` are those of a new default spec."""

    change: Change
    table: Materialised | None
    update: TableUpdate
    schema: Schema
    columns: ColumnChanges
    columns_after: Columns
    arrangement: Schema | None
    keys: Sequence[Key]
    steps: Sequence[Step]

    @property
    def leaf_types(self) -> dict[int, str]:
        return {i: leaf.type for i, leaf in leaves(self.columns_after, _NEXT).items()}


# In place of the snapshot that will be made: later than all.
_NEXT: Final = 2**62


async def plan(
    lake: Lake,
    change: Change,
    table: Materialised | None,
    shown: TableMetadata | None,
    places: TablePlaces,
    litter: list[Location],
) -> Plan:
    """`shown` is the table as the client could have loaded it; `litter` gets what is written and only the commit needs.

    Raises CommitFailed if a requirement does not hold.
    """
    base = None if table is None else table.reading.main
    if table is not None and shown is not None:
        moved = rebased(change.requirements, change.updates, table, shown)
        if moved is not None:
            change = replace(change, requirements=moved.requirements, updates=moved.updates)
            base = moved.base
    requirements.check(change.requirements, shown)
    update = table_update.apply(shown, change.updates, format_version=lake.settings.format_version)
    had = Columns(()) if table is None else table.reading.view.columns
    hidden = [] if table is None else had.hidden_at(table.reading.head.snapshot_id)
    hidden_columns.check_main(hidden, update.main)
    schema = update.schema_after(shown)
    columns = _column_changes(table, update, schema)
    after = _after(had, columns)
    made = Plan(
        change=change,
        table=table,
        update=update,
        schema=schema,
        columns=columns,
        columns_after=after,
        arrangement=_arrangement(table, after, schema) if update.schema is not None else None,
        keys=partition_keys.keys(update.default_spec_after(shown), _types(after)),
        steps=(),
    )
    steps = await _steps(lake, made, shown, base, places, litter)
    if wider := {i for step in steps if isinstance(step, DataStep) for i in step.out_of_range}:
        made = _with_wider(made, had, wider)
        steps = await _steps(lake, made, shown, base, places, litter)
    hidden_columns.check_rows(hidden, steps)
    await check_mappings(lake, made, steps)
    brought = find_brought(steps, update, schema, shown, None if table is None else table.reading)
    await check_fit(lake.objects, schema, made.columns_after, _NEXT, brought)
    return replace(made, steps=steps)


def _column_changes(table: Materialised | None, update: TableUpdate, schema: Schema) -> ColumnChanges:
    if update.schema is None:
        return ColumnChanges()
    try:
        check_names(schema)
    except ValueError as e:
        raise BadRequest(f"The schema cannot be that of a table: {e}") from None
    if table is None:
        return column_changes.created(schema)
    reading = table.reading
    live = [c for c in reading.view.columns.columns if c.span.at(reading.head.snapshot_id)]
    shown = parse_schema(schema_json(reading.schema, 0, reading.view.format_version))
    hidden_columns.check_fields(reading.view.columns.hidden_at(reading.head.snapshot_id), shown, schema)
    return column_changes.altered(live, shown, schema)


def _after(columns: Columns, changes: ColumnChanges) -> Columns:
    """With the rows that the commit will write."""
    ended = set(changes.ended)
    kept = [
        replace(c, span=Span(c.span.begin, _NEXT)) if c.id in ended and c.span.end is None else c
        for c in columns.columns
    ]
    new = [
        Column(
            id=row.id,
            span=Span(_NEXT, None),
            name=row.name,
            type=row.type,
            nulls_allowed=row.nulls_allowed,
            parent=row.parent,
            initial_default=row.initial_default,
            default_value=row.default_value,
            default_type=row.default_type,
        )
        for row in changes.inserted
    ]
    told = set(changes.comments)
    comments = [
        replace(c, span=Span(c.span.begin, _NEXT)) if c.column_id in told and c.span.end is None else c
        for c in columns.comments
    ]
    comments += [Comment(i, Span(_NEXT, None), text) for i, text in changes.comments.items() if text is not None]
    return Columns(sorted([*kept, *new], key=lambda c: c.id), comments, columns.lacking, columns.hides)


def _types(columns: Columns) -> dict[int, str]:
    """Of the top level, after the commit."""
    return {c.id: c.type for c in columns.columns if c.parent is None and c.span.at(_NEXT)}


def _arrangement(table: Materialised | None, after: Columns, schema: Schema) -> Schema | None:
    """The schema, if DuckLake's columns alone would not be shown in its order. Raises Unsupported if they would not be
    shown as what it says at all."""
    try:
        derived = after.schema_at(_NEXT)
    except Unrepresentable as e:
        raise Unsupported(f"The schema cannot be kept by DuckLake: {e}") from None
    if differing := _differing(arranged(derived, schema), schema):
        raise Unsupported(f"The schema cannot be kept by DuckLake as it is: column {differing} would be another")
    known = table.reading.kept.arrangements if table is not None else ()
    shown = arranged(derived, known[-1][1]) if known else derived
    return None if _order(shown) == _order(schema) else schema


def _order(schema: Schema) -> tuple[list[tuple[int, object]], tuple[int, ...]]:
    """What an arrangement is about."""
    return [(f.id, f.initial_default) for f in schema.walk()], schema.identifier_ids


def _differing(shown: Schema, wanted: Schema) -> str | None:
    """The first field that is not what was asked for. A field within another is never required to DuckLake, and what
    rows from before a column have matters only if there are any."""
    for ours, theirs in zip_longest(shown.walk(), wanted.walk()):
        if ours is None or theirs is None:
            return "" if (field := theirs or ours) is None else field.name
        same = (ours.id, ours.name, _kind(ours), ours.doc) == (theirs.id, theirs.name, _kind(theirs), theirs.doc)
        if not same:
            return theirs.name
    top = {f.id: f.required for f in shown.fields}
    return next((f.name for f in wanted.fields if top[f.id] != f.required), None)


def _kind(field: Field) -> str:
    return field.type if isinstance(field.type, str) else type(field.type).__name__


def _with_wider(made: Plan, had: Columns, wider: set[int]) -> Plan:
    """Columns of types that Iceberg does not have get room for what its writers put into them."""
    rows = {row.id: row for row in made.columns.inserted}
    for column in made.columns_after.columns:
        if column.id in wider and column.span.at(_NEXT):
            rows[column.id] = replace(row_of(column), type=_WIDER[column.type])
    known = {c.id for c in had.columns}
    ended = tuple(sorted({*made.columns.ended, *(wider & known)}))
    columns = replace(made.columns, ended=ended, inserted=tuple(rows.values()), reshapes=True)
    return replace(made, columns=columns, columns_after=_after(had, columns))


async def _steps(
    lake: Lake,
    made: Plan,
    shown: TableMetadata | None,
    base: Shown | None,
    places: TablePlaces,
    litter: list[Location],
) -> list[Step]:
    """`base` is the snapshot whose manifests the client has built on."""
    update, table = made.update, made.table
    if not update.main:
        return []
    served = await lake.tables()
    shop = served.materialiser.shop
    # the first place that a table has is named by its uuid
    uuid = UUID(places.own[0].parts[-1])
    scene = Scene(
        pool=lake.pool,
        objects=lake.objects,
        manifests=shop.manifests,
        check=places.check,
        view=None if table is None else table.reading.view,
        at=-1 if table is None else table.reading.head.snapshot_id,
        schema=made.schema,
        terms=terms_of(made, shown),
        format_version=update.format_version,
        drawer=Drawer(lake.objects, ducklake_directory(places.premises.root, uuid), litter),
        own=[place for place in places.own if places.premises.root.contains(place)],
    )
    main = None if table is None else table.reading.main
    listed = [] if base is None or table is None else await _manifests(shop, table, base)
    next_row_id = 0 if table is None else table.reading.next_row_id
    next_id = await next_snapshot(lake)
    progress = Progress(None if main is None else main.snapshot.iceberg_id, listed, next_row_id, next_id, next_id)
    steps: list[DataStep] = []
    for index, step in enumerate(update.main):
        following = update.main[index + 1] if index + 1 < len(update.main) else None
        if isinstance(step, AddedSnapshot):
            steps.append(await commit_data.plan(scene, progress, step))
        elif step is None and isinstance(following, AddedSnapshot) and following.parent_snapshot_id is None:
            # what follows says everything itself, and ends what it does not list
            continue
        elif table is None or steps or following is not None:
            raise Unsupported(
                "A commit that adds snapshots cannot move main to another as well; commit them one by one"
            )
        else:
            return [await plan_restore(lake, table, step, scene.drawer)]
    return [*await commit_data.with_delete_files(scene, progress, steps)]


async def check_mappings(lake: Lake, made: Plan, steps: Sequence[Step]) -> None:
    """Whether one name mapping will do for all files without field ids. The table could not be shown otherwise.

    Raises BadRequest.
    """
    added = [
        (_NEXT + index, file)
        for index, step in enumerate(steps)
        if isinstance(step, DataStep)
        for file in step.added
        if file.mapping
    ]
    if not added:
        return
    known = Mappings()
    if made.table is not None:
        async with lake.read() as conn:
            known = await mappings.read(conn, made.table.reading.view.table.id)
    for at, fields, in_path in dict.fromkeys((at, file.mapping, file.names_in_path) for at, file in added):
        known = known.with_file(fields, made.columns_after, at, in_path)
    ignored = dict({} if made.table is None else made.table.reading.examined.ignored)
    for _, file in added:
        ignored |= file.ignored
    try:
        why = suspects.why_not_ignored(ignored, known.name_mapping(made.columns_after))
    except Unrepresentable as e:
        why = str(e)
    if why is not None:
        raise BadRequest(f"The commit adds data files without field ids that cannot be shown beside the others: {why}")


async def next_snapshot(lake: Lake) -> int:
    """Of the lake, if nobody else commits before."""
    return (await (await lake.tables()).look()).snapshot_id + 1


async def _manifests(shop: Workshop, table: Materialised, shown: Shown) -> list[ManifestFile]:
    chain = table.chain_of(shown)
    if chain is None:
        raise CommitFailed("The table's snapshot is not on storage yet; try again")
    return await shop.manifests.read_list(chain.manifest_list)


def terms_of(made: Plan, shown: TableMetadata | None) -> FileTerms:
    """What files that come with the commit are held against."""
    update, specs = made.update, made.update.specs_after(shown)
    kinds = {f.id: f.type for f in made.schema.walk()}
    types = {
        f.field_id: result_type(f.transform, kinds[f.source_id])
        for spec in specs.values()
        for f in spec.fields
        # a file is listed without a partition whose field is of a column that is gone, or is something else by now
        if can_transform(f.transform, kinds.get(f.source_id))
    }
    default = update.default_spec_after(shown).spec_id
    locals_of_default = [i for i, spec in specs.items() if spec.spec_id == default]
    keys = made.keys
    if update.default_spec is None and made.table is not None:
        # as DuckLake has it: a session may have partitioned by more than Iceberg sees
        reading = made.table.reading
        live = reading.partitions.current(reading.head.snapshot_id)
        keys = next((p.keys for p in reading.partitions.partitionings if p.id == live), ())
    return FileTerms(
        schema=made.schema,
        parents={c.id: c.parent for c in made.columns_after.columns},
        specs=specs,
        partition_types=types,
        leaves=made.leaf_types,
        columns=_types(made.columns_after),
        keys=dict.fromkeys(locals_of_default, keys),
        needs_texts=partition_keys.needs_texts(keys),
        name_mapping=_name_mapping(update, shown),
    )


def _name_mapping(update: TableUpdate, shown: TableMetadata | None) -> tuple[MappedField, ...]:
    text = update.set_properties.get(PROPERTY, None if shown is None else shown.properties.get(PROPERTY))
    if text is None or PROPERTY in update.removed_properties:
        return ()
    try:
        return parse_name_mapping(text)
    except ValueError as e:
        raise BadRequest(f"Property {PROPERTY} is no name mapping: {e}") from None
