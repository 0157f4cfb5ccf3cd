import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile as PyIcebergPuffinFile
from pyroaring import BitMap64

from mergus.iceberg import deletion_vector
from mergus.iceberg.puffin import MAGIC, Blob, BlobMetadata, PuffinFile, read, write
from mergus.iceberg.puffin import deletion_vector as vector_blob
from tests.iceberg.test_deletion_vector import blob as framed
from tests.iceberg.test_deletion_vector import positions as any_positions
from tests.support import spark as sparks

CREATED = {"created-by": "Mergus 1"}

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
properties = st.dictionaries(text, text, max_size=3)
number = st.integers(-(2**63), 2**63 - 1)
blobs = st.lists(
    st.builds(
        Blob,
        text,
        st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple),
        st.binary(max_size=50),
        properties,
        number,
        number,
    ),
    max_size=4,
)


def packed(footer: Any, flags: int = 0, size: int | None = None, content: bytes = b"0123456789") -> bytes:
    payload = footer if isinstance(footer, bytes) else json.dumps(footer).encode()
    tail = struct.pack("<iI", len(payload) if size is None else size, flags)
    return MAGIC + content + MAGIC + payload + tail + MAGIC


def described(**changes: Any) -> dict[str, Any]:
    right = {"type": "x", "fields": [1], "snapshot-id": 1, "sequence-number": 1, "offset": 4, "length": 10}
    return {"blobs": [{k: v for k, v in (right | changes).items() if v is not ...}]}


@given(blobs, properties)
def test_a_written_puffin_file_is_read_back_unchanged(
    given_blobs: list[Blob], given_properties: dict[str, str]
) -> None:
    written = write(given_blobs, given_properties)
    found = read(written.data)
    assert found == written
    assert found.properties == given_properties
    for blob, metadata in zip(given_blobs, found.blobs, strict=True):
        assert found.payload(metadata) == blob.data
        assert written.data[metadata.offset : metadata.offset + metadata.length] == blob.data
        assert metadata.compression_codec is None
        assert (metadata.type, metadata.fields, metadata.properties) == (blob.type, blob.fields, blob.properties)
        assert (metadata.snapshot_id, metadata.sequence_number) == (blob.snapshot_id, blob.sequence_number)


def test_equal_puffin_content_is_written_as_equal_bytes() -> None:
    one = write([Blob("x", (1,), b"1", {"a": "1", "b": "2"})], {"c": "3", "d": "4"})
    other = write([Blob("x", (1,), b"1", {"b": "2", "a": "1"})], {"d": "4", "c": "3"})
    assert one.data == other.data


def test_the_metadata_of_a_deletion_vector_blob_follows_the_specification() -> None:
    file = write([vector_blob("s3://lake/é.parquet", [5, 1, 1])], CREATED)
    data = deletion_vector.encode([1, 5])
    assert file.blobs == (
        BlobMetadata(
            type="deletion-vector-v1",
            fields=(2147483645,),
            snapshot_id=-1,
            sequence_number=-1,
            offset=4,
            length=len(data),
            compression_codec=None,
            properties={"referenced-data-file": "s3://lake/é.parquet", "cardinality": "2"},
        ),
    )
    assert file.payload(file.blobs[0]) == data
    footer = orjson.loads(file.data[4 + len(data) + 4 : -12])
    assert "compression-codec" not in footer["blobs"][0]
    assert footer["properties"] == CREATED


def test_a_path_that_json_cannot_encode_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        write([vector_blob("\ud800", [1])], CREATED)


def test_a_bare_deletion_vector_is_no_puffin_file() -> None:
    """DuckLake gives it that name."""
    with pytest.raises(ValueError, match="Not a Puffin file"):
        read(deletion_vector.encode([1]))


def test_a_compressed_puffin_footer_is_refused_with_its_codec() -> None:
    with pytest.raises(ValueError, match="LZ4"):
        read(packed(described(), flags=1))


