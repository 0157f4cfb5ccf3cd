"""Clients and grants, from the command line: for those who hold the lake's Postgres, and so may do everything.

What changes is in the audit log in the same transaction, as are changes that come over the wire.
"""

import getpass
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from mergus.access.clients import check_name, hash_secret, new_secret
from mergus.access.registry import place_of
from mergus.access.scopes import grant_text, parse_grant
from mergus.annex import audit, clients, grants
from mergus.annex.audit import Entry
from mergus.annex.clients import Client
from mergus.catalog.grants import check_grantee, grant_json
from mergus.config import Settings
from mergus.ducklake.connect import Conn, connection, open_pool
from mergus.errors import AlreadyExists, BadRequest, NotFound


@asynccontextmanager
async def _changing(settings: Settings, operation: str, *about: str) -> AsyncGenerator[tuple[Conn, str]]:
    """A transaction, and who makes it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    principal = f"command line:{user}"
    async with open_pool(settings) as pool, connection(pool) as conn, conn.transaction():
        yield conn, principal
        if settings.audit_seconds:
            entry = Entry(datetime.now(UTC), principal, operation, list(about), 200, "", None, None)
            await audit.add(conn, [entry])


async def add_client(settings: Settings, name: str, texts: Sequence[str]) -> str:
    """Its secret, which nobody can be told again."""
    try:
        check_name(name)
        wanted = [parse_grant(text) for text in texts]
    except ValueError as e:
        raise BadRequest(str(e)) from None
    secret = new_secret()
    async with _changing(settings, "addClient", f"client:{name}", *map(grant_text, wanted)) as (conn, who):
        if not await clients.add(conn, name, hash_secret(secret)):
            raise AlreadyExists(f"Client already exists: {name}")
        for grant in wanted:
            await grants.add(conn, f"client:{name}", place_of(grant.resource), sorted(grant.privileges), who)
    return secret


async def rotate_client(settings: Settings, name: str, keep_seconds: int) -> str:
    secret = new_secret()
    async with _changing(settings, "rotateClient", f"client:{name}") as (conn, _):
        if not await clients.rotate(conn, name, hash_secret(secret), keep_seconds):
            raise NotFound(f"Client does not exist: {name}")
    return secret


async def remove_client(settings: Settings, name: str) -> None:
    """With its grants: another client of the same name is another."""
    async with _changing(settings, "removeClient", f"client:{name}") as (conn, _):
        if not await clients.remove(conn, name):
            raise NotFound(f"Client does not exist: {name}")
        await grants.take_all(conn, f"client:{name}")


async def list_clients(settings: Settings) -> list[Client]:
    async with open_pool(settings) as pool, connection(pool) as conn:
        return await clients.read(conn)


async def change_grants(settings: Settings, grantee: str, texts: Sequence[str], *, take: bool) -> None:
    try:
        to = check_grantee(grantee)
        wanted = [parse_grant(text) for text in texts]
    except ValueError as e:
        raise BadRequest(str(e)) from None
    operation = "removeGrant" if take else "addGrant"
    async with _changing(settings, operation, to, *map(grant_text, wanted)) as (conn, who):
        for grant in wanted:
            place, privileges = place_of(grant.resource), sorted(grant.privileges)
            if not take:
                await grants.add(conn, to, place, privileges, who)
            elif not await grants.take(conn, to, place, privileges):
                raise NotFound(f"{to} has no such grant: {grant_text(grant)}")


async def list_grants(settings: Settings, grantee: str | None) -> list[dict[str, Any]]:
    async with open_pool(settings) as pool, connection(pool) as conn:
        return [grant_json(row) for row in await grants.read(conn, grantee)]
