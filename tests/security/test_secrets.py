"""Secrets of the server and of its clients are nowhere but where they are used.

Every setting that is a secret gets a value that can be recognised. Then all that the server says is searched for it:
logs at their most talkative, answers, metrics, what commands print, with everything going wrong that can.
"""

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from mergus.config import Settings, hide_password, variable
from mergus.rest.operations import OPERATIONS, Operation
from mergus.serve import environment
from tests.support import servers
from tests.support.access import Guarded
from tests.support.collector import collector
from tests.support.lakes import TestLake
from tests.support.oidc_issuer import AUDIENCE, Issuer, SigningKey, issuer, private_key
from tests.support.servers import Server

# What a secret is called. Not among them: names of keys, files with keys, how long and how many.
SECRET_NAMES = re.compile(
    r"secret|passw|passphrase|dsn|token_keys$|session_token|private_key$|credential|api_key|pepper"
)
NOT_SECRET = {"token_key_files", "token_seconds", "token_rate", "s3_access_key_id"}

SECRETS = [name for name, f in Settings.model_fields.items() if "SecretStr" in str(f.annotation)]
PASSWORD = "recognisable-password-é#/%:'0"


def values() -> dict[str, SecretStr]:
    """Of a shape that each setting takes."""
    found = {name: f"recognisable-{name.replace('_', '-')}-0123456789-{name[::-1]}" for name in SECRETS}
    found["postgres_dsn"] = f"postgresql://nobody:{quote(PASSWORD, safe='')}@127.0.0.1:1/nowhere"
    found["token_keys"] = f"first:{found['token_keys']} second:{found['token_keys'][::-1]}"
    return {name: SecretStr(value) for name, value in found.items()}


def spellings(secret: str) -> set[str]:
    """As it may stand in a text; a part is enough to be a leak."""
    parts = {secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    encoded = {base64.b64encode(secret.encode()).decode().rstrip("="), secret.encode().hex()}
    return parts | encoded | {secret[:20], secret[-20:]} - {""}


def secrets_of(settings: Settings) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in SECRETS:
        value: SecretStr | None = getattr(settings, name)
        if value is None:
            continue
        plain = value.get_secret_value()
        if name == "postgres_dsn":
            found[name] = str(conninfo_to_dict(plain)["password"])
        elif name == "token_keys":
            found |= {f"{name} {n}": key.partition(":")[2] for n, key in enumerate(plain.split())}
        else:
            found[name] = plain
    return found


@dataclass
class Heard:
    """All that was said to anybody."""

    secrets: dict[str, str]
    said: dict[str, str] = field(default_factory=dict[str, str])

    def hear(self, what: str, text: str) -> None:
        self.said[what] = self.said.get(what, "") + text

    def answer(self, what: str, answer: httpx.Response) -> httpx.Response:
        self.hear(what, f"{answer.status_code}\n{answer.headers}\n{answer.text}")
        return answer

    def assert_discreet(self) -> None:
        leaks = [
            (name, what, text[max(0, at - 80) : at].splitlines()[-1])
            for name, secret in self.secrets.items()
            for spelling in spellings(secret)
            for what, text in self.said.items()
            if (at := text.find(spelling)) >= 0
        ]
        assert leaks == []


def test_every_setting_with_the_name_of_a_secret_is_treated_as_one() -> None:
    named = {name for name in Settings.model_fields if SECRET_NAMES.search(name)} - NOT_SECRET
    assert named == set(SECRETS)
    assert {"postgres_dsn", "s3_secret_access_key", "s3_session_token", "token_keys"} <= named
    assert set(Settings.model_fields) >= NOT_SECRET


def test_the_leak_check_finds_encoded_secrets() -> None:
    for text in ("xx recognisable-thing-0123456789 xx", quote(PASSWORD), base64.b64encode(PASSWORD.encode()).decode()):
        heard = Heard({"a": "recognisable-thing-0123456789", "b": PASSWORD}, {"log": f"first\n{text}\nlast"})
        with pytest.raises(AssertionError, match="log"):
            heard.assert_discreet()
    Heard({"a": "recognisable-thing-0123456789"}, {"log": "recognised"}).assert_discreet()


def test_settings_do_not_print_secrets(lake: TestLake) -> None:
    settings = lake.settings.model_copy(update=values())
    assert len(secrets_of(settings)) > len(SECRETS)
    heard = Heard(secrets_of(settings))
    heard.hear("repr", repr(settings))
    heard.hear("str", str(settings))
    heard.hear("shown", str(settings.shown()))
    heard.hear("json", settings.model_dump_json())
    heard.assert_discreet()
    assert "127.0.0.1" in settings.shown()["postgres_dsn"]


def test_commands_print_no_secrets(lake: TestLake, tmp_path: Path) -> None:
    settings = lake.settings.model_copy(update={**values(), "log_level": "DEBUG", "port": 0, "state_dir": tmp_path})
    heard = Heard(secrets_of(settings))
    commands = ("config", "doctor", "doctor --json", "init", "serve")
    with ThreadPoolExecutor(2) as pool:
        for command, said in zip(commands, pool.map(lambda c: output(settings, *c.split()), commands), strict=True):
            assert said, command
            heard.hear(command, said)
    heard.assert_discreet()


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=127.0.0.1 port=1 user=nobody password='{PASSWORD}' dbname=nowhere".replace(":'0", r":\'0"),
        f"postgresql://127.0.0.1:1/nowhere?user=nobody&password={quote(PASSWORD, safe='')}",
        f"postgresql://nobody:{quote(PASSWORD, safe='')}@127.0.0.1:1/nowhere?no_such_option=1",
        f"postgresql://nobody:{quote(PASSWORD, safe='')}@[127.0.0.1:1/nowhere",
        "recognisable-password-that-is-no-dsn",
    ],
)
def test_commands_print_no_password_of_any_form_of_dsn(dsn: str, lake: TestLake, tmp_path: Path) -> None:
    settings = lake.settings.model_copy(update={"postgres_dsn": SecretStr(dsn), "state_dir": tmp_path})
    heard = Heard({"password": PASSWORD, "all of it": "recognisable-password"})
    heard.hear("config", str(settings.shown()))
    with ThreadPoolExecutor(2) as pool:
        for command, said in zip(
            ("doctor", "init"), pool.map(lambda c: output(settings, c), ("doctor", "init")), strict=True
        ):
            assert said
            heard.hear(command, said)
    heard.assert_discreet()


