"""Rows of `listener` and `listener_failure`: how far everything is on storage, and what is not.

Written on the session that leads, and on no other (see `leadership`).
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from psycopg.types.json import Jsonb

from mergus.annex import leadership
from mergus.ducklake.connect import Conn
from mergus.ducklake.snapshots import Head

READ_DONE: Final = """
    SELECT done_id, done_time, done_epoch FROM listener WHERE done_id IS NOT NULL AND done_epoch IS NOT NULL
"""
LEAD: Final = "UPDATE listener SET leader = %(name)s, leader_since = now(), reported_at = now()"
REPORT: Final = """
    UPDATE listener SET (done_id, done_time) = (
        SELECT snapshot_id, snapshot_time FROM ducklake_snapshot
        WHERE snapshot_id <= %(upto)s ORDER BY snapshot_id DESC LIMIT 1
    ), done_epoch = %(epoch)s, report = %(report)s, reported_at = now()
"""
# whoever leads next looks at every table
FORGET_DONE: Final = "UPDATE listener SET (done_id, done_time, done_epoch) = (NULL, NULL, NULL)"

READ_FAILURES: Final = "SELECT table_id, kind, message, attempts FROM listener_failure ORDER BY table_id"
ADD_FAILURE: Final = """
    INSERT INTO listener_failure (table_id, kind, message, attempts)
    VALUES (%(table_id)s, %(kind)s, %(message)s, %(attempts)s)
    ON CONFLICT (table_id) DO UPDATE
    SET kind = excluded.kind, message = excluded.message, attempts = excluded.attempts, tried_at = now()
"""
REMOVE_FAILURES: Final = "DELETE FROM listener_failure WHERE table_id = ANY(%(table_ids)s)"

STATUS: Final = """
    SELECT l.done_id, l.done_epoch, l.leader, l.leader_since, l.report, l.reported_at, head.snapshot_id, c.epoch,
           (SELECT count(*) FROM ducklake_snapshot WHERE snapshot_id > coalesce(l.done_id, -1)),
           (SELECT extract(epoch FROM clock_timestamp() - min(snapshot_time))::float8
            FROM ducklake_snapshot WHERE snapshot_id > coalesce(l.done_id, -1)),
           EXISTS (SELECT FROM ducklake_snapshot WHERE snapshot_id = l.done_id AND snapshot_time = l.done_time)
    FROM listener l, catalog c, (SELECT max(snapshot_id) AS snapshot_id FROM ducklake_snapshot) AS head
"""
STATUS_FAILURES: Final = """
    SELECT f.table_id, s.schema_name, t.table_name, f.kind, f.message, f.attempts, f.since, f.tried_at
    FROM listener_failure f
    LEFT JOIN ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
    LEFT JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
    ORDER BY f.since, f.table_id LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Failure:
    table_id: int
    kind: str
    message: str
    attempts: int


@dataclass(frozen=True, slots=True)
class FailingTable:
    """A failure with the name of its table, if that is still there."""

    table_id: int
    schema_name: str | None
    table_name: str | None
    kind: str
    message: str
    attempts: int
    since: datetime
    tried_at: datetime


@dataclass(frozen=True, slots=True)
class Status:
    done_id: int | None
    done_epoch: int | None
    leader: str | None
    leader_since: datetime | None
    report: dict[str, Any] | None
    reported_at: datetime | None
    head_id: int
    epoch: int
    snapshots_behind: int
    oldest_seconds: float | None
    # whether the snapshot that everything is done to is one of the lake's still
    is_known: bool
    # the row may name a leader that is gone
    is_led: bool
    failing: Sequence[FailingTable]


async def read_done(conn: Conn) -> Head | None:
    row = await (await conn.execute(READ_DONE)).fetchone()
    return None if row is None else Head(*row)


async def read_failures(conn: Conn) -> list[Failure]:
    return [Failure(*row) for row in await (await conn.execute(READ_FAILURES)).fetchall()]


async def lead(conn: Conn, name: str) -> None:
    await conn.execute(LEAD, {"name": name})


async def forget_done(conn: Conn) -> None:
    """Nothing is known to be on storage: the lake is not the one that it was."""
    await conn.execute(FORGET_DONE)


async def report(
    conn: Conn,
    upto: int,
    epoch: int,
    report: dict[str, Any],
    failed: Collection[Failure],
    cured: Collection[int],
) -> None:
    """All is done up to this snapshot and this epoch. At once with what failed: no leader's word goes past a table that
    failed before that is written down."""
    async with conn.transaction():
        for failure in failed:
            await conn.execute(ADD_FAILURE, asdict(failure))
        if cured:
            await conn.execute(REMOVE_FAILURES, {"table_ids": list(cured)})
        await conn.execute(REPORT, {"upto": upto, "epoch": epoch, "report": Jsonb(report)})


async def status(conn: Conn, limit: int) -> Status:
    """Call inside a REPEATABLE READ transaction."""
    row = await (await conn.execute(STATUS)).fetchone()
    assert row is not None  # noqa: S101  (both tables have exactly one row)
    failing = await (await conn.execute(STATUS_FAILURES, {"limit": limit})).fetchall()
    return Status(*row, is_led=await leadership.is_led(conn), failing=[FailingTable(*found) for found in failing])
