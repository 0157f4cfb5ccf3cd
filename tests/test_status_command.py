"""`mergus status`, as an operator sees it."""

import json
import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from pydantic import SecretStr

from mergus.cli import main
from mergus.config import Settings
from mergus.serve import environment
from tests.support import lakes
from tests.support.lakes import TestLake


def run(settings: Settings, *args: str) -> Result:
    """In this process: to import everything takes longer than all else."""
    return CliRunner().invoke(main, ["status", *args], env=environment(settings))


def shown(settings: Settings, *args: str) -> str:
    done = run(settings, *args)
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    with lakes.lake() as made, made.duckdb() as db:
        db.execute("SET ducklake_default_data_inlining_row_limit = 50000")
        db.execute("CREATE TABLE waiting(i INTEGER); INSERT INTO waiting SELECT * FROM range(12_300)")
        db.execute("CREATE TABLE fine(i INTEGER); INSERT INTO fine SELECT * FROM range(3)")
        db.execute("SET ducklake_default_data_inlining_row_limit = 0")
        db.execute('CREATE SCHEMA "a.b"; CREATE TABLE "a.b"."t\x1b[31m"(i INTEGER)')
        for _ in range(13):
            db.execute('INSERT INTO "a.b"."t\x1b[31m" SELECT * FROM range(40)')
        yield made


def test_mergus_status_shows_the_lake_and_tables_in_need_worst_first(lake: TestLake) -> None:
    text = shown(lake.settings)
    assert re.search(r"^holds +2 namespaces, 3 tables, 0 views$", text, re.MULTILINE)
    assert re.search(r"^rows +12,823$", text, re.MULTILINE)
    assert re.search(r"^data files +13, .* KiB; 13 small, 13 under 1 MiB$", text, re.MULTILINE)
    assert re.search(r"^in Postgres +12,303 rows, 0 deletes$", text, re.MULTILINE)
    assert "nobody leads" in text
    head, first, second = text.splitlines()[-3:]
    assert head.startswith("NAMESPACE  TABLE")
    assert first.endswith("flush: 12,300 inlined rows waiting")
    # what a terminal would obey is told and not sent
    assert "t\\x1b[31m" in second
    assert "\x1b" not in text
    assert second.index("compact: ") == first.index("flush: ") == head.index("NEEDS")


def test_mergus_status_shows_a_namespace_and_a_table(lake: TestLake) -> None:
    head, fine, waiting = shown(lake.settings, "main").splitlines()
    assert head.split()[:3] == ["NAMESPACE", "TABLE", "FILES"]
    assert fine.split()[:3] == ["main", "fine", "0"]
    assert waiting.split()[1] == "waiting"
    assert waiting.index("12,300 ") >= 0
    text = shown(lake.settings, "a.b", "t\x1b[31m")
    assert "→ compact: 13 small files can become 1" in text
    assert "mergus maintain compact --step merge -- a.b 't\\x1b[31m'" in text


def test_mergus_status_json_has_the_fields_of_the_server_answer(lake: TestLake) -> None:
    whole = json.loads(shown(lake.settings, "--json"))
    assert (whole["tables"], whole["inlined-rows"], whole["tables-in-need"]["flush"]) == (3, 12_303, 1)
    assert [t["identifier"]["name"] for t in whole["health"]] == ["waiting", "t\x1b[31m"]
    tables = json.loads(shown(lake.settings, "main", "--json"))["tables"]
    assert [t["identifier"] for t in tables] == [{"namespace": ["main"], "name": n} for n in ("fine", "waiting")]
    table = json.loads(shown(lake.settings, "main", "waiting", "--json"))
    assert table == tables[1]
    assert table["advice"][0]["call"].startswith("CALL ducklake_flush_inlined_data(")


@pytest.mark.parametrize("args", [("nowhere",), ("nowhere", "t"), ("main", "nothing")])
def test_mergus_status_names_a_missing_namespace_or_table(args: tuple[str, ...], lake: TestLake) -> None:
    done = run(lake.settings, *args)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "does not exist: " + ".".join(args) in done.stderr


def test_mergus_status_reports_an_unreachable_postgres(lake: TestLake) -> None:
    away = lake.settings.model_copy(update={"postgres_dsn": SecretStr("postgresql://u:hunter2@127.0.0.1:1/x")})
    done = run(away)
    assert done.exit_code == 1
    assert "Postgres cannot be reached" in done.stderr
    assert "MERGUS_POSTGRES_DSN" in done.stderr
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr


def test_mergus_status_reports_a_postgres_without_a_lake() -> None:
    with lakes.database() as dsn:
        done = run(lakes.settings_for(dsn))
    assert done.exit_code == 1
    assert "there is no DuckLake" in done.stderr
    assert "mergus init" in done.stderr


def test_mergus_status_of_an_empty_lake_reports_no_table_in_need() -> None:
    with lakes.lake() as empty:
        text = shown(empty.settings)
        assert text.endswith("No table needs anything.\n")
        assert shown(empty.settings, "main").splitlines()[1:] == []
