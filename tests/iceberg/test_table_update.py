"""What a commit makes of a table, beside PyIceberg's own way of applying updates."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pyiceberg.table.metadata import TableMetadata as TheirTable
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import TableUpdate as TheirUpdate
from pyiceberg.table.update import update_table_metadata

from mergus.errors import ApiError, BadRequest, CommitFailed, Unsupported
from mergus.iceberg import updates
from mergus.iceberg.metadata import Ref, TableMetadata, table_metadata
from mergus.iceberg.partition_spec import PartitionField, PartitionSpec, spec_json
from mergus.iceberg.schema import Field, Schema, schema_json
from mergus.iceberg.sort_order import SortField, SortOrder
from mergus.iceberg.table_update import TableUpdate, apply

UUID = "0195b0f6-6f7d-7b6c-8c5e-0123456789ab"
NUMBER, TEXT, AT = Field(1, "i", "int"), Field(2, "s", "string"), Field(3, "at", "timestamp")
COLUMNS = Schema((NUMBER, TEXT, AT))
BY_DAY = PartitionField(3, 1000, "at_day", "day")
BY_S = PartitionField(2, 1001, "s", "identity")


def snapshot_json(snapshot_id: int, parent: int | None = None, **parts: Any) -> dict[str, Any]:
    told = {
        "snapshot-id": snapshot_id,
        "sequence-number": snapshot_id,
        "timestamp-ms": 1_700_000_000_000 + snapshot_id,
        "manifest-list": f"s3://lake/{snapshot_id}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
        **({} if parent is None else {"parent-snapshot-id": parent}),
    }
    return {**told, **{name.replace("_", "-"): value for name, value in parts.items()}}


def table(**parts: Any) -> TableMetadata:
    """Snapshots 1, 2, 3, of which 3 is current and 1 is tagged; spec 0 is that of no partitions, and 1 by day."""
    told: dict[str, Any] = {
        "format_version": 2,
        "table_uuid": UUID,
        "location": "s3://lake/t",
        "last_sequence_number": 3,
        "last_updated_ms": 1_700_000_000_003,
        "last_column_id": 3,
        "current_schema_id": 0,
        "schemas": [schema_json(COLUMNS, 0)],
        "default_spec_id": 0,
        "partition_specs": [{"spec-id": 0, "fields": []}, spec_json(PartitionSpec(1, (BY_DAY,)))],
        "last_partition_id": 1000,
        "default_sort_order_id": 0,
        "sort_orders": [{"order-id": 0, "fields": []}],
        "properties": {"a": "1", "b": "2"},
        "current_snapshot_id": 3,
        "snapshots": [snapshot_json(1), snapshot_json(2, 1), snapshot_json(3, 2)],
        "refs": {"v1": Ref(1, "tag")},
    }
    return TableMetadata(**(told | parts))


EMPTY = {"current_snapshot_id": None, "snapshots": (), "refs": {}, "last_sequence_number": 0}


def applied(base: TableMetadata | None, *json: dict[str, Any], **given: Any) -> TableUpdate:
    return apply(base, updates.parse(list(json)), **given)


def add_schema(schema: Schema, schema_id: int = 1) -> list[dict[str, Any]]:
    return [{"action": "add-schema", "schema": schema_json(schema, schema_id)}]


def set_schema(schema: Schema, schema_id: int = 1) -> list[dict[str, Any]]:
    return [*add_schema(schema, schema_id), {"action": "set-current-schema", "schema-id": -1}]


def add_spec(*fields: PartitionField, spec_id: int = 2) -> dict[str, Any]:
    return {"action": "add-spec", "spec": spec_json(PartitionSpec(spec_id, fields))}


def default_spec(spec_id: int = -1) -> dict[str, Any]:
    return {"action": "set-default-spec", "spec-id": spec_id}


def add_order(order_id: int = 1, source_id: int = 1) -> dict[str, Any]:
    field = {"source-id": source_id, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    return {"action": "add-sort-order", "sort-order": {"order-id": order_id, "fields": [field] if order_id else []}}


def default_order(order_id: int = -1) -> dict[str, Any]:
    return {"action": "set-default-sort-order", "sort-order-id": order_id}


def add_snapshot(snapshot_id: int, parent: int | None = None, **parts: Any) -> dict[str, Any]:
    return {"action": "add-snapshot", "snapshot": snapshot_json(snapshot_id, parent, **parts)}


def set_ref(name: str, snapshot_id: int, kind: str = "branch", **parts: Any) -> dict[str, Any]:
    told = {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": snapshot_id}
    return {**told, **{name.replace("_", "-"): value for name, value in parts.items()}}


def remove_ref(name: str) -> dict[str, Any]:
    return {"action": "remove-snapshot-ref", "ref-name": name}


def remove_snapshots(*ids: int) -> dict[str, Any]:
    return {"action": "remove-snapshots", "snapshot-ids": list(ids)}


def set_properties(**properties: str) -> dict[str, Any]:
    return {"action": "set-properties", "updates": properties}


def version(wanted: int) -> dict[str, Any]:
    return {"action": "upgrade-format-version", "format-version": wanted}


def steps(update: TableUpdate) -> list[int | str | None]:
    """Snapshots of the commit as text."""
    return [str(s.snapshot_id) if isinstance(s, updates.AddedSnapshot) else s for s in update.main]


# a new table


def test_the_updates_with_which_java_and_pyiceberg_create_a_table_are_applied() -> None:
    update = applied(
        None,
        {"action": "assign-uuid", "uuid": UUID},
        version(3),
        *set_schema(COLUMNS, 0),
        add_spec(BY_DAY, spec_id=0),
        default_spec(),
        add_order(0),
        default_order(),
        {"action": "set-location", "location": "s3://lake/t/"},
        set_properties(a="1"),
        add_snapshot(9, first_row_id=0, added_rows=5),
        set_ref("main", 9),
    )
    assert update.creates
    assert not update.changes_nothing
    assert (update.uuid, update.format_version, update.location) == (UUID, 3, "s3://lake/t")
    assert update.set_properties == {"a": "1"}
    assert update.schema == update.schema_after(None) == COLUMNS
    assert update.schemas_added == [COLUMNS]
    assert update.specs_added == [PartitionSpec(0, (BY_DAY,))]
    assert update.default_spec == 0
    assert update.default_spec_after(None) == PartitionSpec(0, (BY_DAY,))
    assert (update.orders_added, update.default_order) == ([], None)
    assert steps(update) == ["9"]
    assert update.main_retention is None


def test_the_updates_with_which_duckdb_creates_and_alters_a_table_are_applied() -> None:
    """It makes a schema current at the very end, and adds all snapshots before main goes to the last."""
    wider = Schema((NUMBER, TEXT, AT, Field(4, "n", "int")))
    by_n = PartitionField(4, 1000, "n", "identity")
    update = applied(
        None,
        {"action": "assign-uuid", "uuid": UUID},
        version(2),
        *add_schema(COLUMNS, 0),
        add_spec(spec_id=0),
        default_spec(0),
        add_order(0),
        default_order(0),
        add_snapshot(8),
        *add_schema(wider, 1),
        add_spec(by_n, spec_id=1),
        default_spec(1),
        add_snapshot(9, 8, schema_id=1),
        set_ref("main", 9),
        {"action": "set-current-schema", "schema-id": 1},
    )
    assert steps(update) == ["8", "9"]
    assert update.schema == wider
    assert update.default_spec_after(None) == PartitionSpec(1, (by_n,))
    update = applied(None, *add_schema(COLUMNS, 0), {"action": "set-current-schema", "schema-id": 0})
    assert update.schema == COLUMNS


def test_a_new_table_needs_a_schema_and_nothing_else() -> None:
    update = applied(None, *set_schema(COLUMNS, 0), format_version=3)
    assert (update.format_version, update.uuid, update.location, update.default_spec) == (3, None, None, None)
    assert update.default_spec_after(None) == PartitionSpec(0, ())
    with pytest.raises(BadRequest, match="no schema"):
        applied(None, {"action": "assign-uuid", "uuid": UUID})
    with pytest.raises(BadRequest, match="before a schema"):
        applied(None, add_spec(BY_DAY), *set_schema(COLUMNS, 0))


def test_the_format_version_of_a_new_table_comes_from_update_property_or_default() -> None:
    columns = set_schema(COLUMNS, 0)
    assert applied(None, *columns, format_version=3).format_version == 3
    assert applied(None, *columns, version(2), format_version=3).format_version == 2
    said = {"action": "set-properties", "updates": {"format-version": "2", "a": "1"}}
    update = applied(None, *columns, said, format_version=3)
    assert (update.format_version, update.set_properties) == (2, {"a": "1"})
    # version 1 has no deletes, and becomes 2
    asked = {"action": "set-properties", "updates": {"format-version": "1"}}
    update = applied(None, *columns, asked, version(1), format_version=3)
    assert (update.format_version, update.set_properties) == (2, {})
    with pytest.raises(Unsupported, match="version 2 or 3"):
        applied(None, *columns, version(4))
    with pytest.raises(BadRequest, match="downgrade"):
        applied(None, *columns, version(3), version(2))
    with pytest.raises(BadRequest, match="is 2 or 3"):
        applied(None, *columns, {"action": "set-properties", "updates": {"format-version": "two"}})


def test_a_partition_field_without_an_id_gets_one() -> None:
    spec = {"fields": [{"source-id": 3, "name": "at_day", "transform": "day"}]}
    update = applied(None, *set_schema(COLUMNS, 0), {"action": "add-spec", "spec": spec}, default_spec())
    assert update.specs_added == [PartitionSpec(0, (BY_DAY,))]


# all but snapshots


def test_updates_that_repeat_the_current_state_change_nothing() -> None:
    base = table()
    update = applied(
        base,
        {"action": "assign-uuid", "uuid": UUID.upper()},
        version(2),
        *set_schema(COLUMNS, 7),
        {"action": "set-current-schema", "schema-id": 7},
        add_spec(spec_id=0),
        default_spec(0),
        default_order(0),
        {"action": "set-location", "location": "s3://lake/t/"},
        set_properties(a="1"),
        {"action": "remove-properties", "removals": ["c"]},
        set_ref("main", 3),
        set_ref("v1", 1, "tag"),
        remove_ref("v9"),
        remove_snapshots(99),
        {"action": "remove-schemas", "schema-ids": [99]},
        {"action": "remove-partition-specs", "spec-ids": [99]},
        {"action": "remove-statistics", "snapshot-id": 3},
        {"action": "remove-partition-statistics", "snapshot-id": 3},
    )
    assert update.changes_nothing
    assert update.schema_after(base) == COLUMNS
    assert applied(base).changes_nothing


def test_property_updates_are_reduced_to_their_net_change() -> None:
    update = applied(
        table(),
        set_properties(a="5", c="3"),
        {"action": "remove-properties", "removals": ["b", "c"]},
        set_properties(d="4"),
    )
    assert (update.set_properties, update.removed_properties) == ({"a": "5", "d": "4"}, ["b"])
    with pytest.raises(BadRequest, match="upgrade-format-version"):
        applied(table(), {"action": "set-properties", "updates": {"format-version": "3"}})


def test_the_uuid_of_a_table_cannot_be_changed() -> None:
    with pytest.raises(BadRequest, match="Cannot reassign UUID"):
        applied(table(), {"action": "assign-uuid", "uuid": UUID.replace("0", "1")})


def test_the_format_version_can_be_upgraded_but_not_downgraded() -> None:
    update = applied(table(), version(3))
    assert (update.format_version, update.upgraded, update.changes_nothing) == (3, True, False)
    with pytest.raises(BadRequest, match="Cannot downgrade v2 table to v1"):
        applied(table(), version(1))
    with pytest.raises(Unsupported, match="Format version 4"):
        applied(table(), version(4))


def test_adding_a_schema_that_the_table_has_already_keeps_its_id() -> None:
    wider = Schema((NUMBER, TEXT, AT, Field(4, "n", "long")))
    base = table(schemas=[schema_json(COLUMNS, 0), schema_json(wider, 5)], last_column_id=4)
    update = applied(base, *set_schema(wider, 6))
    assert (update.schemas_added, update.schema) == ([], wider)
    assert applied(base, {"action": "set-current-schema", "schema-id": 5}).schema == wider


def test_one_commit_may_set_several_schemas_in_turn() -> None:
    wider, widest = Schema((NUMBER, TEXT, AT, Field(4, "n", "int"))), Schema((NUMBER, TEXT, AT, Field(4, "n", "long")))
    update = applied(table(), *set_schema(wider, 1), *set_schema(widest, 2), add_snapshot(9, 3), set_ref("main", 9))
    assert (update.schemas_added, update.schema) == ([wider, widest], widest)
    assert update.schema_after(table()) == widest
    [snapshot] = [s for s in update.main if isinstance(s, updates.AddedSnapshot)]
    assert update.schema_of(snapshot, table()) == COLUMNS
    assert update.schema_of(replace(snapshot, schema_id=1), table()) == wider
    assert update.schema_of(replace(snapshot, schema_id=None), table()) == widest


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (Schema((replace(NUMBER, type="string"), TEXT, AT)), "from int to string"),
        (Schema((NUMBER, TEXT, AT, Field(3 + 1, "n", "int", required=True))), "required"),
        (Schema((NUMBER, TEXT, AT, Field(4, "S", "int"))), "the same to DuckDB"),
        (Schema((NUMBER, TEXT, AT, Field(4, "row_id", "int"))), "reserved"),
        (Schema((NUMBER, TEXT, AT, Field(4, "n", "variant"))), "format version 3"),
    ],
)
def test_a_schema_that_cannot_follow_the_current_one_is_refused(schema: Schema, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        applied(table(), *set_schema(schema))


def test_a_table_without_columns_is_refused() -> None:
    with pytest.raises(Unsupported, match="without columns"):
        applied(None, *set_schema(Schema(()), 0))


def test_a_field_id_of_a_dropped_column_is_not_reused() -> None:
    base = table(schemas=[schema_json(Schema((NUMBER, TEXT)), 0)], last_column_id=3)
    with pytest.raises(BadRequest, match="not new"):
        applied(base, *set_schema(Schema((NUMBER, TEXT, Field(3, "other", "int")))))
    assert applied(base, *set_schema(Schema((NUMBER, TEXT, Field(4, "other", "int"))))).schema is not None


def test_a_column_dropped_and_restored_in_one_commit_leaves_the_schema_unchanged() -> None:
    update = applied(table(), *set_schema(Schema((NUMBER, TEXT)), 1), *set_schema(COLUMNS, 2))
    assert update.schema is None
    assert update.schemas_added == [Schema((NUMBER, TEXT))]


def test_replacing_a_table_may_change_the_type_of_a_column() -> None:
    other = Schema((replace(NUMBER, type="string"), TEXT, AT))
    replaced = [remove_ref("main"), *set_schema(other), add_snapshot(9), set_ref("main", 9)]
    update = applied(table(), *replaced)
    assert update.schema == other
    assert steps(update) == [None, "9"]
    # a table without rows has no main to remove, and Java removes none
    assert applied(table(**EMPTY), *replaced[1:]).schema == other


def test_remove_schemas_removes_unused_schemas_only() -> None:
    base = table(schemas=[schema_json(COLUMNS, 0), schema_json(Schema((NUMBER, TEXT)), 5)])
    update = applied(base, {"action": "remove-schemas", "schema-ids": [5, 6]})
    assert update.schemas_removed == [5]
    for removed in (0, 1):
        with pytest.raises(BadRequest):
            applied(base, *add_schema(Schema((NUMBER,))), {"action": "remove-schemas", "schema-ids": [removed]})


@pytest.mark.parametrize(
    "json",
    [
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "set-current-schema", "schema-id": 9},
        default_spec(),
        default_spec(9),
        default_order(),
        default_order(9),
        {"action": "remove-partition-specs", "spec-ids": [0]},
        set_ref("main", 9),
        set_ref("v2", 9, "tag"),
        remove_snapshots(3),
        {"action": "add-snapshot", "snapshot": snapshot_json(9, 3, schema_id=8)},
        add_snapshot(3, 2),
    ],
)
def test_updates_that_refer_to_missing_or_required_items_are_refused(json: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        applied(table(), json)


def test_add_spec_and_set_default_spec_number_new_specs() -> None:
    base = table()
    update = applied(base, add_spec(BY_DAY, BY_S), default_spec())
    new = PartitionSpec(2, (BY_DAY, BY_S))
    assert (update.specs_added, update.default_spec, update.spec_ids) == ([new], 2, {})
    assert update.default_spec_after(base) == new
    assert sorted(update.specs_after(base)) == [0, 1, 2]
    assert applied(base, default_spec(1)).default_spec == 1
    assert applied(base, {"action": "remove-partition-specs", "spec-ids": [1]}).specs_removed == [1]


def test_adding_a_spec_that_the_table_has_already_maps_to_its_id() -> None:
    base = table()
    for chosen in (default_spec(), default_spec(7)):
        update = applied(base, add_spec(replace(BY_DAY, field_id=1000), spec_id=7), chosen)
        assert (update.specs_added, update.default_spec, update.spec_ids) == ([], 1, {7: 1})
        assert update.specs_after(base)[7] == PartitionSpec(1, (BY_DAY,))


def test_a_spec_id_that_is_taken_by_another_spec_is_a_conflict() -> None:
    with pytest.raises(CommitFailed, match="Partition spec 1 is another"):
        applied(table(), add_spec(BY_S, spec_id=1))


def test_a_sort_order_id_that_is_taken_is_replaced_by_a_free_one() -> None:
    sorted_by_i = {"order-id": 1, "fields": [add_order()["sort-order"]["fields"][0]]}
    had = table(sort_orders=[{"order-id": 0, "fields": []}, sorted_by_i])
    update = applied(had, add_order(1, source_id=2), default_order())
    assert [order.order_id for order in update.orders_added] == [2]
    assert (update.order_ids, update.default_order) == ({1: 2}, 2)


@pytest.mark.parametrize(
    ("json", "says"),
    [
        ([add_spec(replace(BY_DAY, source_id=9))], "9"),
        ([add_spec(replace(BY_DAY, source_id=1))], "day"),
        ([add_spec(replace(BY_S, field_id=1000))], "id of another"),
        ([add_order(source_id=9)], "9"),
        ([add_order(), default_order(), *set_schema(Schema((TEXT, AT)))], "does not exist: 1"),
        ([default_spec(1), *set_schema(Schema((NUMBER, TEXT)))], "does not exist: 3"),
    ],
)
def test_specs_and_sort_orders_that_do_not_fit_the_columns_are_refused(json: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        applied(table(), *json)


def test_add_sort_order_and_set_default_sort_order_are_applied() -> None:
    update = applied(table(), add_order(), default_order())
    assert (update.orders_added, update.default_order) == ([SortOrder(1, (SortField(1),))], 1)
    sorted_table = table(
        sort_orders=[{"order-id": 0, "fields": []}, add_order()["sort-order"]], default_sort_order_id=1
    )
    update = applied(sorted_table, add_order(0), default_order())
    assert (update.orders_added, update.default_order) == ([], 0)
    update = applied(sorted_table, add_order(4), default_order())
    assert (update.orders_added, update.default_order, update.order_ids) == ([], None, {4: 1})


# main


@pytest.mark.parametrize(
    ("json", "expected"),
    [
        ([add_snapshot(9, 3), set_ref("main", 9)], ["9"]),
        ([add_snapshot(9, 3), set_ref("main", 9), add_snapshot(10, 9), set_ref("main", 10)], ["9", "10"]),
        # only the last is named, and leads to the other
        ([add_snapshot(9, 3), add_snapshot(10, 9), set_ref("main", 10)], ["9", "10"]),
        ([remove_ref("main"), add_snapshot(9), set_ref("main", 9)], [None, "9"]),
        ([remove_ref("main")], [None]),
        ([remove_ref("main"), set_ref("main", 3)], []),
        ([remove_ref("main"), set_ref("main", 2)], [2]),
        ([set_ref("main", 2), set_ref("main", 1)], [1]),
        ([set_ref("main", 2), set_ref("main", 3)], []),
        ([set_ref("main", 2), add_snapshot(9, 2), set_ref("main", 9)], [2, "9"]),
        ([set_ref("main", 1), set_ref("main", 3), add_snapshot(9, 3), set_ref("main", 9)], ["9"]),
        ([add_snapshot(9, 3), set_ref("main", 9), set_ref("main", 3)], ["9", 3]),
        ([add_snapshot(9, 3), set_ref("main", 9), set_ref("main", 3), set_ref("main", 9)], ["9"]),
        # it says everything itself
        ([add_snapshot(9), set_ref("main", 9)], ["9"]),
    ],
)
def test_main_moves_through_the_snapshots_that_a_commit_adds(
    json: list[dict[str, Any]], expected: list[int | str | None]
) -> None:
    assert steps(applied(table(), *json)) == expected


@pytest.mark.parametrize(
    ("json", "error", "says"),
    [
        ([add_snapshot(9, 3)], Unsupported, "write-audit-publish"),
        ([add_snapshot(9, 3), set_ref("v9", 9, "tag")], Unsupported, "write-audit-publish"),
        ([add_snapshot(9, 3), set_ref("audit", 9)], Unsupported, "Branch audit"),
        ([set_ref("audit", 3)], Unsupported, "Branch audit"),
        ([add_snapshot(9, 3), set_ref("main", 9), remove_snapshots(9)], Unsupported, "same commit"),
        (
            [add_snapshot(9, 3), set_ref("main", 9), add_snapshot(10, 9), set_ref("main", 10), set_ref("main", 9)],
            Unsupported,
            "go back",
        ),
        ([set_ref("main", 3, "tag")], BadRequest, "cannot be a tag"),
        ([set_ref("v1", 3)], BadRequest, "it is a tag"),
        ([add_snapshot(9, 3), add_snapshot(9, 3)], BadRequest, "already exists"),
        ([remove_snapshots(1), add_snapshot(1, 3)], BadRequest, "already exists"),
        ([add_snapshot(9, 2), set_ref("main", 9)], CommitFailed, "main is at 3"),
        ([add_snapshot(9, 77)], CommitFailed, "does not have"),
        ([add_snapshot(9, 9)], CommitFailed, "does not have"),
        ([add_snapshot(9, 3, sequence_number=3)], CommitFailed, "sequence number"),
    ],
)
def test_snapshot_updates_that_are_unsupported_or_inconsistent_are_refused(
    json: list[dict[str, Any]], error: type[ApiError], says: str
) -> None:
    with pytest.raises(error, match=says):
        applied(table(), *json)


def test_a_tag_cannot_take_the_name_of_a_branch() -> None:
    with pytest.raises(BadRequest, match="it is a branch"):
        applied(table(refs={"audit": Ref(1, "branch")}), set_ref("audit", 3, "tag"))


def test_a_version_3_snapshot_needs_a_first_row_id_that_fits_the_table() -> None:
    base = table(format_version=3, next_row_id=40)
    good = add_snapshot(9, 3, first_row_id=40, added_rows=2)
    assert steps(applied(base, good, set_ref("main", 9))) == ["9"]
    with pytest.raises(BadRequest, match="first-row-id"):
        applied(base, add_snapshot(9, 3))
    with pytest.raises(CommitFailed, match="39 < 40"):
        applied(base, add_snapshot(9, 3, first_row_id=39, added_rows=2))
    with pytest.raises(CommitFailed, match="41 < 42"):
        applied(base, good, add_snapshot(10, 9, first_row_id=41, added_rows=2))


def test_the_retention_of_main_is_set_by_a_snapshot_ref_update() -> None:
    kept = Ref(-1, "branch", max_snapshot_age_ms=5, min_snapshots_to_keep=2)
    update = applied(table(), set_ref("main", 3, max_snapshot_age_ms=5, min_snapshots_to_keep=2))
    assert (update.main, update.main_retention, update.changes_nothing) == ([], kept, False)
    base = table(main_retention=kept)
    assert applied(base, set_ref("main", 3, max_snapshot_age_ms=5, min_snapshots_to_keep=2)).changes_nothing
    assert applied(base, set_ref("main", 3)).main_retention == Ref(-1, "branch")


# tags, statistics, expiry


def test_tags_are_set_and_removed_by_snapshot_ref_updates() -> None:
    update = applied(
        table(),
        add_snapshot(9, 3),
        set_ref("main", 9),
        set_ref("new", 9, "tag", max_ref_age_ms=5),
        set_ref("gone", 2, "tag"),
        remove_ref("gone"),
        remove_ref("v1"),
    )
    assert (update.tags, update.refs_removed) == ({"new": Ref(9, "tag", 5)}, ["v1"])
    update = applied(table(), remove_ref("v1"), set_ref("v1", 2, "tag"))
    assert (update.tags, update.refs_removed) == ({"v1": Ref(2, "tag")}, [])


def test_removing_a_snapshot_removes_its_tags_and_statistics() -> None:
    file = {"snapshot-id": 1, "statistics-path": "s3://lake/s", "file-size-in-bytes": 1}
    update = applied(
        table(statistics=[file], partition_statistics=[file]),
        set_ref("new", 1, "tag"),
        remove_snapshots(1, 2, 99),
    )
    assert (update.snapshots_removed, update.refs_removed, update.tags) == ([1, 2], ["v1"], {})
    assert (update.statistics_removed, update.partition_statistics_removed) == ([1], [1])
    with pytest.raises(BadRequest, match="unknown snapshot"):
        applied(table(), remove_snapshots(2), set_ref("new", 2, "tag"))


def test_the_former_snapshot_of_main_may_be_removed() -> None:
    update = applied(table(), add_snapshot(9, 3), set_ref("main", 9), remove_snapshots(3))
    assert (steps(update), update.snapshots_removed) == (["9"], [3])


def test_statistics_files_are_set_and_removed() -> None:
    file = {"snapshot-id": 3, "statistics-path": "s3://lake/s", "file-size-in-bytes": 1}
    full = {**file, "file-footer-size-in-bytes": 1, "blob-metadata": []}
    given = [
        {"action": "set-statistics", "statistics": full},
        {"action": "set-partition-statistics", "partition-statistics": file},
    ]
    update = applied(table(), *given)
    assert (update.statistics, update.partition_statistics) == ({3: full}, {3: file})
    had = table(statistics=[full], partition_statistics=[file])
    assert applied(had, *given).changes_nothing
    update = applied(
        had,
        {"action": "remove-statistics", "snapshot-id": 3},
        {"action": "remove-partition-statistics", "snapshot-id": 3},
    )
    assert (update.statistics_removed, update.partition_statistics_removed) == ([3], [3])
    with pytest.raises(BadRequest, match="unknown snapshot"):
        applied(table(), {"action": "set-statistics", "statistics": {**full, "snapshot-id": 99}})


# beside PyIceberg

_UPDATES: TypeAdapter[Any] = TypeAdapter(TheirUpdate)


def theirs(base: TableMetadata, json: list[dict[str, Any]]) -> TheirTable:
    metadata = TableMetadataUtil.parse_obj(orjson.loads(orjson.dumps(table_metadata(base))))
    return update_table_metadata(metadata, tuple(_UPDATES.validate_python(one) for one in json))


@st.composite
def commits(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Updates as clients send them: ids are the next ones."""
    found: list[dict[str, Any]] = []
    snapshots, schemas, specs, orders, column = [1, 2, 3], 1, 2, 1, 4
    main: int | None = 3
    current = list(COLUMNS.fields)
    names = {"a", "b"}
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["append", "rollback", "tag", "untag", "set", "unset", "column", "spec", "order"]))
        match kind:
            case "append":
                new = max(snapshots) + 1
                found += [add_snapshot(new, main), set_ref("main", new)]
                snapshots, main = [*snapshots, new], new
            case "rollback":
                main = draw(st.sampled_from([1, 2, 3]))
                found.append(set_ref("main", main))
            case "tag":
                found.append(set_ref(draw(st.sampled_from(["v1", "v2"])), draw(st.sampled_from([1, 2, 3])), "tag"))
            case "untag":
                found.append(remove_ref(draw(st.sampled_from(["v1", "v2"]))))
            case "set":
                name = draw(st.sampled_from(["a", "b", "c"]))
                found.append(set_properties(**{name: draw(st.sampled_from(["1", "2"]))}))
                names.add(name)
            case "unset":
                gone = draw(st.lists(st.sampled_from(sorted(names)), unique=True)) if names else []
                found.append({"action": "remove-properties", "removals": gone})
                names -= set(gone)
            case "column":
                if draw(st.booleans()):
                    current.append(Field(column, f"c{column}", draw(st.sampled_from(["int", "date", "uuid"]))))
                    column += 1
                else:
                    current = [f for f in current if f.id < 4]
                if draw(st.booleans()):
                    current = [replace(f, type="long") if f.type == "int" else f for f in current]
                found += set_schema(Schema(tuple(current)), schemas)
                schemas += 1
            case "spec":
                fields = draw(st.sampled_from([(BY_S,), (BY_DAY, BY_S), (replace(BY_S, name="other"),)]))
                found += [add_spec(*fields, spec_id=specs), default_spec(specs)]
                specs += 1
            case _:
                found += [add_order(orders, draw(st.sampled_from([1, 2, 3]))), default_order(orders)]
                orders += 1
    return found


