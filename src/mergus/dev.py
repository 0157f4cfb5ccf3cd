"""`mergus dev` and `mergus backends`: the embedded stack with, or without, a server in front of it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from mergus import loopback
from mergus.config import Settings, load_settings
from mergus.embedded.snippets import guide
from mergus.embedded.stack import Progress, Stack, connection_values, running
from mergus.embedded.state import StateDir, free_port, require_free_port
from mergus.errors import SetupError
from mergus.process import Child, end_with_parent
from mergus.serve import check_access, environment
from mergus.setup import initialise

KEPT_VARIABLES = ("AWS_CA_BUNDLE", "MERGUS_VENV", "MERGUS_TEST_")
START_SECONDS = 120
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A stop signal came. Not an Exception: nothing but the end of a `with` block may hold it up."""


@contextmanager
def stop_on_signals() -> Generator[None]:
    """The first signal unwinds the stack; those that follow do not interrupt the unwinding."""

    def stop(signum: int, frame: FrameType | None) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    # under nohup the end of the terminal is to be survived
    wanted = [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in wanted}
    try:
        yield
    except Stopped:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def dev(state_path: Path, progress: Progress, show: Progress, overrides: dict[str, object]) -> None:
    """Everything on one machine, until a signal comes."""
    with stop_on_signals(), StateDir.claim(state_path) as state:
        settings = load_settings(**overrides)
        if settings.port == 0:
            settings = settings.model_copy(update={"port": free_port()})
        check_access(settings)
        require_free_port(settings.host, settings.port, "the catalog (MERGUS_PORT chooses another)")
        try:
            with serving(state, settings, progress) as served:
                show(guide(served.settings, served.uri, state.connection_file))
                show("Ready. Ctrl-C stops everything.")
                _watch(served.children)
        finally:
            progress("stopped")


@dataclass(frozen=True)
class Served:
    settings: Settings
    uri: str
    children: list[Child]


@contextmanager
def serving(state: StateDir, settings: Settings, progress: Progress, *, durable: bool = True) -> Generator[Served]:
    """A lake with a server in front of it; what is not given is started."""
    with ExitStack() as cleanup:
        stack = cleanup.enter_context(running(state, settings, progress, durable=durable))
        done = initialise(stack.settings, progress)
        progress(f"DuckLake {'created' if done.created else 'found'}: {done.metadata.data_path}")
        command = [sys.executable, "-m", "mergus", "serve", "--no-init"]
        env = {**os.environ, **environment(stack.settings)}
        log = state.folder("logs") / "server.log"
        server = Child("the server", command, log, env=env)
        cleanup.callback(server.stop, settings.shutdown_grace + 10)
        uri = _uri(settings.host, settings.port)
        server.wait_until(lambda: _ready(uri), 60)
        state.write_connection(connection_values(state, stack.settings, uri, done.metadata.data_path))
        progress(f"serving {uri} with {settings.workers} process(es); log: {log}")
        yield Served(stack.settings, uri, [*stack.children, server])


def backends(state_path: Path, progress: Progress) -> None:
    """Postgres and S3 alone, until a signal comes."""
    with stop_on_signals(), StateDir.claim(state_path) as state, running(state, load_settings(), progress) as stack:
        state.write_connection(_backend_values(state, stack))
        progress(f"connection: {state.connection_file}")
        _watch(stack.children)


def run_with_backends(
    command: Sequence[str],
    progress: Progress,
    *,
    throw_away: bool,
    state_path: Path,
    temporary_directory: Path | None = None,
) -> int:
    """Runs a command that finds Postgres and S3 in its environment; its exit code."""
    code = 1
    with stop_on_signals(), ExitStack() as cleanup:
        if throw_away:
            made = tempfile.TemporaryDirectory(prefix="mergus-", dir=temporary_directory)
            state_path = Path(cleanup.enter_context(made))
            forget_lakes()
            os.environ["MERGUS_STATE_DIR"] = str(state_path)
        state = cleanup.enter_context(StateDir.claim(state_path))
        stack = cleanup.enter_context(running(state, load_settings(), progress, durable=not throw_away))
        env = {**os.environ, **_backend_values(state, stack)}
        child = subprocess.Popen(  # noqa: S603
            command,
            env=env,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509
        )
        cleanup.callback(_end, child)
        code = child.wait()
    return code


def forget_lakes() -> None:
    """What is thrown away must not meet the lake of whoever runs it."""
    for name in [n for n in os.environ if n.startswith(("MERGUS_", "AWS_"))]:
        if not name.startswith(KEPT_VARIABLES):
            del os.environ[name]


def backends_up(state_path: Path, progress: Progress) -> None:
    """Starts the backends in the background and waits until they are there."""
    state = StateDir(state_path)
    if (holder := state.holder) is not None:
        raise SetupError(f"{state_path} is in use already, by process {holder}")
    state_path.mkdir(mode=0o700, parents=True, exist_ok=True)
    state.connection_file.unlink(missing_ok=True)  # of a run that was killed
    log = state.folder("logs") / "backends.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mergus", "backends", "hold"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while not state.connection_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            raise SetupError(f"the backends did not start:\n{log.read_text()}")
        time.sleep(0.1)
    progress(f"Postgres and S3 run in the background (process {process.pid})")


def backends_down(state_path: Path, progress: Progress) -> None:
    holder = StateDir(state_path).holder
    if holder is None:
        progress(f"nothing runs in {state_path}")
        return
    os.kill(holder, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while StateDir(state_path).holder == holder:
        if time.monotonic() > deadline:
            raise SetupError(f"process {holder} does not stop")
        time.sleep(0.1)
    progress("stopped")


def _backend_values(state: StateDir, stack: Stack) -> dict[str, str]:
    return connection_values(state, stack.settings, None, stack.settings.new_data_path or "")


def _watch(children: Sequence[Child]) -> None:
    """Returns never: a signal ends it, or the death of a child."""
    while True:
        for child in children:
            if not child.running:
                raise SetupError(f"{child.name} ended unexpectedly; the end of its log ({child.log}):\n{child.tail()}")
        time.sleep(0.2)


def _end(child: subprocess.Popen[bytes]) -> None:
    """As a terminal would: interrupt, then harder."""
    for signum, seconds in ((signal.SIGINT, 30), (signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        if child.poll() is not None:
            return
        os.killpg(child.pid, signum)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            continue


def _uri(host: str, port: int) -> str:
    shown = "127.0.0.1" if host == "0.0.0.0" else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host  # noqa: S104
    return f"http://{shown}:{port}"


def _ready(uri: str) -> bool:
    try:
        loopback.open_url(f"{uri}/readyz", 5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True
