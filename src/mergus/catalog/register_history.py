"""The history of a table that is registered: what each snapshot changed, for as far back as DuckLake can tell it.

It is gone through backwards, from the current snapshot to its parents. What a snapshot changed is a difference of sets,
files with rows in them and what is deleted from each. DuckLake has one line of history in which a file comes once, ends
once, and loses rows in between, and so that line ends where a snapshot

- has other columns than the table, but for those that came after its own and are NULL in older rows,
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
from mergus.iceberg.schema import Field
from mergus.materialise.given import GivenFiles, GivenSnapshots

# Each is a snapshot of the lake, written under its lock.
MOST_SNAPSHOTS: Final = 1000
# That only older snapshots list, and that have to be looked at before the client gets its answer.
MOST_OLDER_FILES: Final = 10_000

# Files that have rows left, with what is deleted from each.
State: TypeAlias = Mapping[str, BitMap64]

_NOTHING: Final = BitMap64()


@dataclass(frozen=True, slots=True)
class Moment:
    """What a snapshot changed; `deleted` is what it deleted, of files that came with it or were there and stay."""

    snapshot: GivenSnapshot
    # of the table's columns, it has so many, from the first on
    width: int
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
    newer, width, ids, ever = current, _current_width(adoption, current), {known_as(current)}, set(state)
    moments: list[Moment] = []
    for snapshot in adoption.table.ancestry[-2::-1]:
        try:
            _check(snapshot, ids)
            fewer = _width(adoption, snapshot, width)
            before = await walk.state(snapshot)
            check_line(before, state, ever)
        except (BadRequest, Forbidden, Unsupported) as e:
            why = e.message
            break
        moments.append(_moment(newer, width, before, state, walk.files.looked))
        newer, width, state = snapshot, fewer, before
        ids.add(known_as(snapshot))
        ever |= before.keys()
    moments.append(_moment(newer, width, {}, state, walk.files.looked))
    return History(moments[::-1], walk.files.looked, why)


class _Walk:
    def __init__(self, adoption: Adoption) -> None:
        table = adoption.table
        self.files = DataFiles(adoption)
        self._deletes = Deletes(adoption)
        self._given = GivenSnapshots(adoption.objects, adoption.check, table.written_specs, table.format_version)
        # deletes are counted as often as they are read
        self._listed: GivenFiles | None = None
        self._left = MOST_OLDER_FILES

    async def state(self, snapshot: GivenSnapshot) -> State:
        found = await self._given.live_files(snapshot)
        if self._listed is not None:
            self._left -= len(found.data.keys() - self.files.looked.keys())
            self._left -= len(found.deletes.keys() - self._listed.deletes.keys())
        self._listed = found
        if self._left < 0:
            raise Unsupported(f"More than {MOST_OLDER_FILES} files of older snapshots are not looked at")
        await self.files.look(found.data)
        deleted = await self._deletes.at(found, self.files.looked)
        return {
            path: deleted.get(path, _NOTHING)
            for path, one in found.data.items()
            if len(deleted.get(path, _NOTHING)) < one.file.record_count
        }


def _check(snapshot: GivenSnapshot, ids: Collection[int]) -> None:
    if len(ids) == MOST_SNAPSHOTS:
        raise Unsupported(f"More than {MOST_SNAPSHOTS} snapshots are not taken over")
    if known_as(snapshot) in ids:
        raise Unsupported(f"Snapshot {snapshot.snapshot_id} would have the id of another")


def _current_width(adoption: Adoption, current: GivenSnapshot) -> int:
    """It is shown with the columns of now if those that it was made with cannot be told."""
    every = len(adoption.table.schema.fields)
    try:
        return _width(adoption, current, every)
    except Unsupported:
        return every


def _width(adoption: Adoption, snapshot: GivenSnapshot, most: int) -> int:
    """How many columns it has: the first ones of the table's, and the others up to `most` can come later."""
    table = adoption.table
    schema, now = table.schema_of(snapshot), table.schema.fields
    width = 0 if schema is None else len(schema.fields)
    is_same = schema is not None and _columns(schema.fields) == _columns(now[:width])
    is_growing = width == most or (0 < width < most and adoption.grows and _may_come(table, now[width:most]))
    if not is_same or not is_growing:
        raise Unsupported(f"Snapshot {snapshot.snapshot_id} has other columns than the table now")
    return width


def _columns(fields: Sequence[Field]) -> list[tuple[object, ...]]:
    """What rows look like, in order."""
    return [(f.id, f.name, f.type, f.required, f.initial_default) for f in fields]


def _may_come(table: GivenTable, fields: Sequence[Field]) -> bool:
    """Whether rows from before have just NULL there, and nothing that the table begins with is about them."""
    within = [f for field in fields for f in field.walk()]
    sources = {f.source_id for spec in table.specs.values() for f in spec.fields}
    sources |= {f.source_id for order in table.orders.values() for f in order.fields}
    is_null = not any(f.required for f in fields) and all(f.initial_default is None for f in within)
    return is_null and sources.isdisjoint(f.id for f in within)


def check_line(before: State, after: State, ever: Collection[str]) -> None:
    """Whether rows of DuckLake can go from one to the other. `ever` are the files that any later one has."""
    for path, deleted in before.items():
        still = after.get(path)
        if still is None:
            if path in ever:
                raise Unsupported(f"Data file {path} goes and comes again")
        elif still is not deleted and not deleted.issubset(still):
            raise Unsupported(f"Rows that were deleted from {path} come back")


def _moment(snapshot: GivenSnapshot, width: int, before: State, after: State, files: Mapping[str, Looked]) -> Moment:
    deleted = {
        path: new
        for path, positions in after.items()
        if positions is not (had := before.get(path, _NOTHING)) and (new := positions - had)
    }
    return Moment(
        snapshot=snapshot,
        width=width,
        came=[path for path in after if path not in before],
        went=[path for path in before if path not in after],
        deleted=deleted,
        rows_before=_rows(before, files),
        rows=_rows(after, files),
    )


def _rows(state: State, files: Mapping[str, Looked]) -> int:
    return sum(files[path].given.file.record_count - len(deleted) for path, deleted in state.items())
