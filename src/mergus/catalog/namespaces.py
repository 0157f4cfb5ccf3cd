"""Namespaces: DuckLake schemas, with properties of ours.

A namespace *is there* if a schema has its name, or if a schema has a name below it: a DuckDB session may make
"a.b" without "a", and then `a` can be listed, loaded and gone through, but holds nothing of its own.
"""

from dataclasses import dataclass
from uuid import uuid4

import orjson

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.annex import namespace_properties as properties
from mergus.annex import views as annex_views
from mergus.catalog.find import find_namespace
from mergus.catalog.lake import Lake
from mergus.catalog.paging import PageRequest
from mergus.catalog.table_places import premises
from mergus.ducklake import schemas
from mergus.ducklake.schemas import Schema
from mergus.errors import (
    AlreadyExists,
    BadRequest,
    Forbidden,
    NamespaceNotEmpty,
    NoSuchNamespace,
    UnprocessableEntity,
)
from mergus.iceberg.namespace import DEFAULT_SCHEMA, Namespace, check_creatable
from mergus.maintenance.policy import check_policy

# Told by the server: where clients may create tables and views (see materialise/layout.py). A client may repeat it but
# not choose it.
LOCATION = "location"


@dataclass(frozen=True, slots=True)
class CreatedNamespace:
    """As it is answered, like the next."""

    namespace: list[str]
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class PropertiesUpdate:
    updated: list[str]
    removed: list[str]
    missing: list[str]


async def list_namespaces(
    lake: Lake, ctx: RequestContext, parent: Namespace | None, page: PageRequest
) -> tuple[list[Namespace], str | None]:
    """One level below `parent`, and the token of the next page if there is one."""
    await authorise(ctx, parent)
    visible = ctx.rights.namespaces
    seen = None if visible is None else (visible.whole, visible.single)
    below = parent.schema_name if parent else None

    async def fetch(after: str | None, limit: int | None) -> list[str]:
        async with lake.read() as conn:
            if parent is not None:
                await find_namespace(conn, parent, ctx.at)
            return await schemas.list_children(conn, below, after, limit, ctx.at, seen)

    found, token = await lake.page([ctx.listing, *(parent.levels if parent else ())], page, fetch)
    return [parent.child(x) if parent else Namespace((x,)) for x in found], token


async def create_namespace(
    lake: Lake, ctx: RequestContext, levels: list[str], wanted: dict[str, str]
) -> CreatedNamespace:
    namespace = check_creatable(levels)
    await authorise(ctx, namespace)
    check_policy(wanted)
    grounds = await premises(lake)
    async with lake.commit(ctx) as tx:
        clash = await schemas.find_clash(tx.conn, [n.schema_name for n in namespace.lineage])
        if clash == namespace.schema_name:
            raise AlreadyExists(f"Namespace already exists: {namespace}")
        if clash is not None:
            raise AlreadyExists(
                f"Namespace {namespace} differs only by case from {clash}, and names are the same to DuckDB whatever "
                "their case"
            )
        schema_id = await schemas.create(tx, namespace.schema_name, uuid4())
        created = await find_namespace(tx.conn, namespace)
        assert created is not None  # noqa: S101  (inserted above, in this transaction)
        location = grounds.home_of(created.uuid).directory
        stored = _without_location(wanted, created, location)
        await properties.update(tx.conn, schema_id, stored)
        answer = CreatedNamespace(levels, {**stored, LOCATION: location})
        ctx.content = orjson.dumps(answer)
    return answer


async def load_namespace(lake: Lake, ctx: RequestContext, namespace: Namespace) -> dict[str, str]:
    """Properties have no history: those of an older snapshot are those of now."""
    await authorise(ctx, namespace)
    grounds = await premises(lake)
    async with lake.read() as conn:
        schema = await find_namespace(conn, namespace, ctx.at)
        if schema is None:
            return {}
        return {**await properties.read(conn, schema.schema_id), LOCATION: grounds.home_of(schema.uuid).directory}


async def namespace_exists(lake: Lake, ctx: RequestContext, namespace: Namespace) -> None:
    await authorise(ctx, namespace)
    async with lake.read() as conn:
        await find_namespace(conn, namespace, ctx.at)


async def drop_namespace(lake: Lake, ctx: RequestContext, namespace: Namespace) -> None:
    await authorise(ctx, namespace)
    if namespace.schema_name == DEFAULT_SCHEMA:
        raise Forbidden(f"Namespace {DEFAULT_SCHEMA} cannot be dropped: DuckDB sessions start in it")
    async with lake.commit(ctx) as tx:
        schema = await find_namespace(tx.conn, namespace)
        if await schemas.has_children(tx.conn, namespace.schema_name):
            raise NamespaceNotEmpty(f"Namespace {namespace} is not empty: it has namespaces below it")
        assert schema is not None  # noqa: S101  (a namespace without a schema has some below it)
        content = await schemas.find_content(tx.conn, schema.schema_id)
        content += [f"view {name}" for name in await annex_views.list_names(tx.conn, schema.schema_id, None, 3)]
        if content:
            raise NamespaceNotEmpty(f"Namespace {namespace} is not empty: it holds {', '.join(content)}")
        await properties.remove_all(tx.conn, schema.schema_id)
        await schemas.drop(tx, schema.schema_id)


async def update_properties(
    lake: Lake, ctx: RequestContext, namespace: Namespace, updates: dict[str, str], removals: list[str]
) -> PropertiesUpdate:
    await authorise(ctx, namespace)
    check_policy(updates)
    if both := sorted(updates.keys() & set(removals)):
        raise UnprocessableEntity(f"Properties to be both set and removed: {', '.join(both)}")
    grounds = await premises(lake)
    async with lake.hold_still(ctx) as conn:
        schema = await find_namespace(conn, namespace)
        if schema is None:
            raise NoSuchNamespace(
                f"Namespace {namespace} has no properties: it is there only as the parent of others; create it first"
            )
        stored = _without_location(updates, schema, grounds.home_of(schema.uuid).directory)
        await properties.update(conn, schema.schema_id, stored)
        wanted = list(dict.fromkeys(removals))
        removed = await properties.remove(conn, schema.schema_id, wanted)
        answer = PropertiesUpdate(
            updated=list(updates),
            removed=[k for k in wanted if k in removed],
            missing=[k for k in wanted if k not in removed],
        )
        ctx.content = orjson.dumps(answer)
    return answer


def _without_location(wanted: dict[str, str], schema: Schema, location: str) -> dict[str, str]:
    asked = wanted.get(LOCATION)
    if asked is not None and asked.rstrip("/") != location.rstrip("/"):
        raise BadRequest(f"Namespace {schema.name} is kept at {location}; its location cannot be chosen: {asked}")
    return {k: v for k, v in wanted.items() if k != LOCATION}
