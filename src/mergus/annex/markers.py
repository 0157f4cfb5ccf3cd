"""Rows of `commit_marker`: commits that changed our own tables alone. A snapshot of the lake tells of every other; of
these nothing would, if the connection breaks during COMMIT."""

from typing import Final

from mergus.ducklake.connect import Conn

NOTE: Final = "INSERT INTO commit_marker (marker) VALUES (%(marker)s)"
# Who asks does it as soon as the lock can be had, so these are long past being asked for.
FORGET_OLD: Final = "DELETE FROM commit_marker WHERE made_at < now() - interval '1 hour'"
IS_NOTED: Final = "SELECT FROM commit_marker WHERE marker = %(marker)s"


async def note(conn: Conn, marker: str) -> None:
    """Within the commit, under the lake's lock."""
    await conn.execute(FORGET_OLD)
    await conn.execute(NOTE, {"marker": marker})


async def is_noted(conn: Conn, marker: str) -> bool:
    return (await conn.execute(IS_NOTED, {"marker": marker})).rowcount > 0
