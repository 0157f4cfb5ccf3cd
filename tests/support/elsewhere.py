"""Tables of another catalog, which knows nothing of the lake: their metadata files are all that there is of them."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Properties

from mergus.config import Settings
from tests.support import loads
from tests.support.lakes import TestLake
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
