"""Commits from the plan to the answer, in the process of the test: what is tried again, and what is left behind."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import psycopg
import pytest

from mergus.access.privileges import NOBODYS
from mergus.catalog.commit import cleared, commit_table, commit_transaction, committed_body
from mergus.catalog.commit_plan import Change
from mergus.catalog.lake import Lake
from mergus.errors import BadRequest, CommitFailed, CommitStateUnknown, NoSuchTable
from mergus.iceberg.metadata import MAIN
from mergus.iceberg.requirements import AssertRefSnapshotId
from mergus.iceberg.updates import SetProperties
from mergus.storage.location import Location
from tests.support.committing import Client, context, load, onto_main, opened
from tests.support.lakes import TestLake
from tests.support.locks import held_up, until_held_up
from tests.support.made_tables import append, create_table, drop_table

INTERLOPER = """
    INSERT INTO ducklake_snapshot SELECT snapshot_id + 1, now(), schema_version, next_catalog_id, next_file_id + 1
    FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1
"""
ITS_WORDS = """
    INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made)
    SELECT max(snapshot_id), 'inserted_into_table:' || %s::bigint FROM ducklake_snapshot
"""


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # pyright: ignore[reportArgumentType]


@asynccontextmanager
async def table(lake: TestLake, folder: Path, name: str) -> AsyncGenerator[tuple[Lake, Client]]:
    """With one snapshot, as a client has loaded it."""
    async with opened(lake, folder) as made:
        await append(made.pool, await create_table(made.pool, name), "a")
        yield made, await load(made, name)


def appending(client: Client, name: str) -> Change:
    """As clients send it: main has to be what they have built on."""
    base = client.writer.main
    snapshot = client.writer.snapshot("append", [client.writer.file(name)])
    return client.change(*onto_main(snapshot), requirements=[AssertRefSnapshotId(MAIN, base)])


async def interlope(other: psycopg.AsyncConnection[tuple[object, ...]], table_id: int) -> None:
    """A snapshot of somebody else's that changes the table, as DuckDB would write it."""
    await other.execute(INTERLOPER)
    await other.execute(ITS_WORDS, (table_id,))
    await other.commit()


def test_a_commit_that_is_sent_again_is_answered_and_not_made_again(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "commit_again") as (made, client):
            change = appending(client, "new")
            first = await commit_table(made, context(), change)
            before = lake.snapshots()
            again = await commit_table(made, context(), change)
            assert lake.snapshots() == before
            assert again.plain == first.plain
            assert orjson.loads(first.plain.data)["metadata"]["current-snapshot-id"] == client.writer.main

    run(story)


def test_an_append_is_planned_again_if_the_table_changes_before_the_lock_is_had(
    lake: TestLake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "commit_moved") as (made, client):
            async with held_up(lake, "ducklake_snapshot", "SHARE ROW EXCLUSIVE") as other:
                committing = asyncio.create_task(commit_table(made, context(), appending(client, "new")))
                await until_held_up(lake)
                await interlope(other, client.table_id)
                body = await committing
            shown = orjson.loads(body.plain.data)["metadata"]
            mine, theirs = shown["snapshots"][-1], shown["snapshots"][-2]
            assert mine["snapshot-id"] == client.writer.main
            assert mine["parent-snapshot-id"] == theirs["snapshot-id"] == lake.snapshots()[-2][0]

    with caplog.at_level(logging.INFO, "mergus"):
        run(story)
    assert [r.message for r in caplog.records if "planned again" in r.message]


def test_who_looked_at_what_has_changed_is_told_so_and_leaves_nothing_behind(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "commit_conflict") as (made, client):
            (path,) = client.writer.data
            base = client.writer.main
            deleting = client.writer.snapshot("delete", delete={path: [1]})
            change = client.change(*onto_main(deleting), requirements=[AssertRefSnapshotId(MAIN, base)])
            written = tmp_path / "ducklake"
            async with held_up(lake, "ducklake_snapshot", "SHARE ROW EXCLUSIVE") as other:
                committing = asyncio.create_task(commit_table(made, context(), change))
                await until_held_up(lake)
                assert len(list(written.rglob("*.parquet"))) == 1, "the delete file is there before the lock"
                await interlope(other, client.table_id)
                with pytest.raises(CommitFailed, match="Requirement failed"):
                    await committing
            assert list(written.rglob("*.parquet")) == []
            assert lake.sql("SELECT FROM ducklake_delete_file WHERE table_id = %s", client.table_id) == []

    run(story)


def test_what_was_written_on_the_way_goes_unless_nobody_knows_whether_the_commit_is_there(
    lake: TestLake, tmp_path: Path
) -> None:
    async def story() -> None:
        async with opened(lake, tmp_path) as made:
            place = Location.parse(str(tmp_path / "x.parquet"))
            for error, is_there in ((CommitStateUnknown, True), (CommitFailed, False)):
                await made.objects.put(place, b"x")
                with pytest.raises(error):
                    async with cleared(made) as litter:
                        litter.append(place)
                        raise error("no")
                assert (await made.objects.size(place) is not None) is is_there
            await made.objects.put(place, b"x")
            async with cleared(made) as litter:
                litter.append(place)
            assert await made.objects.size(place) == 1

    run(story)


def test_a_transaction_is_all_or_nothing_and_about_each_table_once(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "transaction_a") as (made, one):
            await create_table(made.pool, "transaction_b")
            other = await load(made, "transaction_b")
            first = appending(one, "x")
            wrong = other.change(SetProperties({"a": "b"}), requirements=[AssertRefSnapshotId(MAIN, 7)])
            before = lake.snapshots()
            with pytest.raises(BadRequest, match="changes a table twice"):
                await commit_transaction(made, context(), [first, first])
            with pytest.raises(CommitFailed, match="Requirement failed"):
                await commit_transaction(made, context(), [first, wrong])
            await commit_transaction(made, context(), [])
            assert lake.snapshots() == before
            await commit_transaction(made, context(), [first])
            # a part of it is there, and nobody knows what became of the rest
            with pytest.raises(CommitFailed, match="has been committed before"):
                await commit_transaction(made, context(), [first, other.change(SetProperties({"a": "b"}))])
            assert len(lake.snapshots()) == len(before) + 1

    run(story)


def test_nothing_is_planned_for_who_may_not_write(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "commit_refused") as (made, client):
            nobody = context()
            nobody.rights = NOBODYS
            before = lake.snapshots()
            with pytest.raises(NoSuchTable):
                await commit_table(made, nobody, appending(client, "x"))
            with pytest.raises(NoSuchTable):
                await commit_transaction(made, nobody, [appending(client, "y")])
            assert (lake.snapshots(), nobody.authorised) == (before, False)

    run(story)


def test_a_commit_whose_result_cannot_be_shown_is_not_called_refused(lake: TestLake, tmp_path: Path) -> None:
    """A client that hears of a refusal deletes its files."""

    async def story() -> None:
        async with table(lake, tmp_path, "commit_unshown") as (made, client):
            await drop_table(made.pool, client.table_id)
            with pytest.raises(CommitStateUnknown, match="has been made"):
                await committed_body(made, context(), client.table_id)

    run(story)
