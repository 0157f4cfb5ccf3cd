"""The rows that a client deletes by position: from its delete files and deletion vectors to one set for each data file.

A delete file of Iceberg may be about many data files, and its rows come in any order, some twice (H33, H35). A deletion
vector is about one, and stands for every row that is deleted from it, whoever deleted it (H34): what is new in it is
for the caller to tell, and so is whether the data file is there and has as many rows.

Nothing that a client wrote is believed: files are read in parts and vectors by their place, both are bounded, and what
is not as its entry says is a BadRequest that names it. A set is a bitmap, and may be of more rows than memory has room
for numbers: it must not be listed before its largest position is known to be one of the data file.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
from pyroaring import BitMap64

from mergus.errors import BadRequest
from mergus.iceberg import deletion_vector
from mergus.iceberg.manifest import POSITION_DELETES, DataFile
from mergus.iceberg.position_deletes import FILE_PATH_ID, POSITION_ID
from mergus.materialise.at_once import each
from mergus.materialise.incoming import AddedDelete, Check
from mergus.storage.location import Location
from mergus.storage.objects import Objects

# pyarrow has no types; what leaves this module is typed again.
Untyped: TypeAlias = Any
_arrow: Untyped = pa
_parquet: Untyped = pq

READS_AT_ONCE: Final = 4
BATCH_ROWS: Final = 65_536
MOST_PER_VECTOR: Final = 64 * 1024 * 1024
# Of one column within one row group, as the footer has it; Parquet packs equal paths a thousand to one.
MOST_PER_CHUNK: Final = 1024 * 1024 * 1024

_FIELD_ID: Final = b"PARQUET:field_id"


async def positions(objects: Objects, check: Check, deletes: Sequence[AddedDelete]) -> dict[str, BitMap64]:
    """By the path of the data file, of all position deletes among these; equality deletes are left alone."""
    files = [x.file for x in deletes if x.file.content == POSITION_DELETES]
    vectors = Counter(file.referenced_data_file for file in files if file.file_format == "PUFFIN")
    if twice := [path for path, count in vectors.items() if count > 1]:
        raise BadRequest(f"Two deletion vectors are added for one data file: {twice[0]}")
    places = {file.file_path: check(file.file_path, deletes=True) for file in files}
    sizes = dict(zip(places, await each(objects.size, places.values(), READS_AT_ONCE), strict=True))

    async def one(file: DataFile) -> dict[str, BitMap64]:
        size = sizes[file.file_path]
        if size is None:
            raise BadRequest(f"Delete file is missing: {file.file_path}")
        if size != file.file_size_in_bytes:
            reason = f"it has {size} bytes, and its entry says {file.file_size_in_bytes}"
            raise BadRequest(f"Delete file {file.file_path} is not what its entry says: {reason}")
        if file.file_format == "PUFFIN":
            return await _vector(objects, places[file.file_path], file)
        return await asyncio.to_thread(_delete_file, objects, places[file.file_path], file)

    found: defaultdict[str, BitMap64] = defaultdict(BitMap64)
    for part in await each(one, files, READS_AT_ONCE):
        for path, deleted in part.items():
            found[path] |= deleted
    return dict(found)


async def _vector(objects: Objects, place: Location, file: DataFile) -> dict[str, BitMap64]:
    offset, length, path = file.content_offset, file.content_size_in_bytes, file.referenced_data_file
    if offset is None or length is None or path is None:
        raise BadRequest(f"Deletion vector has no place or no data file: {file.file_path}")
    name = f"Deletion vector at {offset} of {file.file_path}"
    if not 0 < length <= MOST_PER_VECTOR:
        raise BadRequest(f"{name} may have up to {MOST_PER_VECTOR} bytes, and its entry says {length}")
    if offset < 0 or offset + length > file.file_size_in_bytes:
        raise BadRequest(f"{name} lies outside of its file")
    blob = await objects.get_range(place, offset, length)
    if blob is None:
        raise BadRequest(f"Delete file is missing: {file.file_path}")
    try:
        deleted = await asyncio.to_thread(deletion_vector.decode, blob)
    except ValueError as e:
        raise BadRequest(f"{name} cannot be read: {e}") from None
    if len(deleted) != file.record_count:
        raise BadRequest(f"{name} has {len(deleted)} positions, and its entry says {file.record_count}")
    return {path: deleted}


def _delete_file(objects: Objects, place: Location, file: DataFile) -> dict[str, BitMap64]:
    name = f"Position delete file {file.file_path}"
    found: defaultdict[str, BitMap64] = defaultdict(BitMap64)
    rows = 0
    try:
        for batch in _batches(objects, place):
            rows += batch.num_rows
            for path, deleted in _by_path(batch):
                found[path] |= deleted
    except FileNotFoundError:
        raise BadRequest(f"Delete file is missing: {file.file_path}") from None
    except (OSError, ValueError, _arrow.ArrowException) as e:
        raise BadRequest(f"{name} cannot be read: {e}") from None
    if rows != file.record_count:
        raise BadRequest(f"{name} has {rows} rows, and its entry says {file.record_count}")
    if file.referenced_data_file is not None and found.keys() - {file.referenced_data_file}:
        reason = f"is said to be about {file.referenced_data_file} alone, and is not"
        raise BadRequest(f"{name} {reason}")
    return found


def _batches(objects: Objects, place: Location) -> Iterator[Untyped]:
    """Of path and position. Column `row` of Iceberg, if there is one, is not read."""
    opened = _parquet.ParquetFile(objects.open(place), page_checksum_verification=True)
    names = _columns(opened.schema_arrow)
    for group in range(opened.num_row_groups):
        columns = opened.metadata.row_group(group)
        if any(columns.column(i).total_uncompressed_size > MOST_PER_CHUNK for i in range(columns.num_columns)):
            raise ValueError(f"a row group has more than {MOST_PER_CHUNK} bytes in a column")
    yield from opened.iter_batches(batch_size=BATCH_ROWS, columns=names, use_threads=False)


def _columns(schema: Untyped) -> list[str]:
    """Names of path and position, by Iceberg's ids for them, or else by Iceberg's names."""
    path, position = _column(schema, FILE_PATH_ID, "file_path"), _column(schema, POSITION_ID, "pos")
    types = _arrow.types
    if not (types.is_string(path.type) or types.is_large_string(path.type)) or not types.is_int64(position.type):
        raise ValueError(f"path and position are of the types {path.type} and {position.type}")
    return [path.name, position.name]


def _column(schema: Untyped, field_id: int, name: str) -> Untyped:
    tag = {_FIELD_ID: str(field_id).encode()}
    fields: list[Untyped] = list(schema)
    found = [f for f in fields if f.metadata and tag.items() <= f.metadata.items()] or [
        f for f in fields if f.name == name
    ]
    # columns are read by name, and two may have the same
    if len(found) != 1 or sum(f.name == found[0].name for f in fields) != 1:
        raise ValueError(f"it has no column {name}, or more than one")
    return found[0]


def _by_path(batch: Untyped) -> Iterator[tuple[str, BitMap64]]:
    # in the order of the file, which need not be that which was asked for
    paths = next(c for c in batch.columns if not _arrow.types.is_int64(c.type))
    deleted = next(c for c in batch.columns if _arrow.types.is_int64(c.type))
    if paths.null_count or deleted.null_count:
        raise ValueError("it has a row without a path or a position")
    # bytes that are no text would be found out while they are used
    paths.validate(full=True)
    groups = _arrow.table([paths, deleted], names=["path", "pos"]).group_by("path").aggregate([("pos", "list")])
    for path, found in zip(groups.column("path"), groups.column("pos_list"), strict=True):
        yield path.as_py(), deletion_vector.bitmap(found.values.to_pylist())
