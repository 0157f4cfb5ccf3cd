import logging
from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import settings

from tests.support import lakes, servers
from tests.support.lakes import TestLake
from tests.support.servers import Server

# Run by `./scripts/test --heavy`: whole processes that die at every step, writers at once, long stories and requests
# that chance writes, Apache's kit, stacks that come and go.
HEAVY = (
    "tests/concurrency/",
    "tests/conformance/",
    "tests/embedded/test_dev.py",
    "tests/faults/",
    "tests/interop/test_time_travel.py",
    "tests/interop/test_trino.py",
    "tests/interop/test_views_past.py",
    "tests/machine/",
    "tests/maintenance/test_killed.py",
    "tests/pipeline/",
    "tests/rck/",
    "tests/test_demo.py",
    "tests/test_guide.py",
)

# a line for each request of a test would hide what a failure has to say
logging.getLogger("httpx").setLevel(logging.WARNING)

# how long an example takes on a machine that does other things as well says nothing
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(HEAVY):
            item.add_marker("heavy")


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    """A lake that the tests of one module share: each uses names of its own."""
    with lakes.lake() as made:
        yield made


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def db(lake: TestLake) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB session that is attached before the test does anything."""
    session = lake.duckdb()
    yield session
    session.close()
