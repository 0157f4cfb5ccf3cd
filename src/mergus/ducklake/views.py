"""Rows of `ducklake_view`: the views of a schema, now or at an older snapshot; making, replacing, renaming and ending
one.

DuckDB replaces a view by ending it and making another, with another id and uuid. A view that we replace gets another
id, as DuckDB does it, and keeps its uuid: clients of Iceberg know it by that. So a view that has the uuid that we know
is the one that we know, and any other is somebody's new one.

In the text of a view, `{DUCKLAKE_CATALOG}` is where each session puts the name under which it has attached the lake.
Names that are not qualified mean things of the view's own schema.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from mergus.ducklake.changes import altered_view, created_view, dropped_view
from mergus.ducklake.commit import Commit
from mergus.ducklake.connect import Conn
from mergus.ducklake.schemas import Schema
from mergus.ducklake.visible import ListNames, timed

DIALECT: Final = "duckdb"
CATALOG: Final = "{DUCKLAKE_CATALOG}"

LIST: Final = timed("""
    SELECT view_name FROM ducklake_view
    WHERE schema_id = %(schema_id)s AND {visible}
      AND (%(after)s::text IS NULL OR view_name COLLATE "C" > %(after)s::text)
      AND (%(only)s::text[] IS NULL OR view_name = ANY(%(only)s::text[]))
    ORDER BY view_name COLLATE "C" LIMIT %(limit)s
""")
list_names: Final = ListNames(LIST)

# A rename ends the row and adds one: the view began with the oldest. Its snapshot may have expired.
FIND: Final = timed("""
    SELECT v.view_id, v.view_uuid, v.begin_snapshot, v.sql, v.column_aliases,
           (SELECT value FROM ducklake_tag WHERE object_id = v.view_id AND key = 'comment' AND {visible}),
           (SELECT snapshot_time FROM ducklake_snapshot
            WHERE snapshot_id >= (SELECT min(begin_snapshot) FROM ducklake_view WHERE view_id = v.view_id)
            ORDER BY snapshot_id LIMIT 1),
           (SELECT schema_version FROM ducklake_snapshot
            WHERE snapshot_id <= coalesce(%(at)s, 9223372036854775807) ORDER BY snapshot_id DESC LIMIT 1)
    FROM ducklake_view v WHERE v.schema_id = %(schema_id)s AND v.view_name = %(name)s AND {visible}
""")

IS_LIVE: Final = "SELECT FROM ducklake_view WHERE view_uuid = %(uuid)s AND end_snapshot IS NULL LIMIT 1"

INSERT: Final = """
    INSERT INTO ducklake_view
    VALUES (%(view_id)s, %(uuid)s, %(snapshot_id)s, NULL, %(schema_id)s, %(name)s, %(dialect)s, %(sql)s, %(aliases)s)
"""
END: Final = """
    UPDATE ducklake_view SET end_snapshot = %(snapshot_id)s WHERE view_id = %(view_id)s AND end_snapshot IS NULL
"""
END_COMMENT: Final = """
    UPDATE ducklake_tag SET end_snapshot = %(snapshot_id)s WHERE object_id = %(view_id)s AND end_snapshot IS NULL
"""
INSERT_COMMENT: Final = "INSERT INTO ducklake_tag VALUES (%(view_id)s, %(snapshot_id)s, NULL, 'comment', %(text)s)"


@dataclass(frozen=True, slots=True)
class View:
    """`aliases` are names of its columns, quoted and with commas between them, if it was given any. `schema_version` is
    the lake's, now or then: what the view shows may be something else under another."""

    id: int
    uuid: UUID
    begin: int
    sql: str
    aliases: str
    comment: str | None
    made_at: datetime
    schema_version: int = field(compare=False)

    @property
    def shown_sql(self) -> str:
        """For others: complete, and with names that are looked up in this lake, whatever it is called."""
        sql = self.sql.replace(f"{CATALOG}.", "")
        return f"SELECT * FROM ({sql}) AS named({self.aliases})" if self.aliases else sql


async def find(conn: Conn, schema_id: int, name: str, at: int | None = None) -> View | None:
    """That has this name, or had it at a snapshot."""
    key = {"schema_id": schema_id, "name": name, "at": at}
    row = await (await conn.execute(FIND.at(at), key)).fetchone()
    if row is None:
        return None
    view_id, uuid, begin, sql, aliases, *rest = row
    return View(view_id, uuid, begin, sql, aliases or "", *rest)


async def is_live(conn: Conn, uuid: UUID) -> bool:
    return (await conn.execute(IS_LIVE, {"uuid": uuid})).rowcount > 0


async def create(tx: Commit, schema: Schema, name: str, uuid: UUID, sql: str, comment: str | None) -> None:
    key = _key(tx, tx.next_catalog_id())
    await _insert(tx, key, schema, name, uuid, sql, "")
    if comment is not None:
        await tx.conn.execute(INSERT_COMMENT, {**key, "text": comment})
        tx.record(altered_view(key["view_id"]))


async def drop(tx: Commit, view: View) -> None:
    key = _key(tx, view.id)
    await tx.conn.execute(END, key)
    await tx.conn.execute(END_COMMENT, key)
    tx.record(dropped_view(view.id))


async def rename(tx: Commit, view: View, schema: Schema, name: str) -> None:
    key = _key(tx, view.id)
    await tx.conn.execute(END, key)
    await _insert(tx, key, schema, name, view.uuid, view.sql, view.aliases)


async def set_comment(tx: Commit, view: View, text: str | None) -> None:
    """None takes the comment away, and leaves a row that says so."""
    key = _key(tx, view.id)
    await tx.conn.execute(END_COMMENT, key)
    await tx.conn.execute(INSERT_COMMENT, {**key, "text": text})
    tx.record(altered_view(view.id))


def _key(tx: Commit, view_id: int) -> dict[str, Any]:
    return {"view_id": view_id, "snapshot_id": tx.snapshot_id}


async def _insert(
    tx: Commit, key: Mapping[str, Any], schema: Schema, name: str, uuid: UUID, sql: str, aliases: str
) -> None:
    row = {"schema_id": schema.schema_id, "name": name, "uuid": uuid, "sql": sql, "aliases": aliases}
    await tx.conn.execute(INSERT, {**key, **row, "dialect": DIALECT})
    tx.record(created_view(schema.name, name))
