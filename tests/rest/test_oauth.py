"""`POST /v1/oauth/tokens`, as Iceberg's clients speak to it and as nobody should."""

import json
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from mergus.access.clients import hash_secret
from tests.support import access, lakes, servers
from tests.support.access import SECRET, TOKENS, Guarded
from tests.support.servers import Server, error_of
from tests.test_command_line import mergus

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS = "urn:ietf:params:oauth:token-type:access_token"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with lakes.lake() as lake, access.guarded(lake, tmp_path_factory.mktemp("servers")) as found:
        found.client("etl", "ns:main:rw")
        yield found


def ask(guarded: Guarded, headers: dict[str, str] | None = None, /, **form: str) -> httpx.Response:
    return guarded.server.http.post(TOKENS, data=form, headers=headers)


def by_secret(guarded: Guarded, **more: str) -> httpx.Response:
    return ask(guarded, **{"grant_type": "client_credentials", "client_id": "etl", "client_secret": SECRET, **more})


def basic(name: str, secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{name}:{secret}".encode()).decode()}


def works(guarded: Guarded, token: str) -> int:
    return guarded.with_token(token).http.get("/v1/lake/namespaces").status_code


def oauth_error(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    assert set(body) == {"error", "error_description"}
    return answer.status_code, body["error"]


def test_a_client_secret_is_exchanged_for_a_token(guarded: Guarded) -> None:
    answer = by_secret(guarded, scope="catalog")
    assert answer.status_code == 200
    body = answer.json()
    assert body.keys() == {"access_token", "token_type", "expires_in", "issued_token_type"}
    assert (body["token_type"], body["expires_in"], body["issued_token_type"]) == ("bearer", 3600, ACCESS)
    assert answer.headers["cache-control"] == "no-store"
    assert works(guarded, body["access_token"]) == 200


def test_a_client_secret_in_a_basic_authorization_header_is_accepted(guarded: Guarded) -> None:
    answer = ask(guarded, basic("etl", SECRET), grant_type="client_credentials")
    assert works(guarded, answer.json()["access_token"]) == 200


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({"client_secret": "wrong"}, (401, "invalid_client")),
        ({"client_secret": ""}, (401, "invalid_client")),
        ({"client_id": "nobody"}, (401, "invalid_client")),
        ({"client_id": "nob\0dy"}, (401, "invalid_client")),
        ({"grant_type": "password"}, (400, "unsupported_grant_type")),
        ({"grant_type": ""}, (400, "unsupported_grant_type")),
        ({"scope": "ns:sales:everything"}, (400, "invalid_scope")),
    ],
)
def test_token_requests_fail_with_the_errors_of_oauth(
    guarded: Guarded, form: dict[str, str], error: tuple[int, str]
) -> None:
    assert oauth_error(by_secret(guarded, **form)) == error


def test_malformed_token_request_forms_are_refused(guarded: Guarded) -> None:
    http = guarded.server.http
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for content, headers in (
        (b"{}", {"Content-Type": "application/json"}),
        (b"grant_type", form),
        (b"a=%ff", form),
        (b"\xff=1", form),
        (b"a=1&a=2", form),
        (b"&".join(b"f%d=1" % i for i in range(100)), form),
        (b"a=" + b"x" * 100_000, form),
    ):
        answer = http.post(TOKENS, content=content, headers=headers)
        assert oauth_error(answer) in {(400, "invalid_request")}, content[:20]
    assert oauth_error(http.post(TOKENS, content=b"", headers=form)) == (400, "unsupported_grant_type")
    bad = {**form, "Authorization": "Basic !!!"}
    assert oauth_error(http.post(TOKENS, content=b"grant_type=client_credentials", headers=bad))[0] == 401


def test_a_token_is_exchanged_for_another_of_the_same_client(guarded: Guarded) -> None:
    token = by_secret(guarded, scope="ns:main:r").json()["access_token"]
    fields = {"grant_type": EXCHANGE, "subject_token": token, "subject_token_type": ACCESS}
    # as Java's client renews one: authorised by the token itself
    answer = ask(guarded, {"Authorization": f"Bearer {token}"}, **fields, scope="catalog")
    assert answer.status_code == 200, answer.text
    assert answer.json()["scope"] == "ns:main:r"
    assert works(guarded, answer.json()["access_token"]) == 200
    narrower = ask(guarded, **fields, scope="table:main.t:rw")
    assert narrower.json()["scope"] == "table:main.t:r"
    assert oauth_error(ask(guarded, **fields, scope="ns:other:r")) == (400, "invalid_scope")
    assert oauth_error(ask(guarded, **{**fields, "subject_token": "x"})) == (400, "invalid_grant")
    assert oauth_error(ask(guarded, **fields, actor_token="x")) == (400, "invalid_request")
    assert oauth_error(ask(guarded, grant_type=EXCHANGE)) == (400, "invalid_request")
    # one that has expired is renewed by the secret
    renewed = ask(guarded, basic("etl", SECRET), **{**fields, "subject_token": "expired"})
    assert works(guarded, renewed.json()["access_token"]) == 200


