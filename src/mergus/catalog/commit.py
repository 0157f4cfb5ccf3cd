"""Commits of Iceberg's clients: plan → lock → is the plan still right? → write → commit → answer.

    commit_table          one table; with assert-create, the one that it was promised
    commit_transaction    many, all or nothing

A plan holds for one state of its table. If something has happened to the table since, it is made again: either it
comes out the same, or a requirement does not hold any more and the client is told so (409), loads the table and tries
again. The last attempt is made under the lock, so that a table that changes all the time is committed to all the same.

A client that did not hear the answer sends the same commit again: its snapshot is there already, and that is the answer
(H43).
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.access.privileges import CREATE, SEE, WRITE
from mergus.annex import jobs, staged
from mergus.catalog import table_places
from mergus.catalog.commit_plan import Change, Plan, plan
from mergus.catalog.commit_write import write
from mergus.catalog.find import find_schema, find_table
from mergus.catalog.lake import Lake
from mergus.catalog.load_table import body_of
from mergus.catalog.locations import OthersMatter, TablePlaces
from mergus.catalog.names import find_clash, taken
from mergus.catalog.table_cache import Answer, Body
from mergus.catalog.table_places import Claims
from mergus.ducklake.commit import Commit
from mergus.ducklake.snapshots import Head
from mergus.ducklake.told import Committed
from mergus.ducklake.unchanged import is_unchanged
from mergus.errors import (
    ApiError,
    BadRequest,
    CommitFailed,
    CommitStateUnknown,
    InTheWay,
    NoSuchTable,
)
from mergus.faults import point
from mergus.logs import log
from mergus.materialise.metadata import is_gc_enabled, location_of
from mergus.materialise.table import Materialised
from mergus.metrics import COMMIT_STAGES
from mergus.storage.location import Location

ATTEMPTS: Final = 8


class _Moved(Exception):
    """Something happened to a table between the plan and the lock."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """`since` is the state of the lake that the plan was made against."""

    plan: Plan
    since: Head
    table_id: int | None
    claims: Claims


async def commit_table(lake: Lake, ctx: RequestContext, change: Change) -> Body:
    await _authorise(ctx, change)
    (table_id,) = await _commit(lake, ctx, [change])
    return await committed_body(lake, ctx, table_id)


async def commit_transaction(lake: Lake, ctx: RequestContext, changes: Sequence[Change]) -> None:
    if not changes:
        # there is nothing to do, and nothing but the catalog that it could be about
        await authorise(ctx, None, needs=SEE)
    for change in changes:
        await _authorise(ctx, change)
    names = [(change.namespace, change.name) for change in changes]
    if len(set(names)) < len(names):
        raise BadRequest("The transaction changes a table twice; put all of its updates into one change")
    await _commit(lake, ctx, changes)


async def _authorise(ctx: RequestContext, change: Change) -> None:
    await authorise(ctx, change.namespace, change.name, CREATE if change.creates else WRITE)


async def committed_body(lake: Lake, ctx: RequestContext, table_id: int) -> Body:
    """The table after the commit. It has happened, whatever goes wrong from here on."""
    try:
        with COMMIT_STAGES.labels("shown").time():
            served = await lake.tables()
            return await body_of(ctx, await served.answer(table_id, await served.look()))
    except ApiError as e:
        # be it only that somebody has dropped the table since: a client that hears of a refusal deletes its files
        raise CommitStateUnknown(f"The commit has been made, but its result cannot be shown: {e.message}") from e


async def _commit(lake: Lake, ctx: RequestContext, changes: Sequence[Change]) -> list[int]:
    """The ids of the tables, in order."""
    for _ in range(ATTEMPTS):
        try:
            async with cleared(lake) as litter:
                with COMMIT_STAGES.labels("planned").time():
                    planned = [await _plan(lake, change, litter) for change in changes]
                if (done := _done(planned)) is not None:
                    ctx.table_id = next(iter(done), None)
                    return done
                point("commit.planned")
                async with lake.commit(ctx) as tx:
                    return await _write(tx, ctx, lake, planned, litter)
        except _Moved:
            log.info("a table changed while a commit to it was planned; planned again")
        except InTheWay as e:
            log.info("a commit is tried again: %s", e.message)
    try:
        async with cleared(lake) as litter, lake.commit(ctx) as tx:
            planned = [await _plan(lake, change, litter) for change in changes]
            if (done := _done(planned)) is not None:
                ctx.table_id = next(iter(done), None)
                return done
            return await _write(tx, ctx, lake, planned, litter)
    except _Moved:
        raise CommitFailed("The table changes faster than a commit to it can be planned; try again") from None


@asynccontextmanager
async def cleared(lake: Lake) -> AsyncGenerator[list[Location]]:
    """For what is written to storage on the way: nobody needs it if the commit is not made. Who is cancelled does not
    know whether it was."""
    litter: list[Location] = []
    try:
        yield litter
    except CommitStateUnknown:
        raise
    except Exception:
        for location in litter:
            with suppress(ApiError):
                await lake.objects.delete(location)
        raise


async def _write(
    tx: Commit, ctx: RequestContext, lake: Lake, planned: Sequence[_Planned | int], litter: list[Location]
) -> list[int]:
    ready = [p for p in planned if isinstance(p, _Planned)]
    for p in ready:
        await _check(tx, p)
    await table_places.check_claims(tx.conn, [p.claims for p in ready])
    point("commit.locked")
    place = (await lake.tables()).materialiser.place
    ids = await write(tx, lake.objects, place, [p.plan for p in ready], litter)
    for table_id, p in zip(ids, ready, strict=True):
        if p.plan.update.snapshots_removed and p.plan.table is not None and _is_gc_enabled(p.plan, p.plan.table):
            await jobs.ask(tx.conn, "expire", None, table_id, {}, ctx.principal.name)
    ctx.table_id = ids[0]
    return ids


def _is_gc_enabled(plan: Plan, table: Materialised) -> bool:
    return is_gc_enabled({**table.reading.properties, **plan.update.set_properties}, location_of(table))


def _done(planned: Sequence[_Planned | int]) -> list[int] | None:
    """The tables, if there is nothing to do. Raises if a part of a transaction is there and another is not."""
    done = [p for p in planned if isinstance(p, int)]
    if len(done) == len(planned):
        return done
    if done:
        raise CommitFailed("A part of the transaction has been committed before, by another commit")
    return None


async def _plan(lake: Lake, change: Change, litter: list[Location]) -> _Planned | int:
    """The table's id if the commit has been made before."""
    served = await lake.tables()
    head = await served.look()
    try:
        table_id = await served.resolve(change.namespace, change.name, head)
    except NoSuchTable:
        return await _plan_new(lake, head, change, litter)
    answer = await served.answer(table_id, head)
    if _is_done(change, answer):
        return table_id
    places = await table_places.of_table(lake, answer.table)
    made = await _planned(lake, change, answer, places, litter)
    # An older answer held at `head` still; a rename between the two has no word that names the table.
    since = max(answer.head, head, key=lambda h: (h.epoch, h.snapshot_id))
    return _Planned(made, since, table_id, Claims.of(table_id, places, made.update))


