"""How the lake is, as those who run it are told: by the server, by `mergus status`, and by metrics.

All of it is read from Postgres when it is asked for, a page of tables at a time, each page one state of the lake. It is
always the lake of now: a warehouse of the past says by which name a table is meant, no more.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from mergus import __version__
from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.annex import jobs, listener, tables, views
from mergus.catalog import advice
from mergus.catalog.advice import Advice, advice_json, advise_catalog, advise_table
from mergus.catalog.find import find_asked
from mergus.catalog.lake import Lake
from mergus.catalog.listener_status import SHOWN_FAILURES, standing_json
from mergus.catalog.paging import PageRequest
from mergus.config import Settings
from mergus.ducklake import health
from mergus.ducklake.connect import Conn, Pool, one_state
from mergus.ducklake.health import CatalogHealth, LiveTable, TableHealth
from mergus.errors import NoSuchTable
from mergus.iceberg.namespace import Namespace
from mergus.maintenance.policy import TARGET_SIZE

SUMMED: Final = (
    *("data_files", "data_bytes", "small_files", "tiny_files", "mergeable_files", "merged_files", "file_rows", "rows"),
    *("delete_files", "delete_bytes", "deleted_rows", "historic_files", "historic_bytes"),
    *("inlined_rows", "inlined_ended", "inlined_deletes"),
)


# A table with its weight and what it needs.
Needy = tuple[float, TableHealth, list[Advice]]


@dataclass(slots=True)
class Totals:
    """Of all tables. `needs` says how many need what, `needy` which."""

    sums: Counter[str] = field(default_factory=Counter[str])
    needy: list[Needy] = field(default_factory=list[Needy])
    needs: Counter[str] = field(default_factory=lambda: Counter(flush=0, rewrite=0, compact=0))

    def add(self, table: TableHealth) -> None:
        for name in SUMMED:
            self.sums[name] += getattr(table, name)
        advised = advise_table(table)
        self.needs.update(one.action for one in advised)
        if advised:
            self.needy.append((advice.weight(advised), table, advised))

    @property
    def deleted_ratio(self) -> float:
        return self.sums["deleted_rows"] / self.sums["file_rows"] if self.sums["file_rows"] else 0.0


async def get_status(lake: Lake, ctx: RequestContext) -> dict[str, Any]:
    await authorise(ctx, None)
    return (await status(lake.pool, lake.settings))[0]


async def get_table_health(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str) -> dict[str, Any]:
    await authorise(ctx, namespace, name)
    async with lake.read() as conn:
        table_id = await find_asked(conn, ctx, namespace, name)
    found = [table async for page in pages(lake.pool, lake.settings, only=table_id) for table in page]
    if not found:
        raise NoSuchTable(f"Table does not exist: {namespace}.{name}")
    return table_json(found[0], advise_table(found[0]))


async def list_health(lake: Lake, ctx: RequestContext, page: PageRequest) -> tuple[list[dict[str, Any]], str | None]:
    """Tables that need something, the worst first. A table whose numbers change between two pages may be on both, or on
    none."""
    await authorise(ctx, None)

    async def fetch(after: str | None, limit: int | None) -> list[Needy]:
        totals = await _count(lake.pool, lake.settings)
        behind = None if after is None else tuple(orjson.loads(after))
        return sorted((one for one in totals.needy if behind is None or _place(one) > behind), key=_place)[:limit]

    found, token = await lake.page([ctx.operation], page, fetch, lambda one: orjson.dumps(_place(one)).decode())
    return worst_first(found), token


async def _count(pool: Pool, settings: Settings, *, merging: bool = True) -> Totals:
    totals = Totals()
    async for page in pages(pool, settings, merging=merging):
        for table in page:
            totals.add(table)
    return totals


def worst_first(needy: Sequence[Needy]) -> list[dict[str, Any]]:
    return [table_json(table, advised) for _, table, advised in sorted(needy, key=_place)]


def _place(one: Needy) -> tuple[float, int]:
    return -one[0], one[1].table.id


async def status(pool: Pool, settings: Settings) -> tuple[dict[str, Any], list[Needy]]:
    """Of the catalog as a whole; and the tables that need something, which a command shows beside it. What else a
    server has to tell of itself is another part here."""
    whole, totals, number = await measure_all(pool, settings)
    async with one_state(pool) as conn:
        standing = await listener.status(conn, SHOWN_FAILURES)
        standing_of_jobs = await jobs.standing(conn)
    told: dict[str, Any] = {
        "server": {"version": __version__},
        "ducklake": {"version": whole.version, "created-by": whole.created_by},
        "namespaces": whole.schemas,
        "tables": whole.tables,
        "views": number,
        "snapshots": {
            "number": whole.snapshots,
            "oldest": {"snapshot-id": whole.oldest_id, "time": _time(whole.oldest_time)},
            "newest": {"snapshot-id": whole.newest_id, "time": _time(whole.newest_time)},
        },
        "scheduled-for-deletion": {"files": whole.scheduled_files, "since": _time(whole.scheduled_since)},
        **_numbers_json(totals.sums, totals.deleted_ratio),
        "listener": standing_json(standing),
        "jobs": standing_of_jobs,
        "tables-in-need": dict(totals.needs),
        "advice": advice_json(advise_catalog(whole)),
    }
    return told, totals.needy


async def measure_all(pool: Pool, settings: Settings, *, merging: bool = True) -> tuple[CatalogHealth, Totals, int]:
    """And the number of views, of both sides."""
    totals = await _count(pool, settings, merging=merging)
    async with one_state(pool) as conn:
        whole = await health.catalog(conn)
        return whole, totals, whole.views + await views.count_ours(conn)


async def pages(
    pool: Pool,
    settings: Settings,
    schema_name: str | None = None,
    only: int | None = None,
    *,
    merging: bool = True,
) -> AsyncGenerator[list[TableHealth]]:
    """Live tables in the order of their ids, all, or those of a schema, or one; never a connection held between."""
    after, is_last = -1, False

    async def look(conn: Conn) -> tuple[list[LiveTable], list[TableHealth]]:
        page = await health.tables(conn, after, schema_name, only)
        wished = await tables.values_of(conn, TARGET_SIZE, [table.id for table in page])
        targets = {table: table.target(health.number_of_bytes(wished.get(table.id))) for table in page}
        return page, await health.read(conn, settings.metadata_schema, targets, merging=merging)

    while not is_last:
        page, found = await health.settled(pool, look)
        yield found
        is_last = len(page) < health.TABLES_IN_A_PAGE
        after = page[-1].id if page else after


def table_json(table: TableHealth, advised: Sequence[Advice]) -> dict[str, Any]:
    return {
        "identifier": {"namespace": Namespace.of_schema(table.table.schema_name).levels, "name": table.table.name},
        "table-id": table.table.id,
        "target-file-size-bytes": table.target_bytes,
        **_numbers_json({name: getattr(table, name) for name in SUMMED}, table.deleted_ratio),
        "auto-compact": table.table.compacts,
        "advice": advice_json(list(advised)),
    }


def _numbers_json(numbers: dict[str, int], deleted_ratio: float) -> dict[str, Any]:
    return {
        "data-files": numbers["data_files"],
        "data-bytes": numbers["data_bytes"],
        "small-files": numbers["small_files"],
        "files-under-1-mib": numbers["tiny_files"],
        "mergeable-files": numbers["mergeable_files"],
        "merged-files": numbers["merged_files"],
        "rows": numbers["rows"],
        "delete-files": numbers["delete_files"],
        "delete-bytes": numbers["delete_bytes"],
        "deleted-rows": numbers["deleted_rows"],
        "deleted-rows-ratio": round(deleted_ratio, 6),
        "inlined-rows": numbers["inlined_rows"],
        "inlined-rows-ended": numbers["inlined_ended"],
        "inlined-deletes": numbers["inlined_deletes"],
        "historic-files": numbers["historic_files"],
        "historic-bytes": numbers["historic_bytes"],
    }


async def measured(pool: Pool, settings: Settings) -> dict[str, Any]:
    """For metrics: what the leading listener says of the lake in its report."""
    whole, totals, _ = await measure_all(pool, settings, merging=False)
    return {
        "measured-at": datetime.now(UTC).isoformat(),
        "tables": whole.tables,
        "snapshots": whole.snapshots,
        "scheduled-files": whole.scheduled_files,
        "data-files": totals.sums["data_files"],
        "data-bytes": totals.sums["data_bytes"],
        "small-files": totals.sums["small_files"],
        "inlined-rows": totals.sums["inlined_rows"],
        "deleted-rows-ratio": round(totals.deleted_ratio, 6),
    }


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
