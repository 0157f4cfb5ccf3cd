"""Pipelines, run by run: DuckDB and Spark write the inputs, and what is built of changes is what is built anew."""

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

from mergus.cli import main
from mergus.pipeline.imports.jvm import clone
from mergus.pipeline.job import Place, Run, table
from mergus.pipeline.session import active, query, rows
from mergus.pipeline.transform import write
from mergus.pipeline.transform.definition import Pipeline, parse
from mergus.pipeline.transform.job import Outcome, past, plans, transform

MEDALLION = """
name = "sales"

[[step]]
name = "silver"
output = "{s}.silver"
mode = "merge"
keys = ["order_id"]
inputs.orders = {{ table = "{s}.orders", changes = true }}
inputs.people = {{ table = "{s}.people", lookup = true }}
sql = '''SELECT o.order_id, o.person_id, p.name, o.amount FROM orders o LEFT JOIN people p USING (person_id)
         WHERE o.amount IS NOT NULL'''

[[step]]
name = "gold"
output = "{s}.gold"
mode = "merge"
keys = ["person_id"]
inputs.silver = {{ table = "{s}.silver", changes = true }}
sql = "SELECT person_id, count(*) AS orders, sum(amount) AS spent FROM silver GROUP BY person_id"

[[step]]
name = "log"
output = "{s}.log"
mode = "append"
inputs.orders = {{ table = "{s}.orders", changes = true, deletes = "ignore" }}
sql = "SELECT order_id, amount FROM orders"

[[step]]
name = "total"
output = "{s}.total"
inputs.silver = "{s}.silver"
sql = "SELECT sum(amount) AS spent, count(*) AS orders FROM silver"
"""


def pipeline(text: str, schema: str) -> Pipeline:
    return parse(text.format(s=schema), "p.toml", Path())


def made(place: Place, of: Pipeline, **options: Any) -> Outcome:
    outcome = transform(place, of, Run("transform", lambda _: None), **options)
    assert outcome.failed == {}
    return outcome


def actions(outcome: Outcome) -> dict[str, str]:
    return {one.planned.step.name: one.planned.action for one in outcome.done}


def orders(db: duckdb.DuckDBPyConnection, schema: str) -> None:
    db.execute(f"CREATE SCHEMA {schema}")
    db.execute(f"CREATE TABLE {schema}.orders(order_id INTEGER, person_id INTEGER, amount DECIMAL(10, 2))")
    db.execute(f"CREATE TABLE {schema}.people(person_id INTEGER, name VARCHAR)")
    db.execute(f"INSERT INTO {schema}.people SELECT range, 'p' || range FROM range(5)")
    db.execute(f"INSERT INTO {schema}.orders SELECT range, range % 5, range FROM range(40)")


def in_duckdb(db: duckdb.DuckDBPyConnection, name: str) -> Counter[tuple[Any, ...]]:
    return Counter(db.execute(f"SELECT * FROM {name}").fetchall())


def test_an_incremental_run_builds_the_same_tables_as_a_full_rebuild(
    place: Place, db: duckdb.DuckDBPyConnection
) -> None:
    orders(db, "story")
    of = pipeline(MEDALLION, "story")
    assert actions(made(place, of)) == dict.fromkeys(["silver", "gold", "log", "total"], "whole")
    assert actions(made(place, of)) == dict.fromkeys(["silver", "gold", "log", "total"], "nothing")
    lake = place.sql_name(table("story.orders"))
    steps = (
        "d:INSERT INTO story.orders VALUES (100, 1, 7), (101, NULL, 8), (102, 1, NULL)",
        "s:INSERT INTO {t} VALUES (200, 2, 9), (201, 7, 1)",
        "d:UPDATE story.orders SET amount = amount + 1 WHERE order_id % 10 = 3",
        "d:DELETE FROM story.orders WHERE person_id = 4",
        "s:UPDATE {t} SET person_id = 3 WHERE order_id < 4",
        "s:DELETE FROM {t} WHERE order_id = 200",
        "d:CALL ducklake_flush_inlined_data('lake'); CALL ducklake_merge_adjacent_files('lake')",
        "d:UPDATE story.orders SET amount = NULL WHERE person_id = 2",
    )
    built: dict[str, Counter[tuple[Any, ...]]] = {}
    for text in steps:
        who, _, statement = text.partition(":")
        _ = db.execute(statement) if who == "d" else query(place.spark, statement.format(t=lake))
        found = actions(made(place, of))
        # a merge of files changes no row, whether it is told as such or found out
        assert found["silver"] in ({"note", "changes"} if "CALL" in text else {"changes"})
        built = {name: in_duckdb(db, f"story.{name}") for name in ("silver", "gold", "total")}
        wanted = db.execute(
            "SELECT o.order_id, o.person_id, p.name, o.amount FROM story.orders o LEFT JOIN story.people p "
            "USING (person_id) WHERE o.amount IS NOT NULL"
        ).fetchall()
        assert built["silver"] == Counter(wanted)
        assert built["gold"] == Counter(
            db.execute("SELECT person_id, count(*), sum(amount) FROM story.silver GROUP BY 1").fetchall()
        )
        assert built["total"] == Counter(db.execute("SELECT sum(amount), count(*) FROM story.silver").fetchall())
    made(place, of, only=["gold", "total"], rebuild=True)
    assert built == {name: in_duckdb(db, f"story.{name}") for name in ("silver", "gold", "total")}
    # the log has every row that ever came
    log = in_duckdb(db, "story.log")
    assert log[(100, 7)] == 1
    assert (200, 9) in log
    assert {amount for order, amount in log if order == 13} == {13, 14}


