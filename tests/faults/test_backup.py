"""Backup and restore as OPERATIONS.md tells it, with its own commands: a dump of Postgres, and objects as they are.

What is restored is what was backed up, at every snapshot, on both sides, whatever became of the objects that can be
made again; and nothing of the future that is lost shows up, however many numbers come again.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

from mergus.config import Settings, variable
from mergus.embedded.postgres import programs
from mergus.serve import environment
from tests.support import lakes, loads, servers, views
from tests.support.access import Guarded, guarded
from tests.support.lakes import TestLake
from tests.support.listeners import assert_all_on_storage, eventually, head, wait_until_caught_up
from tests.support.loads import Bucket, in_order
from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
STEPS = re.compile(r"^```sh\n# (\d)\..*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
# what OPERATIONS.md says can be made again
MADE_AGAIN = re.compile(r"/metadata/[^/]*$|/data/(rows|deletes)-[^/]*$")

Rows = list[tuple[Any, ...]]


def runbook() -> dict[int, str]:
    """The numbered steps of OPERATIONS.md, as a shell would get them."""
    text = (ROOT / "OPERATIONS.md").read_text()
    return {int(number): commands for number, commands in STEPS.findall(text)}


def name_of(lake: TestLake) -> str:
    return str(conninfo_to_dict(lake.settings.dsn)["dbname"])


def run_step(lake: TestLake, folder: Path, number: int, *, of: str = "", more: str = "") -> str:
    """One step (or the lines of it that begin so), on this lake. `more` goes to `mergus restored`."""
    name = name_of(lake)
    commands = runbook()[number].replace("lake RENAME TO lake_before", f"{name} RENAME TO {name}_before")
    commands = re.sub(r"mergus restored.*", f"mergus restored {more}", commands)
    wanted = "\n".join(line for line in commands.splitlines() if line.startswith(of))
    assert wanted, commands
    known = {variable(name) for name in Settings.model_fields}
    env = {name: value for name, value in os.environ.items() if name not in known} | environment(lake.settings)
    env["PATH"] = os.pathsep.join((str(programs()), str(Path(sys.executable).parent), env["PATH"]))
    env["SUPERUSER_DSN"] = lake.superuser_dsn
    env["ADMIN_DSN"] = make_conninfo(lakes.backend_settings().dsn, dbname="postgres")
    done = subprocess.run(["bash", "-euc", wanted], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{wanted}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def backed_up(lake: TestLake, folder: Path) -> Iterator[None]:
    """A dump is there; the database that it is restored over goes at the end."""
    run_step(lake, folder, 1)
    try:
        yield
    finally:
        with psycopg.connect(lakes.backend_settings().dsn, autocommit=True) as admin:
            old = sql.Identifier(f"{name_of(lake)}_before")
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(old))


def restore(lake: TestLake, folder: Path, more: str = "") -> str:
    with psycopg.connect(lakes.backend_settings().dsn, autocommit=True) as admin:
        # sessions of processes that have ended may linger for a moment
        ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s"
        admin.execute(ended, (name_of(lake),))
    run_step(lake, folder, 3)
    return run_step(lake, folder, 5, of="mergus restored", more=more)


def fill(lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection) -> None:
    """Something of everything, by both sides."""
    for statement in (
        "CREATE SCHEMA s; CREATE TABLE s.files AS SELECT range AS i, 'file' AS s FROM range(40)",
        "DELETE FROM s.files WHERE i % 7 = 1",
        "UPDATE s.files SET s = 'changed' WHERE i < 10",
        "INSERT INTO s.files SELECT range, 'more' FROM range(100, 140)",
        "CREATE TABLE s.small(i INTEGER, s VARCHAR)",
        "INSERT INTO s.small VALUES (1, 'inlined'), (2, 'inlined')",
        "INSERT INTO s.small VALUES (3, 'inlined')",
        "DELETE FROM s.small WHERE i = 2",
        "ALTER TABLE s.small ADD COLUMN added DATE",
        "INSERT INTO s.small VALUES (4, 'inlined', DATE '2026-01-31')",
        "CREATE VIEW s.seen AS SELECT i FROM s.files WHERE i > 5",
        "CREATE TABLE s.gone AS SELECT 1 AS i; DROP TABLE s.gone",
    ):
        db.execute(statement)
    catalog = loads.catalog(lake.settings, server)
    made = catalog.create_table(("s", "theirs"), pa.schema([("i", pa.int64()), ("s", pa.string())]))
    for first in (0, 10):
        made.append(pa.table({"i": range(first, first + 5), "s": ["theirs"] * 5}))
    made.delete("i = 3")
    made.manage_snapshots().create_tag(made.snapshots()[0].snapshot_id, "first").commit()
    with made.transaction() as change:
        change.set_properties(owner="them")
    db.execute("DELETE FROM s.theirs WHERE i = 11")
    db.execute("INSERT INTO s.theirs VALUES (20, 'inlined')")
    catalog.load_table(("s", "small")).append(pa.table({"i": pa.array([5], pa.int32()), "s": ["theirs"]}))
    catalog.update_namespace_properties("s", updates={"purpose": "tests"})
    views.create(server, "s", "spark", spark="SELECT i, s FROM files")
    assert server.http.post("/v1/lake/admin/tags", json={"name": "before"}).status_code == 200


TABLES = ("files", "small", "theirs")


def known_to_duckdb(lake: TestLake) -> dict[tuple[str, int], Rows]:
    """Rows of every table at some snapshots and the last, asked in a session that is new to the lake."""
    found: dict[tuple[str, int], Rows] = {}
    with lake.duckdb() as db:
        for at, *_ in reversed(lake.snapshots()[::-5]):
            for table in TABLES:
                try:
                    answer = db.execute(f"SELECT * FROM s.{table} AT (VERSION => {at})")
                except duckdb.CatalogException:
                    continue
                found[table, at] = in_order(answer.fetchall())
    return found


def known_to_clients(server: Server) -> dict[str, Any]:
    """What a client is told, but for what is in summaries: how many files, and rows with those that are deleted,
    depends on which snapshots were made one after the other."""
    left_out = {"metadata-log", "last-updated-ms", "snapshots"}
    found: dict[str, Any] = {}
    for table in TABLES:
        metadata = loads.load(server, table, "s")
        found[table] = {key: value for key, value in metadata.items() if key not in left_out}
        found[f"snapshots of {table}"] = [
            (s["snapshot-id"], s["timestamp-ms"], s.get("parent-snapshot-id"), s["summary"]["ducklake.snapshot-id"])
            for s in metadata["snapshots"]
        ]
    for view in ("seen", "spark"):
        found[view] = views.load(server, "s", view)["versions"]
    found["namespace"] = server.http.get(server.path("s")).json()
    found["tags"] = server.http.get("/v1/lake/admin/tags").json()
    found["names"] = server.http.get(f"{server.path('s')}/tables").json()["identifiers"]
    return found


def assert_all_readable(lake: TestLake, server: Server, most: int = 1000) -> None:
    """At every snapshot, or at so many."""
    with lake.duckdb() as db:
        for table in TABLES:
            loads.assert_readable(lake, server, db, table, "s", most)


def assert_tagged_readable(lake: TestLake, server: Server) -> None:
    """The whole lake as it was at its tag."""
    ((at,),) = lake.sql("SELECT snapshot_id FROM catalog_tag WHERE name = 'before'")
    properties = loads.s3_properties(lake.settings)
    past = load_catalog("past", type="rest", uri=server.uri, warehouse="lake@before", **properties)
    with lake.duckdb() as db:
        for table in TABLES:
            wanted = db.execute(f"SELECT * FROM s.{table} AT (VERSION => {at})").fetchall()
            assert loads.rows(past.load_table(("s", table)).scan().to_arrow()) == in_order(wanted)


def precious(lake: TestLake, bucket: Bucket) -> tuple[set[str], set[str]]:
    """The objects of a lake that must be kept, and those that need not."""
    assert lake.settings.data_path is not None
    root = lake.settings.data_path.removesuffix("/")
    made = {a for a in bucket.below(f"{root}-iceberg/") if MADE_AGAIN.search(a)}
    return {*bucket.below(root)} - made, made


def test_a_restore_from_the_postgres_dump_and_the_data_files_recovers_everything(tmp_path: Path) -> None:
    """All that can be made again is lost, with the server's own directory; and the lake has roles."""
    with lakes.lake(True) as lake, lake.duckdb() as db:
        bucket = Bucket(lake.settings)
        with servers.server(lake.settings, tmp_path, state_dir=tmp_path / "state") as server:
            fill(lake, server, db)
            wait_until_caught_up(lake, 20)
            told = known_to_clients(server)
            Guarded(lake, server, server).client("reader", "table:s.files:read")
        db.close()
        before = known_to_duckdb(lake)
        with backed_up(lake, tmp_path):
            kept, lost = precious(lake, bucket)
            assert any("/data/rows-" in address for address in lost)
            assert any("/data/deletes-" in address for address in lost)
            for address in lost:
                bucket.delete(address)
            restore(lake, tmp_path, "--objects --skip 0")
            assert "FAIL" not in run_step(lake, tmp_path, 5, of="mergus doctor")
            assert known_to_duckdb(lake) == before
            with servers.server(lake.settings, tmp_path, state_dir=tmp_path / "another") as server:
                assert known_to_clients(server) == told
                assert_all_readable(lake, server)
                assert_tagged_readable(lake, server)
                for view in ("seen", "spark"):
                    where = views.get(server, "s", view).json()["metadata-location"]
                    eventually(lambda where=where: bucket.has(where), 10, lambda where=where: where)
                wait_until_caught_up(lake, 20)
                with lake.duckdb() as session:
                    assert_all_on_storage(lake, bucket, session, ["s.files"])
                    session.execute("INSERT INTO s.small VALUES (6, 'after', NULL)")
                    loads.catalog(lake.settings, server).load_table(("s", "theirs")).append(
                        pa.table({"i": [30], "s": ["after"]})
                    )
                assert_all_readable(lake, server, 2)
            with guarded(lake, tmp_path) as asked:
                reader = asked.with_token(asked.token("reader"))
                assert [loads.get(reader, t, "s").status_code for t in ("files", "small")] == [200, 404]
        assert kept <= set(bucket.below(lake.settings.data_path or "")) | precious(lake, bucket)[0]
        assert_roles_hold(lake)


