"""The tables that ingest writes to: there, with the columns that they need, whoever else makes them at that time."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructField, StructType

from mergus.errors import SetupError
from mergus.pipeline.canonical import SPARK
from mergus.pipeline.ingest.evolution import LINEAGE, Change, columns, fit, sql_type, stored
from mergus.pipeline.job import Place, Table
from mergus.pipeline.partitioning import partition
from mergus.pipeline.session import message, query, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def schema(place: Place, table: Table) -> StructType:
    """As Spark sees it, with plain types; which columns must have values is kept."""
    found = place.spark.table(place.sql_name(table)).schema
    return StructType([StructField(f.name, stored(f.dataType), f.nullable) for f in found.fields])


def local(spark: "SparkSession", rows: Sequence[Mapping[str, Any]], wanted: StructType) -> "DataFrame":
    """Rows that are here, as a frame of one part; no process of Python's is started for it, and one file is written."""
    text = f"SELECT inline(from_json(:rows, {SPARK.literal(f'ARRAY<{sql_type(wanted)}>')}))"
    return spark.sql(text, {"rows": json.dumps(rows)})  # pyright: ignore[reportUnknownMemberType]


def ensure(place: Place, table: Table, wanted: StructType) -> None:
    """A table of ours, with these columns at least."""
    if place.load(table) is None:
        create(place, table, wanted, (), {})
    missing = [f.name for f in wanted.fields if f.name not in schema(place, table).names]
    if missing:
        raise SetupError(f"{table} is there, and is not what ingest writes: it has no column {', '.join(missing)}")


def create(
    place: Place, table: Table, wanted: StructType, partition_by: Sequence[str], properties: Mapping[str, str]
) -> None:
    """Nothing if it is there."""
    namespace = ".".join(map(SPARK.identifier, [place.catalog, *table.namespace]))
    query(place.spark, f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    parts = f" PARTITIONED BY ({', '.join(map(partition, partition_by))})" if partition_by else ""
    given = ", ".join(f"{SPARK.literal(key)} = {SPARK.literal(value)}" for key, value in properties.items())
    said = f" TBLPROPERTIES ({given})" if given else ""
    name = place.sql_name(table)
    query(place.spark, f"CREATE TABLE IF NOT EXISTS {name} ({columns(wanted)}) USING iceberg{parts}{said}")


def evolve(place: Place, table: Table, changes: Sequence[Change]) -> None:
    name = place.sql_name(table)
    added = [f"{_path(one)} {sql_type(one.type)}" for one in changes if one.before is None]
    if added:
        query(place.spark, f"ALTER TABLE {name} ADD COLUMNS ({', '.join(added)})")
    for one in changes:
        if one.before is not None:
            query(place.spark, f"ALTER TABLE {name} ALTER COLUMN {_path(one)} TYPE {sql_type(one.type)}")


def became(place: Place, table: Table, changes: Sequence[Change], wanted: StructType) -> bool:
    """Whether the table has these columns now. False if somebody else has changed it first, to something else."""
    try:
        evolve(place, table, changes)
    except spark_errors() as e:
        if _has(schema(place, table), wanted):
            return True
        if not re.search("CommitFailed|ALREADY_EXISTS|already exists|UNRESOLVED_COLUMN", str(e)):
            raise SetupError(f"{table} does not take {', '.join(map(str, changes))}: {message(e)}") from None
        return False
    return _has(schema(place, table), wanted)


def with_lineage(found: StructType) -> StructType:
    known = {name.lower() for name in found.names}
    return StructType([*found.fields, *(f for f in LINEAGE.fields if f.name not in known)])


def _has(table: StructType, wanted: StructType) -> bool:
    found = fit(table, StructType([f for f in wanted.fields if f.name not in LINEAGE.names]))
    return not found.changes and not found.clashes


def _path(change: Change) -> str:
    return ".".join(map(SPARK.identifier, change.path))
