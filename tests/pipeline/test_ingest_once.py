"""Killed anywhere and run again, or run beside itself: nothing is lost, and nothing is there twice."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import duckdb
import pytest

from mergus.errors import SetupError
from mergus.pipeline.job import Place, Run
from tests.pipeline.ingesting import agree, asked, ingested
from tests.support.lakes import TestLake


class Killed(BaseException):
    """Stands for a kill -9: it comes right after a step, and nothing but `finally` sees it."""


def told(when: str, do: Callable[[], object]) -> Run:
    """A run that does something after the step of which it says so, the first time."""
    waiting = [do]

    def say(text: str) -> None:
        if when in text and waiting:
            waiting.pop()()

    return Run("ingest", say)


def die() -> None:
    raise Killed


def files(at: Path, *names: str) -> None:
    at.mkdir(exist_ok=True)
    for name in names:
        (at / f"{name}.csv").write_text(f"i,s\n1,{name}\n2,{name}\nbad {name}\n")
    if not (at / "corrupt.parquet").exists():
        (at / "corrupt.parquet").write_bytes(b"no Parquet")


def is_whole(db: duckdb.DuckDBPyConnection, schema: str, *names: str) -> None:
    """Every row of every file once, every bad record once, every file closed once."""
    assert asked(db, f"SELECT s, list(i ORDER BY i) FROM {schema}.t GROUP BY s ORDER BY s") == [
        (name, ["1", "2"]) for name in sorted(names)
    ]
    quarantined = asked(db, f"SELECT parse_filename(_source_file), _record FROM {schema}.t_quarantine ORDER BY 1, 2")
    assert quarantined == sorted([*((f"{name}.csv", f"bad {name}") for name in names), ("corrupt.parquet", None)])
    states = asked(
        db, f"SELECT parse_filename(path), list(state ORDER BY noted_at) FROM {schema}.t_files GROUP BY 1 ORDER BY 1"
    )
    ends = {f"{name}.csv": "in" for name in names} | {"corrupt.parquet": "quarantined"}
    assert states == [(file, ["planned", end]) for file, end in sorted(ends.items())]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(": add ", id="the table has its columns"),
        pytest.param(": planned", id="planned"),
        pytest.param(": quarantined", id="bad records are in"),
        pytest.param(": appended", id="data are in"),
        pytest.param(": done", id="closed"),
    ],
)
def test_an_ingest_killed_after_any_step_is_completed_once_by_the_next_run(
    step: str, lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    schema = f"after_{step.strip(': ')}"
    # a table of another's, so that there are columns to add; all values of `i` are text, for the sake of the bad ones
    db.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t(i VARCHAR)")
    files(tmp_path, "a", "b")
    with pytest.raises(Killed):
        ingested(place, f"{schema}.t", tmp_path, run=told(step, die))
    # what comes in between is not of the batch that was begun
    files(tmp_path, "c")
    ingested(place, f"{schema}.t", tmp_path)
    is_whole(db, schema, "a", "b", "c")
    run, report = ingested(place, f"{schema}.t", tmp_path)
    assert (report.batches, run.counts["known_files"]) == ([], 4)
    agree(lake, place, schema)


@pytest.mark.parametrize("step", ["new files", ": planned", ": quarantined", ": appended"])
def test_an_ingest_interleaved_with_another_run_ingests_each_file_once(
    step: str, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """It has one file more, so that its batches are others; and it does all that there is to do."""
    schema = f"beside_{step.strip(': ').replace(' ', '_')}"
    files(tmp_path, "a", "b")

    def beside() -> None:
        files(tmp_path, "c")
        ingested(place, f"{schema}.t", tmp_path)

    ingested(place, f"{schema}.t", tmp_path, run=told(step, beside))
    is_whole(db, schema, "a", "b", "c")


def test_concurrent_ingest_runs_ingest_each_file_once(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    names = [f"f{i}" for i in range(6)]
    files(tmp_path, *names)
    barrier = Barrier(2)

    def one(most: int) -> None:
        barrier.wait()
        ingested(place, "at_once.t", tmp_path, batch_files=most)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, [3, 4]))
    # of two runs at a batch, the second closes nothing; one that came late may have found it closed
    ingested(place, "at_once.t", tmp_path)
    is_whole(db, "at_once", *names)
    agree(lake, place, "at_once", newest=None)


def test_an_ingest_is_completed_after_a_kill_although_its_files_were_removed(
    place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    # after the data are in, nobody needs them
    files(tmp_path / "in", "a", "b")
    with pytest.raises(Killed):
        ingested(place, "gone.t", tmp_path / "in", run=told(": appended", die))
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    run, _ = ingested(place, "gone.t", tmp_path / "in")
    assert (run.counts["files"], run.counts["bad_records"], run.counts["quarantined_files"]) == (2, 2, 1)
    is_whole(db, "gone", "a", "b")
    # before that, what is still there goes in, and what is not is told
    files(tmp_path / "before", "c", "d", "e")
    with pytest.raises(Killed):
        ingested(place, "gone.u", tmp_path / "before", run=told(": planned", die))
    (tmp_path / "before" / "d.csv").unlink()
    (tmp_path / "before" / "e.csv").write_text("i,s\n1,other\n")
    run, report = ingested(place, "gone.u", tmp_path / "before")
    assert asked(db, "SELECT DISTINCT s FROM gone.u") == [("c",)]
    reasons = {Path(file).name: reason for file, reason in report.quarantined if file.endswith("csv")}
    assert reasons == {"d.csv": "was gone before it was read", "e.csv": "was changed before it was read"}
    # one that comes back is a new one
    files(tmp_path / "before", "d")
    run, _ = ingested(place, "gone.u", tmp_path / "before")
    assert (run.counts["rows"], run.counts["changed_files"]) == (2, 1)


def test_a_file_that_cannot_be_reached_is_not_quarantined(place: Place, tmp_path: Path) -> None:
    files(tmp_path, "a")
    gone = tmp_path / "a.csv"
    with pytest.raises(SetupError, match=r"a\.csv cannot be reached"):
        ingested(place, "away.t", tmp_path, run=told("new files", gone.unlink))
    files(tmp_path, "a")
    run, _ = ingested(place, "away.t", tmp_path)
    assert run.counts["rows"] == 2
