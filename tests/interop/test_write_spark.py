"""Spark writes, DuckDB agrees and goes on; and the other way round, on the same tables, again and again."""

import re
from datetime import date
from pathlib import Path

import duckdb
import pytest

from tests.support import spark as sparks
from tests.support.formats import LONG, in_version
from tests.support.readers import Served
from tests.support.stories import FLUSH, MERGE, REWRITE, Turns, of_id, turns

FORTY = "INSERT INTO {t} SELECT range + 100, 'big', DATE '2020-01-01' FROM range(40)"
REWRITE_ALL = "CALL {c}.system.rewrite_data_files(table => '{s}.t', options => map('rewrite-all', 'true'))"


def properties(version: int, **more: str) -> str:
    given = {"format-version": str(version), **{key.replace("_", "."): value for key, value in more.items()}}
    return "TBLPROPERTIES (" + ", ".join(f"'{key}' = '{value}'" for key, value in given.items()) + ")"


def snapshots(story: Turns) -> list[int]:
    found = story.ask_spark(
        "SELECT snapshot_id FROM {t}.snapshots ORDER BY committed_at, summary['ducklake.snapshot-id']"
    )
    return [row[0] for row in found]


@pytest.mark.parametrize(
    ("served", "mode"),
    [
        (version, mode)
        for version in (2, 3)
        for mode in ("copy-on-write", "merge-on-read")
        if LONG or (version, mode) in {(2, "copy-on-write"), (3, "merge-on-read")}
    ],
    indirect=["served"],
)
def test_spark_and_duckdb_change_rows_in_turn(served: Served, mode: str) -> None:
    with turns(served, f"rows_{mode.replace('-', '_')}") as story:
        modes = {"write_delete_mode": mode, "write_update_mode": mode, "write_merge_mode": mode}
        made = properties(served.format_version, **modes)
        story.spark(f"CREATE TABLE {{t}} (id INT, name STRING, d DATE) USING iceberg PARTITIONED BY (days(d)) {made}")
        first = "(1,'a',DATE'2020-01-01'), (2,'b',DATE'2020-01-01'), (3,'c',DATE'2020-02-02'), (4,'d',NULL)"
        story.spark(f"INSERT INTO {{t}} VALUES {first}")
        story.run_duckdb("INSERT INTO {t} VALUES (10, 'x', DATE '2021-01-01'), (11, 'y', DATE '2020-01-01')")
        # rows that DuckDB has inlined, and rows of Spark's files
        story.spark("UPDATE {t} SET name = 'u' WHERE id IN (1, 10)")
        story.run_duckdb(FORTY, "DELETE FROM {t} WHERE id = 103")
        story.spark("DELETE FROM {t} WHERE id IN (2, 104)")
        story.run_duckdb("UPDATE {t} SET name = 'by duckdb' WHERE id IN (1, 105)")
        story.spark(
            """MERGE INTO {t} t USING (FROM VALUES (3, 'm'), (11, 'gone'), (106, 'm'), (99, 'new') AS v(id, name)) s
               ON t.id = s.id WHEN MATCHED AND s.name = 'gone' THEN DELETE WHEN MATCHED THEN UPDATE SET name = s.name
               WHEN NOT MATCHED THEN INSERT (id, name, d) VALUES (s.id, s.name, DATE'2022-02-02')"""
        )
        story.duck(FLUSH)
        story.spark("DELETE FROM {t} WHERE id IN (4, 107)")
        before = story.duck(MERGE, "INSERT INTO {t} VALUES (12, 'inlined', NULL)", "DELETE FROM {t} WHERE id = 108")
        assert before.rows.total() == 4 + 2 + 40 - 1 - 2 - 1 + 1 - 2 + 1 - 1
        after = story.spark(REWRITE_ALL)
        story.spark(
            "CALL {c}.system.rewrite_position_delete_files(table => '{s}.t', options => map('rewrite-all', 'true'))"
        )
        story.spark("CALL {c}.system.rewrite_manifests('{s}.t')", "UPDATE {t} SET name = 'last' WHERE id IN (99, 109)")
        rewritten = story.duck("DELETE FROM {t} WHERE id = 110", REWRITE)
        assert before.values("id", "name", "d") == after.values("id", "name", "d")
        assert dict(rewritten.values("id", "name"))[109] == "last"
        if served.format_version >= 3:
            assert of_id(before) == of_id(after)
            assert of_id(rewritten).items() <= of_id(before).items()
        story.agree_at_every_snapshot(at_least=16)


