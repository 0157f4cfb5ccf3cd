from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from io import BytesIO
from typing import Any, Literal
from uuid import UUID

import fastavro
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import read_manifest_list

from mergus.iceberg import manifest, manifest_list
from mergus.iceberg.manifest import ADDED, DELETED, EXISTING, DataFile, Entry, PartitionField, read

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
# pyiceberg takes negative numbers in lists for large ones.
sizes, field_ids = st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)
singles = st.floats(width=32, allow_nan=False)

# Iceberg's types of partition values, and the values as we have them.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": ints,
    "long": longs,
    "float": singles,
    "double": st.floats(allow_nan=False),
    "string": text,
    "binary": st.binary(max_size=20),
    "date": ints,
    "time": st.integers(0, 86_400 * 10**6 - 1),
    "timestamp": longs,
    "timestamptz": longs,
    "uuid": st.binary(min_size=16, max_size=16),
    "decimal(9, 2)": st.integers(1 - 10**9, 10**9 - 1),
    "decimal(38,10)": st.integers(1 - 10**38, 10**38 - 1),
}
V3_VALUES = VALUES | {"timestamp_ns": longs, "timestamptz_ns": longs}
# pyiceberg rounds doubles to singles when it reads them.
PYICEBERG_VALUES = VALUES | {"double": singles}

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "x", "required": False, "type": "long"}]}
FILE = DataFile(0, "s3://lake/é.parquet", "PARQUET", (), 3, 100)
ENTRY = Entry(ADDED, 7, None, None, FILE)


def written(
    entries: list[Entry],
    types: tuple[PartitionField, ...] = (),
    content: Literal["data", "deletes"] = "data",
    version: int = 2,
    schema: dict[str, Any] = SCHEMA,
    spec: list[dict[str, Any]] | None = None,
) -> bytes:
    return manifest.write(
        entries,
        schema_json=schema,
        schema_id=0,
        spec_json=spec or [],
        spec_id=4,
        partition_types=types,
        content=content,
        format_version=version,
    )


def partition_types(types: list[str]) -> tuple[PartitionField, ...]:
    """Names that Avro does not allow are ours to mend."""
    return tuple(PartitionField(f"{i} é.{x}", 1000 + i, x) for i, x in enumerate(types))


