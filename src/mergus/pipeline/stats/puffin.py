"""The one statistics file that a snapshot has: a Puffin file, written and read by Iceberg's own library.

It goes through the table's own FileIO, so whatever reaches the table's data reaches it, too. A column has up to two
blobs in it. The sketch is Iceberg's own type, and its properties carry the small figures: they are in the table's
metadata, where a client sees them without opening the file. The other is ours and has everything, histogram included,
in JSON. It is not listed in the metadata: PyIceberg opens no table that lists a type of blob that it does not know.

The blobs of other columns, and of other makers, are carried over from the file before.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import mergus
from mergus.pipeline.job import Place, Table
from mergus.pipeline.session import iceberg_table, jvm

SKETCH: Final = "apache-datasketches-theta-v1"
OURS: Final = "mergus-column-stats-v1"


@dataclass(frozen=True)
class Blob:
    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class File:
    """As table metadata names it."""

    path: str
    size: int

    @classmethod
    def of(cls, statistics: Mapping[str, Any]) -> "File":
        return cls(statistics["statistics-path"], int(statistics["file-size-in-bytes"]))


class Statistics:
    """A table's, through Iceberg's library in Spark's process."""

    def __init__(self, place: Place, table: Table) -> None:
        self._iceberg: Any = jvm(place.spark).org.apache.iceberg
        self._java: Any = jvm(place.spark).java
        self._table: Any = iceberg_table(place.spark, place.sql_name(table))

    def read(self, file: File, types: Collection[str] | None = None) -> list[Blob]:
        """Its blobs, or those of some types."""
        source = self._table.io().newInputFile(file.path, file.size)
        with closing(self._iceberg.puffin.Puffin.read(source).build()) as reader:
            wanted = [blob for blob in reader.fileMetadata().blobs() if types is None or blob.type() in types]
            return [_blob(pair.first(), pair.second()) for pair in reader.readAll(wanted).iterator()]

    def write(self, snapshot_id: int, blobs: Sequence[Blob]) -> File:
        """A new file, in place of what the snapshot has had."""
        path = self._table.operations().metadataFileLocation(f"{snapshot_id}-{uuid4()}.stats")
        puffin = self._iceberg.puffin
        target = self._table.io().newOutputFile(path)
        with closing(puffin.Puffin.write(target).createdBy(f"Mergus {mergus.__version__}").build()) as writer:
            for blob in blobs:
                writer.add(self._java_blob(blob))
            writer.finish()
            # what only we read is not listed
            listed = [
                self._iceberg.GenericBlobMetadata(
                    blob.type, blob.snapshot_id, blob.sequence_number, list(blob.fields), dict(blob.properties)
                )
                for blob in blobs
                if blob.type != OURS
            ]
            file = File(path, writer.fileSize())
            written = self._iceberg.GenericStatisticsFile(snapshot_id, path, file.size, writer.footerSize(), listed)
        self._table.updateStatistics().setStatistics(written).commit()
        return file

    def _java_blob(self, blob: Blob) -> Any:  # noqa: ANN401
        puffin = self._iceberg.puffin
        data = self._java.nio.ByteBuffer.wrap(bytearray(blob.data))
        fields, properties = list(blob.fields), dict(blob.properties)
        codec = puffin.PuffinCompressionCodec.ZSTD
        return puffin.Blob(blob.type, fields, blob.snapshot_id, blob.sequence_number, data, codec, properties)


def _blob(said: Any, data: Any) -> Blob:  # noqa: ANN401
    return Blob(
        type=said.type(),
        fields=tuple(said.inputFields()),
        snapshot_id=said.snapshotId(),
        sequence_number=said.sequenceNumber(),
        data=bytes(data.array())[data.arrayOffset() + data.position() : data.arrayOffset() + data.limit()],
        properties=dict(said.properties()),
    )
