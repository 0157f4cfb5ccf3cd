"""The files of snapshots that another catalog's writers have made: all that manifests list and have not removed.

Nothing here was written for us or by us, and nothing is believed: no place is read that `check` does not allow, what is
read is bounded, before and after it is unpacked, and whatever is wrong with it is a 4xx that names the object.

What entries leave out they have from their manifest, and that from the list: sequence numbers, by which deletes are
about older files alone, and in version 3 the ids of rows. Version 1 has none of it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

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

PUFFIN: Final = "PUFFIN"
_SPEC_ID: Final = "partition-spec-id"
# of a manifest that nobody has counted
_NOTHING: Final = (0, 0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class GivenFile:
    """`partition` of the file is the tuple of the spec with this id, as the table's writers know it."""

    spec_id: int
    sequence_number: int
    file: DataFile


DeleteKey: TypeAlias = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """Data files by path; deletes by path, and by their place in it if others are in the same file."""

    data: Mapping[str, GivenFile]
    deletes: Mapping[DeleteKey, GivenFile]


async def read_object(objects: Objects, check: Check, path: str, most: int, what: str) -> bytes:
    """Raises BadRequest if there is none: it is the namespace that a 404 would be about."""
    try:
        found = await objects.get_bounded(check(path), most)
    except ValueError as e:
        raise BadRequest(f"{what} is not read: {e}") from None
    if found is None:
        raise BadRequest(f"{what} does not exist: {path}")
    return found


class GivenSnapshots:
    """Of one table, read one after the other, a manifest once for all that list it in a row. Together they are held to
    what one may have."""

    def __init__(self, objects: Objects, check: Check, specs: Mapping[int, PartitionSpec], format_version: int) -> None:
        self._objects = objects
        self._check = check
        self._specs = specs
        self._format_version = format_version
        self._allowance = Allowance(MOST_UNPACKED)
        self._bytes = MOST_PER_COMMIT
        # of the snapshot that was read last
        self._manifests: dict[str, tuple[ManifestFile, list[GivenFile]]] = {}
        # of all that were read: a file is in memory once, however many manifests list it
        self._files: dict[tuple[int, str, int | None], GivenFile] = {}

    async def live_files(self, snapshot: GivenSnapshot) -> GivenFiles:
        listed = await _listed(self._objects, self._check, snapshot, self._allowance)
        places = {file.manifest_path: self._check(file.manifest_path) for file in listed}
        held = {path: files for path, (_, files) in self._manifests.items()}
        wanted = [file for file in listed if not self._is_held(file)]
        self._bytes -= sum(file.manifest_length for file in wanted)
        if self._bytes < 0:
            raise Unsupported(f"The table has manifests of more than {MOST_PER_COMMIT} bytes, which are not read")
        # to unpack is work of the processor alone, and one after the other they cannot exceed what they share
        unpacking = asyncio.Lock()

        async def one(file: ManifestFile) -> list[GivenFile]:
            data = await _manifest(self._objects, places[file.manifest_path], file)
            async with unpacking:
                return await asyncio.to_thread(_live, file, data, self._allowance, self._specs, self._format_version)

        for file, files in zip(wanted, await each(one, wanted, READS_AT_ONCE), strict=True):
            held[file.manifest_path] = [self._known(given) for given in files]
        self._manifests = {file.manifest_path: (file, held[file.manifest_path]) for file in listed}
        return self._together(snapshot)

    def _is_held(self, file: ManifestFile) -> bool:
        """A list from before row ids has none for a manifest that a later one gives some."""
        if file.manifest_path not in self._manifests:
            return False
        held, _ = self._manifests[file.manifest_path]
        return _inherited(held) == _inherited(file) and file.first_row_id in (None, held.first_row_id)

    def _known(self, given: GivenFile) -> GivenFile:
        file = given.file
        held = self._files.setdefault((file.content, file.file_path, file.content_offset), given)
        if held is not given:
            if _facts(held) != _facts(given) or file.first_row_id not in (None, held.file.first_row_id):
                raise BadRequest(f"File {file.file_path} is listed as two that differ")
        else:
            self._check(file.file_path)
        return held

    def _together(self, snapshot: GivenSnapshot) -> GivenFiles:
        found: dict[str, GivenFile] = {}
        deletes: dict[DeleteKey, GivenFile] = {}
        count = 0
        for _, files in self._manifests.values():
            count += len(files)
            for given in files:
                if given.file.content == DATA:
                    found[given.file.file_path] = given
                else:
                    deletes[given.file.file_path, given.file.content_offset] = given
        if len(found) + len(deletes) < count:
            raise BadRequest(f"Snapshot {snapshot.snapshot_id} lists a file twice")
        return GivenFiles(found, deletes)


def _inherited(file: ManifestFile) -> tuple[int, ...]:
    """What its entries have from it."""
    return file.content, file.partition_spec_id, file.sequence_number, file.manifest_length


def _facts(given: GivenFile) -> tuple[object, ...]:
    """What does not change of a file that stays: metrics may be written anew, and less of them."""
    file = given.file
    return (
        # as text: a NaN does not equal itself
        *(given.spec_id, given.sequence_number, file.file_format, repr(file.partition), file.record_count),
        *(file.file_size_in_bytes, file.content_size_in_bytes, tuple(file.equality_ids or ())),
        file.referenced_data_file if file.file_format == PUFFIN else None,
    )


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
    if len({file.manifest_path for file in found}) < len(found):
        raise BadRequest(f"Snapshot {snapshot.snapshot_id} lists a manifest twice")
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