def partitioned(types: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]], tuple[PartitionField, ...]]:
    """A schema with a column of each type, and a spec that has all of them."""
    fields = [{"id": i + 1, "name": f"c{i}", "required": False, "type": x} for i, x in enumerate(types)]
    found = partition_types(types)
    spec = [
        {"source-id": i + 1, "field-id": x.field_id, "name": x.name, "transform": "identity"}
        for i, x in enumerate(found)
    ]
    return {"type": "struct", "schema-id": 0, "fields": fields}, spec, found


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def columns(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return maybe(st.dictionaries(field_ids, values, max_size=3))


@st.composite
def any_manifest(
    draw: st.DrawFn, version: int, deletes: bool, values: dict[str, st.SearchStrategy[Any]]
) -> tuple[list[Entry], tuple[PartitionField, ...]]:
    types = draw(st.lists(st.sampled_from(sorted(values)), max_size=4))
    in_file = (longs, longs) if version == 3 and deletes and draw(st.booleans()) else (st.none(), st.none())
    files = st.builds(
        DataFile,
        content=st.sampled_from([1, 2] if deletes else [0]),
        file_path=text,
        file_format=st.sampled_from(["PARQUET", "PUFFIN"]),
        partition=st.tuples(*(maybe(values[x]) for x in types)),
        record_count=longs,
        file_size_in_bytes=longs,
        column_sizes=columns(sizes),
        value_counts=columns(sizes),
        null_value_counts=columns(sizes),
        nan_value_counts=columns(sizes),
        lower_bounds=columns(st.binary(max_size=8)),
        upper_bounds=columns(st.binary(max_size=8)),
        key_metadata=maybe(st.binary(max_size=8)),
        split_offsets=maybe(st.lists(sizes, max_size=3)),
        equality_ids=maybe(st.lists(field_ids, max_size=3)),
        sort_order_id=maybe(ints),
        first_row_id=maybe(longs) if version == 3 else st.none(),
        referenced_data_file=maybe(text),
        content_offset=in_file[0],
        content_size_in_bytes=in_file[1],
    )
    added = st.builds(Entry, st.just(ADDED), maybe(longs), maybe(longs), maybe(longs), files)
    others = st.builds(Entry, st.sampled_from([EXISTING, DELETED]), longs, longs, longs, files)
    return draw(st.lists(added | others, max_size=4)), partition_types(types)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("content", ["data", "deletes"])
@given(data=st.data())
def test_a_written_manifest_is_read_back_unchanged(
    version: int, content: Literal["data", "deletes"], data: st.DataObject
) -> None:
    entries, types = data.draw(any_manifest(version, content == "deletes", VALUES if version == 2 else V3_VALUES))
    metadata, found = read(written(entries, types, content, version))
    assert found == entries
    assert metadata == {
        "schema": orjson.dumps(SCHEMA).decode(),
        "schema-id": "0",
        "partition-spec": "[]",
        "partition-spec-id": "4",
        "format-version": str(version),
        "content": content,
    }


def test_a_manifest_of_several_avro_blocks_is_read() -> None:
    entries = [replace(ENTRY, data_file=replace(FILE, file_path=f"s3://lake/{i}.parquet")) for i in range(5000)]
    data = written(entries)
    assert len(list(fastavro.block_reader(BytesIO(data)))) > 1
    assert read(data)[1] == entries


def test_equal_manifest_entries_are_written_as_equal_bytes() -> None:
    one = replace(ENTRY, data_file=replace(FILE, value_counts={1: 2, 2: 3}, lower_bounds={5: b"1", 4: b"2"}))
    other = replace(ENTRY, data_file=replace(FILE, value_counts={2: 3, 1: 2}, lower_bounds={4: b"2", 5: b"1"}))
    assert written([one]) == written([other])
    assert written([one]) != written([ENTRY])
    assert written([], version=2) != written([], version=3)


def test_every_field_of_a_manifest_has_the_id_of_the_specification() -> None:
    data = written([], partition_types(["date", "decimal(9, 2)", "decimal(9, 2)", "timestamptz", "uuid"]), version=3)
    schema: Any = orjson.loads(fastavro.reader(BytesIO(data)).metadata["avro.schema"])
    assert [(x["name"], x["field-id"]) for x in schema["fields"]] == [
        ("status", 0),
        ("snapshot_id", 1),
        ("sequence_number", 3),
        ("file_sequence_number", 4),
        ("data_file", 2),
    ]
    assert [x["field-id"] for x in schema["fields"][4]["type"]["fields"]] == [
        *(134, 100, 101, 102, 103, 104, 108, 109, 110, 137, 125, 128, 131, 132, 135, 140, 142, 143, 144, 145)
    ]
    by_id = {x["field-id"]: x["type"] for x in schema["fields"][4]["type"]["fields"]}
    assert by_id[109][1]["logicalType"] == "map"
    assert by_id[109][1]["items"] == {
        "type": "record",
        "name": "k119_v120",
        "fields": [
            {"name": "key", "type": "int", "field-id": 119},
            {"name": "value", "type": "long", "field-id": 120},
        ],
    }
    assert by_id[132][1] == {"type": "array", "items": "long", "element-id": 133}
    assert by_id[102]["name"] == "r102"
    partition = by_id[102]["fields"]
    assert partition[0] == {
        "name": "_0_x20_xE9_x2Edate",
        "iceberg-field-name": "0 é.date",
        "field-id": 1000,
        "type": ["null", {"type": "int", "logicalType": "date"}],
        "default": None,
    }
    assert [x["type"][1].get("size") for x in partition] == [None, 4, 4, None, 16]
    assert partition[3]["type"][1] == {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}


@pytest.mark.parametrize(
    "wrong",
    [
        replace(ENTRY, status=3),
        replace(ENTRY, status=EXISTING),
        replace(ENTRY, status=DELETED, sequence_number=1),
        replace(ENTRY, snapshot_id=2**63),
        replace(ENTRY, snapshot_id="1"),  # pyright: ignore[reportArgumentType]
        *(
            replace(ENTRY, data_file=replace(FILE, **change))
            for change in (
                {"content": 1},
                {"content": 3},
                {"file_path": None},
                {"file_path": "\ud800"},
                {"partition": (1,)},
                {"record_count": None},
                {"record_count": 2**63},
                {"value_counts": {2**31: 1}},
                {"value_counts": {1: b""}},
                {"lower_bounds": {1: 1}},
                {"sort_order_id": 2**31},
                {"first_row_id": 0},
                {"content_offset": 0, "content_size_in_bytes": 1},
            )
        ),
    ],
)
def test_entries_that_a_manifest_cannot_have_are_refused(wrong: Entry) -> None:
    with pytest.raises(ValueError):
        written([wrong])


def test_a_content_offset_without_a_content_size_is_refused() -> None:
    with pytest.raises(ValueError, match="together"):
        written([replace(ENTRY, data_file=replace(FILE, content=1, content_offset=4))], content="deletes", version=3)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("int", 2**31),
        ("int", "1"),
        ("date", 2**31),
        ("long", 2**63),
        ("decimal(9, 2)", 2**31),
        ("decimal(9, 2)", Decimal("1.00")),
        ("uuid", b"1"),
        ("fixed[3]", b"123"),
        ("string", b"1"),
        ("binary", "1"),
        ("boolean", 1),
        ("timestamp", datetime(2026, 1, 1)),
        ("decimal(9, 2)", 10**9),
        ("float", 1e300),
        ("float", 0.1),
        ("decimal(39, 2)", 1),
        ("decimal(2, 3)", 1),
        ("variant", b""),
        ("list<int>", 1),
    ],
)
def test_partition_values_of_another_type_are_refused(type_: str, value: Any) -> None:
    with pytest.raises(ValueError):
        written([replace(ENTRY, data_file=replace(FILE, partition=(value,)))], partition_types([type_]))


