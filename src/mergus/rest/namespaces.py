"""`/v1/{prefix}/namespaces…`."""

from fastapi import Response
from pydantic import BaseModel, ConfigDict

from mergus.catalog import namespaces
from mergus.rest.request import (
    Context,
    Page,
    ParentNamespace,
    PathNamespace,
    PrefixLake,
    Text,
    json_response,
    listing_response,
    no_content,
)


class CreateNamespaceRequest(BaseModel):
    model_config = ConfigDict(strict=True)
    namespace: list[Text]
    properties: dict[Text, Text] | None = None


class UpdatePropertiesRequest(BaseModel):
    model_config = ConfigDict(strict=True)
    removals: list[Text] | None = None
    updates: dict[Text, Text] | None = None


async def list_namespaces(lake: PrefixLake, ctx: Context, parent: ParentNamespace, page: Page) -> Response:
    found, token = await namespaces.list_namespaces(lake, ctx, parent, page)
    return listing_response({"namespaces": [n.levels for n in found]}, page, token)


async def create_namespace(lake: PrefixLake, ctx: Context, body: CreateNamespaceRequest) -> Response:
    return json_response(await namespaces.create_namespace(lake, ctx, body.namespace, body.properties or {}))


async def load_namespace(lake: PrefixLake, ctx: Context, namespace: PathNamespace) -> Response:
    properties = await namespaces.load_namespace(lake, ctx, namespace)
    return json_response({"namespace": namespace.levels, "properties": properties})


async def namespace_exists(lake: PrefixLake, ctx: Context, namespace: PathNamespace) -> Response:
    await namespaces.namespace_exists(lake, ctx, namespace)
    return no_content()


async def drop_namespace(lake: PrefixLake, ctx: Context, namespace: PathNamespace) -> Response:
    await namespaces.drop_namespace(lake, ctx, namespace)
    return no_content()


async def update_properties(
    lake: PrefixLake, ctx: Context, namespace: PathNamespace, body: UpdatePropertiesRequest
) -> Response:
    return json_response(
        await namespaces.update_properties(lake, ctx, namespace, body.updates or {}, body.removals or [])
    )
