"""A connection to Postgres that breaks while COMMIT is under way: the server finds out what became of it, and only then
answers."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest
from pydantic import SecretStr

from tests.support import lakes, servers
from tests.support.lakes import TestLake
from tests.support.listeners import Proxy, proxy
from tests.support.servers import Server, error_of
from tests.support.views import commit, drop, load, names, rename, replace, texts, url, wanted
from tests.support.writers import Raw, rows

LOCK, COMMIT = b"LOCK TABLE ducklake_snapshot", b"COMMIT"


class Treacherous(Proxy):
    """Breaks the connection of the next commit, once: before COMMIT gets through (`unheard`), or when its answer comes
    (`unanswered`)."""

    plan: str | None = None

    def _pass(self, one: socket.socket, other: socket.socket, overhear: Callable[[bytes], None]) -> None:
        locked = False
        with suppress(OSError):
            while data := one.recv(65536):
                overhear(data)
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
def test_a_commit_whose_connection_broke_is_applied_once_and_acknowledged(
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


# One that is a row of DuckLake's and makes a snapshot, and one of which the annex alone knows.
TEXTS = {"duckdb": "SELECT 1 AS i, 's' AS s", "spark": "SELECT 1, 's'"}


@pytest.mark.parametrize("dialect", TEXTS)
@pytest.mark.parametrize("plan", ["unheard", "unanswered"])
def test_the_server_finds_the_outcome_of_a_view_change_whose_connection_broke(
    between: tuple[TestLake, Treacherous, str], running: Server, plan: str, dialect: str
) -> None:
    lake, network, _ = between
    schema, first, second = f"{plan}_{dialect}", TEXTS[dialect], f"{TEXTS[dialect]} LIMIT 1"
    assert running.create(schema).status_code == 200

    def shown() -> dict[str, str]:
        return {name: texts(load(running, schema, name))[dialect] for name in names(running, schema)}

    steps = [
        (lambda: running.http.post(url(running, schema), json=wanted(schema, "v", **{dialect: first})), {"v": first}),
        (lambda: commit(running, schema, "v", replace(schema, **{dialect: second})), {"v": second}),
        (lambda: rename(running, (schema, "v"), (schema, "w")), {"w": second}),
        (lambda: drop(running, schema, "w"), {}),
    ]
    before: dict[str, str] = {}
    for send, after in steps:
        snapshots = len(lake.sound_snapshots())
        network.plan = plan
        answer = send()
        assert network.plan is None, (answer.status_code, answer.text, after)
        if plan == "unheard":
            # nothing of it was made, and the client knows
            assert error_of(answer) == (503, "ServiceUnavailableException")
            assert shown() == before
            assert len(lake.sound_snapshots()) == snapshots
            answer = send()
        assert answer.status_code in {200, 204}, answer.text
        assert shown() == after
        assert len(lake.sound_snapshots()) == snapshots + (dialect == "duckdb")
        before = after


def test_old_commit_markers_are_deleted(between: tuple[TestLake, Treacherous, str], running: Server) -> None:
    lake, _, _ = between
    assert running.create("noted").status_code == 200
    lake.sql("UPDATE commit_marker SET made_at = now() - interval '2 hours'")
    for name in ("v", "w"):
        body = wanted("noted", name, spark="SELECT 1")
        assert running.http.post(url(running, "noted"), json=body).status_code == 200
    assert lake.sql("SELECT count(*) FROM commit_marker") == [(2,)]
