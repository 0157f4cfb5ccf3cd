"""`/v1/{prefix}/admin/grants` and `/admin/audit`: who may do what, and who did what."""

from datetime import datetime
from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict

from mergus.annex.audit import Asked
from mergus.catalog import audit, grants
from mergus.rest.request import Context, Page, PrefixLake, Text, json_response, listing_response, no_content


class GrantRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    grantee: Text
    grant: Text


async def list_grants(
    lake: PrefixLake, ctx: Context, page: Page, grantee: Annotated[str | None, Query(max_length=300)] = None
) -> Response:
    found, token = await grants.list_grants(lake, ctx, grantee, page)
    return listing_response({"grants": found}, page, token)


async def add_grant(lake: PrefixLake, ctx: Context, body: GrantRequest) -> Response:
    return json_response(await grants.add_grant(lake, ctx, body.grantee, body.grant))


async def remove_grant(lake: PrefixLake, ctx: Context, body: GrantRequest) -> Response:
    await grants.remove_grant(lake, ctx, body.grantee, body.grant)
    return no_content()


async def list_audit(
    lake: PrefixLake,
    ctx: Context,
    page: Page,
    principal: Annotated[str | None, Query(max_length=600)] = None,
    operation: Annotated[str | None, Query(max_length=100)] = None,
    since: Annotated[datetime | None, Query()] = None,
) -> Response:
    found, token = await audit.list_audit(lake, ctx, Asked(principal, operation, since), page)
    return json_response({"audit": found, "next-page-token": token})
