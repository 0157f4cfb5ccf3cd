"""What an operation knows of the request that it serves."""

from dataclasses import dataclass, field
from uuid import UUID

from mergus.iceberg.namespace import Namespace


@dataclass(frozen=True, slots=True)
class Principal:
    name: str


ANONYMOUS = Principal("anonymous")


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The Idempotency-Key of a request, what it was sent with, and the status that the request has if it succeeds."""

    key: UUID
    payload: bytes
    success: int


@dataclass(slots=True)
class RequestContext:
    operation: str
    request_id: str
    principal: Principal
    user_agent: str | None = None
    # the snapshot of the lake that is asked about, if not the newest; nothing is written then
    at: int | None = None
    # set by `authorise` alone; an answer that was never authorised is not sent
    authorised: bool = False
    # everything that the principal was authorised for
    resources: list[Namespace | None] = field(default_factory=list[Namespace | None])
    key: RequestKey | None = None
    # For the key (see catalog/replay.py): whether it went into the lake with the change, the table that the answer
    # shows, and the answer's content as soon as it is known.
    is_sealed: bool = False
    table_id: int | None = None
    content: bytes | None = None

    @property
    def listing(self) -> str:
        """What a page token of the operation is good for."""
        return self.operation if self.at is None else f"{self.operation} at {self.at}"