def test_a_requested_scope_narrows_the_grants_and_never_widens_them(guarded: Guarded) -> None:
    token = by_secret(guarded, scope="ns:main:r ns:other:*").json()["access_token"]
    caller = guarded.with_token(token)
    assert caller.create("other").status_code == 403
    assert caller.http.post(caller.path("main") + "/properties", json={"updates": {"a": "b"}}).status_code == 403
    assert (
        guarded.with_token(guarded.token("etl"))
        .http.post(caller.path("main") + "/properties", json={"updates": {"a": "b"}})
        .status_code
        == 200
    )


def test_tokens_of_a_removed_client_are_refused(guarded: Guarded) -> None:
    guarded.client("gone")
    token = guarded.token("gone")
    assert works(guarded, token) == 200
    guarded.lake.sql("DELETE FROM client WHERE client_id = 'gone'")
    assert works(guarded, token) == 401
    fields = {"grant_type": EXCHANGE, "subject_token": token, "subject_token_type": ACCESS}
    assert oauth_error(ask(guarded, **fields)) == (400, "invalid_grant")
    # another one of that name is another
    guarded.client("gone")
    guarded.lake.sql("UPDATE client SET generation = 1 WHERE client_id = 'gone'")
    assert works(guarded, token) == 401


def test_an_expired_token_is_refused(tmp_path: Path, guarded: Guarded) -> None:
    claims = jwt.decode(guarded.token("etl"), options={"verify_signature": False})
    assert claims["exp"] - claims["iat"] == 3600
    ((key,),) = guarded.lake.sql("SELECT signing_key FROM catalog")
    old = jwt.encode({**claims, "exp": int(time.time()) - 60}, bytes(key), "HS256", headers={"kid": "lake"})
    answer = guarded.with_token(old).http.get("/v1/lake/namespaces")
    assert error_of(answer) == (401, "NotAuthorizedException")
    assert "expired" in answer.json()["error"]["message"]
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.fixture
def limited(tmp_path: Path, guarded: Guarded) -> Iterator[Server]:
    """Three wrong secrets a minute."""
    with servers.server(guarded.lake.settings, tmp_path, auth="oauth2", token_rate=3) as server:
        yield server


def show_secret(server: Server, client: str, secret: str) -> int:
    form = {"grant_type": "client_credentials", "client_id": client, "client_secret": secret}
    answer = server.http.post(TOKENS, data=form)
    if answer.status_code == 429:
        assert error_of(answer) == (429, "TooManyRequestsException")
        assert int(answer.headers["retry-after"]) > 0
    return answer.status_code


def test_frequent_token_requests_with_the_right_secret_are_not_limited(limited: Server) -> None:
    """Trino asks for two tokens or more for each query."""
    began = time.monotonic()
    assert {show_secret(limited, "etl", SECRET) for _ in range(100)} == {200}
    assert time.monotonic() - began < 20


def test_guesses_of_a_secret_are_limited_without_locking_out_its_owner(limited: Server) -> None:
    assert show_secret(limited, "etl", SECRET) == 200
    assert [show_secret(limited, "etl", f"guess {n}") for n in range(5)] == [401, 401, 401, 429, 429]
    # from the same address, under the same name
    assert show_secret(limited, "etl", SECRET) == 200
    # and another, which this server does not know yet
    assert show_secret(limited, "admin", SECRET) == 200


def test_guesses_under_many_client_names_are_limited_by_address(limited: Server) -> None:
    found = [show_secret(limited, f"name-{n}", "guess") for n in range(40)]
    assert found[:30] == [401] * 30
    assert 429 in found[30:]


def test_concurrent_guesses_of_a_secret_are_limited(limited: Server) -> None:
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda n: show_secret(limited, "etl", f"guess {n}"), range(40)))
    # two are checked at once
    assert found.count(401) <= 5
    assert found.count(429) >= 35


def test_a_rotated_secret_is_no_longer_accepted(guarded: Guarded, limited: Server) -> None:
    guarded.client("rotated")
    assert show_secret(limited, "rotated", SECRET) == 200
    other = hash_secret("another")
    guarded.lake.sql("UPDATE client SET secret_hash = %s WHERE client_id = 'rotated'", other)
    assert show_secret(limited, "rotated", SECRET) == 401
    assert show_secret(limited, "rotated", "another") == 200
    guarded.lake.sql("DELETE FROM client WHERE client_id = 'rotated'")
    assert show_secret(limited, "rotated", "another") == 401


def test_clients_are_read_from_a_file(tmp_path: Path, guarded: Guarded) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(f'[clients.filed]\nsecret_hash = "{hash_secret("s")}"\ngrants = ["ns:main:r"]\n')
    with servers.server(guarded.lake.settings, tmp_path, auth="oauth2", clients_file=file) as server:
        form = {"grant_type": "client_credentials", "client_id": "filed", "client_secret": "s"}
        token = server.http.post(TOKENS, data=form).json()["access_token"]
        headers = {"Authorization": f"Bearer {token}"}
        listed = server.http.get("/v1/lake/namespaces", headers=headers).json()
        assert listed == {"namespaces": [["main"]]}
    # elsewhere nobody knows that client
    assert works(guarded, token) == 401


