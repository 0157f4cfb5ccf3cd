from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from mergus.ducklake.session import with_extensions
from mergus.iceberg.position_deletes import PositionDeletes, read, write
from tests.iceberg.test_puffin import SparkTable

POSITIONS = st.lists(st.one_of(st.integers(0, 200), st.integers(0, 2**42), st.integers(0, 2**63 - 1)), max_size=100)
PATHS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ICEBERG = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
    schema_id=0,
)


def parquet(columns: Mapping[str, Any], **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(columns)), sink, **options)
    return sink.getvalue().to_pybytes()


def opened(data: bytes) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(data))


def longs(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


@given(st.dictionaries(PATHS, POSITIONS, max_size=4))
def test_position_deletes_are_read_back_sorted_and_without_duplicates(deletes: dict[str, list[int]]) -> None:
    expected = sorted({(path, x) for path, positions in deletes.items() for x in positions})
    found = read(write(deletes))
    assert list(zip(found.file_paths, found.positions, strict=True)) == expected
    assert found.snapshot_ids is None


@given(st.dictionaries(PATHS, POSITIONS, max_size=4))
def test_equal_position_deletes_are_written_as_equal_bytes(deletes: dict[str, list[int]]) -> None:
    same = {path: list(reversed(deletes[path])) + deletes[path][:3] for path in reversed(deletes)}
    assert write(same) == write(deletes)


def test_dense_positions_over_several_row_groups_are_read_back() -> None:
    found = read(write({"b": range(1_500_000), "a": range(5)}))
    assert found.positions == [*range(5), *range(1_500_000)]
    assert found.file_paths == ["a"] * 5 + ["b"] * 1_500_000


@pytest.mark.parametrize("wrong", [-1, 2**63, 2**64])
def test_a_position_out_of_range_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match="position"):
        write({"a": [wrong]})


@pytest.mark.parametrize("deletes", [{}, {"a": []}, {"s3://lake/1.parquet": [1, 2**33], "s3://lake/2.parquet": [0]}])
def test_a_position_delete_file_has_the_columns_of_the_specification(deletes: dict[str, list[int]]) -> None:
    file = opened(write(deletes))
    assert pyarrow_to_schema(file.schema_arrow) == ICEBERG
    assert [str(x.type) for x in file.schema_arrow] == ["string", "int64"]
    assert [not x.nullable for x in file.schema_arrow] == [True, True]
    metadata = file.metadata.metadata
    assert Schema.model_validate_json(metadata[b"iceberg.schema"]) == ICEBERG
    assert orjson.loads(metadata[b"iceberg.schema"])["type"] == "struct"
    assert metadata[b"delete-type"] == b"position"
    assert b"ARROW:schema" not in metadata
    for group in range(file.metadata.num_row_groups):
        assert {file.metadata.row_group(group).column(i).compression for i in range(2)} == {"ZSTD"}


def test_columns_of_a_delete_file_are_found_by_position() -> None:
    assert read(parquet({"x": ["a"], "y": longs(7)})) == PositionDeletes(["a"], [7], None)
    assert read(parquet({"x": pa.array(["a"], pa.large_string()), "y": longs(7)})).positions == [7]


def test_snapshot_ids_of_a_ducklake_delete_file_are_read() -> None:
    columns = {"file_path": ["a", None], "pos": longs(1, 2)}
    with_ids = parquet(columns | {"_ducklake_internal_snapshot_id": longs(5, 9)})
    assert read(with_ids) == PositionDeletes(["a", None], [1, 2], [5, 9])
    assert read(parquet(columns | {"row": [{"i": 1}, {"i": 2}]})).snapshot_ids is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"file_path": ["a", "a"], "pos": longs(1, None)}, "without a position"),
        ({"file_path": ["a"], "pos": longs(-1)}, "negative"),
        (
            {"file_path": ["a"], "pos": longs(1), "_ducklake_internal_snapshot_id": longs(None)},
            "without a snapshot id",
        ),
        ({"file_path": ["a"]}, "must have"),
        ({"file_path": [1], "pos": longs(1)}, "must have"),
        ({"pos": longs(1), "file_path": ["a"]}, "must have"),
        ({"file_path": ["a"], "pos": pa.array([1], pa.int32())}, "must have"),
        ({"file_path": ["a"], "pos": longs(1), "x": longs(1), "y": longs(1)}, "must have"),
    ],
)
def test_delete_files_with_malformed_columns_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(parquet(columns))


