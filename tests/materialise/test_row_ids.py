"""A file in which some rows lack an id is copied with an id for each row, and every other column reads as it did,
whatever its type is and however its writer stored it."""

import io
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergus.iceberg import thrift
from mergus.iceberg.thrift import BINARY, I32, STRUCT, Value
from mergus.materialise.row_ids import fill
from mergus.materialise.side_file import ROW_ID

NAME = "_row_id"
# Fields of Parquet's structs.
SCHEMA, CONVERTED, SCALE, PRECISION, LOGICAL_TYPE, DECIMAL = 2, 6, 7, 8, 10, 5
DIGITS = (1, 4, 9, 10, 17, 18, 19, 25, 37, 38)


def decimal(number: int, scale: int) -> Decimal:
    """Not by arithmetic, which rounds to 28 digits."""
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def decimals(precision: int, rows: int) -> pa.Array:
    scale, most = precision // 2, 10**precision - 1
    numbers = [(most, -most, 1, 0, None)[i % 5] for i in range(rows)]
    values = [None if n is None else decimal(n, scale) for n in numbers]
    with_digits = pa.array(values, pa.decimal128(precision, scale))
    assert with_digits.null_count == rows // 5
    return with_digits


def columns(rows: int) -> dict[str, pa.Array]:
    """One of each kind that a table may have."""
    whole = pa.array(range(rows), pa.int64())
    small = decimals(7, rows)
    texts = pa.array([("x" * (i % 9), None)[i % 4 == 3] for i in range(rows)])
    lists = pa.array([[i, None], []][i % 2] if i % 3 else None for i in range(rows))
    made = {
        "i": whole.cast(pa.int32()),
        "u": pa.array([bytes([i % 256]) * 16 for i in range(rows)], pa.binary(16)),
        "f": pa.array([(float("nan"), -0.0, 1.5, None)[i % 4] for i in range(rows)]),
        "b": pa.array([(True, False, None)[i % 3] for i in range(rows)]),
        "us": whole.cast(pa.timestamp("us")),
        "tz": whole.cast(pa.timestamp("us", "UTC")),
        "ms": whole.cast(pa.timestamp("ms")),
        "ns": pa.array([n * 1000 for n in range(rows)], pa.timestamp("ns")),
        "day": whole.cast(pa.int32()).cast(pa.date32()),
        "time": whole.cast(pa.time64("us")),
        "s": texts,
        "st": pa.StructArray.from_arrays([small, texts], ["d", "t"]),
        "l": lists if rows else pa.array([], pa.list_(pa.int64())),
        "ld": pa.array([[d, None] for d in decimals(12, rows).to_pylist()], pa.list_(pa.decimal128(12, 6))),
        "m": pa.array([[("k", i)] for i in range(rows)], pa.map_(pa.string(), pa.int64())),
    }
    return made | {f"d{precision}": decimals(precision, rows) for precision in DIGITS}


def field(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


def write(others: dict[str, pa.Array], ids: Sequence[int | None], at: int = 0, **how: Any) -> bytes:
    """A file with these row ids, in a column that has so many others before it."""
    arrays = list(others.items())
    arrays.insert(at, (NAME, pa.array(ids, pa.int64())))
    schema = pa.schema([field(n, a.type, ROW_ID if n == NAME else i) for i, (n, a) in enumerate(arrays, 1)])
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([a for _, a in arrays], schema=schema), sink, **how)
    return sink.getvalue()


def filled(original: bytes, first: int) -> bytes:
    target = io.BytesIO()
    fill(io.BytesIO(original), first, target)
    return target.getvalue()


def opened(data: bytes) -> pq.ParquetFile:
    return pq.ParquetFile(io.BytesIO(data))


def check_copy(original: bytes, copy: bytes, expected: Sequence[int]) -> None:
    before, after = opened(original), opened(copy)
    assert after.schema.equals(before.schema)
    assert after.metadata.metadata == before.metadata.metadata
    assert after.metadata.created_by == before.metadata.created_by
    found = after.read()
    assert found.column(NAME).to_pylist() == list(expected)
    # by their text: a NaN does not equal itself
    assert str(found.drop_columns([NAME]).to_pydict()) == str(before.read().drop_columns([NAME]).to_pydict())
    end = 4
    for i in range(before.num_row_groups):
        group, was = after.metadata.row_group(i), before.metadata.row_group(i)
        assert group.num_rows == was.num_rows
        sizes = [group.column(k).total_compressed_size for k in range(group.num_columns)]
        assert group.total_byte_size == sum(group.column(k).total_uncompressed_size for k in range(group.num_columns))
        for k, size in enumerate(sizes):
            column, old = group.column(k), was.column(k)
            # one behind the other, and so that a reader which is told a part of the file finds whole groups in it
            start = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
            assert start == end
            end = start + size
            if column.path_in_schema == NAME:
                assert column.statistics.null_count == 0
                continue
            old_start = old.dictionary_page_offset if old.has_dictionary_page else old.data_page_offset
            assert copy[start:end] == original[old_start : old_start + size]
            assert (column.compression, column.encodings) == (old.compression, old.encodings)
            assert (column.statistics is None) == (old.statistics is None)
    assert end <= len(copy)


