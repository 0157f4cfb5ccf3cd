"""What a snapshot that a client wrote means for the rows of a table: files that come and go, rows that are deleted.

Everything here is done before any lock is taken, against one state of the table, and holds as long as nothing happens
to the table; the commit makes sure of that. Data files are opened only where truth demands it: to resolve equality
deletes, to find out about row ids (H37), and where names stand for field ids (H38).

A client sees inlined rows as files of ours. Who deletes from one, or removes it, ends the rows (H45).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyroaring import BitMap64

from mergus.catalog.commit_deletes import Deletion, PlannedDeletes, write_deletions
from mergus.catalog.commit_files import FileTerms, PlannedFile, lacks_row_ids, looked_at, planned, with_row_ids
from mergus.catalog.delete_files import NONE_BEFORE, Drawer, Prepared
from mergus.ducklake import file_deletes, files, inlined, listed_paths, stats
from mergus.ducklake.connect import Pool, one_state
from mergus.ducklake.files import DataFile as LakeFile
from mergus.ducklake.told import LEAST_CLIENT_ID, Committed
from mergus.errors import BadRequest, CommitFailed, Unsupported
from mergus.iceberg.manifest import DELETED, EQUALITY_DELETES, Entry
from mergus.iceberg.manifest_list import DATA as DATA_MANIFEST
from mergus.iceberg.manifest_list import ManifestFile
from mergus.iceberg.partition_spec import UNPARTITIONED
from mergus.iceberg.schema import Schema
from mergus.iceberg.updates import AddedSnapshot
from mergus.materialise import folding, incoming, incoming_deletes, side_file
from mergus.materialise.at_once import each
from mergus.materialise.chain import View
from mergus.materialise.entries import shown_path
from mergus.materialise.equality_deletes import Candidate, EqualityDelete, resolve
from mergus.materialise.incoming import AddedDelete, Check, Incoming
from mergus.materialise.layout import is_ours, rows_range
from mergus.materialise.manifests import Manifests
from mergus.materialise.side_file import ROW_ID
from mergus.storage.location import Location
from mergus.storage.objects import Objects

READS_AT_ONCE: Final = 8
APPEND, REPLACE = "append", "replace"
REPLACES_PARTITIONS: Final = "replace-partitions"


@dataclass(frozen=True, slots=True)
class DataStep:
    """One snapshot. Of files that an earlier snapshot of the same commit adds, only paths are known."""

    told: Committed
    added: Sequence[PlannedFile] = ()
    ended: Sequence[int] = ()
    ended_paths: Sequence[str] = ()
    deletes: Sequence[PlannedDeletes] = ()
    deletes_on_new: Mapping[str, Prepared] = field(default_factory=dict[str, Prepared])
    ended_rows: Sequence[tuple[int, int]] = ()
    is_rewrite: bool = False
    # rows go of which the delete file that comes with a later snapshot of the same commit tells
    deletes_are_elsewhere: bool = False
    # columns that DuckLake has as a narrower type than Iceberg, and that may hold more than fits
    out_of_range: frozenset[int] = frozenset()
    # what the client wrote for the commit alone, in the table's own directory
    leftovers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    """The table that the snapshot is about. `view` is None for one that is not there yet; `at` is the state of the lake
    that everything is held against."""

    pool: Pool
    objects: Objects
    manifests: Manifests
    check: Check
    view: View | None
    at: int
    schema: Schema
    terms: FileTerms
    format_version: int
    # where the table has files that the server writes for DuckLake, and where below our root clients have theirs
    drawer: Drawer
    own: Sequence[Location]


@dataclass(slots=True)
class Progress:
    """Where main is, from one snapshot of a commit to the next."""

    main: int | None
    manifests: Sequence[ManifestFile]
    next_row_id: int
    # of the first snapshot of the commit, and of the one that comes next, if nobody else commits meanwhile
    first_snapshot: int
    snapshot_id: int
    # files that came with this commit and are there still, with the number of their rows
    new: dict[str, int] = field(default_factory=dict[str, int])
    # what went with the commit so far: files of the lake by their ids, and inlined rows
    ended: set[int] = field(default_factory=set[int])
    ended_rows: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    # rows of files that stay, by the paths of these
    deletions: dict[str, Deletion] = field(default_factory=dict[str, Deletion])
    # of those that copies of ours stand for, by the paths that the client knows them by
    copied: dict[str, str] = field(default_factory=dict[str, str])

    def standing_for(self, path: str) -> str:
        return self.copied.get(path, path)


async def plan(scene: Scene, progress: Progress, snapshot: AddedSnapshot) -> DataStep:
    # one without a parent says everything itself: what it does not list is gone
    if snapshot.parent_snapshot_id not in (None, progress.main):
        raise CommitFailed(
            f"Snapshot {snapshot.snapshot_id} was built on {snapshot.parent_snapshot_id}, and main is {progress.main}"
        )
    if snapshot.snapshot_id < LEAST_CLIENT_ID:
        raise BadRequest(f"Snapshot id {snapshot.snapshot_id} is too small: those below 2^31 are DuckLake's")
    is_root = snapshot.parent_snapshot_id is None
    found = await incoming.difference(
        scene.manifests,
        scene.objects,
        scene.check,
        () if is_root else progress.manifests,
        snapshot.manifest_list,
        snapshot.snapshot_id,
        scene.terms.specs,
    )
    operation = snapshot.summary["operation"]
    if operation == APPEND and found.added_deletes:
        raise BadRequest(f"Snapshot {snapshot.snapshot_id} says that it appends, and deletes rows")
    if operation == APPEND and found.removed:
        # a flush may have put files into a snapshot that its reader saw without them
        raise CommitFailed(f"Snapshot {snapshot.snapshot_id} appends to another state of the table: {found.removed[0]}")
    if snapshot.summary.get(REPLACES_PARTITIONS) == "true":
        _check_all_apart(scene, progress)
    if is_root:
        found.removed.extend(e.data_file.file_path for _, e in await _listed(scene, progress))
    known = set(progress.copied)
    step = await _step(scene, progress, snapshot, found)
    before = {file.manifest_path for file in progress.manifests}
    step = replace(
        step,
        leftovers=_leftovers(
            scene,
            snapshot.manifest_list,
            *(file.manifest_path for file in found.manifests if file.manifest_path not in before),
            *(deletes.file.file_path for deletes in found.added_deletes),
            *(path for path in progress.copied if path not in known),
        ),
    )
    progress.main, progress.manifests = snapshot.snapshot_id, found.manifests
    progress.snapshot_id += 1
    return step


def _leftovers(scene: Scene, *paths: str) -> list[str]:
    """Of these, what nobody needs when the commit is made: our chain lists the files anew, and DuckLake has delete
    files of its own. What has a name of ours is not the client's, whatever it says."""
    found = [path for path in dict.fromkeys(paths) if not is_ours(path)]
    return [path for path in found if any(place.contains(Location.parse(path)) for place in scene.own)]


