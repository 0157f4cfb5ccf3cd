"""Tables as one process serves them, on a real lake: what is made once, what is kept, and what is not believed."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from mergus.annex import tables as annex
from mergus.catalog import served_tables
from mergus.catalog.lake import open_lake
from mergus.catalog.served_tables import PAST_BODIES, PastKey, ServedTables
from mergus.catalog.table_cache import Body
from mergus.ducklake.connect import connection
from mergus.ducklake.snapshots import Head
from mergus.errors import NoSuchTable, ServiceUnavailable
from mergus.iceberg.namespace import Namespace
from mergus.materialise.table import Materialised
from mergus.metrics import WORK
from tests.support.lakes import TestLake
from tests.support.locks import held_up, until_held_up
from tests.support.made_tables import append, create_table, drop_table

MAIN = Namespace.of_schema("main")


@asynccontextmanager
async def process(lake: TestLake, **settings: object) -> AsyncGenerator[ServedTables]:
    """What a server process has; each knows only what it has seen."""
    async with open_lake(lake.settings.model_copy(update=settings)) as opened:
        yield await opened.tables()


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # pyright: ignore[reportArgumentType]


def listed(table: Materialised) -> list[int]:
    return [shown.snapshot.id for shown in table.listed]


def versions(lake: TestLake, table_id: int) -> int:
    ((found,),) = lake.sql("SELECT count(*) FROM metadata_file WHERE table_id = %s", table_id)
    return found


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_concurrent_loads_of_a_table_share_one_materialisation(lake: TestLake) -> None:
    async def story() -> None:
        async with process(lake) as served:
            table_id = await create_table(served.pool, "single_flight")
            await append(served.pool, table_id, "a")
            head = await served.look()
            before = WORK.chains
            answers = await asyncio.gather(*(served.answer(table_id, head) for _ in range(5)))
            assert len({id(answer) for answer in answers}) == 1
            assert WORK.chains == before + 1
            assert versions(lake, table_id) == 1

    run(story)


def test_a_cached_load_queries_postgres_only_for_the_newest_snapshot(lake: TestLake) -> None:
    async def story() -> None:
        async with process(lake) as served:
            table_id = await create_table(served.pool, "kept_ready")
            await append(served.pool, table_id, "a")
            head = await served.look()
            assert await served.resolve(MAIN, "kept_ready", head) == table_id
            first = await served.answer(table_id, head)
            # freshness is asked for on another connection
            await served.pool.close()
            again = await served.look()
            assert await served.resolve(MAIN, "kept_ready", again) == table_id
            assert await served.answer(table_id, again) is first
            with pytest.raises(ServiceUnavailable):
                await served.resolve(MAIN, "another", again)

    run(story)


def test_a_commit_invalidates_the_cache_of_its_table_only(lake: TestLake) -> None:
    async def story() -> None:
        async with process(lake) as served:
            moving, still = [await create_table(served.pool, f"changing_{n}") for n in range(2)]
            for table_id in (moving, still):
                await append(served.pool, table_id, "a")
            head = await served.look()
            before = {table_id: await served.answer(table_id, head) for table_id in (moving, still)}
            await append(served.pool, moving, "b")
            head = await served.look()
            after = {table_id: await served.answer(table_id, head) for table_id in (moving, still)}
            assert after[still] is before[still]
            assert listed(after[moving].table) == [*listed(before[moving].table), head.snapshot_id]
            assert after[moving].head == head

    run(story)


def test_a_load_that_starts_after_a_commit_does_not_share_an_older_load(lake: TestLake) -> None:
    async def story() -> None:
        async with process(lake) as served:
            table_id = await create_table(served.pool, "began_before")
            await append(served.pool, table_id, "a")
            old = await served.look()
            async with held_up(lake, "chain") as blocker:
                early = asyncio.create_task(served.answer(table_id, old))
                await until_held_up(lake)
                await append(served.pool, table_id, "b")
                new = await served.look()
                late = asyncio.create_task(served.answer(table_id, new))
                await turns()
                await blocker.rollback()
                assert listed((await early).table)[-1] == old.snapshot_id
                assert listed((await late).table)[-1] == new.snapshot_id
            # and the older one is not what is kept
            assert listed((await served.answer(table_id, new)).table)[-1] == new.snapshot_id

    run(story)


def test_a_client_that_disconnects_does_not_cancel_a_load_that_others_await(lake: TestLake) -> None:
    async def story() -> None:
        async with process(lake) as served:
            table_id = await create_table(served.pool, "goes_away")
            await append(served.pool, table_id, "a")
            head = await served.look()
            before = WORK.chains
            async with held_up(lake, "chain") as blocker:
                leaving = asyncio.create_task(served.answer(table_id, head))
                await until_held_up(lake)
                staying = asyncio.create_task(served.answer(table_id, head))
                await turns()
                leaving.cancel()
                await turns()
                await blocker.rollback()
                assert listed((await staying).table) == [head.snapshot_id]
            assert leaving.cancelled()
            assert WORK.chains == before + 1

    run(story)


def test_a_later_load_does_not_fail_with_the_error_of_an_older_one(lake: TestLake) -> None:
    """A table that comes back while one looks at a state without it."""

    async def story() -> None:
        async with process(lake) as served:
            table_id = await create_table(served.pool, "comes_back")
            await append(served.pool, table_id, "a")
            await drop_table(served.pool, table_id)
            head = await served.look()
            async with held_up(lake, "ducklake_table", "ACCESS EXCLUSIVE") as other:
                early = asyncio.create_task(served.answer(table_id, head))
                await until_held_up(lake)
                for rows in ("ducklake_table", "ducklake_column", "ducklake_data_file"):
                    await other.execute(f"UPDATE {rows} SET end_snapshot = NULL WHERE table_id = {table_id}".encode())
                late = asyncio.create_task(served.answer(table_id, head))
                await turns()
                await other.commit()
                with pytest.raises(NoSuchTable):
                    await early
                assert (await late).table.reading.view.table.name == "comes_back"

    run(story)


def test_a_table_materialised_in_advance_is_stored_with_its_version_hint_and_not_cached(lake: TestLake) -> None:
    async def story() -> None:
        async with process(lake) as served:
            table_id = await create_table(served.pool, "brought")
            await append(served.pool, table_id, "a")
            head, missing = await served.bring(table_id)
            assert (head, missing) == (await served.look(), None)
            assert not served.is_wanted(table_id)
            assert served.cache.answer(table_id) is None
            answer = await served.answer(table_id, head)
            hint = answer.table.reading.view.layout.version_hint
            assert await served.materialiser.objects.get(hint) == b"1"
            assert served.is_wanted(table_id)
            assert served.cache.answer(table_id) is answer
            assert answer.written.sign is None, "nobody sets it again"
            assert versions(lake, table_id) == 1

    run(story)


def test_a_load_returns_after_its_history_patience_and_the_rest_is_materialised_in_the_background(
    lake: TestLake,
) -> None:
    async def story() -> None:
        async with process(lake, history_patience=0) as served:
            table_id = await create_table(served.pool, "long_history")
            begun = [(await append(served.pool, table_id, name), await served.look())[1] for name in "abcd"]
            head = begun[-1]
            first = await served.answer(table_id, head)
            assert listed(first.table)[-1] == head.snapshot_id
            assert first.missing_from == begun[0].snapshot_id
            await served.finish(table_id)
            whole = await served.answer(table_id, head)
            assert whole.missing_from is None
            assert listed(whole.table) == [one.snapshot_id for one in begun]

    run(story)


def test_a_load_with_enough_patience_lists_the_whole_history(lake: TestLake) -> None:
    async def story() -> None:
        async with process(lake) as served:
            table_id = await create_table(served.pool, "patient")
            for name in "abcd":
                await append(served.pool, table_id, name)
            answer = await served.answer(table_id, await served.look())
            assert (len(listed(answer.table)), answer.missing_from) == (4, None)

    run(story)


def test_metadata_written_by_another_process_is_cached_for_tables_that_clients_load(lake: TestLake) -> None:
    async def story() -> None:
        async with process(lake) as served, process(lake) as elsewhere:
            wanted, other = [await create_table(served.pool, f"heard_{n}") for n in range(2)]
            await served.answer(wanted, await served.look())
            for table_id in (wanted, other):
                await append(elsewhere.pool, table_id, "a")
                await elsewhere.bring(table_id)
                served.hear(table_id)
            for _ in range(500):
                if (ready := served.cache.answer(wanted)) is not None and ready.table.listed:
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError("nothing is made ready")
            assert served.cache.answer(other) is None
            assert await served.answer(wanted, await served.look()) is ready

    run(story)


def test_a_name_resolves_to_the_table_that_has_it_now(lake: TestLake) -> None:
    async def story() -> None:
        async with process(lake) as served:
            first = await create_table(served.pool, "name_moves")
            assert await served.resolve(MAIN, "name_moves", await served.look()) == first
            await drop_table(served.pool, first)
            with pytest.raises(NoSuchTable):
                await served.resolve(MAIN, "name_moves", await served.look())
            second = await create_table(served.pool, "name_moves")
            assert await served.resolve(MAIN, "name_moves", await served.look()) == second

    run(story)


def test_the_history_of_a_dropped_table_is_cached_until_the_epoch_changes(lake: TestLake) -> None:
    async def story() -> None:
        async with process(lake) as served:
            table_id = await create_table(served.pool, "dropped_past")
            await append(served.pool, table_id, "a")
            at = (await served.look()).snapshot_id
            await drop_table(served.pool, table_id)
            head = await served.look()
            with pytest.raises(NoSuchTable):
                await served.answer(table_id, head)
            first = await served.past(table_id, head, at)
            assert listed(first) == [at]
            assert not served.is_wanted(table_id), "there is nothing to keep ready"
            assert await served.past(table_id, head, at) is first
            lake.sql("UPDATE catalog SET epoch = epoch + 1")
            later = await served.past(table_id, await served.look(), at)
            assert later is not first
            assert listed(later) == [at]

    run(story)


def kept_past(served: ServedTables, keys: list[PastKey], head: Head) -> list[bool]:
    return [served.past_body(key, head) is not None for key in keys]


def test_time_travel_documents_are_cached_for_one_state_and_up_to_a_limit(lake: TestLake) -> None:
    async def story() -> None:
        async with process(lake) as served:
            head = await served.look()
            other = Head(head.snapshot_id, head.snapshot_time, head.epoch + 1)
            keys: list[PastKey] = [(1, at, "all", False) for at in range(PAST_BODIES + 1)]
            for key in keys[:-1]:
                served.keep_past_body(key, head, Body("digest", b"{}"))
            assert all(kept_past(served, keys[:-1], head))
            assert not any(kept_past(served, keys, other))
            # it was kept again, so that it is not the oldest
            served.keep_past_body(keys[0], head, Body("digest", b"{}"))
            served.keep_past_body(keys[-1], head, Body("digest", b"{}"))
            assert kept_past(served, keys, head) == [True, False, *[True] * (PAST_BODIES - 1)]

    run(story)


def test_a_failed_version_hint_is_retried_and_no_load_waits_for_it(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process holds the turn of who sets them."""
    monkeypatch.setattr(served_tables, "SIGNED_WITHIN", 0.05)
    monkeypatch.setattr(served_tables, "SIGNED_AFTER", (0, 0.3, 5))

    async def story() -> None:
        async with process(lake) as served:
            table_id = await create_table(served.pool, "signed")
            await append(served.pool, table_id, "a")
            async with connection(served.pool) as conn, conn.transaction():
                assert await annex.try_to_sign(conn, table_id)
                with pytest.raises(ServiceUnavailable, match="signs"):
                    await served.bring(table_id)
                answer = await served.answer(table_id, await served.look())
                hint = answer.table.reading.view.layout.version_hint
                assert await served.materialiser.objects.get(hint) is None
            monkeypatch.setattr(served_tables, "SIGNED_WITHIN", 5)
            await served.bring(table_id)
            assert await served.materialiser.objects.get(hint) == b"1"

    run(story)