def test_a_pipeline_run_is_planned_recorded_and_reported(place: Place, db: duckdb.DuckDBPyConnection) -> None:
    orders(db, "told")
    of = pipeline(MEDALLION, "told")
    planned = {one["step"]: (one["action"], one["reason"]) for one in plans(place, of)}
    assert planned["silver"] == ("whole", "there is no output yet")
    assert planned["gold"] == planned["total"] == ("after", ["silver"])
    made(place, of)
    db.execute("DELETE FROM told.orders WHERE order_id < 10; INSERT INTO told.orders VALUES (50, 1, 1)")
    outcome = made(place, of)
    by_name = {one.planned.step.name: one.json() for one in outcome.done}
    silver = by_name["silver"]
    assert (silver["inputs"]["orders"]["inserted"], silver["inputs"]["orders"]["deleted"]) == (1, 10)
    assert (silver["affected-keys"], silver["rows"]["total"]) == (11, 31)
    told = list(past(place, of, only=["silver"]))
    assert [one["snapshot-id"] for one in told] == [
        silver["snapshot-id"],
        place.metadata(table("told.silver"))["snapshots"][0]["snapshot-id"],
    ]
    assert told[0]["inputs"]["orders"] == {
        "table": "told.orders",
        "snapshot-id": place.metadata(table("told.orders"))["current-snapshot-id"],
    }
    (summary,) = rows(
        place.spark,
        f"SELECT summary['mergus.step'] FROM {place.sql_name(table('told.silver'))}.snapshots "
        f"WHERE snapshot_id = {silver['snapshot-id']}",
    )
    assert summary == ("sales.silver",)


def test_a_step_is_rebuilt_with_the_reason_reported(place: Place, db: duckdb.DuckDBPyConnection) -> None:
    orders(db, "anew")
    whole = MEDALLION.replace("lookup = true", "lookup = false")
    of = pipeline(whole, "anew")
    made(place, of, only=["silver"])
    reasons = [one["reason"] for one in plans(place, of, only=["silver"])]
    assert reasons == ["nothing has changed"]
    db.execute("UPDATE anew.people SET name = 'other' WHERE person_id = 1")
    (done,) = made(place, of, only=["silver"]).done
    assert (done.planned.action, done.planned.reason) == ("whole", "anew.people has changed")
    assert db.execute("SELECT DISTINCT name FROM anew.silver WHERE person_id = 1").fetchall() == [("other",)]
    # another definition, with one more column
    changed = pipeline(whole.replace("o.amount FROM", "o.amount, o.amount * 2 AS twice FROM"), "anew")
    (done,) = made(place, changed, only=["silver"]).done
    assert (done.planned.action, done.planned.reason) == ("whole", "its definition has changed")
    assert db.execute("SELECT count(*) FROM anew.silver WHERE twice = 2 * amount").fetchall() == [(40,)]
    # and what was read last is gone
    made(place, changed, only=["log"])
    db.execute("INSERT INTO anew.orders VALUES (70, 1, 1)")
    expire(place)
    (done,) = made(place, changed, only=["silver"]).done
    assert (done.planned.action, done.rows["total"]) == ("whole", 41)
    assert "any more, which was read last" in done.planned.reason
    outcome = transform(place, changed, Run("transform", lambda _: None), only=["log"])
    assert "appends, and cannot know what is new" in outcome.failed["log"]


