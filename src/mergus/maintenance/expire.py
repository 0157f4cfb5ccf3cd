"""Expiry of snapshots through DuckLake's own function: of the whole lake, or of those that one table has removed.

Nobody gives a name to a snapshot while others are being chosen and expire (`annex.tags.hold_names`). A table's rows and
files go only when no snapshot that is left shows them; they are removed after a while, as after a compaction.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from mergus.annex import iceberg_tables, jobs, policies, tags
from mergus.annex.policies import Properties
from mergus.ducklake import expiry
from mergus.ducklake.expiry import Kept, Rule
from mergus.ducklake.upkeep import GaveWay
from mergus.faults import point
from mergus.maintenance.cleaning import sweep_garbage
from mergus.maintenance.compact import clean_up
from mergus.maintenance.policy import ICEBERGS, KEEP_MS, KEEP_SNAPSHOTS, PREFIX, whole
from mergus.maintenance.work import PutOff, Work

AT_ONCE: Final = 500
WAIT: Final = 2.0


async def expire(work: Work) -> None:
    if jobs.FREE in work.job.options:
        await _free(work)
    elif work.job.table_id is not None:
        await _expire_removed(work, work.job.table_id)
    else:
        await _expire_lake(work)


async def _free(work: Work) -> None:
    """What has expired, or was purged, for as long as readers are given: DuckLake's files, and those on our side."""
    work.add(cleaned_files=await clean_up(work))
    await sweep_garbage(work)


async def _expire_removed(work: Work, table_id: int) -> None:
    """Snapshots that the table's writers have taken out of its list."""
    while True:
        async with tags.hold_names(work.conn) as held:
            if not held:
                raise PutOff(WAIT)
            removed = await iceberg_tables.removed_snapshots(work.conn, table_id)
            found = await expiry.removable(work.conn, table_id, removed, await tags.protected(work.conn))
            await work.say(expirable=len(found))
            if not found:
                break
            going = found[:AT_ONCE]
            # what was taken out of the list does not come back into it under another id
            for snapshot_id in await expiry.followers(work.conn, table_id, going):
                await iceberg_tables.remove_snapshot(work.conn, table_id, snapshot_id)
            try:
                work.add(expired=await work.upkeep.expire(going))
            except GaveWay:
                raise PutOff(WAIT) from None
            point("job.step")
        if work.has_had_its_time:
            raise PutOff(0)
    if work.progress.get("expired"):
        await jobs.ask_to_free(work.conn, work.job.asked_by, work.settings.grace_seconds)


async def _expire_lake(work: Work) -> None:
    now = datetime.now(UTC)
    properties = await policies.read(work.conn, PREFIX, ICEBERGS)
    kept, unclear = _kept(properties)
    if unclear:
        work.progress["unclear"] = unclear
    before = _before(work, now)
    retain_last = int(work.job.options.get("retain-last", 1))
    while True:
        async with tags.hold_names(work.conn) as held:
            if not held:
                raise PutOff(WAIT)
            named = await tags.protected(work.conn)
            rule = Rule(now, before, retain_last, named, kept)
            found = await expiry.expirable(expiry.read(work.conn), rule)
            await work.say(expirable=len(found))
            if work.is_dry or not found:
                break
            try:
                work.add(expired=await work.upkeep.expire(found[:AT_ONCE]))
            except GaveWay:
                raise PutOff(WAIT) from None
            point("job.step")
        if work.has_had_its_time:
            raise PutOff(0)
    work.add(cleaned_files=await clean_up(work))
    await work.say()


def _before(work: Work, now: datetime) -> datetime:
    older_than = work.job.options.get("older-than")
    if older_than is not None:
        return datetime.fromisoformat(older_than)
    return now - timedelta(seconds=work.job.options.get("older-than-seconds", 0))


def _kept(properties: Properties) -> tuple[dict[int, Kept], list[str]]:
    """What tables want, and which wishes make no sense: such a table keeps everything."""
    kept: dict[int, Kept] = {}
    unclear: list[str] = []
    for table_id, wishes in properties.by_table.items():
        try:
            least = whole(KEEP_SNAPSHOTS, wishes.get(KEEP_SNAPSHOTS, "1"), least=0)
            age = None if KEEP_MS not in wishes else timedelta(milliseconds=whole(KEEP_MS, wishes[KEEP_MS], least=0))
        except (ValueError, OverflowError) as e:
            unclear.append(str(e))
            least, age = 2**63, None
        kept[table_id] = Kept(least, age)
    return kept, unclear
