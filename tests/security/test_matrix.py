"""Every operation, asked by everybody who may not: made from the table of operations, so that none can be forgotten.

An operation that is not in REQUESTS fails here. The answers are those of the names and grants alone, so the things that
are asked for are there: what would be done if it were allowed is done at the end, by one who may.
"""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import jwt
import pytest

from mergus.access.privileges import Privilege
from mergus.config import load_settings
from mergus.rest.operations import OPERATIONS, Operation
from tests.support import access, commits, lakes
from tests.support.access import SECRET, Guarded
from tests.support.servers import Server, error_of

NS, TABLE, VIEW = "here", "t", "v"
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "i", "type": "int", "required": False}]}
VERSION: dict[str, Any] = {
    "version-id": 1,
    "timestamp-ms": 1,
    "schema-id": 0,
    "summary": {},
    "default-namespace": [NS],
    "representations": [{"type": "sql", "sql": "SELECT 1 AS i", "dialect": "duckdb"}],
}
NEW_TABLE = {"name": "new", "schema": SCHEMA}
NEW_VIEW = {"name": "newview", "schema": SCHEMA, "view-version": VERSION, "properties": {}}
CHANGE = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
REPORT = {
    "report-type": "commit-report",
    "table-name": "t",
    "snapshot-id": 1,
    "sequence-number": 1,
    "operation": "append",
    "metrics": {},
}

# What is sent with each: nothing, or a body.
REQUESTS: dict[str, Any] = {
    "getConfig": None,
    "getToken": None,
    "listNamespaces": None,
    "createNamespace": {"namespace": [NS, "below"]},
    "loadNamespaceMetadata": None,
    "namespaceExists": None,
    "dropNamespace": None,
    "updateProperties": {"updates": {"a": "b"}},
    "listTables": None,
    "createTable": NEW_TABLE,
    "registerTable": {"name": "new", "metadata-location": "s3://mergus/nowhere/x.metadata.json"},
    "loadTable": None,
    "tableExists": None,
    "updateTable": CHANGE,
    "dropTable": None,
    "loadCredentials": None,
    "signRequest": {"region": "us-east-1", "uri": "http://127.0.0.1:1/x/y", "method": "GET", "headers": {}},
    "reportMetrics": REPORT,
    "unregisterTable": None,
    "renameTable": {
        "source": {"namespace": [NS], "name": TABLE},
        "destination": {"namespace": [NS], "name": "renamed"},
    },
    "listViews": None,
    "createView": NEW_VIEW,
    "loadView": None,
    "viewExists": None,
    "replaceView": CHANGE,
    "dropView": None,
    "renameView": {"source": {"namespace": [NS], "name": VIEW}, "destination": {"namespace": [NS], "name": "renamed"}},
    "registerView": {"name": "newview", "metadata-location": "s3://mergus/nowhere/x.metadata.json"},
    "commitTransaction": {"table-changes": [{"identifier": {"namespace": [NS], "name": TABLE}, **CHANGE}]},
    "listFunctions": None,
    "loadFunction": None,
    "getListener": None,
    "getStatus": None,
    "listHealth": None,
    "getTableHealth": None,
    "listDropped": None,
    "undropTable": {"name": "dropped"},
    "listReports": None,
    "listTags": None,
    "createTag": {"name": "tag"},
    "loadTag": None,
    "dropTag": None,
    "listGrants": None,
    "addGrant": {"grantee": "client:somebody", "grant": f"ns:{NS}:r"},
    "removeGrant": {"grantee": "client:somebody", "grant": f"ns:{NS}:r"},
    "listAudit": None,
    "compactCatalog": {"max-files": 1},
    "compactNamespace": None,
    "compactTable": None,
    "expireSnapshots": {"retain-last": 1_000_000},
    "sweepGarbage": None,
    "removeOrphans": None,
    "listJobs": None,
    "loadJob": None,
    "cancelJob": None,
    "healthz": None,
    "readyz": None,
    "metrics": None,
}
# About a thing that is named in the body.
BODIES = {"renameTable", "renameView", "commitTransaction", "addGrant", "removeGrant"}
CREATES = {"createTable", "createView", "registerTable", "registerView", "createNamespace"}

