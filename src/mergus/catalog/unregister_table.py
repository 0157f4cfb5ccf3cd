"""UnregisterTable: the table is dropped and its files stay, and the answer is its last metadata.

That has everything that was ever committed to the table: it is made first, and holds if nothing has happened to the
table when the lock is there. The last of several attempts is made under the lock.
"""

from contextlib import suppress
from typing import Final

import orjson

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.catalog.find import find_table
from mergus.catalog.lake import Lake
from mergus.catalog.served_tables import ServedTables
from mergus.catalog.table_cache import Answer
from mergus.ducklake import tables
from mergus.ducklake.commit import Commit
from mergus.ducklake.unchanged import is_unchanged
from mergus.errors import CommitFailed
from mergus.iceberg.namespace import Namespace
from mergus.materialise.metadata import render

ATTEMPTS: Final = 4


class _Moved(Exception):
    """Something happened to the table since its metadata was made."""


async def unregister_table(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str) -> bytes:
    await authorise(ctx, namespace, name)
    served = await lake.tables()
    for _ in range(ATTEMPTS):
        found = await _shown(lake, served, namespace, name)
        with suppress(_Moved):
            async with lake.commit(ctx) as tx:
                return await _drop(tx, ctx, namespace, name, found)
    try:
        async with lake.commit(ctx) as tx:
            return await _drop(tx, ctx, namespace, name, await _shown(lake, served, namespace, name))
    except _Moved:
        raise CommitFailed("The table changes faster than its last metadata can be made; try again") from None


async def _shown(lake: Lake, served: ServedTables, namespace: Namespace, name: str) -> Answer:
    async with lake.read() as conn:
        table_id = await find_table(conn, namespace, name)
    return await served.answer(table_id, await served.look())


async def _drop(tx: Commit, ctx: RequestContext, namespace: Namespace, name: str, found: Answer) -> bytes:
    table_id = await find_table(tx.conn, namespace, name)
    if table_id != found.table.reading.view.table.id or not await is_unchanged(tx.conn, table_id, found.head):
        raise _Moved
    await tables.drop(tx, table_id)
    written = found.written
    shown = orjson.Fragment(render(written.metadata))
    ctx.content = orjson.dumps({"metadata-location": written.location, "metadata": shown})
    return ctx.content
