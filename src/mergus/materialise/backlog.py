"""What a listener has to do, and how far it is: which tables wait, which failed, from which snapshot on some may be
missing on storage.

Nothing here waits or looks at a clock; whoever leads keeps one and brings it up to date. What must hold:

- A table that changed is worked on after the change was seen, however often it changed: changes coalesce.
- `missing_from` is never later than the first snapshot that some table lacks, failed tables aside.
- A failed table holds nothing up. It is tried again after a while, which grows, and soon when it changes.
- A table is worked on once at a time. Its older history is made beside that: what is newest does not wait for it.
- A table that was worked on a moment ago rests: in a burst, several commits are one piece of work.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from mergus.annex.listener import Failure
from mergus.ducklake.snapshots import Head
from mergus.errors import ServiceUnavailable, Unsupported

# Seconds after the first failure, and at most, by what it is: an outage ends without anybody telling us; what cannot be
# shown as Iceberg can be after a change, as a rule.
FIRST_RETRY: Final = 1.0
LAST_RETRY: Final = {ServiceUnavailable.type: 5.0, Unsupported.type: 900.0}
LAST_RETRY_OTHERWISE: Final = 60.0

# A table rests for as long as it was worked on, and not for longer than this.
LONGEST_REST: Final = 0.1


@dataclass(slots=True)
class _Table:
    id: int
    # the first snapshot that storage may lack, 0 if any; None if only what is no snapshot may have changed
    since: int | None = None
    works: bool = False
    began: float = 0.0
    # changed while it was worked on
    again: bool = False
    # older snapshots are being made
    behind: bool = False
    failure: Failure | None = None
    # the time at which it is to be worked on
    later: float = inf


@dataclass(slots=True)
class Backlog:
    # what is known of the lake
    seen: Head
    # of what is no snapshot, so much is on storage
    epoch: int
    is_wanted: Callable[[int], bool] = lambda _: False
    # to be written down
    failed: dict[int, Failure] = field(default_factory=dict[int, Failure])
    cured: set[int] = field(default_factory=set[int])
    _tables: dict[int, _Table] = field(default_factory=dict[int, _Table])
    # those to be worked on, in this order: what readers ask for, what changed, what only might have changed
    _queues: tuple[dict[int, None], dict[int, None], dict[int, None]] = field(default_factory=lambda: ({}, {}, {}))
    # those that are to be worked on at some time
    _later: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    # when tables were worked on, of those that rest still
    _rests: dict[int, float] = field(default_factory=dict[int, float])
    # those that have not been looked at since the epoch changed
    _unswept: set[int] = field(default_factory=set[int])

    @property
    def missing_from(self) -> int:
        """The first snapshot that storage may lack."""
        held = [t.since for t in self._tables.values() if t.since is not None]
        return min(held, default=self.seen.snapshot_id + 1)

    @property
    def numbers(self) -> dict[str, int]:
        tables = self._tables.values()
        return {
            "waiting": sum(map(len, self._queues)),
            "working": sum(t.works for t in tables),
            "history": sum(t.behind for t in tables),
            "failing": sum(t.failure is not None for t in tables),
        }

    def resume(self, failures: Iterable[Failure]) -> None:
        """What others could not do."""
        for failure in failures:
            table = self._table(failure.table_id)
            table.failure = failure
            self._wait(table)

    def changed(self, tables: Iterable[int], head: Head, now: float) -> None:
        """Tables that changed after what was seen, up to this head."""
        after = self.seen.snapshot_id
        self.seen = replace(head, epoch=self.seen.epoch)
        for table_id in tables:
            table = self._table(table_id)
            if table.failure is None and table.since is None:
                table.since = after + 1
            if table.failure is not None and not table.works:
                self._wait_until(table, min(table.later, now + FIRST_RETRY))
            else:
                self._rest(table, now)

    def sweep(self, tables: Iterable[int], head: Head, *, holds: bool) -> None:
        """Tables of which nobody knows whether they changed. `holds`: they may lack snapshots, too."""
        self.seen = head
        self._unswept = {*tables, *self._tables}
        for table_id in self._unswept:
            table = self._table(table_id)
            if holds:
                table.since = 0
            self._wait(table)
        self._swept()

    def take(self, now: float) -> int | None:
        """The next to be worked on."""
        while self._later and self._later[0][0] <= now:
            at, table_id = heapq.heappop(self._later)
            table = self._tables.get(table_id)
            if table is not None and table.later == at:
                table.later = inf
                self._wait(table)
        for queue in self._queues:
            if queue:
                table_id = next(iter(queue))
                del queue[table_id]
                table = self._tables[table_id]
                table.works, table.began = True, now
                return table_id
        return None

    @property
    def next_at(self) -> float | None:
        """When there will be something to take, if there is nothing now."""
        return self._later[0][0] if self._later else None

    def made(self, table_id: int, reached: Head, missing: int | None, now: float) -> bool:
        """A table was brought to a head, but for older snapshots from `missing` on; whether they have to be made."""
        table = self._tables[table_id]
        table.works = False
        self._rests = {i: until for i, until in self._rests.items() if until > now}
        self._rests[table_id] = now + min(now - table.began, LONGEST_REST)
        if table.again:
            table.again = False
            self._rest(table, now)
        elif missing is None:
            self._leave(table)
        if table.since:
            table.since = max(table.since, reached.snapshot_id + 1 if missing is None else missing)
        starts = missing is not None and not table.behind
        table.behind = table.behind or starts
        return starts

    def history_made(self, table_id: int) -> None:
        """It has to be told once more, with all that it lists now."""
        if (table := self._tables.get(table_id)) is not None:
            table.behind = False
            self._wait(table)

    def gone(self, table_id: int) -> None:
        """It has been dropped."""
        self._leave(self._tables[table_id])

    def went_wrong(self, table_id: int, kind: str, message: str, now: float, *, in_history: bool = False) -> Failure:
        table = self._table(table_id)
        changed = table.again and not in_history
        if in_history:
            table.behind = False
        else:
            table.works = table.again = False
        attempts = table.failure.attempts + 1 if table.failure else 1
        table.failure = self.failed[table_id] = Failure(table_id, kind, message, attempts)
        table.since = None
        self.cured.discard(table_id)
        self._swept(table_id)
        most = LAST_RETRY.get(kind, LAST_RETRY_OTHERWISE)
        later = FIRST_RETRY if changed else min(FIRST_RETRY * 2 ** min(attempts - 1, 20), most)
        self._wait_until(table, now + later)
        return table.failure

    def _table(self, table_id: int) -> _Table:
        return self._tables.setdefault(table_id, _Table(table_id))

    def _wait(self, table: _Table) -> None:
        if table.works:
            table.again = True
        elif not any(table.id in queue for queue in self._queues):
            rank = 0 if self.is_wanted(table.id) else 1 if table.since is not None else 2
            self._queues[rank][table.id] = None

    def _wait_until(self, table: _Table, at: float) -> None:
        if at != table.later:
            table.later = at
            heapq.heappush(self._later, (at, table.id))

    def _rest(self, table: _Table, now: float) -> None:
        until = self._rests.get(table.id, now)
        if until > now and not table.works:
            self._wait_until(table, min(table.later, until))
        else:
            self._wait(table)

    def _leave(self, table: _Table) -> None:
        del self._tables[table.id]
        self._swept(table.id)
        if table.failure is not None:
            self.failed.pop(table.id, None)
            self.cured.add(table.id)

    def _swept(self, table_id: int | None = None) -> None:
        if table_id is not None:
            self._unswept.discard(table_id)
        if not self._unswept:
            self.epoch = self.seen.epoch
