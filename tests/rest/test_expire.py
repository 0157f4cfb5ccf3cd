"""Expiry of the lake's snapshots: what goes, what is kept for whom, and what both engines read afterwards."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import httpx
import pytest

from tests.support import lakes, loads, servers
from tests.support.lakes import TestLake
from tests.support.loads import catalog
from tests.support.servers import Server, error_of

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


def test_everything_but_what_tables_are(lake: TestLake, server: Server, past: dict[str, int]) -> None:
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


def test_a_dry_run_counts_and_does_nothing(lake: TestLake, server: Server, past: dict[str, int]) -> None:
    before = live(lake)
    job = expire(server, older_than_seconds=0, dry_run=True).json()
    assert job["progress"]["expirable"] == len(past)
    assert "expired" not in job["progress"]
    assert live(lake) == before


def test_only_what_is_old(lake: TestLake, server: Server, past: dict[str, int]) -> None:
    lake.sql(
        "UPDATE ducklake_snapshot SET snapshot_time = now() - interval '3 days' WHERE snapshot_id <= %s",
        past["insert 1"],
    )
    expire(server, older_than_seconds=86400)
    assert live(lake) == [past["quiet"], past["insert 2"], past["insert 3"], past["delete"]]
    expire(server, older_than=(datetime.now(UTC) - timedelta(hours=1)).isoformat())
    assert past["insert 2"] in live(lake)
    assert_both_agree(lake, server, "main.busy")


def test_the_last_so_many_stay(lake: TestLake, server: Server, past: dict[str, int]) -> None:
    expire(server, older_than_seconds=0, retain_last=3)
    assert live(lake) == [past["quiet"], past["insert 2"], past["insert 3"], past["delete"]]


def test_what_has_a_name_stays(lake: TestLake, server: Server, past: dict[str, int]) -> None:
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


def test_what_a_table_wants_of_its_past_stays(lake: TestLake, server: Server, past: dict[str, int]) -> None:
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


def test_files_go_when_no_snapshot_needs_them(lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection) -> None:
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
def test_bad_requests(server: Server, body: dict[str, Any]) -> None:
    assert error_of(server.http.post(f"{ADMIN}/expire", json=body)) == (400, "BadRequestException")
