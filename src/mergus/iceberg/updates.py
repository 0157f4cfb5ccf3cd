"""What a commit changes, as its writer says it: one dataclass for every action that a table knows.

An id in here means what it means to the client: a schema that the commit adds has the number that the client gave it,
and -1 (`LAST_ADDED`) is the one added last. Nothing is looked up yet; that is `table_update.apply`.

What has the shape of no update is a ValueError. Encryption is Unsupported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mergus.errors import Unsupported
from mergus.iceberg.json_object import JsonObject, shown
from mergus.iceberg.metadata import Ref
from mergus.iceberg.partition_spec import PartitionSpec, parse_spec
from mergus.iceberg.schema import Schema
from mergus.iceberg.schema_parse import parse_schema
from mergus.iceberg.sort_order import SortOrder, parse_sort_order

MOST: Final = 10_000
LAST_ADDED: Final = -1
NO_ID: Final = -1
OPERATIONS: Final = frozenset({"append", "replace", "overwrite", "delete"})


@dataclass(frozen=True, slots=True)
class AssignUuid:
    uuid: str


@dataclass(frozen=True, slots=True)
class UpgradeFormatVersion:
    format_version: int


@dataclass(frozen=True, slots=True)
class AddSchema:
    """`schema_id` None: the client leaves the number to us."""

    schema: Schema
    schema_id: int | None


@dataclass(frozen=True, slots=True)
class SetCurrentSchema:
    schema_id: int


@dataclass(frozen=True, slots=True)
class RemoveSchemas:
    schema_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddSpec:
    """A spec that has no id (`NO_ID`) leaves it to us; its fields may have none either."""

    spec: PartitionSpec


@dataclass(frozen=True, slots=True)
class SetDefaultSpec:
    spec_id: int


@dataclass(frozen=True, slots=True)
class RemoveSpecs:
    spec_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddSortOrder:
    order: SortOrder


@dataclass(frozen=True, slots=True)
class SetDefaultSortOrder:
    order_id: int


@dataclass(frozen=True, slots=True)
class AddedSnapshot:
    """A snapshot that a client has written. Ids, sequence number and time are its own idea."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int | None
    timestamp_ms: int
    manifest_list: str
    summary: Mapping[str, str]
    schema_id: int | None
    first_row_id: int | None = None
    added_rows: int | None = None


@dataclass(frozen=True, slots=True)
class AddSnapshot:
    snapshot: AddedSnapshot


@dataclass(frozen=True, slots=True)
class RemoveSnapshots:
    snapshot_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetRef:
    name: str
    ref: Ref


@dataclass(frozen=True, slots=True)
class RemoveRef:
    name: str


@dataclass(frozen=True, slots=True)
class SetLocation:
    """Without slashes at the end."""

    location: str


@dataclass(frozen=True, slots=True)
class SetProperties:
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RemoveProperties:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetStatistics:
    snapshot_id: int
    statistics: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RemoveStatistics:
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class SetPartitionStatistics:
    snapshot_id: int
    statistics: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RemovePartitionStatistics:
    snapshot_id: int


Update = (
    AssignUuid
    | UpgradeFormatVersion
    | AddSchema
    | SetCurrentSchema
    | RemoveSchemas
    | AddSpec
    | SetDefaultSpec
    | RemoveSpecs
    | AddSortOrder
    | SetDefaultSortOrder
    | AddSnapshot
    | RemoveSnapshots
    | SetRef
    | RemoveRef
    | SetLocation
    | SetProperties
    | RemoveProperties
    | SetStatistics
    | RemoveStatistics
    | SetPartitionStatistics
    | RemovePartitionStatistics
)


def parse(json: object) -> list[Update]:
    """Raises ValueError for what is none of a table's updates, Unsupported for those of encryption."""
    found = JsonObject({"updates": json}, "The commit").parts("updates")
    if len(found) > MOST:
        raise ValueError(f"A commit can have {MOST} updates, not {len(found)}")
    return [_parse_one(one) for one in found]


def _parse_one(json: JsonObject) -> Update:
    action = json.text("action")
    if action in _ENCRYPTION:
        raise Unsupported(f"{action} is not supported: DuckLake keeps one key for each file, and none of a table")
    if action in _OF_VIEWS:
        raise ValueError(f"{action} is an update of a view, and this is a table")
    if action not in _PARSED:
        raise ValueError(f"Not an update of a table: {shown(action)}")
    return _PARSED[action](json.named(action))


def _added_snapshot(json: JsonObject) -> AddedSnapshot:
    if json.has("key-id"):
        raise Unsupported("A snapshot with a key-id is not supported: encrypted manifest lists cannot be read")
    if not json.has("manifest-list") and json.has("manifests"):
        raise ValueError("A snapshot must name a manifest list; a list of manifests is of format version 1")
    summary = json.text_map("summary")
    if summary.get("operation") not in OPERATIONS:
        raise ValueError(
            f"The summary of a snapshot must have an operation, one of {', '.join(sorted(OPERATIONS))}, "
            f"and has {summary.get('operation')}"
        )
    return AddedSnapshot(
        snapshot_id=json.int64("snapshot-id", least=1),
        parent_snapshot_id=json.maybe_int64("parent-snapshot-id"),
        sequence_number=json.maybe_int64("sequence-number"),
        timestamp_ms=json.int64("timestamp-ms"),
        manifest_list=json.text("manifest-list"),
        summary=summary,
        schema_id=json.maybe_int32("schema-id"),
        first_row_id=json.maybe_int64("first-row-id"),
        added_rows=json.maybe_int64("added-rows"),
    )


