"""Manifests from one snapshot to the next, on a real store: what is carried, written again, and merged."""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergus.config import Settings
from mergus.ducklake.columns import Columns
from mergus.ducklake.partitions import Partitions
from mergus.ducklake.places import Places
from mergus.iceberg import manifest
from mergus.iceberg.manifest import ADDED, DATA, DELETED, EXISTING, POSITION_DELETES, DataFile, Entry
from mergus.iceberg.manifest_list import ManifestFile
from mergus.iceberg.schema import Field, Schema
from mergus.materialise import manifests
from mergus.materialise.layout import Content, Layout, ManifestName
from mergus.materialise.manifests import MOST_ENTRIES, Damaged, Difference, Header, Manifests, Merging, apply, merge
from mergus.storage.location import Location
from mergus.storage.objects import Objects

SCHEMA = Schema((Field(1, "i", "int"),))
PLACES = Places(Partitions([]).specs(SCHEMA, Columns([]), 0), ())
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Shop:
    """A store with nothing in it, and readers that have read nothing."""

    def __init__(self, folder: Path) -> None:
        self.objects = Objects(Settings())  # pyright: ignore[reportCallIssue]
        self.layout = Layout.of(Location.parse(str(folder)), uuid4())
        self.store = Manifests(self.objects)

    def forgetful(self) -> "Shop":
        """Reads everything anew."""
        self.store = Manifests(self.objects)
        return self

    def apply(self, snapshot_id: int, carried: Sequence[ManifestFile], difference: Difference) -> manifests.Applied:
        return run(apply(self.store, self.layout, header(snapshot_id), carried, difference))

    def merge(self, snapshot_id: int, files: Sequence[ManifestFile], merging: Merging) -> list[ManifestFile]:
        return run(merge(self.store, self.layout, header(snapshot_id), files, merging))

    def entries(self, *files: ManifestFile) -> list[Entry]:
        return [e for file in files for e in run(Manifests(self.objects).read(file))]

    def statuses(self, *files: ManifestFile) -> dict[str, tuple[int, int | None, int | None]]:
        """By name: status, snapshot id, sequence number."""
        found = self.entries(*files)
        return {
            e.data_file.file_path.removeprefix("s3://b/"): (e.status, e.snapshot_id, e.sequence_number) for e in found
        }

    def live(self, *files: ManifestFile) -> list[str]:
        return sorted(e.data_file.file_path for e in self.entries(*files) if e.status != DELETED)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def header(snapshot_id: int, version: int = 2) -> Header:
    return Header(snapshot_id, snapshot_id, version, SCHEMA, 0, PLACES, SCHEMA)


def path(file_id: int) -> str:
    return f"s3://b/{file_id}"


def added(snapshot_id: int, *file_ids: int, content: Content = "data") -> Difference:
    return Difference("files", content, [(0, i, entry(snapshot_id, i, content)) for i in file_ids], {})


def entry(snapshot_id: int, file_id: int, content: Content = "data") -> Entry:
    kind, about = (DATA, None) if content == "data" else (POSITION_DELETES, path(file_id))
    name = path(file_id) if content == "data" else f"s3://b/deletes-{file_id}-{snapshot_id}"
    file = DataFile(kind, name, "PARQUET", (), 10, 100, referenced_data_file=about)
    return Entry(ADDED, snapshot_id, snapshot_id, snapshot_id, file)


def removed(*file_ids: int, content: Content = "data") -> Difference:
    return Difference("files", content, [], {path(i): i for i in file_ids})


def test_added_files_get_a_new_manifest_and_existing_manifests_are_reused(shop: Shop) -> None:
    (first,) = shop.apply(1, [], added(1, 3, 5)).manifests
    assert ManifestName.of(first.manifest_path) == ManifestName("files", "data", 3, 5)
    assert (first.added_files_count, first.existing_files_count, first.deleted_files_count) == (2, 0, 0)
    assert (first.added_rows_count, first.added_snapshot_id, first.sequence_number) == (20, 1, 1)
    # nobody needs to read it
    run(shop.objects.delete(Location.parse(first.manifest_path)))
    second, carried = shop.forgetful().apply(2, [first], added(2, 7)).manifests
    assert carried == first
    assert shop.statuses(second) == {"7": (ADDED, 2, 2)}


