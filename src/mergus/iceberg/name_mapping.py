"""Name mappings: which field a column of a file without field ids is, by its name.

Iceberg has one mapping for a table, in the property `schema.name-mapping.default`, and readers use it for every file
that has no ids. So mappings that were made for single files become one only if no name means two fields: `merged`
refuses the others. Elements of lists and the keys and values of maps have the names that Iceberg gives them,
whatever the file calls them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import orjson

PROPERTY = "schema.name-mapping.default"
ELEMENT, KEY, VALUE = "element", "key", "value"


@dataclass(frozen=True, slots=True)
class MappedField:
    """`names` are all that the field has in some file."""

    id: int
    names: tuple[str, ...]
    fields: tuple["MappedField", ...] = ()

    def walk(self) -> Iterator["MappedField"]:
        yield self
        for field in self.fields:
            yield from field.walk()


def names_by_parent(
    fields: Iterable[MappedField], parent: int | None = None
) -> Iterator[tuple[tuple[int | None, str], MappedField]]:
    """Every name that a mapping knows, with the id of the field that it is directly in."""
    for field in fields:
        for name in field.names:
            yield (parent, name), field
        yield from names_by_parent(field.fields, field.id)


class Ambiguous(Exception):
    """One name at one level that means two fields."""

    def __init__(self, path: tuple[str, ...], ids: tuple[int, int]) -> None:
        super().__init__(f"column {'.'.join(path)} is field {ids[0]} in one file and field {ids[1]} in another")


def merged(mappings: Iterable[tuple[MappedField, ...]], above: tuple[str, ...] = ()) -> tuple[MappedField, ...]:
    """One mapping that says what each of them says, in order of ids. Raises Ambiguous where they disagree."""
    meaning: dict[str, int] = {}
    names: defaultdict[int, dict[str, None]] = defaultdict(dict)
    below: defaultdict[int, list[tuple[MappedField, ...]]] = defaultdict(list)
    for field in (field for mapping in mappings for field in mapping):
        for name in field.names:
            if meaning.setdefault(name, field.id) != field.id:
                raise Ambiguous((*above, name), (meaning[name], field.id))
            names[field.id][name] = None
        below[field.id].append(field.fields)
    return tuple(
        MappedField(i, tuple(sorted(names[i])), merged(below[i], (*above, min(names[i])))) for i in sorted(names)
    )


def name_mapping_json(fields: Iterable[MappedField]) -> str:
    """The value of the property."""
    return orjson.dumps([_field_json(f) for f in fields]).decode()


def parse_name_mapping(text: str) -> tuple[MappedField, ...]:
    """The inverse. Raises ValueError."""
    try:
        return _fields(orjson.loads(text))
    except (orjson.JSONDecodeError, KeyError, TypeError) as e:
        raise ValueError(f"it is not as the specification has it: {e}") from None


def _fields(json: Any) -> tuple[MappedField, ...]:  # noqa: ANN401  (JSON)
    if not isinstance(json, list):
        raise TypeError("a list of fields is needed")
    found = cast(list[Any], json)
    # a field without an id is known to be none of the table's
    return tuple(_field(f) for f in found if f.get("field-id") is not None)


def _field(json: Any) -> MappedField:  # noqa: ANN401  (JSON)
    names: list[Any] = json["names"]
    if not isinstance(json["field-id"], int) or not all(isinstance(name, str) for name in names):
        raise TypeError("an id and names are needed")
    return MappedField(json["field-id"], tuple(names), _fields(json.get("fields", [])))


def _field_json(field: MappedField) -> dict[str, Any]:
    json: dict[str, Any] = {"field-id": field.id, "names": list(field.names)}
    return {**json, "fields": [_field_json(f) for f in field.fields]} if field.fields else json
