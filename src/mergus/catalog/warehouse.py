"""`GET /v1/config`: which catalog a client means, of which time, and how to speak to it; and what a prefix means."""

from mergus.access.authorise import authorise
from mergus.access.context import ANONYMOUS, RequestContext
from mergus.catalog import travel
from mergus.catalog.delegation import store_of
from mergus.catalog.lake import Lake
from mergus.ducklake.metadata import check_served
from mergus.errors import Forbidden, NoSuchWarehouse, NotAuthorized


async def load_config(lake: Lake, ctx: RequestContext, warehouse: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """(defaults, overrides) for the client. One that has no token yet learns how the catalog is called, and no more."""
    await authorise(ctx, None)
    prefix = lake.settings.prefix
    if ctx.principal == ANONYMOUS and not lake.authenticator.is_open:
        if warehouse and warehouse.rstrip("/") not in {prefix, lake.settings.warehouse}:
            raise NotAuthorized("A token is needed to ask for this warehouse")
        return {}, {"prefix": prefix}
    if warehouse and not await _is_ours(lake, warehouse):
        base, point = travel.split(prefix, warehouse)
        if point is None or not await _is_ours(lake, base):
            raise NoSuchWarehouse(f"Warehouse does not exist: {warehouse}")
        async with lake.read() as conn:
            prefix += f"{travel.SEPARATOR}{await travel.resolve(conn, base, point)}"
    # never a key; and whatever a table's properties say, no client of Java's deletes objects by itself
    return store_of(lake.settings), {"prefix": prefix, "s3.delete-enabled": "false"}


async def enter(lake: Lake, ctx: RequestContext, prefix: str) -> None:
    """Which state of the lake the request is about."""
    warehouse, point = travel.split(lake.settings.prefix, prefix)
    if warehouse != lake.settings.prefix:
        raise NoSuchWarehouse(f"Warehouse does not exist: {prefix}")
    if point is not None:
        async with lake.read() as conn:
            ctx.at = await travel.resolve(conn, warehouse, point)


def check_writable(lake: Lake, prefix: str) -> None:
    warehouse, point = travel.split(lake.settings.prefix, prefix)
    if warehouse == lake.settings.prefix and point is not None:
        raise Forbidden(f"{prefix} is the lake as it was, which can only be read; what is to change is in {warehouse}")


async def _is_ours(lake: Lake, warehouse: str) -> bool:
    """By name, by location, or by the data path, whichever the client was given."""
    asked = warehouse.rstrip("/")
    if asked in {lake.settings.prefix, lake.settings.warehouse}:
        return True
    async with lake.read() as conn:
        return asked == (await check_served(conn, lake.settings.metadata_schema)).data_path.rstrip("/")
