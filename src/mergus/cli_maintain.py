"""`mergus maintain`: keeping the lake healthy."""

import json
import re
import sys
from datetime import timedelta
from typing import Any, Literal

import click

from mergus.config import load_settings

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Age(click.ParamType[int]):
    """`90s`, `12h`, `7d`."""

    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401
        found = re.fullmatch(r"(\d{1,9})([smhdw])", str(value))
        if found is None:
            self.fail(f"{value!r} is no age like 90s, 30m, 12h, 7d or 4w", param, ctx)
        return int(timedelta(**{_UNITS[found[2]]: int(found[1])}).total_seconds())


@click.group()
def maintain() -> None:
    """Keep the lake healthy: compaction, expiry, cleaning.

    Each is a job in Postgres. The command does it itself, unless a server is at it already, and ends when it has ended:
    with exit code 1 if something failed. Safe to run from cron, and beside writers.
    """


_json = click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
_dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")


@maintain.command()
@click.argument("namespace", required=False)
@click.argument("table", required=False)
@click.option(
    "--step",
    "steps",
    multiple=True,
    type=click.Choice(["flush", "rewrite", "merge"]),
    help="Only this; may be given again.",
)
@click.option("--delete-ratio", type=click.FloatRange(0, 1), help="Rewrite files of which more than this is deleted.")
@click.option("--max-files", type=click.IntRange(min=1), help="Merge no more files than this of a table.")
@_dry_run
@_json
def compact(
    namespace: str | None,
    table: str | None,
    steps: tuple[str, ...],
    delete_ratio: float | None,
    max_files: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Flush inlined rows, rewrite files with many deletes, merge small ones: of a TABLE, a NAMESPACE, or everything."""
    given = {
        "steps": list(steps) or None,
        "delete-ratio": delete_ratio,
        "max-files": max_files,
        "dry-run": dry_run or None,
    }
    _run("compact", given, namespace, table, as_json=as_json)


@maintain.command()
@click.option("--older-than", type=Age(), help="Those that are older: 90s, 12h, 7d.")
@click.option("--retain-last", type=click.IntRange(min=1), help="Keep the last so many whatever their age.")
@_dry_run
@_json
def expire(older_than: int | None, retain_last: int | None, dry_run: bool, as_json: bool) -> None:
    """Let snapshots of the lake expire.

    Those that have a tag, the newest of each table, and what tables want kept by history.expire.* stay.
    """
    if older_than is None and retain_last is None:
        raise click.UsageError("--older-than or --retain-last is needed")
    given = {"older-than-seconds": older_than, "retain-last": retain_last, "dry-run": dry_run or None}
    _run("expire", given, None, None, as_json=as_json)


@maintain.command()
@click.option("--grace", type=Age(), help="What nobody has needed for longer.  [MERGUS_GRACE_SECONDS]")
@_dry_run
@_json
def sweep(grace: int | None, dry_run: bool, as_json: bool) -> None:
    """Remove objects of Iceberg's side that nobody needs any more.

    They are known, and nothing is listed: those of replaced and expired snapshots, of tables that are gone, and what
    commits of clients left behind.
    """
    _run("sweep", {"grace-seconds": grace, "dry-run": dry_run or None}, None, None, as_json=as_json)


@maintain.command()
@click.option("--older-than", type=Age(), help="Those that are older: longer than any job of a client.  [default: 3d]")
@_dry_run
@_json
def orphans(older_than: int | None, dry_run: bool, as_json: bool) -> None:
    """Look through all of the lake's objects, and remove those that nothing names."""
    _run("orphans", {"older-than-seconds": older_than, "dry-run": dry_run or None}, None, None, as_json=as_json)


@maintain.command("jobs")
@_json
def jobs_(as_json: bool) -> None:
    """List the newest jobs."""
    from mergus.maintain import list_jobs

    found = list_jobs(load_settings())
    if as_json:
        click.echo(json.dumps(found, indent=2, default=str))
        return
    for job in found:
        about = ".".join([*(job["namespace"] or ()), *([job["table"]] if job["table"] else ())]) or "everything"
        click.echo(f"{job['job-id']:>8}  {job['kind']:<8} {job['state']:<10} {job['asked-at']:%Y-%m-%d %H:%M}  {about}")


@maintain.command()
@click.argument("job", type=int)
def cancel(job: int) -> None:
    """Cancel a job: what is being done stops within a second, what has been done stays done."""
    from mergus.maintain import cancel as run

    click.echo(f"job {job}: {run(load_settings(), job)['state']}")


@maintain.command()
def work() -> None:
    """Work on jobs until SIGTERM or Ctrl-C, for servers that do not (MERGUS_MAINTENANCE=off)."""
    from mergus.maintain import work as run

    run(load_settings())


def _run(
    kind: Literal["compact", "expire", "sweep", "orphans"],
    options: dict[str, Any],
    namespace: str | None,
    table: str | None,
    *,
    as_json: bool,
) -> None:
    from mergus.maintain import maintain as run

    given = {key: value for key, value in options.items() if value is not None}
    job = run(load_settings(), kind, given, namespace, table, lambda text: click.echo(f"· {text}", err=True))
    if as_json:
        click.echo(json.dumps(job, indent=2, default=str))
    else:
        _show(job)
    if job["state"] != "done" or job["progress"].get("failed-tables"):
        sys.exit(1)


def _show(job: dict[str, Any]) -> None:
    for table in job["tables"]:
        name = ".".join([*table.pop("namespace"), table.pop("table")])
        if table:
            told = sorted(table.items(), key=lambda item: _in_order(item[0]))
            click.echo(f"{name}: " + ", ".join(f"{key} {_text(value)}" for key, value in told))
    counts = {key: value for key, value in job["progress"].items() if isinstance(value, int) and value}
    click.echo(f"{job['state']}: " + (", ".join(f"{k} {v:,}" for k, v in counts.items()) or "nothing to do"))
    if job["error"]:
        click.echo(f"error: {job['error']}", err=True)


# Of what is said about a table: as it is done. Postgres keeps no order.
_ORDER = (
    *("flush", "rewrite", "rewritten", "merge-files", "merged-files", "merge"),
    *("handed-over", "gave-way", "failed", "left-alone"),
)


def _in_order(key: str) -> int:
    return next((i for i, word in enumerate(_ORDER) if word in key), len(_ORDER))


def _text(value: Any) -> str:  # noqa: ANN401  (JSON)
    if isinstance(value, dict):
        return "; ".join(f"{key}: {text}" for key, text in value.items())  # pyright: ignore[reportUnknownVariableType]
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
