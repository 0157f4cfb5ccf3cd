"""Files become fewer; rows, their ids, and every snapshot of the past stay as they were, for both engines."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

from mergus.cli import main
from mergus.errors import SetupError
from mergus.pipeline import compact as job
from mergus.pipeline.compact import Wish
from mergus.pipeline.job import Place, Run, Table
from mergus.pipeline.session import query, rows
from mergus.pipeline.verify import verify
from tests.support import servers
from tests.support.lakes import TestLake
from tests.support.servers import Server

ADMIN = "/v1/lake/admin"
SMALL = {"min-input-files": "2"}
HANDOVER_BYTES = 3000
# files of fifty rows, an update, deletes in a delete file and in Postgres, rows that are inlined
STORY = (
    "INSERT INTO {t} SELECT range, 'a' || range % 7, range % 5 FROM range(50)",
    "INSERT INTO {t} SELECT range + 100, 'b' || range % 7, range % 5 FROM range(50)",
    "UPDATE {t} SET s = 'changed' WHERE i IN (3, 104)",
    "DELETE FROM {t} WHERE i BETWEEN 105 AND 130",
    "INSERT INTO {t} VALUES (-1, 'inlined', 9), (-2, 'inlined', NULL), (-3, NULL, NULL)",
    "DELETE FROM {t} WHERE i = -2 OR i = 7",
)


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Leaves tables to the job that have more than a few small files."""
    directory = tmp_path_factory.mktemp("server")
    with servers.server(lake.settings, directory, compact_handover_bytes=HANDOVER_BYTES) as running:
        yield running


def make(db: duckdb.DuckDBPyConnection, place: Place, schema: str, version: int = 3, table: str = "t") -> Table:
    made = Table((schema,), table)
    db.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}; CREATE TABLE {made}(i INTEGER, s VARCHAR, n BIGINT)")
    if version == 3:
        query(place.spark, f"ALTER TABLE {place.sql_name(made)} SET TBLPROPERTIES ('format-version' = '3')")
    for statement in STORY:
        db.execute(statement.replace("{t}", str(made)))
    return made


class Past:
    """What both engines read at every snapshot, row ids included."""

    def __init__(self, place: Place, db: duckdb.DuckDBPyConnection, table: Table) -> None:
        self.place, self.db, self.table = place, db, table
        found = place.metadata(table)["snapshots"]
        self.ids = [(int(s["snapshot-id"]), int(s["summary"]["ducklake.snapshot-id"])) for s in found]
        self.before = self.read()

    def read(self) -> list[Any]:
        return [(self._duckdb(at), self._spark(shown)) for shown, at in self.ids]

    def now(self) -> list[Any]:
        return self.db.execute(f"SELECT rowid, * FROM {self.table} ORDER BY ALL").fetchall()

    def _duckdb(self, at: int) -> list[Any]:
        return self.db.execute(f"SELECT rowid, * FROM {self.table} AT (VERSION => {at}) ORDER BY ALL").fetchall()

    def _spark(self, at: int) -> list[Any]:
        return sorted(
            rows(self.place.spark, f"SELECT * FROM {self.place.sql_name(self.table)} VERSION AS OF {at}"), key=str
        )


def data_files(place: Place, table: Table) -> int:
    ((found,),) = rows(place.spark, f"SELECT count(*) FROM {place.sql_name(table)}.data_files")
    return found


def both_agree(lake: TestLake, place: Place, table: Table) -> None:
    """Of now, and of what came last; `Past` has asked about all before."""
    report = verify(place, lake.of_writers, [table], Run("verify", lambda _: None), newest=3)
    assert [one.json() for one in report.checked if one.state != "equal"] == []


