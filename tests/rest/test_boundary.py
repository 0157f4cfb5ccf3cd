"""Request ids, logs, metrics, health: what is the same for every request."""

import asyncio
import json
import logging
import re
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import duckdb
import httpx
import psutil
import psycopg
import pytest
from fastapi import Response
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from mergus.app import create_app
from mergus.catalog.lake import FOR_READERS, open_lake
from mergus.config import Settings, hide_password
from mergus.ducklake import session
from mergus.logs import TextFormatter, foreign_text
from mergus.rest.operations import OPERATIONS
from mergus.setup import initialise
from tests.support import lakes, servers, views
from tests.support.lakes import TestLake
from tests.support.listeners import eventually
from tests.support.servers import Server, error_of
from tests.support.waits import lock_waiters, wait_for_requests

COMMIT_REPORT = {
    "report-type": "commit-report",
    "table-name": "t",
    "snapshot-id": 1,
    "sequence-number": 1,
    "operation": "append",
    "metrics": {},
}


def sample(text: str, name: str, **labels: str) -> float:
    """The value of one metric; 0 where it is not there."""
    for line in text.splitlines():
        found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if found and dict(re.findall(r'(\w+)="([^"]*)"', found[1] or "")) == labels:
            return float(found[2])
    return 0.0


def test_every_answer_has_a_unique_request_id(server: Server) -> None:
    ids = {server.http.get(path).headers["x-request-id"] for path in ("/healthz", "/v1/config", "/nothing", "/v1/x/y")}
    assert len(ids) == 4


