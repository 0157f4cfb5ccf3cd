"""Files of hive directories that DuckDB adds: columns whose values are in the paths, as every engine reads them."""

from uuid import uuid4

import pytest

from tests.support.readers import Agreed, Served, Story
from tests.support.servers import error_of

BY_TURNS = True

HIVE = ", hive_partitioning => true, allow_missing => true"


def add(story: Story, directories: str, query: str, options: str = HIVE) -> str:
    """A file of these directories, put beside the lake."""
    root = str(story.lake.settings.data_path).removesuffix("data/") + f"added/{story.schema}"
    place = f"{root}/{directories}/{uuid4().hex}.parquet"
    story.db.execute(f"COPY ({query}) TO '{place}' (FORMAT parquet)")
    schema = f", schema => '{story.schema}'"
    story.db.execute(f"CALL ducklake_add_data_files('lake', 't', '{place}'{schema}{options})")
    return place


def refusal(story: Story) -> str:
    server = story.served.warm.server
    answer = server.http.get(f"{server.path(story.schema)}/tables/t")
    assert error_of(answer) == (406, "UnsupportedOperationException")
    return answer.json()["error"]["message"]


def default_spec(found: Agreed) -> list[str]:
    (spec,) = [s for s in found.metadata["partition-specs"] if s["spec-id"] == found.metadata["default-spec-id"]]
    return [f["name"] for f in spec["fields"]]


NUMBERS = "SELECT range::INTEGER AS i FROM range(20)"
NULL = "__HIVE_DEFAULT_PARTITION__"


def filters_agree(story: Story, filters: dict[str, str]) -> None:
    """Each finds in every engine what DuckDB finds; by PyIceberg's spelling, the SQL one.

    PyIceberg (0.12) knows the value of a column that a file lacks only if the column is selected.
    """
    for plain, sql in filters.items():
        wanted = story.ask(f"SELECT i FROM {{lake}}.t WHERE {sql}").values()
        for clients in (story.served.warm, story.served.cold):
            found = clients.table(story.schema, "t").scan(plain).to_arrow()
            assert sorted(found["i"].to_pylist(), key=repr) == wanted, f"PyIceberg: {plain}"
            found = clients.ask_spark(f"SELECT i FROM {clients.spark}.{story.schema}.t WHERE {sql}")
            assert sorted(found["i"].to_pylist(), key=repr) == wanted, f"Spark: {sql}"
            found = clients.ask_duckdb(f"SELECT i FROM {clients.duckdb}.{story.schema}.t WHERE {sql}")
            assert sorted(found["i"].to_pylist(), key=repr) == wanted, f"DuckDB: {sql}"


def test_an_unpartitioned_table_shows_column_values_from_hive_paths(served: Served) -> None:
    """Under a spec for such files only: new files are not partitioned."""
    story = served.story("hive_plain").run("CREATE TABLE t(i INTEGER, p INTEGER, q VARCHAR)")
    story.run("INSERT INTO t SELECT range, range % 3, 'own' FROM range(100, 120)")
    add(story, "p=007/q=a%20b%2Fc", NUMBERS)
    add(story, f"p={NULL}/q=x", NUMBERS)
    add(story, f"p=-5/q={NULL}", NUMBERS)
    add(story, "p=7", "SELECT range::INTEGER AS i, 'in the file' AS q FROM range(20)")
    story.run("INSERT INTO t VALUES (200, 8, 'inlined')", "DELETE FROM t WHERE i IN (3, 103)")
    found = story.agree()
    assert found.counts == [20, 40, 60, 80, 100, 101, 96]
    assert {(p, q) for i, p, q in found.now.values() if i < 20} == {
        (7, "a b/c"),
        (None, "x"),
        (-5, None),
        (7, "in the file"),
    }
    assert default_spec(found) == []
    filters_agree(
        story,
        {
            "p = 7": "p = 7",
            "p is null": "p IS NULL",
            "p is not null": "p IS NOT NULL",
            "q = 'a b/c'": "q = 'a b/c'",
            "p < 0 and i = 4": "p < 0 AND i = 4",
            "p = 7 and q = 'in the file'": "p = 7 AND q = 'in the file'",
        },
    )
    story.run("ALTER TABLE t RENAME p TO pp")
    story.agree()
    before = story.changed_by()[0][1:]
    story.run("ALTER TABLE t ALTER pp SET DATA TYPE BIGINT", "INSERT INTO t VALUES (201, 8, 'last')")
    assert story.agree(without=before).counts == [20, 96, 97]


def test_an_identity_partitioned_table_shows_hive_path_values_under_its_own_spec(served: Served) -> None:
    story = served.story("hive_identity").run(
        "CREATE TABLE t(i INTEGER, p INTEGER, q VARCHAR)",
        "ALTER TABLE t SET PARTITIONED BY (p, q)",
        "INSERT INTO t SELECT range, range % 2, 'own' FROM range(100, 120)",
    )
    add(story, "p=1/q=x%3Dy", NUMBERS)
    add(story, f"p={NULL}/q={NULL}", NUMBERS)
    story.run("ALTER TABLE t SET PARTITIONED BY (q)", "INSERT INTO t SELECT range, 5, 'late' FROM range(300, 320)")
    story.run("ALTER TABLE t RESET PARTITIONED BY", "DELETE FROM t WHERE i = 5 AND p = 1")
    found = story.agree()
    assert [spec["spec-id"] for spec in found.metadata["partition-specs"] if spec["spec-id"] >= 2**18] == []
    filters_agree(story, {"p = 1": "p = 1", "q = 'x=y'": "q = 'x=y'", "q is null": "q IS NULL"})


