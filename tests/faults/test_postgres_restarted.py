"""Postgres goes away under a running server and comes back: on an instance of its own, so that it can."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from mergus.embedded.postgres import Postgres
from mergus.embedded.state import StateDir
from mergus.setup import initialise
from tests.support import lakes, servers
from tests.support.lakes import quiet
from tests.support.servers import error_of

SESSIONS = "FROM pg_stat_activity WHERE application_name = 'mergus' AND datname = current_database()"
WAITING = f"SELECT count(*) {SESSIONS} AND wait_event_type = 'Lock'"


@pytest.mark.parametrize("how", ["restart", "sessions ended"])
def test_a_server_recovers_without_a_restart_when_postgres_restarts_or_ends_its_sessions(
    how: str, tmp_path: Path
) -> None:
    with StateDir.claim(tmp_path / "state") as state:
        postgres = Postgres(state, None, durable=False)
        try:
            postgres.wait_ready()
            settings = lakes.settings_for(postgres.dsn()).model_copy(
                update={"postgres_dsn": SecretStr(postgres.dsn()), "pool_timeout": 1.0}
            )
            initialise(settings, quiet)
            with servers.server(settings, tmp_path) as running:
                for i in range(3):
                    assert running.create(f"before_{i}").status_code == 200
                if how == "restart":
                    postgres.child.stop()
                    answer = running.http.get(running.namespaces)
                    assert error_of(answer) == (503, "ServiceUnavailableException")
                    assert error_of(running.create("lost")) == (503, "ServiceUnavailableException")
                    assert running.http.get("/healthz").status_code == 200
                    assert running.http.get("/readyz").status_code == 503
                    postgres = Postgres(state, None, durable=False)
                    postgres.wait_ready()
                else:
                    lakes.TestLake(settings).sql(f"SELECT pg_terminate_backend(pid) {SESSIONS}")
                deadline = time.monotonic() + 20
                while running.http.get("/readyz").status_code != 200:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                for i in range(5):
                    assert running.create(f"after_{i}").status_code == 200
                names = [f"after_{i}" for i in range(5)] + [f"before_{i}" for i in range(3)] + ["main"]
                assert running.list() == [[name] for name in names]
        finally:
            postgres.child.stop()


def test_a_request_succeeds_after_postgres_terminated_all_pooled_connections(tmp_path: Path) -> None:
    with lakes.lake() as lake, servers.server(lake.settings, tmp_path) as running:
        with psycopg.connect(lake.settings.dsn) as other, ThreadPoolExecutor(6) as pool:
            # all wait for it, each on a connection of its own
            other.execute("LOCK TABLE ducklake_snapshot")
            waiting = [pool.submit(running.create, f"n{i}") for i in range(6)]
            deadline = time.monotonic() + 60
            # the listener may wait as well
            while lake.sql(WAITING)[0][0] < 6:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            other.rollback()
            assert {future.result().status_code for future in waiting} == {200}
        # waits until each is gone
        ended = lake.sql(f"SELECT pg_terminate_backend(pid, 20000) {SESSIONS}")
        assert len(ended) >= 6
        assert {is_gone for (is_gone,) in ended} == {True}
        assert running.create("after").status_code == 200
