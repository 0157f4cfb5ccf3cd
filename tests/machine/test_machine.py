"""DuckDB does anything to two tables of a lake, in any order, and Iceberg readers see at every snapshot what it sees.

The suite runs a few programs, always the same. A long run, of others each time:

    MERGUS_TEST_EXAMPLES=500 ./scripts/test tests/machine

What fails is told with the shortest program that was found to fail, as statements, and the number to run it again by:

    MERGUS_TEST_SEED=1234 ./scripts/test tests/machine

Spark is asked about the newest snapshot only, after a few programs: it takes seconds for what PyIceberg does in
milliseconds.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.machine.example import Example, World
from tests.machine.iceberg_view import Rows, file_io
from tests.machine.programs import Program, program, shortest
from tests.support import lakes, servers, spark

ASKED = os.environ.get("MERGUS_TEST_EXAMPLES")
SEED = os.environ.get("MERGUS_TEST_SEED")
EXAMPLES = 1 if SEED else int(ASKED or 8)
FIRST = int(SEED or (random.randrange(10**9) if ASKED else 1))
LENGTH = 20
# each costs as much as an example
SHRINKING = 60


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with lakes.lake() as lake, ExitStack() as stack:
        folder: Path = tmp_path_factory.mktemp("servers")
        # a snapshot that is not listed yet is not a fault, but here it would hide one
        options = {"format_version": request.param, "history_patience": 60.0}
        # one listens, whoever makes what
        running = [
            stack.enter_context(servers.server(lake.settings, folder, listener=listener, **options))
            for listener in (servers.LISTENER, "off")
        ]
        postgres = stack.enter_context(psycopg.connect(lake.settings.dsn, autocommit=True))
        world = World(lake, running, request.param, file_io(lake.settings), lake.duckdb(), postgres)
        yield world
        world.db.close()


AtTheEnd = Callable[[Example], None]


def run(world: World, seeds: range, at_the_end: AtTheEnd | None = None) -> None:
    for seed in seeds:
        failing = program(seed, LENGTH)
        if _failure(world, failing, at_the_end) is not None:
            found = shortest(failing, lambda p: _failure(world, p, at_the_end) is not None, SHRINKING)
            failure = _failure(world, found, at_the_end) or "(it does not fail again)"
            pytest.fail(f"MERGUS_TEST_SEED={seed}\n{failure}", pytrace=False)


def _failure(world: World, steps: Program, at_the_end: AtTheEnd | None) -> str | None:
    example = Example(world)
    try:
        example.run(steps, at_the_end)
    except Exception as e:
        return "\n".join([*example.log, f"{type(e).__name__}: {e}"])
    return None


def spark_agrees(catalog: str) -> AtTheEnd:
    def check(example: Example) -> None:
        for t in example.tables:
            found = spark.session().table(f"{catalog}.{t.full_name}")
            rows = Rows.of(found.columns, (list(row.asDict(recursive=True).values()) for row in found.collect()))
            wanted = example.duckdb_rows(t)
            assert rows == wanted, f"{t.full_name} in Spark: {rows.difference(wanted)}"

    return check


def test_iceberg_shows_at_every_snapshot_what_duckdb_shows(world: World) -> None:
    run(world, range(FIRST, FIRST + EXAMPLES))


@pytest.mark.integration
def test_spark_shows_the_current_rows_that_duckdb_shows(world: World) -> None:
    catalog = spark.catalog(world.lake.settings, world.servers[0].uri)
    run(world, range(FIRST, FIRST + max(1, EXAMPLES // 4)), spark_agrees(catalog))
