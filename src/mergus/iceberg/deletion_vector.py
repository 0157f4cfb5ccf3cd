"""A deletion vector: the positions of a data file's deleted rows, as the blob `deletion-vector-v1`.

    length    4 bytes, big-endian: of magic and vector
    magic     D1 D3 39 64
    vector    8 bytes, little-endian: how many 32-bit bitmaps; then each, by ascending key:
              4 bytes, little-endian: the key, which is the upper half of its positions; a portable RoaringBitmap
    checksum  4 bytes, big-endian: CRC-32 of magic and vector

A Puffin file holds such blobs; what DuckLake 1.5.5 names `.puffin` is one blob and nothing else, so both are
decoded here. Two things must hold: a damaged blob is refused and never read as another set of positions, and
equal sets give equal bytes, because objects are named by their content. The bytes are those of Iceberg's Java
library, except that Java also writes an empty bitmap for each key that is left out, which a file needs 2³² rows
to have.
"""

import zlib
from collections.abc import Iterable

from pyroaring import BitMap64

MAGIC = bytes.fromhex("d1d33964")

# A position is a Java long, and none is negative.
END_OF_POSITIONS = 2**63

_LENGTH_SIZE = 4
_CHECKSUM_SIZE = 4
_SMALLEST = _LENGTH_SIZE + len(MAGIC) + 8 + _CHECKSUM_SIZE


def bitmap(positions: Iterable[int]) -> BitMap64:
    """The set of these positions, which the caller may change; ValueError for what is not a position."""
    try:
        found = BitMap64(positions)
    except OverflowError:
        raise ValueError("A row position is negative or beyond 63 bits") from None
    _check_positions(found)
    return found


def encode(positions: Iterable[int]) -> bytes:
    """In any order, with duplicates or without; a BitMap64 is taken as it is and not changed."""
    found = bitmap(positions)
    # Java does this, too; and without it the bytes would depend on how the set came to be.
    found.run_optimize()
    body = MAGIC + found.serialize()
    return len(body).to_bytes(_LENGTH_SIZE, "big") + body + zlib.crc32(body).to_bytes(_CHECKSUM_SIZE, "big")


def decode(blob: bytes) -> BitMap64:
    """A bitmap and not a list: a run of 65,536 rows takes but a dozen bytes of a blob."""
    if len(blob) < _SMALLEST:
        raise ValueError(f"Deletion vector is cut off: {len(blob)} bytes, at least {_SMALLEST} are needed")
    length = int.from_bytes(blob[:_LENGTH_SIZE], "big")
    if length != len(blob) - _LENGTH_SIZE - _CHECKSUM_SIZE:
        raise ValueError(f"Deletion vector of {len(blob)} bytes says that its content has {length}")
    body, checksum = blob[_LENGTH_SIZE:-_CHECKSUM_SIZE], int.from_bytes(blob[-_CHECKSUM_SIZE:], "big")
    if not body.startswith(MAGIC):
        raise ValueError(f"Not a deletion vector: its magic is {body[: len(MAGIC)].hex()}, not {MAGIC.hex()}")
    if zlib.crc32(body) != checksum:
        raise ValueError(f"Deletion vector is damaged: CRC-32 is {zlib.crc32(body):08x}, not {checksum:08x}")
    return _parse(body[len(MAGIC) :])


def _parse(vector: bytes) -> BitMap64:
    """A right checksum does not make a writer right, nor honest: keys, containers and bounds are checked as well."""
    try:
        found = BitMap64.deserialize(vector)
    except ValueError as e:
        raise ValueError(f"Deletion vector holds a malformed bitmap: {e}") from None
    # The parser stops where the last bitmap ends and does not say where: if a byte less is enough, one was left over.
    if _parses(vector[:-1]):
        raise ValueError("Deletion vector has bytes after its last bitmap")
    _check_positions(found)
    return found


def _parses(vector: bytes) -> bool:
    try:
        BitMap64.deserialize(vector)
    except ValueError:
        return False
    return True


def _check_positions(found: BitMap64) -> None:
    if found and found.max() >= END_OF_POSITIONS:
        raise ValueError(f"A row position is beyond 63 bits: {found.max()}")
