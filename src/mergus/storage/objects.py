"""Reading and writing whole objects, the same way on S3 and on a local disk."""

import asyncio
import io
import os
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, S3Store

from mergus import tracing
from mergus.config import Settings
from mergus.errors import ServiceUnavailable
from mergus.metrics import OBJECT_BYTES, OBJECT_FAILURES, OBJECT_REQUESTS, WORK
from mergus.storage.location import Location
from mergus.tracing import NOTHING, Span

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from obstore import ObjectMeta, ReadableFile
    from obstore.store import ClientConfig, S3Config, S3Credential, S3CredentialProvider

LIST_AT_ONCE: Final = 1000
# typed with a library that is not there
_list: Any = obstore.list  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


# As S3 calls what we count.
_ACTIONS = {
    "get": "GetObject",
    "head": "HeadObject",
    "open": "HeadObject",
    "put": "PutObject",
    "delete": "DeleteObject",
    "list": "ListObjectsV2",
}
_SENT = "http.request.body.size"
_RECEIVED = "http.response.body.size"


@contextmanager
def _request(method: str, location: Location) -> Generator[Span]:
    """Counts and traces a request; what the store cannot do just now becomes a 503 that says so."""
    OBJECT_REQUESTS.labels(method).inc()
    with _span(method, location) if tracing.records() else NOTHING as span:
        try:
            yield span
        except BaseError as e:
            OBJECT_FAILURES.labels(method).inc()
            # the library's message may quote a whole request: it goes to the log, not to the asker
            raise ServiceUnavailable("The object store does not answer, or refuses") from e


def _span(method: str, location: Location) -> Span:
    """By OpenTelemetry's conventions for S3."""
    if location.scheme == "file":
        return tracing.child(f"file {method}", {"file.path": f"/{location.key}"}, is_call=False)
    action = _ACTIONS[method]
    about = {"rpc.system": "aws-api", "rpc.service": "S3", "rpc.method": action}
    return tracing.child(f"S3.{action}", {**about, "aws.s3.bucket": location.bucket, "aws.s3.key": location.key})


def _count(written: bytes) -> None:
    OBJECT_BYTES.labels("put").inc(len(written))
    WORK.objects += 1
    WORK.bytes += len(written)


class _Reader(io.RawIOBase):
    """The library's own is not quite a file to those who ask for one."""

    def __init__(self, file: "ReadableFile", location: Location) -> None:
        self._file = file
        self._location = location

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer)
        with _request("get", self._location) as span:
            data = bytes(self._file.read(len(view)))
            span.set(_RECEIVED, len(data))
        OBJECT_BYTES.labels("get").inc(len(data))
        view[: len(data)] = data
        return len(data)


@dataclass(frozen=True, slots=True)
class Listed:
    location: Location
    size: int
    modified: datetime


def _listed(directory: Location, meta: "ObjectMeta") -> Listed | None:
    try:
        location = Location.parse(
            f"{directory.root}/{meta['path']}" if directory.scheme == "s3" else f"/{meta['path']}"
        )
    except ValueError:
        return None
    # as it is, or not at all: another name is another object
    return Listed(location, meta["size"], meta["last_modified"]) if location.key == meta["path"] else None


