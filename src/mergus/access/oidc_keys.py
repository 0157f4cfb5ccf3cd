"""The keys of an OIDC issuer as one process knows them: fetched when they are needed, kept for a while, followed when
they are rotated.

What must hold:

- A key that the issuer has withdrawn is not used for long. Keys that are older than `fresh` seconds are fetched again:
  behind the request that finds them so, or, if nobody has asked for as long again, before it is answered.
- A token is refused for its key only after the issuer was asked, by a fetch that began after the token came: until
  then it may be a new one. Such fetches are `between` seconds apart at least, whoever sends whatever; requests wait
  for the next together. One that is under way is waited for, too, but proves nothing if it does not find the key: it
  may have looked before the key was there.
- An issuer that does not answer costs nobody access that the known keys give, until they are `kept` seconds old. Who
  needs more than those gets a 503: it is not known whether the token is good.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from mergus.access.oidc_fetch import Key, NoDocument, fetch_keys, fetch_keys_uri
from mergus.clock import MACHINE_CLOCK, Clock
from mergus.errors import ServiceUnavailable
from mergus.logs import log


@dataclass(frozen=True, slots=True)
class Pace:
    """In seconds."""

    fresh: float = 300
    # Longer than an outage should be, and not so long that a stolen key is good for ever if its owner is silenced.
    kept: float = 6 * 3600
    between: float = 5
    # of one fetch
    timeout: float = 5
    # where the keys are changes less often than they do
    place_kept: float = 3600


UNHURRIED: Final = Pace()

# where the keys are, and the keys
Fetched: TypeAlias = tuple[str, tuple[Key, ...]]


class IssuerKeys:
    def __init__(self, issuer: str, pace: Pace = UNHURRIED, clock: Clock = MACHINE_CLOCK) -> None:
        self._issuer = issuer
        self._pace = pace
        self._clock = clock
        self._keys: tuple[Key, ...] = ()
        # times of the clock; long ago if never
        self._fetched = self._began = self._placed = float("-inf")
        self._uri: str | None = None
        # the last attempt failed
        self._failed = False
        self._fetching: asyncio.Task[None] | None = None
        # by a thread
        self._is_asking = False

    async def find(self, kid: str | None, alg: str) -> tuple[Key, ...]:
        """The keys that may have made such a signature; usually one, none if the issuer has none."""
        came = self._clock.read()
        await self._freshen(came)
        await self._look_again(came, lambda: len(self._fitting(kid, alg)) > 0)
        return self._fitting(kid, alg)

    async def find_again(self, kid: str | None, alg: str) -> tuple[Key, ...]:
        """The same, after the issuer was asked anew."""
        await self._look_again(self._clock.read(), lambda: False)
        return self._fitting(kid, alg)

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _fitting(self, kid: str | None, alg: str) -> tuple[Key, ...]:
        return tuple(key for key in self._keys if (kid is None or key.kid == kid) and key.fits(alg))

    async def _freshen(self, now: float) -> None:
        """Until there are keys that may be used."""
        age = now - self._fetched
        if age < self._pace.fresh:
            return
        if age >= self._pace.kept:
            if self._is_fetching or self._may_begin(now):
                await asyncio.shield(self._begin())
            if now - self._fetched >= self._pace.kept:
                raise _silent()
        elif self._failed:
            # it is not waited for again and again
            if self._may_begin(now):
                self._begin()
        elif age < 2 * self._pace.fresh:
            self._begin()
        else:
            await asyncio.shield(self._begin())

    async def _look_again(self, came: float, is_found: Callable[[], bool]) -> None:
        """Until a fetch has found it, or one that began after this time has not; 503 if the issuer does not answer."""
        while not is_found() and (self._began < came or self._is_fetching):
            if self._is_fetching or self._may_begin(now := self._clock.read()):
                await asyncio.shield(self._begin())
            elif self._failed:
                break
            else:
                await self._clock.sleep(self._began + self._pace.between - now)
        if self._failed and not is_found():
            raise _silent()

    @property
    def _is_fetching(self) -> bool:
        return self._fetching is not None and not self._fetching.done()

    def _may_begin(self, now: float) -> bool:
        return now - self._began >= self._pace.between

    def _begin(self) -> asyncio.Task[None]:
        """The fetch that is under way, or a new one."""
        if self._fetching is None or self._fetching.done():
            self._began = self._clock.read()
            self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        kept = self._uri if self._began - self._placed < self._pace.place_kept else None
        try:
            uri, keys = await self._in_thread(kept)
        except (NoDocument, TimeoutError) as e:
            # it may have moved its keys
            self._uri, self._failed = None, True
            reason = "it takes too long to answer" if isinstance(e, TimeoutError) else e
            log.warning("the keys of the OIDC issuer %s could not be fetched: %s", self._issuer, reason)
            return
        if not keys:
            log.warning("the OIDC issuer %s has no keys that can be used", self._issuer)
        if kept is None:
            self._uri, self._placed = uri, self._began
        # as old as the question: what the issuer did since then is not in the answer
        self._keys, self._fetched, self._failed = keys, self._began, False

    async def _in_thread(self, uri: str | None) -> Fetched:
        """In one of its own, which does not hold up the end of the process; one that hangs is not joined by more."""
        if self._is_asking:
            raise NoDocument("it is still busy with its last answer")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Fetched] = loop.create_future()

        def settle(result: Fetched | Exception) -> None:
            if answer.done():
                return
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        def run() -> None:
            try:
                place = uri or fetch_keys_uri(self._issuer, self._pace.timeout)
                result = place, fetch_keys(place, self._pace.timeout)
            except Exception as e:
                result = e
            self._is_asking = False
            # a loop that is closed needs no answer
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result)

        self._is_asking = True
        threading.Thread(target=run, name="oidc-keys", daemon=True).start()
        async with asyncio.timeout(self._pace.timeout):
            return await answer


def _silent() -> ServiceUnavailable:
    return ServiceUnavailable("The issuer of the token does not answer, and its key is not known; try again")
