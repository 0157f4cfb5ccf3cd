"""What clients write, whole and broken: what it changes, or a 4xx that says what is wrong."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile as TheirFile
from pyiceberg.manifest import (
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.manifest import ManifestFile as TheirManifest
from pyiceberg.partitioning import PartitionField as TheirField
from pyiceberg.partitioning import PartitionSpec as TheirSpec
from pyiceberg.schema import Schema as TheirSchema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from mergus.config import Settings
from mergus.errors import BadRequest, CommitFailed, Forbidden, Unsupported
from mergus.iceberg import manifest, manifest_list
from mergus.iceberg.manifest import ADDED, DATA, DELETED, EQUALITY_DELETES, EXISTING, POSITION_DELETES, DataFile, Entry
from mergus.iceberg.manifest_list import ManifestFile
from mergus.iceberg.partition_spec import UNPARTITIONED, PartitionField, PartitionSpec
from mergus.materialise import incoming
from mergus.materialise.incoming import Incoming, difference
from mergus.materialise.manifests import Damaged, Manifests
from mergus.storage.location import Location
from mergus.storage.objects import Objects

BASE, MINE = 7, 4_000_000_000_000_000_001
BY_X = PartitionSpec(1, (PartitionField(1, 1000, "x", "identity"),))
SPECS = {0: UNPARTITIONED, 1: BY_X}
SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "x", "required": False, "type": "long"}]}


def data_file(name: str, **changes: Any) -> DataFile:
    return replace(DataFile(DATA, f"s3://b/t/{name}", "PARQUET", (), 10, 100), **changes)


def vector(name: str, offset: int, about: str) -> DataFile:
    placed = {"content_offset": offset, "content_size_in_bytes": 40, "referenced_data_file": about}
    return data_file(name, content=POSITION_DELETES, file_format="PUFFIN", **placed)


def added(file: DataFile, by: int | None = None) -> Entry:
    return Entry(ADDED, by, None, None, file)


def existing(file: DataFile) -> Entry:
    return Entry(EXISTING, BASE, BASE, BASE, file)


def deleted(file: DataFile) -> Entry:
    return Entry(DELETED, MINE, BASE, BASE, file)


class Table:
    """Manifests on a real store, ours and a client's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = Objects(Settings())  # pyright: ignore[reportCallIssue]
        self.manifests = Manifests(self.objects)
        self.checked: list[str] = []

    def check(self, path: str, /, *, deletes: bool = False) -> Location:
        self.checked.append(path)
        if "/forbidden/" in path:
            raise Forbidden(f"not yours: {path}")
        try:
            return Location.parse(path)
        except ValueError as e:
            raise BadRequest(str(e)) from None

    def manifest(
        self, *entries: Entry, by: int = MINE, spec_id: int = 0, version: int = 3, **stated: Any
    ) -> ManifestFile:
        deletes = any(e.data_file.content != DATA for e in entries)
        types = [manifest.PartitionField(f.name, f.field_id, "long") for f in SPECS[spec_id].fields]
        data = manifest.write(
            entries,
            schema_json=SCHEMA,
            schema_id=0,
            spec_json=[],
            spec_id=spec_id,
            partition_types=types,
            content="deletes" if deletes else "data",
            format_version=version,
        )
        path = self.folder / f"{uuid4()}.avro"
        path.write_bytes(data)
        counts = [sum(e.status == s for e in entries) for s in (ADDED, EXISTING, DELETED)]
        rows = [sum(e.data_file.record_count for e in entries if e.status == s) for s in (ADDED, EXISTING, DELETED)]
        content, row_id = (manifest_list.DELETES, None) if deletes else (manifest_list.DATA, 0)
        place = (str(path), len(data), spec_id, content, 8, 1, by)
        file = ManifestFile(*place, *counts, *rows, None, None, row_id)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return replace(file, **stated)

    def list(self, *manifests: ManifestFile) -> str:
        data = manifest_list.write(
            manifests, snapshot_id=MINE, parent_snapshot_id=BASE, sequence_number=8, format_version=3, first_row_id=0
        )
        path = self.folder / f"{uuid4()}.avro"
        path.write_bytes(data)
        return str(path)

    def difference(
        self, before: Sequence[ManifestFile], path: str, specs: Mapping[int, PartitionSpec] = SPECS
    ) -> Incoming:
        work = difference(self.manifests, self.objects, self.check, before, path, MINE, specs)
        return asyncio.run(work)

    def changes(self, before: Sequence[ManifestFile], *after: ManifestFile) -> Incoming:
        return self.difference(before, self.list(*after))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def names(found: Incoming) -> tuple[list[str], list[str], list[str], list[str]]:
    def name(path: str) -> str:
        return path.removeprefix("s3://b/t/")

    return (
        [name(x.file.file_path) for x in found.added],
        [name(x) for x in found.removed],
        [name(x.file.file_path) for x in found.added_deletes],
        [name(x.data_file.file_path) for x in found.removed_deletes],
    )


