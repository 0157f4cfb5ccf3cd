"""`mergus smoke`: uses a running server as its clients would, and looks at the lake from the other side.

Works in a namespace of its own and takes it away again, so it can be run against a lake in use.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

import duckdb

from mergus import loopback
from mergus.config import Settings
from mergus.ducklake import session
from mergus.errors import MergusError

TIMEOUT_SECONDS = 10


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
        ask = _Asker(_token(base, credential))
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


def _token(base: str, credential: str) -> str:
    client_id, _, secret = credential.partition(":")
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    return _send("POST", f"{base}/v1/oauth/tokens", 200, urlencode(form).encode(), kind)["access_token"]


class _Asker:
    """Of a server, as somebody, if there is a token."""

    def __init__(self, token: str | None = None) -> None:
        known = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._headers = {"Content-Type": "application/json", **known}

    def __call__(self, method: str, url: str, expected: int, body: object = None) -> Any:  # noqa: ANN401
        return _send(method, url, expected, None if body is None else json.dumps(body).encode(), self._headers)


def _send(method: str, url: str, expected: int, data: bytes | None, headers: dict[str, str]) -> Any:  # noqa: ANN401
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310
    try:
        with loopback.open_url(request, TIMEOUT_SECONDS) as answer:
            status, content = answer.status, answer.read()
    except urllib.error.HTTPError as e:
        status, content = e.code, e.read()
    except OSError as e:
        raise SmokeFailure(f"{method} {url}: no answer ({e})") from None
    if status != expected:
        raise SmokeFailure(f"{method} {url}: status {status}, expected {expected}: {content.decode(errors='replace')}")
    return json.loads(content) if content else None