def test_incremental_runs_survive_an_expiry_of_snapshots_that_they_have_read(
    place: Place, db: duckdb.DuckDBPyConnection
) -> None:
    orders(db, "kept")
    of = pipeline(MEDALLION, "kept")
    made(place, of)
    for commit in (
        "INSERT INTO kept.orders VALUES (60, 1, 1)",
        "CALL ducklake_flush_inlined_data('lake'); CALL ducklake_merge_adjacent_files('lake')",
        "INSERT INTO kept.orders VALUES (61, 1, 1)",
    ):
        expire(place)
        db.execute(commit)
        assert actions(made(place, of))["log"] in ({"note", "nothing"} if "CALL" in commit else {"changes"})
        assert actions(made(place, of)) == dict.fromkeys(["silver", "gold", "log", "total"], "nothing")
    assert in_duckdb(db, "kept.log") == Counter(db.execute("SELECT order_id, amount FROM kept.orders").fetchall())


def expire(place: Place) -> None:
    place.client.ask("POST", "admin/expire", {"older-than-seconds": 0})


def test_columns_added_to_an_input_are_added_to_the_output(place: Place, db: duckdb.DuckDBPyConnection) -> None:
    orders(db, "wider")
    star = MEDALLION.replace("SELECT o.order_id, o.person_id, p.name, o.amount", "SELECT o.*, p.name")
    of = pipeline(star.replace("SELECT order_id, amount FROM", "SELECT * FROM"), "wider")
    made(place, of)
    db.execute("ALTER TABLE wider.orders ADD COLUMN note VARCHAR DEFAULT 'none'")
    db.execute("INSERT INTO wider.orders VALUES (70, 1, 1, 'new')")
    outcome = made(place, of)
    assert actions(outcome)["silver"] == "whole"
    assert db.execute("SELECT note, count(*) FROM wider.silver GROUP BY 1 ORDER BY 1").fetchall() == [
        ("new", 1),
        ("none", 40),
    ]
    assert db.execute("SELECT note FROM wider.log WHERE order_id = 70").fetchall() == [("new",)]


EXPECTING = """
name = "checked"

[[step]]
name = "good"
output = "{s}.good"
mode = "merge"
keys = ["order_id"]
inputs.orders = {{ table = "{s}.orders", changes = true }}
sql = "SELECT * FROM orders"

[[step.expect]]
check = "range"
columns = ["amount"]
least = 0
otherwise = "{otherwise}"

[[step.expect]]
check = "sql"
name = "known person"
sql = "person_id < 100"
otherwise = "warn"

[[step]]
name = "after"
output = "{s}.after"
inputs.good = "{s}.good"
sql = "SELECT count(*) AS n FROM good"
"""


def expecting(schema: str, otherwise: str) -> Pipeline:
    return parse(EXPECTING.format(s=schema, otherwise=otherwise), "p.toml", Path())


def test_a_failed_expectation_stops_the_step_and_the_steps_that_depend_on_it(
    place: Place, db: duckdb.DuckDBPyConnection
) -> None:
    orders(db, "failing")
    of = expecting("failing", "fail")
    made(place, of)
    before = in_duckdb(db, "failing.good")
    db.execute("INSERT INTO failing.orders VALUES (60, 1, -1), (61, 1, 5)")
    outcome = transform(place, of, Run("transform", lambda _: None))
    assert outcome.failed == {"good": "step good: 1 rows fail range(amount); nothing was written"}
    assert outcome.skipped == {"after": "it needs good"}
    assert in_duckdb(db, "failing.good") == before
    db.execute("DELETE FROM failing.orders WHERE amount < 0")
    made(place, of)
    assert in_duckdb(db, "failing.good") == in_duckdb(db, "failing.orders")


