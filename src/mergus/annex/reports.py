"""Rows of `table_report`: what clients told of their scans and commits, the newest of each table.

Nothing depends on them, so nobody waits for the disk; and each that comes takes a few along that are too old or too
many, so that they do not pile up and no job has to run.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mergus.ducklake.connect import Conn

# All parts see the state before: what was too many without the new one. Rows that somebody else is deleting are left
# to them.
ADD: Final = """
    WITH too_old AS (
        SELECT report_id FROM table_report WHERE made_at < now() - make_interval(secs => %(seconds)s)
        ORDER BY made_at LIMIT 20
    ), too_many AS (
        SELECT report_id FROM table_report WHERE table_id = %(table_id)s
        ORDER BY report_id DESC OFFSET greatest(%(most)s - 1, 0) LIMIT 20
    ), gone AS (
        DELETE FROM table_report WHERE report_id IN (
            SELECT report_id FROM table_report
            WHERE report_id IN (SELECT report_id FROM too_old UNION ALL SELECT report_id FROM too_many)
            FOR UPDATE SKIP LOCKED)
    )
    INSERT INTO table_report (table_id, kind, principal, user_agent, content)
    SELECT %(table_id)s, %(kind)s, %(principal)s, %(user_agent)s, %(content)s
    WHERE (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
"""
LIST: Final = """
    SELECT report_id, kind, principal, user_agent, content, made_at FROM table_report
    WHERE table_id = %(table_id)s AND made_at >= now() - make_interval(secs => %(seconds)s)
      AND (%(before)s::bigint IS NULL OR report_id < %(before)s)
    ORDER BY report_id DESC LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Report:
    report_id: int
    kind: str
    principal: str
    user_agent: str
    content: str
    made_at: datetime


async def add(
    conn: Conn, table_id: int, kind: str, principal: str, user_agent: str, content: str, *, seconds: float, most: int
) -> None:
    """One statement; `most` is how many of a table there may be, this one included."""
    row = {
        "table_id": table_id,
        "kind": kind,
        "principal": principal,
        "user_agent": user_agent,
        "content": content,
        "seconds": seconds,
        "most": most,
    }
    await conn.execute(ADD, row)


async def newest(conn: Conn, table_id: int, before: int | None, limit: int | None, seconds: float) -> list[Report]:
    found = await conn.execute(LIST, {"table_id": table_id, "before": before, "limit": limit, "seconds": seconds})
    return [Report(*row) for row in await found.fetchall()]
