import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from mergus.ducklake.session import with_extensions
from mergus.iceberg.deletion_vector import MAGIC, decode, encode

# Single rows near 0, beyond 2³² and beyond 2⁴⁰, and runs long enough for each kind of container.
rows = st.one_of(st.integers(0, 200_000), st.integers(0, 2**42), st.integers(2**62, 2**63 - 1))
runs = st.builds(lambda start, size, step: range(start, start + size * step, step), rows, *[st.integers(1, 6000)] * 2)
positions = st.builds(
    lambda singles, ranges: [x for x in [*singles, *(x for r in ranges for x in r)] if x < 2**63],
    st.lists(rows, max_size=50),
    st.lists(runs, max_size=3),
)


def blob(vector: bytes, magic: bytes = MAGIC) -> bytes:
    """With a right length and a right checksum around whatever is in it."""
    body = magic + vector
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def vector(parts: Sequence[tuple[int, bytes]], count: int | None = None) -> bytes:
    head = struct.pack("<Q", len(parts) if count is None else count)
    return head + b"".join(struct.pack("<I", key) + bitmap for key, bitmap in parts)


ONE = BitMap([1]).serialize()
NONE = BitMap().serialize()


@given(positions)
def test_encoded_positions_are_decoded_as_a_sorted_set(found: list[int]) -> None:
    assert list(decode(encode(found))) == sorted(set(found))


@given(positions, st.randoms(use_true_random=False))
def test_equal_sets_of_positions_are_encoded_to_equal_bytes(found: list[int], random) -> None:
    shuffled = [*found, *found[:10]]
    random.shuffle(shuffled)
    one_by_one = BitMap64()
    for x in shuffled:
        one_by_one.add(x)
    expected = encode(found)
    assert encode(shuffled) == encode(iter(shuffled)) == expected
    assert encode(one_by_one) == encode(BitMap64(found, optimize=False)) == encode(decode(expected)) == expected


def test_the_bitmap_of_the_caller_is_not_changed() -> None:
    given_bitmap = BitMap64(range(10_000), optimize=False)
    before = given_bitmap.serialize()
    encode(given_bitmap)
    assert given_bitmap.serialize() == before


def test_a_deletion_vector_has_the_bytes_of_the_specification() -> None:
    bitmap = "3a300000 01000000 0000 0100 10000000 0100 0500".replace(" ", "")
    body = "d1d33964" + "0100000000000000" + "00000000" + bitmap
    expected = bytes.fromhex("00000024" + body) + struct.pack(">I", zlib.crc32(bytes.fromhex(body)))
    assert encode([5, 1]) == expected


def test_an_empty_set_of_positions_is_a_valid_deletion_vector() -> None:
    assert encode([]) == blob(vector([]))
    assert not decode(encode([]))


def test_a_run_of_positions_is_run_length_encoded() -> None:
    everything = BitMap64()
    everything.add_range(2**32 - 1, 2**33)
    assert len(encode(range(1_000_000))) < 300
    assert len(decode(encode(everything))) == 2**32 + 1


def test_a_deletion_vector_with_empty_bitmaps_is_accepted() -> None:
    """Java writes one for every key that has no positions."""
    assert list(decode(blob(vector([(0, ONE), (1, NONE), (2, ONE)])))) == [1, 2**33 + 1]


@pytest.mark.parametrize("wrong", [[-1], [2**63], [2**64], [0, 2**80]])
def test_a_position_out_of_range_is_refused(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match="position"):
        encode(wrong)


def test_a_deletion_vector_with_any_changed_byte_is_refused() -> None:
    right = encode([0, 3, *range(10, 60), 2**32 + 7])
    for at in range(len(right)):
        for change in range(1, 256):
            wrong = bytearray(right)
            wrong[at] ^= change
            with pytest.raises(ValueError):
                decode(bytes(wrong))


@given(positions, st.data())
def test_a_truncated_or_extended_deletion_vector_is_refused(found: list[int], data: st.DataObject) -> None:
    right = encode(found)
    with pytest.raises(ValueError):
        decode(right[: data.draw(st.integers(0, len(right) - 1))])
    with pytest.raises(ValueError):
        decode(right + data.draw(st.binary(min_size=1, max_size=20)))


@given(st.binary(max_size=200))
def test_noise_with_a_correct_checksum_is_refused_or_decodes_to_valid_positions(noise: bytes) -> None:
    """A right checksum does not make the rest right."""
    try:
        found = decode(blob(noise))
    except ValueError:
        return
    assert all(0 <= x < 2**63 for x in list(found)[:1000])


def changed(bitmap: bytes, at: int, to: bytes) -> bytes:
    return bitmap[:at] + to + bitmap[at + len(to) :]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(blob(b""), id="no count"),
        pytest.param(blob(vector([(0, ONE)]), magic=MAGIC[::-1]), id="magic"),
        pytest.param(blob(vector([(0, ONE)]) + b"\0"), id="a byte too many"),
        pytest.param(blob(vector([]) + b"\0"), id="a byte too many after nothing"),
        pytest.param(blob(vector([(0, ONE), (1, ONE)], count=1)), id="a bitmap too many"),
        pytest.param(blob(vector([(0, ONE)], count=2)), id="a bitmap too few"),
        pytest.param(blob(vector([(0, ONE)], count=2**63)), id="an absurd count"),
        pytest.param(blob(vector([(0, ONE)])[:-1]), id="a byte too few"),
        pytest.param(blob(vector([(1, ONE), (0, ONE)])), id="descending keys"),
        pytest.param(blob(vector([(1, ONE), (1, ONE)])), id="a key twice"),
        pytest.param(blob(vector([(2**31, ONE)])), id="a position of 64 bits"),
        pytest.param(blob(vector([(0, changed(ONE, 0, b"\xff"))])), id="unknown cookie"),
        pytest.param(blob(vector([(0, changed(BitMap([1, 2]).serialize(), 16, b"\2\0\1\0"))])), id="unsorted"),
        # A reader that trusts this would write past the end of what it allots for the positions.
        pytest.param(
            blob(vector([(0, changed(BitMap(range(0, 65536, 2)).serialize(), 10, struct.pack("<H", 4999)))])),
            id="more bits than announced",
        ),
    ],
)
def test_malformed_content_is_refused_though_its_checksum_is_right(wrong: bytes) -> None:
    with pytest.raises(ValueError):
        decode(wrong)


def test_a_deletion_vector_file_of_ducklake_is_decoded(tmp_path: Path) -> None:
    with with_extensions("ducklake") as db:
        options = f"DATA_PATH '{tmp_path}/data/', DATA_INLINING_ROW_LIMIT 0"
        db.execute(f"ATTACH 'ducklake:{tmp_path}/catalog.duckdb' AS lake ({options})")
        db.execute("CALL lake.set_option('write_deletion_vectors', true)")
        db.execute("CREATE TABLE lake.t AS SELECT range AS i FROM range(100000)")
        db.execute("DELETE FROM lake.t WHERE i % 7 = 0 OR i BETWEEN 30000 AND 80000")
        found = list(tmp_path.glob("data/**/*.puffin"))
    assert len(found) == 1
    expected = [i for i in range(100_000) if i % 7 == 0 or 30_000 <= i <= 80_000]
    assert list(decode(found[0].read_bytes())) == expected