def output(settings: Settings, *command: str) -> str:
    """Of a command that may fail, but not hang."""
    done = subprocess.run(
        [sys.executable, "-m", "mergus", *command],
        env={**os.environ, **environment(settings)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.stdout.decode() + done.stderr.decode()


@contextmanager
def overheard(lake: TestLake, folder: Path, **changes: Any) -> Iterator[tuple[Server, Heard]]:
    """A server that says all it can, and what it said."""
    quick = {
        "pool_timeout": 0.2,
        "statement_timeout": 5.0,
        "lock_timeout": 2.0,
        "log_level": "DEBUG",
        "metrics_public": True,
    }
    settings = lake.settings.model_copy(update={**quick, **changes})
    with servers.server(settings, folder, wait=False) as running:
        servers.wait_for(running, "/healthz", 200)
        heard = Heard(secrets_of(settings))
        yield running, heard
        heard.answer("metrics", running.http.get("/metrics"))
    heard.hear("log", running.log.read_text())
    assert heard.said["log"]
    heard.assert_discreet()


def ask_for_everything(running: Server, heard: Heard, headers: dict[str, str]) -> None:
    """Whatever the answer: each operation, with what it needs or without."""
    named = {"prefix": "lake", "namespace": "main", "table": "t", "view": "v", "function": "f", "tag": "x", "job": "1"}

    def ask(operation: Operation) -> None:
        path = re.sub(r"\{(\w+)\}", lambda found: named.get(found[1], "x"), operation.path)
        body = {"name": "x", "namespace": ["x"]} if operation.method == "POST" else None
        heard.answer(operation.name, running.http.request(operation.method, path, headers=headers, json=body))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, OPERATIONS))


