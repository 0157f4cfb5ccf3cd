"""The endpoints that a cron job calls: what is done, what is said about it, and what is left alone."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

from tests.support import lakes, loads, servers
from tests.support.lakes import TestLake
from tests.support.loads import catalog
from tests.support.servers import Server, error_of

ADMIN = "/v1/lake/admin"


def small_files(db: duckdb.DuckDBPyConnection, schema: str, *, files: int = 4, table: str = "t") -> None:
    """Files of a hundred rows, one row that is inlined, and one that is deleted in Postgres alone."""
    db.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    db.execute(f"CREATE TABLE {schema}.{table} (i INTEGER)")
    for k in range(files):
        db.execute(f"INSERT INTO {schema}.{table} SELECT range + {k * 100} FROM range(100)")
    db.execute(f"INSERT INTO {schema}.{table} VALUES (-1)")
    db.execute(f"DELETE FROM {schema}.{table} WHERE i = 7")


def compact(server: Server, *path: str, **body: Any) -> httpx.Response:
    return server.http.post("/".join((ADMIN, *path, "compact")), json=body or None)


def live_files(lake: TestLake, schema: str, table: str = "t") -> int:
    query = """
        SELECT count(*) FROM ducklake_data_file f JOIN ducklake_table t ON t.table_id = f.table_id
        JOIN ducklake_schema s ON s.schema_id = t.schema_id
        WHERE s.schema_name = %s AND t.table_name = %s AND f.end_snapshot IS NULL AND t.end_snapshot IS NULL
    """
    return lake.sql(query, schema, table)[0][0]


def content(lake: TestLake, server: Server, schema: str, table: str = "t") -> set[int]:
    """As both sides have it, and they have the same."""
    with lake.duckdb() as session:
        theirs = sorted(row[0] for row in session.execute(f"SELECT i FROM {schema}.{table}").fetchall())
    found = catalog(lake.settings, server).load_table((schema, table)).scan().to_arrow()
    assert sorted(found["i"].to_pylist()) == theirs
    return set(theirs)


EXPECTED = {-1, *range(400)} - {7}


def test_the_compact_endpoint_compacts_a_table(lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection) -> None:
    small_files(db, "one")
    answer = compact(server, "namespaces", "one", "tables", "t")
    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert (job["state"], job["kind"], job["namespace"], job["table"]) == ("done", "compact", ["one"], "t")
    assert answer.headers["location"] == f"{ADMIN}/jobs/{job['job-id']}"
    (done,) = job["tables"]
    # the file with a deleted row is left as it is: one row of a hundred is not worth it, and DuckLake merges none
    assert done == {"namespace": ["one"], "table": "t", "flushed-rows": 1, "merged-files": 4, "merged-into": 1}
    assert job["progress"]["merged-files"] == 4
    assert job["progress"]["tables-done"] == job["progress"]["tables"] == 1
    assert live_files(lake, "one") == 2
    assert content(lake, server, "one") == EXPECTED
    # and again: there is nothing to do
    (done,) = compact(server, "namespaces", "one", "tables", "t").json()["tables"]
    assert done == {"namespace": ["one"], "table": "t"}


def test_a_dry_run_of_a_compaction_reports_its_work_and_changes_nothing(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    small_files(db, "dry")
    db.execute("DELETE FROM dry.t WHERE i >= 300 AND i < 380")
    before = lake.snapshots()
    job = compact(server, "namespaces", "dry", "tables", "t", **{"dry-run": True}).json()
    told = {"would-flush-rows": 1, "would-flush-deletes": 1, "would-rewrite-files": 1}
    assert job["tables"] == [
        {"namespace": ["dry"], "table": "t", **told, "would-merge-files": 2, "would-merge-into": 1}
    ]
    assert lake.snapshots() == before
    (done,) = compact(server, "namespaces", "dry", "tables", "t").json()["tables"]
    assert (done["flushed-rows"], done["rewritten-files"]) == (1, 1)
    assert content(lake, server, "dry") == {-1, *range(300), *range(380, 400)} - {7}


def test_a_compaction_rewrites_files_with_many_deletes(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    small_files(db, "many")
    db.execute("DELETE FROM many.t WHERE i >= 0 AND i % 100 < 40")
    snapshots = lake.snapshots()[-1][0]
    (done,) = compact(server, "namespaces", "many", "tables", "t").json()["tables"]
    assert done["rewritten-files"] == 4
    assert live_files(lake, "many") == 1
    now = {-1, *(i for i in range(400) if i % 100 >= 40)}
    assert content(lake, server, "many") == now
    # as it was before, for both
    with lake.duckdb() as session:
        then = session.execute(f"SELECT i FROM many.t AT (VERSION => {snapshots})").fetchall()
        assert {row[0] for row in then} == now
        assert loads.assert_readable(lake, server, session, schema="many")


def test_the_compact_endpoint_compacts_a_namespace_or_the_whole_catalog(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    small_files(db, "two")
    small_files(db, "two", table="u")
    small_files(db, "three")
    job = compact(server, "namespaces", "two").json()
    assert [t["table"] for t in job["tables"]] == ["t", "u"]
    assert live_files(lake, "two") == live_files(lake, "two", "u") == 2
    assert live_files(lake, "three") == 4
    answer = compact(server, **{"wait-seconds": 60})
    assert answer.status_code == 200
    assert (answer.json()["namespace"], answer.json()["table"]) == (None, None)
    assert live_files(lake, "three") == 2
    assert content(lake, server, "three") == EXPECTED


def test_a_compaction_can_be_limited_to_one_step(lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection) -> None:
    small_files(db, "flushed")
    (done,) = compact(server, "namespaces", "flushed", steps=["flush"]).json()["tables"]
    assert done["flushed-rows"] == 1
    assert live_files(lake, "flushed") == 5


class TestPolicies:
    def test_a_table_with_maintenance_disabled_is_not_compacted(
        self, lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
    ) -> None:
        small_files(db, "alone")
        table = catalog(lake.settings, server).load_table("alone.t")
        with table.transaction() as tx:
            tx.set_properties({"mergus.maintenance.enabled": "false"})
        (done,) = compact(server, "namespaces", "alone", "tables", "t").json()["tables"]
        assert done["left-alone"] == "mergus.maintenance.enabled is false"
        assert live_files(lake, "alone") == 4

    def test_a_maintenance_property_of_a_namespace_applies_to_its_tables(
        self, lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
    ) -> None:
        small_files(db, "steps")
        small_files(db, "steps", table="own")
        body = {"updates": {"mergus.maintenance.steps": "flush"}}
        assert server.http.post(f"{server.path('steps')}/properties", json=body).status_code == 200
        with catalog(lake.settings, server).load_table("steps.own").transaction() as tx:
            tx.set_properties({"mergus.maintenance.steps": "flush, merge"})
        compact(server, "namespaces", "steps")
        assert live_files(lake, "steps") == 5
        assert live_files(lake, "steps", "own") == 2

    def test_an_invalid_stored_maintenance_property_is_reported_as_failure(
        self, lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
    ) -> None:
        small_files(db, "senseless")
        query = (
            "INSERT INTO table_property SELECT table_id, %s, 'half' FROM ducklake_table ORDER BY table_id DESC LIMIT 1"
        )
        lake.sql(query, "mergus.maintenance.delete-ratio")
        job = compact(server, "namespaces", "senseless").json()
        assert job["tables"][0]["failed"] == {
            "policy": "mergus.maintenance.delete-ratio is 'half', which is no number from 0 to 1"
        }
        assert job["progress"]["failed-tables"] == 1
        assert live_files(lake, "senseless") == 4

    @pytest.mark.parametrize(
        ("key", "value"), [("enabled", "maybe"), ("steps", "flush,mrege"), ("delete-ratio", "2"), ("stpes", "flush")]
    )
    def test_an_invalid_maintenance_property_cannot_be_set(
        self, lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, key: str, value: str
    ) -> None:
        db.execute("CREATE SCHEMA IF NOT EXISTS refused; CREATE TABLE IF NOT EXISTS refused.t (i INTEGER)")
        properties = {f"mergus.maintenance.{key}": value}
        body = {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}
        answer = server.http.post(f"{server.path('refused')}/tables/t", json=body)
        assert error_of(answer) == (400, "BadRequestException")
        answer = server.http.post(f"{server.path('refused')}/properties", json={"updates": properties})
        assert error_of(answer) == (400, "BadRequestException")
        assert server.create(f"refused_{key}".replace("-", "_"), **properties).status_code == 400

    def test_a_compaction_does_not_merge_files_of_the_target_size(
        self, lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
    ) -> None:
        small_files(db, "large")
        with catalog(lake.settings, server).load_table("large.t").transaction() as tx:
            tx.set_properties({"write.target-file-size-bytes": "1"})
        compact(server, "namespaces", "large")
        assert live_files(lake, "large") == 5


class TestBadRequests:
    @pytest.mark.parametrize(
        "body",
        [
            {"steps": ["mrege"]},
            {"steps": []},
            {"delete-ratio": 2},
            {"max-files": 0},
            {"max-files": "many"},
            {"wait-seconds": 1e9},
            {"dryrun": True},
            [],
        ],
    )
    def test_malformed_compact_requests_are_bad_requests_and_start_no_job(
        self, lake: TestLake, server: Server, body: object
    ) -> None:
        before = lake.sql("SELECT count(*) FROM job")
        assert error_of(server.http.post(f"{ADMIN}/compact", json=body)) == (400, "BadRequestException")
        assert lake.sql("SELECT count(*) FROM job") == before

    def test_compacting_a_missing_namespace_table_or_job_is_not_found(self, server: Server) -> None:
        assert error_of(compact(server, "namespaces", "nowhere")) == (404, "NoSuchNamespaceException")
        assert error_of(compact(server, "namespaces", "nowhere", "tables", "t")) == (404, "NoSuchTableException")
        assert error_of(server.http.get(f"{ADMIN}/jobs/123456789")) == (404, "NotFoundException")
        assert error_of(server.http.post(f"{ADMIN}/jobs/123456789/cancel")) == (404, "NotFoundException")
        assert error_of(server.http.get(f"{ADMIN}/jobs/x"))[0] == 400

    def test_compacting_a_past_snapshot_is_forbidden(self, lake: TestLake, server: Server) -> None:
        at = lake.snapshots()[-1][0]
        answer = server.http.post(f"/v1/lake@{at}/admin/compact")
        assert error_of(answer) == (403, "ForbiddenException")


class TestJobs:
    def test_jobs_are_listed_newest_first(self, server: Server, db: duckdb.DuckDBPyConnection) -> None:
        db.execute("CREATE SCHEMA listed")
        numbers = [compact(server, "namespaces", "listed").json()["job-id"] for _ in range(3)]
        page = server.http.get(f"{ADMIN}/jobs", params={"pageSize": 2}).json()
        assert [job["job-id"] for job in page["jobs"]] == numbers[:0:-1]
        rest = server.http.get(f"{ADMIN}/jobs", params={"pageToken": page["next-page-token"]}).json()
        assert rest["jobs"][0]["job-id"] == numbers[0]
        one = server.http.get(f"{ADMIN}/jobs/{numbers[0]}").json()
        assert (one["state"], one["namespace"], one["tables"]) == ("done", ["listed"], [])


@pytest.fixture(scope="module")
def idle_lake() -> Iterator[TestLake]:
    with lakes.lake() as made:
        yield made


@pytest.fixture(scope="module")
def idle(idle_lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The only server of its lake: it takes jobs in and does none."""
    with servers.server(idle_lake.settings, tmp_path_factory.mktemp("idle"), maintenance="off") as running:
        yield running


