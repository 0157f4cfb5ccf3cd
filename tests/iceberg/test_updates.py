"""What a commit changes, as clients write it."""

from typing import Any

import orjson
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import update
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import IntegerType, NestedField, TimestampType

from mergus.errors import Unsupported
from mergus.iceberg import partition_spec, schema, sort_order, updates
from mergus.iceberg.metadata import Ref
from mergus.iceberg.updates import parse

# PyIceberg's models take their parts by aliases that pyright does not know.
theirs: Any = update

UUID = "0195b0f6-6f7d-7b6c-8c5e-0123456789ab"
SNAPSHOT = {
    "snapshot-id": 7,
    "parent-snapshot-id": 6,
    "sequence-number": 2,
    "timestamp-ms": 1_700_000_000_000,
    "manifest-list": "s3://lake/list.avro",
    "summary": {"operation": "append", "added-records": "1"},
    "schema-id": 0,
}
STATISTICS = {
    "snapshot-id": 7,
    "statistics-path": "s3://lake/stats.puffin",
    "file-size-in-bytes": 10,
    "file-footer-size-in-bytes": 5,
    "blob-metadata": [
        {
            "type": "apache-datasketches-theta-v1",
            "snapshot-id": 7,
            "sequence-number": 2,
            "fields": [1],
            "properties": {"ndv": "3"},
        }
    ],
}


def test_every_update_that_pyiceberg_sends_is_parsed() -> None:
    columns = Schema(
        NestedField(1, "i", IntegerType(), required=False), NestedField(2, "at", TimestampType()), schema_id=3
    )
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "at_day"), spec_id=1)
    order = SortOrder(SortField(1, IdentityTransform()), order_id=1)
    snapshot = Snapshot.model_validate({**SNAPSHOT, "summary": Summary(Operation.APPEND, **{"added-records": "1"})})
    sent: list[Any] = [
        theirs.AssignUUIDUpdate(uuid=UUID),
        theirs.UpgradeFormatVersionUpdate(**{"format-version": 2}),
        theirs.AddSchemaUpdate(schema=columns),
        theirs.SetCurrentSchemaUpdate(**{"schema-id": -1}),
        theirs.AddPartitionSpecUpdate(spec=spec),
        theirs.SetDefaultSpecUpdate(**{"spec-id": -1}),
        theirs.AddSortOrderUpdate(**{"sort-order": order}),
        theirs.SetDefaultSortOrderUpdate(**{"sort-order-id": -1}),
        theirs.SetLocationUpdate(location="s3://lake/t"),
        theirs.SetPropertiesUpdate(updates={"a": 1}),
        theirs.RemovePropertiesUpdate(removals=["b"]),
        theirs.AddSnapshotUpdate(snapshot=snapshot),
        theirs.SetSnapshotRefUpdate(**{"ref-name": "main", "type": "branch", "snapshot-id": 7}),
        theirs.SetSnapshotRefUpdate(**{"ref-name": "v1", "type": "tag", "snapshot-id": 7, "max-ref-age-ms": 9}),
        theirs.RemoveSnapshotRefUpdate(**{"ref-name": "v0"}),
        theirs.RemoveSnapshotsUpdate(**{"snapshot-ids": [3, 4]}),
        theirs.SetStatisticsUpdate(
            statistics=StatisticsFile(
                **{**STATISTICS, "blob-metadata": [BlobMetadata(**b) for b in STATISTICS["blob-metadata"]]}
            )
        ),
        theirs.RemoveStatisticsUpdate(**{"snapshot-id": 3}),
        theirs.RemovePartitionStatisticsUpdate(**{"snapshot-id": 3}),
        theirs.RemovePartitionSpecsUpdate(**{"spec-ids": [0]}),
        theirs.RemoveSchemasUpdate(**{"schema-ids": [0, 1]}),
    ]
    told = [orjson.loads(one.model_dump_json(exclude_none=True, by_alias=True)) for one in sent]
    fields = (schema.Field(1, "i", "int"), schema.Field(2, "at", "timestamp"))
    partitions = (partition_spec.PartitionField(2, 1000, "at_day", "day"),)
    assert parse(told) == [
        updates.AssignUuid(UUID),
        updates.UpgradeFormatVersion(2),
        updates.AddSchema(schema.Schema(fields), 3),
        updates.SetCurrentSchema(-1),
        updates.AddSpec(partition_spec.PartitionSpec(1, partitions)),
        updates.SetDefaultSpec(-1),
        updates.AddSortOrder(sort_order.SortOrder(1, (sort_order.SortField(1),))),
        updates.SetDefaultSortOrder(-1),
        updates.SetLocation("s3://lake/t"),
        updates.SetProperties({"a": "1"}),
        updates.RemoveProperties(("b",)),
        updates.AddSnapshot(
            updates.AddedSnapshot(
                7,
                6,
                2,
                1_700_000_000_000,
                "s3://lake/list.avro",
                {"operation": "append", "added-records": "1"},
                0,
            )
        ),
        updates.SetRef("main", Ref(7, "branch")),
        updates.SetRef("v1", Ref(7, "tag", 9)),
        updates.RemoveRef("v0"),
        updates.RemoveSnapshots((3, 4)),
        updates.SetStatistics(7, STATISTICS),
        updates.RemoveStatistics(3),
        updates.RemovePartitionStatistics(3),
        updates.RemoveSpecs((0,)),
        updates.RemoveSchemas((0, 1)),
    ]