class Objects:
    """Objects by Location. One client per bucket, made when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stores: dict[tuple[str, str], S3Store | LocalStore] = {}

    async def get(self, location: Location) -> bytes | None:
        with _request("get", location) as span:
            try:
                answer = await obstore.get_async(self._store(location), location.key)
                data = bytes(await answer.bytes_async())
                span.set(_RECEIVED, len(data))
            except FileNotFoundError:
                return None
        OBJECT_BYTES.labels("get").inc(len(data))
        return data

    async def get_bounded(self, location: Location, most: int) -> bytes | None:
        """The same; ValueError for an object of more bytes, of which no more than a beginning is read."""
        with _request("get", location) as span:
            try:
                answer = await obstore.get_async(self._store(location), location.key)
                size = answer.meta["size"]
                if size > most:
                    raise ValueError(f"{location} has {size} bytes, and {most} at most are read")
                data = bytes(await answer.bytes_async())
                span.set(_RECEIVED, len(data))
            except FileNotFoundError:
                return None
        OBJECT_BYTES.labels("get").inc(len(data))
        return data

    async def get_range(self, location: Location, offset: int, length: int) -> bytes | None:
        """A part of an object that is known to be as large: stores do not agree on what is beyond the end."""
        with _request("get", location) as span:
            try:
                data = bytes(
                    await obstore.get_range_async(self._store(location), location.key, start=offset, length=length)
                )
                span.set(_RECEIVED, len(data))
            except FileNotFoundError:
                return None
        OBJECT_BYTES.labels("get").inc(len(data))
        return data

    async def size(self, location: Location) -> int | None:
        """In bytes; None if there is none. Nothing of it is read."""
        with _request("head", location):
            try:
                return (await obstore.head_async(self._store(location), location.key))["size"]
            except FileNotFoundError:
                return None

    def open(self, location: Location) -> io.RawIOBase:
        """For reading parts of a large object. Blocks: call it, and what it returns, in a thread."""
        with _request("open", location):
            return _Reader(obstore.open_reader(self._store(location), location.key), location)

    async def put(self, location: Location, content: bytes) -> None:
        with _request("put", location) as span:
            span.set(_SENT, len(content))
            await obstore.put_async(self._store(location), location.key, content)
        _count(content)

    async def put_file(self, location: Location, file: Path) -> int:
        """A local file that may be too large for memory, in parts if it is; its size."""
        size = (await asyncio.to_thread(file.stat)).st_size
        with _request("put", location) as span:
            span.set(_SENT, size)
            await obstore.put_async(self._store(location), location.key, file)
        OBJECT_BYTES.labels("put").inc(size)
        return size

    async def put_new(self, location: Location, content: bytes) -> bool:
        """Writes unless there is one already (a conditional PUT); whether it wrote."""
        with _request("put", location) as span:
            span.set(_SENT, len(content))
            try:
                await obstore.put_async(self._store(location), location.key, content, mode="create")
            except AlreadyExistsError:
                return False
        _count(content)
        return True

    async def delete(self, location: Location) -> None:
        with _request("delete", location):
            try:
                await obstore.delete_async(self._store(location), location.key)
            except FileNotFoundError:
                return

    async def delete_all(self, locations: Sequence[Location]) -> None:
        """Of one store, a thousand to a request where it takes so many. What is not there is no matter."""
        if locations and locations[0].scheme != "file":
            keys = [location.key for location in locations]
            with suppress(ServiceUnavailable), _request("delete", locations[0]):
                await obstore.delete_async(self._store(locations[0]), keys)
                return
        # one by one where there are no such requests, or one of them did not do all
        for location in locations:
            await self.delete(location)

    async def list(self, directory: Location) -> AsyncGenerator[Sequence[Listed]]:
        """All that lies below, some at a time; what is not a Location is left out."""
        with _request("list", directory):
            async for chunk in _list(self._store(directory), directory.key, chunk_size=LIST_AT_ONCE):
                yield [found for meta in chunk if (found := _listed(directory, meta)) is not None]

    async def reachable(self, location: Location, *, may_be_new: bool = False) -> None:
        """Raises unless the store answers for this place; one small request, and nothing is written. A listing, since
        a GET in a bucket that is not there looks like a GET of an object that is not there. A directory that
        `may_be_new` is there, or can be made."""
        if location.scheme == "file":
            await asyncio.to_thread(_check_directory, Path(f"/{location.key}"), may_be_new)
        nothing = location / f".mergus-probe-{uuid4()}"
        await obstore.list_with_delimiter_async(self._store(location), nothing.key)  # pyright: ignore[reportUnknownMemberType]

    def _store(self, location: Location) -> S3Store | LocalStore:
        root = (location.scheme, location.bucket)
        if root not in self._stores:
            self._stores[root] = self._open(location)
        return self._stores[root]

    def _open(self, location: Location) -> S3Store | LocalStore:
        if location.scheme == "file":
            return LocalStore("/", mkdir=False)
        return _open_s3(location.bucket, self._settings)


def _check_directory(directory: Path, may_be_new: bool) -> None:
    if directory.is_dir():
        return
    if not may_be_new:
        raise FileNotFoundError(f"there is no directory {directory}")
    above = next(path for path in directory.parents if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(f"directory {directory} cannot be made in {above}")


def _open_s3(bucket: str, settings: Settings) -> S3Store:
    config: S3Config = {
        "region": settings.s3_region,
        "virtual_hosted_style_request": not settings.path_style,
        "conditional_put": "etag",
    }
    client: ClientConfig = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=3)}
    if settings.s3_endpoint is not None:
        # by this name, since the library lets AWS_ENDPOINT_URL_S3 in the environment win over `endpoint`
        config["aws_endpoint_url_s3"] = settings.s3_endpoint
        client["allow_http"] = settings.s3_endpoint.startswith("http://")
    return S3Store(
        bucket,
        config=config,
        client_options=client,
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=20)},
        credential_provider=_credentials(settings),
    )


def _credentials(settings: Settings) -> "S3CredentialProvider":
    """Always given: the library would otherwise mix ours with what it finds in the environment."""
    key, secret, token = settings.s3_access_key_id, settings.s3_secret_access_key, settings.s3_session_token
    if key is None or secret is None:
        from obstore.auth.boto3 import Boto3CredentialProvider

        return Boto3CredentialProvider()
    static: S3Credential = {
        "access_key_id": key,
        "secret_access_key": secret.get_secret_value(),
        "token": token.get_secret_value() if token else None,
        "expires_at": None,
    }
    return lambda: static
