"""Who else may have files where a table has its own.

A directory is not a table: one that is dropped and made again, or made under the name of one that was renamed, gets the
directory that the other had, with whatever is still in it (H22). And a table may have files far away from its
directory, since DuckDB can be told to add them where they are.

Places are compared as some stores compare them in policies, without regard to the case of ASCII letters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mergus.ducklake.connect import Conn

# Every row that a table ever had counts, as long as some snapshot sees it. Its name is the one it has, or had last.
NEIGHBOURS: Final = """
    WITH known AS (
        SELECT DISTINCT t.table_id, t.table_uuid, lower(rtrim(
            CASE WHEN NOT t.path_is_relative THEN t.path
                 WHEN NOT s.path_is_relative THEN s.path || t.path
                 ELSE (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL)
                      || s.path || t.path
            END, '/') COLLATE "C") || '/' AS directory
        FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id
        WHERE t.table_id IS DISTINCT FROM %(table_id)s
    ), near AS (
        SELECT mine.place, known.table_id FROM known
        JOIN (SELECT place, lower(place COLLATE "C") AS folded FROM unnest(%(places)s::text[]) AS given(place)) AS mine
          ON starts_with(known.directory, mine.folded) OR starts_with(mine.folded, known.directory)
        UNION
        SELECT %(own)s::text, table_id FROM known WHERE table_uuid = %(uuid)s
    )
    SELECT DISTINCT near.place, s.schema_name, last.table_name
    FROM near CROSS JOIN LATERAL (
        SELECT schema_id, table_name FROM ducklake_table t
        WHERE t.table_id = near.table_id ORDER BY end_snapshot DESC NULLS FIRST LIMIT 1
    ) AS last
    JOIN ducklake_schema s ON s.schema_id = last.schema_id
"""

_WHOLE: Final = "CASE WHEN path_is_relative THEN %(directory)s || path ELSE path END"
OUTSIDE: Final = f"""
    SELECT DISTINCT regexp_replace({_WHOLE}, '[^/]*$', '') FROM ducklake_data_file
    WHERE table_id = %(table_id)s AND NOT path_is_relative
      AND NOT EXISTS (SELECT FROM unnest(%(places)s::text[]) AS known(place) WHERE starts_with(path, place))
    LIMIT %(limit)s
"""
FILES: Final = f"""
    SELECT DISTINCT {_WHOLE} FROM ducklake_data_file
    WHERE table_id = %(table_id)s
      AND NOT EXISTS (SELECT FROM unnest(%(places)s::text[]) AS known(place) WHERE starts_with({_WHOLE}, place))
    LIMIT %(limit)s
"""
# Files with relative paths lie in their table's directory, of which NEIGHBOURS knows.
TAKEN: Final = """
    SELECT place FROM unnest(%(places)s::text[]) AS given(place)
    WHERE EXISTS (SELECT FROM ducklake_data_file
                  WHERE table_id IS DISTINCT FROM %(table_id)s AND NOT path_is_relative
                    AND starts_with(lower(path COLLATE "C"), lower(place COLLATE "C")))
"""
HAS: Final = """
    SELECT EXISTS (SELECT FROM ducklake_data_file
                   WHERE table_id = %(table_id)s AND path = ANY(%(spellings)s)
                     AND path_is_relative = (path <> %(whole)s))
"""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A table, live or not, and which of the places that were asked for it may have files in."""

    place: str
    schema_name: str
    name: str


async def neighbours(conn: Conn, table_id: int | None, uuid: UUID, own: str, places: Sequence[str]) -> list[Neighbour]:
    """All but the table itself. Places end in a slash; `own` is the one that is named by the uuid."""
    key = {"table_id": table_id, "uuid": uuid, "own": own, "places": list(places)}
    return [Neighbour(*row) for row in await (await conn.execute(NEIGHBOURS, key)).fetchall()]


async def outside(conn: Conn, table_id: int, directory: str, places: Sequence[str], limit: int) -> list[str]:
    """Directories, with a slash at the end, in which the table has data files, and which are none of these places."""
    key = {"table_id": table_id, "directory": directory, "places": list(places), "limit": limit}
    return [row[0] for row in await (await conn.execute(OUTSIDE, key)).fetchall()]


async def files(conn: Conn, table_id: int, directory: str, places: Sequence[str], limit: int) -> list[str]:
    """Data files of the table, of any snapshot, that lie in none of these places."""
    key = {"table_id": table_id, "directory": directory, "places": list(places), "limit": limit}
    return [row[0] for row in await (await conn.execute(FILES, key)).fetchall()]


async def taken(conn: Conn, table_id: int, places: Sequence[str]) -> set[str]:
    """Those of these places where other tables have data files that are not in their own directories."""
    found = await conn.execute(TAKEN, {"table_id": table_id, "places": list(places)})
    return {row[0] for row in await found.fetchall()}


async def has(conn: Conn, table_id: int, directory: str, path: str) -> bool:
    """Whether this very file is a data file of the table, at any snapshot."""
    spellings = [path, path.removeprefix(directory)] if path.startswith(directory) else [path]
    row = await (await conn.execute(HAS, {"table_id": table_id, "spellings": spellings, "whole": path})).fetchone()
    return row is not None and bool(row[0])
