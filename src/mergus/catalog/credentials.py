"""LoadCredentials: keys for a table's objects. None are given out yet: clients bring their own."""

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.catalog.find import find_table
from mergus.catalog.lake import Lake
from mergus.iceberg.namespace import Namespace


async def load_credentials(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str) -> list[dict[str, object]]:
    await authorise(ctx, namespace, name)
    async with lake.read() as conn:
        await find_table(conn, namespace, name, ctx.at)
    return []
