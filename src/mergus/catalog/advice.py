"""What would do a lake good, told from its numbers, without I/O.

Each piece of advice names an action, why it is advised, the command of ours that does it, and the call of a DuckDB
session that does the same; `lake` in it is the name under which that session has attached the lake. What is advised
helps: files that DuckLake would not merge are not advised to be merged. Nothing is done by itself.

A piece of advice has a weight, how many times a number is over its mark. What has none is well.
"""

import shlex
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mergus.ducklake.health import HEAVY_RATIO, CatalogHealth, TableHealth
from mergus.ducklake.session import literal

# Rows and deletes in Postgres, ended ones included. An Iceberg reader gets them as a file that is written anew after
# each change, and a DuckDB session gets them from Postgres as text: a thousand is a hundred small inserts, and quick.
FLUSH_ROWS: Final = 1_000
# Files that merging would save. Each costs a reader a request and a planner an entry; to save fewer is not worth a
# commit that others may run into.
COMPACT_FILES: Final = 10
# In files that have lost a good part of their rows: rows that are read for nothing, or files that have a delete file to
# be read along. Below both a reader does not notice.
REWRITE_ROWS: Final = 10_000
REWRITE_FILES: Final = 10
# Every table lists those that changed it in its metadata, which readers load; and all keep files alive.
EXPIRE_SNAPSHOTS: Final = 10_000
# Objects that are paid for and that nobody reads.
CLEANUP_FILES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Advice:
    action: str
    reason: str
    call: str
    command: str
    weight: float

    def __str__(self) -> str:
        return f"{self.action}: {self.reason}"


def advise_table(health: TableHealth) -> list[Advice]:
    """In the order in which they are best done: merging leaves files alone that rows are deleted from, and deletes that
    wait in Postgres count for a rewrite when they are in files."""
    found = [_flush(health)]
    # where it is turned off DuckLake does neither, whoever asks
    if health.table.compacts:
        found += [_rewrite(health), _compact(health)]
    return [advice for advice in found if advice is not None]


def advise_catalog(health: CatalogHealth) -> list[Advice]:
    found = (_expire(health), _cleanup(health))
    return [advice for advice in found if advice is not None]


def weight(advice: list[Advice]) -> float:
    """Of a table: that of what it needs most."""
    return max((one.weight for one in advice), default=0.0)


def advice_json(advice: list[Advice]) -> list[dict[str, Any]]:
    return [
        {"action": a.action, "reason": a.reason, "call": a.call, "command": a.command, "weight": a.weight}
        for a in advice
    ]


def _flush(health: TableHealth) -> Advice | None:
    rows = health.inlined_rows + health.inlined_ended
    waiting = [_many(rows, "inlined row")] if rows else []
    waiting += [_many(health.inlined_deletes, "inlined delete")] if health.inlined_deletes else []
    named = f"schema_name => {literal(health.table.schema_name)}, table_name => {literal(health.table.name)}"
    return _advice(
        (rows + health.inlined_deletes) / FLUSH_ROWS,
        "flush",
        f"{' and '.join(waiting)} waiting",
        f"CALL ducklake_flush_inlined_data('lake', {named})",
        _step(health, "flush"),
    )


def _rewrite(health: TableHealth) -> Advice | None:
    share = health.heavy_gone / health.heavy_rows if health.heavy_rows else 0.0
    files = f"in {_many(health.heavy_files, 'file')}"
    return _advice(
        max(health.heavy_gone / REWRITE_ROWS, health.heavy_files / REWRITE_FILES),
        "rewrite",
        f"{share:.0%} of rows {files} are deleted",
        f"CALL ducklake_rewrite_data_files({_named(health)}, delete_threshold => {HEAVY_RATIO})",
        _step(health, "rewrite"),
    )


def _compact(health: TableHealth) -> Advice | None:
    tiny = f"; the table has {health.tiny_files:,} under 1 MiB" if health.tiny_files else ""
    become = f"{health.mergeable_files:,} small files can become {health.merged_files:,}{tiny}"
    return _advice(
        (health.mergeable_files - health.merged_files) / COMPACT_FILES,
        "compact",
        become,
        f"CALL ducklake_merge_adjacent_files({_named(health)})",
        _step(health, "merge"),
    )


def _expire(health: CatalogHealth) -> Advice | None:
    since = f", the oldest from {_day(health.oldest_time)}" if health.oldest_time else ""
    return _advice(
        health.snapshots / EXPIRE_SNAPSHOTS,
        "expire",
        f"{_many(health.snapshots, 'snapshot')}{since}",
        "CALL ducklake_expire_snapshots('lake', older_than => now() - INTERVAL '7 days')",
        "expire --older-than 7d",
    )


def _cleanup(health: CatalogHealth) -> Advice | None:
    since = f", the oldest since {_day(health.scheduled_since)}" if health.scheduled_since else ""
    return _advice(
        health.scheduled_files / CLEANUP_FILES,
        "cleanup",
        f"{_many(health.scheduled_files, 'file')} scheduled for deletion{since}",
        "CALL ducklake_cleanup_old_files('lake', older_than => now() - INTERVAL '1 day')",
        "compact",
    )


def _advice(over: float, action: str, reason: str, call: str, command: str) -> Advice | None:
    """None below the mark."""
    return Advice(action, reason, call, f"mergus maintain {command}", round(over, 2)) if over >= 1 else None


def _step(health: TableHealth, step: str) -> str:
    return shlex.join(["compact", "--step", step, "--", health.table.schema_name, health.table.name])


def _named(health: TableHealth) -> str:
    return f"'lake', {literal(health.table.name)}, schema => {literal(health.table.schema_name)}"


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _day(time: datetime) -> str:
    return time.date().isoformat()
