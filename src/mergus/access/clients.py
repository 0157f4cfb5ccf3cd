"""Clients of OAuth2: their secrets, and those that are kept in a file.

A secret is made here, shown once, and kept as a hash (scrypt). A file is TOML, for those who keep such things with
their deployment:

    [clients.etl]
    secret_hash = "scrypt$…"                # mergus clients hash
    grants = ["ns:sales:rw"]

    [roles.analysts]                        # of OIDC tokens
    grants = ["catalog:r"]
"""

import hashlib
import hmac
import re
import secrets
import tomllib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from mergus.access.privileges import Grant
from mergus.access.scopes import parse_grant
from mergus.errors import SetupError

# 16 MiB and some 50 ms: a hash that is lost is not worth the trying even for a secret that somebody has chosen.
_COST: Final = (2**14, 8, 1)
_SALT_BYTES: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")


def check_name(name: str) -> str:
    """Raises ValueError. A name stands in tokens, logs and Basic credentials, where a colon would end it."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be a client's name: it begins with a letter or a digit, and has up to 128 letters, "
            "digits, dots, dashes, underscores and @"
        )
    return name


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    salt = secrets.token_bytes(_SALT_BYTES)
    return "$".join(("scrypt", *map(str, _COST), _text(salt), _text(_scrypt(secret, salt, _COST))))


def is_secret(secret: str, *hashes: str | None) -> bool:
    """Whether it is that of one of the hashes; takes as long if it is not, or if there is none. Blocks."""
    found = False
    for known in filter(None, hashes):
        cost, salt, digest = _parse(known)
        found |= hmac.compare_digest(_scrypt(secret, salt, cost), digest)
    if not any(hashes):
        # whether there is such a client must not be told by the time that it takes
        _scrypt(secret, bytes(_SALT_BYTES), _COST)
    return found


@dataclass(frozen=True, slots=True)
class FileClient:
    secret_hash: str = field(repr=False)
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class ClientsFile:
    clients: dict[str, FileClient] = field(default_factory=dict[str, FileClient])
    roles: dict[str, tuple[Grant, ...]] = field(default_factory=dict[str, tuple[Grant, ...]])

    def grants(self, grantee: str) -> tuple[Grant, ...]:
        kind, _, name = grantee.partition(":")
        if kind == "client":
            return self.clients[name].grants if name in self.clients else ()
        return self.roles.get(name, ()) if kind == "role" else ()


def read_file(path: Path | None) -> ClientsFile:
    """Raises SetupError that says where something is wrong."""
    if path is None:
        return ClientsFile()
    try:
        return _parsed(tomllib.loads(path.read_text()))
    except (OSError, ValueError) as e:
        raise SetupError(f"MERGUS_CLIENTS_FILE {path} cannot be used: {e}") from None


def _parsed(content: dict[str, Any]) -> ClientsFile:
    if unknown := sorted(content.keys() - {"clients", "roles"}):
        raise ValueError(f"[{unknown[0]}] means nothing")
    return ClientsFile(
        {check_name(name): _client(name, part) for name, part in _tables(content, "clients")},
        {name: _grants(part, f"roles.{name}", {"grants"}) for name, part in _tables(content, "roles")},
    )


def _tables(content: dict[str, Any], kind: str) -> list[tuple[str, dict[str, Any]]]:
    parts = content.get(kind, {})
    if not isinstance(parts, dict) or not all(isinstance(part, dict) for part in cast(dict[str, Any], parts).values()):
        raise ValueError(f"{kind} are tables: [{kind}.name]")
    return list(cast(dict[str, dict[str, Any]], parts).items())


def _client(name: str, part: dict[str, Any]) -> FileClient:
    where = f"clients.{name}"
    known = part.get("secret_hash")
    if not isinstance(known, str):
        raise ValueError(f"[{where}] has no secret_hash")  # noqa: TRY004
    try:
        _parse(known)
    except ValueError:
        raise ValueError(f"the secret_hash of [{where}] is none; `mergus clients hash` makes one") from None
    return FileClient(known, _grants(part, where, {"grants", "secret_hash"}))


def _grants(part: dict[str, Any], where: str, keys: set[str]) -> tuple[Grant, ...]:
    if unknown := sorted(part.keys() - keys):
        raise ValueError(f"[{where}] has a {unknown[0]}, which means nothing")
    texts = part.get("grants", [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in cast(list[object], texts)):
        raise ValueError(f"the grants of [{where}] are a list of texts")
    return tuple(parse_grant(text) for text in cast(list[str], texts))


def _scrypt(secret: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    return hashlib.scrypt(secret.encode(), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r, dklen=32)


def _parse(known: str) -> tuple[tuple[int, int, int], bytes, bytes]:
    kind, *cost, salt, digest = known.split("$")
    if kind != "scrypt" or len(cost) != 3:
        raise ValueError("no hash of ours")
    n, r, p = map(int, cost)
    if not (1 < n <= 2**20 and 0 < r <= 32 and 0 < p <= 16):
        raise ValueError("a hash that costs too much")
    try:
        return (n, r, p), b64decode(salt, validate=True), b64decode(digest, validate=True)
    except Base64Error:
        raise ValueError("no hash of ours") from None


def _text(data: bytes) -> str:
    return b64encode(data).decode()
