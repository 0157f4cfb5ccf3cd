"""`mergus spark` and `mergus pipeline …`: Spark on the catalog, from the command line.

A job ends with 0 if it did what was asked, with 1 if it could not (the message says why), with 2 if it was called
wrongly, and with 3 if it did its work and found what somebody should look at (verify: differences).
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from mergus.client import Address, Client
from mergus.config import connection_uri, load_settings
from mergus.errors import SetupError

FOUND: Final = 3

F = TypeVar("F", bound=Callable[..., Any])


def _of_a_catalog(command: F) -> F:
    """The options of everything that speaks to a server."""
    options = [
        click.option("--uri", help="Server.  [MERGUS_URI; else the one that `mergus dev` runs here]"),
        click.option("--warehouse", help="Which catalog, or the lake as it was: lake@TAG.  [the server's own]"),
        click.option("--credential", metavar="NAME:SECRET", help="Client as which to come.  [MERGUS_CREDENTIAL]"),
        click.option("--token", help="A token instead.  [MERGUS_TOKEN]"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _of_a_job(command: F) -> F:
    options = [
        click.option("--master", help="Spark's, where spark-submit does not say it.  [local[*]]"),
        click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark's."),
        click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="File for the summary (JSON)."),
    ]
    for option in reversed(options):
        command = option(command)
    return _of_a_catalog(command)


def address(uri: str | None, warehouse: str | None, credential: str | None, token: str | None) -> Address:
    target = uri or connection_uri()
    if target is None:
        raise SetupError("no server is named: give --uri or MERGUS_URI, or start one here with `mergus dev`")
    given = credential or os.environ.get("MERGUS_CREDENTIAL")
    return Address(target, warehouse, given, token or os.environ.get("MERGUS_TOKEN"))


def _progress(text: str) -> None:
    click.echo(f"· {text}", err=True)


def _pairs(conf: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in conf:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--conf")
        found[key] = value
    return found


def _summary(found: dict[str, Any], report: Path | None) -> None:
    text = json.dumps(found, indent=2, default=str)
    if report is not None:
        report.write_text(text + "\n")
    click.echo(text)


@click.group()
def pipeline() -> None:
    """Jobs on Spark: on this machine, or on a cluster with --master or spark-submit."""


@pipeline.command()
@click.argument("names", nargs=-1, metavar="[NAMESPACE | NAMESPACE.TABLE]...")
@click.option("--snapshots", default="1", show_default=True, help="How many of the newest, or `all`.")
@click.option("--rows", default=20, show_default=True, help="Rows shown, of those that differ in one table.")
@_of_a_job
def verify(
    names: tuple[str, ...],
    snapshots: str,
    rows: int,
    master: str | None,
    conf: tuple[str, ...],
    report: Path | None,
    **given: str | None,
) -> None:
    """Compare the two worlds: Spark through the catalog, DuckDB through the lake.

    Counts, a checksum of every column, and the rows that differ, of all tables or of those named, at their newest
    snapshots. MERGUS_POSTGRES_DSN names the lake. Ends with 3 if something differs.
    """
    from mergus.pipeline import verify as job
    from mergus.pipeline.session import CATALOG, spark_session

    if snapshots != "all" and not (snapshots.isdecimal() and int(snapshots)):
        raise click.BadParameter("a number, or all", param_hint="--snapshots")
    where = address(**given)
    client = Client(where)
    chosen = list(job.chosen(client, names))
    spark = spark_session(where, master=master, app="mergus verify", conf=_pairs(conf))
    newest = None if snapshots == "all" else int(snapshots)
    done = job.verify(client, load_settings(), spark, CATALOG, chosen, _progress, newest=newest, most=rows)
    _summary(done.json(), report)
    if done.count("equal") != len(done.checked):
        sys.exit(FOUND)


@click.command()
@click.option("--sql", help="Run this and print its rows, instead of opening a shell.")
@click.option("--settings", "only_settings", is_flag=True, help="Print what spark-defaults.conf needs (no secrets).")
@click.option("--master", help="Spark's.  [local[*]]")
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark's.")
@_of_a_catalog
def spark(sql: str | None, only_settings: bool, master: str | None, conf: tuple[str, ...], **given: str | None) -> None:
    """Spark on the catalog, ready configured: a shell, one statement, or the settings.

    Tables are lake.NAMESPACE.TABLE. Keys come from AWS_* variables if there are any, else the server vends them.
    """
    from mergus.pipeline import session

    where = address(**given)
    if only_settings:
        for key, value in session.settings(where, with_secrets=False).items():
            click.echo(f"{key} {value}")
        return
    active = session.spark_session(where, master=master, app="mergus", conf=_pairs(conf))
    if sql is not None:
        session.query(active, sql).show(1000, truncate=False)
        return
    import code

    code.interact(banner=f"Spark {active.version} as `spark`; tables are lake.NAMESPACE.TABLE", local={"spark": active})
