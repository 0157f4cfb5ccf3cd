"""Servers to compare with."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from mergus.embedded.state import free_port
from mergus.process import end_with_parent


@contextmanager
def floor_server(body: Path | None = None, workers: int = 1) -> Iterator[int]:
    """The bare app on a port of its own; it returns the content of a file if one is given."""
    port = free_port()
    options = [
        "--loop",
        "uvloop",
        "--http",
        "httptools",
        "--no-access-log",
        "--log-level",
        "error",
        "--lifespan",
        "off",
        "--workers",
        str(workers),
    ]
    command = [sys.executable, "-m", "uvicorn", "bench.floor:app", "--port", str(port), *options]
    env = {**os.environ, **({"MERGUS_BENCH_BODY": str(body)} if body else {})}
    process = subprocess.Popen(command, env=env, preexec_fn=end_with_parent)
    try:
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}")
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()
