"""What has happened to a table since a step read it last, as its metadata tells it: without reading a row."""

from dataclasses import dataclass
from typing import Any, Literal

from mergus.pipeline.transform.state import UNCHANGING, Read, lineage

Kind = Literal["nothing", "first", "appends", "mixed", "lost"]


@dataclass(frozen=True)
class Span:
    """`start` is what was read last, `end` what is there now: ids of snapshots, None where there was or is none.

    nothing     the same rows, if not the same snapshot
    first       nothing was read before: all rows are new
    appends     rows were only added
    mixed       rows were changed or deleted, too
    lost        the snapshot that was read is not in the table's history any more
    """

    kind: Kind
    start: int | None
    end: int | None


def span(metadata: dict[str, Any], read: Read | None) -> Span:
    """From the metadata of a table as REST gives it, and what was read of it."""
    lines = list(lineage(metadata))
    end: int | None = lines[0]["snapshot-id"] if lines else None
    start = None if read is None else read.snapshot
    if read is not None and read.uuid != metadata["table-uuid"]:
        return Span("lost", start, end)
    if start == end:
        return Span("nothing", start, end)
    if start is None:
        return Span("first", None, end)
    operations: set[str] = set()
    for snapshot in lines:
        if snapshot["snapshot-id"] == start:
            break
        operations.add(snapshot["summary"]["operation"])
    else:
        return Span("lost", start, end)
    if operations <= UNCHANGING:
        return Span("nothing", start, end)
    return Span("appends" if operations <= UNCHANGING | {"append"} else "mixed", start, end)