class TestNobodyWorks:
    def test_a_repeated_compact_request_returns_the_waiting_job(self, idle: Server) -> None:
        first = compact(idle, **{"wait-seconds": 0})
        assert (first.status_code, first.json()["state"]) == (202, "waiting")
        assert first.headers["location"].endswith(f"/jobs/{first.json()['job-id']}")
        second = compact(idle, **{"wait-seconds": 0}).json()
        assert second["job-id"] == first.json()["job-id"]
        other = compact(idle, **{"wait-seconds": 0, "max-files": 5}).json()
        assert other["job-id"] != second["job-id"]
        for job in (second, other):
            gone = idle.http.post(f"{ADMIN}/jobs/{job['job-id']}/cancel").json()
            assert gone["state"] == "cancelled"
            assert gone["ended-at"] is not None
        # and once it has ended it is another
        third = compact(idle, **{"wait-seconds": 0}).json()
        assert third["job-id"] > other["job-id"]
        idle.http.post(f"{ADMIN}/jobs/{third['job-id']}/cancel")

    def test_a_server_that_starts_later_runs_waiting_jobs(
        self, idle_lake: TestLake, idle: Server, tmp_path: Path
    ) -> None:
        with idle_lake.duckdb() as db:
            small_files(db, "later")
        number = compact(idle, "namespaces", "later", **{"wait-seconds": 0.2}).json()["job-id"]
        assert live_files(idle_lake, "later") == 4
        with servers.server(idle_lake.settings, tmp_path):
            deadline = time.monotonic() + 30
            while (job := idle.http.get(f"{ADMIN}/jobs/{number}").json())["state"] != "done":
                assert time.monotonic() < deadline, job
                time.sleep(0.02)
        assert live_files(idle_lake, "later") == 2
        assert job["worker"] is not None
        assert job["started-at"] is not None
