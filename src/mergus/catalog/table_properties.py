"""Properties of a table, set from the command line."""

from collections.abc import Mapping

from mergus.annex import catalog
from mergus.annex import tables as annex
from mergus.catalog.find import find_table
from mergus.config import Settings
from mergus.ducklake.connect import connection, open_pool
from mergus.errors import BadRequest
from mergus.iceberg.namespace import Namespace
from mergus.materialise.reading import FORMAT_VERSION, HIDDEN_COLUMNS, HIDE, REFUSE, UNSUPPORTED_COLUMNS


async def change(settings: Settings, schema: str, table: str, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Sets them, or removes those that are None, at once; all that the table has then."""
    if changes.get(FORMAT_VERSION) not in {None, "2", "3"}:
        raise BadRequest(f"{FORMAT_VERSION} is 2 or 3, not {changes[FORMAT_VERSION]}")
    if changes.get(UNSUPPORTED_COLUMNS) not in {None, HIDE, REFUSE}:
        raise BadRequest(f"{UNSUPPORTED_COLUMNS} is {HIDE} or {REFUSE}, not {changes[UNSUPPORTED_COLUMNS]}")
    if HIDDEN_COLUMNS in changes:
        raise BadRequest(f"{HIDDEN_COLUMNS} is read-only: it names the columns that {UNSUPPORTED_COLUMNS}={HIDE} hides")
    async with open_pool(settings) as pool, connection(pool) as conn, conn.transaction():
        table_id = await find_table(conn, Namespace.of_schema(schema), table)
        for key, value in changes.items():
            await annex.set_property(conn, table_id, key, value)
        if changes:
            await catalog.raise_epoch(conn)
        return await annex.read_properties(conn, table_id)
