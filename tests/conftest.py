import gc
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import duckdb
import pytest
from hypothesis import settings

from tests.support import lakes, servers, spark, spark_archive
from tests.support.lakes import TestLake
from tests.support.servers import Server

# Run by `./scripts/test --heavy`: whole processes that die at every step, writers at once, long stories and requests
# that chance writes, Apache's kit, stacks that come and go.
HEAVY = (
    "tests/concurrency/",
    "tests/conformance/",
    "tests/ducklake/test_data_changes.py::test_one_commit_adds_100000_files",
    "tests/embedded/test_dev.py",
    "tests/faults/",
    "tests/interop/test_time_travel.py",
    "tests/interop/test_trino.py",
    "tests/interop/test_views_past.py",
    "tests/machine/",
    "tests/maintenance/test_killed.py",
    "tests/pipeline/",
    "tests/rck/",
    # environments that are installed from nothing
    "tests/test_command_line.py::TestEnvironment",
    "tests/test_demo.py",
    "tests/test_guide.py",
)

# Run by `./scripts/test --unit`, but for tests in these places that have a lake or are marked `integration`.
UNIT = (
    "tests/access/",
    "tests/catalog/",
    "tests/ducklake/",
    "tests/embedded/test_state.py",
    "tests/iceberg/",
    "tests/materialise/",
    "tests/pipeline/test_canonical.py",
    "tests/pipeline/test_definition.py",
    "tests/pipeline/test_history.py",
    "tests/pipeline/test_imports_parts.py",
    "tests/pipeline/test_stats_texts.py",
    "tests/storage/",
    "tests/test_documents.py",
    "tests/test_readers.py",
    "tests/test_shared.py",
)

# fixtures that set up lakes
LAKES = {"lake", "pair"}

# a line for each request of a test would hide what a failure has to say
logging.getLogger("httpx").setLevel(logging.WARNING)

# how long an example takes on a machine that does other things as well says nothing
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(UNIT) and not item.get_closest_marker("integration") and not _needs_lake(item):
            item.add_marker("unit")
        elif item.nodeid.startswith(HEAVY):
            item.add_marker("heavy")
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    # the long ones first, so that no process works alone at the end
    items.sort(key=lambda item: item.get_closest_marker("unit") is not None)


def pytest_collection_finish() -> None:
    # Half a million objects of modules and tests live until the end. The garbage collector need not look at them, and
    # what tests leave is small.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _needs_lake(item: pytest.Item) -> bool:
    return not LAKES.isdisjoint(getattr(item, "fixturenames", ()))


def _group(item: pytest.Item) -> str:
    """Tests of one group run in one process: those that share the lake and the servers of their module."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    versions = [str(params[name]) for name in ("served", "sharing") if name in params]
    return " ".join([item.nodeid.split("::")[0], *versions])


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


class SharedSpark:
    """Launches the Spark process that all processes of a distributed run connect to."""

    def __init__(self, *, starts_others: bool) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        # whether tests of this run start Spark processes of their own
        self._starts_others = starts_others

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self) -> None:
        # before the first of them starts: each inherits the variable that says where Spark is
        self._processes.append(spark.launch())
        if self._starts_others and not spark_archive.archive().exists():
            self._processes.append(spark_archive.start_writing())

    def pytest_unconfigure(self) -> None:
        for process in self._processes:
            # it may be starting still, and would notice only then that its input is closed
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr != "unit":
        spark_archive.use_archive()
        config.pluginmanager.register(SharedSpark(starts_others=config.option.markexpr == "heavy"))
