"""Rows of `client`: clients of OAuth2, with hashes of their secrets. Every change raises `catalog.access_version`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mergus.ducklake.connect import Conn

_READ: Final = """
    SELECT client_id, secret_hash, CASE WHEN previous_until > now() THEN previous_hash END, generation, created_at,
           rotated_at, CASE WHEN previous_until > now() THEN previous_until END
    FROM client
"""
FIND: Final = f"{_READ} WHERE client_id = %(client_id)s"
LIST: Final = f'{_READ} ORDER BY client_id COLLATE "C"'
ADD: Final = """
    INSERT INTO client (client_id, secret_hash) VALUES (%(client_id)s, %(hash)s) ON CONFLICT (client_id) DO NOTHING
"""
ROTATE: Final = """
    UPDATE client SET secret_hash = %(hash)s, rotated_at = now(),
        previous_hash = CASE WHEN %(seconds)s > 0 THEN secret_hash END,
        previous_until = CASE WHEN %(seconds)s > 0 THEN now() + make_interval(secs => %(seconds)s) END,
        generation = generation + CASE WHEN %(seconds)s > 0 THEN 0 ELSE 1 END
    WHERE client_id = %(client_id)s
"""
REMOVE: Final = "DELETE FROM client WHERE client_id = %(client_id)s"
SIGNING_KEY: Final = "SELECT signing_key FROM catalog"


@dataclass(frozen=True, slots=True)
class Client:
    client_id: str
    secret_hash: str
    # that of the secret before, while it is good
    previous_hash: str | None
    generation: int
    created_at: datetime
    rotated_at: datetime | None
    previous_until: datetime | None

    def __repr__(self) -> str:
        return f"Client({self.client_id!r})"


async def find(conn: Conn, client_id: str) -> Client | None:
    row = await (await conn.execute(FIND, {"client_id": client_id})).fetchone()
    return None if row is None else Client(*row)


async def read(conn: Conn) -> list[Client]:
    return [Client(*row) for row in await (await conn.execute(LIST)).fetchall()]


async def add(conn: Conn, client_id: str, secret_hash: str) -> bool:
    """False if there is one of that name."""
    return (await conn.execute(ADD, {"client_id": client_id, "hash": secret_hash})).rowcount == 1


async def rotate(conn: Conn, client_id: str, secret_hash: str, keep_seconds: int) -> bool:
    """The old secret is good for so long; with 0 it is not, and no token that was had for it. False if there is no such
    client."""
    row = {"client_id": client_id, "hash": secret_hash, "seconds": keep_seconds}
    return (await conn.execute(ROTATE, row)).rowcount == 1


async def remove(conn: Conn, client_id: str) -> bool:
    return (await conn.execute(REMOVE, {"client_id": client_id})).rowcount == 1


async def signing_key(conn: Conn) -> bytes:
    row = await (await conn.execute(SIGNING_KEY)).fetchone()
    assert row is not None  # noqa: S101  (the one row of a lake that is set up)
    return bytes(row[0])
