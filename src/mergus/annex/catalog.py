"""The one row that every process serving a lake shares."""

from typing import Final

from mergus.ducklake.connect import Conn
from mergus.errors import ServiceUnavailable

READ: Final = "SELECT token_key FROM catalog"
RAISE_EPOCH: Final = "UPDATE catalog SET epoch = epoch + 1"


async def read_token_key(conn: Conn) -> bytes:
    row = await (await conn.execute(READ)).fetchone()
    if row is None:
        raise ServiceUnavailable("The lake is not set up; run `mergus init`")
    return bytes(row[0])


async def raise_epoch(conn: Conn) -> None:
    """Tells every process that a table looks different though no snapshot says so."""
    await conn.execute(RAISE_EPOCH)
