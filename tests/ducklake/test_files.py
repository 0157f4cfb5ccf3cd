"""The files of tables that DuckDB wrote, at every snapshot, beside what DuckDB itself lists."""

import asyncio

import duckdb
import pytest

from mergus.ducklake import files
from mergus.ducklake.connect import connection, open_pool
from mergus.ducklake.files import DataFile
from mergus.ducklake.paths import Path, TablePaths
from tests.support.lakes import TestLake

BIG = "INSERT INTO {} SELECT range, 'x' || range FROM range(40)"


def paths_of(lake: TestLake, table: str) -> tuple[int, TablePaths]:
    (row,) = lake.sql(
        "SELECT table_id, (SELECT value FROM ducklake_metadata WHERE key = 'data_path'), s.path, s.path_is_relative, "
        "t.path, t.path_is_relative FROM ducklake_table t JOIN ducklake_schema s USING (schema_id) "
        "WHERE table_name = %s AND t.end_snapshot IS NULL",
        table,
    )
    return row[0], TablePaths(row[1], Path(row[2], row[3]), Path(row[4], row[5]))


def read(lake: TestLake, table: str, at: int | None = None) -> list[DataFile]:
    table_id, paths = paths_of(lake, table)

    async def work() -> list[DataFile]:
        async with open_pool(lake.settings) as pool, connection(pool) as conn:
            return await files.read(conn, "public", table_id, paths, now(lake) if at is None else at)

    return asyncio.run(work())


def now(lake: TestLake) -> int:
    return lake.snapshots()[-1][0]


def assert_as_duckdb_lists(lake: TestLake, db: duckdb.DuckDBPyConnection, table: str, first: int) -> None:
    for at in range(first, now(lake) + 1):
        listed = db.execute(
            "SELECT data_file, data_file_size_bytes, delete_file "
            f"FROM ducklake_list_files('lake', '{table}', snapshot_version => {at})"
        ).fetchall()
        found = read(lake, table, at)
        ours = [(f.path, f.size_bytes, f.delete_files[0].path if f.delete_files else None) for f in found]
        assert sorted(ours) == sorted(listed), at


@pytest.fixture
def table(db: duckdb.DuckDBPyConnection, request: pytest.FixtureRequest) -> str:
    name = request.node.name.split("[")[0].removeprefix("test_")[:40]
    db.execute(f"CREATE TABLE {name}(i INTEGER, s VARCHAR)")
    return name


def test_the_files_at_every_snapshot_are_those_that_duckdb_lists(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str
) -> None:
    first = now(lake)
    for statement in (BIG, BIG, "TRUNCATE {}", BIG, "CREATE SCHEMA {}_other"):
        db.execute(statement.format(table))
    assert_as_duckdb_lists(lake, db, table, first)
    assert [len(read(lake, table, at)) for at in range(first, now(lake) + 1)] == [0, 1, 2, 0, 1, 1]


def test_files_are_read_with_row_ids_and_column_statistics(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str
) -> None:
    db.execute(BIG.format(table))
    db.execute(f"INSERT INTO {table} SELECT range + 100, NULL FROM range(20)")
    one, two = read(lake, table)
    assert (one.record_count, one.row_id_start, two.record_count, two.row_id_start) == (40, 0, 20, 40)
    assert (one.stats[1].min_text, one.stats[1].max_text, one.stats[1].value_count) == ("0", "39", 40)
    assert (two.stats[2].min_text, two.stats[2].value_count, two.stats[2].null_count) == (None, 0, 20)
    assert one.stats[2].contains_nan is None


def test_h3_inlined_deletes_are_read_as_positions_within_their_file(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str
) -> None:
    db.execute(BIG.format(table))
    db.execute(BIG.format(table))
    before = now(lake)
    db.execute(f"DELETE FROM {table} WHERE i IN (3, 5)")
    assert [f.inlined_deletes for f in read(lake, table)] == [[3, 5], [3, 5]]
    assert [f.inlined_deletes for f in read(lake, table, before)] == [[], []]
    live = sum(f.record_count - len(f.inlined_deletes) for f in read(lake, table))
    assert db.execute(f"SELECT count(*) FROM {table}").fetchall() == [(live,)]


