"""`mergus status`: how the lake is, straight from Postgres, for a terminal or as JSON."""

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from mergus.config import Settings, load_settings
from mergus.errors import NoSuchTable, SetupError

if TYPE_CHECKING:
    from mergus.ducklake.connect import Pool

# Tables that are shown of a whole lake; --json has all of them.
MOST_SHOWN: Final = 20
HEAD: Final = ("NAMESPACE", "TABLE", "FILES", "SMALL", "SIZE", "ROWS", "DELETED", "INLINED", "NEEDS")
LEFT: Final = (0, 1, 8)


@click.command()
@click.argument("namespace", required=False)
@click.argument("table", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(namespace: str | None, table: str | None, as_json: bool) -> None:
    """Show how the lake is, and what would do it good.

    Of the whole lake, with the tables that need something, the worst first; of the tables of NAMESPACE (its DuckLake
    schema); or of one TABLE in it. Advice comes with the command that follows it.
    """
    settings = load_settings()
    _check(settings)
    if namespace is None:
        found = asyncio.run(_whole(settings))
    elif table is None:
        found = {"tables": asyncio.run(_namespace(settings, namespace))}
    else:
        found = asyncio.run(_table(settings, namespace, table))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif namespace is None:
        _show_whole(found)
    elif table is None:
        _show_tables(found["tables"])
    else:
        _show_table(found)


def _check(settings: Settings) -> None:
    """Says what is wrong, where a pool could only say that nobody answers."""
    from mergus.ducklake.connect import connect
    from mergus.ducklake.metadata import read_metadata

    with connect(settings) as conn:
        metadata = read_metadata(conn, settings.metadata_schema)
    if metadata is None:
        where = f"there is no DuckLake in schema {settings.metadata_schema} of this Postgres"
        raise SetupError(f"{where}: run `mergus init`, or set MERGUS_METADATA_SCHEMA")
    if metadata.trouble:
        raise SetupError(metadata.trouble)


async def _whole(settings: Settings) -> dict[str, Any]:
    """As `GET /v1/{prefix}/admin/status` and `…/health` have it."""
    from mergus.catalog import lake_health
    from mergus.ducklake.connect import open_pool

    async with open_pool(settings) as pool:
        found, needy = await lake_health.status(pool, settings)
    return {**found, "health": lake_health.worst_first(needy)}


async def _namespace(settings: Settings, namespace: str) -> list[dict[str, Any]]:
    """In the order of their names."""
    from mergus.catalog.find import find_namespace
    from mergus.ducklake.connect import connection, open_pool
    from mergus.iceberg.namespace import Namespace

    async with open_pool(settings) as pool:
        found = await _tables(settings, pool, schema_name=namespace)
        if not found:
            async with connection(pool) as conn:
                await find_namespace(conn, Namespace.of_schema(namespace))
    return sorted(found, key=lambda table: table["identifier"]["name"])


async def _table(settings: Settings, namespace: str, name: str) -> dict[str, Any]:
    from mergus.catalog.find import find_table
    from mergus.ducklake.connect import connection, open_pool
    from mergus.iceberg.namespace import Namespace

    async with open_pool(settings) as pool:
        async with connection(pool) as conn:
            table_id = await find_table(conn, Namespace.of_schema(namespace), name)
        for found in await _tables(settings, pool, only=table_id):
            return found
    raise NoSuchTable(f"Table does not exist: {namespace}.{name}")


async def _tables(
    settings: Settings, pool: "Pool", schema_name: str | None = None, only: int | None = None
) -> list[dict[str, Any]]:
    from mergus.catalog.advice import advise_table
    from mergus.catalog.lake_health import pages, table_json

    return [table_json(t, advise_table(t)) async for page in pages(pool, settings, schema_name, only) for t in page]


def _show_whole(found: dict[str, Any]) -> None:
    snapshots, scheduled, listener = found["snapshots"], found["scheduled-for-deletion"], found["listener"]
    jobs = found["jobs"]
    leads = f"{listener['leader']['name']} leads" if listener["leader"] else "nobody leads"
    failing = f", {_many(len(listener['failing']), 'table')} failing" if listener["failing"] else ""
    _show_pairs(
        {
            "versions": f"Mergus {found['server']['version']}, DuckLake {found['ducklake']['version']}",
            "holds": f"{_many(found['namespaces'], 'namespace')}, {_many(found['tables'], 'table')}, "
            f"{_many(found['views'], 'view')}",
            "snapshots": f"{snapshots['number']:,}, from {snapshots['oldest']['snapshot-id']} "
            f"({_time(snapshots['oldest']['time'])}) to {snapshots['newest']['snapshot-id']} "
            f"({_time(snapshots['newest']['time'])})",
            **_numbers(found),
            "to be deleted": f"{_many(scheduled['files'], 'file')} scheduled"
            + (f", since {_time(scheduled['since'])}" if scheduled["since"] else ""),
            "jobs": f"{jobs['waiting']:,} waiting, {jobs['running']:,} running, {jobs['failed']:,} failed within a day",
            "listener": f"{leads}, {_many(listener['lag']['snapshots'], 'snapshot')} behind{failing}",
        }
    )
    for failure in listener["failing"][:MOST_SHOWN]:
        click.echo(f"  {_name(failure['namespace'], failure['table'])}: {_plain(failure['message'])}")
    _show_advice(found["advice"])
    needy = found["health"]
    click.echo()
    if not needy:
        click.echo("No table needs anything.")
        return
    more = f" (the {MOST_SHOWN} worst; --json has all)" if len(needy) > MOST_SHOWN else ""
    click.echo(f"{_many(len(needy), 'table')} in need of something{more}:")
    _show_tables(needy[:MOST_SHOWN])


def _show_table(found: dict[str, Any]) -> None:
    identifier = found["identifier"]
    target = f"{_size(found['target-file-size-bytes'])} wanted for a file"
    off = "" if found["auto-compact"] else "; merging and rewriting are turned off (auto_compact)"
    _show_pairs(
        {
            "table": f"{_name('.'.join(identifier['namespace']), identifier['name'])} (id {found['table-id']})",
            **_numbers(found),
            "target": target + off,
        }
    )
    _show_advice(found["advice"])


def _numbers(found: dict[str, Any]) -> dict[str, str]:
    ended = f", {found['inlined-rows-ended']:,} ended" if found["inlined-rows-ended"] else ""
    return {
        "rows": f"{found['rows']:,}",
        "data files": f"{found['data-files']:,}, {_size(found['data-bytes'])}; {found['small-files']:,} small, "
        f"{found['files-under-1-mib']:,} under 1 MiB",
        "deleted": f"{_many(found['deleted-rows'], 'row')} ({found['deleted-rows-ratio']:.1%}) "
        f"by {_many(found['delete-files'], 'delete file')}",
        "in Postgres": f"{_many(found['inlined-rows'], 'row')}{ended}, {_many(found['inlined-deletes'], 'delete')}",
        "for the past": f"{_many(found['historic-files'], 'file')}, {_size(found['historic-bytes'])}",
    }


def _show_pairs(pairs: dict[str, str]) -> None:
    width = max(map(len, pairs))
    for key, value in pairs.items():
        click.echo(f"{key:<{width}}  {value}")


def _show_advice(advice: Sequence[dict[str, Any]]) -> None:
    for one in advice:
        click.echo(f"→ {one['action']}: {one['reason']}")
        click.echo(f"  {_plain(one['command'])}")


def _show_tables(tables: Sequence[dict[str, Any]]) -> None:
    rows = [HEAD, *map(_row, tables)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    for row in rows:
        cells = (c.ljust(w) if i in LEFT else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        click.echo("  ".join(cells).rstrip())


def _row(table: dict[str, Any]) -> tuple[str, ...]:
    return (
        _plain(".".join(table["identifier"]["namespace"])),
        _plain(table["identifier"]["name"]),
        f"{table['data-files']:,}",
        f"{table['small-files']:,}",
        _size(table["data-bytes"]),
        f"{table['rows']:,}",
        f"{table['deleted-rows-ratio']:.0%}",
        f"{table['inlined-rows']:,}",
        "; ".join(f"{one['action']}: {one['reason']}" for one in table["advice"]),
    )


def _name(namespace: str | None, name: str | None) -> str:
    return _plain(f"{namespace}.{name}")


def _plain(text: str) -> str:
    """A name may have anything in it, also what a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def _time(text: str | None) -> str:
    return "-" if text is None else text[:19].replace("T", " ")