A, B, C, D = (data_file(x) for x in "abcd")
DV_A, DV_B, DV_A2 = vector("v", 4, A.file_path), vector("v", 44, B.file_path), vector("w", 4, A.file_path)


def test_an_append_adds_the_files_of_its_new_manifests(table: Table) -> None:
    ours = table.manifest(added(A, BASE), by=BASE)
    found = table.changes([ours], table.manifest(added(B), added(C, MINE)), ours)
    assert names(found) == (["b", "c"], [], [], [])
    assert found.added[0].file == B
    # what was there before is neither read nor asked for
    assert ours.manifest_path not in table.checked
    assert {B.file_path, C.file_path} <= set(table.checked)


def test_manifests_shared_with_the_base_snapshot_are_not_read(table: Table) -> None:
    ours = table.manifest(added(A, BASE), by=BASE)
    Path(ours.manifest_path).unlink()
    assert names(table.changes([ours], ours)) == ([], [], [], [])
    with pytest.raises(Damaged):
        table.changes([ours])


def test_removed_files_may_be_listed_as_deleted_or_omitted(table: Table) -> None:
    ours = table.manifest(added(A, BASE), added(B, BASE), added(C, BASE), by=BASE)
    rewritten = table.manifest(existing(A), deleted(B))
    assert names(table.changes([ours], rewritten)) == ([], ["b", "c"], [], [])


def test_a_rewritten_manifest_that_keeps_an_older_snapshot_id_removes_its_deleted_files(table: Table) -> None:
    """As DuckDB does it: nothing but the statuses says whose it is."""
    ours = table.manifest(added(A, BASE), added(B, BASE), by=BASE)
    rewritten = table.manifest(existing(A), Entry(DELETED, BASE, BASE, BASE, B), by=BASE)
    assert names(table.changes([ours], rewritten)) == ([], ["b"], [], [])


def test_merging_manifests_changes_no_files(table: Table) -> None:
    first, second = table.manifest(added(A, BASE), by=BASE), table.manifest(added(B, BASE), by=BASE)
    assert names(table.changes([first, second], table.manifest(existing(A), existing(B)))) == ([], [], [], [])
    assert names(table.changes([first, second], table.manifest(existing(A), existing(B), added(C)))) == (
        ["c"],
        [],
        [],
        [],
    )


def test_deletion_vectors_in_one_puffin_file_are_distinguished(table: Table) -> None:
    ours = table.manifest(added(DV_A, BASE), added(DV_B, BASE), by=BASE)
    found = table.changes([ours], table.manifest(existing(DV_B), deleted(DV_A)), table.manifest(added(DV_A2)))
    assert names(found) == ([], [], ["w"], ["v"])
    assert found.removed_deletes[0].data_file.referenced_data_file == A.file_path
    assert found.added_deletes[0].sequence_number is None


def test_a_delete_file_without_referenced_data_file_is_recognised_as_the_same(table: Table) -> None:
    ours = data_file("p", content=POSITION_DELETES, referenced_data_file=A.file_path)
    before = table.manifest(added(ours, BASE), by=BASE)
    after = table.manifest(existing(replace(ours, referenced_data_file=None)))
    assert names(table.changes([before], after)) == ([], [], [], [])


def test_an_added_delete_file_may_have_an_older_sequence_number(table: Table) -> None:
    file = data_file("e", content=EQUALITY_DELETES, equality_ids=[1])
    found = table.changes([], table.manifest(Entry(ADDED, None, 3, None, file)))
    assert [x.sequence_number for x in found.added_deletes] == [3]


def test_added_files_are_read_with_the_partition_spec_of_their_manifest(table: Table) -> None:
    file = replace(A, partition=(5,))
    (found,) = table.changes([], table.manifest(added(file), spec_id=1)).added
    assert (found.spec_id, found.file.partition) == (1, (5,))
    path = table.list(table.manifest(added(file), spec_id=1))
    with pytest.raises(BadRequest, match="partition spec 1, which is not known"):
        table.difference([], path, {0: UNPARTITIONED})
    other = PartitionSpec(1, (PartitionField(1, 1001, "x", "identity"),))
    with pytest.raises(BadRequest, match=r"partition fields \[1000\], and spec 1 has \[1001\]"):
        table.difference([], path, {1: other})
    with pytest.raises(BadRequest, match="partition fields"):
        table.difference([], path, {1: replace(UNPARTITIONED, spec_id=1)})