every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with lakes.lake() as lake, access.guarded(lake, tmp_path_factory.mktemp("servers")) as found:
        db = lake.duckdb()
        for statement in (
            f"CREATE SCHEMA {NS}",
            f"CREATE TABLE {NS}.{TABLE}(i INTEGER)",
            f"CREATE TABLE {NS}.dropped(i INTEGER)",
            f"DROP TABLE {NS}.dropped",
            f"CREATE VIEW {NS}.{VIEW} AS SELECT 1 AS i",
            f"CREATE MACRO {NS}.f(x) AS x + 1",
            "CREATE SCHEMA other",
        ):
            db.execute(statement)
        db.close()
        assert found.admin.http.post("/v1/lake/admin/tags", json={"name": "x"}).status_code == 200
        yield found


@pytest.fixture(scope="module")
def reader(guarded: Guarded) -> Server:
    return guarded.as_client("reader", f"ns:{NS}:r")


@pytest.fixture(scope="module")
def stranger(guarded: Guarded) -> Server:
    return guarded.as_client("stranger", "ns:other:*")


@pytest.fixture(scope="module")
def pinned(guarded: Guarded) -> Server:
    """Whose token is good for less than its client."""
    return guarded.as_client("pinned", "*", scope="ns:other:*")


@pytest.fixture(scope="module")
def bad_tokens(guarded: Guarded) -> dict[str, str]:
    good = guarded.token("admin")
    claims = jwt.decode(good, options={"verify_signature": False})
    ((key,),) = guarded.lake.sql("SELECT signing_key FROM catalog")

    def signed(**changes: Any) -> str:
        return jwt.encode({**claims, **changes}, bytes(key), "HS256", headers={"kid": "lake"})

    assert guarded.with_token(signed()).http.get("/v1/lake/admin/tags").status_code == 200
    unsigned = jwt.encode(claims, "", "none", headers={"kid": "lake"})
    return {
        "garbage": "garbage",
        "another's": jwt.encode(claims, "x" * 40, "HS256", headers={"kid": "lake"}),
        "expired": signed(exp=int(time.time()) - 3600),
        "of tomorrow": signed(nbf=int(time.time()) + 3600),
        "other audience": signed(aud="mergus/other"),
        "other issuer": signed(iss="https://elsewhere.example"),
        "alg none": unsigned,
        "cut": good[:-10],
        "of nobody": signed(sub="nobody"),
        "of another generation": signed(gen=7),
        "nothing": "-",
    }


def send(server: Server, operation: Operation, **headers: str) -> httpx.Response:
    path = operation.path.format(prefix="lake", namespace=NS, table=TABLE, view=VIEW, function="f", tag="x", job=1)
    body = REQUESTS[operation.name]
    if operation.name == "getToken":
        form = {"grant_type": "client_credentials", "client_id": "admin", "client_secret": SECRET}
        return server.http.post(path, data=form, headers=headers)
    return server.http.request(operation.method, path, json=body, headers=headers)


def refused(answer: httpx.Response, operation: Operation, status: int, kind: str) -> None:
    if operation.method == "HEAD":
        assert answer.status_code == status
    else:
        assert error_of(answer) == (status, kind), answer.text


def needs_token(operation: Operation) -> bool:
    return operation.asks_for_token(load_settings())


def test_the_matrix_has_a_request_for_every_operation() -> None:
    assert {operation.name for operation in OPERATIONS} <= REQUESTS.keys()


@every_operation
def test_every_operation_refuses_missing_and_invalid_tokens(
    operation: Operation, guarded: Guarded, bad_tokens: dict[str, str]
) -> None:
    before = commits.everything(guarded.lake)
    nobody = send(guarded.server, operation)
    if needs_token(operation):
        refused(nobody, operation, 401, "NotAuthorizedException")
        assert nobody.headers["www-authenticate"] == "Bearer"
    else:
        assert nobody.status_code == 200, nobody.text
    for what, token in bad_tokens.items():
        answer = send(guarded.server, operation, Authorization=f"Bearer {token}")
        if needs_token(operation) or operation.whom == "either":
            refused(answer, operation, 401, "NotAuthorizedException")
            assert token not in answer.text or len(token) < 10, what
        else:
            assert answer.status_code == 200, (what, answer.text)
    if needs_token(operation):
        basic = send(guarded.server, operation, Authorization="Basic YWRtaW46eA==")
        refused(basic, operation, 401, "NotAuthorizedException")
    assert commits.everything(guarded.lake) == before


