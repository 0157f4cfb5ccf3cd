"""Avro files as Iceberg writes them.

    Obj 1  metadata  sync marker  { records  bytes  data  sync marker } …

Types are described once, by `Record`, `Mapping`, `Sequence` and the names of Avro's primitives (`avro_schema`); from
that come the schema and the ways from objects to bytes (`avro_encode`) and back (`avro_decode`, `avro_theirs`). There
is no dict of values in between: to make and check one for every record took several times as long.

Equal input gives equal bytes, because objects are named by their content: maps are sorted by key, and the sync marker
is a hash of everything else. Values are the plain ones of Avro, never what a logical type makes of them: a date is a
number of days, and not all of Iceberg's dates are Python's.

A few bytes that are packed can stand for any number of them, so what may come of a file is bounded (`Allowance`).
"""

import bz2
import hashlib
import lzma
import zlib
from collections import abc
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, Protocol

import orjson

from mergus.iceberg import avro_decode, avro_encode, avro_schema, avro_theirs
from mergus.iceberg.avro_schema import Field, Mapping, Partition, Record, Scalar, Sequence, Type
from mergus.iceberg.avro_theirs import Theirs

__all__ = [
    "Allowance",
    "Field",
    "Mapping",
    "Partition",
    "Record",
    "Scalar",
    "Sequence",
    "Theirs",
    "Type",
    "read",
    "schema_of",
    "write",
]

MAGIC = b"Obj\x01"
SCHEMA = "avro.schema"
CODEC = "avro.codec"

# What is packed at once, before compression; a reader has to hold that much.
BLOCK_SIZE = 64_000
# Of compression. Level 6 takes half as long again and saves three bytes in a hundred (bench/manifests.py).
LEVEL = 4

_SYNC_SIZE = 16
# Schemas that are remembered; a table's has some thousands of bytes, and a client could send one of any size.
_KEPT_SIZE = 20_000
# Deflate without the header and checksum of zlib, as Avro wants it.
_RAW = -15

# How much may come of one file: a manifest that Iceberg's Java library writes has 8 MiB, packed about one to ten.
MOST_UNPACKED = 256 * 1024 * 1024
# Of the window that xz goes back in, which the file chooses; its highest level takes 65 MiB.
_MOST_FOR_XZ = 128 * 1024 * 1024


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


_UNPACKERS: dict[str, Callable[[], _Unpacker]] = {
    "deflate": lambda: zlib.decompressobj(_RAW),
    "bzip2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, memlimit=_MOST_FOR_XZ),
}


class Allowance:
    """How many bytes may still be unpacked. Files that are read one after the other may share one."""

    def __init__(self, left: int = MOST_UNPACKED) -> None:
        self.left = left

    def take(self, count: int) -> None:
        if count > self.left:
            raise ValueError("Avro file is too large when it is unpacked")
        self.left -= count


def write(record: Record, values: Iterable[object], metadata: abc.Mapping[str, str]) -> bytes:
    """`record` is worth keeping: what is made of it is used again when it comes again."""
    schema, encode = _prepared(record)
    meta = {**metadata, SCHEMA: schema, CODEC: "deflate"}
    try:
        blocks = list(_blocks(map(encode, values)))
        start = MAGIC + avro_encode.strings_to_bytes({k: meta[k].encode() for k in sorted(meta)})
    except (TypeError, AttributeError) as e:
        raise ValueError(f"{record.name} cannot be written: {e}") from None
    sync = hashlib.sha256(b"".join([start, *blocks])).digest()[:_SYNC_SIZE]
    return b"".join([start, sync, *(block + sync for block in blocks)])


def read(record: Record, data: bytes, allowance: Allowance | None = None) -> tuple[dict[str, str], list[Any]]:
    """The metadata but for Avro's own, and every record; ValueError for what cannot be read, or is too much."""
    try:
        return _read(record, data, Allowance() if allowance is None else allowance)
    except ValueError:
        raise
    except Exception as e:
        # Nothing is checked in advance that shows by itself: what is raised depends on which byte is wrong.
        raise ValueError(f"Not a readable Avro file of {record.name}: {type(e).__name__}: {e}") from None


