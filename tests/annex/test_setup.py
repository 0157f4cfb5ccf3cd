"""`mergus init`: creating, adopting, refusing, and taking everything away again."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from mergus.annex import migrate
from mergus.config import Settings, load_settings
from mergus.ducklake import session
from mergus.ducklake.connect import connect
from mergus.errors import SetupError
from mergus.serve import environment
from mergus.setup import initialise, uninitialise
from tests.support import lakes, servers
from tests.support.lakes import TestLake, plain_lake, quiet
from tests.support.servers import error_of

EVERYTHING = """
    SELECT 'relation', n.nspname || '.' || c.relname || ' ' || c.relkind::text FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
    UNION ALL SELECT 'trigger', tgname FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT 'function', p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
    UNION ALL SELECT 'schema', nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%'
    ORDER BY 1, 2
"""


def contents(settings: Settings) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every `ducklake_*` table."""
    lake = TestLake(settings)
    tables = lake.sql("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", settings.metadata_schema)
    return {t: lake.sql(f'SELECT * FROM "{settings.metadata_schema}"."{t}" ORDER BY 1') for (t,) in tables}


def test_a_new_lake_is_exactly_what_duckdb_makes() -> None:
    def shape(lake: TestLake) -> list[tuple[Any, ...]]:
        return lake.sql(
            "SELECT table_name, column_name, data_type, ordinal_position FROM information_schema.columns "
            "WHERE table_schema = 'public' ORDER BY 1, 4"
        )

    with lakes.database() as dsn, lakes.lake() as ours:
        theirs = TestLake(plain_lake(dsn))
        assert shape(ours) == shape(theirs)
        assert ours.snapshots() == theirs.snapshots()
        stored = "SELECT key, value FROM ducklake_metadata WHERE key <> 'data_path' ORDER BY 1"
        assert ours.sql(stored) == theirs.sql(stored)


def test_adopting_changes_no_row_and_removing_leaves_a_plain_ducklake() -> None:
    with lakes.database() as dsn:
        settings = plain_lake(dsn)
        db = session.attach(settings)
        db.execute("CREATE TABLE t(i INTEGER); INSERT INTO t VALUES (1), (2)")
        before, objects_before = contents(settings), TestLake(settings).sql(EVERYTHING)

        done = initialise(settings.model_copy(update={"data_path": None}), quiet)
        assert not done.created
        assert done.metadata.data_path == settings.data_path
        assert contents(settings) == before
        assert TestLake(settings).sql(EVERYTHING) != objects_before

        db.execute("INSERT INTO t VALUES (3)")
        uninitialise(settings, quiet)
        assert TestLake(settings).sql(EVERYTHING) == objects_before
        db.execute("INSERT INTO t VALUES (4)")
        assert db.execute("SELECT list(i ORDER BY i) FROM t").fetchall() == [([1, 2, 3, 4],)]
        db.close()


def test_init_can_be_run_again_and_after_a_removal() -> None:
    with lakes.lake() as lake:
        present = lake.sql(EVERYTHING)
        initialise(lake.settings, quiet)
        assert lake.sql(EVERYTHING) == present
        uninitialise(lake.settings, quiet)
        initialise(lake.settings, quiet)
        assert lake.sql(EVERYTHING) == present


def test_ten_concurrent_inits_create_one_lake() -> None:
    with lakes.database() as dsn:
        settings = lakes.settings_for(dsn)
        command = [sys.executable, "-m", "mergus", "init"]
        env = {"MERGUS_STATE_DIR": "/nonexistent", "PATH": "", **environment(settings)}
        processes = [
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(10)
        ]
        answers = [p.communicate(timeout=120) for p in processes]
        assert [p.returncode for p in processes] == [0] * 10, answers
        assert sorted(out.split(":")[0] for out, _ in answers) == ["created"] + ["ready"] * 9
        lake = TestLake(settings)
        assert [row[0] for row in lake.snapshots()] == [0]
        assert len(lake.sql("SELECT FROM migration")) == len(migrate.migrations())
        with connect(settings) as conn:
            assert migrate.pending(conn, settings) == []


