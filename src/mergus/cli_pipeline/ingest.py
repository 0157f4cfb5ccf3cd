"""`mergus pipeline ingest`."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import click

from mergus.cli_pipeline.options import of_a_job, pairs, run_job
from mergus.pipeline.job import Place, Run, table
from mergus.pipeline.partitioning import partition


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--into", required=True, metavar="NAMESPACE.TABLE", help="Table; it is made if there is none.")
@click.option(
    "--format", "kind", type=click.Choice(["parquet", "csv", "json"]), help="Of all files.  [by their endings]"
)
@click.option("--option", "options", metavar="KEY=VALUE", multiple=True, help="An option of Spark's reader.")
@click.option(
    "--partition-by", metavar="COLUMN|TRANSFORM(COLUMN)", multiple=True, help="Of a table that is made: days(at)."
)
@click.option("--quarantine", metavar="NAMESPACE.TABLE", help="For what is bad.  [TABLE_quarantine]")
@click.option("--no-evolve", is_flag=True, help="Leave the table's columns as they are; files with others are bad.")
@click.option("--again", is_flag=True, help="Take files that were left out as a whole for new ones.")
@click.option("--dry-run", "--plan", is_flag=True, help="Tell what would be done.")
@click.option("--stream", "as_stream", is_flag=True, help="Files as they come, by Spark's streaming file source.")
@click.option("--checkpoint", metavar="DIRECTORY", help="Where the stream keeps what it has seen.")
@click.option("--every", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Go on, and look so often.")
@click.option("--batch-files", type=click.IntRange(1), default=1000, show_default=True, help="Most files of a commit.")
@click.option("--batch-bytes", type=click.IntRange(1), default=4 << 30, show_default=True, help="Most bytes of them.")
@of_a_job
def ingest(
    sources: tuple[str, ...],
    into: str,
    kind: str | None,
    options: tuple[str, ...],
    partition_by: tuple[str, ...],
    quarantine: str | None,
    no_evolve: bool,
    again: bool,
    dry_run: bool,
    as_stream: bool,
    checkpoint: str | None,
    every: float | None,
    batch_files: int,
    batch_bytes: int,
    **given: Any,  # noqa: ANN401
) -> None:
    """Files (Parquet, CSV, JSON) into a table, each of them once.

    A SOURCE is a file, a directory or a glob: a local one, or of any file system that Spark has (s3a://…). New columns
    are added and types widened; what is corrupt or does not fit goes to the quarantine table, and the job ends with 3.
    It may be killed and run again, or run twice at once.
    """
    if as_stream != (checkpoint is not None):
        raise click.UsageError("--stream and --checkpoint go together")
    if every is not None and not as_stream:
        raise click.UsageError("--every is for a --stream")
    if dry_run and as_stream:
        raise click.UsageError("--dry-run is not for a --stream")
    read_options = pairs(options, "--option")
    name = table(into)

    def work(place: Place, run: Run) -> tuple[dict[str, Any], bool]:
        from mergus.pipeline.ingest import decision, job, reading, stream

        reading.check_options(place.spark, read_options)
        for text in partition_by:
            partition(text)
        wanted = job.Wanted(
            name,
            table(quarantine) if quarantine else name.beside(f"{name.name}_quarantine"),
            decision.Manner(kind, tuple(sorted(read_options.items())), not no_evolve),
            partition_by,
            batch_files,
            batch_bytes,
            again,
        )
        report = job.Report()
        if checkpoint is not None:
            with _asked_to_end() as is_asked:
                stream.stream(
                    place, wanted, sources, run, report, checkpoint=checkpoint, every=every, is_asked_to_end=is_asked
                )
        else:
            files = job.listing(place, sources, wanted.manner, run)
            if dry_run:
                return job.preview(place, wanted, files, run), job.is_found(run)
            job.ingest(place, wanted, files, run, report)
        return {"table": str(name), **report.json()}, job.is_found(run)

    run_job("ingest", work, **given)


@contextmanager
def _asked_to_end() -> Generator[Callable[[], bool]]:
    """SIGTERM and Ctrl-C end a stream when it is between two batches."""
    asked = threading.Event()

    def ask(number: int, frame: object) -> None:
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
