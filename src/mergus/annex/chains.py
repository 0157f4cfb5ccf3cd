"""Rows of `chain`: which manifest list shows a table at a snapshot.

A cache: whoever finds no row, or one that no longer holds, makes the chain again from DuckLake's rows. Two processes
that make the same one write the same row, or one that is as good.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg.types.json import Jsonb

from mergus.ducklake.connect import Conn

READ: Final = """
    SELECT snapshot_id, snapshot_time, as_of, file_horizon, layout, manifest_list, counts
    FROM chain
    WHERE table_id = %(table_id)s AND format_version = %(format_version)s AND snapshot_id = ANY(%(snapshot_ids)s)
"""

WRITE: Final = """
    INSERT INTO chain (table_id, format_version, snapshot_id, snapshot_time, as_of, file_horizon, layout,
                       manifest_list, counts)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (table_id, format_version, snapshot_id) DO UPDATE
    SET snapshot_time = excluded.snapshot_time, as_of = excluded.as_of, file_horizon = excluded.file_horizon,
        layout = excluded.layout, manifest_list = excluded.manifest_list, counts = excluded.counts, made_at = now()
    WHERE chain.as_of <= excluded.as_of OR chain.snapshot_time <> excluded.snapshot_time
"""


FORGET: Final = "DELETE FROM chain WHERE table_id = %(table_id)s"
FORGET_ALL: Final = "DELETE FROM chain"


@dataclass(frozen=True, slots=True)
class Chain:
    snapshot_id: int
    snapshot_time: datetime
    # the newest snapshot when the rows were read, and the first file id that was free then
    as_of: int
    file_horizon: int
    layout: str
    manifest_list: str
    # what the snapshot's summary says, and what it needs for row ids
    counts: dict[str, Any]


async def read(conn: Conn, table_id: int, format_version: int, snapshot_ids: Sequence[int]) -> list[Chain]:
    key = {"table_id": table_id, "format_version": format_version, "snapshot_ids": list(snapshot_ids)}
    found = await conn.execute(READ, key)
    return [Chain(*row) for row in await found.fetchall()]


async def write(conn: Conn, table_id: int, format_version: int, chains: Sequence[Chain]) -> None:
    rows = [
        (table_id, format_version, c.snapshot_id, c.snapshot_time, c.as_of, c.file_horizon, c.layout, c.manifest_list)
        for c in chains
    ]
    async with conn.cursor() as cursor:
        await cursor.executemany(WRITE, [(*row, Jsonb(c.counts)) for row, c in zip(rows, chains, strict=True)])


async def forget(conn: Conn, table_id: int) -> None:
    """What its chains name cannot be trusted: each is made again."""
    await conn.execute(FORGET, {"table_id": table_id})
