"""Rows of `access_grant`: who may do what. Every change raises `catalog.access_version` (a trigger)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mergus.ducklake.connect import Conn

OF: Final = "SELECT namespace, name, privileges FROM access_grant WHERE grantee = ANY(%(grantees)s)"
ADD: Final = """
    INSERT INTO access_grant AS known (grantee, namespace, name, privileges, granted_by)
    VALUES (%(grantee)s, %(namespace)s, %(name)s, %(privileges)s, %(granted_by)s)
    ON CONFLICT (grantee, namespace, name) DO UPDATE SET
        privileges = ARRAY(SELECT DISTINCT unnest(known.privileges || excluded.privileges) ORDER BY 1),
        granted_by = excluded.granted_by, granted_at = now()
"""
TAKE: Final = """
    UPDATE access_grant
    SET privileges = ARRAY(SELECT unnest(privileges) EXCEPT SELECT unnest(%(privileges)s::text[]) ORDER BY 1)
    WHERE (grantee, namespace, name) = (%(grantee)s, %(namespace)s, %(name)s) AND privileges && %(privileges)s::text[]
"""
FORGET_EMPTY: Final = "DELETE FROM access_grant WHERE grantee = %(grantee)s AND privileges = '{}'"
TAKE_ALL: Final = "DELETE FROM access_grant WHERE grantee = %(grantee)s"
# In one order, of which a page takes a part.
LIST: Final = """
    SELECT grantee, namespace, name, privileges, granted_by, granted_at FROM access_grant
    WHERE (%(grantee)s::text IS NULL OR grantee = %(grantee)s)
      AND (%(after)s::text[] IS NULL
           OR ARRAY[grantee COLLATE "C", namespace COLLATE "C", name COLLATE "C"] > %(after)s::text[])
    ORDER BY ARRAY[grantee COLLATE "C", namespace COLLATE "C", name COLLATE "C"] LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class GrantRow:
    """Namespace and name are empty for the catalog, the name is for a namespace."""

    grantee: str
    namespace: str
    name: str
    privileges: list[str]
    granted_by: str
    granted_at: datetime


async def of(conn: Conn, grantees: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    """Namespace, name and privileges of what all these have."""
    found = await (await conn.execute(OF, {"grantees": list(grantees)})).fetchall()
    return [(row[0], row[1], row[2]) for row in found]


async def add(conn: Conn, grantee: str, place: tuple[str, str], privileges: Sequence[str], granted_by: str) -> None:
    """To what there is already."""
    row = {"grantee": grantee, "namespace": place[0], "name": place[1], "granted_by": granted_by}
    await conn.execute(ADD, {**row, "privileges": sorted(privileges)})


async def take(conn: Conn, grantee: str, place: tuple[str, str], privileges: Sequence[str]) -> bool:
    """Within a transaction. False if there was nothing to take."""
    row = {"grantee": grantee, "namespace": place[0], "name": place[1], "privileges": sorted(privileges)}
    taken = (await conn.execute(TAKE, row)).rowcount > 0
    await conn.execute(FORGET_EMPTY, {"grantee": grantee})
    return taken


async def take_all(conn: Conn, grantee: str) -> int:
    return (await conn.execute(TAKE_ALL, {"grantee": grantee})).rowcount


async def read(
    conn: Conn, grantee: str | None = None, after: Sequence[str] | None = None, limit: int | None = None
) -> list[GrantRow]:
    key = {"grantee": grantee, "after": None if after is None else list(after), "limit": limit}
    return [GrantRow(*row) for row in await (await conn.execute(LIST, key)).fetchall()]
