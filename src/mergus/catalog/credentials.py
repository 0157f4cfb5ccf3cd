"""LoadCredentials: keys for a table's objects, and new ones for those that are about to expire."""

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.catalog import delegation
from mergus.catalog.find import find_asked
from mergus.catalog.lake import Lake
from mergus.iceberg.namespace import Namespace


async def load_credentials(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str) -> list[dict[str, object]]:
    """None, unless the server vends keys. Who asks here wants some, whatever its headers say."""
    await authorise(ctx, namespace, name)
    if not lake.vending.is_configured:
        async with lake.read() as conn:
            await find_asked(conn, ctx, namespace, name)
        return []
    table, head = await delegation.find(lake, ctx, namespace, name)
    wanted = frozenset({delegation.VENDED})
    return (await delegation.of_table(lake, ctx, table, head, (namespace, name), wanted)).credentials
