"""What a transaction that changes the lake does about the Idempotency-Key of its request; `replay` has the rest."""

from typing import Any

from mergus.access.context import Passed, RequestContext
from mergus.annex import idempotency
from mergus.annex.idempotency import Answered
from mergus.ducklake.connect import Conn


class Settled(Exception):
    """Another request with the same key has got its final answer meanwhile: this one must leave nothing behind."""


async def seal(conn: Conn, ctx: RequestContext, seconds: float) -> None:
    """The last statement of a change: the key is used, if the change is made at all. Raises Settled."""
    if ctx.key is not None and not await keep(conn, ctx, ctx.key.success, ctx.content, seconds):
        raise Settled


async def keep(conn: Conn, ctx: RequestContext, status: int, content: bytes | None, seconds: float) -> bool:
    """False if the key has an answer already."""
    assert ctx.key is not None  # noqa: S101  (asked for by who has one)
    answered = Answered(
        operation=ctx.operation,
        principal=ctx.principal.name,
        payload=ctx.key.payload,
        resources=[_kept(passed) for passed in ctx.passed],
        status=status,
        body=content,
        table_id=ctx.table_id,
    )
    return await idempotency.keep(conn, ctx.key.key, answered, seconds)


def _kept(passed: Passed) -> dict[str, Any]:
    namespace, name = passed.resource.namespace, passed.resource.name
    return {
        "namespace": None if namespace is None else list(namespace.levels),
        "name": name,
        "needs": sorted(passed.needs),
    }
