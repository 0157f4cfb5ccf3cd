"""DuckDB's iceberg extension as a client of the server, beside DuckDB's ducklake extension on the lake itself."""

import duckdb

from mergus.ducklake import session
from tests.support.lakes import schemas
from tests.support.servers import Server


def test_duckdbs_iceberg_and_ducklake_extensions_see_each_others_schemas(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    client = session.with_extensions("httpfs", "avro", "iceberg")
    client.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{server.uri}', AUTHORIZATION_TYPE 'none')")
    db.execute("CREATE SCHEMA by_ducklake")
    assert {"main", "by_ducklake"} <= schemas(client)
    client.execute("CREATE SCHEMA lake.by_iceberg")
    assert "by_iceberg" in schemas(db)
    client.execute("DROP SCHEMA lake.by_iceberg")
    assert "by_iceberg" not in schemas(db)
