"""What those are told who run it: `/v1/{prefix}/admin/listener`, the listener's metrics, `mergus listen`."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from mergus.config import Settings
from mergus.serve import environment
from tests.support import lakes, listeners, servers
from tests.support.lakes import TestLake
from tests.support.listeners import eventually, leader, listener, metrics, samples, status, wait_until_caught_up
from tests.support.ports import free_port
from tests.support.servers import Server, error_of

PATH = "/v1/lake/admin/listener"
SECONDS = "mergus_stage_seconds"
STAGES = {"read", "deletes", "rows", "manifests", "list", "metadata", "signs"}


def commit(lake: TestLake) -> None:
    """And see it followed."""
    with lake.duckdb() as db:
        db.execute("CREATE OR REPLACE TABLE t AS SELECT 1 AS i; INSERT INTO t VALUES (2)")
    wait_until_caught_up(lake, 20)


def test_the_listener_endpoint_shows_the_leader_the_watermark_and_the_lag(lake: TestLake, server: Server) -> None:
    commit(lake)
    said = status(server)
    assert said.keys() == {"leader", "head", "done", "lag", "failing", "last-report"}
    assert said["leader"].keys() == {"name", "since"}
    assert said["leader"]["name"] == leader(lake) == f"{socket.gethostname()}:{server.process.pid}"
    head = listeners.head(lake)
    ((epoch,),) = lake.sql("SELECT epoch FROM catalog")
    assert said["head"] == said["done"] == {"snapshot-id": head, "epoch": epoch}
    assert said["lag"] == {"snapshots": 0, "seconds": 0.0}
    assert said["failing"] == []
    report = said["last-report"]
    assert report["by"] == said["leader"]["name"]
    assert report["tables"] == {"waiting": 0, "working": 0, "history": 0, "failing": 0}
    assert min(report[key] for key in ("made", "snapshots-made", "objects-written", "bytes-written")) > 0
    assert report["stages"].keys() >= STAGES
    assert all(stage.keys() == {"times", "seconds"} for stage in report["stages"].values())
    for moment in (said["leader"]["since"], report["at"]):
        ago = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
        assert 0 <= ago < 300


def test_the_listener_endpoint_shows_failing_tables_with_the_reason(lake: TestLake, server: Server) -> None:
    with lake.duckdb() as db:
        db.execute("CREATE SCHEMA odd; CREATE TABLE odd.t(i INTEGER, how_long INTERVAL)")
        eventually(lambda: status(server)["failing"], 10)
        (failure,) = status(server)["failing"]
        assert failure.keys() == {"table-id", "namespace", "table", "type", "message", "attempts", "since", "tried-at"}
        assert (failure["namespace"], failure["table"]) == ("odd", "t")
        assert failure["type"] == "UnsupportedOperationException"
        assert "how_long" in failure["message"]
        labels = (("namespace", "odd"), ("table", "t"), ("type", failure["type"]))
        assert metrics(server)["mergus_listener_failing", labels] >= 1
        # whoever drops it need not wait until it is tried again
        db.execute("DROP TABLE odd.t")
        wait_until_caught_up(lake, 5)
    assert status(server)["failing"] == []
    assert not [name for name, _ in metrics(server) if name == "mergus_listener_failing"]


def test_the_listener_endpoint_of_another_prefix_is_an_unknown_warehouse(server: Server) -> None:
    assert error_of(server.http.get("/v1/other/admin/listener")) == (404, "NoSuchWarehouseException")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_the_listener_endpoint_allows_get_only(method: str, server: Server) -> None:
    answer = server.http.request(method, PATH)
    assert error_of(answer) == (405, "MethodNotAllowedException")
    assert answer.headers["allow"] == "GET"


def test_admin_endpoints_are_not_announced_to_clients(server: Server) -> None:
    assert not [e for e in server.http.get("/v1/config").json()["endpoints"] if "admin" in e]


def test_the_reported_lag_grows_without_a_listener(tmp_path: Path) -> None:
    with lakes.lake(listener="off") as lake, servers.server(lake.settings, tmp_path) as server, lake.duckdb() as db:
        db.execute("CREATE TABLE t(i INTEGER)")
        before = status(server)
        assert before["leader"] is None
        assert before["last-report"] == {"by": None, "at": None}
        db.execute("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)")
        lake.sql("UPDATE ducklake_snapshot SET snapshot_time = snapshot_time - interval '1 hour'")
        after, measured = status(server), metrics(server)
        assert after["lag"]["snapshots"] == before["lag"]["snapshots"] + 2
        assert after["lag"]["seconds"] >= before["lag"]["seconds"] + 3600
        assert measured["mergus_listener_led", ()] == 0
        assert measured["mergus_listener_lag_snapshots", ()] == after["lag"]["snapshots"]
        assert measured["mergus_listener_lag_seconds", ()] >= after["lag"]["seconds"]


@pytest.fixture(scope="module")
def two_workers(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("workers"), workers=2) as running:
        yield running


def test_listener_metrics_have_each_series_once(lake: TestLake, server: Server, two_workers: Server) -> None:
    """The one process leads; of the other server's two, each may be asked."""
    commit(lake)
    for asked in (server, *[two_workers] * 6):
        # on a connection of its own, so that any worker may get it
        answer = httpx.get(f"{asked.uri}/metrics", timeout=10)
        assert answer.status_code == 200
        found = samples(answer.text)
        assert found["mergus_listener_led", ()] == 1
        assert found["mergus_listener_lag_snapshots", ()] == 0
        assert found["mergus_listener_lag_seconds", ()] == 0
        assert found["mergus_listener_leads", ()] == (1 if asked is server else 0)
    measured = metrics(server)
    assert {dict(labels)["stage"] for name, labels in measured if name == f"{SECONDS}_count"} >= STAGES
    assert measured["mergus_listener_made_total", ()] > 0
    states = {dict(labels)["state"] for name, labels in measured if name == "mergus_listener_tables"}
    assert states == {"waiting", "working", "history", "failing"}


