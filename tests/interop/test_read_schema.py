"""Columns that come, go and change, read by every engine under the schema of every snapshot."""

from typing import Any

from tests.support.readers import BIG, CREATE, FLUSH, MERGE, REWRITE, Served
from tests.support.servers import error_of

BY_TURNS = True


def fields(metadata: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the current schema, by name."""
    (current,) = [s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]]
    return {f["name"]: f for f in current["fields"]}


def test_h13_a_column_dropped_and_added_again_does_not_show_old_values(served: Served) -> None:
    story = served.story("h13").run(
        *(CREATE, BIG, "INSERT INTO t VALUES (100, 'in')", "ALTER TABLE t DROP COLUMN s"),
        *("ALTER TABLE t ADD COLUMN s INTEGER", "INSERT INTO t VALUES (101, 5)"),
    )
    found = story.agree()
    assert set(found.now.values("s")) == {None, 5}
    assert found.at[min(found.at)].rows[(0, "x")] == 1


def test_h13_a_renamed_column_keeps_its_values_and_two_may_swap_names(served: Served) -> None:
    story = served.story("h13_rename").run(
        "CREATE TABLE t(a VARCHAR, b VARCHAR)",
        "INSERT INTO t SELECT 'a' || range, 'b' || range FROM range(12)",
        "INSERT INTO t VALUES ('ia', 'ib')",
        "ALTER TABLE t RENAME COLUMN a TO c",
        "INSERT INTO t VALUES ('ic', 'ib2')",
        "ALTER TABLE t RENAME COLUMN b TO a",
        "ALTER TABLE t RENAME COLUMN c TO b",
        FLUSH,
        "DELETE FROM t WHERE b = 'a3'",
    )
    found = story.agree()
    assert found.now.rows[("a4", "b4")] == 1
    assert [name for name, _ in found.now.columns] == ["b", "a"]


def test_h14_rows_older_than_a_column_read_its_initial_default(served: Served) -> None:
    story = served.story("h14").run(
        *(CREATE, BIG, "INSERT INTO t VALUES (100, 'in')", "ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 7"),
        *("ALTER TABLE t ALTER n SET DEFAULT 9", "INSERT INTO t(i, s) VALUES (101, 'nine')"),
        *("INSERT INTO t(i, s) SELECT range, 'many' FROM range(20)", "UPDATE t SET s = 'y' WHERE i = 1"),
    )
    found = story.agree()
    assert {row[2] for row in found.now.rows if row[1] in {"x", "in"}} == {7}
    assert {row[2] for row in found.now.rows if row[1] in {"nine", "many"}} == {9}
    assert fields(found.metadata)["n"]["initial-default"] == 7
    assert fields(found.metadata)["n"]["write-default"] == 9


def test_h14_initial_defaults_of_many_types_are_read_by_all_engines(served: Served) -> None:
    story = served.story("h14_types").run(CREATE, BIG, "INSERT INTO t VALUES (1, 'in')")
    for name, kind, default in (
        *(("a", "BIGINT", "9000000000"), ("b", "VARCHAR", "'it''s'"), ("c", "DOUBLE", "1.5"), ("d", "FLOAT", "0.1")),
        *(("f", "DATE", "'2020-02-29'"), ("g", "TIMESTAMP", "'2020-01-01 01:02:03.5'"), ("h", "BOOLEAN", "'true'")),
        ("k", "SMALLINT", "-3"),
    ):
        story.run(f"ALTER TABLE t ADD COLUMN {name} {kind} DEFAULT {default}")
    story.run("INSERT INTO t(i) VALUES (2)", "INSERT INTO t(i) SELECT range FROM range(11)", FLUSH)
    assert story.agree().now.rows.total() == 53


def test_h14_filters_find_rows_by_the_default_that_their_file_does_not_have(served: Served) -> None:
    story = served.story("h14_filter").run(CREATE, BIG, "ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 7")
    story.run("INSERT INTO t SELECT range, 'y', 8 FROM range(12)")
    table = f"`{story.schema}`.t"
    for filter_, rows in (("n = 7", 40), ("n > 7", 12), ("n IS NOT NULL", 52), ("n IS NULL", 0), ("n <> 8", 40)):
        found = served.warm.ask_duckdb(f"SELECT i FROM {served.warm.duckdb}.{story.schema}.t WHERE {filter_}")
        assert found.num_rows == rows, filter_
        assert len(served.warm.table(story.schema, "t").scan(row_filter=filter_).to_arrow()) == rows, filter_
        found = served.warm.ask_spark(f"SELECT i FROM {served.warm.spark}.{table} WHERE {filter_}")
        assert found.num_rows == rows, f"Spark: {filter_}"


def test_h15_a_nested_field_that_was_added_is_optional(served: Served) -> None:
    story = served.story("h15").run(
        "CREATE TABLE t(i INTEGER, st STRUCT(a INTEGER, b VARCHAR))",
        "INSERT INTO t SELECT range, {'a': range, 'b': 'x'} FROM range(12)",
        "INSERT INTO t VALUES (100, {'a': 1, 'b': 'in'}), (101, NULL)",
        "ALTER TABLE t ADD COLUMN st.x INTEGER",
        "INSERT INTO t VALUES (102, {'a': 1, 'b': 'y', 'x': NULL}), (103, {'a': NULL, 'b': NULL, 'x': 5})",
        "ALTER TABLE t DROP COLUMN st.b",
        "INSERT INTO t SELECT range, {'a': 1, 'x': range} FROM range(12)",
        "ALTER TABLE t RENAME COLUMN st.a TO aa",
        FLUSH,
    )
    found = story.agree()
    struct = fields(found.metadata)["st"]["type"]
    assert [(f["name"], f["required"]) for f in struct["fields"]] == [("aa", False), ("x", False)]


def test_required_columns_are_shown_and_become_optional_with_drop_not_null(served: Served) -> None:
    story = served.story("required").run(
        *("CREATE TABLE t(i INTEGER NOT NULL, s VARCHAR)", "INSERT INTO t VALUES (1, 'a')"),
        *("INSERT INTO t SELECT range, NULL FROM range(12)", "ALTER TABLE t ALTER i DROP NOT NULL"),
        "INSERT INTO t VALUES (NULL, 'b')",
    )
    found = story.agree()
    assert [s["fields"][0]["required"] for s in found.metadata["schemas"]] == [True, False]


def test_columns_promoted_as_iceberg_allows_are_read_by_all_engines(served: Served) -> None:
    story = served.story("widened").run(
        "CREATE TABLE t(i INTEGER, f FLOAT, d DECIMAL(6, 2), small TINYINT)",
        "INSERT INTO t SELECT range, range / 3, range, range FROM range(12)",
        "INSERT INTO t VALUES (2147483647, 0.1, 9999.99, 127), (NULL, NULL, NULL, NULL)",
        "ALTER TABLE t ALTER i TYPE BIGINT",
        "INSERT INTO t VALUES (9000000000, 0.1, 1, 1)",
        "ALTER TABLE t ALTER f TYPE DOUBLE",
        "ALTER TABLE t ALTER d TYPE DECIMAL(12, 2)",
        "ALTER TABLE t ALTER small TYPE INTEGER",
        "INSERT INTO t SELECT range + 9000000000, 0.1, 1234567890, 70000 FROM range(12)",
        FLUSH,
    )
    assert story.agree().now.rows.total() == 27


def test_a_filter_finds_rows_of_files_from_before_a_column_was_widened(served: Served) -> None:
    story = served.story("widened_filter").run(CREATE, BIG, "ALTER TABLE t ALTER i TYPE BIGINT", BIG)
    assert len(served.warm.table(story.schema, "t").scan(row_filter="i = 7").to_arrow()) == 2
    for clients, ask in ((served.warm.spark, served.warm.ask_spark), (served.warm.duckdb, served.warm.ask_duckdb)):
        assert ask(f"SELECT * FROM {clients}.widened_filter.t WHERE i = 7").num_rows == 2
        assert ask(f"SELECT * FROM {clients}.widened_filter.t WHERE i > 35").num_rows == 8


def test_a_retype_that_iceberg_does_not_allow_is_refused_until_old_files_are_gone(
    served: Served,
) -> None:
    story = served.story("retyped", tables=()).run(CREATE, BIG, "ALTER TABLE t ALTER i TYPE DOUBLE")
    server = served.warm.server
    answer = server.http.get(f"{server.path('retyped')}/tables/t")
    assert error_of(answer) == (406, "UnsupportedOperationException")
    assert "column i" in answer.json()["error"]["message"]
    story.run("INSERT INTO t VALUES (1.5, 'a')", "DELETE FROM t WHERE s = 'x'")
    assert story.lake.sql("SELECT count(*) FROM ducklake_data_file WHERE table_id = %s AND end_snapshot IS NULL",
                          story.table_id()) == [(0,)]  # fmt: skip
    story.run("INSERT INTO t SELECT range + 0.5, 'b' FROM range(12)")
    first, second, third, fourth = story.changed_by()[0]
    found = story.agree(without=[second])
    assert list(found.at) == [first, third, fourth]


def test_schema_changes_without_a_snapshot_are_visible_at_once(served: Served) -> None:
    story = served.story("at_once").run(CREATE, BIG)
    assert story.agree().now.columns == (("i", "int"), ("s", "text"))
    story.run("ALTER TABLE t ADD COLUMN n BIGINT")
    found = story.agree()
    assert found.now.columns == (("i", "int"), ("s", "text"), ("n", "long"))
    assert found.at[max(found.at)].columns == (("i", "int"), ("s", "text"))
    story.run("ALTER TABLE t DROP COLUMN i", "ALTER TABLE t RENAME COLUMN s TO text")
    found = story.agree()
    assert found.now.columns == (("text", "text"), ("n", "long"))
    assert len(found.at) == 1


def test_schema_and_data_changes_of_one_transaction_are_read_by_all_engines(served: Served) -> None:
    story = served.story("one_transaction").run(
        f"BEGIN; {CREATE}; {BIG}; ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 3; COMMIT",
        "BEGIN; INSERT INTO t VALUES (1, 'a', 2); ALTER TABLE t RENAME COLUMN n TO m; COMMIT",
        "INSERT INTO t VALUES (2, 'b', 4)",
        "BEGIN; ALTER TABLE t DROP COLUMN s; DELETE FROM t WHERE i < 15; COMMIT",
    )
    assert story.agree().now.rows.total() == 25


def test_merged_and_rewritten_files_of_several_schemas_are_read_by_all_engines(served: Served) -> None:
    story = served.story("merged_shapes").run(
        *(CREATE, BIG, BIG, "ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 7"),
        *("INSERT INTO t SELECT range, 'y', range FROM range(20)", "INSERT INTO t SELECT range, 'z', 1 FROM range(20)"),
        *(MERGE, "ALTER TABLE t DROP COLUMN s", "DELETE FROM t WHERE i = 3", REWRITE),
        *("INSERT INTO t VALUES (1000, 1)", "ALTER TABLE t ADD COLUMN s DATE", FLUSH),
    )
    found = story.agree()
    assert set(found.now.values("s")) == {None}


def test_comments_of_tables_and_columns_are_shown_as_property_and_doc(served: Served) -> None:
    story = served.story("comments").run(
        *(CREATE, "INSERT INTO t VALUES (1, 'a')", "COMMENT ON TABLE t IS 'what it is'"),
        *("COMMENT ON COLUMN t.i IS 'a number'", "COMMENT ON COLUMN t.s IS 'a text'", "COMMENT ON COLUMN t.s IS NULL"),
    )
    found = story.agree()
    assert found.metadata["properties"]["comment"] == "what it is"
    assert [f.get("doc") for f in fields(found.metadata).values()] == ["a number", None]
    story.run("COMMENT ON TABLE t IS NULL")
    assert "comment" not in story.load()["properties"]


def test_columns_whose_names_need_quotes_are_read_by_all_engines(served: Served) -> None:
    story = served.story("quotes").run(
        """CREATE TABLE t("with space" INTEGER, "do.t" VARCHAR, "ünï" DOUBLE, "q""uote" INTEGER)""",
        "INSERT INTO t VALUES (1, 'a', 2, 3)",
        "INSERT INTO t SELECT range, 'b', 1, 2 FROM range(12)",
        'DELETE FROM t WHERE "with space" = 3',
        FLUSH,
    )
    assert story.agree().counts == [1, 13, 12, 12]


def test_columns_named_like_iceberg_metadata_columns_are_read_by_pyiceberg_and_duckdb(served: Served) -> None:
    """Spark refuses them: `Table column names conflict with names reserved for Iceberg metadata columns`."""
    story = served.story("own_names").run(
        *('CREATE TABLE t(i INTEGER, "_row_id" INTEGER, "_file" VARCHAR)', "INSERT INTO t VALUES (1, 2, 'a')"),
        *("INSERT INTO t SELECT range, 7, 'b' FROM range(12)", "DELETE FROM t WHERE i = 3", FLUSH),
    )
    assert story.agree(readers=frozenset({"pyiceberg", "duckdb"})).counts == [1, 13, 12, 12]
