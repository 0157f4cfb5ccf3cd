"""A span for each request, round the outermost layer; where traces are off there is no such thing.

By OpenTelemetry's conventions for HTTP servers. Neither the query nor any header of the client's but its user agent is
told: what a client puts there by mistake may be a secret.
"""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mergus import tracing
from mergus.rest.boundary import OPERATION, REQUEST_ID
from mergus.rest.operations import OPERATIONS
from mergus.tracing import Value

_METHODS: Final = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"}
_ROUTES: Final = {operation.name: operation.path for operation in OPERATIONS}
# All that is looked at.
_HEADERS: Final = {b"traceparent", b"tracestate", b"user-agent"}
# They come every few seconds.
_PROBES: Final = {_ROUTES[name] for name in ("healthz", "readyz", "metrics")}


def traced(app: ASGIApp) -> ASGIApp:
    if not tracing.is_on():
        return app

    async def traced_app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await app(scope, receive, send)
            return
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in scope["headers"] if n in _HEADERS}
        method = scope["method"] if scope["method"] in _METHODS else "HTTP"
        status = 0

        async def noted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with tracing.request(method, headers, _asked(scope, headers)) as span:
            await app(scope, receive, noted_send)
            operation = scope[OPERATION]
            span.set("mergus.operation", operation)
            span.set("http.response.header.x-request-id", [scope[REQUEST_ID]])
            if (route := _ROUTES.get(operation)) is not None:
                span.rename(f"{method} {route}")
                span.set("http.route", route)
            if (context := scope.get("state", {}).get("context")) is not None:
                # `client`, `user` or `anonymous`: who it is, the audit log tells those who may know
                span.set("mergus.principal.kind", context.principal.name.partition(":")[0])
            if status:
                span.set("http.response.status_code", status)
            if status >= 500:
                span.fail(str(status))
            elif not status:
                span.fail("disconnected")

    return traced_app


def _asked(scope: Scope, headers: dict[str, str]) -> dict[str, Value]:
    host, port = scope.get("server") or ("", None)
    asked: dict[str, Value] = {
        "http.request.method": scope["method"] if scope["method"] in _METHODS else "_OTHER",
        "url.path": scope.get("raw_path", scope["path"].encode()).decode("latin-1"),
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
        "server.address": host,
    }
    if port is not None:
        asked["server.port"] = port
    if agent := headers.get("user-agent"):
        asked["user_agent.original"] = agent
    return asked
