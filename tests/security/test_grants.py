"""Who may do what, over the wire: what is seen, what is refused, and that what is taken away is gone at once."""

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support import access, commits, lakes, servers
from tests.support.access import Guarded
from tests.support.keys import new_key
from tests.support.servers import Server, error_of
from tests.support.views import SCHEMA, version

_numbers = count(1)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with lakes.lake() as lake, access.guarded(lake, tmp_path_factory.mktemp("servers")) as found:
        db = lake.duckdb()
        for statement in (
            "CREATE SCHEMA sales",
            'CREATE SCHEMA "sales.eu"',
            'CREATE SCHEMA "sales.us"',
            "CREATE SCHEMA salesman",
            "CREATE SCHEMA secret",
            *(f"CREATE TABLE sales.t{i}(i INTEGER)" for i in range(5)),
            'CREATE TABLE "sales.eu".t(i INTEGER)',
            "CREATE TABLE secret.t(i INTEGER)",
            "CREATE VIEW sales.v1 AS SELECT 1 AS i",
            "CREATE VIEW sales.v2 AS SELECT 2 AS i",
            "CREATE MACRO sales.f(x) AS x",
        ):
            db.execute(statement)
        db.close()
        yield found


def new_name() -> str:
    return f"c{next(_numbers)}"


def names(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one["name"] for one in answer.json()["identifiers"]]


def spaces(server: Server, **params: str) -> list[str]:
    return [".".join(levels) for levels in server.list(**params)]


def test_listings_show_only_what_the_caller_may_see(guarded: Guarded) -> None:
    caller = guarded.as_client(new_name(), "table:sales.t1:r", "table:sales.v2:r", "ns:sales.eu:w")
    assert spaces(caller) == ["sales"]
    assert spaces(caller, parent="sales") == ["sales.eu"]
    assert names(caller.http.get(f"{caller.path('sales')}/tables")) == ["t1"]
    assert names(caller.http.get(f"{caller.path('sales')}/views")) == ["v2"]
    assert caller.http.get(f"{caller.path('sales')}/functions").json() == {"identifiers": []}
    assert names(caller.http.get(f"{caller.path('sales', 'eu')}/tables")) == ["t"]
    assert error_of(caller.http.get(f"{caller.path('secret')}/tables")) == (404, "NoSuchNamespaceException")
    assert error_of(caller.http.get(f"{caller.path('sales', 'us')}/tables")) == (404, "NoSuchNamespaceException")
    everything = guarded.as_client(new_name(), "catalog:r")
    assert spaces(everything) == ["main", "sales", "salesman", "secret"]
    assert spaces(guarded.as_client(new_name())) == []


def test_paged_listings_show_only_what_the_caller_may_see(guarded: Guarded) -> None:
    caller = guarded.as_client(new_name(), *(f"table:sales.t{i}:r" for i in (0, 2, 4)))
    found: list[str] = []
    token = ""
    while token is not None:
        answer = caller.http.get(f"{caller.path('sales')}/tables", params={"pageToken": token, "pageSize": 2})
        found += names(answer)
        token = answer.json()["next-page-token"]
    assert found == ["t0", "t2", "t4"]


def test_a_table_is_loaded_only_by_callers_with_a_read_grant(guarded: Guarded) -> None:
    """Also when its answer is ready for others."""
    path = f"{guarded.server.path('sales')}/tables/t1"
    reader = guarded.as_client(new_name(), "table:sales.t1:r")
    stranger = guarded.as_client(new_name(), "table:sales.t2:rw", "ns:sales.eu:*")
    for _ in range(3):
        assert reader.http.get(path).status_code == 200
        assert error_of(stranger.http.get(path)) == (404, "NoSuchTableException")
        assert error_of(guarded.server.http.get(path)) == (401, "NotAuthorizedException")
    etag = reader.http.get(path).headers["etag"]
    assert reader.http.get(path, headers={"If-None-Match": etag}).status_code == 304
    assert stranger.http.get(path, headers={"If-None-Match": etag}).status_code == 404


def test_granted_and_revoked_privileges_take_effect_at_once_in_every_process(guarded: Guarded, tmp_path: Path) -> None:
    name = new_name()
    caller = guarded.as_client(name)
    path = f"{guarded.server.path('sales')}/tables/t3"
    with servers.server(guarded.lake.settings, tmp_path, auth="oauth2") as second:
        for _ in range(3):
            given = {"grantee": f"client:{name}", "grant": "table:sales.t3:r"}
            assert guarded.admin.http.post("/v1/lake/admin/grants", json=given).status_code == 200
            for uri in (second.uri, guarded.server.uri):
                assert caller.http.get(uri + path).status_code == 200
            assert guarded.admin.http.post("/v1/lake/admin/grants/remove", json=given).status_code == 204
            for uri in (second.uri, guarded.server.uri):
                assert caller.http.get(uri + path).status_code == 404


