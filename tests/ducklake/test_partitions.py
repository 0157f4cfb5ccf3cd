"""Partition specs of tables that DuckDB wrote: every row of every file, by PyIceberg's transforms."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import orjson
import pytest
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from mergus.ducklake import columns, files, partitions
from mergus.ducklake.columns import Columns
from mergus.ducklake.connect import connection, open_pool
from mergus.ducklake.files import DataFile
from mergus.ducklake.partitions import Partitions, Specs
from mergus.ducklake.paths import Path, TablePaths
from mergus.iceberg.manifest import PartitionValue
from mergus.iceberg.partition_spec import UNPARTITIONED, PartitionSpec, partition_types, spec_json
from mergus.iceberg.schema import Schema, schema_json
from tests.support import lakes
from tests.support import spark as sparks
from tests.support.lakes import TestLake

# A value as Iceberg has it in partitions, by DuckDB's own arithmetic and not by texts.
PLAIN: dict[str, str] = {
    "date": "{} - DATE '1970-01-01'",
    "time": "epoch_us({})",
    "timestamp": "epoch_us({})",
    "timestamptz": "epoch_us({})",
    "timestamp_ns": "epoch_ns({})",
}
THEIRS: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "time": TimeType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(),
    "timestamp_ns": TimestampNanoType(),
    "uuid": UUIDType(),
}
MOMENTS = [
    "1969-12-31 23:59:59.999999",
    "1970-01-01 00:00:00",
    "2019-12-05 10:30:00",
    "2019-12-05 10:59:59",
    "2019-12-05 11:00:00",
    "2019-12-31 00:00:00",
    "2020-01-01 00:00:00",
    "2020-02-29 12:00:00",
]
# to Python these have no date
FAR = ["0044-03-15 (BC) 12:00:00", "12000-01-01 00:00:00"]


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    """One that writes a file for every insert."""
    with lakes.lake() as made:
        session = made.duckdb()
        session.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
        session.close()
        yield made


@dataclass
class Table:
    """One table of a DuckDB session, and what Mergus makes of its partitions."""

    lake: TestLake
    db: duckdb.DuckDBPyConnection
    name: str
    schema: Schema = field(init=False)
    specs: Specs = field(init=False)
    partitions: Partitions = field(init=False)
    files: list[DataFile] = field(init=False)

    def sql(self, *statements: str) -> "Table":
        for statement in statements:
            self.db.execute(statement.replace("{t}", self.name))
        return self

    def partitioned_by(self, keys: str) -> "Table":
        return self.sql(f"ALTER TABLE {{t}} SET PARTITIONED BY ({keys})")

    def read(self, then: int | None = None) -> "Table":
        at: int = self.lake.snapshots()[-1][0] if then is None else then
        (row,) = self.lake.sql(
            "SELECT table_id, (SELECT value FROM ducklake_metadata WHERE key = 'data_path'), s.path, "
            "s.path_is_relative, t.path, t.path_is_relative FROM ducklake_table t JOIN ducklake_schema s "
            "USING (schema_id) WHERE table_name = %s AND t.end_snapshot IS NULL",
            self.name,
        )
        paths = TablePaths(row[1], Path(row[2], row[3]), Path(row[4], row[5]))

        async def work() -> tuple[Partitions, Columns, list[DataFile]]:
            async with open_pool(self.lake.settings) as pool, connection(pool) as conn:
                return (
                    await partitions.read(conn, row[0]),
                    await columns.read(conn, row[0]),
                    await files.read(conn, "public", row[0], paths, at),
                )

        self.partitions, found, self.files = asyncio.run(work())
        self.schema = found.schema_at(at)
        self.specs = self.partitions.specs(self.schema, found, at)
        return self

    def fields(self, spec: PartitionSpec | None = None) -> list[tuple[str, str]]:
        """The source columns and transforms of the table's one spec."""
        if spec is None:
            (spec,) = self.specs.all()[1:]
        names = {f.id: f.name for f in self.schema.fields}
        return [(names[f.source_id], f.transform) for f in spec.fields]

    def tuples(self) -> list[tuple[PartitionValue, ...] | None]:
        """Of the files in their order; None for one that is listed as unpartitioned."""
        placed = [self.specs.place(file) for file in self.files]
        return [None if spec == UNPARTITIONED else found for spec, found in placed]

    def check(self) -> "Table":
        """Every row of every file has the file's tuple."""
        self.read()
        kinds = {f.id: (f.name, f.type) for f in self.schema.fields}
        for file in self.files:
            spec, found = self.specs.place(file)
            assert len(found) == len(spec.fields)
            for member, value in zip(spec.fields, found, strict=True):
                name, kind = kinds[member.source_id]
                assert isinstance(kind, str)
                apply = transform(member.transform, kind)
                # not the path's values
                query = f"SELECT {plain(kind, name)} FROM read_parquet(?, hive_partitioning => false)"
                rows = self.db.execute(query, [file.path]).fetchall()
                assert len(rows) == file.record_count
                assert {(type(x), x) for x in (apply(row) for (row,) in rows)} == {(type(value), value)}, file.path
        return self


