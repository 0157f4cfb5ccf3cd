"""From one schema of a table to the next: whether it may be, and what changes.

Files that are there already are read under every later schema, by field id. So an id means one thing for ever, a type
changes only into one that holds all values of it, and no column becomes required that rows may be without. A field
within a struct, list or map may be said to be required at any time: the table shows it as optional all the same, since
DuckDB does not hold to more.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mergus.iceberg.schema import Field, List, Map, Schema, Struct, Type

_PROMOTIONS: Final = frozenset({("int", "long"), ("float", "double")})
# The specification has these from version 3 on.
_PROMISED: Final = frozenset({("date", "timestamp"), ("date", "timestamp_ns")})
_DECIMAL: Final = re.compile(r"decimal\(([0-9]+), ([0-9]+)\)")


@dataclass(frozen=True, slots=True)
class Placed:
    """A field with all that is below it, and the id of the one that it is directly in; None for a column."""

    field: Field
    parent: int | None

    @property
    def is_required(self) -> bool:
        """As the table will show it."""
        return self.field.required and self.parent is None


@dataclass(frozen=True, slots=True)
class Kept:
    """A field that both schemas have."""

    old: Field
    new: Field


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """Every field is listed for what changed of itself; what is below one that was added or dropped is not listed.

    `reordered` says that the fields of some struct, or of the table, are not simply those that stay, in their order,
    with the added ones after them.
    """

    added: tuple[Placed, ...]
    dropped: tuple[Placed, ...]
    renamed: tuple[Kept, ...]
    retyped: tuple[Kept, ...]
    nullability: tuple[Kept, ...]
    docs: tuple[Kept, ...]
    write_defaults: tuple[Kept, ...]
    reordered: bool

    @property
    def is_none(self) -> bool:
        return self == _NONE


_NONE: Final = SchemaChange((), (), (), (), (), (), (), False)


def promotes(old: str, new: str) -> bool:
    """Whether readers read files of the one primitive as the other."""
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before and after:
        return before[2] == after[2] and int(before[1]) <= int(after[1])
    return old == new or (old, new) in _PROMOTIONS


def check_evolution(current: Schema, wanted: Schema, last_column_id: int, history: Sequence[Schema] = ()) -> None:
    """Raises ValueError, with the reason, if a table cannot go from one schema to the other.

    `last_column_id` is the highest that the table ever had. `history` are the schemas that it had: a field of one of
    them may come back as what it was.
    """
    now, past = _placed(current), [_placed(schema) for schema in history]
    for field_id, new in _placed(wanted).items():
        before = [fields[field_id] for fields in past if field_id in fields]
        if old := now.get(field_id):
            _check_same(old, new)
            if new.is_required and not old.field.required:
                raise ValueError(f"{_named(new)} cannot become required: rows that are there may have NULLs")
        elif before:
            for old in before:
                _check_same(old, new)
            if new.is_required:
                raise ValueError(f"{_named(new)} cannot come back as required: rows were written without it")
        elif field_id <= last_column_id:
            raise ValueError(f"{_named(new)} has an id that is not new, and of no column that the table has or had")
        else:
            _check_new(new)


def doubtful_fields(written: Schema, left: Schema) -> frozenset[int]:
    """The fields of `left` that a file of `written` may not have in a way that is read as `left` says: those of another
    type or place, and those that became required. Pure: what the file really has, only the file tells."""
    had = _placed(written)
    return frozenset(i for i, new in _placed(left).items() if _is_doubtful(had.get(i), new))


def changed(current: Schema, wanted: Schema) -> SchemaChange:
    """What is to be done for the one to become the other, of which `check_evolution` has said that it may.

    `current` is what the client has seen: to one that was shown version 2, a default that is not there is no change.
    """
    old, new = _placed(current), _placed(wanted)
    kept = [Kept(old[i].field, placed.field) for i, placed in new.items() if i in old]

    def where(differs: Callable[[Kept], bool]) -> tuple[Kept, ...]:
        return tuple(pair for pair in kept if differs(pair))

    return SchemaChange(
        added=tuple(p for i, p in new.items() if i not in old and (p.parent is None or p.parent in old)),
        dropped=tuple(p for i, p in old.items() if i not in new and (p.parent is None or p.parent in new)),
        renamed=where(lambda pair: pair.old.name != pair.new.name),
        retyped=where(lambda pair: _kind(pair.old.type) != _kind(pair.new.type)),
        nullability=where(lambda pair: pair.old.required != pair.new.required),
        docs=where(lambda pair: pair.old.doc != pair.new.doc),
        write_defaults=where(lambda pair: pair.old.write_default != pair.new.write_default),
        reordered=_reordered(current.fields, wanted.fields)
        or any(_reordered(pair.old.children, pair.new.children) for pair in kept),
    )


def _is_doubtful(old: Placed | None, new: Placed) -> bool:
    try:
        if old is None:
            _check_new(new)
        else:
            _check_same(old, new)
    except ValueError:
        return True
    return old is not None and new.is_required and not old.field.required


def _check_same(old: Placed, new: Placed) -> None:
    """Whether both can be one field at two times, but for being required."""
    if old.parent != new.parent:
        raise ValueError(f"{_named(new)} cannot move from {_place(old.parent)} to {_place(new.parent)}")
    _check_type(new, old.field.type, new.field.type)
    if old.field.initial_default != new.field.initial_default:
        raise ValueError(f"{_named(new)} cannot get another initial-default: rows from before it are read with that")


def _check_type(new: Placed, before: Type, after: Type) -> None:
    match before, after:
        case str(), str():
            if (before, after) in _PROMISED:
                raise ValueError(
                    f"{_named(new)} cannot change from {before} to {after}: readers do not take the dates in files that"
                    " are there for timestamps"
                )
            if not promotes(before, after):
                raise ValueError(f"{_named(new)} cannot change from {before} to {after}")
        case (Struct(), Struct()):
            pass
        case List(old), List(element):
            if old.id != element.id:
                raise ValueError(f"{_named(new)} cannot get another element")
        case Map(key, value), Map(new_key, new_value):
            if (key.id, key.type) != (new_key.id, new_key.type):
                raise ValueError(f"{_named(new)} cannot get another key, nor its key other fields")
            if value.id != new_value.id:
                raise ValueError(f"{_named(new)} cannot get another value")
        case _:
            raise ValueError(f"{_named(new)} cannot change from {_kind(before)} to {_kind(after)}")


def _check_new(new: Placed) -> None:
    if new.is_required and new.field.initial_default is None:
        raise ValueError(f"{_named(new)} cannot be added as required without an initial-default")


def _reordered(old: Iterable[Field], new: Iterable[Field]) -> bool:
    before, after = [f.id for f in old], [f.id for f in new]
    known, left = set(before), set(after)
    stay = [i for i in before if i in left]
    return after[: len(stay)] != stay or any(i in known for i in after[len(stay) :])


def _placed(schema: Schema) -> dict[int, Placed]:
    """All fields by their ids, parents first."""
    return {placed.field.id: placed for field in schema.fields for placed in _below(field, None)}


def _below(field: Field, parent: int | None) -> Iterator[Placed]:
    yield Placed(field, parent)
    for child in field.children:
        yield from _below(child, field.id)


def _kind(kind: Type) -> str:
    return kind if isinstance(kind, str) else type(kind).__name__.lower()


def _named(placed: Placed) -> str:
    return f"Field {placed.field.id} ({placed.field.name})"


def _place(parent: int | None) -> str:
    return "the top" if parent is None else f"field {parent}"
