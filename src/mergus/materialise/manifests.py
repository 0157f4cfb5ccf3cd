"""The manifests of a snapshot: which are carried from the one before, which are written anew, which are merged.

As Iceberg's own writers do it: files that are added get a manifest of their own, one from which files are removed is
written again, all others are named as they are, and when many small ones have come together they become a few large
ones. What it costs to add or remove a file is a manifest, however many files the table has.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

from mergus.ducklake.places import Places
from mergus.iceberg import manifest, manifest_list
from mergus.iceberg.manifest import ADDED, DELETED, EXISTING, Entry
from mergus.iceberg.manifest_list import ManifestFile
from mergus.iceberg.partition_spec import partition_types, spec_json, summaries
from mergus.iceberg.schema import Schema, schema_json
from mergus.iceberg.sort_order import UNSORTED
from mergus.materialise.kept import Kept
from mergus.materialise.layout import Content, Kind, Layout, ManifestName, digest, digest_in
from mergus.materialise.outbox import Outbox, Store
from mergus.storage.location import Location

# Entries of one manifest that a single commit adds, and bytes of one that merging makes; Iceberg's own default is 8
# MiB, but one file less means writing its manifest again.
MOST_ENTRIES: Final = 2_000
TARGET_SIZE: Final = 1024 * 1024
MIN_COUNT_TO_MERGE: Final = 100

# of what was read or written last, in entries
_KEPT: Final = 10_000


class Damaged(Exception):
    """An object of ours is missing or cannot be read: what it said has to be made again from rows."""


@dataclass(frozen=True, slots=True)
class Header:
    """What every manifest of a snapshot says about the table."""

    # as Iceberg's clients call it, and the lake
    snapshot_id: int
    sequence_number: int
    format_version: int
    schema: Schema
    schema_id: int
    places: Places
    # the table's own of now: a spec may be about columns that came later
    specs_schema: Schema


@dataclass(frozen=True, slots=True)
class Merging:
    """A table's `commit.manifest.*` properties."""

    enabled: bool = True
    target_size: int = TARGET_SIZE
    min_count: int = MIN_COUNT_TO_MERGE

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "Merging":
        return cls(
            properties.get("commit.manifest-merge.enabled", "true").lower() == "true",
            _number(properties.get("commit.manifest.target-size-bytes"), TARGET_SIZE),
            max(2, _number(properties.get("commit.manifest.min-count-to-merge"), MIN_COUNT_TO_MERGE)),
        )


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default


class Manifests:
    """Manifests on storage. They never change, so those that were read or written last are kept."""

    def __init__(self, objects: Store) -> None:
        self._objects = objects
        self._entries = Kept[list[Entry]](_KEPT)
        self._lists = Kept[list[ManifestFile]](_KEPT)

    def through(self, outbox: Outbox) -> "Manifests":
        """The same, but what is written goes by way of the outbox."""
        other = copy(self)
        other._objects = outbox
        return other

    async def read_list(self, path: str) -> list[ManifestFile]:
        if (kept := self._lists.get(path)) is None:
            kept = await self._read(path, lambda data: manifest_list.read(data)[1])
            self._lists.keep(path, kept)
        return kept

    async def read(self, file: ManifestFile) -> list[Entry]:
        if (kept := self._entries.get(file.manifest_path)) is None:
            kept = await self._read(file.manifest_path, lambda data: list(map(_with_order, manifest.read(data)[1])))
            self._entries.keep(file.manifest_path, kept)
        return kept

    async def whole(self, path: str) -> bytes:
        """An object of ours, exactly as it was written. Half of an Avro file can be a file, too."""
        data = await self._objects.get(Location.parse(path))
        if data is None:
            raise Damaged(f"missing: {path}")
        if digest_in(path) not in {None, digest(data)}:
            raise Damaged(f"not what was written: {path}")
        return data

    async def _read(self, path: str, parse: Callable[[bytes], list[Any]]) -> list[Any]:
        data = await self.whole(path)
        try:
            return await asyncio.to_thread(parse, data)
        except ValueError as e:
            raise Damaged(f"unreadable: {path}: {e}") from e

    async def write(
        self, layout: Layout, header: Header, name: ManifestName, spec_id: int, entries: Sequence[Entry]
    ) -> ManifestFile:
        file, data = await asyncio.to_thread(_render, layout, header, name, spec_id, entries)
        await self._objects.put(Location.parse(file.manifest_path), data)
        self._entries.keep(file.manifest_path, list(entries))
        return file

    async def write_list(
        self, layout: Layout, header: Header, parent_id: int | None, first_row_id: int, files: Sequence[ManifestFile]
    ) -> str:
        data = manifest_list.write(
            files,
            snapshot_id=header.snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=header.sequence_number,
            format_version=header.format_version,
            first_row_id=first_row_id if header.format_version >= 3 else None,
        )
        location = layout.manifest_list(header.sequence_number, data)
        await self._objects.put(location, data)
        self._lists.keep(str(location), list(files))
        return str(location)


