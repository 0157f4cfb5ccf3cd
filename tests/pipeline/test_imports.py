"""Tables that lie in directories, as Spark's Hadoop catalog or as Parquet files, become tables of the lake."""

import shutil
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pytest
from pyspark.sql import DataFrame

from mergus.errors import SetupError
from mergus.pipeline.imports import take
from mergus.pipeline.imports.connector import Connector
from mergus.pipeline.imports.importing import Asked, Imported, import_tables
from mergus.pipeline.imports.parquet import ParquetDirectories
from mergus.pipeline.imports.secrets import Secrets
from mergus.pipeline.imports.sources import connect
from mergus.pipeline.job import Place, Run, Table
from mergus.pipeline.session import conf
from mergus.pipeline.verify import verify
from tests.support import lakes, servers
from tests.support import spark as sparks
from tests.support.lakes import Row, TestLake
from tests.support.loads import in_order
from tests.support.servers import Server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`allowed` in it is a place where the server lets tables have files."""
    return tmp_path_factory.mktemp("imports")


@pytest.fixture(scope="module")
def lake(folder: Path) -> Iterator[TestLake]:
    """On the local disk, where Hadoop needs nothing of its own."""
    with lakes.lake(data_path=f"file://{folder}/lake/data/") as made:
        yield made


@pytest.fixture(scope="module")
def server(lake: TestLake, folder: Path) -> Iterator[Server]:
    with servers.server(lake.settings, folder, allowed_locations=f"file://{folder}/allowed") as running:
        yield running


class Killed(BaseException):
    """Stands for a process that ends here and now: nothing of ours handles it."""


def spark(text: str) -> list[Row]:
    return in_order(tuple(row) for row in sparks.session().sql(text).collect())


def hadoop(warehouse: Path) -> str:
    """A Hadoop catalog to write with; its name."""
    name = f"hadoop_{uuid4().hex[:8]}"
    conf = sparks.session().conf
    conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    conf.set(f"spark.sql.catalog.{name}.type", "hadoop")
    conf.set(f"spark.sql.catalog.{name}.warehouse", f"file://{warehouse}")
    return name


def done(place: Place, connector: Connector, *names: str, **asked: Any) -> dict[str, Imported]:
    """What became of each table, by its name in the source."""
    run = Run("import", lambda _: None)
    report = import_tables(place, run, connector, Asked(names, **asked), Secrets({}))
    assert sum(run.counts[one.state] for one in report.tables) >= len(report.tables)
    return {one.source: one for one in report.tables}


def told(found: dict[str, Imported]) -> dict[str, tuple[str, str | None]]:
    return {name: (one.state, one.how) for name, one in found.items()}


def assert_same(lake: TestLake, place: Place, *names: str, newest: int | None = 1) -> None:
    """DuckDB and Spark read the same from these tables of the lake."""
    tables = [Table(tuple(name.split(".")[:-1]), name.split(".")[-1]) for name in names]
    report = verify(place, lake.of_writers, tables, Run("verify", lambda _: None), newest=newest)
    assert {(str(one.table), one.state) for one in report.checked} == {(name, "equal") for name in names}


def duck(db: duckdb.DuckDBPyConnection, text: str) -> list[Row]:
    return in_order(db.execute(text).fetchall())


def story(catalog: str, namespace: str, name: str = "orders") -> str:
    """A table with partitions of every kind, deletes, and four snapshots."""
    full = f"{catalog}.{namespace}.{name}"
    spark(
        f"CREATE TABLE {full} (id INT, name STRING, d DATE, n STRUCT<x: INT, y: ARRAY<STRING>>) USING iceberg "
        "PARTITIONED BY (months(d), bucket(4, id), truncate(1, name)) "
        "TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
    )
    for start in (0, 20, 40):
        spark(
            f"INSERT INTO {full} SELECT CAST(id AS INT), 'n' || id, DATE'2020-01-01' + CAST(id AS INT), "
            f"named_struct('x', CAST(id AS INT), 'y', array('a', NULL)) FROM range({start}, {start + 20})"
        )
    spark(f"DELETE FROM {full} WHERE id IN (3, 25)")
    return full


def test_tables_of_a_hadoop_catalog_are_registered_in_place(
    lake: TestLake, place: Place, folder: Path, db: duckdb.DuckDBPyConnection
) -> None:
    """One that is broken does not stop the others, and a second run does nothing."""
    warehouse = folder / "allowed/hadoop"
    old = hadoop(warehouse)
    orders = story(old, "sales")
    spark(f"CREATE TABLE {old}.sales.empty (i INT) USING iceberg")
    spark(f"CREATE TABLE {old}.sales.broken (i INT) USING iceberg")
    (warehouse / "sales/broken/metadata/v1.metadata.json").write_text("{")
    spark(f"CREATE TABLE {old}.other.t (i INT) USING iceberg")
    wanted = spark(f"SELECT id, name, d FROM {orders}")
    assert len(wanted) == 58

    source = connect("hadoop", place.spark, f"file://{warehouse}", {})
    assert source.namespaces() == [("other",), ("sales",)]
    plan = done(place, source, "sales", plan=True)
    assert {(one.state, one.how) for name, one in plan.items() if name != "sales.broken"} == {("planned", "register")}
    assert place.load(Table(("sales",), "orders")) is None

    found = done(place, source, "sales")
    assert told(found) == {
        "sales.orders": ("registered", "register"),
        "sales.empty": ("registered", "register"),
        "sales.broken": ("failed", None),
    }
    assert (found["sales.orders"].rows, found["sales.orders"].snapshots) == (58, 4)
    assert "v1.metadata.json" in (found["sales.broken"].reason or "")
    assert duck(db, "SELECT id, name, d FROM lake.sales.orders") == wanted
    assert duck(db, "SELECT * FROM lake.sales.empty") == []
    assert_same(lake, place, "sales.orders", newest=None)
    before = lake.snapshots()
    again = done(place, source, "sales")
    assert told(again)["sales.orders"] == ("skipped", None)
    assert again["sales.orders"].reason == again["sales.empty"].reason == "imported already"
    assert lake.snapshots() == before


def test_a_table_at_a_location_that_is_not_allowed_is_copied(
    lake: TestLake, place: Place, folder: Path, db: duckdb.DuckDBPyConnection
) -> None:
    """With its partitions, and with each of its snapshots if that is asked for. When the source goes on, so does it."""
    warehouse = folder / "not allowed"
    orders = story(hadoop(warehouse), "copied")
    source = connect("hadoop", place.spark, f"file://{warehouse}", {})
    refused = done(place, source, "copied.orders", how="register")["copied.orders"]
    assert refused.state == "failed"
    assert refused.reason is not None
    assert "MERGUS_ALLOWED_LOCATIONS" in refused.reason

    found = done(place, source, "copied.orders", history="all")["copied.orders"]
    assert (found.state, found.how, found.snapshots, found.rows) == ("copied", "copy", 4, 58)
    assert found.reason is not None
    assert found.reason.startswith("copied, since it cannot be registered: ")
    assert "MERGUS_ALLOWED_LOCATIONS" in found.reason
    assert_same(lake, place, "copied.orders", newest=None)
    metadata = place.metadata(Table(("copied",), "orders"))
    (spec,) = [s for s in metadata["partition-specs"] if s["spec-id"] == metadata["default-spec-id"]]
    assert [field["transform"] for field in spec["fields"]] == ["month", "bucket[4]", "truncate[1]"]

    def each() -> None:
        shown = place.metadata(Table(("copied",), "orders"))["snapshots"]
        theirs = source.snapshots(Table(("copied",), "orders"))
        assert [one["summary"]["mergus.import"] for one in shown] == theirs
        for one, at in zip(shown, theirs, strict=True):
            then = (
                f"SELECT id, name, d FROM lake.copied.orders AT (VERSION => {one['summary']['ducklake.snapshot-id']})"
            )
            assert duck(db, then) == spark(f"SELECT id, name, d FROM {orders} VERSION AS OF {at}")

    each()
    spark(f"ALTER TABLE {orders} ADD COLUMN more INT")
    spark(f"INSERT INTO {orders} VALUES (100, 'late', DATE'2021-01-01', NULL, 7)")
    latest = done(place, source, "copied.orders")["copied.orders"]
    assert (latest.state, latest.reason) == (
        "skipped",
        "the source has changed since it was imported: --again replaces it",
    )
    found = done(place, source, "copied.orders", history="all")["copied.orders"]
    assert (found.state, found.snapshots, found.rows) == ("copied", 5, 59)
    each()
    assert duck(db, "SELECT more FROM lake.copied.orders WHERE id = 100") == [(7,)]


def test_directories_of_parquet_files_are_registered_or_copied(
    lake: TestLake, place: Place, folder: Path, db: duckdb.DuckDBPyConnection
) -> None:
    """Plain ones in place, partitioned ones by copying; a corrupt one fails alone, and is imported once it is whole."""
    root = folder / "allowed/parquet"
    made = sparks.session().sql(
        "SELECT id, 'x' || id AS s, CAST(id AS DECIMAL(12, 3)) AS d, "
        "timestamp_micros(1700000000000000 + id) AS t, "
        "CAST(timestamp_micros(id) AS TIMESTAMP_NTZ) AS w, encode('b' || id, 'utf-8') AS b, "
        "array(id, NULL) AS l, named_struct('a b', id) AS st, map('k', id) AS m FROM range(50)"
    )
    with conf(place.spark, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}):
        made.repartition(2).write.parquet(f"{root}/shop/plain")
    made.write.parquet(f"{root}/shop/int96")
    made.selectExpr("*", "id % 3 AS k", "DATE'2024-01-01' + CAST(id % 2 AS INT) AS day").write.partitionBy(
        "k", "day"
    ).parquet(f"{root}/shop/parts")
    # a later file has a column more
    made.select("id").coalesce(1).write.parquet(f"{root}/shop/grown")
    made.selectExpr("id", "s AS late").coalesce(1).write.mode("append").parquet(f"{root}/shop/grown")
    made.coalesce(1).write.parquet(f"{root}/shop/corrupt")
    made.select("id").coalesce(1).write.mode("append").parquet(f"{root}/shop/corrupt")
    (bad, *_) = sorted((root / "shop/corrupt").glob("*.parquet"))
    whole = bad.read_bytes()
    bad.write_bytes(whole[:200] + bytes(len(whole) - 400) + whole[-200:])
    (root / "shop/delta/_delta_log").mkdir(parents=True)
    shutil.copy(next((root / "shop/plain").glob("*.parquet")), root / "shop/delta/part.parquet")
    (root / "shop/iceberg/metadata").mkdir(parents=True)
    (root / "shop/iceberg/metadata/v1.metadata.json").write_text("{}")
    shutil.copytree(root / "shop/plain", root / "shop/iceberg/data")

    source = connect("parquet", place.spark, str(root), {})
    assert source.namespaces() == [("shop",), ("shop", "iceberg")]
    found = done(place, source)
    reasons = {name: one.reason or "" for name, one in found.items()}
    assert told(found) == {
        "shop.plain": ("registered", "files"),
        "shop.grown": ("copied", "copy"),
        "shop.int96": ("copied", "copy"),
        "shop.parts": ("copied", "copy"),
        "shop.corrupt": ("failed", None),
        "shop.delta": ("failed", None),
        "shop.iceberg.data": ("failed", None),
    }, reasons
    assert "is a Delta table: import it with --from delta" in reasons["shop.delta"]
    assert "are files of an Iceberg table" in reasons["shop.iceberg.data"]
    assert "the values that it is partitioned by are in the names of directories" in reasons["shop.parts"]
    assert "column t is stored as int96, which not every Iceberg reader reads as timestamptz" in reasons["shop.int96"]
    assert "it has no column late, which other files of the table have" in reasons["shop.grown"]
    assert_same(lake, place, "shop.plain", "shop.parts", "shop.grown", "shop.int96")
    assert duck(db, "SELECT id, s, d, epoch_us(t), w, b, l[1], m['k'] FROM lake.shop.plain WHERE id = 7") == [
        (
            7,
            "x7",
            Decimal("7.000"),
            1700000000000007,
            datetime(1970, 1, 1, microsecond=7),
            b"b7",
            7,
            7,
        )
    ]
    assert duck(db, "SELECT k, day, count(*) FROM lake.shop.parts GROUP BY ALL ORDER BY ALL")[0] == (
        0,
        date(2024, 1, 1),
        9,
    )
    assert duck(db, "SELECT count(*), count(late) FROM lake.shop.grown") == [(100, 50)]
    assert place.load(Table(("shop",), "corrupt")) is None
    # the files are those that were there: nothing was copied
    paths = {
        Path(row[0]).name
        for row in db.execute("SELECT data_file FROM ducklake_list_files('lake', 'plain', schema => 'shop')").fetchall()
    }
    assert paths == {file.name for file in (root / "shop/plain").glob("*.parquet")}

    bad.write_bytes(whole)
    before = {name: one.state for name, one in done(place, source, "shop").items()}
    assert before == {"shop.plain": "skipped", "shop.grown": "skipped", "shop.parts": "skipped"} | {
        "shop.int96": "skipped",
        "shop.corrupt": "copied",
        "shop.delta": "failed",
    }
    assert_same(lake, place, "shop.corrupt")
    assert duck(db, "SELECT count(*) FROM lake.shop.corrupt") == [(100,)]


def test_an_import_copies_a_changed_source_again_only_on_request(
    lake: TestLake, place: Place, folder: Path, db: duckdb.DuckDBPyConnection
) -> None:
    """It is told, replaced if one says so, and left alone if somebody has written to what was imported."""
    root = folder / "outside"
    sparks.session().range(10).coalesce(1).write.parquet(f"{root}/t")
    source = connect("parquet", place.spark, f"{root}/t", {})
    nowhere = done(place, source)["t"]
    assert (nowhere.state, nowhere.reason) == ("failed", "it has no namespace in the source: name one with --into")
    found = done(place, source, "t", into=("goes", "on"))["t"]
    assert (found.state, found.target, found.rows) == ("copied", "goes.on.t", 10)
    sparks.session().range(10, 15).coalesce(1).write.mode("append").parquet(f"{root}/t")
    source = connect("parquet", place.spark, f"{root}/t", {})
    assert done(place, source, into=("goes", "on"))["t"].state == "skipped"
    assert done(place, source, into=("goes", "on"), again=True)["t"].rows == 15
    assert duck(db, 'SELECT count(*), sum(id) FROM lake."goes.on".t') == [(15, sum(range(15)))]
    assert_same(lake, place, "goes.on.t")
    db.execute('INSERT INTO lake."goes.on".t VALUES (100)')
    sparks.session().range(15, 16).coalesce(1).write.mode("append").parquet(f"{root}/t")
    source = connect("parquet", place.spark, f"{root}/t", {})
    touched = done(place, source, into=("goes", "on"), again=True)["t"]
    assert (touched.state, touched.reason) == (
        "failed",
        "it has been written to since it was imported, which replacing it would undo",
    )
    assert duck(db, 'SELECT count(*) FROM lake."goes.on".t') == [(16,)]


def test_an_import_does_not_touch_an_existing_table_of_the_same_name(
    place: Place, folder: Path, db: duckdb.DuckDBPyConnection
) -> None:
    root = folder / "allowed/clash"
    for name in ("a/t", "a/fine", "b/t"):
        sparks.session().range(3).coalesce(1).write.parquet(f"{root}/{name}")
    db.execute("CREATE SCHEMA clash; CREATE TABLE clash.t AS SELECT 1 AS mine")
    found = done(place, connect("parquet", place.spark, str(root), {}), into=("clash",))
    reasons = {name: (one.state, one.reason) for name, one in found.items()}
    assert reasons == {
        "a.t": ("failed", "exists already, and does not come from this table of the source"),
        "b.t": ("failed", "another table of the source has this name"),
        "a.fine": ("registered", None),
    }
    assert duck(db, "SELECT * FROM lake.clash.t") == [(1,)]


def test_an_import_that_was_killed_continues_on_the_next_run(
    lake: TestLake, place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch, db: duckdb.DuckDBPyConnection
) -> None:
    """Before a table, in the middle of copying one, and between registering one and marking it."""
    root = folder / "killed"
    for name in ("a", "b", "c"):
        sparks.session().range(5).coalesce(1).write.parquet(f"{root}/killed/{name}")

    class Dies(ParquetDirectories):
        def open(self, table: Table, snapshot: str | None = None) -> DataFrame:
            rows = super().open(table, snapshot)
            if table.name == "b":
                # files with the first rows are written when it ends
                return rows.union(place.spark.sql("SELECT CAST(raise_error('ended here') AS BIGINT)"))
            if table.name == "c" and snapshot is not None:
                raise Killed
            return rows

    with pytest.raises(Killed):
        done(place, Dies(place.spark, str(root), {}), "killed", parallel=1)
    assert duck(db, "SELECT count(*) FROM lake.killed.a") == [(5,)]
    assert place.load(Table(("killed",), "b")) is None
    assert place.load(Table(("killed",), "c")) is None
    source = connect("parquet", place.spark, str(root), {})
    states = {name: one.state for name, one in done(place, source, "killed").items()}
    assert states == {"killed.a": "skipped", "killed.b": "copied", "killed.c": "copied"}
    for name in ("a", "b", "c"):
        assert duck(db, f"SELECT count(*), sum(id) FROM lake.killed.{name}") == [(5, 10)]

    warehouse = folder / "allowed/killed"
    old = hadoop(warehouse)
    spark(f"CREATE TABLE {old}.killed.r USING iceberg AS SELECT * FROM range(4)")
    catalog = connect("hadoop", place.spark, f"file://{warehouse}", {})

    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(take, "mark", dies)
        done(place, catalog, "killed.r")
    before = lake.snapshots()
    found = done(place, catalog, "killed.r")["killed.r"]
    assert (found.state, found.how, found.rows) == ("registered", "register", 4)
    assert lake.snapshots() == before
    assert done(place, catalog, "killed.r")["killed.r"].reason == "imported already"
    # the source goes on, and is registered again
    spark(f"INSERT INTO {old}.killed.r VALUES (100)")
    assert done(place, catalog, "killed.r")["killed.r"].state == "skipped"
    assert done(place, catalog, "killed.r", again=True)["killed.r"].rows == 5
    assert duck(db, "SELECT max(id) FROM lake.killed.r") == [(100,)]
    assert_same(lake, place, "killed.r")


def test_an_import_fails_if_the_row_counts_of_source_and_target_differ(place: Place, folder: Path) -> None:
    root = folder / "counted"
    sparks.session().range(5).coalesce(1).write.parquet(f"{root}/counted/t")

    class Forgets(ParquetDirectories):
        """Two rows, when it is opened to be copied."""

        opened = 0

        def open(self, table: Table, snapshot: str | None = None) -> DataFrame:
            self.opened += snapshot is not None
            rows = super().open(table, snapshot)
            return rows.limit(3) if snapshot is not None and self.opened == 1 else rows

    found = done(place, Forgets(place.spark, str(root), {}), how="copy")["counted.t"]
    assert (found.state, found.reason) == ("failed", "3 rows are here, and the source has 5")


def test_an_import_from_a_missing_source_reports_what_is_missing(place: Place, folder: Path) -> None:
    (folder / "void").mkdir()
    with pytest.raises(SetupError, match=r"the source has no namespace or table no\.table"):
        done(place, connect("parquet", place.spark, str(folder / "void"), {}), "no.table")
    with pytest.raises(SetupError, match="there is no directory"):
        done(place, connect("parquet", place.spark, str(folder / "nowhere"), {}))
    with pytest.raises(SetupError, match="--source is missing"):
        connect("iceberg-rest", place.spark, None, {})
    with pytest.raises(SetupError, match="this Spark session has no Delta in it"):
        connect("delta", place.spark, str(folder), {})