def test_rows_that_fail_an_expectation_are_written_to_the_quarantine(
    place: Place, db: duckdb.DuckDBPyConnection
) -> None:
    orders(db, "apart")
    of = expecting("apart", "quarantine")
    db.execute("INSERT INTO apart.orders VALUES (60, 1, -1), (61, 500, 5)")
    (good, _) = made(place, of).done
    assert (good.quarantined, good.warnings) == (1, {"known person": 1})
    # a row that was good is bad now: it is in the output no more
    db.execute("UPDATE apart.orders SET amount = -7 WHERE order_id = 3")
    (good, after) = made(place, of).done
    assert (good.quarantined, after.rows["total"]) == (1, 1)
    told = db.execute("SELECT order_id, amount, _reasons, _run IS NOT NULL FROM apart.good_quarantine ORDER BY 1")
    assert told.fetchall() == [(3, -7, ["range(amount)"], True), (60, -1, ["range(amount)"], True)]
    wanted = db.execute("SELECT * FROM apart.orders WHERE amount >= 0").fetchall()
    assert in_duckdb(db, "apart.good") == Counter(wanted)
    assert db.execute("SELECT n FROM apart.after").fetchall() == [(40,)]


class Killed(BaseException):
    """Stands for kill -9: nothing after it is done, nothing is cleaned up."""


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def at(commit: int, *, after: bool) -> None:
        made = 0

        def failing(*args: Any) -> None:
            nonlocal made
            made += 1
            if made == commit and not after:
                raise Killed
            commit_as_ever(*args)
            if made == commit:
                raise Killed

        commit_as_ever = write.commit
        monkeypatch.setattr(write, "commit", failing)

    return at


@pytest.mark.parametrize("commit", [1, 2])
@pytest.mark.parametrize("after", [False, True])
def test_a_pipeline_run_killed_at_any_commit_is_completed_by_the_next(
    place: Place,
    db: duckdb.DuckDBPyConnection,
    monkeypatch: pytest.MonkeyPatch,
    killed_at: Any,
    commit: int,
    after: bool,
) -> None:
    """Before and after the commit to the quarantine, before and after that to the output."""
    schema = f"killed_{commit}_{after}".lower()
    orders(db, schema)
    of = expecting(schema, "quarantine")
    made(place, of)
    db.execute(f"INSERT INTO {schema}.orders VALUES (60, 1, -1), (61, 1, 5)")
    with monkeypatch.context() as patched:
        killed_at(commit, after=after)
        with pytest.raises(Killed):
            made(place, of)
        del patched
    monkeypatch.undo()
    db.execute(f"INSERT INTO {schema}.orders VALUES (62, 1, -2), (63, 1, 6)")
    made(place, of)
    made(place, of)
    good, bad = (f"SELECT order_id FROM {schema}.{name} ORDER BY 1" for name in ("good", "good_quarantine"))
    assert db.execute(good).fetchall() == [*((i,) for i in range(40)), (61,), (63,)]
    assert db.execute(bad).fetchall() == [(60,), (62,)]


def test_two_concurrent_pipeline_runs_write_each_row_once(place: Place, db: duckdb.DuckDBPyConnection) -> None:
    orders(db, "twice")
    of = pipeline(MEDALLION, "twice")
    made(place, of, only=["log"])
    db.execute("INSERT INTO twice.orders VALUES (60, 1, 1)")

    def run(_: int) -> dict[str, str]:
        """In a session of its own, as another process would have one."""
        own = Place(place.client, clone(place.spark), place.catalog)
        with active(own.spark):
            return transform(own, of, Run("transform", lambda _: None), only=["log"]).failed

    with ThreadPoolExecutor(2) as pool:
        failed = list(pool.map(run, range(2)))
    assert all("another run has written since" in one["log"] for one in failed if one)
    assert db.execute("SELECT count(*) FROM twice.log").fetchall() == [(41,)]


def test_an_output_that_was_rolled_back_is_updated_by_the_next_run(place: Place, db: duckdb.DuckDBPyConnection) -> None:
    orders(db, "back")
    of = pipeline(MEDALLION, "back")
    (first,) = made(place, of, only=["log"]).done
    db.execute("INSERT INTO back.orders VALUES (60, 1, 1)")
    made(place, of, only=["log"])
    back = f"CALL {place.catalog}.system.rollback_to_snapshot('back.log', {first.snapshot})"
    query(place.spark, back)
    assert db.execute("SELECT count(*) FROM back.log").fetchall() == [(40,)]
    made(place, of, only=["log"])
    assert db.execute("SELECT count(*) FROM back.log").fetchall() == [(41,)]


