"""The roles of `mergus roles`, as OPERATIONS.md has an administrator make them: what each can do then, and cannot."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
import pytest
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr
from pyiceberg.types import StringType

from mergus import doctor
from mergus.annex import migrate
from mergus.annex.roles import Roles, current, event_trigger, script
from mergus.config import Settings
from mergus.ducklake import session
from mergus.ducklake.connect import connect
from mergus.errors import SetupError
from mergus.serve import environment
from mergus.setup import initialise, uninitialise
from tests.support import lakes, listeners, loads, servers
from tests.support.lakes import PASSWORD, Row, TestLake, quiet
from tests.support.servers import Server


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    with lakes.lake(True) as made:
        made.sql("INSERT INTO namespace_property VALUES (0, 'secret', 'of the server')")
        with made.duckdb() as db:
            db.execute("CREATE TABLE shared(i INTEGER, s VARCHAR)")
            db.execute("INSERT INTO shared VALUES (1, 'inlined')")
            db.execute("INSERT INTO shared SELECT range, 'file' FROM range(40)")
        yield made


def named(lake: TestLake) -> Roles:
    assert lake.roles is not None
    return lake.roles


def ask(settings: Settings, query: str, *args: object) -> list[Row]:
    """As a session of psql's would, with Postgres's own search path."""
    with psycopg.connect(settings.dsn, autocommit=True) as conn:
        cursor = conn.execute(query.encode(), args or None)
        return cursor.fetchall() if cursor.description else []


def table_names(lake: TestLake, schema: str) -> list[str]:
    found = lake.sql("SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'", schema)
    return sorted(name for (name,) in found)


# --- what the script is


def test_mergus_roles_quotes_any_role_and_schema_name() -> None:
    odd = {"owner": "Own\"er's", "server": "$mergus$; DROP", "writer": "back\\slash {lake} %s", "reader": "ünï:cödé"}
    with lakes.lake(metadata_schema="od\"d On'e") as made:
        command = [sys.executable, "-m", "mergus", "roles"]
        command += [part for name, role in odd.items() for part in (f"--{name}", role)]
        env = {**os.environ, **environment(made.settings)}
        printed = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout
        roles = Roles(**odd)
        assert printed == script(made.settings, roles)
        try:
            # twice: it is for running again, too
            for _ in range(2):
                made.sql(printed)
            for role in odd.values():
                made.sql(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), PASSWORD).as_string(None))
            writing = session.attach(made.as_role(roles.writer))
            writing.execute("CREATE TABLE t AS SELECT 1 AS i")
            reading = session.attach(made.as_role(roles.reader), read_only=True)
            assert reading.execute("SELECT i FROM t").fetchall() == [(1,)]
            with connect(made.as_role(roles.server)) as conn:
                assert current(conn, made.settings).lacks == ()
            reading.close()
            writing.close()
        finally:
            for role in astuple(roles):
                made.sql(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(role)).as_string(None))
            for role in astuple(roles):
                made.sql(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)).as_string(None))


def test_the_roles_script_is_refused_without_a_lake_and_creates_no_role() -> None:
    with lakes.database() as dsn:
        settings = lakes.settings_for(dsn)
        with pytest.raises(errors.RaiseException, match="has no DuckLake in schema public"):
            TestLake(settings).sql(script(settings, Roles("never_o", "never_s", "never_w", "never_r")))
        assert ask(settings, "SELECT FROM pg_roles WHERE rolname LIKE 'never%'") == []
    with pytest.raises(SetupError, match="four roles"):
        script(settings, Roles("a", "b", "a", "c"))
    with pytest.raises(SetupError, match="1 to 63 bytes"):
        script(settings, Roles("a", "b", "c", "d" * 64))


def test_every_table_of_the_lake_has_the_intended_owner(lake: TestLake) -> None:
    roles = named(lake)
    owners = dict(
        lake.sql(
            "SELECT relname, pg_get_userbyid(relowner) FROM pg_class "
            "WHERE relnamespace IN ('public'::regnamespace, 'mergus'::regnamespace) AND relkind = 'r'"
        )
    )
    assert {name for name, owner in owners.items() if owner == roles.writer} == {
        name for name in owners if name.startswith("ducklake_inlined_")
    }
    assert {name for name in owners if name.startswith("ducklake_inlined_data_")} > {"ducklake_inlined_data_tables"}
    assert set(owners.values()) == {roles.writer, roles.owner}
    definers = lake.sql(
        "SELECT proname, pg_get_userbyid(proowner), proconfig IS NOT NULL, has_function_privilege(%s, oid, 'EXECUTE') "
        "FROM pg_proc WHERE pronamespace = 'mergus'::regnamespace AND prosecdef",
        roles.writer,
    )
    assert {name for name, *_ in definers} == {"raise_epoch", "keep_shared_files"}
    assert {tuple(rest) for _, *rest in definers} == {(roles.owner, True, False)}


@pytest.mark.parametrize("role", ["owner", "server", "writer", "reader"])
def test_no_role_has_superfluous_attributes(lake: TestLake, role: str) -> None:
    name = getattr(named(lake), role)
    settings = lake.as_role(name)
    ((*attributes, signals),) = ask(
        settings,
        "SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls, "
        "pg_has_role(current_user, 'pg_signal_backend', 'MEMBER') FROM pg_roles WHERE rolname = current_user",
    )
    assert attributes == [False] * 5
    assert not signals
    with pytest.raises(errors.InsufficientPrivilege):
        ask(settings, "CREATE DATABASE other")
    with pytest.raises(errors.InsufficientPrivilege):
        ask(settings, "CREATE SCHEMA other")
    with pytest.raises(errors.InsufficientPrivilege):
        ask(settings, "SELECT pg_read_file('PG_VERSION')")


# --- the writer


def test_a_writer_can_neither_read_nor_change_the_tables_of_mergus(lake: TestLake) -> None:
    settings, ours = lake.of_writers, table_names(lake, "mergus")
    assert {"catalog", "namespace_property", "migration"} <= set(ours)
    before = lake.sql("SELECT token_key FROM catalog")
    for table in ours:
        for statement in (
            f"SELECT * FROM mergus.{table}",
            f"DELETE FROM mergus.{table}",
            f"INSERT INTO mergus.{table} DEFAULT VALUES",
            f"DROP TABLE mergus.{table}",
            f"GRANT SELECT ON mergus.{table} TO PUBLIC",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                ask(settings, statement)
    with pytest.raises(errors.InsufficientPrivilege):
        ask(settings, "UPDATE mergus.catalog SET token_key = '\\x00'")
    with pytest.raises(errors.InsufficientPrivilege):
        ask(settings, "CREATE TABLE mergus.mine (i int)")
    assert lake.sql("SELECT token_key FROM catalog") == before


def test_a_writer_cannot_disable_the_triggers_on_commits(lake: TestLake) -> None:
    settings = lake.of_writers
    triggers = {name: when.split(" ON ")[1].split()[0] for name, when, _ in migrate.TRIGGERS}
    for name, table in triggers.items():
        for statement in (
            f"DROP TRIGGER {name} ON {table}",
            f"ALTER TABLE {table} DISABLE TRIGGER {name}",
            f"ALTER TABLE {table} DISABLE TRIGGER ALL",
            f"DROP TABLE {table}",
            f"TRUNCATE {table}",
            f"ALTER TABLE {table} RENAME TO gone",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                ask(settings, statement)
    for statement in (
        "SET session_replication_role = replica",
        "DROP FUNCTION mergus.raise_epoch() CASCADE",
        f"DROP EVENT TRIGGER {event_trigger(lake.settings)}",
        f"ALTER EVENT TRIGGER {event_trigger(lake.settings)} DISABLE",
        "DROP INDEX mergus_schema_name",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            ask(settings, statement)
    with connect(lake.settings) as conn:
        assert migrate.pending(conn, lake.settings) == []


# Each would run with the rights of a server that looks at the lake, or stand where one looks.
TRAPS = {
    "a function that statements of ours would call": (
        "CREATE FUNCTION public.lower(varchar) RETURNS text LANGUAGE sql AS $$ SELECT $1::text $$"
    ),
    "one in another language": "CREATE FUNCTION public.f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$",
    "an operator": "CREATE OPERATOR public.=== (LEFTARG = text, RIGHTARG = text, FUNCTION = texteq)",
    "a type": "CREATE TYPE public.mine AS (i int)",
    "a domain": "CREATE DOMAIN public.mine AS int CHECK (query_to_xml('SELECT 1', true, true, '') IS NOT NULL)",
    "a view for a table": (
        "CREATE VIEW ducklake_inlined_data_99_1 AS "
        "SELECT query_to_xml('SELECT token_key FROM mergus.catalog', true, true, '')::text AS s"
    ),
    "a table from a query": "CREATE TABLE ducklake_inlined_data_99_1 AS SELECT 1 AS i",
    "a table of another name": "CREATE TABLE mine (i int)",
    "a temporary view": "CREATE TEMPORARY VIEW ducklake_inlined_data_99_1 AS SELECT 1 AS i",
    "a temporary function": "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$",
    "an unlogged one": "CREATE UNLOGGED TABLE ducklake_inlined_data_99_1 (i int)",
    "a check": "CREATE TABLE ducklake_inlined_data_99_1 (i int CHECK (i > 0))",
    "a default": "CREATE TABLE ducklake_inlined_data_99_1 (i int DEFAULT random())",
    "a generated column": "CREATE TABLE ducklake_inlined_data_99_1 (i int, j int GENERATED ALWAYS AS (i + 1) STORED)",
    "an identity": "CREATE TABLE ducklake_inlined_data_99_1 (i int GENERATED ALWAYS AS IDENTITY)",
    "a child": "CREATE TABLE ducklake_inlined_data_99_1 () INHERITS (ducklake_inlined_data_tables)",
    "partitions": "CREATE TABLE ducklake_inlined_data_99_1 (i int) PARTITION BY RANGE (i)",
    "a key": "CREATE TABLE ducklake_inlined_data_99_1 (i int PRIMARY KEY)",
    "a rule": "CREATE RULE r AS ON INSERT TO ducklake_inlined_data_tables DO ALSO NOTHING",
    "a trigger": (
        "CREATE TRIGGER t BEFORE UPDATE ON ducklake_inlined_data_tables "
        "FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    ),
    "a policy": "CREATE POLICY p ON ducklake_inlined_data_tables USING (true)",
    "row security": "ALTER TABLE ducklake_inlined_data_tables ENABLE ROW LEVEL SECURITY",
    "a column more": "ALTER TABLE ducklake_inlined_data_tables ADD COLUMN i int DEFAULT random()",
    "an index": "CREATE INDEX i ON ducklake_inlined_data_tables ((table_id + 1))",
    "rights for others": "GRANT ALL ON ducklake_inlined_data_tables TO PUBLIC",
    "rights for others, later": "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC",
}


@pytest.mark.parametrize("statement", TRAPS.values(), ids=TRAPS)
def test_a_writer_can_make_nothing_that_would_run_as_the_server(lake: TestLake, statement: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        ask(lake.of_writers, statement)
    # and so can nobody who is let in through its door
    with pytest.raises(errors.InsufficientPrivilege):
        ask(lake.settings, statement)


def test_a_writer_can_set_ducklake_options(lake: TestLake) -> None:
    """An option that is set again is updated, for which DuckDB's postgres extension makes a temporary table."""
    with lake.duckdb() as db:
        for value in ("zstd", "snappy"):
            db.execute(f"CALL lake.set_option('parquet_compression', '{value}')")
    assert lake.sql("SELECT value FROM ducklake_metadata WHERE key = 'parquet_compression'") == [("snappy",)]


