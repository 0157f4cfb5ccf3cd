"""Delta tables, by Delta's own package in Spark: it knows deletion vectors, column mapping, and the log's checkpoints.

A directory with a `_delta_log` is a table. Its files are rows of the table as they are only if the table uses nothing
that says otherwise, and only those that the log lists: the directory holds older ones as well.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from mergus.client import Levels
from mergus.errors import SetupError
from mergus.pipeline import versions
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.catalog_settings import EXTENSIONS
from mergus.pipeline.imports.connector import Described, Partition
from mergus.pipeline.imports.directories import Directories, Entry, plain_paths
from mergus.pipeline.imports.jvm import separately
from mergus.pipeline.job import Table
from mergus.pipeline.session import query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
VECTORS: Final = "deletionVectors"
# Features with which files are still just rows, under the names and types that the table has.
HARMLESS: Final = frozenset(
    [
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "identityColumns",
        "allowColumnDefaults",
        "timestampNtz",
        "domainMetadata",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "inCommitTimestamp",
        "checkpointProtection",
    ]
)


def session_conf(spark: str) -> dict[str, str]:
    """What a session must begin with."""
    return {
        "spark.jars.packages": f"{versions.packages(spark)},{versions.delta(spark)}",
        "spark.sql.extensions": f"{EXTENSIONS},{EXTENSION}",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


class DeltaTables:
    """`conf` are options of Spark's reader."""

    def __init__(self, spark: "SparkSession", source: str | None, conf: Mapping[str, str]) -> None:
        # without its extension Delta's reader does not see deletion vectors, and gives back rows that are deleted
        if EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
            needed = " ".join(f"--conf {key}={value}" for key, value in session_conf(spark.version).items())
            raise SetupError(f"this Spark session has no Delta in it. It must begin with {needed}")
        self._spark = spark
        self._options = dict(conf)
        self._directories = Directories(spark, source, _is_table)

    def namespaces(self) -> list[Levels]:
        return self._directories.namespaces()

    def tables(self, namespace: Levels) -> list[str]:
        return self._directories.tables(namespace)

    def describe(self, table: Table) -> Described:
        path = self._directories.path(table)
        detail: dict[str, Any] = (
            query(self._spark, f"DESCRIBE DETAIL delta.{SPARK.identifier(path)}").collect()[0].asDict()
        )
        version = self.snapshots(table)[-1]
        rows = self.open(table, version)
        reason = _why_copied(detail)
        return Described(
            identity=f"delta {detail['id']}",
            format=f"delta {detail['minReaderVersion']}.{detail['minWriterVersion']}",
            location=path,
            columns={field.name: field.dataType.simpleString() for field in rows.schema.fields},
            snapshot=version,
            partitioning=[Partition(name, SPARK.identifier(name)) for name in detail["partitionColumns"]],
            files=() if reason else plain_paths(self._spark, rows.inputFiles()),
            not_in_place=reason or "it has no files",
        )

    def snapshots(self, table: Table) -> list[str]:
        path = SPARK.identifier(self._directories.path(table))
        found = query(self._spark, f"DESCRIBE HISTORY delta.{path}").select("version").collect()
        return [str(version) for version in sorted(row[0] for row in found)]

    def open(self, table: Table, snapshot: str | None = None) -> "DataFrame":
        """Delta does not apply deletion vectors in a plan that writes to a table of another catalog: where there may be
        some, the rows come out of a plan of their own."""
        rows = self._read(table, snapshot)
        return separately(rows) if VECTORS in (self._detail(table).get("tableFeatures") or ()) else rows

    def _detail(self, table: Table) -> dict[str, Any]:
        path = SPARK.identifier(self._directories.path(table))
        return query(self._spark, f"DESCRIBE DETAIL delta.{path}").collect()[0].asDict()

    def _read(self, table: Table, snapshot: str | None) -> "DataFrame":
        reader = self._spark.read.format("delta").options(**self._options)
        if snapshot is not None:
            reader = reader.option("versionAsOf", snapshot)
        return reader.load(self._directories.path(table))


def _is_table(entries: Sequence[Entry]) -> bool:
    return any(entry.name == "_delta_log" and entry.is_directory for entry in entries)


def _why_copied(detail: Mapping[str, Any]) -> str | None:
    if detail["partitionColumns"]:
        return "the values that it is partitioned by are in Delta's log, not in its files"
    if others := sorted(set(detail.get("tableFeatures") or ()) - HARMLESS):
        return f"it uses {', '.join(others)} of Delta's, for which its files alone are not the table"
    return None
