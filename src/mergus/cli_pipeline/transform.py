"""`mergus pipeline transform`."""

from pathlib import Path
from typing import Any

import click

from mergus.cli_pipeline.options import of_a_job, run_job
from mergus.pipeline.job import Failed, Place, Run


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--only", metavar="STEP", multiple=True, help="This step, and those that it needs.")
@click.option("--plan", "only_plan", is_flag=True, help="Say what would be done, and why; change nothing.")
@click.option("--rebuild", is_flag=True, help="Make the outputs anew, of all rows of their inputs.")
@click.option("--graph", is_flag=True, help="Draw the steps and tables (Mermaid), and end.")
@click.option("--history", is_flag=True, help="Tell of earlier runs, and end.")
@of_a_job
def transform(
    file: Path,
    only: tuple[str, ...],
    only_plan: bool,
    rebuild: bool,
    graph: bool,
    history: bool,
    **given: Any,  # noqa: ANN401
) -> None:
    """Run a pipeline of SQL steps: each makes a table of others, of what has changed since its last run.

    FILE is TOML or YAML. A step that is killed has either happened or not: run it again. Ends with 1 if a step failed
    (an expectation, say), and with 3 if rows were quarantined or warned of.
    """
    from mergus.pipeline.transform.definition import load
    from mergus.pipeline.transform.graph import in_order, mermaid

    pipeline = load(file)
    in_order(pipeline, only)
    if graph:
        click.echo(mermaid(pipeline), nl=False)
        return

    def work(place: Place, run: Run) -> tuple[dict[str, Any], bool]:
        from mergus.pipeline.transform import job
        from mergus.pipeline.transform.function import beside

        told: dict[str, Any] = {"pipeline": pipeline.name}
        with beside(file.parent):
            if only_plan:
                return {**told, "plan": list(job.plans(place, pipeline, only=only, rebuild=rebuild))}, False
            if history:
                return {**told, "runs": list(job.past(place, pipeline, only=only))}, False
            outcome = job.transform(place, pipeline, run, only=only, rebuild=rebuild)
        told["steps"] = outcome.json()
        if outcome.failed:
            raise Failed(f"{len(outcome.failed)} of {len(pipeline.steps)} steps failed", told)
        return told, any(one.is_found for one in outcome.done)

    run_job("transform", work, **given)
