"""What a client's snapshots mean for the rows of a table: planned from manifests that a test wrote.

First a table that comes with the commit, of which Postgres knows nothing; then one that is in a lake.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergus.catalog import commit_data
from mergus.catalog.commit_data import DataStep, Progress, Scene
from mergus.catalog.commit_files import FileTerms
from mergus.catalog.delete_files import Drawer, Prepared
from mergus.catalog.lake import open_lake
from mergus.catalog.served_tables import ServedTables
from mergus.errors import ApiError, BadRequest, CommitFailed, Unsupported
from mergus.iceberg import position_deletes
from mergus.iceberg.manifest import DATA, DELETED, DataFile
from mergus.iceberg.partition_spec import UNPARTITIONED, PartitionField, PartitionSpec
from mergus.iceberg.updates import AddedSnapshot
from mergus.materialise.manifests import Manifests
from mergus.storage.location import Location
from tests.support.lakes import TestLake
from tests.support.made_tables import LEAVES, ROWS, SCHEMA, append, create_table, inline
from tests.support.snapshot_writer import CLIENTS, SnapshotWriter, local_objects

# the first snapshot of the lake that the commit makes, if nobody comes before
FIRST = 100
BY_I = PartitionSpec(1, (PartitionField(1, 1000, "i", "identity"),))


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # pyright: ignore[reportArgumentType]


def new_terms(leaves: Mapping[int, str] = LEAVES) -> FileTerms:
    return FileTerms(
        schema=SCHEMA,
        parents=dict.fromkeys(leaves),
        specs={0: UNPARTITIONED, 1: BY_I},
        partition_types={1000: "int"},
        leaves=leaves,
        columns=leaves,
        keys={},
    )


def anywhere(text: str, /, *, deletes: bool = False) -> Location:
    return Location.parse(text)


def scene_of(writer: SnapshotWriter, **changes: Any) -> Scene:
    """Of a table that is not there yet: nobody asks Postgres."""
    nobody: Any = None
    folder = Location.parse(str(writer.folder))
    objects = local_objects()
    scene = Scene(
        pool=nobody,
        objects=objects,
        manifests=Manifests(objects),
        check=anywhere,
        view=None,
        at=-1,
        schema=SCHEMA,
        terms=new_terms(),
        format_version=2,
        drawer=Drawer(objects, folder / "ducklake", []),
        own=[folder],
    )
    return replace(scene, **changes)


def nothing_yet() -> Progress:
    return Progress(None, [], 0, FIRST, FIRST)


async def planned(scene: Scene, progress: Progress, snapshots: Sequence[AddedSnapshot]) -> list[DataStep]:
    steps = [await commit_data.plan(scene, progress, snapshot) for snapshot in snapshots]
    return await commit_data.with_delete_files(scene, progress, steps)


def plan(
    writer: SnapshotWriter, *snapshots: AddedSnapshot, progress: Progress | None = None, **changes: Any
) -> list[DataStep]:
    return asyncio.run(planned(scene_of(writer, **changes), progress or nothing_yet(), snapshots))


def refused(
    writer: SnapshotWriter, error: type[ApiError], says: str, *snapshots: AddedSnapshot, **changes: Any
) -> None:
    with pytest.raises(error, match=says):
        plan(writer, *snapshots, **changes)


def paths(step: DataStep) -> list[str]:
    return [planned_file.file.path for planned_file in step.added]


@pytest.fixture
def writer(tmp_path: Path) -> SnapshotWriter:
    return SnapshotWriter(tmp_path)


def data_file(name: str, **about: Any) -> DataFile:
    return replace(DataFile(DATA, f"s3://b/t/{name}", "PARQUET", (), 10, 100), **about)


A, B, C = (data_file(name) for name in "abc")


def test_an_append_is_its_files_and_takes_a_row_id_for_each_row(writer: SnapshotWriter) -> None:
    progress = nothing_yet()
    progress.next_row_id = 5
    both = [writer.snapshot("append", [A, replace(B, record_count=7)]), writer.snapshot("append", [C])]
    first, second = plan(writer, *both, progress=progress)
    assert (paths(first), paths(second)) == ([A.file_path, B.file_path], [C.file_path])
    assert [p.file.record_count for p in first.added] == [10, 7]
    assert (first.told.snapshot_id, first.told.is_root, second.told.is_root) == (CLIENTS + 1, True, False)
    for step in (first, second):
        assert (step.ended, step.ended_paths, step.deletes, step.deletes_on_new) == ([], [], [], {})
        assert not step.is_rewrite
    assert (progress.main, progress.snapshot_id, progress.next_row_id) == (CLIENTS + 2, FIRST + 2, 5 + 27)
    assert progress.new == {A.file_path: 10, B.file_path: 7, C.file_path: 10}


def test_what_was_written_for_the_commit_alone_is_left_over_and_nothing_else(
    writer: SnapshotWriter, tmp_path: Path
) -> None:
    first = writer.snapshot("append", [A])
    (listed,) = [file for file in tmp_path.glob("*.avro") if str(file) != first.manifest_list]
    second = writer.snapshot("overwrite", delete={A.file_path: [1]})
    one, two = plan(writer, first, second)
    assert set(one.leftovers) == {first.manifest_list, str(listed)}
    (deletes,) = tmp_path.glob("deletes-*.parquet")
    assert str(deletes) in two.leftovers
    assert second.manifest_list in two.leftovers
    assert len(two.leftovers) == len(set(two.leftovers)) == 4
    # elsewhere than in the table's own directory a client may have what it likes
    (elsewhere,) = plan(writer, first, own=[Location.parse("s3://b/t")])
    assert elsewhere.leftovers == []


def test_a_snapshot_has_to_be_built_on_what_main_is(writer: SnapshotWriter) -> None:
    first = writer.snapshot("append", [A])
    says = f"built on 99, and main is {CLIENTS + 1}"
    refused(writer, CommitFailed, says, first, writer.snapshot("append", [B], parent_snapshot_id=99))


def test_ids_that_ducklake_may_give_are_not_taken_from_clients(writer: SnapshotWriter) -> None:
    refused(writer, BadRequest, "too small", writer.snapshot("append", [], snapshot_id=2**31 - 1))
    assert len(plan(writer, SnapshotWriter(writer.folder).snapshot("append", [], snapshot_id=2**31))) == 1


def test_an_append_neither_deletes_nor_removes(writer: SnapshotWriter) -> None:
    first = writer.snapshot("append", [A, B])
    other = SnapshotWriter(writer.folder)
    other.data, other.main, other.next_id = dict(writer.data), writer.main, writer.next_id
    refused(
        writer, BadRequest, "appends, and deletes rows", first, writer.snapshot("append", delete={A.file_path: [1]})
    )
    refused(writer, CommitFailed, "another state of the table", first, other.snapshot("append", remove=[A.file_path]))


def test_a_file_that_came_with_the_commit_and_goes_with_it_is_known_by_its_path(writer: SnapshotWriter) -> None:
    progress = nothing_yet()
    _, second, third = plan(
        writer,
        writer.snapshot("append", [A, B]),
        writer.snapshot("replace", [C], remove=[A.file_path]),
        writer.snapshot("delete", remove=[B.file_path, C.file_path]),
        progress=progress,
    )
    assert (paths(second), second.ended_paths, second.is_rewrite) == ([C.file_path], [A.file_path], True)
    assert (third.ended_paths, third.ended, third.is_rewrite) == ([B.file_path, C.file_path], [], False)
    assert progress.new == {}


def test_a_snapshot_without_a_parent_ends_all_that_was_there(writer: SnapshotWriter) -> None:
    first = writer.snapshot("append", [A, B])
    writer.data.clear()
    second = writer.snapshot("append", [C], parent_snapshot_id=None)
    _, replaced = plan(writer, first, second)
    assert (replaced.ended_paths, paths(replaced)) == ([A.file_path, B.file_path], [C.file_path])
    assert replaced.told.is_root


def test_a_file_that_is_not_in_the_table_cannot_be_removed(writer: SnapshotWriter) -> None:
    first = writer.snapshot("append", [A])
    progress = nothing_yet()
    plan(writer, first, progress=progress)
    # as if another commit had brought it: the lake does not know it
    progress.new.clear()
    with pytest.raises(CommitFailed, match=f"not in the table any more: {A.file_path}"):
        plan(writer, writer.snapshot("delete", remove=[A.file_path]), progress=progress)


def test_deletes_from_a_new_file_are_written_once_with_the_last_snapshot_that_deletes(writer: SnapshotWriter) -> None:
    steps = plan(
        writer,
        writer.snapshot("append", [A, B]),
        writer.snapshot("delete", delete={A.file_path: [1, 3]}),
        # a row that is gone does not go again
        writer.snapshot("delete", delete={A.file_path: [3, 5], B.file_path: [0]}),
    )
    assert [sorted(step.deletes_on_new) for step in steps] == [[], [], [A.file_path, B.file_path]]
    assert [step.deletes_are_elsewhere for step in steps] == [False, True, False]
    of_a, of_b = (steps[2].deletes_on_new[file.file_path] for file in (A, B))
    assert dated(of_a) == {1: FIRST + 1, 3: FIRST + 1, 5: FIRST + 2}
    assert dated(of_b) == {0: None}


def dated(prepared: Prepared) -> dict[int, int | None]:
    """Since when each position is deleted, as the file on storage says it."""
    data = asyncio.run(local_objects().get(prepared.location))
    assert data is not None
    found = position_deletes.read(data)
    return dict(zip(found.positions, found.snapshot_ids or [None] * len(found.positions), strict=True))


def test_a_position_has_to_be_one_of_the_files(writer: SnapshotWriter) -> None:
    first = writer.snapshot("append", [A])
    last = writer.snapshot("delete", delete={A.file_path: [9]})
    assert len(plan(writer, first, last)[1].deletes_on_new) == 1
    says = f"Position 10 is deleted from {A.file_path}, which has 10 rows"
    refused(writer, BadRequest, says, first, last, writer.snapshot("delete", delete={A.file_path: [10]}))


def test_partitions_are_not_replaced_while_rows_are_listed_without_one(writer: SnapshotWriter) -> None:
    first = writer.snapshot("append", [A])
    overwrite = writer.snapshot("overwrite", [B])
    overwrite = replace(overwrite, summary={"operation": "overwrite", "replace-partitions": "true"})
    refused(writer, Unsupported, "listed without one", first, overwrite)
    # a table that never had a partition has nothing apart
    terms = replace(new_terms(), specs={0: UNPARTITIONED})
    assert len(plan(writer, first, overwrite, terms=terms)) == 2


def test_values_that_do_not_fit_into_ducklakes_narrower_type_are_told(writer: SnapshotWriter) -> None:
    def file(name: str, most: int) -> DataFile:
        low, high = (0).to_bytes(4, "little"), most.to_bytes(4, "little")
        counts = {"value_counts": {1: 10}, "null_value_counts": {1: 0}}
        return data_file(name, **counts, lower_bounds={1: low}, upper_bounds={1: high})

    terms = new_terms({1: "int8", 2: "varchar"})
    fits, not_so = plan(
        writer, writer.snapshot("append", [file("x", 127)]), writer.snapshot("append", [file("y", 128)]), terms=terms
    )
    assert (fits.out_of_range, not_so.out_of_range) == (frozenset(), frozenset({1}))


changes = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.integers(0, 20), max_size=2),
        st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=4),
    ),
    min_size=1,
    max_size=5,
)


@given(changes)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_commit_adds_removes_and_deletes_each_file_and_row_comes_and_goes_once(
    tmp_path: Path, story: list[tuple[int, list[int], list[tuple[int, int]]]]
) -> None:
    writer = SnapshotWriter(tmp_path)
    progress = nothing_yet()
    live: dict[str, dict[int, int]] = {}
    expected: list[tuple[list[str], list[str]]] = []
    # since when rows are deleted, of every file that has ever been there
    since: dict[str, dict[int, int]] = {}
    snapshots: list[AddedSnapshot] = []
    for index, (count, removed, deleted) in enumerate(story):
        there = sorted(live)
        delete: dict[str, set[int]] = {}
        gone = sorted({there[i % len(there)] for i in removed}) if there else []
        for i, position in deleted:
            if there and (path := there[i % len(there)]) not in gone:
                delete.setdefault(path, set()).add(position)
        new = [data_file(f"{index}-{n}") for n in range(count)]
        snapshots.append(writer.snapshot("overwrite", new, gone, delete))
        expected.append(([f.file_path for f in new], gone))
        for path in gone:
            del live[path]
        for path, positions in delete.items():
            for position in positions:
                live[path].setdefault(position, FIRST + index)
        live |= {f.file_path: since.setdefault(f.file_path, {}) for f in new}
    steps = plan(writer, *snapshots, progress=progress)
    assert [(paths(step), list(step.ended_paths)) for step in steps] == expected
    assert progress.new == dict.fromkeys(live, 10)
    written = [(path, prepared) for step in steps for path, prepared in step.deletes_on_new.items()]
    assert len(dict(written)) == len(written), "a data file has one delete file"
    assert {path for path, _ in written} == {path for path, rows in since.items() if rows}
    for path, prepared in written:
        rows = since[path]
        dates = set(rows.values())
        assert dated(prepared) == (rows if len(dates) > 1 else dict.fromkeys(rows))


@asynccontextmanager
async def served_table(lake: TestLake, name: str) -> AsyncGenerator[tuple[ServedTables, int]]:
    async with open_lake(lake.settings) as opened:
        served = await opened.tables()
        yield served, await create_table(served.pool, name)


class OnLake:
    """A client that has loaded a table of the lake, and is about to commit."""

    def __init__(self, writer: SnapshotWriter, scene: Scene, progress: Progress) -> None:
        self.writer, self.scene, self.progress = writer, scene, progress

    @classmethod
    async def load(cls, served: ServedTables, table_id: int, folder: Path) -> "OnLake":
        writer = SnapshotWriter(folder)
        answer = await served.answer(table_id, await served.look())
        reading = answer.table.reading
        assert reading.main is not None
        chain = answer.table.chain_of(reading.main)
        assert chain is not None
        shop = served.materialiser.shop
        listed = await shop.manifests.read_list(chain.manifest_list)
        for manifest in listed:
            for entry in await shop.manifests.read(manifest):
                if entry.status != DELETED:
                    kept = writer.data if entry.data_file.content == DATA else writer.deletes
                    kept[entry.data_file.file_path] = entry.data_file
        writer.main = reading.main.snapshot.iceberg_id
        scene = scene_of(
            writer,
            pool=served.pool,
            objects=shop.objects,
            manifests=shop.manifests,
            view=reading.view,
            at=reading.head.snapshot_id,
        )
        return cls(writer, scene, Progress(writer.main, listed, reading.next_row_id, FIRST, FIRST))

    async def plan(self, *snapshots: AddedSnapshot) -> list[DataStep]:
        return await planned(self.scene, self.progress, snapshots)


def test_files_of_the_lake_go_by_their_ids(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with served_table(lake, "goes_by_id") as (served, table_id):
            first, second, third = await append(served.pool, table_id, "a", "b", "c")
            client = await OnLake.load(served, table_id, tmp_path)
            by_path = dict(lake.sql("SELECT path, data_file_id FROM ducklake_data_file WHERE table_id = %s", table_id))
            ids = {path: by_path[path.rpartition("/")[2]] for path in client.writer.data}
            assert sorted(ids.values()) == [first, second, third]
            path_of = {file_id: path for path, file_id in ids.items()}
            one, two = await client.plan(
                client.writer.snapshot("overwrite", [A], remove=[path_of[second]]),
                client.writer.snapshot("delete", remove=[path_of[third], A.file_path]),
            )
            assert (one.ended, one.ended_paths, paths(one)) == ([second], [], [A.file_path])
            assert (two.ended, two.ended_paths) == ([third], [A.file_path])
            assert client.progress.ended == {second, third}

    run(story)


def test_rows_that_go_from_a_file_of_the_lake_are_folded_and_a_file_without_rows_goes(
    lake: TestLake, tmp_path: Path
) -> None:
    async def story() -> None:
        async with served_table(lake, "rows_go") as (served, table_id):
            (file_id,) = await append(served.pool, table_id, "a")
            client = await OnLake.load(served, table_id, tmp_path)
            (path,) = client.writer.data
            one, two, three = await client.plan(
                client.writer.snapshot("delete", delete={path: [1, 2]}),
                client.writer.snapshot("delete", delete={path: [2, 4]}),
                client.writer.snapshot("delete", delete={path: range(ROWS)}),
            )
            # what the first two delete is told by the second, and then nothing is left
            assert (one.deletes, one.deletes_are_elsewhere, one.ended) == ([], True, [])
            (deletes,) = two.deletes
            assert (deletes.file.id, deletes.file.path, deletes.replaces) == (file_id, path, [])
            assert dict(zip(deletes.prepared.before.positions, deletes.prepared.before.snapshot_ids, strict=True)) == {
                1: FIRST,
                2: FIRST,
            }
            assert (sorted(deletes.prepared.new), deletes.prepared.snapshot_id) == ([4], FIRST + 1)
            assert (three.ended, three.deletes) == ([file_id], [])
            assert deletes.prepared.location in client.scene.drawer.litter

    run(story)


def test_a_delete_file_goes_only_if_what_it_deleted_stays_deleted(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with served_table(lake, "lifted") as (served, table_id):
            (file_id,) = await append(served.pool, table_id, "a")
            # as DuckDB deletes a few rows
            rows = f"ducklake_inlined_delete_{table_id}"
            lake.sql(f"CREATE TABLE public.{rows} (file_id BIGINT, row_id BIGINT, begin_snapshot BIGINT)")
            lake.sql(f"GRANT ALL ON public.{rows} TO PUBLIC")
            at = (await served.look()).snapshot_id
            lake.sql(f"INSERT INTO {rows} VALUES (%s, 3, %s), (%s, 4, %s)", file_id, at, file_id, at)
            client = await OnLake.load(served, table_id, tmp_path)
            (path,), (theirs,) = client.writer.data, client.writer.deletes
            (step,) = await client.plan(client.writer.snapshot("delete", delete={path: [3, 4, 7]}, lift=[theirs]))
            (deletes,) = step.deletes
            assert sorted(deletes.prepared.new) == [7]
            assert sorted(deletes.prepared.before.positions) == [3, 4]
            other = await OnLake.load(served, table_id, tmp_path)
            with pytest.raises(Unsupported, match="cannot come back"):
                await other.plan(other.writer.snapshot("overwrite", delete={path: [3, 7]}, lift=[theirs]))
            out = await OnLake.load(served, table_id, tmp_path)
            with pytest.raises(BadRequest, match=f"Position {ROWS} is deleted"):
                await out.plan(out.writer.snapshot("delete", delete={path: [ROWS]}))

    run(story)


def test_inlined_rows_end_by_their_keys_and_each_once(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with served_table(lake, "inlined_rows_end") as (served, table_id):
            begin = await inline(served.pool, table_id, [5, 6, 7, 8])
            client = await OnLake.load(served, table_id, tmp_path)
            (path,) = client.writer.data
            one, two, three = await client.plan(
                client.writer.snapshot("delete", delete={path: [1]}),
                client.writer.snapshot("delete", delete={path: [1, 2]}),
                client.writer.snapshot("overwrite", [A], remove=[path]),
            )
            assert one.ended_rows == [(6, begin)]
            assert two.ended_rows == [(7, begin)]
            assert three.ended_rows == [(5, begin), (8, begin)]
            assert [(step.ended, step.deletes) for step in (one, two, three)] == [([], [])] * 3
            other = await OnLake.load(served, table_id, tmp_path)
            with pytest.raises(BadRequest, match="Position 4 is deleted"):
                await other.plan(other.writer.snapshot("delete", delete={path: [4]}))

    run(story)


def test_a_file_that_another_commit_has_ended_cannot_be_removed(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with served_table(lake, "ended_before") as (served, table_id):
            (file_id,) = await append(served.pool, table_id, "a")
            client = await OnLake.load(served, table_id, tmp_path)
            (path,) = client.writer.data
            lake.sql("UPDATE ducklake_data_file SET end_snapshot = %s WHERE data_file_id = %s", FIRST, file_id)
            with pytest.raises(CommitFailed, match="not in the table any more"):
                await client.plan(client.writer.snapshot("delete", remove=[path]))

    run(story)
