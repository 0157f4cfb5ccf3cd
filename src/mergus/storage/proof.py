"""Whether a store enforces session policies: shown with objects of our own, before anybody gets keys.

A store may hand out keys with a policy and enforce none of it. So keys are made for one scratch directory and used on
it and on its neighbour. Everything that is to be denied must be answered 403, and what is allowed must work, or keys
would be vended that are no good. What else policies rely on is only noted: whether the store understands `${*}`, and
whether it tells apart names that differ in case.
"""

from collections.abc import Callable, Generator
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


@dataclass(frozen=True, slots=True)
class Proof:
    """`off`: nobody asked for it. `failed`: it could not be found out."""

    outcome: Literal["off", "proven", "refuted", "failed"]
    reason: str
    terms: Terms = field(default_factory=Terms)

    @property
    def is_proven(self) -> bool:
        return self.outcome == "proven"


class _Refuted(Exception):
    pass


def prove(settings: Settings, root: Location, assume: "Assume") -> Proof:
    """Blocks: call it in a thread."""
    try:
        scratch = _Scratch(settings, root / f".mergus-probe-{uuid4()}", assume)
        with scratch.cleared():
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
        self._store = aws.s3_client(settings, self._session)
        self._place = place
        self._assume = assume
        self._bucket = place.bucket
        self._made: list[str] = []
        # nothing of the place's own name may stand in the way of finding out
        self._known = Terms(_partition(settings.sts_role_arn or ""), escapes=True, ignores_case=False)

    @contextmanager
    def cleared(self) -> Generator[None]:
        try:
            yield
        finally:
            for key in self._made:
                try:
                    self._store.delete_object(Bucket=self._bucket, Key=key)
                except Exception as e:
                    log.warning("a probe object stays behind: %s: %s", key, aws.code_of(e))

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
        """With what is only noted: at worst some names are not vended for."""
        found = self._put("t/in")
        reader = self._client(Scope((self._place / "T",)))
        ignores_case = not self._is_denied(reader.get_object, Bucket=self._bucket, Key=found)
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
        self._made.append(key)
        self._store.put_object(Bucket=self._bucket, Key=key, Body=b"mergus")
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
        if isinstance(key, str) and key not in self._made:
            self._made.append(key)
        try:
            request(**arguments)
        except Exception as e:
            return aws.status_of(e) == _DENIED
        return False


def _partition(role_arn: str) -> str:
    """AWS's clouds apart from the rest (China, GovCloud) have ARNs of their own."""
    return role_arn.split(":")[1] if role_arn.startswith("arn:aws") else "aws"
