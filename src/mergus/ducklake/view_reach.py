"""What a view of DuckDB's would reach when it is bound: it must be the lake and nothing else.

A session that is shut off from files and hosts is not shut off from Postgres, which it needs for the lake: a text with
`postgres_scan` would have the server speak to any host, one that names DuckLake's own catalog see what is in it. So
texts are looked through before DuckDB binds them, with those of all views and macros that they may lead to: by name, in
whatever schema, which are more than those that are meant and never fewer. Who changes a view in between is not held up.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from mergus.ducklake.connect import Conn
from mergus.ducklake.view_sql import Names, names_of
from mergus.ducklake.visible import timed

# Functions that make rows of nothing, or tell of the lake.
HARMLESS: Final = frozenset(
    {
        *("range", "generate_series", "unnest", "repeat", "repeat_row"),
        *("ducklake_snapshots", "ducklake_current_snapshot", "ducklake_last_committed_snapshot", "ducklake_table_info"),
        *("ducklake_table_changes", "ducklake_table_insertions", "ducklake_table_deletions"),
    }
)
# As DuckLake's extension calls the database that its rows are in.
OWN_CATALOG: Final = "__ducklake_metadata"
MOST_TEXTS: Final = 1000

VIEWS: Final = timed("""
    SELECT sql FROM ducklake_view WHERE lower(view_name) = ANY(%(names)s::text[]) AND {visible}
""")
MACROS: Final = timed("""
    SELECT lower(m.macro_name), i.type, i.sql
    FROM ducklake_macro m JOIN ducklake_macro_impl i ON i.macro_id = m.macro_id
    WHERE lower(m.macro_name) = ANY(%(names)s::text[]) AND {visible}
""")


async def reason_against(conn: Conn, sql: str, at: int | None) -> str | None:
    """Why the text must not be bound; None if it may."""
    seen: set[str] = set()
    named: set[str] = set()
    waiting = [sql]
    while waiting:
        if len(seen) + len(waiting) > MOST_TEXTS:
            return "it is made of too many others"
        seen.update(waiting)
        try:
            found = await asyncio.to_thread(names_of, waiting)
        except ValueError as e:
            return str(e)
        wanted = {name.lower() for one in found for name in (*one.tables, *one.functions, *one.table_functions)}
        key = {"names": sorted(wanted - named), "at": at}
        views = [row[0] for row in await (await conn.execute(VIEWS.at(at), key)).fetchall()]
        macros = await (await conn.execute(MACROS.at(at), {**key, "names": sorted(wanted)})).fetchall()
        if (reason := _reason(found, {row[0] for row in macros if row[1] == "table"})) is not None:
            return reason
        named |= wanted
        texts = [*views, *(row[2] if row[1] == "table" else f"SELECT {row[2]}" for row in macros)]
        waiting = [text for text in dict.fromkeys(texts) if text not in seen]
    return None


def _reason(found: Iterable[Names], macros: set[str]) -> str | None:
    for one in found:
        if outside := [name for name in one.table_functions if name.lower() not in HARMLESS | macros]:
            return f"it reads by {outside[0]}(), which may lead out of the lake"
        if any(part.lower().startswith(OWN_CATALOG) for part in one.qualifiers):
            return "it reads DuckLake's own tables"
    return None
