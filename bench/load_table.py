"""LoadTable beside its floor, in one run:  ./scripts/bench bench.load_table

The floor is a bare ASGI app on the same uvicorn that returns the same bytes. Ratios are what counts: absolute figures
are those of the machine at that moment.
"""

import tempfile
from pathlib import Path

from tests.support import access, lakes, servers
from tests.support.servers import Server

from bench import load
from bench.servers import floor_server

SECONDS = 4.0
PATH = "/v1/lake/namespaces/main/tables/orders"


def main() -> None:
    with tempfile.TemporaryDirectory() as name, lakes.lake() as lake:
        folder = Path(name)
        with lake.duckdb() as db:
            db.execute("CREATE TABLE orders(id BIGINT, customer VARCHAR, total DECIMAL(12,2), placed TIMESTAMP)")
            for i in range(10):
                db.execute(f"INSERT INTO orders SELECT range + {i} * 100, 'c', 1.5, now()::TIMESTAMP FROM range(100)")
        print(f"{'request':<40}{'workers':>8}{'c':>4}{'req/s':>10}{'of floor':>10}")
        for workers in (1, 2):
            with (
                servers.server(lake.settings, folder, workers=workers) as running,
                access.guarded(lake, folder, workers=workers) as guarded,
            ):
                plain = running.http.get(PATH, headers={"Accept-Encoding": "identity"})
                body, etag = plain.content, plain.headers["etag"]
                file = folder / "body"
                file.write_bytes(body)
                with floor_server(file, workers) as floor:
                    port = int(running.uri.rpartition(":")[2])
                    asks = (
                        int(guarded.server.uri.rpartition(":")[2]),
                        guarded.as_client(f"bench-{workers}", "ns:main:r"),
                    )
                    compare(port, asks, floor, etag, workers, len(body))


def compare(port: int, asks: tuple[int, Server], floor: int, etag: str, workers: int, size: int) -> None:
    """`asks` is a server that wants to know who one is, and one whom it knows."""
    token = asks[1].http.headers["Authorization"]
    known = f"GET {PATH} HTTP/1.1\r\nHost: bench\r\nAuthorization: {token}\r\n\r\n".encode()
    unchanged = f"GET {PATH} HTTP/1.1\r\nHost: bench\r\nIf-None-Match: {etag}\r\n\r\n".encode()
    cases = {
        f"floor ({size} bytes)": (floor, load.get("/"), {200}),
        "LoadTable": (port, load.get(PATH), {200}),
        "LoadTable, 304": (port, unchanged, {304}),
        "LoadTable, with a token": (asks[0], known, {200}),
    }
    for connections in (1, 8, 32):
        base = 0.0
        for name, (where, request, statuses) in cases.items():
            done = load.run(where, [request], connections, SECONDS)
            assert set(done.statuses) == statuses, done.statuses
            base = base or done.per_second
            print(f"{name:<40}{workers:>8}{connections:>4}{done.per_second:>10.0f}{done.per_second / base:>10.2f}")


if __name__ == "__main__":
    main()
