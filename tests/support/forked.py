"""Commands of ours in processes that have all of it imported already: forked from one that did so once.

Imports are most of what a short-lived server costs, and the suite starts a thousand. Whoever is to see a process from
its very beginning (what Python reads when it starts, several workers) starts it the long way.
"""

import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from subprocess import TimeoutExpired

from mergus import faults
from mergus.process import end_with_parent

PRELOADED = ["tests.support.preloaded", __name__]


class Forked:
    """As much of subprocess.Popen as tests use."""

    def __init__(self, command: tuple[str, ...], env: dict[str, str], log: Path) -> None:
        self._process: ForkServerProcess = _context().Process(target=_run, args=(command, env, log), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired(str(self.pid), timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run(command: tuple[str, ...], env: dict[str, str], log: Path) -> None:
    os.setsid()
    end_with_parent()
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.clear()
    os.environ.update(env)
    faults.arm(env.get(faults.VARIABLE, ""))
    sys.argv = ["mergus", *command]
    from mergus.cli import main

    main()
