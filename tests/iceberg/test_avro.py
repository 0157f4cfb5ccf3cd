"""What manifests and manifest lists have in common: Avro's bytes, compared with those of fastavro."""

import bz2
import lzma
import time
import tracemalloc
import zlib
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from typing import Any, Literal

import fastavro
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.iceberg import avro, avro_encode, avro_theirs, manifest
from mergus.iceberg.avro import Field, Mapping, Partition, Record, Sequence
from tests.iceberg import test_manifest_list
from tests.iceberg.test_manifest import ENTRY, FILE, V3_VALUES, any_manifest, partition_types, written


def things(*values: Any) -> tuple[Any, ...]:
    return values


# What we want of a file, and no more.
THING = Record(
    "thing",
    (
        Field(1, "id", "long", required=True),
        Field(2, "name", "string"),
        Field(3, "sizes", Mapping(31, 32, "long")),
        Field(4, "bounds", Mapping(41, 42, "bytes")),
        Field(5, "offsets", Sequence(51, "long")),
        Field(6, "partition", Partition()),
    ),
    things,
)
ID = {"name": "id", "type": "long", "field-id": 1}


def record(*fields: Any, name: str = "thing") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def pairs(first: dict[str, Any], second: dict[str, Any], *more: Any) -> dict[str, Any]:
    return {"type": "array", "items": record(first, second, *more, name=f"p{first['field-id']}")}


def from_fastavro(schema: dict[str, Any], values: list[Any], codec: Any = "deflate") -> bytes:
    stream = BytesIO()
    fastavro.writer(stream, schema, values, codec)
    return stream.getvalue()


def by_hand(schema: Any, data: bytes, count: int = 1, codec: bytes = b"null") -> bytes:
    meta = {avro.SCHEMA: schema if isinstance(schema, bytes) else orjson.dumps(schema), avro.CODEC: codec}
    sync = b"0123456789abcdef"
    block = avro_encode.long(count) + avro_encode.binary(data) + sync
    return avro.MAGIC + avro_encode.strings_to_bytes(meta) + sync + block


def blocks(data: bytes) -> list[tuple[int, bytes]]:
    """How many records each block has, and its bytes without compression."""
    _, at = avro_theirs.strings_to_bytes_at(data, 4)
    at += 16
    found: list[tuple[int, bytes]] = []
    while at < len(data):
        count, at = avro_theirs.long_at(data, at)
        packed, at = avro_theirs.binary_at(data, at)
        found.append((count, zlib.decompress(packed, -15)))
        at += 16
    return found


def without_logical_types(schema: Any) -> Any:
    """fastavro makes objects of them, and not every date of Iceberg is one of Python."""
    if isinstance(schema, list):
        return [without_logical_types(x) for x in schema]
    if isinstance(schema, dict):
        return {k: without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    return schema


def as_fastavro_writes_it(data: bytes) -> list[tuple[int, bytes]]:
    """The blocks of a file after fastavro has read and written every record."""
    meta, _ = avro_theirs.strings_to_bytes_at(data, 4)
    schema = fastavro.parse_schema(without_logical_types(orjson.loads(meta[avro.SCHEMA])))
    found: list[tuple[int, bytes]] = []
    for count, block in blocks(data):
        source, target = BytesIO(block), BytesIO()
        for _ in range(count):
            fastavro.schemaless_writer(target, schema, fastavro.schemaless_reader(source, schema, None))
        assert not source.read()
        found.append((count, target.getvalue()))
    return found


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("content", ["data", "deletes"])
@given(data=st.data())
def test_manifests_are_encoded_as_by_fastavro(
    version: int, content: Literal["data", "deletes"], data: st.DataObject
) -> None:
    entries, types = data.draw(any_manifest(version, content == "deletes", V3_VALUES))
    ours = written(entries, types, content, version)
    assert blocks(ours) == as_fastavro_writes_it(ours)


@given(data=st.data())
def test_manifest_lists_are_encoded_as_by_fastavro(data: st.DataObject) -> None:
    ours = test_manifest_list.written(data.draw(test_manifest_list.any_manifests(3)), 3)
    assert blocks(ours) == as_fastavro_writes_it(ours)


@pytest.mark.parametrize("bits", range(64))
def test_longs_of_every_length_are_encoded_as_by_fastavro(bits: int) -> None:
    near = [x for y in (1 << bits, -(1 << bits)) for x in range(y - 2, y + 3) if -(2**63) <= x < 2**63]
    for number in near:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, "long", number)
        assert avro_encode.long(number) == stream.getvalue()
        assert avro_theirs.long_at(stream.getvalue(), 0) == (number, len(stream.getvalue()))
    # and side by side in a map, where they are written and read in other ways
    for sizes in (dict(enumerate(near)), dict.fromkeys(range(300), near[0])):
        (back,) = avro.read(THING, avro.write(WRITTEN, [Written(sizes)], {}))[1]
        assert back[2] == sizes


