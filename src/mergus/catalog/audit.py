"""The audit log, as those who administer the catalog read it; `access/audit.py` writes it."""

from typing import Any, Final

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.annex import audit
from mergus.annex.audit import Asked, Entry
from mergus.catalog.lake import Lake
from mergus.catalog.paging import PageRequest

MOST_SHOWN: Final = 1000


async def list_audit(
    lake: Lake, ctx: RequestContext, asked: Asked, page: PageRequest
) -> tuple[list[dict[str, Any]], str | None]:
    """The newest first, and the token of the next page if there is one: never all at once."""
    await authorise(ctx, None)

    async def fetch(after: str | None, limit: int | None) -> list[tuple[int, Entry]]:
        async with lake.read() as conn:
            before = None if after is None else int(after)
            return await audit.newest(conn, asked, before, limit, lake.settings.audit_seconds)

    since = "" if asked.since is None else asked.since.isoformat()
    listing = [ctx.operation, asked.principal or "", asked.operation or "", since]
    found, token = await lake.page(listing, page.at_most(MOST_SHOWN), fetch, lambda one: str(one[0]))
    return [_entry_json(number, entry) for number, entry in found], token


def _entry_json(number: int, entry: Entry) -> dict[str, Any]:
    return {
        "audit-id": number,
        "made-at": entry.made_at,
        "principal": entry.principal,
        "operation": entry.operation,
        "resource": entry.resource,
        "status": entry.status,
        "request-id": entry.request_id,
        "address": entry.address,
        "detail": entry.detail,
    }
