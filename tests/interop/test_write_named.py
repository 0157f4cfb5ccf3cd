"""Parquet files without field ids that Spark and PyIceberg add: what DuckDB would read otherwise, and what could not be
shown, is refused before anything is written. The rest both sides read alike, at every snapshot."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

from tests.support import lakes, loads, servers
from tests.support import spark as sparks
from tests.support.elsewhere import register
from tests.support.lakes import Row, TestLake
from tests.support.loads import in_order
from tests.support.servers import Server

MICROS = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


@dataclass
class There:
    """A lake on the local disk, where Spark lists directories by itself, and a place beside it for files."""

    lake: TestLake
    server: Server
    folder: Path
    spark_catalog: str = field(init=False)

    def __post_init__(self) -> None:
        self.spark_catalog = sparks.catalog(self.lake.settings, self.server.uri)

    @property
    def pyiceberg(self) -> Catalog:
        return loads.catalog(self.lake.settings, self.server)


@dataclass
class Shared:
    """A table `t` of a schema of its own."""

    there: There
    schema: str = field(default_factory=lambda: f"s_{uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        assert self.there.server.create(self.schema).status_code == 200
        self.spark_name = f"{self.there.spark_catalog}.{self.schema}.t"
        self.folder = self.there.folder / self.schema

    def created(self, columns: str, more: str = "") -> "Shared":
        spark(f"CREATE TABLE {self.spark_name} ({columns}) USING iceberg {more}")
        return self

    def written(self, query: str, name: str = "files", *by: str) -> str:
        """Files of Spark's own, without field ids."""
        sparks.session().sql(query).coalesce(1).write.partitionBy(*by).parquet(f"file://{self.folder}/{name}")
        return name

    def add(self, name: str) -> None:
        source = f"`parquet`.`file://{self.folder}/{name}`"
        spark(
            f"CALL {self.there.spark_catalog}.system.add_files(table => '{self.schema}.t', source_table => '{source}')"
        )

    def refused(self, name: str, why: str) -> None:
        """And nothing has happened."""
        before = self.lake_snapshots()
        with pytest.raises(Exception, match=why):
            self.add(name)
        assert self.lake_snapshots() == before
        assert loads.get(self.there.server, "t", self.schema).status_code == 200

    def lake_snapshots(self) -> int:
        return len(self.there.lake.snapshots())

    def agreed(self, columns: str = "*") -> list[Row]:
        """What all read now, and at every snapshot."""
        table = self.there.pyiceberg.load_table((self.schema, "t"))
        db = self.there.lake.duckdb()
        try:
            for snapshot, at in spark(
                f"SELECT snapshot_id, summary['ducklake.snapshot-id'] FROM {self.spark_name}.snapshots"
            ):
                by_spark = spark(f"SELECT * FROM {self.spark_name} VERSION AS OF {snapshot}")
                assert by_spark == self.in_duckdb(db, f"SELECT * FROM {{t}} AT (VERSION => {at})")
                assert loads.rows(table.scan(snapshot_id=snapshot).to_arrow()) == by_spark
            found = self.in_duckdb(db, f"SELECT {columns} FROM {{t}}")
        finally:
            db.close()
        assert spark(f"SELECT {columns} FROM {self.spark_name}") == found
        assert loads.rows(table.scan().to_arrow()) == found
        return found

    def in_duckdb(self, db: duckdb.DuckDBPyConnection, query: str) -> list[Row]:
        return in_order(db.execute(query.replace("{t}", f"lake.{self.schema}.t")).fetchall())


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    folder = tmp_path_factory.mktemp("named")
    with (
        lakes.lake(data_path=f"file://{folder}/lake/data/") as lake,
        servers.server(lake.settings, folder, allowed_locations=f"file://{folder}/beside") as server,
    ):
        yield There(lake, server, folder / "beside")


@pytest.fixture
def shared(there: There) -> Shared:
    return Shared(there)


def spark(query: str) -> list[Row]:
    return in_order(tuple(row) for row in sparks.session().sql(query).collect())


@pytest.fixture
def micros() -> Iterator[None]:
    """Spark writes timestamps as INT96 unless it is told otherwise."""
    sparks.session().conf.set(*MICROS)
    yield
    sparks.session().conf.unset(MICROS[0])


VALUES = ["a/b 1", "x=y", "ü %41", "+", "a:b"]


