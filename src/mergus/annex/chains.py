"""Rows of `chain`: which manifest list shows a table at a snapshot.

A cache: whoever finds no row, or one that no longer holds, makes the chain again from DuckLake's rows. Two processes
that make the same one write the same row, or one that is as good.

Objects that no chain needs any more are deleted (maintenance/), and a chain that is being made may be about to name
them: those that its base has, and those that it has written under the name of one that is to be deleted. So a row is
written with a share of the table's turn, which who deletes has whole:

- `write` does nothing if anybody has deleted, or may be deleting, since the turn that the chain was begun with. Then
  all that was written has to be written once more while the turn is held (`hold`), where nobody deletes.
- A chain is not made from one whose grace is over: raises OutOfDate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg.types.json import Jsonb

from mergus.annex import catalog
from mergus.ducklake.connect import Conn

READ: Final = """
    SELECT snapshot_id, snapshot_time, as_of, file_horizon, layout, manifest_list, counts
    FROM chain
    WHERE table_id = %(table_id)s AND format_version = %(format_version)s AND snapshot_id = ANY(%(snapshot_ids)s)
"""

# No row says: a table that no chain has been made of.
READ_TURN: Final = """
    SELECT t.sweeps, t.sweeping, coalesce(r.times, 0)
    FROM (SELECT %(table_id)s::bigint AS table_id) AS asked
    LEFT JOIN chain_turn t USING (table_id) LEFT JOIN chain_replaced r USING (table_id)
"""
FIRST_TURN: Final = "INSERT INTO chain_turn (table_id) VALUES (%(table_id)s) ON CONFLICT DO NOTHING"
HOLD: Final = "SELECT FROM chain_turn WHERE table_id = %(table_id)s FOR SHARE"

# Of the base, a row of `chain` or one of `garbage`; one who has no base is not asked.
IS_KEPT: Final = """
    (%(base)s::text IS NULL
     OR EXISTS (SELECT FROM chain b WHERE b.table_id = %(table_id)s AND b.format_version = %(format_version)s
                                      AND b.snapshot_id = %(base_id)s AND b.manifest_list = %(base)s)
     OR EXISTS (SELECT FROM garbage g WHERE g.table_id = %(table_id)s AND g.path = %(base)s AND NOT g.doomed))
"""

# Whoever has waited for the turn looks at it as it is then.
WRITE: Final = f"""
    WITH turn AS (
        SELECT FROM chain_turn
        WHERE table_id = %(table_id)s AND (%(held)s OR (sweeps = %(sweeps)s AND NOT sweeping)) FOR SHARE
    ), base AS (
        SELECT {IS_KEPT} AS is_kept
    ), written AS (
        INSERT INTO chain (table_id, format_version, snapshot_id, snapshot_time, as_of, file_horizon, layout,
                           manifest_list, counts)
        SELECT %(table_id)s, %(format_version)s, %(snapshot_id)s, %(snapshot_time)s, %(as_of)s, %(file_horizon)s,
               %(layout)s, %(manifest_list)s, %(counts)s
        FROM turn CROSS JOIN base WHERE is_kept
        ON CONFLICT (table_id, format_version, snapshot_id) DO UPDATE
        SET snapshot_time = excluded.snapshot_time, as_of = excluded.as_of, file_horizon = excluded.file_horizon,
            layout = excluded.layout, manifest_list = excluded.manifest_list, counts = excluded.counts, made_at = now()
        WHERE chain.as_of <= excluded.as_of OR chain.snapshot_time <> excluded.snapshot_time
    )
    SELECT EXISTS (SELECT FROM turn), is_kept FROM base
"""


FORGET: Final = "DELETE FROM chain WHERE table_id = %(table_id)s"
FORGET_ALL: Final = "DELETE FROM chain"


class OutOfDate(Exception):
    """What is known of a table's chains is about some that are being deleted."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Of those who delete objects of a table and those who make chains; `replaced` is how often a chain of it gave way
    to another. Without `sweeps` there is none yet."""

    sweeps: int | None
    sweeping: bool | None
    replaced: int


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


async def read_turn(conn: Conn, table_id: int) -> Turn:
    row = await (await conn.execute(READ_TURN, {"table_id": table_id})).fetchone()
    assert row is not None  # noqa: S101  (the table that was asked for)
    return Turn(*row)


async def begin(conn: Conn, table_id: int) -> Turn:
    """Of a table that has none yet."""
    await conn.execute(FIRST_TURN, {"table_id": table_id})
    return await read_turn(conn, table_id)


async def hold(conn: Conn, table_id: int) -> None:
    """Nobody deletes objects of the table until this transaction ends."""
    await conn.execute(HOLD, {"table_id": table_id})


async def write(
    conn: Conn, table_id: int, format_version: int, chain: Chain, base: Chain | None, turn: Turn | None
) -> bool:
    """False if it has to be done while the turn is held; with None it is. Raises OutOfDate."""
    key: dict[str, Any] = {
        "table_id": table_id,
        "format_version": format_version,
        "snapshot_id": chain.snapshot_id,
        "snapshot_time": chain.snapshot_time,
        "as_of": chain.as_of,
        "file_horizon": chain.file_horizon,
        "layout": chain.layout,
        "manifest_list": chain.manifest_list,
        "counts": Jsonb(chain.counts),
        "base": None if base is None else base.manifest_list,
        "base_id": None if base is None else base.snapshot_id,
        "held": turn is None,
        # one that began while somebody deleted is never the same
        "sweeps": -1 if turn is None or turn.sweeping else turn.sweeps,
    }
    row = await (await conn.execute(WRITE, key)).fetchone()
    assert row is not None  # noqa: S101  (of the base, if of nothing else)
    has_turn, is_kept = row
    if has_turn and not is_kept:
        raise OutOfDate(f"the chain of snapshot {chain.snapshot_id} was made from one that is being deleted")
    return has_turn


async def forget(conn: Conn, table_id: int) -> None:
    """What its chains name cannot be trusted: each is made again, and no process shows what was made of them."""
    async with conn.transaction():
        if (await conn.execute(FORGET, {"table_id": table_id})).rowcount:
            await catalog.raise_epoch(conn)
