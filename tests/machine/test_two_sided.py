"""DuckDB and Iceberg's clients take turns on two tables, and both see the same at every snapshot.

As `test_machine`, which has DuckDB alone write. A long run:

    MERGUS_TEST_EXAMPLES=500 ./scripts/test tests/machine/test_two_sided.py
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.machine.example import World
from tests.machine.iceberg_view import file_io
from tests.machine.programs import Program, program, shortest
from tests.machine.test_machine import ASKED, FIRST, SEED, SHRINKING
from tests.machine.two_sided import WEIGHTS, TwoSided
from tests.support import lakes, loads, servers

EXAMPLES = 1 if SEED else int(ASKED or 5)
LENGTH = 16


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with lakes.lake() as lake, ExitStack() as stack:
        folder: Path = tmp_path_factory.mktemp("servers")
        options = {"format_version": request.param, "history_patience": 60.0}
        running = [
            stack.enter_context(servers.server(lake.settings, folder, listener=listener, **options))
            for listener in (servers.LISTENER, "off")
        ]
        postgres = stack.enter_context(psycopg.connect(lake.settings.dsn, autocommit=True))
        world = World(lake, running, request.param, file_io(lake.settings), lake.duckdb(), postgres)
        yield world
        world.db.close()


def failure(world: World, steps: Program) -> str | None:
    catalogs = [loads.catalog(world.lake.settings, server) for server in world.servers]
    example = TwoSided(world, catalogs=catalogs)
    try:
        example.run(steps)
    except Exception as e:
        return "\n".join([*example.log, f"{type(e).__name__}: {e}"])
    return None


def test_duckdb_and_iceberg_clients_see_the_same_rows_after_random_writes_of_both(world: World) -> None:
    for seed in range(FIRST, FIRST + EXAMPLES):
        failing = program(seed, LENGTH, WEIGHTS)
        if failure(world, failing) is not None:
            found = shortest(failing, lambda p: failure(world, p) is not None, SHRINKING)
            told = failure(world, found) or "(it does not fail again)"
            pytest.fail(f"MERGUS_TEST_SEED={seed}\n{told}", pytrace=False)
