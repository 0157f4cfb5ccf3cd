"""`mergus pipeline verify`."""

from typing import Any

import click

from mergus.cli_pipeline.options import of_a_job, run_job
from mergus.config import load_settings
from mergus.pipeline.job import Place, Run


@click.command()
@click.argument("names", nargs=-1, metavar="[NAMESPACE | NAMESPACE.TABLE]...")
@click.option("--snapshots", default="1", show_default=True, help="How many of the newest, or `all`.")
@click.option("--rows", default=20, show_default=True, help="Rows shown, of those that differ in one table.")
@of_a_job
def verify(names: tuple[str, ...], snapshots: str, rows: int, **given: Any) -> None:  # noqa: ANN401
    """Compare the two worlds: Spark through the catalog, DuckDB through the lake.

    Counts, a checksum of every column, and the rows that differ, of all tables or of those named, at their newest
    snapshots. MERGUS_POSTGRES_DSN names the lake. Ends with 3 if something differs or could not be compared.
    """
    if snapshots != "all" and not (snapshots.isdecimal() and int(snapshots)):
        raise click.BadParameter("a number, or all", param_hint="--snapshots")
    newest = None if snapshots == "all" else int(snapshots)

    def work(place: Place, run: Run) -> tuple[dict[str, Any], bool]:
        from mergus.pipeline import verify as job

        tables = list(job.chosen(place.client, names))
        done = job.verify(place, load_settings(), tables, run, newest=newest, most=rows)
        return done.json(), run.counts["equal"] != len(done.checked)

    run_job("verify", work, **given)
