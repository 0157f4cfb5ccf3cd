"""Partition specs: by which values of which columns the files of a table are kept apart.

A spec is true for a file if its transforms give the same tuple for every row of the file: engines skip files by that
tuple, and take the value of an identity field for the column itself. A spec with fewer fields is true for more files.
Equal fields keep their id through all specs of a table.

A value is in the form that manifests have it in (`manifest.PartitionValue`): whole numbers for dates and times.
"""

import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import isnan
from typing import Any, Final, TypeAlias

from mergus.iceberg import manifest, values
from mergus.iceberg.json_object import JsonObject, shown
from mergus.iceberg.manifest import PartitionValue
from mergus.iceberg.manifest_list import FieldSummary
from mergus.iceberg.schema import Schema
from mergus.iceberg.transforms import IDENTITY, VOID, check_source, parse_transform, paths, result_type

# a value that is not None, of the type that goes with it
Untyped: TypeAlias = Any

# A value in JSON: texts for those that have no number there.
JsonPartitionValue: TypeAlias = bool | int | str | None

# Ids of partition fields are counted from here, so that they are not those of columns.
FIRST_FIELD_ID: Final = 1000

# Of a field that a request gives no id: `with_field_ids` does.
NO_FIELD_ID: Final = -1

_ESCAPED: Final = re.compile(r"\\([0\\])")
_DECIMAL: Final = re.compile(r"decimal\( *[0-9]+ *, *[0-9]+ *\)")


@dataclass(frozen=True, slots=True)
class PartitionField:
    source_id: int
    field_id: int
    name: str
    transform: str


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    spec_id: int
    fields: tuple[PartitionField, ...]


UNPARTITIONED: Final = PartitionSpec(0, ())


def spec_json(spec: PartitionSpec) -> dict[str, Any]:
    return {
        "spec-id": spec.spec_id,
        "fields": [
            {"source-id": f.source_id, "field-id": f.field_id, "name": f.name, "transform": f.transform}
            for f in spec.fields
        ],
    }


def parse_spec(json: Untyped, *, default_id: int | None = None) -> PartitionSpec:
    """The inverse of `spec_json`; raises ValueError. Fields without an id have `NO_FIELD_ID`.

    `default_id` is the id of a spec that has none; where it is None, every spec must have one.
    """
    top = JsonObject(json, "Partition spec")
    spec_id = default_id if default_id is not None and not top.has("spec-id") else top.int32("spec-id")
    return PartitionSpec(spec_id, tuple(_parse_field(x) for x in top.parts("fields")))


def _parse_field(json: JsonObject) -> PartitionField:
    name = json.text("name")
    what = f"Partition field {shown(name)}"
    field = json.named(what)
    source_id, transform = parse_transform(field, what)
    return PartitionField(source_id, field.int32("field-id") if field.has("field-id") else NO_FIELD_ID, name, transform)


def with_field_ids(spec: PartitionSpec, known: Iterable[PartitionSpec], last_assigned: int) -> PartitionSpec:
    """The spec with an id for every field: that of an equal field of the specs known, else the next after the last.

    Raises ValueError for an id that the request gives although another field has it.
    """
    meanings = {f.field_id: (f.source_id, f.transform) for other in known for f in other.fields}
    taken: set[int] = set()
    for field in spec.fields:
        if field.field_id == NO_FIELD_ID:
            continue
        source_id, transform = meanings.get(field.field_id, (field.source_id, field.transform))
        if field.field_id in taken or source_id != field.source_id or field.transform not in {transform, VOID}:
            raise ValueError(f"Partition field {field.name} has the id of another: {field.field_id}")
        taken.add(field.field_id)
    equal: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for field_id in sorted(meanings.keys() - taken, reverse=True):
        equal[meanings[field_id]].append(field_id)
    following = count(max([last_assigned, FIRST_FIELD_ID - 1, *taken]) + 1)

    def with_id(field: PartitionField) -> PartitionField:
        if field.field_id != NO_FIELD_ID:
            return field
        free = equal[field.source_id, field.transform]
        return replace(field, field_id=free.pop() if free else next(following))

    return replace(spec, fields=tuple(with_id(f) for f in spec.fields))


def check_spec(spec: PartitionSpec, schema: Schema) -> None:
    """Raises ValueError for a spec that a table with this schema cannot have.

    A name is that of a column only if the field is that very column, or what is left of it. What is left of several
    fields may be the same.
    """
    fields = paths(schema)
    columns = {".".join(field.name for field in path): field_id for field_id, path in fields.items()}
    names: set[str] = set()
    meanings: set[tuple[int, str]] = set()
    for field in spec.fields:
        what, meaning = f"Partition field {field.name}", (field.source_id, field.transform)
        check_source(*meaning, fields, what)
        if not field.name:
            raise ValueError(f"Partition field of column {field.source_id} has no name")
        if field.name in names:
            raise ValueError(f"{what} is there twice")
        itself = field.transform in {IDENTITY, VOID} and columns.get(field.name) == field.source_id
        if field.name in columns and not itself:
            raise ValueError(f"{what} has the name of a column that it is not")
        if meaning in meanings and field.transform != VOID:
            raise ValueError(f"{what} has the source column and transform of another")
        names.add(field.name)
        meanings.add(meaning)


