"""Namespace operations against their floors, in one run:  ./scripts/bench bench.namespaces

Reads are compared with a bare ASGI app on the same uvicorn; creations with a DuckDB session that creates schemas in a
lake of its own through the extension. Ratios are what counts: absolute figures are those of the machine at that moment.
"""

import tempfile
import time
from pathlib import Path

from tests.support import lakes, servers

from bench import load
from bench.servers import floor_server

SECONDS = 4.0


def reads(port: int, floor: int) -> None:
    print(f"{'request':<34}{'c':>4}{'req/s':>10}{'of floor':>10}")
    cases = {
        "floor (bare ASGI app)": (floor, load.get("/")),
        "GET /healthz (no query)": (port, load.get("/healthz")),
        "HEAD namespace": (port, load.get("/v1/lake/namespaces/bench", "HEAD")),
        "GET namespace": (port, load.get("/v1/lake/namespaces/bench")),
        "list 100 of 1,000 namespaces": (port, load.get("/v1/lake/namespaces?parent=many&pageSize=100")),
    }
    for connections in (1, 8, 32):
        base = 0.0
        for name, (where, request) in cases.items():
            done = load.run(where, [request], connections, SECONDS)
            assert set(done.statuses) <= {200, 204}, done.statuses
            base = base or done.per_second
            print(f"{name:<34}{connections:>4}{done.per_second:>10.0f}{done.per_second / base:>10.2f}")


def creations(port: int, duckdb_rate: float) -> None:
    print(f"\n{'creations':<34}{'c':>4}{'per s':>10}{'of DuckDB':>10}")
    print(f"{'DuckDB session, CREATE SCHEMA':<34}{1:>4}{duckdb_rate:>10.1f}{1:>10.2f}")
    for connections in (1, 8):
        bodies = [f'{{"namespace":["c{connections}","n{i}"]}}'.encode() for i in range(20_000)]
        requests = [load.post("/v1/lake/namespaces", body) for body in bodies]
        done = load.run(port, requests, connections, SECONDS)
        assert set(done.statuses) == {200}, done.statuses
        print(f"{'POST namespace':<34}{connections:>4}{done.per_second:>10.1f}{done.per_second / duckdb_rate:>10.2f}")


def duckdb_creations() -> float:
    with lakes.lake() as lake:
        db = lake.duckdb()
        start, made = time.perf_counter(), 0
        while time.perf_counter() < start + SECONDS:
            db.execute(f"CREATE SCHEMA s{made}")
            made += 1
        db.close()
        return made / (time.perf_counter() - start)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, lakes.lake() as lake, floor_server() as floor:
        db = lake.duckdb()
        db.execute("BEGIN")
        for i in range(1000):
            db.execute(f'CREATE SCHEMA "many.n{i:04}"')
        db.execute("COMMIT")
        db.close()
        with servers.server(lake.settings, Path(folder), log_level="WARNING") as running:
            running.create("bench", owner="bench")
            port = int(running.uri.rpartition(":")[2])
            reads(port, floor)
        with lakes.lake() as fresh, servers.server(fresh.settings, Path(folder), log_level="WARNING") as running:
            creations(int(running.uri.rpartition(":")[2]), duckdb_creations())


if __name__ == "__main__":
    main()
