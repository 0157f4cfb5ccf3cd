"""Rows of `job`: work that somebody asked for, and that any process may do.

Who does one holds a session lock on its number, and says how it goes on that very session: when the session ends,
however it ends, the lock is free and another goes on. So a job needs no lease and no clock, and nobody who has lost it
can say anything about it any more. What is asked for twice while it is waiting or being done is one job.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from psycopg.types.json import Jsonb

from mergus.config import Settings
from mergus.ducklake.connect import Conn

Kind = Literal["compact", "expire", "sweep", "orphans"]
# Of an expiry: nothing expires, and what has is removed.
FREE: Final = "free"
State = Literal["waiting", "running", "done", "failed", "cancelled"]

_COLUMNS: Final = """
    job_id, kind, schema_id, table_id, options, asked_by, asked_at, state, due_at, attempts, is_cancelled, worker,
    started_at, ended_at, progress, error
"""
_OPEN: Final = "state IN ('waiting', 'running')"
_KEY: Final = "hashtextextended('mergus job ' || current_schema(), %(job_id)s)"

ASK: Final = f"""
    WITH asked AS (
        INSERT INTO job (kind, schema_id, table_id, options, asked_by, due_at)
        VALUES (%(kind)s, %(schema_id)s, %(table_id)s, %(options)s, %(asked_by)s,
                now() + make_interval(secs => %(after)s))
        ON CONFLICT (kind, coalesce(schema_id, -1), coalesce(table_id, -1), options) WHERE {_OPEN}
        DO UPDATE SET due_at = least(job.due_at, excluded.due_at)
        RETURNING *
    ), told AS (SELECT pg_notify(current_schema() || '_job', job_id::text) FROM asked)
    SELECT {_COLUMNS} FROM asked, told
"""
# Once in so many seconds, whoever asks and however many do.
ASK_IN_TURN: Final = """
    INSERT INTO job (kind, options, asked_by)
    SELECT %(kind)s, %(options)s, %(asked_by)s
    WHERE pg_try_advisory_xact_lock(hashtextextended('mergus schedule ' || current_schema(), 0))
      AND NOT EXISTS (SELECT FROM job WHERE kind = %(kind)s AND schema_id IS NULL AND table_id IS NULL
                        AND asked_by = %(asked_by)s AND asked_at > now() - make_interval(secs => %(seconds)s))
    ON CONFLICT DO NOTHING
"""
NEXT: Final = f"""
    SELECT job_id FROM job WHERE {_OPEN} AND due_at <= now() AND NOT job_id = ANY(%(passed)s)
    ORDER BY due_at, job_id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
# The minute after the grace has passed, and how far away it is.
DUE_MINUTE: Final = """
    SELECT to_char(due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"'), extract(epoch FROM due - now())::float8
    FROM (SELECT date_trunc('minute', now() + make_interval(secs => %(seconds)s)) + interval '1 minute' AS due) AS d
"""
HOLD: Final = f"SELECT pg_try_advisory_lock({_KEY})"
LET_GO: Final = f"SELECT pg_advisory_unlock({_KEY})"
TAKE: Final = f"""
    UPDATE job SET state = 'running', worker = %(worker)s, started_at = coalesce(started_at, now()),
                   attempts = attempts + 1
    WHERE job_id = %(job_id)s RETURNING {_COLUMNS}
"""
SAY: Final = "UPDATE job SET progress = %(progress)s WHERE job_id = %(job_id)s RETURNING is_cancelled"
LATER: Final = """
    UPDATE job SET state = 'waiting', due_at = now() + make_interval(secs => %(seconds)s), progress = %(progress)s
    WHERE job_id = %(job_id)s
"""
END: Final = """
    UPDATE job SET state = %(state)s, ended_at = now(), progress = %(progress)s, error = %(error)s
    WHERE job_id = %(job_id)s
"""
# One that nobody does ends at once; any other when who does it looks.
CANCEL: Final = f"""
    UPDATE job SET is_cancelled = true,
                   ended_at = CASE WHEN state = 'waiting' THEN now() END,
                   state = CASE WHEN state = 'waiting' THEN 'cancelled' ELSE state END
    WHERE job_id = %(job_id)s AND {_OPEN} RETURNING {_COLUMNS}
"""
FIND: Final = f"SELECT {_COLUMNS} FROM job WHERE job_id = %(job_id)s"
LIST: Final = f"""
    SELECT {_COLUMNS} FROM job WHERE (%(before)s::bigint IS NULL OR job_id < %(before)s::bigint)
    ORDER BY job_id DESC LIMIT %(limit)s
"""
FORGET: Final = "DELETE FROM job WHERE ended_at < now() - make_interval(secs => %(seconds)s)"

# Of those that failed, what has happened within a day.
STANDING: Final = """
    SELECT count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'running'),
           count(*) FILTER (WHERE state = 'failed'),
           (SELECT error FROM job WHERE state = 'failed' ORDER BY ended_at DESC LIMIT 1)
    FROM job WHERE state IN ('waiting', 'running') OR (state = 'failed' AND ended_at > now() - interval '1 day')
"""

