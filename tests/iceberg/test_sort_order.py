"""Our sort orders, read by PyIceberg. Java reads them within a table: test_metadata."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.sorting import SortOrder as TheirOrder

from mergus.iceberg.schema import Field, List, Schema, Struct
from mergus.iceberg.sort_order import (
    UNSORTED,
    SortField,
    SortOrder,
    check_sort_order,
    parse_sort_order,
    sort_order_json,
)

sort_fields = st.builds(
    SortField,
    st.integers(1, 99),
    st.sampled_from(["asc", "desc"]),
    st.sampled_from(["nulls-first", "nulls-last"]),
    st.sampled_from(["identity", "bucket[4]", "day", "truncate[3]", "void"]),
)


@given(st.builds(SortOrder, st.integers(1, 2**31 - 1), st.lists(sort_fields, min_size=1, max_size=4).map(tuple)))
def test_pyiceberg_reads_the_same_sort_order(order: SortOrder) -> None:
    theirs = TheirOrder.model_validate_json(json.dumps(sort_order_json(order)))
    assert theirs.order_id == order.order_id
    found = [SortField(x.source_id, x.direction.value, x.null_order.value, str(x.transform)) for x in theirs.fields]
    assert tuple(found) == order.fields
    assert parse_sort_order(json.loads(theirs.model_dump_json())) == order
    assert parse_sort_order(sort_order_json(order)) == order


def test_sort_order_0_is_the_unsorted_order() -> None:
    assert sort_order_json(UNSORTED) == {"order-id": 0, "fields": []}
    assert parse_sort_order({"order-id": 0, "fields": []}) == UNSORTED


@pytest.mark.parametrize("wrong", [SortOrder(0, (SortField(1),)), SortOrder(1, ())])
def test_sort_order_0_with_fields_and_other_orders_without_fields_are_refused(wrong: SortOrder) -> None:
    with pytest.raises(ValueError, match="cannot have"):
        sort_order_json(wrong)


FIELD = {"source-id": 1, "direction": "asc", "null-order": "nulls-last", "transform": "identity"}


def order_of(**changes: Any) -> dict[str, Any]:
    return {"order-id": 1, "fields": [FIELD | {name.replace("_", "-"): x for name, x in changes.items()}]}


def test_a_sort_field_with_a_single_entry_in_source_ids_is_parsed() -> None:
    assert parse_sort_order(order_of(source_id=None, source_ids=[7])).fields[0].source_id == 7


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (None, "Sort order must be"),
        ({"fields": []}, "has no order-id"),
        ({"order-id": 0}, "has no fields"),
        ({"order-id": True, "fields": []}, "must be a whole number"),
        ({"order-id": 1, "fields": []}, "Sort order 1 cannot have 0 fields"),
        ({"order-id": 0, "fields": [FIELD]}, "Sort order 0 cannot have 1 fields"),
        (order_of(direction="up"), "unknown direction: up"),
        (order_of(direction=None), "has no direction"),
        (order_of(null_order="nulls"), "unknown null-order: nulls"),
        (order_of(null_order=None), "has no null-order"),
        (order_of(transform="zorder"), "unknown transform: zorder"),
        (order_of(source_id=None), "has no source-id"),
        (order_of(source_id=None, source_ids=[1, 2]), "2 source columns"),
    ],
)
def test_a_malformed_sort_order_is_refused_with_the_reason(wrong: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_sort_order(wrong)


SCHEMA = Schema(
    (
        Field(1, "i", "int"),
        Field(2, "s", Struct((Field(3, "x", "timestamp"),))),
        Field(4, "l", List(Field(5, "element", "int"))),
    )
)


def test_a_sort_order_that_fits_the_schema_is_accepted() -> None:
    check_sort_order(UNSORTED, SCHEMA)
    check_sort_order(SortOrder(1, (SortField(1), SortField(3, transform="day"), SortField(1, "desc"))), SCHEMA)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (SortField(9), "does not exist: 9"),
        (SortField(2), "of s, which is of type struct"),
        (SortField(1, transform="day"), "transform day of i, which is of type int"),
        (SortField(5), "inside of a list or map: l.element"),
    ],
)
def test_a_sort_order_that_does_not_fit_the_schema_is_refused(field: SortField, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_sort_order(SortOrder(1, (SortField(1), field)), SCHEMA)
