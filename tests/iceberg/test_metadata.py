"""Our table metadata, read by PyIceberg, by Java, and by DuckDB's iceberg extension."""

import json
from dataclasses import fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from pyiceberg.table.metadata import TableMetadataUtil

from mergus.ducklake.session import literal, with_extensions
from mergus.iceberg.metadata import (
    Changes,
    Ref,
    Snapshot,
    TableMetadata,
    Totals,
    snapshot_json,
    summary,
    table_metadata,
)
from mergus.iceberg.name_mapping import PROPERTY, MappedField, name_mapping_json
from mergus.iceberg.schema import Field, List, Map, Schema, Struct, schema_json
from mergus.iceberg.sort_order import UNSORTED, SortField, SortOrder, sort_order_json
from tests.iceberg.test_schema import schemas
from tests.support import spark as sparks

UUID = "7e0eb7ad-8c0d-4f3e-8b3f-0123456789ab"
NOW = 1_700_000_000_000
UNPARTITIONED = {"spec-id": 0, "fields": []}

SCHEMA = Schema(
    (
        Field(1, "id", "long", required=True, doc="the key"),
        Field(2, "day", "date", initial_default="2020-02-29", write_default="2021-01-01"),
        Field(3, "s", Struct((Field(4, "é", "string", initial_default=""), Field(5, "d", "decimal(10, 2)")))),
        Field(6, "l", List(Field(7, "element", "int"))),
        Field(8, "m", Map(Field(9, "key", "string", required=True), Field(10, "value", "uuid"))),
    )
)
PLAIN = Schema((Field(1, "id", "long", required=True), Field(2, "day", "date")))
SPECS = [
    UNPARTITIONED,
    {"spec-id": 12, "fields": [{"source-id": 2, "field-id": 1000, "name": "day_month", "transform": "month"}]},
]
ORDERS = [UNSORTED, SortOrder(17, (SortField(2, "desc", "nulls-last"), SortField(1)))]


def empty(version: int, schema: Schema = PLAIN) -> TableMetadata:
    return TableMetadata(
        format_version=version,
        table_uuid=UUID,
        location="s3://lake/t",
        last_sequence_number=0,
        last_updated_ms=NOW,
        last_column_id=schema.highest_field_id,
        current_schema_id=0,
        schemas=[schema_json(schema, 0, version)],
        default_spec_id=0,
        partition_specs=[UNPARTITIONED],
        last_partition_id=999,
        default_sort_order_id=0,
        sort_orders=[sort_order_json(UNSORTED)],
        next_row_id=0 if version == 3 else None,
    )


def snapshot(version: int, number: int, parent: int | None) -> Snapshot:
    changes = Changes(added_data_files=1, added_records=10, added_files_size=100)
    made = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=parent,
        sequence_number=number,
        timestamp_ms=NOW + number,
        manifest_list=f"s3://lake/t/metadata/snap-{number}.avro",
        summary=summary(changes, changes.after(Totals())) | {"ducklake.snapshot-id": str(number)},
        schema_id=0,
    )
    return replace(made, first_row_id=number * 10, added_rows=10) if version == 3 else made


def full(version: int) -> TableMetadata:
    """With something of everything, and gaps in all ids."""
    made = [snapshot(version, 3, None), snapshot(version, 7, 3)]
    return replace(
        empty(version),
        last_sequence_number=7,
        last_updated_ms=NOW + 7,
        last_column_id=11,
        current_schema_id=5,
        schemas=[schema_json(PLAIN, 0, version), schema_json(SCHEMA if version == 3 else PLAIN, 5, version)],
        default_spec_id=12,
        partition_specs=SPECS,
        last_partition_id=1000,
        default_sort_order_id=17,
        sort_orders=[sort_order_json(x) for x in ORDERS],
        properties={"owner": "é", PROPERTY: name_mapping_json([MappedField(1, ("ID", "id"))])},
        current_snapshot_id=7,
        snapshots=[orjson.Fragment(orjson.dumps(snapshot_json(x, version))) for x in made],
        snapshot_log=[(NOW + 3, 3), (NOW + 7, 7)],
        metadata_log=[(NOW + 3, "s3://lake/t/metadata/1.metadata.json")],
        refs={"v1": Ref(3, "tag", max_ref_age_ms=5), "wap": Ref(3, "branch", None, 6, 7)},
        next_row_id=80 if version == 3 else None,
    )


