"""What an OIDC issuer publishes: its discovery document and its keys, fetched and read with distrust.

One GET each: over https (http only for an issuer on this machine, for trying), past no redirect, of bounded size, in
bounded time. Everything that is not as it must be raises `NoDocument` with the reason, which has nothing of a token.
"""

import http.client
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import IO, Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

import orjson
from jwt import PyJWTError, get_algorithm_by_name

from mergus import __version__
from mergus.loopback import is_loopback

MAX_DOCUMENT_BYTES: Final = 256 * 1024
MAX_KEYS: Final = 100
MIN_RSA_BITS: Final = 2048
# Checking a signature takes the longer the larger a key is.
MAX_RSA_BITS: Final = 8192

DISCOVERY: Final = "/.well-known/openid-configuration"

# Of what kind the key of an algorithm must be. An algorithm that is not here is never taken, whatever settings say:
# there is no `none`, and nothing whose key would be a shared secret.
KINDS: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    "ES256": "P-256",
    "ES384": "P-384",
    "ES512": "P-521",
    "EdDSA": "Ed25519",
}
_READ_BY: Final = {"RSA": "RS256", "P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}
_PUBLIC_PARTS: Final = ("kty", "n", "e", "crv", "x", "y")
# What only the owner of a key has, or what is a shared secret.
_PRIVATE_PARTS: Final = ("d", "p", "q", "k")

Untyped: TypeAlias = Any


class NoDocument(Exception):
    """The issuer did not answer, or not with what it should."""


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """A public key, and what the issuer says it is for."""

    kid: str | None
    alg: str | None
    kind: str
    public: Untyped

    def fits(self, alg: str) -> bool:
        return KINDS.get(alg) == self.kind and self.alg in {None, alg}


def fetch_keys_uri(issuer: str, seconds: float) -> str:
    """Where the issuer has its keys, by its discovery document."""
    document = _fetch(issuer.removesuffix("/") + DISCOVERY, seconds)
    if not isinstance(document, dict):
        raise NoDocument("its discovery document is not a JSON object")
    found = cast(dict[str, Untyped], document)
    # exactly: otherwise one that can answer in its place, or for one path of it, could vouch for all of it
    if found.get("issuer") != issuer:
        raise NoDocument("its discovery document is that of another issuer")
    uri = found.get("jwks_uri")
    if not isinstance(uri, str):
        raise NoDocument("its discovery document does not tell where its keys are")
    if not _is_safe(uri) or (uri.startswith("http:") and not issuer.startswith("http:")):
        raise NoDocument("its discovery document has its keys where they cannot be fetched safely")
    return uri


def fetch_keys(uri: str, seconds: float) -> tuple[Key, ...]:
    """All that can be used. None is an answer, too: then the issuer vouches for nothing."""
    document = _fetch(uri, seconds)
    listed = cast(dict[str, Untyped], document).get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise NoDocument("its keys are not a JSON Web Key Set")
    jwks = cast(list[Untyped], listed)
    if len(jwks) > MAX_KEYS:
        raise NoDocument(f"it has more than {MAX_KEYS} keys")
    return tuple(key for jwk in jwks if (key := _key(jwk)) is not None)


def _key(jwk: Untyped) -> Key | None:
    """None for a key that is for something else, that nothing here can use, or that is not only its owner's: a set
    may have keys of all sorts."""
    if not isinstance(jwk, dict):
        return None
    parts = cast(dict[str, Untyped], jwk)
    kid, alg, use, kty, crv = (parts.get(name) for name in ("kid", "alg", "use", "kty", "crv"))
    if not all(isinstance(part, str | None) for part in (kid, alg, use, kty, crv)):
        return None
    kind = "RSA" if kty == "RSA" else crv
    if kind not in _READ_BY or use not in {None, "sig"}:
        return None
    ops = parts.get("key_ops")
    if ops is not None and (not isinstance(ops, list) or "verify" not in ops):
        return None
    if any(name in parts for name in _PRIVATE_PARTS):
        return None
    try:
        public: Untyped = get_algorithm_by_name(_READ_BY[kind]).from_jwk(
            {name: parts[name] for name in _PUBLIC_PARTS if name in parts}
        )
    except (PyJWTError, ValueError, TypeError):
        return None
    if kind == "RSA" and not MIN_RSA_BITS <= public.key_size <= MAX_RSA_BITS:
        return None
    return Key(kid, alg, kind, public)


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url and "@" not in parts.netloc and not parts.fragment
    return plain and host != "" and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Where an issuer's word is found is the operator's and the issuer's to say, not that of whoever answers there."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def _fetch(url: str, seconds: float) -> Untyped:
    """Blocks. A proxy of the environment is used, but not to this machine."""
    deadline = time.monotonic() + seconds
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    if is_loopback(urlsplit(url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    opener.addheaders = [("User-Agent", f"mergus/{__version__}"), ("Accept", "application/json")]
    try:
        with cast(http.client.HTTPResponse, opener.open(url, timeout=seconds)) as response:
            if response.status != 200:
                raise NoDocument(f"it answered with status {response.status}")
            return orjson.loads(_bounded(response, deadline))
    except urllib.error.HTTPError as e:
        e.close()
        raise NoDocument(f"it answered with status {e.code}") from None
    except orjson.JSONDecodeError:
        raise NoDocument("it answered with something that is not JSON") from None
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise NoDocument(f"it does not answer ({type(e).__name__}: {e})") from None


def _bounded(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """A timeout of the socket alone would let it send a byte now and then for ever."""
    read = bytearray()
    while chunk := response.read1(65536):
        read += chunk
        if len(read) > MAX_DOCUMENT_BYTES:
            raise NoDocument(f"it answered with more than {MAX_DOCUMENT_BYTES} bytes")
        if time.monotonic() > deadline:
            raise NoDocument("it takes too long to answer")
    return bytes(read)
