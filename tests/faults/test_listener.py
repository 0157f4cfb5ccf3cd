"""The listener when what it stands on fails: killed, paused, cut off, Postgres or the store gone, a table broken, the
lake gone back. Another takes over within seconds, and in the end all is on storage and right."""

import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import psycopg
from psycopg import sql
from pydantic import SecretStr
from pyiceberg.table import StaticTable

from mergus.embedded.postgres import Postgres
from mergus.embedded.state import StateDir
from mergus.materialise.layout import metadata_as_of
from mergus.setup import initialise
from tests.concurrency.test_load_table import nobody_in
from tests.support import lakes, listeners, servers
from tests.support.formats import LONG
from tests.support.lakes import TestLake, quiet
from tests.support.listeners import (
    Burst,
    Listener,
    assert_all_on_storage,
    eventually,
    how_far,
    is_done,
    leader,
    leads,
    listener,
    lock_holders,
    metrics,
    mixture,
    status,
    two_listeners,
    wait_until_caught_up,
)
from tests.support.loads import Bucket, rows, s3_properties
from tests.support.servers import Server, wait_for

# Until another leads. One that is silent is given 2 s.
TAKEOVER = 3.0
# With the time that it takes to be told, on a machine that is busy.
MEASURED = TAKEOVER + 0.5

TABLES = ("a", "b", "c", "d")


def make_tables(db: duckdb.DuckDBPyConnection, names: Sequence[str] = TABLES) -> None:
    for name in names:
        db.execute(f"CREATE TABLE {name}(i INTEGER, s VARCHAR)")


def wait_for_another(lake: TestLake, old: str, seconds: float) -> float:
    """Until somebody else holds the lock and has said so."""
    return eventually(lambda: leader(lake) not in {None, old}, seconds, lambda: f"{old} led; {how_far(lake)}")


def test_another_listener_takes_over_when_the_leader_is_killed(tmp_path: Path) -> None:
    with lakes.lake() as lake, two_listeners(lake, tmp_path) as (first, second), lake.duckdb() as db:
        make_tables(db)
        with Burst(lake, list(mixture(TABLES, 120))).running() as burst:
            burst.wait_for(40)
            first.kill()
            wait_for_another(lake, first.name, TAKEOVER)
            assert burst.made < 120, "it was to be in the middle"
        assert leader(lake) == second.name
        assert second.leads
        wait_until_caught_up(lake, 30)
        listed = assert_all_on_storage(lake, Bucket(lake.settings), db, most=6)
        assert len({i for ids in listed.values() for i in ids}) == 120


def signers(conn: psycopg.Connection[Any], lake: TestLake, table: str) -> list[int]:
    """Postgres's numbers of the sessions that set the sign to a table's newest metadata just now: one, or none."""
    key = f"hashtextextended('mergus sign {lake.settings.annex_schema}', table_id)"
    query = f"""SELECT l.pid FROM pg_locks l JOIN ducklake_table t ON t.table_name = %s
                WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32 | objid::bigint) = {key}"""
    return [pid for (pid,) in conn.execute(query.encode(), (table,)).fetchall()]


def pause_while_it_signs(lake: TestLake, leading: Listener, table: str) -> int:
    """SIGSTOP at the worst moment: it holds a lock, and will write the number of an old version when it goes on. The
    session that holds it."""
    with psycopg.connect(lake.settings.dsn, autocommit=True) as conn, lake.duckdb() as db:
        for n in range(50):
            db.execute(f"INSERT INTO {table} VALUES ({n}, 'until it is caught')")
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:
                if signers(conn, lake, table):
                    leading.signal(signal.SIGSTOP)
                    time.sleep(0.1)
                    if held := signers(conn, lake, table):
                        return held[0]
                    leading.signal(signal.SIGCONT)
                    break
    raise AssertionError("it was never caught at it")


def commit_to_each(db: duckdb.DuckDBPyConnection, tables: Sequence[str] = TABLES) -> None:
    for table in tables:
        db.execute(f"INSERT INTO {table} VALUES (7, 'one more')")