def test_a_commit_on_a_stale_base_is_a_conflict(table: Table) -> None:
    with pytest.raises(CommitFailed, match="another state of the table"):
        table.changes([], table.manifest(existing(A)))
    with pytest.raises(CommitFailed, match="another state of the table"):
        table.changes([], table.manifest(added(A, BASE), by=BASE))
    gone = table.manifest(added(A, BASE), by=BASE)
    Path(gone.manifest_path).unlink()
    with pytest.raises(CommitFailed, match="is gone"):
        table.changes([], gone)


def test_a_manifest_list_that_contradicts_its_manifests_is_refused(table: Table) -> None:
    entries = [added(A), existing(B), deleted(C)]
    before = [table.manifest(added(B, BASE), added(C, BASE), by=BASE)]
    assert names(table.changes(before, table.manifest(*entries))) == (["a"], ["c"], [], [])
    for wrong in (
        {"manifest_length": 10},
        {"manifest_length": 10_000},
        {"manifest_length": 0},
        {"manifest_length": -1},
        {"manifest_length": 2**40},
        {"added_files_count": 2},
        {"existing_files_count": 0},
        {"deleted_files_count": -1},
        {"added_rows_count": 11},
        {"existing_rows_count": 0},
        {"deleted_rows_count": 9},
        {"content": manifest_list.DELETES, "first_row_id": None},
    ):
        with pytest.raises(BadRequest, match="Manifest"):
            table.changes(before, table.manifest(*entries, **wrong))


def test_a_commit_that_lists_a_file_twice_is_refused(table: Table) -> None:
    with pytest.raises(BadRequest, match="lists a file twice: s3://b/t/a"):
        table.changes([], table.manifest(added(A)), table.manifest(added(A)))
    ours = table.manifest(added(A, BASE), by=BASE)
    with pytest.raises(BadRequest, match="is in the table already: s3://b/t/a"):
        table.changes([ours], table.manifest(added(A)))
    with pytest.raises(BadRequest, match="lists a file twice"):
        table.changes([ours], table.manifest(existing(A), added(A)))
    with pytest.raises(BadRequest, match="names a manifest twice"):
        table.changes([ours], ours, ours)


@pytest.mark.parametrize(
    ("entry", "error", "says"),
    [
        (added(A, 99), BadRequest, "added by snapshot 99"),
        (added(replace(A, file_format="ORC")), Unsupported, "ORC"),
        (added(replace(A, file_format="AVRO")), Unsupported, "AVRO"),
        (added(replace(A, file_format="PUFFIN")), Unsupported, "PUFFIN"),
        (added(replace(A, key_metadata=b"key")), Unsupported, "encrypted"),
        (added(replace(A, record_count=-1)), BadRequest, "negative"),
        (added(replace(A, file_size_in_bytes=-1)), BadRequest, "negative"),
        (added(replace(A, null_value_counts={1: -1})), BadRequest, "negative"),
        (added(replace(A, file_path="s3://b/forbidden/a")), Forbidden, "not yours"),
        (added(replace(A, content=EQUALITY_DELETES)), BadRequest, "names no columns"),
        (added(replace(A, content=EQUALITY_DELETES, equality_ids=[])), BadRequest, "names no columns"),
        (added(replace(A, content=POSITION_DELETES, file_format="ORC")), Unsupported, "ORC"),
        (added(replace(DV_A, referenced_data_file=None)), BadRequest, "without its place"),
        (added(replace(DV_A, content_offset=None, content_size_in_bytes=None)), BadRequest, "without its place"),
        (added(replace(DV_A, file_format="PARQUET")), BadRequest, "place within one"),
    ],
)
def test_entries_of_files_that_cannot_be_accepted_are_refused(
    table: Table, entry: Entry, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        table.changes([], table.manifest(entry))


def test_missing_forbidden_encrypted_or_too_large_manifests_are_refused(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadRequest, match="Manifest list is missing"):
        table.difference([], str(table.folder / "nothing.avro"))
    with pytest.raises(Forbidden):
        table.difference([], "/forbidden/list.avro")
    mine = table.manifest(added(A))
    with pytest.raises(Forbidden):
        table.changes([], replace(mine, manifest_path="/forbidden/m.avro"))
    with pytest.raises(Unsupported, match="encrypted"):
        table.changes([], replace(mine, key_metadata=b"key"))
    path = table.list(mine)
    Path(mine.manifest_path).unlink()
    with pytest.raises(BadRequest, match="Manifest is missing"):
        table.difference([], path)
    for limit in ("MOST_PER_OBJECT", "MOST_PER_COMMIT", "MOST_UNPACKED", "MOST_MANIFESTS"):
        with monkeypatch.context() as patched:
            patched.setattr(incoming, limit, 1)
            with pytest.raises(BadRequest, match=r"Manifest"):
                table.changes([], table.manifest(added(A)), table.manifest(added(B)))


def test_the_manifests_of_a_commit_share_one_limit_on_unpacked_bytes(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [table.manifest(*(added(data_file(f"{i}-{j}")) for j in range(100))) for i in range(10)]
    assert len(table.changes([], *many).added) == 1000
    monkeypatch.setattr(incoming, "MOST_UNPACKED", 30_000)
    assert len(table.changes([], *many[:1]).added) == 100
    with pytest.raises(BadRequest, match="too large"):
        table.changes([], *many)


THEIR_SCHEMA = TheirSchema(NestedField(1, "x", LongType()))
THEIR_SPECS = [TheirSpec(spec_id=0), TheirSpec(TheirField(1, 1000, IdentityTransform(), "x"), spec_id=1)]


def pyiceberg_list(folder: Path, version: Any, codec: Any, spec_id: int) -> str:
    io = PyArrowFileIO()
    out = io.new_output(str(folder / f"{uuid4()}.avro"))
    with write_manifest(version, THEIR_SPECS[spec_id], THEIR_SCHEMA, out, MINE, codec) as writer:
        for i in range(3):
            file = TheirFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"s3://b/t/{i}",
                file_format=FileFormat.PARQUET,
                partition=Record(*([i] * spec_id)),
                record_count=i,
                file_size_in_bytes=100,
                value_counts={1: i},
                null_value_counts={1: 0},
                lower_bounds={1: b"\x00" * 8},
                upper_bounds={1: b"\x01" * 8},
                split_offsets=[4],
            )
            writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=MINE, data_file=file))
    written: TheirManifest = writer.to_manifest_file()
    out = io.new_output(str(folder / f"{uuid4()}.avro"))
    with write_manifest_list(version, out, MINE, BASE, 8, codec) as lists:
        lists.add_manifests([written])
    return out.location


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2"])
@pytest.mark.parametrize("spec_id", [0, 1])
def test_manifests_written_by_pyiceberg_are_read(table: Table, codec: str, spec_id: int) -> None:
    found = table.difference([], pyiceberg_list(table.folder, 2, codec, spec_id))
    assert names(found)[0] == ["0", "1", "2"]
    assert [x.file.partition for x in found.added] == [(i,) * spec_id for i in range(3)]
    assert found.added[2].file.value_counts == {1: 2}


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_manifests_with_an_unsupported_codec_are_refused(table: Table, codec: str) -> None:
    try:
        path = pyiceberg_list(table.folder, 2, codec, 0)
    except ImportError:
        pytest.skip("PyIceberg cannot write it here")
    with pytest.raises(BadRequest, match=codec):
        table.difference([], path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), in_list=st.booleans())
