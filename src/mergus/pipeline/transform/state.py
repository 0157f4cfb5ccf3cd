"""What a step has done, as the snapshots of its output say it.

Each run of a step is one snapshot, and its summary says which step wrote it, by which definition, and which snapshot of
each input it has read. So a run either happened, with all that is known of it, or it did not; and going back to an
older snapshot of an output goes back to what was known then.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from mergus.annex.once import PROPERTY
from mergus.pipeline.transform.definition import Step

STEP: Final = "mergus.step"
DEFINITION: Final = "mergus.definition"
INPUTS: Final = "mergus.inputs"
RUN: Final = "mergus.run"
COUNTS: Final = "mergus.counts"
AFTER: Final = "mergus.after"
ONCE: Final = PROPERTY
# Snapshots that change no row of a table.
UNCHANGING: Final = frozenset({"replace"})


@dataclass(frozen=True)
class Read:
    """A snapshot of a table; None of one that has none yet."""

    uuid: str
    snapshot: int | None


@dataclass(frozen=True)
class Ran:
    snapshot: int
    at_ms: int
    run: str
    definition: str
    # which run was the last one before, by its snapshot
    after: str
    inputs: dict[str, Read]
    counts: dict[str, int] = field(default_factory=dict[str, int])


def definition_of(step: Step, source: str | None) -> str:
    """Changes with whatever decides on the output's rows; `source` is that of a function."""
    told = json.dumps([step.model_dump(mode="json"), source], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def properties(
    name: str, definition: str, run: str, ran: Ran | None, inputs: Mapping[str, Read], counts: Mapping[str, int]
) -> dict[str, str]:
    """For the summary of the snapshot that a run writes."""
    return {
        STEP: name,
        DEFINITION: definition,
        RUN: run,
        AFTER: after(ran),
        INPUTS: json.dumps({key: asdict(one) for key, one in inputs.items()}, sort_keys=True),
        COUNTS: json.dumps(dict(counts), sort_keys=True),
    }


def after(ran: Ran | None) -> str:
    return "nothing" if ran is None else str(ran.snapshot)


def once(name: str, ran: Ran | None, refused: int = 0) -> str:
    """A key that two runs share which both go on from `ran`: one of them is taken. It was taken before, and is refused,
    if that one was taken back since, when the output went back to an older snapshot."""
    return f"{name} after {after(ran)} #{refused}"


def history(metadata: dict[str, Any], name: str) -> Iterator[Ran]:
    """Runs of a step that the table stands on, newest first."""
    for snapshot in lineage(metadata):
        if (found := _ran(snapshot, name)) is not None:
            yield found


def last(metadata: dict[str, Any] | None, name: str) -> Ran | None:
    return None if metadata is None else next(history(metadata, name), None)


def others(metadata: dict[str, Any], name: str) -> list[int]:
    """Snapshots since the last run in which somebody else has changed rows of the output."""
    found: list[int] = []
    for snapshot in lineage(metadata):
        if snapshot["summary"].get(STEP) == name:
            break
        if snapshot["summary"]["operation"] not in UNCHANGING:
            found.append(snapshot["snapshot-id"])
    return found


def lineage(metadata: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Newest first, as far as it is known."""
    by_id: dict[int, dict[str, Any]] = {one["snapshot-id"]: one for one in metadata.get("snapshots", [])}
    at = metadata.get("current-snapshot-id")
    while at is not None and (snapshot := by_id.get(at)) is not None:
        yield snapshot
        at = snapshot.get("parent-snapshot-id")


def _ran(snapshot: dict[str, Any], name: str) -> Ran | None:
    summary: dict[str, str] = snapshot["summary"]
    if summary.get(STEP) != name:
        return None
    try:
        inputs = {key: Read(one["uuid"], one["snapshot"]) for key, one in json.loads(summary[INPUTS]).items()}
        counts: dict[str, int] = json.loads(summary.get(COUNTS, "{}"))
        told = (summary[RUN], summary[DEFINITION], summary[AFTER])
    except (KeyError, ValueError, TypeError, AttributeError):
        # somebody else's words under our names
        return None
    return Ran(snapshot["snapshot-id"], snapshot["timestamp-ms"], *told, inputs, counts)
