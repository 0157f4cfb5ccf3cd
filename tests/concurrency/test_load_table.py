"""Loads through many processes while DuckDB sessions commit: each shows everything that was committed before it."""

import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import httpx
import psycopg
import pytest
from psycopg import sql
from pyiceberg.table import StaticTable

from tests.support import lakes, loads, servers
from tests.support.lakes import TestLake
from tests.support.loads import Metadata, get, ids, load, url
from tests.support.servers import Server, error_of, wait_for

COMMITS = 100


@contextmanager
def running(lake: TestLake, folder: Path, *options: dict[str, Any]) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        # nobody makes anything before it is asked for
        quiet = lake.settings.model_copy(update={"listener": "off"})
        found = [stack.enter_context(servers.server(quiet, folder, wait=False, **o)) for o in options]
        for server in found:
            server.wait_ready()
        yield found


@pytest.fixture(scope="module")
def fleet(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Two servers of one process, and one of two."""
    with running(lake, tmp_path_factory.mktemp("fleet"), {}, {}, {"workers": 2}) as found:
        yield found


def load_afresh(server: Server, table: str, schema: str) -> Metadata:
    """On a connection of its own, so that any worker may get it."""
    answer = servers.get(server.uri + url(server, table, schema))
    assert answer.status_code == 200, answer.text
    return answer.json()["metadata"]


def fields(metadata: Metadata) -> list[str]:
    (schema,) = [s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]]
    return [f["name"] for f in schema["fields"]]


def test_the_next_load_after_a_commit_shows_it_from_any_process(
    lake: TestLake, fleet: list[Server], db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA next; CREATE TABLE next.t(i INTEGER); CREATE TABLE next.other(i INTEGER)")
    choice = random.Random(7)
    for n in range(1, COMMITS + 1):
        db.execute(f"INSERT INTO next.t VALUES ({n})")
        metadata = load_afresh(choice.choice(fleet), "t", "next")
        current = metadata["snapshots"][-1]
        assert current["snapshot-id"] == metadata["current-snapshot-id"]
        assert (current["summary"]["total-records"], len(metadata["snapshots"])) == (str(n), n)
        if n % 20 == 0:
            db.execute(f"INSERT INTO next.other VALUES ({n})")
            load_afresh(choice.choice(fleet), "other", "next")
    for server in fleet:
        assert len(loads.assert_readable(lake, server, db, schema="next", most=5)) == COMMITS


def test_the_next_load_shows_ddl_from_any_process(fleet: list[Server], db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA ddl; CREATE TABLE ddl.t AS SELECT 1 AS i")

    def shown(table: str = "t") -> list[Metadata]:
        return [load_afresh(server, table, "ddl") for server in fleet for _ in range(2)]

    def absent(table: str) -> None:
        for server in fleet:
            assert error_of(get(server, table, "ddl")) == (404, "NoSuchTableException")

    uuid = shown()[0]["table-uuid"]
    db.execute("ALTER TABLE ddl.t ADD COLUMN j INTEGER")
    assert all(fields(m) == ["i", "j"] for m in shown())
    db.execute("ALTER TABLE ddl.t RENAME COLUMN j TO k")
    assert all(fields(m) == ["i", "k"] for m in shown())
    db.execute("COMMENT ON TABLE ddl.t IS 'said now'")
    assert all(m["properties"]["comment"] == "said now" for m in shown())
    db.execute("ALTER TABLE ddl.t SET PARTITIONED BY (i)")
    assert all(len(m["partition-specs"]) == 2 for m in shown())
    db.execute("ALTER TABLE ddl.t RENAME TO u")
    absent("t")
    assert all(m["table-uuid"] == uuid for m in shown("u"))
    db.execute("CREATE TABLE ddl.t(other VARCHAR)")
    assert all(m["table-uuid"] != uuid and fields(m) == ["other"] for m in shown("t"))
    db.execute("DROP TABLE ddl.u")
    absent("u")
    db.execute("BEGIN; DROP TABLE ddl.t; CREATE TABLE ddl.t(third DATE); COMMIT")
    assert all(fields(m) == ["third"] for m in shown())
    db.execute("DROP SCHEMA ddl CASCADE")
    absent("t")


def test_the_next_load_does_not_list_expired_snapshots(fleet: list[Server], db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA expired; CREATE TABLE expired.t(i INTEGER)")
    for n in range(4):
        db.execute(f"INSERT INTO expired.t VALUES ({n})")
    listed = ids(load_afresh(fleet[0], "t", "expired"))
    assert all(ids(load_afresh(server, "t", "expired")) == listed for server in fleet)
    db.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{listed[1]}])")
    left = [listed[0], *listed[2:]]
    for server in fleet:
        for _ in range(3):
            metadata = load_afresh(server, "t", "expired")
            assert ids(metadata) == left
            assert [s.get("parent-snapshot-id") for s in metadata["snapshots"]] == [None, *left[:-1]]


def test_every_process_returns_the_same_load(fleet: list[Server], db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA same; CREATE TABLE same.t(i INTEGER)")
    for statement in ("INSERT INTO same.t SELECT range FROM range(100)", "DELETE FROM same.t WHERE i < 5"):
        db.execute(statement)
        assert len({get(server, schema="same").text for server in fleet}) == 1


@contextmanager
def nobody_in(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """The lake's database with every session ended and none let in; a connection to another one."""
    name = sql.Identifier(dsn.rsplit("/", 1)[1])
    with psycopg.connect(lakes.backend_settings().dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s"
        admin.execute(ended, (dsn.rsplit("/", 1)[1],))
        yield admin
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))


