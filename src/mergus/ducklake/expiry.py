"""Which snapshots of the lake may expire.

They are all tables' at once, so one stays for as long as any table, or anybody who has given it a name, wants it. Of
each table that lives the newest stays, as Iceberg has it: readers that follow a table by its snapshots would lose their
place otherwise.
"""

from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mergus.ducklake.changes import tables_named
from mergus.ducklake.connect import Conn

SNAPSHOTS: Final = """
    SELECT s.snapshot_id, s.snapshot_time, c.changes_made
    FROM ducklake_snapshot s LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id
    ORDER BY s.snapshot_id DESC
"""
# A table that was made, renamed or brought back is named by its name there.
BEGUN: Final = "SELECT table_id, begin_snapshot FROM ducklake_table WHERE end_snapshot IS NULL"
AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Seen:
    id: int
    time: datetime
    tables: frozenset[int]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a table wants of its own past."""

    least: int = 1
    age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Those before `before`, but for the last so many of the lake, those that are `named`, and what tables want."""

    now: datetime
    before: datetime
    retain_last: int
    named: AbstractSet[int]
    tables: Mapping[int, Kept]


async def read(conn: Conn) -> AsyncIterator[Seen]:
    """All snapshots, the newest first, with the tables that each changed and that live."""
    begun: dict[int, set[int]] = {}
    live: set[int] = set()
    for table_id, begin in await (await conn.execute(BEGUN)).fetchall():
        begun.setdefault(begin, set()).add(table_id)
        live.add(table_id)
    async with conn.transaction(), conn.cursor("snapshots") as cursor:
        cursor.itersize = AT_ONCE
        await cursor.execute(SNAPSHOTS)
        async for snapshot_id, time, words in cursor:
            yield Seen(snapshot_id, time, frozenset((tables_named(words) & live) | begun.get(snapshot_id, set())))


async def expirable(snapshots: AsyncIterable[Seen], rule: Rule) -> list[int]:
    """The oldest first."""
    found: list[int] = []
    passed: Counter[int] = Counter()
    number = 0
    async for snapshot in snapshots:
        number += 1
        passed.update(snapshot.tables)
        if (
            number > max(rule.retain_last, 1)
            and snapshot.time < rule.before
            and snapshot.id not in rule.named
            and not any(_wants(rule, table_id, passed[table_id], snapshot.time) for table_id in snapshot.tables)
        ):
            found.append(snapshot.id)
    return found[::-1]


def _wants(rule: Rule, table_id: int, number: int, time: datetime) -> bool:
    kept = rule.tables.get(table_id, Kept())
    return number <= max(kept.least, 1) or (kept.age is not None and time > rule.now - kept.age)