def test_hive_path_values_of_many_types_are_read_by_all_engines(served: Served) -> None:
    story = served.story("hive_types").run(
        "CREATE TABLE t(i INTEGER, b BOOLEAN, d DATE, m DECIMAL(6, 2), ts TIMESTAMP, l BIGINT, s SMALLINT)"
    )
    add(story, "b=true/d=2020-02-29/m=1.5/ts=2020-01-02 03%3A04%3A05.678/l=9223372036854775807/s=-32768", NUMBERS)
    add(story, f"b=false/d=1969-12-31/m=-1.25/ts=1960-01-01 00%3A00%3A00/l=-1/s={NULL}", NUMBERS)
    story.agree()
    filters_agree(
        story,
        {
            "b = true": "b = true",
            "d = '2020-02-29'": "d = DATE '2020-02-29'",
            "m = -1.25": "m = -1.25",
            "l > 5": "l > 5",
            "s is null": "s IS NULL",
        },
    )


@pytest.mark.parametrize("kind", ["DOUBLE", "UUID"])
def test_a_hive_path_value_of_type_double_or_uuid_is_refused_with_a_remedy(served: Served, kind: str) -> None:
    story = served.story(f"hive_{kind.lower()}").run(f"CREATE TABLE t(i INTEGER, p {kind})")
    text = {"DOUBLE": "0.1", "UUID": "f79c3e09-677c-4bbd-a479-3f349cb785e7"}[kind]
    place = add(story, f"p={text}", NUMBERS)
    assert f"file {place}: column p has its value in the path of the file" in refusal(story)
    assert "INSERT INTO ... SELECT" in refusal(story)


def test_a_hive_path_value_that_a_retype_changes_in_duckdb_is_refused(served: Served) -> None:
    story = served.story("hive_retyped").run("CREATE TABLE t(i INTEGER, p DECIMAL(6, 2))")
    add(story, "p=1.555", NUMBERS)
    assert len(story.agree().now.values()) == 20
    story.db.execute("ALTER TABLE t ALTER p SET DATA TYPE DECIMAL(9, 3)")
    assert "which DuckDB reads as another type" in refusal(story)


def test_snapshots_from_before_a_hive_path_column_was_dropped_are_left_out(served: Served) -> None:
    story = served.story("hive_dropped").run("CREATE TABLE t(i INTEGER, p INTEGER)")
    add(story, "p=1", NUMBERS)
    story.run("INSERT INTO t VALUES (100, 5)", "ALTER TABLE t DROP COLUMN p", "INSERT INTO t VALUES (200)")
    with_column = story.changed_by()[0][:2]
    found = story.agree(without=with_column)
    assert found.counts == [21, 22]


def test_iceberg_clients_delete_from_and_rewrite_files_with_hive_path_values(served: Served) -> None:
    story = served.story("hive_written").run("CREATE TABLE t(i INTEGER, p INTEGER)")
    add(story, "p=1", NUMBERS)
    add(story, f"p={NULL}", NUMBERS)
    clients = served.warm
    name = f"{clients.spark}.hive_written.t"
    modes = ", ".join(f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update"))
    clients.ask_spark(f"ALTER TABLE {name} SET TBLPROPERTIES ({modes})")
    clients.ask_spark(f"DELETE FROM {name} WHERE i = 4 AND p = 1")
    clients.ask_spark(f"UPDATE {name} SET p = 9 WHERE i = 5")
    clients.ask_spark(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'copy-on-write')")
    clients.ask_spark(f"DELETE FROM {name} WHERE i = 6 AND p IS NULL")
    found = story.agree()
    assert sorted(p for i, p in found.now.values() if i == 5) == [9, 9]
    assert default_spec(found) == []
    assert found.now.rows.total() == 38


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_spark_merges_into_a_table_with_hive_path_values(served: Served, mode: str) -> None:
    """Rows of theirs are changed, moved to another value of the column, deleted and added."""
    schema = f"hive_merged_{mode[0]}"
    story = served.story(schema).run("CREATE TABLE t(i INTEGER, p INTEGER, s VARCHAR)")
    values = "SELECT range::INTEGER AS i, 'x' AS s FROM range(20)"
    add(story, "p=1", values)
    add(story, f"p={NULL}", values)
    add(story, "p=3", values)
    story.run("INSERT INTO t VALUES (300, 1, 'inlined')")
    clients = served.warm
    name = f"{clients.spark}.{schema}.t"
    clients.ask_spark(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.merge.mode' = '{mode}')")
    source = "SELECT * FROM VALUES (4, 1, 'a'), (5, NULL, 'b'), (6, 1, 'gone'), (300, 1, 'c'), (400, 7, 'd') v(i, p, s)"
    clients.ask_spark(
        f"MERGE INTO {name} t USING ({source}) n ON t.i = n.i AND t.p <=> n.p "
        "WHEN MATCHED AND n.s = 'gone' THEN DELETE "
        "WHEN MATCHED AND n.i = 4 THEN UPDATE SET p = 9, s = n.s "
        "WHEN MATCHED THEN UPDATE SET s = n.s "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    found = story.agree()
    rows = {(i, p, "x") for i in range(20) for p in (1, None, 3)} - {(4, 1, "x"), (5, None, "x"), (6, 1, "x")}
    rows |= {(4, 9, "a"), (5, None, "b"), (300, 1, "c"), (400, 7, "d")}
    assert found.now.rows.total() == len(rows)
    assert set(found.now.values()) == rows
    assert default_spec(found) == []
    filters_agree(story, {"p = 1": "p = 1", "p is null": "p IS NULL", "p = 9": "p = 9"})
    story.run("DELETE FROM t WHERE p = 3 AND i < 5", "UPDATE t SET s = 'own' WHERE p = 1")
    story.agree()
