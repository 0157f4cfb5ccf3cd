"""Grants, as those who administer the catalog, or a part of it, change them over the wire.

Who administers a namespace gives and takes what is in it, and sees the grants on it; only who administers the catalog
sees all of them.
"""

import re
from typing import Any, Final

import orjson

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.access.privileges import Grant
from mergus.access.registry import grant_of, place_of
from mergus.access.scopes import grant_text, parse_grant
from mergus.annex import grants
from mergus.annex.grants import GrantRow
from mergus.catalog.lake import Lake
from mergus.catalog.paging import PageRequest
from mergus.errors import BadRequest, NotFound

_GRANTEE: Final = re.compile(r"(client|user|role):[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,254}")


def check_grantee(text: str) -> str:
    """Raises ValueError."""
    if not _GRANTEE.fullmatch(text):
        raise ValueError(f"{text!r} is none of client:<name>, user:<name>, role:<name>")
    return text


async def list_grants(
    lake: Lake, ctx: RequestContext, grantee: str | None, page: PageRequest
) -> tuple[list[dict[str, Any]], str | None]:
    await authorise(ctx, None)

    async def fetch(after: str | None, limit: int | None) -> list[GrantRow]:
        async with lake.read() as conn:
            return await grants.read(conn, grantee, None if after is None else orjson.loads(after), limit)

    found, token = await lake.page([ctx.operation, grantee or ""], page, fetch, _key)
    return [grant_json(row) for row in found], token


async def add_grant(lake: Lake, ctx: RequestContext, grantee: str, text: str) -> dict[str, Any]:
    to, grant = _parsed(grantee, text)
    await authorise(ctx, grant.resource.namespace, grant.resource.name)
    async with lake.hold_still(ctx) as conn:
        await grants.add(conn, to, place_of(grant.resource), sorted(grant.privileges), ctx.principal.name)
        answer = {"grantee": to, "grant": grant_text(grant)}
        ctx.content = orjson.dumps(answer)
    return answer


async def remove_grant(lake: Lake, ctx: RequestContext, grantee: str, text: str) -> None:
    to, grant = _parsed(grantee, text)
    await authorise(ctx, grant.resource.namespace, grant.resource.name)
    async with lake.hold_still(ctx) as conn:
        if not await grants.take(conn, to, place_of(grant.resource), sorted(grant.privileges)):
            raise NotFound(f"{to} has no such grant: {text}")


def _parsed(grantee: str, text: str) -> tuple[str, Grant]:
    try:
        return check_grantee(grantee), parse_grant(text)
    except ValueError as e:
        raise BadRequest(str(e)) from None


def _key(row: GrantRow) -> str:
    return orjson.dumps([row.grantee, row.namespace, row.name]).decode()


def grant_json(row: GrantRow) -> dict[str, Any]:
    return {
        "grantee": row.grantee,
        "grant": grant_text(grant_of(row.namespace, row.name, row.privileges)),
        "granted-by": row.granted_by,
        "granted-at": row.granted_at,
    }