@pytest.mark.parametrize("version", ["0.3", "1.1", "2.0"])
def test_h25_a_lake_of_another_version_is_refused_untouched(version: str) -> None:
    with lakes.database() as dsn:
        settings = plain_lake(dsn)
        TestLake(settings).sql("UPDATE ducklake_metadata SET value = %s WHERE key = 'version'", version)
        before = TestLake(settings).sql(EVERYTHING)
        with pytest.raises(SetupError, match=f"version {version}.*AUTOMATIC_MIGRATION"):
            initialise(settings, quiet)
        assert TestLake(settings).sql(EVERYTHING) == before


def test_h25_an_encrypted_lake_is_refused_untouched() -> None:
    with lakes.database() as dsn:
        settings = lakes.settings_for(dsn)
        db = session.attach(plain_lake(dsn))  # loads the extensions
        db.execute("USE memory; DETACH lake")
        TestLake(settings).sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        db.execute(f"ATTACH 'ducklake:postgres:{dsn}' AS lake (DATA_PATH '{settings.data_path}', ENCRYPTED)")
        db.close()
        before = TestLake(settings).sql(EVERYTHING)
        with pytest.raises(SetupError, match="encrypted"):
            initialise(settings, quiet)
        assert TestLake(settings).sql(EVERYTHING) == before


def test_init_refuses_a_lake_whose_data_path_differs_from_the_settings() -> None:
    with lakes.database() as dsn:
        plain_lake(dsn)
        with pytest.raises(SetupError, match="keeps its data in"):
            initialise(lakes.settings_for(dsn), quiet)


def test_a_lake_that_a_newer_mergus_set_up_is_refused() -> None:
    with lakes.lake() as lake:
        lake.sql("INSERT INTO migration (number, name, checksum) VALUES (9999, 'future', '')")
        with pytest.raises(SetupError, match="newer Mergus"):
            initialise(lake.settings, quiet)


def test_two_lakes_share_one_database() -> None:
    with lakes.database() as dsn:
        one = lakes.settings_for(dsn)
        two = lakes.settings_for(dsn, metadata_schema='we"ird')
        for settings in (one, two):
            initialise(settings, quiet)
        db = session.attach(two)
        db.execute("CREATE SCHEMA only_here")
        db.close()
        assert len(TestLake(one).snapshots()) == 1
        assert len(TestLake(two).snapshots()) == 2
        uninitialise(two, quiet)
        with connect(one) as conn:
            assert migrate.pending(conn, one) == []


def test_a_mergus_schema_that_belongs_to_another_lake_is_neither_used_nor_dropped(tmp_path: Path) -> None:
    """A lake that lives in a schema called mergus, and settings that look for one in public."""
    with lakes.database() as dsn:
        theirs = plain_lake(dsn, metadata_schema="mergus")
        before = TestLake(theirs).sql(EVERYTHING)
        ours = lakes.settings_for(dsn)
        with pytest.raises(SetupError, match="no DuckLake"):
            uninitialise(ours, quiet)
        session.attach(ours, ours.data_path).close()
        for attempt in (initialise, uninitialise):
            with pytest.raises(SetupError, match="not Mergus's"):
                attempt(ours, quiet)
        with servers.server(ours, tmp_path, wait=False, pool_timeout=1.0) as running:
            assert servers.wait_for(running, "/healthz", 200)
            assert error_of(running.create("astray")) == (503, "ServiceUnavailableException")
        left = TestLake(theirs).sql(EVERYTHING)
        assert len(TestLake(theirs).snapshots()) == 1
        assert [x for x in left if x in before] == before
        initialise(theirs, quiet)
        assert theirs.annex_schema == "mergus_mergus"


def test_a_metadata_schema_whose_name_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fits in (("é" * 20, True), ("é" * 21, False), ("x" * 41, False)):
        monkeypatch.setenv("MERGUS_METADATA_SCHEMA", name)
        if fits:
            assert len(migrate.channel(load_settings()).encode()) < 64
        else:
            with pytest.raises(SetupError, match="MERGUS_METADATA_SCHEMA"):
                load_settings()


