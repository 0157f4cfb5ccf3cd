"""`mergus spark` and `mergus pipeline …`: Spark on the catalog, from the command line.

A module for each command; options.py has what they share. Spark is imported when a job begins.
"""

import click

from mergus.cli_pipeline.compact import compact
from mergus.cli_pipeline.imports import import_
from mergus.cli_pipeline.ingest import ingest
from mergus.cli_pipeline.spark import spark
from mergus.cli_pipeline.stats import stats
from mergus.cli_pipeline.transform import transform
from mergus.cli_pipeline.verify import verify

__all__ = ["pipeline", "spark"]


@click.group()
def pipeline() -> None:
    """Jobs on Spark: on this machine, or on a cluster with --master or spark-submit."""


for command in (compact, import_, ingest, stats, transform, verify):
    pipeline.add_command(command)
