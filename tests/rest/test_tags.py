"""Tags of the whole lake over HTTP."""

import asyncio
from datetime import datetime

import duckdb
import pytest

from mergus.annex import tags
from mergus.ducklake.connect import connection, open_pool
from tests.support.commits import Json, everything
from tests.support.lakes import TestLake
from tests.support.servers import Server, error_of

PATH = "/v1/lake/admin/tags"
BAD = "BadRequestException"


def newest(lake: TestLake) -> int:
    return lake.snapshots()[-1][0]


def names(server: Server) -> list[str]:
    return [tag["name"] for tag in server.http.get(PATH).json()["tags"]]


def made(server: Server, name: str, **more: object) -> Json:
    answer = server.http.post(PATH, json={"name": name, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_tag_is_made_listed_loaded_and_dropped(server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE t AS SELECT 1 AS i")
    before = lake.snapshots()
    tag = made(server, "v1.0", message="as released")
    assert tag == server.http.get(f"{PATH}/v1.0").json() == server.http.get(PATH).json()["tags"][0]
    assert (tag["name"], tag["snapshot-id"], tag["message"]) == ("v1.0", newest(lake), "as released")
    assert tag["created-by"] == "anonymous"
    ((time,),) = lake.sql("SELECT snapshot_time FROM ducklake_snapshot WHERE snapshot_id = %s", newest(lake))
    assert datetime.fromisoformat(tag["snapshot-time"]) == time
    assert datetime.fromisoformat(tag["created-at"]) >= time
    older = made(server, "first", **{"snapshot-id": 0})
    assert (older["snapshot-id"], older["message"]) == (0, None)
    assert names(server) == ["first", "v1.0"]
    # DuckLake hears nothing of it
    assert lake.snapshots() == before
    answer = server.http.delete(f"{PATH}/first")
    assert (answer.status_code, answer.content) == (204, b"")
    assert error_of(server.http.delete(f"{PATH}/first")) == (404, "NotFoundException")
    assert error_of(server.http.get(f"{PATH}/first")) == (404, "NotFoundException")
    assert names(server) == ["v1.0"]


def test_tags_are_paged(server: Server) -> None:
    wanted = sorted(f"page-{i:02}" for i in range(7))
    for name in reversed(wanted):
        made(server, name)
    seen: list[str] = []
    token = ""
    while token is not None:
        answer = server.http.get(PATH, params={"pageToken": token, "pageSize": 3}).json()
        seen += [tag["name"] for tag in answer["tags"]]
        token = answer["next-page-token"]
    assert seen == names(server)
    assert set(wanted) <= set(seen)
    assert error_of(server.http.get(PATH, params={"pageToken": "made up"})) == (400, BAD)


@pytest.mark.parametrize(
    "name",
    [
        *("", "a@b", "a/b", "42", "0", "2024-01-01", "2024-01-01T10:00:00Z", "20240101T000000", "x" * 129, "a b"),
        *("a%2Fb", "-a", ".", "..", "ünï", "a\0b", "a\nb", "a+b", "'; DROP TABLE x"),
    ],
)
def test_an_invalid_tag_name_is_refused(name: str, server: Server, lake: TestLake) -> None:
    before = everything(lake)
    assert error_of(server.http.post(PATH, json={"name": name})) == (400, BAD)
    assert everything(lake) == before


@pytest.mark.parametrize("name", ["a", "2024-01-01-release", "v42", "42nd", "A.b_c-d", "x" * 128, "2024-13-45"])
def test_a_valid_tag_name_is_accepted_and_usable_as_warehouse(name: str, server: Server) -> None:
    made(server, name)
    assert server.http.get(f"{PATH}/{name}").json()["name"] == name
    config = server.http.get("/v1/config", params={"warehouse": f"lake@{name}"})
    assert config.status_code == 200


def test_malformed_duplicate_and_dangling_tags_are_refused(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    made(server, "taken")
    db.execute("CREATE SCHEMA gone_soon; DROP SCHEMA gone_soon; CREATE SCHEMA after_it")
    gone = newest(lake) - 1
    db.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{gone}])")
    before = everything(lake)
    assert error_of(server.http.post(PATH, json={"name": "taken"})) == (409, "AlreadyExistsException")
    for snapshot_id in (gone, newest(lake) + 1, 2**62):
        answer = server.http.post(PATH, json={"name": "new", "snapshot-id": snapshot_id})
        assert error_of(answer) == (400, BAD)
        assert str(snapshot_id) in answer.json()["error"]["message"]
    for body in (
        {},
        [],
        {"name": 1},
        {"name": "new", "snapshot-id": "0"},
        {"name": "new", "snapshot-id": -1},
        {"name": "new", "snapshot-id": 2**63},
        {"name": "new", "snapshot-id": True},
        {"name": "new", "message": 1},
        {"name": "new", "message": "x" * 4097},
        {"name": "new", "message": "a\0b"},
        {"name": "new", "other": 1},
    ):
        assert error_of(server.http.post(PATH, json=body)) == (400, BAD), body
    for name in ("a%00b", "%20", "none"):
        assert error_of(server.http.get(f"{PATH}/{name}")) == (404, "NotFoundException")
        assert error_of(server.http.delete(f"{PATH}/{name}")) == (404, "NotFoundException")
    assert everything(lake) == before


def test_a_tag_of_an_expired_snapshot_is_shown_without_a_snapshot_time(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA tagged_then_expired")
    tag = made(server, "doomed")
    db.execute("CREATE SCHEMA later")
    db.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{tag['snapshot-id']}])")
    assert server.http.get(f"{PATH}/doomed").json() == {**tag, "snapshot-time": None}
    answer = server.http.get("/v1/lake@doomed/namespaces")
    assert error_of(answer) == (404, "NoSuchWarehouseException")
    assert "expired" in answer.json()["error"]["message"]


def test_tagged_snapshots_are_protected_from_expiry(server: Server, lake: TestLake) -> None:
    tag = made(server, "protected")
    made(server, "protected-too", **{"snapshot-id": 0})
    assert {0, tag["snapshot-id"]} <= asyncio.run(protected(lake))
    for name in ("protected", "protected-too"):
        assert server.http.delete(f"{PATH}/{name}").status_code == 204
    assert asyncio.run(protected(lake)) == {t["snapshot-id"] for t in server.http.get(PATH).json()["tags"]}


async def protected(lake: TestLake) -> frozenset[int]:
    pool = open_pool(lake.settings)
    await pool.open()
    try:
        async with connection(pool) as conn:
            return await tags.protected(conn)
    finally:
        await pool.close()


def test_a_retried_tag_creation_with_a_key_creates_it_once(server: Server) -> None:
    key = {"Idempotency-Key": "018f6e2a-7d50-7000-8000-000000000002"}
    first = server.http.post(PATH, json={"name": "once"}, headers=key)
    again = server.http.post(PATH, json={"name": "once"}, headers=key)
    assert (first.status_code, first.content) == (200, again.content)
    assert error_of(server.http.post(PATH, json={"name": "once"})) == (409, "AlreadyExistsException")
