"""`mergus pipeline verify`: does Spark, through REST, hold what DuckDB holds, through the ducklake extension?

For each chosen table, at its newest snapshots or at all of them. A table is one by its uuid: of one that was renamed,
the past is asked under the name that it had. What neither engine can be asked (a type that Spark does not read) is
said, and is not counted as equal.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import duckdb

from mergus.client import Client, Levels, Refused
from mergus.config import Settings
from mergus.ducklake import session
from mergus.ducklake.past_names import name_at
from mergus.errors import SetupError
from mergus.iceberg.schema_parse import parse_schema
from mergus.pipeline.canonical import CANONICAL, DUCKDB, SPARK, NotComparable
from mergus.pipeline.parity import Compared, Side, compare
from mergus.pipeline.session import conf, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_DIFFERENCES: Final = 20

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Checked:
    """A table at a snapshot. `state` is "equal", "different" or "unknown", with the reason."""

    namespace: Levels
    table: str
    snapshot_id: int
    lake_snapshot: int
    state: str
    reason: str | None = None
    compared: Compared | None = None

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "table": ".".join([*self.namespace, self.table]),
            "snapshot-id": self.snapshot_id,
            "ducklake-snapshot-id": self.lake_snapshot,
            "state": self.state,
        }
        if self.reason is not None:
            found["reason"] = self.reason
        if (compared := self.compared) is not None:
            found["rows"] = {"duckdb": compared.duckdb.rows, "spark": compared.spark.rows}
        if compared is not None and not compared.is_equal:
            found["columns"] = compared.columns
            found["differences"] = [asdict(difference) for difference in compared.differences]
        return found


@dataclass
class Report:
    checked: list[Checked] = field(default_factory=list[Checked])

    def count(self, state: str) -> int:
        return sum(one.state == state for one in self.checked)

    def json(self) -> dict[str, Any]:
        states = ("equal", "different", "unknown")
        return {**{state: self.count(state) for state in states}, "checked": [one.json() for one in self.checked]}


def verify(
    client: Client,
    settings: Settings,
    spark: "SparkSession",
    catalog: str,
    tables: Iterable[tuple[Levels, str]],
    progress: Progress,
    *,
    newest: int | None = 1,
    most: int = MOST_DIFFERENCES,
) -> Report:
    """At so many of the newest snapshots of each (None: all), with so many rows of what differs."""
    report = Report()
    lake = session.attach(settings, read_only=True)
    with closing(lake), conf(spark, CANONICAL):
        for namespace, table in tables:
            for one in _table(client, lake, spark, catalog, namespace, table, newest, most):
                name = ".".join([*namespace, table])
                progress(f"{name} at {one.snapshot_id}: {one.state}{f' ({one.reason})' if one.reason else ''}")
                report.checked.append(one)
    return report


def chosen(client: Client, names: Sequence[str]) -> Iterator[tuple[Levels, str]]:
    """Tables by `namespace.table`, or all tables of a `namespace`, or all that there are."""
    known = list(client.namespaces())
    if not names:
        yield from ((levels, table) for levels in known for table in client.tables(levels))
    for name in names:
        levels = tuple(name.split("."))
        if levels in known:
            yield from ((levels, table) for table in client.tables(levels))
        elif len(levels) > 1 and levels[:-1] in known:
            yield levels[:-1], levels[-1]
        else:
            raise SetupError(f"there is no namespace or table {name}")


def _table(
    client: Client,
    lake: duckdb.DuckDBPyConnection,
    spark: "SparkSession",
    catalog: str,
    namespace: Levels,
    table: str,
    newest: int | None,
    most: int,
) -> Iterator[Checked]:
    metadata = client.load_table(namespace, table)["metadata"]
    schemas = {found["schema-id"]: found for found in metadata["schemas"]}
    snapshots = metadata["snapshots"][-newest if newest else None :]
    for snapshot in snapshots:
        at, shown = int(snapshot["summary"]["ducklake.snapshot-id"]), int(snapshot["snapshot-id"])
        schema = parse_schema(schemas[snapshot.get("schema-id", metadata["current-schema-id"])])
        try:
            ours = Side(DUCKDB, _in_duckdb(lake, metadata["table-uuid"], at), lambda q: lake.execute(q).fetchall())
            name = ".".join(map(SPARK.identifier, [catalog, *namespace, table]))
            theirs = Side(SPARK, f"{name} VERSION AS OF {shown}", partial(rows, spark))
            found = compare(ours, theirs, schema, most)
        except (NotComparable, Refused) as e:
            yield Checked(namespace, table, shown, at, "unknown", str(e))
        else:
            yield Checked(namespace, table, shown, at, "equal" if found.is_equal else "different", compared=found)


def _in_duckdb(lake: duckdb.DuckDBPyConnection, uuid: str, at: int) -> str:
    called = name_at(lake, uuid, at)
    if called is None:
        raise NotComparable(f"DuckLake has no table {uuid} at snapshot {at}")
    return f"{'.'.join(map(DUCKDB.identifier, called))} AT (VERSION => {at})"