def test_a_damaged_manifest_or_list_is_a_client_error(tmp_path: Path, data: st.DataObject, in_list: bool) -> None:
    table = Table(tmp_path)
    ours = table.manifest(added(A, BASE), added(B, BASE), by=BASE)
    theirs = table.manifest(existing(A), deleted(B), added(C), added(D))
    path = table.list(theirs)
    place = Path(path if in_list else theirs.manifest_path)
    content = bytearray(place.read_bytes())
    # names are made up anew each time, and packed they have another length
    anywhere = st.integers(0, 10**6).map(lambda x: x % len(content))
    if data.draw(st.booleans(), "cut"):
        del content[data.draw(anywhere) :]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(anywhere)] = data.draw(st.integers(0, 255))
    place.write_bytes(content)
    if not in_list:
        path = table.list(replace(theirs, manifest_length=len(content)))
    try:
        table.difference([ours], path)
    except (BadRequest, Unsupported, CommitFailed):
        return


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_commit_changes_exactly_the_difference_of_the_file_sets(tmp_path: Path, data: st.DataObject) -> None:
    """However files are spread over manifests, and whatever is said of those that went."""
    table = Table(tmp_path)
    pool = [data_file(str(i)) for i in range(8)]
    groups = data.draw(st.lists(st.sampled_from([0, 1, 2, None]), min_size=8, max_size=8))
    before = [
        table.manifest(*(added(f, BASE) for f, g in zip(pool, groups, strict=True) if g == n), by=BASE)
        for n in range(3)
        if n in groups
    ]
    old = {f.file_path for f, g in zip(pool, groups, strict=True) if g is not None}
    kept = data.draw(st.sets(st.sampled_from(before))) if before else set()
    listed = {e.data_file.file_path for m in kept for e in asyncio.run(table.manifests.read(m))}
    entries: list[list[Entry]] = [[], []]
    now = set(listed)
    for file in pool:
        if file.file_path in listed:
            continue
        stays = data.draw(st.booleans())
        into = entries[data.draw(st.integers(0, 1))]
        if stays:
            now.add(file.file_path)
            into.append(existing(file) if file.file_path in old else added(file))
        elif data.draw(st.booleans()):
            into.append(deleted(file))
    found = table.changes(before, *kept, *(table.manifest(*x) for x in entries if x))
    assert {x.file.file_path for x in found.added} == now - old
    assert set(found.removed) == old - now
