"""The files of a snapshot that another catalog's writers have made: all that its manifests list and have not removed.

Nothing here was written for us or by us, and nothing is believed: no place is read that `check` does not allow, what is
read is bounded, before and after it is unpacked, and whatever is wrong with it is a 4xx that names the object.

What entries leave out they have from their manifest, and that from the list: sequence numbers, by which deletes are
about older files alone, and in version 3 the ids of rows. Version 1 has none of it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mergus.errors import BadRequest, Unsupported
from mergus.iceberg import manifest, manifest_list
from mergus.iceberg.avro import Allowance
from mergus.iceberg.manifest import DATA, DELETED, DataFile, Entry
from mergus.iceberg.manifest_list import ManifestFile
from mergus.iceberg.metadata_parse import GivenSnapshot, plain
from mergus.iceberg.partition_spec import PartitionSpec
from mergus.materialise.at_once import each
from mergus.materialise.incoming import (
    MOST_MANIFESTS,
    MOST_PER_COMMIT,
    MOST_PER_OBJECT,
    MOST_UNPACKED,
    READS_AT_ONCE,
    Check,
    check_file,
)
from mergus.storage.location import Location
from mergus.storage.objects import Objects

_SPEC_ID: Final = "partition-spec-id"
# of a manifest that nobody has counted
_NOTHING: Final = (0, 0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class GivenFile:
    """`partition` of the file is the tuple of the spec with this id, as the table's writers know it."""

    spec_id: int
    sequence_number: int
    file: DataFile


@dataclass(frozen=True, slots=True)
class GivenFiles:
    data: list[GivenFile]
    deletes: list[GivenFile]


async def read_object(objects: Objects, check: Check, path: str, most: int, what: str) -> bytes:
    """Raises BadRequest if there is none: it is the namespace that a 404 would be about."""
    try:
        found = await objects.get_bounded(check(path), most)
    except ValueError as e:
        raise BadRequest(f"{what} is not read: {e}") from None
    if found is None:
        raise BadRequest(f"{what} does not exist: {path}")
    return found


async def live_files(
    objects: Objects, check: Check, snapshot: GivenSnapshot, specs: Mapping[int, PartitionSpec], format_version: int
) -> GivenFiles:
    allowance = Allowance(MOST_UNPACKED)
    listed = await _listed(objects, check, snapshot, allowance)
    places = {file.manifest_path: check(file.manifest_path) for file in listed}
    # to unpack is work of the processor alone, and one after the other they cannot exceed what they share
    unpacking = asyncio.Lock()

    async def one(file: ManifestFile) -> list[GivenFile]:
        data = await _manifest(objects, places[file.manifest_path], file)
        async with unpacking:
            return await asyncio.to_thread(_live, file, data, allowance, specs, format_version)

    found = GivenFiles([], [])
    seen: set[tuple[int, str, int | None]] = set()
    for files in await each(one, listed, READS_AT_ONCE):
        for given in files:
            file = given.file
            key = (file.content, file.file_path, file.content_offset)
            if key in seen:
                raise BadRequest(f"Snapshot {snapshot.snapshot_id} lists a file twice: {file.file_path}")
            seen.add(key)
            check(file.file_path)
            (found.data if file.content == DATA else found.deletes).append(given)
    return found


async def _listed(
    objects: Objects, check: Check, snapshot: GivenSnapshot, allowance: Allowance
) -> Sequence[ManifestFile]:
    """One that the snapshot names itself has no length, and says its spec itself."""
    if snapshot.manifest_list is None:
        found = [ManifestFile(path, 0, -1, manifest_list.DATA, *_NOTHING) for path in snapshot.manifests]
    else:
        path = plain(snapshot.manifest_list)
        data = await read_object(objects, check, path, MOST_PER_OBJECT, "Manifest list")
        try:
            found = await asyncio.to_thread(manifest_list.read_given, data, allowance)
        except ValueError as e:
            raise BadRequest(f"Manifest list {path} cannot be read: {e}") from None
    if len(found) > MOST_MANIFESTS:
        raise Unsupported(f"The table has {len(found)} manifests, and {MOST_MANIFESTS} at most are read")
    found = [replace(file, manifest_path=plain(file.manifest_path)) for file in found]
    for file in found:
        if file.key_metadata:
            raise Unsupported(f"Manifest {file.manifest_path} is encrypted")
        if not 0 <= file.manifest_length <= MOST_PER_OBJECT:
            raise Unsupported(f"Manifest {file.manifest_path} has {file.manifest_length} bytes")
    if (total := sum(file.manifest_length for file in found)) > MOST_PER_COMMIT:
        raise Unsupported(f"The table has manifests of {total} bytes, and {MOST_PER_COMMIT} at most are read")
    return found


async def _manifest(objects: Objects, place: Location, file: ManifestFile) -> bytes:
    try:
        data = await objects.get_bounded(place, file.manifest_length or MOST_PER_OBJECT)
    except ValueError as e:
        raise BadRequest(f"Manifest {file.manifest_path} is not what the list says: {e}") from None
    if data is None:
        raise BadRequest(f"Manifest does not exist: {file.manifest_path}")
    return data


def _live(
    file: ManifestFile, data: bytes, allowance: Allowance, specs: Mapping[int, PartitionSpec], format_version: int
) -> list[GivenFile]:
    name = f"Manifest {file.manifest_path}"
    try:
        metadata, entries = manifest.read_given(data, allowance)
        field_ids = manifest.partition_field_ids(data)
        spec_id = file.partition_spec_id if file.partition_spec_id >= 0 else int(metadata.get(_SPEC_ID, "0"))
    except ValueError as e:
        raise BadRequest(f"{name} cannot be read: {e}") from None
    if (spec := specs.get(spec_id)) is None:
        raise BadRequest(f"{name} has partition spec {spec_id}, which is not known")
    expected = [f.field_id for f in spec.fields]
    # version 1 went by the order of fields
    if field_ids != expected and (format_version > 1 or len(field_ids) != len(expected)):
        raise BadRequest(f"{name} has the partition fields {field_ids}, and spec {spec_id} has {expected}")
    found: list[GivenFile] = []
    next_row_id = file.first_row_id
    for entry in entries:
        if entry.status == DELETED:
            continue
        check_file(entry.data_file)
        if (entry.data_file.content == DATA) != (file.content == manifest_list.DATA):
            raise BadRequest(f"{name} lists a file of another content than its own: {entry.data_file.file_path}")
        # where a delete file says the same of a data file, it is as it is written in there
        shown = replace(entry.data_file, file_path=plain(entry.data_file.file_path))
        if shown.content == DATA and shown.first_row_id is None and next_row_id is not None:
            shown = replace(shown, first_row_id=next_row_id)
            next_row_id += shown.record_count
        found.append(GivenFile(spec_id, _sequence_number(entry, file), shown))
    return found


def _sequence_number(entry: Entry, file: ManifestFile) -> int:
    return file.sequence_number if entry.sequence_number is None else entry.sequence_number
