"""One commit that changes columns, partitions and rows at once, built by hand as a client would that goes by the
specification. Files are written under the schema and the spec that the commit has come to by then, or an older one."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.transforms import parse_transform
from pyiceberg.types import NestedField, PrimitiveType

from mergus.iceberg import deletion_vector, position_deletes, puffin
from mergus.iceberg.manifest import ADDED, DATA, DELETED, POSITION_DELETES, DataFile, Entry, PartitionField
from mergus.iceberg.manifest_list import ManifestFile
from tests.support.commits import HandTable, Json, field_of, main_at, new_snapshot_id

_NAMES = count()

ARROW: dict[str, pa.DataType] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "string": pa.string(),
    "decimal(5, 2)": pa.decimal128(5, 2),
    "decimal(9, 2)": pa.decimal128(9, 2),
}
TYPES = list(ARROW)
VALUES: dict[str, Callable[[int], Any]] = {
    "int": lambda n: n - 3,
    "long": lambda n: n + 2**40,
    "float": lambda n: n / 4,
    "double": lambda n: n / 8,
    "date": lambda n: date(2020, 1, n % 28 + 1),
    "timestamp": lambda n: datetime(2020, 1, n % 28 + 1, 3, 4, 5),
    "string": lambda n: f"s{n}",
    "decimal(5, 2)": lambda n: Decimal(n).scaleb(-2),
    "decimal(9, 2)": lambda n: Decimal(n + 10**6).scaleb(-2),
}
# of which partition values are plain, as manifests have them
PARTED = {"int", "long", "string"}


@dataclass
class Listed:
    """A data file of the snapshot that is being built."""

    path: str
    rows: int
    manifest: ManifestFile
    spec_id: int
    partition: tuple[Any, ...]
    deleted: set[int] = field(default_factory=set[int])
    deletes: list[ManifestFile] = field(default_factory=list[ManifestFile])

    @property
    def left(self) -> int:
        return self.rows - len(self.deleted)


@dataclass
class AtOnce:
    """`eager` makes each schema and snapshot current as soon as it is added, as PyIceberg does; DuckDB does it at the
    end."""

    table: HandTable
    eager: bool
    updates: list[Json] = field(default_factory=list[Json])
    # then what it leaves is not known here
    rolls_back: bool = False

    def __post_init__(self) -> None:
        state = self.table.state
        (current,) = [s for s in state["schemas"] if s["schema-id"] == state["current-schema-id"]]
        # of the table and of the commit, by number; the last is the one that the commit leaves
        self.schemas: list[tuple[int, list[Json]]] = [(current["schema-id"], current["fields"])]
        self.specs: dict[int, list[Json]] = {s["spec-id"]: s["fields"] for s in state["partition-specs"]}
        self.schema_ids = count(max(s["schema-id"] for s in state["schemas"]) + 1)
        self.spec_ids = count(max(self.specs) + 1)
        self.column_ids = count(state["last-column-id"] + 1)
        self.partition_ids = count(max(state["last-partition-id"], 999) + 1)
        self.spec_id: int = state["default-spec-id"]
        self.main, self.sequence_number = self.table.current, state["last-sequence-number"]
        self.next_row_id = state.get("next-row-id", 0)
        self.files: list[Listed] = []
        for manifest in self.table.manifests():
            if manifest.content == 0:
                self.files += [
                    Listed(e.data_file.file_path, e.data_file.record_count, manifest, manifest.partition_spec_id, ())
                    for e in self.table.entries(manifest)
                    if e.status != DELETED
                ]
        for manifest in self.table.manifests():
            for e in self.table.entries(manifest) if manifest.content == 1 else ():
                # ours are about one data file each
                of = next((f for f in self.files if f.path == e.data_file.referenced_data_file), None)
                if of is not None and e.status != DELETED:
                    of.deletes.append(manifest)
                    of.deleted |= self._read(e.data_file)

    @property
    def fields(self) -> list[Json]:
        return self.schemas[-1][1]

    @property
    def rows(self) -> int:
        return sum(f.left for f in self.files)

    def _read(self, file: DataFile) -> set[int]:
        data = self.table.bucket.get(file.file_path)
        if file.file_format == "PUFFIN":
            assert file.content_offset is not None
            assert file.content_size_in_bytes is not None
            end = file.content_offset + file.content_size_in_bytes
            return set(deletion_vector.decode(data[file.content_offset : end]))
        return set(position_deletes.read(data).positions)

    # --- columns

    def _schema(self, fields: list[Json]) -> None:
        schema_id = next(self.schema_ids)
        self.schemas.append((schema_id, fields))
        schema = {"type": "struct", "schema-id": schema_id, "fields": fields}
        self.updates.append({"action": "add-schema", "schema": schema})
        if self.eager:
            self.updates.append({"action": "set-current-schema", "schema-id": schema_id})

    def add_column(self, kind: str, *, required: bool = False, **more: Any) -> None:
        name = f"c{next(_NAMES)}"
        self._schema([*self.fields, field_of(next(self.column_ids), name, kind, required=required, **more)])

    def add_default(self, *, required: bool) -> None:
        """A column that rows from before it have a value in; a table of version 2 has none."""
        self.add_column("int", required=required, **{"initial-default": 7, "write-default": 7})

    def drop_column(self, at: int) -> None:
        if len(self.fields) > 1:
            self._schema([f for i, f in enumerate(self.fields) if i != at % len(self.fields)])

    def change_column(self, at: int, **changes: Any) -> None:
        index = at % len(self.fields)
        self._schema([{**f, **changes} if i == index else f for i, f in enumerate(self.fields)])

    def rename_column(self, at: int) -> None:
        self.change_column(at, name=f"c{next(_NAMES)}")

    def reorder_columns(self, at: int) -> None:
        index = at % len(self.fields)
        self._schema([self.fields[index], *(f for i, f in enumerate(self.fields) if i != index)])

    # --- partitions

    def set_spec(self, at: int, transform: str) -> None:
        sources = [f for f in self.fields if f["type"] in PARTED]
        spec_id, fields = next(self.spec_ids), list[Json]()
        if sources and transform != "none":
            source = sources[at % len(sources)]
            name = source["name"] if transform == "identity" else f"p{next(_NAMES)}"
            fields = [
                {"source-id": source["id"], "field-id": next(self.partition_ids), "name": name, "transform": transform}
            ]
        self.specs[spec_id], self.spec_id = fields, spec_id
        self.updates.append({"action": "add-spec", "spec": {"spec-id": spec_id, "fields": fields}})
        self.updates.append({"action": "set-default-spec", "spec-id": spec_id})

    # --- rows

    def roll_back(self, at: int) -> None:
        """Main, to a snapshot that the table has."""
        if listed := self.table.state["snapshots"]:
            self.main = listed[at % len(listed)]["snapshot-id"]
            self.rolls_back = True
            self.updates.append(main_at(self.main))

    def append(self, seed: int, nulls: bool, older: int = 0, *, root: bool = False) -> None:
        """Under the schema that is so many steps older than that of now. With `root` the table is replaced."""
        schema_id, fields = self.schemas[-1 - older % len(self.schemas)]
        parted = self.specs[self.spec_id]
        if any(p["source-id"] not in {f["id"] for f in fields if f["type"] in PARTED} for p in parted):
            return
        sources = {p["source-id"] for p in parted}
        rows = 2 + seed % 3
        columns = [
            [
                None
                if nulls and not f["required"] and (i + seed + f["id"]) % 3 == 0 and f["id"] not in sources
                else VALUES[f["type"]](seed if f["id"] in sources else seed + i)
                for i in range(rows)
            ]
            for f in fields
        ]
        partition = tuple(_transformed(p, fields, columns) for p in parted)
        snapshot_id = new_snapshot_id()
        file = self._data_file(fields, columns, partition)
        made = self._manifest([file], snapshot_id, "data", self.spec_id)
        if root:
            self.files = []
        self.files.append(Listed(file.file_path, rows, made, self.spec_id, partition))
        self._snapshot(snapshot_id, "overwrite" if root else "append", schema_id, rows, root=root)

    def _data_file(self, fields: Sequence[Json], columns: Sequence[list[Any]], partition: tuple[Any, ...]) -> DataFile:
        schema = pa.schema(
            [
                pa.field(f["name"], ARROW[f["type"]], not f["required"], {"PARQUET:field_id": str(f["id"])})
                for f in fields
            ]
        )
        sink = io.BytesIO()
        arrays = [pa.array(x, ARROW[f["type"]]) for f, x in zip(fields, columns, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink, store_schema=False)
        path = self.table.path()
        self.table.bucket.put(path, sink.getvalue())
        known = {
            f["id"]: (_primitive(f["type"]), [v for v in x if v is not None])
            for f, x in zip(fields, columns, strict=True)
        }
        return DataFile(
            *(DATA, path, "PARQUET", partition, len(columns[0]), len(sink.getvalue())),
            column_sizes={f["id"]: 10 for f in fields},
            value_counts={f["id"]: len(x) for f, x in zip(fields, columns, strict=True)},
            null_value_counts={f["id"]: x.count(None) for f, x in zip(fields, columns, strict=True)},
            lower_bounds={i: to_bytes(kind, min(x)) for i, (kind, x) in known.items() if x},
            upper_bounds={i: to_bytes(kind, max(x)) for i, (kind, x) in known.items() if x},
        )

    def remove(self, at: int) -> None:
        """A whole data file."""
        if not self.files:
            return
        gone = self.files[at % len(self.files)]
        if sum(f.manifest.manifest_path == gone.manifest.manifest_path for f in self.files) > 1:
            return
        self.files.remove(gone)
        self._snapshot(new_snapshot_id(), "delete", self.schemas[-1][0], 0)

    def delete(self, at: int, position: int) -> None:
        """One row of a data file, by position."""
        if not self.files:
            return
        file = self.files[at % len(self.files)]
        left = sorted(set(range(file.rows)) - file.deleted)
        if not left:
            return
        snapshot_id, gone = new_snapshot_id(), left[position % len(left)]
        file.deleted.add(gone)
        if self.table.version >= 3:
            made = puffin.write([puffin.deletion_vector(file.path, file.deleted)], {puffin.CREATED_BY: "a test"})
            (blob,) = made.blobs
            path = self.table.path(end="puffin")
            self.table.bucket.put(path, made.data)
            entry = DataFile(
                *(POSITION_DELETES, path, "PUFFIN", file.partition, len(file.deleted), len(made.data)),
                referenced_data_file=file.path,
                content_offset=blob.offset,
                content_size_in_bytes=blob.length,
            )
            file.deletes = []
        else:
            data, path = position_deletes.write({file.path: [gone]}), self.table.path()
            self.table.bucket.put(path, data)
            entry = DataFile(POSITION_DELETES, path, "PARQUET", file.partition, 1, len(data))
        file.deletes.append(self._manifest([entry], snapshot_id, "deletes", file.spec_id))
        self._snapshot(snapshot_id, "delete", self.schemas[-1][0], 0)

    def _manifest(self, files: Sequence[DataFile], snapshot_id: int, content: Any, spec_id: int) -> ManifestFile:
        parted = self.specs.get(spec_id, [])
        kinds = {f["id"]: f["type"] for _, fields in self.schemas for f in fields}
        types = [
            PartitionField(
                p["name"],
                p["field-id"],
                "int" if p["transform"].startswith("bucket") else kinds.get(p["source-id"], "int"),
            )
            for p in parted
        ]
        entries = [Entry(ADDED, None, None, None, f) for f in files]
        made = self.table.manifest(entries, snapshot_id, content=content, spec_id=spec_id, spec=parted, types=types)
        return replace(
            made,
            sequence_number=self.sequence_number + 1,
            min_sequence_number=self.sequence_number + 1,
            first_row_id=None if made.first_row_id is None else self.next_row_id,
        )

    def _snapshot(self, snapshot_id: int, operation: str, schema_id: int, rows: int, *, root: bool = False) -> None:
        self.sequence_number += 1
        listed = {m.manifest_path: m for f in self.files for m in (f.manifest, *f.deletes)}
        path = self.table.list_of(listed.values(), snapshot_id)
        changes: Json = {"parent_snapshot_id": None if root else self.main, "sequence_number": self.sequence_number}
        changes["schema_id"] = schema_id
        if self.table.version >= 3:
            changes["first_row_id"] = self.next_row_id
        snapshot = self.table.snapshot_json(path, snapshot_id, operation, rows, **changes)
        self.updates.append({"action": "add-snapshot", "snapshot": snapshot})
        self.main, self.next_row_id = snapshot_id, self.next_row_id + rows
        if self.eager:
            self.updates.append(main_at(snapshot_id))

    # --- all of it

    def send(self) -> httpx.Response:
        last: list[Json] = []
        if not self.eager and self.main != self.table.current and self.main is not None:
            last.append(main_at(self.main))
        if not self.eager and len(self.schemas) > 1:
            last.append({"action": "set-current-schema", "schema-id": self.schemas[-1][0]})
        return self.table.send([*self.updates, *last])


def _primitive(kind: str) -> PrimitiveType:
    field = NestedField.model_validate({"id": 1, "name": "x", "type": kind, "required": False})
    assert isinstance(field.field_type, PrimitiveType)
    return field.field_type


def _transformed(parted: Json, fields: Sequence[Json], columns: Sequence[list[Any]]) -> Any:
    ((kind, value),) = [
        (f["type"], x[0]) for f, x in zip(fields, columns, strict=True) if f["id"] == parted["source-id"]
    ]
    return parse_transform(parted["transform"]).transform(_primitive(kind))(value)
