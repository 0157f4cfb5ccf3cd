"""`/healthz`, `/readyz`, `/metrics`: for load balancers and monitoring, not part of the Iceberg protocol."""

from fastapi import Response

from mergus.catalog import health
from mergus.catalog.listener_status import measure
from mergus.metrics import CONTENT_TYPE, exposition
from mergus.rest.request import AnyLake, Context, json_response


async def healthz(ctx: Context) -> Response:
    await health.live(ctx)
    return json_response({"status": "ok"})


async def readyz(lake: AnyLake, ctx: Context) -> Response:
    checks = await health.ready(lake, ctx)
    ok = all(result == "ok" for result in checks.values())
    return json_response({"status": "ok" if ok else "not ready", "checks": checks}, 200 if ok else 503)


async def metrics(lake: AnyLake, ctx: Context) -> Response:
    await health.live(ctx)
    lake.observe_pool()
    return Response(exposition(await measure(lake)), media_type=CONTENT_TYPE)
