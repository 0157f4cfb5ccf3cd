"""A data file of DuckLake's as a manifest lists it, with the statistics that are certain.

A bound or a count that DuckLake does not know is left out. Leaves of lists and maps have none: DuckLake counts their
elements, of which readers expect nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mergus.ducklake.columns import Columns
from mergus.ducklake.files import ColumnStats
from mergus.ducklake.files import DataFile as LakeFile
from mergus.errors import Unsupported
from mergus.iceberg.bounds import lower_bound, upper_bound
from mergus.iceberg.manifest import DATA, DataFile, PartitionValue
from mergus.storage.location import Location

ADD_AGAIN: Final = (
    "Delete its rows in DuckDB, let DuckLake give the file up (CALL ducklake_rewrite_data_files(..., "
    "delete_threshold => 0)), and add it again by its full path (s3://... or /...)"
)
_FLOATS = frozenset({"float32", "float64"})
_NESTED = frozenset({"struct", "list", "map"})
# their statistics are of another kind
_WITHOUT_COUNTS = frozenset({"variant", "geometry"})


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column that statistics are about; `retyped` if it has had another type."""

    type: str
    retyped: bool


def leaves(columns: Columns, at: int) -> dict[int, Leaf]:
    types: dict[int, set[str]] = {}
    for column in columns.columns:
        types.setdefault(column.id, set()).add(column.type)
    live = {c.id: c for c in columns.columns if c.span.at(at)}

    def repeated(column_id: int | None) -> bool:
        if column_id is None or column_id not in live:
            return False
        column = live[column_id]
        return column.type in {"list", "map"} or repeated(column.parent)

    return {
        c.id: Leaf(c.type, len(types[c.id]) > 1)
        for c in live.values()
        if c.type not in _NESTED | _WITHOUT_COUNTS and not repeated(c.parent)
    }


def nans_unknown(file: LakeFile, columns: Mapping[int, Leaf]) -> frozenset[int]:
    """Columns in which there may be NaNs, and only the file tells how many."""
    floats = [(i, s) for i, s in file.stats.items() if i in columns and columns[i].type in _FLOATS]
    return frozenset(i for i, s in floats if s.contains_nan is not False and s.value_count != 0)


def data_file(
    file: LakeFile,
    columns: Mapping[int, Leaf],
    partition: tuple[PartitionValue, ...],
    format_version: int,
    nans: Mapping[int, int],
) -> DataFile:
    """`nans` are the counts of those columns of which DuckLake does not know that there is none."""
    known = [(i, columns[i], stats) for i, stats in sorted(file.stats.items()) if i in columns]
    lower = {i: lower_bound(leaf.type, s.min_text, retyped=leaf.retyped) for i, leaf, s in known}
    upper = {i: upper_bound(leaf.type, s.max_text, retyped=leaf.retyped) for i, leaf, s in known}
    return DataFile(
        content=DATA,
        file_path=shown_path(file),
        file_format="PARQUET",
        partition=partition,
        record_count=file.record_count,
        file_size_in_bytes=file.size_bytes,
        column_sizes={i: s.size_bytes for i, _, s in known if s.size_bytes is not None},
        value_counts={i: n for i, _, s in known if (n := _values(s)) is not None},
        null_value_counts={i: s.null_count for i, _, s in known if s.null_count is not None},
        nan_value_counts=_nans(file, columns, nans),
        lower_bounds={i: b for i, b in lower.items() if b is not None},
        upper_bounds={i: b for i, b in upper.items() if b is not None},
        sort_order_id=file.sort_order_id,
        # a file without a start has every row's id in a column of its own, which goes before this
        first_row_id=(file.row_id_start or 0) if format_version >= 3 else None,
    )


def _nans(file: LakeFile, columns: Mapping[int, Leaf], counted: Mapping[int, int]) -> dict[int, int]:
    floats = [i for i in sorted(file.stats) if i in columns and columns[i].type in _FLOATS]
    unknown = nans_unknown(file, columns)
    return {i: counted.get(i, 0) for i in floats if i not in unknown or i in counted}


def _values(stats: ColumnStats) -> int | None:
    if stats.value_count is None or stats.null_count is None:
        return None
    return stats.value_count + stats.null_count


def shown_path(file: LakeFile) -> str:
    """A client finds its file again by the very path that it gave it."""
    return file.path if file.placed is not None else uri(file.path)


def spellings(path: str) -> set[str]:
    """Those by which a manifest may name the file."""
    return {path, uri(path)}


def uri(path: str) -> str:
    """As every reader takes it: DuckLake may have a plain path for a local file. Raises Unsupported for one that not
    every reader takes for the same file."""
    if path.startswith("s3://"):
        return path
    if (why := unplaced(path)) is not None:
        raise Unsupported(f"Data file {path} cannot be shown to Iceberg's readers: {why}")
    return str(Location.parse(path))


def unplaced(path: str) -> str | None:
    """Why a path that DuckDB was told is no place to Iceberg's readers, if it is none."""
    try:
        Location.parse(path)
    except ValueError:
        scheme, has_scheme, _ = path.partition("://")
        if has_scheme and scheme not in {"s3", "file"}:
            why = f"not every Iceberg reader reads from {scheme}://"
        elif path.startswith(("/", "s3:", "file:")):
            why = "its path has empty, '.' or '..' parts, which readers do not resolve alike"
        else:
            why = "its path is relative to the directory in which each DuckDB session runs"
        return f"{why}. {ADD_AGAIN}"
    return None
