"""What an operation knows of the request that it serves."""

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from mergus.access.privileges import NOBODYS, SEE, Grant, Privileges, Resource, Rights

Kind = Literal["table", "view", "function"]


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: `client:etl` is one of this lake's own, `user:…` one whom the OIDC issuer vouches for; a client of the
    one name is nobody of the other. `limits` are those of the token, `granted` what it grants by itself."""

    name: str
    roles: frozenset[str] = frozenset()
    limits: tuple[Grant, ...] | None = None
    granted: tuple[Grant, ...] = ()
    # of a client: which of its secrets the token was had for; see access/clients.py
    generation: int | None = None

    @property
    def grantees(self) -> list[str]:
        """Whatever grants may be to, for this one."""
        return [self.name, *(f"role:{role}" for role in sorted(self.roles))]


ANONYMOUS = Principal("anonymous")


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The Idempotency-Key of a request, what it was sent with, and the status that the request has if it succeeds."""

    key: UUID
    payload: bytes
    success: int


@dataclass(frozen=True, slots=True)
class Passed:
    """What the principal was let through to, and by which privileges."""

    resource: Resource
    needs: Privileges


@dataclass(slots=True)
class RequestContext:
    operation: str
    request_id: str
    principal: Principal
    user_agent: str | None = None
    # what the operation needs where it does not say otherwise, what it is about, and what the principal has: nothing,
    # unless somebody has found out
    needs: Privileges = SEE
    kind: Kind = "table"
    rights: Rights = NOBODYS
    # the snapshot of the lake that is asked about, if not the newest; nothing is written then
    at: int | None = None
    # set by `authorise` alone; an answer that was never authorised is not sent
    authorised: bool = False
    passed: list[Passed] = field(default_factory=list[Passed])
    # what the principal was not let through to
    refused: Resource | None = None
    # how the client wants to reach objects, and kinds of things that were handed out for that: they are audited
    delegation: frozenset[str] = frozenset()
    handed_out: list[str] = field(default_factory=list[str])
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
