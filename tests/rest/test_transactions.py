"""Transactions over many tables: all of it or nothing, for whoever looks."""

import threading
from collections.abc import Iterator, Sequence

import duckdb
import httpx
import pytest

from tests.support import servers
from tests.support.commits import HandTable, Json, everything, in_duckdb, main_at, new_snapshot_id, new_table, rows
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, ids, load
from tests.support.servers import Server, error_of

BAD, FAILED, NO_TABLE = "BadRequestException", "CommitFailedException", "NoSuchTableException"
URL = "/v1/lake/transactions/commit"


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), listener="off") as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


def change(table: HandTable, updates: Sequence[Json], requirements: Sequence[Json] = ()) -> Json:
    return {
        "identifier": {"namespace": [table.schema], "name": table.name},
        "requirements": list(requirements),
        "updates": list(updates),
    }


def send(server: Server, *changes: Json) -> httpx.Response:
    return server.http.post(URL, json={"table-changes": list(changes)})


def appends(table: HandTable, first: int, snapshot_id: int | None = None) -> Json:
    seen = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": table.current}]
    return change(table, table.append_updates([table.file(first)], snapshot_id or new_snapshot_id()), seen)


@pytest.fixture(scope="module")
def pair(server: Server, bucket: Bucket) -> tuple[HandTable, HandTable]:
    return new_table(server, bucket, "one"), new_table(server, bucket, "other", "u")


def test_a_transaction_commits_two_tables_in_one_snapshot(
    server: Server, lake: TestLake, pair: tuple[HandTable, HandTable], db: duckdb.DuckDBPyConnection
) -> None:
    one, other = pair
    before = len(lake.snapshots())
    mine, yours = new_snapshot_id(), new_snapshot_id()
    changes = [appends(one, 1, mine), appends(other, 10, yours)]
    answer = send(server, *changes)
    assert (answer.status_code, answer.content) == (204, b""), answer.text
    # one snapshot of the lake, and each table has its own of it
    assert len(lake.sound_snapshots()) == before + 1
    assert ids(one.load()) == [mine]
    assert ids(other.load()) == [yours]
    assert in_duckdb(lake, db, "one") == rows(1)
    assert in_duckdb(lake, db, "other", "u") == rows(10)
    # H43, of a transaction
    state = everything(lake)
    assert send(server, *changes).status_code == 204
    assert everything(lake) == state


def test_a_transaction_with_a_failed_requirement_changes_no_table(
    server: Server, lake: TestLake, pair: tuple[HandTable, HandTable]
) -> None:
    one, other = pair
    one.load()
    other.load()
    assert send(server, appends(one, 20), appends(other, 20)).status_code == 204
    one.load()
    other.load()
    right = appends(one, 30)
    before = everything(lake)
    stale = appends(other, 30)
    stale["requirements"] = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 4711}]
    wrong_uuid = change(other, [], [{"type": "assert-table-uuid", "uuid": "8b7c0a52-4b2c-4f54-9f0e-000000000000"}])
    for wrong in (stale, wrong_uuid):
        assert error_of(send(server, right, wrong)) == (409, FAILED)
        assert error_of(send(server, wrong, right)) == (409, FAILED)
    missing = {**stale, "identifier": {"namespace": ["other"], "name": "t"}}
    assert error_of(send(server, right, missing)) == (404, NO_TABLE)
    nonsense = change(other, [{"action": "set-current-schema", "schema-id": 99}])
    assert error_of(send(server, right, nonsense)) == (400, BAD)
    branch = change(other, [{**main_at(other.current or 0), "ref-name": "side"}])
    assert error_of(send(server, right, branch)) == (406, "UnsupportedOperationException")
    assert everything(lake) == before


def test_a_malformed_transaction_is_refused(server: Server, lake: TestLake, pair: tuple[HandTable, HandTable]) -> None:
    one, _ = pair
    one.load()
    before = everything(lake)
    assert error_of(send(server, appends(one, 40), appends(one, 50))) == (400, BAD)
    nameless = appends(one, 40)
    del nameless["identifier"]
    assert error_of(send(server, nameless)) == (400, BAD)
    for body in ({}, {"table-changes": None}, {"table-changes": [7]}, {"table-changes": {}}, []):
        assert error_of(server.http.post(URL, json=body)) == (400, BAD)
    assert everything(lake) == before
    assert send(server).status_code == 204
    assert everything(lake) == before


def test_a_transaction_may_change_rows_schemas_and_properties(
    server: Server, lake: TestLake, pair: tuple[HandTable, HandTable], db: duckdb.DuckDBPyConnection
) -> None:
    """Rows for one, a column for the other; and several tables of which one only hears of it."""
    one, other = pair
    one.load()
    other.load()
    wider = [*other.state["schemas"][-1]["fields"], {"id": 3, "name": "j", "type": "long", "required": False}]
    schema = {"type": "struct", "schema-id": 1, "fields": wider}
    evolves = change(
        other, [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    )
    noted = [{"action": "set-properties", "updates": {"noted": "yes"}}]
    before = len(lake.snapshots())
    held = in_duckdb(lake, db, "one")
    assert send(server, appends(one, 60), evolves).status_code == 204
    assert len(lake.sound_snapshots()) == before + 1
    assert sorted(in_duckdb(lake, db, "one")) == sorted([*held, *rows(60)])
    assert [row[0] for row in db.execute("DESCRIBE other.u").fetchall()] == ["i", "s", "j"]
    one.load()
    assert send(server, change(one, noted), change(other, noted)).status_code == 204
    assert load(server, schema="one")["properties"]["noted"] == "yes"
    assert load(server, "u", "other")["properties"]["noted"] == "yes"


def test_a_reader_sees_all_changes_of_a_transaction_or_none(server: Server, lake: TestLake, bucket: Bucket) -> None:
    one, other = new_table(server, bucket, "left"), new_table(server, bucket, "right")
    stop = threading.Event()
    seen: list[tuple[int, int]] = []
    failures: list[BaseException] = []

    def poll() -> None:
        try:
            with lake.duckdb() as db:
                query = 'SELECT (SELECT count(*) FROM "left".t), (SELECT count(*) FROM "right".t)'
                while not stop.is_set():
                    found = db.execute(query).fetchone()
                    assert found is not None
                    seen.append(found)
        except BaseException as e:
            failures.append(e)

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        for turn in range(8):
            assert send(server, appends(one, 10 * turn), appends(other, 10 * turn)).status_code == 204
            one.load()
            other.load()
    finally:
        stop.set()
        reader.join()
    assert not failures
    assert all(mine == yours for mine, yours in seen), seen
    assert len(set(seen)) > 2
