"""Footers of Parquet files are read and written again without a schema of them, and nothing of them is lost."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.iceberg import thrift
from mergus.iceberg.thrift import (
    BINARY,
    BYTE,
    DOUBLE,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    MOST_NESTED,
    SET,
    STRUCT,
    TRUE,
    UUID,
    Struct,
    Value,
    decode,
    encode,
)

NUMBERS = {I16: 15, I32: 31, I64: 63}


def leaves(kind: int) -> st.SearchStrategy[Value]:
    if kind in NUMBERS:
        most = 2 ** NUMBERS[kind]
        return st.integers(-most, most - 1).map(lambda n: Value(kind, n))
    size = {BYTE: 1, DOUBLE: 8, UUID: 16}.get(kind)
    return st.binary(min_size=size or 0, max_size=size or 300).map(lambda b: Value(kind, b))


def lists(inside: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    """Elements are of one type, and that of a Boolean is written as a byte's."""

    def same(first: Value) -> st.SearchStrategy[Value]:
        more = leaves(first.type) if first.type in {*NUMBERS, BYTE, DOUBLE, BINARY} else st.just(first)
        made = st.lists(more, max_size=20)
        return st.builds(lambda kind, values: Value(kind, values, (first.type,)), st.sampled_from([LIST, SET]), made)

    return inside.flatmap(same)


def maps(inside: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    return st.builds(
        lambda keys, value: Value(MAP, [(k, value) for k in keys], (BINARY, value.type) if keys else ()),
        st.lists(leaves(BINARY), max_size=3),
        inside,
    )


def structs(inside: st.SearchStrategy[Value]) -> st.SearchStrategy[Struct]:
    flags = st.sampled_from([Value(TRUE), Value(FALSE)])
    return st.dictionaries(st.integers(-(2**15), 2**15 - 1), inside | flags, max_size=6)


VALUES = st.recursive(
    st.sampled_from([I16, I32, I64, BYTE, DOUBLE, BINARY, UUID]).flatmap(leaves),
    lambda inside: lists(inside) | maps(inside) | structs(inside).map(lambda s: Value(STRUCT, s)),
    max_leaves=12,
)


@given(structs(VALUES))
def test_any_thrift_struct_is_read_back_unchanged(struct: Struct) -> None:
    found = decode(encode(struct))
    assert found == struct
    assert list(found) == list(struct)


def footer(**how: Any) -> bytes:
    sink = io.BytesIO()
    rows = pa.table({"i": list(range(100)), "s": ["x"] * 100, "l": [[1.5], None] * 50, "d": [{"a": True}] * 100})
    pq.write_table(rows, sink, row_group_size=7, **how)
    data = sink.getvalue()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


@pytest.mark.parametrize("how", [{}, {"write_page_index": True, "sorting_columns": [pq.SortingColumn(0)]}])
def test_a_parquet_footer_is_rewritten_to_the_same_bytes(how: dict[str, Any]) -> None:
    assert encode(decode(footer(**how))) == footer(**how)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_struct_raise_nothing_but_value_errors(data: bytes) -> None:
    try:
        found = decode(data)
    except ValueError:
        return
    assert decode(encode(found)) == found


@given(st.data())
def test_a_damaged_parquet_footer_raises_nothing_but_value_errors(data: st.DataObject) -> None:
    spoiled = bytearray(footer())
    for _ in range(data.draw(st.integers(1, 4))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(spoiled[: data.draw(st.integers(0, len(spoiled)))]))
    except ValueError:
        return


def test_a_thrift_struct_that_is_nested_too_deep_is_refused() -> None:
    # a struct in field 1 of a struct, and a list of one list
    for deep in (bytes([0x1C]) * (MOST_NESTED + 2), bytes([0x19]) + bytes([0x19]) * 10_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            decode(deep)
    assert thrift.decode(b"\x1c" * MOST_NESTED + b"\0" * (MOST_NESTED + 1))
