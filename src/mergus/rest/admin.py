"""`/v1/{prefix}/admin/…`: for those who run the server, not part of the Iceberg protocol."""

from fastapi import Response

from mergus.catalog.listener_status import listener_status
from mergus.rest.request import Context, PrefixLake, json_response


async def get_listener(lake: PrefixLake, ctx: Context) -> Response:
    return json_response(await listener_status(lake, ctx))
