"""Plans as rows of the lake: what one transaction writes, read back from Postgres and as clients are shown it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from mergus.annex import once
from mergus.catalog import commit_plan, commit_write, table_places
from mergus.catalog.commit_plan import Change, Plan
from mergus.catalog.lake import Lake
from mergus.errors import BadRequest
from mergus.iceberg import position_deletes
from mergus.iceberg.metadata import MAIN, Ref
from mergus.iceberg.partition_spec import UNPARTITIONED, PartitionField, PartitionSpec
from mergus.iceberg.requirements import AssertCreate
from mergus.iceberg.schema import Field, Schema
from mergus.iceberg.sort_order import SortField, SortOrder
from mergus.iceberg.updates import (
    AddSchema,
    AddSortOrder,
    AddSpec,
    AssignUuid,
    RemoveProperties,
    RemoveRef,
    RemoveSnapshots,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetProperties,
    SetRef,
    Update,
)
from mergus.storage.location import Location
from tests.support.committing import NAMESPACE, Client, context, load, onto_main, opened
from tests.support.lakes import Row, TestLake
from tests.support.made_tables import ROWS, SCHEMA, append, create_table, inline
from tests.support.snapshot_writer import SnapshotWriter


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # pyright: ignore[reportArgumentType]


@asynccontextmanager
async def table(lake: TestLake, folder: Path, name: str, *files: str) -> AsyncGenerator[Lake]:
    """A lake with a table that has a snapshot for each file."""
    async with opened(lake, folder) as made:
        table_id = await create_table(made.pool, name)
        for file in files:
            await append(made.pool, table_id, file)
        yield made


async def write(lake: Lake, *plans: Plan) -> tuple[list[int], list[Location]]:
    """The ids of the tables, and what was put on storage under the lock."""
    litter: list[Location] = []
    place = (await lake.tables()).materialiser.place
    async with lake.commit(context()) as tx:
        return await commit_write.write(tx, lake.objects, place, plans, litter), litter


async def committed(client: Client, *updates: Update) -> Client:
    """The table after the commit, as a client loads it."""
    await write(client.lake, await client.plan(*updates))
    return await load(client.lake, client.name)


def snapshots(lake: TestLake) -> dict[int, str]:
    """What each says that it changed."""
    return {row[0]: row[4] for row in lake.snapshots()}


def new_snapshots(lake: TestLake, before: dict[int, str]) -> list[tuple[int, str]]:
    return [(at, words) for at, words in snapshots(lake).items() if at not in before]


def epoch(lake: TestLake) -> int:
    ((found,),) = lake.sql("SELECT epoch FROM catalog")
    return found


def files(lake: TestLake, table_id: int) -> list[Row]:
    """(id, path's last part, begin, end, first row id), in order."""
    query = """SELECT data_file_id, regexp_replace(path, '.*/', ''), begin_snapshot, end_snapshot, row_id_start
               FROM ducklake_data_file WHERE table_id = %s ORDER BY 1"""
    return lake.sql(query, table_id)


def test_snapshots_of_one_commit_are_as_many_of_the_lake_and_come_together(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "write_append", "a") as made:
            client = await load(made, "write_append")
            before = snapshots(lake)
            head = max(before)
            writer = client.writer
            first = writer.snapshot("append", [writer.file("one", 3), writer.file("two", 4)])
            second = writer.snapshot("append", [writer.file("three", 5)])
            after = await committed(client, *onto_main(first, second))
            words = f"inserted_into_table:{client.table_id}"
            assert new_snapshots(lake, before) == [(head + 1, words), (head + 2, words)]
            assert [row[1:] for row in files(lake, client.table_id)[1:]] == [
                ("one.parquet", head + 1, None, ROWS),
                ("two.parquet", head + 1, None, ROWS + 3),
                ("three.parquet", head + 2, None, ROWS + 7),
            ]
            assert [s.snapshot.iceberg_id for s in after.answer.table.listed][1:] == [
                first.snapshot_id,
                second.snapshot_id,
            ]
            assert after.answer.written.metadata.current_snapshot_id == second.snapshot_id
            assert set(after.writer.data) == set(writer.data)
            left_over = {row[0] for row in lake.sql("SELECT path FROM garbage WHERE table_id = %s", client.table_id)}
            assert {first.manifest_list, second.manifest_list} <= left_over
            assert left_over.isdisjoint(writer.data)

    run(story)


def test_a_snapshot_that_changes_nothing_is_one_all_the_same(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "write_empty", "a") as made:
            client = await load(made, "write_empty")
            before = snapshots(lake)
            empty = client.writer.snapshot("append")
            after = await committed(client, *onto_main(empty))
            ((_, words),) = new_snapshots(lake, before)
            assert words == f"inserted_into_table:{client.table_id}"
            assert after.answer.written.metadata.current_snapshot_id == empty.snapshot_id

    run(story)


def test_what_ducklake_has_no_row_for_raises_the_epoch_and_what_it_has_does_not(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "write_properties", "a") as made:
            client = await load(made, "write_properties")
            before, known = snapshots(lake), epoch(lake)
            client = await committed(client, SetProperties({"a": "1", "b": "2"}))
            assert (snapshots(lake), epoch(lake)) == (before, known + 1)
            client = await committed(client, RemoveProperties(("a",)), SetProperties({"comment": "about it"}))
            ((_, words),) = new_snapshots(lake, before)
            assert (words, epoch(lake)) == (f"altered_table:{client.table_id}", known + 1)
            shown = client.answer.written.metadata.properties
            assert (shown.get("a"), shown["b"], shown["comment"]) == (None, "2", "about it")
            client = await committed(client, RemoveProperties(("comment",)))
            assert "comment" not in client.answer.written.metadata.properties
            # the same once more is nothing at all
            before, known = snapshots(lake), epoch(lake)
            await committed(client, SetProperties({"b": "2"}))
            assert (snapshots(lake), epoch(lake)) == (before, known)

    run(story)


def test_rows_that_are_deleted_are_dated_by_the_snapshots_that_the_commit_gets(lake: TestLake, tmp_path: Path) -> None:
    """Somebody else commits between the plan and the lock."""

    async def story() -> None:
        async with table(lake, tmp_path, "write_deletes", "a") as made:
            other = await create_table(made.pool, "write_deletes_other")
            client = await load(made, "write_deletes")
            (path,) = client.writer.data
            one = client.writer.snapshot("delete", delete={path: [1, 2]})
            two = client.writer.snapshot("delete", delete={path: [5]})
            plan = await client.plan(*onto_main(one, two))
            await append(made.pool, other, "meanwhile")
            head = max(snapshots(lake))
            _, litter = await write(made, plan)
            query = """SELECT begin_snapshot, delete_count, partial_max, path FROM ducklake_delete_file
                       WHERE table_id = %s AND end_snapshot IS NULL"""
            ((begin, count, last, where),) = lake.sql(query, client.table_id)
            assert (begin, count, last) == (head + 1, 3, head + 2)
            content = await made.objects.get(Location.parse(where))
            assert content is not None
            dated = position_deletes.read(content)
            assert dict(zip(dated.positions, dated.snapshot_ids or [], strict=True)) == {
                1: head + 1,
                2: head + 1,
                5: head + 2,
            }
            # the one that was planned is not needed, and is known to be there
            assert [str(place) for place in litter] == [where]
            assert str(client.litter[0]) != where
            words = [words for at, words in snapshots(lake).items() if at > head]
            assert all(f"deleted_from_table:{client.table_id}" in word for word in words)
            assert all(f"inlined_delete:{client.table_id}" in word for word in words)
            after = await load(made, "write_deletes")
            assert [e.record_count for e in after.writer.deletes.values()] == [3]

    run(story)


def test_files_that_come_and_go_within_a_commit_leave_no_live_row(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "write_come_and_go", "a") as made:
            client = await load(made, "write_come_and_go")
            writer, head = client.writer, max(snapshots(lake))
            (old,) = writer.data
            new = writer.file("new")
            both = [
                writer.snapshot("overwrite", [new], remove=[old]),
                writer.snapshot("delete", delete={new.file_path: [0]}),
                writer.snapshot("delete", remove=[new.file_path], lift=list(writer.deletes)),
            ]
            after = await committed(client, *onto_main(*both))
            assert [row[2:4] for row in files(lake, client.table_id)] == [(head, head + 1), (head + 1, head + 3)]
            ends = lake.sql("SELECT end_snapshot FROM ducklake_delete_file WHERE table_id = %s", client.table_id)
            assert ends == [(head + 3,)]
            assert after.writer.data == {}
            assert len(after.answer.table.listed) == 4

    run(story)


def test_inlined_rows_that_a_client_deletes_end(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "write_inlined") as made:
            served = await made.tables()
            table_id = await served.resolve(NAMESPACE, "write_inlined", await served.look())
            await inline(made.pool, table_id, [0, 1, 2])
            client = await load(made, "write_inlined")
            (path,) = client.writer.data
            await committed(client, *onto_main(client.writer.snapshot("delete", delete={path: [1]})))
            ((name,),) = lake.sql(
                "SELECT table_name FROM ducklake_inlined_data_tables WHERE table_id = %s", client.table_id
            )
            rows = lake.sql(f"SELECT row_id, end_snapshot FROM {name} ORDER BY row_id")
            assert rows == [(0, None), (1, max(snapshots(lake))), (2, None)]

    run(story)


def test_a_transaction_is_one_snapshot_of_all_its_tables(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "write_two_a", "a") as made:
            await create_table(made.pool, "write_two_b")
            before = snapshots(lake)
            clients = [await load(made, name) for name in ("write_two_a", "write_two_b")]
            counts = (1, 2)
            plans: list[Plan] = []
            for client, count in zip(clients, counts, strict=True):
                writer = client.writer
                several = [writer.snapshot("append", [writer.file(str(n))]) for n in range(count)]
                plans.append(await client.plan(*onto_main(*several)))
            ids, _ = await write(made, *plans)
            assert ids == [client.table_id for client in clients]
            first, second = new_snapshots(lake, before)
            assert first[1] == ",".join(f"inserted_into_table:{i}" for i in ids)
            assert second[1] == f"inserted_into_table:{ids[1]}"
            # each knows its own
            shown = [(await load(made, c.name)).answer.written.metadata.current_snapshot_id for c in clients]
            assert shown == [c.writer.main for c in clients]

    run(story)


async def plan_new(lake: Lake, name: str, *updates: Update) -> tuple[UUID, Plan]:
    uuid = uuid4()
    places = await table_places.of_new(
        lake, uuid, "main", str((await lake.tables()).materialiser.place.root / str(uuid))
    )
    change = Change(NAMESPACE, name, [AssertCreate()], [AssignUuid(str(uuid)), *updates])
    return uuid, await commit_plan.plan(lake, change, None, None, places, [])


DEFINED: list[Update] = [AddSchema(SCHEMA, 0), SetCurrentSchema(0), AddSpec(UNPARTITIONED), SetDefaultSpec(0)]


def test_a_table_that_is_created_is_what_the_client_said(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(lake, tmp_path) as made:
            schema = Schema((Field(2, "s", "string", doc="first"), Field(1, "i", "int", required=True)), (1,))
            spec = PartitionSpec(0, (PartitionField(1, 1000, "part", "identity"),))
            order = SortOrder(1, (SortField(2), SortField(1, transform="bucket[4]"), SortField(1)))
            before, known = snapshots(lake), epoch(lake)
            uuid, plan = await plan_new(
                made,
                "write_created",
                *(AddSchema(schema, 0), SetCurrentSchema(0), AddSpec(spec), SetDefaultSpec(0)),
                *(AddSortOrder(order), SetDefaultSortOrder(1), SetProperties({"a": "b"})),
            )
            ((table_id,), _) = await write(made, plan)
            assert len(new_snapshots(lake, before)) == 1
            assert epoch(lake) == known, "the snapshot says it"
            client = await load(made, "write_created")
            shown: Any = client.answer.written.metadata
            assert (shown.table_uuid, client.table_id) == (str(uuid), table_id)
            assert [f["name"] for f in shown.schemas[0]["fields"]] == ["s", "i"]
            assert shown.schemas[0]["identifier-field-ids"] == [1]
            (shown_spec,) = [s for s in shown.partition_specs if s["spec-id"] == shown.default_spec_id]
            assert [(f["source-id"], f["transform"], f["name"]) for f in shown_spec["fields"]] == [
                (1, "identity", "part")
            ]
            (shown_order,) = [o for o in shown.sort_orders if o["order-id"] == shown.default_sort_order_id]
            assert [f["transform"] for f in shown_order["fields"]] == ["identity", "bucket[4]", "identity"]
            # DuckLake has the beginning that it can sort by
            query = """SELECT expression FROM ducklake_sort_expression JOIN ducklake_sort_info USING (sort_id, table_id)
                       WHERE table_id = %s AND end_snapshot IS NULL ORDER BY sort_key_index"""
            assert len(lake.sql(query, table_id)) == 1
            assert (shown.properties["a"], shown.format_version) == ("b", 2)

    run(story)


def test_a_table_is_created_together_with_its_first_rows(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(lake, tmp_path) as made:
            uuid = uuid4()
            root = (await made.tables()).materialiser.place.root
            writer = SnapshotWriter(Path("/") / (root / str(uuid)).key)
            places = await table_places.of_new(made, uuid, "main", str(root / str(uuid)))
            snapshot = writer.snapshot("append", [writer.file("first")])
            updates = [AssignUuid(str(uuid)), *DEFINED, *onto_main(replace(snapshot, schema_id=0))]
            change = Change(NAMESPACE, "write_with_rows", [AssertCreate()], updates)
            before = snapshots(lake)
            await write(made, await commit_plan.plan(made, change, None, None, places, []))
            ((_, words),) = new_snapshots(lake, before)
            client = await load(made, "write_with_rows")
            assert words == f'created_table:"main"."write_with_rows",inserted_into_table:{client.table_id}'
            assert list(client.writer.data) == list(writer.data)

    run(story)


def test_columns_that_change_are_rows_that_end_and_begin_and_an_order_is_kept_beside(
    lake: TestLake, tmp_path: Path
) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "write_columns", "a") as made:
            client = await load(made, "write_columns")
            head = max(snapshots(lake))
            changed = Schema((Field(3, "d", "date"), Field(2, "t", "string"), Field(1, "i", "long")))
            client = await committed(client, AddSchema(changed, 1), SetCurrentSchema(1))
            query = """SELECT column_id, column_name, column_type, begin_snapshot = %s, end_snapshot
                       FROM ducklake_column WHERE table_id = %s ORDER BY 1, begin_snapshot"""
            assert lake.sql(query, head + 1, client.table_id) == [
                (1, "i", "int32", False, head + 1),
                (1, "i", "int64", True, None),
                (2, "s", "varchar", False, head + 1),
                (2, "t", "varchar", True, None),
                (3, "d", "date", True, None),
            ]
            assert client.answer.table.reading.schema == changed

    run(story)


def test_a_rollback_lists_files_again_and_tells_what_main_is(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "write_rollback", "a", "b") as made:
            client = await load(made, "write_rollback")
            first = client.answer.table.listed[0].snapshot
            (_, name, *_), _ = files(lake, client.table_id)
            (oldest,) = [path for path in client.writer.data if path.endswith(f"/{name}")]
            client = await committed(client, *onto_main(client.writer.snapshot("delete", remove=[oldest])))
            count = len(client.answer.table.listed)
            client = await committed(client, SetRef(MAIN, Ref(first.iceberg_id, "branch")))
            assert client.answer.written.metadata.current_snapshot_id == first.iceberg_id
            assert len(client.answer.table.listed) == count, "Iceberg has no new snapshot"
            *_, again = files(lake, client.table_id)
            assert [row[3] is None for row in files(lake, client.table_id)] == [False, False, True]
            assert (again[1], again[4]) == (name, 0), "rows have the ids that they had"
            assert list(client.writer.data) == [oldest]

    run(story)


def test_tags_and_removed_snapshots_are_kept_by_the_lakes_numbers(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "write_refs", "a", "b") as made:
            client = await load(made, "write_refs")
            writer = client.writer
            own = writer.snapshot("append", [writer.file("c")])
            older = client.answer.table.listed[0].snapshot
            tagged = Ref(own.snapshot_id, "tag", max_ref_age_ms=5)
            old = SetRef("old", Ref(older.iceberg_id, "tag"))
            client = await committed(client, *onto_main(own), SetRef("mine", tagged), old)
            lakes = max(snapshots(lake))
            rows = lake.sql(
                "SELECT name, snapshot_id, retention FROM table_ref WHERE table_id = %s ORDER BY 1", client.table_id
            )
            assert rows == [("mine", lakes, {"max-ref-age-ms": 5}), ("old", older.id, {})]
            refs = client.answer.written.metadata.refs
            assert (refs["mine"], refs["old"].snapshot_id) == (tagged, older.iceberg_id)
            client = await committed(client, RemoveRef("old"), RemoveSnapshots((older.iceberg_id,)))
            assert lake.sql("SELECT snapshot_id FROM removed_snapshot WHERE table_id = %s", client.table_id) == [
                (older.id,)
            ]
            assert set(client.answer.written.metadata.refs) == {"mine"}
            assert older.iceberg_id not in [s.snapshot.iceberg_id for s in client.answer.table.listed]
            # main has a row for its retention alone
            kept = SetRef(MAIN, Ref(own.snapshot_id, "branch", min_snapshots_to_keep=7))
            client = await committed(client, kept)
            assert client.answer.written.metadata.main_retention.min_snapshots_to_keep == 7

    run(story)


def test_what_is_to_be_committed_once_is_not_committed_twice(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "write_once", "a") as made:
            summary = {"operation": "append", once.PROPERTY: "batch 7"}
            first = await load(made, "write_once")
            await committed(
                first, *onto_main(first.writer.snapshot("append", [first.writer.file("a")], summary=summary))
            )
            again = await load(made, "write_once")
            again.writer.next_id = first.writer.next_id
            snapshot = again.writer.snapshot("append", [again.writer.file("b")], summary=summary)
            before = snapshots(lake)
            with pytest.raises(
                BadRequest, match=f"batch 7 is in the table already, committed as snapshot {first.writer.main}"
            ):
                await write(made, await again.plan(*onto_main(snapshot)))
            assert snapshots(lake) == before

    run(story)
