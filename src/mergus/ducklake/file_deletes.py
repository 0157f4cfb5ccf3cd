"""Deleted positions of data files that are inlined in Postgres, with the snapshot that deleted each.

`files.py` tells which rows are gone at a snapshot. A delete file that takes the place of what is inlined has to say
since when each is gone, or older versions would change (N§3.5).
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from psycopg import sql

from mergus.ducklake import files
from mergus.ducklake.connect import Conn

READ_DATED: Final = """
    SELECT file_id, row_id, begin_snapshot FROM {} WHERE file_id = ANY(%(ids)s) ORDER BY file_id, row_id, begin_snapshot
"""


async def dated_inlined_deletes(
    conn: Conn, schema: str, table_id: int, file_ids: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """Position and snapshot, by file id, of those files that have any. `row_id` is a position, whatever DuckLake calls
    it."""
    table = await files.inlined_delete_table(conn, schema, table_id)
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    if table is not None and file_ids:
        rows = await conn.execute(sql.SQL(READ_DATED).format(table), {"ids": list(file_ids)})
        for file_id, position, begin in await rows.fetchall():
            found[file_id].append((position, begin))
    return dict(found)
