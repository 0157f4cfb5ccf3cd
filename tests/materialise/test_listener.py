"""The listener on a real Postgres, in the process of the test: who leads, what it hears of, what it makes good.

What puts tables on storage only notes here what it is asked for, but for one test. Listeners as processes are in
tests/concurrency and tests/faults.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg import sql

from mergus.annex import leadership
from mergus.annex.tables import made_channel
from mergus.catalog.lake import open_lake
from mergus.config import Settings
from mergus.ducklake import snapshots
from mergus.ducklake.connect import Pool, connection, dedicated, open_pool
from mergus.ducklake.snapshots import Head
from mergus.errors import NoSuchTable, ServiceUnavailable
from mergus.materialise import backlog, listener
from mergus.materialise.listener import Leader, Listener, Tables
from tests.support.lakes import TestLake
from tests.support.listeners import done, head, is_done, leader, lock_holders, sessions
from tests.support.made_tables import append, create_table, drop_table

FOREVER = 3600.0


@pytest.fixture(autouse=True)
def _quick(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes half a second takes a fiftieth. Each test begins with a lake that nobody has listened to."""
    monkeypatch.setattr(leadership, "BEAT", 0.02)
    monkeypatch.setattr(listener, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(backlog, "FIRST_RETRY", 0.02)
    deadline = time.monotonic() + 5
    while sessions(lake):
        assert time.monotonic() < deadline, "a session of an earlier test"
        time.sleep(0.01)
    lake.sql("UPDATE listener SET (done_id, done_time, done_epoch, report) = (NULL, NULL, NULL, NULL)")
    lake.sql("DELETE FROM listener_failure")


@dataclass
class Noted:
    """Notes what it is asked to put on storage; the head that it reaches is the lake's of then."""

    pool: Pool
    brought: list[int] = field(default_factory=list[int])
    finished: list[int] = field(default_factory=list[int])
    heard: list[int] = field(default_factory=list[int])
    wrong: dict[int, Exception] = field(default_factory=dict[int, Exception])
    # of tables whose older history is missing, from which snapshot on
    missing: dict[int, int] = field(default_factory=dict[int, int])
    # held by who wants work to take long
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    history: asyncio.Lock = field(default_factory=asyncio.Lock)
    at_once: int = 0
    most_at_once: int = 0

    async def bring(self, table_id: int) -> tuple[Head, int | None]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            async with connection(self.pool) as conn:
                reached = await snapshots.head(conn)
            self.brought.append(table_id)
            async with self.turn:
                pass
            if table_id in self.wrong:
                raise self.wrong[table_id]
            return reached, self.missing.get(table_id)
        finally:
            self.at_once -= 1

    async def finish(self, table_id: int) -> None:
        self.finished.append(table_id)
        async with self.history:
            pass
        self.missing.pop(table_id, None)

    def is_wanted(self, table_id: int) -> bool:
        return False

    def hear(self, table_id: int) -> None:
        self.heard.append(table_id)


async def nothing() -> dict[str, Any]:
    return {"measured-at": 1}


@asynccontextmanager
async def listening(
    settings: Settings,
    storage: Tables,
    *,
    stands: bool = True,
    at_once: int = 4,
    measure: listener.Measure = nothing,
) -> AsyncGenerator[Listener]:
    async def tables() -> Tables:
        return storage

    one = Listener(settings, tables, at_once, stands, measure)
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.01)


