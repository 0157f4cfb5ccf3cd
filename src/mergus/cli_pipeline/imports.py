"""`mergus pipeline import`."""

import os
from pathlib import Path
from typing import Any, Literal

import click

from mergus.cli_pipeline.options import of_a_job, pairs, run_job
from mergus.errors import MergusError, SetupError
from mergus.pipeline.job import Place, Run

KINDS = ("iceberg-rest", "hive", "glue", "hadoop", "delta", "parquet")


@click.command("import")
@click.argument("names", nargs=-1, metavar="[NAMESPACE | NAMESPACE.TABLE]...")
@click.option("--from", "kind", type=click.Choice(KINDS), required=True, help="What the source is.")
@click.option("--source", metavar="URI_OR_PATH", help="Where: a catalog's address, a warehouse, a directory of tables.")
@click.option(
    "--source-conf", metavar="KEY=VALUE", multiple=True, help="A property of the catalog, or an option of the reader."
)
@click.option(
    "--source-conf-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of them, for secrets.  [MERGUS_SOURCE_… variables have them as well]",
)
@click.option("--into", metavar="NAMESPACE", help="For all tables.  [the one that each has in the source]")
@click.option("--how", type=click.Choice(("auto", "register", "copy")), default="auto", show_default=True)
@click.option(
    "--history",
    type=click.Choice(("latest", "all")),
    default="latest",
    show_default=True,
    help="Of tables that are copied.",
)
@click.option("--parallel", type=click.IntRange(1, 64), default=4, show_default=True, help="Tables at once.")
@click.option("--again", is_flag=True, help="Replace tables whose source has changed since they were imported.")
@click.option("--plan", is_flag=True, help="Tell what would be done, and do nothing.")
@of_a_job
def import_(
    names: tuple[str, ...],
    kind: str,
    source: str | None,
    source_conf: tuple[str, ...],
    source_conf_file: Path | None,
    into: str | None,
    how: Literal["auto", "register", "copy"],
    history: Literal["latest", "all"],
    parallel: int,
    again: bool,
    plan: bool,
    **given: Any,  # noqa: ANN401
) -> None:
    """Tables of another catalog, or of directories, become tables of the lake.

    In place where the server allows it (MERGUS_ALLOWED_LOCATIONS), else by copying. A run that was cut short goes on
    when it is repeated. Ends with 3 if a table failed; the others are imported all the same.
    """
    from mergus.pipeline.imports import sources
    from mergus.pipeline.imports.importing import Asked, import_tables
    from mergus.pipeline.imports.secrets import Secrets, from_environment, from_file
    from mergus.pipeline.session import message

    conf = from_environment(os.environ)
    conf |= {} if source_conf_file is None else from_file(source_conf_file)
    conf |= pairs(source_conf, "--source-conf")
    secrets = Secrets(conf)
    levels = None if into is None else tuple(into.split("."))
    asked = Asked(names, levels, how, history, parallel, again, plan)

    def work(place: Place, run: Run) -> tuple[dict[str, Any], bool]:
        from mergus.pipeline.session import spark_errors

        try:
            connector = sources.connect(kind, place.spark, source, conf)
            report = import_tables(place, run, connector, asked, secrets)
        except MergusError as e:
            raise SetupError(secrets.hide(e.message)) from None
        except spark_errors() as e:
            raise SetupError(secrets.hide(message(e))) from None
        shown = {"from": kind, "source": None if source is None else secrets.hide(source)}
        return {**shown, **report.json()}, run.counts["failed"] > 0

    run_job("import", work, more_conf=sources.session_conf(kind), **given)
