"""Versions of a table's metadata on storage, written by several processes at once, and the signs to the newest."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import duckdb
import pytest

from mergus.annex import tables as annex
from mergus.catalog.lake import open_lake
from mergus.catalog.served_tables import ServedTables
from mergus.ducklake.connect import connection
from mergus.errors import ServiceUnavailable
from mergus.materialise.metadata import render
from mergus.materialise.metadata_file import KEPT_VERSIONS, Written, signpost, write
from mergus.materialise.table import Materialised
from tests.support.lakes import Row, TestLake
from tests.support.loads import Bucket


@asynccontextmanager
async def process(lake: TestLake) -> AsyncGenerator[ServedTables]:
    """What a server process has; each knows only what it has seen."""
    async with open_lake(lake.settings) as opened:
        yield await opened.tables()


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # pyright: ignore[reportArgumentType]


def new_table(lake: TestLake, db: duckdb.DuckDBPyConnection, name: str) -> int:
    db.execute(f"CREATE TABLE {name} AS SELECT 1 AS i")
    ((found,),) = lake.sql("SELECT table_id FROM ducklake_table WHERE table_name = %s", name)
    return found


def versions(lake: TestLake, table_id: int) -> list[Row]:
    return lake.sql("SELECT version, location FROM metadata_file WHERE table_id = %s ORDER BY version", table_id)


async def written(served: ServedTables, table: Materialised) -> Written:
    return await write(served.pool, served.materialiser.objects, table)


async def signed(served: ServedTables, version: Written) -> None:
    """One who finds another at it comes again."""
    assert version.sign is not None
    while True:
        try:
            return await signpost(served.pool, served.materialiser.objects, version.sign)
        except ServiceUnavailable:
            await asyncio.sleep(0.01)


def test_processes_that_write_the_same_state_write_one_metadata_version(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table_id = new_table(lake, db, "one_version")

    async def story() -> None:
        async with process(lake) as one, process(lake) as other:
            tables = [await served.materialiser.table(table_id, 60) for served in (one, other)]
            both = [(served, table) for served, table in zip((one, other), tables, strict=True) for _ in range(5)]
            found = await asyncio.gather(*(written(served, table) for served, table in both))
            assert len({version.location for version in found}) == 1
            assert len({render(version.metadata) for version in found}) == 1
            assert versions(lake, table_id) == [(0, found[0].location)]

    run(story)


def test_processes_that_write_different_states_write_consecutive_metadata_versions(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table_id = new_table(lake, db, "turns")

    async def story() -> None:
        async with process(lake) as served:
            states: list[Materialised] = []
            for n in range(4):
                db.execute(f"INSERT INTO turns VALUES ({n})")
                states.append(await served.materialiser.table(table_id, 60))
            found = await asyncio.gather(*(written(served, state) for state in states))
            bucket = Bucket(lake.settings)
            for version in found:
                assert bucket.get(version.location) == render(version.metadata)
            listed = versions(lake, table_id)
            assert [number for number, _ in listed] == list(range(len(listed)))
            # the newest state is the last version, whatever came in between
            assert listed[-1][1] == found[-1].location

    run(story)


def test_a_late_writer_of_an_older_state_does_not_replace_the_newest_metadata(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table_id = new_table(lake, db, "late")

    async def story() -> None:
        async with process(lake) as served:
            older = await served.materialiser.table(table_id, 60)
            db.execute("INSERT INTO late VALUES (2)")
            newer = await served.materialiser.table(table_id, 60)
            first = await written(served, newer)
            await signed(served, first)
            late = await written(served, older)
            bucket = Bucket(lake.settings)
            assert late.sign is None
            assert bucket.get(late.location) == render(late.metadata)
            assert versions(lake, table_id) == [(0, first.location)]
            hint = f"{first.metadata.location}/metadata/version-hint.text"
            assert bucket.get(hint) == b"1"
            assert bucket.get(f"{first.metadata.location}/metadata/v1.metadata.json") == render(first.metadata)

    run(story)


def test_the_version_hint_is_not_set_to_an_older_version(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    table_id = new_table(lake, db, "signed")

    async def story() -> None:
        async with process(lake) as served:
            first = await written(served, await served.materialiser.table(table_id, 60))
            db.execute("INSERT INTO signed VALUES (2)")
            second = await written(served, await served.materialiser.table(table_id, 60))
            await asyncio.gather(signed(served, second), signed(served, first))
            await signed(served, first)
            directory, bucket = second.metadata.location, Bucket(lake.settings)
            assert bucket.get(f"{directory}/metadata/version-hint.text") == b"2"
            assert bucket.get(f"{directory}/metadata/v2.metadata.json") == render(second.metadata)
            assert not bucket.has(f"{directory}/metadata/v1.metadata.json")

    run(story)


def test_a_process_delayed_while_it_set_the_version_hint_restores_the_newer_one(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    """Paused between two requests to the store, it loses its connection and with it the right to set signs."""
    table_id = new_table(lake, db, "held_up")

    async def story() -> None:
        async with process(lake) as served:
            first = await written(served, await served.materialiser.table(table_id, 60))
            await signed(served, first)
            db.execute("INSERT INTO held_up VALUES (2)")
            second = await written(served, await served.materialiser.table(table_id, 60))
            await signed(served, second)
            bucket = Bucket(lake.settings)
            hint = f"{second.metadata.location}/metadata/version-hint.text"
            bucket.put(hint, b"1")
            # its commit fails, so it tries again
            await signed(served, first)
            assert bucket.get(hint) == b"2"
            bucket.delete(f"{second.metadata.location}/metadata/v2.metadata.json")
            bucket.put(hint, b"1")
            await signed(served, first)
            assert bucket.get(hint) == b"1", "a sign leads to something"

    run(story)


def test_writing_metadata_does_not_wait_for_a_process_that_holds_the_version_hint_lock(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table_id = new_table(lake, db, "waited_for")

    async def story() -> None:
        async with process(lake) as served:
            version = await written(served, await served.materialiser.table(table_id, 60))
            assert version.sign is not None
            async with connection(served.pool) as conn, conn.transaction():
                assert await annex.try_to_sign(conn, table_id)
                with pytest.raises(ServiceUnavailable):
                    await signpost(served.pool, served.materialiser.objects, version.sign)
                # what a load needs goes on
                db.execute("ALTER TABLE waited_for ADD COLUMN j INTEGER; INSERT INTO waited_for VALUES (2, 2)")
                await written(served, await served.materialiser.table(table_id, 60))

    run(story)


def test_the_metadata_log_is_bounded(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    table_id = new_table(lake, db, "long_log")
    lake.sql(
        "INSERT INTO metadata_file SELECT %s, i, 's3://mergus/x/' || i || '.metadata.json', i "
        "FROM generate_series(0, 149) AS i",
        table_id,
    )

    async def story() -> None:
        async with process(lake) as served:
            table = await served.materialiser.table(table_id, 60)
            for _ in range(2):
                found = await written(served, table)
                log = [file for _, file in found.metadata.metadata_log]
                assert log == [f"s3://mergus/x/{i}.metadata.json" for i in range(150 - KEPT_VERSIONS, 150)]
                stored = json.loads(Bucket(lake.settings).get(found.location))
                assert stored == json.loads(render(found.metadata))

    run(story)


def test_a_state_that_recurs_is_written_as_a_new_metadata_version(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table_id = new_table(lake, db, "back")

    async def story() -> None:
        async with process(lake) as served:
            for comment in ("this", "that", "this"):
                db.execute(f"COMMENT ON TABLE back IS '{comment}'")
                await written(served, await served.materialiser.table(table_id, 60))
            assert len(versions(lake, table_id)) == 3

    run(story)