def test_a_manifest_that_lists_removed_files_is_rewritten(shop: Shop) -> None:
    first = shop.apply(1, [], added(1, 1, 2, 3)).manifests
    both = shop.apply(2, first, added(2, 4, 5)).manifests
    result = shop.forgetful().apply(3, both, removed(2))
    again, untouched = result.manifests
    assert untouched == both[0]
    assert [e.data_file.file_path for e in result.removed] == [path(2)]
    assert shop.statuses(again) == {"1": (EXISTING, 1, 1), "3": (EXISTING, 1, 1), "2": (DELETED, 3, 1)}
    assert (again.existing_files_count, again.deleted_files_count, again.deleted_rows_count) == (2, 1, 10)
    assert (again.sequence_number, again.min_sequence_number) == (3, 1)
    # what one snapshot has deleted the next does not mention
    (last,) = [m for m in shop.apply(4, result.manifests, removed(1)).manifests if m != untouched]
    assert shop.statuses(last) == {"3": (EXISTING, 1, 1), "1": (DELETED, 4, 1)}


def test_rewritten_entries_without_a_sort_order_id_get_order_0(shop: Shop) -> None:
    """As manifests were written once; deletes have none."""
    data = shop.apply(1, [], added(1, 1, 2)).manifests
    both = shop.apply(2, data, added(2, 1, 2, content="deletes")).manifests
    assert set(orders(shop, *both)) == {None}
    again = shop.forgetful().apply(3, both, removed(1)).manifests
    again = shop.apply(3, again, removed(1, content="deletes")).manifests
    assert sorted(orders(shop, *again), key=str) == [0, 0, None, None]


def orders(shop: Shop, *files: ManifestFile) -> list[int | None]:
    """As they are written."""
    contents = [run(shop.objects.get(Location.parse(file.manifest_path))) for file in files]
    return [e.data_file.sort_order_id for data in contents if data for e in manifest.read(data)[1]]


def test_a_manifest_without_live_files_is_dropped_by_the_next_snapshot(shop: Shop) -> None:
    first = shop.apply(1, [], added(1, 1)).manifests
    (emptied,) = shop.apply(2, first, removed(1)).manifests
    assert shop.statuses(emptied) == {"1": (DELETED, 2, 1)}
    (left,) = shop.apply(3, [emptied], added(3, 2)).manifests
    assert shop.live(left) == [path(2)]


def test_removing_a_file_that_no_manifest_lists_changes_nothing(shop: Shop) -> None:
    first = shop.apply(1, [], added(1, 1, 9)).manifests
    result = shop.apply(2, first, removed(5))
    assert (result.manifests, result.removed) == (first, [])


def test_data_and_delete_entries_of_one_file_are_removed_separately(shop: Shop) -> None:
    data = shop.apply(1, [], added(1, 1, 2)).manifests
    both = shop.apply(2, data, added(2, 1, 2, content="deletes")).manifests
    instead = Difference("files", "deletes", [(0, 1, entry(3, 1, "deletes"))], {path(1): 1})
    result = shop.apply(3, both, instead)
    assert data[0] in result.manifests
    deletes = [m for m in result.manifests if m.content == 1]
    assert shop.live(*deletes) == ["s3://b/deletes-1-3", "s3://b/deletes-2-2"]
    assert [e.data_file.file_path for e in result.removed] == ["s3://b/deletes-1-2"]


def test_many_files_of_one_commit_are_split_into_several_manifests(shop: Shop) -> None:
    found = shop.apply(1, [], added(1, *range(MOST_ENTRIES + 1))).manifests
    assert [m.added_files_count for m in found] == [MOST_ENTRIES, 1]
    ranges = [ManifestName.of(m.manifest_path) for m in found]
    assert [(n.first, n.last) for n in ranges if n] == [(0, MOST_ENTRIES - 1), (MOST_ENTRIES, MOST_ENTRIES)]


def test_equal_manifests_are_written_under_the_same_name(tmp_path: Path, shop: Shop) -> None:
    other = Shop(tmp_path)
    other.layout = shop.layout
    assert shop.apply(1, [], added(1, 1)).manifests == other.apply(1, [], added(1, 1)).manifests


def one_each(shop: Shop, count: int) -> list[ManifestFile]:
    """A manifest of each snapshot, newest first."""
    found: list[ManifestFile] = []
    for i in range(1, count + 1):
        found = shop.apply(i, found, added(i, i)).manifests
    return found


def test_small_manifests_are_merged_when_there_are_many(shop: Shop) -> None:
    few = one_each(shop, 4)
    assert shop.merge(4, few, Merging(min_count=5)) == few
    assert shop.merge(4, few, Merging(enabled=False, min_count=2)) == few
    (merged,) = shop.forgetful().merge(4, few, Merging(min_count=4))
    assert ManifestName.of(merged.manifest_path) == ManifestName("files", "data", 1, 4)
    # the snapshot's own file is still one that it added
    assert shop.statuses(merged) == {str(i): (ADDED if i == 4 else EXISTING, i, i) for i in range(1, 5)}
    assert (merged.added_snapshot_id, merged.min_sequence_number) == (4, 1)


