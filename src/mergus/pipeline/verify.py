"""`mergus pipeline verify`: does Spark, through REST, hold what DuckDB holds, through the ducklake extension?

For each chosen table, at its newest snapshots or at all of them. A table is one by its uuid: of one that was renamed,
the past is asked under the name that it had. What neither engine can be asked (a type that Spark does not read) is
said, and is not counted as equal.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import duckdb

from mergus.client import Client, Refused
from mergus.config import Settings
from mergus.ducklake import session
from mergus.ducklake.past_names import name_at
from mergus.errors import SetupError
from mergus.iceberg.schema_parse import parse_schema
from mergus.pipeline.canonical import CANONICAL, DUCKDB, SPARK, NotComparable
from mergus.pipeline.job import Place, Run, Table
from mergus.pipeline.parity import Compared, Side, compare
from mergus.pipeline.session import conf, rows

MOST_DIFFERENCES: Final = 20


@dataclass(frozen=True)
class Checked:
    """A table at a snapshot. `state` is "equal", "different" or "unknown", with the reason."""

    table: Table
    snapshot_id: int
    lake_snapshot: int
    state: str
    reason: str | None = None
    compared: Compared | None = None

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "table": str(self.table),
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
        return {"checked": [one.json() for one in self.checked]}


def verify(
    place: Place,
    settings: Settings,
    tables: Iterable[Table],
    run: Run,
    *,
    newest: int | None = 1,
    most: int = MOST_DIFFERENCES,
) -> Report:
    """At so many of the newest snapshots of each (None: all), with so many rows of what differs."""
    report = Report()
    lake = session.attach(settings, read_only=True)
    with closing(lake), conf(place.spark, CANONICAL):
        for table in tables:
            for one in _table(place, lake, table, newest, most):
                run.say(f"{table} at {one.snapshot_id}: {one.state}{f' ({one.reason})' if one.reason else ''}")
                run.counts[one.state] += 1
                report.checked.append(one)
    return report


def chosen(client: Client, names: Sequence[str]) -> Iterator[Table]:
    """Tables by `namespace.table`, or all tables of a `namespace`, or all that there are."""
    known = list(client.namespaces())
    if not names:
        yield from (Table(levels, name) for levels in known for name in client.tables(levels))
    for name in names:
        levels = tuple(name.split("."))
        if levels in known:
            yield from (Table(levels, found) for found in client.tables(levels))
        elif len(levels) > 1 and levels[:-1] in known:
            yield Table(levels[:-1], levels[-1])
        else:
            raise SetupError(f"there is no namespace or table {name}")


def _table(
    place: Place, lake: duckdb.DuckDBPyConnection, table: Table, newest: int | None, most: int
) -> Iterator[Checked]:
    metadata = place.metadata(table)
    schemas = {found["schema-id"]: found for found in metadata["schemas"]}
    snapshots = metadata["snapshots"][-newest if newest else None :]
    for snapshot in snapshots:
        at, shown = int(snapshot["summary"]["ducklake.snapshot-id"]), int(snapshot["snapshot-id"])
        schema = parse_schema(schemas[snapshot.get("schema-id", metadata["current-schema-id"])])
        try:
            ours = Side(DUCKDB, _in_duckdb(lake, metadata["table-uuid"], at), lambda q: lake.execute(q).fetchall())
            theirs = Side(SPARK, f"{place.sql_name(table)} VERSION AS OF {shown}", partial(rows, place.spark))
            found = compare(ours, theirs, schema, most)
        except (NotComparable, Refused) as e:
            yield Checked(table, shown, at, "unknown", str(e))
        else:
            yield Checked(table, shown, at, "equal" if found.is_equal else "different", compared=found)


def _in_duckdb(lake: duckdb.DuckDBPyConnection, uuid: str, at: int) -> str:
    called = name_at(lake, uuid, at)
    if called is None:
        raise NotComparable(f"DuckLake has no table {uuid} at snapshot {at}")
    return f"{'.'.join(map(DUCKDB.identifier, called))} AT (VERSION => {at})"
