"""Where the jobs work that are tested: the lake of a module, from both sides."""

import pytest

from mergus.client import Address, Client
from mergus.pipeline.job import Place, Run
from mergus.serve import environment
from tests.support import spark as sparks
from tests.support.lakes import TestLake
from tests.support.servers import Server


@pytest.fixture(scope="module")
def place(lake: TestLake, server: Server) -> Place:
    spark, catalog = sparks.session(), sparks.catalog(lake.settings, server.uri)
    return Place(Client(Address(server.uri)), spark, catalog)


@pytest.fixture
def run() -> Run:
    return Run("test", lambda _: None)


@pytest.fixture
def as_user(lake: TestLake, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell in which commands find the lake and its server; Spark is the session of all tests."""
    for name, value in environment(lake.of_writers).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MERGUS_URI", server.uri)
    sparks.session()
