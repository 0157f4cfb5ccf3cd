"""`/v1/{prefix}/namespaces/{namespace}/tables…`."""

from fastapi import Response

from mergus.catalog import tables
from mergus.rest.request import Context, Page, PathNamespace, PathTable, PrefixLake, json_response, no_content


async def list_tables(lake: PrefixLake, ctx: Context, namespace: PathNamespace, page: Page) -> Response:
    names, token = await tables.list_tables(lake, ctx, namespace, page)
    answer: dict[str, object] = {"identifiers": [{"namespace": namespace.levels, "name": name} for name in names]}
    if page.wanted:
        answer["next-page-token"] = token
    return json_response(answer)


async def table_exists(lake: PrefixLake, ctx: Context, namespace: PathNamespace, table: PathTable) -> Response:
    await tables.table_exists(lake, ctx, namespace, table)
    return no_content()
