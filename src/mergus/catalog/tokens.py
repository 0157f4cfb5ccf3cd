"""GetToken: OAuth2 as Iceberg's clients speak it. A client shows its secret, or a token that it has, and gets a token.

What a client asks for in `scope` can only narrow what it may do: rights are looked up when the token is used. A token
is exchanged for another of the same client, no wider and as new as its secret: who has lost either gets none.
"""

from dataclasses import dataclass, field

from mergus.access.authorise import authorise
from mergus.access.context import Principal, RequestContext
from mergus.access.privileges import Grant, limited, merged
from mergus.access.scopes import parse_scope, scope_text
from mergus.access.secret_checks import SecretChecks
from mergus.access.tokens import Tokens
from mergus.annex import clients
from mergus.catalog.lake import Lake
from mergus.errors import NotAuthorized


class OAuthError(Exception):
    """As RFC 6749 has them: not in the shape of the protocol's other errors."""

    def __init__(self, error: str, description: str, status: int = 400) -> None:
        super().__init__(error)
        self.error = error
        self.description = description
        self.status = status


@dataclass(frozen=True, slots=True)
class Issued:
    token: str
    seconds: int
    scope: str | None


@dataclass(frozen=True, slots=True)
class ShownSecret:
    """What a client shows, and from which address."""

    address: str
    client_id: str
    secret: str = field(repr=False)


async def by_secret(
    lake: Lake, ctx: RequestContext, checks: SecretChecks, shown: ShownSecret, scope: str | None
) -> Issued:
    """Raises TooManyRequests."""
    client_id = shown.client_id
    await authorise(ctx, None)
    tokens = await _tokens(lake)
    in_file = lake.clients_file.clients.get(client_id)
    if in_file is not None:
        hashes, generation = (in_file.secret_hash, None), 0
    else:
        async with lake.read() as conn:
            known = None if "\0" in client_id else await clients.find(conn, client_id)
        hashes = (known.secret_hash, known.previous_hash) if known else (None, None)
        generation = known.generation if known else 0
    if not await checks.is_right(shown.address, client_id, shown.secret, *hashes):
        raise OAuthError("invalid_client", "There is no such client, or it has another secret", 401)
    ctx.principal = Principal(f"client:{client_id}")
    wanted = _narrowed(None, scope)
    return Issued(tokens.issue(client_id, wanted, generation), tokens.seconds, wanted)


async def by_token(lake: Lake, ctx: RequestContext, token: str, scope: str | None) -> Issued:
    """Exchanges one of our own."""
    await authorise(ctx, None)
    tokens = await _tokens(lake)
    try:
        claims = tokens.verify(token)
        ctx.principal = Principal(f"client:{claims.client_id}", generation=claims.generation)
        # which raises for a client that is gone
        await lake.rights(ctx.principal)
    except NotAuthorized as e:
        raise OAuthError("invalid_grant", e.message) from None
    wanted = _narrowed(claims.scope, scope)
    return Issued(tokens.issue(claims.client_id, wanted, claims.generation), tokens.seconds, wanted)


async def _tokens(lake: Lake) -> Tokens:
    try:
        return await lake.authenticator.tokens()
    except NotAuthorized as e:
        raise OAuthError("unsupported_grant_type", e.message) from None


def _narrowed(held: str | None, asked: str | None) -> str | None:
    """The scope of the new token: what of the old one's limits is within what is asked for now."""
    limits, wanted = parse_scope(held), _parsed(asked)
    if wanted is None:
        return held
    both: list[Grant] = wanted if limits is None else limited(limits, wanted)
    if not both:
        raise OAuthError("invalid_scope", "Nothing of this scope is within that of the token that is exchanged")
    return scope_text(merged(both))


def _parsed(scope: str | None) -> list[Grant] | None:
    try:
        return parse_scope(scope)
    except ValueError as e:
        raise OAuthError("invalid_scope", str(e)) from None