def test_a_namespace_administrator_grants_privileges_within_the_namespace_only(guarded: Guarded) -> None:
    name, other = new_name(), new_name()
    caller = guarded.as_client(name, "ns:sales:admin")
    for text, status in {
        "ns:sales:r": 200,
        "ns:sales.eu:*": 200,
        "table:sales.t1:read,drop": 200,
        "ns:salesman:r": 404,
        "ns:secret:r": 404,
        "table:secret.t:r": 404,
        "catalog:r": 403,
        "*": 403,
    }.items():
        answer = caller.http.post("/v1/lake/admin/grants", json={"grantee": f"client:{other}", "grant": text})
        assert answer.status_code == status, (text, answer.text)
    assert error_of(caller.http.get("/v1/lake/admin/grants")) == (403, "ForbiddenException")
    listed = guarded.admin.http.get("/v1/lake/admin/grants", params={"grantee": f"client:{other}"}).json()["grants"]
    assert [row["grant"] for row in listed] == ["ns:sales:r", "table:sales.t1:drop,read", "ns:sales.eu:*"]
    assert {row["granted-by"] for row in listed} == {f"client:{name}"}
    for bad in ("etl", "client:", "group:x", "client:a\nb"):
        answer = guarded.admin.http.post("/v1/lake/admin/grants", json={"grantee": bad, "grant": "ns:sales:r"})
        assert error_of(answer) == (400, "BadRequestException")


def test_a_namespace_administrator_sees_the_health_of_its_tables_but_not_of_the_lake(guarded: Guarded) -> None:
    caller = guarded.as_client(new_name(), "ns:sales:admin", "ns:salesman:r")
    admin = "/v1/lake/admin"
    found = caller.http.get(f"{admin}/namespaces/sales/tables/t1/health")
    assert (found.status_code, found.json()["identifier"]["name"]) == (200, "t1")
    assert error_of(caller.http.get(f"{admin}/namespaces/salesman/tables/t/health")) == (403, "ForbiddenException")
    assert error_of(caller.http.get(f"{admin}/namespaces/secret/tables/t/health")) == (404, "NoSuchTableException")
    for what in ("status", "health"):
        assert error_of(caller.http.get(f"{admin}/{what}")) == (403, "ForbiddenException")
        assert guarded.admin.http.get(f"{admin}/{what}").status_code == 200


def test_a_rename_needs_drop_on_the_source_and_create_on_the_target(guarded: Guarded) -> None:
    guarded.lake.duckdb().execute("CREATE TABLE sales.moved(i INTEGER)").close()

    def move(*grants: str) -> int:
        caller = guarded.as_client(new_name(), *grants)
        source = {"namespace": ["sales"], "name": "moved"}
        body = {"source": source, "destination": {"namespace": ["sales", "us"], "name": "moved"}}
        return caller.http.post("/v1/lake/tables/rename", json=body).status_code

    assert move("ns:sales:r") == 403
    assert move("table:sales.moved:rw") == 404
    assert move("table:sales.moved:drop", "ns:sales.us:r") == 403
    assert move("ns:sales.us:*") == 404
    assert move("table:sales.moved:drop", "ns:sales.us:create") == 204


def test_a_transaction_is_refused_whole_if_one_table_may_not_be_written(guarded: Guarded) -> None:
    caller = guarded.as_client(new_name(), "table:sales.t1:rw", "table:sales.t2:r")
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}
    before = commits.everything(guarded.lake)
    for second, status in (("t2", 403), ("t3", 404)):
        changes = [{"identifier": {"namespace": ["sales"], "name": name}, **change} for name in ("t1", second)]
        answer = caller.http.post("/v1/lake/transactions/commit", json={"table-changes": changes})
        assert answer.status_code == status
    assert commits.everything(guarded.lake) == before


def test_a_grant_may_name_a_table_that_does_not_exist_yet(guarded: Guarded) -> None:
    caller = guarded.as_client(new_name(), "table:sales.mine:rw")
    new: dict[str, Any] = {"name": "mine", "schema": commits.SCHEMA}
    assert caller.http.post(f"{caller.path('sales')}/tables", json=new).status_code == 200
    answer = caller.http.post(f"{caller.path('sales')}/tables", json={**new, "name": "other"})
    assert error_of(answer) == (403, "ForbiddenException")
    assert caller.http.get(f"{caller.path('sales')}/tables/mine").status_code == 200
    assert caller.http.delete(f"{caller.path('sales')}/tables/mine").status_code == 204


