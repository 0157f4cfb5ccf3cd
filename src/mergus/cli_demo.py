"""`mergus demo`."""

import sys
import tempfile
from pathlib import Path

import click

# as a shell says of what Ctrl-C ended
STOPPED = 130


@click.command()
@click.option("--orders", default=20_000, show_default=True, type=click.IntRange(1), help="To begin with.")
@click.option(
    "--runs", default=4, show_default=True, type=click.IntRange(1), help="Of the pipeline, while orders come."
)
@click.option(
    "--page",
    default="mergus-demo.html",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The report as HTML.",
)
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark's.")
def demo(orders: int, runs: int, page: Path, conf: tuple[str, ...]) -> None:
    """See both worlds at work on one lake, on this machine, with nothing left behind.

    DuckDB writes orders without a pause, a pipeline on Spark makes silver and gold tables of what has changed, DuckDB
    reads those, and both engines are compared row for row. Ends with a report, and with 3 if something differs.
    """
    from mergus.cli_pipeline.options import FOUND, pairs
    from mergus.demo import report
    from mergus.demo.story import demo as run

    with tempfile.TemporaryDirectory(prefix="mergus-demo-") as folder:
        told = run(
            Path(folder),
            lambda text: click.echo(f"· {text}", err=True),
            size=orders,
            runs=runs,
            conf=pairs(conf),
        )
    if told is None:
        sys.exit(STOPPED)
    page.write_text(report.html(told))
    click.echo(report.text(told))
    click.echo(f"The same as a page: {page}")
    if not told.is_good:
        sys.exit(FOUND)
