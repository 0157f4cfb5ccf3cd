"""Files in which some rows have an id and others are to get one: written again, with an id for every row.

To Iceberg a `_row_id` that is NULL means "count from the file's first row id", and Spark's MERGE writes files of rows
that it moved, with their ids, and of new ones, without. To DuckDB it is no id at all (H37). So such a file is copied
with the column filled in.

What must hold: every other column is in the copy byte for byte, with all that the footer says about it. No values are
decoded but row ids, so the copy reads as the file does, whatever its types are and however its writer stored them. Only
what helps to skip rows, and lies outside of the columns, is left out: page indexes and Bloom filters.

`_last_updated_sequence_number` keeps its NULLs: it is only known when the commit is made, and both engines take them
for the snapshot that the file came with.
"""

import asyncio
import io
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

from mergus.errors import Unsupported
from mergus.iceberg import thrift
from mergus.iceberg.thrift import Struct, Value
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
COPIED_AT_ONCE: Final = 8 * 1024 * 1024
# a byte of it takes some hundred bytes of memory
MOST_FOOTER: Final = 16 * 1024 * 1024

_FIELD_ID: Final = b"PARQUET:field_id"
_MAGIC: Final = b"PAR1"
_FOOTER_END: Final = 8
# The fields of Parquet's structs, as parquet.thrift numbers them.
_ROW_GROUPS: Final = 4
_CHUNKS, _GROUP_BYTES, _GROUP_OFFSET, _GROUP_COMPRESSED = 1, 2, 5, 6
_CHUNK_FILE, _CHUNK_OFFSET, _META_DATA, _CRYPTO = 1, 2, 3, 8
_PAGE_INDEXES: Final = (4, 5, 6, 7)
_UNCOMPRESSED, _COMPRESSED = 6, 7
_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE = 9, 10, 11
_BLOOM_FILTER: Final = (14, 15)


def fill(source: BinaryIO, first_row_id: int, target: BinaryIO) -> None:
    """Row by row as it was; a row without an id gets that of its position, counted from the first. Raises ValueError
    for a file that is encrypted, or not what its footer says."""
    opened = _parquet.ParquetFile(source)
    leaf = _row_id_leaf(opened)
    name = opened.schema.column(leaf).name
    # as the column is that takes its place
    if (opened.schema.column(leaf).max_definition_level, opened.schema.column(leaf).max_repetition_level) != (1, 0):
        raise ValueError("its row ids are not optional")
    footer = _read_footer(source)
    position = first_row_id
    target.write(_MAGIC)
    for index, group in enumerate(footer[_ROW_GROUPS].content):
        start = target.tell()
        rows = opened.metadata.row_group(index).num_rows
        chunks: list[Value] = group.content[_CHUNKS].content
        for i, chunk in enumerate(chunks):
            # a group of no rows has nothing to fill in
            if i != leaf or not rows:
                _copy_chunk(chunk.content, source, target)
                continue
            column = opened.read_row_group(index, columns=[name]).column(0)
            counted = _arrow.array(range(position, position + rows), _arrow.int64())
            filled, data = _encode_ids(name, _compute.coalesce(column, counted))
            _add_sizes(group.content, chunk.content, -1)
            _add_sizes(group.content, filled.content, 1)
            _copy_chunk(filled.content, data, target)
            chunks[i] = filled
        if _GROUP_OFFSET in group.content:
            group.content[_GROUP_OFFSET].content = start
        position += rows
    written = thrift.encode(footer)
    target.write(written + len(written).to_bytes(4, "little") + _MAGIC)


def _row_id_leaf(opened: Untyped) -> int:
    """Leaves are counted, and a column before it may have several. Raises ValueError."""
    name = next(field.name for field in opened.schema_arrow if _id(field) == ROW_ID)
    # what has a dot in its name may be called as a part of another column is
    leaves = [i for i in range(len(opened.schema)) if opened.schema.column(i).path == name]
    if len(leaves) != 1 or opened.schema.column(leaves[0]).physical_type != "INT64":
        raise ValueError(f"its column {name} is not one of longs")
    return leaves[0]


def _read_footer(file: BinaryIO) -> Struct:
    end = file.seek(-_FOOTER_END, io.SEEK_END)
    size, magic = int.from_bytes(file.read(4), "little"), file.read(4)
    # an encrypted one has another
    if magic != _MAGIC or size > min(end, MOST_FOOTER):
        raise ValueError(f"its footer of {size} bytes is encrypted or too large")
    file.seek(end - size)
    return thrift.decode(file.read(size))