def test_the_event_trigger_does_not_restrict_other_roles(lake: TestLake) -> None:
    """What the event trigger refuses writers is nothing to the rest of the database."""
    lake.sql("CREATE SCHEMA elsewhere")
    lake.sql("CREATE FUNCTION elsewhere.f() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$")
    assert lake.sql("SELECT elsewhere.f()") == [(1,)]
    lake.sql("DROP SCHEMA elsewhere CASCADE")


def test_a_personal_role_writes_as_a_member_of_the_writer_role(lake: TestLake, server: Server) -> None:
    """As OPERATIONS.md has it: what they make belongs to all writers, who can use and drop it."""
    roles, name = named(lake), f"somebody {conninfo_to_dict(lake.settings.dsn)['dbname']}"
    database = sql.Identifier(str(conninfo_to_dict(lake.settings.dsn)["dbname"]))
    person, writer = sql.Identifier(name), sql.Identifier(roles.writer)
    for statement in (
        sql.SQL("CREATE ROLE {} LOGIN NOINHERIT PASSWORD {} IN ROLE {}").format(person, PASSWORD, writer),
        sql.SQL("ALTER ROLE {} IN DATABASE {} SET role = {}").format(person, database, writer),
    ):
        lake.sql(statement.as_string(None))
    try:
        with session.attach(lake.as_role(name)) as theirs, lake.duckdb() as other:
            theirs.execute("CREATE SCHEMA theirs")
            theirs.execute("CREATE TABLE theirs.t(i INTEGER)")
            theirs.execute("INSERT INTO theirs.t VALUES (1)")
            other.execute("INSERT INTO theirs.t VALUES (2)")
            found = loads.catalog(lake.settings, server).load_table(("theirs", "t"))
            found.append(pa.table({"i": pa.array([3], pa.int32())}))
            other.execute("ALTER TABLE theirs.t ADD COLUMN j INTEGER")
            other.execute("CALL ducklake_flush_inlined_data('lake')")
            assert sorted(theirs.execute("SELECT i FROM theirs.t").fetchall()) == [(1,), (2,), (3,)]
            with pytest.raises(duckdb.Error, match="permission denied"):
                theirs.execute("SELECT * FROM postgres_query('__ducklake_metadata_lake', 'TABLE mergus.catalog')")
        with pytest.raises(errors.InsufficientPrivilege):
            ask(lake.as_role(name), "SET role = none; SELECT * FROM public.ducklake_snapshot")
        with pytest.raises(errors.InsufficientPrivilege):
            ask(lake.as_role(name), "SET role = none; CREATE TABLE public.ducklake_inlined_data_99_1 (i int)")
    finally:
        lake.sql(sql.SQL("DROP ROLE {}").format(person).as_string(None))


