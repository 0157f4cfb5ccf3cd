import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergus.errors import BadRequest
from mergus.iceberg.namespace import MAX_NAME_BYTES, Namespace, check_creatable

levels = st.lists(st.text(min_size=1).filter(lambda s: not set(s) & {".", "\0", "\x1f"}), min_size=1, max_size=4)


@given(levels)
def test_a_namespace_and_its_schema_translate_into_each_other(parts: list[str]) -> None:
    namespace = Namespace(tuple(parts))
    assert namespace.can_exist
    assert tuple(namespace.schema_name.split(".")) == namespace.levels
    assert [n.schema_name for n in namespace.lineage][-1] == namespace.schema_name
    assert len(namespace.lineage) == len(parts)


@given(levels)
def test_a_path_segment_is_split_into_namespace_levels(parts: list[str]) -> None:
    assert Namespace.of_path("\x1f".join(parts)).levels == tuple(parts)


@pytest.mark.parametrize("parts", [(), ("",), ("a", ""), ("a.b",), ("a\x1fb",), ("a\0",)])
def test_a_namespace_that_no_schema_can_represent_cannot_exist(parts: tuple[str, ...]) -> None:
    """("a.b",) would find the schema of ("a", "b")."""
    assert not Namespace(parts).can_exist


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
def test_invalid_namespace_names_are_refused(parts: list[str]) -> None:
    with pytest.raises(BadRequest):
        check_creatable(parts)


@pytest.mark.parametrize(
    "parts",
    [["main"], ["a", "b", "c"], ["x" * MAX_NAME_BYTES], ["ünï"], ['"; DROP TABLE x; --'], ["a/b"], ["日本"], ["a b"]],
)
def test_unusual_valid_namespace_names_are_accepted(parts: list[str]) -> None:
    assert check_creatable(parts).levels == tuple(parts)
