"""A process is held up between writing the objects of a chain and noting it, and a sweep without any grace comes in
between: it takes objects of the very names that the chain has, or those that it is made from. Both have to hold."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import uuid4

import duckdb
import pytest

from mergus.ducklake.connect import Pool, connection, open_pool
from mergus.ducklake.metadata import check_served
from mergus.maintenance.removal import Swept
from mergus.maintenance.sweep import SweepOptions, sweep
from mergus.materialise.layout import root_beside
from mergus.materialise.reading import Place
from mergus.materialise.table import Materialiser
from mergus.storage.location import Location
from mergus.storage.objects import Objects
from tests.support import loads, servers
from tests.support.lakes import TestLake
from tests.support.loads import load
from tests.support.servers import Server


class Halting(Objects):
    """Of the real store; waits when a manifest list has been written for the first time."""

    written: asyncio.Event
    go_on: asyncio.Event

    async def put(self, location: Location, content: bytes) -> None:
        await super().put(location, content)
        if "/snap-" in str(location) and not self.written.is_set():
            self.written.set()
            await self.go_on.wait()


@dataclass
class Story:
    lake: TestLake
    server: Server
    db: duckdb.DuckDBPyConnection
    schema: str
    swept: list[Swept] = field(default_factory=list[Swept])

    def forget(self) -> None:
        """What a process does that finds objects damaged."""
        self.lake.sql("DELETE FROM chain WHERE table_id = %s", self.table_id)
        self.lake.sql("UPDATE catalog SET epoch = epoch + 1")

    @property
    def table_id(self) -> int:
        query = "SELECT table_id FROM ducklake_table JOIN ducklake_schema s USING (schema_id) WHERE schema_name = %s"
        ((found,),) = self.lake.sql(query, self.schema)
        return found

    async def meet(self, meanwhile: Callable[[], None] | None = None) -> None:
        """A process makes the table's chains, and is overtaken by a sweep."""
        settings = self.lake.settings
        objects = Halting(settings)
        objects.written, objects.go_on = asyncio.Event(), asyncio.Event()
        async with open_pool(settings) as pool:
            place = await _place(pool, self.lake)
            making = asyncio.create_task(Materialiser(pool, objects, place).table(self.table_id, patience=10))
            await asyncio.wait_for(objects.written.wait(), 20)
            if meanwhile is not None:
                meanwhile()
            self.swept.append(await sweep(pool, Objects(settings), place, SweepOptions(timedelta())))
            objects.go_on.set()
            made = await making
            assert made.missing_from is None

    def readable(self) -> None:
        loads.assert_readable(self.lake, self.server, self.db, schema=self.schema)


async def _place(pool: Pool, lake: TestLake) -> Place:
    async with connection(pool) as conn:
        metadata = await check_served(conn, lake.settings.metadata_schema)
    root = root_beside(metadata.location, lake.settings.iceberg_path)
    return Place(lake.settings.metadata_schema, metadata.location, root, lake.settings.format_version)


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Nobody makes anything before it is asked for."""
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), listener="off") as running:
        yield running


@pytest.fixture
def story(lake: TestLake, server: Server) -> Iterator[Story]:
    schema = f"s_{uuid4().hex[:8]}"
    with lake.duckdb() as db:
        db.execute(f"CREATE SCHEMA {schema}; USE lake.{schema}; CREATE TABLE t(i INTEGER)")
        db.execute("INSERT INTO t SELECT range FROM range(40)")
        yield Story(lake, server, db, schema)


def test_a_manifest_list_written_again_while_a_sweep_deletes_it_exists_afterwards(story: Story) -> None:
    """The one chain of the table is made again, and comes out the same to the last byte."""
    before = load(story.server, schema=story.schema)["snapshots"]
    story.forget()
    asyncio.run(story.meet())
    assert story.swept[0].kinds["lists"] == 1
    after = load(story.server, schema=story.schema)["snapshots"]
    assert [s["manifest-list"] for s in after] == [s["manifest-list"] for s in before]
    story.readable()


def test_new_metadata_does_not_build_on_a_manifest_list_that_a_sweep_deleted(story: Story) -> None:
    story.db.execute("INSERT INTO t VALUES (100)")
    load(story.server, schema=story.schema)
    story.db.execute("INSERT INTO t VALUES (101)")
    asyncio.run(story.meet(meanwhile=story.forget))
    assert story.swept[0].kinds["lists"] == 2
    story.readable()
    story.db.execute("DELETE FROM t WHERE i IN (3, 100)")
    story.readable()
