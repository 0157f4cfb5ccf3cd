"""The listener with much to do: long histories, bursts, many tables, maintenance, and more than one process."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mergus.annex.leadership import BEAT
from mergus.materialise.listener import PROGRESS_SECONDS
from tests.support import lakes, listeners, servers
from tests.support.formats import LONG
from tests.support.lakes import TestLake
from tests.support.listeners import (
    assert_all_on_storage,
    eventually,
    how_far,
    leader,
    listener,
    metrics,
    mixture,
    status,
    wait_until_caught_up,
)
from tests.support.loads import Bucket, ids, load
from tests.support.servers import Server

FIVE = ("a", "b", "c", "d", "e")


def table_id(lake: TestLake, table: str) -> int:
    ((found,),) = lake.sql("SELECT table_id FROM ducklake_table WHERE table_name = %s AND end_snapshot IS NULL", table)
    return found


# that nobody attends to
COMMITS = 500 if LONG else 150


def versions(lake: TestLake, table: str) -> int:
    ((found,),) = lake.sql("SELECT count(*) FROM metadata_file WHERE table_id = %s", table_id(lake, table))
    return found


def test_a_listener_materialises_commits_made_before_it_started(tmp_path: Path) -> None:
    with lakes.lake() as lake, lake.duckdb() as db:
        for name in FIVE:
            db.execute(f"CREATE TABLE {name}(i INTEGER, s VARCHAR)")
        for statement in mixture(FIVE, COMMITS):
            db.execute(statement)
        with listener(lake.settings, tmp_path) as running:
            # one that is stopped in the middle of it ends all the same, and another goes on
            eventually(lambda: lake.sql("SELECT FROM chain LIMIT 1"), 20, lambda: running.said)
            running.stop()
            assert running.process.returncode == 0
        assert not listeners.caught_up(lake)
        with listener(lake.settings, tmp_path) as running:
            began = time.monotonic()
            wait_until_caught_up(lake, 90)
            took = time.monotonic() - began
            # by then some have done all, so that it has little to say
            assert "catching up" in running.said or took < 2 * PROGRESS_SECONDS, running.said
            listed = assert_all_on_storage(lake, Bucket(lake.settings), db, most=4)
        assert sum(map(len, listed.values())) == COMMITS


def test_a_burst_of_commits_yields_fewer_metadata_files_than_commits(tmp_path: Path) -> None:
    with lakes.lake() as lake, servers.server(lake.settings, tmp_path) as server, lake.duckdb() as db:
        db.execute("CREATE TABLE t(i INTEGER)")
        made, deadline = 0, time.monotonic() + 10
        while time.monotonic() < deadline:
            db.execute(f"INSERT INTO t VALUES ({made})")
            made += 1
        wait_until_caught_up(lake, 60)
        listed = assert_all_on_storage(lake, Bucket(lake.settings), db, most=10)
        assert len(listed["main.t"]) == made > 50
        assert versions(lake, "t") < made
        assert ids(load(server)) == listed["main.t"]


def test_a_listener_materialises_only_the_tables_that_changed(tmp_path: Path) -> None:
    """Among many tables, and after a takeover, too: who begins knows up to where all was done."""
    with lakes.lake() as lake, lake.duckdb() as db:
        for n in range(20):
            db.execute(f"CREATE TABLE still_{n} AS SELECT 1 AS i")
        db.execute("CREATE TABLE moving(i INTEGER); CREATE TABLE dropped(i INTEGER)")
        for _ in range(2):
            with servers.server(lake.settings, tmp_path) as server:
                wait_until_caught_up(lake, 30)
                before, made = lake.sql("SELECT table_id, made_at FROM chain"), metrics(server)
                db.execute("INSERT INTO moving VALUES (1); INSERT INTO moving VALUES (2)")
                db.execute("CREATE TABLE IF NOT EXISTS fresh(i INTEGER); DROP TABLE IF EXISTS dropped")
                wait_until_caught_up(lake, 30)
                eventually(lambda: versions(lake, "fresh") > 0, 5)
                others = "SELECT table_id, made_at FROM chain WHERE table_id <> %s"
                assert set(lake.sql(others, table_id(lake, "moving"))) <= set(before)
                grown = metrics(server)["mergus_listener_made_total", ()] - made["mergus_listener_made_total", ()]
                # the one that moves, at most once for each commit, and the new one
                assert 1 <= grown <= 4


def connections(lake: TestLake) -> int:
    query = """SELECT count(*) FROM pg_stat_activity
               WHERE application_name LIKE 'mergus%' AND datname = current_database()"""
    ((found,),) = lake.sql(query)
    return found


def test_a_commit_to_many_tables_does_not_exceed_the_connection_pool(tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(50)]
    with lakes.lake() as lake, servers.server(lake.settings, tmp_path) as server, lake.duckdb() as db:
        most, looks = 0, 0
        with ThreadPoolExecutor(1) as pool:

            def commit() -> None:
                db.execute("BEGIN; " + "; ".join(f"CREATE TABLE {t}(i INTEGER)" for t in names) + "; COMMIT")
                db.execute("BEGIN; " + "; ".join(f"INSERT INTO {t} VALUES (1)" for t in names) + "; COMMIT")
                for n, name in enumerate(names):
                    rows = "VALUES (2)" if n % 2 else "SELECT range FROM range(30)"
                    db.execute(f"INSERT INTO {name} {rows}")

            work = pool.submit(commit)
            while not work.done() or not listeners.caught_up(lake):
                most, looks = max(most, connections(lake)), looks + 1
                assert looks < 2000, how_far(lake)
                time.sleep(0.02)
            work.result()
        # one that looks whether anything is new, and the listener's own
        assert 2 < most <= lake.settings.pool_max + 2
        listed = assert_all_on_storage(lake, Bucket(lake.settings), db)
        assert [len(listed[f"main.{name}"]) for name in names] == [2] * 50
        assert status(server)["last-report"]["made"] >= 50


def test_a_listener_materialises_the_results_of_maintenance_without_a_request(tmp_path: Path) -> None:
    with lakes.lake() as lake, listener(lake.settings, tmp_path), lake.duckdb() as db:
        bucket = Bucket(lake.settings)

        def followed() -> list[int]:
            wait_until_caught_up(lake, 20)
            return assert_all_on_storage(lake, bucket, db)["main.t"]

        db.execute("CREATE TABLE t(i INTEGER, s VARCHAR); CREATE TABLE other(i INTEGER)")
        for n in range(4):
            db.execute(f"INSERT INTO t SELECT range, 'file' FROM range({n * 100}, {n * 100 + 40})")
            db.execute(f"INSERT INTO t VALUES ({n}, 'inlined'); INSERT INTO other VALUES ({n})")
        before = followed()
        assert len(before) == 8
        db.execute("CALL ducklake_flush_inlined_data('lake')")
        flushed = followed()
        assert flushed[:-1] == before
        db.execute("CALL ducklake_merge_adjacent_files('lake')")
        merged = followed()
        assert merged[:-1] == flushed
        # what was merged is only in the merged file now, for older snapshots too
        db.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
        assert followed() == merged
        expired = merged[1:3]
        db.execute(f"CALL ducklake_expire_snapshots('lake', versions => {expired})")
        left = followed()
        assert not set(left) & set(expired)
        assert set(merged) - set(expired) <= set(left)
        db.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true); INSERT INTO t VALUES (9, 'last')")
        assert followed()[:-1] == left


def work_done(server: Server) -> tuple[float, float]:
    """Tables that it has read from Postgres, and objects that it has written."""
    found = metrics(server)
    reads = found.get(("mergus_stage_seconds_count", (("stage", "read"),)), 0.0)
    return reads, found.get(("mergus_object_requests_total", (("method", "put"),)), 0.0)


def settle(server: Server) -> tuple[float, float]:
    """What it has done when it has nothing more to do for a while."""
    seen, since = work_done(server), time.monotonic()
    while time.monotonic() < since + 0.6:
        time.sleep(0.05)
        if (now := work_done(server)) != seen:
            seen, since = now, time.monotonic()
    return seen


def test_a_server_that_is_not_the_leader_keeps_requested_tables_cached(tmp_path: Path) -> None:
    with (
        lakes.lake() as lake,
        servers.server(lake.settings, tmp_path, wait=False) as one,
        servers.server(lake.settings, tmp_path) as two,
        lake.duckdb() as db,
    ):
        one.wait_ready()
        eventually(lambda: listeners.sessions(lake) == 2 and leader(lake), 20)
        follows = next(s for s in (one, two) if not str(leader(lake)).endswith(f":{s.process.pid}"))
        db.execute("CREATE TABLE t(i INTEGER); CREATE TABLE unasked(i INTEGER)")
        for server in (one, two):
            load(server)
        for n in range(1, 6):
            before = work_done(follows)
            db.execute(f"INSERT INTO t VALUES ({n})")
            wait_until_caught_up(lake, 10)
            eventually(lambda b=before: work_done(follows)[0] > b[0], 5)
            settled = settle(follows)
            metadata = load(follows)
            assert metadata["current-snapshot-id"] == listeners.head(lake)
            assert len(metadata["snapshots"]) == n
            assert work_done(follows) == settled, "the load had nothing to do"
        # of what nobody asks it for it makes nothing
        before = settle(follows)
        db.execute("INSERT INTO unasked VALUES (1)")
        wait_until_caught_up(lake, 10)
        assert settle(follows) == before


def test_the_next_load_after_a_commit_shows_it_while_listeners_run(tmp_path: Path) -> None:
    with (
        lakes.lake() as lake,
        servers.server(lake.settings, tmp_path, wait=False) as one,
        servers.server(lake.settings, tmp_path, workers=2) as two,
        lake.duckdb() as db,
    ):
        one.wait_ready()
        eventually(lambda: listeners.sessions(lake) == 3 and leader(lake), 20)
        db.execute("CREATE TABLE t(i INTEGER)")
        for n in range(1, 41):
            db.execute(f"INSERT INTO t VALUES ({n})" if n % 5 else f"UPDATE t SET i = -i WHERE i > {n - 5}")
            for server in (one, two) if n % 2 else (two, one):
                metadata = load(server)
                assert metadata["current-snapshot-id"] == listeners.head(lake)
                assert len(metadata["snapshots"]) == n
            if n % 10 == 0:
                wait_until_caught_up(lake, 10)
        wait_until_caught_up(lake, 10)
        assert_all_on_storage(lake, Bucket(lake.settings), db, most=10)


def test_a_server_without_a_listener_materialises_only_requested_tables(tmp_path: Path) -> None:
    with lakes.lake(listener="off") as lake, servers.server(lake.settings, tmp_path) as server, lake.duckdb() as db:
        db.execute("CREATE TABLE t(i INTEGER); CREATE TABLE other(i INTEGER)")
        lags: list[dict[str, float]] = []
        asked: list[float] = []
        answered: list[float] = []
        for n in range(3):
            db.execute(f"INSERT INTO t VALUES ({n}); INSERT INTO other VALUES ({n})")
            if n == 2:
                # a listener, if there were one, would do something at each beat
                time.sleep(BEAT + 0.1)
            asked.append(time.monotonic())
            said = status(server)
            answered.append(time.monotonic())
            assert (said["leader"], said["done"]) == (None, None)
            lags.append(said["lag"])
            assert metrics(server)["mergus_listener_led", ()] == 0
            assert lake.sql("SELECT FROM metadata_file WHERE table_id = %s", table_id(lake, "other")) == []
            # what is loaded is shown all the same
            assert len(load(server)["snapshots"]) == n + 1
        assert [lag["snapshots"] for lag in lags] == [5, 7, 9]
        grown = lags[2]["seconds"] - lags[0]["seconds"]
        # it is rounded, and by the clock of Postgres
        assert asked[2] - answered[0] - 0.01 < grown < answered[2] - asked[0] + 0.01
        assert_all_on_storage(lake, Bucket(lake.settings), db, ["main.t"])
