"""`mergus pipeline stats`."""

from typing import Any

import click

from mergus.cli_pipeline.options import of_a_job, run_job
from mergus.pipeline.job import Place, Run


@click.command()
@click.argument("names", nargs=-1, metavar="[NAMESPACE | NAMESPACE.TABLE]...")
@click.option("--columns", metavar="A,B", help="Of these: fields of structs have dots before them.  [all columns]")
@click.option("--snapshot", type=int, help="At this one, by Iceberg's or DuckLake's id; of one table.  [the current]")
@click.option("--buckets", default=64, show_default=True, type=click.IntRange(1, 1024), help="Of histograms, at most.")
@click.option("--again", is_flag=True, help="Measure anew what is kept already.")
@click.option("--show", is_flag=True, help="Measure nothing: print what is kept.")
@of_a_job
def stats(
    names: tuple[str, ...],
    columns: str | None,
    snapshot: int | None,
    buckets: int,
    again: bool,
    show: bool,
    **given: Any,  # noqa: ANN401
) -> None:
    """Measure columns: distinct values (theta sketches), nulls, NaNs, minimum, maximum, histogram.

    One scan of each table. The figures are kept with the table's snapshot, in a statistics file (Puffin) that Spark's
    and other optimisers read; the small ones are in the table's metadata. Ends with 3 if Spark cannot read a table.
    """
    if snapshot is not None and len(names) != 1:
        raise click.UsageError("--snapshot is of one table")
    wanted = [] if columns is None else [name.strip() for name in columns.split(",")]

    def work(place: Place, run: Run) -> tuple[dict[str, Any], bool]:
        from mergus.pipeline.stats import compute as job
        from mergus.pipeline.verify import chosen

        tables = list(chosen(place.client, names))
        if show:
            return {"tables": job.show(place, tables, snapshot)}, False
        done = job.compute(place, tables, run, columns=wanted, snapshot=snapshot, buckets=buckets, again=again)
        return {"tables": [job.brief(told) for told in done]}, bool(run.counts["unread"])

    run_job("stats", work, **given)
