"""Delete files of DuckLake's shape, on storage before the lock is taken.

The first rows that are deleted from a file need no snapshot id beside them. Later ones do, and the id of a commit is
known only under the lock: it is the next one unless somebody else commits meanwhile, so the file is written for that,
and again under the lock if it was not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from pyroaring import BitMap64

from mergus.ducklake.data_changes import NewDeletes
from mergus.materialise import folding
from mergus.materialise.deletes import DatedPositions
from mergus.materialise.folding import Folded
from mergus.storage.location import Location
from mergus.storage.objects import Objects

NONE_BEFORE: Final = DatedPositions((), ())


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that is deleted from a data file: `before` with the snapshots since when, and `new` by the snapshot that it
    is written with. `snapshot_id` is what that one's id is taken to be; None if the file does not say it. Snapshots
    before it from `first` on are of the same commit, and come as much later as it does."""

    data_path: str
    before: DatedPositions
    new: BitMap64
    location: Location
    folded: Folded
    snapshot_id: int | None
    first: int

    def moved_by(self, later: int) -> tuple[DatedPositions, int]:
        """What was deleted before, and `first`, if the commit comes so much later."""
        since = [i + later if i >= self.first else i for i in self.before.snapshot_ids]
        return DatedPositions(self.before.positions, since), self.first + later


@dataclass(frozen=True, slots=True)
class Drawer:
    """Where a table has such files: below no location that clients are told (materialise/layout.py). `litter` gets all
    that are written."""

    objects: Objects
    directory: Location
    litter: list[Location]

    async def prepare(
        self, data_path: str, before: DatedPositions, new: BitMap64, snapshot_id: int, *, first: int | None = None
    ) -> Prepared:
        """`first` is the first snapshot of the commit, if it is an earlier one than this."""
        folded = folding.render(data_path, before or None, new, snapshot_id)
        # named by chance, not by content: DuckLake deletes it when another takes its place
        location = self.directory / f"ducklake-deletes-{uuid4()}.parquet"
        self.litter.append(location)
        await self.objects.put(location, folded.data)
        dated, first = snapshot_id if before else None, snapshot_id if first is None else first
        return Prepared(data_path, before, new, location, folded, dated, first)

    async def settle(
        self, prepared: Prepared, data_file_id: int, replaces: Sequence[int], snapshot_id: int
    ) -> NewDeletes:
        """As the commit with this id writes it."""
        if prepared.snapshot_id not in (None, snapshot_id):
            before, first = prepared.moved_by(snapshot_id - prepared.snapshot_id)
            prepared = await self.prepare(prepared.data_path, before, prepared.new, snapshot_id, first=first)
        folded = prepared.folded
        return NewDeletes(
            data_file_id=data_file_id,
            path=str(prepared.location),
            delete_count=folded.count,
            size_bytes=len(folded.data),
            footer_size=folded.footer_size,
            begin_snapshot=snapshot_id if prepared.snapshot_id is None else folded.begin,
            partial_max=folded.partial_max,
            replaces=replaces,
        )
