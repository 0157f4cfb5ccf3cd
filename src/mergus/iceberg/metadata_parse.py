"""TableMetadata as other catalogs' writers have written it, in format versions 1, 2 and 3.

What comes out has one form: a table of version 1 may have its schema and spec under older names, no uuid, no sequence
numbers, and snapshots that list their manifests themselves. Specs and sort orders are those that the current schema can
have: of an old one that was about a column which is gone, the other fields are left, and a spec with fewer fields is
true for the same files.

Everything raises ValueError with the reason; Unsupported is what makes sense and cannot be read here.
"""

import gzip
import io
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from mergus.errors import Unsupported
from mergus.iceberg.json_object import JsonObject
from mergus.iceberg.manifest import PartitionValue
from mergus.iceberg.metadata import MAIN, Ref
from mergus.iceberg.partition_spec import FIRST_FIELD_ID, NO_FIELD_ID, UNPARTITIONED, PartitionSpec, parse_spec
from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_parse import parse_schema
from mergus.iceberg.sort_order import UNSORTED, SortOrder, parse_sort_order
from mergus.iceberg.updates import OPERATIONS

VERSIONS: Final = (1, 2, 3)
MOST_BYTES: Final = 64 * 1024 * 1024
NO_SNAPSHOT: Final = -1

