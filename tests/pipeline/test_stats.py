"""Figures of columns are those that DuckDB finds; they are kept with the snapshot, where every client reads them."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from pyiceberg.catalog import load_catalog

from mergus.cli import main
from mergus.errors import SetupError
from mergus.pipeline.job import Place, Run, Table
from mergus.pipeline.session import conf, iceberg_table, query, rows
from mergus.pipeline.stats import compute as stats
from mergus.pipeline.stats.puffin import SKETCH, Statistics
from tests.support.lakes import TestLake
from tests.support.loads import Bucket
from tests.support.servers import Server

TYPES = {
    "b": "BOOLEAN",
    "i": "INTEGER",
    "l": "BIGINT",
    "f": "FLOAT",
    "d": "DOUBLE",
    "dec": "DECIMAL(38, 10)",
    "day": "DATE",
    "ts": "TIMESTAMP",
    "tz": "TIMESTAMPTZ",
    "s": "VARCHAR",
    "u": "UUID",
    "raw": "BLOB",
    "a.b": "BIGINT",
}
# How DuckDB writes a value as we do.
TEXTS = {
    "BOOLEAN": "CAST({} AS VARCHAR)",
    "DATE": "strftime({}, '%Y-%m-%d')",
    "TIMESTAMP": "strftime({}, '%Y-%m-%dT%H:%M:%S.%f')",
    "TIMESTAMPTZ": "strftime(timezone('UTC', {}), '%Y-%m-%dT%H:%M:%S.%f') || '+00:00'",
    "BLOB": "base64({})",
}
# ~40 rows in a file, 3 inlined, and deletes of both kinds
MAKE = (
    "CREATE SCHEMA {s}",
    f"CREATE TABLE {{s}}.t({', '.join(f'{json.dumps(name)} {kind}' for name, kind in TYPES.items())},"
    " never INTEGER, r STRUCT(x INTEGER, y VARCHAR), li INTEGER[])",
    """INSERT INTO {s}.t SELECT range % 2 = 0, range % 7, range * 1000000007, range / 3, sqrt(range),
         (range - 20) / 7::DECIMAL(38, 10), DATE '1969-12-01' + range::INT,
         TIMESTAMP '1969-12-31 23:59:59.999999' + INTERVAL (range * 7) MICROSECOND,
         TIMESTAMPTZ '2024-02-29 12:00:00+00' - INTERVAL (range) DAY, 'v' || range % 10, md5(range::VARCHAR)::UUID,
         from_hex(md5(range::VARCHAR)), range, NULL, {'x': range % 3, 'y': NULL}, [range] FROM range(2000)""",
    "INSERT INTO {s}.t(f, d, dec) VALUES ('nan', 'nan', -99999999999999.0000000001), ('-inf', 'inf', NULL)",
    "INSERT INTO {s}.t(i, s, day) VALUES (-5, 'ü€𝄞', DATE '0001-01-01')",
    "DELETE FROM {s}.t WHERE l > 1900000013300",
    "DELETE FROM {s}.t WHERE i = 3",
    "DELETE FROM {s}.t WHERE s = 'ü€𝄞'",
)


def make(db: duckdb.DuckDBPyConnection, schema: str) -> Table:
    for statement in MAKE:
        db.execute(statement.replace("{s}", schema))
    return Table((schema,), "t")


def by_column(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {column["column"]: column for column in told["columns"]}


def served(place: Place, table: Table) -> dict[int, dict[str, str]]:
    """Properties of blobs by field id, of the current snapshot."""
    metadata = place.metadata(table)
    (file,) = [f for f in metadata["statistics"] if f["snapshot-id"] == metadata["current-snapshot-id"]]
    return {field: blob["properties"] for blob in file["blob-metadata"] for field in blob["fields"]}


def field_ids(place: Place, table: Table) -> dict[str, int]:
    return {field["name"]: field["id"] for field in place.metadata(table)["schemas"][-1]["fields"]}


def one(db: duckdb.DuckDBPyConnection, sql: str) -> Any:
    (found,) = db.execute(sql).fetchone() or (None,)
    return found


def test_column_statistics_are_those_that_duckdb_computes(
    place: Place, run: Run, db: duckdb.DuckDBPyConnection
) -> None:
    table = make(db, "figures")
    (told,) = stats.compute(place, [table], run, buckets=16)
    found, ids, properties = by_column(told), field_ids(place, table), served(place, table)
    assert {*found} == {*TYPES, "never", "r", "li"}
    for name, kind in TYPES.items():
        column, c = found[name], json.dumps(name)
        is_float = kind in {"FLOAT", "DOUBLE"}
        real = f"{c} IS NOT NULL" + (f" AND NOT isnan({c})" if is_float else "")
        assert column["row-count"] == one(db, "SELECT count(*) FROM figures.t")
        assert column["null-count"] == one(db, f"SELECT count(*) FROM figures.t WHERE {c} IS NULL"), name
        nans = one(db, f"SELECT count(*) FROM figures.t WHERE isnan({c})") if is_float else None
        assert column.get("nan-count") == nans
        for which in ("min", "max"):
            template = TEXTS.get(kind, "CAST({} AS VARCHAR)")
            expected = one(db, f"SELECT {template.format(f'{which}({c})')} FROM figures.t WHERE {real}")
            if is_float:
                assert float(column[which]) == float(expected), (name, which)
            else:
                assert column[which] == expected, (name, which)
        # fewer than the sketch holds are counted exactly; one NaN is a value
        distinct = one(db, f"SELECT count(DISTINCT {c}) FROM figures.t")
        assert column["distinct-count"] == distinct, name
        check_histogram(db, name, kind, column["histogram"], real)
        shown = properties[ids[name]]
        assert shown["ndv"] == str(distinct)
        assert {key: shown.get(key) for key in ("min", "max")} == {key: column[key] for key in ("min", "max")}
        assert shown["null-count"] == str(column["null-count"])
        assert shown.get("nan-count") == (None if nans is None else str(nans))


def check_histogram(db: duckdb.DuckDBPyConnection, name: str, kind: str, told: dict[str, Any], real: str) -> None:
    """Each bucket has what DuckDB counts between its bounds."""
    assert told["is-exact"]
    assert 1 <= len(told["counts"]) <= 16
    read = "from_base64('{}')" if kind == "BLOB" else f"CAST('{{}}' AS {kind})"
    for number, (low, high) in enumerate(pairwise(told["bounds"])):
        c = json.dumps(name)
        above = f"{c} > {read.format(low)}" if number else "true"
        where = f"{real} AND {above} AND {c} <= {read.format(high)}"
        assert told["counts"][number] == one(db, f"SELECT count(*) FROM figures.t WHERE {where}"), (name, number)
    assert sum(told["counts"]) == one(db, f"SELECT count(*) FROM figures.t WHERE {real}")


def test_unknown_column_statistics_are_absent(place: Place, run: Run, db: duckdb.DuckDBPyConnection) -> None:
    table = make(db, "unknowns")
    (told,) = stats.compute(place, [table], run)
    found = by_column(told)
    total = one(db, "SELECT count(*) FROM unknowns.t")
    # no value: it has none that is least, and no distinct one
    assert found["never"] == {
        "column": "never", "type": "int", "row-count": total, "null-count": total, "distinct-count": 0
    }  # fmt: skip
    # values without an order: nulls are counted
    nulls = one(db, "SELECT count(*) FROM unknowns.t WHERE r IS NULL")
    assert found["r"] == {"column": "r", "type": "struct", "row-count": total, "null-count": nulls}
    assert found["li"] == {"column": "li", "type": "list", "row-count": total, "null-count": nulls}
    assert "nan-count" not in found["l"]
    assert found["f"]["nan-count"] == 1
    db.execute("DELETE FROM unknowns.t")
    (told,) = stats.compute(place, [table], run)
    assert by_column(told)["l"] == {
        "column": "l", "type": "long", "row-count": 0, "null-count": 0, "distinct-count": 0
    }  # fmt: skip
    assert served(place, table)[field_ids(place, table)["l"]] == {"ndv": "0", "row-count": "0", "null-count": "0"}


def test_statistics_handle_signed_zeros_and_truncate_long_values(
    place: Place, run: Run, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute(
        "CREATE SCHEMA odd; CREATE TABLE odd.t(pm DOUBLE, minus DOUBLE, plus FLOAT, s VARCHAR, t VARCHAR, w VARCHAR)"
    )
    db.execute(
        "INSERT INTO odd.t SELECT 0, '-0.0', 0, repeat('é', 300) || range, 'x', repeat(chr(97 + range::INT), 300)"
        " FROM range(10)"
    )
    db.execute("INSERT INTO odd.t SELECT '-0.0', '-0.0', 0, 'a', '2024-01-01', NULL")
    (told,) = stats.compute(place, [Table(("odd",), "t")], run, buckets=4)
    found = by_column(told)
    assert [(found[c]["min"], found[c]["max"]) for c in ("pm", "minus", "plus")] == [
        ("-0.0", "0.0"), ("-0.0", "-0.0"), ("0.0", "0.0")
    ]  # fmt: skip
    long = found["s"]
    assert (long["min"], long["max"]) == ("a", "é" * 255 + "ê")
    assert ("min-is-cut" in long, long["max-is-cut"], long["distinct-count"]) == (False, True, 11)
    # no bound that can be shown divides these, or those
    assert long["histogram"] == {"bounds": [long["min"], long["max"]], "counts": [11], "is-exact": True}
    assert "histogram" not in found["w"]
    assert (found["w"]["min"], found["w"]["max"]) == ("a" * 256, "j" * 255 + "k")
    # a string that looks like a date is a string
    assert (found["t"]["type"], found["t"]["min"]) == ("string", "2024-01-01")


def test_statistics_of_a_large_table_are_sampled(place: Place, run: Run, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA big; CREATE TABLE big.t AS SELECT range i, 'k' || range % 20000 s FROM range(60000)")
    (told,) = stats.compute(place, [Table(("big",), "t")], run, buckets=4)
    found = by_column(told)
    i, s = found["i"], found["s"]
    assert (i["min"], i["max"], i["null-count"]) == ("0", "59999", 0)
    assert math.isclose(i["distinct-count"], 60000, rel_tol=0.1)
    assert math.isclose(s["distinct-count"], 20000, rel_tol=0.1)
    for column in (i, s):
        assert column["histogram"]["is-exact"] is False
        assert sum(column["histogram"]["counts"]) == 60000
    assert all(math.isclose(count, 15000, rel_tol=0.25) for count in i["histogram"]["counts"])
    for number, (low, high) in enumerate(pairwise(map(int, i["histogram"]["bounds"]))):
        assert math.isclose(i["histogram"]["counts"][number], high - low, rel_tol=0.25)


def test_every_client_reads_a_table_with_statistics(
    lake: TestLake, server: Server, place: Place, run: Run, db: duckdb.DuckDBPyConnection
) -> None:
    table = make(db, "clients")
    stats.compute(place, [table], run)
    metadata = place.metadata(table)
    # PyIceberg knows two types of blobs, and opens no table that lists another
    catalog = load_catalog("lake", type="rest", uri=server.uri)
    (file,) = catalog.load_table("clients.t").metadata.statistics
    assert {blob.type for blob in file.blob_metadata} == {SKETCH}
    ids = field_ids(place, table)
    assert {blob.fields[0] for blob in file.blob_metadata} == {ids[name] for name in [*TYPES, "never"]}
    # Iceberg's library in Spark, and its optimiser
    seen = iceberg_table(place.spark, place.sql_name(table)).statisticsFiles()
    assert [one.snapshotId() for one in seen] == [metadata["current-snapshot-id"]]
    costs = {"spark.sql.cbo.enabled": "true", "spark.sql.iceberg.report-column-stats": "true"}
    with conf(place.spark, costs):
        asked: Any = query(place.spark, f"SELECT i FROM {place.sql_name(table)}")
        known = asked._jdf.queryExecution().optimizedPlan().stats().attributeStats().toString()
        assert "ColumnStat(Some(6)," in known, known
        db.execute("ALTER TABLE clients.t DROP COLUMN never")
        assert query(place.spark, f"SELECT i FROM {place.sql_name(table)} WHERE i = 1").count() > 0
    # DuckDB goes on
    db.execute("INSERT INTO clients.t(i) VALUES (1)")
    assert (place.metadata(table)["statistics"], len(place.metadata(table)["snapshots"])) == (
        metadata["statistics"],
        len(metadata["snapshots"]) + 1,
    )
    assert query(place.spark, f"SELECT * FROM {place.sql_name(table)}").count() == one(
        db, "SELECT count(*) FROM clients.t"
    )


def test_sketches_are_those_of_icebergs_compute_table_stats(
    place: Place, run: Run, db: duckdb.DuckDBPyConnection
) -> None:
    """What `compute_table_stats` makes of a table has the same numbers, and of a column the same bytes."""
    table = make(db, "sketches")
    columns = [name for name in TYPES if name not in {"a.b", "u"}]
    listed = ", ".join(f"'{name}'" for name in columns)
    procedure = f"{place.catalog}.system.compute_table_stats(table => 'sketches.t', columns => array({listed}))"
    rows(place.spark, f"CALL {procedure}")
    ids = field_ids(place, table)
    theirs = served(place, table)
    before = sketches(place, table)
    (told,) = stats.compute(place, [table], run)
    assert told["state"] == "measured"
    ours, after = served(place, table), sketches(place, table)
    assert {ours[ids[name]]["ndv"] for name in columns} == {theirs[ids[name]]["ndv"] for name in columns}
    assert {name for name in columns if after[ids[name]] != before[ids[name]]} == set()


def sketches(place: Place, table: Table) -> dict[int, bytes]:
    metadata = place.metadata(table)
    (file,) = [f for f in metadata["statistics"] if f["snapshot-id"] == metadata["current-snapshot-id"]]
    found = Statistics(place, table).read(stats.File.of(file), {SKETCH})
    return {blob.fields[0]: blob.data for blob in found}


def test_statistics_of_further_columns_are_added_without_repeating_others(
    place: Place, run: Run, db: duckdb.DuckDBPyConnection
) -> None:
    table = make(db, "parts")
    (first,) = stats.compute(place, [table], run, columns=["l", "r.x", "a.b"])
    assert (first["state"], [*by_column(first)]) == ("measured", ["l", "r.x", "a.b"])
    assert by_column(first)["r.x"]["distinct-count"] == 3
    path = place.metadata(table)["statistics"][0]["statistics-path"]
    (again,) = stats.compute(place, [table], run, columns=["a.b", "l"])
    assert (again["state"], place.metadata(table)["statistics"][0]["statistics-path"]) == ("kept", path)
    (more,) = stats.compute(place, [table], run, columns=["s"])
    assert [*by_column(more)] == ["s"]
    (shown,) = stats.show(place, [table])
    assert ({*by_column(shown)}, shown["is-current"]) == ({"l", "r.x", "a.b", "s"}, True)
    assert len(shown["others"]) == 4
    (anew,) = stats.compute(place, [table], run, columns=["s"], again=True)
    assert (anew["state"], anew["columns"]) == ("measured", more["columns"])
    # other buckets are other figures
    assert stats.compute(place, [table], run, columns=["s"], buckets=3)[0]["state"] == "measured"


def test_statistics_of_a_past_snapshot_can_be_computed(place: Place, run: Run, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA past; CREATE TABLE past.t(i INTEGER); INSERT INTO past.t VALUES (1), (2)")
    db.execute("INSERT INTO past.t VALUES (9); ALTER TABLE past.t RENAME i TO j")
    table = Table(("past",), "t")
    old, new = place.metadata(table)["snapshots"]
    lake_id = int(old["summary"]["ducklake.snapshot-id"])
    (told,) = stats.compute(place, [table], run, snapshot=lake_id)
    assert told["snapshot-id"] == old["snapshot-id"]
    assert [(c["column"], c["max"], c["row-count"]) for c in told["columns"]] == [("i", "2", 2)]
    (shown,) = stats.show(place, [table])
    assert (shown["snapshot-id"], shown["is-current"]) == (old["snapshot-id"], False)
    assert stats.show(place, [table], new["snapshot-id"]) == [{"table": "past.t", "state": "none"}]
    with pytest.raises(SetupError, match="the table has no snapshot 4711"):
        stats.compute(place, [table], run, snapshot=4711)


def test_an_interrupted_statistics_run_is_completed_by_the_next(
    place: Place, run: Run, db: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first table is done; the second ends between writing its file and naming it, as if killed there."""
    first, second = make(db, "halfway"), Table(("halfway",), "other")
    db.execute("CREATE TABLE halfway.other AS SELECT range i FROM range(5)")
    write = Statistics.write

    def killed(self: Statistics, snapshot_id: int, blobs: Any) -> Any:
        if len(blobs) == 2:
            self._table = Unnamed(self._table)
        return write(self, snapshot_id, blobs)

    class Unnamed:
        def __init__(self, table: Any) -> None:
            self.io, self.operations = table.io, table.operations

        def updateStatistics(self) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Statistics, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            stats.compute(place, [first, second], run)
    assert place.metadata(second).get("statistics", []) == []
    told = stats.compute(place, [first, second], run)
    assert [one["state"] for one in told] == ["kept", "measured"]


