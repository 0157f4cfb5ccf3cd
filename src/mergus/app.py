"""The app factory: settings in, a served lake out."""

import gc
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.types import Receive, Scope, Send

from mergus import logs, tracing
from mergus.catalog.lake import open_lake
from mergus.catalog.listening import listening, working
from mergus.config import Settings, load_settings
from mergus.rest import errors, router
from mergus.rest.boundary import Boundary
from mergus.rest.traced import traced

# Objects made before the collector looks at the young ones; Python's own default is 700.
GC_THRESHOLD = 20_000

# Whatever a process sends about itself goes through `tracing`. The framework's own, which a variable turns on, would
# send texts of exceptions and queries of requests.
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}


class App(FastAPI):
    """With the boundary round everything, and not between the framework's own layers: what is answered there does not
    go through any of them."""

    def __init__(self, settings: Settings, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> None:
        super().__init__(
            title="Mergus", lifespan=lifespan, openapi_url=None, redirect_slashes=False, telemetry=NO_TELEMETRY
        )
        self._boundary = traced(Boundary(super().__call__, self.state, settings.max_body_bytes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._boundary(scope, receive, send)


def create_app(settings: Settings | None = None) -> FastAPI:
    """Without settings they come from the environment: that is how worker processes get theirs."""
    effective = settings or load_settings()
    logs.configure(effective)
    tracing.setup(effective)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        stands = effective.listener == "embedded"
        async with AsyncExitStack() as running:
            await running.enter_async_context(tracing.sent())
            lake = await running.enter_async_context(open_lake(effective))
            await running.enter_async_context(listening(lake, stands=stands))
            if effective.maintenance == "embedded":
                await running.enter_async_context(working(lake))
            app.state.lake = lake
            # what is here stays: the collector would look at all of it again and again, in the middle of requests
            gc.collect()
            gc.freeze()
            gc.set_threshold(GC_THRESHOLD)
            yield

    app = App(effective, lifespan)
    errors.install(app)
    router.install(app, effective)
    return app
