"""Commits written by hand: Parquet, manifests and manifest lists made here and sent over plain HTTP, so that a test can
send what no library of Iceberg's would."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from uuid import uuid4

import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from mergus.iceberg import manifest, manifest_list
from mergus.iceberg.manifest import ADDED, DATA, DELETED, EXISTING, DataFile, Entry, PartitionField
from mergus.iceberg.manifest_list import ManifestFile
from tests.support.lakes import Row, TestLake
from tests.support.loads import Bucket, Metadata, load, url
from tests.support.servers import Server

Json = dict[str, Any]

# `i` and `s`, as DuckDB's tables of other tests have them
FIELDS: list[Json] = [
    {"id": 1, "name": "i", "type": "int", "required": False},
    {"id": 2, "name": "s", "type": "string", "required": False},
]
SCHEMA: Json = {"type": "struct", "fields": FIELDS}

# Tables of ours that loads fill, whether anybody commits or not; and what tells of requests, whatever they changed.
MADE_BY_LOADS = frozenset(
    {"chain", "chain_turn", "chain_replaced", "garbage", "file_fact", "metadata_file"}
    | {"listener", "listener_failure", "audit", "commit_marker"}
)

_random = Random()


def new_snapshot_id() -> int:
    return _random.randrange(2**32, 2**63)


def field_of(field_id: int, name: str, kind: Any = "int", *, required: bool = False, **more: Any) -> Json:
    return {"id": field_id, "name": name, "type": kind, "required": required, **more}


def parquet(first: int, count: int, tag: str = "x") -> tuple[bytes, pa.Table]:
    """Rows (first, tag), (first + 1, tag), …, with field ids."""
    schema = pa.schema(
        [
            pa.field("i", pa.int32(), metadata={"PARQUET:field_id": "1"}),
            pa.field("s", pa.string(), metadata={"PARQUET:field_id": "2"}),
        ]
    )
    table = pa.table([pa.array(range(first, first + count), pa.int32()), pa.array([tag] * count)], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes(), table


def described(path: str, first: int, count: int, size: int, tag: str = "x") -> DataFile:
    """What a writer says of such a file."""
    text = tag.encode()
    return DataFile(
        content=DATA,
        file_path=path,
        file_format="PARQUET",
        partition=(),
        record_count=count,
        file_size_in_bytes=size,
        column_sizes={1: 4 * count, 2: count},
        value_counts={1: count, 2: count},
        null_value_counts={1: 0, 2: 0},
        lower_bounds={1: first.to_bytes(4, "little", signed=True), 2: text},
        upper_bounds={1: (first + count - 1).to_bytes(4, "little", signed=True), 2: text},
    )


@dataclass
class HandTable:
    """A table that is committed to by hand. `state` is what the writer has seen of it."""

    server: Server
    bucket: Bucket
    schema: str
    name: str = "t"
    state: Metadata = field(default_factory=dict[str, Any])

    @property
    def url(self) -> str:
        return url(self.server, self.name, self.schema)

    @property
    def location(self) -> str:
        return self.state["location"]

    @property
    def current(self) -> int | None:
        return self.state.get("current-snapshot-id")

    @property
    def version(self) -> int:
        return self.state["format-version"]

    def load(self) -> Metadata:
        self.state = load(self.server, self.name, self.schema)
        return self.state

    def snapshot(self, snapshot_id: int | None = None) -> Json:
        wanted = self.current if snapshot_id is None else snapshot_id
        return next(s for s in self.state["snapshots"] if s["snapshot-id"] == wanted)

    # --- objects

    def path(self, kind: str = "data", end: str = "parquet") -> str:
        return f"{self.location}/{kind}/{uuid4()}.{end}"

    def file(self, first: int, count: int = 3, path: str | None = None, tag: str = "x") -> DataFile:
        """A data file that is really there."""
        content, _ = parquet(first, count, tag)
        path = path or self.path()
        self.bucket.put(path, content)
        return described(path, first, count, len(content), tag)

    def manifests(self, snapshot_id: int | None = None) -> list[ManifestFile]:
        """Of a snapshot that the table has."""
        if self.current is None:
            return []
        return manifest_list.read(self.bucket.get(self.snapshot(snapshot_id)["manifest-list"]))[1]

    def entries(self, file: ManifestFile) -> list[Entry]:
        """With what they inherit."""
        _, found = manifest.read(self.bucket.get(file.manifest_path))
        return [
            replace(
                entry,
                snapshot_id=file.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
                sequence_number=file.sequence_number if entry.sequence_number is None else entry.sequence_number,
                file_sequence_number=(
                    file.sequence_number if entry.file_sequence_number is None else entry.file_sequence_number
                ),
            )
            for entry in found
        ]

    def manifest(
        self,
        entries: Sequence[Entry],
        snapshot_id: int,
        *,
        content: manifest.Content = "data",
        spec_id: int | None = None,
        spec: Sequence[Json] = (),
        types: Sequence[PartitionField] = (),
        path: str | None = None,
    ) -> ManifestFile:
        in_spec: int = self.state["default-spec-id"] if spec_id is None else spec_id
        schema = next(s for s in self.state["schemas"] if s["schema-id"] == self.state["current-schema-id"])
        data = manifest.write(
            entries,
            schema_json=schema,
            schema_id=schema["schema-id"],
            spec_json=list(spec),
            spec_id=in_spec,
            partition_types=types,
            content=content,
            format_version=self.version,
        )
        path = path or self.path("metadata", "avro")
        self.bucket.put(path, data)
        counts = {
            status: [e.data_file.record_count for e in entries if e.status == status]
            for status in (ADDED, EXISTING, DELETED)
        }
        is_data = content == "data"
        return ManifestFile(
            manifest_path=path,
            manifest_length=len(data),
            partition_spec_id=in_spec,
            content=manifest_list.DATA if is_data else manifest_list.DELETES,
            sequence_number=self.state["last-sequence-number"] + 1,
            min_sequence_number=1,
            added_snapshot_id=snapshot_id,
            added_files_count=len(counts[ADDED]),
            existing_files_count=len(counts[EXISTING]),
            deleted_files_count=len(counts[DELETED]),
            added_rows_count=sum(counts[ADDED]),
            existing_rows_count=sum(counts[EXISTING]),
            deleted_rows_count=sum(counts[DELETED]),
            first_row_id=self.state.get("next-row-id", 0) if is_data and self.version >= 3 else None,
        )

    def list_of(self, manifests: Iterable[ManifestFile], snapshot_id: int, path: str | None = None) -> str:
        path = path or self.path("metadata", "avro")
        data = manifest_list.write(
            manifests,
            snapshot_id=snapshot_id,
            parent_snapshot_id=self.current,
            sequence_number=self.state["last-sequence-number"] + 1,
            format_version=self.version,
            first_row_id=self.state.get("next-row-id", 0) if self.version >= 3 else None,
        )
        self.bucket.put(path, data)
        return path

    # --- updates

    def added(self, files: Sequence[DataFile], snapshot_id: int, **manifest_options: Any) -> ManifestFile:
        return self.manifest([Entry(ADDED, None, None, None, f) for f in files], snapshot_id, **manifest_options)

    def snapshot_json(
        self, manifest_list: str, snapshot_id: int, operation: str = "append", rows: int = 0, **changes: Any
    ) -> Json:
        made = {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": self.current,
            "sequence-number": self.state["last-sequence-number"] + 1,
            "timestamp-ms": self.state["last-updated-ms"] + 1,
            "manifest-list": manifest_list,
            "summary": {"operation": operation},
            "schema-id": self.state["current-schema-id"],
        }
        if self.version >= 3:
            made |= {"first-row-id": self.state.get("next-row-id", 0), "added-rows": rows}
        made |= {key.replace("_", "-"): value for key, value in changes.items()}
        return {key: value for key, value in made.items() if value is not None}

    def append_updates(self, files: Sequence[DataFile], snapshot_id: int, **options: Any) -> list[Json]:
        new = self.added(files, snapshot_id, **options)
        listed = self.list_of([*self.manifests(), new], snapshot_id)
        rows = sum(f.record_count for f in files)
        return shown(self.snapshot_json(listed, snapshot_id, rows=rows))

    # --- requests

    def send(self, updates: Sequence[Json], requirements: Sequence[Json] = (), **more: Any) -> httpx.Response:
        return self.server.http.post(
            self.url, json={"requirements": list(requirements), "updates": list(updates), **more}
        )

    def commit(self, *updates: Json, requirements: Sequence[Json] = ()) -> Metadata:
        """One that must be taken."""
        answer = self.send(updates, requirements)
        assert answer.status_code == 200, f"{answer.text}\n{self.server.log.read_text()[-3000:]}"
        self.state = answer.json()["metadata"]
        return self.state

    def append(self, first: int, count: int = 3, tag: str = "x") -> int:
        """So many rows in a file of their own; the snapshot."""
        snapshot_id = new_snapshot_id()
        self.commit(*self.append_updates([self.file(first, count, tag=tag)], snapshot_id))
        return snapshot_id

    def without(self, *paths: str, snapshot_id: int, also: Sequence[DataFile] = ()) -> list[ManifestFile]:
        """The manifests of a snapshot that removes these files and adds others."""
        made: list[ManifestFile] = []
        gone = set(paths)
        for known in self.manifests():
            entries = [e for e in self.entries(known) if e.status != DELETED]
            if not gone & {e.data_file.file_path for e in entries}:
                made.append(known)
                continue
            rewritten = [
                replace(e, status=DELETED, snapshot_id=snapshot_id)
                if e.data_file.file_path in gone
                else replace(e, status=EXISTING)
                for e in entries
            ]
            made.append(self.manifest(rewritten, snapshot_id))
        return [*made, self.added(also, snapshot_id)] if also else made


def shown(snapshot: Json) -> list[Json]:
    """Added, and made main's."""
    return [{"action": "add-snapshot", "snapshot": snapshot}, main_at(snapshot["snapshot-id"])]


