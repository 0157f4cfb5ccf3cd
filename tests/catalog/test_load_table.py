"""LoadTable without a server: which bytes are answered, and what is made for them. PyIceberg reads the documents."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from mergus.access.context import RequestContext
from mergus.access.privileges import NOBODYS
from mergus.catalog.load_table import CLOCK_TOLERANCE_MS, load_cached, load_table
from mergus.catalog.table_cache import Body
from mergus.errors import NoSuchSnapshot, NoSuchTable
from tests.support.committing import NAMESPACE, context, opened
from tests.support.lakes import TestLake
from tests.support.made_tables import append, create_table, drop_table


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # pyright: ignore[reportArgumentType]


def reading(**about: Any) -> RequestContext:
    made = context()
    for name, value in about.items():
        setattr(made, name, value)
    return made


def metadata(body: Body) -> Any:
    """As PyIceberg takes it."""
    return TableMetadataUtil.parse_obj(orjson.loads(body.plain.data)["metadata"])


def ids(body: Body) -> list[int]:
    return [s.snapshot_id for s in metadata(body).snapshots]


def test_the_same_bytes_are_answered_until_the_table_changes(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(lake, tmp_path) as made:
            table_id = await create_table(made.pool, "load_same")
            await append(made.pool, table_id, "a")
            assert await load_cached(made, reading(), NAMESPACE, "load_same", "all") is None
            first = await load_table(made, reading(), NAMESPACE, "load_same", "all", None)
            assert await load_table(made, reading(), NAMESPACE, "load_same", "all", None) is first
            assert await load_cached(made, reading(), NAMESPACE, "load_same", "all") is first
            assert await load_cached(made, reading(), NAMESPACE, "load_same", "refs") is None, "nobody has asked for it"
            await append(made.pool, table_id, "b")
            assert await load_cached(made, reading(), NAMESPACE, "load_same", "all") is None
            second = await load_table(made, reading(), NAMESPACE, "load_same", "all", None)
            assert second.plain.etag != first.plain.etag
            assert ids(second)[:-1] == ids(first)

    run(story)


def test_what_is_kept_is_for_those_who_may_see_it(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(lake, tmp_path) as made:
            await create_table(made.pool, "load_rights")
            nobody = reading(rights=NOBODYS)
            with pytest.raises(NoSuchTable):
                await load_table(made, nobody, NAMESPACE, "load_rights", "all", None)
            assert not nobody.authorised
            with pytest.raises(NoSuchTable):
                await load_table(made, reading(), NAMESPACE, "load_nothing", "all", None)

    run(story)


def test_of_snapshots_those_that_refs_name_are_enough_if_that_is_asked_for(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(lake, tmp_path) as made:
            table_id = await create_table(made.pool, "load_refs")
            for name in "abc":
                await append(made.pool, table_id, name)
            every = await load_table(made, reading(), NAMESPACE, "load_refs", "all", None)
            named = await load_table(made, reading(), NAMESPACE, "load_refs", "refs", None)
            assert len(ids(every)) == 3
            assert ids(named) == [metadata(every).current_snapshot_id]
            assert metadata(named).snapshot_log == metadata(every).snapshot_log

    run(story)


def test_a_reader_that_goes_by_its_clock_is_told_earlier_times(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(lake, tmp_path) as made:
            await append(made.pool, await create_table(made.pool, "load_clock"), "a")
            plain = metadata(await load_table(made, reading(), NAMESPACE, "load_clock", "all", None))
            duckdb = reading(user_agent="duckdb/v1.5.5(linux_amd64)")
            early = metadata(await load_table(made, duckdb, NAMESPACE, "load_clock", "all", None))
            assert early.last_updated_ms == plain.last_updated_ms - CLOCK_TOLERANCE_MS
            assert [s.timestamp_ms + CLOCK_TOLERANCE_MS for s in early.snapshots] == [
                s.timestamp_ms for s in plain.snapshots
            ]

    run(story)


def test_a_table_is_shown_as_it_was_at_a_snapshot_and_only_at_one_that_it_had(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(lake, tmp_path) as made:
            served = await made.tables()
            table_id = await create_table(made.pool, "load_past")
            created = (await served.look()).snapshot_id
            heads: list[int] = []
            for name in "abc":
                await append(made.pool, table_id, name)
                heads.append((await served.look()).snapshot_id)
            then = await load_table(made, reading(), NAMESPACE, "load_past", "all", heads[1])
            assert (ids(then), metadata(then).current_snapshot_id) == (heads[:2], heads[1])
            assert await load_table(made, reading(), NAMESPACE, "load_past", "all", heads[1]) is then
            # the same by the state of the lake that the request is about, be the table dropped since
            await drop_table(made.pool, table_id)
            assert ids(await load_table(made, reading(at=heads[1]), NAMESPACE, "load_past", "all", None)) == heads[:2]
            with pytest.raises(NoSuchSnapshot, match="is later than"):
                await load_table(made, reading(at=heads[0]), NAMESPACE, "load_past", "all", heads[1])
            with pytest.raises(NoSuchSnapshot, match="does not exist"):
                await load_table(made, reading(at=heads[0]), NAMESPACE, "load_past", "all", 10_000)
            with pytest.raises(NoSuchSnapshot, match="has no rows"):
                await load_table(made, reading(at=heads[0]), NAMESPACE, "load_past", "all", created - 1)
            with pytest.raises(NoSuchSnapshot, match="does not exist"):
                await load_table(made, reading(at=heads[0]), NAMESPACE, "load_past", "all", 2**40)

    run(story)