def plain(kind: str, name: str) -> str:
    return PLAIN.get(kind, "{}").format(f'"{name}"')


def transform(name: str, kind: str) -> Callable[[Any], Any]:
    if kind.startswith("decimal"):
        return lambda x: None if x is None else int(f"{x:f}".replace(".", ""))
    their = parse_transform(name)
    return their.transform(THEIRS[kind])


@pytest.fixture
def table(lake: TestLake, db: duckdb.DuckDBPyConnection, request: pytest.FixtureRequest) -> Table:
    numbered = sum(map(ord, request.node.name))
    return Table(lake, db, f"t_{numbered}_{len(lake.snapshots())}")


def rows(texts: Sequence[str], kind: str) -> str:
    return ", ".join(f"(CAST({x if x == 'NULL' else chr(39) + x + chr(39)} AS {kind}))" for x in texts)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("BOOLEAN", ["true", "false"]),
        ("TINYINT", ["-128", "0", "127"]),
        ("SMALLINT", ["-32768", "7"]),
        ("INTEGER", ["-2147483648", "0", "2147483647"]),
        ("BIGINT", ["-9223372036854775808", "9223372036854775807"]),
        ("UTINYINT", ["0", "255"]),
        ("USMALLINT", ["0", "65535"]),
        ("FLOAT", ["1.1", "-3.4028235e38", "inf", "1e-45"]),
        ("DOUBLE", ["0.1", "1e300", "-inf", "5e-324", "16777217"]),
        ("DECIMAL(5,2)", ["-999.99", "0", "1.5"]),
        ("DECIMAL(3,3)", ["0.125", "-0.001"]),
        ("DECIMAL(38,0)", ["99999999999999999999999999999999999999", "-1"]),
        ("DATE", ["0044-03-15 (BC)", "1969-12-31", "2020-02-29", "12000-01-01"]),
        ("TIME", ["00:00:00", "23:59:59.999999"]),
        ("TIMESTAMP", MOMENTS + FAR),
        ("TIMESTAMP_S", MOMENTS[1:] + FAR),
        ("TIMESTAMP_NS", ["1969-12-31 23:59:59.999999999", "2020-01-01 00:00:00.123456789"]),
        ("TIMESTAMPTZ", ["2020-01-01 00:00:00+05:30", "1969-12-31 23:59:59.5+00", "2020-06-01 00:00:00-04"]),
        (
            "VARCHAR",
            ["", "NULL ", "__HIVE_DEFAULT_PARTITION__", 'a/b=c %41\n"', "é\U0001f600\uffff", "x" * 255, "x" * 600],
        ),
        ("JSON", ['{"a": 1}', "null", '"x"']),
    ],
)
def test_identity_partitioning_is_shown_as_an_identity_transform(table: Table, kind: str, texts: list[str]) -> None:
    table.sql("SET TimeZone = 'America/New_York'", f"CREATE TABLE {{t}}(c {kind})").partitioned_by("c")
    table.sql(f"INSERT INTO {{t}} VALUES {rows([*texts, 'NULL'], kind)}").check()
    assert table.fields() == [("c", "identity")]
    tuples = table.tuples()
    assert len(set(tuples)) == len(tuples) == len(texts) + 1
    assert None not in tuples


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("DOUBLE", ["0", "-0.0", "nan"]),
        ("FLOAT", ["-0.0", "nan"]),
        ("DATE", ["infinity", "-infinity"]),
        ("TIMESTAMP", ["infinity", "-infinity"]),
        ("TIMESTAMPTZ", ["infinity"]),
        ("TIME", ["24:00:00"]),
    ],
)
def test_a_file_whose_partition_value_readers_interpret_differently_is_shown_unpartitioned(
    table: Table, kind: str, texts: list[str]
) -> None:
    table.sql(f"CREATE TABLE {{t}}(c {kind})").partitioned_by("c")
    table.sql(f"INSERT INTO {{t}} VALUES {rows([*texts, 'NULL'], kind)}").check()
    assert table.fields() == [("c", "identity")]
    found = table.tuples()
    assert set(found) == {None, (None,)}
    assert found.count((None,)) == 1


