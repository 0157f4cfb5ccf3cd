"""What the lake has already of a table that is to be imported: by this a run that was cut short goes on, and one that
is repeated does nothing.

An import leaves properties on the table, in the commit that makes it, so that they outlive its snapshots. A table that
was registered gets them right after; until then it is known by its uuid, which is the source's.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from mergus.pipeline.imports.connector import Described

FROM: Final = "imported-from"
SNAPSHOT: Final = "imported-snapshot"
HOW: Final = "imported-how"
# Of snapshots: this job's own, and that of registering.
MARKS: Final = ("mergus.import", "mergus.registered-from")

How = Literal["register", "files", "copy"]
# free: there is none; begun: registered, but not marked; done: the same state; changed: the source has gone on;
# foreign: it is another table
Standing = Literal["free", "begun", "done", "changed", "foreign"]


def standing(metadata: Mapping[str, Any], source: Described) -> Standing:
    """`metadata` is that of the table in the lake; empty if there is none."""
    if not metadata:
        return "free"
    properties: Mapping[str, str] = metadata.get("properties", {})
    if properties.get(FROM) == source.identity:
        return "done" if properties.get(SNAPSHOT) == (source.snapshot or "") else "changed"
    if source.uuid is not None and metadata["table-uuid"] == source.uuid:
        known = {str(snapshot["snapshot-id"]) for snapshot in metadata.get("snapshots", ())}
        return "begun" if source.snapshot is None or source.snapshot in known else "changed"
    return "foreign"


def marks(source: Described, snapshot: str | None, how: How) -> dict[str, str]:
    return {FROM: source.identity, SNAPSHOT: snapshot or "", HOW: how}


def is_touched(metadata: Mapping[str, Any]) -> bool:
    """Whether somebody has written to the table since it was imported. Compaction, which changes no rows, has not."""
    snapshots: dict[int, Any] = {found["snapshot-id"]: found for found in metadata.get("snapshots", ())}
    at: int | None = metadata.get("current-snapshot-id")
    while at in snapshots:
        summary = snapshots[at]["summary"]
        if any(mark in summary for mark in MARKS):
            return False
        if summary.get("operation") != "replace":
            return True
        at = snapshots[at].get("parent-snapshot-id")
    return bool(snapshots)


def was_imported(metadata: Mapping[str, Any]) -> str | None:
    """How, if it was."""
    return metadata.get("properties", {}).get(HOW)


def remaining(metadata: Mapping[str, Any], snapshots: list[str]) -> list[str]:
    """Of a source's history, what is not there yet: all if the last one that was taken is not part of it."""
    last = metadata.get("properties", {}).get(SNAPSHOT, "")
    return snapshots[snapshots.index(last) + 1 :] if last in snapshots else snapshots
