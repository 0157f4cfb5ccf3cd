"""Whether a table is still what it was: asked under the lock, of a plan that was made before it."""

from typing import Final

from mergus.ducklake.connect import Conn
from mergus.ducklake.snapshots import Head

# A rename has no word that names the table by its id, but it begins another row.
IS_UNCHANGED: Final = """
    SELECT EXISTS (SELECT FROM ducklake_snapshot
                   WHERE snapshot_id = %(snapshot_id)s AND snapshot_time = %(snapshot_time)s)
       AND EXISTS (SELECT FROM ducklake_table
                   WHERE table_id = %(table_id)s AND end_snapshot IS NULL AND begin_snapshot <= %(snapshot_id)s)
       AND (SELECT epoch FROM catalog) = %(epoch)s
       AND NOT EXISTS (SELECT FROM ducklake_snapshot_changes
                       WHERE snapshot_id > %(snapshot_id)s AND changes_made ~ (':' || %(table_id)s || '(,|$)'))
"""


async def is_unchanged(conn: Conn, table_id: int, since: Head) -> bool:
    key = {
        "table_id": table_id,
        "snapshot_id": since.snapshot_id,
        "snapshot_time": since.snapshot_time,
        "epoch": since.epoch,
    }
    row = await (await conn.execute(IS_UNCHANGED, key)).fetchone()
    return row is not None and bool(row[0])