def test_identity_partitioning_by_a_blob_column_is_not_shown(table: Table) -> None:
    table.sql("CREATE TABLE {t}(c BLOB, i INTEGER)").partitioned_by("c, i").sql("INSERT INTO {t} VALUES ('AA', 1)")
    assert table.check().fields() == [("i", "identity")]
    assert table.tuples() == [(1,)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("TINYINT", "(i % 256 - 128)"),
        ("SMALLINT", "i - 100"),
        ("INTEGER", "i * 7919 - 500000"),
        ("BIGINT", "i * 9223372036854775 - 461168601842738790"),
        ("VARCHAR", "repeat('é' || i, (i % 20)::INTEGER)"),
        ("JSON", "'{\"a\": ' || i || '}'"),
        ("DATE", "DATE '1960-01-01' + (i * 37)::INTEGER"),
        ("TIME", "TIME '00:00:00' + to_microseconds(i * 431000001)"),
        ("TIMESTAMP", "TIMESTAMP '1960-01-01' + to_microseconds(i * 8640000000001)"),
        ("TIMESTAMPTZ", "TIMESTAMPTZ '1960-01-01 00:00:00+00' + to_microseconds(i * 8640000000001)"),
        ("BLOB", "encode('é' || i)"),
    ],
)
def test_buckets_of_types_that_hash_as_in_iceberg_are_shown(table: Table, kind: str, value: str) -> None:
    table.sql(f"CREATE TABLE {{t}}(c {kind})").partitioned_by("bucket(5, c)")
    table.sql(f"INSERT INTO {{t}} SELECT {value} FROM range(200) r(i) UNION ALL SELECT NULL").check()
    assert table.fields() == [("c", "bucket[5]")]
    assert set(table.tuples()) == {(None,), (0,), (1,), (2,), (3,), (4,)}


def test_partitioning_by_a_uuid_column_is_not_shown(table: Table) -> None:
    """DuckDB's Iceberg reader scrambles one, and versions of Java's library differ on their order."""
    table.sql("CREATE TABLE {t}(c UUID)").partitioned_by("c").sql("INSERT INTO {t} VALUES (uuid()), (NULL)").check()
    assert table.specs.all() == [UNPARTITIONED]
    assert table.tuples() == [None, None]