def _check_all_apart(scene: Scene, progress: Progress) -> None:
    """A writer that replaces whole partitions leaves files alone that are listed without one, and rows of those
    partitions may be in them."""
    none = {i for i, spec in scene.terms.specs.items() if not spec.fields}
    for manifest in progress.manifests:
        live = manifest.added_files_count + manifest.existing_files_count
        if (
            manifest.content == DATA_MANIFEST
            and manifest.partition_spec_id in none
            and live
            and len(none) < len(scene.terms.specs)
        ):
            raise Unsupported(
                "Partitions cannot be replaced while the table has rows that are listed without one: rows that DuckDB "
                "keeps in Postgres, or in files whose partition is not certain. Flush them first "
                "(CALL ducklake_flush_inlined_data), or overwrite by a filter"
            )


async def _step(scene: Scene, progress: Progress, snapshot: AddedSnapshot, found: Incoming) -> DataStep:
    added = await _added(scene, progress, snapshot, found)
    removed = {progress.standing_for(path) for path in found.removed}
    deleted = {progress.standing_for(p): rows for p, rows in (await _deleted(scene, progress, found)).items()}
    # a delete file that goes is followed by one that says as much
    for path in _lifted(found) - removed:
        deleted.setdefault(path, BitMap64())
    touched = (removed | deleted.keys()) - progress.new.keys()
    rows = {path for path in touched if scene.view is not None and _is_of_rows(scene.view, path)}
    lake = await _lake_files(scene, touched - rows)
    if missing := sorted(removed - rows - lake.keys() - progress.new.keys()):
        raise CommitFailed(f"File is not in the table any more: {missing[0]}")
    new = progress.new | {p.file.path: p.file.record_count for p in added}
    whole = await _delete(scene, progress, snapshot, found, deleted, lake)
    ended_rows = [
        key for path in sorted(rows) for key in await _rows(scene, progress, found, path, deleted.get(path, BitMap64()))
    ]
    for path, positions in deleted.items():
        if path in new and path not in removed:
            check_positions(path, positions, new[path])
            deletion = progress.deletions.setdefault(path, Deletion(None, NONE_BEFORE, BitMap64()))
            deletion.note(snapshot.snapshot_id, progress.snapshot_id, positions)
    gone = [lake[path].id for path in sorted(removed & lake.keys()) if lake[path].id not in progress.ended]
    step = DataStep(
        told=Committed(snapshot.snapshot_id, snapshot.summary, is_root=snapshot.parent_snapshot_id is None),
        added=added,
        ended=[*gone, *whole],
        ended_paths=sorted(removed & progress.new.keys()),
        ended_rows=ended_rows,
        is_rewrite=snapshot.summary["operation"] == REPLACE,
        out_of_range=frozenset(i for a in found.added for i in stats.out_of_range(a.file, scene.terms.leaves)),
    )
    progress.new = {path: count for path, count in new.items() if path not in removed}
    progress.ended |= {*gone, *whole}
    progress.ended_rows |= set(ended_rows)
    return step


