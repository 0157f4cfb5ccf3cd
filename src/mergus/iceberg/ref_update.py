"""The snapshots, branches and tags of a table while the updates of a commit are applied, one after another.

What becomes of main is told as the steps that it takes, since each snapshot of the commit is to become one of ours, and
the order matters: a replaced table is emptied first. Branches beside main are Unsupported, for DuckLake has one line of
history; and so is a snapshot that main never shows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

from mergus.errors import BadRequest, CommitFailed, Unsupported
from mergus.iceberg.metadata import MAIN, Ref, TableMetadata
from mergus.iceberg.updates import AddedSnapshot

# What main becomes: a snapshot of the commit, the id of one that the table has, or nothing.
MainStep: TypeAlias = AddedSnapshot | int | None
Statistics: TypeAlias = Mapping[str, Any]

NO_RETENTION: Final = Ref(-1, "branch")


class RefUpdate:
    def __init__(self, table: TableMetadata | None) -> None:
        self.main: list[MainStep] = []
        self.retention = NO_RETENTION if table is None else table.main_retention
        self.refs: dict[str, Ref] = {} if table is None else dict(table.refs)
        self.removed: list[int] = []
        self.statistics = statistics_of(table)
        self.partition_statistics = partition_statistics_of(table)
        self._start = None if table is None else table.current_snapshot_id
        self._served = set[int]() if table is None else {_snapshot_id(json) for json in table.snapshots}
        self._added: dict[int, AddedSnapshot] = {}
        self._shown: set[int] = set()
        self._sequence_number = 0 if table is None else table.last_sequence_number
        self._next_row_id = 0 if table is None or table.next_row_id is None else table.next_row_id

    @property
    def current(self) -> int | None:
        """The id of main's snapshot as of now."""
        return _id(self.main[-1]) if self.main else self._start

    def add(self, snapshot: AddedSnapshot, format_version: int) -> None:
        new, parent = snapshot.snapshot_id, snapshot.parent_snapshot_id
        if new in self._served or new in self._added or new in self.removed:
            raise BadRequest(f"Snapshot already exists for id: {new}")
        if parent is not None and not self.knows(parent):
            raise CommitFailed(f"Snapshot {new} follows snapshot {parent}, which the table does not have")
        self._check_sequence(snapshot)
        if format_version >= 3:
            self._check_lineage(snapshot)
        self._added[new] = snapshot

    def _check_sequence(self, snapshot: AddedSnapshot) -> None:
        if snapshot.sequence_number is None:
            return
        if snapshot.sequence_number <= self._sequence_number and snapshot.parent_snapshot_id is not None:
            raise CommitFailed(
                f"Cannot add snapshot with sequence number {snapshot.sequence_number} "
                f"older than last sequence number {self._sequence_number}"
            )
        self._sequence_number = snapshot.sequence_number

    def _check_lineage(self, snapshot: AddedSnapshot) -> None:
        if snapshot.first_row_id is None or snapshot.added_rows is None:
            raise BadRequest(
                f"Snapshot {snapshot.snapshot_id} has no first-row-id or no added-rows, which format version 3 needs"
            )
        if snapshot.first_row_id < self._next_row_id:
            raise CommitFailed(
                f"Cannot add a snapshot, first-row-id is behind table next-row-id: "
                f"{snapshot.first_row_id} < {self._next_row_id}"
            )
        self._next_row_id += snapshot.added_rows

    def knows(self, snapshot_id: int) -> bool:
        return snapshot_id in self._served or snapshot_id in self._added

    def set(self, name: str, ref: Ref) -> None:
        if not self.knows(ref.snapshot_id):
            raise BadRequest(f"Cannot set {name} to unknown snapshot: {ref.snapshot_id}")
        if name == MAIN:
            self._set_main(ref)
        elif (had := self.refs.get(name)) is not None and had.type != ref.type:
            raise BadRequest(f"Cannot make {name} a {ref.type}: it is a {had.type}")
        elif ref.type == "branch":
            raise Unsupported(f"Branch {name} is not supported: DuckLake has one line of history, which is {MAIN}")
        else:
            self.refs[name] = ref

    def _set_main(self, ref: Ref) -> None:
        if ref.type != "branch":
            raise BadRequest(f"{MAIN} is a branch and cannot be a tag")
        self.retention = replace(ref, snapshot_id=NO_RETENTION.snapshot_id)
        if ref.snapshot_id not in self._added or ref.snapshot_id in self._shown:
            self._step(ref.snapshot_id)
        for snapshot in self._unshown(ref.snapshot_id):
            self._show(snapshot)

    def _unshown(self, snapshot_id: int | None) -> list[AddedSnapshot]:
        """The snapshot and those of the commit that lead to it and that main has not shown, the oldest first."""
        found: list[AddedSnapshot] = []
        # ends, since every parent was known before its child
        while snapshot_id is not None and snapshot_id in self._added and snapshot_id not in self._shown:
            found.append(self._added[snapshot_id])
            snapshot_id = self._added[snapshot_id].parent_snapshot_id
        return found[::-1]

    def _show(self, snapshot: AddedSnapshot) -> None:
        """A snapshot without a parent may follow any: it says everything itself."""
        if snapshot.parent_snapshot_id not in (None, self.current):
            raise CommitFailed(
                f"Snapshot {snapshot.snapshot_id} follows snapshot {snapshot.parent_snapshot_id}, "
                f"and {MAIN} is at {self.current}"
            )
        self.main.append(snapshot)
        self._shown.add(snapshot.snapshot_id)

    def _step(self, step: int | None) -> None:
        # what main was in between nobody will see
        if self.main and not isinstance(self.main[-1], AddedSnapshot):
            self.main.pop()
        if step == self.current:
            return
        if step in self._added:
            raise Unsupported(f"{MAIN} cannot go back to snapshot {step}, which the same commit adds")
        self.main.append(step)

    def remove(self, name: str) -> None:
        """One that is not there is gone already."""
        if name == MAIN:
            self._step(None)
            self.retention = NO_RETENTION
        else:
            self.refs.pop(name, None)

    def remove_snapshots(self, ids: Iterable[int]) -> None:
        """With the tags and statistics of them."""
        for gone in ids:
            if gone in self._added:
                raise Unsupported(f"Snapshot {gone} cannot be added and removed by the same commit")
            if gone == self.current:
                raise BadRequest(f"Snapshot {gone} is the current one of {MAIN} and cannot be removed")
            if gone in self._served:
                self._served.remove(gone)
                self.removed.append(gone)
                self.statistics.pop(gone, None)
                self.partition_statistics.pop(gone, None)
        self.refs = {name: ref for name, ref in self.refs.items() if self.knows(ref.snapshot_id)}

    def check(self) -> None:
        """At the end."""
        hidden = [str(i) for i in self._added if i not in self._shown]
        if hidden:
            raise Unsupported(
                f"Snapshot {', '.join(hidden)} is not made part of {MAIN}: staging snapshots (write-audit-publish) "
                f"is not supported, for DuckLake has one line of history"
            )


def statistics_of(table: TableMetadata | None) -> dict[int, Statistics]:
    return {} if table is None else {_snapshot_id(json): cast(Statistics, json) for json in table.statistics}


def partition_statistics_of(table: TableMetadata | None) -> dict[int, Statistics]:
    return {} if table is None else {_snapshot_id(json): cast(Statistics, json) for json in table.partition_statistics}


def _id(step: MainStep) -> int | None:
    return step.snapshot_id if isinstance(step, AddedSnapshot) else step


def _snapshot_id(json: object) -> int:
    return cast(Mapping[str, Any], json)["snapshot-id"]