BAD_STEPS = {
    "no table": ('table = "{s}.orders", changes', 'table = "{s}.nothing", changes', "there is no table bad.nothing"),
    "no column": ("o.order_id,", "o.nothing,", "nothing"),
    "no key": ("SELECT o.order_id, o.person_id", "SELECT o.person_id", "no column order_id, which is a key"),
    "twice": ("FROM orders o LEFT", "FROM orders o CROSS JOIN (VALUES (1), (2)) LEFT", "several rows of one key"),
    "two names": ("o.amount FROM", "o.amount, o.amount FROM", "two columns of one name"),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_a_step_that_cannot_run_is_reported_with_the_reason(
    place: Place, db: duckdb.DuckDBPyConnection, case: str
) -> None:
    db.execute("CREATE SCHEMA IF NOT EXISTS bad; CREATE OR REPLACE TABLE bad.people(person_id INTEGER, name VARCHAR)")
    db.execute("CREATE OR REPLACE TABLE bad.orders AS SELECT 1 AS order_id, 1 AS person_id, 1 AS amount")
    old, new, told = BAD_STEPS[case]
    assert MEDALLION.replace("{{", "{").replace("}}", "}").count(old) >= 1
    of = pipeline(MEDALLION.replace(old, new, 1), "bad")
    outcome = transform(place, of, Run("transform", lambda _: None), only=["silver"])
    assert told in outcome.failed["silver"]
    assert place.load(table("bad.silver")) is None


def test_an_existing_table_that_is_not_the_steps_output_is_not_overwritten(
    place: Place, db: duckdb.DuckDBPyConnection
) -> None:
    orders(db, "theirs")
    db.execute("CREATE TABLE theirs.silver AS SELECT 1 AS precious")
    of = pipeline(MEDALLION, "theirs")
    outcome = transform(place, of, Run("transform", lambda _: None), only=["silver"])
    assert "is not this step's output" in outcome.failed["silver"]
    assert db.execute("SELECT * FROM theirs.silver").fetchall() == [(1,)]
    made(place, of, only=["silver"], rebuild=True)
    assert db.execute("SELECT count(*) FROM theirs.silver").fetchall() == [(40,)]


@pytest.mark.usefixtures("as_user")
def test_mergus_pipeline_transform_plans_runs_and_reports(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    orders(db, "command")
    (tmp_path / "of_ours.py").write_text(
        "def doubled(spark, inputs):\n    return inputs['orders'].selectExpr('order_id', 'amount * 2 AS amount')\n"
    )
    file = tmp_path / "p.yaml"
    file.write_text(
        """
name: functions
step:
  - name: doubled
    output: command.doubled
    inputs: {orders: command.orders}
    function: of_ours:doubled
    partition_by: ["bucket(4, order_id)"]
    properties: {write.format.default: parquet}
    expect:
      - {check: unique, columns: [order_id], otherwise: quarantine}
"""
    )

    def call(*options: str) -> tuple[int, str, Any]:
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        done = CliRunner().invoke(main, ["pipeline", "transform", str(file), "--report", str(report), *options])
        return done.exit_code, done.output, json.loads(report.read_text()) if report.exists() else None

    assert call("--graph")[:2] == (
        0,
        'flowchart LR\n    t0["command.orders"]\n    t1["command.doubled"]\n    t0 -->|doubled| t1\n',
    )
    code, _, told = call("--plan")
    assert (code, [one["action"] for one in told["plan"]]) == (0, ["whole"])
    code, output, told = call()
    assert (code, told["steps"][0]["rows"]["total"]) == (0, 40), output
    assert db.execute("SELECT sum(amount) FROM command.doubled").fetchall() == [(2 * sum(range(40)),)]
    db.execute("INSERT INTO command.orders VALUES (1, 1, 1)")
    code, _, told = call()
    assert (code, told["state"], told["steps"][0]["quarantined"]) == (3, "found", 2)
    assert len(call("--history")[2]["runs"]) == 2
    db.execute("ALTER TABLE command.orders DROP COLUMN amount; INSERT INTO command.orders VALUES (2, 2)")
    code, output, told = call()
    assert (code, told["state"], told["steps"][0]["action"]) == (1, "failed", "failed")
    assert "error: 1 of 1 steps failed" in output
    code, output, _ = call("--only", "nothing")
    assert (code, "has no step nothing" in output) == (1, True)
