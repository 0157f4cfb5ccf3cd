"""Both worlds are asked, and a difference between them is found."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

from mergus.cli import main
from mergus.errors import SetupError
from mergus.pipeline.job import Place, Run
from mergus.pipeline.verify import Report, chosen, verify
from tests.support.lakes import TestLake

# Each in a schema of its own.
STORY = (
    """CREATE TABLE {s}.t(i BIGINT, s VARCHAR, d DECIMAL(20, 8), f DOUBLE, w TIMESTAMP, tz TIMESTAMPTZ, day DATE,
                         b BLOB, u UUID, l INTEGER[], m MAP(VARCHAR, INTEGER), r STRUCT(a INTEGER, "b c" VARCHAR[]))""",
    """INSERT INTO {s}.t SELECT range, 'x' || range, range / 7, sqrt(range),
                         TIMESTAMP '2024-01-01' + INTERVAL (range) HOUR,
                         TIMESTAMPTZ '2024-01-01 00:00:00+00' + INTERVAL (range) SECOND, DATE '1969-12-25' + range::INT,
                         encode('b' || range), uuid(), [range, NULL], MAP {'k': range}, {'a': range, 'b c': ['>', NULL]}
       FROM range(100)""",
    "INSERT INTO {s}.t(i, f) VALUES (1000, 'nan'), (1001, -0.0), (NULL, NULL)",
    "DELETE FROM {s}.t WHERE i % 10 = 3",
    "UPDATE {s}.t SET s = 'changed' WHERE i < 5",
    "ALTER TABLE {s}.t ADD COLUMN later VARCHAR",
    "INSERT INTO {s}.t(i, later) VALUES (2000, 'y')",
)


def tell(db: duckdb.DuckDBPyConnection, schema: str) -> None:
    db.execute(f"CREATE SCHEMA {schema}")
    for statement in STORY:
        db.execute(statement.replace("{s}", schema))


def found(lake: TestLake, place: Place, *names: str, **options: Any) -> Report:
    run = Run("verify", lambda _: None)
    return verify(place, lake.of_writers, list(chosen(place.client, names)), run, **options)


def test_verify_finds_a_table_equal_at_every_snapshot(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection
) -> None:
    tell(db, "equal")
    db.execute("CREATE TABLE equal.empty(i INTEGER)")
    report = found(lake, place, "equal", newest=None)
    told = [(str(one.table), one.state, one.reason) for one in report.checked]
    assert {state for _, state, _ in told} == {"equal"}, told
    rows = [one.compared.spark.rows for one in report.checked if one.table.name == "t" and one.compared]
    assert rows[-1] == 94
    assert len(rows) >= 5


def test_verify_reads_a_renamed_table_under_its_former_names(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection
) -> None:
    tell(db, "renamed")
    db.execute("ALTER TABLE renamed.t RENAME TO after_that; INSERT INTO renamed.after_that(i) VALUES (1)")
    report = found(lake, place, "renamed.after_that", newest=None)
    assert report.count("equal") == len(report.checked) >= 5


def test_verify_reports_rows_that_differ(lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection) -> None:
    tell(db, "differs")
    db.execute("CREATE TABLE differs.v(i INTEGER, s VARCHAR); INSERT INTO differs.v SELECT range, 'x' FROM range(5000)")
    db.execute("DELETE FROM differs.v WHERE i IN (7, 8)")
    assert found(lake, place, "differs.v").count("equal") == 1
    # behind the server's back: DuckLake forgets two deletes, and Iceberg's readers have them still
    ((table_id,),) = lake.sql("SELECT table_id FROM ducklake_table WHERE table_name = 'v' AND end_snapshot IS NULL")
    lake.sql(f"DELETE FROM ducklake_inlined_delete_{table_id}")
    report = found(lake, place, "differs.v", "differs.t")
    (wrong,) = [one for one in report.checked if one.state == "different"]
    shown = wrong.json()
    assert shown["rows"] == {"duckdb": 5000, "spark": 4998}
    assert shown["columns"] == ["i", "s"]
    assert sorted(one["row"]["i"] for one in shown["differences"]) == ["7", "8"]
    assert {(one["only_in"], one["times"], one["row"]["s"]) for one in shown["differences"]} == {("duckdb", 1, "x")}
    assert report.count("equal") == 1


def test_verify_reports_a_type_that_cannot_be_compared_as_unknown(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA unread; CREATE TABLE unread.t(w TIME); INSERT INTO unread.t VALUES ('12:00')")
    (one,) = found(lake, place, "unread").checked
    assert (one.state, one.reason) == ("unknown", "values of type time cannot be compared")


def test_verify_refuses_an_unknown_namespace_or_table(lake: TestLake, place: Place) -> None:
    with pytest.raises(SetupError, match=r"there is no namespace or table nobody\.knows"):
        found(lake, place, "nobody.knows")


@pytest.mark.usefixtures("as_user")
def test_mergus_pipeline_verify_writes_a_report_and_metrics(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    db.execute("CREATE SCHEMA told; CREATE TABLE told.t AS SELECT range i FROM range(10)")
    report, metrics = tmp_path / "report.json", tmp_path / "metrics.prom"
    options = ["--report", str(report), "--metrics", str(metrics)]
    done = CliRunner().invoke(main, ["pipeline", "verify", "told", *options])
    assert done.exit_code == 0, done.output
    summary = json.loads(report.read_text())
    assert (summary["job"], summary["state"], summary["counts"]) == ("verify", "done", {"equal": 1})
    assert 'mergus_job_count{job="verify",what="equal"} 1.0' in metrics.read_text()


@pytest.mark.usefixtures("as_user")
def test_a_failed_pipeline_job_is_reported_in_exit_code_report_and_metrics(tmp_path: Path) -> None:
    report, metrics = tmp_path / "report.json", tmp_path / "metrics.prom"
    options = ["--report", str(report), "--metrics", str(metrics)]
    wrong = CliRunner().invoke(main, ["pipeline", "verify", "nowhere", *options])
    assert (wrong.exit_code, "error: there is no namespace or table nowhere" in wrong.output) == (1, True)
    summary = json.loads(report.read_text())
    assert (summary["state"], summary["error"]) == ("failed", "there is no namespace or table nowhere")
    assert 'mergus_job_success{job="verify"} 0.0' in metrics.read_text()
