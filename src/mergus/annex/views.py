"""Rows of `iceberg_view`: what a view is beyond the text that DuckDB reads, and views that DuckDB cannot read at all.

The latter have their names here, and DuckDB does not know: it may make a table or a view of the same name. Then that
is what the name means, and ours is hidden for as long. A row whose view DuckDB has dropped or replaced, or whose schema
is gone, means nothing, since ids and uuids do not come again; it ends with the next that is written.

A row is there from one snapshot of the lake to another, like DuckLake's own. `since` is the snapshot that a change is
seen from, which may be the newest one that there is: of several changes at one snapshot, the last counts. What no
snapshot shows any more goes with the next that is written.
"""

from typing import Final
from uuid import UUID

from mergus.ducklake.connect import Conn
from mergus.ducklake.visible import ListNames, timed

READ: Final = timed("SELECT metadata FROM iceberg_view WHERE view_uuid = %(uuid)s AND name IS NULL AND {visible}")

# Of those that are ours alone, and not hidden.
SHOWN: Final = """
    schema_id = %(schema_id)s AND {visible}
    AND NOT EXISTS (SELECT FROM ducklake_table t
                    WHERE t.schema_id = v.schema_id AND {visible}
                      AND lower(t.table_name COLLATE "C") = lower(v.name COLLATE "C"))
    AND NOT EXISTS (SELECT FROM ducklake_view d
                    WHERE d.schema_id = v.schema_id AND {visible}
                      AND lower(d.view_name COLLATE "C") = lower(v.name COLLATE "C"))
"""
LIST: Final = timed(f"""
    SELECT name FROM iceberg_view v WHERE {SHOWN}
      AND (%(after)s::text IS NULL OR name COLLATE "C" > %(after)s::text)
      AND (%(only)s::text[] IS NULL OR name = ANY(%(only)s::text[]))
    ORDER BY name COLLATE "C" LIMIT %(limit)s
""")
# Of views that are ours alone.
list_names: Final = ListNames(LIST)
FIND: Final = timed(f"SELECT metadata FROM iceberg_view v WHERE {SHOWN} AND name = %(name)s")
FIND_CLASH: Final = timed(f"""
    SELECT name FROM iceberg_view v WHERE {SHOWN} AND lower(name COLLATE "C") = lower(%(name)s COLLATE "C")
""")
IS_SHOWN: Final = timed(f"""
    SELECT FROM iceberg_view v
    WHERE view_uuid = %(uuid)s AND {SHOWN.replace("%(schema_id)s", "v.schema_id")}
      AND EXISTS (SELECT FROM ducklake_schema s WHERE s.schema_id = v.schema_id AND {{visible}})
""")
COUNT: Final = timed(f"""
    SELECT count(*) FROM iceberg_view v
    WHERE name IS NOT NULL AND {SHOWN.replace("%(schema_id)s", "v.schema_id")}
      AND EXISTS (SELECT FROM ducklake_schema s WHERE s.schema_id = v.schema_id AND {{visible}})
""")

