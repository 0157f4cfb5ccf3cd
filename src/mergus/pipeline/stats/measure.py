"""One scan of a table at a snapshot: what there is to know of the chosen columns.

Counts and bounds are exact. Sketches are made by Iceberg's own aggregate, the one behind `compute_table_stats`; it is
used by itself because that procedure takes no column with a dot in its name, hashes a uuid's letters instead of its
bytes, and would scan the table once more. Histograms come from a sample that is taken on the way: of all rows if there
are few.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from mergus.pipeline.canonical import CANONICAL
from mergus.pipeline.session import conf, jvm, query
from mergus.pipeline.stats.columns import Column
from mergus.pipeline.stats.histogram import Histogram, equi_depth
from mergus.pipeline.stats.texts import LONGEST, Value

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import SparkSession

# Rows of the sample for each bucket: its estimated depth is then right to about a tenth.
ROWS_PER_BUCKET: Final = 150
SEED: Final = 7


@dataclass(frozen=True)
class Figures:
    """Of a column. What is None is not known; bounds of a column without values are not, either."""

    rows: int
    nulls: int
    nans: int | None = None
    lowest: Value | None = None
    highest: Value | None = None
    sketch: bytes | None = None
    distinct: int | None = None
    histogram: Histogram | None = None


def measure(
    spark: "SparkSession", source: str, records: int, columns: Sequence[Column], buckets: int
) -> dict[int, Figures]:
    """By field id. `source` is SQL for the table at a snapshot, which has about so many records."""
    from pyspark.sql.functions import expr

    asked = [f"{column.expression} AS c{i}" for i, column in enumerate(columns)]
    part = min(1.0, buckets * ROWS_PER_BUCKET / max(records, 1))
    aggregates = [expr("count(*)").alias("rows")]
    for i, column in enumerate(columns):
        aggregates += [expr(text).alias(name) for name, text in _aggregates(column, f"c{i}", part).items()]
        if column.has_order:
            aggregates.append(_sketch(spark, f"c{i}"))
    with conf(spark, CANONICAL):
        found = query(spark, f"SELECT {', '.join([*asked, f'rand({SEED}) AS r'])} FROM {source}").agg(*aggregates)
        row = found.collect()[0].asDict()
    return {column.field.id: _figures(spark, column, f"c{i}", row, buckets) for i, column in enumerate(columns)}


def _aggregates(column: Column, c: str, part: float) -> dict[str, str]:
    """Null counts of all; the rest of columns whose values have an order, in which NaN has no place."""
    found = {f"{c}_nulls": f"count_if({c} IS NULL)"}
    if not column.has_order:
        return found
    value = f"CASE WHEN NOT isnan({c}) THEN {c} END" if column.is_float else c
    # one more than is shown tells that it is cut
    sampled = f"substring({c}, 1, {LONGEST + 1})" if column.is_long else value
    found |= {
        f"{c}_low": f"min({value})",
        f"{c}_high": f"max({value})",
        f"{c}_sample": f"collect_list(CASE WHEN r < {part!r} THEN {sampled} END)",
    }
    if column.is_float:
        # SQL holds both zeros for equal, and Iceberg's order does not
        is_minus = f"{c} = 0 AND CAST({c} AS STRING) LIKE '-%'"
        found |= {
            f"{c}_nans": f"count_if(isnan({c}))",
            f"{c}_minus": f"count_if({is_minus})",
            f"{c}_zeros": f"count_if({c} = 0)",
        }
    return found


def _sketch(spark: "SparkSession", c: str) -> "SparkColumn":
    from pyspark.sql.classic.column import Column as Classic

    sql = jvm(spark).org.apache.spark.sql
    node = sql.classic.ExpressionColumnNode.apply(sql.stats.ThetaSketchAgg(c).toAggregateExpression())
    return cast("SparkColumn", Classic(sql.Column(node))).alias(f"{c}_sketch")


def _figures(spark: "SparkSession", column: Column, c: str, row: dict[str, Any], buckets: int) -> Figures:
    rows, nulls = row["rows"], row[f"{c}_nulls"]
    if not column.has_order:
        return Figures(rows, nulls)
    nans = row.get(f"{c}_nans")
    low, high = _plain(row[f"{c}_low"]), _plain(row[f"{c}_high"])
    if column.is_float and low == 0.0:
        low = -0.0 if row[f"{c}_minus"] else 0.0
    if column.is_float and high == 0.0:
        high = 0.0 if row[f"{c}_zeros"] > row[f"{c}_minus"] else -0.0
    sample = [_plain(value) for value in row[f"{c}_sample"]]
    histogram = None if high is None else equi_depth(sample, high, rows - nulls - (nans or 0), buckets)
    sketch = bytes(row[f"{c}_sketch"])
    return Figures(rows, nulls, nans, low, high, sketch, _estimate(spark, sketch), _shown(histogram))


def _shown(histogram: Histogram | None) -> Histogram | None:
    """None if a bound is longer than can be shown: whatever were in its place would divide the values otherwise."""
    if histogram is None:
        return None
    inner = histogram.uppers[:-1]
    return None if any(isinstance(v, str | bytes) and len(v) > LONGEST for v in inner) else histogram


def _plain(value: Any) -> Any:  # noqa: ANN401  (a row's)
    return bytes(value) if isinstance(value, bytearray) else value


def _estimate(spark: "SparkSession", sketch: bytes) -> int:
    """As Iceberg itself reads it."""
    sketches = jvm(spark).org.apache.iceberg.shaded.org.apache.datasketches
    memory = sketches.memory.Memory.wrap(bytearray(sketch))
    return math.floor(sketches.theta.CompactSketch.wrap(memory).getEstimate())
