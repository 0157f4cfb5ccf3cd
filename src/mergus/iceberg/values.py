"""The text of a single value in DuckLake's statistics, and the value that it stands for.

DuckLake keeps every minimum and maximum as text: DuckDB's own rendering of the value. Reading it back has to be
exact, because both engines skip files by these values and answer `min(x)` and `max(x)` from them: a text is read
as the one value that it stands for, or not at all (None), and nothing here raises. Writing is the inverse: the
text that DuckDB itself would have written, or None for a value that DuckDB could not read back. DuckDB takes a
statistic that it cannot parse for one that excludes the file, so a missing text is harmless and a wrong one is not.

Most types are whole numbers of some unit (`COUNTED` and `decimal`): days, microseconds, the unscaled decimal.
Their infinities have no text here: they are marks, not numbers, and other engines do not know them.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from functools import cache, partial
from math import isnan
from uuid import UUID

MICROS = 6
NANOS = 9

_DAY_NANOS = 86_400 * 10**9
_EPOCH = date(1970, 1, 1).toordinal()

# The Gregorian calendar repeats itself after so many years and days; Python's own ends at the year 9999.
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,19}")
# a decimal that is all fraction has no digit before its point
_DECIMAL = re.compile(r"(-?)(?=[0-9.])([0-9]{0,38})(?:\.([0-9]{1,38}))?")
_DECIMAL_TYPE = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)")
_FLOAT = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,24})?(?:e[+-]?[0-9]{1,3})?")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# DuckDB shows some powers of two as their doubles (2**81, 2**91; 2**807 is not even a number): these texts mean both
_AMBIGUOUS = frozenset({2.0**82, 2.0**92})

_DATE = r"(?P<year>[0-9]{4}|[1-9][0-9]{4,6})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})(?P<bc> \(BC\))?"
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?"
_ZONE = r"(?P<sign>[+-])(?P<zone_hour>[0-9]{2})(?::(?P<zone_minute>[0-9]{2})(?::(?P<zone_second>[0-9]{2}))?)?"
_DATE_TEXT = re.compile(_DATE)
_TIME_TEXT = re.compile(_TIME)
# a column that was a date keeps its texts: they stand for midnight
_TIMESTAMP_TEXT = re.compile(f"{_DATE}(?: {_TIME})?")
# but one that had no time zone depended on the session that cast it: its texts are not read
_TIMESTAMPTZ_TEXT = re.compile(f"{_DATE} {_TIME}{_ZONE}")


@dataclass(frozen=True, slots=True)
class Counted:
    """A type whose values are whole numbers, of which DuckDB can hold those from `low` to `high`."""

    low: int
    high: int
    parse: Callable[[str], int | None]
    render: Callable[[int], str | None]

    def read(self, text: str) -> int | None:
        value = self.parse(text)
        return value if value is not None and self.low <= value <= self.high else None

    def write(self, value: int) -> str | None:
        return self.render(value) if self.low <= value <= self.high else None


@cache
def counted(ducklake_type: str) -> Counted | None:
    """How a type of whole numbers is read and written; None for every other type."""
    if match := _DECIMAL_TYPE.fullmatch(ducklake_type):
        precision, scale = int(match[1]), int(match[2])
        if not (0 < precision <= 38 and scale <= precision):
            return None
        top = 10**precision - 1
        return Counted(-top, top, partial(_read_decimal, scale), partial(_write_decimal, precision, scale))
    return COUNTED.get(ducklake_type)


def read_float64(text: str) -> float | None:
    """The double of this text; NaN is none, as it is never a bound."""
    if text in {"inf", "-inf"}:
        return float(text)
    if not _FLOAT.fullmatch(text):
        return None
    value = float(text)
    # more digits than the shortest, or digits that name no double: not a text of this type
    return value if Decimal(text) == Decimal(repr(value)) and abs(value) not in _AMBIGUOUS else None


def write_float64(value: float) -> str | None:
    return None if isnan(value) else repr(value)


def read_float32(text: str) -> float | None:
    """The single of this text: '1.1' is 1.10000002384185791015625."""
    if text in {"inf", "-inf"}:
        return float(text)
    if not _FLOAT.fullmatch(text):
        return None
    try:
        value = as_float32(struct.pack("<f", float(text)))
    except OverflowError:
        return None
    shortest = write_float32(value)
    # DuckDB's digits are not always the shortest, but then they are all that the value has
    return value if Decimal(text) in {Decimal(shortest or "nan"), Decimal(value)} else None


def write_float32(value: float) -> str | None:
    """The shortest digits that no other single is nearer to."""
    if isnan(value):
        return None
    if value in {0.0, float("inf"), float("-inf")}:
        return repr(value)
    size = abs(value)
    bits = int.from_bytes(struct.pack("<f", size), "little")
    # halves of neighbouring singles are doubles, so the ends of what rounds to this single are exact
    low = Decimal((as_float32((bits - 1).to_bytes(4, "little")) + size) / 2)
    above = as_float32((bits + 1).to_bytes(4, "little"))
    high = Decimal((size + (above if above != float("inf") else 2.0**128)) / 2)
    exact = Decimal(size)
    for digits in range(1, 10):
        quantum = Decimal(1).scaleb(exact.adjusted() - digits + 1)
        # the nearest first; below a power of two it may fall out where its neighbour does not
        for rounding in (ROUND_HALF_EVEN, ROUND_FLOOR, ROUND_CEILING):
            shown = exact.quantize(quantum, rounding)
            if low < shown < high or (bits % 2 == 0 and shown in {low, high}):
                return repr(float(shown if value > 0 else -shown))
    return None


def as_float32(data: bytes) -> float:
    (value,) = struct.unpack("<f", data)
    return value


def read_uuid(text: str) -> bytes | None:
    return UUID(text).bytes if _UUID.fullmatch(text) else None


def write_uuid(value: bytes) -> str | None:
    return str(UUID(bytes=value)) if len(value) == 16 else None


def write_blob(value: bytes) -> str:
    return value.hex().upper()


def _read_boolean(text: str) -> int | None:
    return {"0": 0, "1": 1, "false": 0, "true": 1}.get(text)


def _read_integer(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) else None


def _read_decimal(scale: int, text: str) -> int | None:
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction = match[1], match[2], match[3] or ""
    # fewer digits than the scale are of a column that was widened; more would have to be rounded
    if len(fraction) > scale:
        return None
    return int(sign + whole + fraction) * 10 ** (scale - len(fraction))


def _write_decimal(precision: int, scale: int, value: int) -> str:
    sign, digits = "-" if value < 0 else "", str(abs(value))
    if scale == 0:
        return sign + digits
    if precision > scale:
        digits = digits.zfill(scale + 1)
    digits = digits.zfill(scale)
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}"


def _read_date(text: str) -> int | None:
    match = _DATE_TEXT.fullmatch(text)
    return None if match is None else _days(match)


def _write_date(days: int) -> str:
    cycles, rest = divmod(days + _EPOCH - 1, _CYCLE_DAYS)
    within = date.fromordinal(rest + 1)
    year = within.year + cycles * _CYCLE_YEARS
    era = "" if year > 0 else " (BC)"
    return f"{year if year > 0 else 1 - year:04}-{within.month:02}-{within.day:02}{era}"


def _read_time(text: str) -> int | None:
    match = _TIME_TEXT.fullmatch(text)
    nanos = None if match is None else _time_of_day(match, MICROS)
    return None if nanos is None else nanos // 1000


def _write_time(micros: int) -> str:
    seconds, fraction = divmod(micros, 10**MICROS)
    return _show_time(seconds, fraction, MICROS)


def _read_timestamp(pattern: re.Pattern[str], digits: int, unit: int, text: str) -> int | None:
    match = pattern.fullmatch(text)
    if match is None:
        return None
    days, nanos = _days(match), 0 if match["hour"] is None else _time_of_day(match, digits)
    offset = _offset_nanos(match)
    if days is None or nanos is None or offset is None:
        return None
    return (days * _DAY_NANOS + nanos - offset) // 10 ** (NANOS - unit)


def _write_timestamp(digits: int, unit: int, zone: str, value: int) -> str | None:
    if value % 10 ** (unit - digits):
        return None  # finer than the column: DuckDB would round it
    days, rest = divmod(value, 86_400 * 10**unit)
    seconds, fraction = divmod(rest, 10**unit)
    return f"{_write_date(days)} {_show_time(seconds, fraction, unit)}{zone}"


def _days(match: re.Match[str]) -> int | None:
    year = int(match["year"])
    if year == 0:
        return None
    cycles, within = divmod((1 - year if match["bc"] else year) - 1, _CYCLE_YEARS)
    try:
        ordinal = date(within + 1, int(match["month"]), int(match["day"])).toordinal()
    except ValueError:
        return None
    return ordinal - _EPOCH + cycles * _CYCLE_DAYS


def _time_of_day(match: re.Match[str], digits: int) -> int | None:
    """In nanoseconds. 24:00:00 is a time to DuckDB alone."""
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"])
    fraction = int((match["fraction"] or "").ljust(NANOS, "0"))
    if hour > 23 or minute > 59 or second > 59 or fraction % 10 ** (NANOS - digits):
        return None
    return ((hour * 60 + minute) * 60 + second) * 10**NANOS + fraction


def _show_time(seconds: int, fraction: int, unit: int) -> str:
    shown = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{shown}.{fraction:0{unit}}".rstrip("0") if fraction else shown


def _offset_nanos(match: re.Match[str]) -> int | None:
    if "sign" not in match.re.groupindex:
        return 0
    hour, minute, second = (int(match[f"zone_{part}"] or 0) for part in ("hour", "minute", "second"))
    if hour > 15 or minute > 59 or second > 59:
        return None
    offset = ((hour * 60 + minute) * 60 + second) * 10**NANOS
    return -offset if match["sign"] == "-" else offset


def _whole(low: int, high: int) -> Counted:
    return Counted(low, high, _read_integer, str)


def _timestamp(digits: int) -> Counted:
    # DuckDB's smallest timestamp is the first whole day, the largest leaves one number for infinity
    unit, low = (NANOS, -9_223_286_400 * 10**9) if digits == NANOS else (MICROS, -9_223_372_022_400 * 10**6)
    read = partial(_read_timestamp, _TIMESTAMP_TEXT, digits, unit)
    return Counted(low, 2**63 - 2, read, partial(_write_timestamp, digits, unit, ""))


# Texts are those of DuckLake's files: an inlined boolean is 'true', a file's is '1'.
COUNTED = {
    "boolean": Counted(0, 1, _read_boolean, str),
    "int8": _whole(-(2**7), 2**7 - 1),
    "int16": _whole(-(2**15), 2**15 - 1),
    "int32": _whole(-(2**31), 2**31 - 1),
    "int64": _whole(-(2**63), 2**63 - 1),
    "uint8": _whole(0, 2**8 - 1),
    "uint16": _whole(0, 2**16 - 1),
    "uint32": _whole(0, 2**32 - 1),
    # both ends of an int stand for infinity, and the number below them for nothing
    "date": Counted(2 - 2**31, 2**31 - 2, _read_date, _write_date),
    "time": Counted(0, 86_400 * 10**6 - 1, _read_time, _write_time),
    "timestamp": _timestamp(MICROS),
    "timestamp_us": _timestamp(MICROS),
    "timestamp_s": _timestamp(0),
    "timestamp_ms": _timestamp(3),
    "timestamp_ns": _timestamp(NANOS),
    "timestamptz": Counted(
        -9_223_372_022_400 * 10**6,
        2**63 - 2,
        partial(_read_timestamp, _TIMESTAMPTZ_TEXT, MICROS, MICROS),
        partial(_write_timestamp, MICROS, MICROS, "+00"),
    ),
}