def main_at(snapshot_id: int, **more: Any) -> Json:
    main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    return {**main, **{key.replace("_", "-"): value for key, value in more.items()}}


def create(
    server: Server,
    schema: str,
    name: str = "t",
    fields: Sequence[Json] = FIELDS,
    identifiers: Sequence[int] = (),
    **more: Any,
) -> httpx.Response:
    body: Json = {"name": name, "schema": {"type": "struct", "fields": list(fields)}}
    if identifiers:
        body["schema"]["identifier-field-ids"] = list(identifiers)
    body |= {key.replace("_", "-"): value for key, value in more.items()}
    return server.http.post(f"{server.path(*schema.split('.'))}/tables", json=body)


def new_table(server: Server, bucket: Bucket, schema: str, name: str = "t", **more: Any) -> HandTable:
    """In a namespace of its own, unless that is there already."""
    if server.http.head(server.path(schema)).status_code == 404:
        assert server.create(schema).status_code == 200
    answer = create(server, schema, name, **more)
    assert answer.status_code == 200, f"{answer.text}\n{server.log.read_text()[-3000:]}"
    return HandTable(server, bucket, schema, name, answer.json()["metadata"])


def everything(lake: TestLake) -> dict[str, Row]:
    """All that a commit could have written to Postgres, table by table: how many rows, and a sum over them."""
    tables = lake.sql(
        "SELECT quote_ident(nspname) || '.' || quote_ident(relname), relname FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE relkind = 'r' AND nspname IN (%s, %s) ORDER BY 1",
        lake.settings.metadata_schema,
        lake.settings.annex_schema,
    )
    asked = [
        f"SELECT '{name}', count(*), coalesce(sum(('x' || substr(md5(r::text), 1, 12))::bit(48)::bigint), 0) "
        f"FROM {name} r"
        for name, short in tables
        if short not in MADE_BY_LOADS
    ]
    return {row[0]: row[1:] for row in lake.sql(" UNION ALL ".join(asked))}


