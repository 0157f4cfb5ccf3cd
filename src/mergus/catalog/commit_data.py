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
from uuid import uuid4

from pyroaring import BitMap64

from mergus.catalog.commit_files import FileTerms, PlannedFile, lacks_row_ids, looked_at, planned
from mergus.ducklake import file_deletes, files, inlined, stats
from mergus.ducklake.connect import Pool, one_state
from mergus.ducklake.files import DataFile as LakeFile
from mergus.ducklake.told import LEAST_CLIENT_ID, Committed
from mergus.errors import BadRequest, CommitFailed, Unsupported
from mergus.iceberg.manifest import DELETED, EQUALITY_DELETES, Entry
from mergus.iceberg.manifest_list import DATA as DATA_MANIFEST
from mergus.iceberg.manifest_list import ManifestFile
from mergus.iceberg.schema import Schema
from mergus.iceberg.updates import AddedSnapshot
from mergus.materialise import folding, incoming, incoming_deletes, side_file
from mergus.materialise.at_once import each
from mergus.materialise.chain import View
from mergus.materialise.deletes import DatedPositions
from mergus.materialise.entries import shown_path
from mergus.materialise.equality_deletes import Candidate, EqualityDelete, resolve
from mergus.materialise.incoming import AddedDelete, Check, Incoming
from mergus.materialise.layout import rows_range
from mergus.materialise.manifests import Manifests
from mergus.materialise.row_ids import write_filled
from mergus.storage.location import Location
from mergus.storage.objects import Objects

READS_AT_ONCE: Final = 8
APPEND, REPLACE = "append", "replace"


@dataclass(frozen=True, slots=True)
class PlannedDeletes:
    """Rows that go from a file which is there. `before` are those that went earlier, with their snapshots."""

    file: LakeFile
    before: DatedPositions
    new: BitMap64

    @property
    def replaces(self) -> list[int]:
        """The delete files whose rows are in `before`."""
        return [delete_file.id for delete_file in self.file.delete_files]


@dataclass(frozen=True, slots=True)
class DataStep:
    """One snapshot. Of files that an earlier snapshot of the same commit adds, only paths are known."""

    told: Committed
    added: Sequence[PlannedFile] = ()
    ended: Sequence[int] = ()
    ended_paths: Sequence[str] = ()
    deletes: Sequence[PlannedDeletes] = ()
    deletes_on_new: Mapping[str, BitMap64] = field(default_factory=dict[str, BitMap64])
    ended_rows: Sequence[tuple[int, int]] = ()
    is_rewrite: bool = False
    # columns that DuckLake has as a narrower type than Iceberg, and that may hold more than fits
    out_of_range: frozenset[int] = frozenset()


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
    # where the table has files of ours, and what was written there for this commit
    directory: Location
    litter: list[Location]


@dataclass(slots=True)
class Progress:
    """Where main is, from one snapshot of a commit to the next."""

    main: int | None
    manifests: Sequence[ManifestFile]
    next_row_id: int
    # paths of files that came with this commit and are there still
    new: set[str] = field(default_factory=set[str])
    # of those that rows were deleted from
    deleted: set[str] = field(default_factory=set[str])


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
    if operation == APPEND and (found.removed or found.added_deletes):
        raise BadRequest(f"Snapshot {snapshot.snapshot_id} says that it appends, and removes files or deletes rows")
    if is_root:
        found.removed.extend(e.data_file.file_path for _, e in await _listed(scene, progress))
    step = await _step(scene, progress, snapshot, found)
    progress.main, progress.manifests = snapshot.snapshot_id, found.manifests
    return step


async def _step(scene: Scene, progress: Progress, snapshot: AddedSnapshot, found: Incoming) -> DataStep:
    removed = set(found.removed)
    deleted = await _deleted(scene, progress, snapshot, found)
    if twice := sorted(deleted.keys() & progress.deleted):
        raise Unsupported(f"Rows of {twice[0]} are deleted by several snapshots of one commit; commit them one by one")
    touched = (removed | deleted.keys()) - progress.new
    rows = {path for path in touched if scene.view is not None and _is_of_rows(scene.view, path)}
    lake = await _lake_files(scene, touched - rows)
    if missing := sorted(removed - rows - lake.keys() - progress.new):
        raise CommitFailed(f"File is not in the table any more: {missing[0]}")
    added = await _added(scene, progress, snapshot, found)
    new = {p.file.path for p in added} | progress.new
    deletes, whole = await _deletes(
        scene, found, {p: d for p, d in deleted.items() if p in lake and p not in removed}, lake
    )
    ended_rows = [
        key for path in sorted(rows) for key in await _rows(scene, path, None if path in removed else deleted[path])
    ]
    ended_paths = sorted(removed & progress.new)
    progress.new = new - removed
    progress.deleted |= deleted.keys()
    return DataStep(
        told=Committed(snapshot.snapshot_id, snapshot.summary, is_root=snapshot.parent_snapshot_id is None),
        added=added,
        ended=[*(lake[path].id for path in sorted(removed & lake.keys())), *whole],
        ended_paths=ended_paths,
        deletes=deletes,
        deletes_on_new={path: positions for path, positions in deleted.items() if path in new},
        ended_rows=ended_rows,
        is_rewrite=snapshot.summary["operation"] == REPLACE,
        out_of_range=frozenset(i for a in found.added for i in stats.out_of_range(a.file, scene.terms.leaves)),
    )


def _is_of_rows(view: View, path: str) -> bool:
    return rows_range(path) is not None and path.startswith(str(view.layout.directory) + "/")