NOTE_TABLE: Final = """
    INSERT INTO job_table (job_id, table_id, result) VALUES (%(job_id)s, %(table_id)s, %(result)s)
    ON CONFLICT (job_id, table_id) DO UPDATE SET result = excluded.result
"""
READ_TABLES: Final = """
    SELECT table_id, result FROM job_table WHERE job_id = %(job_id)s ORDER BY table_id LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Job:
    id: int
    kind: Kind
    schema_id: int | None
    table_id: int | None
    options: dict[str, Any]
    asked_by: str
    asked_at: datetime
    state: State
    due_at: datetime
    attempts: int
    is_cancelled: bool
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    progress: dict[str, Any]
    error: str | None

    @property
    def is_open(self) -> bool:
        return self.state in {"waiting", "running"}


def channel(settings: Settings) -> str:
    """The NOTIFY channel on which the number of each job is told that is asked for."""
    return f"{settings.annex_schema}_job"


async def ask(
    conn: Conn,
    kind: Kind,
    schema_id: int | None,
    table_id: int | None,
    options: dict[str, Any],
    asked_by: str,
    after: float = 0,
) -> Job:
    """The one that is waiting or being done, if the same was asked for before. It is due after so many seconds."""
    key = {"kind": kind, "schema_id": schema_id, "table_id": table_id, "options": Jsonb(options), "asked_by": asked_by}
    row = await (await conn.execute(ASK, {**key, "after": after})).fetchone()
    assert row is not None  # noqa: S101  (inserted, or there already)
    return Job(*row)


async def ask_to_free(conn: Conn, asked_by: str, grace_seconds: float) -> None:
    """Removes files that nothing needs from now on, when their grace is over. Those who ask within a minute get one
    job."""
    row = await (await conn.execute(DUE_MINUTE, {"seconds": grace_seconds})).fetchone()
    assert row is not None  # noqa: S101  (an expression)
    due, seconds = row
    await ask(conn, "expire", None, None, {FREE: due}, asked_by, after=seconds)


async def ask_in_turn(conn: Conn, kind: Kind, options: dict[str, Any], asked_by: str, seconds: float) -> None:
    """About the whole lake, unless the same one has asked within so many seconds."""
    key = {"kind": kind, "options": Jsonb(options), "asked_by": asked_by, "seconds": seconds}
    await conn.execute(ASK_IN_TURN, key)


async def take(conn: Conn, worker: str) -> Job | None:
    """The next that nobody does. It is this session's then, until it lets go or ends."""
    passed: list[int] = []
    while True:
        async with conn.transaction():
            row = await (await conn.execute(NEXT, {"passed": passed})).fetchone()
            if row is None:
                return None
            key = {"job_id": row[0], "worker": worker}
            held = await (await conn.execute(HOLD, key)).fetchone()
            if held is not None and held[0]:
                taken = await (await conn.execute(TAKE, key)).fetchone()
                assert taken is not None  # noqa: S101  (its row is locked)
                return Job(*taken)
        passed.append(row[0])


async def say(conn: Conn, job_id: int, progress: dict[str, Any]) -> bool:
    """How far it is; whether somebody has cancelled it."""
    row = await (await conn.execute(SAY, {"job_id": job_id, "progress": Jsonb(progress)})).fetchone()
    return row is None or bool(row[0])


async def put_off(conn: Conn, job_id: int, progress: dict[str, Any], seconds: float) -> None:
    await conn.execute(LATER, {"job_id": job_id, "progress": Jsonb(progress), "seconds": seconds})
    await conn.execute(LET_GO, {"job_id": job_id})


async def end(conn: Conn, job_id: int, state: State, progress: dict[str, Any], error: str | None = None) -> None:
    await conn.execute(END, {"job_id": job_id, "state": state, "progress": Jsonb(progress), "error": error})
    await conn.execute(LET_GO, {"job_id": job_id})


async def cancel(conn: Conn, job_id: int) -> Job | None:
    """None if it has ended, or never was."""
    row = await (await conn.execute(CANCEL, {"job_id": job_id})).fetchone()
    return None if row is None else Job(*row)


async def find(conn: Conn, job_id: int) -> Job | None:
    row = await (await conn.execute(FIND, {"job_id": job_id})).fetchone()
    return None if row is None else Job(*row)


async def read(conn: Conn, before: int | None = None, limit: int | None = None) -> list[Job]:
    """The newest first."""
    found = await conn.execute(LIST, {"before": before, "limit": limit})
    return [Job(*row) for row in await found.fetchall()]


async def standing(conn: Conn) -> dict[str, Any]:
    """How many wait, run, and have failed within a day, and what the last one that failed said."""
    row = await (await conn.execute(STANDING)).fetchone()
    return dict(zip(("waiting", "running", "failed", "last-error"), row or (0, 0, 0, None), strict=True))


async def forget(conn: Conn, seconds: float) -> None:
    """Those that ended longer ago."""
    await conn.execute(FORGET, {"seconds": seconds})


async def note_table(conn: Conn, job_id: int, table_id: int, result: dict[str, Any]) -> None:
    await conn.execute(NOTE_TABLE, {"job_id": job_id, "table_id": table_id, "result": Jsonb(result)})


async def tables(conn: Conn, job_id: int, limit: int | None = None) -> dict[int, dict[str, Any]]:
    """What it did to which."""
    found = await conn.execute(READ_TABLES, {"job_id": job_id, "limit": limit})
    return dict(await found.fetchall())  # pyright: ignore[reportArgumentType,reportCallIssue]
