"""What a commit relies on: that the table still is what its writer has seen.

A requirement that does not hold is no error of the client. It fails with 409 and loads the table again, so messages
are those of Iceberg's own catalogs, which some clients look for. What is no requirement at all is a ValueError.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from mergus.errors import CommitFailed
from mergus.iceberg.json_object import JsonObject, shown
from mergus.iceberg.metadata import MAIN, Ref, TableMetadata

MOST: Final = 10_000


@dataclass(frozen=True, slots=True)
class AssertCreate:
    pass


@dataclass(frozen=True, slots=True)
class AssertTableUuid:
    uuid: str


@dataclass(frozen=True, slots=True)
class AssertRefSnapshotId:
    """`snapshot_id` None: there must be no such ref."""

    ref: str
    snapshot_id: int | None


@dataclass(frozen=True, slots=True)
class AssertLastAssignedFieldId:
    field_id: int


@dataclass(frozen=True, slots=True)
class AssertCurrentSchemaId:
    schema_id: int


@dataclass(frozen=True, slots=True)
class AssertLastAssignedPartitionId:
    field_id: int


@dataclass(frozen=True, slots=True)
class AssertDefaultSpecId:
    spec_id: int


@dataclass(frozen=True, slots=True)
class AssertDefaultSortOrderId:
    order_id: int


Requirement = (
    AssertCreate
    | AssertTableUuid
    | AssertRefSnapshotId
    | AssertLastAssignedFieldId
    | AssertCurrentSchemaId
    | AssertLastAssignedPartitionId
    | AssertDefaultSpecId
    | AssertDefaultSortOrderId
)

_PARSED: Final[dict[str, Callable[[JsonObject], Requirement]]] = {
    "assert-create": lambda json: AssertCreate(),
    "assert-table-uuid": lambda json: AssertTableUuid(json.uuid("uuid")),
    "assert-ref-snapshot-id": lambda json: AssertRefSnapshotId(json.text("ref"), json.maybe_int64("snapshot-id")),
    "assert-last-assigned-field-id": lambda json: AssertLastAssignedFieldId(json.int32("last-assigned-field-id")),
    "assert-current-schema-id": lambda json: AssertCurrentSchemaId(json.int32("current-schema-id")),
    "assert-last-assigned-partition-id": lambda json: AssertLastAssignedPartitionId(
        json.int32("last-assigned-partition-id")
    ),
    "assert-default-spec-id": lambda json: AssertDefaultSpecId(json.int32("default-spec-id")),
    "assert-default-sort-order-id": lambda json: AssertDefaultSortOrderId(json.int32("default-sort-order-id")),
}


def parse(json: object) -> list[Requirement]:
    """Raises ValueError for what is none of a table's requirements."""
    found = JsonObject({"requirements": json}, "The commit").parts("requirements")
    if len(found) > MOST:
        raise ValueError(f"A commit can have {MOST} requirements, not {len(found)}")
    return [_parse_one(one) for one in found]


def _parse_one(json: JsonObject) -> Requirement:
    kind = json.text("type")
    if kind not in _PARSED:
        raise ValueError(f"Not a requirement of a table: {shown(kind)}")
    return _PARSED[kind](json.named(kind))


def check(requirements: Iterable[Requirement], table: TableMetadata | None) -> None:
    """Raises CommitFailed for the first that does not hold; `table` is None where there is no such table."""
    for requirement in requirements:
        wrong = _missing(requirement) if table is None else _changed(requirement, table)
        if wrong is not None:
            raise CommitFailed(f"Requirement failed: {wrong}")


def _missing(requirement: Requirement) -> str | None:
    return None if isinstance(requirement, AssertCreate) else "the table does not exist"


def _changed(requirement: Requirement, table: TableMetadata) -> str | None:
    match requirement:
        case AssertCreate():
            return "table already exists"
        case AssertTableUuid(uuid):
            same = uuid == table.table_uuid.lower()
            return None if same else f"UUID does not match: expected {table.table_uuid} != {uuid}"
        case AssertRefSnapshotId(name, snapshot_id):
            return _ref_changed(name, snapshot_id, table)
        case AssertLastAssignedFieldId(field_id):
            return _differs("last assigned field id", field_id, table.last_column_id)
        case AssertCurrentSchemaId(schema_id):
            return _differs("current schema", schema_id, table.current_schema_id)
        case AssertLastAssignedPartitionId(field_id):
            return _differs("last assigned partition id", field_id, table.last_partition_id)
        case AssertDefaultSpecId(spec_id):
            return _differs("default partition spec", spec_id, table.default_spec_id)
        case AssertDefaultSortOrderId(order_id):
            return _differs("default sort order", order_id, table.default_sort_order_id)


def _ref_changed(name: str, expected: int | None, table: TableMetadata) -> str | None:
    ref = _ref(name, table)
    if ref is None:
        return None if expected is None else f"branch or tag {name} is missing, expected {expected}"
    if expected is None:
        return f"{ref.type} {name} was created concurrently"
    if expected != ref.snapshot_id:
        return f"{ref.type} {name} has changed: expected id {expected} != {ref.snapshot_id}"
    return None


def _ref(name: str, table: TableMetadata) -> Ref | None:
    if name != MAIN:
        return table.refs.get(name)
    return None if table.current_snapshot_id is None else Ref(table.current_snapshot_id, "branch")


def _differs(what: str, expected: int, found: int) -> str | None:
    return None if expected == found else f"{what} changed: expected id {expected} != {found}"
