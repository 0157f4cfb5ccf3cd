"""The things that made-up requests can hit: made before the first, and again whenever one took them away.

Loaded by schemathesis as its hooks, too: then it puts them back.
"""

import os
from typing import Any
from urllib.parse import quote

import httpx
import schemathesis

from tests.conformance.documents import EMPTY, NAME, NAMESPACES, SCHEMA, VERSION
from tests.support.lakes import TestLake

URI = "MERGUS_FUZZED_URI"


def begin(lake: TestLake, http: httpx.Client, endpoints: list[str], prefix: str) -> None:
    """What only a DuckDB session makes comes first."""
    with lake.duckdb() as db:
        db.execute(f"CREATE SCHEMA fuzzed; CREATE MACRO fuzzed.{NAME}(a) AS a + 1")
        db.execute(f"CREATE TABLE fuzzed.{NAME} AS SELECT i, {{'a': i, 'b': [i]}} AS s FROM range(3) r(i)")
        db.execute(f"UPDATE fuzzed.{NAME} SET i = 7 WHERE i = 1")
    put(http, endpoints, prefix)


def put(http: httpx.Client, endpoints: list[str], prefix: str) -> None:
    """Whatever is there already is left as it is. A view has the name of its table in another namespace."""
    root = f"/v1/{prefix}/namespaces"
    for namespace in (*NAMESPACES, EMPTY):
        _post(http, root, {"namespace": namespace.split("\x1f")})
    tables, views = (f"{root}/{quote(name, safe='')}" for name in NAMESPACES)
    _post(http, f"{tables}/tables", {"name": NAME, "schema": SCHEMA})
    if "POST /v1/{prefix}/namespaces/{namespace}/views" in endpoints:
        _post(http, f"{views}/views", {"name": NAME, "schema": SCHEMA, "view-version": VERSION, "properties": {}})


def _post(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code in {200, 409}, answer.text


if URI in os.environ:
    _http = httpx.Client(base_url=os.environ[URI], timeout=60)
    _config = _http.get("/v1/config").json()

    @schemathesis.hook
    def after_call(_: Any, case: schemathesis.Case, response: Any) -> None:
        took_something = case.method == "DELETE" or case.path.endswith(("/rename", "/unregister"))
        if took_something and response.status_code < 300:
            put(_http, _config["endpoints"], _config["overrides"]["prefix"])
