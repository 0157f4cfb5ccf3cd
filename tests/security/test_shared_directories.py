"""Directories that hold files of several tables (H22): keys open no more than the grants of who asks."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from mergus.access.context import ANONYMOUS, RequestContext
from mergus.catalog import delegation, holdings
from mergus.catalog.holdings import Grounds, Holdings, Rights
from mergus.catalog.lake import Lake, open_lake
from mergus.errors import Forbidden
from mergus.iceberg.namespace import Namespace
from tests.support import lakes, vended
from tests.support.lakes import TestLake
from tests.support.vended import DENIED, at, status

MAIN = Namespace(("main",))
CONTEXT = RequestContext("loadTable", "1", ANONYMOUS)


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    with lakes.lake(**vended.settings()) as made:
        yield made


def one_who_may_read(*tables: str, may_write: bool = True) -> Rights:
    async def may_read_other(namespace: Namespace, name: str) -> bool:
        return f"{namespace}.{name}" in tables

    return Rights(may_write, may_read_other)


def run(lake: TestLake, ask: Callable[[Lake], Awaitable[Any]]) -> Any:
    async def inside() -> Any:
        async with open_lake(lake.settings) as served:
            return await ask(served)

    return asyncio.run(inside())


def opened(lake: TestLake, table: str, rights: Rights) -> tuple[Holdings, Grounds]:
    async def ask(served: Lake) -> tuple[Holdings, Grounds]:
        found, _ = await delegation.find(served, CONTEXT, MAIN, table)
        held = await holdings.of_table(served, found)
        return held, await holdings.grounds(held, rights)

    return run(lake, ask)


def keys_for(lake: TestLake, table: str, rights: Rights) -> Any:
    """A client with the keys that somebody with these rights gets."""

    async def ask(served: Lake) -> dict[str, str]:
        found, _ = await delegation.find(served, CONTEXT, MAIN, table)
        grounds = await holdings.grounds(await holdings.of_table(served, found), rights)
        wanted = frozenset({delegation.VENDED})
        return (await delegation.delegated(served, CONTEXT, found, grounds, wanted, (MAIN, table))).config

    return vended.client(run(lake, ask))


def files_of(lake: TestLake, table: str) -> list[str]:
    """Data files that DuckDB wrote for a table of this name, whole."""
    query = """SELECT DISTINCT m.value || s.path || t.path || f.path
               FROM ducklake_data_file f JOIN ducklake_table t USING (table_id)
               JOIN ducklake_schema s USING (schema_id), ducklake_metadata m
               WHERE m.key = 'data_path' AND t.table_name = %s AND f.path_is_relative ORDER BY 1"""
    return [row[0] for row in lake.sql(query, table)]


def rows(name: str) -> str:
    return f"CREATE TABLE main.{name} AS SELECT range AS i FROM range(100)"


def test_a_table_that_was_renamed_leaves_its_files_in_the_directory_of_the_next(lake: TestLake) -> None:
    with lake.duckdb() as db:
        db.execute(f"{rows('pay')}; ALTER TABLE main.pay RENAME TO salaries; {rows('pay')}")
    (secret,) = files_of(lake, "salaries")
    (mine,) = [file for file in files_of(lake, "pay") if file != secret]
    assert secret.rpartition("/")[0] == mine.rpartition("/")[0]
    held, grounds = opened(lake, "pay", one_who_may_read())
    assert held.ducklake in grounds.guarded
    assert held.ducklake not in grounds.read
    assert grounds.write == (held.directory,)
    s3 = keys_for(lake, "pay", one_who_may_read())
    assert status(s3.get_object, **at(mine)) == 200
    assert status(s3.get_object, **at(secret)) == DENIED
    directory = at(mine.rpartition("/")[0] + "/")
    assert status(s3.list_objects_v2, Bucket=directory["Bucket"], Prefix=directory["Key"]) == DENIED
    # and the other way round
    s3 = keys_for(lake, "salaries", one_who_may_read())
    assert status(s3.get_object, **at(secret)) == 200
    assert status(s3.get_object, **at(mine)) == DENIED
    # who may read both gets the directory
    s3 = keys_for(lake, "pay", one_who_may_read("main.salaries"))
    assert status(s3.get_object, **at(secret)) == status(s3.get_object, **at(mine)) == 200


def test_so_does_one_that_was_dropped(lake: TestLake) -> None:
    """Its name is the one that it had last."""
    with lake.duckdb() as db:
        db.execute(f"{rows('gone')}; ALTER TABLE main.gone RENAME TO buried; DROP TABLE main.buried; {rows('gone')}")
    held, grounds = opened(lake, "gone", one_who_may_read("main.gone"))
    assert grounds.guarded == (held.ducklake,)
    _, grounds = opened(lake, "gone", one_who_may_read("main.buried"))
    assert grounds.guarded == ()


def test_names_that_differ_in_case_alone_share_a_directory(lake: TestLake) -> None:
    """The store of the suite does not tell them apart in policies."""
    with lake.duckdb() as db:
        db.execute(f'{rows("Cased")}; ALTER TABLE main."Cased" RENAME TO hidden; {rows("cased")}')
    (secret,) = files_of(lake, "hidden")
    held, grounds = opened(lake, "cased", one_who_may_read())
    assert held.ducklake in grounds.guarded
    assert "/Cased/" in secret
    assert status(keys_for(lake, "cased", one_who_may_read()).get_object, **at(secret)) == DENIED


def test_a_guarded_directory_with_too_many_files_is_refused(lake: TestLake) -> None:
    with lake.duckdb() as db:
        db.execute(f"{rows('many')}; ALTER TABLE main.many RENAME TO kept_back; CREATE TABLE main.many(i BIGINT)")
        for _ in range(15):
            db.execute("INSERT INTO main.many SELECT range FROM range(50)")
    with pytest.raises(Forbidden) as refused:
        keys_for(lake, "many", one_who_may_read())
    assert "kept_back" not in refused.value.message


def test_files_from_elsewhere_open_their_directory_if_nobody_else_has_any_there(lake: TestLake) -> None:
    root = lake.settings.data_path or ""
    outside = root.replace("/data/", "/outside")
    with lake.duckdb() as db:
        db.execute("CREATE TABLE main.adds(i BIGINT); CREATE TABLE main.also(i BIGINT)")
        for name in ("own/a", "own/b", "both/a", "both/b"):
            db.execute(f"COPY (SELECT range AS i FROM range(9)) TO '{outside}/{name}.parquet'")
        for table, name in (("adds", "own/a"), ("adds", "both/a"), ("also", "both/b")):
            db.execute(f"CALL ducklake_add_data_files('lake', '{table}', '{outside}/{name}.parquet', schema => 'main')")
    s3 = keys_for(lake, "adds", one_who_may_read())
    assert status(s3.get_object, **at(f"{outside}/own/a.parquet")) == 200
    assert status(s3.get_object, **at(f"{outside}/both/a.parquet")) == 200
    assert status(s3.get_object, **at(f"{outside}/both/b.parquet")) == DENIED
    assert status(s3.put_object, **at(f"{outside}/own/c.parquet"), Body=b"") == DENIED


def test_a_uuid_of_a_table_that_was_dropped_opens_nothing_of_it(lake: TestLake) -> None:
    """A table can be registered under it, and gets the directory that is named by it."""
    with lake.duckdb() as db:
        db.execute(f"{rows('first')}; DROP TABLE main.first; {rows('second')}")
    lake.sql(
        "UPDATE ducklake_table SET table_uuid = (SELECT table_uuid FROM ducklake_table WHERE table_name = 'first') "
        "WHERE table_name = 'second'"
    )
    with pytest.raises(Forbidden):
        opened(lake, "second", one_who_may_read())
    held, grounds = opened(lake, "second", one_who_may_read("main.first"))
    assert held.directory in grounds.read
    assert grounds.write == ()


def test_who_may_not_write_gets_nowhere_to_write(lake: TestLake) -> None:
    with lake.duckdb() as db:
        db.execute(rows("looked_at"))
    _, grounds = opened(lake, "looked_at", one_who_may_read(may_write=False))
    assert grounds.write == ()
    assert grounds.guarded == ()
