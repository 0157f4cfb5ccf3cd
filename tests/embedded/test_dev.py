"""`./scripts/serve` as a user meets it: real processes, real signals, what is printed is what is run."""

import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from mergus.config import read_connection
from mergus.process import end_with_parent
from tests.support import lakes
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
DEV = [sys.executable, "-m", "mergus", "dev"]
READY = "Ready. Ctrl-C stops everything."
USE_IT = """
db.execute("CREATE TABLE lake.t AS SELECT range AS i FROM range(1000)")
print(db.sql("SELECT sum(i) FROM lake.t"))
"""


def clean_env(state: Path, **more: str) -> dict[str, str]:
    """Nothing of the suite's own backends: the stack must bring its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MERGUS_", "AWS_"))}
    return {**env, "MERGUS_STATE_DIR": str(state), "MERGUS_PORT": str(free_port()), **more}


def _as_in_a_terminal() -> None:
    end_with_parent()
    # the suite itself may run under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Dev:
    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.env = env
        self.state = Path(env["MERGUS_STATE_DIR"])
        self.printed: list[str] = []
        self.process = subprocess.Popen(
            command,
            env=env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_as_in_a_terminal,
        )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line.rstrip("\n"))
            if line.strip() == READY:
                return
        raise AssertionError("\n".join(self.printed))

    @property
    def connection(self) -> dict[str, str]:
        return read_connection(self.state / "connection.env")

    def block(self, title: str) -> str:
        """The indented text under a heading of what was printed."""
        start = next(i for i, line in enumerate(self.printed) if line.startswith(title)) + 1
        lines: list[str] = []
        for line in self.printed[start:]:
            if line and not line.startswith("    "):
                break
            lines.append(line[4:])
        return "\n".join(lines).strip() + "\n"

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def running(env: dict[str, str], command: list[str] | None = None, *args: str) -> Iterator[Dev]:
    dev = Dev([*(command or DEV), *args], env)
    try:
        dev.wait_ready()
        yield dev
    finally:
        if dev.process.poll() is None:
            dev.process.send_signal(signal.SIGINT)
            dev.process.wait(60)
        assert dev.process.stdout is not None
        dev.process.stdout.close()


def gone(processes: list[psutil.Process], seconds: float = 20) -> list[psutil.Process]:
    """Those that still run after a while; one that is dead but not collected by the system's init does not."""
    left = psutil.wait_procs(processes, timeout=seconds)[1]
    return [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def is_ignored(pid: int, signum: int) -> bool:
    """Whether the signal cannot reach the process, by the kernel's word."""
    (mask,) = re.findall(r"^SigIgn:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (signum - 1) & 1)


def working_in(folder: Path) -> set[int]:
    """The processes of the machine, ours or not, whose working directory this is."""
    found: set[int] = set()
    for pid in psutil.pids():
        with suppress(OSError):
            if Path(f"/proc/{pid}/cwd").readlink() == folder:
                found.add(pid)
    return found


def run_python(code: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """One stack, by the very command that README names, in a directory with a long and awkward path."""
    state = tmp_path_factory.mktemp("state") / ("a long name with spaces " * 5).strip() / "it's, $HOME `here`"
    with running(clean_env(state), ["./scripts/serve"], "--workers", "2") as dev:
        yield dev


class TestServed:
    def test_connection_env_is_private_and_complete(self, served: Dev) -> None:
        file = served.state / "connection.env"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert set(served.connection) == {
            "MERGUS_URI",
            "MERGUS_WAREHOUSE",
            "MERGUS_POSTGRES_DSN",
            "MERGUS_DATA_PATH",
            "AWS_ENDPOINT_URL_S3",
            "AWS_REGION",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "MERGUS_STS_ROLE_ARN",
            "MERGUS_STS_ENDPOINT",
            "MERGUS_DUCKDB_EXTENSIONS",
        }
        assert served.connection["MERGUS_URI"] == f"http://127.0.0.1:{served.env['MERGUS_PORT']}"
        assert served.connection["MERGUS_DATA_PATH"].startswith("s3://")

    def test_connection_env_can_be_sourced(self, served: Dev) -> None:
        source = served.block("In a shell, first:").strip()
        done = subprocess.run(["sh", "-c", f"{source}; env"], capture_output=True, text=True, check=True)
        seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        assert {k: seen.get(k) for k in served.connection} == served.connection

    def test_the_printed_output_contains_no_secret(self, served: Dev) -> None:
        printed = "\n".join(served.printed)
        assert served.connection["AWS_SECRET_ACCESS_KEY"] not in printed
        assert served.connection["MERGUS_POSTGRES_DSN"].split(":")[2].split("@")[0] not in printed

    def test_the_printed_pyiceberg_snippet_runs(self, served: Dev) -> None:
        out = run_python(served.block("PyIceberg"), {**served.env, **served.connection})
        assert out.strip() == "[('main',)]"

    def test_the_printed_duckdb_snippet_runs(self, served: Dev) -> None:
        code = served.block("DuckDB, straight to the lake")
        out = run_python(code + USE_IT, {**served.env, **served.connection})
        assert "main" in out
        assert "499500" in out

    def test_the_printed_snippet_for_duckdbs_iceberg_extension_runs(self, served: Dev) -> None:
        keys = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
        given = {name: value for name, value in served.connection.items() if name not in keys}
        left_open = "db.execute('BEGIN; INSERT INTO lake.u VALUES (1)')\n"
        code = served.block("DuckDB's iceberg extension") + USE_IT.replace("lake.t", "lake.u") + left_open
        out = run_python(code, {**served.env, **given})
        assert "main" in out
        assert "499500" in out

    @pytest.mark.integration
    def test_the_printed_spark_snippet_runs(self, served: Dev, tmp_path: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**served.env, **served.connection, "PATH": path}
        script = served.block("Spark")
        assert shlex.split(script)[0] == "spark-sql"
        done = subprocess.run(
            ["sh", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "main" in done.stdout.splitlines()

    def test_smoke_doctor_and_config_find_the_running_stack_without_settings(self, served: Dev) -> None:
        def mergus(*args: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "mergus", *args]
            return subprocess.run(command, env=served.env, capture_output=True, text=True, timeout=60, check=False)

        smoke = mergus("smoke")
        assert smoke.returncode == 0, smoke.stdout + smoke.stderr
        assert "an open DuckDB session sees it" in smoke.stdout
        doctor = mergus("doctor")
        assert doctor.returncode == 0, doctor.stdout
        names = [line.split()[1] for line in doctor.stdout.splitlines()]
        assert names == [
            "extensions",
            "postgres",
            "clock",
            "ducklake",
            "history",
            "annex",
            "role",
            "trigger",
            "listener",
            "storage",
            "credentials",
            "duckdb",
        ]
        assert re.search(r"listener +\S+:\d+ leads; \d+ snapshots behind", doctor.stdout)
        config = mergus("config")
        assert served.connection["AWS_SECRET_ACCESS_KEY"] not in config.stdout
        assert re.search(r"^MERGUS_POSTGRES_DSN=.*password=\*\*\*", config.stdout, re.MULTILINE)
        assert served.connection["MERGUS_POSTGRES_DSN"].split(":")[2].split("@")[0] not in config.stdout

    def test_the_state_directory_cannot_be_claimed_twice(self, served: Dev) -> None:
        env = {**served.env, "MERGUS_PORT": str(free_port())}
        done = subprocess.run(DEV, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert f"in use by process {served.process.pid}" in done.stderr
        assert (served.state / "connection.env").exists()

    def test_serve_names_a_port_that_is_in_use(self, served: Dev, tmp_path: Path) -> None:
        env = clean_env(tmp_path / "other", MERGUS_PORT=served.env["MERGUS_PORT"])
        done = subprocess.run(DEV, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert f"port {env['MERGUS_PORT']}" in done.stderr
        assert "MERGUS_PORT" in done.stderr

    def test_two_stacks_run_side_by_side(self, served: Dev, tmp_path: Path) -> None:
        with running(clean_env(tmp_path / "two", MERGUS_WAREHOUSE=f"file://{tmp_path}/warehouse")) as other:
            httpx.post(f"{other.connection['MERGUS_URI']}/v1/lake/namespaces", json={"namespace": ["only_there"]})
            here = httpx.get(f"{served.connection['MERGUS_URI']}/v1/lake/namespaces").json()
            assert ["only_there"] not in here["namespaces"]


class TestLifeCycle:
    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_stops_all_processes_and_keeps_the_data(self, signum: int, tmp_path: Path) -> None:
        env = clean_env(tmp_path / "state")
        with running(env) as dev:
            uri = dev.connection["MERGUS_URI"]
            first = dev.connection
            made = httpx.post(f"{uri}/v1/lake/namespaces", json={"namespace": ["kept"], "properties": {"k": "v"}})
            assert made.status_code == 200
            started = dev.descendants()
            names = {p.name() for p in started}
            assert {"postgres", "weed"} <= names
            dev.process.send_signal(signum)
            assert dev.process.wait(60) == 0
            assert gone(started, 1) == []
            assert not (dev.state / "connection.env").exists()
        began = time.monotonic()
        with running(env) as again:
            assert time.monotonic() - began < 30
            assert again.connection == first
            loaded = httpx.get(f"{uri}/v1/lake/namespaces/kept").json()
            assert loaded["properties"]["k"] == "v"
            assert not any("creat" in line for line in again.printed)

    def test_kill_9_leaves_no_process_and_the_next_start_works(self, tmp_path: Path) -> None:
        env = clean_env(tmp_path / "state")
        with running(env, None, "--workers", "2") as dev:
            started = dev.descendants()
            httpx.post(f"{dev.connection['MERGUS_URI']}/v1/lake/namespaces", json={"namespace": ["kept"]})
            dev.process.kill()
            dev.process.wait(10)
            assert gone(started, 30) == []
        with running(env) as again:
            listed = httpx.get(f"{again.connection['MERGUS_URI']}/v1/lake/namespaces").json()
            assert listed == {"namespaces": [["kept"], ["main"]]}

    def test_serve_stops_and_names_a_backend_that_died(self, tmp_path: Path) -> None:
        with running(clean_env(tmp_path / "state")) as dev:
            started = dev.descendants()
            next(p for p in started if p.name() == "weed").kill()
            assert dev.process.wait(60) == 1
            assert dev.process.stdout is not None
            assert "SeaweedFS ended unexpectedly" in dev.process.stdout.read()
            assert gone(started, 1) == []

    @pytest.mark.parametrize("sign", ["postgres/data.new/PG_VERSION", "postgres/data/postmaster.pid", "s3/weed.pid"])
    def test_serve_starts_again_after_an_interrupted_first_start(self, sign: str, tmp_path: Path) -> None:
        env = clean_env(tmp_path / "state")
        dev = Dev(DEV, env)
        deadline = time.monotonic() + 30
        while not (dev.state / sign).exists():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        started = dev.descendants()
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(60) == 0
        assert gone(started, 1) == []
        assert dev.process.stdout is not None
        dev.process.stdout.close()
        with running(env) as again:
            assert httpx.get(f"{again.connection['MERGUS_URI']}/readyz").status_code == 200

    def test_a_start_right_after_kill_9_waits_for_the_remaining_processes(self, tmp_path: Path) -> None:
        env = clean_env(tmp_path / "state")
        with running(env) as dev:
            before = dev.connection
            dev.process.kill()
            dev.process.wait(10)
        env["MERGUS_PORT"] = str(free_port())  # the old server may take a moment longer
        with running(env) as again:
            assert again.connection["AWS_ENDPOINT_URL_S3"] == before["AWS_ENDPOINT_URL_S3"]
            assert again.connection["MERGUS_POSTGRES_DSN"] == before["MERGUS_POSTGRES_DSN"]
            weeds = [p for p in again.descendants() if p.name() == "weed"]
            assert working_in(again.state / "s3") == {p.pid for p in weeds}
            assert len(weeds) == 1

    def test_a_stale_postmaster_pid_file_neither_prevents_the_start_nor_harms_another_process(
        self, tmp_path: Path
    ) -> None:
        env = clean_env(tmp_path / "state")
        with running(env):
            pass
        bystander = subprocess.Popen(["sleep", "300"], preexec_fn=end_with_parent)
        try:
            (tmp_path / "state/postgres/data/postmaster.pid").write_text(f"{bystander.pid}\n")
            with running(env):
                assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()

    def test_serve_starts_again_from_a_shell_that_sourced_connection_env(self, tmp_path: Path) -> None:
        env = clean_env(tmp_path / "state")
        with running(env) as dev:
            sourced = {**env, **dev.connection}
        with running(sourced) as again:
            assert {"postgres", "weed"} <= {p.name() for p in again.descendants()}

    def test_serve_and_smoke_do_not_use_an_http_proxy(self, tmp_path: Path) -> None:
        nowhere = "http://127.0.0.1:9"
        env = clean_env(tmp_path / "state", http_proxy=nowhere, HTTP_PROXY=nowhere, https_proxy=nowhere)
        env = {k: v for k, v in env.items() if k.lower() != "no_proxy"}
        with running(env) as dev:
            smoke = [sys.executable, "-m", "mergus", "smoke"]
            done = subprocess.run(smoke, env=env, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            assert dev.connection["MERGUS_URI"]

    def test_port_0_selects_a_free_port(self, tmp_path: Path) -> None:
        place = f"file://{tmp_path}/warehouse"
        with running(clean_env(tmp_path / "state", MERGUS_PORT="0", MERGUS_WAREHOUSE=place)) as dev:
            assert httpx.get(f"{dev.connection['MERGUS_URI']}/readyz").status_code == 200

    def test_serve_under_nohup_survives_sighup(self, tmp_path: Path) -> None:
        env = clean_env(tmp_path / "state", MERGUS_WAREHOUSE=f"file://{tmp_path}/warehouse")
        with running(env, ["nohup", *DEV]) as dev:
            # nothing will come of it later either, if it ignores the signal
            assert is_ignored(dev.process.pid, signal.SIGHUP)
            dev.process.send_signal(signal.SIGHUP)
            assert dev.process.poll() is None
            assert httpx.get(f"{dev.connection['MERGUS_URI']}/readyz").status_code == 200

    def test_the_python_examples_of_the_readme_run_as_printed(self, tmp_path: Path) -> None:
        texts = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        assert ["duckdb" in text.splitlines()[0] for text in texts] == [True, False]
        with running(clean_env(tmp_path / "state")) as dev:
            env = {**dev.env, **dev.connection}
            run_python(texts[0], env)
            said = re.findall(r"# (.*)", texts[1])
            assert len(said) == 2
            assert run_python(texts[1], env).splitlines() == said

    def test_a_file_warehouse_needs_no_s3(self, tmp_path: Path) -> None:
        place = tmp_path / "ware house"
        with running(clean_env(tmp_path / "state"), None, "--warehouse", f"file://{place}") as dev:
            assert "weed" not in {p.name() for p in dev.descendants()}
            assert dev.connection["MERGUS_DATA_PATH"] == f"file://{place}/data/"
            out = run_python(dev.block("DuckDB, straight to the lake") + USE_IT, {**dev.env, **dev.connection})
            assert "499500" in out
            assert list((place / "data" / "main" / "t").glob("*.parquet"))
            env = {**dev.env, **dev.connection}
            assert run_python(dev.block("PyIceberg"), env).strip() == "[('main',)]"
            read = "rows = lake.load_table('main.t').scan().to_arrow()\nprint(sum(rows.column(0).to_pylist()))\n"
            assert run_python(dev.block("PyIceberg") + read, env).splitlines()[-1] == "499500"

    @pytest.mark.parametrize("place", ["file", "s3"])
    def test_a_second_start_uses_the_warehouse_of_the_first(self, place: str, tmp_path: Path) -> None:
        warehouse = f"file://{tmp_path}/warehouse" if place == "file" else "s3://chosen-bucket/deep/er"
        env = clean_env(tmp_path / "state")
        with running(env, None, "--warehouse", warehouse) as dev:
            assert dev.connection["MERGUS_DATA_PATH"] == f"{warehouse}/data/"
            first = dev.connection
        with running(env) as again:
            assert again.connection == first
            assert httpx.get(f"{again.connection['MERGUS_URI']}/readyz").status_code == 200

    @pytest.mark.parametrize("form", ["uri", "key=value"])
    def test_serve_uses_a_configured_postgres_and_s3(self, form: str, tmp_path: Path) -> None:
        """Also with a password that every layer would have to quote."""
        password = 'it\'s a \\ $HOME `id` "word"'
        with lakes.database() as dsn, psycopg.connect(dsn, autocommit=True) as admin:
            user = f"u_{tmp_path.name[-8:].lower()}_{os.getpid()}"
            admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(user), password))
            admin.execute(sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(sql.Identifier(user)))
            name = dsn.rpartition("/")[2]
            admin.execute(
                sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(name), sql.Identifier(user))
            )
            own = make_conninfo(dsn, user=user, password=password)
            if form == "uri":
                host = dsn.partition("@")[2]
                own = f"postgresql://{user}:{quote(password, safe='')}@{host}"
            settings = lakes.settings_for(dsn)
            secret = settings.s3_secret_access_key
            assert secret is not None
            env = clean_env(
                tmp_path / "state",
                MERGUS_POSTGRES_DSN=own,
                MERGUS_S3_ENDPOINT=f"{settings.s3_endpoint}/",
                MERGUS_S3_ACCESS_KEY_ID=str(settings.s3_access_key_id),
                MERGUS_S3_SECRET_ACCESS_KEY=secret.get_secret_value(),
                MERGUS_WAREHOUSE=f"s3://mergus/{tmp_path.name}-own",
                # what somebody's shell may hold for other purposes
                AWS_ACCESS_KEY_ID="somebody",
                AWS_SECRET_ACCESS_KEY="else",
                AWS_SESSION_TOKEN="entirely",
                AWS_ENDPOINT_URL_S3="http://127.0.0.1:1",
            )
            try:
                with running(env) as dev:
                    assert {p.name() for p in dev.descendants()}.isdisjoint({"postgres", "weed"})
                    assert dev.connection["MERGUS_POSTGRES_DSN"] == own
                    assert httpx.get(f"{dev.connection['MERGUS_URI']}/readyz").status_code == 200
                    source = dev.block("In a shell, first:").strip()
                    code = dev.block("DuckDB, straight to the lake") + USE_IT
                    shell = {k: v for k, v in dev.env.items() if not k.startswith(("MERGUS_", "AWS_"))}
                    script = f"{source}; exec {shlex.quote(sys.executable)} -c {shlex.quote(code)}"
                    done = subprocess.run(["sh", "-c", script], env=shell, capture_output=True, text=True, check=False)
                    assert "499500" in done.stdout, done.stderr
                    for part in (password, quote(password, safe="")):
                        assert part not in "\n".join(dev.printed)
                        assert part not in (dev.state / "logs/server.log").read_text()
            finally:
                admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(user)))
                admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(user)))


def test_backends_up_and_down_start_and_stop_postgres_and_s3(tmp_path: Path) -> None:
    env = clean_env(tmp_path / "state")

    def backends(word: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mergus", "backends", word]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    (tmp_path / "state").mkdir()
    (tmp_path / "state/connection.env").write_text("MERGUS_URI=stale\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        env["MERGUS_POSTGRES_PORT"] = str(taken.getsockname()[1])
        refused = backends("up")
        assert refused.returncode == 1
        assert f"port {env.pop('MERGUS_POSTGRES_PORT')}" in refused.stderr
    up = backends("up")
    assert up.returncode == 0, up.stderr
    try:
        init = subprocess.run(
            [sys.executable, "-m", "mergus", "init"], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert init.stdout.startswith("created: DuckLake 1.0"), init.stderr
        assert backends("up").returncode == 1
        holder = psutil.Process(int((tmp_path / "state" / "lock").read_text()))
        started = [holder, *holder.children(recursive=True)]
    finally:
        down = backends("down")
    assert down.returncode == 0, down.stderr
    assert gone(started, 5) == []
    assert backends("down").returncode == 0


SLOW_TEST = """
import os, time
from pathlib import Path

def test_slow(server):
    Path(os.environ["MARKER"]).write_text(os.environ["MERGUS_STATE_DIR"])
    time.sleep(300)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_test_command_stops_what_it_started_when_it_is_interrupted(signum: int, tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW_TEST)
    marker = tmp_path / "marker"
    env = {**clean_env(tmp_path / "unused"), "MARKER": str(marker)}
    log = tmp_path / "log"
    with log.open("w") as output:
        command = ["./scripts/test", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path / "test_slow.py")]
        process = subprocess.Popen(
            command,
            env=env,
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    deadline = time.monotonic() + 120
    while not (marker.exists() and marker.read_text()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    state = Path(marker.read_text())
    assert (state / "connection.env").exists() is False
    started = psutil.Process(process.pid).children(recursive=True)
    assert {"postgres", "weed"} <= {p.name() for p in started}
    process.send_signal(signum)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)  # as those do who lose patience
    assert process.wait(90) != 0
    assert gone(started, 5) == []
    assert not state.exists()
    assert re.search(r"no tests ran in|KeyboardInterrupt", log.read_text())
