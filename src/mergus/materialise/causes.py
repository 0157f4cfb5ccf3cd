"""Which commits the listener's work on a table follows from, so that it goes on with their traces.

A table waits while it is worked on, and in a burst: several snapshots may be done by one piece of work. One that fails
is tried again for the same ones. While traces are off nothing is noted here.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from mergus import tracing
from mergus.ducklake.snapshots import Made
from mergus.tracing import Span

# Of the snapshots since the last look, and of those that a table waits for, the newest so many.
MOST_MADE: Final = 1000
MOST_CAUSES: Final = 100
SPAN: Final = "materialise table"


@dataclass(slots=True)
class Causes:
    # of each table, newest first
    _waiting: dict[int, list[Made]] = field(default_factory=dict[int, list[Made]])
    _working: dict[int, list[Made]] = field(default_factory=dict[int, list[Made]])

    def note(self, made: Sequence[Made], named: Collection[int]) -> None:
        """Snapshots newer than those before, newest first; `named` are the tables that will be worked on."""
        for snapshot in reversed(made):
            for table_id in snapshot.tables.intersection(named):
                waiting = self._waiting.setdefault(table_id, [])
                waiting.insert(0, snapshot)
                del waiting[MOST_CAUSES:]

    def working(self, table_id: int) -> AbstractContextManager[Span]:
        """Work on a table, which does all that it waits for."""
        causes = self._waiting.pop(table_id, []) + self._working.pop(table_id, [])
        if causes:
            self._working[table_id] = causes[:MOST_CAUSES]
        return tracing.work(SPAN, [(c.snapshot_id, c.trace) for c in causes], {"mergus.table.id": table_id})

    def done(self, table_id: int) -> None:
        """What it was worked on for need not be done again."""
        self._working.pop(table_id, None)