def test_an_idempotent_answer_is_not_replayed_after_the_grant_is_revoked(guarded: Guarded) -> None:
    name = new_name()
    caller = guarded.as_client(name, "ns:sales:w")
    headers = {"Idempotency-Key": new_key()}
    path = f"{caller.path('sales')}/properties"
    body = {"updates": {"a": "b"}}
    assert caller.http.post(path, json=body, headers=headers).status_code == 200
    assert caller.http.post(path, json=body, headers=headers).status_code == 200
    guarded.lake.sql("DELETE FROM access_grant WHERE grantee = %s", f"client:{name}")
    assert error_of(caller.http.post(path, json=body, headers=headers)) == (404, "NoSuchNamespaceException")
    # nor to anybody else
    other = guarded.as_client(new_name(), "ns:sales:w")
    assert error_of(other.http.post(path, json=body, headers=headers)) == (409, "ConflictException")


def test_a_table_moved_out_of_a_granted_namespace_cannot_be_read_in_the_past(guarded: Guarded) -> None:
    db = guarded.lake.duckdb()
    db.execute("CREATE TABLE sales.public_once(i INTEGER)").execute("INSERT INTO sales.public_once VALUES (1)")
    ((then,),) = guarded.lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")
    caller = guarded.as_client(new_name(), "ns:sales:r")
    path = f"/v1/lake@{then}/namespaces/sales/tables/public_once"
    assert caller.http.get(path).status_code == 200
    body = {
        "source": {"namespace": ["sales"], "name": "public_once"},
        "destination": {"namespace": ["secret"], "name": "now"},
    }
    assert guarded.admin.http.post("/v1/lake/tables/rename", json=body).status_code == 204
    assert error_of(caller.http.get(path)) == (404, "NoSuchTableException")
    assert error_of(caller.http.get(f"{path}/credentials")) == (404, "NoSuchTableException")
    assert caller.http.head(path).status_code == 404
    assert guarded.admin.http.get(path).status_code == 200
    db.close()


def test_a_table_dropped_in_another_namespace_cannot_be_registered_without_a_grant_on_it(guarded: Guarded) -> None:
    guarded.lake.duckdb().execute("CREATE TABLE secret.gone AS SELECT 7 AS i").close()
    location = guarded.admin.http.get(f"{guarded.admin.path('secret')}/tables/gone").json()["metadata-location"]
    assert guarded.admin.http.delete(f"{guarded.admin.path('secret')}/tables/gone").status_code == 204
    caller = guarded.as_client(new_name(), "ns:sales:*")
    body = {"name": "stolen", "metadata-location": location}
    answer = caller.http.post(f"{caller.path('sales')}/register", json=body)
    assert error_of(answer) == (400, "BadRequestException")
    assert "secret" not in answer.text
    both = guarded.as_client(new_name(), "ns:sales:*", "table:secret.gone:r")
    assert both.http.post(f"{both.path('sales')}/register", json=body).status_code == 200


def test_a_dropped_view_is_registered_only_by_callers_who_may_read_the_lake(guarded: Guarded) -> None:
    new = {"name": "hidden", "schema": SCHEMA, "view-version": version("secret", spark="SELECT 1"), "properties": {}}
    made = guarded.admin.http.post(f"{guarded.admin.path('secret')}/views", json=new)
    location = made.json()["metadata-location"]
    assert guarded.admin.http.delete(f"{guarded.admin.path('secret')}/views/hidden").status_code == 204
    caller = guarded.as_client(new_name(), "ns:sales:*")
    body = {"name": "stolen_view", "metadata-location": location}
    assert error_of(caller.http.post(f"{caller.path('sales')}/register-view", json=body))[0] == 403
    assert guarded.admin.http.post(f"{guarded.admin.path('sales')}/register-view", json=body).status_code == 200


# --- the audit log


