"""Names of one kind of thing in a namespace that the caller may see, page by page."""

from collections.abc import Awaitable, Callable

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.catalog.find import find_namespace
from mergus.catalog.lake import Lake
from mergus.catalog.paging import PageRequest
from mergus.ducklake.connect import Conn
from mergus.iceberg.namespace import Namespace

# (conn, schema_id, after, limit, at, only) → names, in byte order
Names = Callable[[Conn, int, str | None, int | None, int | None, list[str] | None], Awaitable[list[str]]]


async def list_names(
    lake: Lake, ctx: RequestContext, namespace: Namespace, page: PageRequest, names: Names
) -> tuple[list[str], str | None]:
    """And the token of the next page if there is one. A namespace that is there only as a parent has none."""
    await authorise(ctx, namespace)
    only = ctx.rights.names_in(namespace)

    async def fetch(after: str | None, limit: int | None) -> list[str]:
        async with lake.read() as conn:
            schema = await find_namespace(conn, namespace, ctx.at)
            return await names(conn, schema.schema_id, after, limit, ctx.at, only) if schema else []

    return await lake.page([ctx.listing, *namespace.levels], page, fetch)
