"""Appends that were built on an older snapshot than main is by now.

An append holds whatever came since: it adds files and looks at none. Iceberg's clients know that, and when they are
told that main has moved (409), they send the same files again with another manifest list. Against a DuckDB session that
commits all the time they would do so for ever, so the server does it for them: an append is taken as if it had been
built on what main is now. Only that: whoever removes or deletes has looked at what was there, and if the columns have
changed since, the client is to know.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mergus.iceberg.metadata import MAIN, TableMetadata
from mergus.iceberg.requirements import AssertRefSnapshotId, Requirement
from mergus.iceberg.updates import AddedSnapshot, AddSnapshot, RemoveRef, RemoveSnapshots, SetRef, Update
from mergus.materialise.reading import Shown
from mergus.materialise.table import Materialised

APPEND = "append"


@dataclass(frozen=True, slots=True)
class Rebased:
    """The same commit on what main is now, and the snapshot that the client has built it on."""

    requirements: Sequence[Requirement]
    updates: Sequence[Update]
    base: Shown


def rebased(
    requirements: Sequence[Requirement], updates: Sequence[Update], table: Materialised, shown: TableMetadata
) -> Rebased | None:
    """None for what is to be taken as it is."""
    asserted = [r for r in requirements if isinstance(r, AssertRefSnapshotId)]
    added = [u.snapshot for u in updates if isinstance(u, AddSnapshot)]
    if len(asserted) != 1 or not added or asserted[0].ref != MAIN or asserted[0].snapshot_id is None:
        return None
    base_id, current = asserted[0].snapshot_id, shown.current_snapshot_id
    known = {s.snapshot.iceberg_id for s in table.listed}
    if current is None or base_id == current or any(s.snapshot_id in known for s in added):
        return None
    base = next((s for s in table.listed if s.snapshot.iceberg_id == base_id), None)
    main = table.reading.main
    if base is None or main is None or not _leads_to(table, base, main) or not _only_appends(updates):
        return None
    # with rows of other columns, or files that a merge has taken away, a client has to look again
    if base.schema_text != main.schema_text or table.schema_id(base) != shown.current_schema_id:
        return None
    if added[0].parent_snapshot_id != base_id:
        return None
    return Rebased(
        [r for r in requirements if r is not asserted[0]],
        [AddSnapshot(_moved(u.snapshot, base_id, shown)) if isinstance(u, AddSnapshot) else u for u in updates],
        base,
    )


def _leads_to(table: Materialised, base: Shown, main: Shown) -> bool:
    """Whether main came of the base, and not back to something before it."""
    parents = {s.snapshot.id: s.parent for s in table.reading.shown}
    at = main.snapshot.id
    while at > base.snapshot.id and (parent := parents.get(at)) is not None:
        at = parent.id
    return at == base.snapshot.id


def _only_appends(updates: Sequence[Update]) -> bool:
    for update in updates:
        match update:
            case AddSnapshot(snapshot):
                if snapshot.summary["operation"] != APPEND:
                    return False
            case SetRef(name) if name != MAIN:
                return False
            case RemoveRef() | RemoveSnapshots():
                return False
            case _:
                pass
    return True


def _moved(snapshot: AddedSnapshot, base_id: int, shown: TableMetadata) -> AddedSnapshot:
    """Sequence numbers and row ids that a client has counted from its base are others' by now."""
    parent, first = snapshot.parent_snapshot_id, snapshot.first_row_id
    return replace(
        snapshot,
        parent_snapshot_id=shown.current_snapshot_id if parent == base_id else parent,
        sequence_number=None,
        first_row_id=None if first is None else first + (shown.next_row_id or 0),
    )