def test_the_audit_log_records_who_did_what(guarded: Guarded) -> None:
    name = new_name()
    caller = guarded.as_client(name, "ns:sales:rw")
    request_id = f"audited-{name}"
    change = {"updates": {name: "x"}}
    answer = caller.http.post(f"{caller.path('sales')}/properties", json=change, headers={"X-Request-ID": request_id})
    assert answer.status_code == 200
    assert caller.http.get(f"{caller.path('secret')}/tables/t").status_code == 404
    assert caller.http.delete(f"{caller.path('sales')}/tables/nothing").status_code == 404
    assert caller.http.get("/v1/lake/admin/audit").status_code == 403
    told = [(e["operation"], e["resource"], e["status"]) for e in guarded.audit(principal=f"client:{name}")]
    assert told == [
        ("listAudit", ["the catalog"], 403),
        ("dropTable", ["sales.nothing"], 404),
        ("loadTable", ["secret.t"], 404),
        ("updateProperties", ["sales"], 200),
        ("getToken", ["the catalog"], 200),
    ]
    (entry,) = guarded.audit(principal=f"client:{name}", operation="updateProperties")
    assert entry["request-id"] == request_id
    assert entry["address"] == "127.0.0.1"
    nobody = guarded.server.http.delete(f"{caller.path('sales')}/tables/t1")
    assert nobody.status_code == 401
    (first, *_) = guarded.audit(operation="dropTable")
    assert (first["principal"], first["status"]) == ("anonymous", 401)
    # pages, and nothing but them
    page = guarded.admin.http.get("/v1/lake/admin/audit", params={"pageSize": 2}).json()
    assert len(page["audit"]) == 2
    assert page["next-page-token"]


def test_the_audit_log_contains_no_secrets(guarded: Guarded) -> None:
    rows = str(guarded.lake.sql("SELECT * FROM audit"))
    assert access.SECRET not in rows
    assert "eyJ" not in rows


def test_audit_entries_are_deleted_after_their_retention(guarded: Guarded, tmp_path: Path) -> None:
    guarded.lake.sql("UPDATE audit SET made_at = made_at - interval '1 hour'")
    with servers.server(guarded.lake.settings, tmp_path, auth="oauth2", audit_seconds=1800) as short:
        headers = {"Authorization": guarded.admin.http.headers["authorization"]}
        shown = short.http.get("/v1/lake/admin/audit", headers=headers).json()["audit"]
        assert shown == []
        deadline = time.monotonic() + 30
        while guarded.lake.sql("SELECT count(*) FROM audit WHERE made_at < now() - interval '30 minutes'") != [(0,)]:
            assert short.http.get("/v1/lake/namespaces").status_code == 401
            assert time.monotonic() < deadline
    with servers.server(guarded.lake.settings, tmp_path, auth="oauth2", audit_seconds=0) as none:
        ((before,),) = guarded.lake.sql("SELECT count(*) FROM audit")
        assert none.http.get("/v1/lake/namespaces").status_code == 401
        assert guarded.lake.sql("SELECT count(*) FROM audit") == [(before,)]


def test_unauthenticated_requests_do_not_flood_the_audit_log(guarded: Guarded) -> None:
    ((before,),) = guarded.lake.sql("SELECT count(*) FROM audit")
    start = time.monotonic()
    for _ in range(200):
        assert guarded.server.http.get("/v1/lake/namespaces").status_code == 401
    seconds = time.monotonic() - start
    ((after,),) = guarded.lake.sql("SELECT count(*) FROM audit")
    assert 0 < after - before <= 10 * (seconds + 2)


# --- what needs no token


def test_a_request_without_a_token_sees_only_the_prefix_in_the_config(guarded: Guarded) -> None:
    http = guarded.server.http
    told = http.get("/v1/config", params={"warehouse": "lake"}).json()
    assert told["overrides"] == {"prefix": "lake"}
    assert told["defaults"] == {}
    assert error_of(http.get("/v1/config", params={"warehouse": "lake@1"})) == (401, "NotAuthorizedException")
    assert "s3.endpoint" in guarded.admin.http.get("/v1/config").json()["defaults"]
    assert error_of(http.get("/metrics")) == (401, "NotAuthorizedException")
    assert guarded.admin.http.get("/metrics").status_code == 200
    assert guarded.as_client(new_name(), "ns:sales:*").http.get("/metrics").status_code == 403


def test_metrics_are_public_if_configured(guarded: Guarded, tmp_path: Path) -> None:
    with servers.server(guarded.lake.settings, tmp_path, auth="oauth2", metrics_public=True) as server:
        assert server.http.get("/metrics").status_code == 200
        assert server.http.get("/v1/lake/namespaces").status_code == 401


def test_the_principal_of_a_commit_is_the_author_of_its_ducklake_snapshot(guarded: Guarded) -> None:
    name = new_name()
    caller = guarded.as_client(name, "ns:sales:create")
    new = {"name": f"by_{name}", "schema": commits.SCHEMA}
    answer = caller.http.post(f"{caller.path('sales')}/tables", json=new)
    assert UUID(answer.json()["metadata"]["table-uuid"])
    assert guarded.lake.sql("SELECT author FROM ducklake_snapshot_changes ORDER BY snapshot_id DESC LIMIT 1") == [
        (f"client:{name}",)
    ]
