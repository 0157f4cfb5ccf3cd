"""Avro files as Iceberg writes them.

    Obj 1  metadata  sync marker  { records  bytes  data  sync marker } …

Types are described once, by `Record`, `Mapping`, `Sequence` and the names of Avro's primitives (`avro_schema`); from
that come the schema and the ways from objects to bytes (`avro_encode`) and back (`avro_decode`, `avro_theirs`). There
is no dict of values in between: to make and check one for every record took several times as long.

Equal input gives equal bytes, because objects are named by their content: maps are sorted by key, and the sync marker
is a hash of everything else. Values are the plain ones of Avro, never what a logical type makes of them: a date is a
number of days, and not all of Iceberg's dates are Python's.
"""

import bz2
import hashlib
import lzma
import zlib
from collections import abc
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import orjson

from mergus.iceberg import avro_decode, avro_encode, avro_schema, avro_theirs
from mergus.iceberg.avro_schema import Field, Mapping, Partition, Record, Scalar, Sequence, Type

__all__ = ["Field", "Mapping", "Partition", "Record", "Scalar", "Sequence", "Type", "read", "write"]

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

_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.decompress(data, _RAW),
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}


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


def read(record: Record, data: bytes) -> tuple[dict[str, str], list[Any]]:
    """The metadata but for Avro's own, and every record."""
    try:
        return _read(record, data)
    except ValueError:
        raise
    except Exception as e:
        # Nothing is checked in advance that shows by itself: what is raised depends on which byte is wrong.
        raise ValueError(f"Not a readable Avro file of {record.name}: {type(e).__name__}: {e}") from None


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


def _read(record: Record, data: bytes) -> tuple[dict[str, str], list[Any]]:
    if not data.startswith(MAGIC):
        raise ValueError("Not an Avro file")
    meta, at = avro_theirs.strings_to_bytes_at(data, len(MAGIC))
    schema = meta.pop(SCHEMA)
    decode = _kept_decoder(record, schema) if len(schema) <= _KEPT_SIZE else _decoder(record, schema)
    codec = meta.pop(CODEC, b"null").decode()
    if codec not in _CODECS:
        raise ValueError(f"Avro file is compressed with {codec}, which is not supported")
    found: list[Any] = []
    for count, block in _packed_blocks(data, at):
        _read_block(_CODECS[codec](block), count, decode, found)
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


def _read_block(data: bytes, count: int, decode: avro_decode.Decode, found: list[Any]) -> None:
    at = 0
    for _ in range(count):
        value, at = decode(data, at)
        found.append(value)
    if at != len(data):
        raise ValueError(f"Avro file has a block of {len(data)} bytes, and its records take {at}")
