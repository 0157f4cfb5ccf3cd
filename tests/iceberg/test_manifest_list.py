import json
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import read_manifest_list

from mergus.iceberg import manifest, position_deletes, puffin
from mergus.iceberg.manifest import ADDED, DataFile, Entry
from mergus.iceberg.manifest_list import FieldSummary, ManifestFile, read, write
from tests.iceberg.test_manifest import (
    V3_VALUES,
    VALUES,
    as_objects_of_python,
    field_ids,
    longs,
    maybe,
    partitioned,
    sizes,
    text,
)
from tests.iceberg.test_puffin import SparkTable, content
from tests.support import spark as sparks

MANIFEST = ManifestFile("s3://lake/m.avro", 10, 0, 0, 2, 1, 8, 1, 2, 3, 4, 5, 6)
METADATA = {"snapshot_id": 8, "parent_snapshot_id": 7, "sequence_number": 2}


def written(manifests: list[ManifestFile], version: int = 2, **changes: Any) -> bytes:
    row_id = {"first_row_id": 100} if version == 3 else {}
    return write(manifests, **(METADATA | {"format_version": version} | row_id | changes))  # pyright: ignore[reportArgumentType]


@st.composite
def any_manifests(draw: st.DrawFn, version: int) -> list[ManifestFile]:
    summaries = st.builds(
        FieldSummary, st.booleans(), maybe(st.booleans()), maybe(st.binary(max_size=8)), maybe(st.binary(max_size=8))
    )
    found = st.builds(
        ManifestFile,
        text,
        longs,
        field_ids,
        st.sampled_from([0, 1]),
        *(longs,) * 3,
        *(field_ids,) * 3,
        *(longs,) * 3,
        partitions=maybe(st.lists(summaries, max_size=3)),
        key_metadata=maybe(st.binary(max_size=8)),
        first_row_id=sizes,
    )
    return [
        replace(x, first_row_id=x.first_row_id if version == 3 and x.content == 0 else None)
        for x in draw(st.lists(found, max_size=4))
    ]


@pytest.mark.parametrize("version", [2, 3])
@given(data=st.data())
def test_a_written_manifest_list_is_read_back_unchanged(version: int, data: st.DataObject) -> None:
    manifests = data.draw(any_manifests(version))
    metadata, found = read(written(manifests, version))
    assert found == manifests
    expected = {"snapshot-id": "8", "parent-snapshot-id": "7", "sequence-number": "2", "format-version": str(version)}
    assert metadata == expected | ({"first-row-id": "100"} if version == 3 else {})


def test_equal_manifest_lists_are_written_as_equal_bytes() -> None:
    assert written([MANIFEST]) == written([replace(MANIFEST)])
    assert written([MANIFEST]) != written([MANIFEST], snapshot_id=9)


def test_the_manifest_list_of_the_first_snapshot_has_no_parent() -> None:
    """In the words of Java."""
    assert read(written([], parent_snapshot_id=None))[0]["parent-snapshot-id"] == "null"


def test_every_field_of_a_manifest_list_has_the_id_of_the_specification() -> None:
    schema: Any = orjson.loads(fastavro.reader(BytesIO(written([], 3))).metadata["avro.schema"])
    assert [x["field-id"] for x in schema["fields"]] == [
        *(500, 501, 502, 517, 515, 516, 503, 504, 505, 506, 512, 513, 514, 507, 519, 520)
    ]
    partitions = schema["fields"][13]["type"][1]
    assert (partitions["element-id"], partitions["items"]["name"]) == (508, "r508")
    assert [x["field-id"] for x in partitions["items"]["fields"]] == [509, 518, 510, 511]


@pytest.mark.parametrize(
    ("wrong", "version", "changes"),
    [
        (MANIFEST, 1, {}),
        (MANIFEST, 4, {}),
        (MANIFEST, 2, {"first_row_id": 1}),
        (MANIFEST, 3, {}),
        (replace(MANIFEST, first_row_id=1), 2, {}),
        (replace(MANIFEST, first_row_id=1), 3, {"first_row_id": None}),
        (replace(MANIFEST, first_row_id=1, content=1), 3, {}),
        (replace(MANIFEST, content=2), 2, {}),
        (replace(MANIFEST, partition_spec_id=2**31), 2, {}),
        (replace(MANIFEST, added_files_count=2**31), 2, {}),
        (replace(MANIFEST, manifest_length=2**63), 2, {}),
        (replace(MANIFEST, manifest_path=None), 2, {}),  # pyright: ignore[reportArgumentType]
        (replace(MANIFEST, partitions=[1]), 2, {}),  # pyright: ignore[reportArgumentType]
    ],
)
def test_entries_that_a_manifest_list_cannot_have_are_refused(
    wrong: ManifestFile, version: int, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):
        written([wrong], version, **changes)


