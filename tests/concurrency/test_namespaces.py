"""Many writers at once: servers and DuckDB sessions, in processes of their own."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from mergus.process import end_with_parent
from mergus.serve import environment
from tests.support import servers
from tests.support.lakes import TestLake, schemas
from tests.support.servers import Server

# of namespaces by each of several writers
ENOUGH = 20

# A DuckDB session in a process of its own: creates a schema for each line that it reads, and says how it went.
DUCKDB_WRITER = """
import sys
from mergus.config import Settings
from mergus.ducklake.session import attach
lake = attach(Settings())
print("attached", flush=True)
for line in sys.stdin:
    try:
        lake.execute(line)
        print("done", flush=True)
    except Exception as e:
        print("failed " + str(e).replace(chr(10), " "), flush=True)
"""


class DuckWriter:
    def __init__(self, lake: TestLake) -> None:
        env = {"PATH": "", "MERGUS_STATE_DIR": "/nonexistent", **environment(lake.settings)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", DUCKDB_WRITER],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=end_with_parent,
        )
        assert self._answer() == "attached"

    def run(self, statement: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(statement + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def writers(lake: TestLake):
    made = [DuckWriter(lake) for _ in range(2)]
    yield made
    for writer in made:
        writer.close()


@pytest.fixture(scope="module")
def second(lake: TestLake, tmp_path_factory: pytest.TempPathFactory):
    with servers.server(lake.settings, tmp_path_factory.mktemp("second")) as running:
        yield running


def assert_sound(lake: TestLake) -> None:
    """No gap, no snapshot without its changes, no two live schemas of one name."""
    snapshots = lake.sound_snapshots()
    assert [s[1] for s in snapshots] == sorted(s[1] for s in snapshots)
    assert [s[2] for s in snapshots] == sorted(s[2] for s in snapshots)
    twice = "SELECT lower(schema_name) FROM ducklake_schema WHERE end_snapshot IS NULL GROUP BY 1 HAVING count(*) > 1"
    assert lake.sql(twice) == []
    assert lake.sql("SELECT schema_id FROM ducklake_schema GROUP BY 1 HAVING count(*) > 1") == []


def test_one_of_ten_concurrent_creations_of_a_namespace_succeeds(
    server: Server, second: Server, lake: TestLake
) -> None:
    before = len(lake.snapshots())
    start = threading.Barrier(10)

    def create(i: int) -> int:
        with servers.client((server, second)[i % 2].uri) as http:
            start.wait()
            return http.post(server.namespaces, json={"namespace": ["wanted"]}).status_code

    with ThreadPoolExecutor(10) as pool:
        statuses = sorted(pool.map(create, range(10)))
    assert statuses == [200] + [409] * 9
    assert len(lake.snapshots()) == before + 1
    assert_sound(lake)


def test_h40_a_schema_created_by_duckdb_and_by_rest_at_once_exists_once(
    server: Server, lake: TestLake, writers: list[DuckWriter]
) -> None:
    """In turns with a differing case: DuckDB takes both for the same name, and Postgres would not."""
    for i in range(15):
        start = threading.Barrier(2)
        name = f"both_{i}"

        def by_duckdb(name: str = name, start: threading.Barrier = start) -> bool:
            start.wait()
            return writers[0].run(f"CREATE SCHEMA {name}") == "done"

        with ThreadPoolExecutor(1) as pool:
            duck = pool.submit(by_duckdb)
            start.wait()
            ours = server.create(name.upper() if i % 2 else name).status_code
            assert (ours == 200) != duck.result(30), f"{name}: REST {ours}, DuckDB {duck.result()}"
            assert ours in {200, 409}
    assert_sound(lake)


def test_a_schema_dropped_by_rest_while_duckdb_creates_a_table_in_it_stays_consistent(
    server: Server, lake: TestLake, writers: list[DuckWriter]
) -> None:
    for i in range(15):
        name = f"contested_{i}"
        assert server.create(name).status_code == 200
        start = threading.Barrier(2)

        def use(name: str = name, start: threading.Barrier = start) -> str:
            start.wait()
            return writers[0].run(f"CREATE TABLE {name}.t(i INTEGER)")

        with ThreadPoolExecutor(1) as pool:
            duck = pool.submit(use)
            start.wait()
            dropped = server.http.delete(server.path(name)).status_code
            used = duck.result(30) == "done"
        assert (dropped, used) in {(204, False), (409, True)}, (dropped, duck.result())
    dangling = (
        "SELECT table_name FROM ducklake_table t JOIN ducklake_schema s USING (schema_id) "
        "WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NOT NULL"
    )
    assert lake.sql(dangling) == []
    assert_sound(lake)


def test_two_servers_and_two_duckdb_sessions_create_schemas_at_once_without_losing_any(
    server: Server, second: Server, lake: TestLake, writers: list[DuckWriter], tmp_path: Path
) -> None:
    """Four sides create, and now and then drop, until each has made enough: N§3.7 in small. All go on until the last
    has, so that each makes all of its own against the others, however fast the machine is."""
    deadline = time.monotonic() + 120
    made = [0] * 4
    kept: list[set[str]] = [set() for _ in range(4)]
    gave_up: list[str] = []
    trouble: list[str] = []

    def is_over() -> bool:
        return min(made) >= ENOUGH or bool(trouble or gave_up) or time.monotonic() > deadline

    def through_rest(who: int, running: Server) -> None:
        with servers.client(running.uri) as http:
            for i in count():
                if is_over():
                    return
                name = f"busy{who}_{i}"
                answer = http.post(running.namespaces, json={"namespace": [name]})
                if answer.status_code == 200:
                    made[who] += 1
                    kept[who].add(name)
                else:
                    trouble.append(answer.text)
                if i % 5 == 4 and http.delete(running.path(name)).status_code == 204:
                    kept[who].discard(name)

    def through_duckdb(who: int, writer: DuckWriter) -> None:
        for i in count():
            if is_over():
                return
            name = f"busy{who}_{i}"
            # DuckDB gives up after ten tries of its own: then nothing must be there
            if (answer := writer.run(f"CREATE SCHEMA {name}")) == "done":
                made[who] += 1
                kept[who].add(name)
            else:
                gave_up.append(answer)
            if i % 5 == 4 and name in kept[who] and writer.run(f"DROP SCHEMA {name}") == "done":
                kept[who].discard(name)

    threads = [
        threading.Thread(target=through_rest, args=(0, server)),
        threading.Thread(target=through_rest, args=(1, second)),
        threading.Thread(target=through_duckdb, args=(2, writers[0])),
        threading.Thread(target=through_duckdb, args=(3, writers[1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trouble == []
    assert gave_up == []
    assert min(made) >= ENOUGH, made
    assert_sound(lake)
    there = {name for name in schemas(lake.duckdb()) if name.startswith("busy")}
    assert there == set[str]().union(*kept)
    listed = {levels[0] for levels in server.list() if levels[0].startswith("busy")}
    assert listed == there
