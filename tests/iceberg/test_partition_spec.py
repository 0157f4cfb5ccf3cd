"""Partition specs beside PyIceberg's and Java's."""

import struct
from math import copysign, inf, isnan, nan
from typing import Any
from uuid import UUID

import orjson
import psycopg
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb
from pyiceberg import manifest as theirs
from pyiceberg import partitioning
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema as TheirSchema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from mergus.iceberg import manifest
from mergus.iceberg.manifest_list import FieldSummary
from mergus.iceberg.partition_spec import (
    NO_FIELD_ID,
    UNPARTITIONED,
    PartitionField,
    PartitionSpec,
    check_spec,
    identity_value,
    parse_spec,
    partition_types,
    result_type,
    spec_json,
    summaries,
    tuple_json,
    tuple_of_json,
    with_field_ids,
)
from mergus.iceberg.schema import Field, List, Map, Schema, Struct, schema_json
from mergus.iceberg.transforms import CALENDAR, can_transform, ordinal
from tests.support import spark as sparks
from tests.support.lakes import backend_settings

TYPES: dict[str, PrimitiveType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "decimal(9, 2)": DecimalType(9, 2),
    "date": DateType(),
    "time": TimeType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestamptzType(),
    "timestamp_ns": TimestampNanoType(),
    "timestamptz_ns": TimestamptzNanoType(),
    "string": StringType(),
    "binary": BinaryType(),
    "uuid": UUIDType(),
}
TRANSFORMS = ["identity", *CALENDAR, "bucket[16]", "truncate[4]", "void"]
ALL = [(transform, kind) for transform in TRANSFORMS for kind in TYPES if can_transform(transform, kind)]
UNITS = {"date": 1, "timestamp": 86_400 * 10**6, "timestamptz": 86_400 * 10**6}
UNITS |= {"timestamp_ns": 86_400 * 10**9, "timestamptz_ns": 86_400 * 10**9}
CALENDARS = [(transform, kind) for transform, kind in ALL if transform in CALENDAR]

# from the year 1 to 9999, with more around the epoch and the ends of days
days = st.integers(-719_162, 2_932_896) | st.integers(-800, 800)
within = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 0.5])

longs = st.integers(-(2**63), 2**63 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "date": st.integers(-(2**31), 2**31 - 1),
    **dict.fromkeys(["long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"], longs),
    "float": st.floats(width=32) | st.sampled_from([0.0, -0.0]),
    "double": st.floats() | st.sampled_from([0.0, -0.0]),
    "decimal(9, 2)": st.integers(1 - 10**9, 10**9 - 1),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "binary": st.binary(),
    "uuid": st.binary(min_size=16, max_size=16),
}


def test_a_partition_spec_is_written_as_json() -> None:
    assert spec_json(UNPARTITIONED) == {"spec-id": 0, "fields": []}
    spec = PartitionSpec(7, (PartitionField(3, 1000, "ts_day", "day"), PartitionField(1, 1002, "i", "identity")))
    json = {
        "spec-id": 7,
        "fields": [
            {"source-id": 3, "field-id": 1000, "name": "ts_day", "transform": "day"},
            {"source-id": 1, "field-id": 1002, "name": "i", "transform": "identity"},
        ],
    }
    assert spec_json(spec) == json
    assert partitioning.PartitionSpec.model_validate(json).model_dump(by_alias=True, mode="json") == json


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("kind", TYPES)
def test_transforms_have_the_source_and_result_types_of_pyiceberg(transform: str, kind: str) -> None:
    their = parse_transform(transform)
    assert can_transform(transform, kind) == their.can_transform(TYPES[kind])
    if can_transform(transform, kind):
        assert result_type(transform, kind).replace(", ", ",") == str(their.result_type(TYPES[kind])).replace(", ", ",")
    else:
        with pytest.raises(ValueError, match="Not a partition transform"):
            result_type(transform, kind)


@pytest.mark.parametrize("kind", ["variant", "geometry", "unknown", "fixed[4]", "", None, Struct(())])
def test_types_without_partition_transforms_are_refused(kind: object) -> None:
    assert not any(can_transform(transform, kind) for transform in TRANSFORMS)


UNKNOWN = [
    "",
    "bucket[0]",
    "bucket[2147483648]",
    "bucket",
    "bucket(4)",
    "truncate[0]",
    "truncate",
    "Identity",
    "zorder",
]


