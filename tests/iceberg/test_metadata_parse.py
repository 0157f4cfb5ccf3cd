"""Metadata files of other writers, packed and plain, of every format version, and such as make no sense."""

import gzip
import json
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, NestedField, StringType

from mergus.errors import Unsupported
from mergus.iceberg import metadata_parse
from mergus.iceberg.metadata_parse import parse, plain
from mergus.iceberg.partition_spec import NO_FIELD_ID

COLUMNS = Schema(NestedField(1, "i", IntegerType()), NestedField(2, "s", StringType(), required=True))
SPEC = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(4), "b"), PartitionField(2, 1001, IdentityTransform(), "s")
)
ORDER = SortOrder(SortField(source_id=2, transform=IdentityTransform()))


def made(version: int = 2, **changes: Any) -> dict[str, Any]:
    """As PyIceberg writes it, which writes no version 3 yet."""
    written = {"format-version": str(min(2, version)), "k": "v"}
    document = json.loads(new_table_metadata(COLUMNS, SPEC, ORDER, "s3://b/t", written).model_dump_json())
    return document | ({"format-version": 3, "next-row-id": 7} if version == 3 else {}) | changes


def snapshot(number: int, parent: int | None = None, /, **more: Any) -> dict[str, Any]:
    found = {"snapshot-id": number, "timestamp-ms": 1, "manifest-list": f"s3://b/{number}.avro", **more}
    return found if parent is None else found | {"parent-snapshot-id": parent}


def read(document: dict[str, Any]) -> metadata_parse.GivenTable:
    return parse(json.dumps(document).encode())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_metadata_written_by_pyiceberg_is_parsed_plain_and_gzipped(version: int) -> None:
    document = made(version)
    for data in (json.dumps(document).encode(), gzip.compress(json.dumps(document).encode())):
        table = parse(data)
        assert (table.format_version, table.uuid, table.location) == (version, document["table-uuid"], "s3://b/t")
        assert [(f.id, f.name, f.type, f.required) for f in table.schema.fields] == [
            (1, "i", "int", False),
            (2, "s", "string", True),
        ]
        assert [(f.name, f.field_id, f.transform) for f in table.written_specs[0].fields] == [
            ("b", 1000, "bucket[4]"),
            ("s", 1001, "identity"),
        ]
        assert table.default_order_id == 1
        assert [f.source_id for f in table.orders[1].fields] == [2]
        assert table.properties["k"] == "v"
        assert table.next_row_id == (7 if version == 3 else 0)
        assert (table.current, table.ancestry, table.last_column_id) == (None, [], 2)


def test_version_1_metadata_without_optional_fields_is_parsed() -> None:
    document = made(1)
    for name in ("table-uuid", "schemas", "current-schema-id", "partition-specs", "default-spec-id", "sort-orders"):
        document.pop(name, None)
    document["partition-spec"] = [{"source-id": 2, "name": "s", "transform": "identity"}]
    first = snapshot(11, manifests=["s3a://b/m.avro"])
    del first["manifest-list"]
    table = read(document | {"snapshots": [first], "current-snapshot-id": 11})
    assert table.uuid is None
    assert [f.field_id for f in table.written_specs[0].fields] == [1000]
    # they are counted anew, for all specs
    assert [f.field_id for f in table.specs[0].fields] == [NO_FIELD_ID]
    assert table.current is not None
    assert (table.current.manifest_list, table.current.manifests) == (None, ("s3a://b/m.avro",))
    assert (table.current.sequence_number, table.current.summary) == (0, {"operation": "append"})
    assert read(document | {"current-snapshot-id": -1}).current is None


def test_the_history_of_main_is_read_along_parent_snapshots() -> None:
    known = [snapshot(11), snapshot(12, 11), snapshot(13, 12), snapshot(14, 11)]
    refs = {"main": {"type": "branch", "snapshot-id": 13}, "b": {"type": "branch", "snapshot-id": 14}}
    tag = {"a tag": {"type": "tag", "snapshot-id": 12}, "lost": {"type": "tag", "snapshot-id": 99}}
    table = read(made(snapshots=known, refs=refs | tag, **{"current-snapshot-id": 13}))
    assert [s.snapshot_id for s in table.ancestry] == [11, 12, 13]
    assert (list(table.tags), table.branches) == (["a tag"], ["b"])
    # parents that are gone, or lead round
    assert len(read(made(snapshots=[snapshot(13, 12)], **{"current-snapshot-id": 13})).ancestry) == 1
    assert len(read(made(snapshots=[snapshot(13, 13)], **{"current-snapshot-id": 13})).ancestry) == 1


def test_partition_and_sort_fields_of_dropped_columns_are_left_out() -> None:
    document = made()
    document["schemas"][0]["fields"].pop(0)
    spec = {"spec-id": 1, "fields": document["partition-specs"][0]["fields"][1:]}
    by_i = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    order = {"order-id": 2, "fields": [document["sort-orders"][0]["fields"][0], by_i]}
    specs = [*document["partition-specs"], spec]
    orders = [*document["sort-orders"], order]
    document |= {"partition-specs": specs, "default-spec-id": 1, "sort-orders": orders}
    table = read(document)
    assert [[f.name for f in table.specs[i].fields] for i in (0, 1)] == [["s"], ["s"]]
    assert [f.name for f in table.written_specs[0].fields] == ["b", "s"]
    assert table.fitting(0, (3, "x")) == ("x",)
    assert [len(table.orders[i].fields) for i in (0, 1, 2)] == [0, 1, 1]
    assert table.last_column_id == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"format-version": "2"},
        {"table-uuid": None},
        {"table-uuid": "x"},
        {"location": ""},
        {"location": 3},
        {"last-column-id": None},
        {"schemas": None},
        {"schemas": []},
        {"schemas": {}},
        {"current-schema-id": 5},
        {"partition-specs": []},
        {"default-spec-id": 5},
        {"sort-orders": None},
        {"default-sort-order-id": 5},
        {"snapshots": [{"snapshot-id": 11, "timestamp-ms": 1}]},
        {"snapshots": [{"timestamp-ms": 1, "manifest-list": "x"}]},
        {"current-snapshot-id": 11},
        {"properties": {"a": 1}},
        {"refs": {"main": {"type": "twig", "snapshot-id": 1}}},
        {"refs": {"main": 1}},
    ],
)
def test_malformed_table_metadata_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        read(made() | changes)


def test_bytes_that_are_no_metadata_document_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(json.dumps(made()).encode())
    for data in (b"", b"\xff", b"null", b"3", packed[:-9], packed[:20] + b"x" + packed[21:]):
        with pytest.raises(ValueError):
            parse(data)
    monkeypatch.setattr(metadata_parse, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        parse(packed)


def test_metadata_of_version_4_or_with_encryption_is_refused_as_unsupported() -> None:
    for changes in (
        {"format-version": 4},
        {"encryption-keys": [{"key-id": "k"}]},
        {"snapshots": [{**snapshot(11), "key-id": "k"}]},
    ):
        with pytest.raises(Unsupported):
            read(made() | changes)


def test_s3a_and_s3n_locations_are_normalised_to_s3() -> None:
    assert [plain(f"{name}://b/x") for name in ("s3", "s3a", "s3n", "gs")] == ["s3://b/x"] * 3 + ["gs://b/x"]
