"""Position delete files: Parquet rows that each name a data file and the position of a deleted row in it.

What we write follows Iceberg v2: both columns required, under Iceberg's field ids, sorted by path and position,
without duplicates. Equal deletes give equal bytes, because objects are named by their content.

DuckLake writes the same rows under other field ids (those of `_file` and `_pos`) and leaves them optional, so
Iceberg readers find no columns in its files and they have to be rewritten. Its files are told from Iceberg's by
nothing that matters: as DuckDB does, `read` takes the first column for the path and the second for the position,
whatever their ids. A third one may be DuckLake's snapshot id of the delete, or Iceberg's `row`, which is skipped.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

from mergus.iceberg import deletion_vector

FILE_PATH_ID = 2147483546
POSITION_ID = 2147483545
SNAPSHOT_ID_COLUMN = "_ducklake_internal_snapshot_id"

# pyarrow has no types; what leaves this module is typed again.
Untyped: TypeAlias = Any
_arrow: Untyped = pa
_parquet: Untyped = pq

_ICEBERG_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": FILE_PATH_ID, "name": "file_path", "required": True, "type": "string"},
        {"id": POSITION_ID, "name": "pos", "required": True, "type": "long"},
    ],
}


@dataclass(frozen=True, slots=True)
class PositionDeletes:
    """The rows of a delete file as columns, in the order of the file.

    In a DuckLake file the path is without meaning: DuckDB ignores it and applies every position to the data file
    that the catalog names, so do not select by it. `snapshot_ids` is None when the file has no such column, and
    then all of its deletes are as old as the file.
    """

    file_paths: list[str | None]
    positions: list[int]
    snapshot_ids: list[int] | None


def write(deletes: Mapping[str, Iterable[int]]) -> bytes:
    """Positions by data file, in any order, with duplicates or without."""
    paths = sorted(deletes)
    positions = [deletion_vector.bitmap(deletes[path]) for path in paths]
    # An index for each row instead of the path: the paths of a large file would not fit into one string array.
    rows = (_arrow.repeat(_arrow.scalar(i, _arrow.int32()), len(found)) for i, found in enumerate(positions))
    index = _arrow.concat_arrays([_arrow.array([], _arrow.int32()), *rows])
    path_column = _arrow.DictionaryArray.from_arrays(index, _arrow.array(paths, _arrow.string()))
    position_column = _arrow.array((x for found in positions for x in found), _arrow.int64())
    schema = _arrow.schema(
        [_required("file_path", path_column.type, FILE_PATH_ID), _required("pos", _arrow.int64(), POSITION_ID)]
    )
    return _write_table(_arrow.Table.from_arrays([path_column, position_column], schema=schema))


def read(data: bytes) -> PositionDeletes:
    """Ours, another Iceberg writer's, or DuckLake's; ValueError for anything else."""
    try:
        table = _read_table(data)
    except (_arrow.ArrowException, OSError) as e:
        raise ValueError(f"Position delete file is not readable Parquet: {e}") from None
    positions = _integers(table.column(1), "position")
    if any(x < 0 for x in positions):
        raise ValueError("Position delete file has a negative position")
    snapshot_ids = _integers(table.column(2), "snapshot id") if table.num_columns > 2 else None
    return PositionDeletes(_strings(table.column(0)), positions, snapshot_ids)


def _required(name: str, data_type: Untyped, field_id: int) -> Untyped:
    return _arrow.field(name, data_type, nullable=False, metadata={"PARQUET:field_id": str(field_id)})


def _write_table(table: Untyped) -> bytes:
    sink = _arrow.BufferOutputStream()
    writer = _parquet.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=["file_path"],
        # Arrow's own schema is for Arrow: it would make the path a dictionary for those who read it.
        store_schema=False,
        write_page_checksum=True,
    )
    with writer:
        writer.write_table(table)
        # As Iceberg's Java library does.
        writer.add_key_value_metadata(
            {"delete-type": "position", "iceberg.schema": orjson.dumps(_ICEBERG_SCHEMA).decode()}
        )
    return sink.getvalue().to_pybytes()


def _read_table(data: bytes) -> Untyped:
    """Path and position, and the snapshot id if there is one."""
    file = _parquet.ParquetFile(_arrow.BufferReader(data), page_checksum_verification=True)
    schema = file.schema_arrow
    if len(schema) not in (2, 3) or not _is_string(schema.field(0).type) or schema.field(1).type != _arrow.int64():
        raise ValueError(
            "Position delete file must have a string, a long and at most one more column; "
            f"it has {[f'{x.name}: {x.type}' for x in schema]}"
        )
    columns = list(range(2))
    if len(schema) == 3 and schema.field(2).name == SNAPSHOT_ID_COLUMN and schema.field(2).type == _arrow.int64():
        columns.append(2)
    table = file.read(columns=[schema.field(i).name for i in columns])
    # Read by name, but names need not be unique.
    if table.num_columns != len(columns):
        raise ValueError("Position delete file has two columns of the same name")
    table.validate(full=True)
    return table


def _is_string(data_type: Untyped) -> bool:
    return bool(_arrow.types.is_string(data_type) or _arrow.types.is_large_string(data_type))


def _integers(column: Untyped, what: str) -> list[int]:
    if column.null_count:
        raise ValueError(f"Position delete file has a row without a {what}")
    found: list[int] = column.to_pylist()
    return found


def _strings(column: Untyped) -> list[str | None]:
    """One object for equal paths: there are few paths and many rows."""
    found: list[str | None] = []
    for chunk in column.chunks:
        encoded = chunk.dictionary_encode()
        paths: list[str] = encoded.dictionary.to_pylist()
        indices: list[int | None] = encoded.indices.to_pylist()
        found += [None if i is None else paths[i] for i in indices]
    return found
