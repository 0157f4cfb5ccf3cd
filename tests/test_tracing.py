"""Traces, as a collector receives them from real processes: one for each commit, whoever made it.

The server of most tests leaves storage to a listener in another process, so that what they share is in Postgres alone.
"""

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from secrets import token_hex

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from mergus import __version__
from tests.support import listeners, loads, servers
from tests.support.collector import Collector, Span, collector
from tests.support.lakes import TestLake
from tests.support.listeners import Listener
from tests.support.servers import Server

MATERIALISE = "materialise table"
COMMIT = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}"
LOAD = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}"
SCHEMA = pa.schema([("i", pa.int64())])


@dataclass
class Traced:
    lake: TestLake
    server: Server
    listener: Listener
    collector: Collector

    def append(self, table: str, numbers: list[int], traceparent: str | None = None) -> int:
        """A commit of PyIceberg's, to a table that is made if need be; the snapshot that it made."""
        headers = {"header.traceparent": traceparent} if traceparent else {}
        known = {"uri": self.server.uri, "warehouse": "lake", **loads.s3_properties(self.lake.settings)}
        catalog = load_catalog("lake", type="rest", **known)
        catalog.create_table_if_not_exists(f"main.{table}", SCHEMA)
        load_catalog("lake", type="rest", **known, **headers).load_table(f"main.{table}").append(
            pa.table({"i": numbers}, schema=SCHEMA)
        )
        return listeners.head(self.lake)

    def materialised(self, snapshot_id: int, count: int = 1) -> list[Span]:
        """The listener's spans for a snapshot."""
        return self.collector.wait_for(
            lambda s: s.name == MATERIALISE and snapshot_id in s["mergus.snapshot.ids"], count=count
        )

    def commit_of(self, snapshot_id: int) -> Span:
        found = self.collector.wait_for(lambda s: s.name == "TRANSACTION" and s["mergus.snapshot.id"] == snapshot_id)
        assert len(found) == 1
        return found[0]


