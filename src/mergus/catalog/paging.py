"""Pages by key. A token says after which key the next page begins; it is signed, so any server process can take
it, and none can be made up or used for another listing. Nothing is stored, and a token never expires."""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import orjson

from mergus.errors import BadRequest

T = TypeVar("T")

# (after, limit) → what is listed
Fetch = Callable[[str | None, int | None], Awaitable[list[T]]]

_MAC_BYTES = 16


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What the client asked: no token and no size mean everything at once, an empty token the first page."""

    token: str | None = None
    size: int | None = None

    @property
    def wanted(self) -> bool:
        return self.token is not None or self.size is not None

    def at_most(self, most: int) -> "PageRequest":
        """The same of what is never shown all at once."""
        return PageRequest(self.token or "", min(self.size or most, most))


class PageTokens:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, listing: Sequence[str], after: str) -> str:
        payload = after.encode()
        return urlsafe_b64encode(self._mac(listing, payload) + payload).rstrip(b"=").decode()

    def read(self, listing: Sequence[str], token: str) -> str:
        try:
            raw = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except (Base64Error, ValueError):
            raise BadRequest("pageToken is not one that this server gave out") from None
        mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(listing, payload)):
            raise BadRequest("pageToken is not one that this server gave out for this listing")
        return payload.decode()

    def _mac(self, listing: Sequence[str], payload: bytes) -> bytes:
        message = orjson.dumps(list(listing)) + b"\0" + payload
        return hmac.new(self._key, message, hashlib.sha256).digest()[:_MAC_BYTES]
