"""What a commit of ours tells about itself in `commit_extra_info`: how Iceberg's clients know the snapshot.

    {"iceberg": {"<table id>": {"snapshot-id": 4711, "summary": {"operation": "append", …}}}}
    {"iceberg": {"<table id>": {"main": 17}}}

A client finds its commit again by the snapshot id that it chose, so the lake has to remember that; and since it is
written with the snapshot and expires with it, the two never part. `main` is told by a commit that puts the table back
to what it was at an older snapshot of the lake: Iceberg has no new snapshot then, main is that older one again (or
none). A snapshot that begins a history of its own, as that of a table that was replaced, is told to be a `root`.

Anybody may write into this column. What is not as ours would be is taken for somebody else's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

KEY: Final = "iceberg"
# Headers of W3C's Trace Context, which are told by the same names.
TRACE: Final = ("traceparent", "tracestate")

# Smaller ones are DuckLake's: a client's could come again as the number of a later snapshot. Clients draw theirs from
# 63 bits.
LEAST_CLIENT_ID: Final = 2**31


@dataclass(frozen=True, slots=True)
class Committed:
    """A snapshot that an Iceberg client made."""

    snapshot_id: int
    summary: Mapping[str, str]
    is_root: bool = False

    def json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"snapshot-id": self.snapshot_id, "summary": dict(self.summary)}
        return {**told, "root": True} if self.is_root else told


@dataclass(frozen=True, slots=True)
class Restored:
    """Main as it was at an older snapshot of the lake; None if it is no snapshot at all."""

    main: int | None

    def json(self) -> dict[str, Any]:
        return {"main": self.main}


Told = Committed | Restored


def about(table_id: int, extra_info: str | None) -> Told | None:
    # most snapshots are DuckDB's
    if extra_info is None or f'"{KEY}"' not in extra_info:
        return None
    try:
        match orjson.loads(extra_info):
            case {"iceberg": {**tables}} if isinstance(told := tables.get(str(table_id)), dict):
                return _parse(told)  # pyright: ignore[reportUnknownArgumentType]
            case _:
                return None
    except orjson.JSONDecodeError:
        return None


def trace(extra_info: str | None) -> dict[str, str]:
    """Of whoever made the snapshot, if it told: `traceparent` and `tracestate`, as W3C has them. A DuckDB session may
    do so, too."""
    if extra_info is None or '"traceparent"' not in extra_info:
        return {}
    try:
        found = orjson.loads(extra_info)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(found, dict):
        return {}
    told = {key: found.get(key) for key in TRACE}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return {key: value for key, value in told.items() if isinstance(value, str)}  # pyright: ignore[reportUnknownVariableType]


def _parse(told: dict[str, Any]) -> Told | None:
    match told:
        case {"snapshot-id": int(snapshot_id), "summary": {**summary}} if snapshot_id >= LEAST_CLIENT_ID:
            texts = {k: v for k, v in summary.items() if isinstance(k, str) and isinstance(v, str)}
            return Committed(snapshot_id, texts, told.get("root") is True)
        case {"main": int() | None as main}:
            return Restored(main)
        case _:
            return None
