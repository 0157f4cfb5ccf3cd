"""Partition specs beside PyIceberg's and Java's."""

import struct
from math import copysign, inf, isnan, nan
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    CALENDAR,
    UNPARTITIONED,
    PartitionField,
    PartitionSpec,
    can_transform,
    identity_value,
    ordinal,
    partition_types,
    result_type,
    spec_json,
    summaries,
)
from mergus.iceberg.schema import Field, List, Schema, Struct, schema_json
from tests.support import spark as sparks

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
TRANSFORMS = ["identity", *CALENDAR, "bucket[16]"]
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


def test_a_spec_in_json() -> None:
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
def test_transforms_take_and_give_the_types_that_pyiceberg_says(transform: str, kind: str) -> None:
    their = parse_transform(transform)
    assert can_transform(transform, kind) == their.can_transform(TYPES[kind])
    if can_transform(transform, kind):
        assert result_type(transform, kind).replace(", ", ",") == str(their.result_type(TYPES[kind])).replace(", ", ",")
    else:
        with pytest.raises(ValueError, match="Not a partition transform"):
            result_type(transform, kind)


@pytest.mark.parametrize("kind", ["variant", "geometry", "unknown", "fixed[4]", "", None, Struct(())])
def test_other_types_have_no_transform(kind: object) -> None:
    assert not any(can_transform(transform, kind) for transform in TRANSFORMS)


@pytest.mark.parametrize("transform", ["", "bucket[0]", "bucket[2147483648]", "bucket", "bucket(4)", "truncate[4]"])
def test_other_transforms_are_none_of_ours(transform: str) -> None:
    assert not any(can_transform(transform, kind) for kind in TYPES)


def test_the_fields_of_a_manifest() -> None:
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


@pytest.mark.parametrize(("transform", "kind"), CALENDARS)
@given(day=days, part=within)
def test_ordinals_are_those_of_pyiceberg(transform: str, kind: str, day: int, part: float) -> None:
    for value in (day * UNITS[kind] + int(part * UNITS[kind]), (day + 1) * UNITS[kind] - 1):
        assert ordinal(transform, kind, value) == parse_transform(transform).transform(TYPES[kind])(value)


@pytest.mark.parametrize(("transform", "kind"), CALENDARS)
@given(one=longs, other=longs)
def test_ordinals_never_go_back(transform: str, kind: str, one: int, other: int) -> None:
    """So what lies between two values of one ordinal has that ordinal."""
    low, high = sorted((one, other))
    assert ordinal(transform, kind, low) <= ordinal(transform, kind, high)


@pytest.mark.parametrize(("transform", "kind"), [("hour", "date"), ("identity", "date"), ("year", "time")])
def test_other_types_have_no_ordinal(transform: str, kind: str) -> None:
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
def test_texts_stand_for_one_value_or_none(kind: str, text: str, value: Any) -> None:
    found = identity_value(kind, text, retyped=False)
    assert (found, type(found)) == (value, type(value))


def test_a_text_of_a_column_that_was_a_single_may_be_no_double() -> None:
    assert identity_value("float64", "1.1", retyped=True) is None
    assert identity_value("float64", "1.5", retyped=True) == 1.5
    assert identity_value("float32", "1.5", retyped=True) == 1.5
    # a date stands for its midnight
    assert identity_value("timestamp", "1970-01-02", retyped=True) == 86_400 * 10**6


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_summaries_hold_every_value(kind: str, data: st.DataObject) -> None:
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
def test_summaries_are_those_of_pyiceberg(kind: str, data: st.DataObject) -> None:
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


def test_a_manifest_without_entries_and_a_spec_without_fields() -> None:
    assert summaries([], ["int"]) == (FieldSummary(False, False),)
    assert summaries([(), ()], []) == ()
    assert summaries([(nan,), (None,)], ["float"]) == (FieldSummary(True, True),)


@pytest.fixture(scope="module")
def java() -> Any:
    jvm: Any = sparks.session()._jvm
    return jvm.org.apache.iceberg


@pytest.mark.xdist_group("spark")
class TestJava:
    """Iceberg's own library says the same."""

    def test_it_reads_our_specs_and_has_the_same_types(self, java: Any) -> None:
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
    def test_it_has_the_same_ordinals(self, java: Any, transform: str, kind: str) -> None:
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
