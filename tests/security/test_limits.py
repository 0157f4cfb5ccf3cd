"""Requests that are too much: nested too deep, or too large or too many in what comes before a body."""

import inspect
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import duckdb
import httpx
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.iceberg import avro, avro_encode, avro_theirs
from mergus.iceberg.schema_parse import MAX_DEPTH as MAX_SCHEMA_DEPTH
from mergus.rest.limits import MAX_DEPTH, Nesting, depth
from mergus.rest.operations import OPERATIONS, Operation
from mergus.rest.protocol import MAX_HEAD_BYTES, MAX_HEADERS
from tests.support import views
from tests.support.commits import HandTable, new_snapshot_id, new_table, shown
from tests.support.lakes import TestLake
from tests.support.loads import Bucket
from tests.support.servers import Server, error_of

JSON = {"Content-Type": "application/json"}
BAD = (400, "BadRequestException")
DEPTHS = [MAX_DEPTH + 1, 500, 900, 1000, 1100, 100_000]
WITH_BODY = [o for o in OPERATIONS if {"body", "report"} & inspect.signature(o.handler).parameters.keys()]
NAMED = {"prefix": "lake", "namespace": "deep", "table": "t", "view": "v"}


@pytest.fixture(scope="module", autouse=True)
def unharmed(server: Server) -> Iterator[None]:
    """Whatever is sent, nothing is a surprise to the server."""
    assert server.create("deep").status_code == 200
    body = {"name": "t", "schema": json.loads(schema(1))}
    assert server.http.post(f"{server.path('deep')}/tables", json=body).status_code == 200
    pid = server.process.pid
    yield
    assert server.process.poll() is None
    assert psutil.Process(pid).memory_info().rss < 1 << 30
    log = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert [line for line in log if line["level"] == "ERROR" or line.get("status", 0) >= 500] == []


def post(server: Server, path: str, body: str) -> httpx.Response:
    return server.http.post(path, content=body.encode(), headers=JSON)


def lists(levels: int) -> str:
    return "[" * levels + "1" + "]" * levels


