"""Every failure Mergus knows, as one tree.

    MergusError
    ├── SetupError                       the command line: says what is wrong and what to do, exit 1
    └── ApiError                         the wire: {"error": {"message", "type", "code"}}
        ├── BadRequest                   400  BadRequestException
        │   └── IllegalArgument          400  IllegalArgumentException
        ├── NotAuthorized                401  NotAuthorizedException, with WWW-Authenticate
        ├── Forbidden                    403  ForbiddenException
        ├── NotFound                     404  NotFoundException
        │   ├── NoSuchWarehouse          404  NoSuchWarehouseException
        │   ├── NoSuchNamespace          404  NoSuchNamespaceException
        │   ├── NoSuchTable              404  NoSuchTableException
        │   ├── NoSuchView               404  NoSuchViewException
        │   ├── NoSuchSnapshot           404  NoSuchSnapshotException
        │   └── NoSuchFunction           404  NoSuchFunctionException
        ├── MethodNotAllowed             405  MethodNotAllowedException
        ├── Unsupported                  406  UnsupportedOperationException
        ├── Conflict                     409
        │   ├── AlreadyExists            409  AlreadyExistsException
        │   ├── CommitFailed             409  CommitFailedException
        │   └── NamespaceNotEmpty        409  NamespaceNotEmptyException
        ├── PayloadTooLarge              413  PayloadTooLargeException
        ├── UnprocessableEntity          422  UnprocessableEntityException
        ├── TooManyRequests              429  TooManyRequestsException, with Retry-After
        ├── HeadersTooLarge              431  RequestHeaderFieldsTooLargeException
        ├── InternalServerError          500  InternalServerError
        │   └── CommitStateUnknown       500  CommitStateUnknownException
        └── ServiceUnavailable           503  ServiceUnavailableException, with Retry-After
            ├── InTheWay                 503  the same
            └── TableGone                503  the same

Iceberg's Java client picks the exception it throws from status *and* type, so `type` is part of the
protocol and never changes for beauty. A message is read by a person at night: it names the thing and
the reason, and never holds a secret, a stack trace or SQL.
"""

from typing import ClassVar


class MergusError(Exception):
    """Base of everything raised on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class SetupError(MergusError):
    """Something around the server is not as it must be; the message says what to do about it."""


class ApiError(MergusError):
    status: ClassVar[int] = 500
    type: ClassVar[str] = "InternalServerError"
    headers: ClassVar[dict[str, str]] = {}


class BadRequest(ApiError):
    status = 400
    type = "BadRequestException"


class IllegalArgument(BadRequest):
    """What Java's client would have refused itself, had it looked: it throws the same then."""

    type = "IllegalArgumentException"


class NotAuthorized(ApiError):
    """Nobody knows who asks: there is no token, or none that is good."""

    status = 401
    type = "NotAuthorizedException"
    headers: ClassVar[dict[str, str]] = {"WWW-Authenticate": "Bearer"}


class Forbidden(ApiError):
    status = 403
    type = "ForbiddenException"


class NotFound(ApiError):
    status = 404
    type = "NotFoundException"


class NoSuchWarehouse(NotFound):
    type = "NoSuchWarehouseException"


class NoSuchNamespace(NotFound):
    type = "NoSuchNamespaceException"


class NoSuchTable(NotFound):
    type = "NoSuchTableException"


class NoSuchView(NotFound):
    type = "NoSuchViewException"


class NoSuchSnapshot(NotFound):
    type = "NoSuchSnapshotException"


class NoSuchFunction(NotFound):
    type = "NoSuchFunctionException"


class MethodNotAllowed(ApiError):
    status = 405
    type = "MethodNotAllowedException"


class Unsupported(ApiError):
    """Something that is there and cannot be shown or done as Iceberg has it; the message says what and why."""

    status = 406
    type = "UnsupportedOperationException"


class Conflict(ApiError):
    status = 409
    type = "ConflictException"


class AlreadyExists(Conflict):
    type = "AlreadyExistsException"


class CommitFailed(Conflict):
    """Something that the commit relies on is not so any more: a client loads the table again and retries."""

    type = "CommitFailedException"


class NamespaceNotEmpty(Conflict):
    type = "NamespaceNotEmptyException"


class PayloadTooLarge(ApiError):
    status = 413
    type = "PayloadTooLargeException"


class UnprocessableEntity(ApiError):
    status = 422
    type = "UnprocessableEntityException"


class TooManyRequests(ApiError):
    status = 429
    type = "TooManyRequestsException"
    headers: ClassVar[dict[str, str]] = {"Retry-After": "10"}


class HeadersTooLarge(ApiError):
    status = 431
    type = "RequestHeaderFieldsTooLargeException"


class InternalServerError(ApiError):
    pass


class CommitStateUnknown(InternalServerError):
    """The connection broke while COMMIT was under way: it may or may not have happened."""

    type = "CommitStateUnknownException"


class ServiceUnavailable(ApiError):
    status = 503
    type = "ServiceUnavailableException"
    headers: ClassVar[dict[str, str]] = {"Retry-After": "1"}


class InTheWay(ServiceUnavailable):
    """Something that has nothing to do with what was asked: nothing was written, and the same may be tried again."""


class TableGone(ServiceUnavailable):
    """A table of Postgres is not there. It may have been a moment ago: DuckLake drops those of inlined rows when it has
    flushed them, and no transaction sees a table that is dropped, however old its state."""
