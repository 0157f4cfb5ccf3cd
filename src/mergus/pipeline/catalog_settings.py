"""The settings with which Spark opens the catalog: the one place that names them.

`mergus spark`, the jobs and the text of `mergus dev` take them from here, and a test compares those that the documents
print. They are the same for every lake: Spark finds objects on S3 and on disks by the scheme of their locations.
"""

from typing import Final

from mergus.pipeline import versions

CATALOG: Final = "lake"
EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def catalog_settings(
    uri: str, warehouse: str, *, catalog: str = CATALOG, spark: str = versions.SPARK
) -> dict[str, str]:
    """For spark-defaults.conf, a builder, or `--conf`. They hold no keys: S3FileIO reads those in AWS_* variables."""
    start = f"spark.sql.catalog.{catalog}"
    return {
        "spark.jars.packages": versions.packages(spark),
        "spark.sql.extensions": EXTENSIONS,
        start: "org.apache.iceberg.spark.SparkCatalog",
        f"{start}.type": "rest",
        f"{start}.uri": uri,
        f"{start}.warehouse": warehouse,
        # Iceberg's cache keeps a table until 30 s after its last use: a session that asks more often than that would
        # never see what others commit, and its own commits would conflict with it
        f"{start}.cache-enabled": "false",
        # DROP TABLE ... PURGE asks the server for the purge. Iceberg 1.11 does not know the setting, and sends a drop
        f"{start}.rest-catalog-purge": "true",
    }