def test_a_compressed_puffin_blob_is_listed_but_not_read() -> None:
    file = read(packed(described(**{"compression-codec": "zstd"})))
    assert file.blobs[0].compression_codec == "zstd"
    with pytest.raises(ValueError, match="zstd"):
        file.payload(file.blobs[0])


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        MAGIC,
        MAGIC * 4,
        packed(described(), flags=2),
        packed(described(), flags=1 << 31),
        packed(described(), size=-1),
        packed(described(), size=2**31 - 1),
        packed(described(), size=10),
        packed(b"{"),
        packed(b'{"blobs": [], "properties": {"a": "\xff"}}'),
        packed(b"[" * 100_000),
        packed([]),
        packed({}),
        packed({"blobs": {}}),
        packed({"blobs": [1]}),
        packed({"blobs": [], "properties": None}),
        packed({"blobs": [], "properties": {"a": 1}}),
        *(packed(described(**{name: ...})) for name in described()["blobs"][0]),
        packed(described(type=1)),
        packed(described(fields=["1"])),
        packed(described(fields=[True])),
        packed(described(offset=3)),
        packed(described(offset=5)),
        packed(described(offset=-1)),
        packed(described(offset=True)),
        packed(described(offset=4.0)),
        packed(described(length=-1)),
        packed(described(length=11)),
        packed(described(**{"snapshot-id": "1"})),
        packed(described(**{"sequence-number": 10**30})),
        packed(described(**{"compression-codec": 1})),
        packed(described(properties=[])),
        packed(described(properties={"cardinality": 1})),
    ],
)
def test_malformed_puffin_files_are_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError):
        read(wrong)


def test_unknown_keys_in_a_puffin_footer_are_ignored() -> None:
    """A later version may add some."""
    assert len(read(packed(described(later=1) | {"later": 2})).blobs) == 1


def test_a_changed_byte_never_changes_which_rows_are_deleted() -> None:
    right = write([vector_blob("s3://lake/1.parquet", [1, 2, 70_000])], CREATED).data
    for at in range(len(right)):
        for change in (1, 2, 128, 255):
            wrong = bytearray(right)
            wrong[at] ^= change
            try:
                file = read(bytes(wrong))
                found = [list(deletion_vector.decode(file.payload(x))) for x in file.blobs]
            except ValueError:
                continue
            assert found == [[1, 2, 70_000]]


@given(st.binary(max_size=100))
def test_noise_between_the_puffin_magic_bytes_is_refused(noise: bytes) -> None:
    with pytest.raises(ValueError):
        read(MAGIC + noise + MAGIC)


@given(st.lists(st.sets(st.integers(0, 1000) | st.integers(0, 2**38)), min_size=1, max_size=3))
def test_pyiceberg_reads_a_puffin_file(sets: list[set[int]]) -> None:
    file = write([vector_blob(f"s3://lake/{i}.parquet", x) for i, x in enumerate(sets)], CREATED)
    theirs = PyIcebergPuffinFile(file.data)
    assert theirs.footer.properties == CREATED
    assert [(x.offset, x.length, x.compression_codec) for x in theirs.footer.blobs] == [
        (x.offset, x.length, None) for x in file.blobs
    ]
    vectors = deletion_vectors_from_puffin_file(theirs)
    for i, (found, expected) in enumerate(zip(vectors, sets, strict=True)):
        assert found.referenced_data_file == f"s3://lake/{i}.parquet"
        assert [(key << 32) + x for key, bitmap in enumerate(found._bitmaps) for x in bitmap] == sorted(expected)
        # Without a position in the first bitmap pyarrow cannot tell the type of what this returns, and it fails.
        if expected and min(expected) < 2**32:
            assert found.to_vector().to_pylist() == sorted(expected)


@pytest.fixture(scope="module")
def java() -> Any:
    jvm: Any = sparks.session()._jvm
    return jvm.org.apache.iceberg