@in_version(2, "served")
def test_spark_overwrites_what_duckdb_has_written(served: Served) -> None:
    with turns(served, "overwritten") as story:
        made = properties(served.format_version)
        story.spark(f"CREATE TABLE {{t}} (id INT, p STRING) USING iceberg PARTITIONED BY (p) {made}")
        story.run_duckdb("INSERT INTO {t} SELECT range + 100, ['a', 'b'][range % 2 + 1] FROM range(40)")
        # while rows are inlined they are in no partition, and Spark refuses to overwrite some rows of a file
        story.run_duckdb("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, NULL)", "DELETE FROM {t} WHERE id = 101")
        with pytest.raises(Exception, match="Cannot delete file where some, but not all, rows match filter"):
            story.ask_spark("INSERT OVERWRITE {t} PARTITION (p = 'a') SELECT 4")
        story.duck(FLUSH)
        static = story.spark("INSERT OVERWRITE {t} PARTITION (p = 'a') SELECT 4")
        assert [row for row in static.values("id", "p") if row[1] != "b"] == [(3, None), (4, "a")]
        assert static.rows.total() == 20 - 1 + 1 + 2
        story.run_duckdb("INSERT INTO {t} VALUES (5, 'a'), (6, 'c')")
        session = sparks.session()
        session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
        try:
            # and here it would leave rows of the partitions that it replaces
            with pytest.raises(Exception, match="Flush them first"):
                story.ask_spark("INSERT OVERWRITE {t} VALUES (7, 'b'), (8, NULL)")
            story.duck(FLUSH)
            dynamic = story.spark("INSERT OVERWRITE {t} VALUES (7, 'b'), (8, NULL)")
        finally:
            session.conf.unset("spark.sql.sources.partitionOverwriteMode")
        assert dynamic.values("id") == [4, 5, 6, 7, 8]
        story.run_duckdb("INSERT INTO {t} VALUES (9, 'b')", "DELETE FROM {t} WHERE id = 7")
        # all of it, with what is inlined
        assert story.spark("INSERT OVERWRITE {t} VALUES (10, 'z')").values("id", "p") == [(10, "z")]
        story.run_duckdb("INSERT INTO {t} VALUES (11, 'z')", FLUSH)
        assert story.spark("TRUNCATE TABLE {t}").rows.total() == 0
        assert story.duck("INSERT INTO {t} VALUES (12, 'y')").values("id") == [12]
        story.agree_at_every_snapshot(at_least=9)


