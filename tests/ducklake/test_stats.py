"""Statistics of columns: from Iceberg's metrics, and of the whole table."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.ducklake.files import ColumnStats
from mergus.ducklake.stats import GONE, NOTHING_KNOWN, GlobalStats, column_stats, out_of_range, widened
from mergus.iceberg import bounds
from mergus.iceberg.manifest import DATA, DataFile

ROWS = 10


def file(low: bytes | None = None, high: bytes | None = None, **metrics: Any) -> DataFile:
    """With ten rows and one column."""
    told: dict[str, Any] = {"column_sizes": 7, "value_counts": ROWS, "null_value_counts": 0, **metrics}
    given: dict[str, Any] = {name: None if value is None else {1: value} for name, value in told.items()}
    lower, upper = (None if bound is None else {1: bound} for bound in (low, high))
    return DataFile(DATA, "p", "PARQUET", (), ROWS, 100, lower_bounds=lower, upper_bounds=upper, **given)


def stats(ducklake_type: str, *args: Any, **metrics: Any) -> ColumnStats:
    return column_stats(file(*args, **metrics), {1: ducklake_type})[1]


def texts(ducklake_type: str, low: bytes, high: bytes) -> tuple[str | None, str | None]:
    found = stats(ducklake_type, low, high)
    return found.min_text, found.max_text


def of(low: str | None, high: str | None, nulls: int = 0, nan: bool | None = None) -> ColumnStats:
    """Of a file with values."""
    return ColumnStats(7, ROWS, nulls, low, high, nan)


ALL_NULL = ColumnStats(7, 0, ROWS, None, None, None)


def test_values_without_nulls_are_counted() -> None:
    found = stats("int32", struct.pack("<i", -5), struct.pack("<i", 9), null_value_counts=3)
    assert found == ColumnStats(7, 7, 3, "-5", "9", None)


@pytest.mark.parametrize(
    ("values", "nulls", "counts"),
    [
        (ROWS, None, (None, None)),
        (None, 3, (7, 3)),
        (7, 3, (None, None)),  # a writer that does not count NULLs as values: what else it counts is not known
        (ROWS, 11, (None, None)),
        (ROWS, -1, (None, None)),
        (None, None, (None, None)),
    ],
)
def test_inconsistent_value_and_null_counts_are_dropped(
    values: int | None, nulls: int | None, counts: tuple[int | None, int | None]
) -> None:
    found = stats("int32", value_counts=values, null_value_counts=nulls)
    assert (found.value_count, found.null_count) == counts


def test_a_column_of_nulls_has_a_value_count_of_zero_and_no_bounds() -> None:
    found = stats("float64", struct.pack("<d", 1.0), struct.pack("<d", 1.0), null_value_counts=ROWS)
    assert found == ColumnStats(7, 0, ROWS, None, None, False)


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        ("boolean", b"\0", b"\1", ("0", "1")),
        ("int64", struct.pack("<i", 1), struct.pack("<q", 2**40), ("1", str(2**40))),
        ("int8", struct.pack("<i", -128), struct.pack("<i", 200), ("-128", None)),
        ("uint16", struct.pack("<i", -1), struct.pack("<i", 65535), (None, "65535")),
        ("date", struct.pack("<i", 18321), struct.pack("<i", 2**31 - 1), ("2020-02-29", None)),
        ("decimal(4,2)", b"\xff", b"\x01\x00", ("-0.01", "2.56")),
        ("timestamp", struct.pack("<q", 0), struct.pack("<q", 2**63 - 1), ("1970-01-01 00:00:00", None)),
        ("timestamp_s", struct.pack("<q", 1), struct.pack("<q", 10**6), (None, "1970-01-01 00:00:01")),
        ("timestamptz", struct.pack("<q", 0), b"", ("1970-01-01 00:00:00+00", None)),
        ("uuid", b"\xaa" * 16, b"", ("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa", None)),
        ("uuid", b"\xff" * 16, b"\0" * 16, (None, None)),  # compared as signed numbers
        ("blob", b"\0\xaa", b"\xff", ("00AA", "FF")),
        ("varchar", b"a" * 16, b"a" * 15 + b"b", ("a" * 16, "a" * 15 + "b")),
        ("varchar", b"a\0b", b"\xff", (None, None)),
        ("float32", struct.pack("<f", -0.0), struct.pack("<f", 1.1), ("0.0", "1.1")),
        ("float64", struct.pack("<d", float("nan")), struct.pack("<d", 1.0), (None, None)),
        ("float64", struct.pack("<d", float("-inf")), struct.pack("<d", 0.0), ("-inf", "0.0")),
        ("int32", b"\1", b"\2", (None, None)),
        ("geometry", b"\0" * 16, b"\0" * 16, (None, None)),
    ],
)  # fmt: skip
def test_iceberg_bounds_become_ducklake_texts(
    kind: str, low: bytes, high: bytes, expected: tuple[str | None, str | None]
) -> None:
    assert texts(kind, low, high) == expected


@pytest.mark.parametrize(("nans", "contains"), [(0, False), (2, True), (None, None)])
def test_a_nan_count_of_a_float_column_becomes_contains_nan(nans: int | None, contains: bool | None) -> None:
    assert stats("float32", nan_value_counts=nans).contains_nan is contains
    assert stats("int32", nan_value_counts=nans).contains_nan is None


def test_a_column_without_metrics_is_left_out_if_other_columns_have_metrics() -> None:
    found = column_stats(file(), {1: "int32", 2: "int32"})
    assert found.keys() == {1}
    nothing = DataFile(DATA, "p", "PARQUET", (), ROWS, 100)
    assert column_stats(nothing, {1: "int32", 2: "float64"}) == {1: NOTHING_KNOWN, 2: NOTHING_KNOWN}


@pytest.mark.parametrize(
    ("kind", "low", "high", "metrics", "out"),
    [
        ("int8", -128, 127, {}, False),
        ("int8", -129, 127, {}, True),
        ("uint8", 0, 256, {}, True),
        ("uint16", -1, 0, {}, True),
        ("int16", None, None, {}, True),
        ("int16", None, None, {"null_value_counts": ROWS}, False),
        ("int16", None, None, {"value_counts": None, "null_value_counts": None}, True),
        ("int32", None, None, {}, False),
    ],
)
def test_columns_whose_bounds_exceed_the_ducklake_type_are_reported(
    kind: str, low: int | None, high: int | None, metrics: dict[str, Any], out: bool
) -> None:
    packed = [None if bound is None else struct.pack("<i", bound) for bound in (low, high)]
    assert out_of_range(file(*packed, **metrics), {1: kind}) == ([1] if out else [])


def test_the_first_files_of_a_table_set_its_global_statistics() -> None:
    assert widened(None, [of("3", "5"), of("-1", "4", nulls=2)], "int32") == GlobalStats(True, None, "-1", "5")
    assert widened(None, [ALL_NULL], "int32") == GlobalStats(True, None, None, None)
    assert widened(None, [NOTHING_KNOWN], "int32") is GONE


@pytest.mark.parametrize(
    ("kind", "current", "added", "expected"),
    [
        ("int32", ("9", "10"), ("8", "11"), ("8", "11")),
        ("int32", ("9", "10"), ("100", "100"), ("9", "100")),
        ("varchar", ("9", "x"), ("100", "é"), ("100", "é")),
        ("boolean", ("true", "true"), ("0", "1"), ("0", "true")),
        ("date", ("0044-03-15 (BC)", "2020-01-01"), ("0001-01-01", "10000-01-01"), ("0044-03-15 (BC)", "10000-01-01")),
        ("float64", ("-1.0", "2.0"), ("-inf", "10.0"), ("-inf", "10.0")),
        ("decimal(4,2)", ("-1.50", "9.00"), ("-10.00", "10.00"), ("-10.00", "10.00")),
        ("timestamptz", ("2020-01-01 01:00:00+02",) * 2, ("2020-01-01 00:00:00+00",) * 2,
         ("2020-01-01 01:00:00+02", "2020-01-01 00:00:00+00")),
        ("json", ("1", "1"), ("[]", "{}"), ("1", "{}")),
    ],
)  # fmt: skip
def test_global_bounds_are_widened_by_value_and_not_by_text(
    kind: str, current: tuple[str, str], added: tuple[str, str], expected: tuple[str, str]
) -> None:
    found = widened(GlobalStats(False, None, *current), [of(*added)], kind)
    assert found == GlobalStats(False, None, *expected)


@pytest.mark.parametrize(
    ("kind", "current", "added"),
    [
        ("int32", ("1", "2"), (None, None)),
        ("int32", (None, None), ("1", "2")),  # whoever wrote that may not have known either
        ("int32", ("1", None), (None, "2")),
        ("int32", ("what", "2"), ("1", "2")),
        ("float64", ("nan", "nan"), ("1.0", "2.0")),
        ("date", ("infinity", "infinity"), ("2020-01-01", "2020-01-01")),
        ("blob", ("AA", "AA"), ("AA", "AB")),
        ("geometry", (None, None), (None, None)),
        ("variant", ("1", "2"), ("1", "2")),
    ],
)
def test_h26_a_column_with_unknown_bounds_has_no_global_statistics_row(
    kind: str, current: tuple[str | None, str | None], added: tuple[str | None, str | None]
) -> None:
    assert widened(GlobalStats(False, None, *current), [of(*added)], kind) is GONE


def test_global_statistics_may_have_one_unknown_bound() -> None:
    assert widened(GlobalStats(False, None, "1", None), [of("0", "9")], "int32") == GlobalStats(False, None, "0", None)
    assert widened(GlobalStats(False, None, "1", "2"), [of("0", None)], "int32") == GlobalStats(False, None, "0", None)


@pytest.mark.parametrize("kind", ["int32", "blob", "geometry"])
def test_an_append_of_nulls_does_not_change_global_bounds(kind: str) -> None:
    current = GlobalStats(False, None, "1", "2")
    assert widened(current, [ALL_NULL], kind) == GlobalStats(True, None, "1", "2")


def test_the_null_and_nan_flags_are_known_only_if_every_file_reports_them() -> None:
    some = of("1.0", "2.0", nan=False)
    known = GlobalStats(False, False, "1.0", "2.0")
    assert widened(known, [some], "float64") == known
    assert widened(known, [of("1.0", "2.0", nan=True)], "float64") == GlobalStats(False, True, "1.0", "2.0")
    assert widened(known, [of("1.0", "2.0")], "float64") == GlobalStats(False, None, "1.0", "2.0")
    unsure = ColumnStats(7, None, None, "1.0", "2.0", False)
    assert widened(known, [unsure], "float64") == GlobalStats(None, False, "1.0", "2.0")


numbers = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(st.lists(numbers | st.none(), min_size=1, max_size=5), min_size=1, max_size=6), st.integers(0, 6))
def test_global_bounds_contain_every_value_after_any_sequence_of_appends(
    contents: list[list[int | None]], at: int
) -> None:
    def metrics(content: list[int | None]) -> ColumnStats:
        found = [value for value in content if value is not None]
        low, high = (
            bounds.lower_bound("int32", str(pick(found)), retyped=False) if found else None for pick in (min, max)
        )
        told = DataFile(
            DATA, "p", "PARQUET", (), len(content), 1,
            {1: 1}, {1: len(content)}, {1: len(content) - len(found)}, None,
            None if low is None else {1: low}, None if high is None else {1: high},
        )  # fmt: skip
        return column_stats(told, {1: "int32"})[1]

    files = [metrics(content) for content in contents]
    everything = [value for content in contents for value in content if value is not None]
    first, second = files[:at], files[at:]
    now = widened(None, first, "int32") if first else None
    if second and now is not GONE:
        now = widened(now, second, "int32")
    if now is GONE:
        # only where values came after nothing but NULLs
        assert first
        assert all(value is None for content in contents[:at] for value in content)
        return
    assert isinstance(now, GlobalStats)
    assert now.contains_null == any(None in content for content in contents)
    assert now.min_text == (str(min(everything)) if everything else None)
    assert now.max_text == (str(max(everything)) if everything else None)


@given(st.lists(st.text(max_size=20), min_size=1), st.lists(st.text(max_size=20), min_size=1))
def test_global_bounds_contain_strings_with_truncated_file_bounds(one: list[str], other: list[str]) -> None:
    def metrics(content: list[str]) -> ColumnStats:
        order = sorted(content, key=str.encode)
        low, high = (
            bounds.lower_bound("varchar", order[0], retyped=False),
            bounds.upper_bound("varchar", order[-1], retyped=False),
        )
        return stats("varchar", low, high)

    found = widened(widened_first(metrics(one)), [metrics(other)], "varchar")
    if isinstance(found, GlobalStats):
        for text in one + other:
            assert found.min_text is None or found.min_text.encode() <= text.encode()
            assert found.max_text is None or text.encode() <= found.max_text.encode()


def widened_first(found: ColumnStats) -> GlobalStats | None:
    first = widened(None, [found], "varchar")
    return first if isinstance(first, GlobalStats) else GlobalStats(None, None, None, None)
