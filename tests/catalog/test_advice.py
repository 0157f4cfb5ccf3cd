"""Advice from numbers alone: when it is given, in which words, and which call it names."""

from dataclasses import replace
from datetime import UTC, datetime

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.catalog.advice import (
    CLEANUP_FILES,
    COMPACT_FILES,
    EXPIRE_SNAPSHOTS,
    FLUSH_ROWS,
    REWRITE_FILES,
    REWRITE_ROWS,
    advise_catalog,
    advise_table,
    weight,
)
from mergus.ducklake.health import CatalogHealth, LiveTable, TableHealth

TABLE = LiveTable(7, "main", "t", None, None, True)
OLD = datetime(2026, 1, 2, 23, 59, tzinfo=UTC)
CATALOG = CatalogHealth(1, 1, 0, 3, 0, 2, OLD, OLD, 0, None, "1.0", "DuckDB")


def table(of: LiveTable = TABLE, /, **numbers: int) -> TableHealth:
    return TableHealth(of, 1 << 29, **numbers)


def said(health: TableHealth) -> list[str]:
    return [str(advice) for advice in advise_table(health)]


def test_a_healthy_table_and_a_healthy_catalog_get_no_advice() -> None:
    assert advise_table(table()) == []
    assert weight([]) == 0
    large = table(data_files=100_000, data_bytes=1 << 50, file_rows=10**12, deleted_rows=10**9, historic_files=10**6)
    assert advise_table(large) == []
    assert advise_catalog(CATALOG) == []


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"inlined_rows": 12_300}, "flush: 12,300 inlined rows waiting"),
        ({"inlined_rows": 600, "inlined_ended": 400}, "flush: 1,000 inlined rows waiting"),
        ({"inlined_deletes": 2_000}, "flush: 2,000 inlined deletes waiting"),
        (
            {"inlined_rows": 1_000, "inlined_deletes": 1},
            "flush: 1,000 inlined rows and 1 inlined delete waiting",
        ),
        (
            {"heavy_files": 14, "heavy_rows": 10_000, "heavy_gone": 3_800},
            "rewrite: 38% of rows in 14 files are deleted",
        ),
        (
            {"heavy_files": 1, "heavy_rows": 25_000, "heavy_gone": 10_000},
            "rewrite: 40% of rows in 1 file are deleted",
        ),
        (
            {"mergeable_files": 1_240, "merged_files": 3, "tiny_files": 1_200},
            "compact: 1,240 small files can become 3; the table has 1,200 under 1 MiB",
        ),
        ({"mergeable_files": 20, "merged_files": 10}, "compact: 20 small files can become 10"),
    ],
)
def test_a_table_gets_the_advice_that_its_numbers_call_for(numbers: dict[str, int], text: str) -> None:
    assert said(table(**numbers)) == [text]


@pytest.mark.parametrize(
    "numbers",
    [
        {"inlined_rows": FLUSH_ROWS - 2, "inlined_deletes": 1},
        {"heavy_files": REWRITE_FILES - 1, "heavy_rows": 20_000, "heavy_gone": REWRITE_ROWS - 1},
        # they are small and stay what they are
        {"small_files": 10_000, "tiny_files": 10_000, "mergeable_files": 10_000, "merged_files": 9_991},
        {"mergeable_files": COMPACT_FILES, "merged_files": 1},
    ],
)
def test_a_table_below_every_threshold_gets_no_advice(numbers: dict[str, int]) -> None:
    assert said(table(**numbers)) == []


def test_advice_for_a_table_is_listed_in_the_order_flush_rewrite_compact() -> None:
    all_of_it = table(
        inlined_rows=5_000, heavy_files=20, heavy_rows=100, heavy_gone=50, mergeable_files=31, merged_files=1
    )
    advice = advise_table(all_of_it)
    assert [one.action for one in advice] == ["flush", "rewrite", "compact"]
    assert [one.weight for one in advice] == [5, 2, 3]
    assert weight(advice) == 5
    # who has turned the others off is not told of them
    all_of_it.table = replace(TABLE, compacts=False)
    assert [one.action for one in advise_table(all_of_it)] == ["flush"]


def test_the_catalog_is_advised_to_expire_snapshots_and_to_clean_up_files() -> None:
    many = replace(CATALOG, snapshots=12_000, scheduled_files=CLEANUP_FILES * 2, scheduled_since=OLD)
    assert [str(one) for one in advise_catalog(many)] == [
        "expire: 12,000 snapshots, the oldest from 2026-01-02",
        "cleanup: 2,000 files scheduled for deletion, the oldest since 2026-01-02",
    ]
    few = replace(CATALOG, snapshots=EXPIRE_SNAPSHOTS - 1, scheduled_files=CLEANUP_FILES - 1)
    assert advise_catalog(few) == []


@given(st.text(), st.text())
def test_the_sql_call_of_an_advice_quotes_any_schema_and_table_name(schema: str, name: str) -> None:
    """DuckDB itself takes it apart: one statement, with these names in it and nothing else."""
    odd = table(LiveTable(7, schema, name, None, None, True), inlined_rows=5_000, mergeable_files=99, merged_files=1)
    for advice in advise_table(odd):
        # what no SQL can hold, no table is called
        if "\0" not in schema + name and not any("\ud800" <= c <= "\udfff" for c in schema + name):
            (statement,) = duckdb.extract_statements(advice.call)
            assert statement.type == duckdb.StatementType.CALL
            assert {schema, name} <= literals(advice.call)


def literals(call: str) -> set[str]:
    """The strings in it, by SQL's rule that two quotes are one."""
    found: set[str] = set()
    rest = call
    while "'" in rest:
        rest = rest[rest.index("'") + 1 :]
        text = ""
        while True:
            end = rest.index("'")
            text += rest[:end]
            rest = rest[end + 1 :]
            if not rest.startswith("'"):
                break
            text += "'"
            rest = rest[1:]
        found.add(text)
    return found
