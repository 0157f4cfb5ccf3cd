"""Partitioned tables and filters: engines read only the files that they must, and lose no row."""

from typing import Any

import pytest

from tests.support import readers
from tests.support import spark as sparks
from tests.support.readers import ALL, BIG, FLUSH, MERGE, Answer, Clients, Served, Story

BY_TURNS = True


def planned(clients: Clients, schema: str, row_filter: str) -> int:
    """How many files PyIceberg would read."""
    return len(list(clients.table(schema, "t").scan(row_filter=row_filter).plan_files()))


def spark_files(clients: Clients, schema: str, where: str) -> int:
    """How many files Spark has read, as its scan counts them."""
    frame = sparks.session().sql(f"SELECT * FROM {clients.spark}.`{schema}`.t WHERE {where}")
    frame.collect()
    plan: Any = frame
    leaf = plan._jdf.queryExecution().executedPlan().collectLeaves().head()
    return leaf.metrics().apply("resultDataFiles").value()


def found_by(
    served: Served, story: Story, where: str, *, iceberg: str | None = None, with_spark: bool = True
) -> list[Any]:
    """The same rows, by every engine; `iceberg` is the filter in PyIceberg's words."""
    every = story.ask(f"SELECT *, coalesce({where}, false) AS wanted_ FROM {{lake}}.t")
    wanted = Answer(every.columns[:-1], readers.Counter(
        {row[:-1]: count for row, count in every.rows.items() if row[-1] == "True"}))  # fmt: skip
    for clients in (served.warm, served.cold):
        table = clients.table(story.schema, "t")
        got = [
            ("PyIceberg", readers.answer(table.scan(row_filter=iceberg or where).to_arrow())),
            (
                "DuckDB",
                readers.answer(clients.ask_duckdb(f"SELECT * FROM {clients.duckdb}.{story.schema}.t WHERE {where}")),
            ),
        ]
        if clients is served.warm and with_spark:
            spark = where.replace("TIMESTAMP '", "TIMESTAMP_NTZ '").replace("TIMESTAMPTZ '", "TIMESTAMP '")
            got.append(
                (
                    "Spark",
                    readers.answer(clients.ask_spark(f"SELECT * FROM {clients.spark}.{story.schema}.t WHERE {spark}")),
                )
            )
        for name, found in got:
            assert (name, readers.difference(wanted, found)) == (name, None), where
    return wanted.values()


def test_h16_filters_lose_no_row_of_tables_partitioned_by_month_without_year(served: Served) -> None:
    story = served.story("h16").run("CREATE TABLE t(i INTEGER, d DATE)", "ALTER TABLE t SET PARTITIONED BY (month(d))")
    story.run("INSERT INTO t SELECT range, if(range % 2 = 0, DATE '1969-12-31', DATE '2019-12-05') FROM range(20)")
    assert story.lake.sql("SELECT count(*) FROM ducklake_data_file WHERE table_id = %s", story.table_id()) == [(1,)]
    story.agree()
    assert len(found_by(served, story, "d = DATE '2019-12-05'", iceberg="d = '2019-12-05'")) == 10
    assert len(found_by(served, story, "d < DATE '1970-01-01'", iceberg="d < '1970-01-01'")) == 10


def test_filters_prune_files_partitioned_by_year_month_and_day(served: Served) -> None:
    story = served.story("days").run("CREATE TABLE t(i INTEGER, ts TIMESTAMP)")
    story.run("ALTER TABLE t SET PARTITIONED BY (year(ts), month(ts), day(ts))")
    story.run("INSERT INTO t SELECT range, TIMESTAMP '1969-12-30 12:00:00' + INTERVAL (range // 4) DAY FROM range(20)")
    found = story.agree()
    (spec,) = [s for s in found.metadata["partition-specs"] if s["spec-id"] == found.metadata["default-spec-id"]]
    assert [f["transform"] for f in spec["fields"]] == ["day"]
    where, iceberg = "ts < TIMESTAMP '1970-01-01 00:00:00'", "ts < '1970-01-01T00:00:00'"
    assert len(found_by(served, story, where, iceberg=iceberg)) == 8
    assert planned(served.warm, "days", iceberg) == 2
    assert spark_files(served.warm, "days", "ts < TIMESTAMP_NTZ '1970-01-01 00:00:00'") == 2


