"""Tokens of our own: JWTs that say which client asks, and how far its rights go for now.

They are signed by the first of the keys and accepted by any, each under its own name (`kid`) and by its own algorithm
alone. A token holds no rights: those are looked up when it is used, so that what is taken away is gone at once.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from mergus.access.privileges import Grant
from mergus.access.scopes import parse_scope
from mergus.config import Settings
from mergus.errors import NotAuthorized, SetupError

ISSUER: Final = "mergus"
# of the key that every lake has
LAKES_KEY: Final = "lake"
LEAST_SECRET_BYTES: Final = 32
_LEAST_RSA_BITS: Final = 2048
_LEEWAY_SECONDS: Final = 5
_REQUIRED: Final = ["iss", "aud", "sub", "iat", "nbf", "exp"]


@dataclass(frozen=True, slots=True)
class Key:
    kid: str
    algorithm: str
    signs: Any = field(repr=False)
    verifies: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """`limits` are what the scope says."""

    client_id: str
    scope: str | None
    limits: tuple[Grant, ...] | None
    generation: int
    expires_at: int


class Tokens:
    def __init__(self, keys: Sequence[Key], audience: str, seconds: int) -> None:
        self._keys = {key.kid: key for key in reversed(keys)}
        self._first = keys[0]
        self._audience = audience
        self.seconds = seconds

    def issue(self, client_id: str, scope: str | None, generation: int) -> str:
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": ISSUER,
            "aud": self._audience,
            "sub": client_id,
            "iat": now,
            "nbf": now,
            "exp": now + self.seconds,
            "jti": uuid4().hex,
            "gen": generation,
        }
        if scope is not None:
            claims["scope"] = scope
        return jwt.encode(claims, self._first.signs, self._first.algorithm, headers={"kid": self._first.kid})

    def verify(self, token: str) -> TokenClaims:
        """Raises NotAuthorized."""
        try:
            key = self._keys.get(str(jwt.get_unverified_header(token).get("kid")))
            if key is None:
                raise NotAuthorized("The token is signed by a key that is not known here, or not any more")
            claims: dict[str, Any] = jwt.decode(
                token,
                key.verifies,
                algorithms=[key.algorithm],
                audience=self._audience,
                issuer=ISSUER,
                leeway=_LEEWAY_SECONDS,
                options={"require": _REQUIRED, "strict_aud": True},
            )
            scope = claims.get("scope")
            return TokenClaims(claims["sub"], scope, _limits(scope), int(claims["gen"]), int(claims["exp"]))
        except jwt.ExpiredSignatureError:
            raise NotAuthorized("The token has expired") from None
        except (jwt.InvalidTokenError, ValueError, TypeError, KeyError):
            # what exactly is wrong with it helps nobody who has not made it up
            raise NotAuthorized("The token is not one that this server has issued, or it is for another") from None


def _limits(scope: Any) -> tuple[Grant, ...] | None:  # noqa: ANN401  (JSON)
    if not isinstance(scope, str | None):
        raise TypeError("a scope is a text")
    found = parse_scope(scope)
    return None if found is None else tuple(found)


def keys_of(settings: Settings, lakes: bytes) -> list[Key]:
    """The first signs. The lake's own key is good only where no other is named. Raises SetupError."""
    named = [_of_file(Path(text)) for text in settings.token_key_files.split()]
    if settings.token_keys is not None:
        named += [_of_secret(text) for text in settings.token_keys.get_secret_value().split()]
    if len({key.kid for key in named}) < len(named):
        raise SetupError("two of MERGUS_TOKEN_KEYS or MERGUS_TOKEN_KEY_FILES have one name")
    return named or [Key(LAKES_KEY, "HS256", lakes, lakes)]


def _of_secret(text: str) -> Key:
    kid, _, secret = text.partition(":")
    if not kid or len(secret.encode()) < LEAST_SECRET_BYTES:
        raise SetupError(
            f"each of MERGUS_TOKEN_KEYS is name:secret, with a secret of {LEAST_SECRET_BYTES} bytes or more"
        )
    return Key(kid, "HS256", secret.encode(), secret.encode())


def _of_file(path: Path) -> Key:
    try:
        private = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as e:
        raise SetupError(f"MERGUS_TOKEN_KEY_FILES: {path} holds no private key that can be used: {e}") from None
    if isinstance(private, rsa.RSAPrivateKey) and private.key_size >= _LEAST_RSA_BITS:
        algorithm, public = "RS256", private.public_key()
    elif isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP256R1):
        algorithm, public = "ES256", private.public_key()
    else:
        raise SetupError(
            f"MERGUS_TOKEN_KEY_FILES: {path} is neither RSA of {_LEAST_RSA_BITS} bits or more nor EC on P-256"
        )
    plain = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Key(hashlib.sha256(plain).hexdigest()[:16], algorithm, private, public)