class TestAServerSaysNone:
    @pytest.mark.parametrize("log_format", ["json", "text"])
    def test_a_server_without_postgres_and_store_prints_no_secrets(
        self, log_format: str, lake: TestLake, tmp_path: Path
    ) -> None:
        nowhere = {"s3_endpoint": "http://127.0.0.1:1", "s3_access_key_id": "nobody", "log_format": log_format}
        with overheard(lake, tmp_path, **values(), **nowhere) as (running, heard):
            ready = heard.answer("readyz", running.http.get("/readyz"))
            assert ready.status_code == 503
            ask_for_everything(running, heard, {"X-Iceberg-Access-Delegation": "vended-credentials,remote-signing"})

    def test_a_server_with_a_wrong_postgres_password_prints_no_secrets(self, lake: TestLake, tmp_path: Path) -> None:
        parts = conninfo_to_dict(lake.settings.dsn)
        where = f"{quote(str(parts['host']), safe='')}:{parts['port']}/{parts['dbname']}"
        dsn = f"postgresql://{parts['user']}_x:{quote(PASSWORD, safe='')}@{where}"
        with overheard(lake, tmp_path, postgres_dsn=SecretStr(dsn)) as (running, heard):
            assert heard.answer("readyz", running.http.get("/readyz")).status_code == 503
            ask_for_everything(running, heard, {})

    def test_a_server_with_wrong_s3_keys_prints_no_secrets(self, lake: TestLake, tmp_path: Path) -> None:
        with lake.duckdb() as db:
            db.execute("CREATE TABLE IF NOT EXISTS main.t AS SELECT 1 AS i")
        wrong = {name: value for name, value in values().items() if name.startswith("s3_")}
        assert len(wrong) == 2
        vending = {"sts_role_arn": "arn:aws:iam::000000000000:role/lake"}
        with overheard(lake, tmp_path, **wrong, **vending, history_patience=0.1) as (running, heard):
            ready = heard.answer("readyz", running.http.get("/readyz"))
            assert ready.status_code == 503
            ask_for_everything(running, heard, {"X-Iceberg-Access-Delegation": "vended-credentials,remote-signing"})
            deadline = time.monotonic() + 10
            while "cannot be put on storage" not in running.log.read_text():
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def test_a_server_prints_no_secrets_of_its_clients(self, lake: TestLake, tmp_path: Path) -> None:
        """Tokens, good and bad, and what is sent for tokens: nothing of it is said again."""
        with issuer() as idp:
            own = {"auth": "oauth2 oidc", "oidc_issuer": idp.url, "oidc_audience": AUDIENCE}
            keys = {"token_keys": values()["token_keys"]}
            with overheard(lake, tmp_path, **own, **keys) as (running, heard):
                for name, token in tokens(idp).items():
                    # the header of a token is the same in all of one kind, and no secret
                    heard.secrets |= {f"{name} {n}": text for n, text in enumerate(token.split(".")[1:]) if text}
                    for scheme in ("Bearer", "bearer", "Basic", "Token"):
                        headers = {"Authorization": f"{scheme} {token}"}
                        heard.answer(f"{name} {scheme}", running.http.get("/v1/config", headers=headers))
                    if name in {"good", "forged"}:
                        ask_for_everything(running, heard, {"Authorization": f"Bearer {token}"})
                secret = heard.secrets["client's"] = "recognisable-client-secret-0123456789"
                form = {"grant_type": "client_credentials", "client_id": "nobody", "client_secret": secret}
                sent: list[dict[str, Any]] = [
                    {"data": form},
                    {"data": {"grant_type": "client_credentials"}, "auth": ("nobody", secret)},
                    {"data": {"grant_type": secret, "client_secret": secret}},
                    {"data": {**form, "scope": "x" * 100_000}},
                    {"json": form},
                    {"content": f"client_secret={secret}%ff&&&=", "headers": {"Content-Type": "text/plain"}},
                ]
                for number, request in enumerate(sent):
                    heard.answer(f"token {number}", running.http.post("/v1/oauth/tokens", **request))
                idp.stop()
                token = idp.token(
                    SigningKey("unknown", "RS256", private_key("RS256", 3)), sub="recognisable-subject-unknown"
                )
                heard.secrets["of one that is down"] = token.split(".")[1]
                headers = {"Authorization": f"Bearer {token}"}
                heard.answer("issuer down", running.http.get("/v1/config", headers=headers))

    def test_traces_contain_no_secrets(self, lake: TestLake, tmp_path: Path) -> None:
        """Neither its own nor those of clients, wherever they put them; nor to the log what is for the collector."""
        with lake.duckdb() as db:
            db.execute("CREATE TABLE IF NOT EXISTS main.t AS SELECT 1 AS i")
        own = "recognisable-collector-secret-0123456789"
        mine = {"OTEL_EXPORTER_OTLP_HEADERS": f"api-key={own}", "OTEL_BSP_MAX_QUEUE_SIZE": "20000"}
        keys = {"token_keys": values()["token_keys"], "auth": "oauth2 oidc", "oidc_audience": AUDIENCE}
        with (
            collector(**mine) as to,
            issuer() as idp,
            overheard(lake, tmp_path, **keys, oidc_issuer=idp.url, tracing="otlp") as (running, heard),
        ):
            heard.secrets["collector's"] = own
            sent = heard.secrets["client's"] = "recognisable-client-secret-0123456789"
            query = {"token": sent, "access_token": sent, "X-Amz-Signature": sent, "pageToken": sent}
            form = {"grant_type": "client_credentials", "client_id": "nobody", "client_secret": sent}
            heard.answer("token", running.http.post("/v1/oauth/tokens", data=form))
            for name, token in tokens(idp).items():
                heard.secrets |= {f"{name} {n}": text for n, text in enumerate(token.split(".")[1:]) if text}
            admin = idp.token(sub="recognisable-subject-0123456789", roles=["admin"])
            heard.secrets |= {f"admin's {n}": text for n, text in enumerate(admin.split(".")[1:])}
            Guarded(lake, running, running).grant("role:admin", "*")
            for token in (tokens(idp)["forged"], admin):
                headers = {"Authorization": f"Bearer {token}", "Cookie": f"session={sent}", "X-Api-Key": sent}
                heard.answer("query", running.http.get("/v1/config", params=query, headers=headers))
                ask_for_everything(running, heard, headers)
            for kind in ("anonymous", "user"):
                asked = ("loadTable", kind, False)
                to.wait_for(
                    lambda s, asked=asked: (s["mergus.operation"], s["mergus.principal.kind"], s.failed) == asked
                )
        heard.hear("traces", "".join(body.decode("latin-1") for body in to.bodies))
        assert {headers["api-key"] for headers in to.headers} == {own}
        assert len(to.spans) > len(OPERATIONS)
        assert {span.said for span in to.spans} == {""}
        heard.assert_discreet()


