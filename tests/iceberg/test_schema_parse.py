"""Schemas that clients send, beside PyIceberg's reading of them."""

from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema as TheirSchema
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.types import GeographyType, GeometryType

from mergus.iceberg.schema import Field, List, Map, Schema, Struct, schema_json, value_json
from mergus.iceberg.schema_parse import (
    MAX_DEPTH,
    MAX_FIELD_ID,
    MAX_FIELDS,
    check_names,
    fresh_ids,
    parse_primitive,
    parse_schema,
    with_fresh_ids,
)
from mergus.iceberg.single_value import parse_default, parse_value
from tests.support import spark as sparks

PRIMITIVES = [
    *("boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "timestamp_ns"),
    *("timestamptz_ns", "string", "uuid", "binary", "fixed[4]", "decimal(9, 2)", "decimal(38, 38)", "unknown"),
]
# PyIceberg does not know variants
ALL_PRIMITIVES = [*PRIMITIVES, "variant", "geometry", "geography", "geometry(EPSG:4326)", "geography(EPSG:1, karney)"]

whole = st.integers
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
DAY = 86_400 * 10**6
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": whole(-(2**31), 2**31 - 1),
    "long": whole(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "date": whole(-719_162, 2_932_896),
    "time": whole(0, DAY - 1),
    "timestamp": whole(-719_162 * DAY, 2_932_896 * DAY),
    "timestamptz": whole(-719_162 * DAY, 2_932_896 * DAY),
    "timestamp_ns": whole(-(2**62), 2**62),
    "timestamptz_ns": whole(-(2**62), 2**62),
    "string": texts,
    "uuid": st.binary(min_size=16, max_size=16),
    "binary": st.binary(max_size=8),
    "decimal(9, 2)": whole(1 - 10**9, 10**9 - 1),
    "decimal(38, 38)": whole(1 - 10**38, 10**38 - 1),
    "decimal(38, 0)": whole(1 - 10**38, 10**38 - 1),
}


@st.composite
def schemas(draw: st.DrawFn, primitives: tuple[str, ...] = tuple(ALL_PRIMITIVES), defaults: bool = True) -> Schema:
    """Without a struct inside of it that is empty: PyIceberg stumbles over those."""
    ids = iter(draw(st.permutations(range(64))))
    docs = st.none() | texts

    def kind(depth: int) -> Any:
        chosen = draw(st.sampled_from(["primitive"] * 3 + (["struct", "list", "map"] if depth else [])))
        if chosen == "struct":
            return Struct(fields(depth - 1, least=1))
        if chosen == "list":
            return List(Field(next(ids), "element", kind(depth - 1), draw(st.booleans())))
        if chosen == "map":
            key = Field(next(ids), "key", kind(depth - 1), required=True)
            return Map(key, Field(next(ids), "value", kind(depth - 1), draw(st.booleans())))
        return draw(st.sampled_from(primitives))

    def fields(depth: int, least: int = 0) -> tuple[Field, ...]:
        names = draw(st.lists(texts, min_size=least, max_size=3, unique=True))
        return tuple(field(name, kind(depth)) for name in names)

    def field(name: str, found: Any) -> Field:
        values = VALUES.get(found) if defaults and isinstance(found, str) else None
        given = [
            value_json(found, draw(values)) if values is not None and draw(st.booleans()) else None for _ in range(2)
        ]
        return Field(next(ids), name, found, draw(st.booleans()), draw(docs), *given)

    top = fields(2)
    able = [f.id for f in top if f.required and f.type in PRIMITIVES and f.type not in {"float", "double"}]
    return Schema(top, tuple(draw(st.lists(st.sampled_from(able), unique=True))) if able else ())


@given(schemas())
def test_a_schema_is_read_back_from_json_unchanged(schema: Schema) -> None:
    json = schema_json(schema, 3)
    assert parse_schema(json) == schema
    assert parse_schema(orjson.loads(orjson.dumps(json))) == schema
    assert schema_json(parse_schema(json), 3) == json


@given(schemas(tuple(PRIMITIVES), defaults=False))
def test_pyiceberg_reads_and_writes_the_same_schema(schema: Schema) -> None:
    theirs = TheirSchema.model_validate(schema_json(schema, 3))
    assert parse_schema(orjson.loads(theirs.model_dump_json())) == schema


@given(schemas(tuple(PRIMITIVES), defaults=False))
def test_fresh_ids_are_those_of_pyiceberg(schema: Schema) -> None:
    theirs = assign_fresh_schema_ids(TheirSchema.model_validate(schema_json(schema, 3)))
    assert parse_schema(orjson.loads(theirs.model_dump_json())) == with_fresh_ids(schema)


@given(schemas(), st.integers(0, 9))
def test_fresh_ids_change_nothing_else(schema: Schema, first: int) -> None:
    ids, fresh = fresh_ids(schema, first), with_fresh_ids(schema, first)
    assert sorted(ids.values()) == list(range(first, first + len(ids)))
    assert [ids[f.id] for f in schema.walk()] == [f.id for f in fresh.walk()]
    assert [(f.name, f.required, f.doc, f.initial_default, f.write_default) for f in schema.walk()] == [
        (f.name, f.required, f.doc, f.initial_default, f.write_default) for f in fresh.walk()
    ]
    assert with_fresh_ids(fresh, first) == fresh


def test_fresh_field_ids_are_assigned_level_by_level() -> None:
    point = Struct((Field(7, "x", "int"), Field(5, "y", "int")))
    schema = Schema(
        (
            Field(0, "m", Map(Field(9, "key", "int", required=True), Field(8, "value", point))),
            Field(3, "l", List(Field(4, "element", "int"))),
            Field(2, "i", "int", required=True),
        ),
        (2,),
    )
    assert fresh_ids(schema) == {0: 1, 3: 2, 2: 3, 9: 4, 8: 5, 7: 6, 5: 7, 4: 8}
    assert with_fresh_ids(schema).identifier_ids == (3,)
    assert fresh_ids(schema, 10)[0] == 10


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("decimal(9,2)", "decimal(9, 2)"),
        ("decimal( 38 , 0 )", "decimal(38, 0)"),
        ("fixed[ 16 ]", "fixed[16]"),
        # as Java writes what we call geometry and geography
        ("geometry(OGC:CRS84)", "geometry"),
        ("geography(OGC:CRS84, spherical)", "geography"),
        ("geography(OGC:CRS84)", "geography"),
        ("geography(EPSG:4326)", "geography(EPSG:4326, spherical)"),
        (str(GeometryType("EPSG:4326")), "geometry(EPSG:4326)"),
        (str(GeographyType("EPSG:4326", "karney")), "geography(EPSG:4326, karney)"),
    ],
)
def test_primitive_types_are_normalised_to_one_spelling(text: str, canonical: str) -> None:
    assert parse_primitive(text) == canonical
    assert parse_primitive(canonical) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *("", "INT", "int32", "varchar", "struct", "decimal", "decimal(0, 0)", "decimal(39, 0)", "decimal(5, 6)"),
        *("decimal(5, -1)", "decimal(٣, 0)", "fixed", "fixed[0]", "fixed[-1]", "geometry()", "geometry(a, b)"),
        *("geography(a, flat)", "int ", "timestamp_ms", "x" * 10_000),
    ],
)
def test_unknown_or_malformed_types_are_refused(text: str) -> None:
    with pytest.raises(ValueError) as found:
        parse_primitive(text)
    assert len(str(found.value)) < 200


