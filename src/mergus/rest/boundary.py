"""The outermost layer: everything that is the same for every request.

Gives it a request id, lets the router see the path undecoded, bounds the body, answers what nobody caught, and
writes one log line, with the reason of a refusal, and one observation. Plain ASGI: an answer passes through without
being copied.
"""

import logging
import re
import time
from collections.abc import Iterator
from functools import cache
from itertools import count
from uuid import uuid4

from prometheus_client import Counter, Histogram
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mergus import logs
from mergus.access.context import RequestContext
from mergus.catalog.lake import Lake
from mergus.errors import PayloadTooLarge
from mergus.metrics import IN_FLIGHT, LATENCY, REQUESTS
from mergus.rest import errors, ready_tables
from mergus.rest.answer_headers import security
from mergus.rest.limits import MAX_DEPTH, Nesting

REQUEST_ID_HEADER = "X-Request-ID"
OPERATION = "mergus.operation"
REQUEST_ID = "mergus.request_id"

# A client's own id is taken over only if it cannot do harm in a log.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
# Probes and scrapes come every few seconds and would drown the rest; so would loads of tables that have not changed,
# and the reports that follow them.
_QUIET = {"healthz", "readyz", "metrics", "reportMetrics"}


# Errors included: a cache may keep a 404 by its own judgement, and the table is there a moment later.
_EVERYWHERE = ((b"cache-control", ready_tables.CACHE_CONTROL), (b"vary", b"Accept-Encoding"))


class Boundary:
    def __init__(self, app: ASGIApp, state: State, max_body_bytes: int) -> None:
        self._app = app
        self._state = state
        self._max_body_bytes = max_body_bytes
        self._ids = _request_ids()
        self._ready_tables = ready_tables.ReadyTables()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(REQUEST_ID_HEADER.lower().encode(), b"")
        rid = given.decode() if _REQUEST_ID.fullmatch(given) else next(self._ids)
        scope[REQUEST_ID] = rid
        scope[OPERATION] = "unknown"
        scope["path"] = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        logs.request_id.set(rid)
        start = time.perf_counter()
        lake: Lake | None = getattr(self._state, "lake", None)
        ready = self._ready_tables.answer
        if lake is not None and scope["method"] == "GET" and (status := await ready(lake, scope, headers, rid, send)):
            scope[OPERATION] = ready_tables.OPERATION
            self._observe(scope, status, time.perf_counter() - start, quiet=True)
            return
        status = 0
        refusal = b""

        async def numbered_send(message: Message) -> None:
            nonlocal status, refusal
            if message["type"] == "http.response.body" and 400 <= status < 500:
                refusal = refusal or message.get("body", b"")
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = list(message["headers"])
                known = {name.lower() for name, _ in sent}
                everywhere = (*_EVERYWHERE, *security(scope.get("scheme", "http")))
                added = [header for header in everywhere if header[0] not in known]
                message["headers"] = [*sent, *added, (REQUEST_ID_HEADER.lower().encode(), rid.encode())]
            await send(message)

        IN_FLIGHT.inc()
        try:
            declared = headers.get(b"content-length", b"0")
            if declared.isdigit() and int(declared) > self._max_body_bytes:
                await errors.error_response(self._too_large())(scope, receive, numbered_send)
            else:
                await self._app(scope, self._bounded(receive), numbered_send)
        except ClientDisconnect:
            status = status or 499
        except Exception:
            logs.log.exception("unexpected failure")
            if not status:
                await errors.unexpected()(scope, receive, numbered_send)
        finally:
            IN_FLIGHT.dec()
            quiet = scope[OPERATION] in _QUIET and status < 400
            self._observe(scope, status, time.perf_counter() - start, quiet=quiet, refusal=refusal)

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"The request body is larger than {self._max_body_bytes} bytes")

    def _bounded(self, receive: Receive) -> Receive:
        """Counts a body that does not say its length, and levels; FastAPI lets an HTTPException through as it is."""
        size = 0
        nesting = Nesting()

        async def bounded_receive() -> Message:
            nonlocal size
            message = await receive()
            body = message.get("body", b"")
            size += len(body)
            if size > self._max_body_bytes:
                raise HTTPException(413, self._too_large().message)
            if nesting.is_too_deep(body, is_last=not message.get("more_body", False)):
                raise HTTPException(400, f"The request body is nested deeper than {MAX_DEPTH} levels")
            return message

        return bounded_receive

    def _observe(self, scope: Scope, status: int, seconds: float, *, quiet: bool, refusal: bytes = b"") -> None:
        operation = scope[OPERATION]
        _requests(operation, status).inc()
        _latency(operation).observe(seconds)
        level = logging.DEBUG if quiet else logging.INFO
        if not logs.log.isEnabledFor(level):
            return
        fields = {
            "operation": operation,
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "milliseconds": round(seconds * 1000, 2),
            **_refusal(scope, refusal),
        }
        logs.log.log(level, "request", extra={"fields": fields})


def _refusal(scope: Scope, body: bytes) -> dict[str, str]:
    """Why a request was refused, as the client was told, which may show it to nobody; and what it was about, as far as
    that was found out."""
    told = errors.read_error(body)
    if told is None:
        return {}
    fields = {"error": told[0], "reason": told[1]}
    context: RequestContext | None = scope.get("state", {}).get("context")
    if context is not None:
        resources = [passed.resource for passed in context.passed] + ([context.refused] if context.refused else [])
        fields["about"] = ", ".join(dict.fromkeys(map(str, resources)))
    return {name: logs.foreign_text(text) for name, text in fields.items() if text}


def _request_ids() -> Iterator[str]:
    """Unlike those of any other process, and cheap."""
    own = uuid4().hex[:16]
    return (f"{own}-{number:x}" for number in count(1))


# finding a metric by its labels costs more than counting
@cache
def _requests(operation: str, status: int) -> Counter:
    return REQUESTS.labels(operation, status)


@cache
def _latency(operation: str) -> Histogram:
    return LATENCY.labels(operation)
