"""What we keep about a table: properties, the schemas that it has been seen with, the versions of its metadata."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mergus.config import Settings
from mergus.ducklake.connect import Conn

READ_PROPERTIES: Final = "SELECT key, value FROM table_property WHERE table_id = %(table_id)s ORDER BY key"
VALUES_OF: Final = "SELECT table_id, value FROM table_property WHERE key = %(key)s AND table_id = ANY(%(table_ids)s)"
SET_PROPERTY: Final = """
    INSERT INTO table_property (table_id, key, value) VALUES (%(table_id)s, %(key)s, %(value)s)
    ON CONFLICT (table_id, key) DO UPDATE SET value = excluded.value
"""
REMOVE_PROPERTY: Final = "DELETE FROM table_property WHERE table_id = %(table_id)s AND key = %(key)s"

READ_SCHEMAS: Final = "SELECT schema_id, fields FROM table_schema WHERE table_id = %(table_id)s ORDER BY schema_id"
# Numbered under a lock: two processes that see a new schema at once give it one number.
LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('mergus table ' || current_schema(), %(table_id)s))"
# Not waited for: one that is paused in the middle of it would hold others up.
TRY_TO_SIGN: Final = """
    SELECT pg_try_advisory_xact_lock(hashtextextended('mergus sign ' || current_schema(), %(table_id)s))
"""
ADD_SCHEMA: Final = """
    INSERT INTO table_schema (table_id, schema_id, fields)
    SELECT %(table_id)s, coalesce(max(schema_id), -1) + 1, %(fields)s FROM table_schema WHERE table_id = %(table_id)s
"""

READ_METADATA_FILES: Final = """
    SELECT version, location, updated_ms FROM metadata_file WHERE table_id = %(table_id)s
    ORDER BY version DESC LIMIT %(limit)s
"""
# Told to all processes on `made_channel`: those that are asked for the table make it ready.
ADD_METADATA_FILE: Final = """
    WITH added AS (
        INSERT INTO metadata_file (table_id, version, location, updated_ms)
        VALUES (%(table_id)s, %(version)s, %(location)s, %(updated_ms)s)
        ON CONFLICT (table_id, version) DO NOTHING
        RETURNING table_id
    )
    SELECT pg_notify(current_schema() || '_table', table_id::text) FROM added
"""


@dataclass(frozen=True, slots=True)
class MetadataFile:
    version: int
    location: str
    updated_ms: int


def made_channel(settings: Settings) -> str:
    """The NOTIFY channel on which the id of each table is told that has new metadata."""
    return f"{settings.annex_schema}_table"


async def read_properties(conn: Conn, table_id: int) -> dict[str, str]:
    found = await conn.execute(READ_PROPERTIES, {"table_id": table_id})
    return dict(await found.fetchall())  # pyright: ignore[reportArgumentType,reportCallIssue]


async def values_of(conn: Conn, key: str, table_ids: Sequence[int]) -> dict[int, str]:
    """One property of many tables, of those that have it."""
    found = await conn.execute(VALUES_OF, {"key": key, "table_ids": list(table_ids)})
    return dict(await found.fetchall())  # pyright: ignore[reportArgumentType,reportCallIssue]


async def set_property(conn: Conn, table_id: int, key: str, value: str | None) -> None:
    """None removes it."""
    query = REMOVE_PROPERTY if value is None else SET_PROPERTY
    await conn.execute(query, {"table_id": table_id, "key": key, "value": value})


async def read_schemas(conn: Conn, table_id: int) -> dict[str, int]:
    """The number of each schema that is known, by its fields."""
    found = await conn.execute(READ_SCHEMAS, {"table_id": table_id})
    return {fields: schema_id for schema_id, fields in await found.fetchall()}


async def add_schemas(conn: Conn, table_id: int, schemas: Sequence[str]) -> dict[str, int]:
    """Numbers those that have none, in this order; all that are known then."""
    async with conn.transaction():
        await conn.execute(LOCK, {"table_id": table_id})
        known = await read_schemas(conn, table_id)
        for fields in dict.fromkeys(schemas):
            if fields not in known:
                await conn.execute(ADD_SCHEMA, {"table_id": table_id, "fields": fields})
        return await read_schemas(conn, table_id)


async def try_to_sign(conn: Conn, table_id: int) -> bool:
    """Whether nobody else sets the signs to a table's metadata until this transaction ends."""
    row = await (await conn.execute(TRY_TO_SIGN, {"table_id": table_id})).fetchone()
    return row is not None and bool(row[0])


async def read_metadata_files(conn: Conn, table_id: int, limit: int) -> list[MetadataFile]:
    """Newest first."""
    found = await conn.execute(READ_METADATA_FILES, {"table_id": table_id, "limit": limit})
    return [MetadataFile(*row) for row in await found.fetchall()]


async def add_metadata_file(conn: Conn, table_id: int, file: MetadataFile) -> bool:
    """False if another process has taken the version."""
    key = {"table_id": table_id, "version": file.version, "location": file.location, "updated_ms": file.updated_ms}
    return (await conn.execute(ADD_METADATA_FILE, key)).rowcount == 1
