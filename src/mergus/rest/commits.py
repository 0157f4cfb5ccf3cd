"""What clients write: creating, registering, committing, renaming and dropping tables, and transactions over many."""

from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from mergus.catalog import commit
from mergus.catalog.commit_plan import Change
from mergus.catalog.create_table import NewTable
from mergus.catalog.create_table import create_table as create
from mergus.catalog.delegation import with_access
from mergus.catalog.drop_table import drop_table as drop
from mergus.catalog.drop_table import rename_table as rename
from mergus.catalog.register_table import register_table as register
from mergus.catalog.table_cache import Body
from mergus.catalog.unregister_table import unregister_table as unregister
from mergus.errors import BadRequest
from mergus.iceberg import requirements, updates
from mergus.iceberg.namespace import Namespace
from mergus.iceberg.partition_spec import parse_spec
from mergus.iceberg.schema_parse import parse_schema
from mergus.iceberg.sort_order import parse_sort_order
from mergus.rest.ready_tables import answer_with
from mergus.rest.request import Context, PathNamespace, PathTable, PrefixLake, Text, no_content

Json = dict[str, Any]
IF_NONE_MATCH = b"if-none-match"


class CreateTableRequest(BaseModel):
    model_config = ConfigDict(strict=True, populate_by_name=True)
    name: Text
    table_schema: Json = Field(alias="schema")
    location: Text | None = None
    spec: Json | None = Field(None, alias="partition-spec")
    order: Json | None = Field(None, alias="write-order")
    stage: bool | None = Field(None, alias="stage-create")
    properties: dict[Text, Text] | None = None


class RegisterTableRequest(BaseModel):
    model_config = ConfigDict(strict=True, populate_by_name=True)
    name: Text
    metadata_location: Text = Field(alias="metadata-location")
    overwrite: bool | None = None


class Identifier(BaseModel):
    model_config = ConfigDict(strict=True)
    namespace: list[Text]
    name: Text

    @property
    def parts(self) -> tuple[Namespace, str]:
        return Namespace(tuple(self.namespace)), self.name


class CommitTableRequest(BaseModel):
    model_config = ConfigDict(strict=True)
    identifier: Identifier | None = None
    requirements: list[Json]
    updates: list[Json]


class CommitTransactionRequest(BaseModel):
    model_config = ConfigDict(strict=True, populate_by_name=True)
    changes: list[CommitTableRequest] = Field(alias="table-changes")


class RenameTableRequest(BaseModel):
    model_config = ConfigDict(strict=True)
    source: Identifier
    destination: Identifier


async def create_table(
    request: Request, lake: PrefixLake, ctx: Context, namespace: PathNamespace, body: CreateTableRequest
) -> Response:
    try:
        new = NewTable(
            name=body.name,
            schema=parse_schema(body.table_schema),
            spec=None if body.spec is None else parse_spec(body.spec, default_id=0),
            order=None if body.order is None else parse_sort_order(body.order),
            properties=body.properties or {},
            location=body.location,
        )
    except ValueError as e:
        raise BadRequest(f"The table cannot be created: {e}") from None
    made = await create(lake, ctx, namespace, new, stage=body.stage is True)
    return await sent(request, made, await with_access(lake, ctx, made, (namespace, body.name)))


async def register_table(
    request: Request, lake: PrefixLake, ctx: Context, namespace: PathNamespace, body: RegisterTableRequest
) -> Response:
    overwrite = body.overwrite is True
    made = await register(lake, ctx, namespace, body.name, body.metadata_location, overwrite=overwrite)
    return await sent(request, made, await with_access(lake, ctx, made, (namespace, body.name)))


async def unregister_table(lake: PrefixLake, ctx: Context, namespace: PathNamespace, table: PathTable) -> Response:
    # without an ETag: there is nothing that it could be compared with later
    return Response(await unregister(lake, ctx, namespace, table), media_type="application/json")


async def update_table(
    request: Request,
    lake: PrefixLake,
    ctx: Context,
    namespace: PathNamespace,
    table: PathTable,
    body: CommitTableRequest,
) -> Response:
    if body.identifier is not None and body.identifier.parts != (namespace, table):
        raise BadRequest("The identifier in the body is not that of the path")
    return await sent(request, await commit.commit_table(lake, ctx, _change(namespace, table, body)))


async def commit_transaction(lake: PrefixLake, ctx: Context, body: CommitTransactionRequest) -> Response:
    changes: list[Change] = []
    for part in body.changes:
        if part.identifier is None:
            raise BadRequest("Every table change of a transaction names its table (identifier)")
        changes.append(_change(*part.identifier.parts, part))
    await commit.commit_transaction(lake, ctx, changes)
    return no_content()


async def drop_table(
    lake: PrefixLake,
    ctx: Context,
    namespace: PathNamespace,
    table: PathTable,
    purge: Annotated[bool, Query(alias="purgeRequested")] = False,
) -> Response:
    await drop(lake, ctx, namespace, table, with_purge=purge)
    return no_content()


async def rename_table(lake: PrefixLake, ctx: Context, body: RenameTableRequest) -> Response:
    await rename(lake, ctx, body.source.parts, body.destination.parts)
    return no_content()


def _change(namespace: Namespace, table: str, body: CommitTableRequest) -> Change:
    try:
        return Change(namespace, table, requirements.parse(body.requirements), updates.parse(body.updates))
    except ValueError as e:
        raise BadRequest(f"The commit makes no sense: {e}") from None


async def sent(request: Request, body: Body, opened: Body | None = None) -> Response:
    """As LoadTable would send it. Who commits is not asked what it has. `opened` is the same with keys in it, which are
    sent and never kept."""
    request.state.context.content = body.plain.data
    headers = {name: value for name, value in request.scope["headers"] if name != IF_NONE_MATCH}
    status, chosen, data = await answer_with(opened or body, headers)
    response = Response(data, status)
    response.raw_headers = chosen
    return response
