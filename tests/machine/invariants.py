"""What must hold of a table as Iceberg sees it, at any moment."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from tests.machine.iceberg_view import IcebergView, Rows
from tests.machine.model import Model

CHANGES_ROWS: Final = (
    r"(inserted_into_table|deleted_from_table|inlined_insert|inlined_delete|inline_flush|merge_adjacent|rewrite_delete)"
)


def check(
    t: Model, view: IcebergView, live: Mapping[int, str], duckdb_rows: Callable[[Model, int | None], Rows]
) -> None:
    """`live` are the snapshots of the lake with their change words."""
    listed = [s.snapshot_id for s in view.snapshots]
    check_listing(t, listed, live)
    check_lines(view, listed)
    known_to_exist: set[str] = set()
    shown: dict[int, Rows] = {}
    for snapshot in view.snapshots:
        i = snapshot.snapshot_id
        view.check_files(snapshot, known_to_exist)
        key = view.key(snapshot)
        if key not in t.read:
            t.read[key] = view.rows(i)
        shown[i] = t.read[key]
        check_rows(t, i, shown[i], duckdb_rows(t, i))
        summary = snapshot.summary
        assert summary is not None
        total = int(summary["total-records"] or 0) - int(summary["total-position-deletes"] or 0)
        assert total == len(shown[i]), f"snapshot {i} says {total} rows and has {len(shown[i])}: {summary}"
    check_between(t, listed, live, shown)
    now = view.rows()
    want = duckdb_rows(t, None)
    assert now == want, f"{t.full_name} now: {now.difference(want)}"


def check_listing(t: Model, listed: list[int], live: Mapping[int, str]) -> None:
    """Every snapshot that changed the table is listed (H23), and no other but one that follows a gap, where it may
    stand for what expired (H24), or one that gave rows a new column with a value."""
    ids = list(live)
    changed = {i for i in ids if re.search(rf"{CHANGES_ROWS}:{t.id}(,|$)", live[i])}
    after_gap = {i for before, i in zip([-1, *ids], ids, strict=False) if before != i - 1}
    assert changed <= set(listed), f"{t.full_name} does not list {sorted(changed - set(listed))}"
    others = set(listed) - changed - after_gap - t.reshaped
    assert not others, f"{t.full_name} lists {sorted(others)}"


def check_lines(view: IcebergView, listed: list[int]) -> None:
    """One line of history, without loose ends."""
    metadata = view.table.metadata
    assert listed == sorted(set(listed))
    assert [s.parent_snapshot_id for s in view.snapshots] == [None, *listed][: len(listed)]
    assert [s.sequence_number for s in view.snapshots] == listed
    assert metadata.current_snapshot_id == (listed[-1] if listed else None)
    assert [e.snapshot_id for e in metadata.snapshot_log] == listed
    times = [e.timestamp_ms for e in metadata.snapshot_log]
    assert times == sorted(set(times))


def check_rows(t: Model, snapshot_id: int, shown: Rows, told: Rows) -> None:
    noted = t.noted_by(snapshot_id)
    if noted is not None and noted != told and shown == noted:
        # DuckDB does not say what it said before
        return
    assert shown == told, f"{t.full_name} at {snapshot_id}: {shown.difference(told)}"


def check_between(t: Model, listed: list[int], live: Mapping[int, str], shown: Mapping[int, Rows]) -> None:
    """A snapshot that is not listed shows what the last before it shows, if it has the same columns."""
    for i in live:
        noted = t.noted_by(i)
        if i < t.begin or noted is None:
            continue
        before = max((s for s in listed if s <= i), default=None)
        if before is None:
            assert len(noted) == 0, f"{t.full_name} has rows at {i}, and no snapshot by then"
        elif shown[before].columns == noted.columns and i not in shown:
            assert shown[before] == noted, f"{t.full_name} at {i}: {shown[before].difference(noted)}"
