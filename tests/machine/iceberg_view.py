"""What an Iceberg reader sees of a table, out of the metadata that a load answered: rows, and the files behind them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import fastavro
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot

from mergus.config import Settings

# of a manifest's files, and of its entries
DATA: Final = 0
DELETED: Final = 2


@dataclass(frozen=True, slots=True)
class Rows:
    """Column names, and each row as often as it is there. Values are kept as text, in which a NaN equals itself."""

    columns: tuple[str, ...]
    counts: Counter[str]

    @classmethod
    def of(cls, columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> "Rows":
        return cls(tuple(columns), Counter(repr(tuple(row)) for row in rows))

    def __len__(self) -> int:
        return self.counts.total()

    def difference(self, other: "Rows") -> str:
        only, missing = self.counts - other.counts, other.counts - self.counts
        names = "" if self.columns == other.columns else f"columns {self.columns} and not {other.columns}; "
        return (
            f"{names}{len(self)} rows and not {len(other)}; too many {list(only.items())[:8]}, "
            f"missing {list(missing.items())[:8]}"
        )


def file_io(settings: Settings) -> FileIO:
    secret = settings.s3_secret_access_key
    properties = {
        "s3.endpoint": settings.s3_endpoint or "",
        "s3.access-key-id": settings.s3_access_key_id or "",
        "s3.secret-access-key": secret.get_secret_value() if secret else "",
        "s3.region": settings.s3_region,
    }
    return load_file_io(properties, "s3://mergus/")


@dataclass(frozen=True, slots=True)
class IcebergView:
    table: Table

    @classmethod
    def of(cls, metadata: dict[str, Any], io: FileIO) -> "IcebergView":
        parsed = TableMetadataUtil.parse_obj(metadata)
        return cls(Table(("machine", "table"), parsed, "", io, NoopCatalog("machine")))

    @property
    def snapshots(self) -> list[Snapshot]:
        return self.table.metadata.snapshots

    def rows(self, snapshot_id: int | None = None) -> Rows:
        """Now, or as of a snapshot with the schema that it names."""
        found = self.table.scan(snapshot_id=snapshot_id).to_arrow()
        return Rows.of(found.column_names, zip(*(column.to_pylist() for column in found.columns), strict=True))

    def key(self, snapshot: Snapshot) -> tuple[str, str]:
        """Equal only for what shows the same rows: objects never change under one name."""
        schema = next(s for s in self.table.metadata.schemas if s.schema_id == snapshot.schema_id)
        return snapshot.manifest_list, schema.model_dump_json()

    def check_files(self, snapshot: Snapshot, known_to_exist: set[str]) -> None:
        """No file is listed twice, every delete is about a file that is listed, and all of them are there."""
        data: Counter[str] = Counter()
        deleted_from: Counter[str] = Counter()
        for file in self._live_files(snapshot):
            path: str = file["file_path"]
            if file["content"] == DATA:
                data[path] += 1
            else:
                # one set for each data file, whatever DuckLake has it in
                deleted_from[file["referenced_data_file"]] += 1
            if path not in known_to_exist:
                assert self.table.io.new_input(path).exists(), f"snapshot {snapshot.snapshot_id}: {path} is missing"
                known_to_exist.add(path)
        assert max(data.values(), default=1) == 1, f"{snapshot.snapshot_id} lists a file twice: {data}"
        assert max(deleted_from.values(), default=1) == 1, f"{snapshot.snapshot_id}: {deleted_from}"
        assert deleted_from.keys() <= data.keys(), f"{snapshot.snapshot_id} deletes from files that are not there"

    def _live_files(self, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
        for manifest in self._avro(snapshot.manifest_list):
            for entry in self._avro(manifest["manifest_path"]):
                if entry["status"] != DELETED:
                    yield entry["data_file"]

    def _avro(self, path: str) -> list[dict[str, Any]]:
        with self.table.io.new_input(path).open() as stream:
            return list(fastavro.reader(BytesIO(stream.read())))  # pyright: ignore[reportReturnType]