async def with_delete_files(scene: Scene, progress: Progress, steps: Sequence[DataStep]) -> list[DataStep]:
    """The steps of a commit, with what deletes the rows that they delete."""
    written = await write_deletions(scene.drawer, progress.deletions, progress.first_snapshot)
    return [
        replace(
            step,
            deletes=written.of_lake[step.told.snapshot_id],
            deletes_on_new=written.of_new[step.told.snapshot_id],
            deletes_are_elsewhere=step.told.snapshot_id in written.earlier,
        )
        for step in steps
    ]


def _lifted(found: Incoming) -> set[str]:
    """The data files whose delete files go. Ours are about one each."""
    paths = {e.data_file.referenced_data_file for e in found.removed_deletes}
    if None in paths:
        raise Unsupported("A delete file that the same commit adds cannot be removed by it")
    return {path for path in paths if path is not None}


def check_positions(path: str, positions: BitMap64, record_count: int) -> None:
    """Before anybody lists them: a few bytes may stand for any number of positions."""
    if positions and positions.max() >= record_count:
        raise BadRequest(f"Position {positions.max()} is deleted from {path}, which has {record_count} rows")


def _is_of_rows(view: View, path: str) -> bool:
    """Paths of data files that delete files name are whatever a client wrote there."""
    try:
        return rows_range(path) is not None and view.layout.directory.contains(Location.parse(path))
    except ValueError:
        return False


async def _deleted(scene: Scene, progress: Progress, found: Incoming) -> dict[str, BitMap64]:
    """By the path of the data file. A deletion vector repeats what was deleted before."""
    positions = await incoming_deletes.positions(scene.objects, scene.check, found.added_deletes)
    by_value = [d for d in found.added_deletes if d.file.content == EQUALITY_DELETES]
    if by_value:
        for path, resolved in (await _resolved(scene, progress, by_value)).items():
            positions[path] = positions.get(path, BitMap64()) | resolved
    return positions


async def _resolved(scene: Scene, progress: Progress, by_value: Sequence[AddedDelete]) -> dict[str, BitMap64]:
    """An equality delete is about files of earlier snapshots alone."""
    candidates = [Candidate.of(e.data_file, spec_id, 0) for spec_id, e in await _listed(scene, progress)]
    fields = {f.id: f for f in scene.schema.fields}
    apart = _apart(scene, by_value, candidates)
    wanted = [EqualityDelete.of(d.file, scene.check(d.file.file_path), d.spec_id, 1, fields) for d in by_value]
    found = await resolve(scene.objects, wanted, candidates)
    if apart:
        everywhere = [replace(d, spec_id=UNPARTITIONED.spec_id, partition=()) for d in wanted if d.partition]
        for path, positions in (await resolve(scene.objects, everywhere, apart)).items():
            found[path] = found.get(path, BitMap64()) | positions
    return found


def _apart(scene: Scene, by_value: Sequence[AddedDelete], candidates: Sequence[Candidate]) -> list[Candidate]:
    """Files that we list without their partition, since DuckDB keeps their rows in Postgres or does not tell it: rows
    of the deletes' partitions may be in them, and those that have the deletes' values are, if these say the partition.
    """
    partitioned = [d for d in by_value if d.file.partition]
    apart = [c for c in candidates if not c.partition]
    if not partitioned or not apart:
        return []
    for delete in partitioned:
        sources = {f.source_id for f in scene.terms.specs[delete.spec_id].fields}
        if not sources <= set(delete.file.equality_ids or ()):
            raise Unsupported(
                f"Equality deletes {delete.file.file_path} are of one partition and do not say by which values: rows "
                "of it may be in files that are listed without a partition"
            )
    return apart


async def _listed(scene: Scene, progress: Progress) -> list[tuple[int, Entry]]:
    """All data files that main has now, with their specs."""
    manifests = [file for file in progress.manifests if file.content == DATA_MANIFEST]
    listed = await each(scene.manifests.read, manifests, READS_AT_ONCE)
    pairs = zip(manifests, listed, strict=True)
    return [(file.partition_spec_id, e) for file, entries in pairs for e in entries if e.status != DELETED]


