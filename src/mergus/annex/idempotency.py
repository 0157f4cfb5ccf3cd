"""Rows of `request_key`: requests with an Idempotency-Key that have their final answer."""

from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

import orjson

from mergus.ducklake.connect import Conn

# A key whose time is over is as good as new.
KEEP: Final = """
    INSERT INTO request_key AS known (key, operation, principal, payload, resources, status, body, table_id)
    VALUES (%(key)s, %(operation)s, %(principal)s, %(payload)s, %(resources)s, %(status)s, %(body)s, %(table_id)s)
    ON CONFLICT (key) DO UPDATE
    SET (operation, principal, payload, resources, status, body, table_id, made_at) =
        (excluded.operation, excluded.principal, excluded.payload, excluded.resources, excluded.status, excluded.body,
         excluded.table_id, excluded.made_at)
    WHERE known.made_at < now() - make_interval(secs => %(seconds)s)
"""
FIND: Final = """
    SELECT operation, principal, payload, resources, status, body, table_id FROM request_key
    WHERE key = %(key)s AND made_at >= now() - make_interval(secs => %(seconds)s)
"""
# Nothing is lost if this is: the body would be made again. So nobody waits for the disk.
FILL: Final = """
    UPDATE request_key SET body = %(body)s
    WHERE key = %(key)s AND body IS NULL AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
"""
# More than come in at a time, so that they do not pile up; few enough to cost nothing.
FORGET_OLD: Final = """
    DELETE FROM request_key
    WHERE (SELECT set_config('synchronous_commit', 'off', true)) = 'off' AND key IN (
        SELECT key FROM request_key WHERE made_at < now() - make_interval(secs => %(seconds)s)
        ORDER BY made_at LIMIT 20 FOR UPDATE SKIP LOCKED)
"""


@dataclass(frozen=True, slots=True)
class Answered:
    """`resources` are what was passed at the gate, by which privileges."""

    operation: str
    principal: str
    payload: bytes
    resources: list[dict[str, Any]]
    status: int
    body: bytes | None
    table_id: int | None


async def keep(conn: Conn, key: UUID, answered: Answered, seconds: float) -> bool:
    """Whether this is the key's answer from now on; False if it has one. Waits for a transaction that is about to give
    it one."""
    row = {**asdict(answered), "key": key, "seconds": seconds, "resources": orjson.dumps(answered.resources).decode()}
    return (await conn.execute(KEEP, row)).rowcount > 0


async def find(conn: Conn, key: UUID, seconds: float) -> Answered | None:
    row = await (await conn.execute(FIND, {"key": key, "seconds": seconds})).fetchone()
    return None if row is None else Answered(*row)


async def fill(conn: Conn, key: UUID, body: bytes) -> None:
    await conn.execute(FILL, {"key": key, "body": body})


async def forget_old(conn: Conn, seconds: float) -> None:
    await conn.execute(FORGET_OLD, {"seconds": seconds})