def partition_types(spec: PartitionSpec, schema: Schema) -> tuple[manifest.PartitionField, ...]:
    """The fields of a manifest's partition tuples; the schema must have every source column."""
    types = {field.id: field.type for field in schema.walk()}
    return tuple(
        manifest.PartitionField(f.name, f.field_id, result_type(f.transform, types.get(f.source_id)))
        for f in spec.fields
    )


def tuple_json(partition: Sequence[PartitionValue], types: Sequence[str]) -> list[JsonPartitionValue]:
    """A partition tuple for Postgres's jsonb, which is exact for whole numbers but knows no NaN, no -0.0 and no NUL."""
    return [None if v is None else _form(kind)[0](v) for v, kind in zip(partition, types, strict=True)]


def tuple_of_json(json: Untyped, types: Sequence[str]) -> tuple[PartitionValue, ...]:
    """The inverse of `tuple_json`."""
    return tuple(None if x is None else _form(kind)[1](x) for x, kind in zip(json, types, strict=True))


def identity_value(ducklake_type: str, text: str, *, retyped: bool) -> PartitionValue:
    """The one value that DuckLake's text of it stands for; None where it may be another, and for every blob.

    `retyped` says that the column has had another type before, and this text may be of that.
    """
    if ducklake_type in {"varchar", "json"}:
        return text
    if ducklake_type == "uuid":
        return values.read_uuid(text)
    if ducklake_type in {"float32", "float64"}:
        single = values.read_float32(text)
        value = single if ducklake_type == "float32" else values.read_float64(text)
        # the '1.1' of a single is not the double 1.1, and the 0.0 of a file stands for -0.0, too
        return None if retyped and single != value else value or None
    whole = values.counted(ducklake_type)
    count = None if whole is None else whole.read(text)
    return count if count is None or ducklake_type != "boolean" else bool(count)


def summaries(partitions: Iterable[Sequence[PartitionValue]], types: Sequence[str]) -> tuple[FieldSummary, ...]:
    """What the tuples of a manifest's entries have in common, field by field; `types` are those of the values."""
    rows = list(partitions)
    return tuple(_summary([row[i] for row in rows], kind) for i, kind in enumerate(types))


def _summary(found: list[PartitionValue], kind: str) -> FieldSummary:
    known = [v for v in found if v is not None]
    numbers = [v for v in known if not (isinstance(v, float) and isnan(v))]
    lower, upper = _bounds(numbers, kind)
    return FieldSummary(len(known) < len(found), len(numbers) < len(known), lower, upper)


def _bounds(known: list[Untyped], kind: str) -> tuple[bytes | None, bytes | None]:
    if not known:
        return None, None
    low, high = min(known), max(known)
    # Versions of Iceberg's Java library differ on the order of uuids (apache/iceberg#14216), not on which are equal.
    if kind == "uuid" and low != high:
        return None, None
    if kind in {"float", "double"}:
        # both zeros are equal here, and -0.0 is the lower one to Iceberg
        low, high = low or -0.0, high or 0.0
    return _serialised(low, kind), _serialised(high, kind)


def _serialised(value: Untyped, kind: str) -> bytes:
    """The specification's single-value serialisation."""
    if _DECIMAL.fullmatch(kind):
        # the fewest bytes that hold the number and its sign
        return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)
    return _SERIALISED[kind](value)


def _packed(shape: str) -> Callable[[Untyped], bytes]:
    return struct.Struct(shape).pack


_SERIALISED: Final[dict[str, Callable[[Untyped], bytes]]] = {
    "boolean": _packed("<?"),
    "int": _packed("<i"),
    "date": _packed("<i"),
    "float": _packed("<f"),
    "double": _packed("<d"),
    "string": str.encode,
    "binary": bytes,
    "uuid": bytes,
    **dict.fromkeys(("long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), _packed("<q")),
}


def _form(kind: str) -> tuple[Callable[[Untyped], JsonPartitionValue], Callable[[Untyped], PartitionValue]]:
    """How a value of the type is written to JSON and read from it."""
    # a decimal has up to 38 digits, of which not every library of JSON makes a number
    return (str, int) if _DECIMAL.fullmatch(kind) else _FORMS[kind]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else "\\", text)


_FORMS: Final[dict[str, tuple[Callable[[Untyped], JsonPartitionValue], Callable[[Untyped], PartitionValue]]]] = {
    "boolean": (bool, bool),
    **dict.fromkeys(("int", "long", "date", "time"), (int, int)),
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), (int, int)),
    **dict.fromkeys(("float", "double"), (repr, float)),
    **dict.fromkeys(("binary", "uuid"), (bytes.hex, bytes.fromhex)),
    "string": (_escaped, _unescaped),
}