def test_h18_buckets_of_types_that_hash_otherwise_than_in_iceberg_are_not_shown(table: Table) -> None:
    kinds = ["DECIMAL(9,2)", "UTINYINT", "USMALLINT", "DOUBLE", "FLOAT", "UUID", "BOOLEAN"]
    kinds += ["TIMESTAMP_S", "TIMESTAMP_NS"]
    names = ", ".join(f"c{i} {kind}" for i, kind in enumerate(kinds))
    table.sql(f"CREATE TABLE {{t}}({names})").partitioned_by(", ".join(f"bucket(5, c{i})" for i in range(len(kinds))))
    moments = ", ".join(["TIMESTAMP '2020-01-01'"] * 2)
    table.sql(f"INSERT INTO {{t}} VALUES (1, 1, 1, 1, 1, uuid(), true, {moments})").check()
    assert table.specs.all() == [UNPARTITIONED]
    assert table.tuples() == [None]
    assert table.files[0].partition_id is not None
    assert table.specs.of_partitioning(table.files[0].partition_id) == UNPARTITIONED


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_NS", "TIMESTAMPTZ"])
def test_year_month_day_and_hour_keys_together_are_shown_as_one_transform(table: Table, kind: str) -> None:
    table.sql("SET TimeZone = 'UTC'", f"CREATE TABLE {{t}}(c {kind})")
    parts = {
        "year(c)": "year",
        "year(c), month(c)": "month",
        "day(c), month(c), year(c)": "day",
        "year(c), month(c), day(c), hour(c)": "day" if kind == "DATE" else "hour",
        # without what lies between them the finer parts are nobody's
        "year(c), day(c), hour(c)": "year",
    }
    moments = [x[:10] if kind == "DATE" else x[:19] for x in MOMENTS]
    for keys in parts:
        table.partitioned_by(keys).sql(f"INSERT INTO {{t}} VALUES {rows([*moments, 'NULL'], kind)}")
    table.check()
    assert [table.fields(spec) for spec in table.specs.all()[1:]] == [[("c", x)] for x in parts.values()]
    assert None not in table.tuples()
    assert table.tuples().count((None,)) == len(parts)


def test_month_ordinals_of_far_timestamps_are_correct(table: Table) -> None:
    table.sql("CREATE TABLE {t}(c TIMESTAMP)").partitioned_by("year(c), month(c)")
    table.sql(f"INSERT INTO {{t}} VALUES {rows(FAR, 'TIMESTAMP')}").read()
    count = f"SELECT date_diff('month', TIMESTAMP '1970-01-01', c) FROM {table.name}"
    assert {x for x in table.tuples() if x is not None} == set(table.db.execute(count).fetchall())


def test_h16_month_day_or_hour_keys_without_the_year_are_not_shown(table: Table) -> None:
    table.sql("CREATE TABLE {t}(c TIMESTAMP)")
    for keys in ("month(c)", "day(c)", "hour(c)", "month(c), day(c)", "day(c), hour(c)"):
        table.partitioned_by(keys).sql("INSERT INTO {t} VALUES ('1969-12-05'), ('2019-12-05')")
    table.check()
    assert table.specs.all() == [UNPARTITIONED]
    assert table.tuples() == [None] * 5


def test_h16_keys_that_iceberg_can_express_are_shown_without_the_others(table: Table) -> None:
    table.sql("CREATE TABLE {t}(c TIMESTAMP, s VARCHAR, u UUID)").partitioned_by("month(c), s, bucket(3, u)")
    table.sql("INSERT INTO {t} VALUES ('1969-12-31', 'a', uuid()), ('2019-12-05', 'a', NULL)").check()
    assert table.fields() == [("s", "identity")]
    assert set(table.tuples()) == {("a",)}


