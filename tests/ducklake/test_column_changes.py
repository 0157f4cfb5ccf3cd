"""What rows a wanted schema takes; texts of defaults, there and back."""

from dataclasses import replace
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.ducklake.column_changes import ColumnChanges, ColumnRow, altered, created, default_text
from mergus.ducklake.columns import Column, Columns, Span, default_json
from mergus.ducklake.types import NOT_STORED, STORED, ducklake_type, iceberg_primitive, why_not_stored
from mergus.errors import Unsupported
from mergus.iceberg.schema import Field, List, Map, Schema, Struct, Type, value_json
from tests.support.ddl import edited, grown

LIVE = [
    Column(1, Span(1, None), "i", "int8", False, None, None, "NULL", "literal"),
    Column(2, Span(1, None), "st", "struct", True, None, None, "NULL", ""),
    Column(3, Span(1, None), "a", "uint16", True, 2, None, "NULL", "literal"),
    Column(4, Span(1, None), "b", "varchar", False, 2, "x", "y", ""),
    Column(5, Span(1, None), "l", "list", True, None, None, "NULL", ""),
    Column(6, Span(1, None), "element", "json", True, 5, None, "NULL", "literal"),
    Column(7, Span(1, None), "now", "timestamptz", True, None, None, "now()", "expression"),
]
SHOWN = Columns(LIVE).schema_at(1)


def to(wanted: Schema) -> ColumnChanges:
    return altered(LIVE, SHOWN, wanted)


def field_to(field_id: int, **changes: Any) -> ColumnChanges:
    return to(edited(SHOWN, field_id, lambda f: replace(f, **changes)))


def test_an_unchanged_schema_needs_no_column_rows() -> None:
    assert not to(SHOWN)
    assert not to(replace(SHOWN, fields=SHOWN.fields[::-1], identifier_ids=(1,)))


def test_a_rename_keeps_the_types_that_iceberg_does_not_have() -> None:
    changes = field_to(1, name="j")
    assert changes == ColumnChanges(
        ended=(1,),
        inserted=(ColumnRow(1, "j", "int8", None, "NULL", False, None, "literal"),),
        reshapes=True,
        renamed={"i": "j"},
    )


def test_a_renamed_nested_field_keeps_its_defaults_and_renames_no_top_level_column() -> None:
    changes = field_to(4, name="c")
    assert changes.inserted == (ColumnRow(4, "c", "varchar", "x", "y", False, 2, ""),)
    assert (changes.ended, changes.renamed, changes.reshapes) == ((4,), {}, True)


def test_a_retyped_column_gets_the_requested_ducklake_type() -> None:
    assert [row.type for row in field_to(1, type="long").inserted] == ["int64"]
    assert [row.type for row in field_to(3, type="long").inserted] == ["int64"]


def test_one_type_in_two_spellings_is_no_change() -> None:
    live = [Column(1, Span(1, None), "g", "geometry", True, None, None, "NULL", "literal")]
    shown = Columns(live).schema_at(1)
    assert not altered(live, shown, Schema((Field(1, "g", "geometry(OGC:CRS84)"),)))


def test_nullability_is_stored_for_top_level_columns_only() -> None:
    changes = field_to(1, required=False)
    assert changes.inserted == (ColumnRow(1, "i", "int8", None, "NULL", True, None, "literal"),)
    assert not changes.reshapes
    assert not field_to(3, required=True)
    assert not field_to(6, required=True)


def test_a_write_default_is_stored_in_the_form_of_the_ducklake_type() -> None:
    changes = field_to(1, write_default=7)
    assert changes.inserted == (ColumnRow(1, "i", "int8", None, "7", False, None, "literal"),)
    assert not changes.reshapes
    assert field_to(7, write_default="2020-01-02T03:04:05.000000+00:00").inserted[0].default_type == "literal"
    with pytest.raises(Unsupported, match="Column i: DuckLake has no form for the default 300 of its type int8"):
        field_to(1, write_default=300)


def test_a_rename_keeps_a_default_expression_that_iceberg_cannot_show() -> None:
    (row,) = field_to(7, name="then").inserted
    assert (row.default_value, row.default_type) == ("now()", "expression")


def test_dropping_a_column_ends_its_nested_fields() -> None:
    changes = to(edited(SHOWN, 2, lambda _: None))
    assert changes == ColumnChanges(ended=(2, 3, 4), reshapes=True, dropped={2: "st"})
    nested = to(edited(SHOWN, 3, lambda _: None))
    assert (nested.ended, nested.dropped) == ((3,), {})


def test_an_added_nested_column_writes_parents_before_their_fields() -> None:
    kind = Map(Field(9, "k", "string", required=True), Field(10, "v", List(Field(11, "e", "date", required=True))))
    changes = to(grown(SHOWN, Field(8, "m", kind, required=True)))
    assert changes == ColumnChanges(
        inserted=(
            ColumnRow(8, "m", "map", None, "NULL", False, None, ""),
            ColumnRow(9, "key", "varchar", None, "NULL", True, 8, "literal"),
            ColumnRow(10, "value", "list", None, "NULL", True, 8, ""),
            ColumnRow(11, "element", "date", None, "NULL", True, 10, "literal"),
        ),
        reshapes=True,
    )