@pytest.mark.parametrize("transform", UNKNOWN)
def test_unknown_transforms_apply_to_no_type(transform: str) -> None:
    assert not any(can_transform(transform, kind) for kind in TYPES)


def test_the_partition_types_of_a_manifest_follow_from_spec_and_schema() -> None:
    schema = Schema((Field(1, "ts", "timestamp"), Field(2, "d", "decimal(9, 2)"), Field(3, "s", "string")))
    spec = PartitionSpec(4, (PartitionField(1, 1000, "ts_day", "day"), PartitionField(2, 1003, "d", "identity")))
    assert partition_types(spec, schema) == (
        manifest.PartitionField("ts_day", 1000, "date"),
        manifest.PartitionField("d", 1003, "decimal(9, 2)"),
    )
    with pytest.raises(ValueError, match="of None: identity"):
        partition_types(PartitionSpec(1, (PartitionField(9, 1000, "gone", "identity"),)), schema)
    nested = Schema((Field(1, "l", List(Field(2, "element", "int"))),))
    with pytest.raises(ValueError, match="Not a partition transform"):
        partition_types(PartitionSpec(1, (PartitionField(1, 1000, "l", "identity"),)), nested)


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
fields = st.builds(PartitionField, st.integers(0, 99), st.integers(0, 9999), names, st.sampled_from(TRANSFORMS))


@given(st.builds(PartitionSpec, st.integers(0, 2**31 - 1), st.lists(fields, max_size=4).map(tuple)))
def test_a_partition_spec_is_read_back_from_json_unchanged(spec: PartitionSpec) -> None:
    assert parse_spec(spec_json(spec)) == spec
    theirs = partitioning.PartitionSpec.model_validate(spec_json(spec))
    assert parse_spec(orjson.loads(theirs.model_dump_json())) == spec


def field_json(**changes: Any) -> dict[str, Any]:
    field = {"source-id": 1, "field-id": 1000, "name": "p", "transform": "identity"} | changes
    return {"spec-id": 1, "fields": [{name.replace("_", "-"): x for name, x in field.items() if x is not ...}]}


def test_a_spec_in_a_request_may_omit_its_id_and_field_ids() -> None:
    left_out = field_json(**{"field-id": ...})
    assert parse_spec(left_out).fields == (PartitionField(1, NO_FIELD_ID, "p", "identity"),)
    assert parse_spec({"fields": []}, default_id=7) == PartitionSpec(7, ())
    assert parse_spec({"spec-id": 0, "fields": []}, default_id=7) == UNPARTITIONED
    several = field_json(**{"source-id": ..., "source-ids": [3]})
    assert parse_spec(several).fields == (PartitionField(3, 1000, "p", "identity"),)


