"""What the commands of jobs have in common: options, a session, a summary at the end, and exit codes.

0   the job did what was asked
1   it could not; the message says why
2   it was called wrongly
3   it did its work and found what somebody should look at (differences, quarantined rows, tables not imported)
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from mergus.client import Address, Client
from mergus.config import connection_uri, hide_password
from mergus.errors import MergusError, SetupError
from mergus.pipeline.catalog_settings import CATALOG
from mergus.pipeline.job import Failed, Place, Run, State

FOUND: Final = 3

F = TypeVar("F", bound=Callable[..., Any])

# A job's work: what its summary says besides counts, and whether there is something to look at.
Work = Callable[[Place, Run], tuple[dict[str, Any], bool]]


def of_a_catalog(command: F) -> F:
    """The options of everything that speaks to a server; `address` takes them."""
    options = [
        click.option("--uri", help="Server.  [MERGUS_URI; else the one that `mergus dev` runs here]"),
        click.option("--warehouse", help="Which catalog, or the lake as it was: lake@TAG.  [the server's own]"),
        click.option("--credential", metavar="NAME:SECRET", help="Client as which to come.  [MERGUS_CREDENTIAL]"),
        click.option("--token", help="A token instead.  [MERGUS_TOKEN]"),
    ]
    return _with(command, options)


def of_a_job(command: F) -> F:
    """Those, and the ones that `run_job` takes as keywords."""
    file = click.Path(dir_okay=False, path_type=Path)
    options = [
        click.option("--master", help="Spark's, where spark-submit does not say it.  [local[*]]"),
        click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark's."),
        click.option("--report", type=file, help="File for the summary (JSON), which is printed as well."),
        click.option("--metrics", type=file, help="File for metrics in Prometheus' text format."),
    ]
    return _with(of_a_catalog(command), options)


def _with(command: F, options: list[Callable[[F], F]]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def address(uri: str | None, warehouse: str | None, credential: str | None, token: str | None) -> Address:
    target = uri or connection_uri()
    if target is None:
        raise SetupError("no server is named: give --uri or MERGUS_URI, or start one here with `mergus dev`")
    given = credential or os.environ.get("MERGUS_CREDENTIAL")
    return Address(target, warehouse, given, token or os.environ.get("MERGUS_TOKEN"))


def pairs(given: tuple[str, ...], option: str = "--conf") -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        found[key] = value
    return found


def run_job(
    job: str,
    work: Work,
    *,
    master: str | None,
    conf: tuple[str, ...],
    report: Path | None,
    metrics: Path | None,
    more_conf: dict[str, str] | None = None,
    **given: str | None,
) -> None:
    """Does a job's work and tells about it, however it ends; `more_conf` is what the job needs of Spark."""
    from mergus.pipeline import session

    where = address(**given)
    settings = {**(more_conf or {}), **pairs(conf)}
    run = Run(job, lambda text: click.echo(f"· {text}", err=True))
    state: State = "failed"
    details: dict[str, Any] = {}
    try:
        client = Client(where)
        with run.part("start"):
            spark = session.spark_session(where, master=master, app=f"mergus {job}", conf=settings)
        with session.active(spark):
            details, found = work(Place(client, spark, CATALOG), run)
        state = "found" if found else "done"
    except MergusError as e:
        details = {"error": hide_password(e.message), **(e.details if isinstance(e, Failed) else {})}
        raise
    except session.spark_errors() as e:
        details = {"error": hide_password(session.message(e))}
        raise SetupError(session.message(e)) from None
    finally:
        summary = json.dumps(run.summary(state, details), indent=2, default=str)
        if report is not None:
            report.write_text(summary + "\n")
        if metrics is not None:
            metrics.write_bytes(run.metrics(state))
        click.echo(summary)
    if state == "found":
        sys.exit(FOUND)
