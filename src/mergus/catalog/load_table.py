"""LoadTable: freshness check → cached bytes, or materialise what is missing → bytes."""

import asyncio
import hashlib
import time
from typing import Final

import orjson

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.catalog import delegation
from mergus.catalog.find import find_asked
from mergus.catalog.lake import Lake
from mergus.catalog.served_tables import PastKey, ServedTables
from mergus.catalog.table_cache import Answer, Body, Snapshots
from mergus.ducklake.snapshots import Head, exists, latest_ms
from mergus.ducklake.told import LEAST_CLIENT_ID
from mergus.errors import NoSuchSnapshot, ServiceUnavailable, Unsupported
from mergus.iceberg.metadata import TableMetadata
from mergus.iceberg.namespace import Namespace
from mergus.materialise.metadata import earlier, refs_only, render
from mergus.materialise.metadata_file import Written, write_past
from mergus.materialise.past import as_at, is_there
from mergus.materialise.reading import changed_at
from mergus.materialise.table import Materialised

# DuckDB's iceberg extension takes the last snapshot of the log that is not later than its own clock says.
GOES_BY_ITS_CLOCK: Final = "duckdb/"
CLOCK_TOLERANCE_MS: Final = 10_000
# Longer lists of snapshots are rendered in a thread.
RENDERED_AT_ONCE: Final = 100
# How long one who asks for a certain snapshot waits for history to be made.
HISTORY_SECONDS: Final = 10.0


async def load_table(
    lake: Lake,
    ctx: RequestContext,
    namespace: Namespace,
    name: str,
    snapshots: Snapshots,
    snapshot_id: int | None,
) -> Body:
    """As it is now; or as it was at the snapshot that the request is about, or at one before that it names."""
    await authorise(ctx, namespace, name)
    served = await lake.tables()
    # asked before the lake is looked at: the answer then knows of it
    is_clients = snapshot_id is not None and snapshot_id >= LEAST_CLIENT_ID
    known = is_clients or (snapshot_id is not None and await _exists(lake, snapshot_id))
    head = await served.look()
    if ctx.at is None:
        table_id = await served.resolve(namespace, name, head)
    else:
        async with lake.read() as conn:
            table_id = await find_asked(conn, ctx, namespace, name)
    early = _goes_by_its_clock(ctx)
    if snapshot_id is not None:
        if not known:
            raise NoSuchSnapshot(f"Snapshot {snapshot_id} does not exist, or has expired")
        if is_clients:
            table = await served.past(table_id, head, head.snapshot_id if ctx.at is None else ctx.at)
            snapshot_id = _in_the_lake(table, snapshot_id)
        if ctx.at is not None and snapshot_id > ctx.at:
            raise NoSuchSnapshot(f"Snapshot {snapshot_id} is later than {ctx.at}")
    at = ctx.at if snapshot_id is None else snapshot_id
    if at is None:
        answer = await served.answer(table_id, head)
        body = await _body(answer, snapshots, early=early)
        return await with_access(lake, ctx, body, answer.table, head, (namespace, name))
    body = await _past_body(lake, served, head, (table_id, at, snapshots, early), has_rows=snapshot_id is not None)
    if body is None:
        raise NoSuchSnapshot(f"Table {namespace}.{name} has no rows at snapshot {at}")
    if not delegation.is_asked(lake, ctx):
        return body
    return await with_access(lake, ctx, body, await served.past(table_id, head, at), head, (namespace, name))


async def with_access(
    lake: Lake,
    ctx: RequestContext,
    body: Body,
    table: Materialised,
    head: Head,
    named: tuple[Namespace, str] | None = None,
) -> Body:
    """The same, with what the client asks for to reach the table's files."""
    return delegation.put_into(body, await delegation.of_table(lake, ctx, table, head, named), lake.delegated)


async def _exists(lake: Lake, snapshot_id: int) -> bool:
    async with lake.read() as conn:
        return await exists(conn, snapshot_id)


