"""`mergus maintain` as a cron job calls it, the schedule that needs no cron, and jobs that are not wanted any more."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result

from mergus.annex.jobs import channel
from mergus.cli import main
from mergus.config import Settings
from mergus.serve import environment
from tests.support import lakes, servers
from tests.support.lakes import TestLake
from tests.support.listeners import eventually

ADMIN = "/v1/lake/admin"


def run(settings: Settings, *args: str) -> Result:
    return CliRunner().invoke(main, ["maintain", *args], env=environment(settings))


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    """Nobody serves it."""
    with lakes.lake(grace_seconds=0) as made:
        yield made


def small_files(db: duckdb.DuckDBPyConnection, table: str) -> None:
    db.execute(f"CREATE TABLE {table} (i INTEGER)")
    for k in range(3):
        db.execute(f"INSERT INTO {table} SELECT range + {k * 100} FROM range(100)")
    db.execute(f"INSERT INTO {table} VALUES (-1)")


def test_mergus_maintain_compact_prints_what_it_did(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA cron")
    small_files(db, "cron.t")
    small_files(db, "cron.u")
    told = run(lake.settings, "compact", "cron", "t", "--dry-run")
    assert (told.exit_code, told.stdout.splitlines()[0]) == (
        0,
        "cron.t: would-flush-rows 1, would-merge-files 3, would-merge-into 1",
    )
    done = run(lake.settings, "compact", "cron", "t")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "cron.t: flushed-rows 1, merged-files 4, merged-into 1"
    assert done.stdout.splitlines()[-1].startswith("done: ")
    again = run(lake.settings, "compact", "cron", "t")
    assert again.stdout.splitlines()[0].startswith("done: ")
    job = json.loads(run(lake.settings, "compact", "--json").stdout)
    assert (job["state"], job["asked-by"]) == ("done", "operator")
    done_here = [table for table in job["tables"] if table["namespace"] == ["cron"]]
    assert {table["table"]: table.get("merged-into") for table in done_here} == {"t": None, "u": 1}


def test_mergus_maintain_exits_with_1_if_a_table_fails(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    small_files(db, "senseless")
    table_id = lake.sql("SELECT max(table_id) FROM ducklake_table")[0][0]
    lake.sql("INSERT INTO table_property VALUES (%s, 'mergus.maintenance.enabled', 'perhaps')", table_id)
    done = run(lake.settings, "compact", "main")
    assert done.exit_code == 1
    assert "main.senseless: failed policy: mergus.maintenance.enabled is 'perhaps'" in done.stdout
    lake.sql("DELETE FROM table_property WHERE table_id = %s", table_id)
    gone = run(lake.settings, "compact", "nowhere")
    assert (gone.exit_code, gone.stderr) == (1, "error: Namespace does not exist: nowhere\n")
    assert run(lake.settings, "expire").exit_code == 2
    assert "is no age like" in run(lake.settings, "expire", "--older-than", "soon").stderr


def test_mergus_maintain_runs_expire_sweep_and_orphans(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    small_files(db, "aged")
    before = lake.sql("SELECT count(*) FROM ducklake_snapshot")[0][0]
    told = run(lake.settings, "expire", "--older-than", "0s", "--dry-run")
    assert told.exit_code == 0, told.output
    assert lake.sql("SELECT count(*) FROM ducklake_snapshot")[0][0] == before
    assert run(lake.settings, "expire", "--older-than", "0s").exit_code == 0
    assert lake.sql("SELECT count(*) FROM ducklake_snapshot")[0][0] < before
    for command in ("sweep", "orphans"):
        done = run(lake.settings, command)
        assert done.exit_code == 0, done.output
    listed = run(lake.settings, "jobs").stdout.splitlines()
    assert [line.split()[1:3] for line in listed[:2]] == [["orphans", "done"], ["sweep", "done"]]
    number = listed[0].split()[0]
    # one that has ended stays as it is
    assert run(lake.settings, "cancel", number).stdout == f"job {number}: done\n"
    assert run(lake.settings, "cancel", "123456789").exit_code == 1


def test_a_cancelled_compaction_job_stops_between_tables(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE SCHEMA many")
    for number in range(25):
        small_files(db, f"many.t{number}")
    with servers.server(lake.settings, tmp_path) as server:
        asked = server.http.post(f"{ADMIN}/namespaces/many/compact", json={"wait-seconds": 0})
        assert asked.status_code == 202
        path = f"{ADMIN}/jobs/{asked.json()['job-id']}"

        def job() -> dict[str, Any]:
            return server.http.get(path).json()

        eventually(lambda: job()["progress"].get("tables-done", 0) >= 2, 30, lambda: str(job()))
        said = server.http.post(f"{path}/cancel").json()["state"]
        assert said in {"cancelling", "cancelled"}
        eventually(lambda: job()["ended-at"] is not None, 20, lambda: str(job()))
        ended = job()
    assert ended["state"] == "cancelled"
    assert 2 <= len(ended["tables"]) < 25
    counts = db.execute("SELECT count(*) FROM (FROM many.t0 UNION ALL FROM many.t24)").fetchall()
    assert counts == [(602,)]


def have_all_workers_look(lake: TestLake, number: int) -> None:
    """Each for what is due by the schedule, and then for what is to be done. They look when they are told of a job,
    and one that is told in the middle of a look does so again: the second look is all after the call."""
    query = """SELECT count(*) FROM pg_stat_activity
               WHERE application_name = 'mergus worker' AND datname = current_database()
                 AND state = 'idle' AND query = 'COMMIT' AND query_start > %s"""
    for _ in range(2):
        ((told, _),) = lake.sql("SELECT clock_timestamp(), pg_notify(%s, '0')::text", channel(lake.settings))
        eventually(lambda told=told: lake.sql(query, told) == [(number,)], 30)


def test_the_maintenance_schedule_of_several_servers_starts_each_job_once(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    small_files(db, "scheduled")
    options: dict[str, Any] = {"maintenance_every": 3600, "expire_seconds": 86_400}
    with (
        servers.server(lake.settings, tmp_path, **options) as one,
        servers.server(lake.settings, tmp_path, **options),
    ):
        query = "SELECT kind, state FROM job WHERE asked_by = 'schedule' ORDER BY kind"
        wanted = [("compact", "done"), ("expire", "done"), ("orphans", "done"), ("sweep", "done")]
        eventually(lambda: lake.sql(query) == wanted, 40, lambda: str(lake.sql(query)))
        have_all_workers_look(lake, 2)
        assert lake.sql(query) == wanted
        # an hour later, which is too early for what is asked for once a day
        lake.sql("UPDATE job SET asked_at = asked_at - interval '1 hour' WHERE asked_by = 'schedule'")
        have_all_workers_look(lake, 2)
        again = sorted([*wanted, *(asked for asked in wanted if asked[0] != "orphans")])
        eventually(lambda: lake.sql(query) == again, 40, lambda: str(lake.sql(query)))
        have_all_workers_look(lake, 2)
        assert lake.sql(query) == again
        table = one.http.get(f"{ADMIN}/namespaces/main/tables/scheduled/health").json()
        assert table["data-files"] == 1