@pytest.mark.parametrize(
    ("schema", "version", "wish"),
    [
        ("packed", 3, Wish(options=SMALL)),
        ("sorted", 3, Wish("sort", "n DESC NULLS LAST, i", options={"rewrite-all": "true"})),
        ("zordered", 3, Wish("zorder", columns=("i", "n"), options=SMALL)),
        ("shown_as_3", 2, Wish(row_ids="keep", options=SMALL)),
    ],
)
def test_a_compaction_keeps_rows_row_ids_and_every_past_snapshot(
    lake: TestLake, place: Place, run: Run, db: duckdb.DuckDBPyConnection, schema: str, version: int, wish: Wish
) -> None:
    table = make(db, place, schema, version)
    past = Past(place, db, table)
    now = past.now()
    assert data_files(place, table) > 1
    (told,) = job.compact(place, [(table, wish)], run)
    assert (told["state"], told["row-ids"], told["made-files"]) == ("compacted", "kept", 1), told
    assert data_files(place, table) == 1
    assert past.now() == now
    assert past.read() == past.before
    metadata = place.metadata(table)
    assert metadata["format-version"] == version
    assert metadata["snapshots"][-1]["summary"]["operation"] == "replace"
    assert job.MARK not in metadata["properties"]
    if wish.strategy == "sort":
        found = [(n, i) for i, n in rows(place.spark, f"SELECT i, n FROM {place.sql_name(table)}")]
        assert found == sorted(found, key=lambda row: (row[0] is None, -(row[0] or 0), row[1]))
    # both go on from there
    db.execute(f"DELETE FROM {table} WHERE i = 10; INSERT INTO {table} VALUES (1000, 'after', 1)")
    query(place.spark, f"UPDATE {place.sql_name(table)} SET s = 'by spark' WHERE i = 11")
    both_agree(lake, place, table)
    if "rewrite-all" not in wish.options:
        again = job.compact(place, [(Table(table.namespace, "t"), Wish(row_ids=wish.row_ids))], run)
        assert [one["state"] for one in again] == ["nothing"]


def test_a_version_2_table_is_compacted_only_with_a_choice_about_row_ids(
    lake: TestLake, place: Place, run: Run, db: duckdb.DuckDBPyConnection
) -> None:
    table = make(db, place, "of_2", 2)
    past = Past(place, db, table)
    now, files = past.now(), data_files(place, table)
    (told,) = job.compact(place, [(table, Wish(options=SMALL))], run)
    assert (told["state"], told["plan"]["files"]) == ("left-alone", files)
    assert "--v2-row-ids keep" in told["reason"]
    assert data_files(place, table) == files
    (told,) = job.compact(place, [(table, Wish(row_ids="renew", options=SMALL))], run)
    assert (told["state"], told["row-ids"], data_files(place, table)) == ("compacted", "renewed", 1)
    assert {row[0] for row in past.now()}.isdisjoint(row[0] for row in now)
    assert sorted(map(str, (row[1:] for row in past.now()))) == sorted(map(str, (row[1:] for row in now)))
    assert past.read() == past.before
    both_agree(lake, place, table)


def test_a_table_left_at_version_3_by_a_killed_compaction_is_reset_to_version_2(
    place: Place, run: Run, db: duckdb.DuckDBPyConnection
) -> None:
    """What kill -9 leaves between the two: the table is shown as version 3, with the mark."""
    table = make(db, place, "killed", 2)
    past = Past(place, db, table)
    now = past.now()
    marked = f"'{job.FORMAT_VERSION}' = '3', '{job.MARK}' = '2'"
    query(place.spark, f"ALTER TABLE {place.sql_name(table)} SET TBLPROPERTIES ({marked})")
    assert place.metadata(table)["format-version"] == 3
    (told,) = job.compact(place, [(table, Wish(options=SMALL))], run)
    metadata = place.metadata(table)
    assert (told["state"], told["row-ids"], metadata["format-version"]) == ("compacted", "kept", 2)
    assert job.MARK not in metadata["properties"]
    assert (past.now(), past.read()) == (now, past.before)
    # one that fails puts it back itself
    wrong = Wish("sort", "nowhere", row_ids="keep", options={"rewrite-all": "true"})
    with pytest.raises(Exception, match="nowhere"):
        job.compact(place, [(table, wrong)], run)
    metadata = place.metadata(table)
    assert (metadata["format-version"], job.MARK in metadata["properties"]) == (2, False)


