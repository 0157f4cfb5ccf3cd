"""Expiry of the lake's snapshots: what goes, what is kept for whom, and what both engines read afterwards."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

from tests.support import lakes, loads, servers, vended
from tests.support.lakes import TestLake
from tests.support.loads import catalog
from tests.support.servers import Server, error_of
from tests.support.waits import make_jobs_due

ADMIN = "/v1/lake/admin"


@pytest.fixture
def lake() -> Iterator[TestLake]:
    """Each test has its own: an expiry is about all of it."""
    with lakes.lake() as made:
        yield made


@pytest.fixture
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), grace_seconds=0) as running:
        yield running


def expire(server: Server, **body: Any) -> httpx.Response:
    return server.http.post(f"{ADMIN}/expire", json={k.replace("_", "-"): v for k, v in body.items()})


def live(lake: TestLake) -> list[int]:
    return [row[0] for row in lake.sql("SELECT snapshot_id FROM ducklake_snapshot ORDER BY 1")]


def head(lake: TestLake) -> int:
    return live(lake)[-1]


def assert_both_agree(lake: TestLake, server: Server, name: str) -> None:
    with lake.duckdb() as session:
        assert loads.assert_readable(lake, server, session, name.removeprefix("main."))


@pytest.fixture
def past(lake: TestLake, db: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Two tables: one that goes on, one that was made and left. By what happened, the snapshot that did it."""
    at: dict[str, int] = {}
    db.execute("CREATE TABLE quiet (i INTEGER)")
    db.execute("INSERT INTO quiet SELECT range FROM range(50)")
    at["quiet"] = head(lake)
    db.execute("CREATE TABLE busy (i INTEGER)")
    at["made"] = head(lake)
    for k in range(4):
        db.execute(f"INSERT INTO busy SELECT range + {k * 100} FROM range(100)")
        at[f"insert {k}"] = head(lake)
    db.execute("DELETE FROM busy WHERE i < 150")
    at["delete"] = head(lake)
    return at


def test_an_expiry_keeps_only_the_newest_snapshot_of_each_table(
    lake: TestLake, server: Server, past: dict[str, int]
) -> None:
    answer = expire(server, older_than_seconds=0)
    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] == "done"
    # the newest of either table, which for one of them is the newest of all
    assert live(lake) == [past["quiet"], past["delete"]]
    assert answer.json()["progress"]["expired"] == len(past)
    for name in ("main.quiet", "main.busy"):
        assert_both_agree(lake, server, name)
    # a reader that follows a table by its snapshots does not lose its place
    assert catalog(lake.settings, server).load_table("main.quiet").metadata.current_snapshot_id == past["quiet"]


def test_a_dry_run_of_an_expiry_counts_snapshots_and_changes_nothing(
    lake: TestLake, server: Server, past: dict[str, int]
) -> None:
    before = live(lake)
    job = expire(server, older_than_seconds=0, dry_run=True).json()
    assert job["progress"]["expirable"] == len(past)
    assert "expired" not in job["progress"]
    assert live(lake) == before


def test_an_expiry_removes_only_snapshots_older_than_the_limit(
    lake: TestLake, server: Server, past: dict[str, int]
) -> None:
    lake.sql(
        "UPDATE ducklake_snapshot SET snapshot_time = now() - interval '3 days' WHERE snapshot_id <= %s",
        past["insert 1"],
    )
    expire(server, older_than_seconds=86400)
    assert live(lake) == [past["quiet"], past["insert 2"], past["insert 3"], past["delete"]]
    expire(server, older_than=(datetime.now(UTC) - timedelta(hours=1)).isoformat())
    assert past["insert 2"] in live(lake)
    assert_both_agree(lake, server, "main.busy")


def test_retain_last_keeps_the_last_snapshots(lake: TestLake, server: Server, past: dict[str, int]) -> None:
    expire(server, older_than_seconds=0, retain_last=3)
    assert live(lake) == [past["quiet"], past["insert 2"], past["insert 3"], past["delete"]]


def test_an_expiry_keeps_tagged_snapshots(lake: TestLake, server: Server, past: dict[str, int]) -> None:
    body = {"name": "audit", "snapshot-id": past["insert 0"]}
    assert server.http.post(f"{ADMIN}/tags", json=body).status_code == 200
    table = catalog(lake.settings, server).load_table("main.busy")
    table.manage_snapshots().create_tag(past["insert 2"], "release").commit()
    expire(server, older_than_seconds=0)
    assert live(lake)[:3] == [past["quiet"], past["insert 0"], past["insert 2"]]
    table = catalog(lake.settings, server).load_table("main.busy")
    assert len(table.scan(snapshot_id=table.refs()["release"].snapshot_id).to_arrow()) == 300
    at_tag = server.http.get("/v1/lake@audit/namespaces/main/tables/busy")
    assert at_tag.status_code == 200
    # when the names are gone, so are they
    server.http.delete(f"{ADMIN}/tags/audit")
    table.manage_snapshots().remove_tag("release").commit()
    expire(server, older_than_seconds=0)
    assert len(live(lake)) == 2


