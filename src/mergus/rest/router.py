"""Binds the table of operations to FastAPI, with the same way in and out for each."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute

from mergus.access.context import ANONYMOUS, RequestContext
from mergus.catalog.warehouse import check_writable
from mergus.rest.boundary import OPERATION, REQUEST_ID
from mergus.rest.keyed import handle_once
from mergus.rest.operations import OPERATIONS
from mergus.rest.request import decode_segment

_SUCCESS = {operation.name: operation.success for operation in OPERATIONS}


class OperationRoute(APIRoute):
    """Gives the handler its context, and sends no answer that has not passed the gate."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        name = self.name
        success = _SUCCESS.get(name)

        async def handle(request: Request) -> Response:
            request.scope[OPERATION] = name
            context = request.state.context = RequestContext(
                operation=name,
                request_id=request.scope[REQUEST_ID],
                principal=ANONYMOUS,
                user_agent=request.headers.get("user-agent"),
            )
            if success is None:
                response = await handler(request)
            else:
                # before anything else of it is looked at
                check_writable(request.app.state.lake, decode_segment(request.path_params.get("prefix", "")))
                response = await handle_once(request, context, success, handler)
            if not context.authorised:
                raise RuntimeError(f"operation {name} answered without being authorised")
            return response

        return handle


def install(app: FastAPI) -> None:
    app.router.route_class = OperationRoute
    for operation in OPERATIONS:
        app.add_api_route(
            operation.path,
            operation.handler,
            methods=[operation.method],
            name=operation.name,
            response_model=None,
        )
    app.state.endpoints = [o.endpoint for o in OPERATIONS if o.announced]