def run(lake: TestLake, story: Callable[[Pool], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with open_pool(lake.settings) as pool:
            await story(pool)

    asyncio.run(opened())


def is_listening(lake: TestLake) -> bool:
    """Whether a session of a listener has nothing more to say."""
    query = """SELECT FROM pg_stat_activity WHERE application_name = 'mergus listener'
               AND datname = current_database() AND query LIKE 'LISTEN%' AND state = 'idle'"""
    return lake.sql(query) != []


def call_all_done(lake: TestLake) -> None:
    lake.sql(
        "UPDATE listener SET (done_id, done_time, done_epoch) = "
        "(SELECT snapshot_id, snapshot_time, epoch FROM ducklake_snapshot, catalog ORDER BY snapshot_id DESC LIMIT 1)"
    )


def live_tables(lake: TestLake) -> set[int]:
    return {row[0] for row in lake.sql("SELECT table_id FROM ducklake_table WHERE end_snapshot IS NULL")}


def test_the_second_listener_becomes_leader_when_the_session_of_the_first_ends(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        first, second = Noted(pool), Noted(pool)
        table_id = await create_table(pool, "taken_over")
        async with AsyncExitStack() as leading:
            await leading.enter_async_context(listening(lake.settings, first))
            await until(lambda: is_done(lake), "the first leads")
            (holder,) = lock_holders(lake)
            async with listening(lake.settings, second):
                await until(lambda: sessions(lake) == 2)
                await append(pool, table_id, "a")
                await until(lambda: is_done(lake))
                assert (lock_holders(lake), second.brought) == ([holder], [])
                assert first.brought[-1] == table_id
                await leading.aclose()
                await until(lambda: lock_holders(lake) not in ([], [holder]), "the second leads")
                await append(pool, table_id, "b")
                await until(lambda: is_done(lake))
                assert second.brought == [table_id], "all before was done by the first"

    run(lake, story)


def test_a_listener_reconnects_logs_it_once_and_resumes_at_its_watermark(
    lake: TestLake, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        table_id = await create_table(pool, "begins_anew")
        async with listening(lake.settings, storage):
            await until(lambda: is_done(lake))
            (holder,) = lock_holders(lake)
            storage.brought.clear()
            lake.sql("SELECT pg_terminate_backend(%s)", holder)
            await until(lambda: lock_holders(lake) not in ([], [holder]), "it leads again")
            await append(pool, table_id, "a")
            await until(lambda: is_done(lake))
            assert storage.brought == [table_id]

    with caplog.at_level(logging.WARNING, "mergus"):
        run(lake, story)
    said = [r.message for r in caplog.records if "begins anew" in r.message]
    assert len(said) == 1


def test_a_follower_never_leads_and_is_notified_of_written_metadata(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        table_id = await create_table(pool, "only_hears")
        channel = sql.Identifier(made_channel(lake.settings))
        async with listening(lake.settings, storage, stands=False), connection(pool) as conn:
            await until(lambda: is_listening(lake))
            # anyone may say anything: only what is a number is a table's
            for payload in ("", "x", "-1", "1;2", str(table_id)):
                await conn.execute(sql.SQL("NOTIFY {}, {}").format(channel, sql.Literal(payload)))
            await until(lambda: storage.heard)
            assert storage.heard == [table_id]
            assert (lock_holders(lake), leader(lake), storage.brought) == ([], None, [])

    run(lake, story)


def test_a_snapshot_is_processed_at_once_and_only_for_tables_that_it_changed(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        moving, still = [await create_table(pool, f"heard_at_once_{n}") for n in range(2)]
        async with listening(lake.settings, storage):
            await until(lambda: is_done(lake))
            assert {moving, still} <= set(storage.brought), "the first leader ever looks at every table"
            storage.brought.clear()
            monkeypatch.setattr(leadership, "BEAT", FOREVER)
            # until the beat that is under way has passed
            await asyncio.sleep(0.1)
            await append(pool, moving, "a")
            await until(lambda: storage.brought)
            # its id is not in the words of the snapshot that makes it
            new = await create_table(pool, "heard_at_once_new")
            await until(lambda: len(storage.brought) > 1)
            await asyncio.sleep(0.1)
            assert storage.brought == [moving, new]

    run(lake, story)


def test_a_missed_notification_is_processed_at_the_next_poll(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        table_id = await create_table(pool, "missed_signal")
        async with listening(lake.settings, storage):
            await until(lambda: is_done(lake))
            storage.brought.clear()
            lake.sql("ALTER TABLE ducklake_snapshot DISABLE TRIGGER USER")
            try:
                await append(pool, table_id, "a")
            finally:
                lake.sql("ALTER TABLE ducklake_snapshot ENABLE TRIGGER USER")
            await until(lambda: storage.brought)
            await until(lambda: is_done(lake))
            assert storage.brought == [table_id]

    run(lake, story)


def test_a_new_leader_processes_snapshots_since_the_watermark(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        moving, still, dropped = [await create_table(pool, f"since_{n}") for n in range(3)]
        async with listening(lake.settings, storage):
            await until(lambda: is_done(lake))
        reached = done(lake)
        storage.brought.clear()
        await append(pool, moving, "a")
        await append(pool, moving, "b")
        new = await create_table(pool, "since_new")
        storage.wrong[dropped] = NoSuchTable("Table does not exist any more")
        await drop_table(pool, dropped)
        assert done(lake) == reached, "nobody has listened"
        async with listening(lake.settings, storage):
            await until(lambda: is_done(lake))
            # once, however often it changed
            assert sorted(storage.brought) == sorted([moving, new, dropped])
            assert still not in storage.brought
        assert lake.sql("SELECT FROM listener_failure") == [], "one that was dropped is no failure"
        assert done(lake) == head(lake)

    run(lake, story)


def test_a_leader_that_is_too_far_behind_checks_every_table(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        table_id = await create_table(pool, "missed_much")
        async with listening(lake.settings, storage):
            await until(lambda: is_done(lake))
        for most, expected in ((3, {table_id}), (1, live_tables(lake))):
            monkeypatch.setattr(listener, "MOST_SNAPSHOTS", most)
            storage.brought.clear()
            for n in range(2):
                await append(pool, table_id, f"{most}{n}")
            async with listening(lake.settings, storage):
                await until(lambda: is_done(lake))
            assert set(storage.brought) == expected

    run(lake, story)


def test_a_change_without_a_snapshot_makes_the_leader_check_every_table(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        await create_table(pool, "another_epoch")
        async with listening(lake.settings, storage):
            await until(lambda: is_done(lake))
            storage.brought.clear()
            lake.sql("UPDATE catalog SET epoch = epoch + 1")
            await until(lambda: is_done(lake))
            assert sorted(storage.brought) == sorted(live_tables(lake))

    run(lake, story)


def test_after_a_restore_every_table_is_checked_before_the_watermark_moves(
    lake: TestLake,
) -> None:
    """As after a restore: the snapshot that this process saw last is another of the same number now."""

    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        await create_table(pool, "gone_back")
        async with listening(lake.settings, storage):
            await until(lambda: is_done(lake))
        async with connection(pool) as conn:
            seen = await snapshots.head(conn)
        async with dedicated(lake.settings, "mergus listener") as conn:
            same = await Leader.begin(conn, storage, 1, seen, nothing)
            assert same.backlog.seen.snapshot_id == seen.snapshot_id
            assert done(lake) == seen.snapshot_id
            other = Head(seen.snapshot_id, seen.snapshot_time.replace(year=2000), seen.epoch)
            begun = await Leader.begin(conn, storage, 1, other, nothing)
            assert (begun.backlog.seen.snapshot_id, begun.backlog.missing_from) == (-1, 0)
            assert done(lake) is None
        storage.brought.clear()
        async with listening(lake.settings, storage):
            await until(lambda: is_done(lake))
        assert set(storage.brought) == live_tables(lake)

    run(lake, story)


def test_a_failing_table_is_recorded_blocks_no_other_and_is_removed_once_it_succeeds(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        failing, other = [await create_table(pool, f"fails_{n}") for n in range(2)]
        storage.wrong[failing] = ServiceUnavailable("the store is away")
        async with listening(lake.settings, storage):
            await until(lambda: is_done(lake) and lake.sql("SELECT FROM listener_failure WHERE attempts > 1"))
            query = "SELECT table_id, kind, message FROM listener_failure"
            assert lake.sql(query) == [(failing, ServiceUnavailable.type, "the store is away")]
            await append(pool, other, "a")
            await until(lambda: is_done(lake) and storage.brought.count(other) > 1)
            # what it says that nobody foresaw is for the log alone
            storage.wrong[failing] = ZeroDivisionError("a secret")
            await until(lambda: "ZeroDivisionError" in str(lake.sql(query)))
            assert "secret" not in str(lake.sql(query))
            del storage.wrong[failing]
            await until(lambda: lake.sql(query) == [])

    run(lake, story)


def test_a_new_leader_retries_failed_tables(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        failing = await create_table(pool, "fails_for_two")
        storage.wrong[failing] = ServiceUnavailable("the store is away")
        async with listening(lake.settings, storage):
            await until(lambda: is_done(lake) and lake.sql("SELECT FROM listener_failure"))
        storage.wrong.clear()
        storage.brought.clear()
        async with listening(lake.settings, storage):
            await until(lambda: lake.sql("SELECT FROM listener_failure") == [])
        assert storage.brought == [failing]

    run(lake, story)


def test_the_watermark_waits_for_unfinished_history(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        table_id = await create_table(pool, "history_behind")
        call_all_done(lake)
        before = head(lake)
        await append(pool, table_id, "a")
        await append(pool, table_id, "b")
        storage.missing[table_id] = before + 1
        async with listening(lake.settings, storage):
            async with storage.history:
                await until(lambda: storage.finished)
                await asyncio.sleep(0.1)
                assert (done(lake), storage.brought) == (before, [table_id])
            await until(lambda: is_done(lake))
            assert storage.finished == [table_id]
            assert storage.brought == [table_id] * 2, "it is told again with all that it lists"

    run(lake, story)


def test_a_listener_processes_no_more_tables_at_once_than_its_limit(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        call_all_done(lake)
        before = head(lake)
        ids = [await create_table(pool, f"at_once_{n}") for n in range(5)]
        async with listening(lake.settings, storage, at_once=2):
            async with storage.turn:
                await until(lambda: len(storage.brought) == 2)
                await asyncio.sleep(0.1)
                assert len(storage.brought) == 2
                assert done(lake) == before
            await until(lambda: is_done(lake))
            assert storage.most_at_once == 2
            assert sorted(storage.brought) == ids

    run(lake, story)


def test_a_silent_leader_is_deposed_and_a_responsive_one_is_not(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        await create_table(pool, "silent")
        async with dedicated(lake.settings, "mergus listener") as silent:
            assert await leadership.try_to_lead(silent)
            async with listening(lake.settings, storage):
                await until(lambda: sessions(lake) == 2)
                for _ in range(10):
                    await silent.execute("SELECT 1")
                    await asyncio.sleep(0.02)
                assert storage.brought == []
                monkeypatch.setattr(leadership, "SILENCE", 0.1)
                await until(lambda: is_done(lake), "it leads")
                with pytest.raises(psycopg.OperationalError):
                    await silent.execute("SELECT 1")

    run(lake, story)


def test_the_report_contains_lake_measurements_and_is_sent_without_them_if_they_fail(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MEASURE_SECONDS", 0.02)
    measured = 0

    async def measure() -> dict[str, Any]:
        nonlocal measured
        measured += 1
        if measured == 1:
            raise ServiceUnavailable("not now")
        return {"measured-at": measured, "tables": 3}

    def report() -> dict[str, Any]:
        ((found,),) = lake.sql("SELECT report FROM listener")
        return found or {}

    async def story(pool: Pool) -> None:
        storage = Noted(pool)
        await create_table(pool, "measured")
        async with listening(lake.settings, storage, measure=measure):
            await until(lambda: is_done(lake))
            await until(lambda: report().get("lake"))
            assert report()["lake"]["tables"] == 3
            assert report()["made"] == len(storage.brought)
            assert report()["tables"] == {"waiting": 0, "working": 0, "history": 0, "failing": 0}

    run(lake, story)


def test_a_commit_is_materialised_without_a_request(lake: TestLake) -> None:
    """With what serves tables in a server."""

    async def story(pool: Pool) -> None:
        async with open_lake(lake.settings) as opened:
            served = await opened.tables()
            table_id = await create_table(pool, "on_storage")
            call_all_done(lake)
            async with listening(lake.settings, served):
                await append(pool, table_id, "a")
                await until(lambda: is_done(lake))
            ((location, snapshot_id),) = lake.sql(
                "SELECT location, (SELECT max(snapshot_id) FROM chain c WHERE c.table_id = m.table_id) "
                "FROM metadata_file m WHERE table_id = %s ORDER BY version DESC LIMIT 1",
                table_id,
            )
            assert snapshot_id == head(lake)
            answer = await served.answer(table_id, await served.look())
            assert answer.written.location == location

    run(lake, story)
