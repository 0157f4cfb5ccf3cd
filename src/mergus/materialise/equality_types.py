"""Values of a column in a form in which equal ones are equal, whichever file and type they come from.

Arrow looks values up by their bytes, so what is equal must have the same: one type for each of Iceberg's, floats as the
bits they are stored in, with one NaN.
"""

import re
from datetime import time
from typing import Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.compute as pc  # pyright: ignore[reportMissingTypeStubs]

from mergus.iceberg.schema import Field

# pyarrow has no types; what leaves this module is either a value of its, or typed again.
Untyped: TypeAlias = Any
_arrow: Untyped = pa
_compute: Untyped = pc

_TYPES: Final[dict[str, Untyped]] = {
    "boolean": _arrow.bool_(),
    "int": _arrow.int32(),
    "long": _arrow.int64(),
    "float": _arrow.float32(),
    "double": _arrow.float64(),
    "date": _arrow.date32(),
    "time": _arrow.time64("us"),
    "timestamp": _arrow.timestamp("us"),
    "timestamptz": _arrow.timestamp("us", "UTC"),
    "timestamp_ns": _arrow.timestamp("ns"),
    "timestamptz_ns": _arrow.timestamp("ns", "UTC"),
    "string": _arrow.large_string(),
    "binary": _arrow.large_binary(),
    "uuid": _arrow.binary(16),
}
_BITS: Final = {"float": _arrow.int32(), "double": _arrow.int64()}
_DECIMAL: Final = re.compile(r"decimal\( *([0-9]{1,2}) *, *([0-9]{1,2}) *\)")
_FIXED: Final = re.compile(r"fixed\[([0-9]{1,9})\]")
# Types whose bounds sort as their values do: others are looked for in every file.
_COUNTED: Final = {
    **dict.fromkeys(("int", "date"), _arrow.int32()),
    **dict.fromkeys(("long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), _arrow.int64()),
}


def arrow_type(field: Field) -> Untyped:
    """None for a field whose values are not compared."""
    if not isinstance(field.type, str):
        return None
    if decimal := _DECIMAL.fullmatch(field.type):
        return _arrow.decimal128(int(decimal[1]), int(decimal[2]))
    if fixed := _FIXED.fullmatch(field.type):
        return _arrow.binary(int(fixed[1]))
    return _TYPES.get(field.type)


def comparable(field: Field, values: Untyped) -> Untyped:
    """Raises ArrowException for values that the field's type has no place for."""
    if isinstance(values.type, _arrow.BaseExtensionType):
        values = values.storage
    cast = values.cast(arrow_type(field))
    if field.type not in _BITS:
        return cast
    one_nan = _compute.if_else(_compute.is_nan(cast), _arrow.scalar(float("nan"), cast.type), cast)
    return one_nan.view(_BITS[str(field.type)])


def default_of(field: Field) -> Untyped:
    """Of the rows of a file that lacks the field, from the JSON form of a value."""
    value, kind = field.initial_default, arrow_type(field)
    if not isinstance(value, str) or field.type == "string":
        return _arrow.scalar(value, kind)
    if field.type == "uuid":
        return _arrow.scalar(UUID(value).bytes, kind)
    if field.type == "time":
        return _arrow.scalar(time.fromisoformat(value), kind)
    if _arrow.types.is_fixed_size_binary(kind) or _arrow.types.is_large_binary(kind):
        return _arrow.scalar(bytes.fromhex(value), kind)
    # dates, timestamps, decimals
    return _arrow.scalar(value).cast(kind)


def sort_keys(field: Field, values: Untyped) -> list[Any] | None:
    """Ascending, to be compared with `bound_key`; None if bounds say nothing of them, as of NULL."""
    if values.null_count:
        return None
    if field.type == "string":
        found: list[Any] = values.cast(_arrow.large_binary()).to_pylist()
    elif isinstance(field.type, str) and field.type in _COUNTED:
        found = values.cast(_COUNTED[field.type]).to_pylist()
    else:
        return None
    return sorted(found)


def bound_key(field: Field, bound: bytes) -> Any:  # noqa: ANN401  (an int or bytes, as the field's type has it)
    """None for a bound of a type that the field had before, unless it was an int and is a long."""
    if field.type == "string":
        return bound
    sizes = {"int": (4,), "date": (4,), "long": (4, 8)}.get(str(field.type), (8,))
    return int.from_bytes(bound, "little", signed=True) if len(bound) in sizes else None
