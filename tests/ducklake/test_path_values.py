"""Values in paths that a client adds files with: what is taken for certain is what DuckDB reads."""

from pathlib import Path
from urllib.parse import quote

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.ducklake.path_values import find_in_path


def read_by_duckdb(folder: Path, directory: str, kind: str) -> object:
    place = folder / directory
    place.mkdir(parents=True, exist_ok=True)
    path = f"{place}/f.parquet"
    duckdb.sql(f"COPY (SELECT 1 AS i) TO '{path.replace(chr(39), chr(39) * 2)}'")
    options = f"hive_partitioning => true, hive_types => {{'k': {kind}}}"
    relation = duckdb.execute(f"SELECT k FROM read_parquet(?, {options})", [path])
    return (relation.fetchone() or (None,))[0]


NAMES = st.text(
    st.characters(exclude_characters="/\\\0\n?*[]", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12
)


@given(text=NAMES, escaped=st.booleans())
def test_a_string_found_in_a_path_is_the_value_that_duckdb_reads(
    tmp_path_factory: pytest.TempPathFactory, text: str, escaped: bool
) -> None:
    directory = f"k={quote(text, safe='') if escaped else text}"
    for value in {text, text.replace("%41", "A")}:
        found = find_in_path(f"s3://b/{directory}/f.parquet", {"k"}, "varchar", value, 3)
        if found is not None:
            assert (found.name, found.stats.min_text, found.stats.null_count) == ("k", value, 0)
            assert read_by_duckdb(tmp_path_factory.mktemp("found"), directory, "VARCHAR") == value
        else:
            assert not escaped or value != text or text.upper() in {"NULL", "__HIVE_DEFAULT_PARTITION__"}


@given(value=st.integers(-(2**31), 2**31 - 1), zeros=st.integers(0, 3))
def test_a_number_found_in_a_path_is_the_value_that_duckdb_reads(
    tmp_path_factory: pytest.TempPathFactory, value: int, zeros: int
) -> None:
    directory = f"k={'-' if value < 0 else ''}{'0' * zeros}{abs(value)}"
    found = find_in_path(f"s3://b/{directory}/f.parquet", {"k"}, "int32", value, 3)
    assert found is not None
    assert found.stats.min_text == found.stats.max_text == str(value)
    assert read_by_duckdb(tmp_path_factory.mktemp("numbers"), directory, "INTEGER") == value


@pytest.mark.parametrize(
    ("path", "kind", "value"),
    [
        ("k=a", "varchar", "b"),
        ("n=a", "varchar", "a"),
        ("k=a/k=b", "varchar", "a"),
        ("k=a/K=b", "varchar", "a"),
        ("K=a", "varchar", "a"),
        ("%6b=a", "varchar", "a"),
        ("k=a=b", "varchar", "a=b"),
        ("k=", "varchar", ""),
        ("k=null", "varchar", "null"),
        ("k=__HIVE_DEFAULT_PARTITION__", "varchar", "__HIVE_DEFAULT_PARTITION__"),
        ("k=a%zz", "varchar", "a%zz"),
        ("k=%ff", "varchar", "\ufffd"),
        ("k=a%00", "varchar", "a\0"),
        ("k=" + "a" * 256, "varchar", "a" * 256),
        ("k=1e2", "int32", 100),
        ("k=+5", "int32", 5),
        ("k=0.5", "float64", 0.5),
        ("k=2020-01-01 00%3A00%3A00", "timestamptz", 1577836800000000),
        ("x?y/k=a", "varchar", "a"),
        ("k=a\\b", "varchar", "a\\b"),
    ],
)
def test_an_ambiguous_path_yields_no_partition_value(path: str, kind: str, value: str | int | float) -> None:
    assert find_in_path(f"s3://b/{path}/f.parquet", {"k"}, kind, value, 3) is None


def test_the_file_name_in_a_path_yields_no_partition_value() -> None:
    assert find_in_path("s3://b/k=a", {"k"}, "varchar", "a", 3) is None
