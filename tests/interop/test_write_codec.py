"""How files of Iceberg's clients are compressed."""

import duckdb

from tests.support import spark as sparks
from tests.support.lakes import TestLake
from tests.support.servers import Server


def codecs(db: duckdb.DuckDBPyConnection, name: str) -> list[tuple[str]]:
    listed = f"SELECT data_file FROM ducklake_list_files('lake', '{name}', schema => 'codec')"
    files = [row[0] for row in db.execute(listed).fetchall()]
    assert files
    return db.execute(f"SELECT DISTINCT compression FROM parquet_metadata({files})").fetchall()


def test_spark_writes_zstd_unless_the_table_sets_another_codec(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    """Whoever made the table: without a property, writers of Java take gzip."""
    spark, catalog = sparks.session(), sparks.catalog(lake.settings, server.uri)
    db.execute("CREATE SCHEMA codec; CREATE TABLE codec.of_duckdb(i BIGINT)")
    spark.sql(f"INSERT INTO {catalog}.codec.of_duckdb SELECT id FROM range(1000)")
    spark.sql(f"CREATE TABLE {catalog}.codec.of_spark AS SELECT id FROM range(1000)")
    spark.sql(
        f"CREATE TABLE {catalog}.codec.chosen TBLPROPERTIES ('write.parquet.compression-codec' = 'snappy') "
        "AS SELECT id FROM range(1000)"
    )
    found = {name: codecs(db, name) for name in ("of_duckdb", "of_spark", "chosen")}
    assert found == {"of_duckdb": [("ZSTD",)], "of_spark": [("ZSTD",)], "chosen": [("SNAPPY",)]}
