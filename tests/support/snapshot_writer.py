"""Snapshots of an Iceberg client that a test makes up: manifests and lists in a local folder, data files only named."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from mergus.config import Settings
from mergus.iceberg import manifest, manifest_list, position_deletes
from mergus.iceberg.manifest import ADDED, DATA, DELETED, EXISTING, POSITION_DELETES, DataFile, Entry
from mergus.iceberg.manifest_list import ManifestFile
from mergus.iceberg.partition_spec import UNPARTITIONED, PartitionSpec, partition_types, spec_json
from mergus.iceberg.schema import Schema, schema_json
from mergus.iceberg.updates import AddedSnapshot
from mergus.storage.objects import Objects
from tests.support.made_tables import SCHEMA

# ids of snapshots that clients make up are large
CLIENTS = 2**40


def local_objects() -> Objects:
    return Objects(Settings())  # pyright: ignore[reportCallIssue]


class SnapshotWriter:
    """Writes all manifests of a table anew with each snapshot."""

    def __init__(self, folder: Path, schema: Schema = SCHEMA, spec: PartitionSpec = UNPARTITIONED) -> None:
        self.folder = folder
        self.schema = schema
        self.spec = spec
        # what main lists
        self.data: dict[str, DataFile] = {}
        self.deletes: dict[str, DataFile] = {}
        self.main: int | None = None
        self.next_id = CLIENTS + 1
        folder.mkdir(parents=True, exist_ok=True)

    def file(self, name: str, rows: int = 10, **about: Any) -> DataFile:
        """One that only has a name, in the folder."""
        return replace(DataFile(DATA, str(self.folder / f"{name}.parquet"), "PARQUET", (), rows, 100), **about)

    def snapshot(
        self,
        operation: str,
        add: Iterable[DataFile] = (),
        remove: Iterable[str] = (),
        delete: Mapping[str, Iterable[int]] | None = None,
        lift: Iterable[str] = (),
        **changes: Any,
    ) -> AddedSnapshot:
        """`delete` are positions by path, and `lift` delete files that go."""
        snapshot_id, self.next_id = self.next_id, self.next_id + 1
        new = [*add, *([self._delete_file(delete)] if delete else [])]
        for path in remove:
            del self.data[path]
        for path in lift:
            del self.deletes[path]
        manifests: list[ManifestFile] = []
        for kept, is_data in ((self.data, True), (self.deletes, False)):
            mine = [file for file in new if (file.content == DATA) == is_data]
            entries = [Entry(EXISTING, 1, 1, 1, file) for file in kept.values()]
            entries += [Entry(ADDED, snapshot_id, None, None, file) for file in mine]
            if entries:
                manifests.append(self._manifest(entries, snapshot_id, is_data=is_data))
            kept.update((file.file_path, file) for file in mine)
        told = AddedSnapshot(
            *(snapshot_id, self.main, None, 0, self._list(manifests, snapshot_id)),
            {"operation": operation},
            schema_id=None,
        )
        self.main = snapshot_id
        return replace(told, **changes)

    def _delete_file(self, delete: Mapping[str, Iterable[int]]) -> DataFile:
        data = position_deletes.write(delete)
        path = self._put(f"deletes-{uuid4()}.parquet", data)
        count = len(position_deletes.read(data).positions)
        about = next(iter(delete)) if len(delete) == 1 else None
        return DataFile(POSITION_DELETES, path, "PARQUET", (), count, len(data), referenced_data_file=about)

    def _manifest(self, entries: Sequence[Entry], snapshot_id: int, *, is_data: bool) -> ManifestFile:
        data = manifest.write(
            entries,
            schema_json=schema_json(self.schema, 0, 2),
            schema_id=0,
            spec_json=spec_json(self.spec)["fields"],
            spec_id=self.spec.spec_id,
            partition_types=partition_types(self.spec, self.schema),
            content="data" if is_data else "deletes",
            format_version=2,
        )
        counts = [sum(e.status == s for e in entries) for s in (ADDED, EXISTING, DELETED)]
        rows = [sum(e.data_file.record_count for e in entries if e.status == s) for s in (ADDED, EXISTING, DELETED)]
        return ManifestFile(
            manifest_path=self._put(f"{uuid4()}-m0.avro", data),
            manifest_length=len(data),
            partition_spec_id=self.spec.spec_id,
            content=manifest_list.DATA if is_data else manifest_list.DELETES,
            sequence_number=8,
            min_sequence_number=1,
            added_snapshot_id=snapshot_id,
            added_files_count=counts[0],
            existing_files_count=counts[1],
            deleted_files_count=counts[2],
            added_rows_count=rows[0],
            existing_rows_count=rows[1],
            deleted_rows_count=rows[2],
        )

    def _list(self, manifests: Sequence[ManifestFile], snapshot_id: int) -> str:
        data = manifest_list.write(
            manifests,
            snapshot_id=snapshot_id,
            parent_snapshot_id=self.main,
            sequence_number=8,
            format_version=2,
            first_row_id=None,
        )
        return self._put(f"snap-{snapshot_id}-{uuid4()}.avro", data)

    def _put(self, name: str, data: bytes) -> str:
        path = self.folder / name
        path.write_bytes(data)
        return str(path)
