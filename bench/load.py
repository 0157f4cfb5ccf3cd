"""A small HTTP load generator: keep-alive connections in a process of its own, one request at a time on each."""

import asyncio
import multiprocessing
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    requests: int
    seconds: float
    statuses: dict[int, int]

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def run(port: int, requests: list[bytes], connections: int, seconds: float) -> Load:
    """Sends the requests in turn, each at most once if there are several, for so many seconds."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (port, requests, connections, seconds))


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _run(port: int, requests: list[bytes], connections: int, seconds: float) -> Load:
    return asyncio.run(_load(port, requests, connections, seconds))


async def _load(port: int, requests: list[bytes], connections: int, seconds: float) -> Load:
    statuses: dict[int, int] = {}
    todo = iter(requests) if len(requests) > 1 else None
    start = time.perf_counter()
    until = start + seconds

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            request = requests[0] if todo is None else next(todo, None)
            if request is None:
                break
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            length = next((int(x[16:]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length: ")), 0)
            if length and not request.startswith(b"HEAD"):
                await reader.readexactly(length)
            statuses[status] = statuses.get(status, 0) + 1
        writer.close()

    await asyncio.gather(*(connection() for _ in range(connections)))
    return Load(sum(statuses.values()), time.perf_counter() - start, statuses)