async def _lake_files(scene: Scene, paths: set[str]) -> dict[str, LakeFile]:
    """By the paths that clients know them by."""
    view = scene.view
    if view is None or not paths:
        return {}
    async with one_state(scene.pool) as conn:
        found = await files.at_paths(conn, view.metadata_schema, view.table.id, view.table.paths, scene.at, paths)
    return {shown_path(file): file for file in found}


async def _added(scene: Scene, progress: Progress, snapshot: AddedSnapshot, found: Incoming) -> list[PlannedFile]:
    """Only a writer that takes rows out of other files puts their ids into new ones. If it then found none to take, its
    snapshot says that it appends, but its entries count the ids, which are all NULL (H37)."""
    counts_ids = any(ROW_ID in (added.file.value_counts or ()) for added in found.added)
    keeps_ids = scene.format_version >= 3 and (counts_ids or snapshot.summary["operation"] != APPEND)
    if not keeps_ids and not scene.terms.name_mapping:
        progress.next_row_id += sum(added.file.record_count for added in found.added)
        return [planned(scene.terms, added, None) for added in found.added]
    places = {added.file.file_path: scene.check(added.file.file_path) for added in found.added}
    async with one_state(scene.pool) as conn:
        # the commit asks once more; this is before anything of them is read
        table_id = None if scene.view is None else scene.view.table.id
        if theirs := await listed_paths.of_another(conn, table_id, places.keys()):
            raise BadRequest(f"File is one of another table: {theirs}")
    columns = await looked_at(scene.objects, found.added, places)
    files_planned: list[PlannedFile] = []
    for added, parts in zip(found.added, columns, strict=True):
        one = planned(scene.terms, added, parts)
        if lacks_row_ids(parts):
            # the first free one is what it is for as long as the plan holds
            one = await with_row_ids(scene.drawer, places[added.file.file_path], progress.next_row_id, one)
            one = replace(one, file=replace(one.file, takes=one.file.record_count))
            progress.copied[added.file.file_path] = one.file.path
        progress.next_row_id += one.file.taken
        files_planned.append(one)
    return files_planned


async def _delete(
    scene: Scene,
    progress: Progress,
    snapshot: AddedSnapshot,
    found: Incoming,
    deleted: Mapping[str, BitMap64],
    lake: Mapping[str, LakeFile],
) -> list[int]:
    """Notes what is deleted from files of the lake that stay. The ids of those of which nothing is left, which do
    not."""
    view, removed, lifted = scene.view, set(found.removed), _lifted(found)
    touched = [(path, file) for path, file in sorted(lake.items()) if path in deleted and path not in removed]
    touched = [(path, file) for path, file in touched if file.id not in progress.ended]
    if view is None or not touched:
        return []
    async with one_state(scene.pool) as conn:
        ids = [file.id for path, file in touched if path not in progress.deletions]
        inlined_ones = await file_deletes.dated_inlined_deletes(conn, view.metadata_schema, view.table.id, ids)

    async def one(item: tuple[str, LakeFile]) -> int | None:
        path, file = item
        asked = deleted[path]
        check_positions(path, asked, file.record_count)
        if (deletion := progress.deletions.get(path)) is None:
            before = await folding.dated(scene.objects, file, inlined_ones.get(file.id, []))
            deletion = progress.deletions[path] = Deletion(file, before, BitMap64(before.positions))
        if path in lifted and deletion.known - asked:
            raise Unsupported(f"Rows that were deleted from {path} cannot come back by removing a delete file")
        new = asked - deletion.known
        if new and len(new) + len(deletion.known) == file.record_count:
            return file.id
        deletion.note(snapshot.snapshot_id, progress.snapshot_id, new)
        return None

    whole = await each(one, touched, READS_AT_ONCE)
    return sorted(file_id for file_id in whole if file_id is not None)


async def _rows(
    scene: Scene, progress: Progress, found: Incoming, path: str, positions: BitMap64
) -> list[tuple[int, int]]:
    """Inlined rows of a file of ours that are there still: those at these positions, or all if the file goes."""
    view, span = scene.view, rows_range(path)
    if view is None or span is None:
        return []
    content = await scene.manifests.whole(path)
    keys = await asyncio.to_thread(side_file.read_keys, content)
    check_positions(path, positions, len(keys))
    async with one_state(scene.pool) as conn:
        after, upto = span
        visible = await inlined.keys(conn, view.metadata_schema, view.inlined, after=after, upto=upto, at=scene.at)
    visible -= progress.ended_rows
    if path in found.removed:
        return [key for key in keys if key in visible]
    if path in _lifted(found) and any(keys[i] not in visible and i not in positions for i in range(len(keys))):
        raise Unsupported(f"Rows that were deleted from {path} cannot come back by removing a delete file")
    return [keys[i] for i in positions if keys[i] in visible]