@in_version(3, "served")
def test_spark_rolls_back_and_tags_snapshots(served: Served) -> None:
    with turns(served, "back") as story:
        story.spark(f"CREATE TABLE {{t}} (id INT, name STRING) USING iceberg {properties(served.format_version)}")
        story.spark("INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
        story.run_duckdb("INSERT INTO {t} VALUES (3, 'inlined')", "UPDATE {t} SET name = 'u' WHERE id = 1")
        with_three = story.duck("INSERT INTO {t} SELECT range + 100, 'big' FROM range(40)").rows.total()
        story.spark("ALTER TABLE {t} CREATE TAG full", "DELETE FROM {t} WHERE id >= 2")
        listed = snapshots(story)
        back = story.spark(f"CALL {{c}}.system.rollback_to_snapshot('{{s}}.t', {listed[2]})")
        assert back.values("id", "name") == [(1, "u"), (2, "b"), (3, "inlined")]
        story.spark("INSERT INTO {t} VALUES (4, 'after')")
        story.duck("INSERT INTO {t} VALUES (5, 'after')", "DELETE FROM {t} WHERE id = 2", FLUSH)
        tagged = story.ask_spark("SELECT count(*), max(id) FROM {t} VERSION AS OF 'full'")
        assert tagged == [(with_three, 139)]
        forward = story.spark(f"CALL {{c}}.system.set_current_snapshot('{{s}}.t', {listed[3]})")
        assert forward.rows.total() == with_three
        story.spark(
            "CALL {c}.system.set_current_snapshot(table => '{s}.t', ref => 'full')", "DELETE FROM {t} WHERE id = 3"
        )
        story.duck("DELETE FROM {t} WHERE id = 100", "INSERT INTO {t} VALUES (6, 'last')", MERGE)
        story.spark("ALTER TABLE {t} DROP TAG full")
        assert [row[0] for row in story.ask_spark("SELECT name FROM {t}.refs")] == ["main"]
        story.agree_at_every_snapshot(at_least=10)


@in_version(3, "served")
def test_spark_alters_columns_of_every_kind(served: Served) -> None:
    with turns(served, "altered") as story:
        story.spark(
            f"""CREATE TABLE {{t}} (id INT NOT NULL, name STRING, f FLOAT, price DECIMAL(9, 2),
                st STRUCT<a: INT, b: STRING>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, INT>)
                USING iceberg {properties(served.format_version)}"""
        )
        first = "named_struct('a', 1, 'b', 'x'), array(named_struct('x', 1)), map('k', 1)"
        story.spark(f"INSERT INTO {{t}} VALUES (1, 'a', 1.5, 1.25, {first})")
        story.run_duckdb("INSERT INTO {t} VALUES (2, 'b', 2.5, 2.25, {'a': 2, 'b': 'y'}, [{'x': 2}], MAP {'k': 2})")
        story.spark(
            "ALTER TABLE {t} ADD COLUMN n BIGINT COMMENT 'told'",
            "ALTER TABLE {t} ADD COLUMNS (q INT, r STRING AFTER id)",
            "ALTER TABLE {t} ADD COLUMN st.c INT",
            "ALTER TABLE {t} ADD COLUMN l.element.y INT",
            "ALTER TABLE {t} ADD COLUMNS (tags ARRAY<STRING>, more MAP<STRING, STRUCT<v: INT>>)",
            "ALTER TABLE {t} ADD COLUMN more.value.w INT",
        )
        comment = "SELECT comment FROM duckdb_columns() WHERE schema_name = '{s}' AND column_name = "
        assert story.ask(comment + "'n'") == [("told",)]
        story.duck(
            """INSERT INTO {t} (id, r, name, st, l, n, tags, more) VALUES (3, 'r', 'c', {'a': 3, 'b': 'z', 'c': 3},
               [{'x': 3, 'y': 3}], 3, ['t'], MAP {'k': {'v': 3, 'w': 4}})"""
        )
        story.spark(
            "ALTER TABLE {t} RENAME COLUMN name TO nm",
            "ALTER TABLE {t} RENAME COLUMN st.a TO aa",
            "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT",
            "ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE",
            "ALTER TABLE {t} ALTER COLUMN price TYPE DECIMAL(12, 2)",
            "ALTER TABLE {t} ALTER COLUMN st.aa TYPE BIGINT",
        )
        story.duck("INSERT INTO {t} (id, nm, f, price) VALUES (5000000000, 'wide', 1e300, 1234567890.25)")
        reordered = story.spark(
            "ALTER TABLE {t} ALTER COLUMN id DROP NOT NULL",
            "ALTER TABLE {t} ALTER COLUMN n FIRST",
            "ALTER TABLE {t} ALTER COLUMN nm AFTER n",
            "ALTER TABLE {t} ALTER COLUMN nm COMMENT 'new'",
            "ALTER TABLE {t} DROP COLUMN q",
            "ALTER TABLE {t} DROP COLUMN st.b",
        )
        assert [name for name, _ in reordered.columns][:4] == ["n", "nm", "id", "r"]
        assert story.ask(comment + "'nm'") == [("new",)]
        story.duck(
            "INSERT INTO {t} (id, nm) VALUES (NULL, 'no id')", "UPDATE {t} SET st = {'aa': 9, 'c': 9} WHERE id = 1"
        )
        # the name is free again, and old rows do not have its values
        story.spark("ALTER TABLE {t} DROP COLUMN r", "ALTER TABLE {t} ADD COLUMN r INT")
        last = story.spark(f"INSERT INTO {{t}} SELECT NULL, NULL, 6, {'NULL, ' * 7} 6", "DELETE FROM {t} WHERE id = 2")
        assert sorted(last.values("id", "r"), key=repr) == [
            (1, None),
            (3, None),
            (5000000000, None),
            (6, 6),
            (None, None),
        ]
        story.duck("INSERT INTO {t} (id, r) SELECT range + 100, 1 FROM range(40)", "UPDATE {t} SET r = 2 WHERE id = 3")
        story.agree_at_every_snapshot(at_least=8)


@in_version(2, "served")
def test_spark_prunes_by_transforms_that_ducklake_lacks(served: Served) -> None:
    with turns(served, "parted") as story:
        made = properties(served.format_version)
        story.spark(
            f"""CREATE TABLE {{t}} (id INT, name STRING, d DATE, ts TIMESTAMP_NTZ) USING iceberg
                PARTITIONED BY (truncate(2, name), bucket(4, id), days(d)) {made}"""
        )
        story.spark(
            """INSERT INTO {t} SELECT id, concat(substr('abcabd', id % 4 + 1, 3), id), DATE'1969-12-30' + id % 4,
               TIMESTAMP_NTZ'2020-01-01 00:30:00' + make_interval(0, 0, 0, 0, id % 3)
               FROM (SELECT int(id) AS id FROM range(24))""",
            "INSERT INTO {t} VALUES (NULL, NULL, NULL, NULL)",
        )
        _partitions_are_right(story, "name_trunc: truncate(2, name)", "id_bucket: bucket(4, id)", "d_day: days(d)")
        story.duck(
            "INSERT INTO {t} VALUES (50, 'abx', DATE '1969-12-30', NULL)", "UPDATE {t} SET name = 'zz' WHERE id = 3"
        )
        story.duck(FLUSH, "INSERT INTO {t} SELECT range + 100, 'abz', DATE '1969-12-31', NULL FROM range(40)")
        _filters_are_right(story)
        story.spark(
            "ALTER TABLE {t} DROP PARTITION FIELD days(d)",
            "ALTER TABLE {t} REPLACE PARTITION FIELD truncate(2, name) WITH name AS whole",
            "ALTER TABLE {t} ADD PARTITION FIELD hours(ts)",
            "ALTER TABLE {t} WRITE DISTRIBUTED BY PARTITION LOCALLY ORDERED BY id DESC, name ASC NULLS FIRST",
            "INSERT INTO {t} SELECT id + 200, 'abc', d, ts FROM {t} WHERE id < 8",
        )
        story.duck(
            "INSERT INTO {t} VALUES (60, 'abc', NULL, TIMESTAMP '2020-01-01 01:02:03')", "DELETE FROM {t} WHERE id = 4"
        )
        _filters_are_right(story)
        after = story.spark(REWRITE_ALL)
        assert after.rows.total() == 24 + 1 + 1 + 40 + 8 + 1 - 1
        _partitions_are_right(story, "id_bucket: bucket(4, id)", "whole: name", "ts_hour: hours(ts)")
        _filters_are_right(story)
        story.duck(
            "DELETE FROM {t} WHERE id = 5", "INSERT INTO {t} SELECT range + 300, 'abc', NULL, NULL FROM range(40)"
        )
        story.agree_at_every_snapshot(at_least=9)


def _partitions_are_right(story: Turns, *fields: str) -> None:
    """The files' tuples are those that Iceberg's own functions give for the rows."""
    names = [field.split(": ")[0] for field in fields]
    functions = [re.sub(r"^(\w+\()", r"{c}.system.\1", field.split(": ")[1]) for field in fields]
    shown = ", ".join(f"partition.{name}" for name in names)
    listed = story.ask_spark(f"SELECT {shown}, sum(record_count) FROM {{t}}.files WHERE content = 0 GROUP BY ALL")
    wanted = story.ask_spark(f"SELECT {', '.join(functions)}, count(*) FROM {{t}} GROUP BY ALL")
    ordinal = [tuple(_ordinal(value) for value in row) for row in listed]
    assert sorted(ordinal, key=repr) == sorted((tuple(_ordinal(v) for v in row) for row in wanted), key=repr)


def _ordinal(value: object) -> object:
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def _filters_are_right(story: Turns) -> None:
    for condition in (
        *("name = 'abx'", "name LIKE 'ab%'", "name = 'zz'", "name IS NULL", "id = 7", "id = 103", "id IN (3, 60, 207)"),
        *("d = DATE '1969-12-30'", "d > DATE '1969-12-31'", "d IS NULL", "ts >= TIMESTAMP '2020-01-01 01:00:00'"),
    ):
        told = story.ask_spark(f"SELECT id FROM {{t}} WHERE {condition.replace('TIMESTAMP', 'TIMESTAMP_NTZ')}")
        wanted = story.ask(f"SELECT id FROM (SELECT * FROM {{t}} OFFSET 0) WHERE {condition}")
        assert sorted(told, key=repr) == sorted(wanted, key=repr), condition
        assert wanted, condition


@in_version(2, "served")
def test_spark_creates_replaces_renames_and_drops_tables(served: Served) -> None:
    made = properties(served.format_version)
    with turns(served, "made") as story:
        # DuckDB's own table, which Spark knows how to go on with
        story.run_duckdb("CREATE TABLE {t} (id INTEGER, name VARCHAR)", "INSERT INTO {t} VALUES (1, 'a')")
        story.spark("INSERT INTO {t} VALUES (2, 'b')", "UPDATE {t} SET name = 'u' WHERE id = 1")
        copy = story.other("copy")
        copied = copy.spark(
            f"CREATE TABLE {{t}} USING iceberg PARTITIONED BY (id) {made} AS SELECT * FROM {story.in_spark}"
        )
        assert copied.values("id", "name") == [(1, "u"), (2, "b")]
        copy.duck("INSERT INTO {t} VALUES (3, 'inlined')")
        copy.spark(f"REPLACE TABLE {{t}} USING iceberg {made} AS SELECT 1 AS one, id FROM {story.in_spark}")
        copy.duck("INSERT INTO {t} (one, id) VALUES (2, 20)")
        copy.spark(
            f"CREATE OR REPLACE TABLE {{t}} USING iceberg {made} AS SELECT string(id) AS id FROM {story.in_spark}"
        )
        copy.duck("INSERT INTO {t} VALUES ('text')", "DELETE FROM {t} WHERE id = '1'")
        copy.spark(f"CREATE OR REPLACE TABLE {{t}} (q INT) USING iceberg {made}")
        copy.duck("INSERT INTO {t} SELECT range FROM range(40)")
        copy.agree_at_every_snapshot(at_least=8)
        story.ask_spark("ALTER TABLE {t} SET TBLPROPERTIES ('mine' = 'yes', 'gone' = 'soon')")
        story.ask_spark("ALTER TABLE {t} UNSET TBLPROPERTIES ('gone')")
        shown = dict(story.ask_spark("SHOW TBLPROPERTIES {t}"))
        assert shown["mine"] == "yes"
        assert "gone" not in shown
        story.run_duckdb("CREATE SCHEMA lake.made_elsewhere")
        story.ask_spark("ALTER TABLE {t} RENAME TO made_elsewhere.renamed")
        renamed = Turns(served, "made_elsewhere", story.db, "renamed")
        renamed.duck("INSERT INTO {t} VALUES (7, 'renamed')")
        assert renamed.spark("DELETE FROM {t} WHERE id = 2").values("id") == [1, 7]
        with pytest.raises(duckdb.CatalogException, match="does not exist"):
            story.ask("FROM {t}")
        copy.ask_spark("DROP TABLE {t}")
        with pytest.raises(duckdb.CatalogException, match="does not exist"):
            copy.ask("FROM {t}")
        copy.run_duckdb("CREATE TABLE {t} (other INTEGER)")
        assert copy.spark("INSERT INTO {t} VALUES (8)").values("other") == [8]


@in_version(3, "served")
def test_a_spark_stream_writes_each_row_exactly_once(served: Served, tmp_path: Path) -> None:
    with turns(served, "stream") as story:
        story.spark(f"CREATE TABLE {{t}} (id INT, name STRING) USING iceberg {properties(served.format_version)}")
        source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
        source.mkdir()

        def run() -> list[int]:
            stream = sparks.session().readStream.schema("id INT, name STRING").json(str(source))
            query = (
                stream.writeStream.format("iceberg")
                .outputMode("append")
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .toTable(story.in_spark)
            )
            assert query.awaitTermination(60)
            return story.spark().values("id")

        (source / "one.json").write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')
        assert run() == [1, 2]
        story.run_duckdb("INSERT INTO {t} VALUES (10, 'by duckdb')", "DELETE FROM {t} WHERE id = 1")
        (source / "two.json").write_text('{"id": 3, "name": "c"}\n')
        assert run() == [10, 2, 3]
        assert run() == [10, 2, 3]
        # Spark was lost after the commit and before it could note that: it sends the batch again
        story.run_duckdb("INSERT INTO {t} SELECT range + 100, 'big' FROM range(40)")
        newest = max((f for f in (checkpoint / "commits").iterdir() if f.name.isdigit()), key=lambda f: int(f.name))
        newest.unlink()
        (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
        assert len(run()) == 43
        assert newest.exists()
        story.agree_at_every_snapshot(at_least=5)


DIGITS = (4, 9, 10, 18, 19, 25, 38)


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
@in_version(3, "served")
def test_spark_merges_into_decimals_of_any_precision(served: Served, mode: str) -> None:
    """Rows that MERGE moves keep their ids, new ones get some: the file with both is made again, and is the same."""
    with turns(served, f"decimals_{mode.replace('-', '_')}") as story:
        plain = ", ".join(f"d{n} DECIMAL({n}, 2)" for n in DIGITS)
        nested = (
            "st STRUCT<a: DECIMAL(9, 2), b: DECIMAL(18, 3)>, l ARRAY<DECIMAL(10, 2)>, m MAP<STRING, DECIMAL(38, 4)>"
        )
        others = "ts TIMESTAMP, ntz TIMESTAMP_NTZ, day DATE, bin BINARY, f FLOAT"
        made = properties(3, write_merge_mode=mode)
        story.spark(f"CREATE TABLE {{t}} (id INT, {plain}, {nested}, {others}) USING iceberg {made}")

        def row(key: int, sign: str, text: str) -> str:
            values = ", ".join(f"{sign}{'9' * (n - 2)}.{text}BD" for n in DIGITS)
            deep = f"named_struct('a', {sign}1.{text}BD, 'b', NULL), array({sign}2.{text}BD, NULL), map('k', 3.5BD)"
            return (
                f"({key}, {values}, {deep}, TIMESTAMP'2020-01-01 00:00:00.{text}', "
                f"TIMESTAMP_NTZ'2020-01-01 00:00:00.{text}', DATE'2020-01-{text[:2]}', X'{text}', {text}.5F)"
            )

        story.spark(f"INSERT INTO {{t}} VALUES {row(1, '', '11')}, {row(2, '-', '22')}")
        before = story.spark_rows()
        story.run_duckdb("INSERT INTO {t} SELECT * REPLACE (id + 10 AS id) FROM {t}")
        changes = ", ".join((row(2, "", "25"), row(12, "-", "26"), row(3, "-", "27")))
        merged = story.spark(
            f"""MERGE INTO {{t}} t USING (SELECT * FROM VALUES {changes}
                AS v(id, {", ".join(f"d{n}" for n in DIGITS)}, st, l, m, ts, ntz, day, bin, f)) s
                ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
        )
        assert of_id(before).items() <= of_id(merged).items()
        assert sorted(of_id(merged)) == [1, 2, 3, 11, 12]
        story.duck("UPDATE {t} SET d18 = 1.25, l = [1.5, 2.5] WHERE id IN (2, 3)", "DELETE FROM {t} WHERE id = 1")
        story.agree_at_every_snapshot(at_least=5)


@in_version(2, "served")
def test_spark_reads_the_sort_order_of_every_file(served: Served) -> None:
    """0 is that of no sorting; engines fail on entries that have none at all."""
    with turns(served, "sort_orders") as story:
        story.spark(f"CREATE TABLE {{t}} (id INT, name STRING) USING iceberg {properties(served.format_version)}")
        story.spark("INSERT INTO {t} VALUES (1, 'a')", "ALTER TABLE {t} WRITE ORDERED BY id DESC")
        story.spark("INSERT INTO {t} VALUES (2, 'b'), (3, 'c')")
        story.duck("INSERT INTO {t} VALUES (4, 'inlined')", "INSERT INTO {t} SELECT range + 10, 'x' FROM range(40)")
        written = story.ask_spark(
            "SELECT count(*), sort_order_id FROM {t}.files WHERE content = 0 GROUP BY sort_order_id ORDER BY 2"
        )
        order = story.pyiceberg().sort_order().order_id
        assert order != 0
        assert written == [(3, 0), (1, order)]
        assert story.ask_spark("SELECT count(*) FROM {t}.entries WHERE data_file.sort_order_id IS NULL") == [(0,)]