def _set_ref(json: JsonObject) -> SetRef:
    name, kind = json.text("ref-name"), json.text("type").lower()
    if not name:
        raise ValueError("The ref-name of a ref is empty")
    if kind not in {"branch", "tag"}:
        raise ValueError(f"The ref {name} must be a branch or a tag, not {kind}")
    if kind == "tag" and (json.has("max-snapshot-age-ms") or json.has("min-snapshots-to-keep")):
        raise ValueError(f"The tag {name} can have a max-ref-age-ms alone; other retention is that of branches")
    ref = Ref(
        json.int64("snapshot-id"),
        "tag" if kind == "tag" else "branch",
        json.maybe_int64("max-ref-age-ms", least=1),
        json.maybe_int64("max-snapshot-age-ms", least=1),
        json.maybe_int32("min-snapshots-to-keep", least=1),
    )
    return SetRef(name, ref)


def _set_location(json: JsonObject) -> SetLocation:
    location = json.text("location").rstrip("/")
    if not location:
        raise ValueError("The location is empty")
    return SetLocation(location)


def _set_statistics(json: JsonObject) -> SetStatistics:
    file = json.part("statistics")
    snapshot_id = file.int64("snapshot-id")
    # the older form says it twice
    if json.has("snapshot-id") and json.int64("snapshot-id") != snapshot_id:
        raise ValueError(f"set-statistics is for snapshot {json.int64('snapshot-id')} and for {snapshot_id}")
    parts = {
        "file-footer-size-in-bytes": file.int64("file-footer-size-in-bytes"),
        "blob-metadata": [_blob(one) for one in file.parts("blob-metadata")],
    }
    return SetStatistics(snapshot_id, _statistics_file(file) | parts)


def _set_partition_statistics(json: JsonObject) -> SetPartitionStatistics:
    file = json.part("partition-statistics")
    return SetPartitionStatistics(file.int64("snapshot-id"), _statistics_file(file))


def _statistics_file(json: JsonObject) -> dict[str, Any]:
    if json.has("key-metadata"):
        raise Unsupported("Encrypted statistics are not supported")
    return {
        "snapshot-id": json.int64("snapshot-id"),
        "statistics-path": json.text("statistics-path"),
        "file-size-in-bytes": json.int64("file-size-in-bytes"),
    }


def _blob(json: JsonObject) -> dict[str, Any]:
    return {
        "type": json.text("type"),
        "snapshot-id": json.int64("snapshot-id"),
        "sequence-number": json.int64("sequence-number"),
        "fields": list(json.int32s("fields")),
        **({"properties": json.text_map("properties")} if json.has("properties") else {}),
    }


_ENCRYPTION: Final = frozenset({"add-encryption-key", "remove-encryption-key"})
_OF_VIEWS: Final = frozenset({"add-view-version", "set-current-view-version"})
# Of tables and views.
SHARED: Final[
    dict[
        str,
        Callable[
            [JsonObject],
            AssignUuid | UpgradeFormatVersion | AddSchema | SetLocation | SetProperties | RemoveProperties,
        ],
    ]
] = {
    "assign-uuid": lambda json: AssignUuid(json.uuid("uuid")),
    "upgrade-format-version": lambda json: UpgradeFormatVersion(json.int32("format-version")),
    "add-schema": lambda json: AddSchema(
        parse_schema(json.value("schema")), json.part("schema").maybe_int32("schema-id")
    ),
    "set-location": _set_location,
    "set-properties": lambda json: SetProperties(json.text_map("updates")),
    "remove-properties": lambda json: RemoveProperties(json.texts("removals")),
}
_PARSED: Final[dict[str, Callable[[JsonObject], Update]]] = {
    **SHARED,
    "set-current-schema": lambda json: SetCurrentSchema(json.int32("schema-id", LAST_ADDED)),
    "remove-schemas": lambda json: RemoveSchemas(json.int32s("schema-ids")),
    "add-spec": lambda json: AddSpec(parse_spec(json.value("spec"), default_id=NO_ID)),
    "set-default-spec": lambda json: SetDefaultSpec(json.int32("spec-id", LAST_ADDED)),
    "remove-partition-specs": lambda json: RemoveSpecs(json.int32s("spec-ids")),
    "add-sort-order": lambda json: AddSortOrder(parse_sort_order(json.value("sort-order"))),
    "set-default-sort-order": lambda json: SetDefaultSortOrder(json.int32("sort-order-id", LAST_ADDED)),
    "add-snapshot": lambda json: AddSnapshot(_added_snapshot(json.part("snapshot"))),
    "remove-snapshots": lambda json: RemoveSnapshots(json.int64s("snapshot-ids")),
    "set-snapshot-ref": _set_ref,
    "remove-snapshot-ref": lambda json: RemoveRef(json.text("ref-name")),
    "set-statistics": _set_statistics,
    "remove-statistics": lambda json: RemoveStatistics(json.int64("snapshot-id")),
    "set-partition-statistics": _set_partition_statistics,
    "remove-partition-statistics": lambda json: RemovePartitionStatistics(json.int64("snapshot-id")),
}
