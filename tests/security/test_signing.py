"""Requests that the server signs, sent to the real store by clients without keys."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from pyiceberg.io.fsspec import S3V4RestSigner

from tests.support import lakes, servers, vended
from tests.support.lakes import TestLake
from tests.support.servers import Server, error_of
from tests.support.vended import DENIED, at, status

ASK = {"X-Iceberg-Access-Delegation": "remote-signing"}

Signed = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    with lakes.lake(remote_signing=True) as made:
        with made.duckdb() as db:
            for table in ("t", "t2"):
                db.execute(f"CREATE TABLE main.{table} AS SELECT range AS i FROM range(100)")
        yield made


def location(server: Server, table: str = "t") -> str:
    return server.http.get(f"{server.path('main')}/tables/{table}").json()["metadata"]["location"]


def file_of(lake: TestLake, table: str) -> str:
    query = """SELECT m.value || s.path || t.path || f.path
               FROM ducklake_data_file f JOIN ducklake_table t USING (table_id)
               JOIN ducklake_schema s USING (schema_id), ducklake_metadata m
               WHERE m.key = 'data_path' AND t.table_name = %s AND t.end_snapshot IS NULL"""
    return lake.sql(query, table)[0][0]


@pytest.fixture(scope="module")
def ask(lake: TestLake, server: Server) -> Signed:
    """The answer to a request to sign."""

    def sign(method: str, target: str, table: str = "t", prefix: str = "lake", **headers: str) -> httpx.Response:
        uri = target.replace("s3://", f"{lake.settings.s3_endpoint}/")
        given = {name.replace("_", "-"): [value] for name, value in headers.items()}
        body = {"region": lake.settings.s3_region, "uri": uri, "method": method, "headers": given, "provider": "s3"}
        return server.http.post(f"/v1/{prefix}/namespaces/main/tables/{table}/sign", json=body)

    return sign


def send(
    method: str, signed: httpx.Response, content: bytes = b"", headers: Mapping[str, str] | None = None
) -> httpx.Response:
    assert signed.status_code == 200, signed.text
    answer = signed.json()
    given = {name: ", ".join(values) for name, values in answer["headers"].items()}
    return httpx.request(method, answer["uri"], headers={**given, **(headers or {})}, content=content or None)


def test_a_client_that_asks_for_remote_signing_gets_the_signer_endpoint_and_no_keys(server: Server) -> None:
    answer = server.http.get(f"{server.path('main')}/tables/t", headers=ASK).json()
    assert answer["config"]["s3.remote-signing-enabled"] == "true"
    assert answer["config"]["signer.endpoint"] == "v1/lake/namespaces/main/tables/t/sign"
    assert answer["storage-credentials"] == []
    assert not [key for key in answer["config"] if "secret" in key or "access-key" in key or "token" in key]


def test_reads_of_the_files_of_a_table_are_signed(lake: TestLake, ask: Signed) -> None:
    signed = ask("GET", file_of(lake, "t"))
    assert signed.headers["cache-control"] == "private"
    assert send("GET", signed).content[:4] == b"PAR1"
    # what may be used again is used for other parts
    part = send("GET", signed, headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, b"PAR1")


def test_writes_to_the_location_of_a_table_are_signed(server: Server, ask: Signed) -> None:
    target = f"{location(server)}/data/a b=c%2Fd.parquet"
    spelled = target.replace("%", "%25").replace(" ", "%20")
    signed = ask("PUT", spelled)
    assert signed.headers["cache-control"] == "no-store"
    assert send("PUT", signed, b"hello").status_code == 200
    assert send("GET", ask("GET", spelled)).content == b"hello"
    assert send("HEAD", ask("HEAD", f"{location(server)}/data/missing")).status_code == 404


def test_requests_for_files_of_other_tables_are_not_signed(lake: TestLake, server: Server, ask: Signed) -> None:
    for target in (file_of(lake, "t2"), f"{location(server, 't2')}/data/x"):
        for method in ("GET", "HEAD", "PUT"):
            assert error_of(ask(method, target)) == (403, "ForbiddenException")
    for way in ("..", "%2e%2e", "%252e%252e"):
        name = location(server, "t2").rpartition("/")[2]
        assert ask("GET", f"{location(server)}/{way}/{name}/metadata/x").status_code == 400


def test_writes_to_the_ducklake_directory_and_deletes_are_not_signed(
    lake: TestLake, server: Server, ask: Signed
) -> None:
    for method, target in (
        ("PUT", file_of(lake, "t")),
        ("DELETE", file_of(lake, "t")),
        ("DELETE", f"{location(server)}/data/x"),
        ("POST", "s3://mergus?delete"),
    ):
        assert error_of(ask(method, target)) == (403, "ForbiddenException")


def test_a_signature_cannot_be_used_for_another_request(lake: TestLake, server: Server, ask: Signed) -> None:
    target = f"{location(server)}/data/copy.parquet"
    source = "/" + file_of(lake, "t2").removeprefix("s3://")
    assert error_of(ask("PUT", target, x_amz_copy_source=source)) == (403, "ForbiddenException")
    assert send("PUT", ask("PUT", target), headers={"x-amz-copy-source": source}).status_code == DENIED
    assert send("GET", ask("GET", target)).status_code == 404
    signed = ask("GET", file_of(lake, "t"))
    assert send("PUT", signed, b"x").status_code == DENIED
    assert send("DELETE", signed).status_code == DENIED


def test_only_reads_are_signed_for_a_past_snapshot(lake: TestLake, server: Server, ask: Signed) -> None:
    ((head,),) = lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")
    then = f"lake@{head}"
    assert send("GET", ask("GET", file_of(lake, "t"), prefix=then)).status_code == 200
    assert error_of(ask("PUT", f"{location(server)}/data/y", prefix=then)) == (403, "ForbiddenException")


def test_listings_are_signed_for_the_directories_of_the_table_only(lake: TestLake, server: Server, ask: Signed) -> None:
    def listing(place: str) -> str:
        return f"s3://mergus?list-type=2&prefix={at(place)['Key']}"

    own = send("GET", ask("GET", listing(f"{location(server)}/")))
    assert own.status_code == 200
    assert "metadata.json" in own.text
    for other in (f"{location(server, 't2')}/", location(server), location(server).rpartition("/")[0] + "/"):
        assert error_of(ask("GET", listing(other))) == (403, "ForbiddenException")


def test_pyicebergs_signer_reads_and_writes_without_keys(
    lake: TestLake, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a client that has no keys at all, for whole objects and for those in parts."""
    vended.without_keys(monkeypatch)
    config = server.http.get(f"{server.path('main')}/tables/t", headers=ASK).json()["config"]
    s3: Any = boto3.client(
        "s3",
        endpoint_url=config["s3.endpoint"],
        region_name=config["s3.region"],
        config=Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )
    s3.meta.events.register("before-sign.s3", S3V4RestSigner({**config, "uri": server.uri}))
    assert s3.get_object(**at(file_of(lake, "t")))["Body"].read(4) == b"PAR1"
    target = at(f"{location(server)}/data/in parts.parquet")
    assert status(s3.put_object, **target, Body=b"whole") == 200
    upload = s3.create_multipart_upload(**target)["UploadId"]
    tag = s3.upload_part(**target, UploadId=upload, PartNumber=1, Body=b"part")["ETag"]
    done = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    assert status(s3.complete_multipart_upload, **target, UploadId=upload, MultipartUpload=done) == 200
    assert s3.get_object(**target)["Body"].read() == b"part"


def test_nothing_is_signed_if_remote_signing_is_off(lake: TestLake, tmp_path: Path) -> None:
    with servers.server(lake.settings, tmp_path, remote_signing=False) as other:
        body = {"region": "us-east-1", "uri": "http://x/y/z", "method": "GET", "headers": {}}
        answer = other.http.post(f"{other.path('main')}/tables/t/sign", json=body)
        assert error_of(answer) == (403, "ForbiddenException")
        assert other.http.get(f"{other.path('main')}/tables/t", headers=ASK).json()["config"] == {}