def test_a_truncated_manifest_list_is_refused() -> None:
    right = written([MANIFEST])
    header = len(written([]))
    for end in range(len(right)):
        # Avro cannot tell a file without its last block from a whole one.
        if end != header:
            with pytest.raises(ValueError):
                read(right[:end])


@settings(max_examples=40)
@given(any_manifests(2))
def test_pyiceberg_reads_a_manifest_list_written_by_mergus(
    tmp_path_factory: pytest.TempPathFactory, manifests: list[ManifestFile]
) -> None:
    path = tmp_path_factory.mktemp("lists") / "l.avro"
    path.write_bytes(written(manifests))
    found = list(read_manifest_list(PyArrowFileIO().new_input(str(path))))
    for theirs, ours in zip(found, manifests, strict=True):
        expected = asdict(ours)
        summaries, _ = expected.pop("partitions"), expected.pop("first_row_id")
        assert {x: getattr(theirs, x) for x in expected} == expected
        if summaries is None:
            assert theirs.partitions is None
        else:
            assert [
                {k: getattr(x, k) for k in FieldSummary.__dataclass_fields__} for x in theirs.partitions or ()
            ] == summaries


class Table:
    """A table of files that we wrote, as Java finds it in a directory."""

    def __init__(self, directory: Path, version: int, schema: dict[str, Any], spec: list[dict[str, Any]]) -> None:
        self.directory, self.version, self.schema, self.spec = directory, version, schema, spec
        self.manifests: list[ManifestFile] = []
        self.types: tuple[manifest.PartitionField, ...] = ()
        self.sequence_number = 5
        self.snapshot_id = 2**62 + 1
        (directory / "metadata").mkdir(parents=True)

    def put(self, name: str, data: bytes) -> str:
        (self.directory / name).write_bytes(data)
        return f"file:{self.directory / name}"

    def add(self, entries: list[Entry], content: Any = "data", partitions: list[FieldSummary] | None = None) -> None:
        data = manifest.write(
            entries,
            schema_json=self.schema,
            schema_id=0,
            spec_json=self.spec,
            spec_id=0,
            partition_types=self.types,
            content=content,
            format_version=self.version,
        )
        rows = sum(x.data_file.record_count for x in entries)
        of_data = content == "data"
        self.manifests.append(
            ManifestFile(
                manifest_path=self.put(f"metadata/m{len(self.manifests)}.avro", data),
                manifest_length=len(data),
                partition_spec_id=0,
                content=0 if of_data else 1,
                sequence_number=self.sequence_number,
                min_sequence_number=self.sequence_number,
                added_snapshot_id=self.snapshot_id,
                added_files_count=len(entries),
                existing_files_count=0,
                deleted_files_count=0,
                added_rows_count=rows,
                existing_rows_count=0,
                deleted_rows_count=0,
                partitions=partitions,
                first_row_id=1000 if of_data and self.version == 3 else None,
            )
        )

    def commit(self) -> str:
        """Where the table is."""
        rows = {"first_row_id": 1000} if self.version == 3 else {}
        listed = write(
            self.manifests,
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=None,
            sequence_number=self.sequence_number,
            format_version=self.version,
            **rows,
        )
        snapshot = {
            "snapshot-id": self.snapshot_id,
            "sequence-number": self.sequence_number,
            "timestamp-ms": 1,
            "summary": {"operation": "append"},
            "manifest-list": self.put("metadata/snap.avro", listed),
            "schema-id": 0,
        }
        metadata = {
            "format-version": self.version,
            "table-uuid": str(UUID(int=1)),
            "location": f"file:{self.directory}",
            "last-sequence-number": self.sequence_number,
            "last-updated-ms": 1,
            "last-column-id": len(self.schema["fields"]),
            "schemas": [self.schema],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": self.spec}],
            "default-spec-id": 0,
            "last-partition-id": 1100,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "current-snapshot-id": self.snapshot_id,
            "refs": {"main": {"snapshot-id": self.snapshot_id, "type": "branch"}},
            "snapshots": [snapshot | ({"first-row-id": 1000, "added-rows": 100} if rows else {})],
        } | ({"next-row-id": 2000} if rows else {})
        self.put("metadata/v1.metadata.json", json.dumps(metadata).encode())
        self.put("metadata/version-hint.text", b"1")
        return str(self.directory)


def parquet(values: range, columns: dict[str, Any]) -> bytes:
    """Column 1 has the values, the others are constant."""
    arrays = [pa.array(values, pa.int64()), *(pa.array([x] * len(values)) for x in columns.values())]
    names = ["id", *columns]
    fields = [
        pa.field(name, array.type, metadata={"PARQUET:field_id": str(i + 1)})
        for i, (name, array) in enumerate(zip(names, arrays, strict=True))
    ]
    stream = BytesIO()
    pq.write_table(pa.table(arrays, schema=pa.schema(fields)), stream)
    return stream.getvalue()


