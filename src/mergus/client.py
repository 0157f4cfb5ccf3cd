"""A client of the REST catalog, as commands of ours need one: with a token if the server asks who one is, and with
the server's own message where it refuses."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, urlencode

from mergus import loopback
from mergus.errors import MergusError

TIMEOUT_SECONDS: Final = 60
UNIT_SEPARATOR: Final = "\x1f"

Levels = tuple[str, ...]


class Refused(MergusError):
    """An answer that is not the one wanted."""

    def __init__(self, message: str, status: int = 0, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass(frozen=True)
class Address:
    """Which catalog, and as whom. `credential` is a client's name and secret, with a colon between."""

    uri: str
    warehouse: str | None = None
    credential: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def base(self) -> str:
        return self.uri.rstrip("/")


class Client:
    def __init__(self, address: Address) -> None:
        self.address = address

    @cached_property
    def token(self) -> str | None:
        given = self.address
        if given.token is not None or given.credential is None:
            return given.token
        name, _, secret = given.credential.partition(":")
        form = {"grant_type": "client_credentials", "client_id": name, "client_secret": secret}
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return send("POST", f"{given.base}/v1/oauth/tokens", urlencode(form).encode(), kind)["access_token"]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The server's answer; `prefix` in its overrides is how the catalog is called."""
        asked = "" if self.address.warehouse is None else f"?{urlencode({'warehouse': self.address.warehouse})}"
        return send("GET", f"{self.address.base}/v1/config{asked}", None, self._headers)

    @property
    def prefix(self) -> str:
        return self.config["overrides"]["prefix"]

    def offers(self, endpoint: str) -> bool:
        return endpoint in self.config["endpoints"]

    def ask(self, method: str, path: str, body: object = None, **params: str | int) -> Any:  # noqa: ANN401
        """Below the catalog's own path."""
        query = f"?{urlencode(params)}" if params else ""
        data = None if body is None else json.dumps(body).encode()
        return send(method, f"{self.address.base}/v1/{quote(self.prefix, safe='')}/{path}{query}", data, self._headers)

    def load_table(self, namespace: Levels, name: str) -> dict[str, Any]:
        return self.ask("GET", f"{namespace_path(namespace)}/tables/{quote(name, safe='')}")

    def namespaces(self, parent: Levels = ()) -> Iterator[Levels]:
        """All below one, parents first."""
        asked = {"parent": UNIT_SEPARATOR.join(parent)} if parent else {}
        for found in self._pages("namespaces", "namespaces", asked):
            yield tuple(found)
            yield from self.namespaces(tuple(found))

    def tables(self, namespace: Levels) -> Iterator[str]:
        for found in self._pages(f"{namespace_path(namespace)}/tables", "identifiers", {}):
            yield found["name"]

    def _pages(self, path: str, member: str, asked: dict[str, str]) -> Iterator[Any]:
        token = ""
        while True:
            answer = self.ask("GET", path, None, **asked, pageToken=token)
            yield from answer[member]
            token = answer.get("next-page-token")
            if not token:
                return

    @property
    def _headers(self) -> dict[str, str]:
        return headers(self.token)


def headers(token: str | None) -> dict[str, str]:
    known = {} if token is None else {"Authorization": f"Bearer {token}"}
    return {"Content-Type": "application/json", **known}


def namespace_path(namespace: Levels) -> str:
    return f"namespaces/{quote(UNIT_SEPARATOR.join(namespace), safe='')}"


def send(method: str, url: str, data: bytes | None, headers: dict[str, str], expected: int | None = None) -> Any:  # noqa: ANN401
    """The answer's body, if the status is this one, or any of success."""
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310
    try:
        with loopback.open_url(request, TIMEOUT_SECONDS) as answer:
            status, content = answer.status, answer.read()
    except urllib.error.HTTPError as e:
        status, content = e.code, e.read()
    except (OSError, ValueError) as e:
        raise Refused(f"{method} {url}: no answer ({e})") from None
    good = 200 <= status < 300 if expected is None else status == expected
    if not good:
        wanted = "" if expected is None else f", expected {expected}"
        message, kind = _error(content)
        raise Refused(f"{method} {url}: status {status}{wanted}: {message}", status, kind)
    return json.loads(content) if content else None


def _error(content: bytes) -> tuple[str, str]:
    try:
        error = json.loads(content)["error"]
        return str(error["message"]), str(error["type"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:500], ""
