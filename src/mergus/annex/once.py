"""Commits that happen once: `mergus.once` in a snapshot's summary is a key that a table takes one commit of.

A writer that may run again (after a kill, or beside itself) names what it writes, and need not find out whether it has
written it: the row is inserted in the commit's own transaction, so the second one is refused whatever comes between.
"""

from typing import Final

from mergus.ducklake.connect import Conn
from mergus.errors import BadRequest

PROPERTY: Final = "mergus.once"
LONGEST: Final = 512

TAKE: Final = """
    INSERT INTO committed_once (table_id, key, snapshot_id) VALUES (%(table_id)s, %(key)s, %(snapshot_id)s)
    ON CONFLICT DO NOTHING
"""
TAKEN: Final = "SELECT snapshot_id FROM committed_once WHERE table_id = %(table_id)s AND key = %(key)s"


async def take(conn: Conn, table_id: int, key: str, snapshot_id: int) -> None:
    if not 0 < len(key) <= LONGEST:
        raise BadRequest(f"{PROPERTY} has 1 to {LONGEST} characters, this one has {len(key)}")
    asked = {"table_id": table_id, "key": key, "snapshot_id": snapshot_id}
    if (await conn.execute(TAKE, asked)).rowcount:
        return
    row = await (await conn.execute(TAKEN, asked)).fetchone()
    raise BadRequest(f"{PROPERTY}: {key} is in the table already, committed as snapshot {row[0] if row else 'unknown'}")
