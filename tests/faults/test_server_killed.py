"""The server dies in the middle of its work: whatever it acknowledged is there, and nothing is half made."""

import os
import signal
import threading
from pathlib import Path

import httpx

from tests.support import lakes, servers
from tests.support.lakes import TestLake, schemas

PROPERTIES = {"a": "1", "b": "2", "c": "3"}


def assert_whole(lake: TestLake, acknowledged: set[str]) -> None:
    snapshots = lake.sound_snapshots()
    rows = lake.sql("SELECT schema_name, begin_snapshot FROM ducklake_schema WHERE schema_name <> 'main'")
    made = {row[0]: row[1] for row in rows}
    assert acknowledged <= made.keys()
    assert len(made) == len(snapshots) - 1
    for name, begin in made.items():
        assert snapshots[begin][4] == f'created_schema:"{name}"'
    counts = lake.sql(
        "SELECT count(p.key) FROM ducklake_schema s LEFT JOIN namespace_property p USING (schema_id) "
        "WHERE schema_name <> 'main' GROUP BY schema_id"
    )
    assert {n for (n,) in counts} <= {len(PROPERTIES)}
    assert schemas(lake.duckdb()) == made.keys() | {"main"}


def test_a_server_killed_while_it_creates_namespaces_leaves_none_half_created(tmp_path: Path) -> None:
    with lakes.lake() as lake:
        acknowledged: set[str] = set()
        for life in range(3):
            with servers.server(lake.settings, tmp_path, workers=1 + life) as running:
                enough = threading.Event()

                def create(
                    who: int,
                    life: int = life,
                    running: servers.Server = running,
                    enough: threading.Event = enough,
                ) -> None:
                    with servers.client(running.uri, timeout=10) as http:
                        for i in range(100_000):
                            name = f"life{life}_{who}_{i}"
                            body = {"namespace": [name], "properties": PROPERTIES}
                            try:
                                answer = http.post(running.namespaces, json=body)
                            except httpx.TransportError:
                                return
                            if answer.status_code == 200:
                                acknowledged.add(name)
                            if i == 15:
                                enough.set()

                threads = [threading.Thread(target=create, args=(who,)) for who in range(4)]
                for thread in threads:
                    thread.start()
                assert enough.wait(30)
                os.killpg(running.process.pid, signal.SIGKILL)
                running.process.wait(10)
                for thread in threads:
                    thread.join(30)
            assert_whole(lake, acknowledged)
        assert len(acknowledged) > 40
