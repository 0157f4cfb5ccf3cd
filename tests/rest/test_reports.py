"""Reports of clients on their scans and commits: taken, measured, kept for a while, and never in anybody's way."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import httpx
import psycopg
import pytest

from mergus.rest.reports import LARGEST
from tests.support import lakes, servers
from tests.support.commits import create
from tests.support.lakes import TestLake
from tests.support.listeners import eventually, samples
from tests.support.servers import Server, error_of
from tests.support.waits import lock_waiters, wait_for_requests

Json = dict[str, Any]

METRICS: Json = {
    "total-planning-duration": {"time-unit": "nanoseconds", "count": 1, "total-duration": 2_644_235_116},
    "result-data-files": {"unit": "count", "value": 12},
    "result-delete-files": {"unit": "count", "value": 0},
    "total-file-size-in-bytes": {"unit": "bytes", "value": 9_000_000_000_000},
}
SCAN: Json = {
    "report-type": "scan-report",
    "table-name": "lake.main.t",
    "snapshot-id": 7_412_193_043_800_610_213,
    "filter": {"type": "and", "left": {"type": "eq", "term": "ï", "value": 1.5}, "right": True},
    "schema-id": 3,
    "projected-field-ids": [1, 2],
    "projected-field-names": ["i", "ï"],
    "metrics": METRICS,
    "metadata": {"engine-name": "spark", "engine-version": "4.0"},
}
COMMIT: Json = {
    "report-type": "commit-report",
    "table-name": "lake.main.t",
    "snapshot-id": 4,
    "sequence-number": 4,
    "operation": "append",
    "metrics": {
        "total-duration": {"time-unit": "milliseconds", "count": 1, "total-duration": 40},
        "attempts": {"unit": "count", "value": 3},
    },
}


def send(server: Server, report: Json | bytes, table: str = "t", schema: str = "main") -> httpx.Response:
    content = report if isinstance(report, bytes) else json.dumps(report).encode()
    url = f"{server.path(schema)}/tables/{table}/metrics"
    return server.http.post(url, content=content, headers={"Content-Type": "application/json", "User-Agent": "me/1"})


def page(server: Server, table: str = "t", **params: str | int) -> Json:
    answer = server.http.get(f"/v1/lake/admin/namespaces/main/tables/{table}/reports", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def kept(server: Server, table: str = "t") -> list[Json]:
    return [r["report"] for r in page(server, table)["reports"]]


def numbered(number: int) -> Json:
    return {**COMMIT, "snapshot-id": number}


@pytest.fixture
def table(db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE OR REPLACE TABLE main.t(i INTEGER)")


@pytest.mark.usefixtures("table")
def test_reports_are_returned_as_sent_and_newest_first(server: Server) -> None:
    assert kept(server) == []
    assert (send(server, SCAN).status_code, send(server, COMMIT).content) == (204, b"")
    assert kept(server) == [COMMIT, SCAN]
    newest = page(server)["reports"][0]
    assert newest.keys() == {"report-id", "reported-at", "principal", "user-agent", "report"}
    assert (newest["principal"], newest["user-agent"]) == ("anonymous", "me/1")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(newest["reported-at"])).total_seconds()) < 60


@pytest.mark.usefixtures("table")
def test_pages_of_reports_have_a_maximum_size(server: Server) -> None:
    for number in range(103):
        send(server, numbered(number))
    first = page(server, pageSize=1000)
    assert [r["report"]["snapshot-id"] for r in first["reports"]] == list(range(102, 2, -1))
    send(server, numbered(103))
    # what came meanwhile moves nothing
    rest = page(server, pageToken=first["next-page-token"])
    assert [r["report"]["snapshot-id"] for r in rest["reports"]] == [2, 1, 0]
    assert rest["next-page-token"] is None


def test_reports_follow_their_table_through_a_rename(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE main.moved(i INTEGER)")
    send(server, COMMIT, "moved")
    db.execute("ALTER TABLE main.moved RENAME TO there; CREATE TABLE main.moved(i INTEGER)")
    assert kept(server, "there") == [COMMIT]
    assert kept(server, "moved") == []
    answer = server.http.get("/v1/lake/admin/namespaces/main/tables/nothing/reports")
    assert error_of(answer) == (404, "NoSuchTableException")


def test_a_report_for_a_staged_table_is_accepted(server: Server) -> None:
    """As Spark does for CREATE TABLE … AS SELECT."""
    assert error_of(send(server, COMMIT, "promised"))[0] == 404
    assert create(server, "main", "promised", stage_create=True).status_code == 200
    assert send(server, COMMIT, "promised").status_code == 204
    assert error_of(send(server, COMMIT, "promised_not"))[0] == 404


@pytest.mark.parametrize(("schema", "name"), [("main", "missing"), ("nowhere", "t"), ("main", "a%00b")])
def test_a_report_for_a_missing_table_is_not_found(schema: str, name: str, server: Server) -> None:
    assert error_of(send(server, SCAN, name, schema)) == (404, "NoSuchTableException")


def without(report: Json, key: str) -> Json:
    return {k: v for k, v in report.items() if k != key}


MALFORMED: list[Json | bytes] = [
    b"",
    b"[]",
    b"null",
    b"{",
    {},
    *(without(SCAN, key) for key in SCAN if key != "metadata"),
    *(without(COMMIT, key) for key in COMMIT),
    {**SCAN, "report-type": "other-report"},
    {**SCAN, "report-type": None},
    {**SCAN, "report-type": "commit-report"},
    {**SCAN, "snapshot-id": "1"},
    {**SCAN, "snapshot-id": 2**63},
    {**SCAN, "snapshot-id": 1.5},
    {**SCAN, "snapshot-id": True},
    {**SCAN, "filter": "i = 1"},
    {**SCAN, "filter": None},
    {**SCAN, "filter": {"value": 2**70}},
    {**SCAN, "filter": {"term": "\ud800"}},
    {**SCAN, "projected-field-ids": ["a"]},
    {**SCAN, "projected-field-names": "i"},
    {**SCAN, "metadata": {"a": 1}},
    {**SCAN, "metadata": {"a": "\0"}},
    {**SCAN, "metrics": []},
    {**SCAN, "metrics": {"a": 1}},
    {**SCAN, "metrics": {"a": {}}},
    {**SCAN, "metrics": {"a": {"unit": "count", "value": "1"}}},
    {**SCAN, "metrics": {"a": {"time-unit": "seconds", "count": 1}}},
    {**SCAN, "metrics": {"\ud800": {"unit": "count", "value": 1}}},
    {**SCAN, "table-name": "x" * LARGEST},
    b'{"report-type": "scan-report", "filter": ' + b'{"child": ' * 5000 + b"true" + b"}" * 5000 + b"}",
]


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("report", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_report_is_refused_and_not_stored(report: Json | bytes, server: Server) -> None:
    before = counted(server)
    assert error_of(send(server, report)) == (400, "BadRequestException")
    assert kept(server) == []
    assert counted(server) == before


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "more",
    [
        {"filter": True},
        {"filter": {"type": "eq", "term": "a", "value": "\0"}},
        {"snapshot-id": -1},
        {"metrics": {}},
        {"metrics": {"a": {"unit": "furlongs", "value": -(2**63)}}},
        {"projected-field-ids": [], "projected-field-names": []},
    ],
    ids=str,
)
def test_a_report_with_unusual_values_is_stored_unchanged(more: Json, server: Server) -> None:
    assert send(server, {**SCAN, **more}).status_code == 204
    assert kept(server) == [{**SCAN, **more}]


@pytest.mark.usefixtures("table")
def test_unknown_fields_of_a_report_are_left_out(server: Server) -> None:
    assert send(server, {**SCAN, "something-new": {"a": 1}}).status_code == 204
    assert kept(server) == [SCAN]


def counted(server: Server) -> dict[str, float]:
    found = samples(server.http.get("/metrics").text)
    return {dict(labels)["type"]: n for (name, labels), n in found.items() if name == "mergus_reports_total"}


@pytest.mark.usefixtures("table")
def test_reports_are_counted_in_the_metrics(server: Server) -> None:
    def read(name: str, **labels: str) -> float:
        return samples(server.http.get("/metrics").text).get((name, tuple(sorted(labels.items()))), 0.0)

    asked = (
        ("mergus_reports_total", {"type": "scan-report"}, 2),
        ("mergus_reports_total", {"type": "commit-report"}, 1),
        ("mergus_reported_seconds_count", {"type": "scan-report"}, 1),
        ("mergus_reported_seconds_sum", {"type": "scan-report"}, 2.644235116),
        ("mergus_reported_seconds_sum", {"type": "commit-report"}, 0.04),
        ("mergus_reported_scan_files_sum", {"content": "data"}, 12),
        ("mergus_reported_scan_files_count", {"content": "delete"}, 1),
        ("mergus_reported_commit_attempts_sum", {}, 3),
    )
    before = [read(name, **labels) for name, labels, _ in asked]
    nonsense = {
        "total-planning-duration": {"time-unit": "fortnights", "count": 1, "total-duration": 1},
        "result-data-files": {"unit": "count", "value": -5},
        "result-delete-files": {"time-unit": "seconds", "count": 1, "total-duration": -1},
    }
    for report in (SCAN, COMMIT, {**SCAN, "metrics": nonsense}):
        assert send(server, report).status_code == 204
    after = [read(name, **labels) for name, labels, _ in asked]
    grown = [round(b - a, 9) for a, b in zip(before, after, strict=True)]
    assert grown == [more for _, _, more in asked]


@pytest.mark.usefixtures("table")
def test_text_of_a_report_creates_no_metric_label(server: Server) -> None:
    odd = "never-seen-before"
    metric = {odd: {"unit": odd, "value": 1}, f"{odd}2": {"time-unit": odd, "count": 1, "total-duration": 1}}
    send(server, SCAN)
    send(server, {**SCAN, "table-name": odd, "metrics": metric, "metadata": {odd: odd}})
    send(server, {**COMMIT, "operation": odd, "metrics": metric})
    text = server.http.get("/metrics").text
    assert odd not in text
    assert set(re.findall(r'mergus_report\w+\{[^}]*(?:type|content)="([^"]*)"', text)) == {
        *("scan-report", "commit-report", "data", "delete")
    }


def test_old_reports_are_not_shown_and_are_deleted_when_new_ones_arrive(tmp_path: Path) -> None:
    with (
        lakes.lake(reports_seconds=3600) as lake,
        servers.server(lake.settings, tmp_path) as server,
        lake.duckdb() as db,
    ):
        db.execute("CREATE TABLE main.t(i INTEGER); CREATE TABLE main.u(i INTEGER)")
        for number in range(30):
            send(server, numbered(number))
        lake.sql("UPDATE table_report SET made_at = now() - interval '3601 seconds'")
        assert kept(server) == []
        for left in (30 - 20, 0):
            # of another table
            send(server, COMMIT, "u")
            assert lake.sql("SELECT count(*) FROM table_report WHERE made_at < now() - interval '1 hour'") == [(left,)]
        assert kept(server, "u") == [COMMIT, COMMIT]


def test_only_the_newest_reports_of_each_table_are_kept(tmp_path: Path) -> None:
    with (
        lakes.lake(reports_per_table=5) as lake,
        servers.server(lake.settings, tmp_path) as server,
        lake.duckdb() as db,
    ):
        db.execute("CREATE TABLE main.t(i INTEGER); CREATE TABLE main.u(i INTEGER)")
        send(server, numbered(77), "u")
        for number in range(12):
            send(server, numbered(number))
        assert [r["snapshot-id"] for r in kept(server)] == [11, 10, 9, 8, 7]
        assert [r["snapshot-id"] for r in kept(server, "u")] == [77]
        assert lake.sql("SELECT count(*) FROM table_report") == [(6,)]


def test_reports_are_counted_but_not_stored_if_the_retention_is_zero(tmp_path: Path) -> None:
    with lakes.lake(reports_seconds=0) as lake, servers.server(lake.settings, tmp_path) as server, lake.duckdb() as db:
        db.execute("CREATE TABLE main.t(i INTEGER)")
        assert send(server, SCAN).status_code == 204
        assert error_of(send(server, SCAN, "missing")) == (404, "NoSuchTableException")
        assert counted(server) == {"scan-report": 1}
        assert lake.sql("SELECT count(*) FROM table_report") == [(0,)]
        assert kept(server) == []


@pytest.mark.usefixtures("table")
def test_a_report_makes_no_snapshot_and_waits_for_no_lock(lake: TestLake, server: Server) -> None:
    state = "SELECT (SELECT max(snapshot_id) FROM ducklake_snapshot), (SELECT epoch FROM catalog)"
    before = lake.sql(state)
    with psycopg.connect(lake.settings.dsn) as writer:
        writer.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        began = time.monotonic()
        assert send(server, SCAN).status_code == 204
        assert time.monotonic() - began < 2
    assert lake.sql(state) == before


def test_reports_that_cannot_be_stored_do_not_block_other_requests(tmp_path: Path) -> None:
    with (
        lakes.lake(pool_max=3, pool_timeout=20.0) as lake,
        servers.server(lake.settings, tmp_path) as server,
        lake.duckdb() as db,
        psycopg.connect(lake.settings.dsn) as other,
    ):
        db.execute("CREATE TABLE main.t(i INTEGER)")
        other.execute("LOCK TABLE mergus.table_report IN ACCESS EXCLUSIVE MODE")
        with ThreadPoolExecutor(16) as pool:
            waiting = [pool.submit(send, server, SCAN) for _ in range(16)]
            wait_for_requests(server, 16)
            eventually(lambda: lock_waiters(lake, "table_report"), 10)
            assert not any(w.done() for w in waiting)
            began = time.monotonic()
            assert server.http.get(f"{server.path('main')}/tables/t").status_code == 200
            assert server.http.get(f"{server.path('main')}/tables").status_code == 200
            assert server.create("made_meanwhile").status_code == 200
            assert time.monotonic() - began < 5
            other.rollback()
            assert [w.result(30).status_code for w in waiting] == [204] * 16
        assert len(kept(server)) == 16


def test_concurrent_reports_do_not_block_each_other(tmp_path: Path) -> None:
    """Through two processes, each taking away what the other does, too."""
    with (
        lakes.lake(reports_per_table=10) as lake,
        servers.server(lake.settings, tmp_path, workers=2) as server,
        lake.duckdb() as db,
    ):
        db.execute("CREATE TABLE main.t(i INTEGER); CREATE TABLE main.u(i INTEGER)")

        def one(number: int) -> int:
            url = f"{server.uri}{server.path('main')}/tables/{'tu'[number % 2]}/metrics"
            return httpx.post(url, json=numbered(number), timeout=30).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(one, range(200))) == {204}
        for name in "tu":
            send(server, COMMIT, name)
            assert 10 <= len(kept(server, name)) <= 20
