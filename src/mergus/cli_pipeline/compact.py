"""`mergus pipeline compact`."""

from typing import Any, Literal

import click

from mergus.cli_pipeline.options import of_a_job, run_job
from mergus.pipeline.job import Place, Run

# Of Iceberg's procedure, by ours.
_OPTIONS = {
    "target_file_size": "target-file-size-bytes",
    "min_input_files": "min-input-files",
    "max_bytes": "max-file-group-size-bytes",
    "max_files": "max-files-to-rewrite",
    "delete_ratio": "delete-ratio-threshold",
    "partial_progress": "partial-progress.enabled",
    "rewrite_all": "rewrite-all",
}


@click.command()
@click.argument("names", nargs=-1, metavar="[NAMESPACE | NAMESPACE.TABLE]...")
@click.option("--strategy", type=click.Choice(["binpack", "sort", "zorder"]), default="binpack", show_default=True)
@click.option("--sort-order", metavar="SQL", help="For sort: 'a DESC NULLS LAST, b'.  [the table's own]")
@click.option("--columns", metavar="A,B", help="For zorder.")
@click.option("--where", metavar="SQL", help="Only files that may have rows like this.")
@click.option("--target-file-size", metavar="BYTES", type=click.IntRange(1), help="[the table's own; else 512 MiB]")
@click.option("--min-input-files", type=click.IntRange(1), help="So many small files are worth it.  [5]")
@click.option("--delete-ratio", type=click.FloatRange(0, 1, min_open=True), help="Or so many rows deleted.  [0.3]")
@click.option("--max-bytes", type=click.IntRange(1), help="Of files that are rewritten together.  [100 GiB]")
@click.option("--max-files", type=click.IntRange(1), help="Rewrite no more of a table than this.")
@click.option("--all", "rewrite_all", is_flag=True, help="Rewrite all files, whatever their size.")
@click.option("--partial-progress", is_flag=True, help="Commit in parts: what fails, fails alone.")
@click.option(
    "--v2-row-ids",
    type=click.Choice(["keep", "renew"]),
    help="Of tables of format version 2: keep them by showing the table as version 3 meanwhile, or give new ones."
    "  [leave such tables alone]",
)
@click.option("--handed-over", is_flag=True, help="The tables that the server leaves to this job, no others.")
@click.option("--plan", "only_plan", is_flag=True, help="Say what would be rewritten, and do nothing.")
@of_a_job
def compact(
    names: tuple[str, ...],
    strategy: Literal["binpack", "sort", "zorder"],
    sort_order: str | None,
    columns: str | None,
    where: str | None,
    v2_row_ids: Literal["keep", "renew"] | None,
    handed_over: bool,
    only_plan: bool,
    **given: Any,  # noqa: ANN401
) -> None:
    """Rewrite files on Spark: small ones together, those with many deletes, or all in an order.

    What `mergus maintain compact` does inside of the server, for tables that are too large for it. Older snapshots stay
    as they are, in both engines, and so do row ids. Ends with 3 if a table could not be compacted, or was left alone.
    """
    chosen_options = {theirs: given.pop(ours) for ours, theirs in _OPTIONS.items()}
    options = {key: str(value).lower() for key, value in chosen_options.items() if value not in {None, False}}

    def work(place: Place, run: Run) -> tuple[dict[str, Any], bool]:
        from mergus.pipeline import compact as job
        from mergus.pipeline.verify import chosen

        by = () if columns is None else tuple(name.strip() for name in columns.split(","))
        wish = job.Wish(strategy, sort_order, by, where, v2_row_ids, options)
        wish.check()
        tables = [(table, wish) for table in chosen(place.client, names)]
        if handed_over:
            named = {table for table, _ in tables}
            waiting = job.handed_over(place.client, sorted({t.namespace for t in named}), wish, run)
            tables = [(table, theirs) for table, theirs in waiting if table in named]
        done = job.compact(place, tables, run, only_plan=only_plan)
        return {"tables": done}, any(run.counts[state] for state in _LOOK_AT)

    run_job("compact", work, **given)


_LOOK_AT = ("left-alone", "gave-way", "failed-files", "unread")
