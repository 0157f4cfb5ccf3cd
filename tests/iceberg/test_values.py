import math
import struct
from datetime import date
from decimal import Decimal
from uuid import UUID

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.iceberg import values

ODD = [
    "",
    " ",
    "x",
    "+1",
    "1 ",
    " 1",
    "1_0",
    "١",
    "1\n",
    "NULL",
    "nan",
    "NaN",
    "-nan",
    "infinity",
    "-infinity",
    "9" * 5000,
]
TYPES = [*values.COUNTED, "decimal(4,1)", "decimal(38,38)", "decimal(38,0)"]

# DuckDB shows the first of each pair as the second, and the last as no number
MISPRINTED = {2.0**81, 2.0**82, 2.0**91, 2.0**92, 2.0**807}

singles = st.floats(width=32, allow_nan=False)


def whole(ducklake_type: str) -> values.Counted:
    found = values.counted(ducklake_type)
    assert found is not None
    return found


@pytest.mark.parametrize("ducklake_type", TYPES)
@given(data=st.data())
def test_numbers_are_read_back_from_their_ducklake_text(ducklake_type: str, data: st.DataObject) -> None:
    codec = whole(ducklake_type)
    value = data.draw(st.integers(codec.low, codec.high) | st.integers(0, 1) | st.sampled_from([codec.low, codec.high]))
    text = codec.write(value)
    assert codec.read(text) == value if text is not None else ducklake_type in {"timestamp_s", "timestamp_ms"}


@pytest.mark.parametrize("ducklake_type", TYPES)
@pytest.mark.parametrize("text", ODD)
def test_malformed_texts_are_not_read_as_numbers(ducklake_type: str, text: str) -> None:
    assert whole(ducklake_type).read(text) is None


@pytest.mark.parametrize("ducklake_type", TYPES)
def test_a_number_out_of_the_range_of_its_type_has_no_text(ducklake_type: str) -> None:
    codec = whole(ducklake_type)
    assert codec.write(codec.low - 1) is None
    assert codec.write(codec.high + 1) is None


@given(st.text())
def test_no_text_of_a_value_raises_an_error(text: str) -> None:
    for ducklake_type in TYPES:
        whole(ducklake_type).read(text)
    for read in (values.read_float32, values.read_float64, values.read_uuid):
        read(text)


@pytest.mark.parametrize(
    "ducklake_type", ["decimal", "decimal(0,0)", "decimal(39,0)", "decimal(3,4)", "DECIMAL(4,1)", "interval", ""]
)
def test_types_that_are_not_whole_numbers_have_no_number_codec(ducklake_type: str) -> None:
    assert values.counted(ducklake_type) is None


@pytest.mark.parametrize(
    ("ducklake_type", "text", "value"),
    [
        ("boolean", "0", 0),
        ("boolean", "1", 1),
        ("boolean", "false", 0),
        ("boolean", "true", 1),
        ("boolean", "2", None),
        ("boolean", "TRUE", None),
        ("int8", "128", None),
        ("uint8", "-1", None),
        ("int64", "9223372036854775808", None),
        ("int64", "-0", None),
        ("int64", "01", None),
        ("decimal(4,1)", "-999.9", -9999),
        ("decimal(4,4)", ".0001", 1),
        ("decimal(4,4)", "-.9999", -9999),
        ("decimal(6,3)", "1.5", 1500),
        ("decimal(4,1)", "1.55", None),
        ("decimal(4,1)", "1000.0", None),
        ("decimal(4,1)", ".", None),
        ("decimal(4,1)", "-", None),
        ("decimal(4,1)", "1.", None),
        ("decimal(4,1)", "1e2", None),
        ("date", "1970-01-01", 0),
        ("date", "0001-01-01", -719162),
        ("date", "0001-12-31 (BC)", -719163),
        ("date", "2020-02-29", 18321),
        ("date", "12345-01-01", 3789391),
        ("date", "2019-02-29", None),
        ("date", "0000-01-01", None),
        ("date", "02020-01-01", None),
        ("date", "2020-13-01", None),
        ("date", "5881580-07-11", None),
        ("time", "12:00:00.5", 43_200_500_000),
        ("time", "24:00:00", None),
        ("time", "12:00", None),
        ("time", "12:00:00.0000001", None),
        ("timestamp", "1970-01-01 00:00:01", 1_000_000),
        ("timestamp", "1970-01-02", 86_400_000_000),
        ("timestamp", "1970-01-01T00:00:01", None),
        ("timestamp", "1970-01-01 00:00:01+00", None),
        ("timestamp", "1970-01-01 00:00:00.0000001", None),
        ("timestamp_s", "1970-01-01 00:00:01", 1_000_000),
        ("timestamp_s", "1970-01-01 00:00:01.5", None),
        ("timestamp_ms", "1970-01-01 00:00:01.5", 1_500_000),
        ("timestamp_ns", "1970-01-01 00:00:00.000000001", 1),
        ("timestamp_ns", "2263-01-01 00:00:00", None),
        ("timestamptz", "1970-01-01 00:00:01+00", 1_000_000),
        ("timestamptz", "1970-01-01 05:30:01+05:30", 1_000_000),
        ("timestamptz", "1969-12-31 19:00:01-05", 1_000_000),
        ("timestamptz", "1970-01-01 00:00:01", None),
        ("timestamptz", "1970-01-01", None),
        ("timestamptz", "1970-01-01 00:00:01+99", None),
    ],
)
def test_texts_of_numbers_are_read_only_in_the_form_that_duckdb_writes(
    ducklake_type: str, text: str, value: int | None
) -> None:
    assert whole(ducklake_type).read(text) == value


