"""The app factory: settings in, a served lake out."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from mergus import logs
from mergus.catalog.lake import open_lake
from mergus.config import Settings, load_settings
from mergus.rest import errors, router
from mergus.rest.boundary import Boundary


def create_app(settings: Settings | None = None) -> FastAPI:
    """Without settings they come from the environment: that is how worker processes get theirs."""
    effective = settings or load_settings()
    logs.configure(effective)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with open_lake(effective) as lake:
            app.state.lake = lake
            yield

    app = FastAPI(title="Mergus", lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.add_middleware(Boundary, max_body_bytes=effective.max_body_bytes)
    errors.install(app)
    router.install(app)
    return app
