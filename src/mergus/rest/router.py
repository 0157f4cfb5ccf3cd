"""Binds the table of operations to FastAPI, with the same way in and out for each."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute

from mergus.access.context import ANONYMOUS, RequestContext
from mergus.access.privileges import ADMIN, ALL
from mergus.access.secret_checks import SecretChecks
from mergus.catalog.delegation import HEADER, parse_header
from mergus.catalog.lake import Lake
from mergus.catalog.warehouse import check_writable
from mergus.config import Settings
from mergus.errors import ApiError
from mergus.rest.boundary import OPERATION, REQUEST_ID
from mergus.rest.keyed import handle_once
from mergus.rest.operations import OPERATIONS, Operation
from mergus.rest.request import decode_segment

_OPERATIONS = {operation.name: operation for operation in OPERATIONS}


class OperationRoute(APIRoute):
    """Finds out who asks, gives the handler its context, and sends no answer that has not passed the gate."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        # one that is not in the table is for nobody but who may do everything
        operation = _OPERATIONS.get(self.name) or Operation(self.name, "GET", self.path, self.endpoint, ADMIN)

        async def handle(request: Request) -> Response:
            request.scope[OPERATION] = operation.name
            lake: Lake = request.app.state.lake
            ctx = request.state.context = RequestContext(
                operation=operation.name,
                request_id=request.scope[REQUEST_ID],
                principal=ANONYMOUS,
                user_agent=request.headers.get("user-agent"),
                needs=operation.needs,
                kind=operation.kind,
                delegation=parse_header(request.headers.get(HEADER, "")),
            )
            try:
                await _admit(lake, ctx, operation, request)
                response = await _answer(request, ctx, operation, handler)
            except ApiError as e:
                await _note(lake, ctx, operation, request, e.status)
                raise
            if not ctx.authorised:
                raise RuntimeError(f"operation {operation.name} answered without being authorised")
            await _note(lake, ctx, operation, request, response.status_code)
            return response

        return handle


async def _admit(lake: Lake, ctx: RequestContext, operation: Operation, request: Request) -> None:
    """Before anything of the request is looked at but who sends it. Raises NotAuthorized."""
    if lake.authenticator.is_open:
        ctx.rights = ALL
        return
    header = request.headers.get("authorization")
    if operation.asks_for_token(lake.settings) or (operation.whom == "either" and header is not None):
        ctx.principal = await lake.authenticator.principal(None if header is None else header.encode("latin-1"))
        ctx.rights = await lake.rights(ctx.principal)
    elif operation.whom != "either":
        ctx.rights = ALL


async def _answer(
    request: Request, ctx: RequestContext, operation: Operation, handler: Callable[[Request], Awaitable[Response]]
) -> Response:
    if operation.changes:
        # before anything else of it is looked at
        check_writable(request.app.state.lake, decode_segment(request.path_params.get("prefix", "")))
    if operation.success is None:
        return await handler(request)
    return await handle_once(request, ctx, operation.success, handler)


async def _note(lake: Lake, ctx: RequestContext, operation: Operation, request: Request, status: int) -> None:
    """Whatever changes something, is refused to somebody, or hands something out."""
    refused = status == 401 or ctx.refused is not None
    if not refused and not operation.changes and not ctx.handed_out:
        return
    address = None if request.client is None else request.client.host
    await lake.audit.note(ctx, status, address, ", ".join(dict.fromkeys(ctx.handed_out)) or None)


def install(app: FastAPI, settings: Settings) -> None:
    app.router.route_class = OperationRoute
    for operation in OPERATIONS:
        app.add_api_route(
            operation.path,
            operation.handler,
            methods=[operation.method],
            name=operation.name,
            response_model=None,
        )
    app.state.secret_checks = SecretChecks(settings.token_rate)
    app.state.endpoints = [o.endpoint for o in OPERATIONS if o.is_offered(settings)]
