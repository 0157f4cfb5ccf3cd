"""Geometries, which of the three readers only DuckDB's iceberg extension has."""

import duckdb

from mergus.ducklake.session import literal, s3_secret, with_extensions
from tests.support.lakes import TestLake
from tests.support.servers import Server


def test_duckdbs_iceberg_extension_reads_geometries_as_written(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA places; CREATE TABLE places.t(i INTEGER, g GEOMETRY)")
    db.execute("INSERT INTO places.t SELECT range, ('POINT(' || range || ' 2)')::GEOMETRY FROM range(20)")
    db.execute("INSERT INTO places.t VALUES (20, NULL)")
    client = with_extensions("httpfs", "avro", "iceberg")
    client.execute(s3_secret(lake.settings))
    client.execute(f"ATTACH 'lake' AS ice (TYPE iceberg, ENDPOINT {literal(server.uri)}, AUTHORIZATION_TYPE 'none')")
    query = "SELECT i, g::VARCHAR FROM {}.places.t ORDER BY i"
    assert client.execute(query.format("ice")).fetchall() == db.execute(query.format("lake")).fetchall()
    assert server.http.get(f"{server.path('places')}/tables/t").json()["metadata"]["format-version"] == 3
