"""A client of a lake that commits without a server in between: it loads a table, writes snapshots, and has plans."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mergus.access.context import ANONYMOUS, RequestContext
from mergus.access.privileges import ALL
from mergus.catalog import commit_plan, table_places
from mergus.catalog.commit_plan import Change, Plan
from mergus.catalog.lake import Lake, open_lake
from mergus.catalog.table_cache import Answer
from mergus.iceberg.manifest import DATA, DELETED
from mergus.iceberg.metadata import MAIN, Ref
from mergus.iceberg.namespace import Namespace
from mergus.iceberg.requirements import Requirement
from mergus.iceberg.updates import AddedSnapshot, AddSnapshot, SetRef, Update
from mergus.storage.location import Location
from tests.support.lakes import TestLake
from tests.support.snapshot_writer import SnapshotWriter

NAMESPACE = Namespace.of_schema("main")


@asynccontextmanager
async def opened(lake: TestLake, folder: Path, **settings: object) -> AsyncGenerator[Lake]:
    """What a server process has, with the directories of tables in a local folder, where a client writes fast."""
    changes = {"iceberg_path": str(folder), "format_version": 2, **settings}
    async with open_lake(lake.settings.model_copy(update=changes)) as made:
        yield made


def context() -> RequestContext:
    return RequestContext("updateTable", "request", ANONYMOUS, rights=ALL)


@dataclass
class Client:
    """Of one table, as it was loaded last."""

    lake: Lake
    name: str
    answer: Answer
    writer: SnapshotWriter
    litter: list[Location] = field(default_factory=list[Location])

    @property
    def table_id(self) -> int:
        return self.answer.table.reading.view.table.id

    def change(self, *updates: Update, requirements: Sequence[Requirement] = ()) -> Change:
        return Change(NAMESPACE, self.name, requirements, updates)

    async def plan(self, *updates: Update, requirements: Sequence[Requirement] = ()) -> Plan:
        return await self.plan_change(self.change(*updates, requirements=requirements))

    async def plan_change(self, change: Change) -> Plan:
        table = self.answer.table
        places = await table_places.of_table(self.lake, table)
        return await commit_plan.plan(self.lake, change, table, self.answer.written.metadata, places, self.litter)


def onto_main(*snapshots: AddedSnapshot) -> list[Update]:
    """Updates that add snapshots, each as main, as clients send them."""
    return [u for s in snapshots for u in (AddSnapshot(s), SetRef(MAIN, Ref(s.snapshot_id, "branch")))]


async def load(lake: Lake, name: str) -> Client:
    served = await lake.tables()
    head = await served.look()
    table_id = await served.resolve(NAMESPACE, name, head)
    answer = await served.answer(table_id, head)
    reading = answer.table.reading
    writer = SnapshotWriter(Path("/") / reading.view.layout.directory.key / "client", reading.schema)
    chain = None if reading.main is None else answer.table.chain_of(reading.main)
    if reading.main is not None and chain is not None:
        writer.main = reading.main.snapshot.iceberg_id
        manifests = served.materialiser.shop.manifests
        for manifest in await manifests.read_list(chain.manifest_list):
            for entry in await manifests.read(manifest):
                if entry.status != DELETED:
                    kept = writer.data if entry.data_file.content == DATA else writer.deletes
                    kept[entry.data_file.file_path] = entry.data_file
    return Client(lake, name, answer, writer)
