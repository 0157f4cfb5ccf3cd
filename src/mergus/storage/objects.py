"""Reading and writing whole objects, the same way on S3 and on a local disk."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore, S3Store

from mergus.config import Settings
from mergus.storage.location import Location

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config


class Objects:
    """Objects by Location. One client per bucket, made when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stores: dict[tuple[str, str], S3Store | LocalStore] = {}

    async def get(self, location: Location) -> bytes | None:
        try:
            answer = await obstore.get_async(self._store(location), location.key)
            return bytes(await answer.bytes_async())
        except FileNotFoundError:
            return None

    async def put(self, location: Location, content: bytes) -> None:
        await obstore.put_async(self._store(location), location.key, content)

    async def put_new(self, location: Location, content: bytes) -> bool:
        """Writes unless there is one already (a conditional PUT); whether it wrote."""
        try:
            await obstore.put_async(self._store(location), location.key, content, mode="create")
        except AlreadyExistsError:
            return False
        return True

    async def delete(self, location: Location) -> None:
        try:
            await obstore.delete_async(self._store(location), location.key)
        except FileNotFoundError:
            return

    async def reachable(self, location: Location) -> None:
        """Raises unless the store answers for this place; one small request, and nothing is written."""
        await self.get(location / f".mergus-probe-{uuid4()}")

    def _store(self, location: Location) -> S3Store | LocalStore:
        root = (location.scheme, location.bucket)
        if root not in self._stores:
            self._stores[root] = self._open(location)
        return self._stores[root]

    def _open(self, location: Location) -> S3Store | LocalStore:
        if location.scheme == "file":
            return LocalStore("/", mkdir=False)
        return _open_s3(location.bucket, self._settings)


def _open_s3(bucket: str, settings: Settings) -> S3Store:
    config: S3Config = {
        "region": settings.s3_region,
        "virtual_hosted_style_request": not settings.path_style,
        "conditional_put": "etag",
    }
    client: ClientConfig = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=3)}
    if settings.s3_endpoint is not None:
        config["endpoint"] = settings.s3_endpoint
        client["allow_http"] = settings.s3_endpoint.startswith("http://")
    provider: Any = None
    if settings.s3_access_key_id is not None and settings.s3_secret_access_key is not None:
        config["access_key_id"] = settings.s3_access_key_id
        config["secret_access_key"] = settings.s3_secret_access_key.get_secret_value()
        if settings.s3_session_token is not None:
            config["session_token"] = settings.s3_session_token.get_secret_value()
    else:
        from obstore.auth.boto3 import Boto3CredentialProvider

        provider = Boto3CredentialProvider()
    return S3Store(
        bucket,
        config=config,
        client_options=client,
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=20)},
        credential_provider=provider,
    )
