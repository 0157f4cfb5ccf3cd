"""Our name mappings, read by PyIceberg and by Java."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.name_mapping import parse_mapping_from_json

from mergus.iceberg.name_mapping import ELEMENT, KEY, VALUE, Ambiguous, MappedField, merged, name_mapping_json
from tests.support import spark as sparks

NESTED = (
    MappedField(1, ("ID", "id")),
    MappedField(2, ("st",), (MappedField(3, ("a",)), MappedField(4, ("b", "é")))),
    MappedField(5, ("l",), (MappedField(6, (ELEMENT,)),)),
    MappedField(7, ("m",), (MappedField(8, (KEY,)), MappedField(9, (VALUE,)))),
)
PATHS = {"ID": 1, "id": 1, "st": 2, "st.a": 3, "st.b": 4, "st.é": 4, "l.element": 6, "m.key": 8, "m.value": 9}


def test_pyiceberg_finds_every_field_by_its_names() -> None:
    theirs = parse_mapping_from_json(name_mapping_json(NESTED))
    for path, expected in PATHS.items():
        level, found = list(theirs), None
        for name in path.split("."):
            (found,) = [x for x in level if name in x.names]
            level = found.fields
        assert found is not None
        assert found.field_id == expected


def test_name_mappings_of_files_with_different_names_are_merged() -> None:
    first = (MappedField(1, ("a",)), MappedField(2, ("s",), (MappedField(3, ("x",)),)))
    second = (MappedField(2, ("S",), (MappedField(3, ("y",)), MappedField(4, ("z",)))), MappedField(1, ("A",)))
    assert merged([first, second]) == (
        MappedField(1, ("A", "a")),
        MappedField(2, ("S", "s"), (MappedField(3, ("x", "y")), MappedField(4, ("z",)))),
    )


def test_a_column_name_that_maps_to_two_fields_is_refused() -> None:
    with pytest.raises(Ambiguous, match="column a is field 1 in one file and field 3 in another"):
        merged([(MappedField(1, ("a",)),), (MappedField(3, ("a",)),)])
    with pytest.raises(Ambiguous, match=r"column s\.x is field 2"):
        merged([(MappedField(1, ("s",), (MappedField(i, ("x",)),)),) for i in (2, 3)])


def test_a_column_name_may_map_to_different_fields_at_different_levels() -> None:
    both = (MappedField(1, ("x",)), MappedField(2, ("s",), (MappedField(3, ("x",)),)))
    assert merged([both]) == both


@st.composite
def trees(draw: st.DrawFn, depth: int = 0) -> tuple[MappedField, ...]:
    """Whose names say which field they mean."""
    ids = draw(st.lists(st.integers(1, 5), max_size=3, unique=True))
    spellings = st.lists(st.sampled_from("xyz"), min_size=1, max_size=2, unique=True)
    return tuple(
        MappedField(
            i + 10 * depth,
            tuple(f"{x}{i}" for x in draw(spellings)),
            draw(trees(depth + 1)) if depth < 2 and i > 3 else (),
        )
        for i in ids
    )


@given(st.lists(trees(), max_size=4), st.randoms())
def test_merging_name_mappings_does_not_depend_on_their_order(
    mappings: list[tuple[MappedField, ...]], random: Random
) -> None:
    expected = merged(mappings)
    random.shuffle(mappings)
    assert merged(mappings) == merged([*mappings, expected]) == expected


def test_merging_no_mappings_gives_an_empty_mapping() -> None:
    assert merged([]) == ()
    assert name_mapping_json(()) == "[]"


@pytest.mark.integration
class TestJava:
    def test_icebergs_java_library_finds_every_field_by_its_names(self) -> None:
        jvm: Any = sparks.session()._jvm
        theirs = jvm.org.apache.iceberg.mapping.NameMappingParser.fromJson(name_mapping_json(NESTED))
        names = jvm.java.util.ArrayList
        for path, expected in PATHS.items():
            parts = names()
            for part in path.split("."):
                parts.add(part)
            assert theirs.find(parts).id() == expected
