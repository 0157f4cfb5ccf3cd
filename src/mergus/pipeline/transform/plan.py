"""What a run of a step has to do, and why: decided from metadata, before a row is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mergus.errors import SetupError
from mergus.pipeline.job import Place, Table, table
from mergus.pipeline.transform import state
from mergus.pipeline.transform.definition import Pipeline, Step
from mergus.pipeline.transform.function import source_of
from mergus.pipeline.transform.history import Span, span
from mergus.pipeline.transform.state import Ran, Read

# The property of a table that says which step it belongs to.
OWNER: Final = "pipeline.step"

# "note": no row has changed, but the last run, or what it read, is not the newest snapshot of its table any more: that
# one stays when snapshots expire, and older ones do not
Action = Literal["nothing", "note", "changes", "whole"]


@dataclass(frozen=True)
class Planned:
    step: Step
    name: str
    definition: str
    action: Action
    reason: str
    output: Table
    # the output's metadata, if there is one
    metadata: dict[str, Any] | None
    ran: Ran | None
    # what each input is read at, and what has happened to it
    reads: Mapping[str, Read]
    spans: Mapping[str, Span]
    # the rows for the quarantine were written by a run that went no further
    is_quarantined: bool = False

    def json(self) -> dict[str, Any]:
        return {
            "step": self.step.name,
            "output": str(self.output),
            "mode": self.step.mode,
            "action": self.action,
            "reason": self.reason,
            "inputs": {
                name: {"table": self.step.inputs[name].table, "from": one.start, "to": one.end, "since": one.kind}
                for name, one in self.spans.items()
            },
        }


def plan(place: Place, pipeline: Pipeline, step: Step, *, rebuild: bool) -> Planned:
    name = f"{pipeline.name}.{step.name}"
    output = table(step.output)
    loaded = place.load(output)
    metadata = None if loaded is None else loaded["metadata"]
    ran = state.last(metadata, name)
    definition = state.definition_of(step, source_of(step))
    inputs = {key: _input(place, step, key) for key in step.inputs}
    unfinished = _unfinished(place, step, name, definition, ran, inputs)
    if unfinished is not None:
        inputs = {key: _as_of(one, unfinished.inputs[key]) for key, one in inputs.items()}
    before = {} if ran is None else ran.inputs
    spans = {key: span(one, before.get(key)) for key, one in inputs.items()}
    reads = {key: Read(one["table-uuid"], spans[key].end) for key, one in inputs.items()}
    action, reason = decide(step, name, definition, metadata, ran, spans, rebuild=rebuild)
    is_quarantined = unfinished is not None
    return Planned(step, name, definition, action, reason, output, metadata, ran, reads, spans, is_quarantined)


def _input(place: Place, step: Step, key: str) -> dict[str, Any]:
    found = place.load(table(step.inputs[key].table))
    if found is None:
        raise SetupError(f"step {step.name}: there is no table {step.inputs[key].table}, its input {key}")
    return found["metadata"]


def _as_of(metadata: dict[str, Any], read: Read) -> dict[str, Any]:
    return {**metadata, "current-snapshot-id": read.snapshot}


def _unfinished(
    place: Place, step: Step, name: str, definition: str, ran: Ran | None, inputs: Mapping[str, dict[str, Any]]
) -> Ran | None:
    """A run that has written to the quarantine, and nothing else. The next one reads the same snapshots, so that it
    finds the same rows; if those are not there any more, some may be in the quarantine twice."""
    loaded = place.load(table(step.quarantine_table)) if step.quarantines else None
    found = None if loaded is None else state.last(loaded["metadata"], name)
    if found is None or (found.after, found.definition) != (state.after(ran), definition):
        return None
    for key, metadata in inputs.items():
        read = found.inputs.get(key)
        known = {None, *(one["snapshot-id"] for one in state.lineage(metadata))}
        if read is None or read.uuid != metadata["table-uuid"] or read.snapshot not in known:
            return None
    return found


def decide(
    step: Step,
    name: str,
    definition: str,
    metadata: dict[str, Any] | None,
    ran: Ran | None,
    spans: Mapping[str, Span],
    *,
    rebuild: bool,
) -> tuple[Action, str]:
    """What to do, and the reason, in words."""
    if metadata is None:
        return "whole", "there is no output yet"
    if rebuild:
        return "whole", "as asked"
    if ran is None and metadata["properties"].get(OWNER) != name:
        raise SetupError(
            f"step {step.name}: {step.output} is there, and is not this step's output; --rebuild replaces all of it"
        )
    lost = "its last run is not in its history" if ran is None else _lost(step, spans)
    if step.mode == "append":
        if lost is not None:
            raise SetupError(
                f"step {step.name} appends, and cannot know what is new: {lost}; "
                f"--rebuild replaces all of {step.output}"
            )
        return _changed(step, metadata, ran, spans)
    if lost is not None:
        return "whole", lost
    if ran is not None and ran.definition != definition:
        return "whole", "its definition has changed"
    for key, one in spans.items():
        if not (step.inputs[key].changes or step.inputs[key].lookup) and one.kind != "nothing":
            return "whole", f"{step.inputs[key].table} has changed"
    return _changed(step, metadata, ran, spans)


def _lost(step: Step, spans: Mapping[str, Span]) -> str | None:
    """A reason, if what was read of an input cannot be compared with what is there."""
    for key, one in spans.items():
        if one.kind == "lost" and step.inputs[key].changes:
            return f"{step.inputs[key].table} has no snapshot {one.start} any more, which was read last"
    return None


def _changed(step: Step, metadata: dict[str, Any], ran: Ran | None, spans: Mapping[str, Span]) -> tuple[Action, str]:
    changed = [key for key in step.changes if spans[key].kind != "nothing"]
    if changed:
        return "changes", f"{', '.join(step.inputs[key].table for key in changed)} changed"
    if any(spans[key].start != spans[key].end for key in step.changes):
        return "note", "files of inputs changed, and no rows"
    if ran is not None and ran.snapshot != metadata.get("current-snapshot-id"):
        return "note", "others have written to the output since"
    return "nothing", "nothing has changed"