@settings(max_examples=200)
@given(commits())
def test_updates_have_the_same_result_as_in_pyiceberg(json: list[dict[str, Any]]) -> None:
    base = table()
    expected = theirs(base, json)
    update = applied(base, *json)
    assert schema_json(update.schema_after(base), 0)["fields"] == _fields(expected)
    assert [f.name for f in update.default_spec_after(base).fields] == [f.name for f in expected.spec().fields]
    assert [f.field_id for f in update.default_spec_after(base).fields] == [f.field_id for f in expected.spec().fields]
    order = update.default_order_after(base)
    assert [f.source_id for f in order.fields] == [f.source_id for f in expected.sort_order().fields]
    after = {**base.properties, **update.set_properties}
    assert {k: v for k, v in after.items() if k not in update.removed_properties} == expected.properties
    tags = {**base.refs, **update.tags}
    assert {name: ref.snapshot_id for name, ref in tags.items() if name not in update.refs_removed} == {
        name: ref.snapshot_id for name, ref in expected.refs.items() if name != "main"
    }
    last = update.main[-1] if update.main else base.current_snapshot_id
    assert (last.snapshot_id if isinstance(last, updates.AddedSnapshot) else last) == expected.current_snapshot_id
    # every snapshot of the commit is shown, once
    added = [one["snapshot"]["snapshot-id"] for one in json if one["action"] == "add-snapshot"]
    assert [s.snapshot_id for s in update.main if isinstance(s, updates.AddedSnapshot)] == added
    assert update.changes_nothing == _same(base, expected)


