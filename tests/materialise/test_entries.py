"""How a data file of DuckLake's is listed in a manifest."""

from mergus.ducklake.files import ColumnStats
from mergus.ducklake.files import DataFile as LakeFile
from mergus.iceberg.manifest import DataFile
from mergus.materialise.entries import Leaf, data_file

COLUMNS = {1: Leaf("int32", retyped=False), 2: Leaf("float64", retyped=False)}


def listed(stats: dict[int, ColumnStats], *, nans: dict[int, int] | None = None, version: int = 2) -> DataFile:
    file = LakeFile(7, "s3://b/f.parquet", 10, 500, 40, 3, None, None, None, None, stats)
    return data_file(file, COLUMNS, (), version, nans or {})


def test_a_value_count_includes_nulls() -> None:
    """A reader skips a file in which a column has as many nulls as values."""
    found = listed({1: ColumnStats(80, 5, 5, "1", "9", None)})
    assert (found.value_counts, found.null_value_counts) == ({1: 10}, {1: 5})


def test_a_count_that_ducklake_does_not_know_is_left_out() -> None:
    found = listed({1: ColumnStats(None, None, 5, "1", "9", None)})
    assert (found.column_sizes, found.value_counts, found.null_value_counts) == ({}, {}, {1: 5})
    found = listed({1: ColumnStats(80, 5, None, "1", "9", None)})
    assert (found.column_sizes, found.value_counts, found.null_value_counts) == ({1: 80}, {}, {})


def test_nans_are_counted_only_if_their_number_is_certain() -> None:
    assert listed({2: ColumnStats(80, 10, 0, "1.0", "9.0", False)}).nan_value_counts == {2: 0}
    unsure = {2: ColumnStats(80, 10, 0, "1.0", "9.0", True)}
    assert listed(unsure).nan_value_counts == {}
    assert listed(unsure, nans={2: 4}).nan_value_counts == {2: 4}
    # a column of integers has none
    assert listed({1: ColumnStats(80, 10, 0, "1", "9", None)}).nan_value_counts == {}


def test_a_column_that_the_table_no_longer_has_is_left_out() -> None:
    found = listed({9: ColumnStats(80, 10, 0, "1", "9", None)})
    assert (found.value_counts, found.lower_bounds, found.upper_bounds) == ({}, {}, {})


def test_rows_have_ids_in_version_3_only() -> None:
    assert listed({}).first_row_id is None
    assert listed({}, version=3).first_row_id == 40