def schema_of(data: bytes) -> Theirs:
    """As the writer declared it; ValueError for what is no Avro file."""
    try:
        meta, _ = _header(data)
        return avro_theirs.parse(orjson.loads(meta[SCHEMA]))
    except ValueError:
        raise
    except Exception as e:
        raise ValueError(f"Not a readable Avro file: {type(e).__name__}: {e}") from None


@lru_cache(maxsize=256)
def _prepared(record: Record) -> tuple[str, avro_encode.Encode]:
    return orjson.dumps(avro_schema.schema(record)).decode(), avro_encode.encoder(record)


def _blocks(records: Iterable[bytes]) -> Iterable[bytes]:
    block: list[bytes] = []
    size = 0
    for record in records:
        block.append(record)
        size += len(record)
        if size >= BLOCK_SIZE:
            yield _block(block)
            block, size = [], 0
    if block:
        yield _block(block)


def _block(records: list[bytes]) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, _RAW)
    packed = packer.compress(b"".join(records)) + packer.flush()
    return avro_encode.long(len(records)) + avro_encode.binary(packed)


def _header(data: bytes) -> tuple[dict[str, bytes], int]:
    """The metadata, and where the sync marker is."""
    if not data.startswith(MAGIC):
        raise ValueError("Not an Avro file")
    return avro_theirs.strings_to_bytes_at(data, len(MAGIC))


def _read(record: Record, data: bytes, allowance: Allowance) -> tuple[dict[str, str], list[Any]]:
    meta, at = _header(data)
    schema = meta.pop(SCHEMA)
    decode = _kept_decoder(record, schema) if len(schema) <= _KEPT_SIZE else _decoder(record, schema)
    codec = meta.pop(CODEC, b"null").decode()
    if codec != "null" and codec not in _UNPACKERS:
        raise ValueError(f"Avro file is compressed with {codec}, which is not supported")
    found: list[Any] = []
    for count, block in _packed_blocks(data, at):
        unpacked = block if codec == "null" else _unpacked(_UNPACKERS[codec](), block, allowance.left)
        allowance.take(len(unpacked))
        _read_block(unpacked, count, decode, found)
    return {k: v.decode() for k, v in meta.items() if not k.startswith("avro.")}, found


def _decoder(record: Record, schema: bytes) -> avro_decode.Decode:
    return avro_decode.decoder(record, avro_theirs.parse(orjson.loads(schema)))


# The manifests of a table have few schemas, and to prepare for one takes longer than to read a few entries.
_kept_decoder = lru_cache(maxsize=128)(_decoder)


def _packed_blocks(data: bytes, at: int) -> Iterable[tuple[int, bytes]]:
    """How many records each has, and its bytes, from the sync marker of the header on."""
    sync = data[at : at + _SYNC_SIZE]
    at += _SYNC_SIZE
    if at > len(data):
        raise ValueError("Avro file is cut off in its header")
    while at < len(data):
        count, at = avro_theirs.size_at(data, at)
        block, at = avro_theirs.binary_at(data, at)
        if data[at : at + _SYNC_SIZE] != sync:
            raise ValueError("Avro file is cut off or damaged: a block does not end with the sync marker")
        at += _SYNC_SIZE
        yield count, block


def _unpacked(unpacker: _Unpacker, block: bytes, most: int) -> bytes:
    """One byte more than there may be is enough to know. Writers leave bytes of zlib's checksum behind the end."""
    found = unpacker.decompress(block, most + 1)
    if len(found) <= most and not unpacker.eof:
        raise ValueError("Avro file is cut off or damaged: a block does not end")
    return found


def _read_block(data: bytes, count: int, decode: avro_decode.Decode, found: list[Any]) -> None:
    at = 0
    for _ in range(count):
        value, at = decode(data, at)
        found.append(value)
    if at != len(data):
        raise ValueError(f"Avro file has a block of {len(data)} bytes, and its records take {at}")
