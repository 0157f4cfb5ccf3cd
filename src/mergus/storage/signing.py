"""Requests to the S3 store that clients make and the server signs with its own keys: what one means, and its signature.

What must hold: what is signed is what was looked at. The key of the object is decoded once, must be in normal form, and
is spelled anew; nothing of the client's address goes into the signed one but bucket, key and known parameters. Only
what reading and writing whole objects needs is understood: no deleting, no copying, no rights, no versions.

A signature covers the host, the time and all `x-amz-` headers. A store must refuse a request with others that were
added later, or a client could turn a signed PUT into a copy of somebody else's object: that is shown in a scratch
directory before anything is signed for anybody.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from mergus.config import Settings
from mergus.errors import BadRequest, Forbidden
from mergus.logs import log
from mergus.storage import aws
from mergus.storage.location import Location
from mergus.storage.proof import Proof, Prover, cleared, scratch_below

Headers = Mapping[str, Sequence[str]]
Access = Literal["read", "list", "write"]

# Parameters by which S3 tells operations apart. What a library says of itself (x-id) is dropped.
_OPERATIONS: Final[dict[tuple[str, frozenset[str]], Access]] = {
    ("GET", frozenset()): "read",
    ("HEAD", frozenset()): "read",
    ("PUT", frozenset()): "write",
    ("PUT", frozenset({"partNumber", "uploadId"})): "write",
    ("POST", frozenset({"uploads"})): "write",
    ("POST", frozenset({"uploadId"})): "write",
    # aborts an upload; one without this would delete
    ("DELETE", frozenset({"uploadId"})): "write",
}
_LISTING: Final = frozenset(
    {
        "list-type",
        "prefix",
        "delimiter",
        "max-keys",
        "encoding-type",
        "continuation-token",
        "start-after",
        "fetch-owner",
    }
)
_DROPPED: Final = frozenset({"x-id"})

_HASH: Final = "x-amz-content-sha256"
_HASHES: Final = re.compile(r"[0-9a-f]{64}|UNSIGNED-PAYLOAD|STREAMING-UNSIGNED-PAYLOAD-TRAILER")
# Checksums of what is written or read, and what says that there are some (`te` is what Java asks for with each GET).
_SIGNED: Final = re.compile(
    r"x-amz-(checksum-[a-z0-9-]+|sdk-checksum-algorithm|te|trailer|decoded-content-length|content-sha256)"
)
# The signature's own, which are made anew.
_REPLACED: Final = frozenset({"x-amz-date", "x-amz-security-token"})


@dataclass(frozen=True, slots=True)
class Meant:
    """A request as it will be signed. The place of a listing is the directory that its prefix begins with."""

    access: Access
    place: Location
    url: str
    method: str
    headers: Mapping[str, str]


def understand(settings: Settings, method: str, uri: str, headers: Headers) -> Meant:
    """Raises BadRequest for what is no request to the store, and Forbidden for one that is not signed for anybody."""
    bucket, key, base, query = _target(settings, uri)
    if len({name for name, _ in query}) != len(query):
        raise BadRequest("A parameter of the request to sign is there twice")
    parameters = {name: value for name, value in query if name not in _DROPPED}
    if not key:
        access: Access = "list"
        place = _listed(bucket, method, parameters)
    else:
        found = _OPERATIONS.get((method, frozenset(parameters)))
        if found is None:
            raise Forbidden(f"A {method} with parameters {sorted(parameters)} is not signed")
        access, place = found, _object(bucket, key)
    spelled = quote(key, safe="-_.~/")
    if unquote(spelled) != key:
        raise BadRequest("The path of the request to sign has no proper spelling")
    asked = "&".join(f"{quote(n, safe='-_.~')}={quote(v, safe='-_.~')}" for n, v in sorted(parameters.items()))
    url = f"{base}{spelled}" + (f"?{asked}" if asked else "")
    return Meant(access, place, url, method, _headers(headers))


def _target(settings: Settings, uri: str) -> tuple[str, str, str, list[tuple[str, str]]]:
    """Bucket, key, the address without the key, and the parameters."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise BadRequest("The address of the request to sign cannot be read") from None
    if parts.username is not None or parts.password is not None or parts.fragment or parts.hostname is None:
        raise BadRequest("The address of the request to sign is not that of an object")
    try:
        path = unquote(parts.path, errors="strict")
        query = parse_qsl(parts.query, keep_blank_values=True, errors="strict")
    except ValueError:
        raise BadRequest("The address of the request to sign cannot be decoded") from None
    bucket, style = _bucket(settings, parts.scheme, parts.hostname, port)
    host = f"{parts.scheme}://{parts.hostname}" + ("" if port is None else f":{port}")
    key = path.removeprefix("/")
    if style == "path":
        bucket, _, key = key.partition("/")
        host += f"/{bucket}"
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
        raise BadRequest("The address of the request to sign names no bucket")
    return bucket, key, f"{host}/", query