class Written:
    id = 1

    def __init__(self, sizes: Any, bounds: Any = None) -> None:
        self.sizes, self.bounds = sizes, bounds


WRITTEN = Record("thing", (THING.fields[0], THING.fields[2], THING.fields[3]), things)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 100_000])
def test_bounds_of_any_size_are_read_back(size: int) -> None:
    bounds = {-1: b"", 1: bytes(size), 2**31 - 1: b"x" * size}
    (back,) = avro.read(THING, avro.write(WRITTEN, [Written(None, bounds)], {}))[1]
    assert back[3] == bounds


@given(st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 2**40)), max_size=10))
def test_map_values_are_read_back_with_their_keys(maps: list[dict[int, int]]) -> None:
    things_ = [Written(x, {k: b"%d" % v for k, v in x.items()}) for x in maps]
    found = avro.read(THING, avro.write(WRITTEN, things_, {}))[1]
    assert [x[2] for x in found] == maps
    assert [x[3] for x in found] == [x.bounds for x in things_]
    for x in found:
        assert list(x[2]) == sorted(x[2])


def test_a_block_ends_with_the_record_that_fills_it() -> None:
    entries = [replace(ENTRY, data_file=replace(FILE, file_path="x" * (i % 500))) for i in range(2000)]
    found = blocks(written(entries))
    assert len(found) > 3
    start = 0
    for count, block in found[:-1]:
        ((_, last),) = blocks(written([entries[start + count - 1]]))
        assert len(block) - len(last) < 64_000 <= len(block)
        start += count


