"""What a snapshot of a client's changes: the files that it lists, against those that the snapshot before it lists.

The client has written a manifest list and manifests, and everything that it did not change it names as it found it.
What it added and removed is the difference of two sets, live entries of the one and of the other, and so it is exact
whatever the entries say of themselves: a writer that merged manifests, left a removed file out, or wrote an old
snapshot's id into an entry (DuckDB 1.5.5 does) has changed what the sets say it has.

Nothing that a client wrote is believed. No place is read that `check` does not allow, what is read is bounded, before
and after it is unpacked, and whatever is wrong with it is a 4xx that names the object. What cannot be known here: a
file that is added may be listed by a manifest that both snapshots have, and those are not read. The lake knows its
paths, so that is looked for where the commit is made (H43).
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from mergus.errors import BadRequest, CommitFailed, Unsupported
from mergus.iceberg import manifest, manifest_list
from mergus.iceberg.avro import Allowance
from mergus.iceberg.manifest import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    POSITION_DELETES,
    DataFile,
    Entry,
)
from mergus.iceberg.manifest_list import ManifestFile
from mergus.iceberg.partition_spec import PartitionSpec
from mergus.materialise.at_once import each
from mergus.materialise.layout import rows_range
from mergus.materialise.manifests import Manifests
from mergus.storage.location import Location
from mergus.storage.objects import Objects

# Where a client may have put something; raises Forbidden or BadRequest.


class Check(Protocol):
    """The place of a file that a client names, if it may."""

    def __call__(self, text: str, /, *, deletes: bool = False) -> Location: ...


Key: TypeAlias = tuple[bool, str, int | None, str | None]

MOST_PER_OBJECT: Final = 64 * 1024 * 1024
MOST_PER_COMMIT: Final = 512 * 1024 * 1024
MOST_UNPACKED: Final = 512 * 1024 * 1024
MOST_MANIFESTS: Final = 10_000
READS_AT_ONCE: Final = 8

_FORMATS: Final = {
    DATA: frozenset({"PARQUET"}),
    POSITION_DELETES: frozenset({"PARQUET", "PUFFIN"}),
    EQUALITY_DELETES: frozenset({"PARQUET"}),
}
_CONTENTS: Final = {
    manifest_list.DATA: frozenset({DATA}),
    manifest_list.DELETES: frozenset({POSITION_DELETES, EQUALITY_DELETES}),
}
_NAMES: Final = {DATA: "data file", POSITION_DELETES: "position delete file", EQUALITY_DELETES: "equality delete file"}


@dataclass(frozen=True, slots=True)
class Added:
    """`partition` of the file is the tuple of the spec with this id."""

    spec_id: int
    file: DataFile


@dataclass(frozen=True, slots=True)
class AddedDelete:
    """`sequence_number` is None for that of the commit, which is not known yet; a client may say an older one."""

    spec_id: int
    file: DataFile
    sequence_number: int | None = None


@dataclass(frozen=True, slots=True)
class Incoming:
    """Each in the order of the manifests."""

    added: list[Added]
    # paths of data files
    removed: list[str]
    added_deletes: list[AddedDelete]
    removed_deletes: list[Entry]
    # all of the snapshot's, those that it has from before among them
    manifests: list[ManifestFile]


@dataclass(frozen=True, slots=True)
class _Opened:
    manifest: ManifestFile
    partition_field_ids: list[int | None]
    entries: list[Entry]


async def difference(
    manifests: Manifests,
    objects: Objects,
    check: Check,
    before: Sequence[ManifestFile],
    list_path: str,
    snapshot_id: int,
    specs: Mapping[int, PartitionSpec],
) -> Incoming:
    """`before` are the manifests of the snapshot that the client built on, which are ours: raises Damaged if one of
    them is not there. `snapshot_id` is the client's own, which it made up."""
    allowance = Allowance(MOST_UNPACKED)
    listed = await _read_list(objects, check(list_path), list_path, allowance)
    ours, theirs = {file.manifest_path for file in before}, {file.manifest_path for file in listed}
    new = [file for file in listed if file.manifest_path not in ours]
    _check_amount(new, list_path)
    places = {file.manifest_path: check(file.manifest_path) for file in new}
    # to unpack is work of the processor alone, and one after the other they cannot exceed what they share
    unpacking = asyncio.Lock()

    async def opened(file: ManifestFile) -> _Opened:
        data = await _read(objects, places[file.manifest_path], file, snapshot_id)
        async with unpacking:
            return await asyncio.to_thread(_open, file, data, allowance)

    known = await each(manifests.read, [file for file in before if file.manifest_path not in theirs], READS_AT_ONCE)
    live = {_key(e.data_file): e for entries in known for e in entries if e.status != DELETED}
    found = await each(opened, new, READS_AT_ONCE)
    # what a client says of a manifest of ours is no news
    kept = {file.manifest_path: file for file in before}
    whole = [kept.get(file.manifest_path, file) for file in listed]
    return await asyncio.to_thread(_compared, live, found, whole, snapshot_id, specs, check)


