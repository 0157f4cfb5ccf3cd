"""`/v1/{prefix}/admin/status` and `…/health`: how the lake is, and what would do it good."""

from fastapi import Response

from mergus.catalog import lake_health
from mergus.rest.request import Context, Page, PathNamespace, PathTable, PrefixLake, json_response, listing_response


async def get_status(lake: PrefixLake, ctx: Context) -> Response:
    return json_response(await lake_health.get_status(lake, ctx))


async def list_health(lake: PrefixLake, ctx: Context, page: Page) -> Response:
    found, token = await lake_health.list_health(lake, ctx, page)
    return listing_response({"tables": found}, page, token)


async def get_table_health(lake: PrefixLake, ctx: Context, namespace: PathNamespace, table: PathTable) -> Response:
    return json_response(await lake_health.get_table_health(lake, ctx, namespace, table))