def test_h17_day_partitions_cut_in_a_session_time_zone_are_not_shown_as_days(table: Table) -> None:
    table.sql("SET TimeZone = 'America/New_York'", "CREATE TABLE {t}(c TIMESTAMPTZ)")
    table.partitioned_by("year(c), month(c), day(c)")
    hours = ["2020-01-31 21:00:00-05", "2020-01-31 22:00:00-05", "2020-02-03 20:00:00+00"]
    table.sql(f"INSERT INTO {{t}} VALUES {rows(hours, 'TIMESTAMPTZ')}").check()
    # 31 January to DuckDB, and the first of February to Iceberg
    assert [x.partition_values for x in table.files] == [["2020", "1", "31"], ["2020", "2", "3"]]
    assert table.fields() == [("c", "day")]
    assert table.tuples() == [(18_293,), (18_295,)]
    # one day in New York, two days in UTC
    more = ["2020-01-31 12:00:00-05", "2020-01-31 21:00:00-05"]
    table.sql(f"INSERT INTO {{t}} VALUES {rows(more, 'TIMESTAMPTZ')}").check()
    assert table.tuples() == [(18_293,), (18_295,), None]


def test_a_file_whose_partition_ordinal_is_uncertain_is_shown_unpartitioned(table: Table) -> None:
    table.sql("CREATE TABLE {t}(c TIMESTAMP)").partitioned_by("year(c)")
    table.sql("INSERT INTO {t} VALUES ('infinity'), ('2020-01-01')").check()
    assert table.tuples().count(None) == 1
    (file,) = [x for x in table.files if x.partition_values == ["2020"]]
    for change in ("max_value = '2021-01-01 00:00:00'", "min_value = NULL", "null_count = NULL", "null_count = 1"):
        before = table.lake.sql(
            "SELECT min_value, max_value, null_count FROM ducklake_file_column_stats WHERE data_file_id = %s", file.id
        )
        table.lake.sql(f"UPDATE ducklake_file_column_stats SET {change} WHERE data_file_id = %s", file.id)
        assert set(table.read().tuples()) == {None}, change
        table.lake.sql(
            "UPDATE ducklake_file_column_stats SET min_value = %s, max_value = %s, null_count = %s "
            "WHERE data_file_id = %s",
            *before[0],
            file.id,
        )
    assert table.check().tuples().count((50,)) == 1
    table.lake.sql("DELETE FROM ducklake_file_column_stats WHERE data_file_id = %s", file.id)
    assert set(table.read().tuples()) == {None}


def test_a_file_whose_hour_ordinal_exceeds_an_int_is_shown_unpartitioned(table: Table) -> None:
    table.sql("CREATE TABLE {t}(c TIMESTAMP)").partitioned_by("year(c), month(c), day(c), hour(c)")
    table.sql("INSERT INTO {t} VALUES ('290000-01-01'), ('200000-01-01')").check()
    assert table.tuples().count(None) == 1


def test_h19_every_partitioning_of_a_table_is_a_spec_with_stable_field_ids(table: Table) -> None:
    insert = "INSERT INTO {t} VALUES (1, 'a', '2020-01-01'), (2, 'b', NULL)"
    table.sql("CREATE TABLE {t}(i INTEGER, s VARCHAR, c TIMESTAMP)", insert)
    seen: dict[int, PartitionSpec] = {}
    history: list[int | None] = []
    schemes = ["year(c), s", "bucket(4, i), s", "year(c), month(c)", "s, year(c), bucket(4, i), bucket(5, i)"]
    for keys in schemes:
        table.partitioned_by(keys).sql(insert).check()
        # what was there stays what it was
        assert seen.items() <= {x.spec_id: x for x in table.specs.all()}.items()
        seen = {x.spec_id: x for x in table.specs.all()}
        history.append(table.partitions.current(table.lake.snapshots()[-1][0]))
    table.sql("ALTER TABLE {t} RESET PARTITIONED BY", insert).check()
    now = table.lake.snapshots()[-1][0]
    assert table.specs.of_partitioning(table.partitions.current(now)) == UNPARTITIONED
    assert [table.fields(table.specs.of_partitioning(x)) for x in history] == [
        [("c", "year"), ("s", "identity")],
        [("i", "bucket[4]"), ("s", "identity")],
        [("c", "month")],
        [("s", "identity"), ("c", "year"), ("i", "bucket[4]"), ("i", "bucket[5]")],
    ]
    assert [x.spec_id for x in table.specs.all()] == [0, *history]
    # equal fields are one field
    ids = [[f.field_id for f in x.fields] for x in table.specs.all()]
    assert ids == [[], [1000, 1001], [1002, 1001], [1003], [1001, 1000, 1002, 1004]]
    assert table.specs.last_field_id == 1004
    # files from before partitioning, and after RESET, have no partition id or one without keys
    placed = [table.specs.place(file)[0].spec_id for file in table.files]
    assert (placed[0], placed[-1]) == (0, 0)
    assert set(placed) == {0, *history}
    # at older snapshots as well
    first = table.partitions.partitionings[0].span.begin
    assert table.partitions.current(first - 1) is None
    assert table.partitions.current(first) == history[0]


