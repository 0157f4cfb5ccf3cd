"""What a process remembers of tables, and what makes it forget: on a real lake, changed by DuckDB."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import duckdb
import pytest

from mergus.catalog.table_cache import SMALLEST_PACKED, Answer, Body, TableCache
from mergus.ducklake.connect import Watch
from mergus.ducklake.snapshots import Head
from tests.support.lakes import TestLake


@asynccontextmanager
async def cache(lake: TestLake, limit: int = 100) -> AsyncGenerator[TableCache]:
    watch = Watch(lake.settings)
    try:
        yield TableCache(watch, limit)
    finally:
        await watch.close()


def answer(head: Head, generation: int = 0) -> Answer:
    """About what, the cache does not ask."""
    return Answer(head, cast(Any, None), cast(Any, None), generation=generation)


def table_id(lake: TestLake, schema: str, table: str) -> int:
    query = """SELECT table_id FROM ducklake_table t JOIN ducklake_schema s USING (schema_id)
               WHERE schema_name = %s AND table_name = %s AND t.end_snapshot IS NULL"""
    ((found,),) = lake.sql(query, schema, table)
    return found


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # pyright: ignore[reportArgumentType]


@pytest.fixture
def schema(db: duckdb.DuckDBPyConnection, request: pytest.FixtureRequest) -> str:
    """Of the test's own, with two tables."""
    name = f"s{abs(hash(request.node.name))}"
    db.execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.a AS SELECT 1 AS i; CREATE TABLE {name}.b AS SELECT 1 AS i")
    return name


@pytest.mark.parametrize(
    ("statement", "left", "names_left"),
    [
        ("INSERT INTO {s}.b VALUES (2)", {"b": False, "a": True}, True),
        ("DELETE FROM {s}.b", {"b": False, "a": True}, True),
        (
            "CALL ducklake_flush_inlined_data('lake', schema_name => '{s}', table_name => 'b')",
            {"b": False, "a": True},
            True,
        ),
        ("ALTER TABLE {s}.b ADD COLUMN j INTEGER", {"b": False, "a": True}, False),
        # nothing in the answer says what the table is called
        ("ALTER TABLE {s}.b RENAME TO c", {"b": True, "a": True}, False),
        ("COMMENT ON TABLE {s}.b IS 'x'", {"b": False, "a": True}, False),
        ("CREATE TABLE {s}.c(i INTEGER)", {"b": True, "a": True}, False),
        ('CREATE TABLE {s}."inserted_into_table:1"(i INTEGER)', {"b": True, "a": True}, False),
        ("DROP TABLE {s}.a", {"b": True}, False),
        ("CREATE SCHEMA {s}_2", {"b": True, "a": True}, False),
        ("CALL ducklake_expire_snapshots('lake', versions => [1])", {"b": False, "a": False}, False),
    ],
)
def test_a_commit_evicts_only_the_tables_that_it_changed_from_the_cache(
    statement: str, left: dict[str, bool], names_left: bool, lake: TestLake, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    async def story() -> None:
        async with cache(lake) as kept:
            head = await kept.look()
            ids = {table: table_id(lake, schema, table) for table in "ab"}
            for table, found in ids.items():
                kept.name(schema, table, found, head)
                kept.keep(found, answer(head))
            assert await kept.look() == head
            assert all(kept.answer(found) for found in ids.values())
            db.execute(statement.replace("{s}", schema))
            await kept.look()
            assert {table: kept.answer(ids[table]) is not None for table in left} == left
            assert (kept.table_id(schema, "b") is not None) == names_left

    run(story)


def test_an_answer_from_before_a_commit_to_its_table_is_not_cached(
    lake: TestLake, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    async def story() -> None:
        async with cache(lake) as kept:
            before = await kept.look()
            a, b = (table_id(lake, schema, table) for table in "ab")
            db.execute(f"INSERT INTO {schema}.a VALUES (2)")
            after = await kept.look()
            kept.keep(a, answer(before))
            kept.keep(b, answer(before))
            assert kept.answer(a) is None
            assert kept.answer(b) is not None
            kept.keep(a, answer(after))
            assert kept.answer(a) is not None

    run(story)


def test_a_table_name_resolved_at_an_older_snapshot_is_not_cached(
    lake: TestLake, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    async def story() -> None:
        async with cache(lake) as kept:
            before = await kept.look()
            found = table_id(lake, schema, "a")
            db.execute(f"ALTER TABLE {schema}.a RENAME TO z")
            await kept.look()
            kept.name(schema, "a", found, before)
            assert kept.table_id(schema, "a") is None

    run(story)


def test_the_cache_is_cleared_if_a_snapshot_was_replaced_by_another_of_the_same_id(
    lake: TestLake, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    """The same number at another time is another snapshot; what was begun before may be about the other one."""

    async def story() -> None:
        async with cache(lake) as kept:
            head = await kept.look()
            a = table_id(lake, schema, "a")
            kept.keep(a, answer(head, kept.generation))
            began = kept.generation
            later = (
                "UPDATE ducklake_snapshot SET snapshot_time = snapshot_time + interval '1 ms' WHERE snapshot_id = %s"
            )
            lake.sql(later, head.snapshot_id)
            now = await kept.look()
            assert now != head
            assert kept.answer(a) is None
            kept.keep(a, answer(now, began))
            assert kept.answer(a) is None
            kept.keep(a, answer(now, kept.generation))
            assert kept.answer(a) is not None

    run(story)


def test_a_full_cache_evicts_the_least_recently_stored_answer(lake: TestLake) -> None:
    async def story() -> None:
        async with cache(lake, limit=3) as kept:
            head = await kept.look()
            for found in (1001, 1002, 1003, 1001, 1004):
                kept.keep(found, answer(head))
            assert [i for i in range(1001, 1005) if kept.answer(i)] == [1001, 1003, 1004]

    run(story)


def test_plain_and_gzip_bodies_have_different_etags() -> None:
    async def story() -> None:
        body = Body("d", b"x" * SMALLEST_PACKED)
        packed = await body.packed()
        assert gzip.decompress(packed.data) == body.plain.data
        assert (body.plain.etag, packed.etag) == ('"d"', '"d-gzip"')
        assert await body.packed() is packed
        small = Body("d", b"x" * (SMALLEST_PACKED - 1))
        assert await small.packed() is small.plain

    run(story)
