"""Rollback: the table as it was at an older snapshot, as a new snapshot of the lake.

DuckLake has one line of history and it only grows, so the rows of old come again: files that are gone since are listed
anew under the same path, those that came since end, and a file from which rows were deleted since ends and is listed
anew without those deletes. Time travel to what lies between shows it as it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mergus.catalog.delete_files import NONE_BEFORE, Drawer, Prepared
from mergus.catalog.lake import Lake
from mergus.ducklake import files
from mergus.ducklake.connect import one_state
from mergus.ducklake.files import Base
from mergus.ducklake.files import DataFile as LakeFile
from mergus.ducklake.told import Restored
from mergus.errors import BadRequest
from mergus.materialise.table import Materialised

BEFORE_ALL = -1


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """`ended` are ids of files; `again` those that are listed anew, with what is deleted from each. `to` is the
    snapshot of the lake that inlined rows are to be as at."""

    told: Restored
    ended: Sequence[int]
    again: Sequence[tuple[LakeFile, Prepared | None]]
    to: int


async def plan_restore(lake: Lake, table: Materialised, snapshot_id: int | None, drawer: Drawer) -> RestoreStep:
    """To a snapshot by the id that clients know, or to none at all."""
    reading = table.reading
    view, head = reading.view, reading.head.snapshot_id
    target = next((s.snapshot for s in reading.shown if s.listed and s.snapshot.iceberg_id == snapshot_id), None)
    if target is None and snapshot_id is not None:
        raise BadRequest(f"Snapshot {snapshot_id} is not one of the table's")
    to = BEFORE_ALL if target is None else target.id
    where = (view.metadata_schema, view.table.id, view.table.paths)
    async with one_state(lake.pool) as conn:
        changes = await files.changes(conn, *where, Base(to, view.horizon), head)
        gone = {f.id for f in changes.removed} | {f.id for f in changes.touched}
        before = await files.of_ids(conn, *where, to, gone) if gone else []
    touched = {f.id: f for f in changes.touched}
    deleted = (await lake.tables()).materialiser.shop.deleted
    ended = [f.id for f in changes.added]
    again: list[tuple[LakeFile, Prepared | None]] = []
    for file in before:
        positions = await deleted.of(file, to)
        now = touched.get(file.id)
        if now is not None:
            if await deleted.of(now, head) == positions:
                continue
            ended.append(file.id)
        prepared = await drawer.prepare(file.path, NONE_BEFORE, positions, head + 1) if positions else None
        again.append((file, prepared))
    return RestoreStep(Restored(None if target is None else target.id), ended, again, to)
