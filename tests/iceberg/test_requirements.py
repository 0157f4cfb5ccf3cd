"""What a commit relies on, beside PyIceberg's idea of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import TableRequirement

from mergus.errors import CommitFailed
from mergus.iceberg import requirements
from mergus.iceberg.metadata import Ref, TableMetadata, table_metadata
from mergus.iceberg.requirements import (
    AssertCreate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUuid,
    check,
    parse,
)

UUID = "0195b0f6-6f7d-7b6c-8c5e-0123456789ab"
OTHER = "0195b0f6-6f7d-7b6c-8c5e-0123456789ac"


def table(**parts: Any) -> TableMetadata:
    snapshot = {
        "sequence-number": 1,
        "timestamp-ms": 1,
        "manifest-list": "s3://lake/list.avro",
        "summary": {"operation": "append"},
    }
    told: dict[str, Any] = {
        "format_version": 2,
        "table_uuid": UUID,
        "location": "s3://lake/t",
        "last_sequence_number": 2,
        "last_updated_ms": 2,
        "last_column_id": 1,
        "current_schema_id": 0,
        "schemas": [
            {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "i", "required": False, "type": "int"}]}
        ],
        "default_spec_id": 0,
        "partition_specs": [{"spec-id": 0, "fields": []}],
        "last_partition_id": 999,
        "default_sort_order_id": 0,
        "sort_orders": [{"order-id": 0, "fields": []}],
        "current_snapshot_id": 2,
        "snapshots": [{"snapshot-id": 1, **snapshot}, {"snapshot-id": 2, **snapshot}],
        "refs": {"old": Ref(1, "tag")},
    }
    return TableMetadata(**(told | parts))


def test_every_kind_of_requirement_is_parsed() -> None:
    assert parse(
        [
            {"type": "assert-create"},
            {"type": "assert-table-uuid", "uuid": UUID.upper()},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2**63 - 1},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 3},
            {"type": "assert-current-schema-id", "current-schema-id": 4},
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999},
            {"type": "assert-default-spec-id", "default-spec-id": 5},
            {"type": "assert-default-sort-order-id", "default-sort-order-id": 6},
        ]
    ) == [
        AssertCreate(),
        AssertTableUuid(UUID),
        AssertRefSnapshotId("main", 2**63 - 1),
        AssertRefSnapshotId("main", None),
        AssertLastAssignedFieldId(3),
        AssertCurrentSchemaId(4),
        AssertLastAssignedPartitionId(999),
        AssertDefaultSpecId(5),
        AssertDefaultSortOrderId(6),
    ]


@pytest.mark.parametrize(
    ("json", "says"),
    [
        (None, "requirements"),
        ({}, "must be a list"),
        (["assert-create"], "must be a JSON object"),
        ([{}], "has no type"),
        ([{"type": 1}], "must be text"),
        ([{"type": "assert-view-uuid", "uuid": UUID}], "assert-view-uuid"),
        ([{"type": "assert-moon"}], "assert-moon"),
        ([{"type": "assert-table-uuid", "uuid": "x"}], "not a UUID"),
        ([{"type": "assert-table-uuid", "uuid": f"{{{UUID}}}"}], "not a UUID"),
        ([{"type": "assert-ref-snapshot-id", "snapshot-id": 1}], "has no ref"),
        ([{"type": "assert-ref-snapshot-id", "ref": "a\0", "snapshot-id": 1}], "NUL"),
        ([{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2**63}], "snapshot-id"),
        ([{"type": "assert-current-schema-id", "current-schema-id": True}], "whole number"),
        ([{"type": "assert-current-schema-id", "current-schema-id": 1.0}], "whole number"),
        ([{"type": "assert-current-schema-id", "current-schema-id": 2**31}], "current-schema-id"),
        ([{"type": "assert-default-spec-id"}], "has no default-spec-id"),
        ([{"type": "assert-create"}] * 10_001, "10000"),
    ],
)
def test_a_malformed_requirement_is_refused(json: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(json)


@pytest.mark.parametrize(
    ("requirement", "says"),
    [
        (AssertCreate(), "table already exists"),
        (AssertTableUuid(OTHER), f"UUID does not match: expected {UUID} != {OTHER}"),
        (AssertRefSnapshotId("main", 1), "branch main has changed: expected id 1 != 2"),
        (AssertRefSnapshotId("main", None), "branch main was created concurrently"),
        (AssertRefSnapshotId("old", 2), "tag old has changed: expected id 2 != 1"),
        (AssertRefSnapshotId("old", None), "tag old was created concurrently"),
        (AssertRefSnapshotId("new", 7), "branch or tag new is missing, expected 7"),
        (AssertLastAssignedFieldId(2), "last assigned field id changed: expected id 2 != 1"),
        (AssertCurrentSchemaId(1), "current schema changed: expected id 1 != 0"),
        (AssertLastAssignedPartitionId(1000), "last assigned partition id changed: expected id 1000 != 999"),
        (AssertDefaultSpecId(1), "default partition spec changed: expected id 1 != 0"),
        (AssertDefaultSortOrderId(1), "default sort order changed: expected id 1 != 0"),
    ],
)
def test_a_failed_requirement_fails_the_commit_with_the_message_of_java(
    requirement: requirements.Requirement, says: str
) -> None:
    with pytest.raises(CommitFailed) as failed:
        check([requirement], table())
    assert failed.value.message == f"Requirement failed: {says}"


def test_requirements_that_hold_let_the_commit_pass() -> None:
    holds = [
        AssertTableUuid(UUID),
        AssertRefSnapshotId("main", 2),
        AssertRefSnapshotId("old", 1),
        AssertRefSnapshotId("new", None),
        AssertLastAssignedFieldId(1),
        AssertCurrentSchemaId(0),
        AssertLastAssignedPartitionId(999),
        AssertDefaultSpecId(0),
        AssertDefaultSortOrderId(0),
    ]
    check(holds, table())
    check([AssertRefSnapshotId("main", None)], table(current_snapshot_id=None, snapshots=(), refs={}))
    check([AssertTableUuid(UUID)], table(table_uuid=UUID.upper()))


def test_only_assert_create_holds_for_a_table_that_is_not_there() -> None:
    check([AssertCreate()], None)
    for requirement in (AssertTableUuid(UUID), AssertRefSnapshotId("main", None), AssertCurrentSchemaId(0)):
        with pytest.raises(CommitFailed, match="does not exist"):
            check([requirement], None)


@given(
    st.one_of(
        st.just({"type": "assert-create"}),
        st.builds(lambda uuid: {"type": "assert-table-uuid", "uuid": uuid}, st.sampled_from([UUID, OTHER])),
        st.builds(
            lambda ref, i: {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": i},
            st.sampled_from(["main", "old", "new"]),
            st.sampled_from([None, 1, 2, 3]),
        ),
        st.builds(
            lambda of, i: {"type": f"assert-{of}", of: i},
            st.sampled_from(
                [
                    "last-assigned-field-id",
                    "current-schema-id",
                    "last-assigned-partition-id",
                    "default-spec-id",
                    "default-sort-order-id",
                ]
            ),
            st.sampled_from([0, 1, 2, 999]),
        ),
    )
)
def test_requirements_pass_or_fail_as_in_pyiceberg(json: dict[str, Any]) -> None:
    ours = table()
    theirs = TableMetadataUtil.parse_obj(table_metadata(ours))
    wanted: Any = TypeAdapter(TableRequirement).validate_python(json)
    try:
        wanted.validate(theirs)
    except CommitFailedException:
        with pytest.raises(CommitFailed):
            check(parse([json]), ours)
    else:
        check(parse([json]), ours)