def _key(file: DataFile) -> Key:
    """What an entry is about. Only vectors share a file, and writers of version 2 do not keep what else is known of a
    delete file."""
    if file.content_offset is None:
        return file.content == DATA, file.file_path, None, None
    return file.content == DATA, file.file_path, file.content_offset, file.referenced_data_file


async def _read_list(objects: Objects, place: Location, path: str, allowance: Allowance) -> list[ManifestFile]:
    try:
        data = await objects.get_bounded(place, MOST_PER_OBJECT)
        if data is None:
            raise BadRequest(f"Manifest list is missing: {path}")
        _, found = await asyncio.to_thread(manifest_list.read, data, allowance)
    except ValueError as e:
        raise BadRequest(f"Manifest list {path} cannot be read: {e}") from None
    if twice := [p for p, count in Counter(file.manifest_path for file in found).items() if count > 1]:
        raise BadRequest(f"Manifest list {path} names a manifest twice: {twice[0]}")
    return found


def _check_amount(new: Sequence[ManifestFile], list_path: str) -> None:
    """Before anything is read: a manifest that is larger than the list says is not read either."""
    if len(new) > MOST_MANIFESTS:
        raise BadRequest(f"Manifest list {list_path} names {len(new)} new manifests, and {MOST_MANIFESTS} may be new")
    for file in new:
        if file.key_metadata:
            raise Unsupported(f"Manifest {file.manifest_path} is encrypted")
        if not 0 < file.manifest_length <= MOST_PER_OBJECT:
            reason = f"it may have up to {MOST_PER_OBJECT} bytes, and the list says {file.manifest_length}"
            raise BadRequest(f"Manifest {file.manifest_path} is not read: {reason}")
    if (total := sum(file.manifest_length for file in new)) > MOST_PER_COMMIT:
        reason = f"names new manifests of {total} bytes, and {MOST_PER_COMMIT} may be new"
        raise BadRequest(f"Manifest list {list_path} {reason}")


async def _read(objects: Objects, place: Location, file: ManifestFile, snapshot_id: int) -> bytes:
    try:
        data = await objects.get_bounded(place, file.manifest_length)
    except ValueError as e:
        raise BadRequest(f"Manifest {file.manifest_path} is not what the list says: {e}") from None
    if data is None:
        if file.added_snapshot_id != snapshot_id:
            raise CommitFailed(f"Manifest of an earlier snapshot is gone: {file.manifest_path}")
        raise BadRequest(f"Manifest is missing: {file.manifest_path}")
    if len(data) != file.manifest_length:
        reason = f"it has {len(data)} bytes, and the list says {file.manifest_length}"
        raise BadRequest(f"Manifest {file.manifest_path} is not what the list says: {reason}")
    return data


def _open(file: ManifestFile, data: bytes, allowance: Allowance) -> _Opened:
    try:
        _, entries = manifest.read(data, allowance)
        ids = manifest.partition_field_ids(data)
    except ValueError as e:
        raise BadRequest(f"Manifest {file.manifest_path} cannot be read: {e}") from None
    stated = {
        ADDED: (file.added_files_count, file.added_rows_count),
        EXISTING: (file.existing_files_count, file.existing_rows_count),
        DELETED: (file.deleted_files_count, file.deleted_rows_count),
    }
    for status, name in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted")):
        rows = [e.data_file.record_count for e in entries if e.status == status]
        if (len(rows), sum(rows)) != stated[status]:
            counted = f"has {len(rows)} {name} files of {sum(rows)} rows"
            said = "{} of {}".format(*stated[status])
            raise BadRequest(f"Manifest {file.manifest_path} {counted}, and the list says {said}")
    for entry in entries:
        if entry.data_file.content not in _CONTENTS[file.content]:
            what = "data" if file.content == manifest_list.DATA else "deletes"
            listed = f"lists the {_NAMES[entry.data_file.content]} {entry.data_file.file_path}"
            raise BadRequest(f"Manifest of {what} {file.manifest_path} {listed}")
    return _Opened(file, ids, entries)


