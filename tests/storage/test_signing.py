"""What a request to sign means, and which are not signed for anybody."""

import asyncio
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.config import Settings
from mergus.errors import BadRequest, Forbidden
from mergus.storage.location import Location
from mergus.storage.signing import Signing, understand
from tests.support.lakes import backend_settings

pytestmark = pytest.mark.integration

STORE = "http://127.0.0.1:8333"


def settings(**changes: Any) -> Settings:
    here = {"s3_endpoint": STORE, "s3_region": "eu-central-1", "s3_path_style": True}
    return backend_settings().model_copy(update={**here, **changes})


def meant(method: str, uri: str, headers: dict[str, list[str]] | None = None, **changes: Any) -> Any:
    return understand(settings(**changes), method, uri, headers or {})


@pytest.mark.parametrize(
    ("method", "query", "access"),
    [
        ("GET", "", "read"),
        ("HEAD", "", "read"),
        ("GET", "?x-id=GetObject", "read"),
        ("PUT", "", "write"),
        ("PUT", "?partNumber=3&uploadId=abc", "write"),
        ("POST", "?uploads", "write"),
        ("POST", "?uploads=", "write"),
        ("POST", "?uploadId=abc", "write"),
        ("DELETE", "?uploadId=abc", "write"),
    ],
)
def test_requests_that_read_or_write_an_object_are_understood(method: str, query: str, access: str) -> None:
    found = meant(method, f"{STORE}/bkt/a/b%20c.parquet{query}")
    assert (found.access, found.place) == (access, Location("s3", "bkt", ("a", "b c.parquet")))
    assert found.url.startswith(f"{STORE}/bkt/a/b%20c.parquet")
    assert "x-id" not in found.url


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("DELETE", ""),
        ("POST", ""),
        ("POST", "?delete"),
        ("POST", "?restore"),
        ("POST", "?select&select-type=2"),
        ("GET", "?acl"),
        ("PUT", "?acl"),
        ("GET", "?versionId=1"),
        ("DELETE", "?versionId=1"),
        ("DELETE", "?uploadId=1&versionId=2"),
        ("PUT", "?tagging"),
        ("GET", "?uploadId=1"),
        ("PUT", "?uploadId=1"),
        ("GET", "?response-content-type=text/html"),
        ("PATCH", ""),
        ("OPTIONS", ""),
        ("GET", "?X-Amz-Signature=1"),
    ],
)
def test_other_requests_on_objects_are_not_signed(method: str, query: str) -> None:
    with pytest.raises(Forbidden):
        meant(method, f"{STORE}/bkt/a/b{query}")


@pytest.mark.parametrize(
    "header",
    [
        *("x-amz-copy-source", "X-Amz-Copy-Source", "x-amz-copy-source-range", "x-amz-acl", "x-amz-grant-read"),
        *("x-amz-meta-x", "x-amz-tagging", "x-amz-website-redirect-location", "x-amz-storage-class"),
        *("x-amz-server-side-encryption-customer-key", "x-amz-object-lock-mode", "x-amz-rename-source"),
        "x-amz-bypass-governance-retention",
    ],
)
def test_headers_that_change_the_meaning_of_a_request_are_refused(header: str) -> None:
    with pytest.raises(Forbidden):
        meant("PUT", f"{STORE}/bkt/a/b", {header: ["x"]})


def test_only_checksum_headers_of_a_client_are_signed() -> None:
    given = {"Range": ["bytes=0-1"], "Content-Type": ["x"], "x-amz-checksum-crc32": ["AAAA"], "amz-sdk-request": ["1"]}
    dated = {"X-Amz-Date": ["20200101T000000Z"], "Authorization": ["mine"], "x-amz-security-token": ["mine"]}
    assert meant("PUT", f"{STORE}/bkt/a/b", {**given, **dated}).headers == {
        "x-amz-checksum-crc32": "AAAA",
        "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
    }
    with pytest.raises(Forbidden):
        meant("PUT", f"{STORE}/bkt/a/b", {"x-amz-content-sha256": ["STREAMING-AWS4-HMAC-SHA256-PAYLOAD"]})
    for values in ([], ["a", "b"], ["a\nb"], ["é"]):
        with pytest.raises(BadRequest):
            meant("PUT", f"{STORE}/bkt/a/b", {"x-amz-checksum-crc32": values})