def assert_roles_hold(lake: TestLake) -> None:
    """Owners, rights and the event trigger have come back with the database."""
    assert lake.roles is not None
    owners = lake.sql("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname IN ('public', 'mergus')")
    assert {owner for (owner,) in owners} <= set(astuple(lake.roles))
    as_writer = lake.as_role(lake.roles.writer)
    with psycopg.connect(as_writer.dsn, autocommit=True) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT FROM mergus.client")
        with pytest.raises(psycopg.Error, match="inlined"):
            conn.execute("CREATE TABLE public.mine(i INTEGER)")


def lose_a_future(lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection) -> None:
    """Commits of both sides that no backup knows. `files` is changed here and not again after."""
    for statement in (
        "INSERT INTO s.files SELECT range, 'lost' FROM range(200, 230)",
        "DELETE FROM s.files WHERE i < 5",
        "INSERT INTO s.small VALUES (7, 'lost', NULL)",
        "CALL ducklake_flush_inlined_data('lake')",
        "ALTER TABLE s.small ADD COLUMN lost INTEGER",
        "CREATE TABLE s.lost AS SELECT 1 AS i",
        "CALL ducklake_merge_adjacent_files('lake')",
        "CALL ducklake_expire_snapshots('lake', older_than => now())",
        # as OPERATIONS.md says: what a backup may need is kept
        "CALL ducklake_cleanup_old_files('lake', older_than => now() - INTERVAL 30 DAY)",
    ):
        db.execute(statement)
    theirs = loads.catalog(lake.settings, server).load_table(("s", "theirs"))
    theirs.append(pa.table({"i": [40], "s": ["lost"]}))
    theirs.delete("i = 1")
    assert server.http.post("/v1/lake/admin/tags", json={"name": "lost"}).status_code == 200


