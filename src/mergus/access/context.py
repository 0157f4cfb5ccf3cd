"""What an operation knows of the request that it serves."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    name: str


ANONYMOUS = Principal("anonymous")


@dataclass(slots=True)
class RequestContext:
    operation: str
    request_id: str
    principal: Principal
    user_agent: str | None = None
    # set by `authorise` alone; an answer that was never authorised is not sent
    authorised: bool = False