def test_an_added_column_stores_its_initial_and_its_write_default() -> None:
    (row,) = to(grown(SHOWN, Field(8, "n", "int", initial_default=7, write_default=9), 2)).inserted
    assert (row.initial_default, row.default_value, row.parent) == ("7", "9", 2)
    (row,) = to(grown(SHOWN, Field(8, "n", "int", initial_default=0))).inserted
    assert (row.initial_default, row.default_value) == ("0", "NULL")


def test_the_doc_of_a_field_is_stored_as_a_column_comment() -> None:
    assert field_to(3, doc="why") == ColumnChanges(comments={3: "why"})
    documented = edited(SHOWN, 3, lambda f: replace(f, doc="why"))
    assert altered(LIVE, documented, SHOWN) == ColumnChanges(comments={3: None})
    assert to(grown(SHOWN, Field(8, "n", "int", doc="new"))).comments == {8: "new"}
    assert created(documented).comments == {3: "why"}


def test_a_new_table_gets_one_row_for_each_field() -> None:
    changes = created(Schema((Field(1, "i", "int", required=True), Field(2, "s", Struct((Field(3, "x", "uuid"),))))))
    assert changes == ColumnChanges(
        inserted=(
            ColumnRow(1, "i", "int32", None, "NULL", False, None, "literal"),
            ColumnRow(2, "s", "struct", None, "NULL", True, None, ""),
            ColumnRow(3, "x", "uuid", None, "NULL", True, 2, "literal"),
        ),
        reshapes=True,
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("fixed[16]", r"Column s\.x: its type fixed\[16\] cannot be kept: DuckLake has no binary of a fixed length"),
        ("timestamptz_ns", "time zone in nanoseconds"),
        ("geography", "no geography"),
        ("geography(OGC:CRS84, spherical)", "no geography"),
        ("geometry(EPSG:3857)", "coordinate system"),
        ("unknown", "without a type"),
        ("decimal(5, 6)", "finer"),
        ("decimal(39, 0)", "38 digits"),
        ("something", "no such type"),
    ],
)
def test_a_type_that_ducklake_cannot_store_is_refused_with_the_column_name(kind: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        created(Schema((Field(1, "s", Struct((Field(2, "x", kind),))),)))


def test_every_iceberg_type_is_either_stored_or_refused_with_a_reason() -> None:
    for primitive, stored in STORED.items():
        assert ducklake_type(primitive) == stored
        assert (iceberg_primitive(stored) or "") == primitive.split("(")[0]
    for primitive in ("fixed[1]", "geography", "unknown", "timestamptz_ns"):
        assert ducklake_type(primitive) is None
        assert why_not_stored(primitive) in NOT_STORED.values()
    assert ducklake_type("decimal(10, 2)") == ducklake_type("decimal(10,2)") == "decimal(10,2)"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (Schema(()), "no table without columns"),
        (Schema((Field(1, "s", Struct(())),)), "Column s: DuckDB has no struct without fields"),
        (Schema((Field(1, "", "int"),)), "cannot keep this name"),
        (Schema((Field(1, "a\0b", "int"),)), "cannot keep this name"),
        (Schema((Field(1, "aÄ", "int"), Field(2, "AÄ", "int"))), "Column AÄ: DuckDB takes its name for that of aÄ"),
        (
            Schema((Field(1, "s", Struct((Field(2, "x", "int"), Field(3, "X", "int")))),)),
            r"Column s\.X: DuckDB takes its name for that of x",
        ),
        (Schema((Field(1, "v", "variant", write_default="x"),)), "Column v: DuckLake has no form for the default"),
        (Schema((Field(1, "s", "string", initial_default="NULL"),)), "Column s: DuckLake has no form for the default"),
        (Schema((Field(1, "s", "string", initial_default="a\0"),)), "Column s: DuckLake has no form for the default"),
    ],
)
def test_a_schema_that_duckdb_cannot_hold_is_refused_with_the_column_name(schema: Schema, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        created(schema)


def test_column_names_that_differ_in_non_ascii_case_are_distinct() -> None:
    assert len(created(Schema((Field(1, "ä", "int"), Field(2, "Ä", "int")))).inserted) == 2


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans().map(int),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "decimal(10,3)": st.integers(-(10**10) + 1, 10**10 - 1),
    "date": st.integers(-719_162, 2_932_896),
    "time": st.integers(0, 86_400 * 10**6 - 1),
    "timestamp": st.integers(-62_135_596_800 * 10**6, 253_402_300_799 * 10**6),
    "timestamptz": st.integers(-62_135_596_800 * 10**6, 253_402_300_799 * 10**6),
    "timestamp_ns": st.integers(-(2**62), 2**62),
    "varchar": st.text(),
    "blob": st.binary(),
    "uuid": st.binary(min_size=16, max_size=16),
}


