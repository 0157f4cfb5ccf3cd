"""`/v1/config`."""

from typing import Annotated

from fastapi import Query, Request, Response

from mergus.catalog.warehouse import load_config
from mergus.rest.request import AnyLake, Context, json_response


async def get_config(
    request: Request, lake: AnyLake, ctx: Context, warehouse: Annotated[str | None, Query()] = None
) -> Response:
    defaults, overrides = await load_config(lake, ctx, warehouse)
    answer = {
        "defaults": defaults,
        "overrides": overrides,
        "endpoints": request.app.state.endpoints,
        "idempotency-key-lifetime": f"PT{lake.settings.idempotency_seconds}S",
    }
    return json_response(answer)
