from itertools import pairwise
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergus.iceberg.manifest import ADDED, DATA, DataFile, Entry
from mergus.materialise.rows_files import FAN, RowsFile, merged_from, positions_gone

HASH = "0" * 32


def rows_file(after: int, upto: int, rows: int) -> RowsFile:
    path = f"s3://b/t/data/rows-{after + 1}-{upto}-{HASH}.parquet"
    return RowsFile.of(Entry(ADDED, upto, upto, upto, DataFile(DATA, path, "PARQUET", (), rows, 1)))


def commit(files: list[RowsFile], before: int, snapshot_id: int, rows: int) -> tuple[list[RowsFile], int]:
    """The files after a snapshot that inlines rows, as a chain makes them; and how many rows were written for it."""
    after = merged_from(files, before, rows)
    going = [f for f in files if f.after >= after]
    written = rows + sum(f.entry.data_file.record_count for f in going)
    staying = [f for f in files if f.after < after]
    return [*staying, rows_file(after, snapshot_id, written)], written


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 10)), min_size=1, max_size=600))
@settings(max_examples=60)
def test_rows_files_stay_few_and_disjoint_and_rows_are_rarely_rewritten(commits: list[tuple[int, int]]) -> None:
    """Between two commits of the table others of the lake may come."""
    files: list[RowsFile] = []
    snapshot_id = total = written = 0
    for gap, rows in commits:
        before, snapshot_id = snapshot_id, snapshot_id + gap
        files, now = commit(files, before, snapshot_id, rows)
        total, written = total + rows, written + now
        levels = log(total, FAN) + 1
        assert all(f.after < f.upto for f in files)
        assert all(one.upto <= other.after for one, other in pairwise(files))
        assert files[-1].upto == snapshot_id
        assert sum(f.entry.data_file.record_count for f in files) == total
        assert len(files) <= (FAN - 1) * levels
        assert written <= total * (levels + 1)


def test_a_thousand_commits_of_one_row_leave_a_few_dozen_files() -> None:
    files: list[RowsFile] = []
    most = 0
    for snapshot_id in range(1, 1001):
        files, _ = commit(files, snapshot_id - 1, snapshot_id, 1)
        most = max(most, len(files))
    assert most <= 28
    assert files[0].after == 0


def test_small_commits_after_a_large_one_do_not_write_it_again() -> None:
    files = [rows_file(0, 1, 10_000)]
    for snapshot_id in range(2, 400):
        files, _ = commit(files, snapshot_id - 1, snapshot_id, 1)
        assert files[0].upto == 1


def test_eight_rows_files_of_one_size_are_merged_into_one() -> None:
    files = [rows_file(i, i + 1, 1) for i in range(FAN - 1)]
    assert merged_from(files[1:], FAN - 1, 1) == FAN - 1
    assert merged_from(files, FAN - 1, 1) == 0
    assert merged_from([], 5, 1) == 5


def test_smaller_rows_files_are_merged_into_a_larger_new_one() -> None:
    """Else files of two sizes in turns would stay for ever: there are never eight of one beside each other."""
    files: list[RowsFile] = []
    for snapshot_id in range(1, 1001):
        files, _ = commit(files, snapshot_id - 1, snapshot_id, FAN if snapshot_id % (FAN - 1) == 0 else 1)
        assert len(files) <= (FAN - 1) * 4


def test_a_rows_file_contains_the_rows_of_its_snapshot_range() -> None:
    file = rows_file(3, 6, 1)
    assert [begin for begin in range(10) if file.has(begin)] == [4, 5, 6]


def test_a_file_that_is_no_rows_file_is_refused() -> None:
    with pytest.raises(ValueError, match="inlined rows"):
        RowsFile.of(Entry(ADDED, 1, 1, 1, DataFile(DATA, "s3://b/x.parquet", "PARQUET", (), 1, 1)))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), unique=True), st.data())
def test_deleted_positions_are_those_of_rows_that_are_not_visible(
    keys: list[tuple[int, int]], data: st.DataObject
) -> None:
    visible = set(data.draw(st.lists(st.sampled_from(keys)))) if keys else set[tuple[int, int]]()
    gone = positions_gone(keys, visible)
    assert {key for position, key in enumerate(keys) if position not in gone} == visible