def _fields(expected: TheirTable) -> list[dict[str, Any]]:
    return orjson.loads(expected.schema().model_dump_json(exclude_none=True))["fields"]


def _same(base: TableMetadata, expected: TheirTable) -> bool:
    """But for times, and for numbers of what PyIceberg lists twice."""
    before = TableMetadataUtil.parse_obj(orjson.loads(orjson.dumps(table_metadata(base))))
    parts: list[Callable[[TheirTable], Any]] = [
        lambda t: t.schema().as_struct(),
        lambda t: {s.as_struct() for s in t.schemas},
        lambda t: t.spec().fields,
        lambda t: {s.fields for s in t.partition_specs},
        lambda t: t.sort_order().fields,
        lambda t: {tuple(map(str, o.fields)) for o in t.sort_orders},
        lambda t: t.properties,
        lambda t: t.refs,
        lambda t: t.snapshots,
    ]
    return all(part(before) == part(expected) for part in parts)


# whatever comes

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=4), parts, max_size=3),
    max_leaves=6,
)
_SAMPLES: list[dict[str, Any]] = [
    {"action": "assign-uuid", "uuid": UUID},
    version(3),
    *set_schema(Schema((NUMBER, TEXT, AT, Field(4, "n", "int")))),
    add_spec(BY_DAY, BY_S),
    default_spec(),
    add_order(),
    default_order(),
    add_snapshot(9, 3, first_row_id=0, added_rows=1),
    set_ref("main", 9),
    set_ref("v9", 9, "tag", max_ref_age_ms=1),
    remove_ref("v1"),
    remove_snapshots(1),
    set_properties(a="2"),
    {"action": "remove-properties", "removals": ["b"]},
    {"action": "set-location", "location": "s3://lake/u"},
    {"action": "remove-schemas", "schema-ids": [0]},
    {"action": "remove-partition-specs", "spec-ids": [0]},
]


def _places(json: Any) -> list[tuple[Any, Any]]:
    """Every part of a JSON value, as where it is and under which key."""
    keys = list(json) if isinstance(json, dict) else list(range(len(json))) if isinstance(json, list) else []
    return [found for key in keys for found in [(json, key), *_places(json[key])]]


@settings(max_examples=300)
@given(st.data())
def test_a_malformed_commit_never_raises_an_unexpected_error(data: st.DataObject) -> None:
    json = orjson.loads(orjson.dumps(data.draw(st.lists(st.sampled_from(_SAMPLES), min_size=1, max_size=12))))
    for _ in range(data.draw(st.integers(0, 2))):
        within, key = data.draw(st.sampled_from(_places(json)))
        within[key] = data.draw(_JSON)
    try:
        parsed = updates.parse(json)
    except (ValueError, Unsupported):
        return
    for base in (table(), table(**EMPTY), None):
        with suppress(BadRequest, Unsupported, CommitFailed):
            assert apply(base, parsed).schema_after(base).fields
