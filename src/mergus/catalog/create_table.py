"""CreateTable: at once, or as a promise that the client commits later (stage-create).

A table is created by the very commit that a client would have sent after staging it, so both ways end in the same rows.
Field ids are given anew, level by level, as every Iceberg catalog does; they are DuckLake's column ids from then on.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.annex import staged
from mergus.catalog import table_places
from mergus.catalog.commit import commit_table
from mergus.catalog.commit_plan import Change, plan
from mergus.catalog.find import find_schema
from mergus.catalog.lake import Lake
from mergus.catalog.load_table import rendered
from mergus.catalog.names import check_name, find_clash, taken
from mergus.catalog.table_cache import Body
from mergus.errors import BadRequest
from mergus.iceberg.metadata import TableMetadata
from mergus.iceberg.namespace import Namespace
from mergus.iceberg.partition_spec import FIRST_FIELD_ID, UNPARTITIONED, PartitionSpec, spec_json, with_field_ids
from mergus.iceberg.requirements import AssertCreate
from mergus.iceberg.schema import Schema, schema_json
from mergus.iceberg.schema_parse import fresh_ids, with_fresh_ids
from mergus.iceberg.sort_order import UNSORTED, SortOrder, sort_order_json
from mergus.iceberg.updates import (
    LAST_ADDED,
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
)
from mergus.materialise.layout import Layout
from mergus.materialise.metadata import default_properties


@dataclass(frozen=True, slots=True)
class NewTable:
    """As a client asks for it: with field ids of its own."""

    name: str
    schema: Schema
    spec: PartitionSpec | None
    order: SortOrder | None
    properties: Mapping[str, str]
    location: str | None


async def create_table(lake: Lake, ctx: RequestContext, namespace: Namespace, new: NewTable, *, stage: bool) -> Body:
    await authorise(ctx, namespace, new.name)
    uuid = uuid4()
    await _check_free(lake, namespace, new.name)
    location = await _location(lake, namespace, uuid, new)
    change = _change(namespace, new, uuid, location)
    # everything that can be wrong with it is wrong now, and not when it is committed
    promised = await table_places.of_new(lake, uuid, namespace.schema_name, location)
    places = await table_places.among_others(lake, promised, None)
    made = await plan(lake, change, None, None, places, [])
    table_places.check_properties(places, made.update.set_properties)
    async with lake.read() as conn:
        await staged.stage(conn, uuid, namespace.schema_name, new.name, location, lake.settings.staged_seconds)
    if stage:
        return rendered(None, _promised(change, made.update.format_version, uuid, location))
    return await commit_table(lake, ctx, change)


async def _check_free(lake: Lake, namespace: Namespace, name: str) -> None:
    check_name(name)
    async with lake.read() as conn:
        schema = await find_schema(conn, namespace)
        if clash := await find_clash(conn, schema.schema_id, name):
            raise taken(namespace, name, clash)


async def _location(lake: Lake, namespace: Namespace, uuid: UUID, new: NewTable) -> str:
    premises = await table_places.premises(lake)
    own = str(Layout.of(premises.root, uuid).directory)
    if new.location is None:
        return own
    places = await table_places.of_new(lake, uuid, namespace.schema_name, own)
    (await table_places.among_others(lake, places, None)).check_directory(new.location)
    return new.location.rstrip("/")


def _change(namespace: Namespace, new: NewTable, uuid: UUID, location: str) -> Change:
    ids = fresh_ids(new.schema)
    updates: list[Update] = [AssignUuid(str(uuid))]
    updates += [AddSchema(with_fresh_ids(new.schema), 0), SetCurrentSchema(LAST_ADDED)]
    spec = _respected(new.spec or UNPARTITIONED, ids)
    updates += [AddSpec(replace(spec, spec_id=0)), SetDefaultSpec(LAST_ADDED)]
    order = _reordered(new.order or UNSORTED, ids)
    updates += [AddSortOrder(order), SetDefaultSortOrder(LAST_ADDED)]
    updates += [SetLocation(location), SetProperties(dict(new.properties))]
    return Change(namespace, new.name, [AssertCreate()], updates)


def _respected(spec: PartitionSpec, ids: Mapping[int, int]) -> PartitionSpec:
    if missing := [f.name for f in spec.fields if f.source_id not in ids]:
        raise BadRequest(f"Partition field {missing[0]} is of a column that the schema does not have")
    fields = tuple(replace(f, source_id=ids[f.source_id], field_id=-1) for f in spec.fields)
    return with_field_ids(replace(spec, fields=fields), (), FIRST_FIELD_ID - 1)


def _reordered(order: SortOrder, ids: Mapping[int, int]) -> SortOrder:
    if missing := [f.source_id for f in order.fields if f.source_id not in ids]:
        raise BadRequest(f"The sort order has a field of column {missing[0]}, which the schema does not have")
    fields = tuple(replace(f, source_id=ids[f.source_id]) for f in order.fields)
    return SortOrder(1 if fields else 0, fields)


def _promised(change: Change, version: int, uuid: UUID, location: str) -> TableMetadata:
    """The table as it will be."""
    schema = next(u.schema for u in change.updates if isinstance(u, AddSchema))
    spec = next(u.spec for u in change.updates if isinstance(u, AddSpec))
    order = next(u.order for u in change.updates if isinstance(u, AddSortOrder))
    properties = next(dict(u.properties) for u in change.updates if isinstance(u, SetProperties))
    properties.pop("format-version", None)
    return TableMetadata(
        format_version=version,
        table_uuid=str(uuid),
        location=location,
        last_sequence_number=0,
        last_updated_ms=time.time_ns() // 1_000_000,
        last_column_id=schema.highest_field_id,
        current_schema_id=0,
        schemas=[schema_json(schema, 0, version)],
        default_spec_id=spec.spec_id,
        partition_specs=[spec_json(spec)],
        last_partition_id=max((f.field_id for f in spec.fields), default=FIRST_FIELD_ID - 1),
        default_sort_order_id=order.order_id,
        sort_orders=[sort_order_json(order)],
        properties={**default_properties(location), **properties},
        next_row_id=0 if version >= 3 else None,
    )