def _bucket(settings: Settings, scheme: str, host: str, port: int | None) -> tuple[str, Literal["path", "host"]]:
    """As the host names it; empty if the path does. Raises Forbidden for a host that is not the store."""
    if settings.s3_endpoint is not None:
        store = urlsplit(settings.s3_endpoint)
        if (scheme, port) == (store.scheme, store.port):
            if host == store.hostname:
                return "", "path"
            if store.hostname and host.endswith(f".{store.hostname}"):
                return host.removesuffix(f".{store.hostname}"), "host"
    elif scheme == "https" and port in (None, 443):
        region = re.escape(settings.s3_region)
        aws_host = rf"s3(?:\.dualstack)?(?:[.-]{region})?\.amazonaws\.com(?:\.cn)?"
        if re.fullmatch(aws_host, host):
            return "", "path"
        if (found := re.fullmatch(rf"(.+)\.{aws_host}", host)) is not None:
            return found[1], "host"
    raise Forbidden("The request to sign is not for the S3 store of this lake")


def _object(bucket: str, key: str) -> Location:
    try:
        place = Location.parse(f"s3://{bucket}/{key}")
    except ValueError:
        raise BadRequest("The request to sign is for a key that is not in normal form") from None
    # one who decodes twice must not find a way up, either
    if key.endswith("/") or {".", ".."} & set(unquote(key).split("/")):
        raise BadRequest("The request to sign is for a key that is not in normal form")
    return place


def _listed(bucket: str, method: str, parameters: Mapping[str, str]) -> Location:
    """The directory that is listed, or in which names with a certain beginning are."""
    prefix = parameters.get("prefix", "")
    if method != "GET" or not parameters.keys() <= _LISTING or parameters.get("list-type") != "2" or not prefix:
        raise Forbidden("Of requests for a whole bucket, only listing a prefix is signed")
    directory, _, rest = prefix.rpartition("/")
    try:
        place = Location.parse(f"s3://{bucket}/{directory}")
    except ValueError:
        raise BadRequest("The request to sign is for a prefix that is not in normal form") from None
    if "\0" in rest or not place.parts:
        raise Forbidden("Only listing the files of a table is signed")
    return place


def _headers(headers: Headers) -> dict[str, str]:
    """Those that the signature covers. Others are the client's to send or not."""
    found: dict[str, str] = {}
    for name, values in headers.items():
        low = name.lower()
        if not low.startswith("x-amz-") or low in _REPLACED:
            continue
        if not _SIGNED.fullmatch(low):
            raise Forbidden(f"A request with the header {low} is not signed")
        if len(values) != 1 or low in found or not values[0].isascii() or not values[0].isprintable():
            raise BadRequest(f"The header {low} must have one plain value")
        found[low] = values[0]
    if not _HASHES.fullmatch(found.setdefault(_HASH, "UNSIGNED-PAYLOAD")):
        raise Forbidden(f"A request with {_HASH}: {found[_HASH][:64]} is not signed")
    return found


