"""Tables as a server shows them: loaded over HTTP, read by PyIceberg, held against DuckDB; and the objects behind."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, cast
from urllib.parse import quote

import boto3
import duckdb
import httpx
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table.snapshots import Snapshot

from mergus.config import Settings
from mergus.ducklake.session import identifier
from tests.support.lakes import TestLake
from tests.support.servers import Server

Metadata = dict[str, Any]


def url(server: Server, table: str = "t", schema: str = "main") -> str:
    return f"{server.path(*schema.split('.'))}/tables/{quote(table, safe='')}"


def get(server: Server, table: str = "t", schema: str = "main", **params: str | int) -> httpx.Response:
    return server.http.get(url(server, table, schema), params={k.replace("_", "-"): v for k, v in params.items()})


def load(server: Server, table: str = "t", schema: str = "main", **params: str | int) -> Metadata:
    answer = get(server, table, schema, **params)
    assert answer.status_code == 200, f"{answer.text}\n{server.log.read_text()[-3000:]}"
    return answer.json()["metadata"]


def ids(metadata: Metadata) -> list[int]:
    return [s["snapshot-id"] for s in metadata["snapshots"]]


def lake_ids(metadata: Metadata) -> list[int]:
    """DuckLake's: snapshots of Iceberg's clients have ids of their own."""
    return [int(s["summary"]["ducklake.snapshot-id"]) for s in metadata["snapshots"]]


def catalog(settings: Settings, server: Server) -> Catalog:
    return load_catalog("lake", type="rest", uri=server.uri, warehouse=settings.prefix, **s3_properties(settings))


def s3_properties(settings: Settings) -> dict[str, str]:
    secret = settings.s3_secret_access_key
    return {
        "s3.endpoint": settings.s3_endpoint or "",
        "s3.access-key-id": settings.s3_access_key_id or "",
        "s3.secret-access-key": secret.get_secret_value() if secret else "",
        "s3.region": settings.s3_region,
    }


def rows(found: Any) -> list[tuple[Any, ...]]:
    """Of an Arrow table."""
    return in_order(tuple(row.values()) for row in found.to_pylist())


def in_order(found: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(found, key=repr)


def assert_readable(
    lake: TestLake,
    server: Server,
    db: duckdb.DuckDBPyConnection,
    table: str = "t",
    schema: str = "main",
    most: int = 1000,
) -> list[int]:
    """PyIceberg reads at every listed snapshot (or at so many, spread), and now, what DuckDB reads.

    Gives the listed ones, by DuckLake's ids.
    """
    loaded = catalog(lake.settings, server).load_table((schema, table))
    name = f"{identifier(schema)}.{identifier(table)}"
    listed = {lake_id(s): s.snapshot_id for s in loaded.metadata.snapshots}
    for at in list(listed)[:: -(-len(listed) // most) or 1]:
        wanted = in_order(db.execute(f"SELECT * FROM {name} AT (VERSION => {at})").fetchall())
        assert rows(loaded.scan(snapshot_id=listed[at]).to_arrow()) == wanted, f"at {at} of {list(listed)}"
    assert rows(loaded.scan().to_arrow()) == in_order(db.execute(f"SELECT * FROM {name}").fetchall())
    return list(listed)


def lake_id(snapshot: Snapshot) -> int:
    assert snapshot.summary is not None
    found = snapshot.summary["ducklake.snapshot-id"]
    assert found is not None
    return int(found)


@cache
def _s3_client(endpoint: str | None, region: str | None, access_key: str | None, secret_key: str | None) -> Any:
    """Shared by all that use the same keys: clients may be used by several threads, and each takes 16 ms to make."""
    return cast(Any, boto3).client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
    )


@dataclass
class Bucket:
    """The objects of a store, by their addresses."""

    settings: Settings

    def __post_init__(self) -> None:
        settings, secret = self.settings, self.settings.s3_secret_access_key
        key = secret.get_secret_value() if secret else None
        self._s3 = _s3_client(settings.s3_endpoint, settings.s3_region, settings.s3_access_key_id, key)

    def get(self, address: str) -> bytes:
        return self._s3.get_object(**self._named(address))["Body"].read()

    def has(self, address: str) -> bool:
        with suppress(self._s3.exceptions.ClientError):
            self._s3.head_object(**self._named(address))
            return True
        return False

    def put(self, address: str, content: bytes) -> None:
        self._s3.put_object(**self._named(address), Body=content)

    def delete(self, address: str) -> None:
        self._s3.delete_object(**self._named(address))

    def cut(self, address: str) -> None:
        """Leaves the first half."""
        content = self.get(address)
        self.put(address, content[: len(content) // 2])

    def below(self, address: str) -> list[str]:
        named = self._named(address)
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=named["Bucket"], Prefix=named["Key"])
        return [f"s3://{named['Bucket']}/{found['Key']}" for page in pages for found in page.get("Contents", [])]

    def _named(self, address: str) -> dict[str, str]:
        bucket, _, key = address.removeprefix("s3://").partition("/")
        return {"Bucket": bucket, "Key": key}