def test_merging_stops_at_the_target_size(shop: Shop) -> None:
    small = one_each(shop, 10)
    size = max(m.manifest_length for m in small)
    found = shop.merge(10, small, Merging(target_size=3 * size, min_count=2))
    assert len(found) == 4
    names = [name for m in found if (name := ManifestName.of(m.manifest_path))]
    assert sorted((n.first, n.last) for n in names) == [(1, 3), (4, 6), (7, 9), (10, 10)]
    # those that are large by now are left alone
    assert shop.merge(10, found, Merging(target_size=size, min_count=2)) == found


def test_merging_manifests_separates_contents_and_drops_old_deleted_entries(shop: Shop) -> None:
    found = one_each(shop, 3)
    found = shop.apply(4, found, added(4, 1, 2, content="deletes")).manifests
    found = shop.apply(5, found, removed(1)).manifests
    merged = shop.merge(6, shop.apply(6, found, added(6, 6)).manifests, Merging(min_count=2))
    assert sorted((m.content, len(shop.live(m))) for m in merged) == [(0, 3), (1, 2)]
    assert path(1) not in {e.data_file.file_path for e in shop.entries(*merged)}
    now = shop.merge(5, found, Merging(min_count=2))
    assert shop.statuses(*now)["1"] == (DELETED, 5, 1)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 30), max_size=4)), min_size=1, max_size=12),
    st.integers(2, 4),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_manifests_list_the_live_files_after_any_sequence_of_changes(
    tmp_path: Path, steps: list[tuple[int, list[int]]], min_count: int
) -> None:
    shop = Shop(tmp_path)
    found: list[ManifestFile] = []
    live: set[int] = set()
    next_id = 0
    for snapshot_id, (new, gone) in enumerate(steps, 1):
        ids = range(next_id, next_id + new)
        next_id += new
        going = {sorted(live)[i % len(live)] for i in gone} if live else set[int]()
        difference = Difference("files", "data", added(snapshot_id, *ids).added, removed(*going).removed)
        result = shop.forgetful().apply(snapshot_id, found, difference)
        assert sorted(e.data_file.file_path for e in result.removed) == sorted(map(path, going))
        found = shop.merge(snapshot_id, result.manifests, Merging(min_count=min_count))
        live = (live - going) | set(ids)
        entries = shop.entries(*found)
        assert sorted(e.data_file.file_path for e in entries if e.status != DELETED) == sorted(map(path, live))
        own = {
            s: {e.data_file.file_path for e in entries if (e.status, e.snapshot_id) == (s, snapshot_id)}
            for s in (ADDED, DELETED)
        }
        assert own == {ADDED: set(map(path, ids)), DELETED: set(map(path, going))}
        assert sum(m.added_files_count + m.existing_files_count for m in found) == len(live)


def test_table_properties_configure_the_merging_of_manifests() -> None:
    given_properties = {
        "commit.manifest-merge.enabled": "FALSE",
        "commit.manifest.target-size-bytes": "5000",
        "commit.manifest.min-count-to-merge": "7",
    }
    assert Merging.of(given_properties) == Merging(False, 5000, 7)
    assert Merging.of({}) == Merging()
    assert Merging.of({"commit.manifest.min-count-to-merge": "0"}).min_count == 2
    assert Merging.of({"commit.manifest.target-size-bytes": "large"}) == Merging()


def test_a_missing_or_changed_manifest_is_reported_as_damaged(shop: Shop) -> None:
    files = shop.apply(1, [], added(1, *range(50))).manifests
    listed = run(shop.store.write_list(shop.layout, header(1), None, 0, files))
    for where in (files[0].manifest_path, listed):
        location = Location.parse(where)
        whole = run(shop.objects.get(location))
        assert whole is not None
        middle = len(whole) // 2
        for broken in (
            whole[:middle],
            whole[:-1],
            b"",
            whole + b"\0",
            whole[:middle] + b"\xff" + whole[middle + 1 :],
            None,
        ):
            if broken is None:
                run(shop.objects.delete(location))
            else:
                run(shop.objects.put(location, broken))
            with pytest.raises(Damaged, match="missing" if broken is None else "not what was written"):
                reader = shop.forgetful().store
                run(reader.read_list(where) if where == listed else reader.read(files[0]))
        run(shop.objects.put(location, whole))
    assert [f.manifest_path for f in run(shop.forgetful().store.read_list(listed))] == [files[0].manifest_path]
    assert len(shop.entries(*files)) == 50


def test_a_truncated_manifest_can_be_a_valid_avro_file(shop: Shop) -> None:
    """Why content is held against its name: an Avro file may end after any block."""
    (file,) = shop.apply(1, [], added(1, *range(50))).manifests
    whole = run(shop.objects.get(Location.parse(file.manifest_path)))
    assert whole is not None
    shorter = 0
    for end in range(len(whole)):
        try:
            shorter += len(manifest.read(whole[:end])[1]) < 50
        except ValueError:
            continue
    assert shorter
