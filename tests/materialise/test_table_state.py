"""A table as a process has it: which chains it makes, which it has from before, and which it does not trust.

Values by hand first; then tables that our own commits have written, on the lake's Postgres and S3.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.annex import tables as annex
from mergus.annex.chains import Chain
from mergus.ducklake import alter, column_changes
from mergus.ducklake.connect import Pool, connection, one_state, open_pool
from mergus.ducklake.data_changes import DataChanges
from mergus.ducklake.metadata import check_served
from mergus.ducklake.snapshots import Snapshot
from mergus.errors import NoSuchTable, Unsupported
from mergus.iceberg.schema import Field, Schema
from mergus.materialise import reading, table
from mergus.materialise.layout import root_beside
from mergus.materialise.reading import FORMAT_VERSION, HIDDEN_COLUMNS, HIDE, UNSUPPORTED_COLUMNS, Place, Shown
from mergus.materialise.table import Materialised, Materialiser
from mergus.metrics import WORK
from mergus.storage.location import Location
from mergus.storage.objects import Objects
from tests.support.lakes import TestLake
from tests.support.made_tables import (
    SCHEMA,
    append,
    change,
    committed,
    create_table,
    drop_table,
    inline,
    new_file,
    read_table,
)

LONG = 60.0
TOTALS = {"delete_files": 0}


def snapshot(at: int) -> Snapshot:
    return Snapshot(at, datetime(2026, 1, 1, 0, 0, at, tzinfo=UTC), frozenset(), at, None, None, None)


def chain(at: int, as_of: int) -> Chain:
    return Chain(at, snapshot(at).time, as_of, 0, "{}", f"s3://b/{at}-{as_of}", {"totals": TOTALS})


def shown(at: int, *, listed: bool = True) -> Shown:
    return Shown(snapshot(at), None, None, listed, SCHEMA, reading.schema_text(SCHEMA))


@dataclass
class Read:
    """Of what is read of a table, what says which chains it needs."""

    shown: list[Shown]
    merges: list[tuple[int, int]]
    mains: list[tuple[Snapshot, Shown | None]]

    @property
    def main(self) -> Shown | None:
        return self.mains[-1][1] if self.mains else None


def read(*ids: int, merges: list[tuple[int, int]] | None = None) -> Any:
    every = [shown(at) for at in ids]
    return cast(Any, Read(every, merges or [], [(s.snapshot, s) for s in every]))


def materialised(found: Any, *chains: Chain) -> Materialised:
    return Materialised(found, {}, {c.snapshot_id: c for c in chains}, {})


@pytest.mark.parametrize(
    ("at", "as_of", "is_stale"),
    [
        (4, 5, True),
        (6, 6, True),
        (6, 7, True),
        # from before the oldest file that was merged, and from after the merge
        (3, 5, False),
        (8, 8, False),
        # made when the merge was known
        (4, 8, False),
        (6, 9, False),
    ],
)
def test_a_chain_is_stale_if_a_merge_has_taken_files_since_that_it_lists(at: int, as_of: int, is_stale: bool) -> None:
    found, made = read(3, 4, 6, 8, merges=[(4, 8)]), {at: chain(at, as_of)}
    assert (at not in table._valid(found, made)) is is_stale
    assert (at in [s.snapshot.id for s in table._todo(found, made)]) is is_stale


@given(st.sets(st.integers(1, 12), min_size=1), st.dictionaries(st.integers(1, 12), st.integers(1, 12)), st.data())
def test_every_snapshot_has_a_chain_that_holds_or_is_to_be_made_and_never_both(
    ids: set[int], known: dict[int, int], data: st.DataObject
) -> None:
    spans = st.tuples(st.integers(0, 12), st.integers(1, 12)).filter(lambda span: span[0] < span[1])
    found = read(*sorted(ids), merges=data.draw(st.lists(spans, max_size=3)))
    made = {at: chain(at, max(at, as_of)) for at, as_of in known.items()}
    todo = [s.snapshot.id for s in table._todo(found, made)]
    valid = table._valid(found, made)
    assert todo == sorted(ids - valid.keys()), "in order, so that each is the next one's base"
    for at, one in valid.items():
        assert not any(first <= at < merge and merge > one.as_of for first, merge in found.merges)


def test_snapshots_are_listed_when_they_have_a_chain_and_the_oldest_without_one_is_known() -> None:
    found = read(2, 4, 6)
    one = materialised(found, chain(4, 6), chain(6, 6))
    assert [s.snapshot.id for s in one.listed] == [4, 6]
    assert one.missing_from == 2
    assert materialised(found, *(chain(at, 6) for at in (2, 4, 6))).missing_from is None
    assert materialised(read()).missing_from is None


def test_main_that_was_put_back_is_shown_by_the_chain_that_was_made_then() -> None:
    found = read(2, 4, 6)
    found.shown[2] = shown(6, listed=False)
    found.mains = [*found.mains[:2], (found.shown[2].snapshot, found.shown[0])]
    first, second, back = chain(2, 6), chain(4, 6), chain(6, 6)
    one = materialised(found, first, second, back)
    assert [s.snapshot.id for s in one.listed] == [2, 4]
    assert (one.chain_of(found.shown[0]), one.chain_of(found.shown[1])) == (back, second)
    # it is there again only when that is made
    assert [s.snapshot.id for s in materialised(found, first, second).listed] == [4]


def run(lake: TestLake, story: Callable[[Pool], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with open_pool(lake.settings) as pool:
            await story(pool)

    asyncio.run(opened())


@asynccontextmanager
async def process(lake: TestLake, pool: Pool) -> AsyncGenerator[Materialiser]:
    """One that knows nothing yet."""
    async with connection(pool) as conn:
        metadata = await check_served(conn, lake.settings.metadata_schema)
    root = root_beside(metadata.location, lake.settings.iceberg_path)
    place = Place(lake.settings.metadata_schema, metadata.location, root, lake.settings.format_version)
    yield Materialiser(pool, Objects(lake.settings), place)


def ids(found: Materialised) -> list[int]:
    return [s.snapshot.id for s in found.listed]


async def head(pool: Pool) -> int:
    async with connection(pool) as conn:
        row = await (await conn.execute("SELECT max(snapshot_id) FROM ducklake_snapshot")).fetchone()
    assert row is not None
    return row[0]


async def with_history(pool: Pool, name: str, appends: int = 3) -> tuple[int, list[int]]:
    """A table, and the snapshots that put a file into it each."""
    table_id = await create_table(pool, name)
    made: list[int] = []
    for n in range(appends):
        await append(pool, table_id, str(n))
        made.append(await head(pool))
    return table_id, made


def test_what_did_not_change_is_made_once_for_all_processes(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        table_id, made = await with_history(pool, "made_once")
        async with process(lake, pool) as one, process(lake, pool) as other:
            first = await one.table(table_id, LONG)
            assert ids(first) == made
            chains, objects = WORK.chains, WORK.objects
            again = await one.table(table_id, LONG)
            elsewhere = await other.table(table_id, LONG)
            assert again.chains == elsewhere.chains == first.chains
            assert (WORK.chains, WORK.objects) == (chains, objects)

    run(lake, story)


def test_a_commit_makes_one_chain_and_leaves_the_others_as_they_are(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        table_id, made = await with_history(pool, "one_more")
        async with process(lake, pool) as one:
            before = await one.table(table_id, LONG)
            await append(pool, table_id, "more")
            chains = WORK.chains
            after = await one.table(table_id, LONG)
            assert WORK.chains == chains + 1
            assert ids(after) == [*made, await head(pool)]
            assert {at: after.chains[at] for at in made} == before.chains
            totals = [c.counts["totals"]["records"] for _, c in sorted(after.chains.items())]
            assert totals == [10, 20, 30, 40]

    run(lake, story)


def test_the_newest_snapshot_comes_first_and_history_as_far_as_there_is_patience(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        table_id, made = await with_history(pool, "newest_first", 4)
        async with process(lake, pool) as one:
            first = await one.table(table_id, -1)
            assert (ids(first), first.missing_from) == ([made[-1]], made[0])
            whole = await one.table(table_id, LONG)
            assert (ids(whole), whole.missing_from) == (made, None)
            # the newest was not made again
            assert whole.chains[made[-1]] == first.chains[made[-1]]

    run(lake, story)


@pytest.mark.parametrize("broken", ["missing", "cut off"])
@pytest.mark.parametrize("start", ["snap-", "files-data-"])
def test_what_is_missing_or_cut_off_is_made_again_by_the_next_process_that_sees_the_table(
    lake: TestLake, broken: str, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(pool: Pool) -> None:
        table_id, made = await with_history(pool, f"{broken}_{start}".replace(" ", "_"), 2)
        async with process(lake, pool) as one:
            first = await one.table(table_id, LONG)
            newest = first.chains[made[-1]]
            listed = await one.shop.manifests.read_list(newest.manifest_list)
            path = newest.manifest_list if start == "snap-" else listed[0].manifest_path
            assert path.rpartition("/")[2].startswith(start)
            place = Location.parse(path)
            whole = await one.objects.get(place)
            assert whole is not None
            if broken == "missing":
                await one.objects.delete(place)
            else:
                await one.objects.put(place, whole[:-10])
        ((epoch,),) = lake.sql("SELECT epoch FROM catalog")
        async with process(lake, pool) as other:
            again = await other.table(table_id, LONG)
            assert ids(again) == made
            assert await other.objects.get(place) == whole, "names are by content, and content is the same"
        assert lake.sql("SELECT epoch FROM catalog") == [(epoch + 1,)], "nobody shows what was made of it"

    with caplog.at_level(logging.WARNING, "mergus"):
        run(lake, story)
    assert any("is made again" in record.message for record in caplog.records)


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_chain_that_another_process_threw_away_is_not_shown_from_memory(lake: TestLake, is_counted: bool) -> None:
    """Whether or not the lake has counted that it went."""

    async def story(pool: Pool) -> None:
        table_id, made = await with_history(pool, f"thrown_away_{is_counted}", 2)
        async with process(lake, pool) as one:
            await one.table(table_id, LONG)
            if not is_counted:
                lake.sql("ALTER TABLE chain DISABLE TRIGGER USER")
            lake.sql("DELETE FROM chain WHERE table_id = %s", table_id)
            lake.sql("ALTER TABLE chain ENABLE TRIGGER USER")
            before = WORK.chains
            assert ids(await one.table(table_id, LONG)) == made
            assert WORK.chains == before + 2
            assert lake.sql("SELECT count(*) FROM chain WHERE table_id = %s", table_id) == [(2,)]

    run(lake, story)


def test_a_chain_that_knows_of_snapshots_which_are_gone_is_thrown_away(lake: TestLake) -> None:
    """As after a restore of the lake without our own tables."""

    async def story(pool: Pool) -> None:
        table_id, made = await with_history(pool, "from_the_future", 2)
        async with process(lake, pool) as one:
            await one.table(table_id, LONG)
        lake.sql("UPDATE chain SET as_of = as_of + 1000 WHERE table_id = %s", table_id)
        async with process(lake, pool) as other:
            assert ids(await other.table(table_id, LONG)) == made
        assert lake.sql("SELECT DISTINCT as_of FROM chain WHERE table_id = %s", table_id) == [(made[-1],)]

    run(lake, story)


def test_a_chain_of_another_snapshot_of_the_same_number_is_made_again(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        table_id, made = await with_history(pool, "same_number", 2)
        async with process(lake, pool) as one:
            await one.table(table_id, LONG)
        change_time = (
            "UPDATE chain SET snapshot_time = snapshot_time - interval '1 day' WHERE (table_id, snapshot_id) ="
        )
        lake.sql(f"{change_time} (%s, %s)", table_id, made[0])
        before = WORK.chains
        async with process(lake, pool) as other:
            assert ids(await other.table(table_id, LONG)) == made
        assert WORK.chains == before + 1

    run(lake, story)


def test_a_dropped_table_is_gone_but_for_who_asks_for_its_past(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        table_id, made = await with_history(pool, "dropped_state")
        await drop_table(pool, table_id)
        async with process(lake, pool) as one:
            with pytest.raises(NoSuchTable):
                await one.table(table_id, LONG)
            assert ids(await one.table(table_id, LONG, upto=made[-1])) == made
            then = await one.table(table_id, LONG, upto=made[1])
            assert ids(then) == made[:2]
            assert then.reading.head.snapshot_id == await head(pool)

    run(lake, story)


def test_inlined_rows_are_files_of_ours_and_few_of_them(lake: TestLake) -> None:
    """Eight of a size become one."""

    async def story(pool: Pool) -> None:
        table_id = await create_table(pool, "inlined_state")
        async with process(lake, pool) as one:
            counts: list[int] = []
            for n in range(9):
                await inline(pool, table_id, [n])
                made = await one.table(table_id, LONG)
                newest = made.chains[await head(pool)]
                totals = newest.counts["totals"]
                assert totals["records"] == n + 1
                counts.append(totals["data_files"])
            assert counts == [1, 2, 3, 4, 5, 6, 7, 1, 2]

    run(lake, story)


def test_a_snapshot_with_a_file_that_nobody_can_open_is_left_out_unless_it_is_the_newest(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        table_id = await create_table(pool, "unopened")
        await append(pool, table_id, "a")
        first = await head(pool)
        directory = (await read_table(pool, table_id)).paths.directory
        # not called as DuckLake calls its own, so that one looks into it
        (file_id,) = await change(pool, table_id, DataChanges(added=[new_file(f"{directory}foreign.parquet")]))
        async with process(lake, pool) as one:
            with pytest.raises(Unsupported, match=r"foreign\.parquet: it is missing"):
                await one.table(table_id, LONG)
            await change(pool, table_id, DataChanges(ended=[file_id]))
            found = await one.table(table_id, LONG)
            assert ids(found) == [first, await head(pool)]
            assert found.missing_from is None

    run(lake, story)


async def set_property(pool: Pool, table_id: int, key: str, value: str) -> None:
    async with connection(pool) as conn:
        await annex.set_property(conn, table_id, key, value)


def test_chains_of_each_format_version_are_their_own(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        table_id, made = await with_history(pool, "two_versions", 2)
        async with process(lake, pool) as one:
            first = await one.table(table_id, LONG)
            version = first.reading.view.format_version
            other = 5 - version
            await set_property(pool, table_id, FORMAT_VERSION, str(other))
            second = await one.table(table_id, LONG)
            assert (second.reading.view.format_version, ids(second)) == (other, made)
            assert second.rendered is not first.rendered
            assert {c.manifest_list for c in first.chains.values()}.isdisjoint(
                c.manifest_list for c in second.chains.values()
            )
        query = "SELECT format_version, count(*) FROM chain WHERE table_id = %s GROUP BY 1 ORDER BY 1"
        assert lake.sql(query, table_id) == [(2, 2), (3, 2)]

    run(lake, story)


def test_a_table_with_a_column_that_iceberg_does_not_have_is_refused_or_shown_without_it(lake: TestLake) -> None:
    async def story(pool: Pool) -> None:
        table_id, made = await with_history(pool, "hidden_state", 1)
        lake.sql("UPDATE ducklake_column SET column_type = 'interval' WHERE (table_id, column_id) = (%s, 2)", table_id)
        async with process(lake, pool) as one:
            with pytest.raises(Unsupported, match=rf"hidden_state.*column s.*{UNSUPPORTED_COLUMNS}={HIDE}"):
                await one.table(table_id, LONG)
            await set_property(pool, table_id, UNSUPPORTED_COLUMNS, HIDE)
            found = await one.table(table_id, LONG)
            assert [f.name for f in found.reading.schema.fields] == ["i"]
            assert found.reading.properties == {HIDDEN_COLUMNS: '{"s":"interval"}'}
            assert ids(found) == made

    run(lake, story)


def test_schemas_have_numbers_for_good_and_snapshots_those_that_they_were_made_under(lake: TestLake) -> None:
    wider = Schema((*SCHEMA.fields, Field(3, "d", "date")))

    async def alter_to(pool: Pool, table_id: int, before: Schema, after: Schema) -> None:
        async with process(lake, pool) as other, one_state(pool) as conn:
            found = await reading.read(conn, other.place, table_id, None, other.shop.footers, {})
        live = [c for c in found.view.columns.columns if c.span.end is None]
        async with committed(pool) as tx:
            changes = column_changes.altered(live, before, after)
            await alter.write_columns(tx, table_id, changes, is_new=False)

    async def story(pool: Pool) -> None:
        table_id, made = await with_history(pool, "numbered", 1)
        async with process(lake, pool) as one:
            await one.table(table_id, LONG)
            await alter_to(pool, table_id, SCHEMA, wider)
            await append(pool, table_id, "after")
            found = await one.table(table_id, LONG)
        async with process(lake, pool) as other:
            again = await other.table(table_id, LONG)
        assert found.schema_ids == again.schema_ids
        numbers = {s.snapshot.id: found.schema_id(s) for s in found.listed}
        assert (numbers[made[0]], numbers[await head(pool)]) == (0, 1)
        assert [len(s.fields) for s in found.reading.schemas] == [2, 3]

    run(lake, story)
