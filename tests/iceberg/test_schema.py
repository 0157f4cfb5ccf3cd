"""Our schema JSON, read by PyIceberg and by Java."""

import json
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_json
from pyiceberg.schema import Schema as TheirSchema

from mergus.iceberg.schema import Field, JsonValue, List, Map, Schema, Struct, Type, schema_json, value_json
from tests.support import spark as sparks

EPOCH = datetime(1970, 1, 1)
DAYS = (date(1, 1, 1) - EPOCH.date()).days, (date(9999, 12, 31) - EPOCH.date()).days
MICROS = DAYS[0] * 86_400 * 10**6, (DAYS[1] + 1) * 86_400 * 10**6 - 1
NANOS = -(2**63), 2**63 - 1

# Of each type: values as Iceberg's files have them, and the same as Python's own.
VALUES: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "boolean": (st.integers(0, 1), bool),
    "int": (st.integers(-(2**31), 2**31 - 1), int),
    "long": (st.integers(-(2**63), 2**63 - 1), int),
    "float": (st.floats(width=32, allow_nan=False, allow_infinity=False), float),
    "double": (st.floats(allow_nan=False, allow_infinity=False), float),
    "date": (st.integers(*DAYS), lambda x: EPOCH.date() + timedelta(x)),
    "time": (st.integers(0, 86_400 * 10**6 - 1), lambda x: (EPOCH + timedelta(microseconds=x)).time()),
    "timestamp": (st.integers(*MICROS), lambda x: EPOCH + timedelta(microseconds=x)),
    "timestamptz": (st.integers(*MICROS), lambda x: EPOCH.replace(tzinfo=UTC) + timedelta(microseconds=x)),
    "string": (st.text(), str),
    "binary": (st.binary(), bytes),
    "uuid": (st.binary(min_size=16, max_size=16), lambda x: UUID(bytes=x)),
    "decimal(10, 2)": (st.integers(1 - 10**10, 10**10 - 1), lambda x: Decimal(x).scaleb(-2)),
    "decimal(9, 0)": (st.integers(1 - 10**9, 10**9 - 1), Decimal),
    "decimal(5, 5)": (st.integers(1 - 10**5, 10**5 - 1), lambda x: Decimal(x).scaleb(-5)),
}
PRIMITIVES = [*VALUES, "timestamp_ns"]


@st.composite
def schemas(draw: st.DrawFn, *, version: int = 3) -> Schema:
    """Those of version 2 have nothing that needs 3."""
    ids = iter(range(1, 10_000))

    def field(depth: int, name: str, *, required: bool | None = None, default: bool = True) -> Field:
        number = next(ids)
        doc = draw(st.none() | st.text(max_size=5))
        wanted = draw(st.booleans()) if required is None else required
        type_ = kind(depth)
        if default and isinstance(type_, str) and type_ in VALUES:
            defaults = st.none() | VALUES[type_][0].map(lambda x: value_json(type_, x))
            return Field(number, name, type_, wanted, doc, draw(defaults) if version > 2 else None, draw(defaults))
        return Field(number, name, type_, wanted, doc)

    def kind(depth: int) -> Type:
        shape = draw(st.sampled_from(["primitive"] if depth > 2 else ["primitive", "struct", "list", "map"]))
        match shape:
            case "struct":
                return Struct(tuple(field(depth + 1, f"f{i}") for i in range(draw(st.integers(1, 3)))))
            case "list":
                return List(field(depth + 1, "element", default=False))
            case "map":
                key = field(depth + 1, "key", required=True, default=False)
                return Map(key, field(depth + 1, "value", default=False))
            case _:
                return draw(st.sampled_from(PRIMITIVES if version > 2 else PRIMITIVES[:-1]))

    return Schema(tuple(field(0, f"c{i}") for i in range(draw(st.integers(1, 5)))))


@given(schemas(), st.integers(0, 9))
def test_pyiceberg_reads_the_same_schema(schema: Schema, schema_id: int) -> None:
    theirs = TheirSchema.model_validate_json(json.dumps(schema_json(schema, schema_id)))
    assert theirs.schema_id == schema_id
    assert theirs.highest_field_id == schema.highest_field_id
    for field in schema.walk():
        found = theirs.find_field(field.id)
        assert found.name == field.name
        assert found.required == field.required
        if isinstance(field.type, str):
            assert str(found.field_type) == field.type
    for field, found in zip(schema.fields, theirs.fields, strict=True):
        assert found.doc == field.doc


@given(schemas(version=2))
def test_a_schema_of_version_2_has_no_defaults(schema: Schema) -> None:
    """A write default alone takes no newer version: it is left out."""
    assert schema.format_version == 2
    text = json.dumps(schema_json(schema, 0, format_version=2))
    assert "-default" not in text
    assert ("write-default" in json.dumps(schema_json(schema, 0))) == any(
        f.write_default is not None for f in schema.walk()
    )


