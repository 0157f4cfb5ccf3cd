"""Dropped tables: which can come back, and bringing one back.

DuckLake keeps what a dropped table had until its snapshots expire, and so do we: a table that comes back is the same
one, with its id and uuid, its history, and all that Iceberg's clients wrote about it. In between it was not there.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.annex import iceberg_tables as annex
from mergus.catalog import table_places
from mergus.catalog.find import find_namespace, find_schema
from mergus.catalog.lake import Lake
from mergus.catalog.locations import parse
from mergus.catalog.names import check_name, find_clash, taken
from mergus.catalog.paging import PageRequest
from mergus.ducklake import dropped
from mergus.ducklake.connect import Conn
from mergus.ducklake.dropped import Dropped
from mergus.errors import BadRequest, NoSuchTable
from mergus.iceberg.namespace import Namespace


@dataclass(frozen=True, slots=True)
class Wanted:
    """A dropped table by the name that it had last; of several the one of the uuid, or the newest. `called` is the
    name that it gets, if it is another."""

    name: str
    uuid: UUID | None = None
    called: str | None = None


async def list_dropped(
    lake: Lake, ctx: RequestContext, namespace: Namespace, page: PageRequest
) -> tuple[list[Dropped], str | None]:
    """Newest first, and the token of the next page if there is one."""
    await authorise(ctx, namespace)

    async def fetch(after: str | None, limit: int | None) -> list[Dropped]:
        async with lake.read() as conn:
            await find_namespace(conn, namespace)
            seen = None if after is None else _place(after)
            return await dropped.newest_first(conn, namespace.schema_name, after=seen, limit=limit)

    return await lake.page(
        [ctx.operation, *namespace.levels], page, fetch, lambda table: f"{table.dropped_at} {table.id}"
    )


async def undrop_table(lake: Lake, ctx: RequestContext, namespace: Namespace, wanted: Wanted) -> dict[str, Any]:
    await authorise(ctx, namespace)
    name = wanted.name if wanted.called is None else wanted.called
    check_name(name)
    async with lake.commit(ctx) as tx:
        schema = await find_schema(tx.conn, namespace)
        found = await dropped.newest_first(tx.conn, schema.name, name=wanted.name, uuid=wanted.uuid, limit=1)
        if not found:
            which = f"{namespace}.{wanted.name}" + (f" with uuid {wanted.uuid}" if wanted.uuid else "")
            raise NoSuchTable(f"No dropped table can come back as {which}: there was none, or it has expired")
        clash = await find_clash(tx.conn, schema.schema_id, name)
        if clash is not None:
            raise taken(namespace, name, clash)
        await check_place(tx.conn, found[0], None)
        await dropped.bring_back(tx, found[0], schema, name)
        answer = {
            "identifier": {"namespace": namespace.levels, "name": name},
            "table-uuid": str(found[0].uuid),
            "table-id": found[0].id,
            "dropped-at-snapshot": found[0].dropped_at,
            "snapshot-id": tx.snapshot_id,
        }
        ctx.content = orjson.dumps(answer)
    return answer


async def check_place(conn: Conn, table: Dropped, replaced: int | None) -> None:
    """Whether nobody has its location by now, but a table that it takes the place of."""
    location = (await annex.read(conn, table.id)).location
    if location is not None and any(map(parse(location).overlaps, await table_places.others(conn, replaced))):
        raise BadRequest(f"The table's location {location} is that of another table by now")


def _place(key: str) -> tuple[int, int]:
    dropped_at, table_id = key.split(" ")
    return int(dropped_at), int(table_id)