def test_the_triggers_fire_for_commits_of_a_writer(lake: TestLake) -> None:
    epoch = lake.sql("SELECT epoch FROM catalog")[0][0]
    with psycopg.connect(lake.settings.dsn, autocommit=True) as listening, lake.duckdb() as db:
        listening.execute(sql.SQL("LISTEN {}").format(sql.Identifier(migrate.channel(lake.settings))))
        db.execute("CREATE TABLE told(i INTEGER)")
        for n in range(3):
            db.execute(f"INSERT INTO told SELECT range + {n} FROM range(40)")
        head = lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")[0][0]
        heard = {int(n.payload) for n in listening.notifies(timeout=2, stop_after=4)}
        assert heard == set(range(head - 3, head + 1))
        db.execute("DELETE FROM told")
        db.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
        assert lake.sql("SELECT epoch FROM catalog")[0][0] == epoch + 1
        assert lake.sql("SELECT count(*) FROM ducklake_files_scheduled_for_deletion") != [(0,)]
        db.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")


# --- the reader


def test_a_reader_reads_the_whole_lake_but_no_table_of_mergus(lake: TestLake) -> None:
    settings = lake.as_role(named(lake).reader)
    with session.attach(settings, read_only=True) as reading, lake.duckdb() as writing:
        assert reading.execute("SELECT count(*) FROM shared").fetchall() == [(41,)]
        # tables for inlined rows that are made later, by whomever
        writing.execute("CREATE TABLE later(i INTEGER)")
        writing.execute("INSERT INTO later VALUES (1)")
        assert reading.execute("SELECT i FROM later").fetchall() == [(1,)]
    for table in table_names(lake, "mergus"):
        with pytest.raises(errors.InsufficientPrivilege):
            ask(settings, f"SELECT * FROM mergus.{table}")