@pytest.mark.integration
class TestJava:
    """Iceberg's own library reads what we write, and writes the same bytes."""

    def test_icebergs_java_library_reads_a_puffin_file(self, java: Any, tmp_path: Path) -> None:
        sets = [[1, 5, 2**33], list(range(100_000))]
        file = write([vector_blob(f"s3://lake/é{i}.parquet", x) for i, x in enumerate(sets)], CREATED)
        path = tmp_path / "x.puffin"
        path.write_bytes(file.data)
        reader = java.puffin.Puffin.read(java.Files.localInput(str(path))).build()
        try:
            metadata = reader.fileMetadata()
            assert dict(metadata.properties()) == CREATED
            assert [java_metadata(x) for x in metadata.blobs()] == list(file.blobs)
            pairs = list(iterated(reader.readAll(metadata.blobs())))
        finally:
            reader.close()
        for pair, ours, expected in zip(pairs, file.blobs, sets, strict=True):
            data = content(pair.second())
            assert data == file.payload(ours)
            index = java.deletes.PositionDeleteIndex.deserialize(data, delete_file(java, str(path), file, ours))
            assert index.cardinality() == len(expected)
            assert all(index.isDeleted(x) for x in expected[:100])
            assert not index.isDeleted(100_000)

    def test_a_deletion_vector_of_icebergs_java_library_is_read(self, java: Any) -> None:
        index = java.deletes.PositionDeleteIndexUtil.merge([])
        index.delete(7)
        index.delete(2**34)
        index.delete(100_000, 300_000)
        found = deletion_vector.decode(content(index.serialize()))
        assert found == BitMap64([7, 2**34, *range(100_000, 300_000)])

    def test_icebergs_java_library_writes_the_same_deletion_vector_bytes(self, java: Any) -> None:
        index = java.deletes.PositionDeleteIndexUtil.merge([])
        assert content(index.serialize()) == deletion_vector.encode([])
        index.delete(7)
        index.delete(100_000, 300_000)
        index.delete(2**32 - 1)
        index.delete(2**32)
        assert content(index.serialize()) == deletion_vector.encode([7, *range(100_000, 300_000), 2**32 - 1, 2**32])

    @settings(max_examples=60)
    @given(any_positions.map(lambda found: {x % 2**33 for x in found}))
    def test_icebergs_java_library_chooses_the_same_bitmap_containers(self, java: Any, found: set[int]) -> None:
        """Given the positions without any run-length encoding, it makes of them what we make of them."""
        plain = framed(BitMap64(found, optimize=False).serialize())
        whole = write([Blob("x", (), plain)], {})
        file = delete_file(java, "file:/x.puffin", whole, whole.blobs[0], len(found))
        index = java.deletes.PositionDeleteIndex.deserialize(plain, file)
        theirs = content(index.serialize())
        assert deletion_vector.decode(theirs) == BitMap64(found)
        # Java writes an empty bitmap for a key that is left out, and we do not.
        if not found or min(found) < 2**32:
            assert theirs == deletion_vector.encode(found)

    def test_spark_applies_deletion_vectors_written_by_mergus(self, java: Any, tmp_path: Path) -> None:
        table = SparkTable(tmp_path, format_version=3)
        first, second = table.append(range(10)), table.append(range(100, 110))
        file = write([vector_blob(first, [0, 3]), vector_blob(second, range(5, 10))], CREATED)
        path = tmp_path / "x.puffin"
        path.write_bytes(file.data)
        table.add_deletes([delete_file(java, f"file:{path}", file, x) for x in file.blobs])
        assert table.rows() == [1, 2, *range(4, 10), *range(100, 105)]


class SparkTable:
    """An Iceberg table of Spark's own, without a server, with one column of numbers."""

    def __init__(self, directory: Path, format_version: int) -> None:
        self.spark = sparks.session()
        catalog = f"hadoop_{uuid4().hex[:8]}"
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": f"file:{directory}",
            ".cache-enabled": "false",
        }.items():
            self.spark.conf.set(f"spark.sql.catalog.{catalog}{key}", value)
        self.name = f"{catalog}.db.t"
        self.spark.sql(
            f"CREATE TABLE {self.name} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '{format_version}')"
        )

    def append(self, ids: range) -> str:
        """The location of the file that now holds these."""
        before = self.files()
        self.spark.range(ids.start, ids.stop, numPartitions=1).writeTo(self.name).append()
        (added,) = self.files() - before
        return added

    def files(self) -> set[str]:
        return {x.file_path for x in self.spark.table(f"{self.name}.files").collect()}

    def rows(self) -> list[int]:
        return sorted(x.id for x in self.spark.table(self.name).collect())

    def add_deletes(self, files: Sequence[Any]) -> None:
        jvm: Any = self.spark._jvm
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, self.name)
        delta = table.newRowDelta()
        for file in files:
            delta.addDeletes(file)
        delta.commit()


def delete_file(java: Any, path: str, file: PuffinFile, blob: BlobMetadata, count: int | None = None) -> Any:
    """A manifest's entry for the blob."""
    return (
        java.FileMetadata.deleteFileBuilder(java.PartitionSpec.unpartitioned())
        .ofPositionDeletes()
        .withFormat("puffin")
        .withPath(path)
        .withFileSizeInBytes(len(file.data))
        .withReferencedDataFile(blob.properties.get("referenced-data-file", "file:/x.parquet"))
        .withContentOffset(blob.offset)
        .withContentSizeInBytes(blob.length)
        .withRecordCount(int(blob.properties.get("cardinality", 0)) if count is None else count)
        .build()
    )


def java_metadata(blob: Any) -> BlobMetadata:
    return BlobMetadata(
        blob.type(),
        tuple(blob.inputFields()),
        blob.snapshotId(),
        blob.sequenceNumber(),
        blob.offset(),
        blob.length(),
        blob.compressionCodec(),
        dict(blob.properties()),
    )


def content(buffer: Any) -> bytes:
    start = buffer.arrayOffset() + buffer.position()
    return bytes(buffer.array())[start : start + buffer.remaining()]


def iterated(iterable: Any) -> list[Any]:
    found, iterator = [], iterable.iterator()
    while iterator.hasNext():
        found.append(iterator.next())
    return found
