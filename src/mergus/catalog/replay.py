"""Requests that carry an Idempotency-Key: whatever happens to the connection, what they ask for is done once.

A key gets its final answer once, and whoever comes with it later hears that answer:

- A change and the row of its key are one transaction (`request_keys.seal`, the last statement of every change). So the
  key is used exactly if the change was made. The answer's content is kept with it; that of a table, which is made after
  the commit, follows. If it is too large, or the process died in between, the table is loaded again: as Iceberg has it,
  a replay may show a newer state.
- A refusal (4xx) is kept when it is made. What is refused before the gate depends on the request alone, is refused
  again, and does not use the key.
- A failure (5xx) uses no key.

A request that is under way has no row, holds nothing and can leave nothing stale behind. Two at once with one key both
work, and meet at the row: the second to come finds it taken, undoes its own transaction, and hears the first's answer.
It waits for the first no longer than for the lake's lock, then it is told 503 with Retry-After. A key whose holder died
without committing is as good as new; one whose holder committed is answered from its row.
"""

import hashlib
import re
from typing import Any, Final
from uuid import UUID

from mergus.access.authorise import authorise
from mergus.access.context import Passed, RequestContext
from mergus.access.privileges import Privilege, Resource
from mergus.annex import idempotency
from mergus.annex.idempotency import Answered
from mergus.catalog import request_keys
from mergus.catalog.commit import committed_body
from mergus.catalog.lake import Lake
from mergus.catalog.table_cache import Body
from mergus.errors import BadRequest, CommitStateUnknown, Conflict, ServiceUnavailable
from mergus.iceberg.namespace import Namespace
from mergus.logs import log

# A table's answer that is larger is made again. Others cannot be, and are small.
LARGEST_KEPT: Final = 64 * 1024

_UUID7: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)


def parse_key(given: list[str]) -> UUID:
    if len(given) != 1 or not _UUID7.fullmatch(given[0]):
        raise BadRequest("Idempotency-Key must be one UUID of version 7, in its form of 36 characters")
    return UUID(given[0])


async def find(lake: Lake, ctx: RequestContext) -> Answered | None:
    """The final answer that the key of this request has. Raises Conflict if it was to something else."""
    assert ctx.key is not None  # noqa: S101  (asked for by who has one)
    async with lake.read() as conn:
        found = await idempotency.find(conn, ctx.key.key, lake.settings.idempotency_seconds)
    if found is None:
        return None
    for what, used, now in (
        ("principal", found.principal, ctx.principal.name),
        ("operation", found.operation, ctx.operation),
        ("payload", found.payload, ctx.key.payload),
    ):
        if used != now:
            raise Conflict(f"Idempotency-Key {ctx.key.key} has been used with another {what}")
    for passed in map(_passed, found.resources):
        await authorise(ctx, passed.resource.namespace, passed.resource.name, passed.needs)
    return found


def _passed(kept: dict[str, Any]) -> Passed:
    levels = kept["namespace"]
    resource = Resource(None if levels is None else Namespace(tuple(levels)), kept["name"])
    return Passed(resource, frozenset(map(Privilege, kept["needs"])))


async def table_body(lake: Lake, ctx: RequestContext, found: Answered) -> Body:
    """The content of an answer that shows a table."""
    if found.body is not None:
        return Body(hashlib.sha256(found.body).hexdigest()[:32], found.body)
    if found.table_id is None:
        raise CommitStateUnknown("The answer to this Idempotency-Key has not been kept")
    return await committed_body(lake, ctx, found.table_id)


async def finish(lake: Lake, ctx: RequestContext, status: int, content: bytes) -> bool:
    """Keeps what is about to be sent. False if another request with the key was first: its answer is the one."""
    assert ctx.key is not None  # noqa: S101  (asked for by who has one)
    seconds = lake.settings.idempotency_seconds
    shows_table = status == 200 and ctx.table_id is not None
    kept = None if not content or (shows_table and len(content) > LARGEST_KEPT) else content
    try:
        async with lake.read() as conn:
            if not ctx.is_sealed and not await request_keys.keep(conn, ctx, status, kept, seconds):
                return False
            if ctx.is_sealed and shows_table and kept is not None:
                await idempotency.fill(conn, ctx.key.key, kept)
            await idempotency.forget_old(conn, seconds)
    except ServiceUnavailable as e:
        # what was done is done, and the client may know
        log.warning("the answer to an Idempotency-Key could not be kept: %s", e.message)
    return True