def _encode_ids(name: str, ids: Untyped) -> tuple[Value, BinaryIO]:
    """The column alone, as a file of one group, and what that file says of it."""
    sink = io.BytesIO()
    # the codec that Iceberg's writers use unless they are told another
    how = {"compression": "zstd", "use_dictionary": False, "store_schema": False}
    _parquet.write_table(_arrow.table({name: ids}), sink, row_group_size=len(ids), **how)
    (group,) = _read_footer(sink)[_ROW_GROUPS].content
    (chunk,) = group.content[_CHUNKS].content
    return chunk, sink


def _add_sizes(group: Struct, chunk: Struct, sign: int) -> None:
    meta: Struct = chunk[_META_DATA].content
    group[_GROUP_BYTES].content += sign * meta[_UNCOMPRESSED].content
    if _GROUP_COMPRESSED in group:
        group[_GROUP_COMPRESSED].content += sign * meta[_COMPRESSED].content


def _copy_chunk(chunk: Struct, source: BinaryIO, target: BinaryIO) -> None:
    """The pages of a column to where the target ends, and the places of them that the chunk says."""
    if _CHUNK_FILE in chunk or _CRYPTO in chunk:
        raise ValueError("a column of it is encrypted or in another file")
    meta: Struct = chunk[_META_DATA].content
    start: int = meta[_DATA_PAGE].content
    # 0 is where the file begins, and to some writers none at all
    if _DICTIONARY_PAGE in meta and 0 < meta[_DICTIONARY_PAGE].content < start:
        start = meta[_DICTIONARY_PAGE].content
    moved = target.tell() - start
    source.seek(start)
    left: int = meta[_COMPRESSED].content
    while left > 0:
        data = source.read(min(left, COPIED_AT_ONCE))
        if not data:
            raise ValueError("a column of it is shorter than its footer says")
        left -= target.write(data)
    for place in (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE):
        if place in meta and meta[place].content > 0:
            meta[place].content += moved
    # Parquet wants 0 where the footer alone describes the column
    chunk[_CHUNK_OFFSET].content = 0
    for gone in _PAGE_INDEXES:
        chunk.pop(gone, None)
    for gone in _BLOOM_FILTER:
        meta.pop(gone, None)


def _id(field: Untyped) -> int | None:
    tags: dict[bytes, bytes] = field.metadata or {}
    return int(tags[_FIELD_ID]) if _FIELD_ID in tags else None


async def highest(objects: Objects, files: Sequence[Location]) -> list[int]:
    """The highest id that each of these files has in it, as its footer tells. Raises Unsupported if it does not."""

    def one(file: Location) -> int:
        opened = _parquet.ParquetFile(objects.open(file))
        try:
            leaf = _row_id_leaf(opened)
        except ValueError as e:
            raise Unsupported(f"Data file {file} has row ids that cannot be read: {e}") from None
        found = [opened.metadata.row_group(i).column(leaf).statistics for i in range(opened.num_row_groups)]
        if any(s is None or not (s.has_min_max or s.num_values == 0) for s in found):
            raise Unsupported(f"Data file {file} has row ids, and does not say which")
        return max((s.max for s in found if s.has_min_max), default=-1)

    return await each(lambda file: asyncio.to_thread(one, file), files, READS_AT_ONCE)


async def write_filled(objects: Objects, source: Location, first_row_id: int, target: Location) -> int:
    """The size of the copy. Raises Unsupported for a file that cannot be copied."""
    with tempfile.TemporaryDirectory(prefix="mergus-row-ids-") as folder:
        original, copy = Path(folder, "original.parquet"), Path(folder, "copy.parquet")
        await asyncio.to_thread(_fill_copy, objects, source, first_row_id, original, copy)
        return await objects.put_file(target, copy)


def _fill_copy(objects: Objects, source: Location, first_row_id: int, original: Path, copy: Path) -> None:
    with objects.open(source) as remote, original.open("wb") as local:
        shutil.copyfileobj(remote, local, COPIED_AT_ONCE)
    try:
        with original.open("rb") as opened, copy.open("wb") as target:
            fill(opened, first_row_id, target)
    except (ValueError, LookupError, AttributeError, TypeError, _arrow.ArrowException) as e:
        raise Unsupported(
            f"Data file {source} has rows without an id, and cannot be copied with an id for each: {e}. "
            "Write its rows anew, with INSERT or a MERGE that rewrites them"
        ) from None
