"""What holds of every operation's answer, whichever it is: a new one is here as soon as it is in the table."""

import inspect
import socket
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import duckdb
import httpx
import pytest
import yaml

from mergus.rest.operations import OPERATIONS, Operation
from tests.conformance.documents import FILES
from tests.rest.test_boundary import COMMIT_REPORT, one_of_each
from tests.support.servers import Server, error_of

NAMED = {
    "prefix": "lake",
    "namespace": "paged",
    "table": "a",
    "view": "v_a",
    "function": "a",
    "tag": "paged_a",
    "job": 1,
}
LISTINGS = [o for o in OPERATIONS if "page" in inspect.signature(o.handler).parameters]


def path(operation: Operation, **named: str) -> str:
    return operation.path.format(**{**NAMED, **named})


@cache
def documented() -> dict[str, dict[str, Any]]:
    """Iceberg's word on each operation."""
    found: dict[str, dict[str, Any]] = {}
    for file in reversed(FILES):
        document = yaml.load(file.read_text(), yaml.CSafeLoader)
        for item in document["paths"].values():
            for operation in item.values():
                if isinstance(operation, dict):
                    found[operation["operationId"]] = {**operation, "components": document["components"]}
    return found


def shows_etag(described: dict[str, Any]) -> bool:
    answer = described["responses"].get(200, {})
    if "$ref" in answer:
        answer = described["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    return "etag" in {name.lower() for name in answer.get("headers", {})}


def assert_not_shared(answer: httpx.Response, what: str) -> None:
    """No cache between may answer another, or later, with it."""
    directives = {d.strip() for d in answer.headers["cache-control"].split(",")}
    assert directives in ({"private", "no-cache"}, {"no-store"}), what
    varies = [v.strip() for v in answer.headers["vary"].split(",")]
    assert "Accept-Encoding" in varies, what
    assert len(answer.headers.get_list("cache-control")) == len(answer.headers.get_list("vary")) == 1, what


def assert_harmless(answer: httpx.Response, what: str) -> None:
    """To who opens it in a browser, or is made to."""
    expected = {
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
        "referrer-policy": "no-referrer",
    }
    assert {name: answer.headers.get_list(name) for name in expected} == {k: [v] for k, v in expected.items()}, what
    assert "server" not in answer.headers, what
    # over TLS alone
    assert "strict-transport-security" not in answer.headers, what


@pytest.fixture(scope="module")
def answers(server: Server, lake: Any) -> dict[str, httpx.Response]:
    with lake.duckdb() as db:
        return one_of_each(server, db)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
class TestEveryOperation:
    def test_answers_of_every_operation_are_not_cached_by_shared_caches(
        self, operation: Operation, answers: dict[str, httpx.Response]
    ) -> None:
        answer = answers[operation.name]
        assert_not_shared(answer, operation.name)
        assert_harmless(answer, operation.name)
        assert answer.headers["x-request-id"]
        if answer.status_code == 204:
            assert answer.content == b""
            assert "content-type" not in answer.headers
        elif operation.name != "metrics":
            assert answer.headers["content-type"] == "application/json"
            answer.json()

    def test_refusals_of_every_operation_are_not_cached_by_shared_caches(
        self, operation: Operation, server: Server
    ) -> None:
        """Whatever else is wrong with the request, the warehouse is another's; where there is none, the method."""
        named = "{prefix}" in operation.path
        method = operation.method if named else "PUT"
        answer = server.http.request(method, path(operation, prefix="other"), json={})
        assert_not_shared(answer, operation.name)
        assert_harmless(answer, operation.name)
        if operation.method != "HEAD":
            status, kind = error_of(answer)
            assert status in ({400, 404} if named else {405}), kind

    def test_operations_that_show_a_table_send_an_etag(
        self, operation: Operation, answers: dict[str, httpx.Response]
    ) -> None:
        described = documented().get(operation.name)
        has = described is not None and shows_etag(described)
        assert ("etag" in answers[operation.name].headers) == has


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.method == "HEAD"], ids=lambda o: o.name)
@pytest.mark.parametrize(("namespace", "status"), [("paged", 204), ("missing", 404)])
def test_a_head_request_gets_no_body(operation: Operation, namespace: str, status: int, server: Server) -> None:
    """Read from the socket: a client library would hide what must not be there."""
    address = urlsplit(server.uri)
    with socket.create_connection((address.hostname, address.port), 10) as wire:
        asked = f"HEAD {path(operation, namespace=namespace)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        wire.sendall(asked.encode())
        said = b"".join(iter(lambda: wire.recv(65536), b""))
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert body == b""


