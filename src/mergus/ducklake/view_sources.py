"""Which tables and views of the lake a text means, as they are spelled there: DuckDB takes names in any case, and other
engines do not."""

from collections.abc import Sequence
from typing import Final

from mergus.ducklake.connect import Conn
from mergus.ducklake.view_expressions import FUNCTIONS
from mergus.ducklake.visible import timed

FIND: Final = timed("""
    WITH named AS (SELECT * FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS named(schema, name)),
    schemas AS (SELECT schema_id, schema_name FROM ducklake_schema WHERE {visible}),
    found AS (
        SELECT schema_id, table_name AS name FROM ducklake_table
        WHERE lower(table_name) = ANY(%(names)s::text[]) AND {visible}
        UNION ALL
        SELECT schema_id, view_name FROM ducklake_view
        WHERE lower(view_name) = ANY(%(names)s::text[]) AND {visible}
    )
    SELECT n.schema, n.name, s.schema_name, f.name
    FROM named n JOIN schemas s ON lower(s.schema_name) = n.schema
    JOIN found f ON f.schema_id = s.schema_id AND lower(f.name) = n.name
""")
MACROS: Final = timed("""
    SELECT lower(macro_name) FROM ducklake_macro WHERE lower(macro_name) = ANY(%(names)s::text[]) AND {visible} LIMIT 1
""")

# What is asked for, in small letters; and schema and name as the lake has them.
Found = dict[tuple[str, str], tuple[str, str]]


async def find_relations(conn: Conn, named: Sequence[tuple[str, str]], own: str, at: int | None) -> Found:
    """Of these names, those that are of a table or view; without a schema they are of the view's own."""
    schemas = [schema or own.lower() for schema, _ in named]
    key = {"schemas": schemas, "names": [name for _, name in named], "at": at}
    rows = await (await conn.execute(FIND.at(at), key)).fetchall()
    spelled = {(schema, name): (exact, own_name) for schema, name, exact, own_name in rows}
    return {
        pair: spelled[schema, pair[1]]
        for pair, schema in zip(named, schemas, strict=True)
        if (schema, pair[1]) in spelled
    }


async def find_macro(conn: Conn, at: int | None) -> str | None:
    """One by the name of a function that texts are translated with, which means something else then."""
    row = await (await conn.execute(MACROS.at(at), {"names": sorted(FUNCTIONS), "at": at})).fetchone()
    return None if row is None else row[0]
