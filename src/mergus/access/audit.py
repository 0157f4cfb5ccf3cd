"""The audit log: who changed what, was refused, or was handed something for objects, with what outcome.

Entries go to Postgres in batches, one transaction each, as they come: whoever must not be answered before its entry is
there waits for its batch, and all who wait share it. Nothing that an entry says comes from a token or a secret. What
Postgres does not take goes to the server's own log, and requests of nobody (401) are written so many in a second at
most: a log that anybody can fill tells nothing.
"""

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from mergus.access.context import RequestContext
from mergus.annex import audit
from mergus.annex.audit import Entry
from mergus.ducklake.connect import Pool, connection
from mergus.logs import log
from mergus.metrics import AUDIT_LOST
from mergus.shared import Shared

MOST_WAITING: Final = 10_000
MOST_IN_A_BATCH: Final = 500
NOBODYS_IN_A_SECOND: Final = 10
# How long an answer waits for its entry.
PATIENCE_SECONDS: Final = 2.0
LONGEST_TEXT: Final = 512


class Audit:
    def __init__(self, pool: Pool, seconds: int) -> None:
        self._pool = pool
        self._seconds = seconds
        self._entries: list[Entry] = []
        self._written = Shared(self._write)
        self._nobodys = (0, 0)

    async def note(self, ctx: RequestContext, status: int, address: str | None, detail: str | None = None) -> None:
        """Returns when the entry is written, or has gone to the log instead."""
        if self._seconds == 0 or (status == 401 and not self._takes_nobodys()):
            return
        if len(self._entries) >= MOST_WAITING:
            AUDIT_LOST.inc()
            return
        told = [ctx.refused] if ctx.refused is not None else [passed.resource for passed in ctx.passed]
        entry = Entry(
            datetime.now(UTC),
            ctx.principal.name[:LONGEST_TEXT],
            ctx.operation,
            [str(resource)[:LONGEST_TEXT] for resource in dict.fromkeys(told)],
            status,
            ctx.request_id,
            address,
            None if detail is None else detail[:LONGEST_TEXT],
        )
        self._entries.append(entry)
        await self._wait()

    async def close(self) -> None:
        """What is left is written first."""
        await self._wait()

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._written()

    def _takes_nobodys(self) -> bool:
        second = int(time.monotonic())
        since, count = self._nobodys
        self._nobodys = (second, count + 1 if since == second else 1)
        if self._nobodys[1] > NOBODYS_IN_A_SECOND:
            AUDIT_LOST.inc()
            return False
        return True

    async def _write(self) -> None:
        while self._entries:
            entries, self._entries = self._entries[:MOST_IN_A_BATCH], self._entries[MOST_IN_A_BATCH:]
            try:
                async with connection(self._pool) as conn, conn.transaction():
                    await audit.add(conn, entries)
                    await audit.forget_old(conn, self._seconds, 2 * len(entries))
            except Exception as e:
                log.warning("the audit log could not be written: %s", type(e).__name__)
                for entry in entries:
                    log.warning("audit", extra={"fields": _fields(entry)})


def _fields(entry: Entry) -> dict[str, object]:
    return {
        "made_at": entry.made_at.isoformat(),
        "principal": entry.principal,
        "audited": entry.operation,
        "resource": entry.resource,
        "status": entry.status,
        "audited_request_id": entry.request_id,
    }
