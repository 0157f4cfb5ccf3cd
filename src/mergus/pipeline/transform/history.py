"""What has happened to a table since a step read it last, as its metadata tells it.

Snapshots that only append are what Iceberg's incremental scan reads. It does so by files, and without deletes: rows of
a file that DuckLake has merged since are older or younger than the snapshot that lists it. So it may be believed only
if it gives as many rows as the table has grown by; else, and after any other change, the two states are compared.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

APPENDS: Final = frozenset({"append", "replace"})

Kind = Literal["nothing", "first", "appends", "mixed", "lost"]


@dataclass(frozen=True)
class Span:
    """`start` is what was read last, `end` what is there now: ids of snapshots, None where there was or is none.

    nothing     the same snapshot
    first       nothing was read before: all rows are new
    appends     rows were only added, `grown` of them
    mixed       rows were changed or deleted, too
    lost        the snapshot that was read is not in the table's history any more
    """

    kind: Kind
    start: int | None
    end: int | None
    grown: int | None = None


def span(metadata: dict[str, Any], start: int | None) -> Span:
    """From the metadata of a table as REST gives it."""
    by_id: dict[int, dict[str, Any]] = {one["snapshot-id"]: one for one in metadata.get("snapshots", [])}
    end = metadata.get("current-snapshot-id")
    end = end if end in by_id else None
    if start == end:
        return Span("nothing", start, end)
    if start is None:
        return Span("first", None, end)
    between: list[dict[str, Any]] = []
    at = end
    while at is not None and at != start and at in by_id:
        between.append(by_id[at])
        at = by_id[at].get("parent-snapshot-id")
    if at != start or start not in by_id:
        return Span("lost", start, end)
    if {one["summary"]["operation"] for one in between} <= APPENDS:
        rows = [_total(by_id[one]) for one in (start, end) if one is not None]
        if all(count is not None for count in rows):
            return Span("appends", start, end, (rows[-1] or 0) - (rows[0] or 0))
    return Span("mixed", start, end)


def _total(snapshot: dict[str, Any]) -> int | None:
    told = snapshot["summary"].get("total-records")
    return None if told is None else int(told)