def json_of(**changes: Any) -> dict[str, Any]:
    field = {"id": 1, "name": "a", "required": True, "type": "int"}
    return {"type": "struct", "fields": [{k: v for k, v in (field | changes).items() if v is not ...}]}


LIST = {"type": "list", "element-id": 2, "element-required": False, "element": "int"}
MAP = {"type": "map", "key-id": 2, "key": "int", "value-id": 3, "value": "int", "value-required": True}


@pytest.mark.parametrize(
    ("json", "reason"),
    [
        (None, "Schema must be"),
        ([], "Schema must be"),
        ({"fields": []}, "Schema has no type"),
        ({"type": "list", "fields": []}, "must be a struct"),
        ({"type": "struct"}, "has no fields"),
        ({"type": "struct", "fields": {}}, "must be a list"),
        ({"type": "struct", "fields": ["a"]}, "must be a JSON object"),
        (json_of(id=...), "has no id"),
        (json_of(id=None), "has no id"),
        (json_of(id="1"), "id must be a whole number"),
        (json_of(id=True), "id must be a whole number"),
        (json_of(id=1.0), "id must be a whole number"),
        (json_of(id=-1), "id must be from 0"),
        (json_of(id=2**31), "id must be from 0"),
        (json_of(id=MAX_FIELD_ID + 1), "metadata columns"),
        (json_of(name=...), "has no name"),
        (json_of(name=5), "name must be text"),
        (json_of(required=...), r"Field 1 \(a\) has no required"),
        (json_of(required=1), r"Field 1 \(a\): required must be true or false"),
        (json_of(type=...), r"Field 1 \(a\) has no type"),
        (json_of(type=7), r"Field 1 \(a\): type must be a JSON object"),
        (json_of(type="text"), r"Field 1 \(a\): Unknown type: text"),
        (json_of(type={"type": "set"}), r"Field 1 \(a\): Unknown type: set"),
        (json_of(type={"fields": []}), "has no type"),
        (json_of(type={**LIST, "element-id": 1}), "Field id 1 is there twice"),
        (json_of(type={**LIST, "element-required": None}), "has no element-required"),
        (json_of(type={**LIST, "element": "i"}), "Element 2: Unknown type"),
        (json_of(type={**MAP, "value-id": 2}), "Field id 2 is there twice"),
        (json_of(type={**MAP, "key": None}), "has no key"),
        (json_of(doc=5), "doc must be text"),
        (json_of(**{"initial-default": "5"}), r"Field 1 \(a\): initial-default: Not a value of type int: '5'"),
        (json_of(type=LIST, **{"write-default": []}), "not supported for nested types"),
        ({**json_of(), "identifier-field-ids": [2]}, "Identifier field 2 does not exist"),
        ({**json_of(), "identifier-field-ids": ["1"]}, "must be a whole number"),
        ({**json_of(required=False), "identifier-field-ids": [1]}, "a is optional"),
        ({**json_of(type="double"), "identifier-field-ids": [1]}, "tells no rows apart"),
        ({**json_of(type=MAP), "identifier-field-ids": [1]}, "tells no rows apart"),
        ({**json_of(type=MAP), "identifier-field-ids": [2]}, "inside of the list or map a"),
    ],
)
def test_a_malformed_schema_is_refused_with_the_reason(json: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_schema(json)


def test_an_identifier_field_may_be_nested_only_in_required_structs() -> None:
    inner = {"type": "struct", "fields": [{"id": 2, "name": "x", "required": True, "type": "string"}]}
    assert parse_schema({**json_of(type=inner), "identifier-field-ids": [2, 2]}).identifier_ids == (2,)
    with pytest.raises(ValueError, match="a is optional"):
        parse_schema({**json_of(type=inner, required=False), "identifier-field-ids": [2]})


def test_an_empty_schema_and_unknown_keys_are_accepted() -> None:
    assert parse_schema({"type": "struct", "schema-id": 4, "fields": [], "more": {}}) == Schema(())
    assert parse_schema(json_of(type={"type": "struct", "fields": []})).fields[0].type == Struct(())
    nothing = parse_schema(json_of(doc=None, **{"initial-default": None}))
    assert nothing == Schema((Field(1, "a", "int", required=True),))


def test_a_schema_that_is_too_deep_or_too_large_is_refused() -> None:
    def nested(levels: int) -> dict[str, Any]:
        json: Any = "int"
        for i in range(levels):
            json = {**LIST, "element-id": i + 2, "element": json}
        return json_of(type=json)

    assert len(list(parse_schema(nested(MAX_DEPTH - 1)).walk())) == MAX_DEPTH
    with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH}"):
        parse_schema(nested(MAX_DEPTH))
    (field,) = json_of()["fields"]
    wide = [{**field, "id": i, "name": f"c{i}"} for i in range(MAX_FIELDS + 1)]
    parse_schema({"type": "struct", "fields": wide[:-1]})
    with pytest.raises(ValueError, match="more than 10000 fields"):
        parse_schema({"type": "struct", "fields": wide})