def assert_work_goes_on(lake: TestLake, db: duckdb.DuckDBPyConnection, tables: Sequence[str] = TABLES) -> None:
    commit_to_each(db, tables)
    wait_until_caught_up(lake, 10)


def assert_one_leads_and_all_is_right(lake: TestLake, db: duckdb.DuckDBPyConnection, *running: Listener) -> None:
    """For some beats, with commits in them; in the end everything is looked at."""
    for _ in range(3):
        assert_work_goes_on(lake, db)
        time.sleep(0.3)
    eventually(lambda: sum(found.leads for found in running) == 1, 10)
    assert len(lock_holders(lake)) == 1
    assert_all_on_storage(lake, Bucket(lake.settings), db, most=6)


def test_another_listener_takes_over_from_a_paused_leader_which_does_no_harm_on_resume(tmp_path: Path) -> None:
    with lakes.lake() as lake, two_listeners(lake, tmp_path) as (first, second), lake.duckdb() as db:
        make_tables(db)
        assert_work_goes_on(lake, db)
        first.signal(signal.SIGSTOP)
        paused, turns = time.monotonic(), 0
        wait_for_another(lake, first.name, MEASURED)
        assert leader(lake) == second.name
        # its session was ended for that, so longer makes no difference before Postgres ends its others after 30 s
        while turns < 5 or (LONG and time.monotonic() < paused + 35):
            assert_work_goes_on(lake, db)
            turns += 1
        assert_all_on_storage(lake, Bucket(lake.settings), db, most=3)
        first.signal(signal.SIGCONT)
        eventually(lambda: not first.leads, 5)
        assert_one_leads_and_all_is_right(lake, db, first, second)
        assert leader(lake) == second.name


def newest_on_storage(lake: TestLake, table: str) -> int:
    """The newest snapshot of the lake that the table's newest metadata file knows of."""
    query = """SELECT location FROM metadata_file JOIN ducklake_table t USING (table_id)
               WHERE t.table_name = %s AND t.end_snapshot IS NULL ORDER BY version DESC LIMIT 1"""
    ((location,),) = lake.sql(query, table)
    return metadata_as_of(location)


def wait_for_storage(lake: TestLake, table: str, snapshot_id: int, seconds: float) -> None:
    eventually(lambda: newest_on_storage(lake, table) >= snapshot_id, seconds, lambda: f"{table}: {how_far(lake)}")


def test_a_leader_paused_while_it_writes_a_version_hint_neither_blocks_nor_misleads_others(tmp_path: Path) -> None:
    with lakes.lake() as lake, two_listeners(lake, tmp_path) as (first, second), lake.duckdb() as db:
        make_tables(db)
        assert_work_goes_on(lake, db)
        session = pause_while_it_signs(lake, first, "a")
        wait_for_another(lake, first.name, MEASURED)
        for _ in range(3):
            commit_to_each(db)
            newest = listeners.head(lake)
            for later, table in enumerate(reversed(TABLES)):
                wait_for_storage(lake, table, newest - later, 5)
        assert_all_on_storage(lake, Bucket(lake.settings), db, most=3, signs=False)
        # Postgres does that to a session that keeps others waiting, after 30 s
        lake.sql("SELECT pg_terminate_backend(%s)", session)
        wait_until_caught_up(lake, 40)
        assert_all_on_storage(lake, Bucket(lake.settings), db, most=3)
        first.signal(signal.SIGCONT)
        eventually(lambda: not first.leads, 5)
        assert_one_leads_and_all_is_right(lake, db, first, second)


def test_a_listener_terminated_while_it_is_paused_exits(tmp_path: Path) -> None:
    """Its session is gone by then: it hears of both at once."""
    with lakes.lake() as lake, two_listeners(lake, tmp_path) as (first, second):
        first.signal(signal.SIGSTOP)
        wait_for_another(lake, first.name, MEASURED)
        first.process.terminate()
        first.signal(signal.SIGCONT)
        eventually(lambda: first.process.poll() is not None, 10, lambda: first.said)
        assert leader(lake) == second.name