@pytest.fixture(scope="module")
def traced(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    with (
        collector() as to,
        servers.server(lake.settings, folder, tracing="otlp", listener="off") as server,
        listeners.listener(lake.settings, folder, tracing="otlp") as listener,
    ):
        listeners.wait_until_caught_up(lake, 20)
        yield Traced(lake, server, listener, to)


def traceparent(flags: str = "01") -> tuple[str, str, str]:
    """A trace and a span of a client's, and the header that tells of them."""
    trace_id, span_id = token_hex(16), token_hex(8)
    return trace_id, span_id, f"00-{trace_id}-{span_id}-{flags}"


def assert_conventional(spans: list[Span]) -> None:
    """Each says of itself what its kind has to, once."""
    assert len({span.id for span in spans}) == len(spans)
    # of two processes that set signs to a table's metadata one gives way, and tries again
    signing = {span.parent_id for span in spans if span["mergus.statement"] == "annex.tables.TRY_TO_SIGN"}
    assert [(span.name, dict(span.attributes)) for span in spans if span.failed and span.id not in signing] == []
    for span in spans:
        assert span.said == ""
        assert span.end >= span.start
        assert span.resource["service.name"] == "mergus"
        if span.name.startswith("S3."):
            assert (span.kind, span["rpc.system"], span["rpc.service"]) == ("client", "aws-api", "S3")
            assert span.name == f"S3.{span['rpc.method']}"
            assert span["aws.s3.bucket"] == "mergus"
            assert "?" not in span["aws.s3.key"]
        elif span.kind == "client":
            assert span["db.system.name"] == "postgresql"
            assert span["db.namespace"].startswith("t_")
            assert "db.query.text" not in span.attributes


def below(spans: list[Span], top: Span) -> list[Span]:
    found = [span for span in spans if span.parent_id == top.id]
    return found + [deeper for span in found for deeper in below(spans, span)]


def objects_put(spans: list[Span]) -> list[str]:
    return [s["aws.s3.key"] for s in spans if s.name == "S3.PutObject" and s["http.request.body.size"] > 0]


class TestACommitOfAClient:
    def test_a_client_commit_is_one_trace_from_the_client_to_storage(self, traced: Traced) -> None:
        trace_id, client, header = traceparent()
        snapshot_id = traced.append("commits", [1, 2, 3], header)
        (work,) = traced.materialised(snapshot_id)
        (request,) = traced.collector.wait_for(lambda s: s.trace_id == trace_id and s.name == COMMIT)
        spans = traced.collector.whole_trace(trace_id, client)
        assert_conventional(spans)
        # what it asked before it committed is in its trace, too
        assert [s.name for s in spans if s.parent_id == client] == ["GET /v1/config", LOAD, COMMIT]
        spans = below(spans, request)
        transaction = traced.commit_of(snapshot_id)
        assert transaction.parent_id == request.id
        statements = {s["mergus.statement"]: s for s in spans if s.parent_id == transaction.id}
        assert {"ducklake.commit.LOCK", "ducklake.commit.INSERT_SNAPSHOT"} <= set(statements)
        assert statements["ducklake.commit.INSERT_SNAPSHOT"].name == "INSERT ducklake_snapshot"
        assert (work.kind, work.parent_id, work["mergus.snapshot.ids"]) == ("consumer", transaction.id, [snapshot_id])
        # by another process
        assert work.resource["process.pid"] == traced.listener.process.pid
        assert request.resource["process.pid"] == traced.server.process.pid
        put = objects_put(spans)
        bucket = loads_bucket(traced)
        made = {key.rsplit("/", 1)[1] for key in bucket}
        assert {key.rsplit("/", 1)[1] for key in put} <= made
        assert any(re.search(r"/snap-\d+-\w+\.avro$", key) for key in put)
        assert any(key.endswith(".metadata.json") for key in put)

    def test_request_spans_follow_the_http_semantic_conventions(self, traced: Traced) -> None:
        trace_id, _, header = traceparent()
        answer = traced.server.http.get("/v1/lake/namespaces?pageSize=7", headers={"traceparent": header})
        (span,) = traced.collector.wait_for(lambda s: s.trace_id == trace_id and s.kind == "server")
        assert span.name == "GET /v1/{prefix}/namespaces"
        host, port = traced.server.uri.removeprefix("http://").split(":")
        assert span.attributes == {
            "http.request.method": "GET",
            "http.route": "/v1/{prefix}/namespaces",
            "http.response.status_code": 200,
            "http.response.header.x-request-id": [answer.headers["x-request-id"]],
            "url.path": "/v1/lake/namespaces",
            "url.scheme": "http",
            "network.protocol.version": "1.1",
            "server.address": host,
            "server.port": int(port),
            "user_agent.original": traced.server.http.headers["user-agent"],
            "mergus.operation": "listNamespaces",
            "mergus.principal.kind": "anonymous",
        }
        assert span.resource["service.version"] == __version__

    def test_a_client_commit_stores_its_trace_id_in_the_log_and_in_ducklake(self, traced: Traced) -> None:
        trace_id, _, header = traceparent()
        answer = traced.server.http.post(
            "/v1/lake/namespaces", json={"namespace": ["logged"]}, headers={"traceparent": header, "tracestate": "a=b"}
        )
        rid = answer.headers["x-request-id"]
        listeners.eventually(lambda: rid in traced.server.log.read_text(), 5)
        lines = [json.loads(line) for line in traced.server.log.read_text().splitlines()]
        assert [line["trace_id"] for line in lines if line.get("request_id") == rid] == [trace_id]
        ((extra,),) = traced.lake.sql(
            "SELECT commit_extra_info FROM ducklake_snapshot_changes ORDER BY snapshot_id DESC LIMIT 1"
        )
        transaction = traced.commit_of(listeners.head(traced.lake))
        kept = json.loads(extra)
        assert (kept["traceparent"], kept["tracestate"]) == (f"00-{trace_id}-{transaction.id}-01", "a=b")
        assert kept["request-id"] == rid

    def test_a_commit_that_the_client_does_not_sample_is_not_traced(self, traced: Traced) -> None:
        trace_id, _, header = traceparent("00")
        unsampled = traced.append("unsampled", [1], header)
        ((extra,),) = traced.lake.sql(
            "SELECT commit_extra_info FROM ducklake_snapshot_changes WHERE snapshot_id = %s", unsampled
        )
        assert re.fullmatch(f"00-{trace_id}-[0-9a-f]{{16}}-00", json.loads(extra)["traceparent"])
        listeners.wait_until_caught_up(traced.lake, 10)
        traced.materialised(traced.append("unsampled", [2]))
        listeners.wait_until_caught_up(traced.lake, 10)
        assert traced.collector.trace(trace_id) == []
        assert not [s for s in traced.collector.spans if unsampled in (s["mergus.snapshot.ids"] or [])]

    def test_a_commit_of_several_snapshots_is_materialised_in_one_span(self, traced: Traced) -> None:
        """PyIceberg's overwrite is a delete and an append."""
        before = traced.append("overwritten", [1, 2])
        listeners.wait_until_caught_up(traced.lake, 10)
        catalog = loads.catalog(traced.lake.settings, traced.server)
        catalog.load_table("main.overwritten").overwrite(pa.table({"i": [3]}, schema=SCHEMA))
        made = listeners.head(traced.lake)
        assert made == before + 2
        (work,) = traced.materialised(made)
        assert work["mergus.snapshot.ids"] == [before + 1, made]
        assert work.links == ()
        assert work.parent_id == traced.commit_of(made).id

    def test_commits_materialised_together_have_a_span_in_each_trace(self, traced: Traced) -> None:
        for number in (1, 2):
            traced.append("burst", [number])
        listeners.wait_until_caught_up(traced.lake, 10)
        traced.listener.signal(signal.SIGSTOP)
        try:
            first, _, first_header = traceparent()
            second, _, second_header = traceparent()
            older = traced.append("burst", [3], first_header)
            with traced.lake.duckdb() as db:
                db.execute("INSERT INTO main.burst VALUES (4)")
            newer = traced.append("burst", [5], second_header)
        finally:
            traced.listener.signal(signal.SIGCONT)
        assert newer == older + 2
        spans = {span.trace_id: span for span in traced.materialised(older, count=2)}
        assert set(spans) == {first, second}
        done, told_of = spans[second], spans[first]
        assert (done["mergus.snapshot.ids"], told_of["mergus.snapshot.ids"]) == ([older, older + 1, newer], [older])
        assert done.parent_id == traced.commit_of(newer).id
        assert told_of.parent_id == traced.commit_of(older).id
        assert done.links == ((first, traced.commit_of(older).id),)
        assert told_of.links == ((second, done.id),)
        assert told_of.end >= done.end


def loads_bucket(traced: Traced) -> list[str]:
    bucket = loads.Bucket(traced.lake.settings)
    ((root,),) = traced.lake.sql("SELECT value FROM ducklake_metadata WHERE key = 'data_path'")
    return bucket.below(root.rstrip("/") + "-iceberg/")


def tell(db: duckdb.DuckDBPyConnection, header: str) -> None:
    """Of the trace that the transaction is in."""
    extra = json.dumps({"traceparent": header})
    db.execute(f"CALL lake.set_commit_message('me', 'why', extra_info => '{extra}')")


class TestACommitOfDuckDB:
    def test_a_duckdb_commit_is_a_trace_started_by_the_listener(self, traced: Traced) -> None:
        with traced.lake.duckdb() as db:
            db.execute("CREATE TABLE main.ducks AS SELECT range AS i FROM range(1000)")
            listeners.wait_until_caught_up(traced.lake, 10)
            db.execute("INSERT INTO main.ducks SELECT range FROM range(1000)")
        inserted = listeners.head(traced.lake)
        (created,), (work,) = traced.materialised(inserted - 1), traced.materialised(inserted)
        assert created.trace_id != work.trace_id
        for root, snapshot_id in ((created, inserted - 1), (work, inserted)):
            ((table_id,),) = traced.lake.sql("SELECT table_id FROM ducklake_table WHERE table_name = 'ducks'")
            assert (root.parent_id, root.kind, root["mergus.table.id"]) == ("", "consumer", table_id)
            spans = traced.collector.whole_trace(root.trace_id, "")
            assert_conventional(spans)
            assert {s.resource["process.pid"] for s in spans} == {traced.listener.process.pid}
            assert any(f"/snap-{snapshot_id}-" in key for key in objects_put(spans))
            assert any(s["mergus.statement"] == "annex.chains.WRITE" for s in spans)

    def test_a_duckdb_commit_with_a_traceparent_joins_that_trace(self, traced: Traced) -> None:
        trace_id, span_id, header = traceparent()
        with traced.lake.duckdb() as db:
            db.execute("CREATE TABLE main.told (i BIGINT)")
            db.execute("BEGIN")
            db.execute("INSERT INTO main.told VALUES (1)")
            tell(db, header)
            db.execute("COMMIT")
        (work,) = traced.materialised(listeners.head(traced.lake))
        assert (work.trace_id, work.parent_id) == (trace_id, span_id)


def test_a_cached_load_is_one_span_and_probes_are_not_traced(traced: Traced) -> None:
    traced.append("ready", [1])
    listeners.wait_until_caught_up(traced.lake, 10)
    loads.get(traced.server, "ready")
    trace_id, client, header = traceparent()
    for path in ("/healthz", "/readyz", "/metrics"):
        traced.server.http.get(path, headers={"traceparent": header})
    assert traced.server.http.get(loads.url(traced.server, "ready"), headers={"traceparent": header}).status_code == 200
    (load,) = traced.collector.wait_for(lambda s: s.trace_id == trace_id)
    assert (load.name, load.parent_id, load["mergus.operation"]) == (LOAD, client, "loadTable")
    assert load["mergus.principal.kind"] == "anonymous"
    # what comes later is sent later: when it is here, nothing of before is under way
    last, _, header = traceparent()
    assert traced.server.http.get(loads.url(traced.server, "ready"), headers={"traceparent": header}).status_code == 200
    traced.collector.wait_for(lambda s: s.trace_id == last)
    assert traced.collector.trace(trace_id) == [load]


def test_spans_of_refused_requests_carry_no_message_text(traced: Traced) -> None:
    (missing, _, header) = traceparent()
    traced.server.http.get("/v1/lake/namespaces/nowhere/tables/t", headers={"traceparent": header})
    unknown = traced.server.http.request("PROPFIND", "/coffee", headers={"traceparent": "00-beans"})
    rid = unknown.headers["x-request-id"]
    (span,) = traced.collector.wait_for(lambda s: s["http.response.header.x-request-id"] == [rid])
    assert (span.name, span["http.request.method"], span.parent_id) == ("HTTP", "_OTHER", "")
    assert "http.route" not in span.attributes
    (span,) = traced.collector.wait_for(lambda s: s.trace_id == missing and s.kind == "server")
    # by the conventions, an error of the client's is none of the server's
    assert (span["http.response.status_code"], span.failed, span.said) == (404, False, "")


def test_failed_materialisation_is_retried_in_the_trace_of_its_commit(traced: Traced) -> None:
    trace_id, span_id, header = traceparent()
    with traced.lake.duckdb() as db:
        db.execute("BEGIN")
        db.execute("CREATE TABLE main.unseen (i INTERVAL)")
        tell(db, header)
        db.execute("COMMIT")
        made = listeners.head(traced.lake)
        attempts = traced.materialised(made, count=2)
        db.execute("DROP TABLE main.unseen")
    for span in attempts:
        assert (span.trace_id, span.parent_id, span["mergus.snapshot.ids"]) == (trace_id, span_id, [made])
        assert (span.failed, span["error.type"], span.said) == (True, "Unsupported", "")
    failures = [json.loads(line) for line in traced.listener.said.splitlines() if "cannot be put on storage" in line]
    assert {line["trace_id"] for line in failures} == {trace_id}
