"""Tokens of an outside OIDC issuer: whether one is good, and who it is about.

A token is good if the issuer of the settings signed it, by an allowed algorithm and with a key of its that is for
that, for our audience, and if it is in time. `iss`, `aud`, `exp` and `nbf` must be there. The header of a token chooses
among keys of the issuer and nothing else: keys and addresses that it brings along (`jwk`, `jku`, `x5c`) mean nothing.

What is read from it:

- *The principal*: the claim that the settings name; printable text of 256 characters at most. Else it is refused.
- *Roles*: a list of texts, or one with spaces between them. None is none; any other shape is refused, since a mistake
  in the settings of an issuer should not look like a user without rights. A name that no grant can have is left out.
- *Scope*: `scope`, or `scp` as some issuers have it, in the same shapes. It may limit what a token is good for, so a
  shape that is not understood is refused rather than left out.

A claim's name is looked for as it is first (`https://example.com/roles`), then with its dots leading into objects.
"""

import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import jwt
import orjson

from mergus.access.oidc_fetch import KINDS, Key
from mergus.access.oidc_keys import UNHURRIED, IssuerKeys, Pace
from mergus.clock import MACHINE_CLOCK, Clock
from mergus.config import Settings, variable
from mergus.errors import NotAuthorized, SetupError

# By how much the clocks of the issuer and ours may differ, in seconds.
LEEWAY: Final = 30
MAX_TOKEN_LENGTH: Final = 16 * 1024
MAX_NAME_LENGTH: Final = 256

# The end of the year 9999: later times are none that others could hold.
_LATEST: Final = 253_402_300_799
# Without padding, so that a token has one spelling.
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
# A token for another purpose may have the same claims (RFC 8725, 3.11).
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_REQUIRED: Final = ["iss", "aud", "exp", "nbf"]

_REASONS: Final[tuple[tuple[type[jwt.PyJWTError], str], ...]] = (
    (jwt.ExpiredSignatureError, "has expired"),
    (jwt.ImmatureSignatureError, "is not good yet"),
    (jwt.InvalidAudienceError, "is for another audience"),
    (jwt.InvalidIssuerError, "is of another issuer"),
    (jwt.InvalidSignatureError, "has a signature that is not its issuer's"),
)

Untyped: TypeAlias = Any
Object: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Claims:
    """What a good token says."""

    principal: str
    roles: frozenset[str]
    scope: str | None
    # in seconds since 1970
    expires_at: int


def issuer_of(token: str) -> str | None:
    """Who the token says its issuer is; nobody has checked that yet. None if it says nothing."""
    if len(token) > MAX_TOKEN_LENGTH or not _TOKEN.fullmatch(token):
        return None
    payload = token.split(".")[1]
    try:
        claims: Untyped = orjson.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except ValueError:
        return None
    issuer = cast(Object, claims).get("iss") if isinstance(claims, dict) else None
    return issuer if isinstance(issuer, str) else None


