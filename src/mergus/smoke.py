"""`mergus smoke`: uses a running server as its clients would, and looks at the lake from the other side.

Works in a namespace of its own and takes it away again, so it can be run against a lake in use.
"""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import duckdb

from mergus.client import Address, Client, headers, send
from mergus.config import Settings
from mergus.ducklake import session
from mergus.errors import MergusError


class SmokeFailure(MergusError):
    """What was found, and what should have been."""


def smoke(uri: str, settings: Settings, credential: str | None = None) -> Iterator[str]:
    """One line for each step that held; SmokeFailure at the first that did not. `credential` is a client's name and
    secret, with a colon between."""
    base = uri.rstrip("/")
    ask = _Asker()
    checks = ask("GET", f"{base}/readyz", 200)["checks"]
    yield f"the server is ready: {', '.join(checks)}"
    if credential is not None:
        ask = _Asker(Client(Address(uri, credential=credential)).token)
        yield f"client {credential.partition(':')[0]} gets a token"
    config = ask("GET", f"{base}/v1/config", 200)
    prefix = config["overrides"]["prefix"]
    yield f"it announces {len(config['endpoints'])} operations under prefix {prefix}"
    catalog = f"{base}/v1/{quote(prefix)}"
    name = f"mergus_smoke_{uuid4().hex[:12]}"
    with _lake(settings) as lake:
        ask("POST", f"{catalog}/namespaces", 200, {"namespace": [name], "properties": {"owner": "smoke"}})
        try:
            yield from _namespace_steps(ask, catalog, name, lake)
        finally:
            ask("DELETE", f"{catalog}/namespaces/{name}", 204)
        ask("HEAD", f"{catalog}/namespaces/{name}", 404)
        _expect("schemas seen by DuckDB after the drop", name in _schemas(lake), False)
    yield "namespace dropped, and gone for both"


def _namespace_steps(ask: "_Asker", catalog: str, name: str, lake: duckdb.DuckDBPyConnection | None) -> Iterator[str]:
    yield f"namespace {name} created through REST"
    if lake is not None:
        _expect("schemas seen by an open DuckDB session", name in _schemas(lake), True)
        yield "an open DuckDB session sees it"
    change = {"updates": {"stage": "test"}, "removals": ["owner"]}
    done = ask("POST", f"{catalog}/namespaces/{name}/properties", 200, change)
    _expect("changed properties", (done["updated"], done["removed"]), (["stage"], ["owner"]))
    loaded = ask("GET", f"{catalog}/namespaces/{name}", 200)["properties"]
    _expect("property stage", loaded.get("stage"), "test")
    yield "its properties are kept"
    if lake is not None:
        yield from _table_steps(ask, catalog, name, lake)
    error = ask("POST", f"{catalog}/namespaces", 409, {"namespace": [name]})["error"]
    _expect("error of a second creation", error["type"], "AlreadyExistsException")
    yield "a second creation is refused"


def _table_steps(ask: "_Asker", catalog: str, name: str, lake: duckdb.DuckDBPyConnection) -> Iterator[str]:
    table = f"{session.identifier(name)}.numbers"
    # a few rows stay in Postgres: the store is the server's to reach, and may not be ours
    lake.execute(f"CREATE TABLE {table}(n INTEGER)")
    lake.execute(f"INSERT INTO {table} VALUES (1), (2), (3)")
    loaded = ask("GET", f"{catalog}/namespaces/{name}/tables/numbers", 200)["metadata"]
    shown = {s["snapshot-id"]: int(s["summary"]["total-records"]) for s in loaded["snapshots"]}
    _expect("rows of a table that DuckDB wrote", shown[loaded["current-snapshot-id"]], 3)
    yield "a table that DuckDB writes is an Iceberg table at once"
    lake.execute(f"DROP TABLE {table}")
    ask("HEAD", f"{catalog}/namespaces/{name}/tables/numbers", 404)


@contextmanager
def _lake(settings: Settings) -> Generator[duckdb.DuckDBPyConnection | None]:
    """A DuckDB session, where we know the lake's Postgres; a client elsewhere checks the wire alone."""
    if settings.postgres_dsn is None:
        yield None
        return
    lake = session.attach(settings)
    try:
        yield lake
    finally:
        lake.close()


def _schemas(lake: duckdb.DuckDBPyConnection | None) -> set[str]:
    if lake is None:
        return set()
    query = "SELECT schema_name FROM information_schema.schemata WHERE catalog_name = 'lake'"
    return {row[0] for row in lake.execute(query).fetchall()}


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise SmokeFailure(f"{what}: found {found!r}, expected {wanted!r}")


class _Asker:
    """Of a server, as somebody, if there is a token."""

    def __init__(self, token: str | None = None) -> None:
        self._headers = headers(token)

    def __call__(self, method: str, url: str, expected: int, body: object = None) -> Any:  # noqa: ANN401
        return send(method, url, None if body is None else json.dumps(body).encode(), self._headers, expected)
