"""The lake as the leading listener measures it for `/metrics`, beside its work."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mergus.catalog import lake_health
from mergus.catalog.lake import Lake, open_lake
from mergus.catalog.listener_status import LAKE_GAUGES, measure
from mergus.catalog.listening import listening
from mergus.ducklake import inlined_counts
from mergus.materialise import listener
from mergus.metrics import exposition
from tests.support import lakes
from tests.support.lakes import TestLake
from tests.support.listeners import samples

pytestmark = pytest.mark.integration

SECONDS = 20.0
BEHIND = "SELECT FROM ducklake_snapshot WHERE snapshot_id > (SELECT done_id FROM listener)"


async def gauges(lake: Lake) -> dict[str, float]:
    found = samples(exposition(await measure(lake)).decode())
    return {name: value for (name, _), value in found.items() if name.startswith("mergus_lake_")}


async def until(lake: Lake, **wanted: float) -> dict[str, float]:
    """Gauges that are so, by the ends of their names."""
    found: dict[str, float] = {}
    async with asyncio.timeout(SECONDS):
        while not all(found.get(f"mergus_lake_{name}") == value for name, value in wanted.items()):
            await asyncio.sleep(0.02)
            found = await gauges(lake)
    return found


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():  # noqa: ASYNC110  (nobody would set an event)
            await asyncio.sleep(0.02)


def test_the_leading_listener_updates_the_lake_gauges_periodically(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "MEASURE_SECONDS", 0.1)
    monkeypatch.setattr(listener, "MEASURE_SHARE", 1.0)

    async def story(made: TestLake) -> None:
        async with open_lake(made.settings) as lake:
            assert await gauges(lake) == {}
            async with listening(lake, stands=True):
                found = await until(lake, tables=0, data_files=0, inlined_rows=0, deleted_rows_ratio=0)
                assert found.keys() == {name for name, _ in LAKE_GAUGES.values()} | {
                    "mergus_lake_measured_timestamp_seconds"
                }
                with made.duckdb() as db:
                    db.execute("CREATE TABLE t AS SELECT * FROM range(400) t(i); INSERT INTO t VALUES (1), (2)")
                    db.execute("DELETE FROM t WHERE i BETWEEN 100 AND 199")
                    before = found["mergus_lake_measured_timestamp_seconds"]
                    found = await until(lake, tables=1, data_files=1, small_files=1, inlined_rows=2)
                    found = await until(lake, deleted_rows_ratio=0.25, scheduled_files=0)
                    ((snapshots,),) = made.sql("SELECT count(*) FROM ducklake_snapshot")
                    assert found["mergus_lake_snapshots"] == snapshots
                    assert found["mergus_lake_measured_timestamp_seconds"] > before
                    await breaks(made, lake)
            # what one has measured that is gone says nothing of the lake of today; Postgres may see a moment later
            # that it is gone
            async with asyncio.timeout(SECONDS):
                while await gauges(lake) != {}:  # noqa: ASYNC110  (nobody would set an event)
                    await asyncio.sleep(0.02)

    async def breaks(made: TestLake, lake: Lake) -> None:
        """It goes wrong, and the listener goes on."""
        made.sql("ALTER TABLE ducklake_files_scheduled_for_deletion RENAME TO hidden")
        await eventually(lambda: "the lake could not be measured" in caplog.text)
        with made.duckdb() as db:
            db.execute("CREATE TABLE u(i INTEGER)")
        await eventually(lambda: not made.sql(BEHIND))
        made.sql("ALTER TABLE hidden RENAME TO ducklake_files_scheduled_for_deletion")
        await until(lake, tables=2)

    with lakes.lake() as made:
        asyncio.run(story(made))


def test_rows_flushed_while_the_lake_is_measured_are_counted_in_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The very table of inlined rows that is about to be counted is dropped, as flushes do."""

    async def story(made: TestLake) -> None:
        async with open_lake(made.settings) as lake:
            read = lake_health.health.read
            met: list[int] = []

            async def late(*args: Any, **kinds: Any) -> Any:
                if not met:
                    met.append(1)
                    # after this state of the lake was taken, and before its rows are counted
                    with made.duckdb() as db:
                        db.execute("CALL ducklake_flush_inlined_data('lake')")
                return await read(*args, **kinds)

            with made.duckdb() as db:
                db.execute("CREATE TABLE t(i INTEGER); INSERT INTO t VALUES (1), (2), (3)")
                db.execute("ALTER TABLE t ADD COLUMN j INTEGER; INSERT INTO t VALUES (4, 4)")
            monkeypatch.setattr(lake_health.health, "read", late)
            found = [table async for page in lake_health.pages(lake.pool, lake.settings) for table in page]
            assert met
            assert [(t.rows, t.inlined_rows) for t in found] == [(4, 0)]
            await in_pages(made, lake)

    async def in_pages(made: TestLake, lake: Lake) -> None:
        with made.duckdb() as db:
            for rows in range(1, 6):
                db.execute(f"CREATE TABLE t{rows}(i INTEGER); INSERT INTO t{rows} SELECT * FROM range({rows})")
        monkeypatch.setattr(lake_health.health, "TABLES_IN_A_PAGE", 2)
        monkeypatch.setattr(inlined_counts, "COUNTED_AT_ONCE", 1)
        found = [[t.inlined_rows for t in page] async for page in lake_health.pages(lake.pool, lake.settings)]
        assert found == [[0, 1], [2, 3], [4, 5], []]

    with lakes.lake() as made:
        asyncio.run(story(made))