def check_in_duckdb(folder: Path, original: bytes, copy: bytes, expected: Sequence[int]) -> None:
    for name, data in (("original", original), ("copy", copy)):
        Path(folder, f"{name}.parquet").write_bytes(data)
    with duckdb.connect() as db:
        read = [
            db.execute(f"SELECT * EXCLUDE ({NAME}) FROM '{folder}/{name}.parquet'").to_arrow_table().to_pydict()
            for name in ("original", "copy")
        ]
        ids = db.execute(f"SELECT {NAME} FROM '{folder}/copy.parquet'").fetchall()
    assert str(read[0]) == str(read[1])
    assert [row[0] for row in ids] == list(expected)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.none() | st.integers(0, 2**40), min_size=1, max_size=60),
    first=st.integers(0, 2**40),
    at=st.integers(0, 20),
    compression=st.sampled_from(["zstd", "snappy", "gzip", "lz4", "brotli", "none"]),
    how=st.fixed_dictionaries(
        {
            "row_group_size": st.integers(1, 70),
            "store_decimal_as_integer": st.booleans(),
            "use_dictionary": st.booleans(),
            "write_page_index": st.booleans(),
            "write_statistics": st.booleans(),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "store_schema": st.booleans(),
            "use_compliant_nested_type": st.booleans(),
        }
    ),
)
def test_filling_row_ids_changes_no_other_column_and_gives_every_row_an_id(
    tmp_path: Path, ids: list[int | None], first: int, at: int, compression: str, how: dict[str, Any]
) -> None:
    original = write(columns(len(ids)), ids, at, compression=compression, **how)
    copy = filled(original, first)
    expected = [first + i if n is None else n for i, n in enumerate(ids)]
    check_copy(original, copy, expected)
    check_in_duckdb(tmp_path, original, copy, expected)


@pytest.mark.parametrize("digits", DIGITS)
def test_filling_row_ids_keeps_decimals_stored_as_variable_length_bytes(tmp_path: Path, digits: int) -> None:
    """pyarrow writes none: Parquet's other writers may."""
    scale = digits // 2
    numbers = [10**digits - 1, -(10**digits) + 1, 0, 1, -1]
    stored = [n.to_bytes((n.bit_length() // 8) + 1, "big", signed=True) for n in numbers]
    ids = [None, 7, None, 9, None]
    original = as_decimals(write({"d": pa.array(stored, pa.binary())}, ids, 1, write_statistics=False), digits, scale)
    with duckdb.connect() as db:
        Path(tmp_path, "given.parquet").write_bytes(original)
        found = db.execute(f"SELECT d FROM '{tmp_path}/given.parquet'").fetchall()
    assert [value for (value,) in found] == [decimal(n, scale) for n in numbers]
    copy = filled(original, 100)
    check_copy(original, copy, [100, 7, 102, 9, 104])
    check_in_duckdb(tmp_path, original, copy, [100, 7, 102, 9, 104])


def as_decimals(data: bytes, digits: int, scale: int) -> bytes:
    """The same file, in which the first column is told to be of decimals."""
    size = int.from_bytes(data[-8:-4], "little")
    footer = thrift.decode(data[-8 - size : -8])
    column = footer[SCHEMA].content[1].content
    # Parquet's number for converted decimals happens to be that of the logical type
    column |= {CONVERTED: Value(I32, DECIMAL), SCALE: Value(I32, scale), PRECISION: Value(I32, digits)}
    column[LOGICAL_TYPE] = Value(STRUCT, {DECIMAL: Value(STRUCT, {1: Value(I32, scale), 2: Value(I32, digits)})})
    written = thrift.encode(footer)
    return data[: -8 - size] + written + len(written).to_bytes(4, "little") + b"PAR1"


def test_filling_row_ids_keeps_empty_row_groups() -> None:
    rows = pa.schema([field("i", pa.int64(), 1), field(NAME, pa.int64(), ROW_ID)])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows) as writer:
        for ids in ([], [None, 5], [], [None]):
            writer.write_table(pa.Table.from_arrays([pa.array(ids, pa.int64())] * 2, schema=rows))
    original = sink.getvalue()
    assert opened(original).num_row_groups == 4
    copy = filled(original, 40)
    assert opened(copy).read().column(NAME).to_pylist() == [40, 5, 42]
    assert opened(copy).read().column("i").to_pylist() == [None, 5, None]


def test_filling_row_ids_of_a_file_with_external_or_encrypted_columns_is_refused() -> None:
    original = write({"i": pa.array([1, 2])}, [None, 3], 1)
    size = int.from_bytes(original[-8:-4], "little")
    for number, value in ((1, Value(BINARY, b"elsewhere.parquet")), (8, Value(STRUCT, {}))):
        footer = thrift.decode(original[-8 - size : -8])
        footer[4].content[0].content[1].content[0].content[number] = value
        written = thrift.encode(footer)
        changed = original[: -8 - size] + written + len(written).to_bytes(4, "little") + b"PAR1"
        with pytest.raises((ValueError, OSError, pa.ArrowException)):
            filled(changed, 0)


def test_row_ids_that_are_not_longs_are_refused() -> None:
    rows = pa.table({NAME: pa.array([1, None], pa.int32())}, schema=pa.schema([field(NAME, pa.int32(), ROW_ID)]))
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    with pytest.raises(ValueError, match="is not one of longs"):
        filled(sink.getvalue(), 0)
