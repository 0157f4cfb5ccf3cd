"""What tables can be imported from.

A connector lists what there is, describes a table, enumerates its snapshots, and opens one of them. It writes nothing.
Whatever it raises is of one table, or of one namespace, and does not stop the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mergus.client import Levels
from mergus.pipeline.job import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Partition:
    """By what a table is partitioned, as Spark's SQL says it, and the column that must be there for it."""

    column: str
    sql: str


@dataclass(frozen=True)
class Described:
    """A table as it is now.

    `identity` is the table's own, whatever it is called; two with one identity are one table. `snapshot` names its
    present state: None if it has none yet. `metadata_location` is of Iceberg's tables. `files` are Parquet files that
    are just the table's rows and can be taken as they are; if there are none, `not_in_place` says why.
    """

    identity: str
    format: str
    location: str
    columns: dict[str, str]
    snapshot: str | None
    partitioning: Sequence[Partition] = ()
    rows: int | None = None
    uuid: str | None = None
    metadata_location: str | None = None
    files: Sequence[str] = field(default=(), repr=False)
    not_in_place: str | None = None


class Connector(Protocol):
    def namespaces(self) -> list[Levels]:
        """All that have tables, or may have. () is that of tables which have none."""
        ...

    def tables(self, namespace: Levels) -> list[str]: ...

    def describe(self, table: Table) -> Described: ...

    def snapshots(self, table: Table) -> list[str]:
        """Those that led to the present one, and it, the oldest first."""
        ...

    def open(self, table: Table, snapshot: str | None = None) -> "DataFrame":
        """Its rows at a snapshot; now, if none is named."""
        ...
