"""Both sides at once: transactions that are open while others commit, clients that planned on what is no more."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.types import IntegerType

from tests.support.formats import in_version
from tests.support.servers import error_of
from tests.support.sharing import Shared, Sharing, done
from tests.support.writers import Raw, rows

FILE = "INSERT INTO t SELECT range, 'd' FROM range(40)"
CONFLICT = (409, "CommitFailedException")
ALL = list(range(40))
ONE = pa.schema([("i", pa.int32())])


def rewritten(raw: Raw, *gone: int) -> dict[str, Any]:
    """All files by one with the same rows, but for those that are deleted."""
    deletes = [e.data_file.file_path for e in raw.entries(content=1)]
    new = raw.data_file(rows(*(i for i in ALL if i not in gone)))
    return {"remove": raw.paths(), "add": [new], "remove_deletes": deletes}


@in_version(3)
def test_h30_a_transaction_that_began_before_an_overwrite_is_aborted(sharing: Sharing) -> None:
    with sharing.table(FILE) as t:
        t.tell("BEGIN", "DELETE FROM t WHERE i = 3")
        t.overwrite(*ALL, 50)
        with pytest.raises(duckdb.TransactionException, match="Transaction conflict"):
            t.tell("COMMIT")
        t.shows([*ALL, 50])
        t.tell("DELETE FROM t WHERE i = 3")
        t.shows([i for i in [*ALL, 50] if i != 3], gone=[3])
        sharing.lake.sound_snapshots()


@in_version(2)
def test_h31_a_duckdb_transaction_on_another_table_commits(sharing: Sharing) -> None:
    """It reads the words of all commits since it began, and knows each of them."""
    with sharing.table(FILE, "CREATE TABLE u(i INTEGER)") as t:
        t.tell("BEGIN", "INSERT INTO u VALUES (1)")
        t.append(60)
        t.delete(3, 60)
        with t.iceberg().update_schema() as update:
            update.add_column("n", IntegerType())
        t.overwrite(*ALL)
        sharing.catalog.create_table((t.schema, "v"), ONE)
        sharing.catalog.rename_table((t.schema, "v"), (t.schema, "w"))
        sharing.catalog.drop_table((t.schema, "w"))
        t.tell("COMMIT")
        assert t.ask("SELECT i FROM u") == [(1,)]
        t.shows(ALL, gone=[60])


@pytest.mark.parametrize("condition", ["i = 30", "i >= 10 AND i < 31"], ids=["inlined", "delete-file"])
@pytest.mark.parametrize("operation", ["replace", "overwrite"])
def test_h32_a_delete_concurrent_with_a_rewrite_of_its_file_is_refused_and_not_lost(
    sharing: Sharing, operation: str, condition: str
) -> None:
    with sharing.table(FILE) as t:
        raw = t.raw()
        t.tell("BEGIN", f"DELETE FROM t WHERE {condition}")
        done(raw.commit(operation, **rewritten(raw)))
        with pytest.raises(duckdb.TransactionException, match="Transaction conflict"):
            t.tell("COMMIT")
        t.shows(ALL)
        # and the other way round
        t.tell(f"DELETE FROM t WHERE {condition}")
        gone = [30] if condition == "i = 30" else list(range(10, 31))
        assert error_of(raw.commit(operation, **rewritten(raw))) == CONFLICT
        left = [i for i in ALL if i not in gone]
        t.shows(left, gone=[30])
        raw.refresh()
        done(raw.commit(operation, **rewritten(raw, *gone)))
        t.shows(left, gone=[30])


@pytest.mark.parametrize(
    "statement",
    ["DELETE FROM t WHERE i = 30", "DELETE FROM t WHERE i >= 10 AND i < 31", "UPDATE t SET s = 'u' WHERE i = 30"],
    ids=["inlined", "delete-file", "update"],
)
def test_h32_a_delete_concurrent_with_another_delete_of_its_file_is_refused_and_not_lost(
    sharing: Sharing, statement: str
) -> None:
    """Ours stands for an older one as well, and its row in the catalog is as old as that."""
    with sharing.table(FILE, "DELETE FROM t WHERE i = 9") as t:
        t.tell("BEGIN", statement)
        t.delete(3)
        with pytest.raises(duckdb.TransactionException, match="Transaction conflict"):
            t.tell("COMMIT")
        t.shows([i for i in ALL if i not in (3, 9)], gone=[3, 9])
        t.tell(statement)
        left = [(i,) for i in ALL if i not in (3, 9) and (i not in range(10, 31) or "10" not in statement)]
        left = [row for row in left if row != (30,) or "UPDATE" in statement]
        assert t.asked_afresh("SELECT i FROM {t} ORDER BY i") == left


def test_h32_a_stale_pyiceberg_delete_fails_and_succeeds_after_a_refresh(sharing: Sharing) -> None:
    if sharing.format_version >= 3:
        pytest.skip("PyIceberg writes no table of version 3")
    with sharing.table(FILE) as t:
        stale = t.stale()
        t.tell("DELETE FROM t WHERE i = 30")
        # it rewrites the file
        with pytest.raises(CommitFailedException):
            stale.delete("i = 20")
        t.shows([i for i in ALL if i != 30], gone=[30])
        stale.refresh()
        stale.delete("i = 20")
        t.shows([i for i in ALL if i not in (20, 30)], gone=[20, 30])
        # tried again by itself, unless it is told not to
        patient = t.iceberg()
        t.tell("INSERT INTO t VALUES (70, 'in')")
        patient.append(rows(71))
        t.shows([*(i for i in ALL if i not in (20, 30)), 70, 71], gone=[20, 30])


def test_h32_concurrent_appends_of_duckdb_and_iceberg_both_commit(sharing: Sharing) -> None:
    with sharing.table(FILE) as t:
        t.tell("BEGIN", "INSERT INTO t VALUES (50, 'in')")
        t.append(60)
        t.tell("COMMIT")
        t.tell("BEGIN", "INSERT INTO t SELECT range, 'f' FROM range(100, 120)")
        t.append(61)
        t.tell("COMMIT")
        t.shows([*ALL, 50, 60, 61, *range(100, 120)])


def test_a_stale_append_is_added_to_what_duckdb_has_committed_since(sharing: Sharing) -> None:
    with sharing.table(FILE) as t:
        stale = t.raw()
        added = stale.data_file(rows(60))
        t.tell("INSERT INTO t SELECT range, 'f' FROM range(100, 120)")
        done(stale.commit("append", add=[added]))
        t.shows([*ALL, 60, *range(100, 120)])


@in_version(3)
def test_a_stale_append_to_a_snapshot_that_was_rolled_back_is_refused(sharing: Sharing) -> None:
    with sharing.table(FILE) as t:
        first = t.raw()
        main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": first.current}
        done(first.commit("append", add=[first.data_file(rows(60))]))
        stale = t.raw()
        done(first.send([main]))
        added = stale.data_file(rows(61))
        assert error_of(stale.commit("append", add=[added])) == CONFLICT
        t.shows(ALL, gone=[60, 61])
        done(stale.refresh().commit("append", add=[added]))
        t.shows([*ALL, 61], gone=[60])


def test_h9_a_stale_append_after_a_flush_fails_and_succeeds_after_a_refresh(sharing: Sharing) -> None:
    """A flush of rows that are gone puts a file of deleted rows into a snapshot that was empty to its reader."""
    with sharing.table("INSERT INTO t VALUES (1, 'in'), (2, 'in')") as t:
        t.delete(1, 2)
        stale = t.raw()
        added = stale.data_file(rows(3))
        t.sharing.lake.sql("DELETE FROM mergus.chain WHERE table_id = %s", t.table_id())
        t.tell("CALL ducklake_flush_inlined_data('lake', schema_name => '{schema}', table_name => 't')")
        answer = stale.commit("append", add=[added])
        assert (answer.status_code, answer.json()["error"]["type"]) == (409, "CommitFailedException")
        done(stale.refresh().commit("append", add=[added]))
        t.shows([3], gone=[1, 2])


def live(t: Shared, name: str) -> list[str]:
    """Tables and views that have this name for DuckDB, whatever their case."""
    query = """SELECT table_name FROM ducklake_table JOIN ducklake_schema s USING (schema_id)
                WHERE schema_name = %s AND lower(table_name) = %s AND ducklake_table.end_snapshot IS NULL
               UNION ALL
               SELECT view_name FROM ducklake_view JOIN ducklake_schema s USING (schema_id)
                WHERE schema_name = %s AND lower(view_name) = %s AND ducklake_view.end_snapshot IS NULL"""
    return [name for (name,) in t.sharing.lake.sql(query, t.schema, name, t.schema, name)]


@pytest.mark.parametrize("statement", ["CREATE TABLE t2(i INTEGER)", "CREATE VIEW t2 AS SELECT 1 AS i"])
@in_version(3)
def test_h40_a_table_name_created_by_duckdb_and_by_a_client_exists_once(sharing: Sharing, statement: str) -> None:
    with sharing.table(FILE) as t:
        t.tell("BEGIN", statement)
        sharing.catalog.create_table((t.schema, "t2"), ONE)
        with pytest.raises(duckdb.TransactionException, match="Transaction conflict"):
            t.tell("COMMIT")
        assert live(t, "t2") == ["t2"]
        sharing.catalog.drop_table((t.schema, "t2"))
        # promised to a client, and then taken
        staged = sharing.catalog.create_table_transaction((t.schema, "t2"), ONE)
        t.tell(statement)
        with pytest.raises((CommitFailedException, TableAlreadyExistsError)):
            staged.commit_transaction()
        with pytest.raises(TableAlreadyExistsError):
            sharing.catalog.create_table((t.schema, "T2"), ONE)
        assert live(t, "t2") == ["t2"]
        assert t.ask("SELECT count(*) FROM t2") is not None


@in_version(2)
def test_h40_a_schema_created_by_duckdb_and_by_a_client_exists_once(sharing: Sharing) -> None:
    with sharing.table(FILE) as t:
        name = f"{t.schema}_new"
        t.tell("BEGIN", f"CREATE SCHEMA {name}")
        sharing.catalog.create_namespace(name)
        with pytest.raises(duckdb.TransactionException, match="Transaction conflict"):
            t.tell("COMMIT")
        with pytest.raises(NamespaceAlreadyExistsError):
            sharing.catalog.create_namespace(name.upper())
        query = "SELECT count(*) FROM ducklake_schema WHERE lower(schema_name) = %s AND end_snapshot IS NULL"
        assert sharing.lake.sql(query, name) == [(1,)]


def outcome(call: Callable[[], object], barrier: Barrier) -> Exception | None:
    barrier.wait(60)
    try:
        call()
    except Exception as e:
        return e
    return None


@in_version(3)
def test_h40_one_of_several_concurrent_creations_of_a_table_succeeds(sharing: Sharing) -> None:
    with sharing.table(FILE) as t, sharing.open() as other, ThreadPoolExecutor(4) as pool:
        other.execute(f"USE lake.{t.schema}")
        for name in ("race1", "race2", "race3"):
            barrier = Barrier(4)
            calls: list[Callable[[], object]] = [
                lambda name=name: t.tell(f"CREATE TABLE {name}(i INTEGER)"),
                lambda name=name: other.execute(f"CREATE VIEW {name} AS SELECT 1 AS i"),
                lambda name=name: sharing.catalog.create_table((t.schema, name), ONE),
                lambda name=name: sharing.catalog.create_table((t.schema, name.upper()), ONE),
            ]
            ends = [f.result() for f in [pool.submit(outcome, call, barrier) for call in calls]]
            assert ends.count(None) == 1, ends
            assert len(live(t, name)) == 1, ends
            for end in filter(None, ends):
                assert isinstance(end, TableAlreadyExistsError | CommitFailedException | duckdb.Error), end
                assert not re.search("deadlock|internal", str(end), re.IGNORECASE), end


def files_of(sharing: Sharing, table_id: int) -> list[tuple[Any, ...]]:
    query = "SELECT data_file_id FROM ducklake_data_file WHERE table_id = %s AND end_snapshot IS NULL"
    return sharing.lake.sql(query, table_id)


@in_version(2)
def test_h41_an_append_to_a_dropped_table_is_refused(sharing: Sharing) -> None:
    with sharing.table(FILE) as t:
        first, raw = t.table_id(), t.raw()
        t.tell("BEGIN", "DROP TABLE t")
        done(raw.commit("append", add=[raw.data_file(rows(60))]))
        t.tell("COMMIT")
        assert files_of(sharing, first) == []
        answer = raw.commit("append", add=[raw.data_file(rows(61))])
        assert error_of(answer) == (404, "NoSuchTableException")
        # another of the same name is not the table that the client means
        t.tell("CREATE TABLE t(i INTEGER, s VARCHAR)")
        assert error_of(raw.commit("append", add=[raw.data_file(rows(62))])) == CONFLICT
        assert files_of(sharing, first) == []
        t.shows([], gone=[60, 61, 62])
        with pytest.raises(NoSuchTableError):
            sharing.catalog.load_table((t.schema, "none"))


@in_version(3)
def test_h43_a_commit_that_is_retried_is_applied_once(sharing: Sharing) -> None:
    with sharing.table(FILE) as t:
        raw = t.raw()
        new = raw.data_file(rows(60))
        snapshot = raw.snapshot("append", add=[new])
        updates, requirements = raw.to_main(snapshot), raw.requirements()
        first = raw.send(updates, requirements)
        again = raw.send(updates, requirements)
        done(first)
        done(again)
        assert again.json()["metadata"]["current-snapshot-id"] == snapshot["snapshot-id"]
        t.shows([*ALL, 60])
        t.tell("INSERT INTO t VALUES (70, 'in')")
        done(raw.send(updates, requirements))
        t.shows([*ALL, 60, 70])
        # the same file in another commit
        raw.refresh()
        assert 400 <= raw.commit("append", add=[new]).status_code < 500
        raw.refresh()
        assert 400 <= raw.commit("append", add=[raw.data_file(rows(61)), new]).status_code < 500
        t.shows([*ALL, 60, 70], gone=[61])


@in_version(2)
def test_h47_concurrent_duckdb_and_iceberg_writers_cause_no_deadlock(sharing: Sharing) -> None:
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    with sharing.table(FILE, "CREATE TABLE u(i INTEGER, s VARCHAR)") as t, sharing.open() as other:
        other.execute(f"USE lake.{t.schema}")
        before = sharing.lake.sql(deadlocks)
        barrier = Barrier(4)

        def by_duckdb(session: duckdb.DuckDBPyConnection, first: int) -> None:
            for i in range(first, first + 6):
                session.execute(f"INSERT INTO t VALUES ({i}, 'in')")
                session.execute(f"INSERT INTO u VALUES ({i}, 'in')")

        def by_client(first: int) -> None:
            for i in range(first, first + 6):
                raw = t.raw()
                new = raw.data_file(rows(i))
                while (answer := raw.refresh().commit("append", add=[new])).status_code == 409:
                    pass
                done(answer)

        calls: list[Callable[[], object]] = [
            lambda: by_duckdb(t.db, 100),
            lambda: by_duckdb(other, 200),
            lambda: by_client(300),
            lambda: by_client(400),
        ]
        with ThreadPoolExecutor(4) as pool:
            ends = [f.result() for f in [pool.submit(outcome, call, barrier) for call in calls]]
        assert ends == [None] * 4
        assert sharing.lake.sql(deadlocks) == before
        t.shows([*ALL, *(i for first in (100, 200, 300, 400) for i in range(first, first + 6))])
        sharing.lake.sound_snapshots()