@pytest.mark.parametrize(
    "uri",
    [
        "http://127.0.0.1:8334/bkt/a",
        "https://127.0.0.1:8333/bkt/a",
        "http://127.0.0.2:8333/bkt/a",
        "http://127.0.0.1.evil.example:8333/bkt/a",
        "http://evil.example/http://127.0.0.1:8333/bkt/a",
        "https://bkt.s3.eu-central-1.amazonaws.com/a",
    ],
)
def test_requests_to_other_hosts_are_not_signed(uri: str) -> None:
    with pytest.raises(Forbidden):
        meant("GET", uri)


@pytest.mark.parametrize(
    "path",
    [
        *("/bkt/a/../b", "/bkt/a/%2e%2e/b", "/bkt/a/%2E%2E%2Fb", "/bkt/a/./b", "/bkt//a", "/bkt/a//b", "/bkt/a/"),
        *("/bkt/a/%252e%252e/b", "/bkt/a/%252E%252e%252fb", "/bkt/a%00b", "/bkt/a%0Ab", "/bkt/%ff", "/BKT/a", "/%2e/a"),
        *("/b/a", "/bkt/a?uploadId=1&uploadId=2", "/bkt/a#x", "/bkt%2Fa%2F..%2Fb"),
    ],
)
def test_object_keys_that_are_not_in_normal_form_are_refused(path: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        with pytest.raises((BadRequest, Forbidden)):
            meant(method, f"{STORE}{path}")


def test_addresses_with_user_and_password_are_refused() -> None:
    for uri in ("http://u:p@127.0.0.1:8333/bkt/a", "http://127.0.0.1:8333@evil.example/bkt/a", "http://[::1/bkt/a"):
        with pytest.raises((BadRequest, Forbidden)):
            meant("GET", uri)


def test_object_names_that_look_percent_encoded_are_decoded_once() -> None:
    """Spark writes partition values so."""
    found = meant("GET", f"{STORE}/bkt/ts=12%253A00/x+y%2Bz.parquet")
    assert found.place.parts == ("ts=12%3A00", "x+y+z.parquet")
    assert found.url == f"{STORE}/bkt/ts%3D12%253A00/x%2By%2Bz.parquet"


@given(
    st.lists(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=6), min_size=1, max_size=4)
)
def test_the_signed_url_names_the_object_that_was_checked(parts: list[str]) -> None:
    try:
        found = meant("GET", f"{STORE}/bkt/{'/'.join(quote(p, safe='') for p in parts)}")
    except BadRequest:
        return
    assert unquote(urlsplit(found.url).path) == f"/bkt/{found.place.key}"
    assert found.place.key == "/".join(parts)


@pytest.mark.parametrize(
    ("uri", "bucket"),
    [
        ("https://bkt.s3.eu-central-1.amazonaws.com/a", "bkt"),
        ("https://s3.eu-central-1.amazonaws.com/bkt/a", "bkt"),
        ("https://my.bkt.s3.amazonaws.com/a", "my.bkt"),
    ],
)
def test_buckets_of_aws_are_in_the_host_or_in_the_path(uri: str, bucket: str) -> None:
    assert meant("GET", uri, s3_endpoint=None).place == Location("s3", bucket, ("a",))
    for other in (
        "https://bkt.s3.us-east-2.amazonaws.com/a",
        "http://bkt.s3.amazonaws.com/a",
        "https://bkt.evil.com/a",
    ):
        with pytest.raises(Forbidden):
            meant("GET", other, s3_endpoint=None)


def test_only_listings_of_a_directory_are_understood() -> None:
    for prefix, place in (("a%2Fb%2F", ("a", "b")), ("a/b/c", ("a", "b"))):
        found = meant("GET", f"{STORE}/bkt?list-type=2&prefix={prefix}&max-keys=5")
        assert (found.access, found.place.parts) == ("list", place)
    for query in (
        "",
        "?list-type=2",
        "?list-type=2&prefix=",
        "?prefix=a/",
        "?versions&prefix=a/",
        "?list-type=2&prefix=a",
    ):
        with pytest.raises(Forbidden):
            meant("GET", f"{STORE}/bkt{query}")
    for method in ("PUT", "DELETE", "HEAD", "POST"):
        with pytest.raises(Forbidden):
            meant(method, f"{STORE}/bkt?list-type=2&prefix=a/b/")


def test_a_signature_does_not_give_the_secret_away() -> None:
    own = backend_settings()
    assert own.s3_secret_access_key is not None
    found = understand(own, "GET", f"{own.s3_endpoint}/mergus/a/b", {})
    headers = asyncio.run(Signing(own).sign(found))
    assert own.s3_secret_access_key.get_secret_value() not in str(headers)
    assert {name.lower() for name in headers} == {"authorization", "x-amz-date", "x-amz-content-sha256"}
