"""Rows of `staged_table`: tables that a client was promised (stage-create). Nobody sees one until it is committed."""

from typing import Final
from uuid import UUID

from mergus.ducklake.connect import Conn

STAGE: Final = """
    INSERT INTO staged_table (table_uuid, schema_name, table_name, location)
    VALUES (%(uuid)s, %(schema_name)s, %(table_name)s, %(location)s)
"""
# What nobody came back for goes with the next that is staged.
FORGET_OLD: Final = "DELETE FROM staged_table WHERE staged_at < now() - make_interval(secs => %(seconds)s)"
FORGET: Final = "DELETE FROM staged_table WHERE table_uuid = %(uuid)s"
FIND: Final = """
    SELECT location FROM staged_table
    WHERE table_uuid = %(uuid)s AND schema_name = %(schema_name)s AND table_name = %(table_name)s
      AND staged_at >= now() - make_interval(secs => %(seconds)s)
"""
IS_PROMISED: Final = """
    SELECT FROM staged_table WHERE schema_name = %(schema_name)s AND table_name = %(table_name)s
      AND staged_at >= now() - make_interval(secs => %(seconds)s) LIMIT 1
"""


async def stage(conn: Conn, uuid: UUID, schema_name: str, table_name: str, location: str, seconds: float) -> None:
    await conn.execute(FORGET_OLD, {"seconds": seconds})
    key = {"uuid": uuid, "schema_name": schema_name, "table_name": table_name, "location": location}
    await conn.execute(STAGE, key)


async def find(conn: Conn, uuid: UUID, schema_name: str, table_name: str, seconds: float) -> str | None:
    """The location that the client was promised; None if it was none, or too long ago."""
    key = {"uuid": uuid, "schema_name": schema_name, "table_name": table_name, "seconds": seconds}
    row = await (await conn.execute(FIND, key)).fetchone()
    return None if row is None else row[0]


async def is_promised(conn: Conn, schema_name: str, table_name: str, seconds: float) -> bool:
    """To somebody, who may not come back."""
    if "\0" in schema_name + table_name:
        return False
    key = {"schema_name": schema_name, "table_name": table_name, "seconds": seconds}
    return await (await conn.execute(IS_PROMISED, key)).fetchone() is not None


async def forget(conn: Conn, uuid: UUID) -> None:
    await conn.execute(FORGET, {"uuid": uuid})
