"""Steps in an order in which each finds its inputs made, and how they hang together."""

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from mergus.errors import SetupError
from mergus.pipeline.transform.definition import Pipeline, Step


def in_order(pipeline: Pipeline, only: Sequence[str] = ()) -> list[Step]:
    """All steps, or those named with all that they need; as the file has them where nothing else says so."""
    makers = {step.output: step for step in pipeline.steps}
    by_name = {step.name: step for step in pipeline.steps}
    if unknown := [name for name in only if name not in by_name]:
        raise SetupError(f"pipeline {pipeline.name} has no step {', '.join(unknown)}; it has {', '.join(by_name)}")
    sorter = TopologicalSorter({step.name: _needs(step, makers) for step in pipeline.steps})
    try:
        names = list(sorter.static_order())
    except CycleError as e:
        raise SetupError(f"steps that wait for each other: {' → '.join(reversed(e.args[1]))}") from None
    wanted = set(by_name) if not only else _with_needs(only, by_name, makers)
    return [by_name[name] for name in names if name in wanted]


def needs(step: Step, pipeline: Pipeline) -> list[str]:
    """The steps whose outputs it reads."""
    return _needs(step, {one.output: one for one in pipeline.steps})


def _needs(step: Step, makers: dict[str, Step]) -> list[str]:
    return [makers[table].name for table in sorted(step.tables) if table in makers]


def _with_needs(names: Sequence[str], by_name: dict[str, Step], makers: dict[str, Step]) -> set[str]:
    found: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += _needs(by_name[name], makers)
    return found


def mermaid(pipeline: Pipeline) -> str:
    """A drawing that Markdown viewers show: tables are boxes, steps are arrows."""
    return "\n".join(["flowchart LR", *_edges(pipeline)]) + "\n"


def _edges(pipeline: Pipeline) -> Iterator[str]:
    tables: dict[str, str] = {}
    for step in pipeline.steps:
        for table in [*sorted(step.tables), step.output]:
            if table not in tables:
                tables[table] = f"t{len(tables)}"
                yield f'    {tables[table]}["{_shown(table)}"]'
    for step in pipeline.steps:
        for one in step.inputs.values():
            arrow = "-.->" if one.changes else "-->"
            yield f"    {tables[one.table]} {arrow}|{step.name}| {tables[step.output]}"


def _shown(text: str) -> str:
    return text.replace('"', "#quot;")
