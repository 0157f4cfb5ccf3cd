"""Connections to the Postgres that holds the catalog.

Every connection looks names up in our own schema first and then in DuckLake's, so that statements are
plain text whatever the two schemas are called; no table of ours begins with `ducklake_`. Session settings
travel in the connection string: a pooler in transaction mode between us and Postgres is not supported.
"""

import select
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection, errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from mergus import tracing
from mergus.config import Settings, hide_password
from mergus.ducklake.traced import TracedConnection, TracedCursor
from mergus.errors import InTheWay, ServiceUnavailable, SetupError, TableGone

Conn = AsyncConnection[tuple[Any, ...]]
Pool = AsyncConnectionPool[Conn]
T = TypeVar("T")

# Names are looked up in our own schema first: if that is another lake's, every statement would be about that one.
NAMES_ARE_OURS: Final = """
    SELECT to_regclass('ducklake_snapshot') IS NOT DISTINCT FROM to_regclass(quote_ident(%s) || '.ducklake_snapshot')
"""

# A process that is paused or hangs while it holds the commit lock must not hold up DuckDB's writers.
IDLE_IN_TRANSACTION = "30s"


def conninfo(settings: Settings) -> str:
    try:
        given = conninfo_to_dict(settings.dsn)
    except psycopg.ProgrammingError:
        # libpq's own message quotes what it could not read
        raise SetupError("MERGUS_POSTGRES_DSN is neither a postgresql:// URI nor a key=value string") from None
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
    forced = {"options": f"{given_options} {ours}".strip(), "client_encoding": "UTF8"}
    return make_conninfo("", **{**defaults, **given, **forced})


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


async def check_names(conn: Conn, settings: Settings) -> None:
    row = await (await conn.execute(NAMES_ARE_OURS, (settings.metadata_schema,))).fetchone()
    if row is None or not row[0]:
        raise SetupError(f"Postgres schema {settings.annex_schema} holds another DuckLake")


def open_pool(settings: Settings) -> Pool:
    """A pool that is not open yet."""
    traced: dict[str, Any] = {"cursor_factory": TracedCursor} if tracing.is_on() else {}
    return AsyncConnectionPool(
        conninfo(settings),
        min_size=min(settings.pool_min, settings.pool_max),
        max_size=settings.pool_max,
        timeout=settings.pool_timeout,
        configure=partial(check_names, settings=settings),
        open=False,
        kwargs={"autocommit": True, **traced},
        connection_class=TracedConnection if traced else AsyncConnection[tuple[Any, ...]],
        name="mergus",
        reconnect_timeout=5,
    )


@asynccontextmanager
async def connection(pool: Pool) -> AsyncGenerator[Conn]:
    """A connection from the pool; whatever Postgres cannot do just now becomes a 503 that says so."""
    async with meaningful():
        conn = await _take(pool)
        try:
            async with conn:
                yield conn
        finally:
            await pool.putconn(conn)


async def _take(pool: Pool) -> Conn:
    """One that lives, so that a restart of Postgres costs a reconnect and not a failed request. The pool's own check
    would wait a second before it takes the next, then two, then four: with a few dead ones that is too late."""
    deadline = time.monotonic() + pool.timeout
    while True:
        conn = await pool.getconn(deadline - time.monotonic())
        alive = False
        try:
            alive = await _is_alive(conn)
        finally:
            if not alive:
                await pool.putconn(conn)
        if alive:
            return conn


async def _is_alive(conn: Conn) -> bool:
    """Nothing can be read from a connection that is idle and well, which the kernel can tell without a query."""
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    if poll.poll(0):
        try:
            await AsyncConnectionPool.check_connection(conn)
        except psycopg.OperationalError:
            return False
    return True


@asynccontextmanager
async def meaningful() -> AsyncGenerator[None]:
    try:
        yield
    except psycopg.Error as e:
        if isinstance(e, errors.UndefinedTable):
            raise TableGone("The lake is not set up, or the server's role may not see it; run `mergus init`") from e
        if isinstance(e, (errors.DeadlockDetected, errors.SerializationFailure)):
            raise InTheWay("Another writer was in the way; try again") from e
        for kinds, words in _MEANINGS:
            if isinstance(e, kinds):
                raise ServiceUnavailable(words) from e
        raise


class Watch:
    """One connection of its own for one small query that is asked all the time: it is not checked before each use, but
    opened again when it turns out to be broken."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._conn: Conn | None = None

    async def ask(self, question: Callable[[Conn], Awaitable[T]]) -> T:
        """Never two at once."""
        conn = self._conn
        if conn is not None and not conn.closed:
            try:
                return await question(conn)
            except psycopg.OperationalError:
                await conn.close()
        try:
            conn = self._conn = await AsyncConnection.connect(conninfo(self._settings), autocommit=True)
            await check_names(conn, self._settings)
        except psycopg.OperationalError as e:
            raise ServiceUnavailable("Postgres does not answer") from e
        async with meaningful():
            return await question(conn)

    async def close(self) -> None:
        if self._conn is not None:
            await self._conn.close()


# A network that is gone is noticed within seconds.
IMPATIENT: Final = {
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}


@asynccontextmanager
async def dedicated(settings: Settings, name: str) -> AsyncGenerator[Conn]:
    """A connection for one purpose, which goes on for as long as it lasts."""
    given = make_conninfo(conninfo(settings), **IMPATIENT, application_name=name)
    async with await AsyncConnection.connect(given, autocommit=True) as conn:
        await check_names(conn, settings)
        yield conn


async def listen(conn: Conn, channel: str) -> None:
    await conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))


async def unlisten(conn: Conn, channel: str) -> None:
    await conn.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))


@asynccontextmanager
async def one_state(pool: Pool) -> AsyncGenerator[Conn]:
    """A connection on which every query sees the same state of the lake, and nothing is written."""
    async with connection(pool) as conn, conn.transaction():
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield conn


# In order: the first that fits. What is not here is a fault of ours, and is answered as one.
_MEANINGS: tuple[tuple[tuple[type[psycopg.Error], ...], str], ...] = (
    ((PoolTimeout, PoolClosed, TooManyRequests), "No connection to Postgres could be had in time"),
    ((errors.QueryCanceled,), "Postgres took too long and was interrupted"),
    ((errors.IdleInTransactionSessionTimeout,), "The server was held up and lost its turn; try again"),
    ((psycopg.OperationalError,), "Postgres does not answer"),
    ((errors.ReadOnlySqlTransaction,), "Postgres takes no writes: it is read-only, or a standby"),
    ((errors.InsufficientPrivilege,), "The server's Postgres role may not do this; see OPERATIONS.md for its rights"),
)


def connect(settings: Settings) -> Connection[tuple[Any, ...]]:
    """One blocking connection, for the command line."""
    try:
        return psycopg.connect(conninfo(settings), autocommit=True)
    except psycopg.OperationalError as e:
        raise SetupError(
            f"Postgres cannot be reached: {hide_password(str(e)).strip()}\n"
            "Check MERGUS_POSTGRES_DSN, and that the server runs and lets this user in."
        ) from None