def test_a_server_without_oauth_refuses_token_requests(tmp_path: Path, guarded: Guarded) -> None:
    with servers.server(guarded.lake.settings, tmp_path) as server:
        answer = server.http.post(TOKENS, data={"grant_type": "client_credentials", "client_secret": "x"})
        assert oauth_error(answer) == (400, "unsupported_grant_type")


# --- the command line


def run(guarded: Guarded, *args: str) -> Any:
    settings = guarded.lake.settings
    done = mergus(*args, MERGUS_POSTGRES_DSN=settings.dsn)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_clients_and_grants_are_managed_from_the_command_line(guarded: Guarded) -> None:
    credential = run(guarded, "clients", "add", "spark", "--grant", "ns:main:r").strip().removeprefix("credential=")
    name, secret = credential.split(":")
    form = {"grant_type": "client_credentials", "client_id": name, "client_secret": secret}
    token = ask(guarded, **form).json()["access_token"]
    path = f"{guarded.server.namespaces}/main/properties"
    change = {"updates": {"k": "v"}}
    caller = guarded.with_token(token)
    assert caller.http.post(path, json=change).status_code == 403
    run(guarded, "grants", "add", "client:spark", "ns:main:w")
    assert caller.http.post(path, json=change).status_code == 200
    assert "client:spark" in run(guarded, "grants", "list")
    listed = json.loads(run(guarded, "grants", "list", "client:spark", "--json"))
    assert [row["grant"] for row in listed] == ["ns:main:rw"]
    run(guarded, "grants", "remove", "client:spark", "ns:main:w")
    assert caller.http.post(path, json=change).status_code == 403

    assert secret not in run(guarded, "clients", "list")
    rotated = run(guarded, "clients", "rotate", "spark", "--keep", "600").strip().removeprefix("credential=")
    assert ask(guarded, **form).status_code == 200
    assert works(guarded, token) == 200
    run(guarded, "clients", "rotate", "spark")
    assert oauth_error(ask(guarded, **form)) == (401, "invalid_client")
    assert oauth_error(ask(guarded, **{**form, "client_secret": rotated.split(":")[1]})) == (401, "invalid_client")
    assert works(guarded, token) == 401
    run(guarded, "clients", "remove", "spark")
    assert run(guarded, "grants", "list", "client:spark") == ""
    told = [entry["operation"] for entry in guarded.audit() if entry["principal"].startswith("command line:")]
    assert {"addClient", "rotateClient", "removeClient", "addGrant", "removeGrant"} <= set(told)


def test_mergus_smoke_uses_a_client_credential(guarded: Guarded) -> None:
    args = ("smoke", "--uri", guarded.server.uri)
    done = mergus(*args, "--credential", f"admin:{SECRET}")
    assert done.returncode == 0, done.stderr
    assert "all good" in done.stdout
    for refused in (mergus(*args), mergus(*args, MERGUS_CREDENTIAL="admin:wrong")):
        assert refused.returncode == 1
        assert "status 401" in refused.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("clients", "add", "a:b"), "name"),
        (("clients", "add", "x", "--grant", "ns:a:all"), "ns:a:all"),
        (("clients", "rotate", "nobody"), "nobody"),
        (("clients", "remove", "nobody"), "nobody"),
        (("grants", "add", "etl", "ns:main:r"), "client:<name>"),
        (("grants", "add", "client:etl", "ns:main"), "ns:main"),
        (("grants", "remove", "client:etl", "ns:none:r"), "no such grant"),
    ],
)
def test_client_and_grant_commands_report_errors_without_a_traceback(
    guarded: Guarded, args: tuple[str, ...], said: str
) -> None:
    done = mergus(*args, MERGUS_POSTGRES_DSN=guarded.lake.settings.dsn)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"MERGUS_HOST": "0.0.0.0"}, "MERGUS_AUTH"),
        ({"MERGUS_HOST": "::"}, "MERGUS_AUTH"),
        ({"MERGUS_AUTH": "oidc"}, "MERGUS_OIDC_ISSUER"),
        ({"MERGUS_AUTH": "basic"}, "MERGUS_AUTH"),
        ({"MERGUS_AUTH": "none oauth2"}, "MERGUS_AUTH"),
        ({"MERGUS_AUTH": "oauth2", "MERGUS_TOKEN_KEYS": "short:x"}, "MERGUS_TOKEN_KEYS"),
        ({"MERGUS_AUTH": "oauth2", "MERGUS_CLIENTS_FILE": "/nowhere"}, "MERGUS_CLIENTS_FILE"),
    ],
)
def test_a_server_that_would_be_open_by_mistake_does_not_start(settings: dict[str, str], said: str) -> None:
    done = mergus("serve", "--no-init", MERGUS_POSTGRES_DSN="postgresql://nobody@127.0.0.1:1/none", **settings)
    assert done.returncode == 1
    assert said in done.stderr