async def _deleted(scene: Scene, progress: Progress, snapshot: AddedSnapshot, found: Incoming) -> dict[str, BitMap64]:
    """By the path of the data file. A deletion vector repeats what was deleted before."""
    positions = await incoming_deletes.positions(scene.objects, scene.check, found.added_deletes)
    by_value = [d for d in found.added_deletes if d.file.content == EQUALITY_DELETES]
    if by_value:
        for path, resolved in (await _resolved(scene, progress, by_value)).items():
            positions[path] = positions.get(path, BitMap64()) | resolved
    return positions


async def _resolved(scene: Scene, progress: Progress, by_value: Sequence[AddedDelete]) -> dict[str, BitMap64]:
    """An equality delete is about files of earlier snapshots alone."""
    candidates = [
        Candidate(
            path=e.data_file.file_path,
            spec_id=spec_id,
            partition=e.data_file.partition,
            sequence_number=0,
            lower_bounds=e.data_file.lower_bounds,
            upper_bounds=e.data_file.upper_bounds,
        )
        for spec_id, e in await _listed(scene, progress)
    ]
    fields = {f.id: f for f in scene.schema.fields}
    wanted = [
        EqualityDelete(
            path=d.file.file_path,
            location=scene.check(d.file.file_path),
            record_count=d.file.record_count,
            equality_ids=tuple(d.file.equality_ids or ()),
            spec_id=d.spec_id,
            partition=d.file.partition,
            sequence_number=1,
            fields=fields,
        )
        for d in by_value
    ]
    return await resolve(scene.objects, wanted, candidates)


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
    """Only a snapshot that takes rows out of other files may have put their ids into new ones."""
    keeps_ids = scene.format_version >= 3 and snapshot.summary["operation"] != APPEND
    if not keeps_ids and not scene.terms.name_mapping:
        progress.next_row_id += sum(added.file.record_count for added in found.added)
        return [planned(scene.terms, added, None) for added in found.added]
    places = {added.file.file_path: scene.check(added.file.file_path) for added in found.added}
    columns = await looked_at(scene.objects, found.added, places)
    files_planned: list[PlannedFile] = []
    for added, parts in zip(found.added, columns, strict=True):
        one = planned(scene.terms, added, parts)
        if lacks_row_ids(parts):
            one = await _with_row_ids(scene, places[added.file.file_path], progress.next_row_id, one)
        progress.next_row_id += one.file.taken
        files_planned.append(one)
    return files_planned


async def _with_row_ids(scene: Scene, place: Location, first: int, planned_file: PlannedFile) -> PlannedFile:
    """A copy in which every row has an id. The first free one is what it is for as long as the plan holds."""
    target = scene.directory / f"data/row-ids-{uuid4()}.parquet"
    scene.litter.append(target)
    size = await write_filled(scene.objects, place, first, target)
    file = planned_file.file
    return replace(planned_file, file=replace(file, path=str(target), size_bytes=size, takes=file.record_count))


async def _deletes(
    scene: Scene, found: Incoming, deleted: Mapping[str, BitMap64], lake: Mapping[str, LakeFile]
) -> tuple[list[PlannedDeletes], list[int]]:
    """What is deleted from files that stay; and the ids of those of which nothing is left, which do not."""
    view = scene.view
    if view is None:
        return [], []
    staying = lake.keys() - set(found.removed)
    lifted = {path for e in found.removed_deletes if (path := e.data_file.referenced_data_file) in staying and path}
    touched = [lake[path] for path in sorted(deleted.keys() | lifted)]
    async with one_state(scene.pool) as conn:
        ids = [file.id for file in touched]
        dated_inlined = await file_deletes.dated_inlined_deletes(conn, view.metadata_schema, view.table.id, ids)
    before = await each(lambda f: folding.dated(scene.objects, f, dated_inlined.get(f.id, [])), touched, READS_AT_ONCE)
    planned_deletes: list[PlannedDeletes] = []
    whole: list[int] = []
    for path, file, dated in zip(sorted(deleted.keys() | lifted), touched, before, strict=True):
        known, asked = BitMap64(dated.positions), deleted.get(path, BitMap64())
        if asked and asked.max() >= file.record_count:
            raise BadRequest(f"Position {asked.max()} is deleted from {path}, which has {file.record_count} rows")
        if path in lifted and known - asked:
            raise Unsupported(f"Rows that were deleted from {path} cannot come back by removing a delete file")
        if not (new := asked - known):
            continue
        if len(new) + len(known) == file.record_count:
            whole.append(file.id)
        else:
            planned_deletes.append(PlannedDeletes(file, dated, new))
    return planned_deletes, whole


async def _rows(scene: Scene, path: str, positions: BitMap64 | None) -> list[tuple[int, int]]:
    """Inlined rows of a file of ours that are there still: all, or those at these positions."""
    view, span = scene.view, rows_range(path)
    if view is None or span is None:
        return []
    content = await scene.manifests.whole(path)
    keys = await asyncio.to_thread(side_file.read_keys, content)
    if positions and positions.max() >= len(keys):
        raise BadRequest(f"Position {positions.max()} is deleted from {path}, which has {len(keys)} rows")
    chosen = keys if positions is None else [keys[i] for i in positions]
    async with one_state(scene.pool) as conn:
        after, upto = span
        visible = await inlined.keys(conn, view.metadata_schema, view.inlined, after=after, upto=upto, at=scene.at)
    return [key for key in chosen if key in visible]
