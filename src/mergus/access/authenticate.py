"""Who asks: the bearer token of a request, and whom it speaks for.

A token of our own says so by its issuer; any other is the OIDC issuer's to vouch for. What was verified once is
remembered for as long as it is good, a minute at most for those of another issuer, whose keys may be withdrawn: not the
token, but its hash.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Final

from mergus.access import oidc
from mergus.access.context import ANONYMOUS, Principal
from mergus.access.oidc import Oidc
from mergus.access.privileges import Grant
from mergus.access.scopes import parse_scope
from mergus.access.tokens import ISSUER, Tokens, keys_of
from mergus.config import Settings
from mergus.errors import NotAuthorized

MOST_KNOWN: Final = 10_000
OIDC_SECONDS: Final = 60
_BEARER: Final = b"bearer "


class Authenticator:
    """`lakes_key` gives the key that is good where the settings name none."""

    def __init__(self, settings: Settings, lakes_key: Callable[[], Awaitable[bytes]]) -> None:
        self._settings = settings
        self._lakes_key = lakes_key
        self._making = asyncio.Lock()
        self._tokens: Tokens | None = None
        words = (settings.auth or "none").split()
        self.is_open = words == ["none"]
        self._takes_ours = "oauth2" in words
        self._oidc = Oidc(settings) if "oidc" in words else None
        self._known: dict[bytes, tuple[Principal, float]] = {}

    async def tokens(self) -> Tokens:
        """Those of our own. Raises NotAuthorized where there are none."""
        if not self._takes_ours:
            raise NotAuthorized("This server issues no tokens")
        if self._tokens is None:
            async with self._making:
                if self._tokens is None:
                    keys = keys_of(self._settings, await self._lakes_key())
                    self._tokens = Tokens(keys, f"mergus/{self._settings.prefix}", self._settings.token_seconds)
        return self._tokens

    async def principal(self, header: bytes | None) -> Principal:
        """Of an Authorization header. Raises NotAuthorized."""
        if self.is_open:
            return ANONYMOUS
        if header is None:
            raise NotAuthorized("A token is needed (Authorization: Bearer …)")
        if not header.lower().startswith(_BEARER):
            raise NotAuthorized("The Authorization header has no bearer token")
        raw = header[len(_BEARER) :].strip()
        digest = hashlib.sha256(raw).digest()
        now = time.time()
        if (found := self._known.get(digest)) is not None and now < found[1]:
            return found[0]
        try:
            token = raw.decode("ascii")
        except UnicodeDecodeError:
            raise NotAuthorized("The token is not one that this server has issued, or it is for another") from None
        principal, until = await self._verify(token)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[digest] = principal, until
        return principal

    async def _verify(self, token: str) -> tuple[Principal, float]:
        """And until when that may be believed."""
        if self._oidc is not None and oidc.issuer_of(token) != ISSUER:
            claims = await self._oidc.verify(token)
            grants = _scope(claims.scope)
            by_itself = self._settings.oidc_scopes == "grant"
            principal = Principal(
                f"user:{claims.principal}",
                claims.roles,
                limits=None if by_itself else grants,
                granted=(grants or ()) if by_itself else (),
            )
            return principal, min(claims.expires_at, time.time() + OIDC_SECONDS)
        ours = (await self.tokens()).verify(token)
        principal = Principal(f"client:{ours.client_id}", limits=ours.limits, generation=ours.generation)
        return principal, ours.expires_at

    async def close(self) -> None:
        if self._oidc is not None:
            await self._oidc.close()


def _scope(scope: str | None) -> tuple[Grant, ...] | None:
    try:
        grants = parse_scope(scope)
    except ValueError as e:
        raise NotAuthorized(f"The scope of the token makes no sense: {e}") from None
    return None if grants is None else tuple(grants)