@pytest.mark.parametrize("version", [2, 3])
def test_column_values_in_added_hive_directories_are_read_by_all_engines(shared: Shared, version: int) -> None:
    """Before and after a DELETE, a rename of the column, and a rewrite of the files."""
    more = (
        f"PARTITIONED BY (k, n) TBLPROPERTIES ('format-version' = '{version}', 'write.delete.mode' = 'merge-on-read')"
    )
    shared.created("id BIGINT, k STRING, n INT", more)
    name = shared.spark_name
    texts = ", ".join(f"'{value}'" for value in VALUES)
    query = f"SELECT id, array({texts}, NULL)[id % 6] AS k, IF(id % 5 = 0, NULL, CAST(id % 5 - 2 AS INT)) AS n"
    shared.add(shared.written(f"{query} FROM range(30)", "hive", "k", "n"))
    wanted = [(i, [*VALUES, None][i % 6], i % 5 - 2 if i % 5 else None) for i in range(30)]
    assert shared.agreed() == in_order(wanted)
    db = shared.there.lake.duckdb()
    for filtered in ("k = 'a/b 1'", "k IS NULL", "n = -1", "n IS NULL AND k > 'b'", "n < 2 AND id > 3"):
        asked = f"SELECT id FROM {{t}} WHERE {filtered}"
        found = shared.in_duckdb(db, asked)
        assert found, filtered
        assert spark(asked.replace("{t}", name)) == found, filtered
    spark(f"DELETE FROM {name} WHERE id IN (3, 4)")
    db.execute(f"DELETE FROM lake.{shared.schema}.t WHERE k = 'x=y' AND n = -1")
    spark(f"DELETE FROM {name} WHERE k = '+' AND n IS NULL")
    wanted = [r for r in wanted if r[0] not in (3, 4) and r[1:] != ("x=y", -1) and r[1:] != ("+", None)]
    assert shared.agreed() == in_order(wanted)
    spark(f"ALTER TABLE {name} RENAME COLUMN k TO kk")
    spark(f"INSERT INTO {name} VALUES (100, 'new', 7)")
    wanted.append((100, "new", 7))
    assert shared.agreed("id, kk, n") == in_order(wanted)
    db.execute(f"CALL ducklake_rewrite_data_files('lake', 't', schema => '{shared.schema}', delete_threshold => 0)")
    db.close()
    assert shared.agreed("id, kk, n") == in_order(wanted)


def test_hive_directories_and_complete_files_can_be_added_in_turn(shared: Shared) -> None:
    shared.created("id BIGINT, k STRING", "PARTITIONED BY (k)")
    for first, name in ((0, "one"), (10, "two")):
        shared.add(shared.written(f"SELECT id + {first} AS id, 'v{first}' AS k FROM range(2)", name, "k"))
    flat = parquet(shared.folder / "flat", "f.parquet", id=[20, 21], k=["v20", "v20"])
    shared.there.pyiceberg.load_table((shared.schema, "t")).add_files([flat])
    shared.add(shared.written("SELECT id + 30 AS id, 'v30' AS k FROM range(2)", "three", "k"))
    assert shared.agreed() == [(i, f"v{first}") for first in (0, 10, 20, 30) for i in (first, first + 1)]


def test_zero_padded_and_typed_hive_directory_values_are_read_by_all_engines(shared: Shared) -> None:
    columns = "id BIGINT, m INT, d DATE, b BOOLEAN, c DECIMAL(6, 2)"
    shared.created(columns, "PARTITIONED BY (m, d, b, c)")
    place = shared.folder / "months/m=07/d=2020-02-29/b=true/c=-1.50"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array([1, 2])}), place / "f.parquet")
    shared.add("months")
    wanted: list[Row] = [(i, 7, date(2020, 2, 29), True, Decimal("-1.50")) for i in (1, 2)]
    assert shared.agreed() == wanted
    # a client does not make the table unreadable
    for column, wider in (("m", "BIGINT"), ("c", "DECIMAL(9, 2)")):
        spark(f"ALTER TABLE {shared.spark_name} ALTER COLUMN {column} TYPE {wider}")
        spark(f"DELETE FROM {shared.spark_name} WHERE id = 9")
    assert shared.agreed() == wanted


@pytest.mark.parametrize(("kind", "value"), [("STRING", "'null'"), ("STRING", "'NULL'"), ("DOUBLE", "0.5D")])
def test_hive_directory_values_that_duckdb_would_read_differently_are_refused(
    shared: Shared, kind: str, value: str
) -> None:
    shared.created(f"id BIGINT, k {kind}", "PARTITIONED BY (k)")
    files = shared.written(f"SELECT id, {value} AS k FROM range(9)", "hive", "k")
    shared.refused(files, r"has no column k: .* Copy its rows into the table instead")
    assert shared.agreed() == []
    # as the message says
    spark(f"INSERT INTO {shared.spark_name} SELECT id, k FROM parquet.`file://{shared.folder}/hive`")
    assert len(shared.agreed()) == 9


