"""One snapshot of a table as Iceberg has it: from the manifests of another snapshot and what changed since, to a
manifest list.

    reading = await read(conn, view, target, base)      one state of the lake, no object written
    chain = await write(workshop, outbox, view, target, base, reading)

The base is any older snapshot of the table, the very snapshot as it was made before DuckLake rewrote history, or
nothing. What comes out shows the same rows in each case; the nearer the base, the less there is to do. What must hold:

- A base was made when the lake was at `as_of`. Since then a merge may have taken the rows of data files away, for which
  `Start.vanished` says where to look, and a flush may have turned inlined rows into files: `flushed` then says that
  none of our files of rows is to be trusted.
- Entries carry the sequence number of the snapshot that their rows begin at, and the deletes on them that of the
  snapshot that is made, which is never older: every delete applies.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from mergus.annex.chains import Chain
from mergus.ducklake import files, inlined
from mergus.ducklake.changes import ALTERED, INSERTS, LAYOUT
from mergus.ducklake.columns import Columns
from mergus.ducklake.connect import Conn
from mergus.ducklake.files import DataFile as LakeFile
from mergus.ducklake.inlined import Batch, InlinedTable
from mergus.ducklake.places import Places
from mergus.ducklake.snapshots import Snapshot
from mergus.ducklake.tables import Table
from mergus.ducklake.told import Committed
from mergus.iceberg.manifest import ADDED, DATA, DELETED, EXISTING, DataFile, Entry
from mergus.iceberg.manifest_list import ManifestFile
from mergus.iceberg.metadata import Changes, Totals, summary
from mergus.iceberg.schema import Schema
from mergus.iceberg.sort_order import UNSORTED
from mergus.materialise import deletes, entries, side_file
from mergus.materialise.at_once import each
from mergus.materialise.deletes import DeletedRows, Rendered, Target
from mergus.materialise.footers import Footers, Mapped
from mergus.materialise.layout import Layout, ManifestName
from mergus.materialise.manifests import Difference, Header, Manifests, Merging, apply, merge
from mergus.materialise.outbox import Outbox
from mergus.materialise.rows_files import RowsFile, merged_from, positions_gone
from mergus.metrics import timed
from mergus.storage.objects import Objects

_READS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class View:
    """A table, as far as it is the same at every snapshot."""

    metadata_schema: str
    table: Table
    format_version: int
    layout: Layout
    columns: Columns
    # the schema of now, which partition specs are about at every snapshot
    schema: Schema
    places: Places
    merging: Merging
    inlined: Sequence[InlinedTable]
    # the newest snapshot of the lake when all this was read
    as_of: int
    horizon: int
    # of files that were added by the names of their columns
    mapped: Mapped
    # what Iceberg's clients call the snapshots that they made
    iceberg_ids: Mapping[int, int]

    def iceberg_id(self, snapshot_id: int) -> int:
        return self.iceberg_ids.get(snapshot_id, snapshot_id)


@dataclass(frozen=True, slots=True)
class Goal:
    """The snapshot that is to be shown. `previous` is the table's one before in the lake, `parent_id` the one that it
    was built on to Iceberg: they differ after a rollback."""

    snapshot: Snapshot
    previous: Snapshot | None
    parent_id: int | None
    schema: Schema
    schema_id: int
    # of the table's, those that the snapshot's schema permits
    places: Places

    @property
    def id(self) -> int:
        return self.snapshot.id


@dataclass(frozen=True, slots=True)
class Start:
    """What there is to begin with. `vanished` are spans of snapshots in which data files may have begun that a merge
    has taken away since."""

    chain: Chain | None = None
    manifests: Sequence[ManifestFile] = ()
    rows_files: Sequence[RowsFile] = ()
    in_the_past: bool = False
    flushed: bool = False
    vanished: Sequence[tuple[int, int]] = ()

    @property
    def base(self) -> files.Base:
        if self.chain is None:
            return files.NOTHING
        return files.Base(self.chain.snapshot_id, self.chain.file_horizon, self.in_the_past)

    def is_before(self, goal: Goal) -> bool:
        """Whether the difference is the snapshot's own."""
        before = self.chain.snapshot_id if self.chain else None
        return before == (goal.previous.id if goal.previous else None)


@dataclass(frozen=True, slots=True)
class Reading:
    changes: files.Changes
    # paths of all files that begin within each of the spans in which some vanished
    known: Sequence[set[str]]
    # inlined rows that came after `rows_after` and are to be written; files of ours that begin later go
    rows_after: int
    batches: Sequence[Batch]
    # files of ours from which rows have gone, with the rows that are left
    visible: Mapping[str, set[tuple[int, int]]]