def go_on(lake: TestLake, server: Server, upto: int) -> None:
    """Until numbers of snapshots and files have come again that others had."""
    catalog = loads.catalog(lake.settings, server)
    with lake.duckdb() as db:
        db.execute("CREATE TABLE s.instead AS SELECT 'instead' AS s")
        db.execute("ALTER TABLE s.small ADD COLUMN instead VARCHAR")
        while head(lake) <= upto:
            db.execute("INSERT INTO s.small VALUES (8, 'instead', NULL, 'instead')")
            db.execute("INSERT INTO s.theirs SELECT range, 'instead' FROM range(300, 320)")
            catalog.load_table(("s", "theirs")).append(pa.table({"i": [50], "s": ["instead"]}))
            db.execute("DELETE FROM s.theirs WHERE i % 10 = 5")


def test_an_older_dump_restored_beside_newer_objects_serves_the_state_of_the_dump(tmp_path: Path) -> None:
    with lakes.lake() as lake, lake.duckdb() as db:
        bucket = Bucket(lake.settings)
        with servers.server(lake.settings, tmp_path) as server:
            fill(lake, server, db)
            wait_until_caught_up(lake, 20)
            told, kept = known_to_clients(server), head(lake)
            before = known_to_duckdb(lake)
            with backed_up(lake, tmp_path):
                lose_a_future(lake, server, db)
                wait_until_caught_up(lake, 20)
                lost = head(lake)
                hints = [f"{told[table]['location']}/metadata/version-hint.text" for table in TABLES]
                astray = [bucket.get(hint) for hint in hints]
                db.close()
                server.process.terminate()
                server.process.wait(30)
                restore(lake, tmp_path, "--skip 0")
        assert head(lake) == kept
        assert known_to_duckdb(lake) == before
        with servers.server(lake.settings, tmp_path) as server:
            # nobody asks for anything
            wait_until_caught_up(lake, 20)
            assert all(bucket.get(hint) != old for hint, old in zip(hints, astray, strict=True))
            with lake.duckdb() as session:
                assert_all_on_storage(lake, bucket, session, ["s.files"])
            assert known_to_clients(server) == told
            assert_all_readable(lake, server)
            go_on(lake, server, lost + 3)
            with lake.duckdb() as session:
                orphans = session.execute("CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)").fetchall()
                assert orphans
                assert not any("-iceberg/" in path for (path,) in orphans)
            assert_all_readable(lake, server)
        with servers.server(lake.settings, tmp_path) as server:
            assert_all_readable(lake, server, 4)