@every_operation
def test_a_reader_can_use_read_operations_only(operation: Operation, guarded: Guarded, reader: Server) -> None:
    before = commits.everything(guarded.lake)
    answer = send(reader, operation)
    if operation.name == "signRequest":
        # this server signs nothing, for anybody
        assert "Requests are not signed" in answer.text
    elif Privilege.READ in operation.needs or not needs_token(operation):
        assert answer.status_code in {200, 202, 204, 304, 406}, answer.text
        if operation.name == "reportMetrics":
            return
    else:
        refused(answer, operation, 403, "ForbiddenException")
    assert commits.everything(guarded.lake) == before


@every_operation
@pytest.mark.parametrize("who", ["stranger", "pinned"])
def test_a_client_with_grants_elsewhere_sees_nothing_of_this_namespace(
    operation: Operation, who: str, guarded: Guarded, request: pytest.FixtureRequest
) -> None:
    caller: Server = request.getfixturevalue(who)
    before = commits.everything(guarded.lake)
    answer = send(caller, operation)
    if not needs_token(operation):
        assert answer.status_code == 200
    elif "{namespace}" in operation.path or operation.name in BODIES | {"createNamespace"}:
        refused(answer, operation, 404, hidden(operation))
        # in the very words of what is not there
        absent = send_absent(caller, operation)
        if absent is not None and operation.method != "HEAD":
            said = answer.json()["error"]["message"].replace(NS, "*")
            assert absent.json()["error"]["message"].replace("absent", "*") == said
    elif operation.name == "listNamespaces":
        assert answer.json() == {"namespaces": [["other"]]}
    else:
        refused(answer, operation, 403, "ForbiddenException")
    assert commits.everything(guarded.lake) == before


def hidden(operation: Operation) -> str:
    if operation.name in CREATES or ("{namespace}" in operation.path and operation.path.count("{") == 2):
        return "NoSuchNamespaceException"
    if operation.name in {"addGrant", "removeGrant"}:
        return "NoSuchNamespaceException"
    return {"table": "NoSuchTableException", "view": "NoSuchViewException", "function": "NoSuchFunctionException"}[
        operation.kind
    ]


def send_absent(server: Server, operation: Operation) -> httpx.Response | None:
    """The same of a namespace that is not there, whether or not one may see it."""
    if "{namespace}" not in operation.path:
        return None
    path = operation.path.format(
        prefix="lake", namespace="absent", table=TABLE, view=VIEW, function="f", tag="x", job=1
    )
    return server.http.request(operation.method, path, json=REQUESTS[operation.name])


@every_operation
def test_every_operation_on_a_past_snapshot_checks_grants(
    operation: Operation, guarded: Guarded, stranger: Server
) -> None:
    if "{prefix}" not in operation.path:
        return
    ((newest,),) = guarded.lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")
    names = {"namespace": NS, "table": TABLE, "view": VIEW, "function": "f", "tag": "x", "job": 1}
    path = operation.path.format(prefix=f"lake@{newest}", **names)
    body = REQUESTS[operation.name]
    nobody = guarded.server.http.request(operation.method, path, json=body)
    refused(nobody, operation, 401, "NotAuthorizedException")
    answer = stranger.http.request(operation.method, path, json=body)
    if operation.changes:
        refused(answer, operation, 403, "ForbiddenException")
    elif operation.name == "listNamespaces":
        assert answer.json() == {"namespaces": [["other"]]}
    elif "{namespace}" in operation.path:
        refused(answer, operation, 404, hidden(operation))
    else:
        refused(answer, operation, 403, "ForbiddenException")


def test_an_administrator_can_use_every_operation(guarded: Guarded) -> None:
    for operation in OPERATIONS:
        if operation.success is None:
            answer = send(guarded.admin, operation)
            assert answer.status_code in {200, 202, 204, 304, 406} or operation.name == "signRequest", answer.text
