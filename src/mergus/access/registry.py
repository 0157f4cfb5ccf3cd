"""What principals may do, as the lake has it now.

Grants are rows of the annex (and of a file), and are read once for each principal and version of them. The version
comes with the state of the lake that is asked for before every answer (`ducklake/snapshots.py`), so a grant that is
taken away is gone with the next request, in every process.
"""

from typing import Final

from mergus.access.clients import ClientsFile
from mergus.access.context import Principal
from mergus.access.privileges import Grant, Privilege, Resource, Rights, limited
from mergus.annex import clients, grants
from mergus.ducklake.connect import Pool, connection
from mergus.errors import NotAuthorized
from mergus.iceberg.namespace import Namespace

MOST_KNOWN: Final = 10_000
CLIENT: Final = "client:"


class Registry:
    def __init__(self, pool: Pool, file: ClientsFile) -> None:
        self._pool = pool
        self._file = file
        self._version = -1
        self._known: dict[Principal, Rights] = {}

    def known(self, principal: Principal, version: int) -> Rights | None:
        """Without asking; None if they have to be asked for."""
        return self._known.get(principal) if version == self._version else None

    async def rights(self, principal: Principal, version: int) -> Rights:
        """Raises NotAuthorized if it is a client that is not any more."""
        if (found := self.known(principal, version)) is not None:
            return found
        rights = Rights(limited(await self._grants(principal), principal.limits))
        if version > self._version:
            self._known.clear()
            self._version = version
        if version == self._version:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[principal] = rights
        return rights

    async def _grants(self, principal: Principal) -> list[Grant]:
        async with connection(self._pool) as conn:
            if principal.name.startswith(CLIENT):
                name = principal.name.removeprefix(CLIENT)
                if name not in self._file.clients:
                    client = await clients.find(conn, name)
                    if client is None or client.generation != principal.generation:
                        raise NotAuthorized("The client that this token was for is gone, or has another secret now")
            rows = await grants.of(conn, principal.grantees)
        in_file = [grant for grantee in principal.grantees for grant in self._file.grants(grantee)]
        return [*principal.granted, *in_file, *(grant_of(*row) for row in rows)]


def grant_of(namespace: str, name: str, privileges: list[str]) -> Grant:
    """Of a row."""
    of = Namespace.of_schema(namespace) if namespace else None
    return Grant(Resource(of, name or None), frozenset(map(Privilege, privileges)))


def place_of(resource: Resource) -> tuple[str, str]:
    """As a row has it."""
    return ("" if resource.namespace is None else resource.namespace.schema_name, resource.name or "")
