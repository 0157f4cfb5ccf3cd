"""The sources that there are, by the names of `--from`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mergus.pipeline import versions
from mergus.pipeline.imports import delta
from mergus.pipeline.imports.connector import Connector
from mergus.pipeline.imports.delta import DeltaTables
from mergus.pipeline.imports.iceberg import IcebergCatalog
from mergus.pipeline.imports.parquet import ParquetDirectories

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOGS: Final = {"iceberg-rest": "rest", "hive": "hive", "glue": "glue", "hadoop": "hadoop"}
# Spark's own leaves out credentials and signatures when it shows settings.
REDACTED: Final = {"spark.redaction.regex": "(?i)secret|password|token|credential|access[.-]?key|sas|signature"}


def connect(kind: str, spark: "SparkSession", source: str | None, conf: Mapping[str, str]) -> Connector:
    if kind in CATALOGS:
        return IcebergCatalog(spark, CATALOGS[kind], source, conf)
    return DeltaTables(spark, source, conf) if kind == "delta" else ParquetDirectories(spark, source, conf)


def session_conf(kind: str) -> dict[str, str]:
    """What a session for it has to begin with."""
    return {**REDACTED, **(delta.session_conf(versions.installed()) if kind == "delta" else {})}
