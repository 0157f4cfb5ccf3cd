"""Table metadata: the one JSON document that says what a table is, in format versions 2 and 3.

Most of a document is history that never changes, so whatever is listed may come as `orjson.Fragment`s, bytes that were
rendered before: a document of a thousand snapshots then costs little more than copying them. What goes in is held to
what readers check, as far as it can be seen: Java refuses the whole table for a main branch that is not the current
snapshot, a current schema that is not listed, or row lineage that is missing.

A table without snapshots has no `current-snapshot-id`: Java writes -1 or null, and every reader takes its absence.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import orjson

from mergus.iceberg.manifest import DATA, POSITION_DELETES, DataFile

Json = Mapping[str, Any] | orjson.Fragment
MAIN = "main"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`first_row_id` and `added_rows` belong to version 3: the rows that this snapshot gave ids, and from which on."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    timestamp_ms: int
    manifest_list: str
    summary: Mapping[str, str]
    schema_id: int
    first_row_id: int | None = None
    added_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or tag. Retention is what somebody asked for; None is the table's default."""

    snapshot_id: int
    type: Literal["branch", "tag"]
    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """`refs` are those beside main, which is the current snapshot; logs are (time in ms, snapshot id or file) pairs,
    oldest first; `last_column_id` and `last_partition_id` are the highest ever given."""

    format_version: int
    table_uuid: str
    location: str
    last_sequence_number: int
    last_updated_ms: int
    last_column_id: int
    current_schema_id: int
    schemas: Sequence[Json]
    default_spec_id: int
    partition_specs: Sequence[Json]
    last_partition_id: int
    default_sort_order_id: int
    sort_orders: Sequence[Json]
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    current_snapshot_id: int | None = None
    snapshots: Sequence[Json] = ()
    snapshot_log: Sequence[tuple[int, int]] = ()
    metadata_log: Sequence[tuple[int, str]] = ()
    refs: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    statistics: Sequence[Json] = ()
    partition_statistics: Sequence[Json] = ()
    next_row_id: int | None = None
    # what somebody asked for about keeping main; its snapshot is the current one
    main_retention: Ref = field(default_factory=lambda: Ref(-1, "branch"))


def table_metadata(table: TableMetadata) -> dict[str, Any]:
    """For `orjson.dumps`. Raises ValueError for what no reader would take."""
    _check(table)
    json: dict[str, Any] = {
        "format-version": table.format_version,
        "table-uuid": table.table_uuid,
        "location": table.location,
        "last-sequence-number": table.last_sequence_number,
        "last-updated-ms": table.last_updated_ms,
        "last-column-id": table.last_column_id,
        "current-schema-id": table.current_schema_id,
        "schemas": table.schemas,
        "default-spec-id": table.default_spec_id,
        "partition-specs": table.partition_specs,
        "last-partition-id": table.last_partition_id,
        "default-sort-order-id": table.default_sort_order_id,
        "sort-orders": table.sort_orders,
        "properties": table.properties,
        "refs": {name: _ref_json(ref) for name, ref in table.refs.items()},
        "snapshots": table.snapshots,
        "statistics": table.statistics,
        "partition-statistics": table.partition_statistics,
        "snapshot-log": [{"timestamp-ms": at, "snapshot-id": i} for at, i in table.snapshot_log],
        "metadata-log": [{"timestamp-ms": at, "metadata-file": file} for at, file in table.metadata_log],
    }
    if table.current_snapshot_id is not None:
        json["current-snapshot-id"] = table.current_snapshot_id
        json["refs"][MAIN] = _ref_json(replace(table.main_retention, snapshot_id=table.current_snapshot_id))
    if table.next_row_id is not None:
        json["next-row-id"] = table.next_row_id
    return json


def snapshot_json(snapshot: Snapshot, format_version: int) -> dict[str, Any]:
    lineage = (snapshot.first_row_id, snapshot.added_rows)
    if lineage.count(None) != (0 if format_version >= 3 else 2):
        raise ValueError(
            f"Snapshot {snapshot.snapshot_id} of format version {format_version} has row lineage {lineage}"
        )
    if "operation" not in snapshot.summary:
        raise ValueError(f"The summary of snapshot {snapshot.snapshot_id} names no operation")
    json: dict[str, Any] = {"snapshot-id": snapshot.snapshot_id}
    if snapshot.parent_snapshot_id is not None:
        json["parent-snapshot-id"] = snapshot.parent_snapshot_id
    json |= {
        "sequence-number": snapshot.sequence_number,
        "timestamp-ms": snapshot.timestamp_ms,
        "summary": snapshot.summary,
        "manifest-list": snapshot.manifest_list,
        "schema-id": snapshot.schema_id,
    }
    if format_version >= 3:
        json |= {"first-row-id": snapshot.first_row_id, "added-rows": snapshot.added_rows}
    return json


def _ref_json(ref: Ref) -> dict[str, Any]:
    retention = {
        "max-ref-age-ms": ref.max_ref_age_ms,
        "max-snapshot-age-ms": ref.max_snapshot_age_ms,
        "min-snapshots-to-keep": ref.min_snapshots_to_keep,
    }
    given = {name: value for name, value in retention.items() if value is not None}
    return {"snapshot-id": ref.snapshot_id, "type": ref.type, **given}


