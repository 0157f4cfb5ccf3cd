"""Who leads: one session of Postgres holds an advisory lock, for as long as it lives.

What the leader writes about its work it writes on that very session, so nobody who has lost the lock can write it.

A session outlives its process if the process is paused or its network is gone. A leader speaks on its session all the
time; one that has been silent is taken for dead, and its session is ended by whoever wants to lead. It needs no clock
but Postgres's own. Only sessions of the same role can be seen and ended so.
"""

from typing import Final

from mergus.ducklake.connect import Conn

# Seconds between two words of a leader, and between two attempts of those who would like to be one.
BEAT: Final = 0.5
SILENCE: Final = 2.0

_KEY: Final = "hashtextextended('mergus listener ' || current_schema(), 0)"

TRY: Final = f"SELECT pg_try_advisory_lock({_KEY})"

# In the lock table a number of 64 bits is two of 32.
_HOLDER: Final = f"""
    SELECT pid FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32 | objid::bigint) = {_KEY}
"""
IS_LED: Final = f"SELECT EXISTS ({_HOLDER})"

# Postgres may be slow, and that is not the leader's fault: only one for whose client Postgres waits is silent.
DEPOSE: Final = f"""
    SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid IN ({_HOLDER}) AND usename = current_user AND wait_event_type = 'Client'
      AND state_change < clock_timestamp() - make_interval(secs => %(silence)s)
"""


async def try_to_lead(conn: Conn) -> bool:
    """Whether this session leads from now on, until it ends. Call it once."""
    row = await (await conn.execute(TRY)).fetchone()
    return row is not None and bool(row[0])


async def is_led(conn: Conn) -> bool:
    row = await (await conn.execute(IS_LED)).fetchone()
    return row is not None and bool(row[0])


async def depose_the_silent(conn: Conn) -> int | None:
    """Ends the session of a leader that says nothing; its process id in Postgres."""
    row = await (await conn.execute(DEPOSE, {"silence": SILENCE})).fetchone()
    return None if row is None else int(row[0])
