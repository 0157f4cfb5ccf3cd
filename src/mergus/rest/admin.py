"""`/v1/{prefix}/admin/…`: for those who run the server, not part of the Iceberg protocol."""

from uuid import UUID

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from mergus.catalog import tags, undrop
from mergus.catalog.listener_status import listener_status
from mergus.rest.request import (
    Context,
    Page,
    PathNamespace,
    PathTag,
    PrefixLake,
    Text,
    json_response,
    listing_response,
    no_content,
)


class UndropTableRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    name: Text
    uuid: UUID | None = Field(None, alias="table-uuid", strict=False)
    called: Text | None = Field(None, alias="as")


class CreateTagRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    name: Text
    snapshot_id: int | None = Field(None, alias="snapshot-id", ge=0, lt=2**63)
    message: Text | None = Field(None, max_length=4096)


async def get_listener(lake: PrefixLake, ctx: Context) -> Response:
    return json_response(await listener_status(lake, ctx))


async def list_dropped(lake: PrefixLake, ctx: Context, namespace: PathNamespace, page: Page) -> Response:
    found, token = await undrop.list_dropped(lake, ctx, namespace, page)
    dropped = [
        {
            "name": table.name,
            "table-uuid": table.uuid,
            "table-id": table.id,
            "dropped-at-snapshot": table.dropped_at,
            "dropped-at": table.time,
            "data-files": table.data_files,
        }
        for table in found
    ]
    return listing_response({"dropped": dropped}, page, token)


async def undrop_table(lake: PrefixLake, ctx: Context, namespace: PathNamespace, body: UndropTableRequest) -> Response:
    wanted = undrop.Wanted(body.name, body.uuid, body.called)
    return json_response(await undrop.undrop_table(lake, ctx, namespace, wanted))


async def list_tags(lake: PrefixLake, ctx: Context, page: Page) -> Response:
    found, token = await tags.list_tags(lake, ctx, page)
    return listing_response({"tags": [tags.tag_json(tag) for tag in found]}, page, token)


async def create_tag(lake: PrefixLake, ctx: Context, body: CreateTagRequest) -> Response:
    return json_response(await tags.create_tag(lake, ctx, body.name, body.snapshot_id, body.message))


async def load_tag(lake: PrefixLake, ctx: Context, tag: PathTag) -> Response:
    return json_response(await tags.load_tag(lake, ctx, tag))


async def drop_tag(lake: PrefixLake, ctx: Context, tag: PathTag) -> Response:
    await tags.drop_tag(lake, ctx, tag)
    return no_content()
