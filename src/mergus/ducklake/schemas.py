"""Rows of `ducklake_schema`: reading those of now or of an older snapshot, making one, ending one.

A schema name is compared as DuckDB compares it, without regard to the case of ASCII letters, wherever a clash
is looked for; Postgres has no constraint that would do it for us (H40).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mergus.ducklake.changes import created_schema, dropped_schema
from mergus.ducklake.commit import Commit
from mergus.ducklake.connect import Conn
from mergus.ducklake.visible import timed

FIND: Final = timed("""
    SELECT schema_id, schema_name, schema_uuid
    FROM ducklake_schema WHERE schema_name = %(name)s AND {visible}
""")

# A name that no request path could spell is left alone: with an empty level, or the separator of levels in it.
ADDRESSABLE: Final = "schema_name !~ '(^|[.])([.]|$)' AND strpos(schema_name, chr(31)) = 0"

# Names are stored level by level, joined with dots: what follows `below` up to the next dot is one level.
LEVEL: Final = "split_part(substr(schema_name, length(%(below)s::text) + 1), '.', 1) COLLATE \"C\""
LIST_CHILDREN: Final = timed(f"""
    SELECT DISTINCT {LEVEL} AS level FROM ducklake_schema
    WHERE {{visible}} AND starts_with(schema_name, %(below)s::text) AND {ADDRESSABLE}
      AND (%(after)s::text IS NULL OR {LEVEL} > %(after)s::text)
      AND (%(whole)s::text[] IS NULL
           OR %(below)s::text || {LEVEL} = ANY(%(single)s::text[])
           OR EXISTS (SELECT FROM unnest(%(whole)s::text[]) AS seen
                      WHERE schema_name = seen OR starts_with(schema_name, seen || '.')))
    ORDER BY level LIMIT %(limit)s
""")

HAS_CHILDREN: Final = timed(f"""
    SELECT EXISTS (SELECT FROM ducklake_schema
                   WHERE {{visible}} AND starts_with(schema_name, %(name)s || '.') AND {ADDRESSABLE})
""")

# A live schema that is, or lies below, one of these names but for the case of letters; or is the last of them itself.
# ('/' is what follows '.' in byte order: the range is all that begins with the name and a dot.)
FIND_CLASH: Final = """
    SELECT schema_name
    FROM unnest(%(names)s::text[]) AS wanted
    JOIN ducklake_schema ON end_snapshot IS NULL AND (
        lower(schema_name COLLATE "C") = lower(wanted COLLATE "C")
        OR (lower(schema_name COLLATE "C") >= lower(wanted COLLATE "C") || '.'
            AND lower(schema_name COLLATE "C") < lower(wanted COLLATE "C") || '/'))
    WHERE schema_name = %(name)s OR NOT (schema_name = wanted OR starts_with(schema_name, wanted || '.'))
    ORDER BY schema_name = %(name)s DESC LIMIT 1
"""

# What would be lost: the first few things that live in a schema.
FIND_CONTENT: Final = """
    SELECT kind, name FROM (
        SELECT 'table' AS kind, table_name AS name FROM ducklake_table
        WHERE schema_id = %(id)s AND end_snapshot IS NULL
        UNION ALL
        SELECT 'view', view_name FROM ducklake_view WHERE schema_id = %(id)s AND end_snapshot IS NULL
        UNION ALL
        SELECT 'macro', macro_name FROM ducklake_macro WHERE schema_id = %(id)s AND end_snapshot IS NULL
    ) AS content LIMIT 3
"""

INSERT: Final = """
    INSERT INTO ducklake_schema
    VALUES (%(id)s, %(uuid)s, %(snapshot_id)s, NULL, %(name)s, %(path)s, true)
"""

END: Final = """
    UPDATE ducklake_schema SET end_snapshot = %(snapshot_id)s
    WHERE schema_id = %(id)s AND end_snapshot IS NULL
"""


@dataclass(frozen=True, slots=True)
class Schema:
    schema_id: int
    name: str
    uuid: UUID


async def find(conn: Conn, name: str, at: int | None = None) -> Schema | None:
    """As it is now, or was at a snapshot; so with the next two."""
    row = await (await conn.execute(FIND.at(at), {"name": name, "at": at})).fetchone()
    return None if row is None else Schema(*row)


async def list_children(
    conn: Conn,
    parent: str | None,
    after: str | None,
    limit: int | None,
    at: int | None = None,
    seen: tuple[Sequence[str], Sequence[str]] | None = None,
) -> list[str]:
    """The next level below a name (or at the root), in byte order, whether or not a schema ends there. With `seen`,
    only what leads to schemas of the first of its lists, which are seen with all below them, and what the second names.
    """
    below = "" if parent is None else f"{parent}."
    whole, single = (None, None) if seen is None else map(list, seen)
    key = {"below": below, "after": after, "limit": limit, "at": at, "whole": whole, "single": single}
    found = await conn.execute(LIST_CHILDREN.at(at), key)
    return [row[0] for row in await found.fetchall()]


async def has_children(conn: Conn, name: str, at: int | None = None) -> bool:
    row = await (await conn.execute(HAS_CHILDREN.at(at), {"name": name, "at": at})).fetchone()
    return row is not None and bool(row[0])


async def find_clash(conn: Conn, names: list[str]) -> str | None:
    """Given a name after its parents: the schema that has it already, or that differs from one of them by case."""
    row = await (await conn.execute(FIND_CLASH, {"names": names, "name": names[-1]})).fetchone()
    return None if row is None else row[0]


async def find_content(conn: Conn, schema_id: int) -> list[str]:
    found = await conn.execute(FIND_CONTENT, {"id": schema_id})
    return [f"{kind} {name}" for kind, name in await found.fetchall()]


async def create(tx: Commit, name: str, uuid: UUID) -> int:
    schema_id = tx.next_catalog_id()
    await tx.conn.execute(
        INSERT,
        {
            "id": schema_id,
            "uuid": uuid,
            "snapshot_id": tx.snapshot_id,
            "name": name,
            "path": directory(name, uuid),
        },
    )
    tx.record(created_schema(name))
    return schema_id


async def drop(tx: Commit, schema_id: int) -> None:
    await tx.conn.execute(END, {"id": schema_id, "snapshot_id": tx.snapshot_id})
    tx.record(dropped_schema(schema_id))


def directory(name: str, uuid: UUID) -> str:
    """As DuckLake chooses it: the name where that is simple, so that no name can be a path; else the uuid."""
    simple = name.isascii() and all(c.isalnum() or c in "_-" for c in name)
    return f"{name if simple else uuid}/"