def _compared(
    live: Mapping[Key, Entry],
    found: Sequence[_Opened],
    listed: list[ManifestFile],
    snapshot_id: int,
    specs: Mapping[int, PartitionSpec],
    check: Check,
) -> Incoming:
    incoming = Incoming([], [], [], [], listed)
    seen: set[Key] = set()
    for opened in found:
        file = opened.manifest
        for entry in opened.entries:
            if entry.status == DELETED:
                continue
            shown = entry.data_file
            key = _key(shown)
            if key in seen:
                raise BadRequest(f"The snapshot lists a file twice: {shown.file_path}")
            seen.add(key)
            owner = file.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id
            own = entry.status == ADDED and owner == snapshot_id
            if key in live:
                if own:
                    raise BadRequest(f"The snapshot adds a file that is in the table already: {shown.file_path}")
                continue
            if not own:
                raise _not_own(entry, file, snapshot_id)
            _check_spec(opened, shown, specs)
            _check_new(shown, check)
            if shown.content == DATA:
                incoming.added.append(Added(file.partition_spec_id, shown))
            else:
                incoming.added_deletes.append(AddedDelete(file.partition_spec_id, shown, entry.sequence_number))
    for key, entry in live.items():
        if key not in seen and entry.data_file.content == DATA:
            incoming.removed.append(entry.data_file.file_path)
        elif key not in seen:
            incoming.removed_deletes.append(entry)
    return incoming


def _check_new(file: DataFile, check: Check) -> None:
    check_file(file)
    check(file.file_path, deletes=file.content == POSITION_DELETES)
    if file.content == DATA and rows_range(file.file_path) is not None:
        raise BadRequest(f"The snapshot adds a file that only the server makes: {file.file_path}")


def _not_own(entry: Entry, file: ManifestFile, snapshot_id: int) -> BadRequest | CommitFailed:
    """Of a file that was not there before, and that this snapshot does not claim to have added. Its writer saw it in
    another state of the table: DuckLake merges files away from old snapshots."""
    path = entry.data_file.file_path
    if entry.status == EXISTING or file.added_snapshot_id != snapshot_id:
        return CommitFailed(f"The snapshot was made from another state of the table, which had the file {path}")
    return BadRequest(f"The snapshot {snapshot_id} lists a file as added by snapshot {entry.snapshot_id}: {path}")


def _check_spec(opened: _Opened, file: DataFile, specs: Mapping[int, PartitionSpec]) -> None:
    """By the ids that the tuple itself has: what else a manifest says of its spec may be about another (DuckDB)."""
    spec_id = opened.manifest.partition_spec_id
    if (spec := specs.get(spec_id)) is None:
        raise BadRequest(f"Manifest {opened.manifest.manifest_path} has partition spec {spec_id}, which is not known")
    expected = [field.field_id for field in spec.fields]
    if opened.partition_field_ids != expected or len(file.partition) != len(expected):
        reason = f"has the partition fields {opened.partition_field_ids}, and spec {spec_id} has {expected}"
        raise BadRequest(f"Manifest {opened.manifest.manifest_path} {reason}")


def check_file(file: DataFile) -> None:
    """Whether an entry makes sense, and is of a file that DuckLake can have."""
    name = f"{_NAMES[file.content].capitalize()} {file.file_path}"
    if file.key_metadata:
        raise Unsupported(f"{name} is encrypted")
    if file.file_format not in _FORMATS[file.content]:
        raise Unsupported(f"{name} is of the format {file.file_format}: DuckLake reads Parquet only")
    counts = (file.value_counts, file.null_value_counts, file.nan_value_counts)
    if file.record_count < 0 or file.file_size_in_bytes < 0 or any(min(x.values(), default=0) < 0 for x in counts if x):
        raise BadRequest(f"{name} has a negative count or size")
    if file.content == EQUALITY_DELETES and not file.equality_ids:
        raise BadRequest(f"{name} names no columns")
    placed = (file.content_offset, file.content_size_in_bytes)
    if file.file_format == "PUFFIN":
        if None in placed or file.referenced_data_file is None:
            raise BadRequest(f"{name} is a deletion vector without its place or its data file")
    elif placed != (None, None):
        raise BadRequest(f"{name} is a whole file, and has a place within one")
