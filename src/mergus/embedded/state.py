"""The state directory: one process at a time, keys and ports made once and kept.

lock             held by the process that runs the stack; says which
secrets.json     keys of the embedded Postgres and S3, made at the first start
ports.json       ports, so that what a client was told is still right after a restart
connection.env   how to connect, only while something is there to connect to
postgres/ s3/ extensions/ logs/
"""

import fcntl
import json
import os
import secrets
import shlex
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from mergus.config import CONNECTION_FILE, read_connection
from mergus.errors import SetupError

LAST_CONNECTION_FILE = "last-connection.env"

# Below the range from which the kernel takes ports for outgoing connections: one of those could otherwise
# sit on a port of ours between two starts.
PORT_RANGE = range(20_000, 32_000)


class StateDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection_file = path / CONNECTION_FILE

    @classmethod
    @contextmanager
    def claim(cls, path: Path) -> Generator["StateDir"]:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (path / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip() or "another process"
                raise SetupError(
                    f"{path} is in use by process {holder}: stop it, or set MERGUS_STATE_DIR to another directory"
                ) from None
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            state = cls(path)
            state._forget_connection()  # of a run that was killed
            state._disown_environment()
            try:
                yield state
            finally:
                state._forget_connection()

    def _forget_connection(self) -> None:
        if self.connection_file.exists():
            self.connection_file.replace(self.path / LAST_CONNECTION_FILE)

    def _disown_environment(self) -> None:
        """A shell that has sourced connection.env names backends that were ours and that we are to start again."""
        for name, value in read_connection(self.path / LAST_CONNECTION_FILE).items():
            if os.environ.get(name) == value:
                del os.environ[name]

    @property
    def holder(self) -> int | None:
        """The process that has claimed this directory, if one has."""
        try:
            with (self.path / "lock").open("r+") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(lock.read().strip() or 0) or None
        except (FileNotFoundError, ValueError):
            pass
        return None

    def folder(self, name: str) -> Path:
        folder = self.path / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def secret(self, name: str) -> str:
        """A random secret, the same at every start."""
        return self._kept("secrets.json", name, lambda: secrets.token_urlsafe(24))

    def port(self, name: str, wanted: int | None = None) -> int:
        """A free port, the same at every start where that is possible."""
        if wanted is not None:
            require_free_port("127.0.0.1", wanted, name)
            return wanted
        known = {other: int(port) for other, port in self._load("ports.json").items()}
        port = known.pop(name, None)
        if port is None or not is_free("127.0.0.1", port):
            # ports of other names are free as well until their servers start
            port = next(found for found in iter(free_port, None) if found not in known.values())
            self._store("ports.json", name, str(port))
        return port

    def write_connection(self, values: dict[str, str]) -> None:
        """As KEY=VALUE lines that a shell can source; there at once and whole, readable by the owner alone."""
        lines = [f"{key}={shlex.quote(value)}\n" for key, value in values.items()]
        write_private(self.connection_file, "".join(lines))

    def _kept(self, file: str, name: str, make: Callable[[], str]) -> str:
        known = self._load(file)
        return known[name] if name in known else self._store(file, name, make())

    def _load(self, file: str) -> dict[str, str]:
        with suppress(FileNotFoundError):
            return json.loads((self.path / file).read_text())
        return {}

    def _store(self, file: str, name: str, value: str) -> str:
        write_private(self.path / file, json.dumps({**self._load(file), name: value}, indent=2))
        return value


def write_private(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        # without this a port would count as taken for a minute after its last connection
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    while True:
        port = PORT_RANGE.start + secrets.randbelow(len(PORT_RANGE))
        if is_free("127.0.0.1", port):
            return port


def require_free_port(host: str, port: int, what: str) -> None:
    if not is_free(host, port):
        raise SetupError(f"port {port} on {host} is in use; {what} cannot be served there")
