"""Views over plain HTTP: what a client sends, by hand, and what it hears."""

import time
from typing import Any
from urllib.parse import quote

import httpx

from tests.support.servers import Server

Json = dict[str, Any]

FIELDS: list[Json] = [
    {"id": 1, "name": "i", "type": "int", "required": False},
    {"id": 2, "name": "s", "type": "string", "required": False},
]
SCHEMA: Json = {"type": "struct", "schema-id": 0, "fields": FIELDS}
TO_LAST: Json = {"action": "set-current-view-version", "view-version-id": -1}


def url(server: Server, schema: str, view: str | None = None) -> str:
    below = "" if view is None else f"/{quote(view, safe='')}"
    return f"{server.path(*schema.split('.'))}/views{below}"


def version(schema: str, /, **dialects: str) -> Json:
    return {
        "version-id": 1,
        "timestamp-ms": int(time.time() * 1000),
        "schema-id": 0,
        "summary": {"engine-name": "by hand"},
        "default-namespace": schema.split("."),
        "representations": [{"type": "sql", "sql": sql, "dialect": name} for name, sql in dialects.items()],
    }


def wanted(schema: str, view: str, /, **dialects: str) -> Json:
    return {"name": view, "schema": SCHEMA, "view-version": version(schema, **dialects), "properties": {}}


def create(server: Server, schema: str, view: str, /, **dialects: str) -> Json:
    """The view, made in a namespace that is there."""
    return answered(server.http.post(url(server, schema), json=wanted(schema, view, **dialects)))


def replace(schema: str, /, *more: Json, **dialects: str) -> list[Json]:
    """The updates of a client that gives a view other texts."""
    added = {**version(schema, **dialects), "version-id": 2}
    return [*more, {"action": "add-view-version", "view-version": added}, TO_LAST]


def commit(server: Server, schema: str, view: str, updates: list[Json], *requirements: Json) -> httpx.Response:
    body = {"requirements": list(requirements), "updates": updates}
    return server.http.post(url(server, schema, view), json=body)


def rename(server: Server, source: tuple[str, str], target: tuple[str, str]) -> httpx.Response:
    named = [{"namespace": schema.split("."), "name": view} for schema, view in (source, target)]
    return server.http.post("/v1/lake/views/rename", json={"source": named[0], "destination": named[1]})


def drop(server: Server, schema: str, view: str) -> httpx.Response:
    return server.http.delete(url(server, schema, view))


def get(server: Server, schema: str, view: str) -> httpx.Response:
    return server.http.get(url(server, schema, view))


def load(server: Server, schema: str, view: str) -> Json:
    return answered(get(server, schema, view))


def answered(response: httpx.Response) -> Json:
    """The metadata in an answer that must show a view."""
    assert response.status_code == 200, response.text
    body = response.json()
    assert set(body) == {"metadata-location", "metadata", "config"}
    return body["metadata"]


def names(server: Server, schema: str, **params: str | int) -> list[str]:
    answer = server.http.get(url(server, schema), params=params)
    assert answer.status_code == 200, answer.text
    return [one["name"] for one in answer.json()["identifiers"]]


def texts(metadata: Json) -> dict[str, str]:
    """Of the current version, by dialect."""
    current = next(v for v in metadata["versions"] if v["version-id"] == metadata["current-version-id"])
    return {r["dialect"]: r["sql"] for r in current["representations"]}
