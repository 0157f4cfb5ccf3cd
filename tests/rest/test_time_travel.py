"""`{warehouse}@{snapshot id, time or tag}` over HTTP: what it means, what it shows, and that it cannot be written."""

from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import quote
from uuid import uuid4

import duckdb
import httpx
import orjson
import pytest

from mergus.rest.operations import OPERATIONS, Operation
from tests.support.commits import Json, everything
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, ids, load
from tests.support.servers import Server, error_of
from tests.support.views import create as create_view
from tests.support.views import drop as drop_view

NO_WAREHOUSE = "NoSuchWarehouseException"


def newest(lake: TestLake) -> int:
    return lake.snapshots()[-1][0]


def time_of(lake: TestLake, snapshot_id: int) -> datetime:
    ((time,),) = lake.sql("SELECT snapshot_time FROM ducklake_snapshot WHERE snapshot_id = %s", snapshot_id)
    return time


def at(server: Server, point: object, path: str, **params: str | int) -> httpx.Response:
    return server.http.get(f"/v1/lake@{point}/{path}", params=params)


def prefix(server: Server, warehouse: str) -> str:
    answer = server.http.get("/v1/config", params={"warehouse": warehouse})
    assert answer.status_code == 200, answer.text
    return answer.json()["overrides"]["prefix"]


def fields(metadata: Json) -> list[str]:
    (schema,) = [s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]]
    return [f["name"] for f in schema["fields"]]


def test_config_of_a_past_warehouse_resolves_to_its_snapshot_id(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA config_one")
    one = newest(lake)
    db.execute("CREATE SCHEMA config_two")
    time = time_of(lake, one)
    assert server.http.post("/v1/lake/admin/tags", json={"name": "config", "snapshot-id": one}).status_code == 200
    data_path = lake.settings.data_path
    points = (one, "config", time.isoformat(), time.astimezone(UTC).replace(tzinfo=None).isoformat())
    for warehouse in ("lake", data_path, (data_path or "").rstrip("/")):
        for point in points:
            assert prefix(server, f"{warehouse}@{point}") == f"lake@{one}"
    assert prefix(server, "lake") == "lake"
    # one who stays is not moved by what becomes of the tag
    assert server.http.delete("/v1/lake/admin/tags/config").status_code == 204
    gone = server.http.get("/v1/config", params={"warehouse": "lake@config"})
    assert error_of(gone) == (404, NO_WAREHOUSE)


@pytest.mark.parametrize(
    "point",
    [
        *("", "999999999", "9" * 19, "9" * 30, "-1", "nothing", "1970-01-01", "2024-99-01", "9999-99-99T99", "@"),
        *("0001-01-01T00:00:00+14:00", "a@b", "lake", "%00", "%2F", "1.0", "0x1", "'", "٣"),
    ],
)
def test_an_invalid_point_in_time_is_an_unknown_warehouse(point: str, server: Server) -> None:
    for path in ("namespaces", "namespaces/main", "namespaces/main/tables", "namespaces/main/tables/t"):
        assert error_of(at(server, point, path)) == (404, NO_WAREHOUSE)
    config = server.http.get(f"/v1/config?warehouse=lake@{point}")
    assert error_of(config) == (404, NO_WAREHOUSE)


@pytest.mark.parametrize("other", ["other@0", "@0", "lakes@0", "lake @0", "s3:%2F%2Fother@0"])
def test_a_past_of_another_warehouse_is_an_unknown_warehouse(other: str, server: Server) -> None:
    assert error_of(server.http.get(f"/v1/{other}/namespaces")) == (404, NO_WAREHOUSE)
    answer = server.http.post(f"/v1/{other}/namespaces", json={"namespace": ["x"]})
    assert error_of(answer) == (404, NO_WAREHOUSE)


def test_a_time_selects_the_last_snapshot_at_or_before_it(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA timed; CREATE TABLE timed.a(i INTEGER)")
    one = newest(lake)
    db.execute("CREATE TABLE timed.b(i INTEGER)")
    time = time_of(lake, one)

    def tables(point: str) -> list[str]:
        answer = at(server, point, "namespaces/timed/tables")
        assert answer.status_code == 200, answer.text
        return [x["name"] for x in answer.json()["identifiers"]]

    east, west = timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))
    utc = time.astimezone(UTC)
    texts = [t.isoformat() for t in (utc, utc.replace(tzinfo=None), utc.astimezone(east), utc.astimezone(west))]
    for text in (*texts, utc.isoformat().replace("+00:00", "Z")):
        # escaped, and as it is: a client does not touch what it was given
        assert tables(quote(text, safe="")) == ["a"], text
        assert tables(text) == ["a"], text
    later = time_of(lake, newest(lake)).astimezone(UTC)
    assert tables(later.isoformat()) == ["a", "b"]
    assert tables((later - timedelta(microseconds=1)).isoformat()) == ["a"]
    assert tables("2999-01-01") == ["a", "b"]


