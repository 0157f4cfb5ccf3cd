"""A connection to Postgres that breaks while COMMIT is under way: the server finds out what became of it, and only then
answers."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest
from pydantic import SecretStr

from tests.support import lakes, servers
from tests.support.lakes import TestLake
from tests.support.listeners import Proxy, proxy
from tests.support.servers import Server
from tests.support.writers import Raw, rows

LOCK, COMMIT = b"LOCK TABLE ducklake_snapshot", b"COMMIT"


class Treacherous(Proxy):
    """Breaks the connection of the next commit, once: before COMMIT gets through (`unheard`), or when its answer comes
    (`unanswered`)."""

    plan: str | None = None

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        locked = False
        with suppress(OSError):
            while data := one.recv(65536):
                locked = locked or LOCK in data
                if locked and COMMIT in data and self.plan is not None:
                    plan, self.plan = self.plan, None
                    if plan == "unanswered":
                        # who reads the answers is the other thread: it finds the door shut
                        one.shutdown(socket.SHUT_RDWR)
                        other.sendall(data)
                    break
                locked = locked and COMMIT not in data
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_WR if end is other else socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def between() -> Iterator[tuple[TestLake, Treacherous, str]]:
    with lakes.lake() as lake, proxy(lake.settings.dsn) as (plain, dsn):
        plain.__class__ = Treacherous
        assert isinstance(plain, Treacherous)
        yield lake, plain, dsn


@pytest.fixture(scope="module")
def running(between: tuple[TestLake, Treacherous, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    lake, _, dsn = between
    settings = lake.settings.model_copy(update={"postgres_dsn": SecretStr(dsn)})
    with servers.server(settings, Path(tmp_path_factory.mktemp("server")), listener="off") as server:
        yield server


@pytest.mark.parametrize("plan", ["unheard", "unanswered"])
def test_the_client_hears_of_its_commit_once_it_is_made_once(
    between: tuple[TestLake, Treacherous, str], running: Server, plan: str
) -> None:
    lake, network, _ = between
    db: duckdb.DuckDBPyConnection = lake.duckdb()
    db.execute(f"CREATE TABLE {plan}(i INTEGER, s VARCHAR)")
    raw = Raw(lake, running, plan)
    file = raw.data_file(rows(1, 2))
    before = len(lake.sound_snapshots())
    network.plan = plan
    answer = raw.commit("append", add=[file])
    assert network.plan is None
    assert answer.status_code == 200, answer.text
    assert len(lake.sound_snapshots()) == before + 1
    assert db.execute(f"SELECT i FROM {plan} ORDER BY i").fetchall() == [(1,), (2,)]
    # nothing is held: the next writer gets its turn at once
    db.execute(f"INSERT INTO {plan} VALUES (3, 'x')")
    assert raw.refresh().commit("append", add=[raw.data_file(rows(4))]).status_code == 200
    assert db.execute(f"SELECT count(*) FROM {plan}").fetchall() == [(4,)]