def test_h17_partitions_that_were_cut_in_the_sessions_time_zone_lose_no_row(served: Served) -> None:
    story = served.story("h17").run("CREATE TABLE t(i INTEGER, ts TIMESTAMPTZ)")
    story.run("ALTER TABLE t SET PARTITIONED BY (year(ts), month(ts), day(ts))")
    for zone in ("America/New_York", "UTC"):
        story.run(
            f"SET TimeZone = '{zone}'",
            "INSERT INTO t SELECT range, TIMESTAMPTZ '2020-01-01 02:00:00+00' FROM range(12)",
        )
    story.run("SET TimeZone = 'UTC'")
    values = story.lake.sql("SELECT DISTINCT partition_value FROM ducklake_file_partition_value WHERE table_id = %s "
                            "AND partition_key_index = 2", story.table_id())  # fmt: skip
    assert {v for (v,) in values} == {"31", "1"}
    story.agree()
    where = "ts >= TIMESTAMPTZ '2020-01-01 00:00:00+00' AND ts < TIMESTAMPTZ '2020-01-02 00:00:00+00'"
    iceberg = "ts >= '2020-01-01T00:00:00+00:00' and ts < '2020-01-02T00:00:00+00:00'"
    assert len(found_by(served, story, where, iceberg=iceberg)) == 24


@pytest.mark.parametrize(
    ("kind", "value", "iceberg"),
    [
        ("UUID", "'f79c3e09-677c-4bbd-a479-3f349cb785e7'", None),
        ("DECIMAL(9, 2)", "14.20", "14.20"),
        ("UTINYINT", "34", None),
        ("VARCHAR", "'iceberg'", None),
        ("INTEGER", "34", None),
        ("DATE", "DATE '2017-11-16'", "'2017-11-16'"),
    ],
)
def test_h18_buckets_of_types_that_hash_otherwise_lose_no_row(
    served: Served, kind: str, value: str, iceberg: str | None
) -> None:
    story = served.story(f"h18_{kind[:4].lower()}").run(f"CREATE TABLE t(i INTEGER, x {kind})")
    story.run("ALTER TABLE t SET PARTITIONED BY (bucket(16, x))", f"INSERT INTO t SELECT range, {value} FROM range(12)")
    # Spark cannot read small unsigned numbers that repeat
    with_spark = kind != "UTINYINT"
    found = story.agree(readers=ALL if with_spark else ALL - {"spark"})
    fields = found.metadata["partition-specs"][-1]["fields"]
    hashed_alike = kind in {"VARCHAR", "INTEGER", "DATE"}
    assert [f["transform"] for f in fields] == (["bucket[16]"] if hashed_alike else [])
    assert len(found_by(served, story, f"x = {value}", iceberg=f"x = {iceberg or value}", with_spark=with_spark)) == 12


def test_h19_files_of_all_former_partition_specs_are_read(served: Served) -> None:
    story = served.story("h19").run(
        *("CREATE TABLE t(i INTEGER, s VARCHAR)", BIG, "ALTER TABLE t SET PARTITIONED BY (s)"),
        *("INSERT INTO t SELECT range, 'p' || range % 3 FROM range(30)", "INSERT INTO t VALUES (1, 'p1'), (2, NULL)"),
        *("ALTER TABLE t SET PARTITIONED BY (bucket(4, i), s)", "INSERT INTO t SELECT range, 'q' FROM range(30)"),
        *("ALTER TABLE t RESET PARTITIONED BY", "INSERT INTO t SELECT range, 'r' FROM range(30)", FLUSH),
        *("DELETE FROM t WHERE i = 7", "DELETE FROM t WHERE i < 20 AND s = 'q'", MERGE),
    )
    found = story.agree()
    assert len(found.metadata["partition-specs"]) == 3
    assert found.metadata["default-spec-id"] == 0
    assert len(found_by(served, story, "s = 'p1'")) == 10
    assert len(found_by(served, story, "s = 'q' AND i = 25")) == 1
    assert len(found_by(served, story, "i = 25")) == 4
    assert found_by(served, story, "s IS NULL", iceberg="s is null") == [(2, None)]