def rendered(table: TableMetadata) -> str:
    return orjson.dumps(table_metadata(table)).decode()


@pytest.mark.parametrize("version", [2, 3])
def test_pyiceberg_reads_table_metadata_with_every_field(version: int) -> None:
    found = TableMetadataUtil.parse_raw(rendered(full(version)))
    assert (found.format_version, str(found.table_uuid), found.location) == (version, UUID, "s3://lake/t")
    assert (found.last_column_id, found.last_partition_id, found.current_schema_id) == (11, 1000, 5)
    assert [x.schema_id for x in found.schemas] == [0, 5]
    assert [str(x) for x in found.spec().fields] == ["1000: day_month: month(2)"]
    assert [(x.source_id, x.direction.value, x.null_order.value) for x in found.sort_orders[1].fields] == [
        (2, "desc", "nulls-last"),
        (1, "asc", "nulls-first"),
    ]
    assert [(x.snapshot_id, x.parent_snapshot_id, x.sequence_number) for x in found.snapshots] == [
        (3, None, 3),
        (7, 3, 7),
    ]
    current = found.snapshot_by_id(7)
    assert current is not None
    assert current.summary is not None
    assert current.summary.operation.value == "append"
    assert current.summary["ducklake.snapshot-id"] == "7"
    assert {k: x.snapshot_id for k, x in found.refs.items()} == {"main": 7, "v1": 3, "wap": 3}
    assert [x.snapshot_id for x in found.snapshot_log] == [3, 7]
    mapping = found.name_mapping()
    assert mapping is not None
    assert [(x.field_id, x.names) for x in mapping] == [(1, ["ID", "id"])]


@pytest.mark.parametrize("version", [2, 3])
def test_a_table_without_snapshots_has_no_current_one(version: int, tmp_path: Path) -> None:
    text = rendered(empty(version))
    assert "current-snapshot-id" not in text
    found = TableMetadataUtil.parse_raw(text)
    assert (found.current_snapshot_id, found.snapshots, found.refs) == (None, [], {})
    (tmp_path / "v1.metadata.json").write_text(text)
    with with_extensions("httpfs", "avro", "iceberg") as db:
        scan = db.sql(f"FROM iceberg_scan({literal(str(tmp_path / 'v1.metadata.json'))})")
        assert (scan.columns, scan.fetchall()) == (["id", "day"], [])


