"""Child processes that never outlive us.

Each is in a session of its own, so that Ctrl-C reaches only us and we stop them in order; and each asks the
kernel to be ended when we are gone, so that not even kill -9 leaves one behind.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mergus.errors import SetupError

_PR_SET_PDEATHSIG = 1
_libc: ctypes.CDLL | None = ctypes.CDLL(None) if sys.platform == "linux" else None

LOG_KEPT_BYTES = 10 * 1024 * 1024


def end_with_parent(signum: int = signal.SIGTERM) -> None:
    """Linux: the kernel sends this process a signal when its parent ends. Safe between fork and exec: one system
    call, from a library that is loaded already."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signum)


def stop_leftover(pid_file: Path, folder: Path, signum: int, seconds: float = 30) -> None:
    """Ends the process that an earlier, killed run left at work in a folder. The file may be old and its number
    somebody else's by now, so only a process whose working directory is that folder is touched."""
    try:
        pid = int(pid_file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return
    deadline = time.monotonic() + seconds
    asked = False
    while _works_in(pid, folder):
        if not asked:
            os.kill(pid, signum)
            asked = True
        if time.monotonic() > deadline:
            raise SetupError(f"process {pid}, left by an earlier run in {folder}, does not end; stop it by hand")
        time.sleep(0.1)
    pid_file.unlink(missing_ok=True)


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").samefile(folder)
    except OSError:
        return False


def run_whole(command: Sequence[str], name: str) -> None:
    """Runs a command to its end; if we are interrupted, it and whatever it started end too."""
    process = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509
    )
    try:
        output, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode != 0:
        raise SetupError(f"{name} failed:\n{output.decode(errors='replace')}")


class Child:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stop_signal: int = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.log = log
        self._stop_signal = stop_signal
        if log.exists() and log.stat().st_size > LOG_KEPT_BYTES:
            log.replace(log.with_suffix(".1.log"))
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509  (we start children from one thread only)
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise SetupError(f"{self.name} ended at once; the end of its log:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise SetupError(f"{self.name} is not ready after {seconds:.0f} s; the end of its log:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self, lines: int = 15) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 16_384))
            text = file.read().decode(errors="replace")
        return "\n".join("  " + line for line in text.splitlines()[-lines:])

    def stop(self, seconds: float = 30) -> None:
        if self.running:
            self._process.send_signal(self._stop_signal)
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
