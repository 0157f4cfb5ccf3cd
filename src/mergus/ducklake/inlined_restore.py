"""Inlined rows as they were at an older snapshot, from a new one on.

A row that came since ends. One that has ended since comes again, with its row id, in the inlined table that it was in:
the columns are the same there, and the old version stays where it is for those who travel in time.
"""

from typing import Final

from psycopg import sql

from mergus.ducklake import inlined
from mergus.ducklake.changes import inlined_delete, inlined_insert
from mergus.ducklake.commit import Commit

END: Final = """
    UPDATE {table} SET end_snapshot = %(snapshot_id)s
    WHERE end_snapshot IS NULL AND begin_snapshot > %(to)s AND begin_snapshot < %(snapshot_id)s
"""
AGAIN: Final = """
    INSERT INTO {table} SELECT row_id, %(snapshot_id)s, NULL {columns} FROM {table}
    WHERE begin_snapshot <= %(to)s AND end_snapshot > %(to)s AND end_snapshot < %(snapshot_id)s
"""


async def restore(tx: Commit, schema: str, table_id: int, to: int) -> None:
    """`to` is before every snapshot for a table that is to have none."""
    key = {"snapshot_id": tx.snapshot_id, "to": to}
    for table in await inlined.tables(tx.conn, schema, table_id):
        name = sql.Identifier(schema, table.name)
        # the client library takes a percent sign for a parameter, wherever it stands
        columns = sql.SQL("").join(
            sql.SQL(", {}").format(sql.Identifier(column.replace("%", "%%"))) for column in table.columns
        )
        again = sql.SQL(AGAIN).format(table=name, columns=columns)
        if (await tx.conn.execute(again, key)).rowcount:
            tx.record(inlined_insert(table_id))
        if (await tx.conn.execute(sql.SQL(END).format(table=name), key)).rowcount:
            tx.record(inlined_delete(table_id))
