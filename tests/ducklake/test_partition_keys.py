"""Specs as DuckLake's keys, and tuples as its texts, held against Python's calendar."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.ducklake.partition_keys import keys, needs_texts, texts
from mergus.ducklake.partitions import Key
from mergus.iceberg.partition_spec import PartitionField, PartitionSpec

TYPES = {
    1: "int32",
    2: "varchar",
    3: "date",
    4: "timestamp",
    5: "timestamptz",
    6: "uuid",
    7: "float64",
    8: "blob",
    9: "struct",
    10: "decimal(9,2)",
    11: "boolean",
    12: "uint32",
}


def spec(*fields: tuple[int, str]) -> PartitionSpec:
    return PartitionSpec(
        7, tuple(PartitionField(source, 1000 + n, f"f{n}", transform) for n, (source, transform) in enumerate(fields))
    )


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ([], []),
        ([(1, "identity")], [Key(1, "identity")]),
        ([(3, "year")], [Key(3, "year")]),
        ([(3, "month")], [Key(3, "year"), Key(3, "month")]),
        ([(4, "day")], [Key(4, "year"), Key(4, "month"), Key(4, "day")]),
        ([(4, "hour")], [Key(4, "year"), Key(4, "month"), Key(4, "day"), Key(4, "hour")]),
        # what is needed for both is there once
        ([(3, "year"), (3, "month")], [Key(3, "year"), Key(3, "month")]),
        # what DuckLake has not
        ([(2, "truncate[3]")], []),
        ([(1, "void")], []),
        ([(7, "identity"), (8, "identity")], []),
        ([(99, "identity"), (9, "identity")], []),
        # what DuckDB would lose rows by
        ([(1, "bucket[4]"), (2, "bucket[4]"), (6, "bucket[4]")], []),
        # the rest of a spec of which it has not all
        ([(2, "truncate[3]"), (1, "identity"), (1, "void")], [Key(1, "identity")]),
    ],
)
def test_an_iceberg_spec_is_translated_to_ducklake_partition_keys(
    fields: list[tuple[int, str]], wanted: list[Key]
) -> None:
    assert keys(spec(*fields), TYPES) == wanted


@given(st.dates(date(1, 1, 2), date(9999, 12, 30)))
def test_year_month_and_day_ordinals_become_the_texts_of_ducklake_keys(day: date) -> None:
    of_day = spec((3, "day"))
    ordinal = (day - date(1970, 1, 1)).days
    assert texts(of_day, (ordinal,), keys(of_day, TYPES), TYPES) == [str(day.year), str(day.month), str(day.day)]
    of_month = spec((3, "month"))
    months = (day.year - 1970) * 12 + day.month - 1
    assert texts(of_month, (months,), keys(of_month, TYPES), TYPES) == [str(day.year), str(day.month)]
    of_year = spec((3, "year"))
    assert texts(of_year, (day.year - 1970,), keys(of_year, TYPES), TYPES) == [str(day.year)]


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)))
def test_an_hour_ordinal_becomes_year_month_day_and_hour_texts(moment: datetime) -> None:
    of_hour = spec((4, "hour"))
    ordinal = (moment - datetime(1970, 1, 1)) // timedelta(hours=1)
    wanted = [str(moment.year), str(moment.month), str(moment.day), str(moment.hour)]
    assert texts(of_hour, (ordinal,), keys(of_hour, TYPES), TYPES) == wanted


def test_a_bucket_value_has_a_text_for_a_bucket_key_of_duckdb() -> None:
    assert texts(spec((1, "bucket[16]")), (3,), [Key(1, "bucket(16)")], TYPES) == ["3"]
    assert needs_texts([Key(2, "identity"), Key(1, "bucket(16)")])
    assert not needs_texts([Key(2, "identity"), Key(3, "year")])


def test_a_day_of_a_timestamptz_column_has_no_partition_text() -> None:
    """DuckDB would have cut it in the session's zone (H17)."""
    of_day = spec((5, "day"))
    today = (datetime.now(UTC).date() - date(1970, 1, 1)).days
    assert texts(of_day, (today,), keys(of_day, TYPES), TYPES) is None
    # but NULL is NULL in every zone
    assert texts(of_day, (None,), keys(of_day, TYPES), TYPES) == [None, None, None]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ((1, "identity"), -7, "-7"),
        ((1, "identity"), None, None),
        ((2, "identity"), "a b", "a b"),
        ((2, "identity"), "", ""),
        ((3, "identity"), 0, "1970-01-01"),
        ((11, "identity"), True, "true"),
        ((11, "identity"), False, "false"),
        ((6, "identity"), bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
    ],
)
def test_an_identity_value_becomes_the_text_that_ducklake_stores(
    field: tuple[int, str], value: int | str | bytes | None, text: str | None
) -> None:
    one = spec(field)
    assert texts(one, (value,), keys(one, TYPES), TYPES) == [text]


def test_one_value_without_a_certain_text_makes_a_file_without_partition() -> None:
    both = spec((1, "identity"), (2, "identity"))
    wanted = keys(both, TYPES)
    assert texts(both, (1, "a"), wanted, TYPES) == ["1", "a"]
    assert texts(both, (1, "a\0b"), wanted, TYPES) is None
    # a key of a partitioning that the file's spec says nothing about
    assert texts(spec((1, "identity")), (1,), wanted, TYPES) is None


def test_partition_fields_are_matched_to_keys_by_column_in_any_order() -> None:
    turned = spec((2, "truncate[1]"), (3, "month"), (1, "bucket[4]"))
    wanted = [Key(1, "bucket(4)"), Key(3, "year"), Key(3, "month")]
    assert texts(turned, ("x", 601, 2), wanted, TYPES) == ["2", "2020", "2"]
