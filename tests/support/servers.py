"""Real server processes on ports of their own."""

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from mergus.config import Settings, variable
from mergus.process import end_with_parent
from mergus.serve import environment
from tests.support.forked import Forked
from tests.support.ports import free_port

STARTUP_SECONDS = 60
# of the servers through which engines read: MERGUS_TEST_LISTENER=off ./scripts/test tests/interop
LISTENER = os.environ.get("MERGUS_TEST_LISTENER", "embedded")

Process = subprocess.Popen[bytes] | Forked


@dataclass
class Server:
    uri: str
    process: Process
    log: Path
    http: httpx.Client

    @property
    def namespaces(self) -> str:
        return "/v1/lake/namespaces"

    def path(self, *levels: str) -> str:
        return f"{self.namespaces}/{quote(chr(0x1F).join(levels), safe='')}"

    def create(self, *levels: str, **properties: str) -> httpx.Response:
        return self.http.post(self.namespaces, json={"namespace": list(levels), "properties": properties})

    def list(self, **params: str | int) -> list[list[str]]:
        answer = self.http.get(self.namespaces, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()["namespaces"]

    def wait_ready(self) -> None:
        deadline = time.monotonic() + STARTUP_SECONDS
        while True:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if self.http.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)


def client(uri: str, **options: Any) -> httpx.Client:
    return httpx.Client(**{"base_url": uri, "timeout": 30, "verify": _tls(), **options})


def get(url: str, timeout: float = 30) -> httpx.Response:
    return httpx.get(url, timeout=timeout, verify=_tls())


@cache
def _tls() -> ssl.SSLContext:
    """One for all clients: reading the certificates of the system takes 20 ms, even if no client uses TLS."""
    return ssl.create_default_context()


def error_of(response: httpx.Response) -> tuple[int, str]:
    """(status, type) of an answer that must be an error in Iceberg's shape, and nothing else."""
    assert response.headers["content-type"] == "application/json", response.text
    body = response.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "code"}
    assert error["message"]
    assert error["code"] == response.status_code
    return response.status_code, error["type"]


def start(settings: Settings, log: Path, *command: str) -> Process:
    """A command of ours as a process of its own, which ends with this one. Its settings are these and no others: what
    is unset here does not come from the suite's environment."""
    names = {variable(name) for name in Settings.model_fields}
    env = {name: value for name, value in os.environ.items() if name not in names} | environment(settings)
    if settings.workers == 1:
        return Forked(command, env, log)
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "mergus", *command],
            env=env,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )


@contextmanager
def server(settings: Settings, folder: Path, *, wait: bool = True, **changes: object) -> Iterator[Server]:
    port = free_port()
    effective = settings.model_copy(update={"host": "127.0.0.1", "port": port, **changes})
    log = folder / f"server-{port}.log"
    process = start(effective, log, "serve", "--no-init")
    uri = f"http://127.0.0.1:{port}"
    with client(uri) as http:
        running = Server(uri, process, log, http)
        try:
            if wait:
                running.wait_ready()
            yield running
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    raise


def wait_for(running: Server, path: str, status: int) -> httpx.Response:
    deadline = time.monotonic() + 30
    while True:
        try:
            answer = running.http.get(path)
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.status_code == status:
            return answer
        assert time.monotonic() < deadline, running.log.read_text()
        time.sleep(0.02)