@pytest.mark.parametrize("noise", [b"", b"PAR1", b"PAR1PAR1", b"PAR1\xff\xff\xff\x7fPAR1", b"x" * 1000])
def test_bytes_that_are_no_parquet_file_are_refused(noise: bytes) -> None:
    with pytest.raises(ValueError):
        read(noise)


def test_a_changed_byte_never_changes_which_rows_are_deleted() -> None:
    """Pages have checksums. The footer has none: what it says may change in ways that do not matter here."""
    right = write({"s3://lake/1.parquet": [*range(0, 5000, 3), 2**40]})
    expected = read(right)
    footer_at = len(right) - 8 - int.from_bytes(right[-8:-4], "little")
    for at in [*range(0, footer_at, 7), *range(footer_at, len(right))]:
        for change in (1, 255):
            wrong = bytearray(right)
            wrong[at] ^= change
            try:
                found = read(bytes(wrong))
            except ValueError:
                continue
            assert found == expected, (at, change)


def test_ducklake_delete_files_are_read_with_the_snapshot_of_each_delete(tmp_path: Path) -> None:
    with with_extensions("ducklake") as db:
        options = f"DATA_PATH '{tmp_path}/data/', DATA_INLINING_ROW_LIMIT 0"
        db.execute(f"ATTACH 'ducklake:{tmp_path}/catalog.duckdb' AS lake ({options})")
        db.execute("CREATE TABLE lake.t AS SELECT range AS i FROM range(1000)")

        def deletes(where: str) -> PositionDeletes:
            before = set(tmp_path.glob("data/**/*-delete.parquet"))
            db.execute(f"DELETE FROM lake.t WHERE {where}")
            (added,) = set(tmp_path.glob("data/**/*-delete.parquet")) - before
            assert field_ids(added.read_bytes())[:2] == [2147483646, 2147483645]
            return read(added.read_bytes())

        first = deletes("i < 3")
        second = deletes("i IN (1, 500, 999)")
    assert first.positions == [0, 1, 2]
    assert first.snapshot_ids is None
    assert second.positions == [0, 1, 2, 500, 999]
    assert second.snapshot_ids is not None
    old, new = set(second.snapshot_ids[:3]), set(second.snapshot_ids[3:])
    assert len(old) == len(new) == 1
    assert max(old) < min(new)


def field_ids(data: bytes) -> list[int]:
    return [int(x.metadata[b"PARQUET:field_id"]) for x in opened(data).schema_arrow]


@pytest.mark.integration
def test_spark_applies_position_deletes_written_by_mergus(tmp_path: Path) -> None:
    table = SparkTable(tmp_path, format_version=2)
    first, second = table.append(range(10)), table.append(range(100, 110))
    path = tmp_path / "deletes.parquet"
    path.write_bytes(write({second: range(5, 10), first: [0, 3]}))
    jvm: Any = table.spark._jvm
    java = jvm.org.apache.iceberg
    builder = java.FileMetadata.deleteFileBuilder(java.PartitionSpec.unpartitioned()).ofPositionDeletes()
    builder = builder.withFormat("parquet").withPath(f"file:{path}").withFileSizeInBytes(path.stat().st_size)
    table.add_deletes([builder.withRecordCount(7).build()])
    assert table.rows() == [1, 2, *range(4, 10), *range(100, 105)]
