"""Rows of `catalog_tag`: names for snapshots of the whole lake.

DuckLake knows nothing of them. A DuckDB session may expire a snapshot that has one; what expires snapshots for us must
leave those that `protected` names alone, and see to it that no name is given meanwhile.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mergus.ducklake.connect import Conn
from mergus.errors import InTheWay

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
# Tags of tables, too, while the table is there.
PROTECTED: Final = """
    SELECT snapshot_id FROM catalog_tag
    UNION
    SELECT snapshot_id FROM table_ref r WHERE snapshot_id IS NOT NULL
      AND EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = r.table_id AND t.end_snapshot IS NULL)
"""
# Who gives a name holds the lock on commits, for which an expiry waits: neither waits for the other.
_NAMES: Final = "hashtextextended('mergus names ' || current_schema(), 0)"
HOLD_NAMES: Final = f"SELECT pg_try_advisory_lock({_NAMES})"
LET_NAMES_GO: Final = f"SELECT pg_advisory_unlock({_NAMES})"
MAY_NAME: Final = f"SELECT pg_try_advisory_xact_lock_shared({_NAMES})"


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


@asynccontextmanager
async def hold_names(conn: Conn) -> AsyncGenerator[bool]:
    """Meanwhile nobody gives a snapshot a name. False if somebody just does, or holds them already."""
    row = await (await conn.execute(HOLD_NAMES)).fetchone()
    held = row is not None and bool(row[0])
    try:
        yield held
    finally:
        if held:
            await conn.execute(LET_NAMES_GO)


async def give_name(conn: Conn) -> None:
    """Until the transaction ends no snapshot expires by us."""
    row = await (await conn.execute(MAY_NAME)).fetchone()
    if row is None or not row[0]:
        raise InTheWay("Snapshots are expiring just now; try again")


async def protected(conn: Conn) -> frozenset[int]:
    """The snapshots that must not expire."""
    return frozenset(row[0] for row in await (await conn.execute(PROTECTED)).fetchall())
