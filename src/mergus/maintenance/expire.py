"""Expiry of snapshots of the whole lake, through DuckLake's own function.

Nobody gives a name to a snapshot while others are being chosen and expire (`annex.tags.hold_names`). A table's rows and
files go only when no snapshot that is left shows them; they are removed after a while, as after a compaction.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from mergus.annex import policies, tags
from mergus.annex.policies import Properties
from mergus.ducklake import expiry
from mergus.ducklake.expiry import Kept, Rule
from mergus.ducklake.upkeep import GaveWay
from mergus.faults import point
from mergus.maintenance.compact import clean_up
from mergus.maintenance.policy import ICEBERGS, KEEP_MS, KEEP_SNAPSHOTS, PREFIX, whole
from mergus.maintenance.work import PutOff, Work

AT_ONCE: Final = 500
WAIT: Final = 2.0


async def expire(work: Work) -> None:
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