def test_schemas_and_specs_in_updates_may_omit_their_ids() -> None:
    columns = {"type": "struct", "fields": [{"id": 1, "name": "i", "type": "int", "required": False}]}
    spec = {"fields": [{"source-id": 1, "name": "i", "transform": "identity"}]}
    found = parse(
        [{"action": "add-schema", "schema": columns, "last-column-id": 1}, {"action": "add-spec", "spec": spec}]
    )
    assert found == [
        updates.AddSchema(schema.Schema((schema.Field(1, "i", "int"),)), None),
        updates.AddSpec(partition_spec.PartitionSpec(-1, (partition_spec.PartitionField(1, -1, "i", "identity"),))),
    ]


def test_statistics_updates_are_parsed_in_the_old_and_the_new_form() -> None:
    file = {"snapshot-id": 7, "statistics-path": "s3://lake/p.parquet", "file-size-in-bytes": 3}
    assert parse(
        [
            {"action": "set-statistics", "snapshot-id": 7, "statistics": STATISTICS},
            {"action": "set-partition-statistics", "partition-statistics": file},
        ]
    ) == [updates.SetStatistics(7, STATISTICS), updates.SetPartitionStatistics(7, file)]


def test_uppercase_ref_types_of_older_java_clients_are_accepted() -> None:
    found = parse([{"action": "set-snapshot-ref", "ref-name": "main", "type": "BRANCH", "snapshot-id": 7}])
    assert found == [updates.SetRef("main", Ref(7, "branch"))]


@pytest.mark.parametrize(
    "json",
    [
        {"action": "add-encryption-key", "encryption-key": {}},
        {"action": "remove-encryption-key", "key-id": "k"},
        {"action": "add-snapshot", "snapshot": {**SNAPSHOT, "key-id": "k"}},
        {"action": "set-statistics", "statistics": {**STATISTICS, "key-metadata": "aaaa"}},
    ],
)
def test_updates_that_use_encryption_are_refused_as_unsupported(json: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        parse([json])


def snapshot(**changed: Any) -> dict[str, Any]:
    parts = {**SNAPSHOT, **{name.replace("_", "-"): value for name, value in changed.items()}}
    return {"action": "add-snapshot", "snapshot": parts}


def ref(**changed: Any) -> dict[str, Any]:
    parts = {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 7}
    return {**parts, **{name.replace("_", "-"): value for name, value in changed.items()}}


@pytest.mark.parametrize(
    ("json", "says"),
    [
        ({"action": "add-view-version", "view-version": {}}, "view"),
        ({"action": "set-current-view-version", "view-version-id": -1}, "view"),
        ({"action": "make-coffee"}, "make-coffee"),
        ({}, "has no action"),
        ("assign-uuid", "JSON object"),
        ({"action": "assign-uuid", "uuid": 1}, "must be text"),
        ({"action": "upgrade-format-version", "format-version": "3"}, "whole number"),
        ({"action": "add-schema"}, "has no schema"),
        ({"action": "add-schema", "schema": {"type": "struct", "fields": [{}]}}, "id"),
        ({"action": "set-current-schema", "schema-id": -2}, "schema-id"),
        ({"action": "set-current-schema", "schema-id": True}, "whole number"),
        ({"action": "add-spec", "spec": {"spec-id": 0}}, "fields"),
        ({"action": "set-properties", "updates": {"a": 1}}, "must be text"),
        ({"action": "set-properties", "updates": {"a": None}}, "must be text"),
        ({"action": "set-properties", "updates": {"a\0": "b"}}, "NUL"),
        ({"action": "set-properties", "updates": {"a": "\ud800"}}, "surrogate"),
        ({"action": "set-properties", "updates": ["a"]}, "JSON object"),
        ({"action": "remove-properties", "removals": "a"}, "list"),
        ({"action": "remove-snapshots", "snapshot-ids": [2**63]}, "snapshot-ids"),
        ({"action": "set-location", "location": ""}, "location"),
        (snapshot(snapshot_id=0), "snapshot-id"),
        (snapshot(snapshot_id=-1), "snapshot-id"),
        (snapshot(snapshot_id=2**63), "snapshot-id"),
        (snapshot(manifest_list=None), "manifest-list"),
        (snapshot(manifest_list=None, manifests=["a.avro"]), "format version 1"),
        (snapshot(summary=None), "summary"),
        (snapshot(summary={}), "operation"),
        (snapshot(summary={"operation": "explode"}), "explode"),
        (snapshot(summary={"operation": "append", "added-records": 1}), "must be text"),
        (snapshot(added_rows=-1), "added-rows"),
        (ref(type="twig"), "twig"),
        (ref(ref_name=""), "ref-name"),
        (ref(min_snapshots_to_keep=1), "max-ref-age-ms alone"),
        (ref(max_ref_age_ms=0), "max-ref-age-ms"),
        ({"action": "set-statistics", "snapshot-id": 8, "statistics": STATISTICS}, "8"),
        ({"action": "set-statistics", "statistics": {**STATISTICS, "blob-metadata": [{}]}}, "blob-metadata"),
        ({"action": "set-partition-statistics", "partition-statistics": {"snapshot-id": 1}}, "statistics-path"),
    ],
)
def test_a_malformed_or_unknown_update_is_refused(json: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse([json])


def test_a_commit_with_too_many_updates_is_refused() -> None:
    removal = {"action": "remove-snapshot-ref", "ref-name": "v1"}
    assert len(parse([removal] * 10_000)) == 10_000
    with pytest.raises(ValueError, match="10000 updates, not 10001"):
        parse([removal] * 10_001)