def _in_the_lake(table: Materialised, snapshot_id: int) -> int:
    """The lake's number of a snapshot that a client made."""
    for snapshot in table.reading.known.snapshots:
        if snapshot.iceberg_id == snapshot_id:
            return snapshot.id
    raise NoSuchSnapshot(f"Snapshot {snapshot_id} does not exist, or has expired")


async def _past_body(lake: Lake, served: ServedTables, head: Head, key: PastKey, *, has_rows: bool) -> Body | None:
    """The table as it was at a snapshot of the lake. With `has_rows` None if it had no snapshot then."""
    table_id, at, snapshots, early = key
    deadline = time.monotonic() + HISTORY_SECONDS
    while True:
        table = await served.past(table_id, head, at)
        if (kept := served.past_body(key, table.reading.head)) is not None:
            return kept
        reading = table.reading
        if has_rows and not reading.view.table.was_there(at):
            return None
        async with lake.read() as conn:
            updated_ms = await latest_ms(conn, changed_at(reading.turns, reading.known.snapshots, at))
        then = as_at(table, at, updated_ms)
        if is_there(then):
            break
        if table.missing_from is None:
            raise Unsupported(f"At snapshot {at} the table cannot be shown as Iceberg")
        if time.monotonic() > deadline:
            raise ServiceUnavailable("The table's history is still being made; try again")
        if reading.view.table.dropped_at is None:
            await served.complete(table_id, deadline - time.monotonic())
        # it may have failed at once, and would again
        await asyncio.sleep(0.05)
        head = await served.look()
    if has_rows and then.reading.main is None:
        return None
    written = await write_past(served.materialiser.objects, then)
    body = await asyncio.to_thread(_render, written, snapshots, early)
    served.keep_past_body(key, reading.head, body)
    return body


async def body_of(ctx: RequestContext, answer: Answer) -> Body:
    """What LoadTable would send to this client."""
    return await _body(answer, "all", early=_goes_by_its_clock(ctx))


async def load_cached(
    lake: Lake, ctx: RequestContext, namespace: Namespace, name: str, snapshots: Snapshots
) -> Body | None:
    """The same, if it needs nothing but the freshness check; None if it needs more."""
    served = lake.tables_if_known
    if served is None or delegation.is_asked(lake, ctx):
        return None
    await served.look()
    rights = lake.known_rights(ctx.principal)
    if rights is None or not namespace.can_exist:
        return None
    ctx.rights = rights
    table_id = served.cache.table_id(namespace.schema_name, name)
    answer = None if table_id is None else served.cache.answer(table_id)
    if answer is None:
        return None
    await authorise(ctx, namespace, name)
    return answer.bodies.get((snapshots, _goes_by_its_clock(ctx)))


def _goes_by_its_clock(ctx: RequestContext) -> bool:
    return (ctx.user_agent or "").startswith(GOES_BY_ITS_CLOCK)


async def _body(answer: Answer, snapshots: Snapshots, *, early: bool) -> Body:
    key = (snapshots, early)
    if key not in answer.bodies:
        long = len(answer.written.metadata.snapshots) > RENDERED_AT_ONCE
        written = answer.written
        answer.bodies[key] = await asyncio.to_thread(_render, written, *key) if long else _render(written, *key)
    return answer.bodies[key]


def _render(written: Written, snapshots: Snapshots, early: bool) -> Body:
    described = written.metadata
    shown = refs_only(described) if snapshots == "refs" else described
    return rendered(written.location, earlier(shown, CLOCK_TOLERANCE_MS) if early else shown)


def rendered(location: str | None, described: TableMetadata) -> Body:
    """As LoadTable and CreateTable answer; a table that is only staged has no metadata file."""
    found = {} if location is None else {"metadata-location": location}
    plain = orjson.dumps({**found, "metadata": orjson.Fragment(render(described)), "config": {}})
    return Body(hashlib.sha256(plain).hexdigest()[:32], plain)
