"""Records and files that could not go into a table, with the reason: a table beside it.

A row is a record, as text; or a file as a whole, and then it has no record.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from mergus.pipeline.canonical import SPARK
from mergus.pipeline.ingest import once, target
from mergus.pipeline.ingest.ledger import Batch, Outcome
from mergus.pipeline.job import Place, Table
from mergus.pipeline.session import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = StructType(
    [
        StructField("_source_file", StringType()),
        StructField("_batch", StringType()),
        StructField("_reason", StringType()),
        StructField("_record", StringType()),
        StructField("_at", TimestampType()),
    ]
)

WHOLE: Final = StructType([StructField(name, StringType()) for name in ("file", "reason", "record")])


def add(place: Place, to: Table, batch: Batch, records: Iterable["DataFrame"], files: Sequence[Outcome]) -> None:
    """`records` have a file, a reason and a text each."""
    target.ensure(place, to, COLUMNS)
    whole = [{"file": one.file.uri, "reason": one.reason} for one in files]
    frames = [*records, target.local(place.spark, whole, WHOLE)]
    said = ["file AS _source_file", f"{SPARK.literal(batch.id)} AS _batch", "reason AS _reason", "record AS _record"]
    found = reduce(lambda a, b: a.union(b), frames).selectExpr(*said, "current_timestamp() AS _at")
    once.append(place, found, to, batch.key, batch=batch.id)


def of(place: Place, table: Table, batch: Batch) -> dict[str, tuple[int, str | None]]:
    """By file, how many bad records a batch had; and why it was left out as a whole, if it was."""
    if place.load(table) is None:
        return {}
    whole = "max(CASE WHEN _record IS NULL THEN _reason END)"
    found = rows(
        place.spark,
        f"SELECT _source_file, count(_record), {whole} FROM {place.sql_name(table)} "
        f"WHERE _batch = {SPARK.literal(batch.id)} GROUP BY _source_file",
    )
    return {file: (bad, reason) for file, bad, reason in found}
