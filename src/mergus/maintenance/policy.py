"""What is to be done to a table, and what is left alone: properties of the table, else of its namespaces, else what was
asked for, else these defaults. Pure.

    mergus.maintenance.enabled          false: nothing is done to it
    mergus.maintenance.steps            some of flush, rewrite, merge, with commas between
    mergus.maintenance.delete-ratio     files of which more than this part is deleted are rewritten (0 to 1)
    write.target-file-size-bytes        Iceberg's own: files that have reached it are not merged
    history.expire.min-snapshots-to-keep, history.expire.max-snapshot-age-ms    Iceberg's own; see expiry.py
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mergus.ducklake.health import HEAVY_RATIO
from mergus.errors import BadRequest

PREFIX: Final = "mergus.maintenance."
TARGET_SIZE: Final = "write.target-file-size-bytes"
KEEP_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
KEEP_MS: Final = "history.expire.max-snapshot-age-ms"
ICEBERGS: Final = (TARGET_SIZE, KEEP_SNAPSHOTS, KEEP_MS)

# In this order: what is flushed first is not lost on a rewrite, and what is rewritten can be merged.
STEPS: Final = ("flush", "rewrite", "merge")
# DuckLake's own is 0.95: by then a scan reads twenty rows for one.
DELETE_RATIO: Final = HEAVY_RATIO
MAX_FILES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Policy:
    enabled: bool = True
    steps: tuple[str, ...] = STEPS
    delete_ratio: float = DELETE_RATIO
    target_size: int | None = None


def policy_of(options: Mapping[str, Any], *properties: Mapping[str, str]) -> Policy:
    """`properties` of the catalog's levels, outermost first. ValueError if one of them makes no sense."""
    merged: dict[str, str] = {}
    for level in properties:
        merged |= level
    steps = options.get("steps") or STEPS
    ratio = options.get("delete-ratio", DELETE_RATIO)
    if (text := merged.get(f"{PREFIX}steps")) is not None:
        steps = _steps(text)
    if (text := merged.get(f"{PREFIX}delete-ratio")) is not None:
        ratio = _ratio(text)
    enabled = _flag(f"{PREFIX}enabled", merged.get(f"{PREFIX}enabled", "true"))
    size = None if TARGET_SIZE not in merged else whole(TARGET_SIZE, merged[TARGET_SIZE], least=1)
    return Policy(enabled, tuple(step for step in STEPS if step in steps), float(ratio), size)


def check_policy(properties: Mapping[str, str]) -> None:
    """Of properties that somebody sets."""
    known = {f"{PREFIX}{name}" for name in ("enabled", "steps", "delete-ratio")}
    if unknown := sorted(key for key in properties if key.startswith(PREFIX) and key not in known):
        raise BadRequest(f"No such policy: {unknown[0]}. There are {', '.join(sorted(known))}")
    try:
        policy_of({}, {key: value for key, value in properties.items() if key in known})
    except ValueError as e:
        raise BadRequest(str(e)) from None


def check_options(options: Mapping[str, Any]) -> None:
    """Of a request."""
    unknown = set(options.get("steps") or ()) - set(STEPS)
    if unknown:
        raise BadRequest(f"No such step: {', '.join(sorted(unknown))}. There are {', '.join(STEPS)}")


def whole(key: str, text: str, least: int) -> int:
    if not text.strip().isdecimal() or int(text) < least:
        raise ValueError(f"{key} is {text!r}, which is no whole number from {least} on")
    return int(text)


def _steps(text: str) -> tuple[str, ...]:
    steps = tuple(word.strip() for word in text.split(",") if word.strip())
    if set(steps) - set(STEPS):
        raise ValueError(f"{PREFIX}steps is {text!r}, which is more than {', '.join(STEPS)}")
    return steps


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1
    if not 0 <= ratio <= 1:
        raise ValueError(f"{PREFIX}delete-ratio is {text!r}, which is no number from 0 to 1")
    return ratio


def _flag(key: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"{key} is {text!r}, which is neither true nor false")
    return text.lower() == "true"
