"""Which rows of a registered table's files are deleted at a snapshot, as positions.

A position is deleted from a file of the same or a lower sequence number, a value from files of lower ones. Where there
is a deletion vector, no other position counts.

What a delete file says is found out once for all snapshots in a row that list it, each file for itself: from one
snapshot to the next, some come and others go.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pyroaring import BitMap64

from mergus.catalog.commit_data import check_positions
from mergus.catalog.register_files import Adoption, Looked
from mergus.errors import BadRequest, Unsupported
from mergus.iceberg.manifest import EQUALITY_DELETES, DataFile
from mergus.iceberg.metadata_parse import plain
from mergus.iceberg.partition_spec import PartitionSpec
from mergus.iceberg.transforms import VOID
from mergus.materialise import incoming_deletes
from mergus.materialise.at_once import each
from mergus.materialise.equality_deletes import Candidate, EqualityDelete, resolve_apart
from mergus.materialise.given import PUFFIN, DeleteKey, GivenFile, GivenFiles
from mergus.materialise.incoming import AddedDelete

READS_AT_ONCE: Final = 4

Said = dict[str, BitMap64]


class Deletes:
    """For snapshots that are asked about one after the other."""

    def __init__(self, adoption: Adoption) -> None:
        self._adoption = adoption
        # of the snapshot that was asked about last: what each delete file says, by the path of the data file
        self._said: dict[DeleteKey, Said] = {}
        # the data files that its equality deletes were resolved for
        self._resolved: frozenset[str] = frozenset()
        # and what they come to, with those that say it
        self._folded: dict[str, tuple[frozenset[DeleteKey], BitMap64]] = {}

    async def at(self, found: GivenFiles, looked: Mapping[str, Looked]) -> dict[str, BitMap64]:
        """By the path of the data file, of those that have any. A set that is the same as at the snapshot before is the
        same object."""
        by_value = {k: one for k, one in found.deletes.items() if one.file.content == EQUALITY_DELETES}
        by_position = {k: one for k, one in found.deletes.items() if k not in by_value and _is_about_any(one, found)}
        said = await self._positions({k: one for k, one in by_position.items() if k not in self._said})
        said |= await self._values(by_value, [looked[path] for path in found.data])
        self._said = {k: said[k] if k in said else self._said[k] for k in found.deletes if k in said or k in self._said}
        about: defaultdict[str, set[DeleteKey]] = defaultdict(set)
        for key, paths in self._said.items():
            for path in paths:
                if path in found.data and _is_about(found.deletes[key], found.data[path]):
                    about[path].add(key)
        self._folded = {path: self._fold(path, keys, found) for path, keys in about.items()}
        return {path: positions for path, (_, positions) in self._folded.items()}

    def _fold(self, path: str, about: set[DeleteKey], found: GivenFiles) -> tuple[frozenset[DeleteKey], BitMap64]:
        vectors = [key for key in about if found.deletes[key].file.file_format == PUFFIN]
        if len(vectors) > 1:
            raise BadRequest(f"Two deletion vectors are about one data file: {path}")
        if vectors:
            by_value = {key for key in about if found.deletes[key].file.content == EQUALITY_DELETES}
            about = by_value | {vectors[0]}
        keys = frozenset(about)
        known = self._folded.get(path)
        if known is not None and known[0] == keys:
            return known
        positions = BitMap64.union(*(self._said[key][path] for key in keys))
        check_positions(path, positions, found.data[path].file.record_count)
        return keys, positions

    async def _positions(self, deletes: Mapping[DeleteKey, GivenFile]) -> dict[DeleteKey, Said]:
        async def one(given: GivenFile) -> Said:
            of = [AddedDelete(given.spec_id, given.file)]
            merged: Said = {}
            read = await incoming_deletes.positions(self._adoption.objects, self._adoption.check, of)
            for path, positions in read.items():
                merged[plain(path)] = merged.get(plain(path), BitMap64()) | positions
            return merged

        return dict(zip(deletes, await each(one, deletes.values(), READS_AT_ONCE), strict=True))

    async def _values(self, by_value: Mapping[DeleteKey, GivenFile], data: Sequence[Looked]) -> dict[DeleteKey, Said]:
        """Of new deletes for all files, and of those from before for new files."""
        new = {key: one for key, one in by_value.items() if key not in self._said}
        old = {key: one for key, one in by_value.items() if key in self._said}
        said: dict[DeleteKey, Said] = {key: {} for key in new} | {key: dict(self._said[key]) for key in old}
        fresh = [one for one in data if one.path not in self._resolved]
        self._resolved = frozenset(one.path for one in data)
        for deletes, files in ((new, data), (old, fresh)):
            keys = {key[0]: key for key in deletes}
            for path, by_delete in (await self._resolve(list(deletes.values()), files)).items():
                for delete_path, positions in by_delete.items():
                    said[keys[delete_path]][path] = positions
        return said

    async def _resolve(
        self, by_value: Sequence[GivenFile], data: Sequence[Looked]
    ) -> Mapping[str, Mapping[str, BitMap64]]:
        if not by_value or not data:
            return {}
        adoption, specs = self._adoption, self._adoption.table.written_specs
        fields = {f.id: f for f in adoption.table.schema.fields}
        ids = {i for one in by_value for i in one.file.equality_ids or ()}
        if apart := [one.path for one in data if any(i in ids for i, _ in one.planned.names_in_path)]:
            raise Unsupported(
                f"Equality deletes cannot be resolved: data file {apart[0]} has values of their columns in its path. "
                "Compact the table first"
            )
        candidates = [
            Candidate.of(
                _told_apart(specs, one.given), one.given.spec_id, one.given.sequence_number, one.planned.mapping or None
            )
            for one in data
        ]
        wanted = [
            EqualityDelete.of(
                _told_apart(specs, one), adoption.check(one.file.file_path), one.spec_id, one.sequence_number, fields
            )
            for one in by_value
        ]
        return await resolve_apart(adoption.objects, wanted, candidates)


def _is_about_any(delete: GivenFile, found: GivenFiles) -> bool:
    """Vectors of files that are gone need not be there any more."""
    if delete.file.file_format != PUFFIN:
        return True
    data = found.data.get(plain(delete.file.referenced_data_file or ""))
    return data is not None and _is_about(delete, data)


def _is_about(delete: GivenFile, data: GivenFile) -> bool:
    """Deletes by value have been held against older files alone."""
    return delete.file.content == EQUALITY_DELETES or data.sequence_number <= delete.sequence_number


def _told_apart(specs: Mapping[int, PartitionSpec], one: GivenFile) -> DataFile:
    """Without a partition if the spec tells none apart."""
    is_apart = any(f.transform != VOID for f in specs[one.spec_id].fields)
    return one.file if is_apart else replace(one.file, partition=())