def test_an_expiry_respects_the_history_properties_of_tables(
    lake: TestLake, server: Server, past: dict[str, int]
) -> None:
    with catalog(lake.settings, server).load_table("main.busy").transaction() as tx:
        tx.set_properties({"history.expire.min-snapshots-to-keep": "3"})
    expire(server, older_than_seconds=0)
    assert live(lake) == [past["quiet"], past["insert 2"], past["insert 3"], past["delete"]]
    with catalog(lake.settings, server).load_table("main.quiet").transaction() as tx:
        tx.set_properties({"history.expire.max-snapshot-age-ms": "soon"})
    job = expire(server, older_than_seconds=0).json()
    assert job["progress"]["unclear"] == [
        "history.expire.max-snapshot-age-ms is 'soon', which is no whole number from 0 on"
    ]


def test_an_expiry_deletes_files_that_no_snapshot_needs(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE t (i INTEGER)")
    for k in range(3):
        db.execute(f"INSERT INTO t SELECT range + {k * 100} FROM range(100)")
    db.execute("DELETE FROM t WHERE i < 100")
    job = expire(server, older_than_seconds=0).json()
    assert job["progress"]["cleaned-files"] >= 1
    assert lake.sql("SELECT count(*) FROM ducklake_files_scheduled_for_deletion") == [(0,)]
    assert_both_agree(lake, server, "main.t")


@pytest.mark.parametrize(
    "body",
    [
        {"older-than": "yesterday"},
        {"older-than-seconds": -1},
        {"retain-last": 0},
        {},
        {"older-than-seconds": 1, "older-than": "2026-01-01T00:00:00Z"},
        {"older-than": "2026-01-01T00:00:00"},
    ],
)
def test_malformed_expire_requests_are_bad_requests(server: Server, body: dict[str, Any]) -> None:
    assert error_of(server.http.post(f"{ADMIN}/expire", json=body)) == (400, "BadRequestException")


# --- of snapshots that clients remove from one table


def settle(lake: TestLake, server: Server) -> list[dict[str, Any]]:
    """What was asked for is done, also what waits for its time; the jobs, the oldest first."""
    deadline = time.monotonic() + 60
    while True:
        make_jobs_due(lake)
        if not lake.sql("SELECT FROM job WHERE state IN ('waiting', 'running')"):
            break
        assert time.monotonic() < deadline, server.log.read_text()[-3000:]
        time.sleep(0.02)
    found = server.http.get(f"{ADMIN}/jobs").json()["jobs"][::-1]
    assert [job["error"] for job in found] == [None] * len(found)
    return found


def data_files(lake: TestLake) -> set[str]:
    """The names of the objects in the data path."""
    ((path,),) = lake.sql("SELECT value FROM ducklake_metadata WHERE key = 'data_path'")
    return {key.rpartition("/")[2] for key in vended.keys_below(lake.settings, path)}


def remove_all(lake: TestLake, server: Server, table: str) -> None:
    """All snapshots but the newest, as PyIceberg's expire_snapshots does."""
    loaded = catalog(lake.settings, server).load_table(("main", table))
    current = loaded.metadata.current_snapshot_id
    ids = [s.snapshot_id for s in loaded.snapshots() if s.snapshot_id != current]
    loaded.maintenance.expire_snapshots().by_ids(ids).commit()


def test_snapshots_removed_by_a_client_expire_unless_other_tables_need_them(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, past: dict[str, int]
) -> None:
    db.execute("INSERT INTO quiet SELECT range FROM range(60)")
    seen_by_other = head(lake)
    db.execute("INSERT INTO busy SELECT range + 1000 FROM range(100)")
    db.execute("CALL ducklake_merge_adjacent_files('lake')")
    db.execute("INSERT INTO busy SELECT range + 2000 FROM range(100)")
    files = data_files(lake)
    quiet = {at: db.execute(f"SELECT * FROM quiet AT (VERSION => {at}) ORDER BY 1").fetchall() for at in (2, 8, 9)}
    then = db.execute(f"SELECT * FROM busy AT (VERSION => {seen_by_other}) ORDER BY 1").fetchall()
    remove_all(lake, server, "busy")
    jobs = settle(lake, server)
    assert jobs[0]["progress"]["expired"] >= 4
    left = live(lake)
    # both what the other table was, and what this one was when the other changed
    assert {past["quiet"], past["made"], seen_by_other, head(lake)} <= set(left)
    assert not {past["insert 1"], past["insert 2"]} & set(left)
    for at, rows in quiet.items():
        if at in left:
            assert db.execute(f"SELECT * FROM quiet AT (VERSION => {at}) ORDER BY 1").fetchall() == rows
    assert db.execute(f"SELECT * FROM busy AT (VERSION => {seen_by_other}) ORDER BY 1").fetchall() == then
    # what was removed does not come back under the ids of snapshots in which the other table changed
    assert len(catalog(lake.settings, server).load_table("main.busy").snapshots()) == 1
    for name in ("main.quiet", "main.busy"):
        assert_both_agree(lake, server, name)
    # what a snapshot needs is there
    needed = {path.rpartition("/")[2] for (path,) in lake.sql("SELECT path FROM ducklake_data_file")}
    assert needed <= data_files(lake)
    assert lake.sql("SELECT FROM ducklake_files_scheduled_for_deletion") == []
    assert data_files(lake) <= files


def test_files_of_snapshots_removed_by_a_client_are_deleted_after_the_grace(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE t (i INTEGER)")
    for _ in range(3):
        db.execute("INSERT INTO t SELECT range FROM range(100)")
    db.execute("CALL ducklake_merge_adjacent_files('lake')")
    db.execute("DELETE FROM t WHERE i < 50")
    db.execute("CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)")
    db.execute("INSERT INTO t SELECT range FROM range(100)")
    before = data_files(lake)
    remove_all(lake, server, "t")
    settle(lake, server)
    assert len(data_files(lake)) < len(before)
    named = lake.sql("SELECT path FROM ducklake_data_file UNION SELECT path FROM ducklake_delete_file")
    assert data_files(lake) == {path.rpartition("/")[2] for (path,) in named}
    assert_both_agree(lake, server, "main.t")


def test_snapshots_removed_by_a_client_are_kept_if_tagged_or_needed_for_undrop(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE dropped AS SELECT 7 AS i; CREATE TABLE t (i INTEGER)")
    at: list[int] = []
    for _ in range(4):
        db.execute("INSERT INTO t SELECT range FROM range(100)")
        at.append(head(lake))
    assert server.http.post(f"{ADMIN}/tags", json={"name": "audit", "snapshot-id": at[1]}).status_code == 200
    db.execute("DROP TABLE dropped")
    db.execute("INSERT INTO t SELECT range FROM range(100)")
    remove_all(lake, server, "t")
    settle(lake, server)
    assert [i for i in at if i in live(lake)] == [at[1], at[3]]
    assert server.http.post(f"{ADMIN}/namespaces/main/undrop", json={"name": "dropped"}).status_code == 200
    assert db.execute("SELECT * FROM dropped").fetchall() == [(7,)]
    assert_both_agree(lake, server, "main.t")


def test_removing_snapshots_with_gc_disabled_expires_nothing_in_ducklake(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, past: dict[str, int]
) -> None:
    with catalog(lake.settings, server).load_table("main.busy").transaction() as changes:
        changes.set_properties({"gc.enabled": "false"})
    before = live(lake)
    remove_all(lake, server, "busy")
    assert settle(lake, server) == []
    assert live(lake) == before
    assert len(catalog(lake.settings, server).load_table("main.busy").snapshots()) == 1


def test_a_purge_deletes_the_files_of_its_table_after_the_grace(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, past: dict[str, int]
) -> None:
    catalog(lake.settings, server).purge_table("main.busy")
    settle(lake, server)
    named = lake.sql("SELECT path FROM ducklake_data_file")
    assert data_files(lake) == {path.rpartition("/")[2] for (path,) in named}
    assert len(named) == 1
    assert_both_agree(lake, server, "main.quiet")


def test_gc_enabled_is_shown_as_false_on_a_local_disk_and_as_true_on_s3(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE t AS SELECT 1 AS i")
    assert catalog(lake.settings, server).load_table("main.t").properties["gc.enabled"] == "true"
    assert server.http.get("/v1/config").json()["overrides"]["s3.delete-enabled"] == "false"
    with (
        lakes.lake(data_path=f"file://{tmp_path}/lake/data/") as on_disk,
        servers.server(on_disk.settings, tmp_path) as its_server,
        on_disk.duckdb() as its_db,
    ):
        its_db.execute("CREATE TABLE t AS SELECT 1 AS i")
        assert catalog(on_disk.settings, its_server).load_table("main.t").properties["gc.enabled"] == "false"
