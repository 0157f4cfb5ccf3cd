"""Rows that the snapshots of one commit delete from data files that stay.

To DuckLake a data file has one delete file, which says of each row since which snapshot it is gone. So what several
snapshots of a commit delete from one file is put together, with what older commits have deleted, and written once: with
the last of them that deletes any. That is what as many commits would have left behind.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap64

from mergus.catalog.delete_files import Drawer, Prepared
from mergus.ducklake.files import DataFile as LakeFile
from mergus.materialise.at_once import each
from mergus.materialise.deletes import DatedPositions

PUTS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class PlannedDeletes:
    """Rows that go from a file which is there."""

    file: LakeFile
    prepared: Prepared

    @property
    def replaces(self) -> list[int]:
        """The delete files whose rows are taken over."""
        return [delete_file.id for delete_file in self.file.delete_files]


@dataclass(frozen=True, slots=True)
class Part:
    """What one snapshot deletes: its id to the client, and what its id in the lake is taken to be."""

    snapshot_id: int
    at: int
    positions: BitMap64


@dataclass(slots=True)
class Deletion:
    """What a commit deletes from one data file. `file` is None for one that came with the commit; `before` was deleted
    by older commits, and `known` is all that is deleted so far."""

    file: LakeFile | None
    before: DatedPositions
    known: BitMap64
    parts: list[Part] = field(default_factory=list[Part])

    def note(self, snapshot_id: int, at: int, positions: BitMap64) -> None:
        """A row that is gone already does not go again."""
        if new := positions - self.known:
            self.known = self.known | new
            self.parts.append(Part(snapshot_id, at, new))

    def dated_before(self) -> DatedPositions:
        """All but what the last snapshot deletes."""
        own = [(position, part.at) for part in self.parts[:-1] for position in part.positions]
        return DatedPositions(
            [*self.before.positions, *(position for position, _ in own)],
            [*self.before.snapshot_ids, *(at for _, at in own)],
        )


@dataclass(frozen=True, slots=True)
class Written:
    """By the snapshots that they are written with, as the client knows these: delete files of data files that are
    there, and of those that came with the commit, by their paths. `earlier` are the snapshots whose deletes a later one
    tells of."""

    of_lake: defaultdict[int, list[PlannedDeletes]]
    of_new: defaultdict[int, dict[str, Prepared]]
    earlier: set[int]


async def write_deletions(drawer: Drawer, deletions: Mapping[str, Deletion], first: int) -> Written:
    """`deletions` are by the paths of data files, and `first` is the first snapshot of the commit."""
    written = Written(defaultdict(list), defaultdict(dict), set())

    async def prepare(item: tuple[str, Deletion]) -> tuple[str, Deletion, Prepared]:
        path, deletion = item
        last = deletion.parts[-1]
        data_path = path if deletion.file is None else deletion.file.path
        before = deletion.dated_before()
        return path, deletion, await drawer.prepare(data_path, before, last.positions, last.at, first=first)

    wanted = [item for item in sorted(deletions.items()) if item[1].parts]
    for path, deletion, prepared in await each(prepare, wanted, PUTS_AT_ONCE):
        *earlier, last = deletion.parts
        written.earlier.update(part.snapshot_id for part in earlier)
        if deletion.file is None:
            written.of_new[last.snapshot_id][path] = prepared
        else:
            written.of_lake[last.snapshot_id].append(PlannedDeletes(deletion.file, prepared))
    return written