@pytest.mark.parametrize("change", [{"version": 1}, {"version": 4}, {"content": "x"}, {"schema": {1: object()}}])
def test_a_manifest_of_an_unknown_version_or_content_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        written([ENTRY], **change)


def test_a_truncated_manifest_is_refused() -> None:
    right = written([ENTRY, ENTRY])
    header = len(written([]))
    for end in range(len(right)):
        # Avro cannot tell a file without its last block from a whole one.
        if end != header:
            with pytest.raises(ValueError):
                read(right[:end])


def test_a_manifest_with_a_changed_byte_raises_nothing_but_value_errors() -> None:
    """Whatever it changes, no other error comes of it."""
    right = written([ENTRY])
    for at in range(len(right)):
        wrong = bytearray(right)
        wrong[at] ^= 1
        try:
            read(bytes(wrong))
        except ValueError:
            continue


@given(st.binary(max_size=100))
def test_noise_after_the_avro_magic_is_refused(noise: bytes) -> None:
    with pytest.raises(ValueError):
        read(b"Obj\x01" + noise)


def test_an_avro_file_that_is_no_manifest_is_refused() -> None:
    lists = manifest_list.write([], snapshot_id=1, parent_snapshot_id=None, sequence_number=1, format_version=2)
    with pytest.raises(ValueError, match="has no status, data_file"):
        read(lists)
    with pytest.raises(ValueError, match="has no manifest_path"):
        manifest_list.read(written([]))


def as_objects_of_python(type_: str, value: Any) -> Any:
    match type_.split("("):
        case _ if value is None:
            return None
        case ["uuid"]:
            return UUID(bytes=value)
        case ["decimal", rest]:
            # Decimal's own arithmetic would round
            scale = int(rest.strip(")").split(",")[1])
            sign, digits = int(value < 0), tuple(int(x) for x in str(abs(value)))
            return Decimal((sign, digits, -scale))
        case _:
            return value


@settings(max_examples=40)
@given(any_manifest(2, deletes=False, values=PYICEBERG_VALUES))
def test_pyiceberg_reads_a_manifest_written_by_mergus(
    tmp_path_factory: pytest.TempPathFactory, found: tuple[list[Entry], tuple[PartitionField, ...]]
) -> None:
    entries, types = found
    directory = tmp_path_factory.mktemp("manifests")
    path, list_path = directory / "m.avro", directory / "l.avro"
    path.write_bytes(written(entries, types))
    of_it = manifest_list.ManifestFile(str(path), path.stat().st_size, 4, 0, 9, 1, 8, 1, 2, 3, 4, 5, 6)
    metadata: Any = {"snapshot_id": 8, "parent_snapshot_id": None, "sequence_number": 9, "format_version": 2}
    list_path.write_bytes(manifest_list.write([of_it], **metadata))
    io = PyArrowFileIO()
    (theirs,) = read_manifest_list(io.new_input(str(list_path)))
    files = theirs.fetch_manifest_entry(io, discard_deleted=False)
    for their, ours in zip(files, entries, strict=True):
        added = ours.status == ADDED
        assert their.status == ours.status
        assert their.snapshot_id == (8 if added and ours.snapshot_id is None else ours.snapshot_id)
        assert their.sequence_number == (9 if added and ours.sequence_number is None else ours.sequence_number)
        assert their.data_file.spec_id == 4
        for name in DataFile.__dataclass_fields__:
            expected = getattr(ours.data_file, name)
            if name == "partition":
                expected = [as_objects_of_python(t.type, x) for t, x in zip(types, expected, strict=True)]
                assert list(their.data_file.partition._data) == expected
            elif hasattr(their.data_file, name):
                assert getattr(their.data_file, name) == expected, name
