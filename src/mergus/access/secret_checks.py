"""Checks of clients' secrets, with a limit on wrong ones.

Only a failure counts: a client with the right secret asks for as many tokens as it likes (Trino asks for two or more
for each query). A wrong secret counts for the address and the name together, so nobody uses up the attempts of another
address, and ten times as many for the address alone, since a name costs a guesser nothing and each check takes a core
for 50 ms. A secret that was right before is recognised by its HMAC, without the cost of scrypt and before the limit is
asked: guesses from a client's own address, behind one proxy for instance, do not lock it out.
"""

import asyncio
import hmac
import secrets
import time
from typing import Final

from mergus.access.clients import is_secret
from mergus.errors import TooManyRequests

# Checking a secret takes a core for a while: others wait.
_CHECKED_AT_ONCE: Final = 2
_KEYS_KNOWN: Final = 10_000
_SECRETS_KNOWN: Final = 10_000
_OF_AN_ADDRESS: Final = 10


class FailureLimit:
    """A bucket for each key, which holds a minute's worth of failures and fills evenly."""

    def __init__(self, per_minute: int) -> None:
        self._most = float(per_minute)
        self._left: dict[tuple[str, ...], tuple[float, float]] = {}

    def is_reached(self, *key: str) -> bool:
        return self._read(key) < 1

    def count_failure(self, *key: str) -> None:
        left = self._read(key)
        self._left.pop(key, None)
        # the newest is last: the first has not failed for longest, and is fullest
        self._left[key] = (max(0.0, left - 1), time.monotonic())
        if len(self._left) > _KEYS_KNOWN:
            del self._left[next(iter(self._left))]

    def _read(self, key: tuple[str, ...]) -> float:
        now = time.monotonic()
        left, at = self._left.get(key, (self._most, now))
        return min(self._most, left + (now - at) * self._most / 60)


class SecretChecks:
    def __init__(self, failures_per_minute: int) -> None:
        self._of_clients = FailureLimit(failures_per_minute)
        self._of_addresses = FailureLimit(failures_per_minute * _OF_AN_ADDRESS)
        self._at_once = asyncio.Semaphore(_CHECKED_AT_ONCE)
        # Neither secrets nor what could be tried against another process: the key is this one's own.
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, frozenset[str]] = {}

    async def is_right(self, address: str, client_id: str, secret: str, *hashes: str | None) -> bool:
        """Whether it is the secret of one of the hashes. Raises TooManyRequests."""
        digest = hmac.digest(self._key, f"{len(client_id)}:{client_id}{secret}".encode(), "sha256")
        current = frozenset(filter(None, hashes))
        # what was right for a hash that has been rotated away is not right any more
        if current & self._known.get(digest, frozenset()):
            return True
        self._check_limits(address, client_id)
        async with self._at_once:
            # those that waited meanwhile have failed, too
            self._check_limits(address, client_id)
            for known in sorted(current) or [None]:
                if await asyncio.to_thread(is_secret, secret, known) and known is not None:
                    self._remember(digest, known)
                    return True
        self._of_clients.count_failure(address, client_id)
        self._of_addresses.count_failure(address)
        return False

    def _check_limits(self, address: str, client_id: str) -> None:
        if self._of_clients.is_reached(address, client_id) or self._of_addresses.is_reached(address):
            raise TooManyRequests("Too many wrong secrets came from this address; try again later")

    def _remember(self, digest: bytes, known: str) -> None:
        self._known[digest] = frozenset({known})
        if len(self._known) > _SECRETS_KNOWN:
            del self._known[next(iter(self._known))]