def test_a_column_type_of_version_3_needs_format_version_3() -> None:
    nested = Field(1, "l", List(Field(2, "element", "timestamp_ns")))
    assert Schema((nested,)).format_version == 3
    assert Schema((Field(1, "a", "timestamp"),)).format_version == 2


def test_an_initial_default_needs_format_version_3_and_a_write_default_does_not() -> None:
    assert Schema((Field(1, "a", "int", write_default=7),)).format_version == 2
    inner = Field(2, "b", "int", initial_default=0)
    schema = Schema((Field(1, "a", Struct((inner,))),))
    assert schema.format_version == 3
    with pytest.raises(ValueError, match="needs format version 3"):
        schema_json(schema, 0, format_version=2)


def test_defaults_of_a_field_are_written_beside_its_type() -> None:
    field = Field(1, "a", "int", required=True, initial_default=7, write_default=9)
    assert schema_json(Schema((field,)), 4) == {
        "type": "struct",
        "schema-id": 4,
        "fields": [
            {"id": 1, "name": "a", "required": True, "type": "int", "initial-default": 7, "write-default": 9},
        ],
    }


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_pyiceberg_reads_the_same_value_from_json(kind: str, data: st.DataObject) -> None:
    strategy, native = VALUES[kind]
    value = data.draw(strategy)
    theirs = TheirSchema.model_validate({"type": "struct", "fields": [field_json(kind)]}).fields[0].field_type
    assert from_json(theirs, json.loads(json.dumps(value_json(kind, value)))) == native(value)


def field_json(kind: str) -> dict[str, Any]:
    return {"id": 1, "name": "a", "required": False, "type": kind}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("boolean", 1, True),
        ("date", 0, "1970-01-01"),
        ("time", 1, "00:00:00.000001"),
        ("timestamp", -1, "1969-12-31T23:59:59.999999"),
        ("timestamptz", 10**6, "1970-01-01T00:00:01.000000+00:00"),
        ("timestamp_ns", -1, "1969-12-31T23:59:59.999999999"),
        ("decimal(9, 2)", -5, "-0.05"),
        ("decimal(9, 0)", 7, "7"),
        ("binary", b"\0\xff", "00ff"),
        ("date", DAYS[0] - 1, None),
        ("date", DAYS[1] + 1, None),
        ("date", 2**31, None),
        ("timestamp", MICROS[0] - 1, None),
        ("timestamp", MICROS[1] + 1, None),
        ("float", float("nan"), None),
        ("double", float("inf"), None),
        ("variant", "x", None),
        ("int", "7", None),
    ],
)
def test_single_values_are_written_as_the_specification_says(kind: str, value: Any, expected: JsonValue | None) -> None:
    assert value_json(kind, value) == expected


@pytest.mark.integration
class TestJava:
    def test_icebergs_java_library_reads_every_default(self) -> None:
        jvm: Any = sparks.session()._jvm
        parser = jvm.org.apache.iceberg.SchemaParser
        cases = {
            "boolean": [0, 1],
            "int": [-(2**31), 2**31 - 1],
            "long": [-(2**63), 2**63 - 1],
            "float": [-0.0, 1.100000023841858, 3.4028234663852886e38],
            "double": [0.1, 5e-324, 1e300],
            "date": [*DAYS, -1],
            "time": [0, 86_400 * 10**6 - 1],
            "timestamp": [*MICROS, -1],
            "timestamptz": [*MICROS, -1],
            "timestamp_ns": [*NANOS, -1],
            "timestamptz_ns": [*NANOS, -1],
            "string": ["", "é\u0001'"],
            "binary": [b"", b"\0\xff"],
            "uuid": [bytes(range(16))],
            "decimal(10, 2)": [-1, 150, 10**10 - 1],
            "decimal(9, 0)": [7],
            "decimal(38, 38)": [1 - 10**38],
        }
        for kind, values in cases.items():
            for value in values:
                ours = value_json(kind, value)
                assert ours is not None
                field = Field(1, "a", kind, initial_default=ours, write_default=ours)
                parsed = parser.fromJson(json.dumps(schema_json(Schema((field,)), 0)))
                (back,) = json.loads(parser.toJson(parsed))["fields"]
                for default in (back["initial-default"], back["write-default"]):
                    assert same(kind, default, ours), (kind, value, default)


def same(kind: str, theirs: Any, ours: JsonValue) -> bool:
    """Java writes fractions of seconds without their zeros, and floats in their fewest digits."""
    if kind == "float":
        return struct.pack("<f", theirs) == struct.pack("<f", ours)
    if kind.startswith("time"):
        zone = "+00:00" if kind.startswith("timestamptz") else ""
        theirs, ours = theirs.removesuffix(zone), str(ours).removesuffix(zone)
        whole, _, fraction = theirs.partition(".")
        return ours == f"{whole + ':00' * (whole.count(':') == 1)}.{fraction:0<{len(ours) - ours.index('.') - 1}}"
    return theirs.lower() == ours if kind == "binary" else theirs == ours