def test_an_added_file_with_field_ids_that_lacks_a_column_is_refused(shared: Shared) -> None:
    shared.created("id BIGINT, k STRING", "PARTITIONED BY (k)")
    place = shared.folder / "ids/k=a"
    place.mkdir(parents=True)
    with_id = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table([pa.array([1])], schema=pa.schema([with_id])), place / "f.parquet")
    shared.refused("ids", r"k=a/f.parquet has field ids, and values in its path")


def test_the_hive_null_directory_is_read_as_null_by_all_engines(shared: Shared) -> None:
    shared.created("id BIGINT, k STRING", "PARTITIONED BY (k)")
    shared.add(shared.written("SELECT id, CAST(NULL AS STRING) AS k FROM range(3)", "nulls", "k"))
    assert shared.agreed() == [(0, None), (1, None), (2, None)]
    assert spark(f"SELECT count(*) FROM {shared.spark_name} WHERE k IS NULL") == [(3,)]


def test_a_hive_directory_whose_files_contain_the_column_is_accepted(shared: Shared) -> None:
    """What DuckDB writes with WRITE_PARTITION_COLUMNS."""
    shared.created("id BIGINT, k STRING", "PARTITIONED BY (k)")
    (shared.folder / "whole").mkdir(parents=True)
    duckdb.sql(
        f"COPY (SELECT range AS id, 'v' || range % 2 AS k FROM range(6)) TO '{shared.folder}/whole' "
        "(FORMAT parquet, PARTITION_BY (k), WRITE_PARTITION_COLUMNS true, OVERWRITE_OR_IGNORE true)"
    )
    shared.add("whole")
    assert shared.agreed() == [(i, f"v{i % 2}") for i in range(6)]


def test_added_files_with_int96_timestamps_are_refused(shared: Shared) -> None:
    shared.created("id BIGINT, t TIMESTAMP")
    spark(f"INSERT INTO {shared.spark_name} VALUES (100, TIMESTAMP'2020-01-01 00:00:00Z')")
    query = "SELECT id, timestamp_micros(id) AS t FROM range(3)"
    shared.refused(shared.written(query, "int96"), "column t is stored as int96, which not every Iceberg reader")
    # the table goes on, for both
    spark(f"INSERT INTO {shared.spark_name} VALUES (101, TIMESTAMP'2020-01-01 00:00:00Z')")
    assert [i for (i,) in spark(f"SELECT id FROM {shared.spark_name}")] == [100, 101]


def test_added_files_with_microsecond_timestamps_are_accepted(shared: Shared, micros: None) -> None:
    shared.created("id BIGINT, t TIMESTAMP_NTZ")
    shared.add(shared.written("SELECT id, CAST(timestamp_micros(id) AS TIMESTAMP_NTZ) AS t FROM range(3)"))
    assert [i for i, _ in shared.agreed()] == [0, 1, 2]


def test_additional_columns_of_added_files_are_ignored(shared: Shared) -> None:
    """A column that gets such a name later has no value of theirs, nor can a file be added that has one."""
    shared.created("id BIGINT")
    shared.add(shared.written("SELECT id, id AS more FROM range(3)", "more"))
    assert shared.agreed() == [(0,), (1,), (2,)]
    spark(f"ALTER TABLE {shared.spark_name} ADD COLUMN more BIGINT")
    assert shared.agreed("id, more") == [(0, None), (1, None), (2, None)]
    again = shared.written("SELECT id, id AS more FROM range(3)", "again")
    shared.refused(again, "does not say that column more is the table's")


