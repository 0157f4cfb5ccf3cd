"""What a client's commit is found to mean before any lock is taken: against tables that our own commits have made."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.catalog import commit_plan
from mergus.catalog.commit_data import DataStep
from mergus.catalog.commit_plan import Change, Plan, next_snapshot, terms_of
from mergus.catalog.lake import Lake
from mergus.catalog.restore import RestoreStep
from mergus.ducklake.columns import Column, Columns, Span
from mergus.ducklake.partitions import Key
from mergus.errors import BadRequest, CommitFailed, Unsupported
from mergus.iceberg.arrangement import arranged
from mergus.iceberg.metadata import MAIN, Ref
from mergus.iceberg.name_mapping import PROPERTY
from mergus.iceberg.partition_spec import PartitionField, PartitionSpec
from mergus.iceberg.requirements import AssertCreate, AssertCurrentSchemaId, AssertRefSnapshotId, AssertTableUuid
from mergus.iceberg.schema import Field, List, Schema, Struct, Type
from mergus.iceberg.updates import (
    AddSchema,
    AddSnapshot,
    AddSpec,
    AssignUuid,
    RemoveRef,
    SetCurrentSchema,
    SetDefaultSpec,
    SetProperties,
    SetRef,
    Update,
)
from mergus.storage.location import Location
from tests.support.committing import NAMESPACE, Client, load, onto_main, opened
from tests.support.lakes import TestLake
from tests.support.made_tables import SCHEMA, append, create_table
from tests.support.snapshot_writer import CLIENTS, SnapshotWriter

LATER = 2**62


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # pyright: ignore[reportArgumentType]


def planned_new(*updates: Update) -> Plan:
    """Of a table that is created without rows: nothing of the lake is asked for but its settings."""
    lake: Any = SimpleNamespace(settings=SimpleNamespace(format_version=2), objects=None)
    nowhere: Any = None
    change = Change(NAMESPACE, "new", [AssertCreate()], [AssignUuid(str(uuid4())), *updates])
    return asyncio.run(commit_plan.plan(lake, change, None, None, nowhere, []))


def test_a_change_says_what_it_creates_and_which_snapshots_it_adds(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    uuid = str(uuid4())
    both = [writer.snapshot("append"), writer.snapshot("append")]
    change = Change(NAMESPACE, "t", [AssertCreate()], [AssignUuid(uuid), *onto_main(*both)])
    assert (change.creates, change.uuid, change.snapshot_ids) == (True, uuid, [CLIENTS + 1, CLIENTS + 2])
    other = Change(NAMESPACE, "t", [AssertTableUuid(uuid)], [])
    assert (other.creates, other.uuid, other.snapshot_ids) == (False, None, [])


KINDS = ("int", "long", "string", "date", "double", "decimal(9, 2)", "timestamptz", "struct", "list")


@st.composite
def new_schemas(draw: st.DrawFn) -> Schema:
    """That DuckLake can keep, with ids in any order."""
    ids = iter(draw(st.permutations(range(1, 20))))
    fields: list[Field] = []
    for n, kind in enumerate(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))):
        made: Type = kind
        if kind == "struct":
            made = Struct((Field(next(ids), "one", "int"), Field(next(ids), "two", "string")))
        elif kind == "list":
            made = List(Field(next(ids), "element", "string"))
        fields.append(Field(next(ids), f"c{n}", made, draw(st.booleans()), draw(st.none() | st.just("about it"))))
    able = [f.id for f in fields if f.required and f.type in {"int", "long", "string", "date"}]
    return Schema(tuple(fields), tuple(draw(st.lists(st.sampled_from(able), unique=True))) if able else ())


@given(new_schemas())
def test_a_new_table_is_shown_as_its_schema_says(schema: Schema) -> None:
    plan = planned_new(AddSchema(schema, 0), SetCurrentSchema(0))
    shown = plan.columns_after.schema_at(LATER)
    wanted = plan.schema
    assert [(f.id, f.name, f.doc) for f in arranged(shown, wanted).walk()] == [
        (f.id, f.name, f.doc) for f in wanted.walk()
    ]
    assert [f.required for f in arranged(shown, wanted).fields] == [f.required for f in wanted.fields]
    # DuckLake has columns in the order of their ids, and knows none that identify rows: all else is kept beside it
    is_plain = [f.id for f in shown.walk()] == [f.id for f in wanted.walk()] and not wanted.identifier_ids
    assert plan.arrangement == (None if is_plain else wanted)
    assert plan.steps == []
    assert plan.columns.ended == ()


def test_a_new_table_has_leaves_of_ducklakes_types_and_keys_as_far_as_it_knows_them() -> None:
    schema = Schema((Field(1, "i", "int"), Field(2, "s", "string"), Field(3, "d", "date")))
    spec = PartitionSpec(0, (PartitionField(3, 1000, "m", "month"), PartitionField(2, 1001, "s", "identity")))
    plan = planned_new(AddSchema(schema, 0), SetCurrentSchema(0), AddSpec(spec), SetDefaultSpec(0))
    assert plan.leaf_types == {1: "int32", 2: "varchar", 3: "date"}
    assert [row.name for row in plan.columns.inserted] == ["i", "s", "d"]
    assert list(plan.keys) == [Key(3, "year"), Key(3, "month"), Key(2, "identity")]
    terms = terms_of(plan, None)
    assert terms.partition_types == {1000: "int", 1001: "string"}
    assert {i: list(keys) for i, keys in terms.keys.items()} == {0: list(plan.keys)}
    assert terms.columns == {1: "int32", 2: "varchar", 3: "date"}


def test_two_columns_of_one_name_are_refused() -> None:
    schema = Schema((Field(1, "a", "int"), Field(2, "A", "int")))
    with pytest.raises(BadRequest, match="are the same to DuckDB"):
        planned_new(AddSchema(schema, 0), SetCurrentSchema(0))


def test_a_name_mapping_that_is_none_is_refused() -> None:
    defined = [AddSchema(SCHEMA, 0), SetCurrentSchema(0)]
    plan = planned_new(*defined, SetProperties({PROPERTY: '[{"field-id": 1, "names": ["i"]}]'}))
    assert [field.id for field in terms_of(plan, None).name_mapping] == [1]
    with pytest.raises(BadRequest, match="no name mapping"):
        terms_of(planned_new(*defined, SetProperties({PROPERTY: "{}"})), None)


columns = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 9), st.one_of(st.none(), st.integers(10, 20))), max_size=6
)


@given(columns, st.sets(st.integers(1, 6)))
def test_columns_after_a_commit_are_those_that_it_leaves_and_its_own(
    rows: list[tuple[int, int, int | None]], ended: set[int]
) -> None:
    had = Columns([Column(i, Span(begin, end), f"c{i}", "int32", True, None) for i, begin, end in rows])
    new = planned_new(AddSchema(Schema((Field(7, "new", "long"),)), 0), SetCurrentSchema(0)).columns
    after = commit_plan._after(had, replace(new, ended=tuple(ended)))
    live = sorted(c.id for c in after.columns if c.span.at(LATER))
    # fresh ids are given from 1 on
    (added,) = new.inserted
    assert live == sorted([*(i for i, _, end in rows if end is None and i not in ended), added.id])
    # what was there before is what it was
    for at in (0, 9, 15, 30):
        assert sorted(c.id for c in after.columns if c.span.at(at)) == sorted(
            c.id for c in had.columns if c.span.at(at)
        )


@asynccontextmanager
async def table(lake: TestLake, folder: Path, name: str, *files: str) -> AsyncGenerator[tuple[Lake, Client]]:
    """One with a snapshot for each file, as a client has loaded it."""
    async with opened(lake, folder) as made:
        table_id = await create_table(made.pool, name)
        for file in files:
            await append(made.pool, table_id, file)
        yield made, await load(made, name)


def data(plan: Plan) -> list[DataStep]:
    found = [step for step in plan.steps if isinstance(step, DataStep)]
    assert len(found) == len(plan.steps)
    return found


def test_an_append_is_a_step_for_each_snapshot_and_leaves_the_definition_alone(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "plan_append", "a") as (opened_lake, client):
            writer = client.writer
            one, two = writer.file("one"), writer.file("two")
            both = [writer.snapshot("append", [one]), writer.snapshot("append", [two])]
            plan = await client.plan(*onto_main(*both))
            first, second = data(plan)
            assert [[p.file.path for p in step.added] for step in (first, second)] == [[one.file_path], [two.file_path]]
            assert (first.ended, second.ended, plan.arrangement, plan.columns) == ([], [], None, type(plan.columns)())
            assert plan.update.schema is None
            assert client.litter == []
            assert await next_snapshot(opened_lake) == client.answer.head.snapshot_id + 1

    run(story)


def test_a_requirement_that_does_not_hold_is_a_conflict(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "plan_requirement", "a") as (_, client):
            for wrong in (
                AssertTableUuid(str(uuid4())),
                AssertCurrentSchemaId(9),
                AssertRefSnapshotId(MAIN, 3),
                AssertCreate(),
            ):
                with pytest.raises(CommitFailed, match="Requirement failed"):
                    await client.plan(SetProperties({"a": "b"}), requirements=[wrong])

    run(story)


def test_an_append_to_an_older_snapshot_is_taken_and_an_overwrite_is_not(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "plan_rebased", "a") as (opened_lake, stale):
            await append(opened_lake.pool, stale.table_id, "meanwhile")
            client = await load(opened_lake, "plan_rebased")
            base = stale.writer.main
            new = stale.writer.file("new")
            snapshot = stale.writer.snapshot("append", [new])
            required = [AssertRefSnapshotId(MAIN, base)]
            (step,) = data(await client.plan(*onto_main(snapshot), requirements=required))
            assert [p.file.path for p in step.added] == [new.file_path]
            assert (step.ended, step.told.snapshot_id) == ([], snapshot.snapshot_id)
            overwrite = replace(snapshot, summary={"operation": "overwrite"})
            with pytest.raises(CommitFailed, match="Requirement failed"):
                await client.plan(*onto_main(overwrite), requirements=required)
            # without the requirement, too: it says itself what it was built on
            with pytest.raises(CommitFailed, match=r"follows snapshot \d+, and main is at"):
                await client.plan(*onto_main(overwrite))

    run(story)


def test_a_column_that_is_added_is_the_only_row_that_is_written(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "plan_column", "a") as (_, client):
            wider = Schema((*SCHEMA.fields, Field(3, "d", "date")))
            plan = await client.plan(AddSchema(wider, 1), SetCurrentSchema(1))
            assert (plan.columns.ended, [row.name for row in plan.columns.inserted]) == ((), ["d"])
            assert plan.leaf_types == {1: "int32", 2: "varchar", 3: "date"}
            assert (plan.arrangement, plan.steps) == (None, [])
            back = Schema((*reversed(SCHEMA.fields),))
            plan = await client.plan(AddSchema(back, 1), SetCurrentSchema(1))
            assert (plan.arrangement, bool(plan.columns)) == (back, False)

    run(story)


def test_what_may_not_fit_into_a_narrow_column_makes_it_wider(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "plan_wider") as (opened_lake, loaded):
            lake.sql(
                "UPDATE ducklake_column SET column_type = 'int8' WHERE (table_id, column_id) = (%s, 1)", loaded.table_id
            )
            lake.sql("UPDATE catalog SET epoch = epoch + 1")
            client = await load(opened_lake, "plan_wider")
            for most, is_wider in ((127, False), (128, True)):
                bounds: Any = {"lower_bounds": {1: bytes(4)}, "upper_bounds": {1: most.to_bytes(4, "little")}}
                counts: Any = {"value_counts": {1: 10}, "null_value_counts": {1: 0}}
                file = client.writer.file(f"n{most}", **bounds, **counts)
                client.writer.main = None
                plan = await client.plan(*onto_main(client.writer.snapshot("append", [file])))
                assert plan.leaf_types[1] == ("int32" if is_wider else "int8")
                assert plan.columns.ended == ((1,) if is_wider else ())
                assert [(row.id, row.type) for row in plan.columns.inserted] == ([(1, "int32")] if is_wider else [])
                (step,) = data(plan)
                assert step.out_of_range == frozenset()
                client.writer.data.clear()

    run(story)


def test_a_rollback_ends_what_came_since_and_is_not_mixed_with_new_snapshots(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "plan_rollback", "a", "b", "c") as (_, client):
            first = client.answer.table.listed[0].snapshot
            query = "SELECT data_file_id FROM ducklake_data_file WHERE table_id = %s AND begin_snapshot > %s"
            came_since = [row[0] for row in lake.sql(query, client.table_id, first.id)]
            back = SetRef(MAIN, Ref(first.iceberg_id, "branch"))
            (step,) = (await client.plan(back)).steps
            assert isinstance(step, RestoreStep)
            assert (sorted(step.ended), step.again, step.to) == (sorted(came_since), [], first.id)
            assert step.told.main == first.id
            with pytest.raises(Unsupported, match="commit them one by one"):
                await client.plan(*onto_main(client.writer.snapshot("append")), back)

    run(story)


def test_a_table_that_is_replaced_ends_all_its_files_at_once(lake: TestLake, tmp_path: Path) -> None:
    """Main is taken away first, and then a snapshot without a parent says everything itself."""

    async def story() -> None:
        async with table(lake, tmp_path, "plan_replaced", "a", "b") as (_, client):
            query = "SELECT data_file_id FROM ducklake_data_file WHERE table_id = %s"
            every = sorted(row[0] for row in lake.sql(query, client.table_id))
            client.writer.data.clear()
            client.writer.main = None
            snapshot = client.writer.snapshot("append", [client.writer.file("instead")])
            (step,) = data(await client.plan(RemoveRef(MAIN), *onto_main(snapshot)))
            assert (sorted(step.ended), step.told.is_root, len(step.added)) == (every, True, 1)

    run(story)


def test_a_place_that_is_not_the_tables_is_refused_before_anything_is_read(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "plan_place", "a") as (_, client):
            elsewhere = SnapshotWriter(tmp_path / str(uuid4()))
            elsewhere.main, elsewhere.data = client.writer.main, dict(client.writer.data)
            with pytest.raises(BadRequest, match="outside of the table's locations"):
                await client.plan(*onto_main(elsewhere.snapshot("append", [client.writer.file("x")])))
            inside = client.writer.snapshot("append", [elsewhere.file("y")])
            with pytest.raises(BadRequest, match=r"y\.parquet lies outside"):
                await client.plan(*onto_main(inside))

    run(story)


def test_what_is_written_on_the_way_is_noted_as_litter(lake: TestLake, tmp_path: Path) -> None:
    async def story() -> None:
        async with table(lake, tmp_path, "plan_litter", "a") as (opened_lake, client):
            (path,) = client.writer.data
            plan = await client.plan(*onto_main(client.writer.snapshot("delete", delete={path: [1, 2]})))
            (step,) = data(plan)
            (deletes,) = step.deletes
            assert client.litter == [deletes.prepared.location]
            assert await opened_lake.objects.size(deletes.prepared.location) == len(deletes.prepared.folded.data)
            own = Location.parse(str(tmp_path))
            assert (own / "ducklake").contains(deletes.prepared.location), "no client is told of a place above it"
            # the snapshots' own objects are not litter: only a commit that is made leaves them over
            assert set(step.leftovers) >= {
                s.snapshot.manifest_list for s in plan.change.updates if isinstance(s, AddSnapshot)
            }

    run(story)
