"""Columns that were added with a default: what files without them show, and what filters make of it (H14)."""

from collections.abc import Iterator

import pytest

from tests.support import lakes, readers
from tests.support.readers import Served

BY_TURNS = True

# type, default, another value that is larger, both as DuckDB, Spark and Iceberg write them
DEFAULTS = {
    "i": ("INTEGER", "7", "9"),
    "l": ("BIGINT", "70000000000", "90000000000"),
    "s": ("VARCHAR", "'abc'", "'xyz'"),
    "d": ("DOUBLE", "1.5", "2.5"),
    "m": ("DECIMAL(9,2)", "1.50", "2.50"),
    "f": ("FLOAT", "0.5", "1.5"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with lakes.lake() as lake, readers.served(lake, tmp_path_factory.mktemp("servers"), 2) as made:
        yield made


@pytest.mark.parametrize("column", DEFAULTS)
def test_h14_filters_find_rows_by_the_initial_default_of_a_column_missing_in_their_file(
    served: Served, column: str
) -> None:
    kind, default, larger = DEFAULTS[column]
    story = served.story(f"filters_{column}", inlining=0).run(
        "CREATE TABLE t(id INTEGER)",
        "INSERT INTO t SELECT range FROM range(20)",
        "DELETE FROM t WHERE id = 3",
        f"ALTER TABLE t ADD COLUMN {column} {kind} DEFAULT {default}",
        f"INSERT INTO t SELECT range + 100, {larger} FROM range(20)",
        "INSERT INTO t SELECT range + 200, NULL FROM range(20)",
        "DELETE FROM t WHERE id IN (4, 104)",
    )
    story.agree()
    clients = served.warm
    for condition in (
        f"{column} = {default}",
        f"{column} >= {default}",
        f"{column} > {default}",
        f"{column} IS NULL",
        f"{column} IS NOT NULL",
        f"{column} <> {default}",
        f"{column} IN ({default}, {larger}) AND id < 150",
    ):
        query = f"SELECT id FROM {{}} WHERE {condition} ORDER BY id"
        wanted = [id for (id,) in story.db.execute(query.format("t")).fetchall()]
        in_spark = clients.ask_spark(query.format(f"{clients.spark}.{story.schema}.t")).column("id").to_pylist()
        assert in_spark == wanted, ("spark", condition)
        in_duckdb = clients.ask_duckdb(query.format(f"{clients.duckdb}.{story.schema}.t")).column("id").to_pylist()
        assert in_duckdb == wanted, ("duckdb", condition)
        scan = clients.table(story.schema, "t").scan(row_filter=condition, selected_fields=("id",))
        assert sorted(scan.to_arrow().column("id").to_pylist()) == wanted, ("pyiceberg", condition)


def test_h14_old_rows_read_the_initial_default_and_new_rows_the_write_default(served: Served) -> None:
    story = served.story("two").run(
        "CREATE TABLE t(id INTEGER)",
        "INSERT INTO t SELECT range FROM range(20)",
        "ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 7",
        "ALTER TABLE t ALTER n SET DEFAULT 9",
        "INSERT INTO t(id) VALUES (100)",
    )
    found = story.agree()
    assert sorted(found.now.values("id", "n"))[-2:] == [(19, 7), (100, 9)]
    (schema,) = [s for s in found.metadata["schemas"] if s["schema-id"] == found.metadata["current-schema-id"]]
    assert (schema["fields"][1]["initial-default"], schema["fields"][1]["write-default"]) == (7, 9)
    assert found.metadata["format-version"] == 3


def test_tables_whose_columns_with_defaults_are_added_and_dropped_are_read_alike(served: Served) -> None:
    story = served.story("come_and_go", inlining=0).run(
        "CREATE TABLE t(id INTEGER, p INTEGER)",
        "ALTER TABLE t SET PARTITIONED BY (p)",
        "INSERT INTO t SELECT range, range % 2 FROM range(20)",
        "ALTER TABLE t ADD COLUMN a INTEGER DEFAULT 1",
        "INSERT INTO t SELECT range, range % 2, 2 FROM range(20)",
        "ALTER TABLE t ADD COLUMN b VARCHAR DEFAULT 'x'",
        "DELETE FROM t WHERE id = 5",
        "INSERT INTO t SELECT range, range % 2, 3, 'y' FROM range(20)",
        "ALTER TABLE t DROP COLUMN a",
        "INSERT INTO t SELECT range, range % 2, 'z' FROM range(20)",
        "ALTER TABLE t RENAME COLUMN b TO bb",
        "DELETE FROM t WHERE id = 6",
    )
    story.agree()