_HADOOP: Final = ("s3a://", "s3n://")
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class GivenSnapshot:
    """`manifests` are named by the snapshot itself where it has no `manifest_list`, which is so in version 1 alone."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    timestamp_ms: int
    manifest_list: str | None
    manifests: tuple[str, ...]
    summary: Mapping[str, str]
    schema_id: int | None


@dataclass(frozen=True, slots=True)
class GivenTable:
    """`written_specs` are the specs as manifests have them, `specs` what of them fits the schema. `uuid` is None for a
    table of version 1 that has none."""

    format_version: int
    uuid: str | None
    location: str
    last_column_id: int
    schema: Schema
    # all that there are, by id
    schemas: Mapping[int, Schema]
    written_specs: Mapping[int, PartitionSpec]
    specs: Mapping[int, PartitionSpec]
    default_spec_id: int
    orders: Mapping[int, SortOrder]
    default_order_id: int
    properties: Mapping[str, str]
    snapshots: Mapping[int, GivenSnapshot]
    current: GivenSnapshot | None
    main: Ref | None
    tags: Mapping[str, Ref]
    branches: Sequence[str]
    next_row_id: int

    def fitting(self, spec_id: int, partition: tuple[PartitionValue, ...]) -> tuple[PartitionValue, ...]:
        """A tuple of a spec as it was written, as one of what is left of the spec."""
        ids = {f.id for f in self.schema.walk()}
        fields = self.written_specs[spec_id].fields
        return tuple(value for f, value in zip(fields, partition, strict=True) if f.source_id in ids)

    def schema_of(self, snapshot: GivenSnapshot) -> Schema | None:
        """That readers go by. A snapshot that says none is read by that of now."""
        return self.schema if snapshot.schema_id is None else self.schemas.get(snapshot.schema_id)

    @property
    def ancestry(self) -> list[GivenSnapshot]:
        """Of the current snapshot, the oldest first and itself last, as far as they are there."""
        found: list[GivenSnapshot] = []
        seen: set[int] = set()
        one = self.current
        while one is not None and one.snapshot_id not in seen:
            seen.add(one.snapshot_id)
            found.append(one)
            one = None if one.parent_snapshot_id is None else self.snapshots.get(one.parent_snapshot_id)
        return found[::-1]


def parse(data: bytes) -> GivenTable:
    """From a metadata file, packed or not."""
    try:
        json = JsonObject(orjson.loads(unpacked(data)), "Table metadata")
    except orjson.JSONDecodeError as e:
        raise ValueError(f"it is not JSON: {e}") from None
    version = json.int32("format-version")
    if version not in VERSIONS:
        raise Unsupported(f"Format version {version} is not supported; tables of 1, 2 and 3 are read")
    if json.has("encryption-keys") and json.value("encryption-keys"):
        raise Unsupported("A table with encryption keys is not supported: encrypted files cannot be read")
    schemas, schema = _schemas(json, version)
    written = _specs(json, version)
    default_spec_id = json.int32("default-spec-id") if json.has("default-spec-id") else min(written)
    if default_spec_id not in written:
        raise ValueError(f"the default spec is {default_spec_id}, and there is no such spec")
    orders, default_order_id = _orders(json, version)
    snapshots = {s.snapshot_id: s for s in map(_snapshot, json.parts("snapshots") if json.has("snapshots") else ())}
    refs = _refs(json)
    current = _current(json, snapshots, refs)
    ids = {f.id for f in schema.walk()}
    return GivenTable(
        format_version=version,
        uuid=json.uuid("table-uuid") if version > 1 or json.has("table-uuid") else None,
        location=_location(json),
        last_column_id=max(json.int32("last-column-id"), schema.highest_field_id),
        schema=schema,
        schemas=schemas,
        written_specs=written,
        specs={i: _fitting_spec(spec, ids, version) for i, spec in written.items()},
        default_spec_id=default_spec_id,
        orders={i: _fitting_order(order, ids) for i, order in orders.items()},
        default_order_id=default_order_id,
        properties=json.text_map("properties") if json.has("properties") else {},
        snapshots=snapshots,
        current=current,
        main=refs.get(MAIN),
        tags={name: ref for name, ref in refs.items() if ref.type == "tag" and ref.snapshot_id in snapshots},
        branches=sorted(name for name, ref in refs.items() if ref.type == "branch" and name != MAIN),
        next_row_id=json.int64("next-row-id") if version > 2 else 0,
    )


def unpacked(data: bytes) -> bytes:
    """Packed files are known by their first bytes: two ways to name them are in use."""
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            found = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as e:
        raise ValueError(f"it cannot be unpacked: {e}") from None
    if len(found) > MOST_BYTES:
        raise ValueError(f"unpacked it has more than {MOST_BYTES} bytes")
    return found


def plain(path: str) -> str:
    """Hadoop has other names for the same store."""
    for name in _HADOOP:
        if path.startswith(name):
            return "s3://" + path[len(name) :]
    return path


def _location(json: JsonObject) -> str:
    location = plain(json.text("location")).rstrip("/")
    if not location:
        raise ValueError("the location is empty")
    return location


def _schemas(json: JsonObject, version: int) -> tuple[dict[int, Schema], Schema]:
    """And that of now. One of version 1 may have no other, and that under another name. Of older ones, those that
    cannot be read are left out."""
    if not json.has("schemas"):
        if version > 1:
            raise ValueError("it has no schemas")
        return {}, parse_schema(json.value("schema"))
    current = json.int32("current-schema-id")
    found: dict[int, Schema] = {}
    for part, value in zip(json.parts("schemas"), json.value("schemas"), strict=True):
        schema_id = part.maybe_int32("schema-id") or 0
        try:
            found.setdefault(schema_id, parse_schema(value))
        except (ValueError, Unsupported):
            if schema_id == current:
                raise
    if current not in found:
        raise ValueError(f"the current schema is {current}, and there is no such schema")
    return found, found[current]


def _specs(json: JsonObject, version: int) -> dict[int, PartitionSpec]:
    if not json.has("partition-specs"):
        if version > 1:
            raise ValueError("it has no partition-specs")
        fields: Any = json.value("partition-spec") if json.has("partition-spec") else []
        found = [parse_spec({"spec-id": UNPARTITIONED.spec_id, "fields": fields})]
    else:
        json.parts("partition-specs")
        found = [parse_spec(value) for value in json.value("partition-specs")]
    if not found:
        raise ValueError("it has no partition spec")
    return {spec.spec_id: _with_ids(spec) for spec in found}


def _with_ids(spec: PartitionSpec) -> PartitionSpec:
    """Version 1 did not always write the ids of partition fields: they were counted in order."""
    fields = [
        replace(f, field_id=FIRST_FIELD_ID + i) if f.field_id == NO_FIELD_ID else f for i, f in enumerate(spec.fields)
    ]
    return replace(spec, fields=tuple(fields))


def _orders(json: JsonObject, version: int) -> tuple[dict[int, SortOrder], int]:
    if not json.has("sort-orders"):
        if version > 1:
            raise ValueError("it has no sort-orders")
        return {UNSORTED.order_id: UNSORTED}, UNSORTED.order_id
    json.parts("sort-orders")
    found = {order.order_id: order for order in map(parse_sort_order, json.value("sort-orders"))}
    default = json.int32("default-sort-order-id")
    if default not in found and default != UNSORTED.order_id:
        raise ValueError(f"the default sort order is {default}, and there is no such order")
    return {UNSORTED.order_id: UNSORTED, **found}, default


def _fitting_spec(spec: PartitionSpec, ids: Collection[int], version: int) -> PartitionSpec:
    """Of version 1 two specs may give the same id to different fields: there they get new ones."""
    fields = [f for f in spec.fields if f.source_id in ids]
    if version == 1:
        fields = [replace(f, field_id=NO_FIELD_ID) for f in fields]
    return replace(spec, fields=tuple(fields))


def _fitting_order(order: SortOrder, ids: Collection[int]) -> SortOrder:
    """What rows are sorted by last says nothing without what they are sorted by first."""
    end = next((i for i, f in enumerate(order.fields) if f.source_id not in ids), len(order.fields))
    return replace(order, fields=order.fields[:end])


def _snapshot(json: JsonObject) -> GivenSnapshot:
    if json.has("key-id"):
        raise Unsupported("A snapshot with a key-id is not supported: encrypted manifest lists cannot be read")
    manifest_list = json.text("manifest-list") if json.has("manifest-list") else None
    manifests = json.texts("manifests") if json.has("manifests") and manifest_list is None else ()
    if manifest_list is None and not json.has("manifests"):
        raise ValueError(f"snapshot {json.int64('snapshot-id')} has no manifest-list")
    summary = json.text_map("summary") if json.has("summary") else {}
    if summary.get("operation") not in OPERATIONS:
        summary = {**summary, "operation": "append"}
    return GivenSnapshot(
        snapshot_id=json.int64("snapshot-id"),
        parent_snapshot_id=json.maybe_int64("parent-snapshot-id", least=NO_SNAPSHOT),
        sequence_number=json.maybe_int64("sequence-number") or 0,
        timestamp_ms=json.int64("timestamp-ms"),
        manifest_list=manifest_list,
        manifests=manifests,
        summary=summary,
        schema_id=json.maybe_int32("schema-id"),
    )


def _refs(json: JsonObject) -> dict[str, Ref]:
    if not json.has("refs"):
        return {}
    found: dict[str, Ref] = {}
    names: Mapping[str, Any] = json.value("refs")
    refs = json.part("refs")
    for name in names:
        ref = refs.part(name)
        kind = ref.text("type").lower()
        if kind not in {"branch", "tag"}:
            raise ValueError(f"ref {name} is a {kind}")
        found[name] = Ref(
            ref.int64("snapshot-id"),
            "tag" if kind == "tag" else "branch",
            ref.maybe_int64("max-ref-age-ms", least=1),
            ref.maybe_int64("max-snapshot-age-ms", least=1),
            ref.maybe_int32("min-snapshots-to-keep", least=1),
        )
    return found


def _current(json: JsonObject, snapshots: Mapping[int, GivenSnapshot], refs: Mapping[str, Ref]) -> GivenSnapshot | None:
    current = json.maybe_int64("current-snapshot-id", least=NO_SNAPSHOT)
    if current is None or current == NO_SNAPSHOT:
        return None
    if current not in snapshots:
        raise ValueError(f"the current snapshot is {current}, and there is no such snapshot")
    if MAIN in refs and refs[MAIN].snapshot_id != current:
        raise ValueError(f"the current snapshot is {current}, and {MAIN} is at {refs[MAIN].snapshot_id}")
    return snapshots[current]
