"""Keys for clients: those of a role that the server takes on (STS AssumeRole), narrowed down by a session policy.

Nothing is vended before the store has been seen to enforce such policies (`proof`). Keys are kept for half of their
life and given to everybody whose policy reads the same, so who gets some can use them for the other half at least. A
key that is not temporary, or is the server's own, is never given out, whatever STS answers.
"""

import asyncio
import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import SecretStr

from mergus.clock import MACHINE_CLOCK, Clock
from mergus.config import Settings
from mergus.errors import ServiceUnavailable
from mergus.logs import log
from mergus.storage import aws
from mergus.storage.location import Location
from mergus.storage.policy import Scope, Unspeakable, session_policy
from mergus.storage.proof import Proof, Prover, prove

KEPT: Final = 10_000
# What STS says of a policy that it will not take.
_NOT_TAKEN: Final = frozenset({"PackedPolicyTooLarge", "PackedPolicyTooLargeException", "MalformedPolicyDocument"})


@dataclass(frozen=True, slots=True)
class Keys:
    """Temporary ones. Secrets show as stars wherever this is printed."""

    access_key_id: str
    secret_access_key: SecretStr
    session_token: SecretStr
    expires_ms: int


class Vending:
    def __init__(self, settings: Settings, clock: Clock = MACHINE_CLOCK) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._sts: Any = None
        self._kept: OrderedDict[str, tuple[float, Keys]] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Keys]] = {}
        self._prover = Prover(self._prove)

    @property
    def is_configured(self) -> bool:
        return self._settings.sts_role_arn is not None

    async def proof(self, root: Location) -> Proof:
        """Whether the store enforces policies, shown in a scratch directory below `root`."""
        if not self.is_configured:
            return Proof("off", "no role is named (MERGUS_STS_ROLE_ARN)")
        if root.scheme != "s3":
            return Proof("off", "the lake is not on S3")
        return await self._prover(root)

    def _prove(self, root: Location) -> Proof:
        found = prove(self._settings, root, self._assume)
        if found.is_proven:
            log.info("keys are vended: %s", found.reason)
        else:
            log.warning("no keys are vended: %s", found.reason)
        return found

    async def vend(self, scope: Scope, proof: Proof) -> Keys:
        """Keys for just that. Raises Unspeakable, or ServiceUnavailable if STS does not answer."""
        if not proof.is_proven:
            raise Unspeakable(proof.reason)
        policy = session_policy(scope, proof.terms)
        until, kept = self._kept.get(policy, (0.0, None))
        if kept is not None and self._clock.read() < until:
            self._kept.move_to_end(policy)
            return kept
        task = self._under_way.get(policy)
        if task is None:
            task = self._under_way[policy] = asyncio.create_task(self._fresh(policy))
            task.add_done_callback(lambda _: self._under_way.pop(policy, None))
        # a client that goes away does not take them from others
        return await asyncio.shield(task)

    async def _fresh(self, policy: str) -> Keys:
        asked = self._clock.read()
        try:
            keys = await asyncio.to_thread(self._assume, policy)
        except Exception as e:
            if aws.code_of(e) in _NOT_TAKEN:
                raise Unspeakable("STS does not take the policy that the table would need") from e
            # the library's message may quote the request
            log.warning("STS gives no keys: %s", aws.code_of(e))
            raise ServiceUnavailable("No keys for the table's files can be had just now") from None
        self._kept[policy] = (asked + self._settings.vended_seconds / 2, keys)
        self._kept.move_to_end(policy)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return keys

    def _assume(self, policy: str) -> Keys:
        with self._lock:
            if self._sts is None:
                self._sts = aws.sts_client(self._settings, aws.session(self._settings))
        given = self._sts.assume_role(
            RoleArn=self._settings.sts_role_arn,
            # tells in the store's log what the keys were for, as far as a hash can
            RoleSessionName=f"mergus-{hashlib.sha256(policy.encode()).hexdigest()[:24]}",
            Policy=policy,
            DurationSeconds=self._settings.vended_seconds,
        )["Credentials"]
        key, secret, token = (str(given.get(k) or "") for k in ("AccessKeyId", "SecretAccessKey", "SessionToken"))
        expires = given.get("Expiration")
        own = key == self._settings.s3_access_key_id
        if not key or not secret or not token or own or not isinstance(expires, datetime):
            raise RuntimeError("STS answered without temporary keys")
        return Keys(key, SecretStr(secret), SecretStr(token), int(expires.timestamp() * 1000))
