"""Types of values in the text of a view, as far as they decide whether two engines mean the same by it.

A *plain* type is one on which DuckDB and Spark agree: how its values are compared, sorted and grouped. All others,
among them lists and structs, are only passed on as they are. FLOAT is one of these: engines compare it with numbers of
other types after different conversions. DOUBLE is plain, but neither grouped nor summed: which of two zeros stands for
a group, and the last digits of a sum, depend on the order of rows.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

# Types of DuckDB's results that other engines compare and order alike, and of Iceberg's columns that hold them.
PLAIN_TYPES: Final = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "integer": "int",
    "utinyint": "int",
    "usmallint": "int",
    "bigint": "long",
    "uinteger": "long",
    "ubigint": "decimal(20, 0)",
    # the type of every sum of integers; what has 39 digits it cannot hold
    "hugeint": "decimal(38, 0)",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp with time zone": "timestamptz",
    "varchar": "string",
}
_DECIMAL: Final = re.compile(r"decimal\((\d+), (\d+)\)")
MOST_DIGITS: Final = 38
# A DOUBLE holds every decimal number of so many digits, and every engine finds the same one for it.
_DIGITS_OF_DOUBLE: Final = 15


class Uncertain(Exception):
    """Nobody can be sure that another engine means the same by the text: why."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`type` is Iceberg's of what is plain, else DuckDB's."""

    type: str
    is_plain: bool = True

    @property
    def digits(self) -> tuple[int, int] | None:
        """Before and after the decimal point, of an exact number."""
        if not self.is_plain:
            return None
        if found := _DECIMAL.fullmatch(self.type):
            precision, scale = int(found[1]), int(found[2])
            return precision - scale, scale
        return {"int": (10, 0), "long": (19, 0)}.get(self.type)

    @property
    def is_groupable(self) -> bool:
        return self.is_plain and self.type != "double"


# Names, each with what it gives.
Columns = tuple[tuple[str, Kind], ...]

NULL: Final = Kind("null")
BOOLEAN: Final = Kind("boolean")
INT: Final = Kind("int")
LONG: Final = Kind("long")
DOUBLE: Final = Kind("double")
STRING: Final = Kind("string")
DATE: Final = Kind("date")
TIMESTAMP: Final = Kind("timestamp")


def decimal(before: int, after: int) -> Kind:
    if before + after > MOST_DIGITS:
        raise Uncertain(f"it makes numbers of more than {MOST_DIGITS} digits")
    return Kind(f"decimal({max(before + after, 1)}, {after})")


def kind_of(kind: Any) -> Kind:  # noqa: ANN401  (DuckDB's type)
    if kind.id == "decimal":
        digits = dict(kind.children)
        return Kind(f"decimal({digits['precision']}, {digits['scale']})")
    # a type with a name of its own may have operators of its own
    if kind.id in PLAIN_TYPES and str(kind).lower() == kind.id:
        return Kind(PLAIN_TYPES[kind.id])
    return Kind(str(kind), is_plain=False)


def common(kinds: Iterable[Kind]) -> Kind:
    """In which values of all these are compared, or given by one expression. Raises Uncertain."""
    known = {kind for kind in kinds if kind != NULL}
    if not known:
        return NULL
    if not all(kind.is_plain for kind in known):
        raise Uncertain(f"it computes with {next(k.type for k in known if not k.is_plain)}")
    if len(known) == 1:
        return known.pop()
    exact = [digits for kind in known if (digits := kind.digits) is not None]
    if len(exact) == len(known):
        if known == {INT, LONG}:
            return LONG
        return decimal(max(before for before, _ in exact), max(after for _, after in exact))
    if len(exact) == len(known) - 1 and DOUBLE in known and all(map(_is_exact_in_double, known)):
        return DOUBLE
    raise Uncertain(f"it needs an implicit cast between {' and '.join(sorted(kind.type for kind in known))}")


def holds(wide: Kind, narrow: Kind) -> bool:
    """Whether every value of one is a value of the other, and stays so by a cast in every engine."""
    if narrow in {wide, NULL}:
        return True
    if wide == DOUBLE:
        return _is_exact_in_double(narrow)
    into, of = wide.digits, narrow.digits
    if into is None or of is None:
        return False
    if wide.type in {"int", "long"}:
        return (wide, narrow) == (LONG, INT)
    return into[0] >= of[0] and into[1] >= of[1]


def _is_exact_in_double(kind: Kind) -> bool:
    # whole numbers of 19 digits are rounded, and everywhere in the same way
    return kind in {INT, LONG, DOUBLE} or (kind.digits is not None and sum(kind.digits) <= _DIGITS_OF_DOUBLE)
