"""Files in which some rows have an id and others are to get one: written again, with an id for every row.

To Iceberg a `_row_id` that is NULL means "count from the file's first row id", and Spark's MERGE writes files of rows
that it moved, with their ids, and of new ones, without. To DuckDB it is no id at all (H37). So such a file is copied
with the column filled in; everything else in it stays as it is, or the copy is refused.

`_last_updated_sequence_number` keeps its NULLs: it is only known when the commit is made, and both engines take them
for the snapshot that the file came with.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

from mergus.errors import Unsupported
from mergus.materialise.at_once import each
from mergus.materialise.side_file import ROW_ID
from mergus.storage.location import Location
from mergus.storage.objects import Objects

# pyarrow has no types; what leaves this module is typed again.
Untyped: TypeAlias = Any
_arrow: Untyped = pa
_compute: Untyped = pc
_parquet: Untyped = pq

READS_AT_ONCE: Final = 8
_FIELD_ID: Final = b"PARQUET:field_id"


def fill(objects: Objects, source: Location, first_row_id: int, target: Path) -> None:
    """Row by row as it was; a row without an id gets that of its position, counted from the first."""
    opened = _parquet.ParquetFile(objects.open(source))
    schema = opened.schema_arrow
    index = next(i for i, field in enumerate(schema) if _id(field) == ROW_ID)
    position = first_row_id
    compression = opened.metadata.row_group(0).column(0).compression if opened.num_row_groups else "zstd"
    with _parquet.ParquetWriter(target, schema, compression=compression, store_schema=False) as writer:
        for group in range(opened.num_row_groups):
            table = opened.read_row_group(group)
            counted = _arrow.array(range(position, position + table.num_rows), _arrow.int64())
            filled = _compute.coalesce(table.column(index), counted)
            writer.write_table(table.set_column(index, schema.field(index), filled))
            position += table.num_rows
    if _parquet.ParquetFile(target).schema.to_arrow_schema() != schema or _kinds(target) != _kinds(opened):
        raise Unsupported(f"Data file {source} has rows without an id, and cannot be written again as it is")


def _kinds(file: Untyped) -> list[str]:
    """How each leaf is stored."""
    opened = _parquet.ParquetFile(file) if isinstance(file, Path) else file
    leaves = (opened.schema.column(i) for i in range(len(opened.schema)))
    return [f"{c.path} {c.physical_type} {c.logical_type}" for c in leaves]


def _id(field: Untyped) -> int | None:
    tags: dict[bytes, bytes] = field.metadata or {}
    return int(tags[_FIELD_ID]) if _FIELD_ID in tags else None


async def highest(objects: Objects, files: Sequence[Location]) -> list[int]:
    """The highest id that each of these files has in it, as its footer tells. Raises Unsupported if it does not."""

    def one(file: Location) -> int:
        opened = _parquet.ParquetFile(objects.open(file))
        index = next(i for i, field in enumerate(opened.schema_arrow) if _id(field) == ROW_ID)
        # leaves are counted, and a column before it may have several
        name = opened.schema_arrow.field(index).name
        leaf = next(i for i in range(len(opened.schema)) if opened.schema.column(i).path == name)
        found = [opened.metadata.row_group(i).column(leaf).statistics for i in range(opened.num_row_groups)]
        if any(s is None or not (s.has_min_max or s.num_values == 0) for s in found):
            raise Unsupported(f"Data file {file} has row ids, and does not say which")
        return max((s.max for s in found if s.has_min_max), default=-1)

    return await each(lambda file: asyncio.to_thread(one, file), files, READS_AT_ONCE)


async def write_filled(objects: Objects, source: Location, first_row_id: int, target: Location) -> int:
    """The size of the copy."""
    with tempfile.TemporaryDirectory(prefix="mergus-row-ids-") as folder:
        copy = Path(folder, "copy.parquet")
        await asyncio.to_thread(fill, objects, source, first_row_id, copy)
        return await objects.put_file(target, copy)