def test_one_of_two_workers_leads_and_both_say_so(tmp_path: Path) -> None:
    with lakes.lake() as lake, servers.server(lake.settings, tmp_path, workers=2) as server:
        eventually(lambda: listeners.sessions(lake) == 2 and leader(lake), 20)
        commit(lake)
        for _ in range(6):
            found = samples(httpx.get(f"{server.uri}/metrics", timeout=10).text)
            assert found["mergus_listener_leads", ()] == found["mergus_listener_led", ()] == 1
            times = {dict(labels)["stage"]: n for (name, labels), n in found.items() if name == f"{SECONDS}_count"}
            assert times.keys() >= STAGES
            assert min(times.values()) > 0


def run_listen(settings: Settings, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment(settings)}
    command = [sys.executable, "-m", "mergus", "listen", *options]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_mergus_listen_help_describes_its_options(lake: TestLake) -> None:
    shown = run_listen(lake.settings, "--help")
    assert shown.returncode == 0
    assert re.search(r"--port INTEGER +Serve metrics", shown.stdout)
    assert "MERGUS_LISTENER_PORT" in shown.stdout


def test_listen_serves_its_metrics(lake: TestLake, tmp_path: Path) -> None:
    with listener(lake.settings, tmp_path) as running:
        found = samples(httpx.get(f"{running.uri}/metrics", timeout=10).text)
        assert {"mergus_listener_leads", "mergus_listener_made_total"} <= {name for name, _ in found}
        began = time.monotonic()
        running.stop()
        assert running.process.returncode == 0
        assert time.monotonic() - began < 5


def test_mergus_listen_reports_a_port_that_is_in_use(lake: TestLake) -> None:
    with socket.create_server((lake.settings.host, free_port())) as taken:
        port = taken.getsockname()[1]
        for settings, options in (
            (lake.settings, ("--port", str(port))),
            (lake.settings.model_copy(update={"listener_port": port}), ()),
        ):
            done = run_listen(settings, "--no-init", *options)
            assert done.returncode == 1
            assert f"port {port} " in done.stderr
            assert "Traceback" not in done.stderr


def test_mergus_listen_waits_for_a_postgres_that_is_down(lake: TestLake, tmp_path: Path) -> None:
    with listeners.proxy(lake.settings.dsn) as (network, dsn):
        network.shut()
        far_away = lake.settings.model_copy(update={"postgres_dsn": SecretStr(dsn), "pool_timeout": 1.0})
        before = listeners.sessions(lake)
        with listener(far_away, tmp_path) as running:
            eventually(lambda: "WARNING" in running.said, 20, lambda: running.said)
            network.open()
            eventually(lambda: listeners.sessions(lake) == before + 1, 15, lambda: running.said)
            # said once, however often it tried
            assert running.said.count("WARNING") == 1