@contextmanager
def meanwhile(lake: TestLake, pause: float, *statements: str) -> Iterator[list[int]]:
    """Somebody who writes again and again: the numbers that were put into all statements and committed."""
    stop, done = threading.Event(), list[int]()

    def write() -> None:
        with lake.duckdb() as session:
            for number in count():
                if stop.is_set():
                    return
                try:
                    for statement in statements:
                        session.execute(statement.replace("{n}", str(number)))
                except duckdb.TransactionException:
                    # the file has just been rewritten: DuckDB is told so, and has done nothing
                    continue
                done.append(number)
                # Iceberg tries a commit five times within seconds: one who never rests is never overtaken
                stop.wait(pause)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield done
    finally:
        stop.set()
        writer.join()


def test_writes_during_a_compaction_are_not_lost(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(("busy",), "t")
    db.execute("CREATE SCHEMA busy; CREATE TABLE busy.t(i INTEGER)")
    query(place.spark, f"ALTER TABLE {place.sql_name(table)} SET TBLPROPERTIES ('format-version' = '3')")
    for k in range(3):
        db.execute(f"INSERT INTO busy.t SELECT range + {k * 3000} FROM range(3000)")
    said = list[str]()
    run = Run("compact", said.append)
    db.execute("INSERT INTO busy.t VALUES (-1)")
    with meanwhile(lake, 0.5, "INSERT INTO busy.t SELECT 10000 + {n} * 20 + range FROM range(20)") as inserted:
        (told,) = job.compact(place, [(table, Wish(options=SMALL))], run)
    assert (told["state"], len(inserted) > 0) == ("compacted", True), told
    expected = {-1, *range(9000), *(10000 + n * 20 + i for n in inserted for i in range(20))}
    assert {row[0] for row in db.execute("SELECT i FROM busy.t").fetchall()} == expected
    # who deletes from a file that is being rewritten comes first; the table is planned anew, and left if that goes on
    monkeypatch.setattr(job, "TRIES", 2)
    changes = ("DELETE FROM busy.t WHERE i = {n}", "INSERT INTO busy.t VALUES (-100 - {n})")
    with meanwhile(lake, 0.2, *changes) as changed:
        (told,) = job.compact(place, [(table, Wish(options={"rewrite-all": "true"}))], run)
    assert told["state"] in {"gave-way", "compacted"}
    assert [text for text in said if "somebody else was first" in text] != []
    expected = (expected - {*changed}) | {-100 - n for n in changed}
    assert {row[0] for row in db.execute("SELECT i FROM busy.t").fetchall()} == expected
    both_agree(lake, place, table)


def test_a_compaction_with_a_filter_rewrites_only_matching_files(
    place: Place, run: Run, db: duckdb.DuckDBPyConnection
) -> None:
    table = make(db, place, "parts")
    whole = job.plan(place, table, Wish(options=SMALL))
    wish = Wish(where="i > 140", options={"rewrite-all": "true", "partial-progress.enabled": "true"})
    part = job.plan(place, table, wish)
    assert (whole.files, part.files) == (data_files(place, table), 1)
    (told,) = job.compact(place, [(table, wish)], run)
    assert (told["state"], told["rewritten-files"]) == ("compacted", 1)
    # the others are there still
    assert data_files(place, table) > 1
    with pytest.raises(SetupError, match="a sort order is for the strategy `sort`"):
        job.compact(place, [(table, Wish(sort_order="i"))], run)
    with pytest.raises(SetupError, match="the strategy `zorder` needs columns"):
        job.compact(place, [(table, Wish("zorder"))], run)


@pytest.mark.usefixtures("as_user")
def test_mergus_pipeline_compact_plans_compacts_and_reports(
    place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    table = make(db, place, "told")
    db.execute("CREATE TABLE told.never(i INTEGER); CREATE TABLE told.clock(w TIME)")
    db.execute("INSERT INTO told.clock VALUES ('12:00')")
    db.execute("INSERT INTO told.clock SELECT '12:00' FROM range(20)")
    options = ["--min-input-files", "2"]
    code, summary, _ = call(tmp_path, "told.t", *options, "--plan")
    assert (code, summary["tables"][0]["state"]) == (0, "planned")
    assert summary["tables"][0]["plan"]["files"] == data_files(place, table) > 1
    code, summary, _ = call(tmp_path, "told", *options)
    assert (code, summary["state"]) == (3, "found")
    assert {t["table"]: t["state"] for t in summary["tables"]} == {
        "told.t": "compacted", "told.never": "nothing", "told.clock": "unread"
    }  # fmt: skip
    code, summary, _ = call(tmp_path, "told.t", *options)
    assert (code, summary["counts"]) == (0, {"nothing": 1})
    code, _, output = call(tmp_path, "told.nowhere")
    assert (code, "error: there is no table told.nowhere" in output) == (1, True)
    code, _, output = call(tmp_path, "told.t", "--strategy", "zorder")
    assert (code, "error: the strategy `zorder` needs columns" in output) == (1, True)
    code, _, output = call(tmp_path, "told.t", "--all", "--strategy", "zorder", "--columns", "nowhere")
    assert (code, "nowhere" in output, "Traceback" in output) == (1, True, False)
    code, _, output = call(tmp_path, "told.t", "--where", "nowhere = 1")
    assert (code, "nowhere" in output, "Traceback" in output) == (1, True, False)


def call(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    report = tmp_path / "report.json"
    done = CliRunner().invoke(main, ["pipeline", "compact", *words, "--report", str(report)])
    return done.exit_code, json.loads(report.read_text()), done.output


@pytest.mark.usefixtures("as_user")
def test_the_server_leaves_large_compactions_to_the_spark_job(
    lake: TestLake, server: Server, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    large, small = Table(("handed",), "large table"), Table(("handed",), "small")
    db.execute(
        'CREATE SCHEMA handed; CREATE TABLE handed."large table"(i INTEGER); CREATE TABLE handed.small(i INTEGER)'
    )
    for name, files in (('"large table"', 12), ("small", 3)):
        for k in range(files):
            db.execute(f"INSERT INTO handed.{name} SELECT range + {k * 100} FROM range(50)")
        db.execute(f"INSERT INTO handed.{name} VALUES (-1)")
    ids = db.execute('SELECT rowid, i FROM handed."large table" ORDER BY ALL').fetchall()

    def ask(**body: Any) -> dict[str, Any]:
        answer = server.http.post(f"{ADMIN}/namespaces/handed/compact", json={"wait-seconds": 60, **body}, timeout=90)
        assert answer.status_code == 200, answer.text
        return {one["table"]: one for one in answer.json()["tables"]} | {"progress": answer.json()["progress"]}

    dry = ask(**{"dry-run": True})
    handed = dry["large table"]["handed-over"]
    assert handed["bytes"] > HANDOVER_BYTES
    assert handed["command"] == "mergus pipeline compact 'handed.large table'"
    assert ("handed-over" in dry["small"], dry["small"]["would-merge-files"]) == (False, 3)
    done = ask()
    # rows leave Postgres; files are the job's
    assert (done["large table"]["flushed-rows"], "merged-files" in done["large table"]) == (1, False)
    assert (done["small"]["merged-files"], done["progress"]["handed-over-tables"]) == (4, 1)
    assert (data_files(place, large), data_files(place, small)) == (13, 1)
    code, summary, _ = call(tmp_path, "handed", "--handed-over")
    assert (code, [one["state"] for one in summary["tables"]]) == (3, ["left-alone"])
    code, summary, output = call(tmp_path, "handed", "--handed-over", "--v2-row-ids", "keep")
    assert code == 0, output
    assert [(one["table"], one["state"]) for one in summary["tables"]] == [("handed.large table", "compacted")]
    assert data_files(place, large) == 1
    assert db.execute('SELECT rowid, i FROM handed."large table" ORDER BY ALL').fetchall() == ids
    both_agree(lake, place, large)
    assert "handed-over" not in ask(**{"dry-run": True})["large table"]
    code, summary, _ = call(tmp_path, "handed", "--handed-over")
    assert (code, summary["tables"]) == (0, [])
