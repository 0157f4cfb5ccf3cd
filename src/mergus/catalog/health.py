"""Whether this server can do its work."""

import asyncio
from collections.abc import Awaitable

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.catalog.lake import Lake
from mergus.errors import MergusError
from mergus.logs import log

CHECK_SECONDS = 3


async def live(ctx: RequestContext) -> None:
    await authorise(ctx, None)


async def ready(lake: Lake, ctx: RequestContext) -> dict[str, str]:
    """Each part with "ok" or what is wrong with it."""
    await authorise(ctx, None)
    names = ("postgres", "storage")
    results = await asyncio.gather(_check(lake.check_postgres()), _check(lake.check_storage()))
    return dict(zip(names, results, strict=True))


async def _check(check: Awaitable[None]) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check
    except TimeoutError:
        return f"no answer within {CHECK_SECONDS} s"
    except MergusError as e:
        return e.message
    except Exception as e:
        # an object store's error may quote a whole request: it goes to the log, not to the asker
        log.warning("readiness check failed: %s", e)
        return f"failed: {type(e).__name__}"
    return "ok"
