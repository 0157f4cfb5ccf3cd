"""Tables by name: which there are."""

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.catalog.find import find_namespace, find_table
from mergus.catalog.lake import Lake
from mergus.catalog.paging import PageRequest
from mergus.ducklake import tables
from mergus.iceberg.namespace import Namespace


async def list_tables(
    lake: Lake, ctx: RequestContext, namespace: Namespace, page: PageRequest
) -> tuple[list[str], str | None]:
    """Names, and the token of the next page if there is one."""
    await authorise(ctx, namespace)

    async def fetch(after: str | None, limit: int | None) -> list[str]:
        async with lake.read() as conn:
            schema = await find_namespace(conn, namespace)
            return await tables.list_names(conn, schema.schema_id, after, limit) if schema else []

    return await lake.page([ctx.operation, *namespace.levels], page, fetch)


async def table_exists(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str) -> None:
    await authorise(ctx, namespace)
    async with lake.read() as conn:
        await find_table(conn, namespace, name)