def test_clients_that_saw_lost_snapshots_cannot_damage_the_restored_lake(tmp_path: Path) -> None:
    """A client that goes on where it was would find the number of its snapshot again, with other rows, and take them
    away; a DuckDB session, that of the schema, with other columns. Such numbers are left out."""
    with lakes.lake() as lake, lake.duckdb() as db:
        db.execute("CREATE TABLE t(i BIGINT, s VARCHAR); CREATE TABLE u(i INTEGER)")
        for text in ("kept", "kept, too"):
            db.execute(f"INSERT INTO t SELECT range, '{text}' FROM range(20)")
        with backed_up(lake, tmp_path):
            # a whole file, so that what a client makes of it names nothing that is lost
            db.execute("DELETE FROM t WHERE s = 'kept, too'; ALTER TABLE u ADD COLUMN lost INTEGER")
            with servers.server(lake.settings, tmp_path) as server:
                stale = loads.catalog(lake.settings, server).load_table("main.t")
            assert db.execute("SELECT * FROM u").fetchall() == []
            said = restore(lake, tmp_path)
        assert f"the lake goes on after {head(lake)}" in said
        with servers.server(lake.settings, tmp_path) as server, lake.duckdb() as session:
            stale.catalog = loads.catalog(lake.settings, server)
            stale.metadata.properties["commit.retry.num-retries"] = "0"
            session.execute("INSERT INTO t SELECT range, 'instead' FROM range(100, 120)")
            session.execute("ALTER TABLE u ADD COLUMN instead VARCHAR; INSERT INTO u VALUES (1, 'instead')")
            with pytest.raises(CommitFailedException):
                stale.delete("i = 1")
            assert stale.refresh().scan().to_arrow().num_rows == 60
            stale.delete("i = 1")
            loads.assert_readable(lake, server, session)
            loads.assert_readable(lake, server, session, "u")
            assert session.execute("SELECT count(*) FROM t").fetchall() == [(58,)]
            assert session.execute("SELECT * FROM u").fetchall() == [(1, "instead")]
        # the session that saw the column which is lost
        assert db.execute("SELECT * FROM u").fetchall() == [(1, "instead")]


def test_mergus_restored_skips_snapshot_ids_only_while_no_other_session_is_connected(tmp_path: Path) -> None:
    with lakes.lake() as lake, lake.duckdb() as db:
        db.execute("CREATE TABLE t(i INTEGER)")
        snapshots = lake.snapshots()
        with pytest.raises(AssertionError, match="others are connected"):
            run_step(lake, tmp_path, 5, of="mergus restored")
        assert lake.snapshots() == snapshots
        run_step(lake, tmp_path, 5, of="mergus restored", more="--skip 0")
        assert lake.snapshots() == snapshots
