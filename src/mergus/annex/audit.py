"""Rows of `audit`: who changed what, was refused, or was handed something for objects."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mergus.ducklake.connect import Conn

ADD: Final = """
    INSERT INTO audit (made_at, principal, operation, resource, status, request_id, address, detail)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
"""
# More than come in at a time, so that they do not pile up; few enough to cost little.
FORGET_OLD: Final = """
    DELETE FROM audit WHERE audit_id IN (
        SELECT audit_id FROM audit WHERE made_at < now() - make_interval(secs => %(seconds)s)
        ORDER BY made_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
"""
NEWEST: Final = """
    SELECT audit_id, made_at, principal, operation, resource, status, request_id, address, detail FROM audit
    WHERE (%(before)s::bigint IS NULL OR audit_id < %(before)s)
      AND (%(principal)s::text IS NULL OR principal = %(principal)s)
      AND (%(operation)s::text IS NULL OR operation = %(operation)s)
      AND (%(since)s::timestamptz IS NULL OR made_at >= %(since)s)
      AND made_at >= now() - make_interval(secs => %(seconds)s)
    ORDER BY audit_id DESC LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """`resource` are things that it was about, as text."""

    made_at: datetime
    principal: str
    operation: str
    resource: list[str]
    status: int
    request_id: str
    address: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    principal: str | None = None
    operation: str | None = None
    since: datetime | None = None


async def add(conn: Conn, entries: Sequence[Entry]) -> None:
    rows = [
        (e.made_at, e.principal, e.operation, e.resource, e.status, e.request_id, e.address, e.detail) for e in entries
    ]
    async with conn.cursor() as cursor:
        await cursor.executemany(ADD, rows)


async def forget_old(conn: Conn, seconds: float, limit: int) -> None:
    await conn.execute(FORGET_OLD, {"seconds": seconds, "limit": limit})


async def newest(
    conn: Conn, asked: Asked, before: int | None, limit: int | None, seconds: float
) -> list[tuple[int, Entry]]:
    """With their numbers; those that are about to be forgotten are not among them."""
    key = {"principal": asked.principal, "operation": asked.operation, "since": asked.since}
    found = await conn.execute(NEWEST, {**key, "before": before, "limit": limit, "seconds": seconds})
    return [(row[0], Entry(*row[1:])) for row in await found.fetchall()]
