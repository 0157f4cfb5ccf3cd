"""Writers of both worlds, readers of both worlds and maintenance, all at once, on one table.

Whatever is written is written in pairs that add up to nothing, and so are deletes: a reader that sees anything else at
any snapshot sees a row too many or too few. At the end both sides have exactly what the writers know that they wrote.
MERGUS_TEST_LONG=1 goes on for minutes.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, ServiceUnavailableError, ValidationException

from tests.support import lakes, servers
from tests.support.formats import LONG
from tests.support.lakes import TestLake
from tests.support.loads import catalog
from tests.support.servers import Server

SECONDS = 240 if LONG else 15
# Files that nothing needs stay for so long: much longer than any read here takes.
GRACE = 30
ADMIN = "/v1/lake/admin"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def lake(request: pytest.FixtureRequest) -> Iterator[TestLake]:
    with lakes.lake(format_version=request.param, grace_seconds=GRACE) as made:
        yield made


class Soak:
    def __init__(self, lake: TestLake, server: Server) -> None:
        self.lake = lake
        self.server = server
        self.first: int = lake.snapshots()[-1][0]
        self.end = time.monotonic() + SECONDS
        self.faults: list[str] = []
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def goes_on(self) -> bool:
        return time.monotonic() < self.end and not self.faults

    def duckdb_writer(self, number: int) -> set[int]:
        """Its own keys, each with two rows; some of one statement, some of many rows."""
        chance, keys, key = random.Random(number), set[int](), number * 1_000_000
        with self.lake.duckdb() as db:
            while self.goes_on():
                new, old = set[int](), set[int]()
                if chance.random() < 0.35 and keys:
                    old = set(chance.sample(sorted(keys), min(len(keys), chance.choice((1, 1, 2, 30)))))
                    statement = f"DELETE FROM t WHERE k IN ({', '.join(map(str, old))})"
                else:
                    new = set(range(key, key + chance.choice((1, 2, 40))))
                    key += 100
                    pairs = (f"({k}, {k}), ({k}, -{k})" for k in new)
                    statement = f"INSERT INTO t VALUES {', '.join(pairs)}"
                if self._write(lambda statement=statement: db.execute(statement)):
                    keys = (keys | new) - old
        return keys

    def pyiceberg_writer(self, number: int) -> set[int]:
        chance, keys, key = random.Random(number), set[int](), number * 1_000_000
        tables = catalog(self.lake.settings, self.server)
        while self.goes_on():
            new, old = set[int](), set[int]()
            table = tables.load_table("main.t")
            if chance.random() < 0.3 and keys:
                old = {chance.choice(sorted(keys))}
                done = self._write(lambda table=table, old=old: table.delete(f"k = {min(old)}"))
            else:
                new = set(range(key, key + 20))
                key += 100
                rows = [{"k": k, "v": v} for k in new for v in (k, -k)]
                done = self._write(lambda table=table, rows=rows: table.append(pa.Table.from_pylist(rows, SCHEMA)))
            if done:
                keys = (keys | new) - old
        return keys

    def _write(self, write: Callable[[], object]) -> bool:
        """False if somebody else was first, or what it started from has expired."""
        try:
            write()
        except (duckdb.TransactionException, CommitFailedException, ServiceUnavailableError, ValidationException):
            self.count("gave way")
            return False
        self.count("written")
        return True

    def duckdb_reader(self) -> None:
        with self.lake.duckdb() as db:
            while self.goes_on():
                query = f"SELECT snapshot_id FROM ducklake_snapshots('lake') WHERE snapshot_id >= {self.first}"
                at = random.choice([row[0] for row in db.execute(query).fetchall()][-8:])
                # one that has expired since is nobody's fault
                with suppress(duckdb.InvalidInputException, duckdb.BinderException):
                    query = f"SELECT coalesce(sum(v + 0 * k), 0), coalesce(len(list(v)), 0) FROM t AT (VERSION => {at})"
                    self._check("DuckDB", at, *db.execute(query).fetchall()[0])

    def pyiceberg_reader(self) -> None:
        tables = catalog(self.lake.settings, self.server)
        while self.goes_on():
            table = tables.load_table("main.t")
            shown = [s.snapshot_id for s in table.snapshots()]
            at = random.choice([*shown[-8:], None])
            # a plan that is older than the newest state, by a while
            scan = table.scan() if at is None else table.scan(snapshot_id=at)
            time.sleep(random.random() / 2)
            values = scan.to_arrow()["v"].to_pylist()
            self._check("PyIceberg", at, sum(values), len(values))

    def _check(self, who: str, at: object, total: int, rows: int) -> None:
        self.count(f"read by {who}")
        if total != 0 or rows % 2:
            self.faults.append(f"{who} at {at}: {rows} rows with a sum of {total}")

    def maintenance(self) -> None:
        while self.goes_on():
            for path, body in (("compact", {"delete-ratio": 0.05}), ("expire", {"older-than-seconds": 8})):
                answer = self.server.http.post(f"{ADMIN}/{path}", json={**body, "wait-seconds": 30}, timeout=60)
                job = answer.json()
                if job["state"] not in {"done", "waiting", "running"} or any("failed" in t for t in job["tables"]):
                    self.faults.append(str(job))
                self.count(path)
                time.sleep(0.5)


def test_writers_readers_and_maintenance_at_once_neither_lose_nor_duplicate_rows(
    lake: TestLake, tmp_path: Path
) -> None:
    with lake.duckdb() as db:
        db.execute("CREATE TABLE t (k BIGINT, v BIGINT)")
    with servers.server(lake.settings, tmp_path) as server, ThreadPoolExecutor(8) as pool:
        soak = Soak(lake, server)
        writers = [
            pool.submit(soak.duckdb_writer, 1),
            pool.submit(soak.duckdb_writer, 2),
            # it writes no table of version 3
            pool.submit(soak.pyiceberg_writer if lake.settings.format_version == 2 else soak.duckdb_writer, 3),
        ]
        others = [pool.submit(work) for work in (soak.duckdb_reader, soak.pyiceberg_reader, soak.maintenance)]
        expected = set[int]().union(*(writer.result() for writer in writers))
        for other in others:
            other.result()
        assert not soak.faults, soak.faults
        server.http.post(f"{ADMIN}/compact", json={"wait-seconds": 60}, timeout=90)
        wanted = sorted((k, v) for k in expected for v in (k, -k))
        with lake.duckdb() as fresh:
            assert sorted(fresh.execute("SELECT k, v FROM t").fetchall()) == wanted
        found = catalog(lake.settings, server).load_table("main.t").scan().to_arrow()
        assert sorted(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)) == wanted
    # all of them have done something
    assert {"written", "compact", "expire", "read by DuckDB", "read by PyIceberg"} <= soak.counts.keys()
