"""Files as they come: through Spark's file source and its checkpoint, each once all the same."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from mergus.errors import SetupError
from mergus.pipeline.ingest.job import Report
from mergus.pipeline.ingest.stream import stream
from mergus.pipeline.job import Place, Run
from tests.pipeline.ingesting import agree, asked, wanted
from tests.support.lakes import TestLake


def streamed(
    place: Place,
    into: str,
    source: Path,
    checkpoint: Path,
    *,
    say: Callable[[str], None] = lambda _: None,
    every: float | None = None,
    until: Callable[[], bool] = lambda: False,
) -> Run:
    run = Run("ingest", say)
    how = wanted(into, batch_files=2)
    stream(place, how, [str(source)], run, Report(), checkpoint=str(checkpoint), every=every, is_asked_to_end=until)
    return run


def test_a_stream_ingests_existing_files_and_later_ones_once(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    (source / "day=1").mkdir(parents=True)
    for i in range(3):
        (source / "day=1" / f"{i}.csv").write_text(f"i\n{i}\n")
    run = streamed(place, "st.t", source, checkpoint)
    assert (run.counts["files"], run.counts["batches"]) == (3, 2)
    # with a column more, a wider one, and a file that nobody can read
    (source / "3.json").write_text('{"i": 5000000000, "more": "x"}\n')
    (source / "4.parquet").write_bytes(b"corrupt")
    (source / "notes.txt").write_text("no data")
    run = streamed(place, "st.t", source, checkpoint)
    assert (run.counts["files"], run.counts["quarantined_files"], run.counts["known_files"]) == (1, 1, 0)
    rows = [(0, 1, None), (1, 1, None), (2, 1, None), (5000000000, None, "x")]
    assert asked(db, "SELECT i, day, more FROM st.t ORDER BY i") == rows
    # a checkpoint that is lost costs nothing but time
    run = streamed(place, "st.t", source, tmp_path / "another")
    assert (run.counts["files"], run.counts["known_files"]) == (0, 5)
    assert asked(db, "SELECT i, day, more FROM st.t ORDER BY i") == rows
    agree(lake, place, "st")


def test_a_failed_micro_batch_is_retried_by_the_next_run(
    place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    for i in range(3):
        (source / f"{i}.csv").write_text(f"i\n{i}\n")
    failed: list[str] = []

    def fail(text: str) -> None:
        if ": appended" in text and not failed:
            failed.append(text)
            raise SetupError("out of luck")

    with pytest.raises(SetupError, match="out of luck"):
        streamed(place, "again.t", source, checkpoint, say=fail)
    assert asked(db, "SELECT count(*) FROM again.t") == [(2,)]
    streamed(place, "again.t", source, checkpoint)
    assert asked(db, "SELECT i FROM again.t ORDER BY i") == [(0,), (1,), (2,)]


def test_a_stream_runs_until_it_is_asked_to_stop(place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "0.csv").write_text("i\n0\n")
    said: list[str] = []

    def until() -> bool:
        done = sum(text.endswith(": done") for text in said)
        if done == 1:
            (source / "1.csv").write_text("i\n1\n")
        return done == 2

    run = streamed(place, "goes_on.t", source, tmp_path / "checkpoint", say=said.append, every=0.2, until=until)
    assert run.counts["files"] == 2
    assert asked(db, "SELECT i FROM goes_on.t ORDER BY i") == [(0,), (1,)]
    with pytest.raises(SetupError, match="there is nothing at"):
        streamed(place, "goes_on.t", tmp_path / "none", tmp_path / "checkpoint")
