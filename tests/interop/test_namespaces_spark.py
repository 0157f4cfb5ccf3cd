"""Spark SQL on namespaces, beside an attached DuckDB session."""

import duckdb
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.support import spark as sparks
from tests.support.lakes import TestLake, schemas
from tests.support.servers import Server


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return sparks.session()


@pytest.fixture(scope="module")
def lake_name(server: Server, lake: TestLake) -> str:
    return sparks.catalog(lake.settings, server.uri)


def shown(spark: SparkSession, where: str) -> set[str]:
    return {row[0] for row in spark.sql(f"SHOW NAMESPACES IN {where}").collect()}


def test_spark_and_duckdb_see_each_others_namespaces(
    spark: SparkSession, lake_name: str, db: duckdb.DuckDBPyConnection
) -> None:
    spark.sql(f"CREATE NAMESPACE {lake_name}.from_spark COMMENT 'made by Spark' WITH DBPROPERTIES ('k' = 'v')")
    assert "from_spark" in schemas(db)
    db.execute("CREATE SCHEMA from_duckdb")
    assert {"main", "from_spark", "from_duckdb"} <= shown(spark, lake_name)
    spark.sql(f"DROP NAMESPACE {lake_name}.from_spark")
    assert "from_spark" not in schemas(db)
    db.execute("DROP SCHEMA from_duckdb")
    assert not {"from_spark", "from_duckdb"} & shown(spark, lake_name)


def test_spark_describes_and_alters_a_namespace(spark: SparkSession, lake_name: str, lake: TestLake) -> None:
    spark.sql(f"CREATE NAMESPACE {lake_name}.described COMMENT 'first' WITH DBPROPERTIES ('k' = 'v')")
    spark.sql(f"ALTER NAMESPACE {lake_name}.described SET PROPERTIES ('k' = 'w', 'more' = 'yes')")
    rows = {row[0]: row[1] for row in spark.sql(f"DESCRIBE NAMESPACE EXTENDED {lake_name}.described").collect()}
    assert rows["Comment"] == "first"
    (uuid,) = lake.sql("SELECT schema_uuid FROM ducklake_schema WHERE schema_name = 'described'")[0]
    assert rows["Location"] == f"{str(lake.settings.data_path).rstrip('/')}-iceberg/schemas/{uuid}/"
    assert "(k,w)" in rows["Properties"]
    assert "(more,yes)" in rows["Properties"]


def test_spark_creates_and_lists_nested_namespaces(
    spark: SparkSession, lake_name: str, db: duckdb.DuckDBPyConnection
) -> None:
    spark.sql(f"CREATE NAMESPACE {lake_name}.one")
    spark.sql(f"CREATE NAMESPACE {lake_name}.one.two")
    spark.sql(f"CREATE NAMESPACE {lake_name}.one.two.`with space/slash`")
    assert {"one", "one.two", "one.two.with space/slash"} <= schemas(db)
    assert shown(spark, f"{lake_name}.one") == {"one.two"}
    assert shown(spark, f"{lake_name}.one.two") == {"one.two.`with space/slash`"}
    spark.sql(f"DROP NAMESPACE {lake_name}.one.two.`with space/slash`")
    assert "one.two.with space/slash" not in schemas(db)


def test_spark_reports_the_reason_of_a_refused_namespace_statement(
    spark: SparkSession, lake_name: str, db: duckdb.DuckDBPyConnection
) -> None:
    spark.sql(f"CREATE NAMESPACE {lake_name}.told")
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {lake_name}.told")
    with pytest.raises(AnalysisException, match="SCHEMA_ALREADY_EXISTS"):
        spark.sql(f"CREATE NAMESPACE {lake_name}.told")
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_FOUND"):
        spark.sql(f"DESCRIBE NAMESPACE {lake_name}.untold")
    db.execute("CREATE TABLE told.t(i INTEGER)")
    with pytest.raises(Exception, match=r"not empty|NOT_EMPTY"):
        spark.sql(f"DROP NAMESPACE {lake_name}.told RESTRICT")
    assert "told" in schemas(db)


def test_spark_shows_tables_that_duckdb_made(
    spark: SparkSession, lake_name: str, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders(i INTEGER); CREATE TABLE shop.items(i INTEGER)")
    assert {row.tableName for row in spark.sql(f"SHOW TABLES IN {lake_name}.shop").collect()} == {"orders", "items"}