def test_h19_a_dropped_column_removes_its_partition_fields(table: Table) -> None:
    table.sql("CREATE TABLE {t}(i INTEGER, s VARCHAR, j INTEGER)").partitioned_by("i, s")
    table.sql("INSERT INTO {t} VALUES (1, 'a', 1)").check()
    then = table.lake.snapshots()[-1][0]
    assert table.tuples() == [(1, "a")]
    table.partitioned_by("j").sql("INSERT INTO {t} VALUES (1, 'a', 2)", "ALTER TABLE {t} DROP COLUMN i").check()
    assert [[(f.name, f.field_id) for f in x.fields] for x in table.specs.all()[1:]] == [[("s", 1001)], [("j", 1002)]]
    assert table.tuples() == [("a",), (2,)]
    # another column of the name is another column
    table.sql("ALTER TABLE {t} ADD COLUMN i INTEGER").partitioned_by("i").sql("INSERT INTO {t} VALUES ('a', 2, 3)")
    assert table.check().tuples() == [("a",), (2,), (3,)]
    assert [[f.field_id for f in x.fields] for x in table.specs.all()[1:]] == [[1001], [1002], [1003]]
    # and with the schema of before everything is as before
    assert [[f.field_id for f in x.fields] for x in table.read(then).specs.all()[1:]] == [[1000, 1001], [1002]]


def test_an_unpartitioned_table_has_only_the_unpartitioned_spec(table: Table) -> None:
    table.sql("CREATE TABLE {t}(i INTEGER)", "INSERT INTO {t} VALUES (1)").check()
    assert table.specs.all() == [UNPARTITIONED]
    assert table.specs.last_field_id == 999
    assert table.specs.of_partitioning(None) == UNPARTITIONED
    assert table.specs.place(table.files[0]) == (UNPARTITIONED, ())


def test_expiring_snapshots_does_not_change_spec_ids(table: Table) -> None:
    table.sql("CREATE TABLE {t}(i INTEGER, s VARCHAR)").partitioned_by("i").partitioned_by("s")
    before = table.sql("INSERT INTO {t} VALUES (1, 'a')").check().specs
    snapshots = [x[0] for x in table.lake.snapshots()[1:-1]]
    table.sql(f"CALL ducklake_expire_snapshots('lake', versions => {snapshots})").check()
    assert table.specs == before


