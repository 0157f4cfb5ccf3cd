"""The one text of a value in statistics, by its Iceberg type. Pure.

    boolean                      true, false
    int, long                    digits
    float, double                the shortest digits that read back as the same number; -0.0, Infinity, -Infinity
    decimal(p, s)                plain digits, all s of them after the point
    date                         2024-01-31; years of other than four digits have a sign: +12345-01-31, -0001-01-31
    time                         12:00:00.000001: six digits of a second, always
    timestamp, timestamptz       2024-01-31T12:00:00.000001, and +00:00 behind it (…_ns: nine digits)
    uuid                         with dashes, lower case
    binary, fixed                base64
    string                       itself

Values come as Iceberg's files have them (days, microseconds, bytes of a uuid), decimals as such: a time is never read
from a text that looks like one. NaN is none of a column's bounds and has no text.

Long strings and bytes are cut, and then a bound is still one: a lower bound is a prefix, an upper bound the next value
after all that begin with it.
"""

from base64 import b64encode
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from math import isinf, isnan
from typing import Final
from uuid import UUID

from mergus.iceberg.values import write_float32

Value = bool | int | float | Decimal | str | bytes

# Characters of a string, or bytes, that a bound has at most: statistics are served with every load of a table.
LONGEST: Final = 256

_EPOCH: Final = date(1970, 1, 1).toordinal()
# The Gregorian calendar repeats itself after so many years and days; Python's own ends at the year 9999.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_SURROGATES: Final = range(0xD800, 0xE000)
_LAST_CHARACTER: Final = 0x10FFFF
_LAST_BYTE: Final = 0xFF


@dataclass(frozen=True)
class Bound:
    text: str
    is_cut: bool = False


def lower(kind: str, value: Value) -> Bound | None:
    cut = value[:LONGEST] if isinstance(value, str | bytes) else value
    return _bound(kind, cut, is_cut=cut != value)


def upper(kind: str, value: Value) -> Bound | None:
    """None if it is long and nothing comes after its prefix."""
    if isinstance(value, str | bytes) and len(value) > LONGEST:
        after = _after(value[:LONGEST])
        return None if after is None else _bound(kind, after, is_cut=True)
    return _bound(kind, value)


def text(kind: str, value: Value) -> str | None:
    """None for what has none: a NaN, and a value of a type that is not listed."""
    match kind.partition("(")[0].partition("[")[0], value:
        case "boolean", bool():
            return "true" if value else "false"
        case (("int" | "long"), int()):
            return str(value)
        case (("float" | "double"), float()):
            return _float(kind, value)
        case "decimal", Decimal():
            return f"{value:f}"
        case "date", int():
            return _date(value)
        case (("time" | "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns"), int()):
            return _instant(kind, value)
        case "uuid", bytes():
            return str(UUID(bytes=value))
        case (("binary" | "fixed"), bytes()):
            return b64encode(value).decode()
        case "string", str():
            return value
        case _:
            return None


def _bound(kind: str, value: Value, *, is_cut: bool = False) -> Bound | None:
    found = text(kind, value)
    return None if found is None else Bound(found, is_cut)


def _after(prefix: str | bytes) -> str | bytes | None:
    """The smallest value that is greater than all that begin so."""
    if isinstance(prefix, bytes):
        kept = prefix.rstrip(bytes([_LAST_BYTE]))
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    kept = prefix.rstrip(chr(_LAST_CHARACTER))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _float(kind: str, value: float) -> str | None:
    if isnan(value):
        return None
    if isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return write_float32(value) if kind == "float" else repr(value)


def _date(days: int) -> str:
    cycles, rest = divmod(days + _EPOCH - 1, _CYCLE_DAYS)
    within = date.fromordinal(rest + 1)
    year = within.year + cycles * _CYCLE_YEARS
    shown = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    return f"{shown}-{within.month:02}-{within.day:02}"


def _instant(kind: str, count: int) -> str:
    digits = 9 if kind.endswith("_ns") else 6
    days, rest = divmod(count, 86_400 * 10**digits)
    seconds, fraction = divmod(rest, 10**digits)
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:0{digits}}"
    if kind == "time":
        return time
    return f"{_date(days)}T{time}" + ("+00:00" if kind.startswith("timestamptz") else "")