def tokens(idp: Issuer) -> dict[str, str]:
    named: dict[str, Any] = {"sub": "recognisable-subject-0123456789"}
    good = idp.token(**named)
    return {
        "good": good,
        "expired": idp.token(**named, exp=1),
        "of another issuer": idp.token(**named, iss="https://example.com"),
        "forged": idp.token(SigningKey("first", "RS256", private_key("RS256", 2)), **named, nonce=1),
        "cut": good[:-30],
        "nothing": "recognisable.garbage-0123456789-0123456789.0123456789-0123456789",
    }


@pytest.mark.parametrize(
    "dsn", [f"postgresql://u:{PASSWORD}@h/d", f"host=h password={PASSWORD.replace(chr(39), '')} user=u"]
)
def test_a_password_in_a_message_is_masked(dsn: str) -> None:
    heard = Heard({"password": PASSWORD.replace("'", "")})
    heard.hear("text", hide_password(f"connection to {dsn} failed"))
    assert "***" in heard.said["text"]
    heard.assert_discreet()


def test_an_invalid_setting_is_named_without_its_value(tmp_path: Path) -> None:
    wrong = {variable(name): f"recognisable-{name}-é" for name in SECRETS}
    env = {**os.environ, **wrong, "MERGUS_PORT": "x", "MERGUS_STATE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "mergus", "config"], env=env, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 1
    heard = Heard({name: f"recognisable-{name}" for name in SECRETS})
    heard.hear("output", (done.stdout + done.stderr).decode())
    assert "MERGUS_PORT" in heard.said["output"]
    heard.assert_discreet()
