"""Deletes that PyIceberg cannot write, as commits of REST: position delete files, deletion vectors, equality deletes.

Written as a client would that goes by the specification: from what a load answered, without asking the lake.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV1
from pyroaring import BitMap64

from mergus.iceberg import deletion_vector, manifest, manifest_list, position_deletes, puffin
from mergus.iceberg.manifest import DATA, DELETED, EXISTING, POSITION_DELETES, DataFile, Entry, PartitionField
from mergus.iceberg.manifest_list import DELETES, ManifestFile

Json = dict[str, Any]
Positions = Mapping[str, Iterable[int]]


@dataclass(frozen=True, slots=True)
class Listed:
    """A live file, with what it inherits."""

    entry: Entry
    spec_id: int

    @property
    def file(self) -> DataFile:
        return self.entry.data_file

    @property
    def place(self) -> tuple[int, tuple[manifest.PartitionValue, ...]]:
        return self.spec_id, self.file.partition


@dataclass
class Deleting:
    """One snapshot on top of main that takes rows out of a table."""

    table: Table

    def __post_init__(self) -> None:
        # as other clients do: from 63 bits, and never one of DuckLake's
        self.snapshot_id = random.SystemRandom().randrange(2**40, 2**63)
        self.manifests = [] if self.main is None else self._manifests()

    @property
    def sequence_number(self) -> int:
        assert not isinstance(self.table.metadata, TableMetadataV1)
        return self.table.metadata.last_sequence_number + 1

    @property
    def main(self) -> int | None:
        return self.table.metadata.current_snapshot_id

    def data_files(self) -> list[Listed]:
        return [f for m in self.manifests for f in self._files(m) if f.file.content == DATA]

    def by_positions(self, positions: Positions) -> Json:
        """As the table's format version has it."""
        v3 = self.table.metadata.format_version >= 3
        return self._by_vectors(positions) if v3 else self._by_files(positions)

    def by_values(self, column: str, values: Sequence[Any]) -> Json:
        """Wherever the rows are: a delete of the unpartitioned spec is about all partitions."""
        field = self.table.schema().find_field(column)
        arrow = self.table.schema().as_arrow().field(column).with_nullable(True)
        rows = pa.table({column: pa.array(values, arrow.type)}, pa.schema([arrow]))
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink)
        path, size = self._put("data", "parquet", sink.getvalue().to_pybytes())
        spec_id = next(i for i, spec in self.table.specs().items() if not spec.fields)
        file = DataFile(
            content=manifest.EQUALITY_DELETES,
            file_path=path,
            file_format="PARQUET",
            partition=(),
            record_count=len(values),
            file_size_in_bytes=size,
            equality_ids=[field.field_id],
        )
        return self._commit([*self.manifests, self._delete_manifest(spec_id, [self._added(file)])], len(values), 0)

    def _by_files(self, positions: Positions) -> Json:
        """One delete file for all data files of a partition, as Spark writes them."""
        at: dict[tuple[int, tuple[manifest.PartitionValue, ...]], dict[str, Iterable[int]]] = {}
        for listed in self.data_files():
            if listed.file.file_path in positions:
                at.setdefault(listed.place, {})[listed.file.file_path] = positions[listed.file.file_path]
        written: dict[int, list[Entry]] = {}
        count = 0
        for (spec_id, partition), deletes in at.items():
            path, size = self._put("data", "parquet", position_deletes.write(deletes))
            rows = sum(len(set(p)) for p in deletes.values())
            count += rows
            file = DataFile(POSITION_DELETES, path, "PARQUET", partition, rows, size)
            written.setdefault(spec_id, []).append(self._added(file))
        made = [self._delete_manifest(spec_id, entries) for spec_id, entries in written.items()]
        return self._commit([*self.manifests, *made], 0, count)

    def _by_vectors(self, positions: Positions) -> Json:
        """One vector for each data file, with what the one before it had; that one goes."""
        manifests: list[ManifestFile] = []
        before: dict[str, BitMap64] = {}
        for m in self.manifests:
            files = self._files(m)
            replaced = {f.file.file_path for f in files if f.file.referenced_data_file in positions}
            if m.content != DELETES or not replaced:
                manifests.append(m)
                continue
            entries: list[Entry] = []
            for f in files:
                goes = f.file.referenced_data_file in positions
                if goes:
                    assert f.file.referenced_data_file is not None
                    before[f.file.referenced_data_file] = self._vector(f.file)
                snapshot_id = self.snapshot_id if goes else f.entry.snapshot_id
                entries.append(replace(f.entry, status=DELETED if goes else EXISTING, snapshot_id=snapshot_id))
            manifests.append(self._delete_manifest(m.partition_spec_id, entries))
        written: dict[int, list[Entry]] = {}
        for listed in self.data_files():
            path = listed.file.file_path
            if path not in positions:
                continue
            deleted = BitMap64(positions[path]) | before.get(path, BitMap64())
            made = puffin.write([puffin.deletion_vector(path, deleted)], {puffin.CREATED_BY: "test"})
            address, size = self._put("data", "puffin", made.data)
            file = DataFile(
                content=POSITION_DELETES,
                file_path=address,
                file_format="PUFFIN",
                partition=listed.file.partition,
                record_count=len(deleted),
                file_size_in_bytes=size,
                referenced_data_file=path,
                content_offset=made.blobs[0].offset,
                content_size_in_bytes=made.blobs[0].length,
            )
            written.setdefault(listed.spec_id, []).append(self._added(file))
        manifests += [self._delete_manifest(spec_id, entries) for spec_id, entries in written.items()]
        return self._commit(manifests, 0, sum(len(set(p)) for p in positions.values()))

    def _vector(self, file: DataFile) -> BitMap64:
        assert file.content_offset is not None
        assert file.content_size_in_bytes is not None
        data = self._get(file.file_path)
        return deletion_vector.decode(data[file.content_offset :][: file.content_size_in_bytes])

    def _manifests(self) -> list[ManifestFile]:
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        return manifest_list.read(self._get(snapshot.manifest_list))[1]

    def _files(self, listing: ManifestFile) -> list[Listed]:
        entries = manifest.read(self._get(listing.manifest_path))[1]
        return [Listed(_inherited(e, listing), listing.partition_spec_id) for e in entries if e.status != DELETED]

    def _added(self, file: DataFile) -> Entry:
        return Entry(manifest.ADDED, self.snapshot_id, None, None, file)

    def _delete_manifest(self, spec_id: int, entries: Sequence[Entry]) -> ManifestFile:
        spec = self.table.specs()[spec_id]
        data = manifest.write(
            entries,
            schema_json=self.table.schema().model_dump(mode="json", by_alias=True),
            schema_id=self.table.schema().schema_id,
            spec_json=[f.model_dump(mode="json", by_alias=True) for f in spec.fields],
            spec_id=spec_id,
            partition_types=self._partition_types(spec),
            content="deletes",
            format_version=self.table.metadata.format_version,
        )
        path, size = self._put("metadata", "avro", data)

        def counted(status: int, count: Callable[[Entry], int] = lambda _: 1) -> int:
            return sum(count(e) for e in entries if e.status == status)

        def rows(e: Entry) -> int:
            return e.data_file.record_count

        live = [e.sequence_number for e in entries if e.status != DELETED and e.sequence_number is not None]
        return ManifestFile(
            manifest_path=path,
            manifest_length=size,
            partition_spec_id=spec_id,
            content=DELETES,
            sequence_number=self.sequence_number,
            min_sequence_number=min([*live, self.sequence_number]),
            added_snapshot_id=self.snapshot_id,
            added_files_count=counted(manifest.ADDED),
            existing_files_count=counted(EXISTING),
            deleted_files_count=counted(DELETED),
            added_rows_count=counted(manifest.ADDED, rows),
            existing_rows_count=counted(EXISTING, rows),
            deleted_rows_count=counted(DELETED, rows),
        )

    def _partition_types(self, spec: PartitionSpec) -> list[PartitionField]:
        """By the newest schema that has the column: it may be gone since."""
        schemas = [self.table.schema(), *reversed(self.table.metadata.schemas)]
        found: list[PartitionField] = []
        for f in spec.fields:
            source = next(s.find_type(f.source_id) for s in schemas if f.source_id in s._lazy_id_to_field)  # pyright: ignore[reportPrivateUsage]
            found.append(PartitionField(f.name, f.field_id, str(f.transform.result_type(source))))
        return found

    def _commit(self, manifests: Sequence[ManifestFile], by_value: int, by_position: int) -> Json:
        """The body of the request."""
        metadata = self.table.metadata
        next_row_id = getattr(metadata, "next_row_id", None) if metadata.format_version >= 3 else None
        data = manifest_list.write(
            manifests,
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=self.main,
            sequence_number=self.sequence_number,
            format_version=metadata.format_version,
            first_row_id=next_row_id,
        )
        path, _ = self._put("metadata", "avro", data)
        snapshot: Json = {
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": self.main,
            "sequence-number": self.sequence_number,
            "timestamp-ms": max(time.time_ns() // 1_000_000, metadata.last_updated_ms),
            "manifest-list": path,
            "summary": {
                "operation": "delete",
                "added-position-deletes": str(by_position),
                "added-equality-deletes": str(by_value),
            },
            "schema-id": metadata.current_schema_id,
        }
        if next_row_id is not None:
            snapshot |= {"first-row-id": next_row_id, "added-rows": 0}
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": self.snapshot_id}
        return {
            "requirements": [
                {"type": "assert-table-uuid", "uuid": str(metadata.table_uuid)},
                {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": self.main},
            ],
            "updates": [{"action": "add-snapshot", "snapshot": snapshot}, ref],
        }

    def _get(self, address: str) -> bytes:
        with self.table.io.new_input(address).open() as stream:
            return stream.read()

    def _put(self, folder: str, kind: str, data: bytes) -> tuple[str, int]:
        address = f"{self.table.location().rstrip('/')}/{folder}/{uuid4()}.{kind}"
        with self.table.io.new_output(address).create() as stream:
            stream.write(data)
        return address, len(data)


def _inherited(entry: Entry, listing: ManifestFile) -> Entry:
    snapshot_id = listing.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id
    if entry.sequence_number is not None:
        return replace(entry, snapshot_id=snapshot_id)
    number = listing.sequence_number
    return replace(entry, snapshot_id=snapshot_id, sequence_number=number, file_sequence_number=number)