def test_a_listener_leads_again_after_the_postgres_session_of_the_leader_is_terminated(tmp_path: Path) -> None:
    """As those do who end sessions that seem to be idle."""
    with lakes.lake() as lake, two_listeners(lake, tmp_path) as (first, second), lake.duckdb() as db:
        make_tables(db)
        with Burst(lake, list(mixture(TABLES, 60))).running() as burst:
            for turn in range(3):
                burst.wait_for(10 * (turn + 1))
                (before,) = lock_holders(lake)
                lake.sql("SELECT pg_terminate_backend(%s)", before)
                eventually(lambda old=before: lock_holders(lake) not in ([], [old]), TAKEOVER)
        wait_until_caught_up(lake, 30)
        assert_one_leads_and_all_is_right(lake, db, first, second)


def test_listeners_recover_without_errors_when_all_their_sessions_are_terminated(tmp_path: Path) -> None:
    """Again and again, in the middle of whatever they do."""
    end = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name LIKE 'mergus%' AND datname = current_database()"""
    with lakes.lake() as lake, two_listeners(lake, tmp_path) as (first, second), lake.duckdb() as db:
        make_tables(db)
        with Burst(lake, list(mixture(TABLES, 120))).running() as burst:
            for turn in range(5):
                burst.wait_for(20 * (turn + 1))
                before = lock_holders(lake)
                lake.sql(end)
                eventually(lambda old=before: lock_holders(lake) not in ([], old), TAKEOVER)
        wait_until_caught_up(lake, 30)
        assert_one_leads_and_all_is_right(lake, db, first, second)
        for running in (first, second):
            assert '"level":"ERROR"' not in running.said, running.said


def test_another_listener_takes_over_when_the_leader_loses_its_network(tmp_path: Path) -> None:
    """No packet comes through, and nobody is told."""
    with lakes.lake() as lake, listeners.proxy(lake.settings.dsn) as (network, dsn):
        far_away = lake.settings.model_copy(update={"postgres_dsn": SecretStr(dsn)})
        with two_listeners(lake, tmp_path, far_away) as (first, second), lake.duckdb() as db:
            make_tables(db)
            assert_work_goes_on(lake, db)
            network.freeze()
            wait_for_another(lake, first.name, MEASURED)
            assert leader(lake) == second.name
            for _ in range(5):
                assert_work_goes_on(lake, db)
            network.thaw()
            eventually(lambda: not first.leads, 10)
            assert_one_leads_and_all_is_right(lake, db, first, second)
            assert leader(lake) == second.name


def test_a_listener_leads_again_after_postgres_restarts(tmp_path: Path) -> None:
    with StateDir.claim(tmp_path / "state") as state:
        postgres = Postgres(state, None, durable=False)
        try:
            postgres.wait_ready()
            settings = lakes.settings_for(postgres.dsn())
            initialise(settings, quiet)
            lake = TestLake(settings)
            with servers.server(settings, tmp_path) as server, listener(settings, tmp_path) as other:
                with lake.duckdb() as db:
                    make_tables(db)
                    assert_work_goes_on(lake, db)
                for _ in range(2):
                    postgres.child.stop()
                    eventually(lambda: not leads(server.uri) and not other.leads, 10)
                    postgres = Postgres(state, None, durable=False)
                    postgres.wait_ready()
                    with lake.duckdb() as db:
                        commit_to_each(db)
                        eventually(lambda: leader(lake) is not None and lock_holders(lake), 5)
                        wait_until_caught_up(lake, 10)
                        assert_all_on_storage(lake, Bucket(settings), db)
                names = {other.name, f"{socket.gethostname()}:{server.process.pid}"}
                assert wait_for(server, "/v1/lake/admin/listener", 200).json()["leader"]["name"] in names
        finally:
            postgres.child.stop()


def failing(server: Server) -> dict[str, tuple[str, int]]:
    """By table: of which type, and how often it was tried. The admin endpoint and the metrics tell the same."""
    told: dict[str, tuple[str, int]] = {}

    def measured() -> dict[str, tuple[str, int]]:
        nonlocal told
        told = {f"{f['namespace']}.{f['table']}": (f["type"], f["attempts"]) for f in status(server)["failing"]}
        found = {pairs: n for (name, pairs), n in metrics(server).items() if name == "mergus_listener_failing"}
        by_label = [(dict(pairs), int(n)) for pairs, n in found.items()]
        return {f"{labels['namespace']}.{labels['table']}": (labels["type"], n) for labels, n in by_label}

    # an attempt may come between the two
    eventually(lambda: measured() == told, 5, lambda: f"{measured()}, not {told}")
    return told


def test_commits_made_while_the_store_was_down_are_materialised_after_it_is_up_again(tmp_path: Path) -> None:
    with lakes.lake() as lake, lake.duckdb() as db:
        make_tables(db)
        assert lake.settings.s3_endpoint is not None
        with (
            listeners.proxy(lake.settings.s3_endpoint) as (network, endpoint),
            servers.server(lake.settings, tmp_path, s3_endpoint=endpoint) as server,
        ):
            assert_work_goes_on(lake, db)
            assert failing(server) == {}
            network.shut()
            commit_to_each(db, ("a", "b"))
            wanted = {"main.a", "main.b"}
            eventually(lambda: failing(server).keys() == wanted, 20, lambda: how_far(lake))
            assert {kind for kind, _ in failing(server).values()} == {"ServiceUnavailableException"}
            assert is_done(lake), "what fails holds nothing up"
            # more of it, on a table that fails and on another
            commit_to_each(db, ("a", "c"))
            wanted.add("main.c")
            eventually(lambda: failing(server).keys() == wanted, 20, lambda: how_far(lake))
            network.open()
            wait_until_caught_up(lake, 15)
            assert failing(server) == {}
            assert_all_on_storage(lake, Bucket(lake.settings), db)


def test_a_broken_table_does_not_block_other_tables_and_recovers_once_it_is_repaired(tmp_path: Path) -> None:
    with lakes.lake() as lake, lake.duckdb() as db:
        bucket = Bucket(lake.settings)
        make_tables(db, ("a", "broken", "c"))
        db.execute("INSERT INTO broken SELECT range, 'x' FROM range(1000); DELETE FROM broken WHERE i % 2 = 0")
        ((path,),) = lake.sql("SELECT path FROM ducklake_delete_file")
        (address,) = [found for found in bucket.below(str(lake.settings.data_path)) if found.endswith(path)]
        content = bucket.get(address)
        bucket.delete(address)
        with servers.server(lake.settings, tmp_path) as server:
            eventually(lambda: failing(server), 10, lambda: how_far(lake))
            commit_to_each(db, ("a", "c"))
            eventually(lambda: is_done(lake), 10, lambda: how_far(lake))
            assert_all_on_storage(lake, bucket, db, ["main.a", "main.c"])
            first = failing(server)
            assert first.keys() == {"main.broken"}
            assert first["main.broken"][0] == "InternalServerError"
            eventually(lambda: failing(server)["main.broken"][1] > first["main.broken"][1], 10)
            commit_to_each(db, ("a", "c"))
            eventually(lambda: is_done(lake), 5, lambda: how_far(lake))
            bucket.put(address, content)
            wait_until_caught_up(lake, 20)
            assert failing(server) == {}
            assert_all_on_storage(lake, bucket, db)


def test_a_table_that_iceberg_cannot_show_is_reported_and_recovers_once_it_is_altered(tmp_path: Path) -> None:
    with lakes.lake() as lake, servers.server(lake.settings, tmp_path) as server, lake.duckdb() as db:
        make_tables(db, ("a", "b"))
        db.execute("CREATE TABLE strange(i INTEGER, how_long INTERVAL)")
        db.execute("INSERT INTO strange VALUES (1, INTERVAL 1 DAY)")
        commit_to_each(db, ("a", "b"))
        eventually(lambda: is_done(lake) and failing(server), 10, lambda: how_far(lake))
        assert {table: kind for table, (kind, _) in failing(server).items()} == {
            "main.strange": "UnsupportedOperationException"
        }
        (told,) = status(server)["failing"]
        assert "how_long" in told["message"]
        assert_all_on_storage(lake, Bucket(lake.settings), db, ["main.a", "main.b"])
        db.execute("ALTER TABLE strange DROP COLUMN how_long")
        wait_until_caught_up(lake, 5)
        assert failing(server) == {}
        assert_all_on_storage(lake, Bucket(lake.settings), db, ["main.a", "main.b"])
        db.execute("INSERT INTO strange VALUES (2)")
        wait_until_caught_up(lake, 5)
        ((location,),) = lake.sql(
            "SELECT location FROM metadata_file JOIN ducklake_table t USING (table_id) "
            "WHERE table_name = 'strange' AND t.end_snapshot IS NULL ORDER BY version DESC LIMIT 1"
        )
        shown = StaticTable.from_metadata(location, s3_properties(lake.settings))
        assert rows(shown.scan().to_arrow()) == [(1,), (2,)]


def test_a_failing_table_is_no_longer_reported_after_it_is_dropped(tmp_path: Path) -> None:
    """However long ago it was tried, and whenever it would be tried again."""
    with lakes.lake() as lake, servers.server(lake.settings, tmp_path) as server, lake.duckdb() as db:
        db.execute("CREATE TABLE strange(i INTEGER, how_long INTERVAL)")
        eventually(lambda: failing(server).get("main.strange", ("", 0))[1] == 3, 15, lambda: how_far(lake))
        db.execute("DROP TABLE strange")
        # the next attempt would be 4 s after the last
        wait_until_caught_up(lake, 2.5)
        assert failing(server) == {}


def test_after_a_restore_the_listener_materialises_the_restored_state(tmp_path: Path) -> None:
    """Snapshots get numbers that others had before."""
    with lakes.lake() as lake, listener(lake.settings, tmp_path) as running:
        dsn, bucket = lake.settings.dsn, Bucket(lake.settings)
        name, copy = sql.Identifier(dsn.rsplit("/", 1)[1]), sql.Identifier(dsn.rsplit("/", 1)[1] + "_copy")
        with lake.duckdb() as db:
            make_tables(db)
            for statement in mixture(TABLES, 20):
                db.execute(statement)
            wait_until_caught_up(lake, 10)
        with nobody_in(dsn) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(copy, name))
        with lake.duckdb() as db:
            for n in range(6):
                # a is changed before and after, b only before, c only after
                db.execute(f"INSERT INTO a VALUES ({n}, 'lost'); INSERT INTO b VALUES ({n}, 'lost')")
                wait_until_caught_up(lake, 15)
            db.execute("CREATE TABLE gone AS SELECT 1 AS i; CALL ducklake_flush_inlined_data('lake')")
            wait_until_caught_up(lake, 15)
            lost = listeners.head(lake)
        with nobody_in(dsn) as admin:
            admin.execute(sql.SQL("DROP DATABASE {}").format(name))
            admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(copy, name))
        with lake.duckdb() as db:
            assert listeners.head(lake) < lost
            # before that, rows of the copy say that it leads, and that all is done
            eventually(lambda: running.said.count("this listener leads") >= 3, 10, lambda: running.said)
            wait_until_caught_up(lake, 10)
            assert_all_on_storage(lake, bucket, db)
            while listeners.head(lake) <= lost + 3:
                db.execute("INSERT INTO a VALUES (1, 'instead'); INSERT INTO c VALUES (2, 'instead')")
            db.execute("CREATE TABLE fresh AS SELECT 2 AS i")
            wait_until_caught_up(lake, 10)
            assert_all_on_storage(lake, bucket, db)
