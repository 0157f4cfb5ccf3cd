"""Statistics of columns: Iceberg's metrics of a file as DuckLake's, and what they make of those of the whole table.

DuckDB skips files by `ducklake_file_column_stats`, plans by `ducklake_table_column_stats` and even answers `min(x)` and
`max(x)` from it, so a wrong statistic is a wrong answer, and what is not known is left out:

- Of one column in one file, everything may be unknown. The row is written all the same, with NULLs: DuckDB then reads
  the file, and `rewrite_data_files`, which computes the table's bounds anew from the rows of files, knows that it does
  not know. If the row were missing, it would take the file for one without values. Elsewhere, too, a missing row means
  that the file lacks the column.
- Of a column in the whole table, the row goes as soon as it would have to say too much. It never comes back: DuckDB
  only ever updates the rows that are there. A row without either bound is no way to say "unknown", for DuckDB takes it
  for "all NULL so far" and the bounds of its next insert for those of the table (H26). So we do not believe such a row
  of another's making either, once there are values.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from mergus.ducklake.files import ColumnStats
from mergus.iceberg import bounds, values
from mergus.iceberg.manifest import DataFile

NOTHING_KNOWN: Final = ColumnStats(None, None, None, None, None, None)

_FLOATS: Final = frozenset({"float32", "float64"})
_NARROW: Final = frozenset({"int8", "int16", "uint8", "uint16", "timestamp_s"})
_TEXTS: Final = frozenset({"varchar", "json"})

# Something that can be compared with others of its column.
_Key: TypeAlias = Any


class Gone(Enum):
    """That there is nothing right to say about a column of the whole table: it has no row."""

    GONE = "gone"


GONE: Final = Gone.GONE


@dataclass(frozen=True, slots=True)
class GlobalStats:
    """A row of `ducklake_table_column_stats`. None is "not known"; without any bound, all values are NULL so far."""

    contains_null: bool | None
    contains_nan: bool | None
    min_text: str | None
    max_text: str | None


def column_stats(file: DataFile, leaves: Mapping[int, str]) -> dict[int, ColumnStats]:
    """Of each column that the file has. `leaves` are DuckLake's types of the leaf columns outside of lists and maps.

    Writers tell the sizes of all columns, whatever else they leave out: a file that tells those of others and nothing
    of this one lacks it. Of a file that tells no sizes nobody knows, and it counts as having all.
    """
    told = [file.column_sizes, file.value_counts, file.null_value_counts, file.lower_bounds, file.upper_bounds]
    known = {column_id for metrics in told if metrics for column_id in metrics}
    had = known if file.column_sizes else leaves.keys()
    return {column_id: _column(file, column_id, kind) for column_id, kind in leaves.items() if column_id in had}


def out_of_range(file: DataFile, leaves: Mapping[int, str]) -> list[int]:
    """Columns of fewer bits or less precision than Iceberg has, for which the file may hold a value that does not
    fit."""
    narrow = {column_id: kind for column_id, kind in leaves.items() if kind in _NARROW}
    return [
        column_id
        for column_id, found in column_stats(file, narrow).items()
        if found.value_count != 0 and (found.min_text is None or found.max_text is None)
    ]


def widened(current: GlobalStats | None, added: Iterable[ColumnStats], ducklake_type: str) -> GlobalStats | Gone:
    """The row of a column after files came: `current` is None before the first of a table."""
    stats = list(added)
    parts = [s for s in stats if s.value_count != 0]
    nulls = [None if s.null_count is None else s.null_count > 0 for s in stats]
    nans = [s.contains_nan for s in stats]
    lows, highs = [s.min_text for s in parts], [s.max_text for s in parts]
    if current is not None:
        nulls.append(current.contains_null)
        nans.append(current.contains_nan)
        lows.append(current.min_text)
        highs.append(current.max_text)
    contains_null, contains_nan = _any(nulls), _any(nans)
    if not parts:
        old = (None, None) if current is None else (current.min_text, current.max_text)
        return GlobalStats(contains_null, contains_nan, *old)
    order = _order(ducklake_type)
    if order is None or (current is not None and current.min_text is None and current.max_text is None):
        return GONE
    try:
        low, high = _extreme(min, lows, order), _extreme(max, highs, order)
    except _Incomparable:
        return GONE
    return GONE if low is None and high is None else GlobalStats(contains_null, contains_nan, low, high)


def _column(file: DataFile, column_id: int, ducklake_type: str) -> ColumnStats:
    size = (file.column_sizes or {}).get(column_id)
    value_count, null_count = _counts(file, column_id)
    if value_count == 0:
        return ColumnStats(size, value_count, null_count, None, None, False if ducklake_type in _FLOATS else None)
    nans = (file.nan_value_counts or {}).get(column_id) if ducklake_type in _FLOATS else None
    low, high = _bounds(file, column_id, ducklake_type)
    return ColumnStats(size, value_count, null_count, low, high, None if nans is None else nans > 0)


def _counts(file: DataFile, column_id: int) -> tuple[int | None, int | None]:
    """Values that are not NULL, and NULLs. Iceberg counts both as values: together they are all rows of the file."""
    if file.record_count == 0:
        return 0, 0
    rows = (file.value_counts or {}).get(column_id, file.record_count)
    nulls = (file.null_value_counts or {}).get(column_id)
    if nulls is None or rows != file.record_count or not 0 <= nulls <= rows:
        return None, None
    return rows - nulls, nulls


def _bounds(file: DataFile, column_id: int, ducklake_type: str) -> tuple[str | None, str | None]:
    low, high = ((found or {}).get(column_id) for found in (file.lower_bounds, file.upper_bounds))
    texts = [None if bound is None else bounds.stats_text(ducklake_type, bound) for bound in (low, high)]
    if ducklake_type in _FLOATS and any(b is not None and t is None for b, t in zip((low, high), texts, strict=True)):
        return None, None  # old writers let a NaN into the bounds, and then neither can be trusted
    order = _order(ducklake_type)
    if order is not None and texts[0] is not None and texts[1] is not None:
        keys = order(texts[0]), order(texts[1])
        if None not in keys and keys[0] > keys[1]:
            return None, None
    return texts[0], texts[1]


class _Incomparable(Exception):
    """A text that stands for no value, or for two."""


def _extreme(
    pick: Callable[..., tuple[_Key, str]], texts: list[str | None], order: Callable[[str], _Key]
) -> str | None:
    """As it is written by whoever has it; None as soon as one is not known."""
    known = {text for text in texts if text is not None}
    if len(known) == 0 or None in texts:
        return None
    keys = [(order(text), text) for text in known]
    if any(key is None for key, _ in keys):
        raise _Incomparable
    return pick(keys)[1]


def _order(ducklake_type: str) -> Callable[[str], _Key] | None:
    """What the texts of a type are compared by; None where that cannot be known.

    A text that is not the type's has None. Blobs have no order: a file's text is hexadecimal, that of inlined rows
    DuckDB's escapes, and some could be either.
    """
    if ducklake_type in _TEXTS:
        return str.encode
    if ducklake_type == "uuid":
        return values.read_uuid
    if ducklake_type == "float32":
        return values.read_float32
    if ducklake_type == "float64":
        return values.read_float64
    whole = values.counted(ducklake_type)
    return None if whole is None else whole.read


def _any(found: list[bool | None]) -> bool | None:
    return None if None in found else any(found)
