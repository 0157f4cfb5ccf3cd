"""Directories that hold files of several tables (H22): keys open no more than the grants of who asks."""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from mergus.access.context import ANONYMOUS, RequestContext
from mergus.access.privileges import ALL, Rights
from mergus.access.scopes import parse_grant
from mergus.catalog import delegation, holdings
from mergus.catalog.holdings import Grounds, Holdings
from mergus.catalog.lake import Lake, open_lake
from mergus.errors import Forbidden
from mergus.iceberg.namespace import Namespace
from tests.support import lakes, vended
from tests.support.lakes import TestLake
from tests.support.vended import DENIED, at, status

T = TypeVar("T")
MAIN = Namespace(("main",))
CONTEXT = RequestContext("loadTable", "1", ANONYMOUS, rights=ALL)


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    with lakes.lake(**vended.settings()) as made:
        yield made


@dataclass(frozen=True)
class Who:
    rights: Rights
    may_write: bool


def one_who_may_read(*tables: str, may_write: bool = True) -> Who:
    return Who(Rights(parse_grant(f"table:{table}:r") for table in tables), may_write)


@dataclass
class Serving:
    """The lake as a server has it, in this process: grants are what a test says."""

    lake: Lake
    runner: asyncio.Runner

    def ask(self, what: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(what)


@pytest.fixture(scope="module")
def serving(lake: TestLake) -> Iterator[Serving]:
    with asyncio.Runner() as runner:
        opening = open_lake(lake.settings)
        served = runner.run(opening.__aenter__())
        yield Serving(served, runner)
        runner.run(opening.__aexit__(None, None, None))


def opened(serving: Serving, table: str, who: Who) -> tuple[Holdings, Grounds]:
    async def ask() -> tuple[Holdings, Grounds]:
        found, _ = await delegation.find(serving.lake, CONTEXT, MAIN, table)
        held = await holdings.of_table(serving.lake, found)
        return held, holdings.grounds(held, who.rights, may_write=who.may_write)

    return serving.ask(ask())


def keys_for(serving: Serving, table: str, who: Who) -> Any:
    """A client with the keys that somebody with these rights gets."""

    async def ask() -> dict[str, str]:
        found, _ = await delegation.find(serving.lake, CONTEXT, MAIN, table)
        grounds = holdings.grounds(await holdings.of_table(serving.lake, found), who.rights, may_write=who.may_write)
        wanted = frozenset({delegation.VENDED})
        return (await delegation.delegated(serving.lake, CONTEXT, found, grounds, wanted, (MAIN, table))).config

    return vended.client(serving.ask(ask()))


def files_of(lake: TestLake, table: str) -> list[str]:
    """Data files that DuckDB wrote for a table of this name, whole."""
    query = """SELECT DISTINCT m.value || s.path || t.path || f.path
               FROM ducklake_data_file f JOIN ducklake_table t USING (table_id)
               JOIN ducklake_schema s USING (schema_id), ducklake_metadata m
               WHERE m.key = 'data_path' AND t.table_name = %s AND f.path_is_relative ORDER BY 1"""
    return [row[0] for row in lake.sql(query, table)]


def rows(name: str) -> str:
    return f"CREATE TABLE main.{name} AS SELECT range AS i FROM range(100)"


def test_keys_of_a_table_do_not_open_files_of_a_renamed_table_in_the_same_directory(
    lake: TestLake, serving: Serving
) -> None:
    with lake.duckdb() as db:
        db.execute(f"{rows('pay')}; ALTER TABLE main.pay RENAME TO salaries; {rows('pay')}")
    (secret,) = files_of(lake, "salaries")
    (mine,) = [file for file in files_of(lake, "pay") if file != secret]
    assert secret.rpartition("/")[0] == mine.rpartition("/")[0]
    held, grounds = opened(serving, "pay", one_who_may_read())
    assert held.ducklake in grounds.guarded
    assert held.ducklake not in grounds.read
    assert grounds.write == (held.directory,)
    s3 = keys_for(serving, "pay", one_who_may_read())
    assert status(s3.get_object, **at(mine)) == 200
    assert status(s3.get_object, **at(secret)) == DENIED
    directory = at(mine.rpartition("/")[0] + "/")
    assert status(s3.list_objects_v2, Bucket=directory["Bucket"], Prefix=directory["Key"]) == DENIED
    # and the other way round
    s3 = keys_for(serving, "salaries", one_who_may_read())
    assert status(s3.get_object, **at(secret)) == 200
    assert status(s3.get_object, **at(mine)) == DENIED
    # who may read both gets the directory
    s3 = keys_for(serving, "pay", one_who_may_read("main.salaries"))
    assert status(s3.get_object, **at(secret)) == status(s3.get_object, **at(mine)) == 200


def test_keys_of_a_table_do_not_open_files_of_a_dropped_table_in_the_same_directory(
    lake: TestLake, serving: Serving
) -> None:
    """Its name is the one that it had last."""
    with lake.duckdb() as db:
        db.execute(f"{rows('gone')}; ALTER TABLE main.gone RENAME TO buried; DROP TABLE main.buried; {rows('gone')}")
    held, grounds = opened(serving, "gone", one_who_may_read("main.gone"))
    assert grounds.guarded == (held.ducklake,)
    _, grounds = opened(serving, "gone", one_who_may_read("main.buried"))
    assert grounds.guarded == ()


def test_directories_that_differ_only_in_case_are_guarded_as_one(lake: TestLake, serving: Serving) -> None:
    """The store of the suite does not tell them apart in policies."""
    with lake.duckdb() as db:
        db.execute(f'{rows("Cased")}; ALTER TABLE main."Cased" RENAME TO hidden; {rows("cased")}')
    (secret,) = files_of(lake, "hidden")
    held, grounds = opened(serving, "cased", one_who_may_read())
    assert held.ducklake in grounds.guarded
    assert "/Cased/" in secret
    assert status(keys_for(serving, "cased", one_who_may_read()).get_object, **at(secret)) == DENIED


def test_vending_for_a_guarded_directory_with_too_many_files_is_refused(lake: TestLake, serving: Serving) -> None:
    with lake.duckdb() as db:
        db.execute(f"{rows('many')}; ALTER TABLE main.many RENAME TO kept_back; CREATE TABLE main.many(i BIGINT)")
        for _ in range(15):
            db.execute("INSERT INTO main.many SELECT range FROM range(50)")
    with pytest.raises(Forbidden) as refused:
        keys_for(serving, "many", one_who_may_read())
    assert "kept_back" not in refused.value.message


def test_keys_open_the_directory_of_added_files_unless_other_tables_have_files_there(
    lake: TestLake, serving: Serving
) -> None:
    root = lake.settings.data_path or ""
    outside = root.replace("/data/", "/outside")
    with lake.duckdb() as db:
        db.execute("CREATE TABLE main.adds(i BIGINT); CREATE TABLE main.also(i BIGINT)")
        for name in ("own/a", "own/b", "both/a", "both/b"):
            db.execute(f"COPY (SELECT range AS i FROM range(9)) TO '{outside}/{name}.parquet'")
        for table, name in (("adds", "own/a"), ("adds", "both/a"), ("also", "both/b")):
            db.execute(f"CALL ducklake_add_data_files('lake', '{table}', '{outside}/{name}.parquet', schema => 'main')")
    s3 = keys_for(serving, "adds", one_who_may_read())
    assert status(s3.get_object, **at(f"{outside}/own/a.parquet")) == 200
    assert status(s3.get_object, **at(f"{outside}/both/a.parquet")) == 200
    assert status(s3.get_object, **at(f"{outside}/both/b.parquet")) == DENIED
    assert status(s3.put_object, **at(f"{outside}/own/c.parquet"), Body=b"") == DENIED


def test_a_table_registered_under_the_uuid_of_a_dropped_one_cannot_open_its_files(
    lake: TestLake, serving: Serving
) -> None:
    """A table can be registered under it, and gets the directory that is named by it."""
    with lake.duckdb() as db:
        db.execute(f"{rows('first')}; DROP TABLE main.first; {rows('second')}")
    lake.sql(
        "UPDATE ducklake_table SET table_uuid = (SELECT table_uuid FROM ducklake_table WHERE table_name = 'first') "
        "WHERE table_name = 'second'"
    )
    with pytest.raises(Forbidden):
        opened(serving, "second", one_who_may_read())
    held, grounds = opened(serving, "second", one_who_may_read("main.first"))
    assert held.directory in grounds.read
    assert grounds.write == ()


def test_keys_of_a_reader_open_no_directory_for_writing(lake: TestLake, serving: Serving) -> None:
    with lake.duckdb() as db:
        db.execute(rows("looked_at"))
    _, grounds = opened(serving, "looked_at", one_who_may_read(may_write=False))
    assert grounds.write == ()
    assert grounds.guarded == ()
