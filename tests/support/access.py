"""Servers that ask who one is, and clients of theirs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mergus.access.clients import hash_secret
from mergus.access.registry import place_of
from mergus.access.scopes import parse_grant
from tests.support import servers
from tests.support.lakes import TestLake
from tests.support.servers import Server

TOKENS = "/v1/oauth/tokens"
SECRET = "a-secret-of-tests-that-is-long-enough"  # hashed once: it takes a while
HASH = hash_secret(SECRET)


@dataclass
class Guarded:
    """A server with MERGUS_AUTH=oauth2, and a client `admin` that may do everything."""

    lake: TestLake
    server: Server
    admin: Server

    def client(self, name: str, *grants: str) -> None:
        self.lake.sql("INSERT INTO client (client_id, secret_hash) VALUES (%s, %s)", name, HASH)
        for text in grants:
            self.grant(f"client:{name}", text)

    def grant(self, grantee: str, text: str) -> None:
        grant = parse_grant(text)
        namespace, of = place_of(grant.resource)
        self.lake.sql(
            "INSERT INTO access_grant (grantee, namespace, name, privileges, granted_by) "
            "VALUES (%s, %s, %s, %s, 'test')",
            *(grantee, namespace, of, sorted(grant.privileges)),
        )

    def token(self, name: str, **form: str) -> str:
        answer = self.server.http.post(
            TOKENS,
            data={"grant_type": "client_credentials", "client_id": name, "client_secret": SECRET, **form},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["access_token"]

    def as_client(self, name: str, *grants: str, **form: str) -> Server:
        """The server, as a new client with these grants sees it."""
        self.client(name, *grants)
        return self.with_token(self.token(name, **form))

    def with_token(self, token: str) -> Server:
        http = servers.client(self.server.uri, headers={"Authorization": f"Bearer {token}"})
        return Server(self.server.uri, self.server.process, self.server.log, http)

    def audit(self, **params: Any) -> list[dict[str, Any]]:
        answer = self.admin.http.get("/v1/lake/admin/audit", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()["audit"]


@contextmanager
def guarded(lake: TestLake, folder: Path, **changes: Any) -> Iterator[Guarded]:
    with servers.server(lake.settings, folder, **{"auth": "oauth2", "token_rate": 100_000, **changes}) as server:
        found = Guarded(lake, server, server)
        if not lake.sql("SELECT FROM client WHERE client_id = 'admin'"):
            found.client("admin", "*")
        found.admin = found.with_token(found.token("admin"))
        yield found