async def _planned(
    lake: Lake, change: Change, answer: Answer | None, places: TablePlaces, litter: list[Location]
) -> Plan:
    """With every place that the client names looked at; those of other tables only if they matter."""
    try:
        return await _placed(lake, change, answer, places, litter)
    except OthersMatter:
        table_id = None if answer is None else answer.table.reading.view.table.id
        return await _placed(lake, change, answer, await table_places.among_others(lake, places, table_id), litter)


async def _placed(
    lake: Lake, change: Change, answer: Answer | None, places: TablePlaces, litter: list[Location]
) -> Plan:
    table, shown = (None, None) if answer is None else (answer.table, answer.written.metadata)
    made = await plan(lake, change, table, shown, places, litter)
    table_places.check_update(places, made.update)
    return made


async def _plan_new(lake: Lake, head: Head, change: Change, litter: list[Location]) -> _Planned:
    if not change.creates:
        async with lake.read() as conn:
            # which says precisely what is not there
            await find_table(conn, change.namespace, change.name)
    if change.uuid is None:
        raise BadRequest("A commit that creates a table has to say its uuid (assign-uuid)")
    async with lake.read() as conn:
        await find_schema(conn, change.namespace)
        promised = await staged.find(
            conn, UUID(change.uuid), change.namespace.schema_name, change.name, lake.settings.staged_seconds
        )
    if promised is None:
        raise CommitFailed(f"Table {change.namespace}.{change.name} was not staged with this uuid, or too long ago")
    places = await table_places.of_new(lake, UUID(change.uuid), change.namespace.schema_name, promised)
    made = await _planned(lake, change, None, places, litter)
    return _Planned(made, head, None, Claims.of(None, places, made.update))


def _is_done(change: Change, answer: Answer) -> bool:
    """Whether all snapshots of the commit are there already; or, of one without any, the table that it creates."""
    known = {s.iceberg_id for s in answer.table.reading.known.snapshots if isinstance(s.told, Committed)}
    wanted = change.snapshot_ids
    if wanted:
        return all(snapshot_id in known for snapshot_id in wanted)
    return change.creates and change.uuid == str(answer.table.reading.view.table.uuid)


async def _check(tx: Commit, p: _Planned) -> None:
    change = p.plan.change
    if p.table_id is not None:
        if not await is_unchanged(tx.conn, p.table_id, p.since):
            raise _Moved
        return
    schema = await find_schema(tx.conn, change.namespace)
    if clash := await find_clash(tx.conn, schema.schema_id, change.name):
        if clash.startswith("view "):
            raise taken(change.namespace, change.name, clash)
        # as the requirement has it: a client that creates or replaces tries again
        raise CommitFailed(f"Requirement failed: table already exists: {clash} in {change.namespace}")
    assert change.uuid is not None  # noqa: S101  (planned so)
    await staged.forget(tx.conn, UUID(change.uuid))
