"""The rows of a table that is registered, as one snapshot: its live files, with what is deleted from them.

Data files are taken as they lie, and the footer of each is read once: that they are there and what columns they have
only they themselves can tell. Deletes become positions, each about files that are old enough: a position is deleted
from a file of the same or a lower sequence number, a value from files of lower ones. A file of which nothing is left is
left out.

Row ids must be unique in a table. In version 3 rows keep theirs. Elsewhere they get new ones, after the highest that
any file brings along.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyroaring import BitMap64

from mergus.annex.file_facts import Part
from mergus.catalog.commit_data import DataStep, check_positions
from mergus.catalog.commit_files import FileTerms, PlannedFile, lacks_row_ids, planned, with_row_ids
from mergus.catalog.delete_files import NONE_BEFORE, Drawer
from mergus.ducklake.told import LEAST_CLIENT_ID, Committed
from mergus.errors import BadRequest
from mergus.iceberg.manifest import EQUALITY_DELETES, POSITION_DELETES, DataFile
from mergus.iceberg.metadata_parse import GivenSnapshot, GivenTable, plain
from mergus.iceberg.partition_spec import PartitionSpec
from mergus.iceberg.transforms import VOID
from mergus.materialise import footers, given, incoming_deletes, row_ids
from mergus.materialise.equality_deletes import Candidate, EqualityDelete, resolve
from mergus.materialise.given import GivenFile, GivenFiles
from mergus.materialise.incoming import Added, AddedDelete, Check
from mergus.storage.location import Location
from mergus.storage.objects import Objects

ANY_SNAPSHOT = 0


@dataclass(frozen=True, slots=True)
class Adoption:
    """`terms` are those of the table as it will be."""

    objects: Objects
    check: Check
    table: GivenTable
    terms: FileTerms
    drawer: Drawer


@dataclass(frozen=True, slots=True)
class _Looked:
    """A file with its columns, as they are in it."""

    given: GivenFile
    place: Location
    columns: Sequence[Part]
    planned: PlannedFile

    @property
    def path(self) -> str:
        return self.given.file.file_path


def known_as(snapshot: GivenSnapshot) -> int:
    """Its id here: ids as small as a DuckLake snapshot's own, which another lake has shown, become larger."""
    return snapshot.snapshot_id if snapshot.snapshot_id >= LEAST_CLIENT_ID else LEAST_CLIENT_ID + snapshot.snapshot_id


async def plan_snapshot(adoption: Adoption, snapshot: GivenSnapshot, told: Mapping[str, str]) -> DataStep:
    """`told` goes to the snapshot's summary."""
    table = adoption.table
    found = await given.live_files(
        adoption.objects, adoption.check, snapshot, table.written_specs, table.format_version
    )
    looked = await _looked_at(adoption, found.data)
    deleted = await _deleted(adoption, looked, found)
    for one in looked:
        check_positions(one.path, deleted.get(one.path, BitMap64()), one.given.file.record_count)
    left = [one for one in looked if len(deleted.get(one.path, ())) < one.given.file.record_count]
    added = await _with_row_ids(adoption, left)
    pairs = [(planned_file.file.path, deleted.get(one.path)) for one, planned_file in zip(left, added, strict=True)]
    return DataStep(
        told=Committed(known_as(snapshot), {**snapshot.summary, **told}),
        added=_in_order(added),
        deletes_on_new={
            path: await adoption.drawer.prepare(path, NONE_BEFORE, positions, ANY_SNAPSHOT)
            for path, positions in pairs
            if positions
        },
    )


async def _looked_at(adoption: Adoption, data: Sequence[GivenFile]) -> list[_Looked]:
    places = {one.file.file_path: adoption.check(one.file.file_path) for one in data}
    columns = await footers.columns(adoption.objects, places)
    return [
        _Looked(one, places[one.file.file_path], parts, _planned(adoption, one, parts))
        for one, parts in zip(data, columns, strict=True)
    ]


def _planned(adoption: Adoption, one: GivenFile, columns: Sequence[Part]) -> PlannedFile:
    """In the spec as the table will have it, which may lack fields of the one that the file was written with."""
    try:
        values = adoption.table.fitting(one.spec_id, one.file.partition)
        return planned(adoption.terms, Added(one.spec_id, replace(one.file, partition=values)), columns)
    except (ValueError, TypeError, AttributeError, OverflowError) as e:
        raise BadRequest(f"Data file {one.file.file_path} has a partition that is none of its spec: {e}") from None


