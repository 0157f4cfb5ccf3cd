"""Which files of ours hold the inlined rows of a table at a snapshot.

Each holds the rows that a span of snapshots put into Postgres. A snapshot that inlines rows gets a file of its own,
into which go those before it that are of a smaller size; and eight of a size become one. So sizes fall from the oldest
to the newest, with fewer than eight of each: a thousand one-row commits leave a few dozen files, and a row is written
again only into a file of a larger size. Rows that end later are deleted from their file like from any other. What a
flush took out of Postgres is in DuckLake's files then, and our files go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap64

from mergus.iceberg.manifest import Entry
from mergus.materialise.layout import rows_range

# So many files of a size are merged, and a file is of the next size if it has so many times the rows.
FAN: Final = 8


@dataclass(frozen=True, slots=True)
class RowsFile:
    """Rows that came after one snapshot and up to another."""

    entry: Entry
    after: int
    upto: int

    @classmethod
    def of(cls, entry: Entry) -> "RowsFile":
        found = rows_range(entry.data_file.file_path)
        if found is None:
            raise ValueError(f"Not a file of inlined rows: {entry.data_file.file_path}")
        return cls(entry, *found)

    @property
    def path(self) -> str:
        return self.entry.data_file.file_path

    @property
    def rows(self) -> int:
        return self.entry.data_file.record_count

    @property
    def size_class(self) -> int:
        return size_class(self.rows)

    def has(self, begin: int) -> bool:
        return self.after < begin <= self.upto


def merged_from(files: Sequence[RowsFile], before: int, rows: int) -> int:
    """After which snapshot a new file should begin, given those that are there, oldest first, and how many rows are
    new; `before` if it should hold nothing but those."""
    first, coming = len(files), rows
    while True:
        while first > 0 and files[first - 1].size_class < size_class(coming):
            first -= 1
            coming += files[first].rows
        same = first
        while same > 0 and files[same - 1].size_class == size_class(coming):
            same -= 1
        # with the one that is being made
        if first - same + 1 < FAN:
            return files[first].after if first < len(files) else before
        coming += sum(file.rows for file in files[same:first])
        first = same


def size_class(rows: int) -> int:
    found = 0
    while rows >= FAN:
        rows //= FAN
        found += 1
    return found


def positions_gone(keys: Sequence[tuple[int, int]], visible: set[tuple[int, int]]) -> BitMap64:
    """Of the rows of a file, given by row id and begin, those that are not visible any more."""
    return BitMap64(position for position, key in enumerate(keys) if key not in visible)
