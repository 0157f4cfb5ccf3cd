"""Whether a store enforces session policies: shown with objects of our own, before anybody gets keys.

A store may hand out keys with a policy and enforce none of it. So keys are made for one scratch directory and used on
it and on its neighbour. Everything that is to be denied must be answered 403, and what is allowed must work, or keys
would be vended that are no good. What else policies rely on is only noted: whether the store understands `${*}`, and
whether it tells apart names that differ in case.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

from mergus.config import Settings
from mergus.logs import log
from mergus.storage import aws
from mergus.storage.location import Location
from mergus.storage.policy import Scope, Terms, session_policy

if TYPE_CHECKING:
    from mergus.storage.vending import Keys

    Assume = Callable[[str], "Keys"]

_DENIED: Final = 403
TRIED_AGAIN: Final = 30.0


@dataclass(frozen=True, slots=True)
class Proof:
    """`off`: nobody asked for it. `failed`: it could not be found out."""

    outcome: Literal["off", "proven", "refuted", "failed"]
    reason: str
    terms: Terms = field(default_factory=Terms)

    @property
    def is_proven(self) -> bool:
        return self.outcome == "proven"


class Prover:
    """Finds out once for all who ask. What did not succeed is tried again after a while, when somebody asks."""

    def __init__(self, prove: Callable[[Location], Proof]) -> None:
        self._prove = prove
        self._found: tuple[float, Proof] | None = None
        self._proving: asyncio.Task[Proof] | None = None

    async def __call__(self, root: Location) -> Proof:
        if self._found is not None:
            since, found = self._found
            if found.is_proven or time.monotonic() - since < TRIED_AGAIN:
                return found
        if self._proving is None or self._proving.done():
            # it blocks
            self._proving = asyncio.create_task(asyncio.to_thread(self._prove, root))
        found = await asyncio.shield(self._proving)
        self._found = (time.monotonic(), found)
        return found


class _Refuted(Exception):
    pass


@contextmanager
def cleared(store: Any, bucket: str, keys: Iterable[str]) -> Generator[None]:  # noqa: ANN401
    """Of what is put there meanwhile; `keys` may still grow."""
    try:
        yield
    finally:
        for key in keys:
            try:
                store.delete_object(Bucket=bucket, Key=key)
            except Exception as e:
                log.warning("a probe object stays behind: %s: %s", key, aws.code_of(e))


def scratch_below(root: Location) -> Location:
    """A directory that is no table's."""
    return root / f".mergus-probe-{uuid4()}"


def prove(settings: Settings, root: Location, assume: "Assume") -> Proof:
    """Blocks: call it in a thread."""
    try:
        scratch = _Scratch(settings, scratch_below(root), assume)
        with cleared(scratch.store, root.bucket, scratch.made):
            scratch.enforced()
            return Proof("proven", "the store enforces session policies", scratch.terms())
    except _Refuted as e:
        return Proof("refuted", f"the store does not enforce session policies: {e}")
    except Exception as e:
        # the library's messages may quote requests
        return Proof("failed", f"it could not be shown that the store enforces session policies: {aws.code_of(e)}")


class _Scratch:
    """Two directories side by side: ours, and one whose name goes on where ours ends."""

    def __init__(self, settings: Settings, place: Location, assume: "Assume") -> None:
        self._settings = settings
        self._session = aws.session(settings)
        self.store = aws.s3_client(settings, self._session)
        self._place = place
        self._assume = assume
        self._bucket = place.bucket
        self.made: list[str] = []
        # nothing of the place's own name may stand in the way of finding out
        self._known = Terms(_partition(settings.sts_role_arn or ""), escapes=True, ignores_case=False)

    def enforced(self) -> None:
        inside, outside = self._put("t/in"), self._put("t2/in")
        new, copy, beyond = self._key("t/new"), self._key("t/copy"), self._key("t2/new")
        writer = self._client(Scope((), (self._place / "t",)))
        reader = self._client(Scope((self._place / "t",)))
        at, theirs = {"Bucket": self._bucket}, {"Bucket": self._bucket, "Key": outside}
        ours, above = self._key("t/"), self._key("")
        for client in (writer, reader):
            client.get_object(**at, Key=inside)
            client.list_objects_v2(**at, Prefix=ours)
            self._denied("reading a neighbour's object", client.get_object, **theirs)
            self._denied("listing a neighbour", client.list_objects_v2, **at, Prefix=self._key("t2/"))
            self._denied("listing what is above", client.list_objects_v2, **at, Prefix=above)
            self._denied("listing the bucket", client.list_objects_v2, **at)
            self._denied("writing beside it", client.put_object, **at, Key=beyond, Body=b"")
            self._denied("deleting a neighbour's object", client.delete_object, **theirs)
            self._denied("deleting", client.delete_object, **at, Key=inside)
            self._denied("copying a neighbour's object", client.copy_object, **at, Key=copy, CopySource=theirs)
        source = {"Bucket": self._bucket, "Key": inside}
        self._denied("copying to a neighbour", writer.copy_object, **at, Key=beyond, CopySource=source)
        self._denied("writing with keys for reading", reader.put_object, **at, Key=new, Body=b"")
        writer.put_object(**at, Key=new, Body=b"mergus")

    def terms(self) -> Terms:
        """With what is only noted, of objects that `enforced` has put: at worst some names are not vended for."""
        reader = self._client(Scope((self._place / "T",)))
        ignores_case = not self._is_denied(reader.get_object, Bucket=self._bucket, Key=self._key("t/in"))
        return Terms(self._known.partition, self._escapes(), ignores_case)

    def _escapes(self) -> bool:
        meant = ("x*y", "x?y", "x$y")
        try:
            good = [self._put(f"{name}/in") for name in meant]
            bad = [self._put(f"{name}/in") for name in ("xZy", "x${Z}y", "x${*}y", "x${}y")]
            reader = self._client(Scope(tuple(self._place / name for name in meant)))
            for key in good:
                reader.get_object(Bucket=self._bucket, Key=key)
        except Exception:
            return False
        return all(self._is_denied(reader.get_object, Bucket=self._bucket, Key=key) for key in bad)

    def _key(self, name: str) -> str:
        return f"{self._place.key}/{name}"

    def _put(self, name: str) -> str:
        key = self._key(name)
        self.made.append(key)
        self.store.put_object(Bucket=self._bucket, Key=key, Body=b"mergus")
        return key

    def _client(self, scope: Scope) -> Any:  # noqa: ANN401
        keys = self._assume(session_policy(scope, self._known))
        secret, token = keys.secret_access_key.get_secret_value(), keys.session_token.get_secret_value()
        return aws.s3_client(self._settings, self._session, (keys.access_key_id, secret, token))

    def _denied(self, what: str, request: Callable[..., Any], **arguments: object) -> None:
        if not self._is_denied(request, **arguments):
            raise _Refuted(f"{what} was not denied")

    def _is_denied(self, request: Callable[..., Any], **arguments: object) -> bool:
        key = arguments.get("Key")
        if isinstance(key, str) and key not in self.made:
            self.made.append(key)
        try:
            request(**arguments)
        except Exception as e:
            return aws.status_of(e) == _DENIED
        return False


def _partition(role_arn: str) -> str:
    """AWS's clouds apart from the rest (China, GovCloud) have ARNs of their own."""
    return role_arn.split(":")[1] if role_arn.startswith("arn:aws") else "aws"