def test_h6_a_cumulative_delete_file_is_read_as_one_file(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str
) -> None:
    db.execute(f"CALL lake.set_option('data_inlining_row_limit', 0, table_name => '{table}')")
    db.execute(BIG.format(table))
    first = now(lake)
    db.execute(f"DELETE FROM {table} WHERE i < 15")
    db.execute(f"DELETE FROM {table} WHERE i < 30")
    (file,) = read(lake, table)
    (deletes,) = file.delete_files
    assert (deletes.delete_count, deletes.format) == (30, "parquet")
    assert (deletes.begin_snapshot, deletes.partial_max) == (first + 1, first + 2)
    assert_as_duckdb_lists(lake, db, table, first)


def test_h10_a_delete_file_of_a_removed_data_file_is_not_listed(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str
) -> None:
    db.execute(f"CALL lake.set_option('data_inlining_row_limit', 0, table_name => '{table}')")
    db.execute(BIG.format(table))
    db.execute(f"DELETE FROM {table} WHERE i < 20")
    db.execute(f"TRUNCATE {table}")
    assert read(lake, table) == []


def test_h8_a_merged_file_carries_the_last_snapshot_that_it_merges(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str
) -> None:
    db.execute(f"CALL lake.set_option('data_inlining_row_limit', 0, table_name => '{table}')")
    first = now(lake) + 1
    for _ in range(3):
        db.execute(f"INSERT INTO {table} SELECT range, 'x' FROM range(5)")
    db.execute(f"CALL ducklake_merge_adjacent_files('lake', '{table}')")
    (file,) = read(lake, table)
    assert (file.begin_snapshot, file.partial_max) == (first, first + 2)
    assert [file.is_whole_at(at) for at in range(first, first + 4)] == [False, False, True, True]
    assert [len(read(lake, table, at)) for at in range(first, first + 4)] == [1, 1, 1, 1]


def test_partition_values_are_in_the_order_of_the_keys(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str
) -> None:
    db.execute(BIG.format(table))
    db.execute(f"ALTER TABLE {table} SET PARTITIONED BY (s, i)")
    db.execute(f"INSERT INTO {table} SELECT 7, NULL FROM range(20)")
    before, after = read(lake, table)
    assert (before.partition_id, before.partition_values) == (None, [])
    assert after.partition_id is not None
    assert after.partition_values == [None, "7"]


def test_h22_a_table_created_again_has_its_own_files(lake: TestLake, db: duckdb.DuckDBPyConnection, table: str) -> None:
    db.execute(BIG.format(table))
    (old,) = read(lake, table)
    db.execute(f"DROP TABLE {table}")
    db.execute(f"CREATE TABLE {table}(i INTEGER, s VARCHAR)")
    assert read(lake, table) == []
    db.execute(BIG.format(table))
    (new,) = read(lake, table)
    assert new.path.rpartition("/")[0] == old.path.rpartition("/")[0]
    assert new.path != old.path


@pytest.mark.parametrize(
    ("schema", "table_path", "file", "whole"),
    [
        (Path("s/", True), Path("t/", True), ("f", True), "s3://b/data/s/t/f"),
        (Path("s/", True), Path("s3://o/t/", False), ("f", True), "s3://o/t/f"),
        (Path("s3://o/s/", False), Path("t/", True), ("f", True), "s3://o/s/t/f"),
        (Path("s/", True), Path("t/", True), ("s3://o/f", False), "s3://o/f"),
    ],
)
def test_an_absolute_path_replaces_the_paths_that_precede_it(
    schema: Path, table_path: Path, file: tuple[str, bool], whole: str
) -> None:
    assert TablePaths("s3://b/data/", schema, table_path).resolve(*file) == whole