@pytest.fixture(scope="module", autouse=True)
def paged(server: Server, lake: Any) -> None:
    """Two of everything that can be listed."""
    with lake.duckdb() as db:
        db.execute("CREATE SCHEMA paged; SET ducklake_default_data_inlining_row_limit = 5000")
        for name in "ab":
            db.execute(f"CREATE TABLE paged.{name}(i INTEGER); CREATE VIEW paged.v_{name} AS SELECT 1 AS i")
            db.execute(f"CREATE MACRO paged.{name}(x) AS x")
            db.execute(f"CREATE TABLE paged.gone_{name}(i INTEGER); DROP TABLE paged.gone_{name}")
            # more than a table should have waiting in Postgres
            db.execute(f"INSERT INTO paged.{name} SELECT * FROM range(2000)")
            assert server.http.post("/v1/lake/admin/tags", json={"name": f"paged_{name}"}).status_code == 200
            grant = {"grantee": f"role:paged_{name}", "grant": "catalog:r"}
            assert server.http.post("/v1/lake/admin/grants", json=grant).status_code == 200
    for _ in range(2):
        assert server.http.post(f"{server.path('paged')}/tables/a/metrics", json=COMMIT_REPORT).status_code == 204
        done = server.http.post("/v1/lake/admin/namespaces/main/compact", json={"wait-seconds": 60}, timeout=90)
        assert done.json()["state"] == "done", done.text


def page(server: Server, listing: Operation, **params: str | int) -> tuple[list[Any], str | None]:
    answer = server.http.get(path(listing), params=params)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    (items,) = (value for key, value in body.items() if key != "next-page-token")
    return items, body["next-page-token"]


def test_the_tested_listings_are_all_list_operations() -> None:
    names = {o.name for o in LISTINGS}
    assert {"listNamespaces", "listTables", "listFunctions", "listReports"} <= names
    assert names == {o.name for o in OPERATIONS if o.name.startswith("list")}


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda o: o.name)
class TestEveryListing:
    def test_every_listing_is_paged(self, listing: Operation, server: Server) -> None:
        everything, token = page(server, listing, pageToken="")
        assert len(everything) >= 2
        assert token is None
        seen: list[Any] = []
        token = ""
        while token is not None:
            items, token = page(server, listing, pageToken=token, pageSize=1)
            assert len(items) == 1
            seen += items
        assert seen == everything

    def test_every_listing_refuses_foreign_page_tokens(self, listing: Operation, server: Server) -> None:
        _, token = page(server, listing, pageSize=1)
        assert token is not None
        middle = len(token) // 2
        changed = token[:middle] + ("A" if token[middle] != "A" else "B") + token[middle + 1 :]
        others = [page(server, other, pageSize=1)[1] for other in LISTINGS if other is not listing]
        for wrong in [changed, token[:-4], "x", *others]:
            answer = server.http.get(path(listing), params={"pageToken": str(wrong)})
            assert error_of(answer) == (400, "BadRequestException"), wrong


def test_a_load_is_private_to_its_client_and_revalidated_by_etag(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    """Also when it is answered from what is ready, and when nothing has changed."""
    db.execute("CREATE SCHEMA kept; CREATE TABLE kept.t AS SELECT i FROM range(100) r(i)")
    url = f"{server.path('kept')}/tables/t"
    for _ in range(2):
        answer = server.http.get(url)
        assert_not_shared(answer, "loadTable")
        assert_harmless(answer, "loadTable")
        # DuckDB's client, known by its name, is told other times
        assert "User-Agent" in answer.headers["vary"]
        again = server.http.get(url, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert_not_shared(again, "loadTable")
        assert_harmless(again, "loadTable")
        assert again.headers["etag"] == answer.headers["etag"]


@pytest.mark.parametrize("path", ["/v1/config", "/nothing", "/v1/lake/namespaces/tls/tables/t"])
def test_answers_over_tls_send_strict_transport_security(
    path: str, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    """By a proxy on this machine, which is trusted to say so; the third is answered from what is ready."""
    db.execute("CREATE SCHEMA IF NOT EXISTS tls; CREATE TABLE IF NOT EXISTS tls.t(i INTEGER)")
    for _ in range(2):
        answer = server.http.get(path, headers={"X-Forwarded-Proto": "https"})
        assert answer.headers.get_list("strict-transport-security") == ["max-age=31536000"]
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
