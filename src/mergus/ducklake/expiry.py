"""Which snapshots of the lake may expire.

They are all tables' at once, so one stays for as long as any table, or anybody who has given it a name, wants it. Of
each table that lives the newest stays, as Iceberg has it: readers that follow a table by its snapshots would lose their
place otherwise.

A writer of one table may take its snapshots out of the table's list (`remove-snapshots`). Those of the lake expire with
them as far as that is the table's own affair: no other table changed there, nobody has named one, a dropped table does
not come back by it (ducklake/dropped.py), and what all other tables were then is still to be had at another snapshot.
"""

from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mergus.ducklake.changes import is_alone, tables_named
from mergus.ducklake.connect import Conn

SNAPSHOTS: Final = """
    SELECT s.snapshot_id, s.snapshot_time, c.changes_made
    FROM ducklake_snapshot s LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id
    ORDER BY s.snapshot_id DESC
"""
# A table that was made, renamed or brought back is named by its name there.
BEGUN: Final = "SELECT table_id, begin_snapshot FROM ducklake_table WHERE end_snapshot IS NULL"
AT_ONCE: Final = 10_000
# From the one before the oldest on that may go.
RECENT: Final = """
    SELECT s.snapshot_id, c.changes_made
    FROM ducklake_snapshot s LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id
    WHERE s.snapshot_id >= (SELECT min(snapshot_id) FROM ducklake_snapshot WHERE snapshot_id = ANY(%(removed)s)) - 1
    ORDER BY s.snapshot_id
"""
FOLLOWING: Final = """
    SELECT DISTINCT f.snapshot_id, c.changes_made
    FROM unnest(%(going)s::bigint[]) AS g(snapshot_id),
         LATERAL (SELECT min(s.snapshot_id) AS snapshot_id FROM ducklake_snapshot s
                  WHERE s.snapshot_id > g.snapshot_id AND NOT s.snapshot_id = ANY(%(going)s::bigint[])) AS f
    LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = f.snapshot_id
    WHERE f.snapshot_id IS NOT NULL
"""
BEFORE_DROPS: Final = "SELECT DISTINCT end_snapshot - 1 FROM ducklake_table WHERE end_snapshot IS NOT NULL"
IS_LIVE: Final = "SELECT EXISTS (SELECT FROM ducklake_table WHERE table_id = %(table_id)s AND end_snapshot IS NULL)"


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


async def removable(conn: Conn, table_id: int, removed: AbstractSet[int], named: AbstractSet[int]) -> list[int]:
    """Which of the snapshots that a table does not list any more may expire, the oldest first."""
    ((is_live,),) = await (await conn.execute(IS_LIVE, {"table_id": table_id})).fetchall()
    if not is_live or not removed:
        return []
    kept = named | {row[0] for row in await (await conn.execute(BEFORE_DROPS)).fetchall()}
    rows = await (await conn.execute(RECENT, {"removed": sorted(removed)})).fetchall()
    return choose_removable(rows, table_id, removed - kept)


async def followers(conn: Conn, table_id: int, going: Sequence[int]) -> list[int]:
    """Snapshots that come next after some that go, and in which the table did not change: what those did would be
    listed as theirs."""
    rows = await (await conn.execute(FOLLOWING, {"going": list(going)})).fetchall()
    return [snapshot_id for snapshot_id, words in rows if table_id not in tables_named(words)]


def choose_removable(
    snapshots: Iterable[tuple[int, str | None]], table_id: int, removed: AbstractSet[int]
) -> list[int]:
    """`snapshots` are the lake's with their words, the oldest first, to the newest. Of those that follow each other and
    between which only this table changed, one stays at least: it shows what all others were."""
    alike: list[list[tuple[int, bool]]] = []
    newest, last = None, None
    for snapshot_id, words in snapshots:
        alone = is_alone(table_id, words)
        if table_id in tables_named(words):
            newest = snapshot_id
        if not alone or last is None or snapshot_id != last + 1:
            alike.append([])
        alike[-1].append((snapshot_id, alone and snapshot_id in removed))
        last = snapshot_id
    found: list[int] = []
    for group in alike:
        going = [i for i, may_go in group if may_go and i not in {newest, last}]
        found.extend(going[:-1] if len(going) == len(group) else going)
    return found


def _wants(rule: Rule, table_id: int, number: int, time: datetime) -> bool:
    kept = rule.tables.get(table_id, Kept())
    return number <= max(kept.least, 1) or (kept.age is not None and time > rule.now - kept.age)
