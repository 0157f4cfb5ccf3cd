"""Functions: DuckLake's macros, by name.

They are listed, so that it can be seen what a namespace holds. None can be loaded: Iceberg wants the type of what a
function returns, and engines choose by it; DuckLake keeps none. It could only be had by binding the macro's SQL here,
which is not ours to run: binding a table macro opens whatever files it names.
"""

from typing import NoReturn

from mergus.access.authorise import authorise
from mergus.access.context import RequestContext
from mergus.catalog.find import find_namespace
from mergus.catalog.lake import Lake
from mergus.catalog.listing import list_names
from mergus.catalog.paging import PageRequest
from mergus.ducklake import macros
from mergus.errors import NoSuchFunction, Unsupported
from mergus.iceberg.namespace import Namespace


async def list_functions(
    lake: Lake, ctx: RequestContext, namespace: Namespace, page: PageRequest
) -> tuple[list[str], str | None]:
    return await list_names(lake, ctx, namespace, page, macros.list_names)


async def load_function(lake: Lake, ctx: RequestContext, namespace: Namespace, name: str) -> NoReturn:
    """Says why it cannot be, if it is there."""
    await authorise(ctx, namespace, name)
    async with lake.read() as conn:
        schema = await find_namespace(conn, namespace, ctx.at)
        overloads = await macros.find(conn, schema.schema_id, name, ctx.at) if schema and "\0" not in name else []
    if not overloads:
        raise NoSuchFunction(f"Function does not exist: {namespace}.{name}")
    kinds = " and ".join(sorted({overload.kind for overload in overloads}))
    untyped = list(dict.fromkeys(parameter for overload in overloads for parameter in overload.untyped))
    of_parameters = f", nor those of its parameters {', '.join(untyped)}" if untyped else ""
    raise Unsupported(
        f"Function {namespace}.{name} is a {kinds} macro of DuckDB. It cannot be shown as Iceberg, which wants types: "
        f"DuckLake does not know that of its result{of_parameters}"
    )
