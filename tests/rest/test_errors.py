"""Whatever is sent, the answer is JSON in Iceberg's error shape, with the right status and type."""

import json
import socket
from pathlib import Path

import pytest

from tests.support import servers
from tests.support.lakes import TestLake
from tests.support.listeners import eventually
from tests.support.servers import Server, error_of

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "nonsense",
        "[]",
        '"text"',
        "null",
        "{}",
        '{"namespace": "a"}',
        '{"namespace": [1]}',
        '{"namespace": [["a"]]}',
        '{"namespace": null}',
        '{"namespace": {"a": 1}}',
        '{"namespace": ["a"], "properties": {"k": 1}}',
        '{"namespace": ["a"], "properties": {"k": null}}',
        '{"namespace": ["a"], "properties": ["k"]}',
        '{"namespace": ["a"], "properties": {"k": "nul\\u0000"}}',
        '{"namespace": ["a"], "properties": {"half\\ud800": "x"}}',
        '{"namespace": ["a"], "properties": {"k": "half\\ud800"}}',
        '{"namespace": ["a' + "\xff" + '"',
        "[" * 100_000,
    ],
)
def test_a_malformed_body_is_a_bad_request(body: str, server: Server, lake: TestLake) -> None:
    before = lake.snapshots()
    answer = server.http.post(server.namespaces, content=body.encode("latin-1"), headers=JSON)
    assert error_of(answer) == (400, "BadRequestException")
    assert lake.snapshots() == before


@pytest.mark.parametrize(
    "body", [{"removals": "a"}, {"removals": [1]}, {"updates": []}, {"updates": {"a": 1}}, {"removals": {"a": "b"}}]
)
def test_wrong_types_in_an_update_are_a_bad_request(body: object, server: Server) -> None:
    answer = server.http.post(f"{server.path('main')}/properties", json=body)
    assert error_of(answer) == (400, "BadRequestException")


def test_fields_that_the_specification_does_not_name_are_ignored(server: Server) -> None:
    """The schema of these requests is open: a newer client may send more than we know."""
    body = {"namespace": ["open_schema"], "properties": {}, "from-the-future": [1, 2]}
    assert server.http.post(server.namespaces, json=body).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v1/lake", "/v1/lake/nothing", "/v2/config", "/docs", "/openapi.json"]
)
def test_an_unknown_path_is_not_found(path: str, server: Server) -> None:
    assert error_of(server.http.get(path)) == (404, "NotFoundException")


def test_an_unknown_prefix_is_an_unknown_warehouse(server: Server) -> None:
    assert error_of(server.http.get("/v1/other/namespaces")) == (404, "NoSuchWarehouseException")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE", "OPTIONS"])
def test_a_method_that_is_not_allowed_names_the_allowed_ones(method: str, server: Server) -> None:
    answer = server.http.request(method, server.namespaces)
    assert error_of(answer) == (405, "MethodNotAllowedException")
    assert answer.headers["allow"] == "GET, POST"


def test_a_path_that_is_not_utf8_is_a_bad_request(server: Server) -> None:
    assert error_of(server.http.get(f"{server.namespaces}/%ff%fe")) == (400, "BadRequestException")


def test_a_nul_in_a_path_is_not_found(server: Server) -> None:
    assert error_of(server.http.get(f"{server.namespaces}/a%00b")) == (404, "NoSuchNamespaceException")
    assert error_of(server.http.get(server.namespaces, params={"parent": "a\0b"})) == (404, "NoSuchNamespaceException")


@pytest.fixture(scope="module")
def small(lake: TestLake, tmp_path_factory: pytest.TempPathFactory):
    """A server that takes bodies of 4 KiB at most."""
    with servers.server(lake.settings, tmp_path_factory.mktemp("small"), max_body_bytes=4096) as running:
        yield running


def test_a_body_whose_content_length_is_too_large_is_refused(small: Server) -> None:
    answer = small.create("big", filler="x" * 5000)
    assert error_of(answer) == (413, "PayloadTooLargeException")
    assert small.http.head(small.path("big")).status_code == 404


def test_a_body_without_a_content_length_that_is_too_large_is_refused(small: Server) -> None:
    body = json.dumps({"namespace": ["big"], "properties": {"filler": "x" * 5000}}).encode()
    chunks = (body[i : i + 500] for i in range(0, len(body), 500))
    answer = small.http.post(small.namespaces, content=chunks, headers=JSON)
    assert error_of(answer) == (413, "PayloadTooLargeException")
    assert small.http.head(small.path("big")).status_code == 404


def test_a_body_just_below_the_limit_is_accepted(small: Server) -> None:
    assert small.create("fits", filler="x" * 3900).status_code == 200


def test_a_connection_closed_in_the_middle_of_a_body_does_not_affect_other_requests(
    server: Server, lake: TestLake
) -> None:
    before = lake.snapshots()
    host, port = server.uri.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(
            f"POST {server.namespaces} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            'Content-Length: 500\r\n\r\n{"namespace": ["cut'.encode()
        )
    assert server.http.get("/healthz").status_code == 200
    assert lake.snapshots() == before


def test_an_unexpected_failure_tells_the_client_nothing_but_its_request_id(lake: TestLake, tmp_path: Path) -> None:
    with servers.server(lake.settings, tmp_path) as running:
        lake.sql("ALTER TABLE namespace_property RENAME COLUMN value TO other")
        try:
            answer = running.http.get(running.path("main"))
        finally:
            lake.sql("ALTER TABLE namespace_property RENAME COLUMN other TO value")
        assert error_of(answer) == (500, "InternalServerError")
        assert "value" not in answer.json()["error"]["message"]

        def failed_requests() -> list[str]:
            log = [json.loads(line) for line in running.log.read_text().splitlines()]
            return [line["request_id"] for line in log if "exception" in line]

        # the server logs a failure after it has answered
        eventually(failed_requests, 10, running.log.read_text)
        assert failed_requests() == [answer.headers["x-request-id"]]
        assert running.http.get(running.path("main")).status_code == 200