async def _deleted(adoption: Adoption, looked: Sequence[_Looked], found: GivenFiles) -> dict[str, BitMap64]:
    """By the path of the data file. Where there is a deletion vector, no other position counts."""
    since = {one.path: one.given.sequence_number for one in looked}
    by_value = [one for one in found.deletes if one.file.content == EQUALITY_DELETES]
    vectors = [one for one in found.deletes if one.file.file_format == "PUFFIN"]
    whole = [d for d in found.deletes if d.file.content == POSITION_DELETES and d.file.file_format != "PUFFIN"]
    deleted: dict[str, BitMap64] = {}
    for one in vectors:
        path = plain(one.file.referenced_data_file or "")
        if path in deleted:
            raise BadRequest(f"Two deletion vectors are about one data file: {path}")
        if since.get(path, one.sequence_number + 1) <= one.sequence_number:
            deleted[path] = BitMap64()
    told = await _positions(adoption, [v for v in vectors if plain(v.file.referenced_data_file or "") in deleted])
    deleted |= told
    by_number: defaultdict[int, list[GivenFile]] = defaultdict(list)
    for one in whole:
        by_number[one.sequence_number].append(one)
    vectored = set(deleted)
    for number, files in sorted(by_number.items()):
        for path, positions in (await _positions(adoption, files)).items():
            if path not in vectored and since.get(path, number + 1) <= number:
                deleted[path] = deleted.get(path, BitMap64()) | positions
    for path, positions in (await _resolved(adoption, looked, by_value)).items():
        deleted[path] = deleted.get(path, BitMap64()) | positions
    return deleted


async def _positions(adoption: Adoption, deletes: Sequence[GivenFile]) -> dict[str, BitMap64]:
    files = [AddedDelete(one.spec_id, one.file) for one in deletes]
    found = await incoming_deletes.positions(adoption.objects, adoption.check, files)
    merged: dict[str, BitMap64] = {}
    for path, positions in found.items():
        merged[plain(path)] = merged.get(plain(path), BitMap64()) | positions
    return merged


async def _resolved(
    adoption: Adoption, looked: Sequence[_Looked], by_value: Sequence[GivenFile]
) -> dict[str, BitMap64]:
    if not by_value:
        return {}
    specs = adoption.table.written_specs
    fields = {f.id: f for f in adoption.table.schema.fields}
    candidates = [
        Candidate.of(
            _told_apart(specs, one.given), one.given.spec_id, one.given.sequence_number, one.planned.mapping or None
        )
        for one in looked
    ]
    wanted = [
        EqualityDelete.of(
            _told_apart(specs, one), adoption.check(one.file.file_path), one.spec_id, one.sequence_number, fields
        )
        for one in by_value
    ]
    return await resolve(adoption.objects, wanted, candidates)


def _told_apart(specs: Mapping[int, PartitionSpec], one: GivenFile) -> DataFile:
    """Without a partition if the spec tells none apart."""
    is_apart = any(f.transform != VOID for f in specs[one.spec_id].fields)
    return one.file if is_apart else replace(one.file, partition=())


async def _with_row_ids(adoption: Adoption, looked: Sequence[_Looked]) -> list[PlannedFile]:
    """Those of a file's own, those counted from its first, or the next ones that are free."""
    _check_apart(adoption.table, looked)
    brought = [one for one in looked if one.planned.file.has_row_ids]
    highest = max(await row_ids.highest(adoption.objects, [one.place for one in brought]), default=-1)
    free = adoption.table.next_row_id
    if adoption.table.format_version < 3:
        free = highest + 1
    elif highest >= free:
        raise BadRequest(f"A file has the row id {highest}, and the table's next-row-id is {free}")
    found: list[PlannedFile] = []
    for one in looked:
        file, first = one.planned.file, one.given.file.first_row_id
        if lacks_row_ids(one.columns):
            if first is None:
                first, free = free, free + file.record_count
            found.append(await with_row_ids(adoption.drawer, one.place, first, one.planned))
        elif first is not None and not file.has_row_ids:
            found.append(replace(one.planned, file=replace(file, has_row_ids=True, row_id_start=first)))
        else:
            found.append(one.planned)
    for index, one in enumerate(found):
        if one.file.has_row_ids:
            found[index] = replace(one, file=replace(one.file, takes=free))
            break
    return found


def _in_order(added: Sequence[PlannedFile]) -> list[PlannedFile]:
    """Ids that are there come before those that are given."""
    return sorted(added, key=lambda one: not one.file.has_row_ids)


def _check_apart(table: GivenTable, looked: Sequence[_Looked]) -> None:
    counted = [
        (first, one)
        for one in looked
        if (first := one.given.file.first_row_id) is not None and not one.planned.file.has_row_ids
    ]
    end = 0
    for first, one in sorted(counted, key=lambda pair: pair[0]):
        if first < end or first + one.given.file.record_count > table.next_row_id:
            raise BadRequest(f"Rows of {one.path} have the ids of others, or ids that the table has not given yet")
        end = first + one.given.file.record_count