def test_a_reader_cannot_write(lake: TestLake) -> None:
    settings = lake.as_role(named(lake).reader)
    before = lake.snapshots()
    with session.attach(settings) as reading, pytest.raises(duckdb.Error, match="permission denied"):
        # attached for writing, which it may try
        reading.execute("INSERT INTO shared VALUES (2, 'forged')")
    forged = "INSERT INTO ducklake_snapshot SELECT max(snapshot_id) + 1, now(), 0, 0, 0 FROM ducklake_snapshot"
    for statement in (
        forged,
        "DELETE FROM ducklake_snapshot",
        "UPDATE ducklake_table SET end_snapshot = 0",
        "BEGIN; LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE",
        "CREATE TABLE public.ducklake_inlined_data_99_1 (i int)",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            ask(settings, statement)
    with psycopg.connect(lake.settings.dsn) as other, pytest.raises(errors.InsufficientPrivilege):
        ask(settings, "SELECT pg_terminate_backend(%s)", other.info.backend_pid)
    for (table,) in lake.sql("SELECT relname FROM pg_class WHERE relname LIKE 'ducklake\\_inlined\\_data\\_1\\_%'"):
        with pytest.raises(errors.InsufficientPrivilege):
            ask(settings, f"INSERT INTO {table} DEFAULT VALUES")
    assert lake.snapshots() == before


# --- the server, and the owner


def test_the_server_role_can_change_rows_but_not_tables(lake: TestLake) -> None:
    for statement in (
        "DROP TABLE ducklake_snapshot",
        "ALTER TABLE ducklake_snapshot DISABLE TRIGGER ALL",
        "DROP TRIGGER mergus_notify_snapshot ON ducklake_snapshot",
        "TRUNCATE ducklake_data_file",
        "DROP SCHEMA mergus CASCADE",
        "ALTER TABLE mergus.catalog ADD COLUMN i int",
        "CREATE TABLE mergus.mine (i int)",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            ask(lake.settings, statement)


def test_tables_that_a_server_creates_belong_to_the_writer(lake: TestLake, server: Server) -> None:
    catalog = loads.catalog(lake.settings, server)
    reader = lake.as_role(named(lake).reader)
    catalog.create_namespace("served")
    made = catalog.create_table(("served", "t"), pa.schema([("i", pa.int32())]))
    with lake.duckdb() as db, session.attach(reader, read_only=True) as reading:
        db.execute("INSERT INTO served.t VALUES (1)")
        with made.update_schema() as update:
            update.add_column("s", StringType())
        db.execute("INSERT INTO served.t VALUES (2, 'two')")
        assert sorted(reading.execute("SELECT i, s FROM served.t").fetchall()) == [(1, None), (2, "two")]
        db.execute("CALL ducklake_flush_inlined_data('lake')")
        assert sorted(r["i"] for r in made.refresh().scan().to_arrow().to_pylist()) == [1, 2]
        owners = lake.sql(
            "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relname LIKE 'ducklake\\_inlined\\_%'"
        )
        assert owners == [(named(lake).writer,)]
        catalog.purge_table(("served", "t"))


def test_a_listener_with_the_server_role_takes_over_from_one_that_hangs(tmp_path: Path) -> None:
    """Without any right on sessions but that of one role on its own."""
    with lakes.lake(True) as made, listeners.two_listeners(made, tmp_path) as (first, second):
        first.signal(signal.SIGSTOP)
        listeners.eventually(lambda: listeners.leader(made) == second.name, 20, lambda: second.said)


def test_doctor_reports_the_role_of_the_connection(lake: TestLake) -> None:
    roles, server = named(lake), sql.Identifier(named(lake).server)

    def told(settings: Settings) -> tuple[bool, str]:
        (found,) = (f for f in doctor.examine(settings) if f.name == "role")
        return found.ok, found.detail

    assert told(lake.settings) == (True, f"{roles.server} has what a server needs")
    assert told(lake.as_role(roles.owner)) == (True, f"{roles.owner} owns the lake: for `init`")
    superuser = lake.settings.model_copy(update={"postgres_dsn": SecretStr(lake.superuser_dsn)})
    is_one = f"{conninfo_to_dict(lake.superuser_dsn)['user']} is a superuser: more than a server needs"
    assert told(superuser) == (True, f"{is_one} (`mergus roles`)")
    lake.sql(sql.SQL("REVOKE DELETE ON mergus.chain FROM {}").format(server).as_string(None))
    try:
        assert told(lake.settings) == (False, f"{roles.server} lacks DELETE on chain")
    finally:
        lake.sql(sql.SQL("GRANT DELETE ON mergus.chain TO {}").format(server).as_string(None))


def test_the_owner_role_runs_init_upgrades_and_removal(tmp_path: Path) -> None:
    """An upgrade adds tables, which the server can use at once; and what `--remove` leaves is a plain DuckLake."""
    with lakes.lake(True) as made:
        roles = named(made)
        owner = made.as_role(roles.owner)
        made.sql("DELETE FROM migration WHERE number = 7")
        made.sql("DROP TABLE catalog_tag")
        made.sql("DROP TRIGGER mergus_raise_epoch ON ducklake_snapshot")
        made.sql("DROP INDEX public.mergus_schema_name")
        with pytest.raises(errors.InsufficientPrivilege):
            initialise(made.settings, quiet)
        initialise(owner, quiet)
        with connect(made.settings) as conn:
            assert current(conn, made.settings).lacks == ()
            assert migrate.pending(conn, made.settings) == []
        with servers.server(made.settings, tmp_path) as running:
            assert running.http.get("/v1/lake/admin/tags").status_code == 200
        uninitialise(owner, quiet)
        assert made.sql("SELECT FROM pg_namespace WHERE nspname = 'mergus'") == []
        assert made.sql("SELECT FROM pg_event_trigger") == []
        with made.duckdb() as db:
            db.execute("CREATE TABLE t AS SELECT 1 AS i")
