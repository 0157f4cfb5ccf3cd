"""Names to ids: the schema of a namespace, the id of a table."""

from mergus.access.authorise import may, missing
from mergus.access.context import RequestContext
from mergus.access.privileges import Resource
from mergus.ducklake import schemas, tables
from mergus.ducklake.connect import Conn
from mergus.ducklake.schemas import Schema
from mergus.errors import NoSuchNamespace, NoSuchTable
from mergus.iceberg.namespace import Namespace


async def find_namespace(conn: Conn, namespace: Namespace, at: int | None = None) -> Schema | None:
    """Its schema, now or at a snapshot; None if it is there only as a parent; NoSuchNamespace if it is not there."""
    if namespace.can_exist:
        schema = await schemas.find(conn, namespace.schema_name, at)
        if schema is not None or await schemas.has_children(conn, namespace.schema_name, at):
            return schema
    raise NoSuchNamespace(f"Namespace does not exist: {namespace}")


async def find_schema(conn: Conn, namespace: Namespace) -> Schema:
    """The schema of a namespace that tables can be in."""
    schema = await find_namespace(conn, namespace)
    if schema is None:
        raise NoSuchNamespace(f"Namespace {namespace} holds no tables: it is there only as the parent of others")
    return schema


async def find_asked(conn: Conn, ctx: RequestContext, namespace: Namespace, name: str) -> int:
    """The table of the state of the lake that a request is about. One that has been moved since to where its caller may
    do nothing to it is not found under the name that it had, either: not even what was in it then."""
    table_id = await find_table(conn, namespace, name, ctx.at)
    table = None if ctx.at is None else await tables.read(conn, table_id)
    if table is not None and not may(ctx, ctx.needs, Namespace.of_schema(table.schema_name), table.name):
        ctx.refused = Resource(namespace, name)
        raise missing(ctx, ctx.refused)
    return table_id


async def find_table(conn: Conn, namespace: Namespace, name: str, at: int | None = None) -> int:
    try:
        schema = await find_namespace(conn, namespace, at)
    except NoSuchNamespace as e:
        raise NoSuchTable(f"Table does not exist: {namespace}.{name}") from e
    found = None if schema is None or "\0" in name else await tables.find(conn, schema.schema_id, name, at)
    if found is None:
        raise NoSuchTable(f"Table does not exist: {namespace}.{name}")
    return found
