"""Dropped tables over HTTP: which can come back, how one does, and what is refused with nothing written."""

from collections.abc import Iterator
from uuid import uuid4

import duckdb
import httpx
import pytest

from tests.support import servers
from tests.support.commits import Json, create, everything, in_duckdb, new_table, rows
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, get, load, url
from tests.support.servers import Server, error_of

EXISTS, NO_TABLE, NO_NAMESPACE = "AlreadyExistsException", "NoSuchTableException", "NoSuchNamespaceException"
BAD = "BadRequestException"


def where(schema: str) -> str:
    return f"/v1/lake/admin/namespaces/{schema}"


def dropped(server: Server, schema: str, **params: str | int) -> list[Json]:
    answer = server.http.get(f"{where(schema)}/dropped", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["dropped"]


def undrop(server: Server, schema: str, name: str = "t", **more: object) -> httpx.Response:
    return server.http.post(f"{where(schema)}/undrop", json={"name": name, **more})


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Without a listener: tests compare all that is in Postgres before a refusal and after it."""
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), listener="off") as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


def test_a_dropped_table_is_listed_and_can_be_undropped(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "back")
    table.append(1)
    table.send([{"action": "set-properties", "updates": {"owner": "me"}}])
    state = table.load()
    assert in_duckdb(lake, db, "back") == rows(1)
    assert dropped(server, "back") == []
    assert server.http.delete(url(server, schema="back")).status_code == 204
    at = lake.snapshots()[-1][0]
    ((time,),) = lake.sql("SELECT snapshot_time FROM ducklake_snapshot WHERE snapshot_id = %s", at)
    (found,) = dropped(server, "back")
    table_id = found.pop("table-id")
    assert found == {
        "name": "t",
        "table-uuid": state["table-uuid"],
        "dropped-at-snapshot": at,
        "dropped-at": time.isoformat(),
        "data-files": 1,
    }
    answer = undrop(server, "back")
    assert answer.json() == {
        "identifier": {"namespace": ["back"], "name": "t"},
        "table-uuid": state["table-uuid"],
        "table-id": table_id,
        "dropped-at-snapshot": at,
        "snapshot-id": at + 1,
    }
    before, after = lake.sound_snapshots()[-2:]
    assert after[4] == f'created_table:"back"."t",altered_table:{table_id}'
    assert (after[1], after[2], after[3]) == (before[1] + 1, before[2], before[3] + 1)
    assert dropped(server, "back") == []
    again = load(server, schema="back")
    for key in ("table-uuid", "location", "snapshots", "schemas", "properties", "current-snapshot-id", "snapshot-log"):
        assert again[key] == state[key], key
    assert in_duckdb(lake, db, "back") == rows(1)
    table.load()
    table.append(5)
    assert in_duckdb(lake, db, "back") == [*rows(1), *rows(5)]


def test_undrop_restores_the_newest_table_of_a_name_or_the_one_of_a_uuid(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA several")
    for n in range(3):
        db.execute(f"CREATE TABLE several.t AS SELECT {n} AS i; DROP TABLE several.t")
    db.execute("CREATE TABLE several.other AS SELECT 9 AS i; DROP TABLE several.other")
    found = dropped(server, "several")
    assert [x["name"] for x in found] == ["other", "t", "t", "t"]
    assert sorted((x["dropped-at-snapshot"] for x in found), reverse=True) == [x["dropped-at-snapshot"] for x in found]
    pages: list[Json] = []
    token = ""
    while token is not None:
        params = {"pageToken": token, "pageSize": 3}
        answer = server.http.get(f"{where('several')}/dropped", params=params).json()
        pages += answer["dropped"]
        token = answer["next-page-token"]
    assert pages == found
    assert undrop(server, "several").json()["table-uuid"] == found[1]["table-uuid"]
    oldest = undrop(server, "several", **{"table-uuid": found[3]["table-uuid"], "as": "oldest"})
    assert oldest.json()["table-uuid"] == found[3]["table-uuid"]
    assert db.execute("FROM several.t").fetchall() == [(2,)]
    assert db.execute("FROM several.oldest").fetchall() == [(0,)]
    assert [x["name"] for x in dropped(server, "several")] == ["other", "t"]


def test_an_undrop_that_is_impossible_is_refused_without_any_change(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA refused; CREATE TABLE refused.t AS SELECT 1 AS i; DROP TABLE refused.t")
    db.execute("CREATE TABLE refused.T(i INTEGER); CREATE VIEW refused.v AS SELECT 1 AS i")
    db.execute("CREATE TABLE refused.moved AS SELECT 1 AS i; ALTER TABLE refused.moved RENAME TO here")
    (found,) = dropped(server, "refused")
    before = everything(lake)
    for name in ("t", "T", "v", "here"):
        assert error_of(undrop(server, "refused", **{"as": name})) == (409, EXISTS), name
    for name in ("T", "moved", "here", "never", "v"):
        assert error_of(undrop(server, "refused", name, **{"as": "new"})) == (404, NO_TABLE), name
    other = undrop(server, "refused", **{"table-uuid": str(uuid4()), "as": "new"})
    assert error_of(other) == (404, NO_TABLE)
    wrong = undrop(server, "refused", "moved", **{"table-uuid": found["table-uuid"], "as": "new"})
    assert error_of(wrong) == (404, NO_TABLE)
    assert error_of(undrop(server, "nowhere")) == (404, NO_NAMESPACE)
    assert error_of(server.http.get(f"{where('nowhere')}/dropped")) == (404, NO_NAMESPACE)
    bad: list[Json] = [{"as": ""}, {"as": "a\0b"}, {"as": 1}, {"table-uuid": "x"}, {"table-uuid": 5}, {"more": 1}]
    for more in bad:
        assert error_of(undrop(server, "refused", **more)) == (400, BAD), more
    for body in ({}, [], {"name": None}, {"name": 1}, "t"):
        assert error_of(server.http.post(f"{where('refused')}/undrop", json=body)) == (400, BAD), body
    for params in ({"pageSize": 0}, {"pageToken": "made up"}):
        assert error_of(server.http.get(f"{where('refused')}/dropped", params=params)) == (400, BAD)
    assert everything(lake) == before


def test_a_purged_or_expired_table_cannot_be_undropped(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    assert server.create("final").status_code == 200
    assert create(server, "final", "t").status_code == 200
    assert server.http.delete(url(server, schema="final"), params={"purgeRequested": "true"}).status_code == 204
    assert dropped(server, "final") == []
    db.execute("CREATE TABLE final.u AS SELECT 1 AS i; INSERT INTO final.u VALUES (2); DROP TABLE final.u")
    at = dropped(server, "final")[0]["dropped-at-snapshot"]
    # the table's last state has gone, and an older one lives: what is left of it is not the table
    db.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{at - 1}])")
    assert lake.sql("SELECT count(*) FROM ducklake_table WHERE table_name = 'u' AND end_snapshot = %s", at) == [(1,)]
    assert dropped(server, "final") == []
    before = everything(lake)
    for name in ("t", "u"):
        assert error_of(undrop(server, "final", name)) == (404, NO_TABLE)
    assert everything(lake) == before


def test_a_dropped_table_is_listed_without_a_time_if_the_drop_snapshot_expired(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA timeless; CREATE TABLE timeless.t AS SELECT 1 AS i; DROP TABLE timeless.t")
    at = dropped(server, "timeless")[0]["dropped-at-snapshot"]
    db.execute("CREATE TABLE timeless.u(i INTEGER)")
    db.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{at}])")
    (found,) = dropped(server, "timeless")
    assert (found["dropped-at-snapshot"], found["dropped-at"]) == (at, None)
    assert undrop(server, "timeless").status_code == 200
    assert db.execute("FROM timeless.t").fetchall() == [(1,)]
    assert load(server, schema="timeless")["current-snapshot-id"] == at - 1


def test_a_retried_undrop_with_a_key_restores_the_table_once(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA keyed; CREATE TABLE keyed.t AS SELECT 1 AS i; DROP TABLE keyed.t")
    key = {"Idempotency-Key": "018f6e2a-7d50-7000-8000-000000000001"}
    first = server.http.post(f"{where('keyed')}/undrop", json={"name": "t"}, headers=key)
    assert first.status_code == 200
    made = len(lake.snapshots())
    again = server.http.post(f"{where('keyed')}/undrop", json={"name": "t"}, headers=key)
    assert (again.status_code, again.content) == (200, first.content)
    assert len(lake.snapshots()) == made
    assert get(server, schema="keyed").status_code == 200