def objects(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def schema(levels: int) -> str:
    """With structs so deep."""
    opening = (
        f'{{"type":"struct","fields":[{{"id":{n},"name":"f","required":false,"type":' for n in range(1, levels + 1)
    )
    return "".join(opening) + '"int"' + "}]}" * levels


def test_the_tested_operations_with_a_body_include_the_write_operations() -> None:
    assert {"createTable", "updateTable", "commitTransaction", "reportMetrics"} <= {o.name for o in WITH_BODY}


class TestDepthOfABody:
    @pytest.mark.parametrize("operation", WITH_BODY, ids=lambda o: o.name)
    def test_a_body_nested_too_deep_is_refused_by_every_operation(self, operation: Operation, server: Server) -> None:
        path = operation.path.format(**NAMED)
        for levels in DEPTHS:
            for body in (lists(levels), objects(levels), f'{{"more":{lists(levels)}}}', "[" * levels):
                answer = post(server, path, body)
                assert error_of(answer) == BAD, levels
                assert "deeper than" in answer.json()["error"]["message"]

    def test_the_depth_of_a_chunked_body_is_counted_over_all_chunks(self, server: Server) -> None:
        body = f'{{"namespace":["parts"],"more":{objects(300)}}}'.encode()
        for size in (1, 7, 100):
            parts = (body[at : at + size] for at in range(0, len(body), size))
            answer = server.http.post(server.namespaces, content=parts, headers=JSON)
            assert error_of(answer) == BAD
        assert server.http.head(server.path("parts")).status_code == 404

    def test_a_body_at_the_depth_limit_and_brackets_in_strings_are_accepted(self, server: Server) -> None:
        """And brackets in texts, or beside each other, are no depth."""
        many = '{"a":["[[["]},' * 1000
        for number, more in enumerate((lists(MAX_DEPTH - 1), json.dumps("[{" * 1000), f"[{many}1]", r'"\"[[[[\\"')):
            body = f'{{"namespace":["deep_{number}"],"more":{more}}}'
            assert post(server, server.namespaces, body).status_code == 200

    def test_reports_with_the_deepest_accepted_filter_can_be_listed(self, server: Server) -> None:
        report = (
            '{"report-type":"scan-report","table-name":"t","snapshot-id":1,"filter":%s,"schema-id":0,'
            '"projected-field-ids":[],"projected-field-names":[],"metrics":{}}'
        )
        table = f"{server.path('deep')}/tables/t"
        statuses = {n: post(server, f"{table}/metrics", report % objects(n)).status_code for n in range(200, 256)}
        assert statuses[200] == 204
        assert statuses[255] == 400
        assert set(statuses.values()) == {204, 400}
        assert server.http.get("/v1/lake/admin/namespaces/deep/tables/t/reports").status_code == 200

    @given(
        st.recursive(
            st.none() | st.text('a"\\[]{}é', max_size=8), lambda x: st.lists(x) | st.dictionaries(st.text('"\\[{'), x)
        )
    )
    def test_the_measured_depth_is_that_of_the_parsed_json(self, value: Any) -> None:
        def levels(value: Any) -> int:
            match value:
                case dict() | list():
                    return 1 + max(map(levels, value.values() if isinstance(value, dict) else value), default=0)
                case _:
                    return 0

        for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
            assert depth(text.encode(), 10_000) == levels(value)

    @given(st.binary(), st.lists(st.integers(0, 100)))
    def test_the_depth_of_any_bytes_can_be_measured(self, text: bytes, cuts: list[int]) -> None:
        assert depth(text, 10_000) >= 0
        nesting = Nesting()
        for cut in cuts:
            assert not nesting.is_too_deep(text[:cut], is_last=False)


class TestDepthOfASchema:
    @pytest.mark.parametrize("levels", [2, 50, MAX_SCHEMA_DEPTH])
    def test_a_schema_at_the_depth_limit_is_stored_and_shown(self, levels: int, server: Server, lake: TestLake) -> None:
        ns = server.path("deep")
        created = post(server, f"{ns}/tables", f'{{"name":"d{levels}","schema":{schema(levels)}}}')
        assert created.status_code == 200, created.text
        assert server.http.get(f"{ns}/tables/d{levels}").status_code == 200
        staged = post(server, f"{ns}/tables", f'{{"name":"e","stage-create":true,"schema":{schema(levels)}}}')
        assert staged.status_code == 200
        view = {**views.wanted("deep", f"v{levels}", spark="SELECT 1"), "schema": json.loads(schema(levels))}
        assert server.http.post(f"{ns}/views", json=view).status_code == 200
        assert server.http.get(f"{ns}/views/v{levels}").status_code == 200
        with lake.duckdb() as db:
            assert db.execute(f"SELECT count(*) FROM deep.d{levels}").fetchall() == [(0,)]

    @pytest.mark.parametrize("levels", [MAX_SCHEMA_DEPTH + 1, 84, 100, 300, 1000, 30_000])
    def test_a_schema_nested_too_deep_is_refused(self, levels: int, server: Server, lake: TestLake) -> None:
        before = lake.snapshots()
        ns, deep = server.path("deep"), schema(levels)
        view = json.dumps({**views.wanted("deep", "w", spark="SELECT 1"), "schema": None})
        update = f'[{{"action":"add-schema","schema":{deep}}},{{"action":"set-current-schema","schema-id":-1}}]'
        bodies = {
            f"{ns}/tables": f'{{"name":"x","schema":{deep}}}',
            f"{ns}/views": view.replace('"schema": null', f'"schema": {deep}'),
            f"{ns}/tables/t": f'{{"requirements":[],"updates":{update}}}',
        }
        for path, body in bodies.items():
            assert error_of(post(server, path, body)) == BAD, path
        assert lake.snapshots() == before

    @pytest.mark.parametrize("levels", [MAX_SCHEMA_DEPTH, MAX_SCHEMA_DEPTH + 1, 120])
    def test_a_deep_schema_of_duckdb_is_shown_or_refused(
        self, levels: int, server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
    ) -> None:
        kind = "STRUCT(f " * (levels - 1) + "INTEGER" + ")" * (levels - 1)
        db.execute(f"CREATE TABLE deep.q{levels}(f {kind}); CREATE VIEW deep.w{levels} AS SELECT * FROM deep.q{levels}")
        for name in (f"tables/q{levels}", f"views/w{levels}"):
            answer = server.http.get(f"{server.path('deep')}/{name}")
            if levels <= MAX_SCHEMA_DEPTH:
                assert answer.status_code == 200, answer.text
            else:
                assert error_of(answer) == (406, "UnsupportedOperationException")
                assert "nested deeper than" in answer.json()["error"]["message"]
        # what cannot be shown is in nobody's way
        assert server.http.get(f"{server.path('deep')}/tables/t").status_code == 200
        db.execute(f"DROP VIEW deep.w{levels}; DROP TABLE deep.q{levels}")


@pytest.fixture(scope="module")
def table(server: Server, lake: TestLake) -> HandTable:
    return new_table(server, Bucket(lake.settings), "avro_depth")


class TestDepthOfAnAvroSchema:
    """A client's manifest says of what types it is. A type may be wrapped at will: {"type": {"type": …}}."""

    def wrapped(self, data: bytes, wrap: Callable[[Any], str]) -> bytes:
        """The same records, with the type of their first field told in another way."""
        meta, end = avro_theirs.strings_to_bytes_at(data, len(avro.MAGIC))
        declared = json.loads(meta[avro.SCHEMA])
        first, declared["fields"][0]["type"] = declared["fields"][0]["type"], "@"
        meta[avro.SCHEMA] = json.dumps(declared).replace('"@"', wrap(first)).encode()
        return avro.MAGIC + avro_encode.strings_to_bytes(meta) + data[end:]

    def sent(self, table: HandTable, first: int, wrap: Callable[[Any], str], *, whole_list: bool) -> httpx.Response:
        table.load()
        snapshot_id = new_snapshot_id()
        added = table.added([table.file(first)], snapshot_id)
        if not whole_list:
            data = self.wrapped(table.bucket.get(added.manifest_path), wrap)
            table.bucket.put(added.manifest_path, data)
            added = replace(added, manifest_length=len(data))
        listed = table.list_of([*table.manifests(), added], snapshot_id)
        if whole_list:
            table.bucket.put(listed, self.wrapped(table.bucket.get(listed), wrap))
        return table.send(shown(table.snapshot_json(listed, snapshot_id)))

    @pytest.mark.parametrize("whole_list", [False, True])
    @pytest.mark.parametrize("levels", [1, 100, 600, 1000, 1023, 2000, 100_000])
    def test_an_avro_schema_with_deeply_wrapped_types_is_read_or_refused(
        self, levels: int, whole_list: bool, table: HandTable, lake: TestLake
    ) -> None:
        def types(kind: Any) -> str:
            return '{"type":' * levels + json.dumps(kind) + "}" * levels

        before = lake.snapshots()
        answer = self.sent(table, 1, types, whole_list=whole_list)
        if levels <= 100:
            assert answer.status_code == 200, answer.text
        if answer.status_code != 200:
            assert error_of(answer) == BAD
            assert lake.snapshots() == before

    @pytest.mark.parametrize("opening", ['{"type":"array","items":', '{"type":"map","values":', "["])
    def test_an_avro_schema_with_a_deep_unsuitable_type_is_refused(
        self, opening: str, table: HandTable, lake: TestLake
    ) -> None:
        before = lake.snapshots()
        for levels in (1, 100, 1000, 100_000):
            closing = ("]" if opening == "[" else "}") * levels
            answer = self.sent(table, 1, lambda _: opening * levels + '"int"' + closing, whole_list=False)  # noqa: B023
            assert error_of(answer) == BAD
        assert lake.snapshots() == before


class Wire:
    """A connection without a library in between that has limits of its own."""

    def __init__(self, server: Server) -> None:
        address = urlsplit(server.uri)
        self.socket = socket.create_connection((address.hostname, address.port), 20)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> bool:
        """False if nobody takes it any more."""
        try:
            for part in parts:
                self.socket.sendall(part)
        except OSError:
            return False
        return True

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """After which the connection is closed."""
        said = bytearray()
        try:
            while part := self.socket.recv(65536):
                said += part
        except ConnectionResetError:
            pass
        head, _, body = bytes(said).partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


START = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
END = b"Connection: close\r\n\r\n"


class TestHead:
    def refused(self, wire: Wire, status: int = 431) -> None:
        found, headers, body = wire.answer()
        assert found == status
        assert headers["content-type"] == "application/json"
        assert headers["x-content-type-options"] == "nosniff"
        assert int(headers["content-length"]) == len(body)
        error = json.loads(body)["error"]
        assert error["code"] == status
        assert error["type"] == {431: "RequestHeaderFieldsTooLargeException", 400: "BadRequestException"}[status]

    def test_a_request_head_below_the_limits_is_accepted(self, server: Server) -> None:
        many = b"".join(b"X-%d: y\r\n" % n for n in range(MAX_HEADERS - 2))
        large = b"Authorization: Bearer " + b"x" * (MAX_HEAD_BYTES - 200) + b"\r\n"
        for more in (many, large):
            with Wire(server) as wire:
                wire.send(START + more + END)
                assert wire.answer()[0] == 200

    def test_a_request_head_with_too_many_headers_is_refused(self, server: Server) -> None:
        with Wire(server) as wire:
            wire.send(START + b"".join(b"X-%d: y\r\n" % n for n in range(MAX_HEADERS + 1)) + END)
            self.refused(wire)

    @pytest.mark.parametrize("size", [MAX_HEAD_BYTES + 1, 200_000])
    def test_a_request_head_that_is_too_large_is_refused(self, size: int, server: Server) -> None:
        for head in (START + b"X: " + b"y" * size + b"\r\n", b"GET /" + b"y" * size + b" HTTP/1.1\r\nHost: x\r\n"):
            with Wire(server) as wire:
                wire.send(head + END)
                self.refused(wire)

    def test_a_request_head_whose_headers_are_too_large_together_is_refused(self, server: Server) -> None:
        with Wire(server) as wire:
            wire.send(START + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(MAX_HEADERS - 10)) + END)
            self.refused(wire)

    @pytest.mark.parametrize(
        "start",
        [
            START + b"X: ",
            START + b"X",
            b"GET /",
            b"POST /v1/lake/namespaces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        ],
        ids=["value", "name", "path", "trailer"],
    )
    def test_a_request_head_that_never_ends_is_cut_off(self, start: bytes, server: Server) -> None:
        """Nor kept: 64 MB of it would be."""
        with Wire(server) as wire:
            part = b"y" * 65536
            began = time.monotonic()
            assert not wire.send(start, *[part] * 1024)
            assert time.monotonic() - began < 20
        assert server.http.get("/healthz").status_code == 200

    def test_the_head_of_a_later_request_on_a_connection_is_limited(self, server: Server) -> None:
        with Wire(server) as wire:
            for _ in range(3):
                wire.send(START + b"X: " + b"y" * 50_000 + b"\r\n\r\n")
                # head and body may come apart
                answer = b""
                while not answer.endswith(b"}"):
                    answer += wire.socket.recv(65536)
                assert answer.startswith(b"HTTP/1.1 200")
            wire.send(START + b"X: " + b"y" * 70_000 + b"\r\n\r\n")
            self.refused(wire)

    def test_bytes_that_are_not_http_get_an_iceberg_error(self, server: Server) -> None:
        for said in (b"\x16\x03\x01\x02\x00\x01\x00", b"HELLO\r\n\r\n", START + b"No colon\r\n\r\n"):
            with Wire(server) as wire:
                wire.send(said)
                self.refused(wire, 400)

    def test_the_limit_of_the_head_does_not_limit_the_body(self, server: Server) -> None:
        body = json.dumps({"namespace": ["large"], "properties": {"a": "x" * 1_000_000}}).encode()
        parts = (body[at : at + 100_000] for at in range(0, len(body), 100_000))
        assert server.http.post(server.namespaces, content=parts, headers=JSON).status_code == 200
