"""The server is killed at every step of a commit: it is wholly there or not at all, and sent again it is made once.

`mergus.faults` names the steps. At each of them a server of its own dies for each kind of commit; then another server
gets the very same requests: one that has been there all along, or one that is started then.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import httpx
import pytest
from pyiceberg.catalog import Catalog

from mergus import faults
from tests.support import lakes, loads, servers
from tests.support.lakes import TestLake
from tests.support.servers import Server
from tests.support.writers import Raw, rows

# Until COMMIT nothing of it is there; after that, all is.
BEFORE = ("commit.planned", "commit.locked", "commit.defined", "commit.step", "commit.written", "commit.sealed")
AFTER = ("commit.committed",)
# These are reached by requests with a key alone.
WITH_KEY = ("commit.answered", "commit.kept")
# DuckDB must not have to wait for anything that the dead server held.
AT_ONCE_SECONDS = 20

Json = dict[str, Any]
Content = dict[str, list[tuple[int, str]] | None]


@dataclass
class Request:
    """A commit, ready to be sent, and what the tables of its schema are before and after. None: there is none."""

    schema: str
    path: str
    body: Json
    before: Content
    after: Content
    headers: dict[str, str] = field(default_factory=dict[str, str])

    def send(self, server: Server) -> httpx.Response:
        return server.http.post(self.path, json=self.body, headers=self.headers)


@dataclass
class Place:
    """A lake, a server that lives on, and somebody who has worked with the lake all along."""

    lake: TestLake
    living: Server
    catalog: Catalog
    db: duckdb.DuckDBPyConnection


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Place]]:
    """By format version."""
    with ExitStack() as stack:
        found: dict[int, Place] = {}
        for version in (2, 3):
            lake = stack.enter_context(lakes.lake(format_version=version))
            living = stack.enter_context(servers.server(lake.settings, tmp_path_factory.mktemp("living")))
            found[version] = Place(lake, living, loads.catalog(lake.settings, living), lake.duckdb())
            found[version].db.execute("CREATE TABLE main.other(i INTEGER)")
        yield found


def old() -> list[tuple[int, str]]:
    return [(i, "x") for i in range(40)]


def schema_with_tables(db: duckdb.DuckDBPyConnection, *tables: str) -> str:
    schema = f"s_{uuid4().hex[:8]}"
    db.execute(f"CREATE SCHEMA {schema}")
    for table in tables:
        db.execute(f"CREATE TABLE {schema}.{table}(i INTEGER, s VARCHAR)")
        db.execute(f"INSERT INTO {schema}.{table} SELECT range, 'x' FROM range(40)")
        # rows in Postgres, and deleted from a file by Postgres: a commit may have to touch those
        db.execute(f"INSERT INTO {schema}.{table} VALUES (100, 'x')")
        db.execute(f"DELETE FROM {schema}.{table} WHERE i IN (3, 100)")
    return schema


def was() -> list[tuple[int, str]]:
    return [row for row in old() if row[0] != 3]


def appending(raw: Raw) -> list[Json]:
    return raw.to_main(raw.snapshot("append", add=[raw.data_file(rows(41, 42))]))


def deleting(raw: Raw) -> list[Json]:
    found = raw.places(lambda row: row["i"] in (5, 6))
    return raw.to_main(raw.snapshot("delete", deletes=raw.deletes(found)))


APPENDED, DELETED = [(41, "w"), (42, "w")], {5, 6}


def append(lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection) -> Request:
    schema = schema_with_tables(db, "t")
    raw = Raw(lake, server, "t", schema)
    body = {"requirements": raw.requirements(), "updates": appending(raw)}
    return Request(schema, loads.url(server, "t", schema), body, {"t": was()}, {"t": was() + APPENDED})


def delete(lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection) -> Request:
    schema = schema_with_tables(db, "t")
    raw = Raw(lake, server, "t", schema)
    body = {"requirements": raw.requirements(), "updates": deleting(raw)}
    left = [row for row in was() if row[0] not in DELETED]
    return Request(schema, loads.url(server, "t", schema), body, {"t": was()}, {"t": left})


def create_with_data(lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection) -> Request:
    schema = schema_with_tables(db)
    fields = [("i", "int"), ("s", "string")]
    listed = [{"id": i, "name": n, "type": kind, "required": False} for i, (n, kind) in enumerate(fields, 1)]
    wanted = {"name": "t", "schema": {"type": "struct", "fields": listed}, "stage-create": True}
    answer = server.http.post(f"{server.path(schema)}/tables", json=wanted)
    assert answer.status_code == 200, answer.text
    base = answer.json()["metadata"]
    raw = Raw(lake, server, "t", schema, base=base)
    updates = [
        {"action": "assign-uuid", "uuid": base["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": base["format-version"]},
        {"action": "add-schema", "schema": base["schemas"][0], "last-column-id": base["last-column-id"]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": base["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": base["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": base["location"]},
        *appending(raw),
    ]
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}
    return Request(schema, loads.url(server, "t", schema), body, {"t": None}, {"t": APPENDED})


def two_tables(lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection) -> Request:
    schema = schema_with_tables(db, "t", "u")
    changes: list[Json] = []
    for table, change in (("t", appending), ("u", deleting)):
        raw = Raw(lake, server, table, schema)
        named = {"identifier": {"namespace": [schema], "name": table}}
        changes.append({**named, "requirements": raw.requirements(), "updates": change(raw)})
    left = [row for row in was() if row[0] not in DELETED]
    after: Content = {"t": was() + APPENDED, "u": left}
    body = {"table-changes": changes}
    return Request(schema, "/v1/lake/transactions/commit", body, {"t": was(), "u": was()}, after)


KINDS: dict[str, Callable[[TestLake, Server, duckdb.DuckDBPyConnection], Request]] = {
    "append": append,
    "delete": delete,
    "create with data": create_with_data,
    "two tables": two_tables,
}


def shown_by_duckdb(db: duckdb.DuckDBPyConnection, request: Request, wanted: Content) -> None:
    for table, content in wanted.items():
        name = f"{request.schema}.{table}"
        if content is None:
            with pytest.raises(duckdb.CatalogException):
                db.execute(f"SELECT * FROM {name}")
            continue
        found = db.execute(f"SELECT i, s FROM {name} ORDER BY i").fetchall()
        assert found == sorted(content)
        counted = db.execute(f"SELECT count(*), sum(1 + 0 * i), count(DISTINCT rowid) FROM {name}").fetchall()
        assert counted == [(len(content),) * 3]
        assert db.execute(f"SELECT i FROM {name} WHERE i > 39 ORDER BY i").fetchall() == [
            (i,) for i, _ in sorted(content) if i > 39
        ]
    assert db.execute("SELECT snapshot_id, changes FROM lake.snapshots()").fetchall()


def shown_by_iceberg(catalog: Catalog, request: Request, wanted: Content) -> None:
    for table, content in wanted.items():
        if content is None:
            assert not catalog.table_exists((request.schema, table))
        else:
            loaded = catalog.load_table((request.schema, table))
            assert sorted(loads.rows(loaded.scan().to_arrow())) == sorted(content)


def insert_at_once(db: duckdb.DuckDBPyConnection) -> None:
    """Nothing that the dead server held is in the way."""
    begun = time.monotonic()
    db.execute("INSERT INTO main.other VALUES (1)")
    assert time.monotonic() - begun < AT_ONCE_SECONDS


@pytest.mark.parametrize(("number", "point"), list(enumerate([*BEFORE, *AFTER, *WITH_KEY])))
def test_a_commit_killed_at_any_step_is_atomic_and_a_retry_applies_it_once(
    number: int, point: str, places: dict[int, Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = places[2 + number % 2]
    lake, db = place.lake, place.db
    requests = {kind: make(lake, place.living, db) for kind, make in KINDS.items()}
    for turn, request in enumerate(requests.values(), number // 2):
        # with a key or without: both have to work, and take turns
        if point in WITH_KEY or turn % 2:
            request.headers["Idempotency-Key"] = _uuid7()
        # somebody has it in mind from before
        shown_by_duckdb(db, request, request.before)
    before = len(lake.sound_snapshots())
    there = point not in BEFORE

    with ExitStack() as stack:
        monkeypatch.setenv(faults.VARIABLE, point)
        doomed = [
            stack.enter_context(servers.server(lake.settings, tmp_path, wait=False, listener="off")) for _ in requests
        ]
        monkeypatch.delenv(faults.VARIABLE)
        for server in doomed:
            server.wait_ready()
        for (kind, request), server in zip(requests.items(), doomed, strict=True):
            with pytest.raises(httpx.TransportError):
                request.send(server)
            assert server.process.wait(10) == -9, kind
            insert_at_once(db)
        another, catalog = place.living, place.catalog
        if point in ("commit.sealed", "commit.committed"):
            another = stack.enter_context(servers.server(lake.settings, tmp_path))
            catalog = loads.catalog(lake.settings, another)

        with lake.duckdb() as fresh:
            for request in requests.values():
                for session in (db, fresh):
                    shown_by_duckdb(session, request, request.after if there else request.before)
                shown_by_iceberg(catalog, request, request.after if there else request.before)
        assert len(lake.sound_snapshots()) == before + len(requests) * (1 + there)

        for _ in range(2):
            for kind, request in requests.items():
                answer = request.send(another)
                assert answer.status_code in (200, 204), f"{kind}: {answer.text}"
        assert len(lake.sound_snapshots()) == before + 2 * len(requests)
        with lake.duckdb() as fresh:
            for request in requests.values():
                for session in (db, fresh):
                    shown_by_duckdb(session, request, request.after)
                shown_by_iceberg(catalog, request, request.after)


def test_a_commit_killed_between_two_snapshots_is_atomic_and_a_retry_applies_it_once(
    places: dict[int, Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = places[3]
    lake, living, db = place.lake, place.living, place.db
    schema = schema_with_tables(db, "t")
    raw = Raw(lake, living, "t", schema)
    first = raw.snapshot("append", add=[raw.data_file(rows(41))])
    after_first = {
        **raw.base,
        "snapshots": [*raw.base["snapshots"], first],
        "current-snapshot-id": first["snapshot-id"],
        "last-sequence-number": first["sequence-number"],
        "next-row-id": raw.base["next-row-id"] + 1,
    }
    then = Raw(lake, living, "t", schema, base=after_first)
    second = then.snapshot("append", add=[then.data_file(rows(42))])
    added = [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (first, second)]
    body = {"requirements": raw.requirements(), "updates": [*added, then.to_main(second)[1]]}
    request = Request(schema, loads.url(living, "t", schema), body, {"t": was()}, {"t": was() + APPENDED})
    before = len(lake.sound_snapshots())
    for count, point in enumerate(("commit.step:1", "commit.step:2"), 1):
        monkeypatch.setenv(faults.VARIABLE, point)
        with servers.server(lake.settings, tmp_path, listener="off") as doomed:
            with pytest.raises(httpx.TransportError):
                request.send(doomed)
            assert doomed.process.wait(10) == -9
        insert_at_once(db)
        shown_by_duckdb(db, request, request.before)
        assert len(lake.sound_snapshots()) == before + count
    for _ in range(2):
        answer = request.send(living)
        assert answer.status_code == 200, answer.text
    assert len(lake.sound_snapshots()) == before + 4
    shown_by_duckdb(db, request, request.after)
    shown_by_iceberg(place.catalog, request, request.after)


def _uuid7() -> str:
    """As the specification asks for: a time, and chance."""
    bits = (time.time_ns() // 1_000_000) << 80 | 7 << 76 | (uuid4().int & ((1 << 76) - 1))
    bits = bits & ~(3 << 62) | 2 << 62
    text = f"{bits:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