def test_a_retyped_column_keeps_the_partition_fields_that_are_still_correct(table: Table) -> None:
    table.sql("CREATE TABLE {t}(i INTEGER, f FLOAT, d DATE, k DATE)").partitioned_by(
        "i, bucket(7, i), f, d, bucket(3, k)"
    )
    table.sql(
        "INSERT INTO {t} VALUES (5, 1.5, '2020-01-01', '2020-01-01'), (6, 1.1, '2020-01-01', '2020-01-01')",
        "ALTER TABLE {t} ALTER i TYPE BIGINT",
        "ALTER TABLE {t} ALTER f TYPE DOUBLE",
        "ALTER TABLE {t} ALTER d TYPE TIMESTAMP",
        "ALTER TABLE {t} ALTER k TYPE TIMESTAMP",
        "INSERT INTO {t} VALUES (5000000000, 1.5, '2020-01-01', '2020-01-01')",
    ).check()
    # days are hashed as other numbers than microseconds
    assert table.fields() == [("i", "identity"), ("i", "bucket[7]"), ("f", "identity"), ("d", "identity")]
    midnight = 1_577_836_800_000_000
    by_value = {x.partition_values[0]: y for x, y in zip(table.files, table.tuples(), strict=True)}
    five, large = by_value["5"], by_value["5000000000"]
    assert five is not None
    assert large is not None
    assert (five[0], *five[2:]) == (5, 1.5, midnight)
    assert (large[0], *large[2:]) == (5_000_000_000, 1.5, midnight)
    # the single 1.1 is not the double 1.1
    assert by_value["6"] is None


def test_a_retype_that_invalidates_a_transform_removes_its_partition_field(table: Table) -> None:
    table.sql("CREATE TABLE {t}(i INTEGER, u UTINYINT, c DATE)").partitioned_by("i, bucket(3, u), year(c)")
    table.sql(
        "INSERT INTO {t} VALUES (5, 1, '2020-01-01')",
        "ALTER TABLE {t} ALTER i TYPE JSON",
        "ALTER TABLE {t} ALTER u TYPE INTEGER",
        "ALTER TABLE {t} ALTER c TYPE JSON",
    ).read()
    assert table.specs.all() == [UNPARTITIONED]
    assert table.tuples() == [None]


def test_merged_flushed_and_rewritten_files_keep_their_partition_tuples(table: Table) -> None:
    table.sql("CREATE TABLE {t}(i INTEGER, s VARCHAR, c TIMESTAMP)").partitioned_by("s, year(c), bucket(2, i)")
    for month in (1, 5):
        table.sql(f"INSERT INTO {{t}} VALUES (1, 'a', '2020-0{month}-01'), (2, 'b', NULL)")
    table.sql("CALL ducklake_merge_adjacent_files('lake', '{t}')").check()
    expected = set(table.tuples())
    assert len(table.files) == len(expected) == 2
    table.sql("CALL lake.set_option('data_inlining_row_limit', 10, table_name => '{t}')")
    table.sql("INSERT INTO {t} VALUES (1, 'a', '2020-12-01'), (2, 'b', NULL)", "DELETE FROM {t} WHERE c < '2020-02-01'")
    table.partitioned_by("s").sql("CALL ducklake_flush_inlined_data('lake', table_name => '{t}')").check()
    assert None not in table.tuples()
    assert {x for x in table.tuples() if x is not None and len(x) == 3} == expected


def test_an_identity_partition_value_that_contradicts_file_statistics_is_not_used(table: Table) -> None:
    table.sql("CREATE TABLE {t}(s VARCHAR, i INTEGER)").partitioned_by("s")
    value = "é" * 20
    table.sql(f"INSERT INTO {{t}} VALUES ('{value}', 1)").check()
    (file,) = table.files

    def read(low: str | None, high: str | None, nulls: int | None = 0) -> list[tuple[PartitionValue, ...] | None]:
        table.lake.sql(
            "UPDATE ducklake_file_column_stats SET min_value = %s, max_value = %s, null_count = %s "
            "WHERE data_file_id = %s AND column_id = 1",
            low,
            high,
            nulls,
            file.id,
        )
        return table.read().tuples()

    assert read(value, value) == [(value,)]
    # as bounds are cut that come from Iceberg
    assert read("é" * 16, "é" * 15 + "ê") == [(value,)]
    assert read(None, None, None) == [(value,)]
    assert read("é" * 16, "é" * 17) == [None]
    assert read("é", value) == [None]
    assert read(value, value + "a") == [None]
    assert read(value, value, 1) == [None]
    table.lake.sql("DELETE FROM ducklake_file_partition_value WHERE data_file_id = %s", file.id)
    assert read(value, value) == [None]