def test_running_servers_show_the_restored_state_after_a_restore_from_backup(tmp_path: Path) -> None:
    with lakes.lake() as lake, running(lake, tmp_path, {}, {}) as found:
        dsn = lake.settings.dsn
        name, copy = sql.Identifier(dsn.rsplit("/", 1)[1]), sql.Identifier(dsn.rsplit("/", 1)[1] + "_copy")
        db = lake.duckdb()
        db.execute("CREATE TABLE t(s VARCHAR); CREATE TABLE u(s VARCHAR)")
        db.execute("INSERT INTO t VALUES ('kept'); INSERT INTO t VALUES ('kept too'); INSERT INTO u VALUES ('u')")
        kept = {table: load(found[0], table) for table in "tu"}
        db.close()
        with nobody_in(dsn) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(copy, name))
        wait_for(found[0], url(found[0]), 200)
        db = lake.duckdb()
        # u is looked at when the lake is further than it will be again
        db.execute("INSERT INTO t VALUES ('lost'); CALL ducklake_flush_inlined_data('lake', table_name => 't')")
        db.execute("INSERT INTO t VALUES ('lost too'); INSERT INTO u VALUES ('lost')")
        lost = {table: load(server, table) for server in found for table in "tu"}
        db.close()
        with nobody_in(dsn) as admin:
            admin.execute(sql.SQL("DROP DATABASE {}").format(name))
            admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(copy, name))
        for server in found:
            for table in "tu":
                metadata = wait_for(server, url(server, table), 200).json()["metadata"]
                assert ids(metadata) == ids(kept[table])
        db = lake.duckdb()
        db.execute("INSERT INTO t VALUES ('another'); CALL ducklake_flush_inlined_data('lake')")
        db.execute("INSERT INTO u VALUES ('one more')")
        for server in found:
            for table in "tu":
                listed = loads.assert_readable(lake, server, db, table)
                assert set(ids(kept[table])) < set(listed)
                assert listed != ids(lost[table])
                assert server.http.get(url(server, table)).json()["metadata"]["table-uuid"] == kept[table]["table-uuid"]


@pytest.mark.parametrize("looked", [True, False])
def test_a_snapshot_id_that_is_reused_after_a_restore_shows_the_new_rows(looked: bool, tmp_path: Path) -> None:
    """A restore within the catalog's tables: the same number, at another time."""
    with lakes.lake() as lake, running(lake, tmp_path, {}) as (server,):
        with lake.duckdb() as db:
            db.execute("CREATE TABLE t(s VARCHAR); INSERT INTO t VALUES ('kept'); INSERT INTO t VALUES ('lost')")
        before = load(server)
        last = ids(before)[-1]
        ((rows,),) = lake.sql("SELECT table_name FROM ducklake_inlined_data_tables")
        for table, column in (("ducklake_snapshot_changes", "snapshot_id"), (rows, "begin_snapshot")):
            lake.sql(f"DELETE FROM {table} WHERE {column} = %s", last)
        lake.sql("DELETE FROM ducklake_snapshot WHERE snapshot_id = %s", last)
        if looked:
            assert ids(load(server)) == ids(before)[:-1]
        with lake.duckdb() as db:
            db.execute("INSERT INTO t VALUES ('instead')")
            assert loads.assert_readable(lake, server, db) == ids(before)
            assert db.execute("SELECT s FROM t ORDER BY s").fetchall() == [("instead",), ("kept",)]
        after = load(server)
        assert after["snapshots"][-1]["timestamp-ms"] > before["snapshots"][-1]["timestamp-ms"]