@pytest.mark.parametrize(
    ("json", "reason"),
    [
        (None, "Partition spec must be"),
        ([], "Partition spec must be"),
        ({"fields": []}, "has no spec-id"),
        ({"spec-id": -1, "fields": []}, "spec-id must be from 0"),
        ({"spec-id": 1}, "has no fields"),
        ({"spec-id": 1, "fields": [1]}, "must be a JSON object"),
        (field_json(name=...), "has no name"),
        (field_json(name=1), "name must be text"),
        (field_json(transform=...), "Partition field p has no transform"),
        (field_json(**{"source-id": ...}), "Partition field p has no source-id"),
        (field_json(**{"source-id": "1"}), "source-id must be a whole number"),
        (field_json(**{"field-id": "1"}), "field-id must be a whole number"),
        (field_json(**{"source-id": ..., "source-ids": [1, 2]}), "2 source columns, and only one is supported"),
        (field_json(**{"source-id": ..., "source-ids": []}), "0 source columns"),
        (field_json(**{"source-ids": [2]}), "none of its source-ids"),
        *((field_json(transform=x), "Partition field p has an unknown transform") for x in UNKNOWN),
    ],
)
def test_a_malformed_partition_spec_is_refused_with_the_reason(json: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_spec(json)


def spec_of(*fields: tuple[int, int, str, str]) -> PartitionSpec:
    return PartitionSpec(5, tuple(PartitionField(*field) for field in fields))


def test_known_partition_fields_keep_their_id_and_new_ones_get_the_next() -> None:
    known = [spec_of((1, 1000, "a", "day"), (2, 1001, "b", "identity")), spec_of((1, 1003, "c", "hour"))]
    asked = spec_of((2, -1, "x", "identity"), (1, -1, "y", "bucket[2]"), (1, -1, "z", "hour"), (3, -1, "w", "identity"))
    found = with_field_ids(asked, known, 1003)
    assert [f.field_id for f in found.fields] == [1001, 1004, 1003, 1005]
    assert [f.name for f in found.fields] == ["x", "y", "z", "w"]
    assert with_field_ids(found, known, 1003) == found
    assert [f.field_id for f in with_field_ids(asked, [], 999).fields] == [1000, 1001, 1002, 1003]
    assert [f.field_id for f in with_field_ids(asked, [], 0).fields] == [1000, 1001, 1002, 1003]


def test_a_requested_partition_field_id_is_kept_and_not_reused() -> None:
    known = [spec_of((1, 1000, "a", "day"))]
    given = spec_of((2, 1007, "b", "identity"), (1, -1, "a", "day"), (1, -1, "h", "hour"))
    assert [f.field_id for f in with_field_ids(given, known, 1000).fields] == [1007, 1000, 1008]
    # what is left of a field has its id
    left = spec_of((1, 1000, "a", "void"))
    assert with_field_ids(left, known, 1000) == left
    two = spec_of((1, -1, "a", "void"), (1, -1, "b", "void"))
    assert [f.field_id for f in with_field_ids(two, [left], 1000).fields] == [1000, 1001]
    for wrong in (
        spec_of((1, 1000, "a", "hour")),
        spec_of((2, 1000, "a", "day")),
        spec_of((2, 1000, "a", "void")),
        spec_of((1, 1001, "a", "hour"), (2, 1001, "b", "identity")),
    ):
        with pytest.raises(ValueError, match="has the id of another"):
            with_field_ids(wrong, known, 1000)


NESTED = Schema(
    (
        Field(1, "i", "int"),
        Field(2, "ts", "timestamp"),
        Field(3, "s", Struct((Field(4, "x", "string"), Field(5, "y", "geometry")))),
        Field(6, "l", List(Field(7, "element", Struct((Field(8, "z", "int"),))))),
        Field(9, "m", Map(Field(10, "key", "int", required=True), Field(11, "value", "int"))),
    )
)


@pytest.mark.parametrize(
    "spec",
    [
        UNPARTITIONED,
        spec_of((1, 1000, "i", "identity"), (2, 1001, "day", "day"), (2, 1002, "year", "year")),
        spec_of((4, 1000, "s.x", "identity"), (4, 1001, "x", "truncate[3]"), (1, 1002, "other", "identity")),
        spec_of((1, 1000, "i", "void"), (1, 1001, "j", "void")),
        spec_of((1, 1000, "I", "bucket[4]"), (1, 1001, "i_bucket", "bucket[5]")),
    ],
)
def test_a_spec_that_fits_the_schema_is_accepted(spec: PartitionSpec) -> None:
    check_spec(spec, NESTED)
    schema = TheirSchema.model_validate(schema_json(NESTED, 0))
    partitioning.PartitionSpec.model_validate(spec_json(spec)).partition_type(schema)
    for field in spec.fields:
        transform = parse_transform(field.transform)
        partitioning.validate_partition_name(field.name, transform, field.source_id, schema, set())


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (spec_of((99, 1000, "p", "identity")), "does not exist: 99"),
        (spec_of((3, 1000, "p", "identity")), "of s, which is of type struct"),
        (spec_of((5, 1000, "p", "identity")), "of s.y, which is of type geometry"),
        (spec_of((1, 1000, "p", "day")), "transform day of i, which is of type int"),
        (spec_of((8, 1000, "p", "identity")), "inside of a list or map: l.element.z"),
        (spec_of((11, 1000, "p", "bucket[2]")), "inside of a list or map: m.value"),
        (spec_of((1, 1000, "", "identity")), "has no name"),
        (spec_of((1, 1000, "p", "identity"), (2, 1001, "p", "day")), "p is there twice"),
        (spec_of((2, 1000, "ts", "day")), "name of a column that it is not"),
        (spec_of((1, 1000, "ts", "identity")), "name of a column that it is not"),
        (spec_of((1, 1000, "ts", "void")), "name of a column that it is not"),
        (spec_of((1, 1000, "s.x", "bucket[2]")), "name of a column that it is not"),
        (spec_of((1, 1000, "p", "identity"), (1, 1001, "q", "identity")), "source column and transform of another"),
    ],
)
def test_a_spec_that_does_not_fit_the_schema_is_refused(spec: PartitionSpec, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_spec(spec, NESTED)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (isnan(one) and isnan(other)) or (one == other and copysign(1, one) == copysign(1, other))
    return type(one) is type(other) and one == other


@given(st.data())
def test_partition_tuples_are_read_back_from_json_unchanged(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from([*VALUES, "decimal(38, 2)"]), max_size=4))
    wide = st.integers(1 - 10**38, 10**38 - 1)
    partition = tuple(data.draw(st.none() | VALUES.get(kind, wide)) for kind in types)
    json = tuple_json(partition, types)
    text = orjson.dumps(json)
    assert rb"\u0000" not in text
    found = tuple_of_json(orjson.loads(text), types)
    assert len(found) == len(partition)
    assert all(same(a, b) for a, b in zip(found, partition, strict=True))


