"""Connections that tell of what is asked on them, for when traces are on.

By OpenTelemetry's conventions for databases. A statement is told by what it does to which tables and by the name that
it has in our modules, never by its text: parameters are not in there, but a literal may be.
"""

import re
import sys
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from functools import cache, lru_cache
from typing import Any, Final

from psycopg import AsyncConnection, AsyncCopy, AsyncCursor, AsyncTransaction, Error, sql
from psycopg.abc import Params, Query

from mergus import tracing
from mergus.tracing import Value

# Of our packages, those that have statements.
_WITH_STATEMENTS: Final = ("mergus.ducklake.", "mergus.annex.")
# Neither a function, nor the time in `extract(epoch FROM time)`.
_TARGET: Final = re.compile(
    r"\b(?:INTO|UPDATE|TABLE|COPY)\s+(?P<written>[a-z]\w+)|(?<!epoch )\b(?:FROM|JOIN)\s+(?P<read>[a-z]\w+)\b(?!\s*\()",
    re.ASCII,
)
_DEFINED: Final = re.compile(r"\b([a-z]\w*)\s+AS\s+(?:MATERIALIZED\s+)?\(", re.ASCII)
_PUT_IN: Final = re.compile(r"\{[a-z_]*\}")
_KEPT: Final = 2000
_MOST_TARGETS: Final = 5


class TracedCursor(AsyncCursor[tuple[Any, ...]]):
    async def execute(self, query: Any, params: Params | None = None, **how: Any) -> "TracedCursor":  # noqa: ANN401
        with _told(self.connection, query):
            await super().execute(query, params, **how)
        return self

    async def executemany(self, query: Query, params_seq: Iterable[Params], *, returning: bool = False) -> None:
        rows = list(params_seq)
        with _told(self.connection, query, len(rows)):
            await super().executemany(query, rows, returning=returning)

    @asynccontextmanager
    async def copy(self, statement: Query, params: Params | None = None, **how: Any) -> AsyncGenerator[AsyncCopy]:  # noqa: ANN401
        with _told(self.connection, statement):
            async with super().copy(statement, params, **how) as copy:
                yield copy


class TracedConnection(AsyncConnection[tuple[Any, ...]]):
    """A transaction is a span round its statements, with what COMMIT takes."""

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncGenerator[AsyncTransaction]:
        with tracing.child("TRANSACTION", {**_where(self), "db.operation.name": "TRANSACTION"}):
            async with super().transaction(savepoint_name, force_rollback) as transaction:
                yield transaction


@contextmanager
def _told(conn: AsyncConnection[Any], query: Query, batch: int | None = None) -> Generator[None]:
    if not tracing.records():
        yield
        return
    text = _text(query)
    about = _where(conn)
    summary = _summary(text)
    if batch is not None:
        summary = f"BATCH {summary}"
        about["db.operation.batch.size"] = batch
    about["db.query.summary"] = summary
    if (name := _names().get(text)) is not None:
        about["mergus.statement"] = name
    with tracing.child(summary, about) as span:
        try:
            yield
        except Error as e:
            if e.sqlstate is not None:
                span.set("db.response.status_code", e.sqlstate)
            raise


def _where(conn: AsyncConnection[Any]) -> dict[str, Value]:
    info = conn.info
    return {
        "db.system.name": "postgresql",
        "db.namespace": info.dbname,
        "server.address": info.host,
        "server.port": info.port,
    }


def _text(query: Query) -> str:
    """What of it stands in our modules: nothing of what was put in. Of several that were joined, the first."""
    if isinstance(query, sql.Composed):
        parts = list(query)
        if parts and isinstance(parts[0], sql.Composed):
            return _text(parts[0])
        return "".join(part.as_string(None) for part in parts if isinstance(part, sql.SQL))
    return query.as_string(None) if isinstance(query, sql.SQL) else query if isinstance(query, str) else ""


@lru_cache(_KEPT)
def _summary(text: str) -> str:
    """What is done, and to which tables."""
    verb = (text.split(None, 1) or ["?"])[0].upper()
    defined = set(_DEFINED.findall(text))
    named = dict.fromkeys(found["written"] or found["read"] for found in _TARGET.finditer(text))
    targets = [name for name in named if name not in defined]
    return " ".join([verb, *targets[:_MOST_TARGETS]])


@cache
def _names() -> dict[str, str]:
    """Statements are constants; which constant it is tells more than what it does."""
    # which is made of what we are for
    from mergus.ducklake.visible import Timed

    found: dict[str, str] = {}
    for path, module in sorted(sys.modules.items()):
        if path.startswith(_WITH_STATEMENTS):
            for name, value in vars(module).items():
                texts = (
                    (value,) if isinstance(value, str) else (value.now, value.then) if isinstance(value, Timed) else ()
                )
                for text in texts if name.isupper() else ():
                    found.setdefault(_PUT_IN.sub("", text), f"{path.removeprefix('mergus.')}.{name}")
    return found
