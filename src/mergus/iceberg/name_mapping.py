"""Name mappings: which field a column of a file without field ids is, by its name.

Iceberg has one mapping for a table, in the property `schema.name-mapping.default`, and readers use it for every file
that has no ids. So mappings that were made for single files become one only if no name means two fields: `merged`
refuses the others. Elements of lists and the keys and values of maps have the names that Iceberg gives them,
whatever the file calls them.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

PROPERTY = "schema.name-mapping.default"
ELEMENT, KEY, VALUE = "element", "key", "value"


@dataclass(frozen=True, slots=True)
class MappedField:
    """`names` are all that the field has in some file."""

    id: int
    names: tuple[str, ...]
    fields: tuple["MappedField", ...] = ()


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


def _field_json(field: MappedField) -> dict[str, Any]:
    json: dict[str, Any] = {"field-id": field.id, "names": list(field.names)}
    return {**json, "fields": [_field_json(f) for f in field.fields]} if field.fields else json
