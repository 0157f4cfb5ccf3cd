"""Files that DuckLake's cleaner is to delete."""

from collections.abc import Sequence
from typing import Final

from mergus.ducklake.connect import Conn

# Those below the data path are relative to it.
AMONG: Final = """
    WITH doomed AS (
        SELECT CASE WHEN path_is_relative
                    THEN (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL) || path
                    ELSE path END AS path
        FROM ducklake_files_scheduled_for_deletion
    )
    SELECT path FROM doomed WHERE path = ANY(%(paths)s) ORDER BY path
"""


async def among(conn: Conn, paths: Sequence[str]) -> list[str]:
    """Those of these files, by their whole paths."""
    return [row[0] for row in await (await conn.execute(AMONG, {"paths": list(paths)})).fetchall()]
