"""`mergus pipeline transform`: the steps of a pipeline in order. One that fails stops those that need it, no other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as but
from typing import Any

from mergus.errors import MergusError
from mergus.pipeline.job import Place, Run, table
from mergus.pipeline.session import message, spark_errors
from mergus.pipeline.transform import state
from mergus.pipeline.transform.definition import Pipeline, Step
from mergus.pipeline.transform.graph import in_order, needs
from mergus.pipeline.transform.plan import Planned, plan
from mergus.pipeline.transform.run import AskWhole, Done, run_step


@dataclass
class Outcome:
    done: list[Done] = field(default_factory=list[Done])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])

    def json(self) -> list[dict[str, Any]]:
        told = [one.json() for one in self.done]
        told += [{"step": name, "action": "failed", "error": error} for name, error in self.failed.items()]
        return told + [{"step": name, "action": "skipped", "reason": why} for name, why in self.skipped.items()]


def transform(
    place: Place, pipeline: Pipeline, run: Run, *, only: Sequence[str] = (), rebuild: bool = False
) -> Outcome:
    outcome = Outcome()
    for step in in_order(pipeline, only):
        if missing := [name for name in needs(step, pipeline) if name in {*outcome.failed, *outcome.skipped}]:
            outcome.skipped[step.name] = f"it needs {', '.join(missing)}"
            run.say(f"{step.name}: skipped, it needs {', '.join(missing)}")
            continue
        try:
            done = _step(place, pipeline, step, run, rebuild=rebuild)
        except MergusError as e:
            outcome.failed[step.name] = e.message
        except spark_errors() as e:
            outcome.failed[step.name] = message(e)
        else:
            outcome.done.append(done)
            _tell(done, run)
            continue
        run.say(f"{step.name}: failed: {outcome.failed[step.name]}")
    run.counts |= {"failed": len(outcome.failed), "skipped": len(outcome.skipped)}
    return outcome


def _step(place: Place, pipeline: Pipeline, step: Step, run: Run, *, rebuild: bool) -> Done:
    with run.part("plan"):
        planned = plan(place, pipeline, step, rebuild=rebuild)
    if planned.metadata is not None and (others := state.others(planned.metadata, planned.name)) and planned.ran:
        run.say(f"{step.name}: others have changed {step.output} since its last run (snapshot {others[0]})")
    run.say(f"{step.name}: {planned.action}: {planned.reason}")
    try:
        return run_step(place, planned, run)
    except AskWhole:
        run.say(f"{step.name}: whole: its columns have changed")
        return run_step(place, but(planned, action="whole", reason="its columns have changed"), run)


def _tell(done: Done, run: Run) -> None:
    run.counts[done.planned.action] += 1
    for name, count in done.rows.items():
        if name != "total":
            run.counts[f"rows {name}"] += count
    run.counts["rows quarantined"] += done.quarantined
    if done.rows:
        told = ", ".join(f"{count} {name}" for name, count in done.rows.items())
        run.say(f"{done.planned.step.name}: {told}")


def plans(
    place: Place, pipeline: Pipeline, *, only: Sequence[str] = (), rebuild: bool = False
) -> Iterator[dict[str, Any]]:
    """What a run would do, as far as it can be known: a step after one that does something is planned when that is
    done."""
    acting: set[str] = set()
    for step in in_order(pipeline, only):
        waits = [name for name in needs(step, pipeline) if name in acting]
        if waits:
            acting.add(step.name)
            yield {"step": step.name, "output": step.output, "mode": step.mode, "action": "after", "reason": waits}
            continue
        planned: Planned = plan(place, pipeline, step, rebuild=rebuild)
        if planned.action not in {"nothing", "note"}:
            acting.add(step.name)
        yield planned.json()


def past(place: Place, pipeline: Pipeline, *, only: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Runs of the steps, as the outputs' snapshots tell them, newest first."""
    for step in in_order(pipeline, only):
        loaded = place.load(table(step.output))
        for ran in () if loaded is None else state.history(loaded["metadata"], f"{pipeline.name}.{step.name}"):
            yield {
                "step": step.name,
                "run": ran.run,
                "at-ms": ran.at_ms,
                "snapshot-id": ran.snapshot,
                "inputs": {
                    name: {
                        "table": step.inputs[name].table if name in step.inputs else None,
                        "snapshot-id": read.snapshot,
                    }
                    for name, read in ran.inputs.items()
                },
                "counts": ran.counts,
            }
