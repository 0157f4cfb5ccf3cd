"""DropTable and RenameTable.

A dropped table's rows end, as DuckDB ends them: who travels in time still sees it, until its snapshots expire. With
`purgeRequested` its whole history goes at once, and DuckLake's cleaner deletes its files: only those of this very
table, whatever else shares a directory with them (H22). `MERGUS_PURGE_REQUESTED=drop` makes a plain drop of that.
"""

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.access.privileges import CREATE
from mergus.annex import jobs
from mergus.catalog.find import find_schema, find_table
from mergus.catalog.lake import Lake
from mergus.catalog.names import check_name, find_clash, target_taken
from mergus.ducklake import purge, tables
from mergus.errors import NoSuchTable
from mergus.iceberg.namespace import Namespace


async def drop_table(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str, *, with_purge: bool) -> None:
    await authorise(ctx, namespace, name)
    async with lake.commit(ctx) as tx:
        table_id = await find_table(tx.conn, namespace, name)
        await tables.drop(tx, table_id)
        if with_purge and lake.settings.purge_requested == "purge":
            await purge.purge(tx, lake.settings.metadata_schema, table_id)
            await jobs.ask_to_free(tx.conn, ctx.principal.name, lake.settings.grace_seconds)


async def rename_table(
    lake: Lake, ctx: RequestContext, source: tuple[Namespace, str], target: tuple[Namespace, str]
) -> None:
    await authorise(ctx, *source)
    await authorise(ctx, *target, CREATE)
    namespace, name = target
    check_name(name)
    async with lake.commit(ctx) as tx:
        table_id = await find_table(tx.conn, *source)
        table = await tables.read(tx.conn, table_id)
        if table is None:
            raise NoSuchTable(f"Table does not exist: {source[0]}.{source[1]}")
        schema = await find_schema(tx.conn, namespace)
        is_own = schema.name == table.schema_name and name != table.name
        clash = await find_clash(tx.conn, schema.schema_id, name)
        # another spelling of its own name is no clash
        if clash is not None and not (is_own and clash == f"table {table.name}"):
            raise target_taken(source, target, clash)
        await tables.rename(tx, table, schema, name)