def _with_order(entry: Entry) -> Entry:
    """A data file without a sort order, as manifests of ours once listed them, is not sorted. Of files of position
    deletes Iceberg wants none."""
    file = entry.data_file
    if file.content != manifest.DATA or file.sort_order_id is not None:
        return entry
    return replace(entry, data_file=replace(file, sort_order_id=UNSORTED.order_id))


def _render(
    layout: Layout, header: Header, name: ManifestName, spec_id: int, entries: Sequence[Entry]
) -> tuple[ManifestFile, bytes]:
    spec = header.places.spec(spec_id)
    fields = partition_types(spec, header.specs_schema)
    data = manifest.write(
        entries,
        schema_json=schema_json(header.schema, header.schema_id, header.format_version),
        schema_id=header.schema_id,
        spec_json=spec_json(spec)["fields"],
        spec_id=spec_id,
        partition_types=fields,
        content=name.content,
        format_version=header.format_version,
    )
    by_status = {status: [e for e in entries if e.status == status] for status in (ADDED, EXISTING, DELETED)}
    rows = {status: sum(e.data_file.record_count for e in found) for status, found in by_status.items()}
    live = [e.sequence_number for e in entries if e.status != DELETED and e.sequence_number is not None]
    first_row_ids = [e.data_file.first_row_id or 0 for e in entries if e.status != DELETED]
    has_rows = header.format_version >= 3 and name.content == "data"
    file = ManifestFile(
        manifest_path=str(layout.manifest(name, data)),
        manifest_length=len(data),
        partition_spec_id=spec_id,
        content=manifest_list.DATA if name.content == "data" else manifest_list.DELETES,
        sequence_number=header.sequence_number,
        min_sequence_number=min(live, default=header.sequence_number),
        added_snapshot_id=header.snapshot_id,
        added_files_count=len(by_status[ADDED]),
        existing_files_count=len(by_status[EXISTING]),
        deleted_files_count=len(by_status[DELETED]),
        added_rows_count=rows[ADDED],
        existing_rows_count=rows[EXISTING],
        deleted_rows_count=rows[DELETED],
        partitions=summaries([e.data_file.partition for e in entries], [f.type for f in fields]),
        first_row_id=min(first_row_ids, default=0) if has_rows else None,
    )
    return file, data


@dataclass(slots=True)
class Difference:
    """What becomes of one content of one kind of files: entries that come, and paths that go with a file id each.

    A delete file goes by the path of the data file that it is about.
    """

    kind: Kind
    content: Content
    # by partition spec, each with the id of the (data) file
    added: list[tuple[int, int, Entry]]
    removed: dict[str, int]

    def key(self, entry: Entry) -> str:
        file = entry.data_file
        return file.file_path if self.content == "data" else file.referenced_data_file or file.file_path

    def may_be_in(self, file: ManifestFile) -> bool:
        name = ManifestName.of(file.manifest_path)
        if name is None or (name.kind, name.content) != (self.kind, self.content):
            return False
        return any(name.first <= file_id <= name.last for file_id in self.removed.values())


@dataclass(frozen=True, slots=True)
class Applied:
    manifests: list[ManifestFile]
    # what was taken out, and was there before
    removed: list[Entry]


