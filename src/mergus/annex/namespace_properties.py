"""Properties of namespaces, by schema id."""

from typing import Final

from mergus.ducklake.connect import Conn

READ: Final = "SELECT key, value FROM namespace_property WHERE schema_id = %(id)s ORDER BY key"
UPSERT: Final = """
    INSERT INTO namespace_property (schema_id, key, value)
    SELECT %(id)s, * FROM unnest(%(keys)s::text[], %(values)s::text[])
    ON CONFLICT (schema_id, key) DO UPDATE SET value = excluded.value
"""
DELETE: Final = """
    DELETE FROM namespace_property WHERE schema_id = %(id)s AND key = ANY(%(keys)s::text[]) RETURNING key
"""
DELETE_ALL: Final = "DELETE FROM namespace_property WHERE schema_id = %(id)s"


async def read(conn: Conn, schema_id: int) -> dict[str, str]:
    found = await conn.execute(READ, {"id": schema_id})
    return {row[0]: row[1] for row in await found.fetchall()}


async def update(conn: Conn, schema_id: int, properties: dict[str, str]) -> None:
    if properties:
        values = {"id": schema_id, "keys": list(properties), "values": list(properties.values())}
        await conn.execute(UPSERT, values)


async def remove(conn: Conn, schema_id: int, keys: list[str]) -> set[str]:
    """The keys that were there."""
    found = await conn.execute(DELETE, {"id": schema_id, "keys": keys})
    return {row[0] for row in await found.fetchall()}


async def remove_all(conn: Conn, schema_id: int) -> None:
    await conn.execute(DELETE_ALL, {"id": schema_id})
