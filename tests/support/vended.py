"""Keys that a server vends, and S3 clients that have nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from mergus.config import Settings
from mergus.embedded.seaweed import ROLE_ARN
from tests.support.servers import Server

ASK = {"X-Iceberg-Access-Delegation": "vended-credentials"}
DENIED = 403


def settings() -> dict[str, Any]:
    """Of a lake that vends keys, on the store of the suite."""
    return {"sts_role_arn": ROLE_ARN, "vended_seconds": 900}


def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the suite's environment, so that no library finds any."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


def load(server: Server, table: str, schema: str = "main", prefix: str = "lake", **headers: str) -> httpx.Response:
    answer = server.http.get(f"/v1/{prefix}/namespaces/{schema}/tables/{table}", headers={**ASK, **headers})
    assert answer.status_code == 200, f"{answer.text}\n{server.log.read_text()[-3000:]}"
    return answer


def keys_of(answer: httpx.Response) -> dict[str, str]:
    (entry,) = answer.json()["storage-credentials"]
    return entry["config"]


def client(config: Mapping[str, str]) -> Any:
    """With just what an answer says."""
    return boto3.client(
        "s3",
        endpoint_url=config["s3.endpoint"],
        region_name=config["client.region"],
        aws_access_key_id=config["s3.access-key-id"],
        aws_secret_access_key=config["s3.secret-access-key"],
        aws_session_token=config["s3.session-token"],
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )


def own_client(settings: Settings) -> Any:
    """The server's."""
    assert settings.s3_secret_access_key is not None
    return boto3.client(
        "s3",
        endpoint_url=settings.s3_endpoint,
        region_name=settings.s3_region,
        aws_access_key_id=settings.s3_access_key_id,
        aws_secret_access_key=settings.s3_secret_access_key.get_secret_value(),
        config=Config(s3={"addressing_style": "path"}),
    )


def at(location: str) -> dict[str, str]:
    """As boto3 names an object."""
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Key": key}


def status(request: Any, **arguments: object) -> int:
    """Of the answer to a request."""
    try:
        return request(**arguments)["ResponseMetadata"]["HTTPStatusCode"]
    except ClientError as e:
        return e.response["ResponseMetadata"]["HTTPStatusCode"]


def keys_below(settings: Settings, location: str) -> Sequence[str]:
    """Objects, whoever may see them."""
    place = at(location)
    pages = own_client(settings).get_paginator("list_objects_v2").paginate(Bucket=place["Bucket"], Prefix=place["Key"])
    return [found["Key"] for page in pages for found in page.get("Contents", [])]