@pytest.mark.parametrize(
    "change",
    [
        {"record_count": 1.5},
        {"record_count": 1.0},
        {"record_count": True},
        {"content": False},
        {"file_path": b"x"},
        {"key_metadata": "x"},
        {"key_metadata": memoryview(b"x")},
        {"value_counts": {1: True}},
        {"value_counts": {1: 1.0}},
        {"value_counts": {1: 2, 2: True}},
        {"value_counts": {1: 2**63}},
        {"value_counts": {1: -(2**63) - 1, 2: 5}},
        {"value_counts": {1: None}},
        {"value_counts": {"1": 1}},
        {"value_counts": {1.5: 1}},
        {"value_counts": {-(2**31) - 1: 1}},
        {"value_counts": [1]},
        {"value_counts": [3, 1]},
        {"lower_bounds": {1: b"", 2: "x"}},
        {"lower_bounds": {1: memoryview(b"xxxx").cast("i")}},
        {"lower_bounds": {1: None}},
        {"lower_bounds": {2**31: b""}},
        {"split_offsets": [True]},
        {"split_offsets": [1, 2.0]},
        {"split_offsets": "12"},
        {"split_offsets": b"12"},
        {"split_offsets": iter([4])},
        {"split_offsets": {1: 2}},
        {"equality_ids": [2**31]},
        {"partition": None},
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_field_name(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=name):
        written([replace(ENTRY, data_file=replace(FILE, **change))])


@pytest.mark.parametrize("names", [("a", "a"), ("a.b", "a_x2Eb"), ("", "_")])
def test_partition_fields_with_the_same_avro_name_are_refused(names: tuple[str, str]) -> None:
    types = tuple(manifest.PartitionField(x, 1000 + i, "int") for i, x in enumerate(names))
    with pytest.raises(ValueError, match="no two fields"):
        written([replace(ENTRY, data_file=replace(FILE, partition=(1, 2)))], types)


def test_partition_fields_with_the_same_id_are_refused() -> None:
    types = tuple(manifest.PartitionField(x, 1000, "uuid") for x in "ab")
    with pytest.raises(ValueError, match="no two fields"):
        written([], types)


def test_cached_encoders_of_different_partition_types_do_not_mix() -> None:
    """Ways to write are kept from one manifest to the next."""
    for kind, value in (("int", 1), ("string", "x"), ("int", 2), ("decimal(9, 2)", 3), ("decimal(38,10)", 4)):
        entry = replace(ENTRY, data_file=replace(FILE, partition=(value,)))
        assert manifest.read(written([entry], partition_types([kind])))[1] == [entry]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_avro_files_of_other_writers_are_read(codec: str) -> None:
    """In another order, under other names, with fields that we do not know, of every type that Avro has."""
    fixed = {"type": "fixed", "name": "of_three", "namespace": "space", "size": 3}
    strange = record({"name": "a", "type": fixed}, {"name": "b", "type": "of_three"}, name="space.strange")
    schema = record(
        {"name": "nothing", "type": "null"},
        {"name": "bounds", "type": ["bytes", "null"], "field-id": 99},
        {"name": "yes", "type": "boolean"},
        {
            "name": "B",
            "field-id": 4,
            "type": pairs(
                {"name": "v", "type": "bytes", "field-id": 42},
                {"name": "k", "type": "int", "field-id": 41},
                {"name": "more", "type": "string", "field-id": 43},
            ),
        },
        {"name": "float", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "strange", "type": strange},
        {"name": "again", "type": ["null", "space.strange"]},
        {"name": "enum", "type": {"type": "enum", "name": "e", "symbols": ["x", "y"]}},
        {"name": "array", "type": {"type": "array", "items": ["null", "long", "string"]}},
        {"name": "map", "type": {"type": "map", "values": "of_five"}},
        {"name": "text", "type": {"type": "string", "avro.java.string": "String"}, "field-id": 2},
        {"name": "id", "type": ["null", "int"], "field-id": 1},
        {
            "name": "S",
            "field-id": 3,
            "type": [
                "null",
                pairs(
                    {"name": "k", "type": "int", "field-id": 31},
                    {"name": "v", "type": "long", "field-id": 32},
                ),
            ],
        },
    )
    schema["fields"][10]["type"]["values"] = {"type": "fixed", "name": "of_five", "size": 5}
    values = {
        "nothing": None,
        "bounds": b"1",
        "yes": True,
        "B": [{"v": b"x", "k": 7, "more": "é"}],
        "float": 1.5,
        "double": 2.5,
        "strange": {"a": b"123", "b": b"456"},
        "again": {"a": b"abc", "b": b"def"},
        "enum": "y",
        "array": [None, 2**40, "x"],
        "map": {"x": b"12345", "y": b"67890"},
        "text": "é",
        "id": 5,
        "S": [{"k": 1, "v": 2**50}],
    }
    found = avro.read(THING, from_fastavro(schema, [values, values | {"again": None, "S": None}], codec))
    expected = (5, "é", {1: 2**50}, {7: b"x"}, None, None)
    assert found == ({}, [expected, (*expected[:2], None, *expected[3:])])


def test_cached_decoders_of_different_schemas_do_not_mix() -> None:
    (_, name, *_), other = THING.fields, Record("other", THING.fields[:1], things)
    for kind in ("string", "bytes", "string"):
        data = by_hand(record(ID, {"name": "n", "type": kind, "field-id": name.id}), b"\x02\x02x")
        assert avro.read(other, data)[1] == [(1,)]
        if kind == "string":
            assert avro.read(THING, data)[1] == [(1, "x", *[None] * 4)]
        else:
            with pytest.raises(ValueError, match="bytes where string"):
                avro.read(THING, data)


def test_a_schema_of_a_thousand_fields_is_read() -> None:
    data = by_hand(record(*({"name": f"x{i}", "type": "long"} for i in range(1000)), ID), b"\x00" * 1000 + b"\x02")
    assert avro.read(THING, data)[1] == [(1, *[None] * 5)]


def test_a_missing_required_value_is_refused() -> None:
    schema = record({"name": "id", "type": ["null", "long"], "field-id": 1})
    with pytest.raises(ValueError, match="id is required"):
        avro.read(THING, from_fastavro(schema, [{"id": None}]))


def test_partition_values_are_read_with_the_types_of_the_file() -> None:
    decimal = {"type": "fixed", "name": "d", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2}
    partition = record(
        {"name": "a", "type": ["null", decimal]},
        {"name": "b", "type": ["d", "null"]},
        {"name": "c", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "e", "type": {"type": "int", "logicalType": "date"}},
        {"name": "f", "type": ["null", "double"]},
        name="r102",
    )
    schema = record(ID, {"name": "partition", "type": partition, "field-id": 6})
    data = b"\x02" + b"\x02\xff\xfe" + b"\x00\x01\x00" + b"\x02\x80" + b"\x09" + b"\x00"
    assert avro.read(THING, by_hand(schema, data))[1][0][5] == (-2, 256, -128, -5, None)


@pytest.mark.parametrize("kind", ["long", "bytes"])
def test_avro_arrays_in_several_blocks_are_read(kind: str) -> None:
    """Avro lets a writer that does not know the length in advance give it in parts."""
    value = b"\x04" if kind == "long" else b"\x02x"
    item = {"name": "v", "type": kind, "field-id": 32 if kind == "long" else 42}
    of = pairs({"name": "k", "type": "int", "field-id": item["field-id"] - 1}, item)
    field = {"name": "m", "type": of, "field-id": 3 if kind == "long" else 4}
    pair = [b"\x02" + value, b"\x04" + value]
    data = b"\x02" + b"\x01" + avro_encode.long(len(pair[0])) + pair[0] + b"\x02" + pair[1] + b"\x00"
    (found,) = avro.read(THING, by_hand(record(ID, field), data))[1]
    expected: Any = 2 if kind == "long" else b"x"
    assert found[2 if kind == "long" else 3] == {1: expected, 2: expected}
    # the same where nobody wants it
    assert avro.read(THING, by_hand(record(ID, field | {"field-id": 77}), data))[1] == [(1, *[None] * 5)]


LAUGHS = [record(name="r0")] + [
    record({"name": "a", "type": f"r{i}"}, {"name": "b", "type": f"r{i}"}, name=f"r{i + 1}") for i in range(60)
]
MANY = avro_encode.long(2**62)


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        # endless lists
        ([{"name": "x", "type": {"type": "array", "items": "null"}}], b"\x02" + MANY),
        ([{"name": "x", "type": {"type": "array", "items": record(name="e")}}], b"\x02" + MANY),
        ([{"name": "x", "type": {"type": "array", "items": "double"}}], b"\x02" + MANY),
        (
            [{"name": "x", "type": {"type": "array", "items": {"type": "fixed", "name": "f", "size": 1}}}],
            b"\x02" + MANY,
        ),
        ([{"name": "x", "type": {"type": "map", "values": "boolean"}}], b"\x02" + MANY),
        ([{"name": "x", "type": {"type": "array", "items": "long"}, "field-id": 5}], b"\x02" + MANY),
        # a type in itself, and one that nobody knows
        ([{"name": "x", "type": ["null", "thing"]}], b"\x02\x00"),
        ([{"name": "x", "type": "unheard_of"}], b"\x02\x00"),
        ([{"name": "x", "type": {"type": "array"}}], b"\x02\x00"),
        ([{"name": "x", "type": 5}], b"\x02\x00"),
        # sizes that go back or too far
        ([{"name": "x", "type": "bytes"}], b"\x02\x01"),
        ([{"name": "x", "type": "bytes", "field-id": 2}], b"\x02\x01"),
        ([{"name": "x", "type": "string", "field-id": 2}], b"\x02\x01"),
        ([{"name": "x", "type": "string", "field-id": 2}], b"\x02\x04x"),
        ([{"name": "x", "type": "double"}], b"\x02xxx"),
        ([{"name": "x", "type": {"type": "fixed", "name": "f", "size": -1}}], b"\x02"),
        ([{"name": "x", "type": {"type": "fixed", "name": "f", "size": 2}}], b"\x02x"),
        # unions of more or of others
        ([{"name": "x", "type": ["null", "long"], "field-id": 2}], b"\x02\x02\x02"),
        ([{"name": "x", "type": ["null", "long", "string"], "field-id": 2}], b"\x02\x00"),
        ([{"name": "x", "type": ["null"], "field-id": 2}], b"\x02\x00"),
        ([{"name": "x", "type": ["null", "string"], "field-id": 2}], b"\x02\x04"),
        ([{"name": "x", "type": ["null", "string"]}], b"\x02\x04"),
        ([{"name": "x", "type": ["null", "string"]}], b"\x02\x01"),
        # two for one, another type, and a partition that is none
        ([{"name": "x", "type": "long", "field-id": 1}], b"\x02\x02"),
        ([{"name": "x", "type": "string", "field-id": 3}], b"\x02\x02"),
        ([{"name": "x", "type": {"type": "array", "items": "long"}, "field-id": 3}], b"\x02\x00"),
        ([{"name": "x", "type": {"type": "array", "items": record(name="e")}, "field-id": 3}], b"\x02\x00"),
        ([{"name": "x", "type": record({"name": "y", "type": record(name="e")}, name="p"), "field-id": 6}], b"\x02"),
        # too much, too little, too large a number
        ([], b"\x02\x02"),
        ([], b""),
        ([], b"\xff" * 9 + b"\x02"),
        ([], b"\x80" * 10 + b"\x00"),
    ],
)
def test_a_hostile_file_is_refused_at_once(fields: list[Any], data: bytes) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError):
        avro.read(THING, by_hand(record(ID, *fields), data))
    assert time.monotonic() < start + 5


