"""`mergus clients` and `mergus grants`: who may ask, and for what."""

import asyncio
import json

import click

from mergus.config import load_settings

# What stands below the help of commands that take grants.
GRANTS = """
A GRANT is `*` (everything), `catalog:ACCESS`, `ns:NAMESPACE:ACCESS` or `table:NAMESPACE.NAME:ACCESS`. ACCESS is r, w
(write, create, drop), rw, * (that and admin), or some of read, write, create, drop, admin with commas between. Names
are percent-encoded where they have dots, colons or spaces. Servers know at once.
"""


@click.group()
def clients() -> None:
    """Clients that get tokens from this server (MERGUS_AUTH=oauth2)."""


@clients.command(epilog=GRANTS)
@click.argument("name")
@click.option("--grant", "texts", multiple=True, metavar="GRANT", help="What it may do; may be given again.")
def add(name: str, texts: tuple[str, ...]) -> None:
    """Add a client, and print its secret: the only time that anybody sees it."""
    from mergus.catalog.access_admin import add_client

    secret = asyncio.run(add_client(load_settings(), name, texts))
    click.echo(f"credential={name}:{secret}")


@clients.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def list_(as_json: bool) -> None:
    """List the clients that are kept in Postgres, never their secrets."""
    from mergus.catalog.access_admin import list_clients

    found = asyncio.run(list_clients(load_settings()))
    if as_json:
        rows = [
            {
                "name": client.client_id,
                "created-at": client.created_at.isoformat(),
                "rotated-at": client.rotated_at.isoformat() if client.rotated_at else None,
                "old-secret-until": client.previous_until.isoformat() if client.previous_until else None,
            }
            for client in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for client in found:
        since = client.rotated_at or client.created_at
        click.echo(f"{client.client_id:<32} secret of {since:%Y-%m-%d %H:%M}")


@clients.command()
@click.argument("name")
@click.option(
    "--keep",
    "seconds",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="SECONDS",
    help="How long the old secret is good as well. Without, tokens that were had for it are refused at once, too.",
)
def rotate(name: str, seconds: int) -> None:
    """Give a client a new secret, and print it."""
    from mergus.catalog.access_admin import rotate_client

    secret = asyncio.run(rotate_client(load_settings(), name, seconds))
    click.echo(f"credential={name}:{secret}")


@clients.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a client with its grants. Its tokens are refused from now on."""
    from mergus.catalog.access_admin import remove_client

    asyncio.run(remove_client(load_settings(), name))
    click.echo(f"removed {name}")


@clients.command("hash")
def hash_() -> None:
    """Make a secret and its hash, for MERGUS_CLIENTS_FILE. Nothing is stored."""
    from mergus.access.clients import hash_secret, new_secret

    secret = new_secret()
    click.echo(f"secret      = {secret}")
    click.echo(f'secret_hash = "{hash_secret(secret)}"')


@click.group()
def grants() -> None:
    """Who may do what: clients (client:NAME), OIDC's users (user:NAME) and roles (role:NAME)."""


@grants.command("add", epilog=GRANTS)
@click.argument("grantee")
@click.argument("texts", metavar="GRANT...", nargs=-1, required=True)
def add_grants(grantee: str, texts: tuple[str, ...]) -> None:
    """Grant something to client:NAME, user:NAME or role:NAME."""
    from mergus.catalog.access_admin import change_grants

    asyncio.run(change_grants(load_settings(), grantee, texts, take=False))


@grants.command("remove", epilog=GRANTS)
@click.argument("grantee")
@click.argument("texts", metavar="GRANT...", nargs=-1, required=True)
def remove_grants(grantee: str, texts: tuple[str, ...]) -> None:
    """Take back what was granted, or a part of it."""
    from mergus.catalog.access_admin import change_grants

    asyncio.run(change_grants(load_settings(), grantee, texts, take=True))


@grants.command("list")
@click.argument("grantee", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def list_grants(grantee: str | None, as_json: bool) -> None:
    """List all grants, or those of one."""
    from mergus.catalog.access_admin import list_grants as read

    found = asyncio.run(read(load_settings(), grantee))
    if as_json:
        click.echo(json.dumps(found, indent=2, default=str))
        return
    for row in found:
        click.echo(f"{row['grantee']:<32} {row['grant']}")