INSERT: Final = """
    INSERT INTO iceberg_view (view_uuid, schema_id, name, metadata, begin_snapshot)
    VALUES (%(uuid)s, %(schema_id)s, %(name)s, %(metadata)s, %(since)s)
"""
END: Final = """
    UPDATE iceberg_view SET end_snapshot = %(since)s WHERE view_uuid = %(uuid)s AND end_snapshot IS NULL
    RETURNING metadata
"""
END_NAME: Final = """
    UPDATE iceberg_view SET end_snapshot = %(since)s
    WHERE schema_id = %(schema_id)s AND lower(name COLLATE "C") = lower(%(name)s COLLATE "C")
      AND end_snapshot IS NULL
"""
# Two, and each a plain anti-join: this is done under the lock.
END_DROPPED: Final = """
    UPDATE iceberg_view v SET end_snapshot = %(since)s
    WHERE name IS NULL AND end_snapshot IS NULL
      AND NOT EXISTS (SELECT FROM ducklake_view d WHERE d.view_uuid = v.view_uuid AND d.end_snapshot IS NULL)
"""
END_HOMELESS: Final = """
    UPDATE iceberg_view v SET end_snapshot = %(since)s
    WHERE name IS NOT NULL AND end_snapshot IS NULL
      AND NOT EXISTS (SELECT FROM ducklake_schema s WHERE s.schema_id = v.schema_id AND s.end_snapshot IS NULL)
"""
FORGET: Final = """
    DELETE FROM iceberg_view
    WHERE (end_snapshot = %(since)s AND begin_snapshot >= %(since)s)
       OR end_snapshot <= (SELECT min(snapshot_id) FROM ducklake_snapshot)
"""
# The key is that of the property by which a client has chosen where the metadata is.
LOCATIONS: Final = """
    SELECT place FROM iceberg_view, LATERAL (
        VALUES (metadata::jsonb ->> 'location'), (metadata::jsonb #>> '{properties,write.metadata.path}')
    ) AS chosen(place)
    WHERE end_snapshot IS NULL AND place IS NOT NULL AND view_uuid IS DISTINCT FROM %(except_for)s
"""


async def read(conn: Conn, uuid: UUID, at: int | None = None) -> str | None:
    """The metadata of a view that is a row of DuckLake's, as it is now or was at a snapshot."""
    row = await (await conn.execute(READ.at(at), {"uuid": uuid, "at": at})).fetchone()
    return None if row is None else row[0]


async def find(conn: Conn, schema_id: int, name: str, at: int | None = None) -> str | None:
    """The metadata of a view that is ours alone."""
    row = await (await conn.execute(FIND.at(at), {"schema_id": schema_id, "name": name, "at": at})).fetchone()
    return None if row is None else row[0]


async def find_clash(conn: Conn, schema_id: int, name: str) -> str | None:
    """The name of a view that is ours alone and that DuckDB would take for this name."""
    row = await (await conn.execute(FIND_CLASH.now, {"schema_id": schema_id, "name": name})).fetchone()
    return None if row is None else row[0]


async def is_shown(conn: Conn, uuid: UUID) -> bool:
    """Whether there is a view of this uuid that is ours alone."""
    return (await conn.execute(IS_SHOWN.now, {"uuid": uuid})).rowcount > 0


async def count_ours(conn: Conn) -> int:
    """Of those that are ours alone."""
    row = await (await conn.execute(COUNT.now)).fetchone()
    return 0 if row is None else int(row[0])


async def write(conn: Conn, since: int, uuid: UUID, metadata: str, alone: tuple[int, str] | None) -> None:
    """After DuckLake's row, if there is one. `alone` are the schema and the name of a view that has none."""
    schema_id, name = alone or (None, None)
    row = {"since": since, "uuid": uuid, "schema_id": schema_id, "name": name, "metadata": metadata}
    for statement in (END, END_NAME, END_DROPPED, END_HOMELESS, FORGET, INSERT):
        await conn.execute(statement, row)


async def rename(conn: Conn, since: int, uuid: UUID, schema_id: int, name: str) -> None:
    """Of a view that is ours alone."""
    if (metadata := await drop(conn, since, uuid)) is not None:
        await write(conn, since, uuid, metadata, (schema_id, name))


async def drop(conn: Conn, since: int, uuid: UUID) -> str | None:
    """What it was."""
    row = await (await conn.execute(END, {"since": since, "uuid": uuid})).fetchone()
    await conn.execute(FORGET, {"since": since})
    return None if row is None else row[0]


async def locations(conn: Conn, except_for: UUID | None) -> list[str]:
    """Where other views have their metadata."""
    return [row[0] for row in await (await conn.execute(LOCATIONS, {"except_for": except_for})).fetchall()]