@dataclass(slots=True)
class Workshop:
    """What is needed to make a chain, and is the same for all tables."""

    objects: Objects
    manifests: Manifests
    deleted: DeletedRows
    footers: Footers


async def start(
    shop: Workshop,
    chain: Chain,
    goal: Goal,
    *,
    in_the_past: bool,
    flushed: bool,
    vanished: Sequence[tuple[int, int]],
) -> Start:
    """Raises Damaged where an object is missing."""
    found = await shop.manifests.read_list(chain.manifest_list)
    rows: list[RowsFile] = []
    for file in found:
        name = ManifestName.of(file.manifest_path)
        if name is not None and (name.kind, name.content) == ("rows", "data"):
            rows += [RowsFile.of(e) for e in await shop.manifests.read(file) if e.status != DELETED]
    # files of rows have the columns of the schema that they were written under
    rewrite = flushed or chain.counts.get("rows-schema-id") != goal.schema_id
    return Start(chain, found, sorted(rows, key=lambda f: f.after), in_the_past, rewrite, vanished)


async def read(conn: Conn, view: View, goal: Goal, base: Start) -> Reading:
    """Call inside a REPEATABLE READ transaction."""
    table_id, schema, paths = view.table.id, view.metadata_schema, view.table.paths
    changed = await files.changes(conn, schema, table_id, paths, base.base, goal.id)
    known = [await files.paths_begun(conn, table_id, paths, first, last) for first, last in base.vanished]
    if base.chain is None or base.flushed:
        batches = await _rows(conn, view, goal, -1)
        return Reading(changed, known, -1, batches, {})
    after = base.base.snapshot_id
    batches = await _rows(conn, view, goal, after)
    new = sum(len(batch.row_ids) for batch in batches)
    if new and (earlier := merged_from(base.rows_files, after, new)) < after:
        after = earlier
        batches = await _rows(conn, view, goal, after)
    ended = await inlined.ended(conn, schema, view.inlined, after=base.base.snapshot_id, upto=goal.id)
    touched = [f for f in base.rows_files if f.after < after and any(f.has(begin) for _, begin in ended)]
    visible = {
        f.path: await inlined.keys(conn, schema, view.inlined, after=f.after, upto=f.upto, at=goal.id) for f in touched
    }
    return Reading(changed, known, after, batches, visible)


async def _rows(conn: Conn, view: View, goal: Goal, after: int) -> list[Batch]:
    return await inlined.read(
        conn, view.metadata_schema, view.columns, view.inlined, after=after, upto=goal.id, at=goal.id
    )


async def write(shop: Workshop, outbox: Outbox, view: View, goal: Goal, base: Start, reading: Reading) -> Chain:
    """All of it goes by way of the outbox, and has arrived then."""
    header = Header(
        goal.snapshot.iceberg_id,
        goal.id,
        view.format_version,
        goal.schema,
        goal.schema_id,
        goal.places,
        view.schema,
    )
    store = shop.manifests.through(outbox)
    async with timed("deletes"):
        lake_files = await _lake_files(shop, outbox, view, goal, base, reading)
    async with timed("rows"):
        rows_files = await _rows_files(shop, outbox, view, goal, base, reading)
    found = list(base.manifests)
    tally = Tally()
    async with timed("manifests"):
        for difference in (*lake_files, *rows_files):
            applied = await apply(store, view.layout, header, found, difference)
            found = applied.manifests
            tally.count([entry for _, _, entry in difference.added], applied.removed, own=base.is_before(goal))
        found = await merge(store, view.layout, header, found, view.merging)
        found.sort(key=lambda file: file.content)
    async with timed("list"):
        listed = await store.write_list(view.layout, header, goal.parent_id, tally.first_row_id or 0, found)
    async with timed("store"):
        await outbox.arrived()
    return Chain(
        snapshot_id=goal.id,
        snapshot_time=goal.snapshot.time,
        as_of=view.as_of,
        file_horizon=view.horizon,
        layout=goal.places.key,
        manifest_list=listed,
        counts={**_counts(goal, base, tally), "specs": sorted({file.partition_spec_id for file in found})},
    )


@dataclass(slots=True)
class Tally:
    """`all` is the difference to the base, `own` the part of it that the snapshot itself made."""

    all: Changes = field(default_factory=Changes)
    own: Changes = field(default_factory=Changes)
    first_row_id: int | None = None
    added_rows: int = 0

    def count(self, added: Sequence[Entry], removed: Sequence[Entry], *, own: bool) -> None:
        new = [e.data_file for e in added if e.status == ADDED]
        gone = [e.data_file for e in removed]
        self.all = self.all.plus([e.data_file for e in added], gone)
        self.own = self.own.plus(new, gone if own else ())
        for file in new:
            if file.content == DATA and file.first_row_id is not None:
                first = file.first_row_id if self.first_row_id is None else self.first_row_id
                self.first_row_id = min(first, file.first_row_id)
                self.added_rows += file.record_count


