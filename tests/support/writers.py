"""Writers on the Iceberg side: PyIceberg, and one that builds its manifests itself, for what no client here can write.

`Raw` is a table as a client has loaded it. It stays at that state until `refresh`, so it can be made to commit on a
stale base. `commit` uploads manifests and sends the commit; it gives the answer and asserts nothing.

    raw = Raw(lake, server, "t")
    raw.commit("append", add=[raw.data_file(rows(1, 2))])
    raw.commit("delete", deletes=[raw.position_deletes(raw.places(lambda row: row["i"] == 1))])
    raw.commit("delete", deletes=raw.vectors(raw.places(lambda row: row["i"] == 2)))
    raw.commit("overwrite", remove=raw.paths(), add=[...])
"""

import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import getrandbits
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, StringType

from mergus.iceberg import deletion_vector, manifest, manifest_list, position_deletes, puffin
from mergus.iceberg.manifest import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    POSITION_DELETES,
    DataFile,
    Entry,
    PartitionField,
)
from mergus.iceberg.manifest_list import ManifestFile
from tests.support import loads
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, Metadata
from tests.support.servers import Server

ROW_ID = 2147483540
Place = tuple[str, int]


def rows(*numbers: int, text: str = "w") -> pa.Table:
    """Of the table t(i INTEGER, s VARCHAR)."""
    values = {"i": pa.array(numbers, pa.int32()), "s": pa.array([text] * len(numbers), pa.string())}
    return pa.table(values)


