"""The history of a table that is registered: what each snapshot changed, for as far back as DuckLake can tell it.

It is gone through backwards, from the current snapshot to its parents. What a snapshot changed is a difference of sets,
files with rows in them and what is deleted from each. DuckLake has one line of history in which a file comes once, ends
once, and loses rows in between, and so that line ends where a snapshot

- has other columns than the table,
- lists something that is not there any more, or that cannot be read,
- has a file that goes and comes again later, or a row that is deleted and comes back,
- is one too many, or lists more than the whole history may.

What is older is left out: the table begins with the oldest snapshot that is left. The current one must be as it says.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyroaring import BitMap64

from mergus.catalog.register_deletes import Deletes
from mergus.catalog.register_files import Adoption, DataFiles, Looked
from mergus.ducklake.told import LEAST_CLIENT_ID
from mergus.errors import BadRequest, Forbidden, Unsupported
from mergus.iceberg.metadata_parse import GivenSnapshot, GivenTable
from mergus.iceberg.schema import Schema
from mergus.materialise.given import GivenSnapshots

# Each is a snapshot of the lake, written under its lock.
MOST_SNAPSHOTS: Final = 1000

# Files that have rows left, with what is deleted from each.
State: TypeAlias = Mapping[str, BitMap64]

_NOTHING: Final = BitMap64()


@dataclass(frozen=True, slots=True)
class Moment:
    """What a snapshot changed; `deleted` is what it deleted, of files that came with it or were there and stay."""

    snapshot: GivenSnapshot
    came: Sequence[str]
    went: Sequence[str]
    deleted: Mapping[str, BitMap64]
    rows_before: int
    rows: int


@dataclass(frozen=True, slots=True)
class History:
    """The oldest first. `files` are all that any of them has; `why` says what the line ends for, if it is not whole."""

    moments: Sequence[Moment]
    files: Mapping[str, Looked]
    why: str | None = None


def known_as(snapshot: GivenSnapshot) -> int:
    """Its id here: ids as small as a DuckLake snapshot's own, which another lake has shown, become larger."""
    return snapshot.snapshot_id if snapshot.snapshot_id >= LEAST_CLIENT_ID else LEAST_CLIENT_ID + snapshot.snapshot_id


async def read(adoption: Adoption, current: GivenSnapshot) -> History:
    """Raises BadRequest or Unsupported if the current snapshot cannot be taken over."""
    walk = _Walk(adoption)
    state, why = await walk.state(current), None
    newer, ids, ever = current, {known_as(current)}, set(state)
    moments: list[Moment] = []
    for snapshot in adoption.table.ancestry[-2::-1]:
        try:
            _check(adoption.table, snapshot, ids)
            before = await walk.state(snapshot)
            check_line(before, state, ever)
        except (BadRequest, Forbidden, Unsupported) as e:
            why = e.message
            break
        moments.append(_moment(newer, before, state, walk.files.looked))
        newer, state = snapshot, before
        ids.add(known_as(snapshot))
        ever |= before.keys()
    moments.append(_moment(newer, {}, state, walk.files.looked))
    return History(moments[::-1], walk.files.looked, why)


class _Walk:
    def __init__(self, adoption: Adoption) -> None:
        table = adoption.table
        self.files = DataFiles(adoption)
        self._deletes = Deletes(adoption)
        self._given = GivenSnapshots(adoption.objects, adoption.check, table.written_specs, table.format_version)

    async def state(self, snapshot: GivenSnapshot) -> State:
        found = await self._given.live_files(snapshot)
        await self.files.look(found.data)
        deleted = await self._deletes.at(found, self.files.looked)
        return {
            path: deleted.get(path, _NOTHING)
            for path, one in found.data.items()
            if len(deleted.get(path, _NOTHING)) < one.file.record_count
        }


def _check(table: GivenTable, snapshot: GivenSnapshot, ids: Collection[int]) -> None:
    if len(ids) == MOST_SNAPSHOTS:
        raise Unsupported(f"More than {MOST_SNAPSHOTS} snapshots are not taken over")
    schema = table.schema_of(snapshot)
    if schema is None or columns(schema) != columns(table.schema):
        raise Unsupported(f"Snapshot {snapshot.snapshot_id} has other columns than the table now")
    if known_as(snapshot) in ids:
        raise Unsupported(f"Snapshot {snapshot.snapshot_id} would have the id of another")


def columns(schema: Schema) -> list[tuple[object, ...]]:
    """What rows look like, in order."""
    return [(f.id, f.name, f.type, f.required, f.initial_default) for f in schema.fields]


def check_line(before: State, after: State, ever: Collection[str]) -> None:
    """Whether rows of DuckLake can go from one to the other. `ever` are the files that any later one has."""
    for path, deleted in before.items():
        still = after.get(path)
        if still is None:
            if path in ever:
                raise Unsupported(f"Data file {path} goes and comes again")
        elif still is not deleted and not deleted.issubset(still):
            raise Unsupported(f"Rows that were deleted from {path} come back")


def _moment(snapshot: GivenSnapshot, before: State, after: State, files: Mapping[str, Looked]) -> Moment:
    deleted = {
        path: new
        for path, positions in after.items()
        if positions is not (had := before.get(path, _NOTHING)) and (new := positions - had)
    }
    return Moment(
        snapshot=snapshot,
        came=[path for path in after if path not in before],
        went=[path for path in before if path not in after],
        deleted=deleted,
        rows_before=_rows(before, files),
        rows=_rows(after, files),
    )


def _rows(state: State, files: Mapping[str, Looked]) -> int:
    return sum(files[path].given.file.record_count - len(deleted) for path, deleted in state.items())
