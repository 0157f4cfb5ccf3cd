"""Rows that are there now, and rows that were there at a snapshot.

A statement that serves both is two texts: what it asks of rows that live is said as the partial indexes say it, and a
parameter would keep Postgres from using them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from mergus.ducklake.connect import Conn

LIVE: Final = "end_snapshot IS NULL"
VISIBLE: Final = "begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s)"


@dataclass(frozen=True, slots=True)
class Timed:
    now: LiteralString
    then: LiteralString

    def at(self, snapshot_id: int | None) -> LiteralString:
        """What to execute, with the snapshot as the parameter `at`; None for now."""
        return self.now if snapshot_id is None else self.then


def timed(statement: LiteralString) -> Timed:
    """`{visible}` in it is what it asks of rows."""
    return Timed(statement.replace("{visible}", LIVE), statement.replace("{visible}", VISIBLE))


@dataclass(frozen=True, slots=True)
class ListNames:
    """Lists what a schema has of one kind: `statement` gives names in byte order."""

    statement: Timed

    async def __call__(
        self,
        conn: Conn,
        schema_id: int,
        after: str | None,
        limit: int | None,
        at: int | None = None,
        only: Sequence[str] | None = None,
    ) -> list[str]:
        """So many after one, as they are now or were at a snapshot; with `only`, those among these."""
        among = None if only is None else list(only)
        key = {"schema_id": schema_id, "after": after, "limit": limit, "at": at, "only": among}
        return [row[0] for row in await (await conn.execute(self.statement.at(at), key)).fetchall()]