def test_a_lost_statistics_file_is_written_again_only_on_request(
    lake: TestLake, place: Place, run: Run, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA lost; CREATE TABLE lost.t AS SELECT range i FROM range(5)")
    table = Table(("lost",), "t")
    stats.compute(place, [table], run)
    path = place.metadata(table)["statistics"][0]["statistics-path"]
    Bucket(lake.settings).delete(path)
    with pytest.raises(SetupError, match="its statistics cannot be read, --again makes them anew"):
        stats.compute(place, [table], run)
    assert stats.compute(place, [table], run, again=True)[0]["state"] == "measured"
    assert stats.compute(place, [table], run)[0]["state"] == "kept"


@pytest.mark.usefixtures("as_user")
def test_mergus_pipeline_stats_computes_and_reports(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    db.execute("CREATE SCHEMA told; CREATE TABLE told.t AS SELECT range i, 'x' s FROM range(10)")
    db.execute(
        "CREATE TABLE told.never(i INTEGER); CREATE TABLE told.clock(w TIME); INSERT INTO told.clock VALUES ('12:00')"
    )

    def call(*words: str) -> tuple[int, dict[str, Any], str]:
        report = tmp_path / "report.json"
        done = CliRunner().invoke(main, ["pipeline", "stats", *words, "--report", str(report)])
        return done.exit_code, json.loads(report.read_text()), done.output

    code, summary, _ = call("told.t", "--columns", "i", "--buckets", "2")
    assert (code, summary["counts"]) == (0, {"measured": 1, "columns": 1})
    figures = {"type": "long", "row-count": 10, "null-count": 0, "distinct-count": 10, "min": "0", "max": "9"}
    assert summary["tables"][0]["columns"] == [{"column": "i", **figures}]
    code, summary, _ = call("told.t", "--show")
    histogram = {"bounds": ["0", "4", "9"], "counts": [5, 5], "is-exact": True}
    assert (code, summary["tables"][0]["columns"]) == (0, [{"column": "i", **figures, "histogram": histogram}])
    # a nightly run of everything goes on past what Spark cannot read, and says so
    code, summary, _ = call("told")
    assert (code, summary["state"]) == (3, "found")
    assert {t["table"]: t["state"] for t in summary["tables"]} == {
        "told.t": "measured", "told.never": "empty", "told.clock": "unread"
    }  # fmt: skip
    code, _, output = call("told.t", "--columns", "i,nowhere")
    assert (code, "error: there is no column nowhere: there are i, s" in output) == (1, True)
    code, _, output = call("told.nowhere")
    assert (code, "error: there is no table told.nowhere" in output) == (1, True)
    wrong = CliRunner().invoke(main, ["pipeline", "stats", "told.t", "told.never", "--snapshot", "1"])
    assert wrong.exit_code == 2