@pytest.mark.parametrize(
    ("sent", "kept"), [("abc-123", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ('"}{', False)]
)
def test_the_request_id_of_a_client_is_used_if_it_is_harmless(sent: str, kept: bool, server: Server) -> None:
    answer = server.http.get("/healthz", headers={"X-Request-ID": sent})
    assert (answer.headers["x-request-id"] == sent) == kept


def test_a_request_is_one_json_line_with_operation_status_and_id(server: Server) -> None:
    answer = server.http.get(server.path("not_here"), headers={"X-Request-ID": "find-me"})
    assert answer.status_code == 404
    deadline = time.monotonic() + 10  # it is written after the answer is sent
    while not (
        found := [x for x in map(json.loads, server.log.read_text().splitlines()) if x.get("request_id") == "find-me"]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (line,) = found
    assert line["operation"] == "loadNamespaceMetadata"
    assert line["status"] == 404
    assert line["method"] == "GET"
    assert line["milliseconds"] > 0


def logged(server: Server, request_id: str) -> dict[str, Any]:
    """The one line of a request; it is written after the answer is sent."""

    def lines() -> list[dict[str, Any]]:
        every = map(json.loads, server.log.read_text().splitlines())
        return [line for line in every if line.get("request_id") == request_id and line["message"] == "request"]

    eventually(lambda: bool(lines()), 10, lines)
    (line,) = lines()
    return line


def test_the_log_line_of_a_refused_write_names_the_reason_and_the_table(server: Server) -> None:
    server.http.post(server.namespaces, json={"namespace": ["refused"]}).raise_for_status()
    schema = {"type": "struct", "fields": [{"id": 1, "name": "i", "type": "fixed[7]", "required": False}]}
    headers = {"X-Request-ID": "refused-create"}
    answer = server.http.post(server.path("refused") + "/tables", json={"name": "t", "schema": schema}, headers=headers)
    told = answer.json()["error"]
    line = logged(server, "refused-create")
    assert (line["status"], line["operation"]) == (told["code"], "createTable")
    assert (line["error"], line["reason"]) == (told["type"], told["message"])
    assert "refused.t" in line["about"]


def test_the_log_line_of_a_refused_transaction_names_the_reason(server: Server) -> None:
    change = {"identifier": {"namespace": ["nowhere"], "name": "t"}, "requirements": [], "updates": []}
    url = f"{server.namespaces.removesuffix('/namespaces')}/transactions/commit"
    answer = server.http.post(url, json={"table-changes": [change]}, headers={"X-Request-ID": "refused-commit"})
    line = logged(server, "refused-commit")
    assert line["reason"] == answer.json()["error"]["message"]
    assert "nowhere.t" in line["about"]


def test_the_log_line_of_a_successful_request_has_no_reason(server: Server) -> None:
    server.http.get(server.namespaces, headers={"X-Request-ID": "granted"}).raise_for_status()
    assert not {"error", "reason", "about"} & logged(server, "granted").keys()


def test_text_of_a_client_neither_forges_a_log_line_nor_floods_the_log(server: Server) -> None:
    forged = 'x" status=200\n{"message":"request","status":200}\x1b[2J\u2028 password=hunter2'
    answer = server.http.post(
        server.namespaces, json={"namespace": [forged + "y" * 10_000, ""]}, headers={"X-Request-ID": "forged"}
    )
    assert 400 <= answer.status_code < 500
    line = logged(server, "forged")
    assert line["status"] == answer.status_code
    assert len(line["reason"]) < 1000
    assert "hunter2" not in server.log.read_text()


@given(st.text(max_size=3000))
def test_foreign_text_is_logged_as_one_field_on_one_line(text: str) -> None:
    shown = foreign_text(text)
    assert shown.isprintable()
    assert len(shown) <= 12 * 501
    record = logging.LogRecord("mergus", logging.INFO, "", 0, "request", None, None)
    record.fields = {"reason": shown, "status": 400}
    field = json.dumps(shown, ensure_ascii=False) if re.search(r'[\s"]', shown) or not shown else shown
    assert TextFormatter().format(record) == hide_password(f"INFO    mergus: request reason={field} status=400")


def test_the_log_contains_no_secret(server: Server, lake: TestLake) -> None:
    log = server.log.read_text()
    secret = lake.settings.s3_secret_access_key
    assert secret is not None
    assert secret.get_secret_value() not in log
    password = lake.settings.dsn.split(":")[2].split("@")[0]
    assert password not in log


def test_requests_are_counted_by_operation_and_status(server: Server) -> None:
    def count(operation: str, status: str) -> float:
        return sample(server.http.get("/metrics").text, "mergus_requests_total", operation=operation, status=status)

    before = count("namespaceExists", "404")
    for _ in range(3):
        server.http.head(server.path("nobody"))
    assert count("namespaceExists", "404") == before + 3
    text = server.http.get("/metrics").text
    assert sample(text, "mergus_request_seconds_count", operation="namespaceExists") >= 3
    assert sample(text, "mergus_pool_connections") >= 1


def test_an_unknown_path_creates_no_metric_label(server: Server) -> None:
    server.http.get("/some/random/path")
    text = server.http.get("/metrics").text
    operations = set(re.findall(r'operation="([^"]*)"', text))
    assert operations <= {o.name for o in OPERATIONS} | {"unknown"}


@pytest.fixture
def own_logging():
    """The app sets the process's logging up; this one goes on after it."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


@pytest.mark.usefixtures("own_logging")
def test_an_answer_without_an_authorisation_check_is_not_sent(lake: TestLake) -> None:
    async def leaky() -> Response:
        return Response("secret")

    app = create_app(lake.settings)
    app.add_api_route("/leaky", leaky, methods=["GET"])

    async def ask() -> httpx.Response:
        async with (
            open_lake(lake.settings) as app.state.lake,
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http,
        ):
            return await http.get("/leaky")

    answer = asyncio.run(ask())
    assert error_of(answer) == (500, "InternalServerError")
    assert "secret" not in answer.text


SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "i", "type": "int", "required": False}]}


def dropped_in(db: duckdb.DuckDBPyConnection, schema: str) -> dict[str, str]:
    db.execute(f"CREATE TABLE {schema}.d(i INTEGER); DROP TABLE {schema}.d")
    return {"name": "d"}


def with_views(server: Server) -> dict[str, httpx.Response]:
    at = f"{server.path('gate')}/views"
    v, w = ({"namespace": ["gate"], "name": name} for name in "vw")
    answers = {
        "createView": server.http.post(at, json=views.wanted("gate", "v", spark="SELECT 1")),
        "listViews": server.http.get(at),
        "viewExists": server.http.head(f"{at}/v"),
        "loadView": server.http.get(f"{at}/v"),
        "replaceView": server.http.post(f"{at}/v", json={"requirements": [], "updates": []}),
        "renameView": server.http.post("/v1/lake/views/rename", json={"source": v, "destination": w}),
        "dropView": server.http.delete(f"{at}/w"),
    }
    again = {"name": "v", "metadata-location": answers["loadView"].json()["metadata-location"]}
    answers["registerView"] = server.http.post(f"{server.path('gate')}/register-view", json=again)
    server.http.delete(f"{at}/v")
    return answers


def registered(server: Server) -> dict[str, httpx.Response]:
    tables = f"{server.path('gate')}/tables"
    server.http.post(tables, json={"name": "t2", "schema": SCHEMA})
    gone = server.http.post(f"{tables}/t2/unregister")
    again = {"name": "t2", "metadata-location": gone.json()["metadata-location"]}
    answers = {
        "unregisterTable": gone,
        "registerTable": server.http.post(f"{server.path('gate')}/register", json=again),
    }
    server.http.delete(f"{tables}/t2")
    return answers


GRANT = {"grantee": "role:gate", "grant": "ns:gate:r"}
TO_SIGN = {"region": "us-east-1", "uri": "http://127.0.0.1/b/k", "method": "GET", "headers": {}}


def with_jobs(server: Server) -> dict[str, httpx.Response]:
    admin = "/v1/lake/admin"
    asked = server.http.post(f"{admin}/compact", json={"dry-run": True})
    job = f"{admin}/jobs/{asked.json()['job-id']}"
    return {
        "compactCatalog": asked,
        "compactNamespace": server.http.post(f"{admin}/namespaces/gate/compact"),
        "compactTable": server.http.post(f"{admin}/namespaces/main/tables/t/compact"),
        "expireSnapshots": server.http.post(f"{admin}/expire", json={"retain-last": 1_000_000}),
        "sweepGarbage": server.http.post(f"{admin}/sweep"),
        "removeOrphans": server.http.post(f"{admin}/orphans"),
        "listJobs": server.http.get(f"{admin}/jobs"),
        "loadJob": server.http.get(job),
        "cancelJob": server.http.post(f"{job}/cancel"),
    }


def one_of_each(server: Server, db: duckdb.DuckDBPyConnection) -> dict[str, httpx.Response]:
    """An answer of every operation, on a lake where nobody has asked for them yet."""
    server.create("gate")
    db.execute("CREATE TABLE main.t(i INTEGER); CREATE MACRO main.f(a) AS a + 1")
    t, u = ({"namespace": ["gate"], "name": name} for name in "tu")
    nothing = {"identifier": t, "requirements": [], "updates": []}
    answers = {
        "getConfig": server.http.get("/v1/config"),
        "listNamespaces": server.http.get(server.namespaces),
        "createNamespace": server.create("gate_2"),
        "loadNamespaceMetadata": server.http.get(server.path("gate")),
        "namespaceExists": server.http.head(server.path("gate")),
        "updateProperties": server.http.post(f"{server.path('gate')}/properties", json={"updates": {"a": "b"}}),
        "listTables": server.http.get(f"{server.path('gate')}/tables"),
        "tableExists": server.http.head(f"{server.path('main')}/tables/t"),
        "loadTable": server.http.get(f"{server.path('main')}/tables/t"),
        "createTable": server.http.post(f"{server.path('gate')}/tables", json={"name": "t", "schema": SCHEMA}),
        "updateTable": server.http.post(f"{server.path('gate')}/tables/t", json={"requirements": [], "updates": []}),
        "commitTransaction": server.http.post("/v1/lake/transactions/commit", json={"table-changes": [nothing]}),
        "renameTable": server.http.post("/v1/lake/tables/rename", json={"source": t, "destination": u}),
        "loadCredentials": server.http.get(f"{server.path('main')}/tables/t/credentials"),
        "reportMetrics": server.http.post(f"{server.path('main')}/tables/t/metrics", json=COMMIT_REPORT),
        "listFunctions": server.http.get(f"{server.path('main')}/functions"),
        "loadFunction": server.http.get(f"{server.path('main')}/functions/f"),
        "listReports": server.http.get("/v1/lake/admin/namespaces/main/tables/t/reports"),
        "getTableHealth": server.http.get("/v1/lake/admin/namespaces/main/tables/t/health"),
        "dropTable": server.http.delete(f"{server.path('gate')}/tables/u"),
        "listDropped": server.http.get("/v1/lake/admin/namespaces/gate/dropped"),
        "undropTable": server.http.post("/v1/lake/admin/namespaces/gate_2/undrop", json=dropped_in(db, "gate_2")),
        "createTag": server.http.post("/v1/lake/admin/tags", json={"name": "gate"}),
        "listTags": server.http.get("/v1/lake/admin/tags"),
        "loadTag": server.http.get("/v1/lake/admin/tags/gate"),
        "dropTag": server.http.delete("/v1/lake/admin/tags/gate"),
        "addGrant": server.http.post("/v1/lake/admin/grants", json=GRANT),
        "listGrants": server.http.get("/v1/lake/admin/grants"),
        "removeGrant": server.http.post("/v1/lake/admin/grants/remove", json=GRANT),
        "listAudit": server.http.get("/v1/lake/admin/audit"),
        "getToken": server.http.post("/v1/oauth/tokens", data={"grant_type": "client_credentials"}),
        "signRequest": server.http.post(f"{server.path('main')}/tables/t/sign", json=TO_SIGN),
        **with_jobs(server),
        **with_views(server),
        **registered(server),
        "dropNamespace": server.http.delete(server.path("gate")),
        "getListener": server.http.get("/v1/lake/admin/listener"),
        "getStatus": server.http.get("/v1/lake/admin/status"),
        "listHealth": server.http.get("/v1/lake/admin/health"),
        "healthz": server.http.get("/healthz"),
        "readyz": server.http.get("/readyz"),
        "metrics": server.http.get("/metrics"),
    }
    assert set(answers) == {o.name for o in OPERATIONS}
    return answers


def test_every_operation_performs_its_authorisation_check(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    """An answer that was not authorised is not sent: so one 2xx from each proves each."""
    answers = one_of_each(server, db)
    # says why no function can be shown, and has no other answer
    assert error_of(answers.pop("loadFunction")) == (406, "UnsupportedOperationException")
    # say that this server does neither
    assert error_of(answers.pop("signRequest")) == (403, "ForbiddenException")
    assert answers.pop("getToken").json()["error"] == "invalid_client"
    assert {name: a.is_success for name, a in answers.items()} == dict.fromkeys(answers, True)


class TestReadiness:
    def test_readyz_reports_ok_for_postgres_and_storage(self, server: Server) -> None:
        assert server.http.get("/readyz").json() == {"status": "ok", "checks": {"postgres": "ok", "storage": "ok"}}

    def test_a_server_without_postgres_is_alive_but_not_ready(self, lake: TestLake, tmp_path: Path) -> None:
        nowhere = lake.settings.model_copy(
            update={"postgres_dsn": lakes.settings_for("postgresql://u:p@127.0.0.1:1/x").postgres_dsn}
        )
        with servers.server(nowhere, tmp_path, wait=False, pool_timeout=0.5) as running:
            answer = servers.wait_for(running, "/healthz", 200)
            assert answer.json() == {"status": "ok"}
            ready = running.http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["status"] == "not ready"
            answer = running.http.get(running.namespaces)
            assert error_of(answer) == (503, "ServiceUnavailableException")
            assert answer.headers["retry-after"] == "1"

    def test_a_server_without_storage_is_not_ready(self, lake: TestLake, tmp_path: Path) -> None:
        with servers.server(lake.settings, tmp_path, wait=False, s3_endpoint="http://127.0.0.1:1") as running:
            servers.wait_for(running, "/healthz", 200)
            ready = running.http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["checks"]["postgres"] == "ok"
            assert ready.json()["checks"]["storage"] != "ok"
            assert running.http.get(running.namespaces).status_code == 200

    def test_a_server_of_an_adopted_local_lake_is_ready_before_its_directory_exists(self, tmp_path: Path) -> None:
        directory = tmp_path / "not there" / "data"
        with lakes.database() as dsn:
            settings = lakes.plain_lake(dsn, data_path=f"{directory}/")
            shutil.rmtree(tmp_path / "not there", ignore_errors=True)
            initialise(settings, lakes.quiet)
            (tmp_path / "server").mkdir()
            with servers.server(settings, tmp_path / "server", wait=False) as running:
                servers.wait_for(running, "/readyz", 200)
                assert not directory.exists()
                # a directory that files should be in is another matter
                session.attach(settings).execute("CREATE TABLE t AS SELECT range i FROM range(100)").close()
                assert running.http.get("/readyz").status_code == 200
                directory.rename(tmp_path / "lost")
                ready = running.http.get("/readyz")
                assert ready.status_code == 503
                assert ready.json()["checks"]["storage"] == "failed: FileNotFoundError"

    def test_h25_a_server_is_not_ready_with_a_catalog_of_another_version(self, tmp_path: Path) -> None:
        with lakes.lake() as lake, servers.server(lake.settings, tmp_path) as running:
            lake.sql("UPDATE ducklake_metadata SET value = '1.1' WHERE key = 'version'")
            ready = running.http.get("/readyz")
            assert ready.status_code == 503
            assert "1.1" in ready.json()["checks"]["postgres"]

    def test_a_server_is_not_ready_before_the_lake_is_initialised(self, tmp_path: Path) -> None:
        with lakes.database() as dsn:
            settings: Settings = lakes.settings_for(dsn)
            with servers.server(settings, tmp_path, wait=False) as running:
                servers.wait_for(running, "/healthz", 200)
                assert running.http.get("/readyz").status_code == 503
                assert error_of(running.http.get(running.namespaces)) == (503, "ServiceUnavailableException")


def test_several_processes_serve_one_lake_and_add_up_their_metrics(lake: TestLake, tmp_path: Path) -> None:
    name = f"mergus-{uuid4()}"
    dsn = make_conninfo(lake.settings.dsn, application_name=name)
    settings = lake.settings.model_copy(update={"postgres_dsn": SecretStr(dsn)})
    with servers.server(settings, tmp_path, workers=3, listener="off") as running:
        parent = psutil.Process(running.process.pid)

        def workers() -> list[psutil.Process]:
            return [p for p in parent.children() if "spawn_main" in " ".join(p.cmdline())]

        def counted() -> tuple[float, int]:
            """The connections of all processes, as they say and as Postgres says."""
            shown = sample(httpx.get(f"{running.uri}/metrics").text, "mergus_pool_connections")
            ((real,),) = lake.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", name)
            return shown, real

        def all_are_counted() -> bool:
            shown, real = counted()
            return shown == real >= len(workers()) == 3

        def requests() -> float:
            text = httpx.get(f"{running.uri}/metrics").text
            return sample(text, "mergus_requests_total", operation="getConfig", status="200")

        for _ in range(60):
            # a connection each, so that every process gets some
            assert httpx.get(f"{running.uri}/v1/config").status_code == 200
        eventually(all_are_counted, 30, counted)
        assert requests() == 60
        gone = workers()[0]
        gone.kill()
        # the dead one's connections are not counted any more, what it counted is; another takes its place
        gone.wait(10)
        eventually(all_are_counted, 30, counted)
        assert requests() == 60


def test_reads_are_answered_while_more_commits_wait_than_there_are_connections(lake: TestLake, tmp_path: Path) -> None:
    with (
        servers.server(lake.settings, tmp_path, pool_max=4, lock_timeout=20.0) as running,
        psycopg.connect(lake.settings.dsn) as writer,
    ):
        writer.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        with ThreadPoolExecutor(12) as pool:
            waiting = [pool.submit(running.create, f"waits_{i}") for i in range(12)]
            wait_for_requests(running, 12)
            eventually(lambda: lock_waiters(lake, "ducklake_snapshot") == 4 - FOR_READERS, 20)
            began = time.monotonic()
            assert running.http.get(running.namespaces).status_code == 200
            assert running.http.get("/readyz").status_code == 200
            assert time.monotonic() - began < 4
            writer.rollback()
            assert [w.result(30).status_code for w in waiting] == [200] * 12


def takes_connections(server: Server) -> bool:
    address = urlsplit(server.uri)
    with socket.socket() as client:
        return client.connect_ex((address.hostname, address.port)) == 0


def test_requests_in_flight_are_finished_when_the_server_is_stopped(lake: TestLake, tmp_path: Path) -> None:
    """A creation that waits for a writer's lock when SIGTERM comes still gets its answer."""
    with (
        servers.server(lake.settings, tmp_path) as running,
        psycopg.connect(lake.settings.dsn) as writer,
    ):
        writer.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        answers: list[httpx.Response] = []
        client = threading.Thread(target=lambda: answers.append(running.create("in_flight")))
        client.start()
        eventually(lambda: lock_waiters(lake, "ducklake_snapshot"), 10)
        running.process.send_signal(signal.SIGTERM)
        # a server that stops takes no new connections
        eventually(lambda: not takes_connections(running), 10)
        writer.rollback()
        client.join(20)
        assert [a.status_code for a in answers] == [200]
        assert running.process.wait(20) is not None


def test_a_server_that_is_stopped_leaves_no_directory_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    # one that nobody else writes files of rows for
    with lakes.lake() as own:
        own.duckdb().execute("CREATE TABLE tidy(i INTEGER)").execute("INSERT INTO tidy VALUES (1)").close()
        with servers.server(own.settings, tmp_path, listener="off") as running:
            assert running.http.get(f"{running.path('main')}/tables/tidy").status_code == 200
            assert list(scratch.iterdir())
        assert list(scratch.iterdir()) == []
