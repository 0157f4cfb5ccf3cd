"""Directories of Parquet files, plain or with partitions in their names (`day=2024-01-01/…`).

Files may have different columns, and a table has those of all of them: what only some have is not to be lost. A
directory has no history; what it is now is known by the names, sizes and times of its files.

Files that lie in directories by partition do not have the values of these, and DuckLake and Iceberg's readers look for
them in different places: such a table is copied.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from mergus.client import Levels
from mergus.errors import SetupError
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.imports.connector import Described, Partition
from mergus.pipeline.imports.directories import Directories, Entry, plain_paths
from mergus.pipeline.job import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUFFIXES: Final = (".parquet", ".parq")


class ParquetDirectories:
    """`conf` are options of Spark's reader."""

    def __init__(self, spark: "SparkSession", source: str | None, conf: Mapping[str, str]) -> None:
        self._spark = spark
        self._options = {"mergeSchema": "true", **conf}
        self._directories = Directories(spark, source, _is_table)

    def namespaces(self) -> list[Levels]:
        return self._directories.namespaces()

    def tables(self, namespace: Levels) -> list[str]:
        return self._directories.tables(namespace)

    def describe(self, table: Table) -> Described:
        path = self._directories.path(table)
        entries = self._directories.entries(path)
        self._check(path, entries)
        rows = self.open(table)
        keys = _partition_columns(self._directories.files(path), path)
        return Described(
            identity=f"parquet {path}",
            format="parquet",
            location=path,
            columns={field.name: field.dataType.simpleString() for field in rows.schema.fields},
            snapshot=self._state(path),
            partitioning=[Partition(key, SPARK.identifier(key)) for key in keys],
            files=() if keys else plain_paths(self._spark, rows.inputFiles()),
            not_in_place="the values that it is partitioned by are in the names of directories, not in its files",
        )

    def snapshots(self, table: Table) -> list[str]:
        return [self._state(self._directories.path(table))]

    def open(self, table: Table, snapshot: str | None = None) -> "DataFrame":
        path = self._directories.path(table)
        if snapshot is not None and snapshot != self._state(path):
            raise SetupError(f"{path} has changed since this run began: run it again")
        return self._spark.read.options(**self._options).parquet(path)

    def _state(self, path: str) -> str:
        text = "\n".join(f"{file.path} {file.size} {file.modified}" for file in self._directories.files(path))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _check(self, path: str, entries: Sequence[Entry]) -> None:
        """Not every Parquet file that lies somewhere is a table's: what another format has deleted is there as well."""
        if any(entry.name == "_delta_log" for entry in entries):
            raise SetupError(f"{path} is a Delta table: import it with --from delta")
        beside = self._directories.entries(path.rpartition("/")[0] or "/")
        metadata = [entry for entry in beside if entry.name == "metadata" and entry.is_directory]
        if any(e.name.endswith(".metadata.json") for found in metadata for e in self._directories.entries(found.path)):
            raise SetupError(f"{path} are files of an Iceberg table: import it from its catalog, or with --from hadoop")
        if mixed := [e.name for e in entries if e.is_directory and not e.is_hidden and "=" not in e.name]:
            raise SetupError(f"{path} holds files and a directory {mixed[0]}, which would not be read: move it away")


def _is_table(entries: Sequence[Entry]) -> bool:
    visible = [entry for entry in entries if not entry.is_hidden]
    return any("=" in e.name if e.is_directory else e.name.endswith(SUFFIXES) for e in visible)


def _partition_columns(files: Sequence[Entry], root: str) -> list[str]:
    """In the order of the directories' levels. Names of directories have what is special in them encoded."""
    for file in files:
        levels = file.path.removeprefix(f"{root}/").split("/")[:-1]
        return [unquote(level.partition("=")[0]) for level in levels]
    return []
