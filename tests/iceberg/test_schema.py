"""Our schema JSON, read by PyIceberg."""

import json

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema as TheirSchema

from mergus.iceberg.schema import Field, List, Map, Schema, Struct, Type, schema_json

PRIMITIVES = [
    *("boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "string", "binary"),
    *("uuid", "decimal(10, 2)", "timestamp_ns"),
]


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    ids = iter(range(1, 10_000))

    def field(depth: int, name: str, *, required: bool | None = None) -> Field:
        number = next(ids)
        doc = draw(st.none() | st.text(max_size=5))
        wanted = draw(st.booleans()) if required is None else required
        return Field(number, name, kind(depth), wanted, doc)

    def kind(depth: int) -> Type:
        shape = draw(st.sampled_from(["primitive"] if depth > 2 else ["primitive", "struct", "list", "map"]))
        match shape:
            case "struct":
                return Struct(tuple(field(depth + 1, f"f{i}") for i in range(draw(st.integers(1, 3)))))
            case "list":
                return List(field(depth + 1, "element"))
            case "map":
                return Map(field(depth + 1, "key", required=True), field(depth + 1, "value"))
            case _:
                return draw(st.sampled_from(PRIMITIVES))

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


def test_a_type_of_version_3_makes_the_table_one() -> None:
    nested = Field(1, "l", List(Field(2, "element", "timestamp_ns")))
    assert Schema((nested,)).format_version == 3
    assert Schema((Field(1, "a", "timestamp"),)).format_version == 2
