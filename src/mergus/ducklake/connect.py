"""Connections to the Postgres that holds the catalog.

Every connection looks names up in our own schema first and then in DuckLake's, so that statements are
plain text whatever the two schemas are called; no table of ours begins with `ducklake_`. Session settings
travel in the connection string: a pooler in transaction mode between us and Postgres is not supported.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import QueryCanceled, UndefinedTable
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from mergus.config import Settings, hide_password
from mergus.errors import ServiceUnavailable, SetupError

Conn = AsyncConnection[tuple[Any, ...]]
Pool = AsyncConnectionPool[Conn]

# A process that is paused or hangs while it holds the commit lock must not hold up DuckDB's writers.
IDLE_IN_TRANSACTION = "30s"


def conninfo(settings: Settings) -> str:
    try:
        given = conninfo_to_dict(settings.dsn)
    except psycopg.ProgrammingError as e:
        raise SetupError(f"MERGUS_POSTGRES_DSN cannot be read: {hide_password(str(e))}") from None
    path = sql.SQL(", ").join(map(sql.Identifier, (settings.annex_schema, settings.metadata_schema)))
    options = {
        "search_path": path.as_string(None),
        "lock_timeout": f"{settings.lock_timeout * 1000:.0f}",
        "statement_timeout": f"{settings.statement_timeout * 1000:.0f}",
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION,
        "default_transaction_isolation": "read committed",
    }
    given_options = str(given.get("options") or "")
    ours = " ".join(f"-c {key}={_escape(value)}" for key, value in options.items())
    defaults = {"application_name": "mergus", "connect_timeout": "5", "keepalives_idle": "20"}
    return make_conninfo("", **{**defaults, **given, "options": f"{given_options} {ours}".strip()})


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def open_pool(settings: Settings) -> Pool:
    """A pool that is not open yet. A connection is checked when it is taken, so that a restart of Postgres
    costs a reconnect and not a failed request."""
    return AsyncConnectionPool(
        conninfo(settings),
        min_size=min(settings.pool_min, settings.pool_max),
        max_size=settings.pool_max,
        timeout=settings.pool_timeout,
        check=AsyncConnectionPool.check_connection,
        open=False,
        kwargs={"autocommit": True},
        name="mergus",
        reconnect_timeout=5,
    )


@asynccontextmanager
async def connection(pool: Pool) -> AsyncGenerator[Conn]:
    """A connection from the pool; whatever Postgres cannot do just now becomes a 503 that says so."""
    try:
        async with pool.connection() as conn:
            yield conn
    except (PoolTimeout, PoolClosed, TooManyRequests) as e:
        raise ServiceUnavailable("No connection to Postgres could be had in time") from e
    except QueryCanceled as e:
        raise ServiceUnavailable("Postgres took too long and was interrupted") from e
    except psycopg.OperationalError as e:
        raise ServiceUnavailable("Postgres does not answer") from e
    except UndefinedTable as e:
        raise ServiceUnavailable("The lake is not set up; run `mergus init`") from e


def connect(settings: Settings) -> Connection[tuple[Any, ...]]:
    """One blocking connection, for the command line."""
    try:
        return psycopg.connect(conninfo(settings), autocommit=True)
    except psycopg.OperationalError as e:
        raise SetupError(
            f"Postgres cannot be reached: {hide_password(str(e)).strip()}\n"
            "Check MERGUS_POSTGRES_DSN, and that the server runs and lets this user in."
        ) from None
