"""Requests with an Idempotency-Key, around whatever operation they are for; see catalog/replay.py for the rules."""

import hashlib
from collections.abc import Awaitable, Callable

import orjson
from fastapi import Request, Response

from mergus.access.context import RequestContext, RequestKey
from mergus.annex.idempotency import Answered
from mergus.catalog import replay
from mergus.catalog.delegation import with_access
from mergus.catalog.lake import Lake
from mergus.catalog.request_keys import Settled
from mergus.catalog.table_cache import Body
from mergus.errors import ApiError, ServiceUnavailable
from mergus.faults import point
from mergus.iceberg.namespace import Namespace
from mergus.rest.commits import sent
from mergus.rest.errors import error_response
from mergus.rest.request import decode_segment, no_content

HEADER = "Idempotency-Key"
# Answered as LoadTable is: with an ETag, packed for who takes that.
SHOW_TABLES = frozenset({"createTable", "registerTable", "updateTable"})
OPEN_TABLES = SHOW_TABLES - {"updateTable"}

Handler = Callable[[Request], Awaitable[Response]]


async def handle_once(request: Request, ctx: RequestContext, success: int, handler: Handler) -> Response:
    """As the handler does; with a key, once."""
    given = request.headers.getlist(HEADER)
    if not given:
        response = await handler(request)
        point("commit.answered")
        return response
    lake: Lake = request.app.state.lake
    ctx.key = RequestKey(replay.parse_key(given), await _payload(request), success)
    found = await replay.find(lake, ctx)
    if found is not None:
        return await _replayed(request, ctx, found)
    try:
        response = await handler(request)
    except Settled:
        return await _of_another(request, ctx)
    except ApiError as e:
        if e.status >= 500 or ctx.is_sealed or not ctx.authorised:
            raise
        response = error_response(e)
    point("commit.answered")
    content = bytes(response.body) if ctx.content is None or response.status_code >= 400 else ctx.content
    if not await replay.finish(lake, ctx, response.status_code, content):
        return await _of_another(request, ctx)
    point("commit.kept")
    return response


async def _payload(request: Request) -> bytes:
    """A hash of all that says what is asked for."""
    parts = (request.method.encode(), request.scope["raw_path"], request.scope["query_string"], await request.body())
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.digest()


async def _of_another(request: Request, ctx: RequestContext) -> Response:
    """The answer of the request with the same key that was first."""
    found = await replay.find(request.app.state.lake, ctx)
    if found is None:
        raise ServiceUnavailable("Another request with this Idempotency-Key was in the way; try again")
    return await _replayed(request, ctx, found)


async def _opened(request: Request, lake: Lake, ctx: RequestContext, found: Answered, body: Body) -> Body | None:
    """With keys for who asks for some: they are not part of what is kept."""
    if found.operation not in OPEN_TABLES:
        return None
    ctx.table_id = found.table_id
    namespace = Namespace.of_path(decode_segment(request.path_params["namespace"]))
    return await with_access(lake, ctx, body, (namespace, orjson.loads(await request.body())["name"]))


async def _replayed(request: Request, ctx: RequestContext, found: Answered) -> Response:
    if found.status == 200 and found.operation in SHOW_TABLES:
        lake: Lake = request.app.state.lake
        body = await replay.table_body(lake, ctx, found)
        return await sent(request, body, await _opened(request, lake, ctx, found, body))
    if found.body is None:
        return no_content()
    return Response(found.body, found.status, media_type="application/json")
