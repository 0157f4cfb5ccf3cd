"""Delete files as DuckLake has them: one for each data file, with all that was ever deleted from it.

A commit that deletes more rows of a file takes what deletes from it now (a delete file, positions inlined in Postgres)
and writes all of it into one new file, with the snapshot that each row is deleted from (N§3.5). The first deletes of a
file need no such ids. What must hold, since DuckDB trusts it: positions are unique and ascending, a position that two
sources name has its oldest snapshot, and the count is exact.

The columns are DuckLake's own: optional, under the field ids of Iceberg's `_file`, `_pos` and
`_last_updated_sequence_number`. DuckDB goes by their order.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
from pyroaring import BitMap64

from mergus.ducklake.files import DataFile as LakeFile
from mergus.iceberg.position_deletes import SNAPSHOT_ID_COLUMN
from mergus.materialise.deletes import DatedPositions, read_delete_file
from mergus.materialise.side_file import LAST_UPDATED
from mergus.storage.objects import Objects

# pyarrow has no types; what leaves this module is typed again.
Untyped: TypeAlias = Any
_arrow: Untyped = pa
_parquet: Untyped = pq

FILE_PATH_ID: Final = 2147483646
POSITION_ID: Final = 2147483645

_FOOTER_END: Final = 8


@dataclass(frozen=True, slots=True)
class Folded:
    """A delete file, and what its row in `ducklake_delete_file` says."""

    data: bytes
    count: int
    begin: int
    partial_max: int | None
    footer_size: int


async def dated(objects: Objects, file: LakeFile, inlined: Sequence[tuple[int, int]]) -> DatedPositions:
    """All that deletes from a data file now; `inlined` are positions in Postgres, with their snapshots. Rows of a
    merged file that came later than a snapshot are not deleted, and not among these."""
    parts = [await read_delete_file(objects, delete_file) for delete_file in file.delete_files]
    parts.append(DatedPositions([position for position, _ in inlined], [begin for _, begin in inlined]))
    return await asyncio.to_thread(_merged, parts)


def render(data_path: str, before: DatedPositions | None, new: BitMap64, snapshot_id: int) -> Folded:
    """What was deleted before, and what the snapshot deletes; of that, what was deleted before keeps its snapshot."""
    added = DatedPositions(list(new), [snapshot_id] * len(new))
    every = _merged([added] if before is None else [before, added])
    if not every:
        raise ValueError(f"Nothing is deleted from {data_path}")
    begin, newest = min(every.snapshot_ids), max(every.snapshot_ids)
    paths = _arrow.DictionaryArray.from_arrays(_arrow.repeat(_arrow.scalar(0, _arrow.int32()), len(every)), [data_path])
    columns = [("file_path", FILE_PATH_ID, paths), ("pos", POSITION_ID, _longs(every.positions))]
    if before:
        columns.append((SNAPSHOT_ID_COLUMN, LAST_UPDATED, _longs(every.snapshot_ids)))
    data = _write(columns)
    footer_size = int.from_bytes(data[-_FOOTER_END:-4], "little")
    return Folded(data, len(every), begin, newest if before else None, footer_size)


def _merged(parts: Iterable[DatedPositions]) -> DatedPositions:
    """Ascending, each with its oldest snapshot."""
    of = [_arrow.table([_longs(x.positions), _longs(x.snapshot_ids)], names=["pos", "at"]) for x in parts]
    table = _arrow.concat_tables(of).group_by("pos").aggregate([("at", "min")]).sort_by("pos")
    positions: list[int] = table.column("pos").to_pylist()
    snapshot_ids: list[int] = table.column("at_min").to_pylist()
    return DatedPositions(positions, snapshot_ids)


def _longs(values: Sequence[int]) -> Untyped:
    return _arrow.array(values, _arrow.int64())


def _write(columns: Sequence[tuple[str, int, Untyped]]) -> bytes:
    fields = [_arrow.field(name, x.type, metadata={"PARQUET:field_id": str(i)}) for name, i, x in columns]
    table = _arrow.Table.from_arrays([x for _, _, x in columns], schema=_arrow.schema(fields))
    sink = _arrow.BufferOutputStream()
    # Arrow's own schema is for Arrow: it would make the path a dictionary for those who read it.
    _parquet.write_table(table, sink, compression="zstd", use_dictionary=["file_path"], store_schema=False)
    return sink.getvalue().to_pybytes()
