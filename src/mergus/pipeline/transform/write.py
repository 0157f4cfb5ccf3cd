"""A step's rows into its output: one snapshot, whose summary says what was read.

Rows stand in a temporary view. A key (`mergus.once`) that says which run this one comes after makes the server refuse
the second of two runs that have begun from the same state.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from mergus.errors import SetupError
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.job import Place, Table
from mergus.pipeline.partitioning import partition
from mergus.pipeline.session import conf, message, query, spark_errors
from mergus.pipeline.transform import state
from mergus.pipeline.transform.plan import OWNER, Planned

SUMMARY: Final = "spark.sql.iceberg.snapshot-property."
GONE: Final = "_mergus_gone"
_REFUSED: Final = re.compile(re.escape(state.ONCE) + r": .* is in the table already, committed as snapshot (\d+)")
# A session may be set to replace partitions only, or to write to a branch.
AS_IS: Final = {"spark.sql.sources.partitionOverwriteMode": "STATIC"}


class AlreadyWritten(SetupError):
    """By another run, which began where this one did, in a snapshot of the output."""

    def __init__(self, snapshot: int) -> None:
        super().__init__(f"another run has written since this one began (snapshot {snapshot}): run it again")
        self.snapshot = snapshot


def commit(place: Place, statement: str, summary: Mapping[str, str], once: str) -> None:
    """A statement of Spark's that writes one snapshot."""
    properties = {**summary, state.ONCE: once}
    try:
        with conf(place.spark, {**AS_IS, **{f"{SUMMARY}{key}": value for key, value in properties.items()}}):
            query(place.spark, statement)
    except spark_errors() as e:
        if refused := _REFUSED.search(str(e)):
            raise AlreadyWritten(int(refused[1])) from None
        raise SetupError(message(e)) from None


def create(place: Place, planned: Planned, view: str) -> str:
    """A statement: the output as the definition says, with these rows, whatever was there before."""
    step = planned.step
    properties = {**step.properties, OWNER: planned.name}
    listed = ", ".join(f"{SPARK.literal(key)} = {SPARK.literal(value)}" for key, value in properties.items())
    partitions = f"PARTITIONED BY ({', '.join(map(partition, step.partition_by))})" if step.partition_by else ""
    return (
        f"{'CREATE' if planned.metadata is None else 'REPLACE'} TABLE {place.sql_name(planned.output)} USING iceberg "
        f"{partitions} TBLPROPERTIES ({listed}) AS SELECT * FROM {view}"
    )


def overwrite(place: Place, planned: Planned, view: str) -> str:
    return f"INSERT OVERWRITE {place.sql_name(planned.output)} SELECT * FROM {view}"


def append(place: Place, output: Table, view: str, columns: Sequence[str]) -> str:
    listed = ", ".join(map(SPARK.identifier, columns))
    return f"INSERT INTO {place.sql_name(output)} ({listed}) SELECT {listed} FROM {view}"


def merge(place: Place, planned: Planned, view: str, affected: str, columns: Sequence[str]) -> str:
    """Of the keys in `affected`, the rows in `view` are all that there are."""
    keys = planned.step.keys
    names = {column: SPARK.identifier(column) for column in columns}
    rows = ", ".join(names.values())
    nothing = ", ".join(f"a.{names[c]}" if c in keys else f"NULL AS {names[c]}" for c in columns)
    same = " AND ".join(f"t.{names[key]} <=> s.{names[key]}" for key in keys)
    known = " AND ".join(f"a.{names[key]} <=> r.{names[key]}" for key in keys)
    values = ", ".join(f"s.{name}" for name in names.values())
    rest = ", ".join(f"t.{names[c]} = s.{names[c]}" for c in columns)
    return f"""
        MERGE INTO {place.sql_name(planned.output)} t
        USING (SELECT {rows}, false AS {GONE} FROM {view}
               UNION ALL SELECT {nothing}, true FROM {affected} a LEFT ANTI JOIN {view} r ON {known}) s
        ON {same}
        WHEN MATCHED AND s.{GONE} THEN DELETE
        WHEN MATCHED THEN UPDATE SET {rest}
        WHEN NOT MATCHED AND NOT s.{GONE} THEN INSERT ({rows}) VALUES ({values})
    """


def add_columns(place: Place, output: Table, columns: Mapping[str, str]) -> None:
    listed = ", ".join(f"{SPARK.identifier(name)} {kind}" for name, kind in columns.items())
    query(place.spark, f"ALTER TABLE {place.sql_name(output)} ADD COLUMNS ({listed})")


def make_namespace(place: Place, output: Table) -> None:
    for depth in range(1, len(output.namespace) + 1):
        parts = [place.catalog, *output.namespace[:depth]]
        query(place.spark, f"CREATE NAMESPACE IF NOT EXISTS {'.'.join(map(SPARK.identifier, parts))}")
