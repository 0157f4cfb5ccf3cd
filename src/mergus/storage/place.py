"""Making the place where a new lake goes: a bucket, for which the object API has no word, or a directory."""

from pathlib import Path

from mergus.config import Settings
from mergus.errors import SetupError
from mergus.storage import aws
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
    from botocore.exceptions import BotoCoreError, ClientError  # pyright: ignore[reportMissingTypeStubs]

    s3 = aws.s3_client(settings, aws.session(settings))
    try:
        s3.head_bucket(Bucket=name)
    except ClientError as e:
        if aws.status_of(e) != 404:
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