def iterated(iterable: Any) -> list[Any]:
    """Readers use one object for all rows, so each is copied."""
    found, iterator = [], iterable.iterator()
    while iterator.hasNext():
        found.append(iterator.next().copy())
    iterator.close()
    return found


def plain(type_: str, value: Any) -> Any:
    """What py4j leaves as an object of Java."""
    if value is None:
        return None
    if type_ == "uuid":
        return UUID(value.toString())
    return content(value) if type_ == "binary" else value


@pytest.mark.integration
class TestJava:
    """Iceberg's own library reads what we write."""

    @pytest.mark.parametrize("version", [2, 3])
    def test_spark_reads_the_rows_of_manifests_written_by_mergus(self, tmp_path: Path, version: int) -> None:
        """It skips by partition and by bounds, and applies our deletes."""
        fields = [("id", "long"), ("part", "string")]
        schema = {
            "type": "struct",
            "schema-id": 0,
            "fields": [{"id": i + 1, "name": n, "required": False, "type": t} for i, (n, t) in enumerate(fields)],
        }
        spec = [{"source-id": 2, "field-id": 1000, "name": "a part", "transform": "identity"}]
        table = Table(tmp_path / "t", version, schema, spec)
        table.types = (manifest.PartitionField("a part", 1000, "string"),)
        files: list[DataFile] = []
        for name, ids in {"a": range(10), "b": range(100, 120), "é": range(200, 205)}.items():
            data = parquet(ids, {"part": name})
            low, high = ids[0].to_bytes(8, "little"), ids[-1].to_bytes(8, "little")
            path = table.put(f"{name}.parquet", data)
            count = {1: len(ids), 2: len(ids)}
            file = DataFile(0, path, "PARQUET", (name,), len(ids), len(data), None, count, {1: 0, 2: 0})
            files.append(replace(file, lower_bounds={1: low}, upper_bounds={1: high}))
        summary = FieldSummary(False, False, b"a", "é".encode())
        table.add([Entry(ADDED, None, 4, 4, x) for x in files], partitions=[summary])
        deleted = [0, 1, 5]
        if version == 2:
            data = position_deletes.write({files[1].file_path: deleted})
            deletes = DataFile(1, table.put("d.parquet", data), "PARQUET", ("b",), len(deleted), len(data))
            deletes = replace(deletes, referenced_data_file=files[1].file_path)
        else:
            blob = puffin.write([puffin.deletion_vector(files[1].file_path, deleted)], {})
            path = table.put("d.puffin", blob.data)
            deletes = replace(
                DataFile(1, path, "PUFFIN", ("b",), len(deleted), len(blob.data)),
                referenced_data_file=files[1].file_path,
                content_offset=blob.blobs[0].offset,
                content_size_in_bytes=blob.blobs[0].length,
            )
        table.add([Entry(ADDED, None, None, None, deletes)], "deletes")
        found = sparks.session().read.format("iceberg").load(table.commit())
        left = [x for x in range(100, 120) if x not in (100, 101, 105)]
        assert sorted(x.id for x in found.collect()) == [*range(10), *left, *range(200, 205)]
        assert sorted(x.id for x in found.where("part = 'b'").collect()) == left
        assert sorted(x.id for x in found.where("id > 115").collect()) == [*range(116, 120), *range(200, 205)]
        assert found.where("part = 'c'").count() == 0
        assert found.count() == 32
        if version == 3:
            rows = {x.id: x._row_id for x in found.select("id", "_row_id").collect()}
            assert (rows[0], rows[9], rows[102], rows[119], rows[200]) == (1000, 1009, 1012, 1029, 1030)

    @pytest.mark.parametrize("version", [2, 3])
    def test_icebergs_java_library_reads_every_field_of_a_manifest_list(self, tmp_path: Path, version: int) -> None:
        values = VALUES if version == 2 else V3_VALUES
        # one type twice: in Avro it is a type with a name
        types = [*values, "decimal(9, 2)"]
        schema, spec, partition = partitioned(types)
        one = {
            "boolean": True,
            "float": 1.5,
            "double": 0.1,
            "string": "é",
            "binary": b"\0\xff",
        }
        one |= {"uuid": bytes(range(240, 256)), "date": -800_000, "timestamp": -(2**62), "decimal(38,10)": 1 - 10**38}
        tuples = [tuple(one.get(x, -5) for x in types), (None,) * len(types)]
        file = DataFile(
            content=0,
            file_path="file:/é.parquet",
            file_format="PARQUET",
            partition=(),
            record_count=2**40,
            file_size_in_bytes=2**41,
            column_sizes={1: 2**42},
            value_counts={1: 1, 2: 2},
            null_value_counts={1: 3},
            nan_value_counts={4: 4},
            lower_bounds={1: b"\0\xff"},
            upper_bounds={1: b"\1"},
            split_offsets=[4, 2**40],
            sort_order_id=0,
        )
        table = Table(tmp_path / "t", version, schema, spec)
        table.types = partition
        summaries = [FieldSummary(True, None, b"\0\xff", None) for _ in types]
        table.add([Entry(ADDED, None, None, None, replace(file, partition=x)) for x in tuples], partitions=summaries)
        jvm: Any = sparks.session()._jvm
        iceberg = jvm.org.apache.iceberg
        theirs = iceberg.hadoop.HadoopTables(jvm.org.apache.hadoop.conf.Configuration()).load(table.commit())
        (listed,) = theirs.currentSnapshot().allManifests(theirs.io())
        ours = table.manifests[0]
        assert (listed.path(), listed.length()) == (ours.manifest_path, ours.manifest_length)
        assert (listed.sequenceNumber(), listed.minSequenceNumber(), listed.snapshotId()) == (5, 5, table.snapshot_id)
        assert (listed.addedFilesCount(), listed.addedRowsCount(), listed.deletedRowsCount()) == (2, 2**41, 0)
        assert listed.firstRowId() == ours.first_row_id
        assert [
            (x.containsNull(), x.containsNaN(), content(x.lowerBound()), x.upperBound()) for x in listed.partitions()
        ] == [(True, None, b"\0\xff", None) for _ in types]
        found = iterated(iceberg.ManifestFiles.read(listed, theirs.io(), theirs.specs()))
        any_class = jvm.java.lang.Class.forName("java.lang.Object")
        for their, expected in zip(found, tuples, strict=True):
            got = [plain(x, their.partition().get(i, any_class)) for i, x in enumerate(types)]
            assert got == [as_objects_of_python(x, y) for x, y in zip(types, expected, strict=True)]
            assert (their.location(), their.format().toString()) == (file.file_path, "PARQUET")
            assert (their.recordCount(), their.fileSizeInBytes()) == (2**40, 2**41)
            assert dict(their.columnSizes()) == file.column_sizes
            assert dict(their.valueCounts()) == file.value_counts
            assert dict(their.nullValueCounts()) == file.null_value_counts
            assert dict(their.nanValueCounts()) == file.nan_value_counts
            assert {k: content(v) for k, v in dict(their.lowerBounds()).items()} == file.lower_bounds
            assert {k: content(v) for k, v in dict(their.upperBounds()).items()} == file.upper_bounds
            assert list(their.splitOffsets()) == file.split_offsets
            assert (their.sortOrderId(), their.dataSequenceNumber(), their.fileSequenceNumber()) == (0, 5, 5)
        assert [x.firstRowId() for x in found] == ([1000, 1000 + 2**40] if version == 3 else [None, None])

    @pytest.mark.parametrize("version", [2, 3])
    def test_manifest_lists_and_manifests_written_by_spark_are_read(self, tmp_path: Path, version: int) -> None:
        table = SparkTable(tmp_path, version)
        table.append(range(10))
        table.spark.sql(f"ALTER TABLE {table.name} ADD COLUMNS (day DATE, `größe` DECIMAL(9, 2), d DECIMAL(9, 2))")
        for field in ("day", "`größe`", "d", "truncate(2, id)"):
            table.spark.sql(f"ALTER TABLE {table.name} ADD PARTITION FIELD {field}")
        table.spark.sql(f"INSERT INTO {table.name} VALUES (7, DATE '1970-01-03', -1.25, 3.5)")
        snapshot = table.spark.table(f"{table.name}.snapshots").orderBy("committed_at").collect()[-1]
        metadata, manifests = read(Path(snapshot.manifest_list.removeprefix("file:")).read_bytes())
        assert metadata["snapshot-id"] == str(snapshot.snapshot_id)
        assert [x.added_rows_count for x in manifests] == [1, 10]
        assert [x.first_row_id is None for x in manifests] == [version == 2] * 2
        assert [None if x.partitions is None else len(x.partitions) for x in manifests] == [4, 0]
        entries: list[Entry] = []
        for each in manifests:
            data = Path(each.manifest_path.removeprefix("file:")).read_bytes()
            assert len(data) == each.manifest_length
            metadata, found = manifest.read(data)
            assert (metadata["content"], metadata["format-version"]) == ("data", str(version))
            entries += found
        assert {x.data_file.file_path for x in entries} == table.files()
        assert [x.data_file.partition for x in entries] == [(2, -125, 350, 6), ()]
        assert [x.data_file.record_count for x in entries] == [1, 10]
        assert entries[1].data_file.lower_bounds == {1: bytes(8)}
        assert entries[1].data_file.upper_bounds == {1: (9).to_bytes(8, "little")}