def test_added_files_are_partitioned_only_by_path_values_that_duckdb_reads(table: Table) -> None:
    outside = f"{table.lake.settings.data_path}".replace("/data/", f"/{table.name}/")
    table.sql("CREATE TABLE {t}(i INTEGER, s VARCHAR)").partitioned_by("s")
    table.sql(f"COPY (SELECT range::INTEGER i FROM range(3)) TO '{outside}s=eu/a.parquet'")
    table.sql(f"CALL ducklake_add_data_files('lake', '{{t}}', '{outside}s=eu/a.parquet')").read()
    assert table.tuples() == [("eu",)]
    assert table.db.execute(f"SELECT DISTINCT s FROM {table.name}").fetchall() == [("eu",)]
    # nothing of this file is in bucket 3
    table.partitioned_by("bucket(4, i)")
    table.sql(f"COPY (SELECT 1 i, 'x' s) TO '{outside}bucket=3/b.parquet'")
    table.sql(f"CALL ducklake_add_data_files('lake', '{{t}}', '{outside}bucket=3/b.parquet')").read()
    assert table.tuples() == [("eu",), None]


NASTY = (
    'CREATE TABLE {t}(a TIMESTAMP, A_year INTEGER, "a_year_" INTEGER, "a_bucket_4" INTEGER, b TIMESTAMP, '
    '"x y.z" INTEGER, st STRUCT(p_year INTEGER), "st.p" TIMESTAMP, "größe" INTEGER)'
)
NASTY_KEYS = ['year(a), A_year, a_year_, year("st.p")', "bucket(4, a), a_bucket_4, bucket(4, A_year)"]
NASTY_KEYS += ['year(b), month(b), bucket(2, "x y.z"), "größe", "x y.z"', "year(b), month(b), day(b), hour(b)"]


def nasty(table: Table) -> Table:
    table.sql(NASTY)
    for keys in NASTY_KEYS:
        table.partitioned_by(keys)
        table.sql("INSERT INTO {t} VALUES ('2020-01-01', 1, 1, 1, '2020-01-01', 1, {p_year: 1}, '2020-01-01', 1)")
    return table.check()


def test_partition_field_names_are_unique_and_do_not_clash_with_columns(table: Table) -> None:
    nasty(table)
    fields = {f for spec in table.specs.all() for f in spec.fields}
    names = {f.name.lower() for f in fields}
    assert len(names) == len({f.field_id for f in fields}) == len(fields)
    own = {f.id: f.name for f in table.schema.fields}
    taken = {f.name.lower() for f in table.schema.fields}
    for f in fields:
        assert f.name == own[f.source_id] if f.transform == "identity" else f.name.lower() not in taken
    assert {"a_year__", "a_bucket_4_", "b_month", "b_hour", "x y.z_bucket_2", "st.p_year_"} <= {f.name for f in fields}
    table.sql('ALTER TABLE {t} RENAME COLUMN "größe" TO laenge').read()
    renamed = {f for spec in table.specs.all() for f in spec.fields} - fields
    assert [(f.name, f.transform) for f in renamed] == [("laenge", "identity")]


@pytest.mark.integration
def test_icebergs_java_library_parses_every_spec(table: Table) -> None:
    nasty(table)
    jvm: Any = sparks.session()._jvm
    iceberg = jvm.org.apache.iceberg
    schema = iceberg.SchemaParser.fromJson(orjson.dumps(schema_json(table.schema, 0)).decode())
    for spec in table.specs.all():
        their = iceberg.PartitionSpecParser.fromJson(schema, orjson.dumps(spec_json(spec)).decode())
        assert their.specId() == spec.spec_id
        found = [(f.name(), f.fieldId(), f.type().toString()) for f in their.partitionType().fields()]
        assert found == [(f.name, f.field_id, f.type) for f in partition_types(spec, table.schema)]
