"""Sweeping and looking for orphans, as one asks for it; what they remove is tested in tests/maintenance."""

from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest

from tests.support import loads
from tests.support.lakes import TestLake
from tests.support.loads import catalog
from tests.support.servers import Server, error_of

ADMIN = "/v1/lake/admin"


def ask(server: Server, path: str, **body: Any) -> dict[str, Any]:
    answer: httpx.Response = server.http.post(f"{ADMIN}/{path}", json={**body, "wait-seconds": 60}, timeout=90)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["state"], answer.json()["error"]) == ("done", None)
    return answer.json()["progress"]


def assert_both_read(lake: TestLake, server: Server, rows: int) -> None:
    with lake.duckdb() as fresh:
        loads.assert_readable(lake, server, fresh)
        assert fresh.execute("SELECT coalesce(len(list(i)), 0) FROM t").fetchall() == [(rows,)]


def test_the_sweep_endpoint_deletes_objects_that_nothing_needs(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE t (i BIGINT)")
    for k in range(3):
        db.execute(f"INSERT INTO t SELECT range + {k * 100} FROM range(100)")
        catalog(lake.settings, server).load_table("main.t").append(pa.table({"i": [1000 + k]}))
    db.execute("INSERT INTO t VALUES (5000); DELETE FROM t WHERE i = 7")
    assert_both_read(lake, server, 303)
    ask(server, "compact")
    assert_both_read(lake, server, 303)
    # within the grace nothing goes
    assert ask(server, "sweep").get("objects", 0) == 0
    told = ask(server, "sweep", **{"grace-seconds": 0, "dry-run": True})
    assert told["paths"]
    swept = ask(server, "sweep", **{"grace-seconds": 0})
    assert swept["objects"] >= len(told["paths"])
    assert swept["bytes"] > 0
    assert_both_read(lake, server, 303)


def are_there(db: duckdb.DuckDBPyConnection, path: str) -> int:
    """Of a name without a star DuckDB says that it is there, without looking."""
    return db.execute(f"SELECT count(*) FROM glob('{path.removesuffix('t')}*')").fetchall()[0][0]


def test_the_orphans_endpoint_deletes_orphans_of_ducklake_and_iceberg(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS t (i BIGINT)")
    before = db.execute("SELECT count(*) FROM t").fetchall()[0][0]
    location = server.http.get(f"{server.path('main')}/tables/t").json()["metadata"]["location"]
    strays = [f"{location}/data/stray.parquet", f"{lake.settings.data_path}main/t/stray.parquet"]
    for stray in strays:
        db.execute(f"COPY (SELECT 1 AS i) TO '{stray}'")
    # those of a client whose job still runs would look the same
    assert ask(server, "orphans").get("objects", 0) == 0
    assert [are_there(db, stray) for stray in strays] == [1, 1]
    done = ask(server, "orphans", **{"older-than-seconds": 0})
    assert done["objects"] >= 1
    assert done["data-files"] >= 1
    assert [are_there(db, stray) for stray in strays] == [0, 0]
    assert_both_read(lake, server, before)


@pytest.mark.parametrize(
    ("path", "body"),
    [("sweep", {"grace-seconds": -1}), ("sweep", {"older-than-seconds": 1}), ("orphans", {"older-than-seconds": "x"})],
)
def test_sweep_and_orphans_requests_with_wrong_values_are_bad_requests(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    assert error_of(server.http.post(f"{ADMIN}/{path}", json=body)) == (400, "BadRequestException")
