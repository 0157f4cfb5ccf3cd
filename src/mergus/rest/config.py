"""`/v1/config`."""

from typing import Annotated

from fastapi import Query, Request, Response

from mergus.catalog.warehouse import load_config
from mergus.rest.request import AnyLake, Context, json_response


async def get_config(
    request: Request, lake: AnyLake, ctx: Context, warehouse: Annotated[str | None, Query()] = None
) -> Response:
    defaults, overrides = await load_config(lake, ctx, warehouse)
    endpoints = request.app.state.endpoints
    return json_response({"defaults": defaults, "overrides": overrides, "endpoints": endpoints})
