"""Tables that are directories below a root: whatever Spark can read there, be it a disk, HDFS, or S3 by `s3a://`.

A directory that holds other directories, and is no table, is a namespace. Tables right below the root have no namespace
of their own. The root may be a table itself. Nothing below a table is looked at, and nothing hidden (`_…`, `.…`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mergus.client import Levels
from mergus.errors import SetupError
from mergus.pipeline.imports.jvm import hadoop_conf
from mergus.pipeline.job import Table
from mergus.pipeline.session import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Entry:
    name: str
    path: str
    is_directory: bool
    size: int
    modified: int

    @property
    def is_hidden(self) -> bool:
        return self.name.startswith(("_", "."))


IsTable = Callable[[Sequence[Entry]], bool]


class Directories:
    """`namespaces` and `tables` of a connector, and where each table is."""

    def __init__(self, spark: "SparkSession", root: str | None, is_table: IsTable) -> None:
        if root is None:
            raise SetupError("--source is missing: the directory below which the tables are")
        self._spark = spark
        self._is_table = is_table
        self._root = root
        self._known: dict[Table, str] | None = None

    def namespaces(self) -> list[Levels]:
        return sorted({table.namespace for table in self._tables})

    def tables(self, namespace: Levels) -> list[str]:
        return sorted(table.name for table in self._tables if table.namespace == namespace)

    def path(self, table: Table) -> str:
        if table not in self._tables:
            raise SetupError(f"there is no table {table} below {self._root}")
        return self._tables[table]

    def entries(self, path: str) -> list[Entry]:
        found, system = self._at(path)
        if not system.exists(found):
            raise SetupError(f"there is no directory {path}")
        return sorted(map(_entry, system.listStatus(found)), key=lambda entry: entry.name)

    def files(self, path: str) -> list[Entry]:
        """All files below, however deep, that are not hidden."""
        visible = [entry for entry in self.entries(path) if not entry.is_hidden]
        deeper = [file for entry in visible if entry.is_directory for file in self.files(entry.path)]
        return [entry for entry in visible if not entry.is_directory] + deeper

    @property
    def _tables(self) -> dict[Table, str]:
        if self._known is None:
            at, system = self._at(self._root)
            entries = self.entries(self._root)
            # as Hadoop writes it, whole: by its path a table is known again
            itself = {Table((), str(at.getName())): str(system.makeQualified(at).toString())}
            self._known = itself if self._is_table(entries) else self._below((), entries)
        return self._known

    def _below(self, namespace: Levels, entries: Sequence[Entry]) -> dict[Table, str]:
        found: dict[Table, str] = {}
        for entry in entries:
            if entry.is_directory and not entry.is_hidden:
                inside = self.entries(entry.path)
                if self._is_table(inside):
                    found[Table(namespace, entry.name)] = entry.path
                else:
                    found |= self._below((*namespace, entry.name), inside)
        return found

    def _at(self, path: str) -> tuple[Any, Any]:
        found = jvm(self._spark).org.apache.hadoop.fs.Path(path)
        return found, found.getFileSystem(hadoop_conf(self._spark))


def _entry(status: Any) -> Entry:  # noqa: ANN401
    path = status.getPath()
    return Entry(path.getName(), path.toString(), status.isDirectory(), status.getLen(), status.getModificationTime())


def plain_paths(spark: "SparkSession", encoded: Sequence[str]) -> list[str]:
    """Spark names its input files by URIs; Hadoop's paths are not encoded."""
    java = jvm(spark)
    return [java.org.apache.hadoop.fs.Path(java.java.net.URI(one)).toString() for one in encoded]
