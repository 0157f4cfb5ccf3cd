"""Data files of a table that is registered, looked at: that they are there, and what columns they have, only they
themselves can tell. Each is looked at once, in its footer, and taken as it lies.

Row ids must be unique in a table. Those of version 3 are held against each other and against what the table has given.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mergus.annex.file_facts import Part
from mergus.catalog.commit_files import FileTerms, PlannedFile, lacks_row_ids, planned
from mergus.catalog.delete_files import Drawer
from mergus.errors import BadRequest
from mergus.iceberg.metadata_parse import GivenTable
from mergus.materialise import footers, row_ids
from mergus.materialise.given import GivenFile
from mergus.materialise.incoming import Added, Check
from mergus.storage.location import Location
from mergus.storage.objects import Objects

NO_ROW_IDS = -1


@dataclass(frozen=True, slots=True)
class Adoption:
    """`terms` are those of the table as it will be; `doomed` says which of some files are about to be deleted. If the
    table `grows`, it may begin with fewer columns than it has."""

    objects: Objects
    check: Check
    doomed: Callable[[Sequence[str]], Awaitable[Sequence[str]]]
    table: GivenTable
    terms: FileTerms
    drawer: Drawer
    grows: bool


@dataclass(frozen=True, slots=True)
class Looked:
    """A file with its columns, as they are in it, and the highest row id that is in it."""

    given: GivenFile
    place: Location
    columns: Sequence[Part]
    planned: PlannedFile
    highest_row_id: int

    @property
    def path(self) -> str:
        return self.given.file.file_path

    @property
    def lacks_row_ids(self) -> bool:
        return lacks_row_ids(self.columns)

    @property
    def first_row_id(self) -> int | None:
        """That rows are counted from, if they are counted at all."""
        return self.given.file.first_row_id


class DataFiles:
    """All that were looked at, by path."""

    def __init__(self, adoption: Adoption) -> None:
        self.looked: dict[str, Looked] = {}
        self._adoption = adoption
        # row ids that files count from, and those after the last, in order
        self._counted: list[tuple[int, int]] = []

    async def look(self, data: Mapping[str, GivenFile]) -> None:
        """At those that are new. Raises BadRequest or Unsupported for one that cannot be of the table."""
        adoption = self._adoption
        new = [one for path, one in data.items() if path not in self.looked]
        if not new:
            return
        places = {one.file.file_path: adoption.check(one.file.file_path) for one in new}
        if doomed := await adoption.doomed(list(places)):
            raise BadRequest(doomed_reason(doomed[0]))
        columns = await footers.columns(adoption.objects, places)
        files = [_planned(adoption, one, parts) for one, parts in zip(new, columns, strict=True)]
        own = [one.file.file_path for one, file in zip(new, files, strict=True) if file.file.has_row_ids]
        highest = dict(zip(own, await row_ids.highest(adoption.objects, [places[p] for p in own]), strict=True))
        for one, parts, file in zip(new, columns, files, strict=True):
            path = one.file.file_path
            looked = Looked(one, places[path], parts, file, highest.get(path, NO_ROW_IDS))
            self._check_row_ids(looked)
            self.looked[path] = looked

    def _check_row_ids(self, one: Looked) -> None:
        table, first = self._adoption.table, one.first_row_id
        if table.format_version >= 3 and one.highest_row_id >= table.next_row_id:
            raise BadRequest(
                f"A file has the row id {one.highest_row_id}, and the table's next-row-id is {table.next_row_id}"
            )
        if first is None or one.planned.file.has_row_ids:
            return
        after = first + one.given.file.record_count
        at = bisect_left(self._counted, (first, after))
        before, behind = self._counted[at - 1 : at], self._counted[at : at + 1]
        is_apart = all(end <= first for _, end in before) and all(after <= begin for begin, _ in behind)
        if not is_apart or after > table.next_row_id:
            raise BadRequest(f"Rows of {one.path} have the ids of others, or ids that the table has not given yet")
        if after > first:
            self._counted.insert(at, (first, after))


def doomed_reason(path: str) -> str:
    return f"Data file {path} was one of a table of the lake, and is about to be deleted"


def _planned(adoption: Adoption, one: GivenFile, columns: Sequence[Part]) -> PlannedFile:
    """In the spec as the table will have it, which may lack fields of the one that the file was written with."""
    try:
        values = adoption.table.fitting(one.spec_id, one.file.partition)
        return planned(adoption.terms, Added(one.spec_id, replace(one.file, partition=values)), columns)
    except (ValueError, TypeError, AttributeError, OverflowError) as e:
        raise BadRequest(f"Data file {one.file.file_path} has a partition that is none of its spec: {e}") from None