def _counts(goal: Goal, base: Start, tally: Tally) -> dict[str, Any]:
    before = base.chain.counts if base.chain else None
    totals = tally.all.after(Totals(**before["totals"]) if before else Totals())
    counts = {"totals": asdict(totals), "rows-schema-id": goal.schema_id}
    if before and base.chain and base.chain.snapshot_id == goal.id:
        # made again: the snapshot did what it did, but its rows share files with those of later ones now
        operation = before["summary"]["operation"]
        told = {**before["summary"], **totals.json(), "operation": "overwrite" if operation == "append" else operation}
        return {**before, **counts, "summary": told}
    operation = _operation(goal.snapshot, tally.own)
    lineage = {"first-row-id": tally.first_row_id or 0, "added-rows": tally.added_rows}
    return {**counts, **lineage, "summary": summary(tally.own, totals, operation)}


def _operation(snapshot: Snapshot, own: Changes) -> str | None:
    """What the client said that it was who made it, or DuckLake says, where files do not tell."""
    words = snapshot.words
    if isinstance(snapshot.told, Committed):
        return snapshot.told.summary.get("operation")
    # a flush may say that it deleted, too
    if words == frozenset({ALTERED}) or (words & LAYOUT and words <= LAYOUT | {"deleted_from_table"}):
        return "replace"
    return "delete" if own.operation == "append" and words and not words & INSERTS else None


async def _lake_files(
    shop: Workshop, outbox: Outbox, view: View, goal: Goal, base: Start, reading: Reading
) -> tuple[Difference, Difference]:
    """What becomes of DuckLake's data files, and of the deletes on them."""
    leaves = entries.leaves(view.columns.shown_by(goal.schema), goal.id)
    gone = {path: f.id for f in reading.changes.removed for path in entries.spellings(f.path)}
    data = Difference("files", "data", [], gone)
    for span, known in zip(base.vanished, reading.known, strict=True):
        named = {name for path in known for name in entries.spellings(path)}
        data.removed |= await _vanished(shop, base.manifests, span, named)
    places = {f.id: goal.places.place(f) for f in (*reading.changes.added, *reading.changes.touched)}
    unknown = [(f, ids) for f in reading.changes.added if (ids := entries.nans_unknown(f, leaves))]
    nans = await shop.footers.nan_counts(unknown, view.mapped)
    for file in reading.changes.added:
        spec, partition = places[file.id]
        entry = entries.data_file(file, leaves, partition, view.format_version, nans.get(file.id, {}))
        data.added.append((spec.spec_id, file.id, _entry(view, goal, file, entry)))
    touched = {entries.shown_path(f): f.id for f in reading.changes.touched}
    deletes_on = Difference("files", "deletes", [], data.removed | touched)
    present = await _present(shop, base.manifests, deletes_on)
    suspected = [f for f in (*reading.changes.added, *reading.changes.touched) if _may_have_deletes(f, goal)]
    deleted = await each(lambda file: shop.deleted.of(file, goal.id), suspected, _READS_AT_ONCE)
    targets: list[tuple[int, Target]] = []
    for file, positions in zip(suspected, deleted, strict=True):
        if positions:
            spec, partition = places[file.id]
            targets.append((file.id, Target(entries.shown_path(file), spec.spec_id, partition, positions)))
    await _add_deletes(outbox, view, goal, base, deletes_on, present, targets)
    return data, deletes_on


async def _rows_files(
    shop: Workshop, outbox: Outbox, view: View, goal: Goal, base: Start, reading: Reading
) -> tuple[Difference, Difference]:
    """What becomes of our files of inlined rows, and of the deletes on them."""
    staying = [f for f in base.rows_files if reading.rows_after > -1 and f.after < reading.rows_after]
    going = {f.path: f.upto for f in base.rows_files if f not in staying}
    data = Difference("rows", "data", [], dict(going))
    deletes_on = Difference("rows", "deletes", [], dict(going))
    targets: list[tuple[int, Target]] = []
    for file in staying:
        if file.path not in reading.visible:
            continue
        content = await shop.manifests.whole(file.path)
        keys = await asyncio.to_thread(side_file.read_keys, content)
        positions = positions_gone(keys, reading.visible[file.path])
        deletes_on.removed[file.path] = file.upto
        if len(positions) == len(keys):
            data.removed[file.path] = file.upto
        elif positions:
            targets.append((file.upto, Target(file.path, goal.places.specs.unpartitioned.spec_id, (), positions)))
    if reading.batches:
        spec_id = goal.places.specs.unpartitioned.spec_id
        data.added.append((spec_id, goal.id, await _write_rows(outbox, view, goal, reading)))
    present = await _present(shop, base.manifests, deletes_on)
    await _add_deletes(outbox, view, goal, base, deletes_on, present, targets)
    return data, deletes_on


