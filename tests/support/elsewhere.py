"""Tables of another catalog, which knows nothing of the lake: their metadata files are all that there is of them."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import duckdb
import httpx
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, StaticTable, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Properties

from mergus.config import Settings
from mergus.ducklake.session import s3_secret, with_extensions
from mergus.iceberg.manifest_list import DATA, ManifestFile
from tests.support import loads
from tests.support.lakes import Row, TestLake
from tests.support.servers import Server
from tests.support.writers import Raw

Json = dict[str, Any]


class Elsewhere(NoopCatalog, MetastoreCatalog):  # pyright: ignore[reportUnsafeMultipleInheritance]
    """A catalog in memory for PyIceberg."""

    def __init__(self, settings: Settings, warehouse: str) -> None:
        super().__init__("elsewhere", warehouse=warehouse, **loads.s3_properties(settings))
        self._at: dict[tuple[str, ...], str] = {}

    def create_table(self, identifier: Any, schema: Any, *args: Any, **more: Any) -> Table:
        staged = self._create_staged_table(identifier, schema, *args, **more)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self._at[self.identifier_to_tuple(identifier)] = staged.metadata_location
        return self.load_table(identifier)

    def load_namespace_properties(self, namespace: Any) -> Properties:
        return {}

    def load_table(self, identifier: Any) -> Table:
        name = self.identifier_to_tuple(identifier)
        io = load_file_io(self.properties, self._at[name])
        return Table(name, FromInputFile.table_metadata(io.new_input(self._at[name])), self._at[name], io, self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        staged = self._update_and_stage_table(self.load_table(table.name()), table.name(), requirements, updates)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self._at[table.name()] = staged.metadata_location
        return CommitTableResponse(**{"metadata": staged.metadata, "metadata-location": staged.metadata_location})


@dataclass
class RawElsewhere(Raw):
    """A table that is written file by file, of whichever version."""

    versions: list[str] = field(default_factory=list[str])

    def refresh(self) -> "RawElsewhere":
        raise NotImplementedError

    def manifests(self) -> list[ManifestFile]:
        """One from before version 3 gets row ids with the first list of version 3, and they count from 0."""
        found, free = super().manifests(), 0
        for index, file in enumerate(found):
            if self.version >= 3 and file.content == DATA and file.first_row_id is None:
                found[index] = replace(file, first_row_id=free)
                free += file.added_rows_count + file.existing_rows_count
        return found

    @property
    def metadata_location(self) -> str:
        return self.versions[-1]

    def save(self, **changes: Any) -> str:
        """As the next metadata file."""
        self.base |= {"last-updated-ms": int(time.time() * 1000), **changes}
        path = f"{self.base['location']}/metadata/{len(self.versions):05}-{uuid4()}.metadata.json"
        self.bucket.put(path, json.dumps(self.base).encode())
        self.versions.append(path)
        return path

    def send(
        self, updates: Sequence[dict[str, Any]], requirements: Sequence[dict[str, Any]] | None = None
    ) -> httpx.Response:
        for update in updates:
            if update["action"] == "add-snapshot":
                snapshot = update["snapshot"]
                self.base["snapshots"] = [*self.base["snapshots"], snapshot]
                self.base["last-sequence-number"] = snapshot["sequence-number"]
                self.base["current-snapshot-id"] = snapshot["snapshot-id"]
                self.base["refs"] = {"main": {"type": "branch", "snapshot-id": snapshot["snapshot-id"]}}
                if self.version >= 3:
                    self.base["next-row-id"] += snapshot["added-rows"]
        self.save()
        return httpx.Response(200, json={"metadata": self.base})


def raw_table(lake: TestLake, server: Server, location: str, fields: Sequence[Json], version: int = 2) -> RawElsewhere:
    """An empty one, of this format version."""
    base: Json = {
        "format-version": version,
        "table-uuid": str(uuid4()),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": 1,
        "last-column-id": max(f["id"] for f in fields),
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": list(fields)}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "snapshots": [],
    }
    made = RawElsewhere(lake, server, base=base | ({"next-row-id": 0} if version >= 3 else {}))
    made.save()
    return made


def register(server: Server, schema: str, name: str, metadata_location: str, **more: Any) -> httpx.Response:
    body = {"name": name, "metadata-location": metadata_location, **more}
    return server.http.post(f"{server.path(schema)}/register", json=body)


def warehouse(lake: TestLake) -> str:
    """A place beside the lake's own, for servers to allow."""
    return f"{lake.settings.data_path}".rstrip("/").rsplit("/", 1)[0] + "/elsewhere"


def history(lake: TestLake, metadata_location: str) -> list[int]:
    """The ids of the current snapshot and of those that it came from, the oldest first."""
    told = json.loads(loads.Bucket(lake.settings).get(metadata_location))
    known = {s["snapshot-id"]: s for s in told["snapshots"]}
    found: list[int] = []
    at: int | None = told["current-snapshot-id"]
    while at is not None and at in known:
        found.append(at)
        at = known[at].get("parent-snapshot-id")
    return found[::-1]


def in_pyiceberg(lake: TestLake, metadata_location: str, ids: Sequence[int]) -> dict[int, list[Row]]:
    """The table as the other catalog's readers see it at these snapshots."""
    table = StaticTable.from_metadata(metadata_location, loads.s3_properties(lake.settings))
    return {i: loads.rows(table.scan(snapshot_id=i).to_arrow()) for i in ids}


def in_duckdb(lake: TestLake, metadata_location: str, ids: Sequence[int]) -> dict[int, list[Row]]:
    """The same by DuckDB's iceberg extension, which knows equality deletes, and knows nothing of the lake."""
    with with_extensions("httpfs", "avro", "iceberg") as session:
        session.execute(s3_secret(lake.settings))
        query = f"SELECT * FROM iceberg_scan('{metadata_location}', snapshot_from_id => ?)"
        return {i: loads.in_order(session.execute(query, [i]).fetchall()) for i in ids}


def assert_shown(
    lake: TestLake,
    server: Server,
    db: duckdb.DuckDBPyConnection,
    schema: str,
    wanted: Mapping[int, list[Row]],
    table: str = "t",
) -> list[Json]:
    """The table's history begins with these snapshots, and PyIceberg and DuckDB read at each of them just these rows.
    Gives the summaries of them."""
    loaded = loads.catalog(lake.settings, server).load_table((schema, table))
    shown = loads.load(server, table, schema)["snapshots"][: len(wanted)]
    assert [s["snapshot-id"] for s in shown] == list(wanted)
    assert [s.get("parent-snapshot-id") for s in shown] == [None, *list(wanted)[:-1]]
    for snapshot in shown:
        found, at = wanted[snapshot["snapshot-id"]], snapshot["summary"]["ducklake.snapshot-id"]
        assert loads.rows(loaded.scan(snapshot_id=snapshot["snapshot-id"]).to_arrow()) == found, at
        query = f"SELECT * FROM lake.{schema}.{table} AT (VERSION => {at})"
        assert loads.in_order(db.execute(query).fetchall()) == found, at
    return [s["summary"] for s in shown]
