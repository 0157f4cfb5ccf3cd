"""Whether a Parquet file can be a file of the lake as it is: by the rule that the server itself has for what it shows.

Spark writes timestamps as INT96 unless it is told otherwise, which not every Iceberg reader reads; others have unsigned
numbers, milliseconds, field ids of another table. DuckDB casts all that, Iceberg's readers do not, and the server would
take such a file and then not show the table. Footers are read as Spark reads files, through Hadoop.
"""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

from mergus.annex.file_facts import Part
from mergus.iceberg.name_mapping import MappedField
from mergus.iceberg.schema import Schema
from mergus.materialise.footers import columns_of
from mergus.materialise.suspects import judge
from mergus.pipeline.imports.jvm import hadoop_conf
from mergus.pipeline.session import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Mostly the whole footer is in it.
TAIL: Final = 64 * 1024
# Its length, and four letters.
_END: Final = 8
_arrow: Any = pa
_parquet: Any = pq


def misfit(parts: Sequence[Part], schema: Schema, mapping: Sequence[MappedField]) -> str | None:
    """Why a file with these columns is none for a table whose name mapping has all of its columns."""
    ids = frozenset(field.id for field in schema.walk())
    if any(p.id is not None for part in parts for p in part.walk()):
        return "it has field ids of another table"
    there = {part.name for part in parts}
    if missing := [name for field in mapping for name in field.names if name not in there]:
        return f"it has no column {missing[0]}, which other files of the table have"
    verdict = judge(parts, schema, mapping, frozenset(), ids)
    beside = next((name for _, name in verdict.ignored), None)
    return verdict.misfit or (None if beside is None else f"column {beside} is not the table's")


def columns(spark: "SparkSession", path: str, size: int) -> tuple[Part, ...]:
    """Raises ValueError for what is no Parquet file that one could use."""
    tail = _tail(spark, path, size, TAIL)
    length: int = struct.unpack("<I", tail[-_END:-4])[0] + _END
    if length > len(tail):
        tail = _tail(spark, path, size, length)
    try:
        return columns_of(_parquet.ParquetFile(_arrow.BufferReader(tail)))
    except (OSError, _arrow.ArrowInvalid) as e:
        raise ValueError(str(e)) from None


def _tail(spark: "SparkSession", path: str, size: int, length: int) -> bytes:
    java = jvm(spark)
    at = java.org.apache.hadoop.fs.Path(path)
    stream = at.getFileSystem(hadoop_conf(spark)).open(at)
    try:
        wanted = min(length, size)
        stream.seek(size - wanted)
        return bytes(java.org.apache.commons.io.IOUtils.toByteArray(stream, wanted))
    finally:
        stream.close()
