"""Columns whose values are in the paths of files: those that DuckDB added with `hive_partitioning`.

DuckDB takes the value out of the path whenever it reads, and casts it to the type that the column has then. When it
adds the file, it writes the value down as the column's statistics, as it prints a value of the type of that time: so
nobody else has to parse a path. To Iceberg the column is an identity partition, the value of which readers take for a
column that a file lacks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mergus.ducklake.columns import Column
from mergus.ducklake.files import ColumnStats, DataFile
from mergus.ducklake.mappings import COPY_ROWS
from mergus.ducklake.types import iceberg_primitive
from mergus.iceberg.manifest import PartitionValue
from mergus.iceberg.partition_spec import PartitionField, identity_value
from mergus.iceberg.schema import Schema

# DuckDB cuts longer texts.
_MOST_BYTES: Final = 256
# Not those whose text may stand for several values, nor uuids, which DuckDB's Iceberg reader scrambles.
_WITHOUT: Final = frozenset({"float32", "float64", "uuid", "blob", "time", "timestamp_ns", "variant", "geometry"})
# A path has one meaning to all of them.
_INTEGERS: Final = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16"})


@dataclass(frozen=True, slots=True)
class InPath:
    """The field of a partition spec that stands for such a column, and the column's type of now."""

    field: PartitionField
    type: str

    def value(self, file: DataFile) -> PartitionValue:
        """Of a file of which `why_not` says nothing."""
        found = _value(file.stats.get(self.field.source_id), self.type, file.record_count)
        return None if found is None else found[0]


def why_not(
    file: DataFile, ids: Sequence[int], rows: Sequence[Column], schema: Schema, at: int, now: Schema
) -> str | None:
    """Why a file cannot be shown at a snapshot with this schema, if it cannot: `ids` are the columns in its path,
    `rows` all that the table ever had, and `now` is the schema that partition specs are about."""
    shown = {field.id: field for field in schema.fields}
    left = {field.id: field.type for field in now.fields}
    for column_id in ids:
        field = shown.get(column_id)
        if field is None:
            continue
        what = f"column {field.name} has its value in the path of the file, "
        if left.get(column_id) != field.type:
            return f"{what}and was dropped or got another type since"
        then = next((c.type for c in rows if c.id == column_id and c.span.at(file.begin_snapshot)), None)
        kinds = {then, *(c.type for c in rows if c.id == column_id and c.span.at(at))}
        if len(kinds) > 1 and not kinds <= _INTEGERS:
            return f"{what}which DuckDB reads as another type than when the file was added. {COPY_ROWS}"
        found = None if then is None else _value(file.stats.get(column_id), then, file.record_count)
        if found is None:
            return f"{what}which cannot be a partition value of Iceberg's. {COPY_ROWS}"
        if found[0] is None and (field.required or field.initial_default is not None):
            return f"{what}which is NULL there: the column is NOT NULL or has a default. {COPY_ROWS}"
    return None


def _value(stats: ColumnStats | None, ducklake_type: str, records: int) -> tuple[PartitionValue] | None:
    """A tuple of one, as NULL is a value too; None where it is not certain."""
    if stats is None or ducklake_type in _WITHOUT or iceberg_primitive(ducklake_type) is None:
        return None
    if stats.null_count == records and records:
        return (None,)
    text = stats.min_text
    if stats.null_count != 0 or text is None or text != stats.max_text or len(text.encode()) >= _MOST_BYTES:
        return None
    found = identity_value(ducklake_type, text, retyped=False)
    return None if found is None else (found,)