@pytest.mark.parametrize(
    ("kind", "value", "json"),
    [
        ("boolean", True, True),
        ("int", 5, 5),
        ("timestamp_ns", 2**62 + 1, 2**62 + 1),
        ("decimal(38, 2)", -(10**37) - 1, str(-(10**37) - 1)),
        ("double", nan, "nan"),
        ("double", -0.0, "-0.0"),
        ("float", -inf, "-inf"),
        ("double", 0.1, "0.1"),
        ("string", "a\\0\0é", "a\\\\0\\0é"),
        ("binary", b"\0\xff", "00ff"),
        ("string", None, None),
    ],
)
def test_partition_values_have_a_fixed_json_form(kind: str, value: Any, json: Any) -> None:
    assert tuple_json([value], [kind]) == [json]
    (found,) = tuple_of_json([json], [kind])
    assert same(found, value)


@pytest.mark.integration
def test_partition_tuples_are_read_back_from_postgres_unchanged() -> None:
    found: list[tuple[str, Any]] = [(kind, x) for kind in ("float", "double") for x in (nan, inf, -inf, -0.0, 0.0, 0.5)]
    found += [("double", 5e-324), ("double", 0.1), ("long", 2**63 - 1), ("long", -(2**63)), ("boolean", False)]
    found += [("decimal(38, 2)", 10**38 - 1), ("string", "\0\\0\\\\é\n\U0001f986"), ("binary", bytes(range(256)))]
    found += [("uuid", UUID(int=1).bytes), ("date", -1), ("string", None), ("string", "")]
    types, partition = [kind for kind, _ in found], [x for _, x in found]
    with psycopg.connect(backend_settings().dsn) as conn:
        row = conn.execute("SELECT %s::jsonb", [Jsonb(tuple_json(partition, types))]).fetchone()
    assert row is not None
    assert all(same(a, b) for a, b in zip(tuple_of_json(row[0], types), partition, strict=True))


def test_a_partition_tuple_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError):
        tuple_json([1], [])
    with pytest.raises(ValueError):
        tuple_of_json([1], ["int", "int"])


@pytest.mark.parametrize("kind", VALUES)
def test_a_void_partition_field_keeps_its_source_type_in_manifests(kind: str) -> None:
    schema = Schema((Field(1, "c", kind),))
    (field,) = partition_types(spec_of((1, 1000, "p", "void")), schema)
    assert field == manifest.PartitionField("p", 1000, kind)
    file = manifest.DataFile(manifest.DATA, "f", "PARQUET", (None,), 1, 1)
    entry = manifest.Entry(manifest.ADDED, None, None, None, file)
    data = written(entry, field)
    assert manifest.read(data)[1] == [entry]
    assert summaries([(None,)], [kind]) == (FieldSummary(True, False),)