async def _write_rows(outbox: Outbox, view: View, goal: Goal, reading: Reading) -> Entry:
    columns = view.columns.shown_by(goal.schema)
    made = await asyncio.to_thread(side_file.write, reading.batches, columns, goal.id)
    location = view.layout.rows(reading.rows_after, goal.id, made.data)
    await outbox.put(location, made.data)
    file = DataFile(
        content=DATA,
        file_path=str(location),
        file_format="PARQUET",
        partition=(),
        record_count=len(made.row_ids),
        file_size_in_bytes=len(made.data),
        column_sizes=made.column_sizes,
        value_counts=made.value_counts,
        null_value_counts=made.null_value_counts,
        nan_value_counts=made.nan_value_counts,
        lower_bounds=made.lower_bounds,
        upper_bounds=made.upper_bounds,
        sort_order_id=UNSORTED.order_id,
        first_row_id=min(made.row_ids) if view.format_version >= 3 else None,
    )
    return Entry(ADDED, goal.snapshot.iceberg_id, goal.id, goal.id, file)


def _entry(view: View, goal: Goal, file: LakeFile, shown: DataFile) -> Entry:
    """A file is the snapshot's own if its rows begin there, or if a flush, merge or rewrite made it there."""
    before = goal.previous.id if goal.previous else -1
    first_own_id = goal.previous.next_file_id if goal.previous else 0
    made_here = first_own_id <= file.id < goal.snapshot.next_file_id
    if before < file.begin_snapshot <= goal.id or (made_here and bool(goal.snapshot.words & LAYOUT)):
        return Entry(ADDED, goal.snapshot.iceberg_id, file.begin_snapshot, goal.id, shown)
    begin = file.begin_snapshot
    return Entry(EXISTING, view.iceberg_id(begin), begin, begin, shown)


async def _vanished(
    shop: Workshop, held: Sequence[ManifestFile], span: tuple[int, int], known: set[str]
) -> dict[str, int]:
    """Files that begin within the span and that the lake does not know any more."""
    first, last = span
    found: dict[str, int] = {}
    for file in held:
        name = ManifestName.of(file.manifest_path)
        if name is None or (name.kind, name.content) != ("files", "data"):
            continue
        if file.min_sequence_number > last or file.sequence_number < first:
            continue
        for entry in await shop.manifests.read(file):
            begin, path = entry.sequence_number or 0, entry.data_file.file_path
            if entry.status != DELETED and first <= begin <= last and path not in known:
                found[path] = name.first
    return found


async def _present(shop: Workshop, held: Sequence[ManifestFile], difference: Difference) -> dict[str, DataFile]:
    """The delete files that there are now for what the difference takes away."""
    found: dict[str, DataFile] = {}
    for file in held:
        if difference.removed and difference.may_be_in(file):
            for entry in await shop.manifests.read(file):
                if entry.status != DELETED and difference.key(entry) in difference.removed:
                    found[difference.key(entry)] = entry.data_file
    return found


def _may_have_deletes(file: LakeFile, goal: Goal) -> bool:
    return bool(file.delete_files or file.inlined_deletes) or not file.is_whole_at(goal.id)


async def _add_deletes(
    outbox: Outbox,
    view: View,
    goal: Goal,
    base: Start,
    difference: Difference,
    present: Mapping[str, DataFile],
    targets: Sequence[tuple[int, Target]],
) -> None:
    """Writes what is deleted from each target, unless what is there says the same."""
    new: list[tuple[int, Target, Rendered]] = []
    for file_id, target in targets:
        rendered = await asyncio.to_thread(deletes.render, view.layout, target, view.format_version)
        there = present.get(target.file_path)
        # objects are named by their content
        if there is not None and there.file_path == rendered.entry.file_path:
            del difference.removed[target.file_path]
        else:
            await outbox.put(rendered.location, rendered.data)
            new.append((file_id, target, rendered))
    # whether the snapshot deleted this, or one between it and the base, only a base right before it can tell
    status = ADDED if base.is_before(goal) else EXISTING
    for file_id, target, rendered in new:
        entry = Entry(status, goal.snapshot.iceberg_id, goal.id, goal.id, rendered.entry)
        difference.added.append((target.spec_id, file_id, entry))
