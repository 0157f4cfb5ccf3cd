"""What a handler takes from a request, as FastAPI dependencies, and how it answers."""

from typing import Annotated, Any
from urllib.parse import unquote_plus

import orjson
from fastapi import Depends, Path, Query, Request, Response
from pydantic import AfterValidator

from mergus.access.context import RequestContext
from mergus.catalog.lake import Lake
from mergus.catalog.paging import PageRequest
from mergus.catalog.warehouse import enter
from mergus.errors import BadRequest
from mergus.iceberg.namespace import Namespace


def decode_segment(segment: str) -> str:
    """A path segment, decoded once. Routing happens on the raw path, so that %2F is part of a name. Java's client
    writes a space as `+`, as Iceberg's reference server reads it; a plus sign is %2B for every client."""
    try:
        return unquote_plus(segment, errors="strict")
    except UnicodeDecodeError:
        raise BadRequest("The path is not valid UTF-8") from None


def _storable(text: str) -> str:
    """JSON can spell what neither UTF-8 nor Postgres can hold."""
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("text must not hold a NUL character or half of a surrogate pair")
    return text


# Any text in a request body.
Text = Annotated[str, AfterValidator(_storable)]


# Dependencies are async although they wait for nothing: FastAPI hands a plain function to a thread.
async def _lake(request: Request) -> Lake:
    return request.app.state.lake


async def _lake_of_prefix(request: Request, prefix: Annotated[str, Path()]) -> Lake:
    lake = await _lake(request)
    await enter(lake, request.state.context, decode_segment(prefix))
    return lake


async def _context(request: Request) -> RequestContext:
    return request.state.context


async def _namespace(namespace: Annotated[str, Path()]) -> Namespace:
    return Namespace.of_path(decode_segment(namespace))


async def _table(table: Annotated[str, Path()]) -> str:
    return decode_segment(table)


async def _tag(tag: Annotated[str, Path()]) -> str:
    return decode_segment(tag)


async def _view(view: Annotated[str, Path()]) -> str:
    return decode_segment(view)


async def _parent(parent: Annotated[str | None, Query()] = None) -> Namespace | None:
    return Namespace.of_path(parent) if parent else None


async def _page(
    token: Annotated[str | None, Query(alias="pageToken", max_length=4096)] = None,
    size: Annotated[int | None, Query(alias="pageSize", ge=1)] = None,
) -> PageRequest:
    return PageRequest(token, size)


Context = Annotated[RequestContext, Depends(_context)]
AnyLake = Annotated[Lake, Depends(_lake)]
PrefixLake = Annotated[Lake, Depends(_lake_of_prefix)]
PathNamespace = Annotated[Namespace, Depends(_namespace)]
PathTable = Annotated[str, Depends(_table)]
PathTag = Annotated[str, Depends(_tag)]
PathView = Annotated[str, Depends(_view)]
ParentNamespace = Annotated[Namespace | None, Depends(_parent)]
Page = Annotated[PageRequest, Depends(_page)]


def listing_response(content: dict[str, object], page: PageRequest, token: str | None) -> Response:
    """With the token of the next page for who asked for pages."""
    return json_response({**content, "next-page-token": token} if page.wanted else content)


def json_response(content: Any, status: int = 200) -> Response:  # noqa: ANN401
    return Response(orjson.dumps(content), status, media_type="application/json")


def no_content() -> Response:
    return Response(status_code=204)
