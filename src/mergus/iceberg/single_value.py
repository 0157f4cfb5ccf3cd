"""Single values from JSON: the defaults of columns, as clients send them.

`parse_value` is the inverse of `schema.value_json`. Clients write one value in several forms (Java leaves out zeros of
a fraction), and a default that comes back must be known as the same one, so each is read and written anew.
"""

import re
import struct
from math import isfinite
from typing import Any, Final, TypeAlias

from mergus.iceberg import values
from mergus.iceberg.json_object import shown
from mergus.iceberg.schema import JsonValue, value_json

Untyped: TypeAlias = Any

_DECIMAL: Final = re.compile(r"decimal\(([0-9]+), ([0-9]+)\)")
_NUMBER: Final = re.compile(r"(-?)([0-9]{1,38})(?:\.([0-9]{1,38}))?")
_FIXED: Final = re.compile(r"fixed\[([0-9]+)\]")
_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?")
_TIMESTAMP: Final = re.compile(f"{_DATE.pattern}T{_TIME.pattern}")
_UTC: Final = re.compile(f"({_TIMESTAMP.pattern})(?:Z|\\+00:00)")

_BITS: Final = {"int": 31, "long": 63}


def parse_value(primitive: str, json: Untyped) -> int | float | bytes | str:
    """As Iceberg's files have it: days, micro- or nanoseconds, the unscaled decimal, the bytes of a uuid.

    Raises ValueError for what is no value of the type.
    """
    value = _value(primitive, json)
    if value is None:
        raise ValueError(f"Not a value of type {primitive}: {shown(repr(json))}")
    return value


def parse_default(primitive: str, json: Untyped) -> JsonValue:
    """The one form of a default. Raises ValueError for what is no value of the type."""
    value = parse_value(primitive, json)
    found = value.hex() if isinstance(value, bytes) and primitive != "uuid" else value_json(primitive, value)
    if found is None:
        raise ValueError(f"Not a default of type {primitive}: {shown(repr(json))}")
    return found


def _value(primitive: str, json: Untyped) -> int | float | bytes | str | None:
    match json:
        case bool():
            return json if primitive == "boolean" else None
        case int() if bits := _BITS.get(primitive):
            return json if -(2**bits) <= json < 2**bits else None
        case int() | float():
            return _float(primitive, json)
        case str():
            return _from_text(primitive, json)
        case _:
            return None


def _float(primitive: str, number: float) -> float | None:
    try:
        if primitive == "float":
            return values.as_float32(struct.pack("<f", number)) if isfinite(number) else None
        return float(number) if primitive == "double" and isfinite(number) else None
    except OverflowError:
        return None


def _from_text(primitive: str, text: str) -> int | bytes | str | None:
    match primitive:
        case "string":
            return text
        case "uuid":
            return values.read_uuid(text.lower())
        case "binary":
            return _bytes(text)
        case "date":
            return _counted("date", text) if _DATE.fullmatch(text) else None
        case "time":
            return _counted("time", text) if _TIME.fullmatch(text) else None
        case "timestamp" | "timestamp_ns":
            return _counted(primitive, text.replace("T", " ")) if _TIMESTAMP.fullmatch(text) else None
        case "timestamptz" | "timestamptz_ns":
            match = _UTC.fullmatch(text)
            return _from_text(primitive.replace("tz", ""), match[1]) if match else None
        case _:
            return _sized(primitive, text)


def _sized(primitive: str, text: str) -> int | bytes | None:
    if fixed := _FIXED.fullmatch(primitive):
        data = _bytes(text)
        return data if data is not None and len(data) == int(fixed[1]) else None
    decimal, number = _DECIMAL.fullmatch(primitive), _NUMBER.fullmatch(text)
    if decimal is None or number is None:
        return None
    sign, fraction = number[1], number[3] or ""
    digits = number[2] + fraction
    # a decimal of another scale is one of another type
    if len(fraction) != int(decimal[2]) or len(digits.lstrip("0")) > int(decimal[1]):
        return None
    return int(sign + digits)


def _bytes(text: str) -> bytes | None:
    return bytes.fromhex(text) if _HEX.fullmatch(text) else None


def _counted(kind: str, text: str) -> int | None:
    counted = values.counted(kind)
    return None if counted is None else counted.read(text)
