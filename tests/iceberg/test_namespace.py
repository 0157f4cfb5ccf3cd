import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.errors import BadRequest
from mergus.iceberg.namespace import MAX_NAME_BYTES, Namespace, check_creatable

levels = st.lists(st.text(min_size=1).filter(lambda s: "." not in s and "\0" not in s), min_size=1, max_size=4)


@given(levels)
def test_a_namespace_and_its_schema_translate_into_each_other(parts: list[str]) -> None:
    namespace = Namespace(tuple(parts))
    assert namespace.can_exist
    assert Namespace.of_schema(namespace.schema_name) == namespace


@given(st.text(min_size=1).filter(lambda s: "\0" not in s))
def test_every_schema_that_duckdb_can_make_is_a_namespace(name: str) -> None:
    namespace = Namespace.of_schema(name)
    assert namespace.schema_name == name
    assert namespace.can_exist


@given(levels)
def test_a_path_segment_gives_its_levels(parts: list[str]) -> None:
    clean = [p for p in parts if "\x1f" not in p] or ["x"]
    assert Namespace.of_path("\x1f".join(clean)).levels == tuple(clean)


def test_a_level_with_a_dot_is_not_the_namespace_below() -> None:
    assert not Namespace(("a.b",)).can_exist
    assert Namespace(("a", "b")).can_exist


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [""],
        ["a", ""],
        ["  "],
        [" a"],
        ["a "],
        ["a.b"],
        ["."],
        [".."],
        ["a\0b"],
        ["a\nb"],
        ["a\x1fb"],
        ["\u2028"],
        ["\ud800"],
        ["information_schema"],
        ["PG_Catalog"],
        ["temp"],
        ["system"],
        ["x" * (MAX_NAME_BYTES + 1)],
        ["é" * 128],
        ["a" * 200, "b" * 200],
    ],
)
def test_names_that_cannot_be_used_are_refused(parts: list[str]) -> None:
    with pytest.raises(BadRequest):
        check_creatable(parts)


@pytest.mark.parametrize(
    "parts",
    [["main"], ["a", "b", "c"], ["x" * MAX_NAME_BYTES], ["ünï"], ['"; DROP TABLE x; --'], ["a/b"], ["日本"], ["a b"]],
)
def test_unusual_names_that_can_be_used_are_accepted(parts: list[str]) -> None:
    assert check_creatable(parts).levels == tuple(parts)
