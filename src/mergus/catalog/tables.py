"""Tables by name: which there are."""

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.catalog.find import find_asked
from mergus.catalog.lake import Lake
from mergus.catalog.listing import list_names
from mergus.catalog.paging import PageRequest
from mergus.ducklake import tables
from mergus.iceberg.namespace import Namespace


async def list_tables(
    lake: Lake, ctx: RequestContext, namespace: Namespace, page: PageRequest
) -> tuple[list[str], str | None]:
    return await list_names(lake, ctx, namespace, page, tables.list_names)


async def table_exists(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str) -> None:
    await authorise(ctx, namespace, name)
    async with lake.read() as conn:
        await find_asked(conn, ctx, namespace, name)