def test_a_name_mapping_may_contain_ids_of_unknown_or_dropped_columns(shared: Shared) -> None:
    shared.created("id BIGINT, s STRING, gone STRUCT<x: INT, l: ARRAY<INT>>")
    name = shared.spark_name
    mapping = (
        '[{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["s"]}, {"field-id": 99, "names": ["never"]}, '
        '{"field-id": 3, "names": ["gone"], "fields": [{"field-id": 4, "names": ["x"]}, '
        '{"field-id": 5, "names": ["l"], "fields": [{"field-id": 6, "names": ["element"]}]}]}]'
    )
    spark(f"ALTER TABLE {name} SET TBLPROPERTIES ('schema.name-mapping.default' = '{mapping}')")
    spark(f"ALTER TABLE {name} DROP COLUMN gone")
    gone = "named_struct('x', 7, 'l', array(8)) AS gone"
    never = shared.written(f"SELECT id, 'n' AS s, {gone}, 1 AS never FROM range(1)", "never")
    shared.add(never)
    shared.add(shared.written(f"SELECT id, 's' || id AS s, {gone} FROM range(3)"))
    wanted: list[Row] = [(0, "n"), (0, "s0"), (1, "s1"), (2, "s2")]
    assert shared.agreed() == wanted
    # and what was dropped does not come back under its name
    db = shared.there.lake.duckdb()
    db.execute(f"ALTER TABLE lake.{shared.schema}.t ADD COLUMN gone STRUCT(x INTEGER, l INTEGER[])")
    db.execute(f"DELETE FROM lake.{shared.schema}.t WHERE id = 1")
    wanted = [(0, "n", None), (0, "s0", None), (2, "s2", None)]
    assert shared.agreed("id, s, gone") == wanted
    # not in a file that DuckDB makes of it, either
    db.execute(f"CALL ducklake_rewrite_data_files('lake', 't', schema => '{shared.schema}', delete_threshold => 0)")
    db.close()
    assert shared.agreed("id, s, gone") == wanted


def parquet(folder: Path, name: str, **columns: list[Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / name)
    return f"file://{folder}/{name}"


def test_files_with_different_columns_may_be_added_in_the_creating_commit(there: There, shared: Shared) -> None:
    files = [
        parquet(shared.folder, "a.parquet", i=[1, 2], s=["a", "b"]),
        parquet(shared.folder, "b.parquet", i=[3]),
    ]
    schema = pa.schema([("i", pa.int64()), ("s", pa.string())])
    staged = there.pyiceberg.create_table_transaction((shared.schema, "t"), schema, properties={"format-version": "2"})
    staged.add_files(files)
    staged.commit_transaction()
    assert shared.agreed() == [(1, "a"), (2, "b"), (3, None)]


def _hive(table: Shared) -> str:
    return table.written("SELECT id, 'null' AS k FROM range(2)", "hive", "k")


def _int96(table: Shared) -> str:
    return table.written("SELECT id, 'k' AS k, timestamp_micros(id) AS t FROM range(2)", "int96")


def _elsewhere(shared: Shared, columns: str, files: str) -> Path:
    """The newest metadata of a table of another catalog that these files were added to."""
    hadoop = f"hadoop_{uuid4().hex[:8]}"
    conf = sparks.session().conf
    conf.set(f"spark.sql.catalog.{hadoop}", "org.apache.iceberg.spark.SparkCatalog")
    conf.set(f"spark.sql.catalog.{hadoop}.type", "hadoop")
    conf.set(f"spark.sql.catalog.{hadoop}.warehouse", f"file://{shared.folder}")
    spark(f"CREATE TABLE {hadoop}.h.t {columns}")
    source = f"`parquet`.`file://{shared.folder}/{files}`"
    spark(f"CALL {hadoop}.system.add_files(table => 'h.t', source_table => '{source}')")
    return max((shared.folder / "h/t/metadata").glob("v*.metadata.json"), key=lambda f: int(f.name[1:-14]))


@pytest.mark.parametrize(
    ("columns", "files", "status", "why"),
    [
        ("(id BIGINT, k STRING) USING iceberg PARTITIONED BY (k)", _hive, 406, "has no column k"),
        ("(id BIGINT, k STRING, t TIMESTAMP) USING iceberg", _int96, 400, "column t is stored as int96"),
    ],
    ids=["hive", "int96"],
)
def test_registering_a_table_with_files_that_duckdb_cannot_read_is_refused(
    there: There, shared: Shared, columns: str, files: Callable[[Shared], str], status: int, why: str
) -> None:
    newest = _elsewhere(shared, columns, files(shared))
    before = shared.lake_snapshots()
    answer = register(there.server, shared.schema, "t", f"file://{newest}")
    assert answer.status_code == status, answer.text
    assert why in answer.json()["error"]["message"]
    assert shared.lake_snapshots() == before


def test_a_table_with_hive_directory_values_can_be_registered(there: There, shared: Shared) -> None:
    files = shared.written("SELECT id, 'k' || id AS k FROM range(2)", "hive", "k")
    newest = _elsewhere(shared, "(id BIGINT, k STRING) USING iceberg PARTITIONED BY (k)", files)
    answer = register(there.server, shared.schema, "t", f"file://{newest}")
    assert answer.status_code == 200, answer.text
    assert shared.agreed() == [(0, "k0"), (1, "k1")]
