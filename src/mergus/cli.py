"""The `mergus` command. Each command imports what it needs when it runs, so that --help is quick."""

import json
import sys
from pathlib import Path
from typing import Any

import click
import psycopg

from mergus import __version__, cli_access, cli_demo, cli_maintain, cli_pipeline, cli_status
from mergus.config import Settings, default_state_dir, hide_password, load_settings, reference, variable
from mergus.errors import MergusError


class _Group(click.Group):
    """Turns what we raise on purpose into a message and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401
        try:
            return super().invoke(ctx)
        except MergusError as e:
            message = e.message
        except (OSError, psycopg.Error) as e:
            message = f"{type(e).__name__}: {e}"
        click.echo(f"error: {hide_password(message).strip()}", err=True)
        ctx.exit(1)


def _progress(text: str) -> None:
    click.echo(f"· {text}", err=True)


def _show(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="mergus")
def main() -> None:
    """Mergus makes every table of a DuckLake an Apache Iceberg table too.

    Settings are MERGUS_* variables; `mergus config` shows those in effect. To try it, run `mergus dev`: it starts a
    Postgres, an S3 store and the catalog on this machine, and says how to connect.
    """


@main.command()
@click.option("--host", help="Address to serve on.  [MERGUS_HOST]")
@click.option("--port", type=int, help="Port to serve on.  [MERGUS_PORT]")
@click.option("--workers", type=int, help="Server processes.  [MERGUS_WORKERS]")
@click.option("--warehouse", help="Its name, or s3://bucket/path or file:///dir for a new lake.  [MERGUS_WAREHOUSE]")
def dev(host: str | None, port: int | None, workers: int | None, warehouse: str | None) -> None:
    """Serve a whole lakehouse on this machine.

    Starts its own Postgres and S3 store (unless MERGUS_POSTGRES_DSN and MERGUS_S3_ENDPOINT name yours), makes or finds
    the DuckLake, serves the Iceberg REST catalog, and prints how to connect. Data is kept in MERGUS_STATE_DIR
    (default: .mergus here). Ctrl-C stops everything that it started.
    """
    from mergus.dev import dev as run

    overrides: dict[str, object] = {"host": host, "port": port, "workers": workers, "warehouse": warehouse}
    run(default_state_dir(), _progress, _show, overrides)


@main.command()
@click.option("--host", help="Address to serve on.  [MERGUS_HOST]")
@click.option("--port", type=int, help="Port to serve on.  [MERGUS_PORT]")
@click.option("--workers", type=int, help="Server processes.  [MERGUS_WORKERS]")
@click.option("--no-init", is_flag=True, help="Do not set the lake up first (see `mergus init`).")
def serve(host: str | None, port: int | None, workers: int | None, no_init: bool) -> None:
    """Serve the Iceberg REST catalog of the lake that the settings name.

    Sets the lake up first, as `mergus init` does; that costs three queries when there is nothing to do.
    """
    from mergus.serve import serve as run
    from mergus.setup import initialise

    settings = load_settings(host=host, port=port, workers=workers)
    if not no_init:
        initialise(settings, _progress)
    run(settings)


@main.command()
@click.option("--port", type=int, help="Serve metrics here.  [MERGUS_LISTENER_PORT]")
@click.option("--no-init", is_flag=True, help="Do not set the lake up first (see `mergus init`).")
def listen(port: int | None, no_init: bool) -> None:
    """Put every commit on storage as Iceberg before anyone asks, without serving.

    Any number may run, beside servers that do the same (MERGUS_LISTENER): one of them leads, and when it is gone
    another takes over within seconds. Ends on SIGTERM or Ctrl-C.
    """
    from mergus.listen import listen as run
    from mergus.setup import initialise

    settings = load_settings(listener_port=port)
    if not no_init:
        initialise(settings, _progress)
    run(settings)


@main.command()
@click.option("--remove", is_flag=True, help="Take away all that Mergus added, and leave a plain DuckLake.")
def init(remove: bool) -> None:
    """Create the DuckLake, or adopt the one that is there.

    A new lake is made by DuckDB itself. An existing one keeps every row; beside it come a Postgres schema of our own,
    indexes, and a trigger that announces commits. Safe to run again, and by many processes at once.
    """
    from mergus.setup import initialise, uninitialise

    settings = load_settings()
    if remove:
        uninitialise(settings, lambda text: _progress(f"removed {text}"))
        click.echo("removed: this is a plain DuckLake again")
        return
    done = initialise(settings, _progress)
    click.echo(
        f"{'created' if done.created else 'ready'}: DuckLake {done.metadata.version}, data in {done.metadata.data_path}"
    )


@main.command()
@click.option(
    "--skip",
    type=click.IntRange(min=0),
    default=100_000,
    show_default=True,
    help="Leave out so many numbers of snapshots, tables and files: more than were given since the backup.",
)
@click.option("--objects", is_flag=True, help="Objects were lost, too: make everything on the Iceberg side anew.")
def restored(skip: int, objects: bool) -> None:
    """Say that the lake has come back from a backup.

    Run it after the restore, before anybody is let in again; OPERATIONS.md tells the rest. Every table is looked at by
    the next listener, so that nothing on storage leads into the future that is lost; and numbers that clients may have
    seen there are not given to anything else.
    """
    from mergus.restored import restored as run

    done = run(load_settings(), skipped=skip, objects=objects)
    if objects:
        click.echo(f"to be made anew: {done.chains} snapshots of tables")
    said = "no numbers are left out" if done.snapshot_id is None else f"the lake goes on after {done.snapshot_id}"
    click.echo(f"ready: {said}; a listener looks at every table")


@main.command()
@click.option("--owner", default="lake_owner", show_default=True, help="Owns the lake; `mergus init` is run as it.")
@click.option("--server", default="lake_server", show_default=True, help="Of servers and listeners.")
@click.option("--writer", default="lake_writer", show_default=True, help="Of DuckDB sessions that write.")
@click.option("--reader", default="lake_reader", show_default=True, help="Of DuckDB sessions that only read.")
def roles(owner: str, server: str, writer: str, reader: str) -> None:
    """Print SQL that gives the lake roles in Postgres.

    Nothing is executed: a superuser runs it in the lake's database after `mergus init`, as OPERATIONS.md tells. It
    makes the roles that are not there, and hands the lake over to them.
    """
    from mergus.annex.roles import Roles, script

    click.echo(script(load_settings(), Roles(owner, server, writer, reader)), nl=False)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(as_json: bool) -> None:
    """Check Postgres, storage, the lake and everything around them.

    Says what to do about each check that fails, and then ends with exit code 1.
    """
    from dataclasses import asdict

    from mergus.doctor import Finding, examine

    findings: list[Finding] = []
    for finding in examine(load_settings()):
        findings.append(finding)
        if not as_json:
            click.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.name:<11} {finding.detail}")
            if not finding.ok:
                click.echo(f"      → {finding.remedy}")
    if as_json:
        click.echo(json.dumps([asdict(f) for f in findings], indent=2))
    if not all(f.ok for f in findings):
        sys.exit(1)


@main.command()
@click.option("--markdown", is_flag=True, help="Print the reference of all settings instead.")
def config(markdown: bool) -> None:
    """Print the settings in effect, with secrets hidden."""
    if markdown:
        click.echo(reference(), nl=False)
        return
    shown = load_settings().shown()
    for name in Settings.model_fields:
        click.echo(f"{variable(name)}={'' if shown[name] is None else shown[name]}")


@main.command()
@click.argument("namespace")
@click.argument("table")
@click.option("--set", "settings_", multiple=True, metavar="KEY=VALUE", help="Set a property; may be given again.")
@click.option("--unset", multiple=True, metavar="KEY", help="Remove a property; may be given again.")
def properties(namespace: str, table: str, settings_: tuple[str, ...], unset: tuple[str, ...]) -> None:
    """Show or change the Iceberg properties of a table.

    NAMESPACE is its DuckLake schema. `mergus.format-version` chooses the Iceberg format version, 2 or 3,
    `mergus.unsupported-columns=hide` shows the table without columns of types that Iceberg does not have, and
    `commit.manifest.*` chooses how manifests are merged; readers see all others as they are. Servers know at once.
    """
    import asyncio

    from mergus.catalog.table_properties import change

    changes: dict[str, str | None] = dict.fromkeys(unset)
    for text in settings_:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
        changes[key] = value
    for key, value in asyncio.run(change(load_settings(), namespace, table, changes)).items():
        click.echo(f"{key}={value}")


@main.command()
@click.option("--uri", help="Server to check.  [MERGUS_URI; else the one that `mergus dev` runs here]")
@click.option(
    "--credential",
    metavar="NAME:SECRET",
    help="Client as which to use a server that asks who one is; it needs every right on the catalog.  "
    "[MERGUS_CREDENTIAL]",
)
def smoke(uri: str | None, credential: str | None) -> None:
    """Check a running server end to end, in seconds.

    Goes through the server as a client and, where MERGUS_POSTGRES_DSN is known, looks at the result from DuckDB.
    """
    import os

    from mergus.config import connection_uri
    from mergus.smoke import smoke as run

    settings = load_settings()
    target = uri or connection_uri() or f"http://{settings.host}:{settings.port}"
    for line in run(target, settings, credential or os.environ.get("MERGUS_CREDENTIAL")):
        click.echo(f"ok  {line}")
    click.echo(f"all good: {target}")


main.add_command(cli_access.clients)
main.add_command(cli_access.grants)
main.add_command(cli_demo.demo)
main.add_command(cli_maintain.maintain)
main.add_command(cli_pipeline.pipeline)
main.add_command(cli_pipeline.spark)
main.add_command(cli_status.status)


@main.group()
def backends() -> None:
    """The embedded Postgres and S3 store alone, without a server."""


@backends.command()
def up() -> None:
    """Start them in the background; connection.env in the state directory says where they are."""
    from mergus.dev import backends_up

    backends_up(default_state_dir(), _progress)


@backends.command()
def down() -> None:
    """Stop what `up` started; data is kept."""
    from mergus.dev import backends_down

    backends_down(default_state_dir(), _progress)


@backends.command()
def hold() -> None:
    """Run them in the foreground until a signal comes."""
    from mergus.dev import backends as run

    run(default_state_dir(), _progress)


@backends.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--throw-away", is_flag=True, help="On a temporary state directory that is removed afterwards.")
@click.option(
    "--temporary-directory",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Where --throw-away creates its state directory; the default is the system's directory for temporary files.",
)
@click.argument("command", nargs=-1, required=True)
def run(throw_away: bool, temporary_directory: Path | None, command: tuple[str, ...]) -> None:
    """Run COMMAND with them, their addresses and keys in its environment, and stop them when it ends."""
    from mergus.dev import run_with_backends

    if temporary_directory is not None and not throw_away:
        raise click.UsageError("--temporary-directory needs --throw-away")
    code = run_with_backends(
        command,
        _progress,
        throw_away=throw_away,
        state_path=default_state_dir(),
        temporary_directory=temporary_directory,
    )
    sys.exit(code)
