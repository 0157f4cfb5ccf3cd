"""Deletes that are kept in Postgres, and merges and rewrites of the files that they are about. By itself DuckLake lets
both commit, and a row that somebody deleted is there again."""

from uuid import uuid4

import duckdb
import pytest

from tests.support.lakes import TestLake

CALLS = {
    "merge": "CALL ducklake_merge_adjacent_files('lake', '{}')",
    "rewrite": "CALL ducklake_rewrite_data_files('lake', '{}', delete_threshold => 0.1)",
}


@pytest.fixture
def table(lake: TestLake, db: duckdb.DuckDBPyConnection) -> str:
    """Of four files with a hundred rows each, half of which are deleted in a file."""
    name = f"t_{uuid4().hex[:8]}"
    db.execute(f"CREATE TABLE {name} (i INTEGER)")
    for k in range(4):
        db.execute(f"INSERT INTO {name} SELECT range + {k * 100} FROM range(100)")
    return name


def lose_half(db: duckdb.DuckDBPyConnection, table: str) -> None:
    db.execute(f"DELETE FROM {table} WHERE i % 100 < 50")


def prepare(db: duckdb.DuckDBPyConnection, table: str, what: str) -> int:
    if what == "rewrite":
        lose_half(db, table)
    return 200 if what == "rewrite" else 400


def content(lake: TestLake, table: str) -> set[int]:
    with lake.duckdb() as fresh:
        return {row[0] for row in fresh.execute(f"SELECT i FROM {table}").fetchall()}


@pytest.mark.parametrize("what", CALLS)
def test_a_compaction_fails_if_a_concurrent_delete_committed_first(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str, what: str
) -> None:
    rows = prepare(db, table, what)
    db.execute("BEGIN")
    assert db.execute(CALLS[what].format(table)).fetchall() == [("main", table, 4, 1)]
    with lake.duckdb() as other:
        other.execute(f"DELETE FROM {table} WHERE i = 77")
    with pytest.raises(duckdb.TransactionException, match=r"cannot commit.*another transaction has deleted from it"):
        db.execute("COMMIT")
    left = content(lake, table)
    assert len(left) == rows - 1
    assert 77 not in left
    # nothing is in the way of the next one
    with lake.duckdb() as later:
        later.execute(f"CALL ducklake_flush_inlined_data('lake', table_name => '{table}')")
        later.execute(CALLS["rewrite"].format(table))
        later.execute(CALLS["merge"].format(table))
    assert content(lake, table) == left


@pytest.mark.parametrize("what", CALLS)
def test_a_delete_fails_if_a_concurrent_compaction_committed_first(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str, what: str
) -> None:
    rows = prepare(db, table, what)
    with lake.duckdb() as other:
        other.execute("BEGIN")
        other.execute(f"DELETE FROM {table} WHERE i = 77")
        db.execute(CALLS[what].format(table))
        with pytest.raises(duckdb.TransactionException, match=r"cannot commit.*another transaction has compacted it"):
            other.execute("COMMIT")
        assert len(content(lake, table)) == rows
        # who was told tries again
        other.execute(f"DELETE FROM {table} WHERE i = 77")
    left = content(lake, table)
    assert len(left) == rows - 1
    assert 77 not in left


def test_an_insert_does_not_conflict_with_a_concurrent_compaction(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str
) -> None:
    with lake.duckdb() as other:
        other.execute("BEGIN")
        other.execute(f"INSERT INTO {table} SELECT range + 1000 FROM range(100)")
        db.execute("BEGIN")
        db.execute(CALLS["merge"].format(table))
        other.execute("COMMIT")
        db.execute("COMMIT")
        other.execute(f"INSERT INTO {table} VALUES (7777)")
    assert len(content(lake, table)) == 501


def test_a_commit_that_would_lose_a_delete_is_refused_at_once_and_names_the_table(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str
) -> None:
    """DuckLake makes a commit again, for seconds, if it takes the error for one that goes away."""
    with lake.duckdb() as other:
        other.execute("BEGIN")
        other.execute(f"DELETE FROM {table} WHERE i = 77")
        db.execute(CALLS["merge"].format(table))
        with pytest.raises(duckdb.TransactionException) as refused:
            other.execute("COMMIT")
    assert (
        f'Transaction cannot commit - attempting to delete from table "main"."{table}" - but another transaction has '
        "compacted it, and the delete would be lost. Run the transaction again"
    ) in str(refused.value)
    assert "retry" not in str(refused.value)


@pytest.mark.parametrize("what", CALLS)
def test_a_delete_of_an_inlined_row_does_not_conflict_with_a_compaction(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str, what: str
) -> None:
    rows = prepare(db, table, what)
    db.execute(f"INSERT INTO {table} VALUES (1000), (1001)")
    with lake.duckdb() as other:
        other.execute("BEGIN")
        other.execute(f"DELETE FROM {table} WHERE i = 1000")
        db.execute("BEGIN")
        db.execute(CALLS[what].format(table))
        other.execute("COMMIT")
        db.execute("COMMIT")
    left = content(lake, table)
    assert len(left) == rows + 1
    assert 1000 not in left


@pytest.mark.parametrize("what", CALLS)
def test_a_delete_does_not_conflict_with_a_compaction_of_other_files(
    lake: TestLake, db: duckdb.DuckDBPyConnection, what: str
) -> None:
    """Files of one partition are merged, or rewritten, and the row is in another."""
    table = f"t_{uuid4().hex[:8]}"
    db.execute(f"CREATE TABLE {table} (i INTEGER, p INTEGER)")
    db.execute(f"ALTER TABLE {table} SET PARTITIONED BY (p)")
    db.execute(f"INSERT INTO {table} SELECT range, 1 FROM range(100)")
    for k in (1, 2):
        db.execute(f"INSERT INTO {table} SELECT range + {k * 100}, 2 FROM range(100)")
    if what == "rewrite":
        db.execute(f"DELETE FROM {table} WHERE i >= 100 AND i % 100 < 50")
    rows = content(lake, table)
    with lake.duckdb() as other:
        other.execute("BEGIN")
        other.execute(f"DELETE FROM {table} WHERE i = 7")
        db.execute("BEGIN")
        db.execute(CALLS[what].format(table))
        other.execute("COMMIT")
        db.execute("COMMIT")
    assert content(lake, table) == rows - {7}


@pytest.mark.parametrize("what", CALLS)
def test_a_compaction_or_delete_records_the_changes_that_plain_ducklake_records(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str, what: str
) -> None:
    prepare(db, table, what)
    number = lake.sql("SELECT table_id FROM ducklake_table WHERE table_name = %s AND end_snapshot IS NULL", table)[0][0]
    db.execute(CALLS[what].format(table))
    word = {"merge": "merge_adjacent", "rewrite": "rewrite_delete"}[what]
    assert lake.snapshots()[-1][-1] == f"{word}:{number}"
    db.execute(f"DELETE FROM {table} WHERE i = 77")
    assert lake.snapshots()[-1][-1] == f"inlined_delete:{number}"
    # a rewrite knows of deletes that are in Postgres when it begins
    db.execute(CALLS["rewrite"].format(table).replace("0.1", "0"))
    assert lake.snapshots()[-1][-1] == f"rewrite_delete:{number}"
    assert 77 not in content(lake, table)
