"""Commits with `mergus.once` in their summaries: a table takes one of a key, whoever asks, and whenever."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.exceptions import BadRequestError

from tests.support.commits import everything
from tests.support.lakes import TestLake
from tests.support.loads import catalog
from tests.support.servers import Server

ROWS = pa.table({"i": pa.array([1, 2, 3], pa.int32())})
ONCE = {"mergus.once": "batch-1"}


def test_a_second_commit_with_a_mergus_once_key_is_refused_and_changes_nothing(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA once; CREATE TABLE once.t(i INTEGER); CREATE TABLE once.other(i INTEGER)")
    table = catalog(lake.settings, server).load_table("once.t")
    table.append(ROWS, ONCE)
    first = table.current_snapshot()
    assert first is not None
    db.execute("INSERT INTO once.t VALUES (99)")
    before = everything(lake)
    said = f"mergus.once: batch-1 is in the table already, committed as snapshot {first.snapshot_id}"
    with pytest.raises(BadRequestError, match=said):
        table.refresh().append(ROWS, ONCE)
    assert everything(lake) == before
    table.refresh().append(ROWS, {"mergus.once": "batch-2"})
    catalog(lake.settings, server).load_table("once.other").append(ROWS, ONCE)
    assert db.execute("SELECT count(*) FROM once.t").fetchall() == [(7,)]
    assert db.execute("SELECT count(*) FROM once.other").fetchall() == [(3,)]


def test_one_of_many_concurrent_commits_with_a_mergus_once_key_is_applied(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA at_once; CREATE TABLE at_once.t(i INTEGER)")
    tables = [catalog(lake.settings, server).load_table("at_once.t") for _ in range(6)]
    together = Barrier(len(tables))

    def write(number: int) -> bool:
        together.wait()
        try:
            tables[number].append(ROWS, ONCE)
        except BadRequestError:
            return False
        return True

    with ThreadPoolExecutor(len(tables)) as pool:
        assert sorted(pool.map(write, range(len(tables)))) == [False] * (len(tables) - 1) + [True]
    assert db.execute("SELECT i FROM at_once.t ORDER BY i").fetchall() == [(1,), (2,), (3,)]


def test_a_mergus_once_key_is_remembered_after_its_snapshot_expired(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA gone; CREATE TABLE gone.t(i INTEGER)")
    table = catalog(lake.settings, server).load_table("gone.t")
    table.append(ROWS, ONCE)
    db.execute("INSERT INTO gone.t VALUES (99); CALL ducklake_expire_snapshots('lake', older_than => now())")
    with pytest.raises(BadRequestError, match="is in the table already"):
        table.refresh().append(ROWS, ONCE)
    # another table of the name knows nothing of it
    db.execute("DROP TABLE gone.t; CREATE TABLE gone.t(i INTEGER)")
    catalog(lake.settings, server).load_table("gone.t").append(ROWS, ONCE)
    assert db.execute("SELECT count(*) FROM gone.t").fetchall() == [(3,)]


@pytest.mark.parametrize("key", ["", "x" * 513])
def test_an_empty_or_too_long_mergus_once_key_is_refused(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection, key: str
) -> None:
    db.execute("CREATE SCHEMA IF NOT EXISTS keys; CREATE OR REPLACE TABLE keys.t(i INTEGER)")
    table = catalog(lake.settings, server).load_table("keys.t")
    with pytest.raises(BadRequestError, match="1 to 512 characters"):
        table.append(ROWS, {"mergus.once": key})
