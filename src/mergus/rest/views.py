"""`/v1/{prefix}/namespaces/{namespace}/views…`."""

from typing import Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from mergus.catalog import change_view, views
from mergus.catalog.change_view import NewView
from mergus.catalog.served_views import ShownView
from mergus.errors import BadRequest
from mergus.iceberg import view_update
from mergus.iceberg.schema_parse import parse_schema
from mergus.iceberg.view_metadata import parse_version
from mergus.rest.commits import Identifier, RenameTableRequest
from mergus.rest.request import (
    Context,
    Page,
    PathNamespace,
    PathView,
    PrefixLake,
    Text,
    listing_response,
    no_content,
)

Json = dict[str, Any]


class CreateViewRequest(BaseModel):
    model_config = ConfigDict(strict=True, populate_by_name=True)
    name: Text
    view_schema: Json = Field(alias="schema")
    version: Json = Field(alias="view-version")
    location: Text | None = None
    properties: dict[Text, Text] | None = None


class CommitViewRequest(BaseModel):
    model_config = ConfigDict(strict=True)
    identifier: Identifier | None = None
    requirements: list[Json] | None = None
    updates: list[Json]


class RegisterViewRequest(BaseModel):
    model_config = ConfigDict(strict=True, populate_by_name=True)
    name: Text
    metadata_location: Text = Field(alias="metadata-location")


async def list_views(lake: PrefixLake, ctx: Context, namespace: PathNamespace, page: Page) -> Response:
    names, token = await views.list_views(lake, ctx, namespace, page)
    return listing_response(
        {"identifiers": [{"namespace": namespace.levels, "name": name} for name in names]}, page, token
    )


async def create_view(lake: PrefixLake, ctx: Context, namespace: PathNamespace, body: CreateViewRequest) -> Response:
    try:
        new = NewView(
            name=body.name,
            schema=parse_schema(body.view_schema),
            version=parse_version(body.version),
            properties=body.properties or {},
            location=body.location,
        )
    except ValueError as e:
        raise BadRequest(f"The view cannot be created: {e}") from None
    return _sent(await change_view.create_view(lake, ctx, namespace, new))


async def load_view(lake: PrefixLake, ctx: Context, namespace: PathNamespace, view: PathView) -> Response:
    return _sent(await views.load_view(lake, ctx, namespace, view))


async def view_exists(lake: PrefixLake, ctx: Context, namespace: PathNamespace, view: PathView) -> Response:
    await views.view_exists(lake, ctx, namespace, view)
    return no_content()


async def replace_view(
    lake: PrefixLake, ctx: Context, namespace: PathNamespace, view: PathView, body: CommitViewRequest
) -> Response:
    if body.identifier is not None and body.identifier.parts != (namespace, view):
        raise BadRequest("The identifier in the body is not that of the path")
    try:
        requirements = view_update.parse_requirements(body.requirements or [])
        updates = view_update.parse_updates(body.updates)
    except ValueError as e:
        raise BadRequest(f"The commit makes no sense: {e}") from None
    return _sent(await change_view.replace_view(lake, ctx, namespace, view, requirements, updates))


async def drop_view(lake: PrefixLake, ctx: Context, namespace: PathNamespace, view: PathView) -> Response:
    await views.drop_view(lake, ctx, namespace, view)
    return no_content()


async def rename_view(lake: PrefixLake, ctx: Context, body: RenameTableRequest) -> Response:
    await views.rename_view(lake, ctx, body.source.parts, body.destination.parts)
    return no_content()


async def register_view(
    lake: PrefixLake, ctx: Context, namespace: PathNamespace, body: RegisterViewRequest
) -> Response:
    return _sent(await change_view.register_view(lake, ctx, namespace, body.name, body.metadata_location))


def _sent(view: ShownView) -> Response:
    return Response(view.answer(), media_type="application/json")
