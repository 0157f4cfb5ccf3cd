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
def test_a_compaction_gives_way_to_a_delete_that_was_first(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str, what: str
) -> None:
    rows = prepare(db, table, what)
    db.execute("BEGIN")
    assert db.execute(CALLS[what].format(table)).fetchall() == [("main", table, 4, 1)]
    with lake.duckdb() as other:
        other.execute(f"DELETE FROM {table} WHERE i = 77")
    with pytest.raises(duckdb.TransactionException, match="another transaction has deleted from it"):
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
def test_a_delete_gives_way_to_a_compaction_that_was_first(
    lake: TestLake, db: duckdb.DuckDBPyConnection, table: str, what: str
) -> None:
    rows = prepare(db, table, what)
    with lake.duckdb() as other:
        other.execute("BEGIN")
        other.execute(f"DELETE FROM {table} WHERE i = 77")
        db.execute(CALLS[what].format(table))
        with pytest.raises(duckdb.TransactionException, match="another transaction has inserted into it"):
            other.execute("COMMIT")
        assert len(content(lake, table)) == rows
        # who was told tries again
        other.execute(f"DELETE FROM {table} WHERE i = 77")
    left = content(lake, table)
    assert len(left) == rows - 1
    assert 77 not in left


def test_inserts_go_on_beside_a_compaction(lake: TestLake, db: duckdb.DuckDBPyConnection, table: str) -> None:
    with lake.duckdb() as other:
        other.execute("BEGIN")
        other.execute(f"INSERT INTO {table} SELECT range + 1000 FROM range(100)")
        db.execute("BEGIN")
        db.execute(CALLS["merge"].format(table))
        other.execute("COMMIT")
        db.execute("COMMIT")
        other.execute(f"INSERT INTO {table} VALUES (7777)")
    assert len(content(lake, table)) == 501


def test_words_of_others_stay_as_they_are(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute('CREATE TABLE "a,merge_adjacent:1" (i INTEGER)')
    db.execute('INSERT INTO "a,merge_adjacent:1" SELECT range FROM range(100)')
    words = [made for *_, made in lake.snapshots()[-2:]]
    assert words[0] == 'created_table:"main"."a,merge_adjacent:1"'
    assert words[1].startswith("inserted_into_table:")
    assert "," not in words[1]


def test_each_word_is_told_once(lake: TestLake, db: duckdb.DuckDBPyConnection, table: str) -> None:
    db.execute(CALLS["merge"].format(table))
    number = lake.sql("SELECT table_id FROM ducklake_table WHERE table_name = %s AND end_snapshot IS NULL", table)[0][0]
    assert lake.snapshots()[-1][-1] == f"merge_adjacent:{number},inserted_into_table:{number}"
    db.execute(f"DELETE FROM {table} WHERE i = 5")
    assert lake.snapshots()[-1][-1] == f"inlined_delete:{number},deleted_from_table:{number}"