def test_nested_named_types_without_data_are_read_at_no_cost() -> None:
    """2^60 records without a byte between them."""
    schema = record(ID, *({"name": f"x{i}", "type": x} for i, x in enumerate(LAUGHS)))
    assert avro.read(THING, by_hand(schema, b"\x02"))[1] == [(1, *[None] * 5)]


@pytest.mark.parametrize("schema", [b"", b"[" * 5000, b'{"type":' * 500 + b'"long"' + b"}" * 500, b'"long"', b"[]"])
def test_a_malformed_avro_schema_is_refused(schema: bytes) -> None:
    with pytest.raises(ValueError):
        avro.read(THING, by_hand(schema, b"\x02"))


def test_more_records_than_bytes_are_refused() -> None:
    with pytest.raises(ValueError):
        avro.read(THING, by_hand(record(ID), b"\x02", count=2**62))
    with pytest.raises(ValueError):
        avro.read(THING, by_hand(record(ID), b"\x02", count=-1))


PACKED = {
    "deflate": lambda data: zlib.compress(data, 9)[2:-4],
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
# A field that nobody wants, and a number before it that says how long it is.
FILLED = record(ID, {"name": "x", "type": "bytes"})


@pytest.mark.parametrize("codec", PACKED)
def test_a_file_that_unpacks_to_too_much_is_refused(codec: str) -> None:
    size = 100 * 1024 * 1024
    bomb = by_hand(FILLED, PACKED[codec](b"\x02" + avro_encode.binary(bytes(size))), codec=codec.encode())
    assert len(bomb) < size // 500
    tracemalloc.start()
    with pytest.raises(ValueError, match="too large"):
        avro.read(THING, bomb, avro.Allowance(1024 * 1024))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 1024 * 1024
    assert len(avro.read(THING, bomb, avro.Allowance(size + 10))[1]) == 1


@pytest.mark.parametrize("codec", ["null", *PACKED])
def test_several_files_share_one_limit_on_unpacked_bytes(codec: str) -> None:
    data = b"\x02" + avro_encode.binary(bytes(1000))
    file = by_hand(FILLED, PACKED.get(codec, bytes)(data), codec=codec.encode())
    allowance = avro.Allowance(3 * len(data))
    for _ in range(3):
        avro.read(THING, file, allowance)
    assert allowance.left == 0
    with pytest.raises(ValueError, match="too large"):
        avro.read(THING, file, allowance)


@pytest.mark.parametrize("codec", PACKED)
def test_a_block_that_does_not_end_is_refused(codec: str) -> None:
    packed = PACKED[codec](b"\x02" + avro_encode.binary(bytes(range(256)) * 4))
    for cut in (1, len(packed) // 2, len(packed) - 1):
        with pytest.raises(ValueError):
            avro.read(THING, by_hand(FILLED, packed[:cut], codec=codec.encode()))


def test_an_xz_block_that_needs_too_much_memory_is_refused() -> None:
    huge = [{"id": lzma.FILTER_LZMA2, "dict_size": 160 * 1024 * 1024}]
    packed = lzma.compress(b"\x02\x00", filters=huge)
    with pytest.raises(ValueError, match="Memory"):
        avro.read(THING, by_hand(FILLED, packed, codec=b"xz"))


def test_nested_named_types_with_missing_data_are_refused_quickly() -> None:
    """2^60 booleans, of which nobody wants any."""
    kind: Any = record({"name": "x", "type": "boolean"}, name="t0")
    for i in range(1, 60):
        kind = record({"name": "x", "type": kind}, {"name": "y", "type": f"t{i - 1}"}, name=f"t{i}")
    start = time.monotonic()
    with pytest.raises(ValueError, match="missing"):
        avro.read(THING, by_hand(record(ID, {"name": "x", "type": kind}), b"\x02" + bytes(50)))
    assert time.monotonic() < start + 5


def test_partition_field_ids_are_read_from_the_avro_schema_of_a_manifest() -> None:
    types = partition_types(["long", "string"])
    assert manifest.partition_field_ids(written([], types)) == [1000, 1001]
    assert manifest.partition_field_ids(written([])) == []
    for broken in (b"", b"Obj\x01", by_hand(record(ID), b""), by_hand(b'"long"', b""), by_hand(b"[", b"")):
        with pytest.raises(ValueError):
            manifest.partition_field_ids(broken)


def test_an_unknown_compression_is_named() -> None:
    with pytest.raises(ValueError, match="snappy"):
        avro.read(THING, by_hand(record(ID), b"\x02", codec=b"snappy"))


@given(st.data())
def test_a_changed_byte_raises_nothing_but_value_errors(data: st.DataObject) -> None:
    entries, types = data.draw(any_manifest(3, deletes=False, values=V3_VALUES))
    wrong = bytearray(written(entries, types, version=3))
    for at in data.draw(st.lists(st.integers(0, len(wrong) - 1), min_size=1, max_size=5)):
        wrong[at] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        manifest.read(bytes(wrong))
    # the same within a block, where compression would have noticed
    for count, block in blocks(written(entries, types, version=3)):
        inner = bytearray(block)
        inner[data.draw(st.integers(0, len(inner) - 1))] = data.draw(st.integers(0, 255))
        schema = avro_theirs.strings_to_bytes_at(written(entries, types, version=3), 4)[0][avro.SCHEMA]
        with suppress(ValueError):
            manifest.read(by_hand(schema, bytes(inner), count))
