"""An arrangement moves fields and says which identify rows; it never changes what the columns are."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mergus.iceberg.arrangement import arranged
from mergus.iceberg.schema import Field, List, Map, Schema, Struct

N, S, D = Field(1, "i", "int"), Field(2, "s", "string"), Field(3, "d", "date", required=True)


def test_columns_are_shown_in_the_order_of_the_arrangement() -> None:
    assert arranged(Schema((N, S, D)), Schema((D, N, S))).fields == (D, N, S)


def test_new_columns_are_shown_last_and_dropped_ones_are_left_out() -> None:
    new = Field(4, "new", "long")
    assert arranged(Schema((N, D, new)), Schema((S, D, N))).fields == (D, N, new)


def test_an_arrangement_changes_only_the_order_of_columns() -> None:
    """Names and types are those of now."""
    renamed, wider = replace(S, name="t"), replace(N, type="long", doc="wide")
    assert arranged(Schema((wider, renamed)), Schema((S, N))).fields == (renamed, wider)


def test_an_arrangement_orders_nested_fields_of_structs_lists_and_maps() -> None:
    x, y, z = Field(10, "x", "int"), Field(11, "y", "int"), Field(12, "z", "int")
    element = Field(20, "element", Struct((x, y)))
    value = Field(22, "value", Struct((z,)))
    key = Field(21, "key", "string", required=True)
    columns = (
        Field(1, "points", List(element)),
        Field(2, "named", Map(key, value)),
        Field(3, "one", Struct((Field(30, "a", "int"), Field(31, "b", "int")))),
    )
    like = Schema(
        (
            Field(3, "one", Struct((Field(31, "b", "int"), Field(30, "a", "int")))),
            Field(1, "points", List(Field(20, "element", Struct((y, x))))),
        )
    )
    found = arranged(Schema(columns), like)
    assert [f.name for f in found.fields] == ["one", "points", "named"]
    assert [f.id for f in found.walk()] == [3, 31, 30, 1, 20, 11, 10, 2, 21, 22, 12]


def test_identifier_fields_are_kept_only_while_they_exist_and_are_required() -> None:
    required = replace(N, required=True)
    like = Schema((required, S, D), (3, 1))
    assert arranged(Schema((required, S, D)), like).identifier_ids == (3, 1)
    # one is optional by now, and another is gone
    assert arranged(Schema((N, S, D)), like).identifier_ids == (3,)
    assert arranged(Schema((N, S)), like).identifier_ids == ()
    # nobody has said anything
    assert arranged(Schema((required, D)), Schema((required, D))).identifier_ids == ()


def test_an_arrangement_adds_the_initial_default_that_a_client_set() -> None:
    asked = replace(N, initial_default=7)
    assert arranged(Schema((N,)), Schema((asked,))).fields == (asked,)
    # the column's own goes first, and one of another type is none
    own = replace(N, initial_default=1)
    assert arranged(Schema((own,)), Schema((asked,))).fields == (own,)
    text = replace(N, type="string")
    assert arranged(Schema((text,)), Schema((asked,))).fields == (text,)


fields = st.integers(1, 8).flatmap(
    lambda n: st.permutations([Field(i, f"c{i}", "int", required=i % 2 == 0) for i in range(1, n + 1)])
)


@given(fields, fields)
def test_an_arrangement_neither_adds_nor_removes_columns(now: list[Field], then: list[Field]) -> None:
    schema, like = Schema(tuple(now)), Schema(tuple(then))
    found = arranged(schema, like)
    assert sorted(f.id for f in found.fields) == sorted(f.id for f in now)
    assert arranged(found, like) == found
    known = [f.id for f in then if f in now]
    assert [f.id for f in found.fields if f in then] == known
