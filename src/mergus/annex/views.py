"""Rows of `iceberg_view`: what a view is beyond the text that DuckDB reads, and views that DuckDB cannot read at all.

The latter have their names here, and DuckDB does not know: it may make a table or a view of the same name. Then that
is what the name means, and ours is hidden for as long. A row whose view DuckDB has dropped or replaced, or whose schema
is gone, means nothing, since ids and uuids do not come again; it goes with the next that is written.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from mergus.ducklake.connect import Conn

READ: Final = "SELECT metadata FROM iceberg_view WHERE view_uuid = %(uuid)s AND name IS NULL"

# Of those that are ours alone, and not hidden.
SHOWN: Final = """
    schema_id = %(schema_id)s
    AND NOT EXISTS (SELECT FROM ducklake_table t
                    WHERE t.schema_id = v.schema_id AND t.end_snapshot IS NULL
                      AND lower(t.table_name COLLATE "C") = lower(v.name COLLATE "C"))
    AND NOT EXISTS (SELECT FROM ducklake_view d
                    WHERE d.schema_id = v.schema_id AND d.end_snapshot IS NULL
                      AND lower(d.view_name COLLATE "C") = lower(v.name COLLATE "C"))
"""
LIST: Final = f"""
    SELECT name FROM iceberg_view v WHERE {SHOWN}
      AND (%(after)s::text IS NULL OR name COLLATE "C" > %(after)s::text)
      AND (%(only)s::text[] IS NULL OR name = ANY(%(only)s::text[]))
    ORDER BY name COLLATE "C" LIMIT %(limit)s
"""
FIND: Final = f"SELECT metadata FROM iceberg_view v WHERE {SHOWN} AND name = %(name)s"
FIND_CLASH: Final = f"""
    SELECT name FROM iceberg_view v WHERE {SHOWN} AND lower(name COLLATE "C") = lower(%(name)s COLLATE "C")
"""
IS_SHOWN: Final = f"""
    SELECT FROM iceberg_view v
    WHERE view_uuid = %(uuid)s AND {SHOWN.replace("%(schema_id)s", "v.schema_id")}
      AND EXISTS (SELECT FROM ducklake_schema s WHERE s.schema_id = v.schema_id AND s.end_snapshot IS NULL)
"""

WRITE: Final = """
    INSERT INTO iceberg_view (view_uuid, schema_id, name, metadata)
    VALUES (%(uuid)s, %(schema_id)s, %(name)s, %(metadata)s)
    ON CONFLICT (view_uuid) DO UPDATE
    SET schema_id = excluded.schema_id, name = excluded.name, metadata = excluded.metadata
"""
RENAME: Final = """
    UPDATE iceberg_view SET schema_id = %(schema_id)s, name = %(name)s
    WHERE view_uuid = %(uuid)s AND name IS NOT NULL
"""
FORGET: Final = "DELETE FROM iceberg_view WHERE view_uuid = %(uuid)s"
FORGET_NAME: Final = """
    DELETE FROM iceberg_view
    WHERE schema_id = %(schema_id)s AND lower(name COLLATE "C") = lower(%(name)s COLLATE "C")
      AND view_uuid <> %(uuid)s
"""
# Two, and each a plain anti-join: this is done under the lock.
FORGET_DROPPED: Final = """
    DELETE FROM iceberg_view v
    WHERE name IS NULL
      AND NOT EXISTS (SELECT FROM ducklake_view d WHERE d.view_uuid = v.view_uuid AND d.end_snapshot IS NULL)
"""
FORGET_HOMELESS: Final = """
    DELETE FROM iceberg_view v
    WHERE name IS NOT NULL
      AND NOT EXISTS (SELECT FROM ducklake_schema s WHERE s.schema_id = v.schema_id AND s.end_snapshot IS NULL)
"""


async def read(conn: Conn, uuid: UUID) -> str | None:
    """The metadata of a view that is a row of DuckLake's."""
    row = await (await conn.execute(READ, {"uuid": uuid})).fetchone()
    return None if row is None else row[0]


async def list_names(
    conn: Conn, schema_id: int, after: str | None, limit: int | None, only: Sequence[str] | None = None
) -> list[str]:
    """Of views that are ours alone, in byte order; with `only`, those among these."""
    among = None if only is None else list(only)
    found = await conn.execute(LIST, {"schema_id": schema_id, "after": after, "limit": limit, "only": among})
    return [row[0] for row in await found.fetchall()]


async def find(conn: Conn, schema_id: int, name: str) -> str | None:
    """The metadata of a view that is ours alone."""
    row = await (await conn.execute(FIND, {"schema_id": schema_id, "name": name})).fetchone()
    return None if row is None else row[0]


async def find_clash(conn: Conn, schema_id: int, name: str) -> str | None:
    """The name of a view that is ours alone and that DuckDB would take for this name."""
    row = await (await conn.execute(FIND_CLASH, {"schema_id": schema_id, "name": name})).fetchone()
    return None if row is None else row[0]


async def is_shown(conn: Conn, uuid: UUID) -> bool:
    """Whether there is a view of this uuid that is ours alone."""
    return (await conn.execute(IS_SHOWN, {"uuid": uuid})).rowcount > 0


async def write(conn: Conn, uuid: UUID, metadata: str, alone: tuple[int, str] | None) -> None:
    """After DuckLake's row, if there is one. `alone` are the schema and the name of a view that has none."""
    schema_id, name = alone or (None, None)
    row = {"uuid": uuid, "schema_id": schema_id, "name": name, "metadata": metadata}
    await conn.execute(FORGET_NAME, row)
    await conn.execute(WRITE, row)
    await conn.execute(FORGET_DROPPED)
    await conn.execute(FORGET_HOMELESS)


async def rename(conn: Conn, uuid: UUID, schema_id: int, name: str) -> None:
    """Of a view that is ours alone."""
    row = {"uuid": uuid, "schema_id": schema_id, "name": name}
    await conn.execute(FORGET_NAME, row)
    await conn.execute(RENAME, row)


async def forget(conn: Conn, uuid: UUID) -> None:
    await conn.execute(FORGET, {"uuid": uuid})