def test_the_spec_without_partitions_stays_listed_when_a_table_is_partitioned(served: Served) -> None:
    """As Iceberg's library keeps the specs that a table had, whether files of them are left or not."""
    story = served.story("unpartitioned_stays").run(
        *("CREATE TABLE t(i INTEGER, s VARCHAR)", "ALTER TABLE t SET PARTITIONED BY (s)"),
        "INSERT INTO t SELECT range, 'p' || range % 3 FROM range(30)",
    )
    found = story.agree()
    first, by_column = found.metadata["partition-specs"]
    assert first == {"spec-id": 0, "fields": []}
    assert [f["name"] for f in by_column["fields"]] == ["s"]
    assert found.metadata["default-spec-id"] == by_column["spec-id"]


def test_a_table_whose_partition_column_was_dropped_or_renamed_is_read_by_all_engines(served: Served) -> None:
    story = served.story("dropped_source").run(
        *("CREATE TABLE t(i INTEGER, s VARCHAR, d DATE)", "ALTER TABLE t SET PARTITIONED BY (s, year(d))"),
        "INSERT INTO t SELECT range, 'p' || range % 2, DATE '2020-06-01' + range::INTEGER * 100 FROM range(12)",
        *("ALTER TABLE t RENAME COLUMN s TO r", "INSERT INTO t SELECT range, 'new', DATE '2030-01-01' FROM range(12)"),
        *("ALTER TABLE t SET PARTITIONED BY (year(d))", "ALTER TABLE t DROP COLUMN r"),
        "INSERT INTO t SELECT range, DATE '2031-01-01' FROM range(12)",
    )
    story.agree()
    assert len(found_by(served, story, "d > DATE '2029-01-01'", iceberg="d > '2029-01-01'")) == 24


@pytest.mark.parametrize("kind", ["INTEGER", "BOOLEAN", "DATE", "TIMESTAMP", "DECIMAL(9, 2)", "DOUBLE", "UUID", "BLOB"])
def test_identity_partitions_of_many_types_are_read_by_all_engines(served: Served, kind: str) -> None:
    values = {
        "INTEGER": ["-5", "7"],
        "BOOLEAN": ["true", "false"],
        "DATE": ["DATE '1969-12-31'", "DATE '2020-02-29'"],
        "TIMESTAMP": ["TIMESTAMP '1969-12-31 23:59:59.999999'", "TIMESTAMP '2020-01-02 03:04:05.5'"],
        "DECIMAL(9, 2)": ["-1.50", "7.25"],
        "DOUBLE": ["-0.5", "'nan'::DOUBLE"],
        "UUID": ["'f79c3e09-677c-4bbd-a479-3f349cb785e7'::UUID", "'00000000-0000-0000-0000-000000000001'::UUID"],
        "BLOB": ["'a'::BLOB", "''::BLOB"],
    }[kind]
    story = served.story(f"identity_{kind[:4].lower()}").run(f"CREATE TABLE t(i INTEGER, x {kind})")
    story.run("ALTER TABLE t SET PARTITIONED BY (x)")
    cases = " ".join(f"WHEN {n} THEN {value}" for n, value in enumerate(values))
    story.run(f"INSERT INTO t SELECT range, CASE range % 3 {cases} ELSE NULL END FROM range(24)")
    story.run(f"INSERT INTO t VALUES (100, {values[0]}), (101, NULL)", "DELETE FROM t WHERE i = 3")
    assert story.agree().counts == [24, 26, 25]


def test_filters_prune_files_by_partitions_and_bounds(served: Served) -> None:
    story = served.story("pruned").run("CREATE TABLE t(i INTEGER, s VARCHAR)", "ALTER TABLE t SET PARTITIONED BY (s)")
    for n in range(3):
        story.run(f"INSERT INTO t SELECT range + {n * 100}, CASE WHEN range < 12 THEN 'a' ELSE 'b' END FROM range(24)")
    story.agree()
    for where, files, rows in (
        ("s = 'a'", 3, 36),
        ("i >= 200", 2, 24),
        ("i = 105", 1, 1),
        ("s = 'c'", 0, 0),
        ("i > 0", 6, 71),
    ):
        assert len(found_by(served, story, where)) == rows
        assert planned(served.warm, "pruned", where) == files, where
        assert planned(served.cold, "pruned", where) == files, where
        assert spark_files(served.warm, "pruned", where) == files, where
