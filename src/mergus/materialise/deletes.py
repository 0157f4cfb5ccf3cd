"""Which rows of a data file are not there at a snapshot, and the delete files that say so to Iceberg's readers.

DuckLake's own delete files have other field ids and are never shown: what they and the inlined deletes say is written
again, for each data file as one set, because deletes of a file with rows of several snapshots come *and go* from one
snapshot to the next. Each set is an object of its own, Parquet in version 2 and Puffin in version 3. A Puffin file
could hold many, but PyIceberg 0.12 applies all that are in a file of which it is to take one, and DuckDB 1.5.5 may take
the first for another.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
from pyroaring import BitMap64

from mergus import __version__
from mergus.ducklake.files import DataFile as LakeFile
from mergus.ducklake.files import DeleteFile
from mergus.iceberg import deletion_vector, position_deletes, puffin
from mergus.iceberg.manifest import POSITION_DELETES, DataFile, PartitionValue
from mergus.iceberg.position_deletes import FILE_PATH_ID, SNAPSHOT_ID_COLUMN
from mergus.materialise.kept import Kept
from mergus.materialise.layout import Layout
from mergus.storage.location import Location
from mergus.storage.objects import Objects

Untyped: TypeAlias = Any
_parquet: Untyped = pq

CREATED_BY: Final = f"Mergus {__version__}"
# of what was read from storage, for the next snapshot of the same history
_KEPT_POSITIONS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """A data file with the rows that are deleted from it."""

    file_path: str
    spec_id: int
    partition: tuple[PartitionValue, ...]
    positions: BitMap64


@dataclass(frozen=True, slots=True)
class DatedPositions:
    """Positions with the snapshot from which on they count, as two columns."""

    positions: Sequence[int]
    snapshot_ids: Sequence[int]

    def __len__(self) -> int:
        return len(self.positions)

    def upto(self, at: int) -> BitMap64:
        return BitMap64(p for p, s in zip(self.positions, self.snapshot_ids, strict=True) if s <= at)

    def after(self, at: int) -> BitMap64:
        return BitMap64(p for p, s in zip(self.positions, self.snapshot_ids, strict=True) if s > at)


async def read_delete_file(objects: Objects, file: DeleteFile) -> DatedPositions:
    """Of DuckLake's. One that says no snapshots is about that which it began with."""
    data = await objects.get(Location.parse(file.path))
    if data is None:
        raise FileNotFoundError(f"DuckLake's delete file is missing: {file.path}")
    if file.format == "puffin":
        positions, snapshot_ids = list(deletion_vector.decode(data)), None
    else:
        found = await asyncio.to_thread(position_deletes.read, data)
        positions, snapshot_ids = found.positions, found.snapshot_ids
    return DatedPositions(positions, snapshot_ids or [file.begin_snapshot] * len(positions))


class DeletedRows:
    """Reads what DuckLake says about deleted rows. Its files never change under one name, so they are kept a while."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._kept = Kept[DatedPositions](_KEPT_POSITIONS)

    async def of(self, file: LakeFile, at: int) -> BitMap64:
        found = deletion_vector.bitmap(file.inlined_deletes)
        for delete_file in file.delete_files:
            found |= (await self._delete_file(delete_file)).upto(at)
        if not file.is_whole_at(at):
            found |= (await self._row_snapshots(file)).after(at)
        return found

    async def _delete_file(self, file: DeleteFile) -> DatedPositions:
        if (kept := self._kept.get(file.path)) is not None:
            return kept
        return self._kept.keep(file.path, await read_delete_file(self._objects, file))

    async def _row_snapshots(self, file: LakeFile) -> DatedPositions:
        """The snapshot of every row of a file with rows of several."""
        if (kept := self._kept.get(file.path)) is not None:
            return kept
        snapshot_ids = await asyncio.to_thread(_read_snapshot_ids, self._objects, Location.parse(file.path))
        return self._kept.keep(file.path, DatedPositions(range(len(snapshot_ids)), snapshot_ids))


def _read_snapshot_ids(objects: Objects, location: Location) -> list[int]:
    table = _parquet.ParquetFile(objects.open(location)).read(columns=[SNAPSHOT_ID_COLUMN])
    found: list[int] = table.column(0).to_pylist()
    return found


@dataclass(frozen=True, slots=True)
class Rendered:
    """An object, and the entry that leads to it."""

    location: Location
    data: bytes
    entry: DataFile


def render(layout: Layout, target: Target, format_version: int) -> Rendered:
    return _vector(layout, target) if format_version >= 3 else _positions(layout, target)


def _positions(layout: Layout, target: Target) -> Rendered:
    data = position_deletes.write({target.file_path: target.positions})
    location = layout.deletes(data, "parquet")
    # equal bounds of the path are how older readers know that a delete file is about one data file
    path = {FILE_PATH_ID: target.file_path.encode()}
    entry = _entry(target, str(location), "PARQUET", len(data))
    return Rendered(location, data, replace(entry, lower_bounds=path, upper_bounds=path))


def _vector(layout: Layout, target: Target) -> Rendered:
    blob = puffin.deletion_vector(target.file_path, target.positions)
    file = puffin.write([blob], {puffin.CREATED_BY: CREATED_BY})
    location = layout.deletes(file.data, "puffin")
    (placed,) = file.blobs
    entry = _entry(target, str(location), "PUFFIN", len(file.data))
    placed_entry = replace(entry, content_offset=placed.offset, content_size_in_bytes=placed.length)
    return Rendered(location, file.data, placed_entry)


def _entry(target: Target, path: str, file_format: str, size: int) -> DataFile:
    return DataFile(
        content=POSITION_DELETES,
        file_path=path,
        file_format=file_format,
        partition=target.partition,
        record_count=len(target.positions),
        file_size_in_bytes=size,
        referenced_data_file=target.file_path,
    )
