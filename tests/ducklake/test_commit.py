"""The commit writer against a real Postgres, judged by what DuckDB itself writes for the same thing."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

import duckdb
import psycopg
import pytest

from mergus.ducklake import schemas
from mergus.ducklake.commit import CommitInfo, commit
from mergus.ducklake.connect import Pool, open_pool
from mergus.errors import CommitStateUnknown, ServiceUnavailable
from tests.support import lakes
from tests.support.lakes import TestLake
from tests.support.listeners import eventually
from tests.support.waits import lock_waiters


def with_pool(lake: TestLake, work: Callable[[Pool], Awaitable[None]], **changes: object) -> None:
    async def run() -> None:
        async with open_pool(lake.settings.model_copy(update=changes)) as pool:
            await work(pool)

    asyncio.run(run())


def create(name: str) -> Callable[[Pool], Awaitable[None]]:
    async def work(pool: Pool) -> None:
        async with commit(pool, CommitInfo(author="me", message="why", extra={"k": 1})) as tx:
            await schemas.create(tx, name, uuid4())

    return work


def drop(name: str) -> Callable[[Pool], Awaitable[None]]:
    async def work(pool: Pool) -> None:
        async with commit(pool, CommitInfo()) as tx:
            found = await schemas.find(tx.conn, name)
            assert found is not None
            await schemas.drop(tx, found.schema_id)

    return work


@pytest.mark.integration
def test_create_and_drop_schema_write_the_same_catalog_rows_as_duckdb() -> None:
    names = ["plain", 'we,ird"q', "a.b", "ünï", "with space"]
    with lakes.lake() as theirs, lakes.lake() as ours:
        session = theirs.duckdb()
        for name in names:
            quoted = name.replace('"', '""')
            session.execute(f'CREATE SCHEMA "{quoted}"')
            with_pool(ours, create(name))
        session.execute("DROP SCHEMA plain")
        with_pool(ours, drop("plain"))
        assert ours.snapshots() == theirs.snapshots()
        rows = (
            "SELECT schema_id, begin_snapshot, end_snapshot, schema_name, path_is_relative, "
            "replace(path, schema_uuid::text, 'uuid') FROM ducklake_schema ORDER BY 1"
        )
        assert ours.sql(rows) == theirs.sql(rows)


def test_duckdb_shows_the_author_message_and_extra_info_of_a_commit(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    with_pool(lake, create("told"))
    shown = db.execute(
        "SELECT author, commit_message, commit_extra_info FROM lake.snapshots() ORDER BY snapshot_id DESC LIMIT 1"
    ).fetchall()
    assert shown == [("me", "why", '{"k":1}')]


def test_a_commit_without_changes_leaves_no_snapshot(lake: TestLake) -> None:
    async def nothing(pool: Pool) -> None:
        async with commit(pool, CommitInfo()):
            pass

    before = lake.snapshots()
    with_pool(lake, nothing)
    assert lake.snapshots() == before


def test_a_failed_commit_leaves_the_catalog_unchanged(lake: TestLake) -> None:
    async def fail(pool: Pool) -> None:
        with pytest.raises(RuntimeError):
            async with commit(pool, CommitInfo()) as tx:
                await schemas.create(tx, "half", uuid4())
                raise RuntimeError

    before = lake.snapshots()
    with_pool(lake, fail)
    assert lake.snapshots() == before
    assert lake.sql("SELECT FROM ducklake_schema WHERE schema_name = 'half'") == []


@pytest.mark.integration
def test_h46_snapshot_times_do_not_go_back_after_a_clock_step() -> None:
    with lakes.lake() as lake:
        lake.sql("UPDATE ducklake_snapshot SET snapshot_time = now() + interval '1 hour'")
        with_pool(lake, create("later"))
        times = [row[0] for row in lake.sql("SELECT snapshot_time FROM ducklake_snapshot ORDER BY snapshot_id")]
        assert times == sorted(times)


def test_h47_a_commit_takes_the_lock_first_and_waits_for_a_duckdb_commit_in_flight(lake: TestLake) -> None:
    """A transaction that has inserted its snapshot row, as DuckDB does first, and then takes its time."""

    async def race(pool: Pool) -> None:
        other = await psycopg.AsyncConnection.connect(lake.settings.dsn)
        await other.execute(
            "INSERT INTO ducklake_snapshot SELECT snapshot_id + 1, now(), schema_version, next_catalog_id, "
            "next_file_id FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1"
        )
        ours = asyncio.create_task(create("waits")(pool))  # pyright: ignore[reportArgumentType]
        await asyncio.to_thread(eventually, lambda: lock_waiters(lake, "ducklake_snapshot"), 10)
        assert not ours.done()
        await other.execute("INSERT INTO ducklake_snapshot_changes SELECT max(snapshot_id) FROM ducklake_snapshot")
        await other.commit()
        await other.close()
        await ours

    with_pool(lake, race)
    ids = [row[0] for row in lake.snapshots()]
    assert ids == list(range(len(ids)))


@pytest.mark.integration
def test_a_commit_does_not_take_a_waiting_writer_of_another_lake_for_one_of_its_own() -> None:
    """Lakes that are copies of one database have tables of the same oids."""

    async def commit_beside_a_waiting_writer(other: TestLake, pool: Pool) -> None:
        async with (
            await psycopg.AsyncConnection.connect(other.settings.dsn) as holder,
            await psycopg.AsyncConnection.connect(other.settings.dsn) as writer,
        ):
            await holder.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
            waiting = asyncio.create_task(writer.execute("DELETE FROM ducklake_snapshot"))
            await asyncio.to_thread(eventually, lambda: lock_waiters(other, "ducklake_snapshot") == 1, 20)
            await create("beside")(pool)
            await holder.rollback()
            await waiting
            await writer.rollback()

    with lakes.lake() as ours, lakes.lake() as theirs:
        oid = "SELECT 'ducklake_snapshot'::regclass::oid"
        assert ours.sql(oid) == theirs.sql(oid)
        with_pool(ours, lambda pool: commit_beside_a_waiting_writer(theirs, pool))
        ((extra,),) = ours.sql(
            "SELECT commit_extra_info FROM ducklake_snapshot_changes ORDER BY snapshot_id DESC LIMIT 1"
        )
        assert "contended" not in extra


def test_waiting_for_the_commit_lock_times_out(lake: TestLake) -> None:
    async def work(pool: Pool) -> None:
        async with await psycopg.AsyncConnection.connect(lake.settings.dsn) as other:
            await other.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
            with pytest.raises(ServiceUnavailable, match="Other writers"):
                await create("never")(pool)

    with_pool(lake, work, lock_timeout=0.2)
    assert lake.sql("SELECT FROM ducklake_schema WHERE schema_name = 'never'") == []


def test_a_reader_is_never_blocked_by_the_lock(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    async def work(pool: Pool) -> None:
        async with commit(pool, CommitInfo()):
            fresh = await asyncio.to_thread(lake.duckdb)
            assert await asyncio.to_thread(lakes.schemas, fresh) == await asyncio.to_thread(lakes.schemas, db)
            fresh.close()

    with_pool(lake, work)


@pytest.mark.integration
def test_h25_nothing_is_written_once_the_catalog_is_of_another_version() -> None:
    with lakes.lake() as lake:
        lake.sql("UPDATE ducklake_metadata SET value = '1.1' WHERE key = 'version'")

        async def work(pool: Pool) -> None:
            with pytest.raises(ServiceUnavailable, match="version"):
                await create("new")(pool)

        with_pool(lake, work)
        assert len(lake.snapshots()) == 1


def test_a_connection_that_breaks_before_the_commit_is_a_plain_failure(lake: TestLake) -> None:
    async def work(pool: Pool) -> None:
        with pytest.raises(ServiceUnavailable):
            async with commit(pool, CommitInfo()) as tx:
                await schemas.create(tx, "cut", uuid4())
                lake.sql("SELECT pg_terminate_backend(%s)", tx.conn.info.backend_pid)
                await tx.conn.execute("SELECT 1")

    with_pool(lake, work)
    assert lake.sql("SELECT FROM ducklake_schema WHERE schema_name = 'cut'") == []


def test_a_connection_that_breaks_during_the_commit_is_an_unknown_outcome(lake: TestLake) -> None:
    """A deferred trigger kills the session from inside COMMIT, where nobody can tell what became of it."""
    lake.sql(
        "CREATE FUNCTION public.die() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
    )
    lake.sql(
        "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON public.ducklake_snapshot DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION public.die()"
    )

    async def work(pool: Pool) -> None:
        with pytest.raises(CommitStateUnknown):
            await create("unknown")(pool)

    try:
        with_pool(lake, work)
    finally:
        lake.sql("DROP TRIGGER die ON public.ducklake_snapshot")