@given(st.dates())
def test_dates_are_read_as_days_since_the_epoch(day: date) -> None:
    assert whole("date").read(day.isoformat()) == (day - date(1970, 1, 1)).days


@given(st.floats(allow_nan=False).filter(lambda x: abs(x) not in MISPRINTED))
def test_a_double_is_read_back_from_its_text(value: float) -> None:
    text = values.write_float64(value)
    assert text is not None
    assert values.read_float64(text) == value


@given(singles)
def test_a_float_is_read_back_from_its_text(value: float) -> None:
    text = values.write_float32(value)
    assert text is not None
    assert values.read_float32(text) == value


@pytest.mark.parametrize("text", [*ODD, "1e999", "-1e999", "0x10", "1e", ".5", "5.", "0.10000000000000000555"])
def test_malformed_texts_are_not_read_as_floats(text: str) -> None:
    assert values.read_float32(text) is None
    assert values.read_float64(text) is None


@pytest.mark.parametrize("text", ["3.5e+38", "16777217", "0.1234567891", "1.10000001", "1e-46"])
def test_a_text_that_is_not_exactly_a_float_is_not_rounded_to_one(text: str) -> None:
    assert values.read_float32(text) is None


def test_nan_has_no_text() -> None:
    assert values.write_float32(math.nan) is None
    assert values.write_float64(math.nan) is None


def check_singles(floats: list[float]) -> None:
    query = "SELECT list_transform(?::FLOAT[], lambda x: x::VARCHAR), list_transform(?, lambda x: x::FLOAT)"
    ours = [values.write_float32(value) for value in floats]
    shown, understood = duckdb.execute(query, [floats, ours]).fetchall()[0]
    assert understood == floats
    assert [values.read_float32(text) for text in shown] == floats


@given(st.lists(singles, min_size=1, max_size=50))
def test_duckdb_and_mergus_read_each_others_float_texts(floats: list[float]) -> None:
    check_singles(floats)


def test_duckdb_and_mergus_read_each_others_float_texts_around_powers_of_two() -> None:
    """Below a power of two the neighbours are nearer than above, which is where digits go wrong."""
    bits = [(exponent << 23) + step for exponent in range(1, 255) for step in (-1, 0, 1)]
    check_singles([values.as_float32(struct.pack("<I", one)) for one in bits])


def test_duckdb_and_mergus_agree_on_double_powers_of_two_except_those_duckdb_misprints() -> None:
    powers = [math.ldexp(1, exponent) for exponent in range(-1074, 1024)]
    shown = duckdb.execute("SELECT list_transform(?::DOUBLE[], lambda x: x::VARCHAR)", [powers]).fetchall()[0][0]
    wrong = {value for value, text in zip(powers, shown, strict=True) if values.read_float64(text) != value}
    assert wrong == {2.0**81, 2.0**82, 2.0**91, 2.0**92, 2.0**807}
    assert all(values.read_float64(text) in {None, value} for value, text in zip(powers, shown, strict=True))


@given(st.lists(st.floats(allow_nan=False).filter(lambda x: abs(x) not in MISPRINTED), min_size=1, max_size=50))
def test_doubles_are_shown_as_duckdb_shows_them(floats: list[float]) -> None:
    shown = duckdb.execute("SELECT list_transform(?::DOUBLE[], lambda x: x::VARCHAR)", [floats]).fetchall()[0][0]
    assert [values.write_float64(value) for value in floats] == shown


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38))
def test_decimals_are_shown_as_duckdb_shows_them(unscaled: int, scale: int) -> None:
    sign, digits = int(unscaled < 0), tuple(map(int, str(abs(unscaled))))
    value = Decimal((sign, digits, -scale))
    shown = duckdb.execute(f"SELECT '{value:f}'::DECIMAL(38,{scale})::VARCHAR").fetchall()[0][0]
    assert whole(f"decimal(38,{scale})").write(unscaled) == shown


@given(st.uuids())
def test_uuids_are_read_and_written_in_their_hyphenated_form(value: UUID) -> None:
    assert values.read_uuid(str(value)) == value.bytes
    assert values.write_uuid(value.bytes) == str(value)
    assert values.read_uuid(value.hex) is None
    assert values.write_uuid(value.bytes[1:]) is None


@given(st.binary())
def test_blobs_are_written_as_hex_digits(value: bytes) -> None:
    assert bytes.fromhex(values.write_blob(value)) == value
