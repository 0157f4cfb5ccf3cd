"""`/v1/{prefix}/namespaces/{namespace}/functions…`."""

from typing import Annotated

from fastapi import Path, Response

from mergus.catalog import functions
from mergus.rest.request import (
    Context,
    Page,
    PathNamespace,
    PrefixLake,
    decode_segment,
    listing_response,
)


async def list_functions(lake: PrefixLake, ctx: Context, namespace: PathNamespace, page: Page) -> Response:
    names, token = await functions.list_functions(lake, ctx, namespace, page)
    return listing_response({"identifiers": [[*namespace.levels, name] for name in names]}, page, token)


async def load_function(
    lake: PrefixLake, ctx: Context, namespace: PathNamespace, function: Annotated[str, Path()]
) -> Response:
    await functions.load_function(lake, ctx, namespace, decode_segment(function))
