"""`{warehouse}@{snapshot id, time or tag}`: the whole lake as it was, to be read and never written.

Which snapshot is meant is asked of Postgres for every request, so that what has expired since is gone at once. A client
that begins with /v1/config is told the number of the snapshot, and so sees one state however long it stays, whatever
becomes of the tag.
"""

import re
from datetime import UTC, datetime
from typing import Final

from mergus.annex import tags
from mergus.ducklake import snapshots
from mergus.ducklake.connect import Conn
from mergus.errors import NoSuchWarehouse

SEPARATOR: Final = "@"

# A snapshot id has 63 bits.
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
# What looks like one of these is not a tag.
_TIME: Final = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}.*", re.DOTALL)
# A plus sign that a client wrote as it is has become a space.
_OFFSET: Final = re.compile(r" (?=[0-9]{2}:?[0-9]{2}$)")


def split(name: str, text: str) -> tuple[str, str | None]:
    """The warehouse, and what stands behind the last separator, if it is no part of the warehouse's own `name`."""
    if text == name:
        return text, None
    warehouse, found, point = text.rpartition(SEPARATOR)
    return (warehouse, point) if found else (text, None)


async def resolve(conn: Conn, warehouse: str, point: str) -> int:
    """The snapshot that is meant. Raises NoSuchWarehouse if there is none, or not any more."""
    if _NUMBER.fullmatch(point):
        found = int(point) if await snapshots.exists(conn, int(point)) else None
        reason = f"snapshot {point} does not exist, or has expired"
    elif (time := time_of(point)) is not None:
        found = await snapshots.last_at(conn, time)
        reason = f"no snapshot of {time.isoformat()} or before is left"
    else:
        tag = None if "\0" in point else await tags.find(conn, point)
        found = None if tag is None or tag.snapshot_time is None else tag.snapshot_id
        reason = "there is no such tag" if tag is None else f"snapshot {tag.snapshot_id} of this tag has expired"
    if found is None:
        raise NoSuchWarehouse(f"Warehouse does not exist: {warehouse}{SEPARATOR}{point}: {reason}")
    return found


def time_of(text: str) -> datetime | None:
    """ISO 8601; without an offset, it is UTC. None for anything else."""
    if not _TIME.fullmatch(text):
        return None
    try:
        found = datetime.fromisoformat(_OFFSET.sub("+", text) if "T" in text else text)
        # Postgres has no other times than those that all of the world has
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
