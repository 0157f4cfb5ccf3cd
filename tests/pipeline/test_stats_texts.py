"""Texts of values in statistics: one for each, which reads back as the same value; and histograms."""

import struct
from base64 import b64decode
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import copysign, inf, nan
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.pipeline.stats.histogram import equi_depth
from mergus.pipeline.stats.texts import LONGEST, lower, text, upper

EPOCH = datetime(1970, 1, 1)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("boolean", True, "true"),
        ("int", -5, "-5"),
        ("long", 2**63 - 1, "9223372036854775807"),
        ("double", 0.1, "0.1"),
        ("double", -0.0, "-0.0"),
        ("double", inf, "Infinity"),
        ("double", -inf, "-Infinity"),
        ("double", nan, None),
        ("float", struct.unpack("<f", struct.pack("<f", 0.1))[0], "0.1"),
        ("float", nan, None),
        ("decimal(38, 8)", Decimal("0E-8"), "0.00000000"),
        ("decimal(38, 0)", Decimal("9" * 38), "9" * 38),
        ("decimal(10, 2)", Decimal("-0.05"), "-0.05"),
        ("date", 0, "1970-01-01"),
        ("date", -719_529, "-0001-12-31"),
        ("date", 2_932_897, "+10000-01-01"),
        ("time", 43_200_000_001, "12:00:00.000001"),
        ("timestamp", -1, "1969-12-31T23:59:59.999999"),
        ("timestamptz", 0, "1970-01-01T00:00:00.000000+00:00"),
        ("timestamp_ns", 1, "1970-01-01T00:00:00.000000001"),
        ("timestamptz_ns", 1, "1970-01-01T00:00:00.000000001+00:00"),
        ("uuid", bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("binary", b"\x00\xff", "AP8="),
        ("fixed[2]", b"\x00\xff", "AP8="),
        ("string", "2024-01-31", "2024-01-31"),
        # what is no value of its type has no text: a time is never read from letters
        ("date", "2024-01-31", None),
        ("timestamp", "2024-01-31T00:00:00", None),
        ("variant", b"", None),
        ("struct", 1, None),
    ],
)
def test_a_statistics_value_has_the_expected_text(kind: str, value: object, expected: str | None) -> None:
    assert text(kind, value) == expected  # pyright: ignore[reportArgumentType]


def shown(kind: str, value: bool | float | Decimal | str | bytes) -> str:
    found = text(kind, value)
    assert found is not None
    return found


@given(st.floats(allow_nan=False))
def test_a_double_is_read_back_from_its_statistics_text(value: float) -> None:
    back = float(shown("double", value))
    assert (back, copysign(1, back)) == (value, copysign(1, value))


@given(st.floats(width=32, allow_nan=False))
def test_a_float_is_read_back_from_its_statistics_text(value: float) -> None:
    back = float(shown("float", value))
    assert struct.pack("<f", back) == struct.pack("<f", value)


@given(st.integers(date.min.toordinal(), date.max.toordinal()))
def test_a_date_is_read_back_from_its_statistics_text(ordinal: int) -> None:
    assert date.fromisoformat(shown("date", ordinal - EPOCH.toordinal())).toordinal() == ordinal


@given(st.datetimes())
def test_a_timestamp_is_read_back_from_its_statistics_text(value: datetime) -> None:
    micros = (value - EPOCH) // timedelta(microseconds=1)
    assert datetime.fromisoformat(shown("timestamp", micros)) == value
    assert datetime.fromisoformat(shown("timestamptz", micros)) == value.replace(tzinfo=UTC)
    assert shown("timestamp_ns", micros * 1000) == shown("timestamp", micros) + "000"


@given(st.integers(-(10**10), 10**10))
def test_dates_beyond_the_range_of_python_have_a_correct_text(days: int) -> None:
    here, after = shown("date", days), shown("date", days + 146_097)
    year = int(here[: here.index("-", 1)])
    # after 400 years it is the same day
    assert (int(after[: after.index("-", 1)]), after[-6:]) == (year + 400, here[-6:])


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38))
def test_a_decimal_is_written_without_an_exponent(unscaled: int, scale: int) -> None:
    sign, digits = int(unscaled < 0), tuple(map(int, str(abs(unscaled))))
    found = shown(f"decimal(38, {scale})", Decimal((sign, digits, -scale)))
    assert "E" not in found
    assert int(found.replace(".", "")) == unscaled
    assert len(found.partition(".")[2]) == scale


@given(st.binary(max_size=40), st.binary(min_size=16, max_size=16))
def test_binary_values_and_uuids_are_read_back_from_their_statistics_text(value: bytes, uuid: bytes) -> None:
    assert b64decode(shown("binary", value), validate=True) == value
    assert UUID(shown("uuid", uuid)).bytes == uuid


@given(st.text(min_size=LONGEST - 2, max_size=LONGEST + 3))
def test_a_long_string_lies_between_its_bounds(value: str) -> None:
    low, high = lower("string", value), upper("string", value)
    assert low is not None
    assert low.text.encode() <= value.encode()
    assert low.is_cut == (len(value) > LONGEST) == (low.text != value)
    assert high is None or (high.text.encode() >= value.encode() and len(high.text) <= LONGEST)
    assert high is None or high.is_cut == (len(value) > LONGEST)


def test_a_string_of_the_last_characters_has_no_upper_bound() -> None:
    assert upper("string", "\U0010ffff" * 300) is None
    assert upper("binary", b"\xff" * 300) is None
    after = upper("string", "a\ud7ff" + "\U0010ffff" * 300)
    assert after is not None
    assert after.text == "a\ue000"


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=200), st.integers(1, 20))
def test_a_histogram_of_all_values_is_exact(values: list[int], buckets: int) -> None:
    found = equi_depth(values, max(values), len(values), buckets)
    assert found is not None
    assert found.is_exact
    assert len(found.uppers) <= buckets
    lows = [min(values) - 1, *found.uppers]
    assert [sum(low < v <= high for v in values) for low, high in zip(lows, found.uppers, strict=False)] == [
        *found.counts
    ]
    assert min(found.counts) > 0
    # equal depth, as far as values are not equal
    most = max(values.count(v) for v in values)
    assert max(found.counts) <= -(-len(values) // buckets) + most


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=100), st.integers(1, 20), st.integers(1, 10**12))
def test_a_histogram_of_a_sample_is_scaled_to_all_rows(sample: list[int], buckets: int, more: int) -> None:
    found = equi_depth(sample, 2000, len(sample) + more, buckets)
    assert found is not None
    assert not found.is_exact
    assert sum(found.counts) == len(sample) + more
    assert (found.uppers[-1], min(found.counts) >= 0) == (2000, True)


def test_an_empty_column_has_no_histogram() -> None:
    assert equi_depth([], 1, 0, 4) is None
