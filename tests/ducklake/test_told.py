"""What commits tell of themselves comes back, and what anybody else has written there is never taken for it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.ducklake.told import KEY, LEAST_CLIENT_ID, Committed, Restored, Told, about

summaries = st.dictionaries(st.text(), st.text(), max_size=4)
tolds = st.one_of(
    st.builds(Committed, st.integers(LEAST_CLIENT_ID, 2**63 - 1), summaries, st.booleans()),
    st.builds(Restored, st.none() | st.integers(0, 2**31)),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just(KEY), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.integers(0, 2**62), tolds, min_size=1, max_size=3))
def test_the_commit_info_of_each_table_is_read_back_for_that_table(told: dict[int, Told]) -> None:
    text = json.dumps({"replay": "x", KEY: {str(table_id): one.json() for table_id, one in told.items()}})
    for table_id, one in told.items():
        assert about(table_id, text) == one
    assert about(-1, text) is None


@given(st.text() | anything.map(json.dumps))
def test_commit_extra_info_of_other_writers_is_ignored(text: str) -> None:
    assert about(1, text) is None


@given(anything)
def test_malformed_commit_info_never_raises(content: Any) -> None:
    found = about(1, json.dumps({KEY: {"1": content}}))
    assert found is None or about(1, json.dumps({KEY: {"1": found.json()}})) == found


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "null",
        '{"iceberg": {}}',
        '{"iceberg": {"1": null}}',
        '{"iceberg": {"1": []}}',
        '{"iceberg": ["1"]}',
        '["iceberg"]',
        '{"iceberg": {"1": {"snapshot-id": 4711, "summary": {}}}}',
        '{"iceberg": {"1": {"snapshot-id": "9999999999999", "summary": {}}}}',
        '{"iceberg": {"1": {"snapshot-id": 9999999999999}}}',
        '{"iceberg": {"1": {"snapshot-id": 9999999999999, "summary": "append"}}}',
        '{"iceberg": {"1": {"main": "17"}}}',
        '{"iceberg": {"1": {"snapshot-id": 9999999999999, "summary": {}}}',
        '{"iceberg": {"01": {"main": 17}}}',
    ],
)
def test_commit_extra_info_without_valid_iceberg_info_is_ignored(text: str | None) -> None:
    assert about(1, text) is None


def test_summary_values_that_are_not_strings_are_left_out() -> None:
    told = {"snapshot-id": 2**40, "summary": {"operation": "append", "added": 7, "nothing": None}}
    assert about(1, json.dumps({KEY: {"1": told}})) == Committed(2**40, {"operation": "append"})
