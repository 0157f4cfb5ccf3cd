"""The server is killed at every step of a change of a view: the change is wholly there or not at all, and a client that
sends it again with the same key is answered as if nothing had happened."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import duckdb
import httpx
import pytest

from mergus import faults
from tests.support import servers
from tests.support.keys import new_key
from tests.support.lakes import TestLake
from tests.support.servers import Server
from tests.support.views import Json, create, load, names, replace, texts, url, wanted

# Until COMMIT nothing of it is there; after that, all is.
BEFORE = ("commit.written", "commit.sealed")
AFTER = ("commit.committed", "commit.answered", "commit.kept")
# One that is a row of DuckLake's, and one of which DuckDB knows nothing.
TEXTS = {"duckdb": "SELECT 1 AS i, 's' AS s", "spark": "SELECT 1, 's'"}
OTHER = {"duckdb": "SELECT 2 AS i, 't' AS s", "spark": "SELECT 2, 't'"}


class Change(NamedTuple):
    """A request, and the text of view v in its schema before and after. None: there is none."""

    method: str
    path: str
    body: Json | None
    schema: str
    dialect: str
    before: str | None
    after: str | None
    key: str

    def send(self, server: Server) -> httpx.Response:
        headers = {"Idempotency-Key": self.key}
        return server.http.request(self.method, self.path, json=self.body, headers=headers)


@pytest.fixture(scope="module")
def living(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("living"), listener="off") as running:
        yield running


def change(server: Server, what: str, dialect: str) -> Change:
    schema = f"s_{uuid4().hex[:8]}"
    assert server.create(schema).status_code == 200
    old, new = TEXTS[dialect], OTHER[dialect]
    if what == "create":
        body = wanted(schema, "v", **{dialect: new})
        return Change("POST", url(server, schema), body, schema, dialect, None, new, new_key())
    create(server, schema, "v", **{dialect: old})
    path = url(server, schema, "v")
    if what == "replace":
        body = {"requirements": [], "updates": replace(schema, **{dialect: new})}
        return Change("POST", path, body, schema, dialect, old, new, new_key())
    return Change("DELETE", path, None, schema, dialect, old, None, new_key())


def check(server: Server, lake: TestLake, made: Change, text: str | None) -> None:
    """Through Iceberg, and in DuckDB."""
    assert names(server, made.schema) == ([] if text is None else ["v"])
    if text is not None:
        assert texts(load(server, made.schema, "v")) == {made.dialect: text}
    with lake.duckdb() as fresh:
        if text is None or made.dialect != "duckdb":
            with pytest.raises(duckdb.CatalogException):
                fresh.execute(f"FROM {made.schema}.v")
        else:
            assert fresh.execute(f"FROM {made.schema}.v").fetchall() == fresh.execute(text).fetchall()


@pytest.mark.parametrize("dialect", TEXTS)
@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
def test_a_view_change_killed_at_any_step_is_atomic_and_a_retry_applies_it_once(
    point: str, dialect: str, lake: TestLake, living: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [change(living, what, dialect) for what in ("create", "replace", "drop")]
    count, there, tells = len(lake.sound_snapshots()), point in AFTER, dialect == "duckdb"
    with ExitStack() as stack:
        monkeypatch.setenv(faults.VARIABLE, point)
        doomed = [
            stack.enter_context(servers.server(lake.settings, tmp_path, wait=False, listener="off")) for _ in "123"
        ]
        monkeypatch.delenv(faults.VARIABLE)
        for made, server in zip(changes, doomed, strict=True):
            server.wait_ready()
            with pytest.raises(httpx.TransportError):
                made.send(server)
            assert server.process.wait(10) == -9
    for made in changes:
        check(living, lake, made, made.after if there else made.before)
    assert len(lake.sound_snapshots()) == count + 3 * (there and tells)
    for made in changes:
        answers = [made.send(living) for _ in range(2)]
        assert [a.status_code for a in answers] == [204 if made.method == "DELETE" else 200] * 2, answers[0].text
        assert answers[0].content == answers[1].content
        check(living, lake, made, made.after)
    assert len(lake.sound_snapshots()) == count + 3 * tells