class Signing:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: Any = None
        self._prover = Prover(self._prove)

    async def sign(self, meant: Meant) -> dict[str, list[str]]:
        """The headers that the request has to have beside its own."""
        return await asyncio.to_thread(self._sign, meant)

    async def proof(self, root: Location) -> Proof:
        """Whether requests are signed, and why or why not."""
        if not self._settings.remote_signing:
            return Proof("off", "not asked for (MERGUS_REMOTE_SIGNING)")
        if root.scheme != "s3":
            return Proof("off", "the lake is not on S3")
        return await self._prover(root)

    def _sign(self, meant: Meant) -> dict[str, list[str]]:
        from botocore.awsrequest import AWSRequest  # pyright: ignore[reportMissingTypeStubs]

        if self._session is None:
            self._session = aws.session(self._settings)
        keys = self._session.get_credentials()
        if keys is None:
            raise RuntimeError("there are no keys to sign with")
        request = cast(Any, AWSRequest)(method=meant.method, url=meant.url, headers=dict(meant.headers))
        request.context[_HASH] = meant.headers[_HASH]
        _signer()(keys.get_frozen_credentials(), "s3", self._settings.s3_region).add_auth(request)
        return {str(name): [str(value)] for name, value in request.headers.items()}

    def _prove(self, root: Location) -> Proof:
        store = aws.s3_client(self._settings, aws.session(self._settings))
        scratch = scratch_below(root)
        secret, target = scratch / "secret", scratch / "target"
        try:
            with cleared(store, root.bucket, (secret.key, target.key)):
                store.put_object(Bucket=root.bucket, Key=secret.key, Body=b"mergus")
                added = self._sent(target, {"x-amz-copy-source": f"/{root.bucket}/{secret.key}"})
                plain = self._sent(target, {})
        except Exception as e:
            log.warning("no requests are signed: %s", aws.code_of(e))
            return Proof("failed", f"it could not be shown that the store checks signatures: {aws.code_of(e)}")
        if plain != 200:
            return Proof("refuted", f"the store answers {plain} to a request that was signed")
        if added < 400:
            return Proof("refuted", "the store takes headers that were added after a request was signed")
        return Proof("proven", "the store takes signed requests, and only as they were signed")

    def _sent(self, place: Location, added: Mapping[str, str]) -> int:
        from botocore.awsrequest import AWSRequest  # pyright: ignore[reportMissingTypeStubs]
        from botocore.httpsession import URLLib3Session  # pyright: ignore[reportMissingTypeStubs]

        address = f"{self._base(place.bucket)}{quote(place.key, safe='-_.~/')}"
        meant = understand(self._settings, "PUT", address, {})
        headers = {name: values[0] for name, values in self._sign(meant).items()}
        request = cast(Any, AWSRequest)(method="PUT", url=meant.url, headers={**headers, **added}, data=b"")
        http = cast(Any, URLLib3Session)(timeout=(aws.CONNECT_SECONDS, aws.READ_SECONDS))
        return int(http.send(request.prepare()).status_code)

    def _base(self, bucket: str) -> str:
        if self._settings.s3_endpoint is None:
            return f"https://{bucket}.s3.{self._settings.s3_region}.amazonaws.com/"
        store = urlsplit(self._settings.s3_endpoint)
        if self._settings.path_style:
            return f"{store.scheme}://{store.netloc}/{bucket}/"
        return f"{store.scheme}://{bucket}.{store.netloc}/"


def _signer() -> Any:  # noqa: ANN401
    from botocore.auth import S3SigV4Auth  # pyright: ignore[reportMissingTypeStubs]

    base = cast(Any, S3SigV4Auth)

    class Signer(base):
        """Takes the hash of the content from the request, whose content it never sees."""

        def payload(self, request: Any) -> str:  # noqa: ANN401
            return request.context[_HASH]

    return Signer