@given(schemas())
def test_pyiceberg_reads_any_schema_in_its_table(schema: Schema) -> None:
    found = TableMetadataUtil.parse_raw(rendered(empty(schema.format_version, schema)))
    assert [x.name for x in found.schema().fields] == [x.name for x in schema.fields]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (replace(empty(2), format_version=1), "version 1"),
        (replace(empty(2), next_row_id=0), "next row id"),
        (replace(empty(3), next_row_id=None), "next row id"),
        (replace(empty(2), current_schema_id=1), "schema-id 1"),
        (replace(empty(2), default_spec_id=1), "spec-id 1"),
        (replace(empty(2), default_sort_order_id=1), "order-id 1"),
        (replace(empty(2), current_snapshot_id=1), "snapshot-id 1"),
        (replace(empty(2), snapshot_log=[(NOW, 1)]), "without a current snapshot"),
        (replace(full(2), refs={"main": Ref(3, "branch")}), "main branch"),
    ],
)
def test_table_metadata_that_no_reader_accepts_is_refused(wrong: TableMetadata, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        table_metadata(wrong)


@pytest.mark.parametrize(
    ("wrong", "version"),
    [
        (snapshot(2, 1, None), 3),
        (snapshot(3, 1, None), 2),
        (replace(snapshot(3, 1, None), added_rows=None), 3),
        (replace(snapshot(2, 1, None), summary={}), 2),
    ],
)
def test_a_snapshot_without_an_operation_or_its_v3_row_lineage_is_refused(wrong: Snapshot, version: int) -> None:
    with pytest.raises(ValueError, match="napshot 1"):
        snapshot_json(wrong, version)


def test_embedding_rendered_snapshots_is_much_faster_than_rendering_them() -> None:
    """Ten thousand in a fraction of the time that rendering them takes."""
    made = [snapshot(2, i + 1, i or None) for i in range(10_000)]
    start = perf_counter()
    fragments = [orjson.Fragment(orjson.dumps(snapshot_json(x, 2))) for x in made]
    first = perf_counter() - start
    table = replace(empty(2), current_snapshot_id=10_000, snapshots=fragments)
    again = min(timed(lambda: orjson.dumps(table_metadata(table))) for _ in range(5))
    assert again < first / 3


def timed(work: Any) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def test_summary_totals_are_the_previous_totals_plus_the_changes() -> None:
    before = Totals(records=100, files_size=1000, data_files=3, delete_files=2, position_deletes=5)
    changes = Changes(
        added_data_files=1,
        removed_data_files=2,
        added_records=10,
        removed_records=60,
        added_files_size=150,
        removed_files_size=650,
        added_dvs=1,
        removed_position_delete_files=1,
        removed_dvs=1,
        added_position_deletes=4,
        removed_position_deletes=5,
    )
    after = changes.after(before)
    assert after == Totals(records=50, files_size=500, data_files=2, delete_files=1, position_deletes=4)
    assert summary(changes, after) == {
        "operation": "overwrite",
        "added-data-files": "1",
        "deleted-data-files": "2",
        "added-records": "10",
        "deleted-records": "60",
        "added-files-size": "150",
        "removed-files-size": "650",
        "added-delete-files": "1",
        "removed-delete-files": "2",
        "removed-position-delete-files": "1",
        "added-dvs": "1",
        "removed-dvs": "1",
        "added-position-deletes": "4",
        "removed-position-deletes": "5",
        "total-records": "50",
        "total-files-size": "500",
        "total-data-files": "2",
        "total-delete-files": "1",
        "total-position-deletes": "4",
        "total-equality-deletes": "0",
    }


def test_a_summary_omits_zero_changes_and_always_has_totals() -> None:
    told = summary(Changes(), Totals(), "replace")
    assert told.pop("operation") == "replace"
    assert told.keys() == {f"total-{x.name.replace('_', '-')}" for x in fields(Totals)}


@pytest.mark.parametrize(
    ("changes", "operation"),
    [
        (Changes(), "append"),
        (Changes(added_data_files=1), "append"),
        (Changes(removed_data_files=1), "delete"),
        (Changes(added_dvs=1, removed_dvs=1), "delete"),
        (Changes(added_position_delete_files=1), "delete"),
        (Changes(added_data_files=1, removed_data_files=1), "overwrite"),
        (Changes(added_data_files=1, added_dvs=1), "overwrite"),
        (Changes(removed_dvs=1), "overwrite"),
    ],
)
def test_the_operation_of_a_snapshot_is_derived_from_its_file_changes(changes: Changes, operation: str) -> None:
    assert changes.operation == operation


@pytest.mark.integration
class TestJava:
    """Iceberg's own library reads our documents and writes them again."""

    @pytest.mark.parametrize("version", [2, 3])
    @pytest.mark.parametrize("make", [empty, full])
    def test_icebergs_java_library_writes_back_the_metadata_that_it_read(self, version: int, make: Any) -> None:
        ours = rendered(make(version))
        assert written_by_java(ours) == json.loads(ours)

    def test_icebergs_java_library_writes_back_any_schema(self) -> None:
        @settings(max_examples=40)
        @given(schemas())
        def check(schema: Schema) -> None:
            ours = rendered(empty(schema.format_version, schema))
            theirs, expected = written_by_java(ours), json.loads(ours)
            assert names_and_types(theirs["schemas"]) == names_and_types(expected["schemas"])

        check()


def written_by_java(text: str) -> dict[str, Any]:
    jvm: Any = sparks.session()._jvm
    parser = jvm.org.apache.iceberg.TableMetadataParser
    found = json.loads(parser.toJson(parser.fromJson(text)))
    # version 2 of a table without snapshots has -1, 3 has null
    if found.get("current-snapshot-id") in (None, -1):
        found.pop("current-snapshot-id", None)
    return found


def names_and_types(json_: Any) -> Any:
    """Without defaults, whose texts Java shortens: test_schema compares them."""
    if isinstance(json_, dict):
        return {k: names_and_types(v) for k, v in json_.items() if not k.endswith("-default")}  # pyright: ignore[reportUnknownVariableType]
    return [names_and_types(x) for x in json_] if isinstance(json_, list) else json_  # pyright: ignore[reportUnknownVariableType]