class Oidc:
    def __init__(self, settings: Settings, pace: Pace = UNHURRIED, clock: Clock = MACHINE_CLOCK) -> None:
        if settings.oidc_issuer is None or not settings.oidc_audience:
            needed = variable("oidc_issuer"), variable("oidc_audience")
            raise SetupError(f"for {variable('auth')}=oidc, {needed[0]} and {needed[1]} must be set")
        self._issuer = settings.oidc_issuer
        self._audience = settings.oidc_audience
        self._algorithms = frozenset(settings.oidc_algorithms.split()) & KINDS.keys()
        self._principal_claim = settings.oidc_principal_claim
        self._roles_claim = settings.oidc_roles_claim
        self._keys = IssuerKeys(self._issuer, pace, clock)

    async def verify(self, token: str) -> Claims:
        """NotAuthorized unless the token is good; ServiceUnavailable if that cannot be found out now."""
        if len(token) > MAX_TOKEN_LENGTH:
            raise _refused("is too long")
        kid, alg = self._header(token)
        # Before its key is looked for: who comes with a token that cannot be good need not wait for the issuer.
        self._claims(self._decode(token, None, alg))
        keys = await self._keys.find(kid, alg)
        try:
            return self._check(token, kid, alg, keys)
        except NotAuthorized:
            # without a name, nothing but its signature tells that a key is a new one
            if kid is not None or len(keys) != 1:
                raise
            return self._check(token, kid, alg, await self._keys.find_again(kid, alg))

    async def close(self) -> None:
        await self._keys.close()

    def _header(self, token: str) -> tuple[str | None, str]:
        if not _TOKEN.fullmatch(token):
            raise _refused("is not a JSON Web Token")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise _refused("is not a JSON Web Token") from None
        alg, kind = header.get("alg"), header.get("typ", "JWT")
        if not isinstance(alg, str) or alg not in self._algorithms:
            raise _refused("is not signed by an algorithm that is accepted here")
        if not isinstance(kind, str) or kind.lower() not in _TYPES:
            raise _refused("is one for another purpose, by its type")
        return header.get("kid"), alg

    def _check(self, token: str, kid: str | None, alg: str, keys: tuple[Key, ...]) -> Claims:
        """Several keys may have one name; a token that names none must leave no choice."""
        if kid is None and len(keys) > 1:
            raise _refused("does not name its key (kid), and its issuer has several")
        wrong = _refused("is signed with a key that its issuer does not have")
        for key in keys:
            try:
                return self._claims(self._decode(token, key, alg))
            except NotAuthorized as e:
                wrong = e
        raise wrong

    def _decode(self, token: str, key: Key | None, alg: str) -> Object:
        """With all that must hold but, without a key, the signature."""
        checks = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_iss", "verify_aud"), True)
        options: Untyped = {**checks, "verify_signature": key is not None, "require": _REQUIRED}
        try:
            return jwt.decode(
                token,
                "" if key is None else key.public,
                algorithms=[alg],
                options=options,
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY,
            )
        except jwt.MissingRequiredClaimError as e:
            raise _refused(f"has no {e.claim}") from None
        except jwt.PyJWTError as e:
            reasons = (reason for kind, reason in _REASONS if isinstance(e, kind))
            raise _refused(next(reasons, "is not a JSON Web Token as it should be")) from None

    def _claims(self, found: Object) -> Claims:
        for name in ("exp", "nbf"):
            # PyJWT also takes a text with a number in it
            if isinstance(found[name], bool) or not isinstance(found[name], int | float) or found[name] > _LATEST:
                raise _refused(f"has no {name} that is a time")
        principal = claim(found, self._principal_claim)
        if not isinstance(principal, str) or not _is_name(principal):
            raise _refused(f"has no {self._principal_claim} that can be the name of a principal")
        roles = _words(claim(found, self._roles_claim), self._roles_claim)
        scope = next((_words(found[name], name) for name in ("scope", "scp") if found.get(name) is not None), None)
        if scope is not None and not all(word.isprintable() for word in scope):
            raise _refused("has a scope that cannot be understood")
        return Claims(
            principal,
            frozenset(filter(_is_name, roles or ())),
            None if scope is None else " ".join(scope),
            int(found["exp"]),
        )


def claim(claims: Untyped, name: str) -> Untyped:
    """Under its whole name, or by way of objects; None if it is nowhere."""
    if not isinstance(claims, dict):
        return None
    found = cast(Object, claims)
    if name in found:
        return found[name]
    # the longest first, for what is on the way may have dots in its name as well
    for dot in reversed([at for at, letter in enumerate(name) if letter == "."]):
        if (below := claim(found.get(name[:dot]), name[dot + 1 :])) is not None:
            return below
    return None


def _words(value: Untyped, name: str) -> list[str] | None:
    match value:
        case None:
            return None
        case str():
            return value.split()
        case list() if all(isinstance(one, str) for one in cast(list[Untyped], value)):
            return cast(list[str], value)
        case _:
            raise _refused(f"has {name} that are neither a list of texts nor a text")


def _is_name(text: str) -> bool:
    """Printable: no control characters, nothing that hides in a log, no half of a surrogate pair."""
    return 0 < len(text) <= MAX_NAME_LENGTH and text.isprintable() and text == text.strip()


def _refused(reason: str) -> NotAuthorized:
    return NotAuthorized(f"The token {reason}")