def _check(table: TableMetadata) -> None:
    if table.format_version not in (2, 3):
        raise ValueError(f"Tables of format version {table.format_version} are not supported")
    if (table.format_version >= 3) != (table.next_row_id is not None):
        raise ValueError("A table has a next row id from format version 3 on, and not before")
    if MAIN in table.refs:
        raise ValueError("The main branch is the current snapshot, and no ref beside it")
    if table.current_snapshot_id is None and table.snapshot_log:
        raise ValueError("A table without a current snapshot has no log of snapshots")
    for listed, name, wanted in (
        (table.schemas, "schema-id", table.current_schema_id),
        (table.partition_specs, "spec-id", table.default_spec_id),
        (table.sort_orders, "order-id", table.default_sort_order_id),
        (table.snapshots, "snapshot-id", table.current_snapshot_id),
    ):
        # what comes as bytes is taken at its word
        seen = [one[name] for one in listed if not isinstance(one, orjson.Fragment)]
        if wanted is not None and wanted not in seen and len(seen) == len(listed):
            raise ValueError(f"The table's own {name} {wanted} is not listed")


@dataclass(frozen=True, slots=True)
class Totals:
    """What a snapshot holds. Sizes are of data and delete files together."""

    records: int = 0
    files_size: int = 0
    data_files: int = 0
    delete_files: int = 0
    position_deletes: int = 0
    equality_deletes: int = 0

    def json(self) -> dict[str, str]:
        return {
            "total-records": str(self.records),
            "total-files-size": str(self.files_size),
            "total-data-files": str(self.data_files),
            "total-delete-files": str(self.delete_files),
            "total-position-deletes": str(self.position_deletes),
            "total-equality-deletes": str(self.equality_deletes),
        }


@dataclass(frozen=True, slots=True)
class _Sums:
    data_files: int
    records: int
    size: int
    position_delete_files: int
    dvs: int
    position_deletes: int

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> "_Sums":
        found = list(files)
        data = [f for f in found if f.content == DATA]
        deletes = [f for f in found if f.content == POSITION_DELETES]
        dvs = sum(f.content_offset is not None for f in deletes)
        return cls(
            len(data),
            sum(f.record_count for f in data),
            # of a Puffin file each deletion vector is a part
            sum(f.content_size_in_bytes or f.file_size_in_bytes for f in found),
            len(deletes) - dvs,
            dvs,
            sum(f.record_count for f in deletes),
        )


@dataclass(frozen=True, slots=True)
class Changes:
    """What a snapshot added and removed. A delete file is one of positions (version 2) or a deletion vector (3).
    Records are counted as in the data files: one that a delete file hides still counts."""

    added_data_files: int = 0
    removed_data_files: int = 0
    added_records: int = 0
    removed_records: int = 0
    added_files_size: int = 0
    removed_files_size: int = 0
    added_position_delete_files: int = 0
    removed_position_delete_files: int = 0
    added_dvs: int = 0
    removed_dvs: int = 0
    added_position_deletes: int = 0
    removed_position_deletes: int = 0

    @property
    def operation(self) -> str:
        """As far as the files tell: a compaction is a "replace", which only whoever made it can know."""
        if self.removed_data_files or self.added_position_delete_files or self.added_dvs:
            return "overwrite" if self.added_data_files else "delete"
        return "overwrite" if self.removed_position_delete_files or self.removed_dvs else "append"

    def plus(self, added: Iterable[DataFile], removed: Iterable[DataFile]) -> "Changes":
        """With these files, too."""
        new, gone = _Sums.of(added), _Sums.of(removed)
        return Changes(
            self.added_data_files + new.data_files,
            self.removed_data_files + gone.data_files,
            self.added_records + new.records,
            self.removed_records + gone.records,
            self.added_files_size + new.size,
            self.removed_files_size + gone.size,
            self.added_position_delete_files + new.position_delete_files,
            self.removed_position_delete_files + gone.position_delete_files,
            self.added_dvs + new.dvs,
            self.removed_dvs + gone.dvs,
            self.added_position_deletes + new.position_deletes,
            self.removed_position_deletes + gone.position_deletes,
        )

    def after(self, parent: Totals) -> Totals:
        added_delete_files = self.added_position_delete_files + self.added_dvs
        removed_delete_files = self.removed_position_delete_files + self.removed_dvs
        return Totals(
            parent.records + self.added_records - self.removed_records,
            parent.files_size + self.added_files_size - self.removed_files_size,
            parent.data_files + self.added_data_files - self.removed_data_files,
            parent.delete_files + added_delete_files - removed_delete_files,
            parent.position_deletes + self.added_position_deletes - self.removed_position_deletes,
            parent.equality_deletes,
        )

    def json(self) -> dict[str, str]:
        """Without what did not happen."""
        return {name: str(count) for name, count in self.counts().items() if count}

    def counts(self) -> dict[str, int]:
        return {
            "added-data-files": self.added_data_files,
            "deleted-data-files": self.removed_data_files,
            "added-records": self.added_records,
            "deleted-records": self.removed_records,
            "added-files-size": self.added_files_size,
            "removed-files-size": self.removed_files_size,
            "added-delete-files": self.added_position_delete_files + self.added_dvs,
            "removed-delete-files": self.removed_position_delete_files + self.removed_dvs,
            "added-position-delete-files": self.added_position_delete_files,
            "removed-position-delete-files": self.removed_position_delete_files,
            "added-dvs": self.added_dvs,
            "removed-dvs": self.removed_dvs,
            "added-position-deletes": self.added_position_deletes,
            "removed-position-deletes": self.removed_position_deletes,
        }


# What a summary says of files and rows; anything else in it is the writer's.
COUNTED: Final = frozenset({*Totals().json(), *Changes().counts()})


def summary(changes: Changes, totals: Totals, operation: str | None = None) -> dict[str, str]:
    """Of a snapshot that made these changes and ends with these totals, in Iceberg's words."""
    return {"operation": operation or changes.operation, **changes.json(), **totals.json()}
