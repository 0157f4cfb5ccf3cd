"""Views by name: which there are; showing, dropping and renaming one."""

import asyncio
from heapq import merge
from itertools import islice
from uuid import UUID

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.access.privileges import CREATE
from mergus.annex import views as annex
from mergus.catalog.find import find_namespace, find_schema
from mergus.catalog.lake import Lake
from mergus.catalog.names import check_name, find_clash, target_taken
from mergus.catalog.paging import PageRequest
from mergus.catalog.served_views import FoundView, ShownView, find_view
from mergus.catalog.table_places import premises
from mergus.ducklake import views
from mergus.ducklake.connect import one_state
from mergus.ducklake.view_sql import unqualified_names
from mergus.errors import Unsupported
from mergus.iceberg.namespace import Namespace


async def list_views(
    lake: Lake, ctx: RequestContext, namespace: Namespace, page: PageRequest
) -> tuple[list[str], str | None]:
    """Names, and the token of the next page if there is one."""
    await authorise(ctx, namespace)
    only = ctx.rights.names_in(namespace)

    async def fetch(after: str | None, limit: int | None) -> list[str]:
        async with one_state(lake.pool) as conn:
            schema = await find_namespace(conn, namespace, ctx.at)
            if schema is None:
                return []
            theirs = await views.list_names(conn, schema.schema_id, after, limit, ctx.at, only)
            ours = await annex.list_names(conn, schema.schema_id, after, limit, ctx.at, only)
        return list(islice(merge(theirs, ours, key=str.encode), limit))

    return await lake.page([ctx.listing, *namespace.levels], page, fetch)


async def view_exists(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str) -> None:
    await authorise(ctx, namespace, name)
    await find(lake, namespace, name, ctx.at)


async def load_view(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str) -> ShownView:
    await authorise(ctx, namespace, name)
    root = (await premises(lake)).root
    while True:
        found = await find(lake, namespace, name, ctx.at)
        try:
            view = await lake.views.shown(found, await lake.views.metadata(found, root))
            break
        except Unsupported:
            # what was described may have been another view already
            if await find(lake, namespace, name, ctx.at) == found:
                raise
    await lake.views.publish(view)
    return view


async def drop_view(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str) -> None:
    await authorise(ctx, namespace, name)
    async with lake.commit(ctx) as tx:
        found = await find_view(tx.conn, namespace, name)
        if found.row is not None:
            await views.drop(tx, found.row)
        await annex.drop(tx.conn, tx.seen_from, uuid_of(found))


async def rename_view(
    lake: Lake, ctx: RequestContext, source: tuple[Namespace, str], target: tuple[Namespace, str]
) -> None:
    await authorise(ctx, *source)
    await authorise(ctx, *target, CREATE)
    namespace, name = target
    check_name(name, "view")
    async with lake.commit(ctx) as tx:
        found = await find_view(tx.conn, *source)
        schema = await find_schema(tx.conn, namespace)
        is_own = schema == found.schema and name != found.name
        clash = await find_clash(tx.conn, schema.schema_id, name)
        # another spelling of its own name is no clash
        if clash is not None and not (is_own and clash == f"view {found.name}"):
            raise target_taken(source, target, clash)
        if found.row is None:
            await annex.rename(tx.conn, tx.seen_from, uuid_of(found), schema.schema_id, name)
            return
        if schema != found.schema and (reason := await asyncio.to_thread(_stays, found.row)):
            raise Unsupported(f"View {source[0]}.{source[1]} cannot be moved to namespace {namespace}: {reason}")
        await views.rename(tx, found.row, schema, name)


def _stays(row: views.View) -> str | None:
    """Why a view cannot be in another schema."""
    try:
        names = unqualified_names(row.sql)
    except ValueError as e:
        return str(e)
    return f"DuckDB would look for {', '.join(names)} there" if names else None


async def find(lake: Lake, namespace: Namespace, name: str, at: int | None = None) -> FoundView:
    async with one_state(lake.pool) as conn:
        return await find_view(conn, namespace, name, at)


def uuid_of(found: FoundView) -> UUID:
    if found.row is not None:
        return found.row.uuid
    assert found.kept is not None  # noqa: S101  (one of the two is there)
    return UUID(found.kept.uuid)