async def apply(
    store: Manifests, layout: Layout, header: Header, carried: Sequence[ManifestFile], difference: Difference
) -> Applied:
    """The manifests of the snapshot after the difference. New ones come first, as readers and Iceberg have them."""
    kept: list[ManifestFile] = []
    gone: list[Entry] = []
    written: list[ManifestFile] = []
    for file in carried:
        if not difference.removed or not difference.may_be_in(file):
            if _has_live(file) or file.added_snapshot_id == header.snapshot_id:
                kept.append(file)
            continue
        staying: list[Entry] = []
        out: list[Entry] = []
        for entry in await store.read(file):
            if entry.status != DELETED and difference.key(entry) in difference.removed:
                out.append(entry)
            elif entry.status != DELETED or entry.snapshot_id == header.snapshot_id:
                staying.append(_settled(entry, header))
        if not out:
            kept.append(file)
            continue
        gone += out
        deleted = [replace(e, status=DELETED, snapshot_id=header.snapshot_id) for e in out]
        name = ManifestName.of(file.manifest_path)
        assert name is not None  # noqa: S101  (may_be_in said so)
        written.append(await store.write(layout, header, name, file.partition_spec_id, staying + deleted))
    for spec_id, group in _by_spec(difference.added).items():
        for part in (group[i : i + MOST_ENTRIES] for i in range(0, len(group), MOST_ENTRIES)):
            ids = [file_id for file_id, _ in part]
            name = ManifestName(difference.kind, difference.content, min(ids), max(ids))
            written.append(await store.write(layout, header, name, spec_id, [entry for _, entry in part]))
    return Applied(written + kept, gone)


async def merge(
    store: Manifests, layout: Layout, header: Header, files: Sequence[ManifestFile], merging: Merging
) -> list[ManifestFile]:
    """Small manifests of one kind, content and spec become large ones when there are many."""
    if not merging.enabled:
        return list(files)
    groups: dict[tuple[Kind, Content, int], list[tuple[ManifestName, ManifestFile]]] = {}
    for file in files:
        name = ManifestName.of(file.manifest_path)
        if name is not None and file.manifest_length < merging.target_size // 2:
            groups.setdefault((name.kind, name.content, file.partition_spec_id), []).append((name, file))
    replaced: dict[str, ManifestFile | None] = {}
    for (kind, content, spec_id), small in groups.items():
        if len(small) < merging.min_count:
            continue
        for part in _bins(sorted(small, key=lambda x: x[0].first), merging.target_size):
            entries = [
                _settled(e, header)
                for _, file in part
                for e in await store.read(file)
                if e.status != DELETED or e.snapshot_id == header.snapshot_id
            ]
            name = ManifestName(kind, content, min(n.first for n, _ in part), max(n.last for n, _ in part))
            merged = await store.write(layout, header, name, spec_id, entries)
            for _, file in part:
                replaced[file.manifest_path] = None
            replaced[part[0][1].manifest_path] = merged
    return [found for file in files if (found := replaced.get(file.manifest_path, file)) is not None]


def _bins(
    small: Iterable[tuple[ManifestName, ManifestFile]], target: int
) -> list[list[tuple[ManifestName, ManifestFile]]]:
    """Neighbours, so that the ranges of what is merged stay apart."""
    found: list[list[tuple[ManifestName, ManifestFile]]] = [[]]
    size = 0
    for name, file in small:
        if found[-1] and size + file.manifest_length > target:
            found.append([])
            size = 0
        found[-1].append((name, file))
        size += file.manifest_length
    return [part for part in found if len(part) > 1]


def _settled(entry: Entry, header: Header) -> Entry:
    """As it stands in a manifest that is written again: what an earlier snapshot added is there already."""
    return entry if entry.snapshot_id == header.snapshot_id else replace(entry, status=EXISTING)


def _by_spec(added: Iterable[tuple[int, int, Entry]]) -> dict[int, list[tuple[int, Entry]]]:
    groups: dict[int, list[tuple[int, Entry]]] = {}
    for spec_id, file_id, entry in sorted(added, key=lambda x: (x[0], x[1])):
        groups.setdefault(spec_id, []).append((file_id, entry))
    return groups


def _has_live(file: ManifestFile) -> bool:
    return file.added_files_count + file.existing_files_count > 0
