"""Running the server: one process, or several behind one listening socket."""

import os
import shutil
import tempfile
from typing import Any

import uvicorn
from fastapi import FastAPI

from mergus import tracing
from mergus.access.clients import read_file
from mergus.access.oidc import Oidc
from mergus.access.tokens import keys_of
from mergus.config import Settings, load_settings, variable
from mergus.errors import SetupError
from mergus.loopback import is_loopback
from mergus.process import end_with_parent
from mergus.rest.protocol import BoundedProtocol


def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT; requests in flight get `shutdown_grace` seconds to finish."""
    check_access(settings)
    tracing.check(settings)
    os.environ.update(environment(settings))
    options: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "loop": "uvloop",
        "http": BoundedProtocol,
        # no endpoint is a WebSocket; uvicorn would search every directory of sys.path for a library
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": settings.shutdown_grace,
        "timeout_keep_alive": 75,
        "backlog": 2048,
    }
    if settings.workers == 1:
        from mergus.app import create_app

        uvicorn.run(create_app(settings), **options)
        return
    # read by prometheus_client when it is first imported, so it must be set before the workers start
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(prefix="mergus-metrics-")
    from mergus import logs

    logs.configure(settings)
    try:
        uvicorn.run("mergus.serve:worker_app", factory=True, workers=settings.workers, **options)
    finally:
        shutil.rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)


def check_access(settings: Settings) -> None:
    """Raises SetupError if anybody could come in by mistake."""
    if settings.auth is None and not is_loopback(settings.host):
        raise SetupError(
            f"{settings.host} can be reached by others, and nobody would be asked who they are: set MERGUS_AUTH to "
            "oauth2 or oidc; or to none, if something in front of the server asks"
        )
    # whatever is wrong with issuer and keys is wrong now, and not when somebody comes with a token, or asks for one
    if "oidc" in (settings.auth or ""):
        Oidc(settings)
    if "oauth2" in (settings.auth or ""):
        keys_of(settings, bytes(32))
    read_file(settings.clients_file)


def worker_app() -> FastAPI:
    """What each worker process runs."""
    end_with_parent()
    from mergus.app import create_app

    return create_app(load_settings())


def environment(settings: Settings) -> dict[str, str]:
    """The settings as variables, for a process that we start."""
    values: dict[str, str] = {}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if value is not None:
            plain = value.get_secret_value() if hasattr(value, "get_secret_value") else value
            values[variable(name)] = str(plain)
    return values
