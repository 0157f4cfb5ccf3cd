"""Rows of `catalog_tag`: names for snapshots of the whole lake.

DuckLake knows nothing of them. A DuckDB session may expire a snapshot that has one; what expires snapshots for us must
leave those that `protected` names alone, and ask for them in the transaction in which it does so.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mergus.ducklake.connect import Conn

_READ: Final = """
    SELECT t.name, t.snapshot_id, s.snapshot_time, t.message, t.created_by, t.created_at
    FROM catalog_tag t LEFT JOIN ducklake_snapshot s ON s.snapshot_id = t.snapshot_id
"""
LIST: Final = f"""
    {_READ} WHERE %(after)s::text IS NULL OR t.name COLLATE "C" > %(after)s::text
    ORDER BY t.name COLLATE "C" LIMIT %(limit)s
"""
FIND: Final = f"{_READ} WHERE t.name = %(name)s"
ADD: Final = """
    INSERT INTO catalog_tag (name, snapshot_id, message, created_by)
    VALUES (%(name)s, %(snapshot_id)s, %(message)s, %(created_by)s)
    ON CONFLICT (name) DO NOTHING
"""
REMOVE: Final = "DELETE FROM catalog_tag WHERE name = %(name)s"
PROTECTED: Final = "SELECT DISTINCT snapshot_id FROM catalog_tag"


@dataclass(frozen=True, slots=True)
class Tag:
    name: str
    snapshot_id: int
    # None if somebody has expired it
    snapshot_time: datetime | None
    message: str | None
    created_by: str
    created_at: datetime


async def read(conn: Conn, after: str | None = None, limit: int | None = None) -> list[Tag]:
    """In byte order of their names."""
    found = await conn.execute(LIST, {"after": after, "limit": limit})
    return [Tag(*row) for row in await found.fetchall()]


async def find(conn: Conn, name: str) -> Tag | None:
    row = await (await conn.execute(FIND, {"name": name})).fetchone()
    return None if row is None else Tag(*row)


async def add(conn: Conn, name: str, snapshot_id: int, message: str | None, created_by: str) -> bool:
    """False if the name is taken."""
    key = {"name": name, "snapshot_id": snapshot_id, "message": message, "created_by": created_by}
    return (await conn.execute(ADD, key)).rowcount == 1


async def remove(conn: Conn, name: str) -> bool:
    """False if there is no such tag."""
    return (await conn.execute(REMOVE, {"name": name})).rowcount == 1


async def protected(conn: Conn) -> frozenset[int]:
    """The snapshots that must not expire."""
    return frozenset(row[0] for row in await (await conn.execute(PROTECTED)).fetchall())
