"""Credentials: none are given out, and nothing says otherwise."""

from typing import Any

import duckdb
import httpx
import pytest

from tests.support.commits import SCHEMA
from tests.support.lakes import TestLake
from tests.support.servers import Server, error_of

DELEGATIONS = ["vended-credentials", "remote-signing", "vended-credentials,remote-signing", "something-else", ""]


@pytest.fixture(scope="module", autouse=True)
def table(lake: TestLake) -> None:
    with lake.duckdb() as db:
        db.execute("CREATE TABLE main.t AS SELECT 1 AS i; CREATE VIEW main.v AS SELECT 1 AS i")


def url(server: Server, table: str = "t", schema: str = "main") -> str:
    return f"{server.path(schema)}/tables/{table}"


@pytest.mark.parametrize("asked", ["", "?planId=some-plan", "?planId=&referenced-by=main%1Fv,main%1Fw"])
def test_the_credentials_of_a_table_are_empty_without_vending(asked: str, server: Server) -> None:
    answer = server.http.get(f"{url(server)}/credentials{asked}")
    assert answer.status_code == 200
    assert answer.json() == {"storage-credentials": []}
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("schema", "name"), [("main", "missing"), ("main", "v"), ("nowhere", "t"), ("main", "a%00")])
def test_credentials_of_a_missing_table_are_not_found(schema: str, name: str, server: Server) -> None:
    answer = server.http.get(f"{url(server, name, schema)}/credentials")
    assert error_of(answer) == (404, "NoSuchTableException")


def promised(answer: httpx.Response) -> dict[str, Any]:
    """All that an answer about a table says beside its metadata."""
    assert answer.status_code == 200, answer.text
    return {k: v for k, v in answer.json().items() if k not in {"metadata", "metadata-location"}}


@pytest.mark.parametrize("delegation", DELEGATIONS)
def test_a_request_for_delegated_access_gets_no_credentials_without_vending(delegation: str, server: Server) -> None:
    headers = {"X-Iceberg-Access-Delegation": delegation}
    created = f"created_{DELEGATIONS.index(delegation)}"
    body = {"name": created, "schema": SCHEMA}
    for answer in (
        server.http.get(url(server), headers=headers),
        server.http.post(f"{server.path('main')}/tables", json={**body, "stage-create": True}, headers=headers),
        server.http.post(f"{server.path('main')}/tables", json=body, headers=headers),
        server.http.post(url(server, created), json={"requirements": [], "updates": []}, headers=headers),
    ):
        assert promised(answer) == {"config": {}}


def test_loading_a_table_referenced_by_a_view_returns_the_same_answer(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    plain = server.http.get(url(server))
    for through in ("main\x1fv", "a\x1fb\x1fc,main\x1fv", ",,,", "", "%2C\x00", "x" * 3000):
        answer = server.http.get(url(server), params={"referenced-by": through})
        assert (answer.status_code, answer.json()) == (200, plain.json())
        assert answer.headers["etag"] == plain.headers["etag"]


def test_no_answer_contains_the_keys_of_the_server(server: Server, lake: TestLake) -> None:
    secret = lake.settings.s3_secret_access_key
    assert secret is not None
    assert lake.settings.s3_access_key_id is not None
    headers = {"X-Iceberg-Access-Delegation": "vended-credentials"}
    for path in ("/v1/config", url(server), f"{url(server)}/credentials"):
        said = server.http.get(path, headers=headers).text
        assert secret.get_secret_value() not in said
        assert lake.settings.s3_access_key_id not in said
