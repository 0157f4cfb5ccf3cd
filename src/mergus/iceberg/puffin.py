"""Puffin files: blobs one after the other, and a footer of JSON that says what each is and where.

    PFA1  blob …  PFA1  footer payload  payload size  flags  PFA1

Size and flags are 4 bytes each, little-endian. A manifest entry points at a deletion vector by offset and
length, so `write` returns those with the bytes. The same blobs and properties give the same bytes, because
objects are named by their content: the JSON has a fixed order and no time or place in it. Blobs are written as
they are; the specification forbids to compress a deletion vector, and we write nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast, get_origin

import orjson

from mergus.iceberg import deletion_vector as vectors

MAGIC = b"PFA1"
DELETION_VECTOR = "deletion-vector-v1"

# The reserved field id of `_pos`, the row's position in its file.
ROW_POSITION = 2147483645

# Not known while the file is written; the manifest entry has the real ones.
INHERITED = -1

REFERENCED_DATA_FILE = "referenced-data-file"
CARDINALITY = "cardinality"
CREATED_BY = "created-by"

T = TypeVar("T")

_SIZE_AND_FLAGS = 8
_FOOTER_END = _SIZE_AND_FLAGS + len(MAGIC)
_SMALLEST = 2 * len(MAGIC) + _FOOTER_END
_COMPRESSED_FOOTER = 1


@dataclass(frozen=True, slots=True)
class Blob:
    type: str
    fields: tuple[int, ...]
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    snapshot_id: int = INHERITED
    sequence_number: int = INHERITED


@dataclass(frozen=True, slots=True)
class BlobMetadata:
    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    offset: int
    length: int
    compression_codec: str | None
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PuffinFile:
    data: bytes
    blobs: tuple[BlobMetadata, ...]
    properties: Mapping[str, str]

    def payload(self, blob: BlobMetadata) -> bytes:
        if blob.compression_codec is not None:
            raise ValueError(f"Puffin blob of type {blob.type} is compressed with {blob.compression_codec}")
        return self.data[blob.offset : blob.offset + blob.length]


def deletion_vector(data_file: str, positions: Iterable[int]) -> Blob:
    """`data_file` is the location exactly as table metadata has it: readers compare the strings."""
    deleted = vectors.bitmap(positions)
    properties = {REFERENCED_DATA_FILE: data_file, CARDINALITY: str(len(deleted))}
    return Blob(DELETION_VECTOR, (ROW_POSITION,), vectors.encode(deleted), properties)


def write(blobs: Sequence[Blob], properties: Mapping[str, str]) -> PuffinFile:
    """In the order given. `properties` should say who writes, under `CREATED_BY`."""
    placed: list[BlobMetadata] = []
    offset = len(MAGIC)
    for blob in blobs:
        placed.append(_place(blob, offset))
        offset += len(blob.data)
    payload = _footer_payload(placed, properties)
    size_and_flags = len(payload).to_bytes(4, "little") + bytes(4)
    data = b"".join([MAGIC, *(blob.data for blob in blobs), MAGIC, payload, size_and_flags, MAGIC])
    return PuffinFile(data, tuple(placed), dict(properties))


def read(data: bytes) -> PuffinFile:
    """The file with its footer checked: every blob lies between header and footer."""
    payload, end_of_blobs = _find_footer(data)
    try:
        footer = orjson.loads(payload)
    except orjson.JSONDecodeError as e:
        raise ValueError(f"Puffin footer is not JSON: {e}") from None
    (footer,) = _all_of([footer], dict[str, Any], "the whole")
    blobs = _all_of(_typed(footer, "blobs", list[Any]), dict[str, Any], "a blob")
    return PuffinFile(data, tuple(_blob_metadata(x, end_of_blobs) for x in blobs), _properties(footer))


def _place(blob: Blob, offset: int) -> BlobMetadata:
    return BlobMetadata(
        type=blob.type,
        fields=tuple(blob.fields),
        snapshot_id=blob.snapshot_id,
        sequence_number=blob.sequence_number,
        offset=offset,
        length=len(blob.data),
        compression_codec=None,
        properties=dict(blob.properties),
    )


def _footer_payload(blobs: Sequence[BlobMetadata], properties: Mapping[str, str]) -> bytes:
    footer: dict[str, Any] = {"blobs": [_blob_json(x) for x in blobs]}
    if properties:
        footer["properties"] = dict(properties)
    try:
        # Sorted, because two mappings that are equal need not have the same order.
        return orjson.dumps(footer, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as e:
        raise ValueError(f"Puffin footer cannot be written: {e}") from None


def _blob_json(blob: BlobMetadata) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": blob.type,
        "fields": list(blob.fields),
        "snapshot-id": blob.snapshot_id,
        "sequence-number": blob.sequence_number,
        "offset": blob.offset,
        "length": blob.length,
    }
    return found | ({"properties": dict(blob.properties)} if blob.properties else {})


def _find_footer(data: bytes) -> tuple[bytes, int]:
    """The payload, and where the footer begins."""
    if len(data) < _SMALLEST:
        raise ValueError(f"Puffin file is cut off: {len(data)} bytes, at least {_SMALLEST} are needed")
    if not data.startswith(MAGIC) or not data.endswith(MAGIC):
        raise ValueError(f"Not a Puffin file: it does not begin and end with {MAGIC.decode()}")
    flags = int.from_bytes(data[-_FOOTER_END + 4 : -len(MAGIC)], "little")
    if flags == _COMPRESSED_FOOTER:
        raise ValueError("Puffin footer is compressed with LZ4, which is not supported")
    if flags:
        raise ValueError(f"Puffin file has unknown flags: {flags:#x}")
    size = int.from_bytes(data[-_FOOTER_END : -_FOOTER_END + 4], "little", signed=True)
    payload_at = len(data) - _FOOTER_END - size
    footer_at = payload_at - len(MAGIC)
    if size < 0 or footer_at < len(MAGIC):
        raise ValueError(f"Puffin file of {len(data)} bytes says that its footer has {size}")
    if data[footer_at:payload_at] != MAGIC:
        raise ValueError(f"Puffin footer does not begin with {MAGIC.decode()}")
    return data[payload_at:-_FOOTER_END], footer_at


def _blob_metadata(blob: dict[str, Any], end_of_blobs: int) -> BlobMetadata:
    offset, length = _typed(blob, "offset", int), _typed(blob, "length", int)
    if offset < len(MAGIC) or length < 0 or offset + length > end_of_blobs:
        raise ValueError(f"Puffin blob lies outside of its file: {length} bytes at {offset}")
    return BlobMetadata(
        type=_typed(blob, "type", str),
        fields=tuple(_all_of(_typed(blob, "fields", list[Any]), int, "fields")),
        snapshot_id=_typed(blob, "snapshot-id", int),
        sequence_number=_typed(blob, "sequence-number", int),
        offset=offset,
        length=length,
        compression_codec=_typed(blob, "compression-codec", str) if "compression-codec" in blob else None,
        properties=_properties(blob),
    )


def _properties(owner: dict[str, Any]) -> dict[str, str]:
    properties = _typed(owner, "properties", dict[str, Any]) if "properties" in owner else {}
    _all_of(properties.values(), str, "properties")
    return properties


def _typed(owner: dict[str, Any], name: str, kind: type[T]) -> T:
    return _all_of([owner.get(name)], kind, name)[0]


def _all_of(values: Iterable[object], kind: type[T], what: str) -> list[T]:
    found = list(values)
    # The exact type: Python takes `true` for an int.
    if wrong := [x for x in found if type(x) is not (get_origin(kind) or kind)]:
        raise ValueError(f"Puffin footer has the wrong type of value for {what}: {wrong[0]!r:.100}")
    return cast(list[T], found)
