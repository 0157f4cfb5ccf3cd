"""Files go into a table: what is good of them, with columns that come and grow; what is bad is kept beside it."""

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from mergus.cli import main
from mergus.errors import SetupError
from mergus.pipeline.ingest.decision import Manner
from mergus.pipeline.job import Place
from tests.pipeline.ingesting import agree, asked, ingested
from tests.support.lakes import TestLake


def parquet(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def text(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def command(as_user: None) -> Callable[..., tuple[Result, dict[str, Any]]]:
    def call(*given: object) -> tuple[Result, dict[str, Any]]:
        done = CliRunner().invoke(main, ["pipeline", "ingest", *map(str, given)])
        start = done.stdout.find("{\n")
        return done, json.loads(done.stdout[start:]) if start >= 0 else {}

    return call


def test_a_second_ingest_of_a_parquet_directory_reads_only_new_files(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    parquet(tmp_path / "a.parquet", i=pa.array([1, 2], pa.int32()), f=pa.array([0.5, 1.5], pa.float32()))
    parquet(tmp_path / "below" / "b c.parquet", i=pa.array([3], pa.int32()), s=["x"])
    text(tmp_path / "_SUCCESS", "hidden")
    text(tmp_path / "README.txt", "no data")
    run, report = ingested(place, "pq.t", tmp_path)
    assert (run.counts["files"], run.counts["rows"], run.counts["other_files"]) == (2, 3, 1)
    assert asked(db, "SELECT i, f, s FROM pq.t ORDER BY i") == [(1, 0.5, None), (2, 1.5, None), (3, None, "x")]
    sources = asked(db, "SELECT DISTINCT parse_filename(_source_file), _ingested_at IS NOT NULL FROM pq.t ORDER BY 1")
    assert sources == [("a.parquet", True), ("b%20c.parquet", True)]
    # nothing is new
    run, report = ingested(place, "pq.t", tmp_path)
    assert (run.counts["known_files"], report.batches, run.counts["rows"]) == (2, [], 0)
    # a session of DuckDB's writes as well, and then files come with wider types and more columns
    db.execute("INSERT INTO pq.t(i, f) VALUES (100, 2.5)")
    parquet(tmp_path / "c.parquet", i=[1 << 40], f=[0.1], more=[{"x": 1}])
    run, report = ingested(place, "pq.t", tmp_path)
    assert sorted(report.evolved) == [
        "add more struct<x:bigint>",
        "widen f from float to double",
        "widen i from int to bigint",
    ]
    # in the struct, and narrower than the table is by now
    parquet(tmp_path / "d.parquet", i=pa.array([4], pa.int16()), more=[{"X": 7, "y": "z"}])
    run, report = ingested(place, "pq.t", tmp_path)
    assert report.evolved == ["add more.y string"]
    assert asked(db, "SELECT i, f, more FROM pq.t WHERE i >= 3 ORDER BY i") == [
        (3, None, None),
        (4, None, {"x": 7, "y": "z"}),
        (100, 2.5, None),
        (1 << 40, 0.1, {"x": 1, "y": None}),
    ]
    types = dict(asked(db, "SELECT column_name, column_type FROM (DESCRIBE pq.t)"))
    assert (types["i"], types["f"], types["more"]) == ("BIGINT", "DOUBLE", "STRUCT(x BIGINT, y VARCHAR)")
    agree(lake, place, "pq", newest=None)


def test_csv_files_with_different_headers_are_ingested_and_bad_lines_are_quarantined(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    text(tmp_path / "1.csv", "id,name,day", "1,ann,2024-01-01", "2,bob,2024-01-02")
    # the same columns in another order, and one more
    text(tmp_path / "2.csv", "name,id,n", "cid,3,5")
    (tmp_path / "3.csv.gz").write_bytes(gzip.compress(b"id,name,day\n4,dee,2024-01-04\n"))
    text(tmp_path / "empty.csv")
    run, _ = ingested(place, "csv.t", tmp_path)
    assert (run.counts["files"], run.counts["rows"]) == (4, 4)
    assert asked(db, "SELECT id, name, day::VARCHAR, n FROM csv.t ORDER BY id") == [
        (1, "ann", "2024-01-01", None),
        (2, "bob", "2024-01-02", None),
        (3, "cid", None, 5),
        (4, "dee", "2024-01-04", None),
    ]
    # wider, and with lines that fit no more
    bad = ["five,eve,2024-01-05", "6,fay", "7,gil,2024-01-07,too,many"]
    text(tmp_path / "4.csv", "id,name,day", "5000000000,hal,2024-01-08")
    text(tmp_path / "5.csv", "id,name,day", *bad, "8,ida,2024-01-09")
    run, report = ingested(place, "csv.t", tmp_path, batch_files=1)
    assert report.evolved == ["widen id from int to bigint"]
    assert (run.counts["rows"], run.counts["bad_records"], run.counts["quarantined_files"]) == (2, 3, 0)
    kept = asked(db, "SELECT _record, parse_filename(_source_file), _reason FROM csv.t_quarantine ORDER BY 1")
    assert [(record, file) for record, file, _ in kept] == [(line, "5.csv") for line in sorted(bad)]
    assert {reason for _, _, reason in kept} == {"is no record of (id bigint, name string, day date)"}
    assert asked(db, "SELECT state, rows, bad_records FROM csv.t_files WHERE path LIKE '%5.csv' ORDER BY noted_at") == [
        ("planned", None, None),
        ("in", 1, 3),
    ]
    agree(lake, place, "csv")


def test_json_files_with_growing_nested_columns_are_ingested_and_corrupt_lines_are_quarantined(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    text(tmp_path / "1.json", '{"a": 1, "l": [{"x": 1}], "later": null}', "not json", "{}")
    run, _ = ingested(place, "js.t", tmp_path)
    assert (run.counts["rows"], run.counts["bad_records"]) == (2, 1)
    # `later` has a type when a value comes; a value that is no number stays out
    text(tmp_path / "2.jsonl", '{"a": "x"}', '{"a": 2, "l": [{"x": 2, "y": "z"}], "later": 0.5}')
    text(tmp_path / "upper.jsonl", '{"A": 3}')
    run, report = ingested(place, "js.t", tmp_path)
    assert (report.quarantined, run.counts["rows"], run.counts["bad_records"]) == ([], 2, 1)
    text(tmp_path / "3.ndjson", "nothing here is json", "at all")
    run, _ = ingested(place, "js.t", tmp_path)
    assert (run.counts["files"], run.counts["rows"], run.counts["bad_records"]) == (1, 0, 2)
    agree(lake, place, "js")
    bad = {"not json", '{"a": "x"}', "nothing here is json", "at all"}
    assert set(asked(db, "SELECT _record FROM js.t_quarantine")) == {(record,) for record in bad}
    assert asked(db, "SELECT a, l, later FROM js.t ORDER BY a NULLS LAST") == [
        (1, [{"x": 1, "y": None}], None),
        (2, [{"x": 2, "y": "z"}], 0.5),
        (3, None, None),
        (None, None, None),
    ]


def test_only_corrupt_and_clashing_files_are_left_out_of_an_ingest(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    for i in range(4):
        parquet(tmp_path / f"good{i}.parquet", i=[i], s=["x"])
    (tmp_path / "footer.parquet").write_bytes(b"PAR1 and nothing of Parquet")
    (tmp_path / "zero.parquet").write_bytes(b"")
    whole = parquet(tmp_path / "pages.parquet", i=list(range(20000)), s=[f"s{i}" for i in range(20000)])
    content = bytearray(whole.read_bytes())
    content[2000:4000] = b"?" * 2000
    whole.write_bytes(content)
    # the table is made of what comes first
    parquet(tmp_path / "zz" / "clash.parquet", i=["no number"], s=["x"])
    parquet(tmp_path / "zz" / "reserved.parquet", i=[1], row_id=[1])
    (tmp_path / "half.json.gz").write_bytes(gzip.compress(b'{"i": 1}\n' * 2000)[:-20])
    run, report = ingested(place, "corrupt.t", tmp_path)
    told = {Path(file).name: reason for file, reason in report.quarantined}
    assert set(told) == {
        "footer.parquet", "zero.parquet", "pages.parquet", "clash.parquet", "reserved.parquet", "half.json.gz",
    }  # fmt: skip
    assert "is not a Parquet file" in told["footer.parquet"]
    assert told["clash.parquet"] == "i is bigint in the table, and string here"
    assert "row_id" in told["reserved.parquet"]
    assert (run.counts["files"], run.counts["rows"], run.counts["quarantined_files"]) == (4, 4, 6)
    assert asked(db, "SELECT i FROM corrupt.t ORDER BY i") == [(0,), (1,), (2,), (3,)]
    kept = asked(db, "SELECT parse_filename(_source_file), _reason, _record FROM corrupt.t_quarantine")
    assert {file: reason for file, reason, _ in kept} == told
    assert len(kept) == 6
    assert {record for _, _, record in kept} == {None}
    # they are not tried again, and not counted again
    run, report = ingested(place, "corrupt.t", tmp_path)
    assert (report.batches, run.counts["known_files"], run.counts["quarantined_files"]) == ([], 10, 0)
    agree(lake, place, "corrupt")


def test_ingested_types_are_read_alike_by_duckdb_and_spark(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    at = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
    kinds = {
        "flag": pa.array([True]), "tiny": pa.array([-7], pa.int8()), "big": pa.array([1 << 31], pa.uint32()),
        "huge": pa.array([(1 << 64) - 1], pa.uint64()), "d": pa.array([Decimal("1.25")], pa.decimal128(5, 2)),
        "day": pa.array([at.date()]), "local": pa.array([at.replace(tzinfo=None)], pa.timestamp("us")),
        "at": pa.array([at], pa.timestamp("us", "UTC")), "raw": pa.array([b"\x00\xff"]), "x": pa.array([0.1]),
        "l": pa.array([[1, None]]),
        "m": pa.array([[("k", {"a": "ü"})]], pa.map_(pa.string(), pa.struct({"a": pa.string()}))),
        "a.b": pa.array(["dot"]), "c d": pa.array(["space"]),
    }  # fmt: skip
    parquet(tmp_path / "1.parquet", **kinds)
    run, report = ingested(place, "types.t", tmp_path)
    assert (report.quarantined, run.counts["rows"]) == ([], 1)
    narrow = {"x": pa.array([3], pa.int32()), "d": pa.array([Decimal("1234567.25")], pa.decimal128(9, 2))}
    parquet(tmp_path / "2.parquet", **narrow)
    parquet(tmp_path / "3.parquet", d=pa.array([Decimal("0.5")], pa.decimal128(3, 1)))
    parquet(tmp_path / "4.parquet", at=pa.array([1], pa.timestamp("ns", "UTC")))
    run, report = ingested(place, "types.t", tmp_path)
    assert [Path(file).name for file, _ in report.quarantined] == ["4.parquet"]
    assert asked(db, "SELECT x, d FROM types.t ORDER BY d") == [
        (None, Decimal("0.50")),
        (0.1, Decimal("1.25")),
        (3.0, Decimal("1234567.25")),
    ]
    assert asked(db, 'SELECT tiny, big, huge, local, raw, "a.b" FROM types.t WHERE flag') == [
        (-7, 1 << 31, Decimal((1 << 64) - 1), at.replace(tzinfo=None), b"\x00\xff", "dot")
    ]
    agree(lake, place, "types")
    # what was left out as a whole is taken again, when asked for and when it can be read by now
    parquet(tmp_path / "5.parquet", x=[1.0])
    run, report = ingested(place, "types.t", tmp_path, again=True)
    assert (run.counts["rows"], run.counts["quarantined_files"]) == (1, 1)


def test_reader_options_are_passed_to_spark_and_wrong_ones_are_refused(
    command: Callable[..., tuple[Result, dict[str, Any]]], db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    (tmp_path / "1.csv").write_bytes("1;ü;n/a\n2;x;3\n".encode("latin-1"))
    given = ["--option", "header=false", "--option", "sep=;", "--option", "nullValue=n/a"]
    for wrong in ["encoding=klingon", "maxColumns=many"]:
        done, _ = command(tmp_path, "--into", "opts.t", *given, "--option", wrong)
        assert (done.exit_code, "error: " in done.stderr) == (1, True), (wrong, done.output)
    done, _ = command(tmp_path, "--into", "opts.t", *given, "--option", "encoding=ISO-8859-1")
    assert done.exit_code == 0, done.output
    assert asked(db, "SELECT _c0, _c1, _c2 FROM opts.t ORDER BY 1") == [(1, "ü", None), (2, "x", 3)]


def test_files_are_ingested_into_a_duckdb_table_without_schema_evolution(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE SCHEMA made; CREATE TABLE made.t(id INTEGER NOT NULL, s VARCHAR)")
    parquet(tmp_path / "1.parquet", id=pa.array([1, None], pa.int32()), s=["a", "b"])
    parquet(tmp_path / "2.parquet", id=[1 << 40], s=["wide"])
    parquet(tmp_path / "3.parquet", id=pa.array([3], pa.int32()), more=["x"])
    run, _ = ingested(place, "made.t", tmp_path, manner=Manner(evolve=False))
    assert asked(db, "FROM made.t") == [(1, "a")]
    assert (run.counts["rows"], run.counts["bad_records"], run.counts["quarantined_files"]) == (1, 1, 2)
    reasons = dict(asked(db, "SELECT parse_filename(_source_file), _reason FROM made.t_quarantine"))
    assert reasons == {
        "1.parquet": "has no value of id, which must have one",
        "2.parquet": "the table would have to widen id from int to bigint",
        "3.parquet": "the table would have to add more string",
    }
    assert asked(db, "SELECT _record FROM made.t_quarantine WHERE _record IS NOT NULL") == [('{"s":"b"}',)]
    with pytest.raises(SetupError, match=r"there is no table made\.none, and --no-evolve makes none"):
        ingested(place, "made.none", tmp_path, manner=Manner(evolve=False))
    agree(lake, place, "made")


def test_a_file_that_changed_after_its_ingest_is_reported_and_not_ingested_again(
    place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    file = text(tmp_path / "[1] {a}?.csv", "i", "1")
    ingested(place, "changed.t", tmp_path)
    text(file, "i", "1", "2")
    run, report = ingested(place, "changed.t", tmp_path)
    assert run.counts["changed_files"] == 1
    assert len(report.changed) == 1
    assert asked(db, "SELECT i FROM changed.t") == [(1,)]
    # under a new name it is a new one; and the other is what it was, if it is put back
    text(tmp_path / "2.csv", "i", "2")
    run, _ = ingested(place, "changed.t", tmp_path / "2.csv")
    assert run.counts["rows"] == 1


def test_an_ingest_into_a_table_whose_ledger_is_gone_is_refused(
    place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    text(tmp_path / "1.csv", "i", "1")
    ingested(place, "lost.t", tmp_path)
    # renamed, it has the ledger that it had
    db.execute("ALTER TABLE lost.t RENAME TO u")
    run, _ = ingested(place, "lost.u", tmp_path)
    assert run.counts["known_files"] == 1
    db.execute("DROP TABLE lost.t_files")
    with pytest.raises(SetupError, match=r"lost\.t_files is gone"):
        ingested(place, "lost.u", tmp_path)
    # another table of the name begins anew
    db.execute("CREATE TABLE lost.v_files(i INTEGER)")
    with pytest.raises(SetupError, match=r"lost\.v_files is there, and is not what ingest writes"):
        ingested(place, "lost.v", tmp_path)


def test_hive_folders_are_ingested_as_columns_into_a_partitioned_table(
    lake: TestLake, place: Place, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    text(tmp_path / "in" / "region=eu" / "1.csv", "i,at", "1,2024-01-01 10:00:00")
    text(tmp_path / "in" / "region=us" / "1.csv", "i,at", "2,2024-01-02 10:00:00", "x,2024-01-02 10:00:00")
    ingested(place, "parts.t", tmp_path / "in", partition_by=("region", "days(at)", "bucket(4, i)"))
    assert asked(db, "SELECT region, i FROM parts.t ORDER BY 1") == [("eu", "1"), ("us", "2"), ("us", "x")]
    (spec,) = place.client.load_table(("parts",), "t")["metadata"]["partition-specs"]
    assert [one["transform"] for one in spec["fields"]] == ["identity", "day", "bucket[4]"]
    agree(lake, place, "parts")


def test_mergus_pipeline_ingest_plans_ingests_and_reports(
    command: Callable[..., tuple[Result, dict[str, Any]]], db: Any, tmp_path: Path
) -> None:
    text(tmp_path / "data.txt", "i|t", "1|a", "2|b")
    options = ["--format", "csv", "--option", "sep=|", "--into", "told.t"]
    done, summary = command(tmp_path, *options, "--dry-run")
    assert (done.exit_code, summary["plan"][0]["changes"]) == (0, ["add i int", "add t string"]), done.output
    assert db.execute("SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'told'").fetchone() == (0,)
    done, summary = command(tmp_path / "*.txt", *options, "--partition-by", "t")
    assert (done.exit_code, summary["state"], summary["counts"]["rows"]) == (0, "done", 2), done.output
    assert asked(db, "SELECT i, t FROM told.t ORDER BY i") == [(1, "a"), (2, "b")]
    text(tmp_path / "more.txt", "i|t", "x|a", "3|c")
    done, summary = command(tmp_path, *options)
    assert (done.exit_code, summary["state"]) == (3, "found"), done.output
    assert (summary["counts"]["rows"], summary["counts"]["bad_records"]) == (1, 1)


def test_mergus_pipeline_ingest_reports_wrong_arguments(
    command: Callable[..., tuple[Result, dict[str, Any]]], tmp_path: Path
) -> None:
    text(tmp_path / "notes.txt", "no data")

    def said(*given: object) -> tuple[int, str]:
        done, _ = command(*given)
        return done.exit_code, done.stderr.strip().splitlines()[-1]

    assert said(tmp_path / "none", "--into", "n.t") == (1, f"error: there is nothing at {tmp_path / 'none'}")
    assert said(tmp_path / "*.none", "--into", "n.t") == (1, f"error: there is nothing at {tmp_path / '*.none'}")
    assert said("nowhere://x/y", "--into", "n.t")[0] == 1
    assert "no format that is known" in said(tmp_path, "--into", "n.t")[1]
    assert said(tmp_path, "--into", "n")[0] == 1
    assert "the reader's option mode" in said(tmp_path, "--into", "n.t", "--option", "mode=FAILFAST")[1]
    assert (
        "--conf spark.hadoop.fs.s3a.secret.key" in said(tmp_path, "--into", "n.t", "--option", "fs.s3a.secret.key=x")[1]
    )
    assert "is no partitioning" in said(tmp_path, "--into", "n.t", "--partition-by", "days(a,b")[1]
    assert said(tmp_path, "--into", "n.t", "--stream")[0] == 2
    assert said(tmp_path, "--into", "n.t", "--option", "x")[0] == 2
