"""The one mapper: whatever goes wrong leaves as `{"error": {"message", "type", "code"}}`."""

from collections.abc import Mapping

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from mergus.errors import (
    ApiError,
    BadRequest,
    InternalServerError,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
)
from mergus.logs import log
from mergus.rest.request import json_response

SHOWN_PROBLEMS = 3


def install(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _respond)
    app.add_exception_handler(RequestValidationError, _respond)
    app.add_exception_handler(HTTPException, _respond)
    # answered here, and raised on: the boundary writes it to the log
    app.add_exception_handler(Exception, lambda _, __: unexpected())


def error_body(error: ApiError) -> dict[str, dict[str, str | int]]:
    return {"error": {"message": error.message, "type": error.type, "code": error.status}}


def read_error(body: bytes) -> tuple[str, str] | None:
    """Type and message of an answer that is an error, also of one in OAuth's words; None of another."""
    try:
        answer = orjson.loads(body)
        error = answer["error"]
        if isinstance(error, str):
            return error, str(answer.get("error_description", ""))
        return str(error["type"]), str(error["message"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return None


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    response = json_response(error_body(error), error.status)
    response.headers.update({**error.headers, **(headers or {})})
    return response


def unexpected() -> Response:
    return error_response(InternalServerError("The server failed; its log has the request id of this answer"))


def _respond(request: Request, exc: Exception) -> Response:
    error = _as_api_error(request, exc)
    if error.status >= 500:
        log.error("%s: %s", error.type, error.message, exc_info=exc.__cause__)
    return error_response(error, {"Allow": _allowed(request)} if error.status == 405 else None)


def _allowed(request: Request) -> str:
    """Every method that some operation takes at this path; Starlette names those of the first route alone."""
    routes = [r for r in request.app.routes if isinstance(r, Route) and r.matches(request.scope)[0] != Match.NONE]
    return ", ".join(sorted({method for route in routes for method in route.methods or ()}))


def _as_api_error(request: Request, exc: Exception) -> ApiError:
    match exc:
        case ApiError():
            return exc
        case RequestValidationError():
            return BadRequest(_problems(exc))
        case HTTPException(status_code=404):
            return NotFound(f"There is nothing at {request.url.path}")
        case HTTPException(status_code=405):
            return MethodNotAllowed(f"{request.method} is not possible at {request.url.path}")
        case HTTPException(status_code=413):
            return PayloadTooLarge(str(exc.detail))
        case HTTPException() if exc.status_code < 500:
            return BadRequest(str(exc.detail))
        case _:
            return InternalServerError("The server failed")


def _problems(exc: RequestValidationError) -> str:
    lines: list[str] = []
    for problem in exc.errors()[:SHOWN_PROBLEMS]:
        kind, *path = problem["loc"]
        if problem["type"] == "json_invalid":
            reason = problem.get("ctx", {}).get("error", "")
            lines.append(f"the body is not valid JSON: {reason} at character {path[-1] if path else 0}")
        else:
            where = ".".join(map(str, path)) or "the request"
            lines.append(f"{where} ({kind}): {problem['msg']}")
    if (more := len(exc.errors()) - SHOWN_PROBLEMS) > 0:
        lines.append(f"and {more} more")
    return "Malformed request: " + "; ".join(lines)
