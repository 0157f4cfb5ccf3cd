"""`GET /v1/config`: which catalog a client means, and how to speak to it."""

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.catalog.lake import Lake
from mergus.ducklake.metadata import check_served
from mergus.errors import NoSuchWarehouse


async def load_config(lake: Lake, ctx: RequestContext, warehouse: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """(defaults, overrides) for the client."""
    await authorise(ctx, None)
    if warehouse and not await _is_ours(lake, warehouse):
        raise NoSuchWarehouse(f"Warehouse does not exist: {warehouse}")
    return _storage_defaults(lake), {"prefix": lake.settings.prefix}


def check_prefix(lake: Lake, prefix: str) -> None:
    if prefix != lake.settings.prefix:
        raise NoSuchWarehouse(f"Warehouse does not exist: {prefix}")


async def _is_ours(lake: Lake, warehouse: str) -> bool:
    """By name, by location, or by the data path, whichever the client was given."""
    asked = warehouse.rstrip("/")
    if asked in {lake.settings.prefix, lake.settings.warehouse}:
        return True
    async with lake.read() as conn:
        return asked == (await check_served(conn, lake.settings.metadata_schema)).data_path.rstrip("/")


def _storage_defaults(lake: Lake) -> dict[str, str]:
    """Where the objects are, for clients that were not told; never a key."""
    settings = lake.settings
    defaults = {"client.region": settings.s3_region, "s3.region": settings.s3_region}
    if settings.s3_endpoint is not None:
        defaults["s3.endpoint"] = settings.s3_endpoint
    if settings.path_style:
        defaults["s3.path-style-access"] = "true"
    return defaults
