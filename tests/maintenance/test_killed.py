"""kill -9 of a worker at every point of each kind of job: another goes on, and both engines read the same as before."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from mergus import faults
from tests.support import lakes, loads, servers
from tests.support.lakes import TestLake
from tests.support.listeners import eventually
from tests.support.servers import Server

ADMIN = "/v1/lake/admin"
COMPACT: tuple[str, dict[str, Any]] = ("compact", {"delete-ratio": 0.1})
EXPIRE: tuple[str, dict[str, Any]] = ("expire", {"retain-last": 1})
SWEEP: tuple[str, dict[str, Any]] = ("sweep", {"grace-seconds": 0})
ORPHANS: tuple[str, dict[str, Any]] = ("orphans", {"older-than-seconds": 0})


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    with lakes.lake() as made:
        yield made


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Does no jobs itself."""
    options = {"maintenance": "off", "grace_seconds": 0}
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), **options) as running:
        yield running


def tell(db: duckdb.DuckDBPyConnection, schema: str) -> None:
    db.execute(f"CREATE SCHEMA {schema}")
    for table in "tu":
        db.execute(f"CREATE TABLE {schema}.{table} (i INTEGER)")
        for k in range(4):
            db.execute(f"INSERT INTO {schema}.{table} SELECT range + {k * 100} FROM range(100)")
        db.execute(f"DELETE FROM {schema}.{table} WHERE i BETWEEN 100 AND 150")
        db.execute(f"INSERT INTO {schema}.{table} VALUES (-1)")


def leave_garbage(lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str) -> None:
    """Chains that are made anew since a merge rewrote their past, and an object that nothing ever named."""

    def load() -> None:
        for table in "tu":
            assert server.http.get(f"{server.path(schema)}/tables/{table}").status_code == 200

    load()
    for table in "tu":
        db.execute(f"CALL ducklake_merge_adjacent_files('lake', '{table}', schema => '{schema}')")
    load()
    # an older snapshot may be made anew a moment later
    query = """
        SELECT count(*) FROM garbage g JOIN ducklake_table t ON t.table_id = g.table_id
        JOIN ducklake_schema s ON s.schema_id = t.schema_id WHERE s.schema_name = %s AND g.kind = 'list'
    """
    eventually(lambda: lake.sql(query, schema)[0][0] > 0, 20, lambda: "nothing was made anew")
    location = server.http.get(f"{server.path(schema)}/tables/t").json()["metadata"]["location"]
    db.execute(f"COPY (SELECT 1 AS i) TO '{location}/data/stray.parquet'")


SESSIONS = """
    SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mergus worker' AND datname = current_database()
"""
EXPECTED = sorted({-1, *range(100), *range(151, 400)})


def assert_both_read_it(lake: TestLake, server: Server, schema: str) -> None:
    for table in "tu":
        with lake.duckdb() as session:
            theirs = sorted(row[0] for row in session.execute(f"SELECT i FROM {schema}.{table}").fetchall())
            assert theirs == EXPECTED
            loads.assert_readable(lake, server, session, table, schema)


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        *(
            (COMPACT, point)
            for point in ("job.begun", "job.step:1", "job.step:2", "job.step:5", "job.noted", "job.ending")
        ),
        *((EXPIRE, point) for point in ("job.begun", "job.step", "job.ending")),
        *((SWEEP, point) for point in ("sweep.doomed", "sweep.held", "sweep.deleted", "job.ending")),
        *((ORPHANS, point) for point in ("job.begun", "job.ending")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_another_worker_continues_a_maintenance_job_whose_worker_was_killed(
    lake: TestLake,
    server: Server,
    kind: tuple[str, dict[str, Any]],
    point: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = f"k_{os.urandom(4).hex()}"
    with lake.duckdb() as db:
        tell(db, schema)
        name, options = kind
        if name in {"sweep", "orphans"}:
            leave_garbage(lake, server, db, schema)
    path = f"{ADMIN}/namespaces/{schema}/compact" if name == "compact" else f"{ADMIN}/{name}"
    job = server.http.post(path, json={**options, "wait-seconds": 0}).json()
    with monkeypatch.context() as doomed:
        doomed.setenv(faults.VARIABLE, point)
        dead = servers.start(lake.settings, tmp_path / "dead.log", "maintain", "work")
        try:
            assert dead.wait(60) == -9, (tmp_path / "dead.log").read_text()
        finally:
            dead.terminate()

    def look() -> dict[str, Any]:
        return server.http.get(f"{ADMIN}/jobs/{job['job-id']}").json()

    left = look()
    assert left["state"] == "running"
    # Postgres may see a moment later that it is dead, and the heir would look again seconds later
    eventually(lambda: lake.sql(SESSIONS) == [(0,)], 20)
    heir = servers.start(lake.settings, tmp_path / "heir.log", "maintain", "work")
    try:
        eventually(lambda: look()["ended-at"] is not None, 60, (tmp_path / "heir.log").read_text)
        found = look()
    finally:
        heir.terminate()
        heir.wait(30)
    assert (found["state"], found["error"]) == ("done", None)
    assert found["worker"] != left["worker"]
    if name == "compact":
        query = """
            SELECT count(*) FROM ducklake_data_file f JOIN ducklake_table t ON t.table_id = f.table_id
            JOIN ducklake_schema s ON s.schema_id = t.schema_id
            WHERE s.schema_name = %s AND f.end_snapshot IS NULL
        """
        assert lake.sql(query, schema) == [(2,)]
    elif name == "sweep":
        assert lake.sql("SELECT count(*) FROM garbage WHERE since < now() - interval '1 minute'") == [(0,)]
        assert found["progress"]["objects"] > 0 or point == "job.ending"
    elif name == "expire":
        assert lake.sql("SELECT count(*) FROM ducklake_snapshot")[0][0] <= 2 + len(
            lake.sql("SELECT FROM ducklake_table")
        )
    assert_both_read_it(lake, server, schema)
