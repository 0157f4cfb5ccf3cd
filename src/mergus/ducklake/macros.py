"""Rows of `ducklake_macro`: the live macros of a schema, and what DuckLake knows of one.

Of a parameter it keeps a type only if the session gave one ('unknown' otherwise), of what a macro returns none at all.
"""

from dataclasses import dataclass
from typing import Final

from mergus.ducklake.connect import Conn
from mergus.ducklake.visible import ListNames, timed

# A scalar and a table macro may have the same name.
LIST: Final = timed("""
    SELECT DISTINCT macro_name COLLATE "C" AS name FROM ducklake_macro
    WHERE schema_id = %(schema_id)s AND {visible}
      AND (%(after)s::text IS NULL OR macro_name COLLATE "C" > %(after)s::text)
      AND (%(only)s::text[] IS NULL OR macro_name = ANY(%(only)s::text[]))
    ORDER BY name LIMIT %(limit)s
""")
list_names: Final = ListNames(LIST)
FIND: Final = timed("""
    SELECT i.type, (SELECT array_agg(p.parameter_name ORDER BY p.column_id) FROM ducklake_macro_parameters p
                    WHERE p.macro_id = i.macro_id AND p.impl_id = i.impl_id AND p.parameter_type = 'unknown')
    FROM ducklake_macro m JOIN ducklake_macro_impl i ON i.macro_id = m.macro_id
    WHERE m.schema_id = %(schema_id)s AND m.macro_name = %(name)s AND {visible}
    ORDER BY m.macro_id, i.impl_id
""")


@dataclass(frozen=True, slots=True)
class Overload:
    kind: str
    untyped: list[str]


async def find(conn: Conn, schema_id: int, name: str, at: int | None = None) -> list[Overload]:
    """What is called by this name, or was at a snapshot; nothing if there is none."""
    found = await conn.execute(FIND.at(at), {"schema_id": schema_id, "name": name, "at": at})
    return [Overload(kind, untyped or []) for kind, untyped in await found.fetchall()]