def chains_made(server: Server) -> int:
    found = re.search(r"^mergus_chains_total (\S+)", server.http.get("/metrics").text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def test_concurrent_loads_of_an_uncached_table_materialise_it_once(
    lake: TestLake, fleet: list[Server], db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA cold; CREATE TABLE cold.t(i INTEGER)")
    for n in range(3):
        db.execute(f"INSERT INTO cold.t SELECT range FROM range({n}, 50)")
    server = fleet[0]
    before = chains_made(server)
    with (
        httpx.Client(base_url=server.uri, limits=httpx.Limits(max_connections=50), timeout=60) as client,
        ThreadPoolExecutor(50) as pool,
    ):
        answers = list(pool.map(lambda _: client.get(url(server, schema="cold")), range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert chains_made(server) == before + 3
    query = """SELECT count(*) FROM metadata_file JOIN ducklake_table USING (table_id)
               JOIN ducklake_schema USING (schema_id) WHERE schema_name = 'cold'"""
    assert lake.sql(query) == [(1,)]


def test_two_processes_loading_one_table_while_duckdb_commits_show_the_same_history(tmp_path: Path) -> None:
    with lakes.lake() as lake, running(lake, tmp_path, {}, {}) as found:
        db = lake.duckdb()
        db.execute("CREATE TABLE t(i INTEGER, s VARCHAR)")
        for n in range(10):
            db.execute(f"INSERT INTO t VALUES ({n}, 'first')")
        seen: list[tuple[int, httpx.Response]] = []
        done = threading.Event()

        def ask(server: Server) -> None:
            newest = -1
            with httpx.Client(base_url=server.uri, timeout=60) as client:
                while not done.is_set():
                    answer = client.get(url(server))
                    assert answer.status_code == 200, answer.text
                    current = answer.json()["metadata"]["current-snapshot-id"]
                    assert current >= newest
                    if current > newest:
                        newest = current
                        seen.append((current, answer))

        with ThreadPoolExecutor(40) as pool:
            asking = [pool.submit(ask, server) for server in found for _ in range(20)]
            try:
                for n in range(4):
                    db.execute(f"INSERT INTO t SELECT range, 'more' FROM range({n * 100}, {n * 100 + 50})")
                    db.execute(f"INSERT INTO t VALUES ({n}, 'small'); DELETE FROM t WHERE i % 7 = {n}")
                db.execute("CALL ducklake_flush_inlined_data('lake')")
                db.execute("CALL ducklake_merge_adjacent_files('lake'); DELETE FROM t WHERE i = 120")
            finally:
                done.set()
            for asked in asking:
                asked.result()
        listed = ids(load(found[0]))
        for server in found:
            assert loads.assert_readable(lake, server, db) == listed
        last = {
            answer.text: answer for _, answer in seen if answer.json()["metadata"]["current-snapshot-id"] == listed[-1]
        }
        for answer in list(last.values())[:3]:
            shown = StaticTable.from_metadata(answer.json()["metadata-location"], loads.s3_properties(lake.settings))
            for snapshot in shown.metadata.snapshots:
                wanted = db.execute(f"SELECT * FROM t AT (VERSION => {snapshot.snapshot_id})").fetchall()
                assert loads.rows(shown.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) == loads.in_order(wanted)
        versions = [v for (v,) in lake.sql("SELECT version FROM metadata_file ORDER BY version")]
        assert versions == list(range(len(versions)))


def test_older_snapshots_are_materialised_in_the_background(tmp_path: Path) -> None:
    with lakes.lake() as lake, running(lake, tmp_path, {"history_patience": 0}) as (server,):
        db = lake.duckdb()
        db.execute("CREATE TABLE t(i INTEGER)")
        for n in range(60):
            db.execute(f"INSERT INTO t VALUES ({n})")
        every = [s for s, _, _, _, changes in lake.snapshots() if "inlined_insert" in changes]
        # a snapshot that is not listed yet is not mistaken for the one before
        first = load(server)
        assert first["current-snapshot-id"] == every[-1]
        assert len(first["snapshots"]) < 60
        pinned = load(server, snapshot_id=every[30])
        assert pinned["current-snapshot-id"] == every[30]
        deadline = time.monotonic() + 30
        while ids(load(server)) != every:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert loads.assert_readable(lake, server, db, most=20) == every


def test_a_load_does_not_fail_because_of_a_concurrent_flush(tmp_path: Path) -> None:
    """A flush drops the tables of inlined rows of older schemas: one that has begun to read does not find them, though
    the state that it reads names them."""
    with lakes.lake() as lake, servers.server(lake.settings, tmp_path, listener="embedded") as server:
        db = lake.duckdb()
        db.execute("CREATE TABLE t(a INTEGER)")
        for n in range(20):
            db.execute(f"INSERT INTO t(a) VALUES ({n}); ALTER TABLE t ADD COLUMN c{n} INTEGER")
            db.execute(f"INSERT INTO t(a) VALUES ({n}); CALL ducklake_flush_inlined_data('lake')")
            answer = loads.get(server)
            assert answer.status_code == 200, answer.text
        assert "cannot be put on storage" not in server.log.read_text()
        loads.assert_readable(lake, server, db, most=10)
        db.close()