@pytest.mark.parametrize("primitive", VALUES)
@given(data=st.data())
def test_values_are_read_back_from_json_unchanged(primitive: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[primitive])
    json = value_json(primitive, value)
    assert parse_value(primitive, json) == value
    assert parse_default(primitive, json) == json


@pytest.mark.parametrize(
    ("primitive", "json", "canonical"),
    [
        # as Java writes them
        ("time", "10:11:12", "10:11:12.000000"),
        ("timestamp", "2020-01-02T10:11:12.5", "2020-01-02T10:11:12.500000"),
        ("timestamptz", "2020-01-02T10:11:12Z", "2020-01-02T10:11:12.000000+00:00"),
        ("timestamptz_ns", "2020-01-02T10:11:12+00:00", "2020-01-02T10:11:12.000000000+00:00"),
        ("float", 0.1, 0.10000000149011612),
        ("double", 1, 1.0),
        ("uuid", "F79C3E09-677C-4BBD-A479-3F349CB785E7", "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        ("binary", "00FF", "00ff"),
        ("fixed[2]", "00FF", "00ff"),
        ("decimal(5, 2)", "-0.00", "0.00"),
        ("decimal(5, 2)", "0012.30", "12.30"),
    ],
)
def test_defaults_are_normalised_to_one_json_form(primitive: str, json: Any, canonical: Any) -> None:
    found = parse_default(primitive, json)
    assert (found, type(found)) == (canonical, type(canonical))
    assert parse_default(primitive, canonical) == canonical


@pytest.mark.parametrize(
    ("primitive", "json"),
    [
        *(("int", x) for x in (2**31, -(2**31) - 1, 1.0, True, "1", [], {})),
        *(("long", x) for x in (2**63, 1.5)),
        *(("boolean", x) for x in (0, 1, "true")),
        *(("float", x) for x in (1e39, 10**400, "1", True, float("nan"), float("inf"))),
        *(("double", x) for x in (10**400, float("nan"), "1")),
        *(("date", x) for x in (1, "2020-02-30", "20200101", "2020-01-01 ", "12020-01-01", "infinity")),
        *(("time", x) for x in ("24:00:00", "10:11", "10:11:12.1234567")),
        *(("timestamp", x) for x in ("2020-01-01", "2020-01-01 00:00:00", "2020-01-01T00:00:00Z")),
        *(("timestamptz", x) for x in ("2020-01-01T00:00:00", "2020-01-01T00:00:00+01:00")),
        *(("timestamp_ns", x) for x in ("9999-01-01T00:00:00",)),
        *(("decimal(5, 2)", x) for x in ("1", "1.2", "1.234", "1000.00", "1E2", 1.25, "", ".50")),
        *(("uuid", x) for x in ("f79c3e09677c4bbda4793f349cb785e7", "x")),
        *(("binary", x) for x in ("0", "0g", "00 ff")),
        *(("fixed[2]", x) for x in ("00", "00ffee")),
        *((x, "a") for x in ("variant", "unknown", "geometry", "geography")),
        ("string", 5),
    ],
)
def test_a_default_that_is_no_value_of_its_type_is_refused(primitive: str, json: Any) -> None:
    with pytest.raises(ValueError, match="Not a value of type"):
        parse_default(primitive, json)


def test_parsed_values_have_the_representation_of_data_files() -> None:
    assert parse_value("date", "1970-01-02") == 1
    assert parse_value("timestamptz_ns", "1970-01-01T00:00:00.000000001+00:00") == 1
    assert parse_value("decimal(5, 2)", "1.50") == 150
    assert parse_value("uuid", str(UUID(int=1))) == UUID(int=1).bytes


def columns(*names: str) -> Schema:
    return Schema(tuple(Field(i, name, "int") for i, name in enumerate(names, 1)))


def within(*names: str) -> Schema:
    return Schema((Field(90, "s", List(Field(91, "element", Struct(columns(*names).fields)))),))


@pytest.mark.parametrize("names", [("a", "A"), ("a", "a"), ("größe", "GRößE")])
def test_h40_names_that_differ_by_case_alone_are_refused_at_every_level(names: tuple[str, str]) -> None:
    for schema in (columns(*names), within(*names)):
        with pytest.raises(ValueError, match="are the same to DuckDB"):
            check_names(schema)


def test_h40_only_the_case_of_ascii_letters_is_ignored_in_column_names() -> None:
    check_names(columns("größe", "GRÖßE", "ſ", "s", "K"))
    check_names(Schema((*columns("a").fields, Field(9, "b", Struct((Field(10, "A", "int"),))))))


@pytest.mark.parametrize("name", ["row_id", "BEGIN_SNAPSHOT", "end_snapshot", "x" * 64, "ä" * 32])
def test_h49_names_that_cannot_be_inlined_are_refused_at_the_top(name: str) -> None:
    with pytest.raises(ValueError, match=r"reserved|longer than 63 bytes"):
        check_names(columns("a", name))
    check_names(within(name))
    check_names(columns("x" * 63, "row_ids", "ä" * 31))


@pytest.mark.parametrize("name", ["_file", "_pos", "_Deleted", "_row_id", "_ducklake_internal_row_id", "_change_type"])
def test_names_of_metadata_columns_are_refused_at_the_top(name: str) -> None:
    with pytest.raises(ValueError, match="reserved"):
        check_names(columns(name))
    check_names(within(name))


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_empty_column_names_and_names_with_nul_are_refused_at_every_level(name: str) -> None:
    for schema in (columns(name), within(name)):
        with pytest.raises(ValueError, match=r"is empty|NUL"):
            check_names(schema)


def test_a_column_with_the_dotted_name_of_a_nested_field_is_refused() -> None:
    struct = Field(1, "a", Struct((Field(2, "b", "int"),)))
    with pytest.raises(ValueError, match=r"a\.b is that"):
        check_names(Schema((struct, Field(3, "a.b", "int"))))


@pytest.fixture(scope="module")
def java() -> Any:
    jvm: Any = sparks.session()._jvm
    return jvm.org.apache.iceberg


@pytest.mark.integration
class TestJava:
    """Iceberg's own library says the same."""

    @pytest.mark.parametrize("primitive", [x for x in ALL_PRIMITIVES if "(EPSG" not in x])
    def test_a_type_written_by_icebergs_java_library_is_parsed_as_the_same_type(
        self, java: Any, primitive: str
    ) -> None:
        json = orjson.dumps(schema_json(Schema((Field(1, "a", primitive),)), 0)).decode()
        theirs = java.SchemaParser.toJson(java.SchemaParser.fromJson(json))
        assert parse_schema(orjson.loads(theirs)) == Schema((Field(1, "a", primitive),))

    @pytest.mark.parametrize("primitive", [x for x in VALUES if x != "decimal(38, 38)"])
    @given(data=st.data())
    @settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_default_written_by_icebergs_java_library_is_parsed_as_the_same_default(
        self, java: Any, primitive: str, data: st.DataObject
    ) -> None:
        default = value_json(primitive, data.draw(VALUES[primitive]))
        schema = Schema((Field(1, "a", primitive, initial_default=default, write_default=default),))
        theirs = java.SchemaParser.toJson(java.SchemaParser.fromJson(orjson.dumps(schema_json(schema, 0)).decode()))
        assert parse_schema(orjson.loads(theirs)) == schema

    @given(schemas(("int", "string"), defaults=False))
    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_icebergs_java_library_assigns_the_same_fresh_field_ids(self, java: Any, schema: Schema) -> None:
        assume(schema.ambiguous_name() is None)
        theirs = java.SchemaParser.fromJson(orjson.dumps(schema_json(schema, 0)).decode())
        fresh = orjson.loads(java.SchemaParser.toJson(java.types.TypeUtil.assignIncreasingFreshIds(theirs)))
        found = parse_schema(fresh)
        assert found.fields == with_fresh_ids(schema).fields
        assert set(found.identifier_ids) == set(with_fresh_ids(schema).identifier_ids)
