"""Commands and settings, as an operator meets them."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from mergus.cli import main
from mergus.config import Settings, hide_password, load_settings, reference
from mergus.errors import SetupError
from mergus.serve import environment
from tests.support import lakes

ROOT = Path(__file__).parents[1]
NOBODY = "http://127.0.0.1:1"
SPARK_PACKAGES = " ".join(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
)


def mergus(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": os.environ["PATH"], "MERGUS_STATE_DIR": "/nonexistent"}
    command = [sys.executable, "-m", "mergus", *args]
    return subprocess.run(command, env={**base, **env}, capture_output=True, text=True, timeout=60, check=False)


def test_help_names_every_command_and_every_command_has_help() -> None:
    shown = mergus("--help").stdout
    for command in main.commands:
        assert re.search(rf"^  {command} +\w", shown, re.MULTILINE), command
        own = CliRunner().invoke(main, [command, "--help"])
        assert own.exit_code == 0
        assert len(own.stdout) > 100


def test_throw_away_backends_keep_their_state_in_the_given_directory(tmp_path: Path) -> None:
    command = ("backends", "run", "--temporary-directory", str(tmp_path))
    durable = mergus(*command, "--", "true")
    assert (durable.returncode, "--temporary-directory needs --throw-away" in durable.stderr) == (2, True)
    show = "import os; print(os.environ['MERGUS_STATE_DIR'])"
    done = mergus(*command, "--throw-away", "--", sys.executable, "-c", show)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_readme_lists_every_command() -> None:
    section = (ROOT / "README.md").read_text().split("## The command line\n")[1].split("\n## ")[0]
    listed = section.partition("lists the commands: ")[2].partition(". From a checkout")[0]
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(main.commands)


def test_operations_md_contains_the_current_reference_of_the_settings() -> None:
    text = (ROOT / "OPERATIONS.md").read_text()
    begin, end = "<!-- settings: begin (mergus config --markdown) -->\n", "<!-- settings: end -->"
    assert text.split(begin)[1].split(end)[0].strip() == reference().strip()


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:hunter2@h:5432/d?x=1",
        "host=h password=hunter2 user=u",
        "host=h password = 'hunter2 hunter2' user=u",
        "could not connect to postgres://u:hunter2@h/d: no route",
        "user=u password=hun\\'ter2hunter2",
        'user=u password=hun"hunter2',
        "postgresql://u:hunter2@hunter2@h/d",
    ],
)
def test_a_password_is_masked_anywhere_in_a_message(text: str) -> None:
    assert "hunter2" not in hide_password(text)
    assert "u" in hide_password(text)


@pytest.mark.parametrize(
    "dsn", ["user=u password=hun\\'ter2 host=h", "user=u password='a hunter2'", "password hunter2 nonsense ="]
)
def test_config_shows_no_password_however_it_is_written(dsn: str) -> None:
    done = mergus("config", MERGUS_POSTGRES_DSN=dsn)
    assert done.returncode == 0
    assert "ter2" not in done.stdout + done.stderr
    assert "MERGUS_POSTGRES_DSN=" in done.stdout


def test_an_unreadable_dsn_is_not_printed() -> None:
    done = mergus("init", MERGUS_POSTGRES_DSN="password hunter2 nonsense =")
    assert done.returncode == 1
    assert "MERGUS_POSTGRES_DSN" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MERGUS_PORT", "http"),
        ("MERGUS_PORT", "70000"),
        ("MERGUS_WORKERS", "0"),
        ("MERGUS_WAREHOUSE", "a b/c"),
        ("MERGUS_WAREHOUSE", "file:///"),
        ("MERGUS_WAREHOUSE", "s3://"),
        ("MERGUS_WAREHOUSE", "gs://bucket/x"),
        ("MERGUS_S3_ENDPOINT", "localhost:9000"),
        ("MERGUS_POSTGRES_PORT", "99999"),
    ],
)
def test_an_invalid_setting_is_reported_by_name(variable: str, value: str) -> None:
    done = mergus("config", **{variable: value})
    assert done.returncode == 1
    assert variable in done.stderr
    assert "Traceback" not in done.stderr


def test_commands_without_a_postgres_dsn_name_the_setting_to_set() -> None:
    for command in ("serve", "listen", "init", "doctor"):
        done = mergus(command)
        assert done.returncode == 1
        assert "MERGUS_POSTGRES_DSN" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_s3_keys_are_taken_from_one_source_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("MERGUS_", "AWS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MERGUS_STATE_DIR", "/nonexistent")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "theirs")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "theirs")
    token = load_settings().s3_session_token
    assert token is not None
    assert token.get_secret_value() == "theirs"
    monkeypatch.setenv("MERGUS_S3_ACCESS_KEY_ID", "ours")
    settings = load_settings()
    assert settings.s3_access_key_id == "ours"
    assert settings.s3_session_token is None


def test_settings_are_passed_to_another_process_unchanged() -> None:
    settings = lakes.backend_settings().model_copy(update={"port": 1, "s3_path_style": False, "pool_timeout": 0.5})
    done = mergus("config", **environment(settings))
    assert "MERGUS_PORT=1\n" in done.stdout
    assert "MERGUS_S3_PATH_STYLE=False\n" in done.stdout
    assert "MERGUS_POOL_TIMEOUT=0.5\n" in done.stdout


def test_an_invalid_setting_is_reported_without_its_value() -> None:
    with pytest.raises(SetupError) as caught:
        load_settings(port="hunter2")
    assert "hunter2" not in str(caught.value)


class TestDoctor:
    def test_doctor_names_a_remedy_for_each_failed_check(self) -> None:
        with lakes.lake() as lake:
            env = environment(lake.settings)
            lake.sql("DROP TRIGGER mergus_notify_snapshot ON public.ducklake_snapshot")
            done = mergus("doctor", **{**env, "MERGUS_S3_SECRET_ACCESS_KEY": "wrong"})
            assert done.returncode == 1
            assert "Traceback" not in done.stderr
            failed = re.findall(r"^FAIL  (\w+)", done.stdout, re.MULTILINE)
            assert failed == ["annex", "trigger", "storage"]
            assert done.stdout.count("→") == 3
            assert mergus("init", **env).returncode == 0
            assert mergus("doctor", **env).returncode == 0

    def test_doctor_fails_for_a_broken_table_and_mentions_unsupported_ones(self) -> None:
        with lakes.lake() as lake:
            env = environment(lake.settings)
            failure = "INSERT INTO listener_failure (table_id, kind, message, attempts) VALUES (%s, %s, 'why', 3)"
            lake.sql(failure, 1, "UnsupportedOperationException")
            done = mergus("doctor", **env)
            assert done.returncode == 0, done.stdout
            assert re.search(r"^ok    listener +nobody leads.*1 tables cannot be shown as Iceberg", done.stdout, re.M)
            lake.sql(failure, 2, "InternalServerError")
            done = mergus("doctor", **env)
            assert done.returncode == 1
            assert re.findall(r"^FAIL  (\w+) +1 tables", done.stdout, re.M) == ["listener"]

    def test_doctor_recommends_init_without_a_lake(self) -> None:
        with lakes.database() as dsn:
            done = mergus("doctor", **environment(lakes.settings_for(dsn)))
            assert done.returncode == 1
            assert "mergus init" in done.stdout

    def test_doctor_reports_a_snapshot_in_the_future(self) -> None:
        with lakes.lake() as lake:
            lake.sql("UPDATE ducklake_snapshot SET snapshot_time = now() + interval '1 hour'")
            done = mergus("doctor", **environment(lake.settings))
            assert re.search(r"FAIL  history +the newest snapshot is 3\d\d\d s in the future", done.stdout)

    def test_doctor_prints_its_findings_as_json(self) -> None:
        import json

        with lakes.lake() as lake:
            findings = json.loads(mergus("doctor", "--json", **environment(lake.settings)).stdout)
        assert all(f["ok"] for f in findings)


def test_smoke_fails_without_a_server() -> None:
    done = mergus("smoke", "--uri", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "no answer" in done.stderr


def test_every_pixi_task_runs_an_existing_script() -> None:
    tasks = tomllib.loads((ROOT / "pixi.toml").read_text())["tasks"]
    wanted = {"serve", "serve-hi", "demo", "test", "test-heavy", "check", "init", "smoke"} | {
        f"backends-{way}" for way in ("up", "down")
    }
    assert set(tasks) == wanted
    for task in tasks.values():
        script, *args = task["cmd"].split()
        assert os.access(ROOT / script, os.X_OK), script
        if script == "./scripts/mergus":
            assert mergus(*args, "--help").returncode == 0


class TestEnvironment:
    """scripts/env.sh, in a checkout of its own."""

    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        for name in ("scripts", "src"):
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "requirements.lock", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, tmp_path)
        return tmp_path

    def run(self, checkout: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith(("MERGUS_", "PIP_", "UV_"))}
        words = command or ("./scripts/mergus", "--version")
        return subprocess.run(
            words, cwd=checkout, env={**base, **env}, capture_output=True, text=True, timeout=300, check=False
        )

    def test_a_failed_install_is_reported_and_retried(self, checkout: Path) -> None:
        offline = self.run(checkout, PIP_NO_INDEX="1")
        assert offline.returncode == 1
        assert "could not be made" in offline.stderr
        broken = self.run(checkout, UV_OFFLINE="1", UV_CACHE_DIR=str(checkout / "empty"))
        assert broken.returncode == 1
        assert not list((checkout / ".venv").glob(".mergus-stamp*"))
        good = self.run(checkout)
        assert good.returncode == 0, good.stderr
        assert good.stdout.startswith("mergus, version")
        again = self.run(checkout, PIP_NO_INDEX="1", UV_OFFLINE="1")
        assert (again.returncode, again.stderr) == (0, "")

    def test_an_environment_without_pip_is_made_anew(self, checkout: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], cwd=checkout, check=True)
        good = self.run(checkout)
        assert good.returncode == 0, good.stderr

    def test_a_checkout_that_has_only_served_installs_spark_for_the_first_job(self, checkout: Path) -> None:
        assert self.run(checkout).returncode == 0
        job = ("pipeline", "verify", "sales", "--uri", NOBODY)
        explained = self.run(checkout, "./scripts/mergus", "pipeline", "verify", "--help")
        assert (explained.returncode, explained.stderr) == (0, "")
        without = self.run(checkout, ".venv/bin/mergus", *job)
        assert without.returncode == 1
        assert f"{checkout}/.venv/bin/python -m pip install {SPARK_PACKAGES}" in without.stderr
        first = self.run(checkout, "./scripts/mergus", *job)
        assert "installing what requirements.lock names for [embedded,spark]" in first.stderr
        assert (first.returncode, "no answer" in first.stderr) == (1, True), first.stderr
        for command in (("--version",), ("spark", "--settings", "--uri", NOBODY)):
            again = self.run(checkout, "./scripts/mergus", *command, PIP_NO_INDEX="1", UV_OFFLINE="1")
            assert "installing" not in again.stderr

    def test_an_installed_wheel_names_a_command_that_installs_spark(self, checkout: Path) -> None:
        """Here in an environment without pip, as uv makes them."""
        uv, home = str(Path(sys.executable).with_name("uv")), checkout / "wheel home"

        def install(command: list[str]) -> None:
            # from uv's cache if it has everything; with the system's certificates behind a proxy that signs for itself
            for options in (["--offline"], [], ["--system-certs"]):
                done = self.run(checkout, *command, *options)
                if done.returncode == 0:
                    return
            raise AssertionError(done.stderr)

        install([uv, "venv", "--python", sys.executable, str(home)])
        install([uv, "pip", "install", "--python", str(home), "--constraint", "requirements.lock", "."])
        job = (str(home / "bin/mergus"), "spark", "--sql", "SELECT 1", "--uri", NOBODY)
        without = self.run(checkout, *job)
        assert without.returncode == 1
        named = without.stderr.partition("Spark is not installed; install it with: ")[2].strip()
        assert shlex.split(named) == [
            *f"uv pip install --python {home}/bin/python".split(maxsplit=4),
            *SPARK_PACKAGES.split(),
        ]
        install([uv, *shlex.split(named)[1:]])
        assert "no answer" in self.run(checkout, *job).stderr


class TestJava:
    """Spark runs on it, and no Python package brings it."""

    def run(self, **env: str) -> str:
        done = mergus("spark", "--sql", "SELECT 1", "--uri", NOBODY, **env)
        assert done.returncode == 1
        return done.stderr

    def test_a_job_without_java_names_the_version_to_install(self, tmp_path: Path) -> None:
        said = self.run(PATH=str(tmp_path))
        assert said.startswith(
            "error: Spark needs Java 17: install it (Debian and Ubuntu: apt-get install openjdk-17-jre"
        )

    def test_a_job_reports_a_java_home_without_java(self, tmp_path: Path) -> None:
        assert f"JAVA_HOME is {tmp_path}, and has no bin/java. Spark needs Java 17" in self.run(JAVA_HOME=str(tmp_path))

    @pytest.mark.parametrize(("version", "major"), [("11.0.22", 11), ("1.8.0_402", 8)])
    def test_a_job_reports_a_java_that_is_too_old(self, tmp_path: Path, version: str, major: int) -> None:
        program = tmp_path / "bin/java"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
        program.chmod(0o755)
        assert f"{program} is Java {major}. Spark needs Java 17" in self.run(JAVA_HOME=str(tmp_path))

    def test_a_job_with_java_contacts_the_server(self) -> None:
        assert "no answer" in self.run(**{k: v for k, v in os.environ.items() if k == "JAVA_HOME"})
