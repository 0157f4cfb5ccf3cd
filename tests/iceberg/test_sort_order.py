"""Our sort orders, read by PyIceberg. Java reads them within a table: test_metadata."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.sorting import SortOrder as TheirOrder

from mergus.iceberg.sort_order import UNSORTED, SortField, SortOrder, sort_order_json

sort_fields = st.builds(
    SortField,
    st.integers(1, 99),
    st.sampled_from(["asc", "desc"]),
    st.sampled_from(["nulls-first", "nulls-last"]),
    st.sampled_from(["identity", "bucket[4]", "day"]),
)


@given(st.builds(SortOrder, st.integers(1, 2**31 - 1), st.lists(sort_fields, min_size=1, max_size=4).map(tuple)))
def test_pyiceberg_reads_the_same_order(order: SortOrder) -> None:
    theirs = TheirOrder.model_validate_json(json.dumps(sort_order_json(order)))
    assert theirs.order_id == order.order_id
    found = [SortField(x.source_id, x.direction.value, x.null_order.value, str(x.transform)) for x in theirs.fields]
    assert tuple(found) == order.fields


def test_order_0_is_that_of_no_sorting() -> None:
    assert sort_order_json(UNSORTED) == {"order-id": 0, "fields": []}


@pytest.mark.parametrize("wrong", [SortOrder(0, (SortField(1),)), SortOrder(1, ())])
def test_no_other_order_is_empty_and_order_0_sorts_by_nothing(wrong: SortOrder) -> None:
    with pytest.raises(ValueError, match="cannot have"):
        sort_order_json(wrong)
