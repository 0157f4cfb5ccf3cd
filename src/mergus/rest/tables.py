"""`/v1/{prefix}/namespaces/{namespace}/tables…`."""

from typing import Annotated, Literal

from fastapi import Query, Request, Response

from mergus.catalog import tables
from mergus.catalog.credentials import load_credentials as credentials
from mergus.catalog.load_table import load_table as load
from mergus.rest.ready_tables import answer_with
from mergus.rest.request import (
    Context,
    Page,
    PathNamespace,
    PathTable,
    PrefixLake,
    json_response,
    listing_response,
    no_content,
)


async def list_tables(lake: PrefixLake, ctx: Context, namespace: PathNamespace, page: Page) -> Response:
    names, token = await tables.list_tables(lake, ctx, namespace, page)
    return listing_response(
        {"identifiers": [{"namespace": namespace.levels, "name": name} for name in names]}, page, token
    )


async def table_exists(lake: PrefixLake, ctx: Context, namespace: PathNamespace, table: PathTable) -> Response:
    await tables.table_exists(lake, ctx, namespace, table)
    return no_content()


async def load_table(
    request: Request,
    lake: PrefixLake,
    ctx: Context,
    namespace: PathNamespace,
    table: PathTable,
    snapshots: Annotated[Literal["all", "refs"], Query()] = "all",
    snapshot_id: Annotated[int | None, Query(alias="snapshot-id", ge=0, lt=2**63)] = None,
) -> Response:
    body = await load(lake, ctx, namespace, table, snapshots, snapshot_id)
    status, headers, data = await answer_with(body, dict(request.scope["headers"]))
    response = Response(data, status)
    response.raw_headers = headers
    return response


async def load_credentials(lake: PrefixLake, ctx: Context, namespace: PathNamespace, table: PathTable) -> Response:
    """For whichever plan (`planId`), and through whichever view (`referenced-by`): the same."""
    response = json_response({"storage-credentials": await credentials(lake, ctx, namespace, table)})
    response.headers["Cache-Control"] = "no-store"
    return response