@pytest.mark.parametrize("kind", [kind for transform, kind in ALL if transform == "truncate[4]"])
@given(data=st.data())
def test_truncated_partition_values_are_read_back_from_manifests(kind: str, data: st.DataObject) -> None:
    whole = data.draw(VALUES[kind])
    # of the least decimals, what is truncated has a digit too many for every library
    assume(kind != "decimal(9, 2)" or whole > 4 - 10**9)
    value = whole - whole % 4 if isinstance(whole, int) else whole[:4]
    (field,) = partition_types(spec_of((1, 1000, "p", "truncate[4]")), Schema((Field(1, "c", kind),)))
    file = manifest.DataFile(manifest.DATA, "f", "PARQUET", (value,), 1, 1)
    entry = manifest.Entry(manifest.ADDED, None, None, None, file)
    ((_, (found,)), (summary,)) = manifest.read(written(entry, field)), summaries([(value,)], [kind])
    assert found == entry
    assert summary.lower_bound == summary.upper_bound


def written(entry: manifest.Entry, field: manifest.PartitionField) -> bytes:
    return manifest.write(
        [entry],
        schema_json={},
        schema_id=0,
        spec_json=[],
        spec_id=1,
        partition_types=[field],
        content="data",
        format_version=2,
    )


@pytest.mark.parametrize(("transform", "kind"), CALENDARS)
@given(day=days, part=within)
def test_ordinals_are_those_of_pyiceberg(transform: str, kind: str, day: int, part: float) -> None:
    for value in (day * UNITS[kind] + int(part * UNITS[kind]), (day + 1) * UNITS[kind] - 1):
        assert ordinal(transform, kind, value) == parse_transform(transform).transform(TYPES[kind])(value)


@pytest.mark.parametrize(("transform", "kind"), CALENDARS)
@given(one=longs, other=longs)
def test_calendar_ordinals_are_monotonic(transform: str, kind: str, one: int, other: int) -> None:
    """So what lies between two values of one ordinal has that ordinal."""
    low, high = sorted((one, other))
    assert ordinal(transform, kind, low) <= ordinal(transform, kind, high)


@pytest.mark.parametrize(("transform", "kind"), [("hour", "date"), ("identity", "date"), ("year", "time")])
def test_a_type_without_a_calendar_transform_has_no_ordinal(transform: str, kind: str) -> None:
    with pytest.raises(ValueError, match="Not a calendar transform"):
        ordinal(transform, kind, 1)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", "true", True),
        ("int32", "0", 0),
        ("varchar", "", ""),
        ("json", "null", "null"),
        ("date", "1969-12-31", -1),
        ("date", "infinity", None),
        ("timestamptz", "1970-01-01 00:00:00+00", 0),
        ("timestamptz", "1970-01-01 00:00:00", None),
        ("timestamp_ns", "1970-01-01 00:00:00.000000001", 1),
        ("decimal(5,2)", "1.50", 150),
        ("uuid", "00000000-0000-0000-0000-000000000001", UUID(int=1).bytes),
        ("blob", "AA", None),
        ("variant", "1", None),
        ("float64", "1.1", 1.1),
        ("float32", "1.1", struct.unpack("<f", struct.pack("<f", 1.1))[0]),
        ("float64", "-inf", -inf),
        ("float64", "nan", None),
        # a file of 0.0 may hold -0.0 too
        ("float64", "0.0", None),
        ("float32", "-0.0", None),
    ],
)
def test_an_identity_partition_text_stands_for_one_value_or_none(kind: str, text: str, value: Any) -> None:
    found = identity_value(kind, text, retyped=False)
    assert (found, type(found)) == (value, type(value))


def test_a_partition_text_from_before_float_became_double_is_used_only_if_exact() -> None:
    assert identity_value("float64", "1.1", retyped=True) is None
    assert identity_value("float64", "1.5", retyped=True) == 1.5
    assert identity_value("float32", "1.5", retyped=True) == 1.5
    # a date stands for its midnight
    assert identity_value("timestamp", "1970-01-02", retyped=True) == 86_400 * 10**6


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_partition_summaries_contain_every_partition_value(kind: str, data: st.DataObject) -> None:
    found = data.draw(st.lists(st.none() | VALUES[kind], max_size=6))
    (summary,) = summaries([(x,) for x in found], [kind])
    assert summary.contains_null == (None in found)
    known = [x for x in found if x is not None]
    numbers = [x for x in known if not (isinstance(x, float) and isnan(x))]
    assert summary.contains_nan == (len(numbers) < len(known))
    if not numbers or (kind == "uuid" and len(set(numbers)) > 1):
        assert (summary.lower_bound, summary.upper_bound) == (None, None)
        return
    assert summary.lower_bound is not None
    assert summary.upper_bound is not None
    if kind in {"binary", "uuid"}:
        assert (summary.lower_bound, summary.upper_bound) == (min(numbers), max(numbers))
        return
    bounds: list[Any] = [from_bytes(TYPES[kind], x) for x in (summary.lower_bound, summary.upper_bound)]
    low, high = bounds
    if kind.startswith("decimal"):
        low, high = int(low.scaleb(2)), int(high.scaleb(2))
    assert (low, high) == (min(numbers), max(numbers))
    if kind in {"float", "double"}:
        # in Iceberg's order, in which -0.0 comes first
        assert all((low, copysign(1, low)) <= (x, copysign(1, x)) <= (high, copysign(1, high)) for x in numbers)


