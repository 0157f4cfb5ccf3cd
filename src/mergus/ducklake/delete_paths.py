"""Paths of delete files, by the directory that they are in: finding them, and saying that they are elsewhere."""

from collections.abc import Mapping
from typing import Final

from mergus.ducklake.commit import LOCK
from mergus.ducklake.connect import Conn

# Of every snapshot: who travels in time reads them as well. `after` is the last that was seen.
FIND: Final = """
    SELECT DISTINCT path COLLATE "C" AS path FROM ducklake_delete_file
    WHERE NOT path_is_relative AND starts_with(path, %(directory)s) AND path ~ %(pattern)s
      AND path COLLATE "C" > %(after)s
    ORDER BY 1 LIMIT %(limit)s
"""
MOVE: Final = """
    UPDATE ducklake_delete_file f SET path = moved.target
    FROM unnest(%(paths)s::text[], %(targets)s::text[]) AS moved(path, target)
    WHERE f.path = moved.path AND NOT f.path_is_relative
"""


async def find(conn: Conn, directory: str, pattern: str, after: str, limit: int) -> list[str]:
    key = {"directory": directory, "pattern": pattern, "after": after, "limit": limit}
    return [row[0] for row in await (await conn.execute(FIND, key)).fetchall()]


async def move(conn: Conn, targets: Mapping[str, str]) -> None:
    """The objects are in both places: who has read the old path goes on with that. Under the lock of the lake, so that
    no writer replaces a delete file meanwhile."""
    async with conn.transaction():
        await conn.execute(LOCK, prepare=False)
        await conn.execute(MOVE, {"paths": list(targets), "targets": list(targets.values())})
