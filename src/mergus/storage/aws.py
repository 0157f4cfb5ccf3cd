"""Clients of AWS's own library: for what the object API has no word for (buckets, STS), and for keys of others."""

from typing import Any, cast

from mergus.config import Settings

CONNECT_SECONDS = 3
READ_SECONDS = 10


def session(settings: Settings) -> Any:  # noqa: ANN401  (the library has no types)
    """With the keys of the settings, or whatever AWS's chain finds."""
    import boto3  # pyright: ignore[reportMissingTypeStubs]

    secret, token = settings.s3_secret_access_key, settings.s3_session_token
    return cast(Any, boto3).session.Session(
        aws_access_key_id=settings.s3_access_key_id,
        aws_secret_access_key=secret.get_secret_value() if secret else None,
        aws_session_token=token.get_secret_value() if token else None,
        region_name=settings.s3_region,
    )


def s3_client(settings: Settings, made_by: Any, keys: tuple[str, str, str] | None = None) -> Any:  # noqa: ANN401
    """With the session's keys, or with others: access key, secret and token."""
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    lent = dict(zip(names, keys, strict=True)) if keys else {}
    return made_by.client("s3", endpoint_url=settings.s3_endpoint, config=_config(settings), **lent)


def sts_client(settings: Settings, made_by: Any) -> Any:  # noqa: ANN401
    endpoint = settings.sts_endpoint or settings.s3_endpoint
    return made_by.client("sts", endpoint_url=endpoint, config=_config(settings))


def _config(settings: Settings) -> Any:  # noqa: ANN401
    from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]

    return cast(Any, Config)(
        s3={"addressing_style": "path" if settings.path_style else "auto"},
        retries={"max_attempts": 3},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        # the store knows what it takes; the library would refuse what only AWS does not
        parameter_validation=False,
    )


def status_of(error: Exception) -> int | None:
    """The HTTP status of an answer that was an error; None if there was no answer."""
    answer: dict[str, Any] = getattr(error, "response", None) or {}
    return answer.get("ResponseMetadata", {}).get("HTTPStatusCode")


def code_of(error: Exception) -> str:
    answer: dict[str, Any] = getattr(error, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", type(error).__name__))