def test_a_long_open_transaction_does_not_block_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "INDEX_WAIT_SECONDS", 1)
    with lakes.database() as dsn:
        settings = plain_lake(dsn)
        said: list[str] = []
        with psycopg.connect(dsn) as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT * FROM ducklake_snapshot")
            initialise(settings, said.append)
            assert any(f"processes {reader.info.backend_pid})" in line for line in said), said
        with connect(settings) as conn:
            assert [todo.split()[0] for todo in migrate.pending(conn, settings)] == ["index"] * len(migrate.INDEXES)
            assert migrate.missing_triggers(conn) == []
        initialise(settings, quiet)
        with connect(settings) as conn:
            assert migrate.pending(conn, settings) == []


@pytest.fixture
def role() -> Iterator[str]:
    """A Postgres role that may log in and nothing else."""
    name = f"r_{uuid4().hex[:12]}"
    with psycopg.connect(lakes.backend_settings().dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'".encode())
        yield name
        admin.execute(f"DROP ROLE {name}".encode())


def as_role(settings: Settings, role: str) -> Settings:
    dsn = make_conninfo(settings.dsn, user=role, password="secret")
    return settings.model_copy(update={"postgres_dsn": SecretStr(dsn)})


def test_the_privileges_that_operations_md_lists_are_enough_to_serve(role: str, tmp_path: Path) -> None:
    with lakes.lake() as lake:
        for schema in ("public", "mergus"):
            lake.sql(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            lake.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
        try:
            with servers.server(as_role(lake.settings, role), tmp_path) as running:
                assert running.create("made", k="v").status_code == 200
                assert running.http.delete(running.path("made")).status_code == 204
        finally:
            lake.sql(f"DROP OWNED BY {role}")


def test_a_role_without_privileges_gets_an_error_message_and_no_traceback(role: str) -> None:
    with lakes.lake() as lake:
        settings = as_role(lake.settings, role)
        for command in ("init", "doctor"):
            done = subprocess.run(
                [sys.executable, "-m", "mergus", command],
                env={"MERGUS_STATE_DIR": "/nonexistent", "PATH": "", **environment(settings)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 1
            assert "permission denied" in done.stdout + done.stderr
            assert "Traceback" not in done.stderr


def test_a_read_only_postgres_is_a_503_for_writers(tmp_path: Path) -> None:
    with lakes.lake() as lake:
        lake.sql("ALTER DATABASE " + lake.settings.dsn.rpartition("/")[2] + " SET default_transaction_read_only = on")
        # only now: sessions from before would go on writing, and one that is being ended answers otherwise
        with servers.server(lake.settings, tmp_path) as running:
            answer = running.create("never")
            assert error_of(answer) == (503, "ServiceUnavailableException")
            assert "read-only" in answer.json()["error"]["message"]
            listed = running.http.get(running.namespaces)
            assert listed.status_code == 200
            assert ["never"] not in listed.json()["namespaces"]


def test_a_commit_of_duckdb_sends_a_postgres_notification() -> None:
    with lakes.lake() as lake, psycopg.connect(lake.settings.dsn, autocommit=True) as listener:
        listener.execute(f"LISTEN {migrate.channel(lake.settings)}".encode())
        db = lake.duckdb()
        db.execute("CREATE SCHEMA s1; CREATE SCHEMA s2")
        db.close()
        heard = [n.payload for n in listener.notifies(timeout=5, stop_after=2)]
        assert heard == ["1", "2"]


def test_init_rebuilds_an_invalid_index() -> None:
    """CREATE INDEX CONCURRENTLY that was killed leaves an index that is there but not valid."""
    with lakes.lake() as lake:
        lake.sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'public.mergus_table_schema'::regclass")
        initialise(lake.settings, quiet)
        valid = lake.sql("SELECT indisvalid FROM pg_index WHERE indexrelid = 'public.mergus_table_schema'::regclass")
        assert valid == [(True,)]


def test_init_and_removal_report_a_missing_warehouse_lake_or_postgres() -> None:
    with lakes.database() as dsn:
        with pytest.raises(SetupError, match="MERGUS_WAREHOUSE"):
            initialise(lakes.settings_for(dsn, data_path=None), quiet)
        with pytest.raises(SetupError, match="no DuckLake"):
            uninitialise(lakes.settings_for(dsn), quiet)
    with pytest.raises(SetupError, match="cannot be reached") as caught:
        initialise(lakes.settings_for("postgresql://mergus:hunter2secret@127.0.0.1:1/x"), quiet)
    assert "hunter2secret" not in str(caught.value)


def test_a_migration_dates_existing_views_from_the_snapshot_at_which_they_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = migrate.migrations()
    with lakes.database() as dsn:
        settings = lakes.settings_for(dsn)
        with monkeypatch.context() as then:
            then.setattr(migrate, "migrations", lambda: [m for m in every if m.number < 10])
            then.setattr(migrate, "TRIGGERS", [t for t in migrate.TRIGGERS if t[2] != "refuse_lost_deletes"])
            initialise(settings, quiet)
        lake = TestLake(settings)
        session.attach(settings).execute("CREATE SCHEMA s; CREATE SCHEMA t").close()
        alone, beside = uuid4(), uuid4()
        lake.sql("INSERT INTO iceberg_view VALUES (%s, 1, 'v', '{}'), (%s, NULL, NULL, '{}')", alone, beside)
        initialise(settings, quiet)
        found = lake.sql("SELECT view_uuid, begin_snapshot, end_snapshot FROM iceberg_view ORDER BY begin_snapshot")
        assert found == [(beside, 0, None), (alone, 2, None)]


def test_a_migration_removes_changes_made_entries_of_earlier_versions_and_still_protects_deletes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = migrate.migrations()
    earlier = ("mergus_tell_conflicts", "BEFORE INSERT ON ducklake_snapshot_changes FOR EACH ROW", "tell_conflicts")
    with lakes.database() as dsn:
        settings = lakes.settings_for(dsn)
        with monkeypatch.context() as then:
            then.setattr(migrate, "migrations", lambda: [m for m in every if m.number < 17])
            kept = [t for t in migrate.TRIGGERS if t[2] != "refuse_lost_deletes"]
            then.setattr(migrate, "TRIGGERS", [*kept, earlier])
            initialise(settings, quiet)
        lake = TestLake(settings)
        with session.attach(settings) as db, session.attach(settings) as other:
            db.execute("CREATE TABLE t (i INTEGER)")
            db.execute("INSERT INTO t SELECT range FROM range(100)")
            db.execute("INSERT INTO t SELECT range + 100 FROM range(100)")
            db.execute("DELETE FROM t WHERE i >= 150")
            db.execute("INSERT INTO t SELECT range + 200 FROM range(100)")
            db.execute("CALL ducklake_merge_adjacent_files('lake', 't')")
            db.execute("CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0.1)")
            db.execute("DELETE FROM t WHERE i = 5")
            before = [words for *_, words in lake.snapshots()]
            assert before[-3:] == [
                "merge_adjacent:1,inserted_into_table:1",
                "rewrite_delete:1,inserted_into_table:1",
                "inlined_delete:1,deleted_from_table:1",
            ]
            # as commits of ours say it, whatever ends or deletes rows; and a table's name
            others = [
                "deleted_from_table:1,inlined_delete:1",
                'created_table:"s"."a,inlined_delete:1,deleted_from_table:1"',
            ]
            for number, words in enumerate(others, -2):
                lake.sql("INSERT INTO ducklake_snapshot_changes VALUES (%s, '')", number)
                lake.sql("UPDATE ducklake_snapshot_changes SET changes_made = %s WHERE snapshot_id = %s", words, number)
            initialise(settings, quiet)
            after = [words for *_, words in lake.snapshots()]
            assert after == [*before[:-3], "merge_adjacent:1", "rewrite_delete:1", "inlined_delete:1"]
            found = lake.sql(
                "SELECT changes_made FROM ducklake_snapshot_changes WHERE snapshot_id < 0 ORDER BY snapshot_id"
            )
            assert found == [(words,) for words in others]
            other.execute("BEGIN")
            other.execute("DELETE FROM t WHERE i = 120")
            db.execute("CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)")
            db.execute("CALL ducklake_merge_adjacent_files('lake', 't')")
            with pytest.raises(duckdb.TransactionException, match="another transaction has compacted it"):
                other.execute("COMMIT")
        assert lake.sql("SELECT proname FROM pg_proc WHERE proname = 'tell_conflicts'") == []
