"""Places that clients chose for files of their tables: who else has chosen one, or been promised one."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from mergus.ducklake.connect import Conn
from mergus.ducklake.directories import Neighbour

# Of tables that were dropped, too, as long as anything is known of them.
NEIGHBOURS: Final = """
    WITH mine AS (
        SELECT place, lower(place COLLATE "C") AS folded FROM unnest(%(places)s::text[]) AS given(place)
    ), chosen AS (
        SELECT c.table_id, lower(rtrim(c.place, '/') COLLATE "C") || '/' AS place
        FROM (SELECT table_id, location AS place FROM table_location
              UNION SELECT table_id, value FROM table_property WHERE key = ANY(%(keys)s)) AS c
        WHERE c.table_id IS DISTINCT FROM %(table_id)s
    ), near AS (
        SELECT mine.place, s.schema_name, last.table_name
        FROM mine
        JOIN chosen ON starts_with(chosen.place, mine.folded) OR starts_with(mine.folded, chosen.place)
        CROSS JOIN LATERAL (
            SELECT schema_id, table_name FROM ducklake_table t
            WHERE t.table_id = chosen.table_id ORDER BY end_snapshot DESC NULLS FIRST LIMIT 1
        ) AS last
        JOIN ducklake_schema s ON s.schema_id = last.schema_id
        UNION
        SELECT mine.place, staged.schema_name, staged.table_name
        FROM mine
        JOIN (SELECT schema_name, table_name, lower(rtrim(location, '/') COLLATE "C") || '/' AS place
              FROM staged_table WHERE table_uuid <> %(uuid)s) AS staged
          ON starts_with(staged.place, mine.folded) OR starts_with(mine.folded, staged.place)
    )
    SELECT DISTINCT place, schema_name, table_name FROM near
"""


async def neighbours(
    conn: Conn, table_id: int | None, uuid: UUID, places: Sequence[str], keys: Sequence[str]
) -> list[Neighbour]:
    """Others that may have files in these places, which end in a slash. `keys` are properties that name places."""
    key = {"table_id": table_id, "uuid": uuid, "places": list(places), "keys": list(keys)}
    return [Neighbour(*row) for row in await (await conn.execute(NEIGHBOURS, key)).fetchall()]
