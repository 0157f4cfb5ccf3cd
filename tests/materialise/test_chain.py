"""Chains made from a lake that a test can see through, on a real store, and read by PyIceberg.

Whatever a chain is made from, an older one or nothing, it has to show the rows that the snapshot has: files, what is
deleted from each, and inlined rows.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlparse
from uuid import uuid4

import fastavro
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFileContent, ManifestEntry, ManifestEntryStatus, read_manifest_list
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from mergus.annex.chains import Chain
from mergus.config import Settings
from mergus.ducklake import files, places
from mergus.ducklake.changes import LAYOUT
from mergus.ducklake.columns import Column, Columns, Span
from mergus.ducklake.files import ColumnStats
from mergus.ducklake.files import DataFile as LakeFile
from mergus.ducklake.inlined import Batch
from mergus.ducklake.partitions import Key, Partitioning, Partitions
from mergus.ducklake.paths import Path as LakePath
from mergus.ducklake.paths import TablePaths
from mergus.ducklake.snapshots import Snapshot
from mergus.ducklake.tables import Table
from mergus.ducklake.told import Committed
from mergus.materialise import chain as chains
from mergus.materialise.chain import Goal, Reading, Start, View, Workshop
from mergus.materialise.deletes import DeletedRows
from mergus.materialise.footers import Footers
from mergus.materialise.layout import Layout
from mergus.materialise.manifests import Damaged, Manifests, Merging
from mergus.materialise.outbox import Outbox
from mergus.materialise.side_file import ROW_ID
from mergus.storage.location import Location
from mergus.storage.objects import Objects

T = TypeVar("T")
ALWAYS = Span(0, None)
COLUMNS = Columns([Column(1, ALWAYS, "i", "int32", True, None), Column(2, ALWAYS, "s", "varchar", True, None)])
SCHEMA = COLUMNS.schema_at(0)
BY_I = 5
PARTS = Partitions([Partitioning(BY_I, ALWAYS, (Key(1, "identity"),))])
PLACES = places.places(PARTS.specs(SCHEMA, COLUMNS, 0), SCHEMA, COLUMNS, 0)
TABLE = Table(
    1,
    uuid4(),
    "t",
    "main",
    [ALWAYS],
    TablePaths("s3://b/data/", LakePath("main/", relative=True), LakePath("t/", relative=True)),
    None,
)
# a client's id for the lake's snapshot of that number
CLIENTS = 2**40


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@dataclass
class File:
    id: int
    begin: int
    rows: int
    # of the column that the table is partitioned by; None for a file without partition
    value: int | None = None
    end: int | None = None
    # positions, with the snapshots that deleted them
    deleted: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def path(self) -> str:
        return f"s3://b/data/main/t/{self.id}.parquet"

    def is_live(self, at: int) -> bool:
        return self.begin <= at and (self.end is None or self.end > at)

    def deleted_at(self, at: int) -> frozenset[int]:
        return frozenset(p for p, since in self.deleted.items() if since <= at)

    def as_read(self, at: int) -> LakeFile:
        text = None if self.value is None else str(self.value)
        stats = ColumnStats(10, self.rows, 0, text or "0", text or "9", None)
        return LakeFile(
            *(self.id, self.path, self.rows, 100, 1000 * self.id, self.begin, self.end, None),
            *(None if self.value is None else BY_I, None),
            stats={1: stats},
            partition_values=[] if text is None else [text],
            inlined_deletes=sorted(self.deleted_at(at)),
        )


@dataclass
class Row:
    id: int
    begin: int
    end: int | None = None

    def is_live(self, at: int) -> bool:
        return self.begin <= at and (self.end is None or self.end > at)


@dataclass
class Step:
    """One snapshot. Files and rows are chosen by numbers, of those that there are then."""

    add: Sequence[int | None] = ()
    end: Sequence[int] = ()
    delete: Sequence[tuple[int, int]] = ()
    inline: int = 0
    end_rows: Sequence[int] = ()
    layout: str | None = None


@dataclass
class Lake:
    """One table of it, snapshot by snapshot."""

    files: list[File] = field(default_factory=list[File])
    rows: list[Row] = field(default_factory=list[Row])
    snapshots: list[Snapshot] = field(default_factory=list[Snapshot])
    # from which snapshot on, and up to which, a merge took files away
    merges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    next_file_id: int = 10
    next_row_id: int = 0

    def commit(self, step: Step) -> int:
        """The new snapshot."""
        at = len(self.snapshots) + 1
        words: set[str] = set()
        live = [f for f in self.files if f.is_live(at)]
        if step.layout == "merge_adjacent":
            words |= self._merge(at)
        elif step.layout == "inline_flush":
            words |= self._flush(at)
        else:
            for number, position in step.delete:
                if live and (position := position % live[number % len(live)].rows) is not None:
                    live[number % len(live)].deleted.setdefault(position, at)
                    words.add("inlined_delete")
            for number in step.end:
                if live:
                    live[number % len(live)].end = at
                    words.add("deleted_from_table")
            rows = [r for r in self.rows if r.is_live(at)]
            for number in step.end_rows:
                if rows:
                    rows[number % len(rows)].end = at
                    words.add("inlined_delete")
            for value in step.add:
                self._file(at, 3, value)
                words.add("inserted_into_table")
            for _ in range(step.inline):
                self.rows.append(Row(self.next_row_id, at))
                self.next_row_id += 1
                words.add("inlined_insert")
        time = datetime(2026, 1, 1, 0, 0, at, tzinfo=UTC)
        self.snapshots.append(Snapshot(at, time, frozenset(words), self.next_file_id, None, None, None))
        return at

    def _file(self, begin: int, rows: int, value: int | None = None) -> File:
        made = File(self.next_file_id, begin, rows, value)
        self.next_file_id += 1
        self.files.append(made)
        return made

    def _merge(self, at: int) -> set[str]:
        """Sources have no rows in Postgres any more."""
        sources = [f for f in self.files if f.end is None and not f.deleted and f.value is None]
        if len(sources) < 2:
            return {"merge_adjacent"}
        first = min(f.begin for f in sources)
        self.files = [f for f in self.files if f not in sources]
        self._file(first, sum(f.rows for f in sources))
        self.merges.append((first, at))
        return {"merge_adjacent"}

    def _flush(self, at: int) -> set[str]:
        """The rows that live become a file, which begins with the oldest of them."""
        live = [r for r in self.rows if r.is_live(at)]
        self.rows = []
        if live:
            self._file(min(r.begin for r in live), len(live))
        return {"inline_flush"}

    def reading(self, base: Start, at: int, rows_after: int) -> Reading:
        """As one has it who asks for the difference to the base."""
        before, horizon = base.base.snapshot_id, base.base.horizon
        known = {f.id for f in self.files if f.id < horizon and f.is_live(before)}
        now = [f for f in self.files if f.is_live(at)]
        changed = [f for f in now if f.id in known and f.deleted_at(at) != f.deleted_at(before)]
        spans = [{f.path for f in self.files if first <= f.begin <= last} for first, last in base.vanished]
        live = [r for r in self.rows if r.is_live(at)]
        ended = [r for r in self.rows if r.end is not None and before < r.end <= at]
        visible = {
            f.path: {(r.id, r.begin) for r in live if f.has(r.begin)}
            for f in base.rows_files
            if f.after < rows_after and any(f.has(r.begin) for r in ended)
        }
        return Reading(
            files.Changes(
                [f.as_read(at) for f in now if f.id not in known],
                [f.as_read(at) for f in self.files if f.id in known and not f.is_live(at)],
                [f.as_read(at) for f in changed],
            ),
            spans,
            rows_after,
            batches([r for r in live if r.begin > rows_after]),
            visible,
        )


def batches(rows: Sequence[Row]) -> list[Batch]:
    if not rows:
        return []
    values: list[list[Any]] = [[r.id for r in rows], [f"s{r.id}".encode() for r in rows]]
    return [Batch(0, tuple(COLUMNS.columns), [r.id for r in rows], [r.begin for r in rows], values)]


@dataclass
class Shown:
    """What PyIceberg reads: deleted positions by the path of each data file of DuckLake's, rows that are in files of
    ours, and the entries."""

    deleted: dict[str, frozenset[int]]
    rows: list[int]
    data: list[ManifestEntry]
    deletes: list[ManifestEntry]


class Shop:
    """Makes chains of a lake in a folder, and reads them."""

    def __init__(self, folder: Path, lake: Lake, version: int = 2, merging: Merging | None = None) -> None:
        self.objects = Objects(Settings())  # pyright: ignore[reportCallIssue]
        self.folder = folder / str(uuid4())
        self.layout = Layout.of(Location.parse(str(self.folder)), TABLE.uuid)
        self.lake = lake
        self.version = version
        self.merging = merging or Merging()
        self.iceberg_ids: dict[int, int] = {}
        # no file here has columns that only its own footer tells of
        nobody: Any = None
        footers = Footers(nobody, self.objects)
        self.workshop = Workshop(self.objects, Manifests(self.objects), DeletedRows(self.objects), footers)

    def view(self) -> View:
        return View(
            metadata_schema="public",
            table=TABLE,
            format_version=self.version,
            layout=self.layout,
            columns=COLUMNS,
            schema=SCHEMA,
            places=PLACES,
            merging=self.merging,
            inlined=[],
            as_of=self.lake.snapshots[-1].id,
            horizon=self.lake.next_file_id,
            mapped={},
            iceberg_ids=self.iceberg_ids,
        )

    def goal(self, at: int) -> Goal:
        one = self.lake.snapshots[at - 1]
        before = self.lake.snapshots[at - 2] if at > 1 else None
        return Goal(one, before, None if before is None else before.iceberg_id, SCHEMA, 0, PLACES)

    async def start(self, base: Chain | None, at: int) -> Start:
        if base is None:
            return Start()
        since = [s for s in self.lake.snapshots if s.id > base.as_of]
        return await chains.start(
            self.workshop,
            base,
            self.goal(at),
            in_the_past=False,
            flushed=any("inline_flush" in s.words for s in since),
            vanished=[span for span in self.lake.merges if span[1] > base.as_of],
        )

    async def make(self, base: Chain | None, at: int, together: int = 0) -> Chain:
        """`together` files of ours that hold inlined rows are made anew with the new rows."""
        start = await self.start(base, at)
        after = -1 if base is None or start.flushed else base.snapshot_id
        if after > -1 and together and start.rows_files:
            after = start.rows_files[-min(together, len(start.rows_files))].after
        reading = self.lake.reading(start, at, after)
        return await chains.write(self.workshop, Outbox(self.objects), self.view(), self.goal(at), start, reading)

    def made(self, base: Chain | None, at: int, together: int = 0) -> Chain:
        return run(self.make(base, at, together))

    def objects_there(self) -> set[str]:
        return {path.name for path in self.folder.rglob("*") if path.is_file()}

    def shown(self, chain: Chain) -> Shown:
        io = PyArrowFileIO()
        entries = [
            e
            for file in read_manifest_list(io.new_input(chain.manifest_list))
            for e in file.fetch_manifest_entry(io, discard_deleted=True)
        ]
        data = [e for e in entries if e.data_file.content == DataFileContent.DATA]
        deletes = [e for e in entries if e.data_file.content != DataFileContent.DATA]
        deleted: dict[str, frozenset[int]] = {e.data_file.file_path: frozenset() for e in data}
        assert len(deleted) == len(data), "a file is listed twice"
        for entry in deletes:
            ((path, positions),) = _positions(entry.data_file.file_path).items()
            assert not deleted[path], "a file has two delete files"
            deleted[path] = positions
        rows: list[int] = []
        for path in [path for path in deleted if path.startswith("file:")]:
            ids = _row_ids(path)
            rows += [row_id for position, row_id in enumerate(ids) if position not in deleted[path]]
            del deleted[path]
        return Shown(deleted, sorted(rows), data, deletes)

    def check(self, chain: Chain, at: int) -> None:
        """That PyIceberg finds what the lake has at the snapshot."""
        shown, live = self.shown(chain), [f for f in self.lake.files if f.is_live(at)]
        assert shown.deleted == {f.path: f.deleted_at(at) for f in live}
        assert shown.rows == sorted(r.id for r in self.lake.rows if r.is_live(at))
        by_path = {e.data_file.file_path: e for e in shown.data}
        for file in live:
            entry = by_path[file.path]
            assert entry.data_file.record_count == file.rows
            assert [*map(entry.data_file.partition.__getitem__, range(len(entry.data_file.partition)))] == (
                [] if file.value is None else [file.value]
            )
            assert entry.sequence_number == file.begin, "deletes by value are about older rows alone"
        for entry in shown.deletes:
            (about,) = _positions(entry.data_file.file_path)
            begin = by_path[about].sequence_number
            assert begin is not None
            assert begin <= (entry.sequence_number or 0) <= at, "every delete applies"
        totals = chain.counts["totals"]
        assert (totals["data_files"], totals["records"]) == (
            len(shown.data),
            sum(e.data_file.record_count for e in shown.data),
        )
        assert (totals["delete_files"], totals["position_deletes"]) == (
            len(shown.deletes),
            sum(e.data_file.record_count for e in shown.deletes),
        )


def _positions(path: str) -> dict[str, frozenset[int]]:
    """Of the one data file that a delete file is about."""
    local = Path(urlparse(path).path)
    if local.suffix == ".puffin":
        vectors = deletion_vectors_from_puffin_file(PuffinFile(local.read_bytes()))
        return {v.referenced_data_file: frozenset(v.to_vector().to_pylist()) for v in vectors}
    table = pq.read_table(local)
    (about,) = set(table.column("file_path").to_pylist())
    return {about: frozenset(table.column("pos").to_pylist())}


def _row_ids(path: str) -> list[int]:
    table = pq.read_table(urlparse(path).path)
    (name,) = [f.name for f in table.schema if int(f.metadata[b"PARQUET:field_id"]) == ROW_ID]
    return table.column(name).to_pylist()


number = st.integers(0, 20)
steps = st.lists(
    st.builds(
        Step,
        add=st.lists(st.one_of(st.none(), st.integers(0, 2)), max_size=3),
        end=st.lists(number, max_size=2),
        delete=st.lists(st.tuples(number, number), max_size=3),
        inline=st.integers(0, 3),
        end_rows=st.lists(number, max_size=2),
        layout=st.sampled_from([None, None, None, None, "inline_flush", "merge_adjacent"]),
    ),
    min_size=1,
    max_size=5,
)


@given(steps, st.sampled_from([2, 3]), st.lists(st.integers(0, 3), min_size=5, max_size=5), st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_chain_shows_the_rows_of_its_snapshot_whatever_it_is_made_from(
    tmp_path: Path, story: list[Step], version: int, together: list[int], data: st.DataObject
) -> None:
    """Step by step, from any older snapshot, and from nothing."""
    lake = Lake()
    shop = Shop(tmp_path, lake, version, Merging(min_count=data.draw(st.sampled_from([2, 100]))))
    made: list[Chain] = []
    for step, with_older in zip(story, together, strict=False):
        at = lake.commit(step)
        chain = shop.made(made[-1] if made else None, at, with_older)
        shop.check(chain, at)
        if made:
            other = shop.made(data.draw(st.sampled_from(made)), at)
            shop.check(other, at)
        scratch = shop.made(None, at)
        shop.check(scratch, at)
        made.append(chain)


def test_the_same_is_made_of_the_same_under_the_same_names(tmp_path: Path) -> None:
    lake = Lake()
    shop = Shop(tmp_path, lake)
    first = shop.made(None, lake.commit(Step(add=[None, 1], inline=2)))
    second = shop.made(first, lake.commit(Step(add=[None], delete=[(0, 1)], end_rows=[0])))
    there = shop.objects_there()
    assert shop.made(first, 2) == second
    assert shop.objects_there() == there


def test_a_table_that_did_not_change_gets_a_list_and_no_other_object(tmp_path: Path) -> None:
    lake = Lake()
    shop = Shop(tmp_path, lake)
    first = shop.made(None, lake.commit(Step(add=[None, 1, 2], delete=[(0, 0)], inline=2)))
    there = shop.objects_there()
    # of a column's comment, say
    again = shop.made(first, lake.commit(Step()))
    (new,) = shop.objects_there() - there
    assert new.startswith("snap-2-")
    assert again.counts["totals"] == first.counts["totals"]
    shop.check(again, 2)


def test_deletes_that_say_the_same_are_not_written_again(tmp_path: Path) -> None:
    """A file may be looked at because of a delete file that says what inlined deletes said before."""
    lake = Lake()
    shop = Shop(tmp_path, lake)
    lake.commit(Step(add=[None, None]))
    first = shop.made(None, lake.commit(Step(delete=[(0, 1), (1, 2)])))
    at = lake.commit(Step())

    async def touched() -> Chain:
        start = await shop.start(first, at)
        reading = lake.reading(start, at, first.snapshot_id)
        looked_at = [f.as_read(at) for f in lake.files]
        reading = replace(reading, changes=replace(reading.changes, touched=looked_at))
        return await chains.write(shop.workshop, Outbox(shop.objects), shop.view(), shop.goal(at), start, reading)

    there = shop.objects_there()
    again = run(touched())
    assert len(shop.objects_there() - there) == 1
    (deletes,) = [m for m in _manifests(again) if m.content.value == 1]
    assert deletes.manifest_path in {m.manifest_path for m in _manifests(first)}
    assert "added-delete-files" not in again.counts["summary"]


def _manifests(chain: Chain) -> list[Any]:
    return list(read_manifest_list(PyArrowFileIO().new_input(chain.manifest_list)))


def _data_files(manifest: str) -> list[dict[str, Any]]:
    """With what PyIceberg does not read of them."""
    with Path(urlparse(manifest).path).open("rb") as file:
        entries: Any = list(fastavro.reader(file))
    return [entry["data_file"] for entry in entries]


def test_entries_say_which_snapshot_added_them_as_clients_call_it(tmp_path: Path) -> None:
    lake = Lake()
    shop = Shop(tmp_path, lake)
    for name in ("theirs", "ours"):
        at = lake.commit(Step(add=[None]))
        if name == "theirs":
            told = Committed(CLIENTS + at, {"operation": "append"})
            lake.snapshots[-1] = replace(lake.snapshots[-1], told=told)
            shop.iceberg_ids[at] = CLIENTS + at
    chain = shop.made(None, 2)
    found = {e.data_file.file_path: (e.status, e.snapshot_id) for e in shop.shown(chain).data}
    assert found == {
        lake.files[0].path: (ManifestEntryStatus.EXISTING, CLIENTS + 1),
        lake.files[1].path: (ManifestEntryStatus.ADDED, 2),
    }
    # what the base had is no work of this snapshot, however much of it is new here
    assert chain.counts["summary"]["added-data-files"] == "1"
    assert chain.counts["totals"]["data_files"] == 2


def test_only_a_base_right_before_tells_what_the_snapshot_itself_deleted(tmp_path: Path) -> None:
    lake = Lake()
    shop = Shop(tmp_path, lake)
    first = shop.made(None, lake.commit(Step(add=[None, None])))
    second = shop.made(first, lake.commit(Step(delete=[(0, 0)])))
    lake.commit(Step(delete=[(1, 0)], end=[]))
    own, all_of_it = shop.made(second, 3), shop.made(first, 3)
    assert own.counts["summary"]["added-position-deletes"] == "1"
    assert "added-position-deletes" not in all_of_it.counts["summary"]
    assert own.counts["totals"] == all_of_it.counts["totals"]
    assert {e.status for e in shop.shown(all_of_it).deletes} == {ManifestEntryStatus.EXISTING}


@pytest.mark.parametrize(
    ("step", "words", "operation"),
    [
        (Step(add=[None]), None, "append"),
        (Step(inline=2), None, "append"),
        (Step(delete=[(0, 0)]), None, "delete"),
        (Step(end=[0]), None, "delete"),
        (Step(end=[0], add=[None]), None, "overwrite"),
        (Step(layout="inline_flush"), None, "replace"),
        (Step(layout="merge_adjacent"), None, "replace"),
        # files do not tell: its rows came and went between two looks
        (Step(), {"inlined_delete"}, "delete"),
        (Step(), {"inlined_insert", "inlined_delete"}, "append"),
        (Step(), {"altered_table"}, "replace"),
        (Step(), {"rewrite_delete", "deleted_from_table"}, "replace"),
    ],
)
def test_the_operation_of_a_snapshot_is_what_its_files_and_words_tell(
    tmp_path: Path, step: Step, words: set[str] | None, operation: str
) -> None:
    lake = Lake()
    shop = Shop(tmp_path, lake)
    first = shop.made(None, lake.commit(Step(add=[None, None], inline=1)))
    at = lake.commit(step)
    if words is not None:
        lake.snapshots[-1] = replace(lake.snapshots[-1], words=frozenset(words))
    assert shop.made(first, at).counts["summary"]["operation"] == operation


def test_the_operation_that_a_client_told_is_taken_as_it_is(tmp_path: Path) -> None:
    lake = Lake()
    shop = Shop(tmp_path, lake)
    at = lake.commit(Step(add=[None]))
    lake.snapshots[-1] = replace(lake.snapshots[-1], told=Committed(CLIENTS, {"operation": "overwrite"}))
    chain = shop.made(None, at)
    assert chain.counts["summary"]["operation"] == "overwrite"
    assert {e.snapshot_id for e in shop.shown(chain).data} == {CLIENTS}


def test_a_snapshot_that_is_made_again_keeps_what_it_did(tmp_path: Path) -> None:
    """After a merge its rows are in files that have others, too."""
    lake = Lake()
    shop = Shop(tmp_path, lake, 3)
    lake.commit(Step(add=[None]))
    second = shop.made(shop.made(None, 1), lake.commit(Step(add=[None])))
    assert second.counts["summary"]["operation"] == "append"
    lake.commit(Step(layout="merge_adjacent"))
    again = shop.made(second, 2)
    shop.check(again, 2)
    before, after = second.counts["summary"], again.counts["summary"]
    assert after == {**before, "operation": "overwrite", "total-data-files": "1", "total-files-size": "100"}
    lineage = ("first-row-id", "added-rows")
    assert [again.counts[k] for k in lineage] == [second.counts[k] for k in lineage]
    assert again.as_of == 3


def test_rows_of_version_3_count_on_from_the_first_id_of_what_is_added(tmp_path: Path) -> None:
    lake = Lake()
    shop = Shop(tmp_path, lake, 3)
    lake.next_row_id = 7
    first = shop.made(None, lake.commit(Step(add=[None, None], inline=2)))
    # files of the lake begin at a thousand times their id here
    assert (first.counts["first-row-id"], first.counts["added-rows"]) == (7, 3 + 3 + 2)
    listed = [file for manifest in _manifests(first) for file in _data_files(manifest.manifest_path)]
    ids = {file["file_path"]: file["first_row_id"] for file in listed if file["file_path"].startswith("s3:")}
    assert ids == {f.path: 1000 * f.id for f in lake.files}
    none = shop.made(first, lake.commit(Step(delete=[(0, 0)])))
    assert (none.counts["first-row-id"], none.counts["added-rows"]) == (0, 0)
    assert Shop(tmp_path, lake, 2).made(None, 1).counts["first-row-id"] == 0


def test_a_file_of_rows_goes_when_all_of_them_have_ended(tmp_path: Path) -> None:
    lake = Lake()
    shop = Shop(tmp_path, lake)
    first = shop.made(None, lake.commit(Step(inline=2)))
    some = shop.made(first, lake.commit(Step(end_rows=[0])))
    assert (len(shop.shown(some).data), len(shop.shown(some).deletes)) == (1, 1)
    none = shop.made(some, lake.commit(Step(end_rows=[0])))
    assert (shop.shown(none).data, shop.shown(none).deletes) == ([], [])
    shop.check(none, 3)


def test_files_of_rows_are_written_anew_under_another_schema_and_after_a_flush(tmp_path: Path) -> None:
    lake = Lake()
    shop = Shop(tmp_path, lake)
    lake.commit(Step(inline=2))
    first = shop.made(None, 1)
    second = shop.made(first, lake.commit(Step(inline=1)))
    goal = shop.goal(2)
    vanished: list[tuple[int, int]] = []
    begin = partial(chains.start, shop.workshop, second, in_the_past=False, vanished=vanished)
    same = run(begin(goal, flushed=False))
    assert [(f.after, f.upto, f.rows) for f in same.rows_files] == [(-1, 1, 2), (1, 2, 1)]
    assert not same.flushed
    assert run(begin(goal, flushed=True)).flushed
    assert run(begin(replace(goal, schema_id=4), flushed=False)).flushed


def test_a_base_that_is_not_there_any_more_is_damaged(tmp_path: Path) -> None:
    lake = Lake()
    shop = Shop(tmp_path, lake)
    first = shop.made(None, lake.commit(Step(inline=2)))
    lake.commit(Step(add=[None]))
    for start in ("rows-data-", "snap-"):
        (gone,) = shop.folder.rglob(f"{start}*")
        gone.unlink()
        shop.workshop.manifests = Manifests(shop.objects)
        with pytest.raises(Damaged, match="missing"):
            shop.made(first, 2)


def test_what_a_base_is_to_those_who_ask_for_the_difference(tmp_path: Path) -> None:
    lake = Lake()
    shop = Shop(tmp_path, lake)
    first = shop.made(None, lake.commit(Step(add=[None])))
    lake.commit(Step(add=[None]))
    lake.commit(Step(add=[None]))
    assert Start().base == files.NOTHING
    assert Start(first, in_the_past=True).base == files.Base(1, 11, in_the_past=True)
    assert [Start().is_before(shop.goal(at)) for at in (1, 2, 3)] == [True, False, False]
    assert [Start(first).is_before(shop.goal(at)) for at in (1, 2, 3)] == [False, True, False]
    assert (first.snapshot_id, first.as_of, first.file_horizon, first.layout) == (1, 1, 11, PLACES.key)


def test_words_of_the_model_are_ducklakes() -> None:
    assert {"merge_adjacent", "inline_flush"} <= LAYOUT