@dataclass
class Raw:
    lake: TestLake
    server: Server
    table: str = "t"
    schema: str = "main"
    # the table as it was loaded last
    base: Metadata = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.bucket = Bucket(self.lake.settings)
        if not self.base:
            self.refresh()

    def refresh(self) -> "Raw":
        self.base = loads.load(self.server, self.table, self.schema)
        return self

    @property
    def version(self) -> int:
        return self.base["format-version"]

    @property
    def current(self) -> int | None:
        found = self.base.get("current-snapshot-id")
        return None if found in (None, -1) else found

    def iceberg_schema(self) -> Schema:
        (found,) = [s for s in self.base["schemas"] if s["schema-id"] == self.base["current-schema-id"]]
        return Schema.model_validate(found)

    # what the table lists

    def manifests(self) -> list[ManifestFile]:
        if self.current is None:
            return []
        (snapshot,) = [s for s in self.base["snapshots"] if s["snapshot-id"] == self.current]
        return manifest_list.read(self.bucket.get(snapshot["manifest-list"]))[1]

    def entries(self, content: int = manifest_list.DATA) -> list[Entry]:
        """The live ones, with all that they inherit."""
        return [e for file in self.manifests() if file.content == content for e in self._read(file)]

    def paths(self) -> list[str]:
        """Of the live data files."""
        return [e.data_file.file_path for e in self.entries()]

    def places(self, wanted: Callable[[dict[str, Any]], bool]) -> list[Place]:
        """Where rows are, deleted or not: files and positions."""
        found: list[Place] = []
        for path in self.paths():
            content = pq.read_table(io.BytesIO(self.bucket.get(path))).to_pylist()
            found += [(path, position) for position, row in enumerate(content) if wanted(row)]
        return found

    def deleted(self, path: str) -> set[int]:
        """Positions that the table lists as deleted from a data file by position."""
        found: set[int] = set()
        for e in self.entries(manifest_list.DELETES):
            file = e.data_file
            if file.file_format == "PUFFIN" and file.referenced_data_file == path:
                assert file.content_offset is not None
                assert file.content_size_in_bytes is not None
                end = file.content_offset + file.content_size_in_bytes
                found |= set(deletion_vector.decode(self.bucket.get(file.file_path)[file.content_offset : end]))
            elif file.file_format == "PARQUET" and file.content == POSITION_DELETES:
                read = position_deletes.read(self.bucket.get(file.file_path))
                found |= {pos for at, pos in zip(read.file_paths, read.positions, strict=True) if at == path}
        return found

    def _read(self, file: ManifestFile) -> list[Entry]:
        _, found = manifest.read(self.bucket.get(file.manifest_path))
        live: list[Entry] = []
        next_row_id = file.first_row_id
        for e in found:
            row_id = e.data_file.first_row_id
            if row_id is None and next_row_id is not None and e.status != DELETED:
                row_id, next_row_id = next_row_id, next_row_id + e.data_file.record_count
            if e.status == DELETED:
                continue
            live.append(
                Entry(
                    EXISTING,
                    file.added_snapshot_id if e.snapshot_id is None else e.snapshot_id,
                    file.sequence_number if e.sequence_number is None else e.sequence_number,
                    file.sequence_number if e.file_sequence_number is None else e.file_sequence_number,
                    replace(e.data_file, first_row_id=row_id),
                )
            )
        return live

    # files to commit

    def put(self, content: bytes, folder: str = "data", ending: str = "parquet") -> str:
        path = f"{self.base['location']}/{folder}/{uuid4()}.{ending}"
        self.bucket.put(path, content)
        return path

    def data_file(
        self,
        content: pa.Table,
        *,
        ids: bool = True,
        stats: bool = True,
        row_ids: Sequence[int | None] | None = None,
        partition: tuple[Any, ...] = (),
    ) -> DataFile:
        """With field ids or without. `row_ids` go into the file itself, as a writer that moves rows does it."""
        counted = self._stats(content) if stats else {}
        if stats and row_ids is not None:
            # as Java counts them
            counted["value_counts"][ROW_ID] = len(row_ids)
            counted["null_value_counts"][ROW_ID] = row_ids.count(None)
        data = self._parquet(content, ids=ids, row_ids=row_ids)
        return DataFile(DATA, self.put(data), "PARQUET", partition, content.num_rows, len(data), **counted)

    def position_deletes(self, places: Sequence[Place]) -> DataFile:
        """One Parquet file, with its rows in just this order, as often as they are given."""
        schema = pa.schema(
            [
                _with_id(pa.field("file_path", pa.string(), nullable=False), position_deletes.FILE_PATH_ID),
                _with_id(pa.field("pos", pa.int64(), nullable=False), position_deletes.POSITION_ID),
            ]
        )
        columns = [pa.array([path for path, _ in places]), pa.array([pos for _, pos in places], pa.int64())]
        data = _written(pa.Table.from_arrays(columns, schema=schema))
        return DataFile(POSITION_DELETES, self.put(data), "PARQUET", (), len(places), len(data))

    def vectors(self, places: Sequence[Place]) -> list[DataFile]:
        """One Puffin file with a vector for each data file: these positions and those deleted before."""
        by_file = defaultdict[str, set[int]](set)
        for path, position in places:
            by_file[path].add(position)
        whole = {path: found | self.deleted(path) for path, found in sorted(by_file.items())}
        blobs = [puffin.deletion_vector(path, found) for path, found in whole.items()]
        made = puffin.write(blobs, {puffin.CREATED_BY: "a test"})
        path = self.put(made.data, ending="puffin")
        return [
            DataFile(
                *(POSITION_DELETES, path, "PUFFIN", (), len(found), len(made.data)),
                referenced_data_file=data_file,
                content_offset=blob.offset,
                content_size_in_bytes=blob.length,
            )
            for blob, (data_file, found) in zip(made.blobs, whole.items(), strict=True)
        ]

    def deletes(self, places: Sequence[Place]) -> list[DataFile]:
        """As the table's format version has it."""
        return self.vectors(places) if self.version >= 3 else [self.position_deletes(places)]

    def equality_deletes(self, content: pa.Table, partition: tuple[Any, ...] = ()) -> DataFile:
        """All rows, of that partition, that have these values in these columns."""
        data = self._parquet(content)
        ids = [self.iceberg_schema().find_field(name).field_id for name in content.column_names]
        path = self.put(data)
        return DataFile(EQUALITY_DELETES, path, "PARQUET", partition, content.num_rows, len(data), equality_ids=ids)

    def _parquet(self, content: pa.Table, *, ids: bool = True, row_ids: Sequence[int | None] | None = None) -> bytes:
        schema = self.iceberg_schema()
        if ids:
            fields = [_with_id(f, schema.find_field(f.name).field_id) for f in content.schema]
            content = content.cast(pa.schema(fields))
        if row_ids is not None:
            content = content.append_column(
                _with_id(pa.field("_row_id", pa.int64()), ROW_ID), pa.array(row_ids, pa.int64())
            )
        return _written(content)

    def _stats(self, content: pa.Table) -> dict[str, Any]:
        counts: dict[str, dict[int, Any]] = defaultdict(dict)
        for name in content.column_names:
            found, column = self.iceberg_schema().find_field(name), content.column(name)
            counts["value_counts"][found.field_id] = len(column)
            counts["null_value_counts"][found.field_id] = column.null_count
            kind = found.field_type
            if isinstance(kind, IntegerType | LongType | StringType) and column.null_count < len(column):
                values = [value for value in column.to_pylist() if value is not None]
                counts["lower_bounds"][found.field_id] = to_bytes(kind, min(values))
                counts["upper_bounds"][found.field_id] = to_bytes(kind, max(values))
        return dict(counts)

    # committing

    def commit(
        self,
        operation: str,
        *,
        add: Iterable[DataFile] = (),
        remove: Iterable[str] = (),
        deletes: Iterable[DataFile] = (),
        remove_deletes: Iterable[str] = (),
        updates: Sequence[dict[str, Any]] = (),
    ) -> httpx.Response:
        """One snapshot on main. The table is loaded again if the commit succeeds."""
        snapshot = self.snapshot(operation, add=add, remove=remove, deletes=deletes, remove_deletes=remove_deletes)
        answer = self.send([*updates, *self.to_main(snapshot)])
        if answer.status_code == 200:
            self.base = answer.json()["metadata"]
        return answer

    def to_main(self, snapshot: dict[str, Any]) -> list[dict[str, Any]]:
        ref = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
        return [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **ref}]

    def requirements(self) -> list[dict[str, Any]]:
        return [
            {"type": "assert-table-uuid", "uuid": self.base["table-uuid"]},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": self.current},
        ]

    def send(
        self, updates: Sequence[dict[str, Any]], requirements: Sequence[dict[str, Any]] | None = None
    ) -> httpx.Response:
        wanted = self.requirements() if requirements is None else requirements
        body = {"requirements": list(wanted), "updates": list(updates)}
        return self.server.http.post(loads.url(self.server, self.table, self.schema), json=body)

    def snapshot(
        self,
        operation: str,
        *,
        add: Iterable[DataFile] = (),
        remove: Iterable[str] = (),
        deletes: Iterable[DataFile] = (),
        remove_deletes: Iterable[str] = (),
    ) -> dict[str, Any]:
        """The snapshot as JSON, with its manifests on storage. A new vector takes the place of the old one."""
        add, deletes = list(add), list(deletes)
        snapshot_id = getrandbits(62) | 2**61
        sequence_number = self.base["last-sequence-number"] + 1
        gone, replaced = {*remove, *remove_deletes}, {f.referenced_data_file for f in deletes} - {None}
        files: list[ManifestFile] = []
        for file in self.manifests():
            live = self._read(file)
            out = [e for e in live if e.data_file.file_path in gone or e.data_file.referenced_data_file in replaced]
            if not out:
                files.append(file)
                continue
            ended = [replace(e, status=DELETED, snapshot_id=snapshot_id) for e in out]
            files.append(self._manifest(file.content, [e for e in live if e not in out] + ended, snapshot_id))
        for content, new in ((manifest_list.DATA, add), (manifest_list.DELETES, deletes)):
            if new:
                entries = [Entry(ADDED, snapshot_id, None, None, file) for file in new]
                files.append(self._manifest(content, entries, snapshot_id))
        first, added = self.base.get("next-row-id"), sum(f.record_count for f in add)
        data = manifest_list.write(
            files,
            snapshot_id=snapshot_id,
            parent_snapshot_id=self.current,
            sequence_number=sequence_number,
            format_version=self.version,
            first_row_id=first if self.version >= 3 else None,
        )
        made: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "sequence-number": sequence_number,
            "timestamp-ms": int(time.time() * 1000),
            "manifest-list": self.put(data, "metadata", "avro"),
            "summary": {"operation": operation},
            "schema-id": self.base["current-schema-id"],
        }
        if self.current is not None:
            made["parent-snapshot-id"] = self.current
        return made | ({"first-row-id": first, "added-rows": added} if self.version >= 3 else {})

    def _manifest(self, content: int, entries: Sequence[Entry], snapshot_id: int) -> ManifestFile:
        schema = self.iceberg_schema()
        (spec,) = [s for s in self.base["partition-specs"] if s["spec-id"] == self.base["default-spec-id"]]
        # only specs of identity: others have to say the types of their values
        types = [
            PartitionField(f["name"], f["field-id"], str(schema.find_field(f["source-id"]).field_type))
            for f in spec["fields"]
        ]
        data = manifest.write(
            entries,
            schema_json=schema.model_dump(),
            schema_id=self.base["current-schema-id"],
            spec_json=spec["fields"],
            spec_id=spec["spec-id"],
            partition_types=types,
            content="data" if content == manifest_list.DATA else "deletes",
            format_version=self.version,
        )
        number = self.base["last-sequence-number"] + 1
        numbers = [number if e.sequence_number is None else e.sequence_number for e in entries if e.status != DELETED]
        counts = {
            status: [e.data_file.record_count for e in entries if e.status == status]
            for status in (ADDED, EXISTING, DELETED)
        }
        path = self.put(data, "metadata", "avro")
        return ManifestFile(
            *(path, len(data), spec["spec-id"], content, number, min(numbers, default=number), snapshot_id),
            *(len(counts[ADDED]), len(counts[EXISTING]), len(counts[DELETED])),
            *(sum(counts[ADDED]), sum(counts[EXISTING]), sum(counts[DELETED])),
            first_row_id=self.base["next-row-id"] if self.version >= 3 and content == manifest_list.DATA else None,
        )


def _with_id(found: pa.Field, field_id: int) -> pa.Field:
    return found.with_metadata({"PARQUET:field_id": str(field_id)})


def _written(content: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(content, sink, store_schema=False)
    return sink.getvalue()
