"""Tables of another Iceberg catalog: REST, Hive, Glue or Hadoop, which Spark's own catalog speaks to.

It becomes one more catalog of the session, under a name that nobody else has. Iceberg's own catalog behind it is asked
for what SQL does not tell: where the metadata file is.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from mergus.client import Levels
from mergus.errors import SetupError
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.imports import jvm
from mergus.pipeline.imports.connector import Described, Partition
from mergus.pipeline.job import Table
from mergus.pipeline.session import query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What the source is to each kind of catalog.
ADDRESS: Final = {"rest": "uri", "hive": "uri", "glue": "warehouse", "hadoop": "warehouse"}
_TIMES: Final = {"year": "years", "month": "months", "day": "days", "hour": "hours"}
_NUMBERED: Final = re.compile(r"(bucket|truncate)\[(\d+)\]")


def catalog_conf(name: str, kind: str, source: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of Spark for such a catalog; what `conf` says goes before anything of ours."""
    ours = {"type": kind, "cache-enabled": "false"}
    if source is not None:
        ours[ADDRESS[kind]] = source
    if kind in {"rest", "hive"}:
        # by the address of each file: S3's own client where it is S3's, else Hadoop's
        ours["io-impl"] = "org.apache.iceberg.io.ResolvingFileIO"
    start = f"spark.sql.catalog.{name}"
    return {
        start: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{start}.{k}": v for k, v in {**ours, **conf}.items()},
    }


def partition(transform: str, column: str, is_nested: bool) -> Partition | None:
    """Of Iceberg's name for a transform. None for one that nothing is partitioned by, any more or as yet."""
    parts = column.split(".") if is_nested else [column]
    quoted = ".".join(map(SPARK.identifier, parts))
    if transform == "identity":
        return Partition(parts[0], quoted)
    if transform in _TIMES:
        return Partition(parts[0], f"{_TIMES[transform]}({quoted})")
    if found := _NUMBERED.fullmatch(transform):
        return Partition(parts[0], f"{found[1]}({found[2]}, {quoted})")
    return None


class IcebergCatalog:
    def __init__(self, spark: "SparkSession", kind: str, source: str | None, conf: Mapping[str, str]) -> None:
        if source is None and kind != "glue":
            raise SetupError(f"--source is missing: the {ADDRESS[kind]} of the catalog")
        self._spark = spark
        self._name = f"source_{uuid4().hex[:8]}"
        for key, value in catalog_conf(self._name, kind, source, conf).items():
            spark.conf.set(key, value)

    def namespaces(self) -> list[Levels]:
        return sorted(self._below(()))

    def tables(self, namespace: Levels) -> list[str]:
        return sorted(found.name() for found in self._catalog.listTables(jvm.namespace(self._spark, namespace)))

    def describe(self, table: Table) -> Described:
        found = self._load(table)
        current, snapshot, schema = found.operations().current(), found.currentSnapshot(), found.schema()
        names = {field.name() for field in schema.columns()}
        partitions: list[Partition] = []
        for field in found.spec().fields():
            column = schema.findColumnName(field.sourceId())
            made = partition(field.transform().toString(), column, column not in names)
            partitions += [] if made is None else [made]
        total = None if snapshot is None else snapshot.summary().get("total-records")
        return Described(
            identity=f"iceberg {found.uuid().toString()}",
            format=f"iceberg v{current.formatVersion()}",
            location=found.location(),
            columns={field.name(): field.type().toString() for field in schema.columns()},
            snapshot=None if snapshot is None else str(snapshot.snapshotId()),
            partitioning=partitions,
            rows=0 if snapshot is None else None if total is None else int(total),
            uuid=found.uuid().toString(),
            metadata_location=current.metadataFileLocation(),
            not_in_place="its catalog does not tell where its metadata file is",
        )

    def snapshots(self, table: Table) -> list[str]:
        found = self._load(table)
        known = {snapshot.snapshotId(): snapshot.parentId() for snapshot in found.snapshots()}
        current = found.currentSnapshot()
        at, ids = None if current is None else current.snapshotId(), list[str]()
        while at is not None and at in known:
            ids.append(str(at))
            at = known[at]
        return ids[::-1]

    def open(self, table: Table, snapshot: str | None = None) -> "DataFrame":
        name = ".".join(map(SPARK.identifier, [self._name, *table.namespace, table.name]))
        at = "" if snapshot is None else f" VERSION AS OF {int(snapshot)}"
        return query(self._spark, f"SELECT * FROM {name}{at}")

    @property
    def _catalog(self) -> Any:  # noqa: ANN401
        return jvm.iceberg_catalog(self._spark, self._name)

    def _load(self, table: Table) -> Any:  # noqa: ANN401
        return self._catalog.loadTable(jvm.identifier(self._spark, table))

    def _below(self, parent: Levels) -> list[Levels]:
        found = self._catalog.listNamespaces(jvm.namespace(self._spark, parent))
        levels = [tuple(str(level) for level in one.levels()) for one in found]
        # catalogs that have one level only say no when they are asked for a second
        return levels + ([deeper for one in levels for deeper in self._children(one)])

    def _children(self, parent: Levels) -> list[Levels]:
        from py4j.protocol import Py4JJavaError  # pyright: ignore[reportMissingTypeStubs]

        try:
            return self._below(parent)
        except Py4JJavaError:
            return []