@pytest.mark.parametrize("kind", ["int", "long", "date", "timestamp", "string", "boolean", "double"])
@given(data=st.data())
def test_partition_summaries_are_those_of_pyiceberg(kind: str, data: st.DataObject) -> None:
    # it keeps a zero's sign as it meets it, and it stumbles over a field without values
    found = [*data.draw(st.lists(st.none() | VALUES[kind], max_size=4)), data.draw(VALUES[kind])]
    if kind == "double":
        found = [x or 1.0 for x in found if x is None or not isnan(x)] + [1.0]
    schema = TheirSchema(NestedField(1, "c", TYPES[kind]))
    spec = partitioning.PartitionSpec(partitioning.PartitionField(1, 1000, parse_transform("identity"), "c"))
    (their,) = theirs.construct_partition_summaries(spec, schema, [Record(x) for x in found])
    assert summaries([(x,) for x in found], [kind]) == (
        FieldSummary(their.contains_null, their.contains_nan, their.lower_bound, their.upper_bound),
    )


def test_partition_summaries_exist_without_entries_fields_or_bounds() -> None:
    assert summaries([], ["int"]) == (FieldSummary(False, False),)
    assert summaries([(), ()], []) == ()
    assert summaries([(nan,), (None,)], ["float"]) == (FieldSummary(True, True),)


@pytest.fixture(scope="module")
def java() -> Any:
    jvm: Any = sparks.session()._jvm
    return jvm.org.apache.iceberg


@pytest.mark.integration
class TestJava:
    """Iceberg's own library says the same."""

    def test_icebergs_java_library_reads_specs_with_the_same_result_types(self, java: Any) -> None:
        schema = Schema(tuple(Field(i + 1, f"c {i}", kind) for i, kind in enumerate(TYPES)))
        ids = {field.type: field.id for field in schema.fields}
        names = {field.type: field.name for field in schema.fields}
        spec = PartitionSpec(
            9,
            tuple(
                PartitionField(ids[kind], 1000 + i, names[kind] if t == "identity" else f"p {i}", t)
                for i, (t, kind) in enumerate(ALL)
            ),
        )
        their_schema = java.SchemaParser.fromJson(orjson.dumps(schema_json(schema, 0)).decode())
        their = java.PartitionSpecParser.fromJson(their_schema, orjson.dumps(spec_json(spec)).decode())
        assert their.specId() == 9
        found = [(f.name(), f.fieldId(), f.type().toString()) for f in their.partitionType().fields()]
        assert found == [(f.name, f.field_id, f.type) for f in partition_types(spec, schema)]

    @pytest.mark.parametrize(("transform", "kind"), CALENDARS)
    def test_icebergs_java_library_computes_the_same_ordinals(self, java: Any, transform: str, kind: str) -> None:
        bound = getattr(java.transforms.Transforms, transform)().bind(java.types.Types.fromPrimitiveString(kind))
        jvm: Any = sparks.session()._jvm
        box, unit = jvm.java.lang, UNITS[kind]
        ends = [-1, 0, 1, -365, -366, 58, 59, 60, -719_529, -141_428, 2_932_897, 10_957]
        found = [day * unit + part for day in ends for part in (0, unit - 1)]
        if kind == "date":
            found += [2 - 2**31, 2**31 - 2]
        elif transform != "hour":
            found += [-(2**63), 2**63 - 2]
        for value in (x for x in found if -(2**63) <= x < 2**63):
            boxed = box.Integer(value) if kind == "date" else box.Long(value)
            assert bound.apply(boxed) == ordinal(transform, kind, value), value
