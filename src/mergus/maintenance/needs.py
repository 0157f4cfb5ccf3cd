"""What a table needs, from its numbers: most tables of a lake need nothing most of the time, and are not touched."""

import shlex
from typing import Any

from mergus.config import Settings
from mergus.ducklake import health
from mergus.ducklake.connect import Conn, Pool
from mergus.ducklake.health import TableHealth
from mergus.maintenance.policy import Policy


async def measure(pool: Pool, settings: Settings, table_id: int, policy: Policy) -> TableHealth | None:
    """None if it has been dropped."""

    async def look(conn: Conn) -> list[TableHealth]:
        found = await health.tables(conn, -1, only=table_id)
        sizes = {table: table.target(policy.target_size) for table in found}
        return await health.read(conn, settings.metadata_schema, sizes, heavy=policy.delete_ratio)

    return next(iter(await health.settled(pool, look)), None)


def needs(step: str, table: TableHealth, *, is_changed: bool) -> bool:
    """Whether a step could do anything. `is_changed`: one before it did, so the numbers are old."""
    if step == "flush":
        return bool(table.inlined_rows or table.inlined_ended or table.inlined_deletes)
    # where it is turned off DuckLake does neither, whoever asks
    if not table.table.compacts:
        return False
    return is_changed or (table.gone_rows > 0 if step == "rewrite" else table.data_files > 1)


def hand_over(policy: Policy, table: TableHealth, most: int) -> dict[str, Any] | None:
    """What is said of a table that has more bytes to rewrite and merge than the server does itself; 0 is any number."""
    if not most or not table.table.compacts:
        return None
    due = {"rewrite": table.heavy_bytes, "merge": table.mergeable_bytes}
    size = sum(due.get(step, 0) for step in policy.steps)
    if size <= most:
        return None
    name = f"{table.table.schema_name}.{table.table.name}"
    return {
        "bytes": size,
        "target-bytes": table.target_bytes,
        "delete-ratio": policy.delete_ratio,
        "command": shlex.join(["mergus", "pipeline", "compact", name]),
    }


def prospect(steps: tuple[str, ...], table: TableHealth) -> dict[str, Any]:
    """What would be done, as far as that can be told before; rewritten files may be merged as well."""
    told = {
        "flush": {"would-flush-rows": table.inlined_rows, "would-flush-deletes": table.inlined_deletes},
        "rewrite": {"would-rewrite-files": table.heavy_files},
        "merge": {"would-merge-files": table.mergeable_files, "would-merge-into": table.merged_files},
    }
    wanted = [told[step] for step in steps if step == "flush" or table.table.compacts]
    return {key: number for part in wanted for key, number in part.items() if number}