@given(st.sampled_from(list(VALUES)).flatmap(lambda kind: VALUES[kind].map(lambda value: (kind, value))))
def test_a_default_is_read_back_as_it_was_written(kind_and_value: tuple[str, Any]) -> None:
    kind, value = kind_and_value
    primitive = iceberg_primitive(kind)
    assert primitive is not None
    json = value_json(primitive, value)
    text = None if json is None else default_text(kind, json)
    if text is not None:
        assert default_json(kind, text) == json
    elif isinstance(value, str):
        assert value == "NULL" or "\0" in value
    else:
        # no such value in JSON; or one of the doubles of which DuckDB's text means two
        assert isinstance(value, float)
        assert not isfinite(value) or abs(value) in {2.0**82, 2.0**92}


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        *[("boolean", True, "true"), ("int32", -5, "-5"), ("float64", 1, "1.0"), ("float32", 1.1, "1.1")],
        *[("blob", "aa2722625c", "\\xAA\\x27\\x22b\\x5C"), ("decimal(4,2)", "1.50", "1.50"), ("varchar", "", "")],
        *[("date", "2020-01-02", "2020-01-02"), ("time", "03:04:05", "03:04:05"), ("json", "[1]", "[1]")],
        ("timestamp", "2020-01-02T03:04:05.500000", "2020-01-02 03:04:05.5"),
        ("timestamptz", "2020-01-02T03:04:05+00:00", "2020-01-02 03:04:05+00"),
        ("timestamp_ns", "2020-01-02T03:04:05.123456789", "2020-01-02 03:04:05.123456789"),
        ("timestamp_s", "2020-01-02T03:04:05.000000", "2020-01-02 03:04:05"),
        ("uuid", "7E0EB7AD-8c0d-4f3e-8b3f-0123456789ab", "7e0eb7ad-8c0d-4f3e-8b3f-0123456789ab"),
    ],
)
def test_defaults_are_stored_in_the_text_form_that_duckdb_writes(kind: str, value: Any, text: str) -> None:
    assert default_text(kind, value) == text


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *[("int32", True), ("int32", "5"), ("int8", 128), ("boolean", 1), ("varchar", 1), ("varchar", "NULL")],
        *[("timestamp_s", "2020-01-02T03:04:05.500000"), ("json", "no json"), ("decimal(4,2)", "1.5"), ("int128", 1)],
        *[("float32", 1e300), ("blob", "xyz"), ("uuid", "x"), ("struct", "x"), ("variant", "x"), ("uint32", 1)],
    ],
)
def test_a_default_that_the_type_cannot_hold_has_no_text_form(kind: str, value: Any) -> None:
    assert default_text(kind, value) is None


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
PRIMITIVES = st.sampled_from(["int", "long", "string", "date", "decimal(10, 2)"])


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Ids count up, so that two of them share some: of those the kinds agree."""
    count = draw(st.integers(1, 5))
    names = draw(st.permutations(["a", "b", "c", "d", "e"]))[:count]
    ids = draw(st.permutations([1, 11, 21, 31, 41]))[:count]
    return Schema(
        tuple(Field(i, name, _kind(draw, i), draw(st.booleans())) for i, name in zip(ids, names, strict=True))
    )


def _kind(draw: st.DrawFn, field_id: int) -> Type:
    inner = draw(PRIMITIVES)
    match field_id:
        case 21:
            parts = (Field(22, draw(NAMES), inner), Field(23, "z", "int"))
            return Struct(parts[: draw(st.integers(1, 2))])
        case 31:
            return List(Field(32, "element", inner))
        case 41:
            return Map(Field(42, "key", "string", required=True), Field(43, "value", inner))
        case _:
            return inner


@given(schemas(), schemas())
def test_the_column_rows_after_a_change_represent_the_requested_schema(old: Schema, new: Schema) -> None:
    """In the order of ids."""

    def columns(changes: ColumnChanges, before: list[Column]) -> list[Column]:
        kept = [c for c in before if c.id not in changes.ended]
        rows = [
            Column(r.id, Span(1, None), r.name, r.type, r.nulls_allowed, r.parent, r.initial_default, r.default_value)
            for r in changes.inserted
        ]
        found = sorted([*kept, *rows], key=lambda c: c.id)
        assert len({c.id for c in found}) == len(found)
        return [replace(c, default_type="literal") for c in found]

    live = columns(created(old), [])
    shown = Columns(live).schema_at(1)
    changes = altered(live, shown, new)
    after = Columns(columns(changes, live)).schema_at(1)
    assert after == replace(new, fields=tuple(sorted(new.fields, key=lambda f: f.id)))
    assert not altered(columns(changes, live), after, new)