def test_a_past_warehouse_shows_the_namespaces_and_tables_of_its_snapshot(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute('CREATE SCHEMA "then.below"; CREATE SCHEMA then_one; CREATE TABLE then_one.t(i INTEGER)')
    server.create("then_more", owner="me")
    one = newest(lake)
    db.execute("ALTER TABLE then_one.t RENAME TO u; CREATE TABLE then_one.t(x VARCHAR)")
    two = newest(lake)
    db.execute('DROP SCHEMA then_one CASCADE; DROP SCHEMA "then.below"; CREATE SCHEMA then_last')

    def namespaces(point: int, **params: str) -> list[str]:
        listed = at(server, point, "namespaces", **params).json()["namespaces"]
        return [x[-1] for x in listed if x[0].startswith("then")]

    assert namespaces(one) == ["then", "then_more", "then_one"]
    assert namespaces(one, parent="then") == ["below"]
    assert namespaces(newest(lake)) == ["then_last", "then_more"]
    ((uuid,),) = lake.sql("SELECT schema_uuid FROM ducklake_schema WHERE schema_name = 'then_one'")
    assert at(server, one, "namespaces/then_one").json()["properties"]["location"].endswith(f"/schemas/{uuid}/")
    assert at(server, one, "namespaces/then_more").json()["properties"]["owner"] == "me"
    assert at(server, one, "namespaces/then%1Fbelow").status_code == 200
    for name in ("then_last", "never"):
        assert error_of(at(server, one, f"namespaces/{name}")) == (404, "NoSuchNamespaceException")
        assert server.http.head(f"/v1/lake@{one}/namespaces/{name}").status_code == 404
        assert error_of(at(server, one, f"namespaces/{name}/tables")) == (404, "NoSuchNamespaceException")
    assert server.http.head(f"/v1/lake@{one}/namespaces/then_one").status_code == 204

    def tables(point: int) -> list[str]:
        return [x["name"] for x in at(server, point, "namespaces/then_one/tables").json()["identifiers"]]

    assert (tables(one), tables(two)) == (["t"], ["t", "u"])
    heads = {
        (point, name): server.http.head(f"/v1/lake@{point}/namespaces/then_one/tables/{name}").status_code
        for point in (one, two)
        for name in ("t", "u")
    }
    assert heads == {(one, "t"): 204, (one, "u"): 404, (two, "t"): 204, (two, "u"): 204}
    assert fields(at(server, one, "namespaces/then_one/tables/t").json()["metadata"]) == ["i"]
    assert fields(at(server, two, "namespaces/then_one/tables/t").json()["metadata"]) == ["x"]
    assert fields(at(server, two, "namespaces/then_one/tables/u").json()["metadata"]) == ["i"]
    assert error_of(at(server, one, "namespaces/then_one/tables/u")) == (404, "NoSuchTableException")
    # a page of one state goes on in that state alone
    first = at(server, two, "namespaces/then_one/tables", pageSize=1).json()
    rest = at(server, two, "namespaces/then_one/tables", pageToken=first["next-page-token"]).json()
    assert [x["name"] for x in rest["identifiers"]] == ["u"]
    elsewhere = at(server, one, "namespaces/then_one/tables", pageToken=first["next-page-token"])
    assert error_of(elsewhere) == (400, "BadRequestException")


def test_a_past_warehouse_shows_the_table_metadata_of_its_snapshot(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA meta; CREATE TABLE meta.t(i INTEGER, s VARCHAR)")
    empty = newest(lake)
    db.execute("INSERT INTO meta.t SELECT range, 'x' FROM range(20)")
    one = newest(lake)
    db.execute("ALTER TABLE meta.t SET PARTITIONED BY (s); ALTER TABLE meta.t SET SORTED BY (i)")
    parted = newest(lake)
    db.execute("ALTER TABLE meta.t RENAME COLUMN s TO u; ALTER TABLE meta.t ADD COLUMN s INTEGER")
    altered = newest(lake)
    db.execute("INSERT INTO meta.t VALUES (50, 'y', 1)")
    two = newest(lake)
    db.execute(
        "ALTER TABLE meta.t RESET PARTITIONED BY; ALTER TABLE meta.t DROP COLUMN u; INSERT INTO meta.t VALUES (60, 2)"
    )

    def then(point: int, **params: str | int) -> Json:
        answer = at(server, point, "namespaces/meta/tables/t", **params)
        assert answer.status_code == 200, answer.text
        found = answer.json()["metadata"]
        if "snapshots" not in params:
            assert orjson.loads(Bucket(lake.settings).get(answer.json()["metadata-location"])) == found
        return found

    start = then(empty)
    assert (ids(start), start.get("current-snapshot-id"), fields(start)) == ([], None, ["i", "s"])
    assert start["last-updated-ms"] == pytest.approx(time_of(lake, empty).timestamp() * 1000, abs=1)
    first = then(one)
    assert (ids(first), first["current-snapshot-id"], fields(first)) == ([one], one, ["i", "s"])
    assert (first["default-spec-id"], first["default-sort-order-id"]) == (0, 0)
    assert first["refs"]["main"]["snapshot-id"] == one
    assert first["last-sequence-number"] == one
    between = then(parted)
    assert (ids(between), fields(between)) == ([one], ["i", "s"])
    (spec,) = [s for s in between["partition-specs"] if s["spec-id"] == between["default-spec-id"]]
    assert between["default-sort-order-id"] != 0
    changed = then(altered)
    assert (ids(changed), fields(changed)) == ([one], ["i", "u", "s"])
    assert changed["last-updated-ms"] > between["last-updated-ms"] > first["last-updated-ms"]
    last = then(two)
    assert ids(last) == [one, two]
    (renamed,) = [s for s in last["partition-specs"] if s["spec-id"] == last["default-spec-id"]]
    # a spec is called as its column was
    assert [(f["field-id"], f["source-id"]) for f in spec["fields"]] == [
        (f["field-id"], f["source-id"]) for f in renamed["fields"]
    ]
    assert ([f["name"] for f in spec["fields"]], [f["name"] for f in renamed["fields"]]) == (["s"], ["u"])
    assert ids(load(server, schema="meta"))[:2] == [one, two]
    # with the parameter of LoadTable, too, and never later than the prefix says
    assert then(two, **{"snapshot-id": one}) == first
    assert ids(then(two, **{"snapshots": "refs"})) == [two]
    late = at(server, one, "namespaces/meta/tables/t", **{"snapshot-id": two})
    assert error_of(late) == (404, "NoSuchSnapshotException")


def test_a_past_warehouse_is_gone_as_soon_as_its_snapshot_expires(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA expiring; CREATE TABLE expiring.t AS SELECT 1 AS i")
    one = newest(lake)
    db.execute("DROP TABLE expiring.t")
    path = "namespaces/expiring/tables/t"
    assert ids(at(server, one, path).json()["metadata"]) == [one]
    db.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{one}])")
    answer = at(server, one, path)
    assert error_of(answer) == (404, NO_WAREHOUSE)
    assert "expired" in answer.json()["error"]["message"]


WRITES = [o for o in OPERATIONS if o.success is not None]


@pytest.mark.parametrize("operation", WRITES, ids=lambda o: o.name)
@pytest.mark.parametrize("point", ["0", "2999-01-01T00:00:00+00:00", "no-such-tag"])
def test_writes_to_a_past_warehouse_are_refused(
    operation: Operation, point: str, server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS main.t(i INTEGER)")
    load(server)
    path = operation.path.format(prefix=f"lake@{point}", namespace="main", table="t", view="v", tag="v1")
    before = everything(lake)
    for body in (b"{}", b"no JSON", b'{"name": "t", "namespace": ["n"]}'):
        for headers in ({}, {"Idempotency-Key": str(uuid4())}, {"Idempotency-Key": "none"}):
            sent = {"content-type": "application/json", **headers}
            answer = server.http.request(operation.method, path, content=body, headers=sent)
            assert error_of(answer) == (403, "ForbiddenException")
            assert "only be read" in answer.json()["error"]["message"]
    assert everything(lake) == before


def test_admin_endpoints_without_a_point_in_time_work_in_a_past_warehouse(server: Server) -> None:
    for path in ("admin/listener", "admin/tags", "admin/namespaces/main/dropped"):
        assert at(server, 0, path).status_code == 200


def test_a_past_warehouse_shows_the_views_and_functions_of_its_snapshot(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA seen; CREATE VIEW seen.a AS SELECT 1 AS x; CREATE MACRO seen.f(p) AS p + 1")
    one = newest(lake)
    made = create_view(server, "seen", "b", duckdb="SELECT 1 AS i, 'x' AS s")
    ours = create_view(server, "seen", "ours", spark="SELECT 1 AS i, 'x' AS s")
    two = newest(lake)
    db.execute("DROP VIEW seen.a; DROP MACRO seen.f; CREATE OR REPLACE VIEW seen.b AS SELECT 3 AS i")

    def views(point: object) -> list[str]:
        return [found["name"] for found in at(server, point, "namespaces/seen/views").json()["identifiers"]]

    def functions(point: object) -> Json:
        return at(server, point, "namespaces/seen/functions").json()["identifiers"]

    assert (views(one), views(two), views(newest(lake))) == (["a"], ["a", "b", "ours"], ["b", "ours"])
    assert (functions(one), functions(newest(lake))) == ([["seen", "f"]], [])
    assert at(server, two, "namespaces/seen/views/b").json()["metadata"] == made
    assert error_of(at(server, one, "namespaces/seen/views/b")) == (404, "NoSuchViewException")
    # one of DuckDB's alone
    (column,) = at(server, one, "namespaces/seen/views/a").json()["metadata"]["schemas"][0]["fields"]
    assert (column["name"], column["type"]) == ("x", "int")
    assert server.http.head(f"/v1/lake@{one}/namespaces/seen/views/a").status_code == 204
    # one that DuckLake does not know of
    assert at(server, two, "namespaces/seen/views/ours").json()["metadata"] == ours
    assert error_of(at(server, one, "namespaces/seen/views/ours")) == (404, "NoSuchViewException")


def test_a_view_that_was_broken_at_a_past_snapshot_is_reported_as_broken(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA broken; CREATE TABLE broken.t(i INTEGER); CREATE VIEW broken.v AS SELECT * FROM broken.t")
    before = newest(lake)
    db.execute("DROP TABLE broken.t")
    gone = newest(lake)
    db.execute("CREATE TABLE broken.t(s VARCHAR)")
    again = newest(lake)
    path = "namespaces/broken/views/v"
    types = [at(server, n, path).json()["metadata"]["schemas"][0]["fields"][0]["type"] for n in (before, again)]
    assert types == ["int", "string"]
    answer = at(server, gone, path)
    assert error_of(answer) == (406, "UnsupportedOperationException")
    assert "does not exist" in answer.json()["error"]["message"]


def test_views_of_many_snapshots_use_one_duckdb_session(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA held; CREATE TABLE held.t(i INTEGER); CREATE VIEW held.v AS SELECT * FROM held.t")
    points: list[int] = []
    for i in range(6):
        db.execute(f"ALTER TABLE held.t ADD COLUMN c{i} INTEGER")
        points.append(newest(lake))
    # sessions of DuckDB have no name in Postgres
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = ''"
    held: list[int] = []
    for i, point in enumerate(points):
        found = at(server, point, "namespaces/held/views/v").json()["metadata"]["schemas"][0]["fields"]
        assert [f["name"] for f in found] == ["i", *(f"c{j}" for j in range(i + 1))]
        held.append(lake.sql(count)[0][0])
    assert held[0] > 0
    assert max(held) == held[0]
    # it is remembered, whatever session is open by now
    assert at(server, points[0], "namespaces/held/views/v").status_code == 200


def test_versions_of_views_that_no_snapshot_shows_are_deleted(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA gone")
    made = create_view(server, "gone", "v", spark="SELECT 1 AS i, 'x' AS s")
    then = newest(lake)
    db.execute("CREATE SCHEMA gone_too")
    assert drop_view(server, "gone", "v").status_code == 204
    kept = "SELECT begin_snapshot, end_snapshot FROM iceberg_view WHERE view_uuid = %s"
    assert lake.sql(kept, made["view-uuid"]) == [(then, newest(lake))]
    assert at(server, then, "namespaces/gone/views/v").json()["metadata"] == made
    db.execute("CREATE SCHEMA gone_three")
    old = [n for (n,) in lake.sql("SELECT snapshot_id FROM ducklake_snapshot") if n < newest(lake)]
    db.execute(f"CALL ducklake_expire_snapshots('lake', versions => {old})")
    assert error_of(at(server, then, "namespaces/gone/views/v")) == (404, NO_WAREHOUSE)
    create_view(server, "gone", "w", spark="SELECT 1 AS i, 'x' AS s")
    assert lake.sql(kept, made["view-uuid"]) == []