def in_duckdb(lake: TestLake, warm: duckdb.DuckDBPyConnection, schema: str, table: str = "t") -> list[Row]:
    """The rows, sorted: the same to a session that was there before and to a new one, with and without a filter."""
    name = f'"{schema}"."{table}"'
    found: list[list[Row]] = []
    with lake.duckdb() as fresh:
        for session in (warm, fresh):
            rows = session.execute(f"SELECT i, s FROM {name} ORDER BY ALL").fetchall()
            found.append(rows)
            values_of_i = sorted({row[0] for row in rows if row[0] is not None})
            for i in {*values_of_i[:1], *values_of_i[-1:]}:
                filtered = session.execute(f"SELECT i, s FROM {name} WHERE i = {i} ORDER BY ALL").fetchall()
                assert filtered == [row for row in rows if row[0] == i]
            counted = session.execute(
                f"SELECT count(*), coalesce(sum(1 + 0 * coalesce(i, 0)), 0), count(DISTINCT rowid) FROM {name}"
            ).fetchone()
            assert counted == (len(rows), len(rows), len(rows))
            assert session.execute("SELECT snapshot_id, changes FROM lake.snapshots()").fetchall()
    assert found[0] == found[1]
    return found[0]


def rows(first: int, count: int = 3, tag: str = "x") -> list[Row]:
    return [(i, tag) for i in range(first, first + count)]
