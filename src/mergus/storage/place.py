"""Making the place where a new lake goes: a bucket, for which the object API has no word, or a directory."""

from pathlib import Path
from typing import Any, cast

from mergus.config import Settings
from mergus.errors import SetupError
from mergus.storage.location import Location


def ensure_place(location: Location, settings: Settings) -> bool:
    """Creates what is missing; whether it did."""
    if location.scheme == "s3":
        return ensure_bucket(location.bucket, settings)
    directory = Path(f"/{location.key}")
    if directory.is_dir():
        return False
    directory.mkdir(parents=True)
    return True


def ensure_bucket(name: str, settings: Settings) -> bool:
    """Creates the bucket unless it is there; whether it did."""
    import boto3  # pyright: ignore[reportMissingTypeStubs]
    from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]
    from botocore.exceptions import BotoCoreError, ClientError  # pyright: ignore[reportMissingTypeStubs]

    secret = settings.s3_secret_access_key
    token = settings.s3_session_token
    s3 = cast(Any, boto3).client(
        "s3",
        endpoint_url=settings.s3_endpoint,
        region_name=settings.s3_region,
        aws_access_key_id=settings.s3_access_key_id,
        aws_secret_access_key=secret.get_secret_value() if secret else None,
        aws_session_token=token.get_secret_value() if token else None,
        config=Config(
            s3={"addressing_style": "path" if settings.path_style else "auto"},
            retries={"max_attempts": 3},
            connect_timeout=5,
        ),
    )
    try:
        s3.head_bucket(Bucket=name)
    except ClientError as e:
        status = cast(Any, e).response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status != 404:
            raise SetupError(f"bucket {name!r} cannot be used: {e}") from e
    except BotoCoreError as e:
        raise SetupError(f"the S3 store does not answer: {e}") from e
    else:
        return False
    constraint = (
        {}
        if settings.s3_region == "us-east-1"
        else {"CreateBucketConfiguration": {"LocationConstraint": settings.s3_region}}
    )
    try:
        s3.create_bucket(Bucket=name, **constraint)
    except (ClientError, BotoCoreError) as e:
        raise SetupError(f"bucket {name!r} is missing and cannot be created: {e}") from e
    return True
