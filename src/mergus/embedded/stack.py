"""The embedded stack: whatever of Postgres and S3 the settings do not name is started here."""

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pydantic import SecretStr

from mergus import loopback
from mergus.config import Settings
from mergus.ducklake.connect import connect
from mergus.ducklake.metadata import read_metadata
from mergus.ducklake.session import publish_extensions
from mergus.embedded.postgres import Postgres
from mergus.embedded.seaweed import REGION, ROLE_ARN, Seaweed
from mergus.embedded.state import StateDir
from mergus.process import Child
from mergus.storage.location import Location
from mergus.storage.place import ensure_place

Progress = Callable[[str], None]

DEFAULT_DATA_PATH = "s3://mergus/lake/data/"


@dataclass(frozen=True, slots=True)
class Stack:
    settings: Settings
    children: tuple[Child, ...]


@contextmanager
def running(state: StateDir, settings: Settings, progress: Progress, *, durable: bool = True) -> Generator[Stack]:
    """Starts what is missing, and stops it again; `settings` of the result name everything."""
    with ExitStack() as cleanup:
        children: list[Child] = []
        own_postgres = settings.postgres_dsn is not None
        if not own_postgres:
            postgres = Postgres(state, settings.postgres_port, durable=durable)
            cleanup.callback(postgres.child.stop)
            children.append(postgres.child)
            postgres.wait_ready()
            progress(f"Postgres on 127.0.0.1:{postgres.port}")
            settings = settings.model_copy(update={"postgres_dsn": SecretStr(postgres.dsn())})
        # a lake that is there already says itself where its data is
        data_path = settings.new_data_path or _existing_data_path(settings) or DEFAULT_DATA_PATH
        found: dict[str, object] = {"data_path": data_path}
        if _needs_store(settings, data_path, own_postgres=own_postgres):
            loopback.bypass_proxies()
            seaweed = Seaweed(state, settings.s3_port)
            cleanup.callback(seaweed.child.stop)
            children.append(seaweed.child)
            seaweed.wait_ready()
            progress(f"S3 store on 127.0.0.1:{seaweed.port}")
            found |= {
                "s3_endpoint": seaweed.endpoint,
                "s3_region": REGION,
                "s3_access_key_id": seaweed.access_key,
                "s3_secret_access_key": SecretStr(seaweed.secret_key),
                "s3_session_token": None,
                "s3_path_style": True,
                "sts_role_arn": ROLE_ARN,
                "sts_endpoint": seaweed.endpoint,
            }
        effective = settings.model_copy(update=found)
        if ensure_place(Location.parse(data_path), effective):
            progress(f"made {Location.parse(data_path).root}")
        yield Stack(effective, tuple(children))


def _needs_store(settings: Settings, data_path: str, *, own_postgres: bool) -> bool:
    """Whether objects go to the embedded store: unless they are on a disk, or a store is named. An endpoint that is
    set for AWS tools in general does not count: somebody's everyday store is not where a trial run belongs."""
    if not data_path.startswith("s3://") or os.environ.get("MERGUS_S3_ENDPOINT"):
        return False
    # a lake in somebody's own Postgres, somewhere else than we would have put it, has a store of its own
    return not own_postgres or settings.new_data_path is not None or data_path == DEFAULT_DATA_PATH


def _existing_data_path(settings: Settings) -> str | None:
    with connect(settings) as conn:
        metadata = read_metadata(conn, settings.metadata_schema)
    return metadata.data_path if metadata else None


def connection_values(state: StateDir, settings: Settings, uri: str | None, data_path: str) -> dict[str, str]:
    """What a client needs, named as our own settings and AWS tools name it."""
    secret, token = settings.s3_secret_access_key, settings.s3_session_token
    values = {
        "MERGUS_URI": uri,
        "MERGUS_WAREHOUSE": settings.prefix,
        "MERGUS_POSTGRES_DSN": settings.dsn,
        "MERGUS_DATA_PATH": data_path,
        "AWS_ENDPOINT_URL_S3": settings.s3_endpoint,
        "AWS_REGION": settings.s3_region,
        "AWS_ACCESS_KEY_ID": settings.s3_access_key_id,
        "AWS_SECRET_ACCESS_KEY": secret.get_secret_value() if secret else None,
        "AWS_SESSION_TOKEN": token.get_secret_value() if token else None,
        "MERGUS_STS_ROLE_ARN": settings.sts_role_arn,
        "MERGUS_STS_ENDPOINT": settings.sts_endpoint,
        "MERGUS_DUCKDB_EXTENSIONS": str(publish_extensions(state.folder("extensions"))),
    }
    return {key: value for key, value in values.items() if value is not None}
