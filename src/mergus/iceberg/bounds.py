"""Lower and upper bounds of a column in a file: DuckLake's statistics text and Iceberg's bytes.

A bound is right or absent. Right means that every value of the file lies within the bounds in Iceberg's order;
and, as engines answer `min(x)` and `max(x)` from bounds, that the bound of a number, a date, a time or a uuid is
the smallest or largest value itself. Only strings, of which no engine believes that, may have looser ones:
Iceberg cuts them after 16 code points, lower bounds down and upper bounds up.

The texts are those of `ducklake_file_column_stats`, the bytes are the specification's single-value serialisation.
Without bounds are int128, uint128, uint64, interval, timetz and time_ns, which Iceberg has no type for; variant and
geometry, whose statistics are no texts; struct, list and map; and blob: a file's text is hexadecimal, that of inlined
rows DuckDB's escapes, chosen in the order of the escapes and not of the bytes, and 'AA00' may be either.

On order:
- Strings are compared as unsigned bytes by both sides.
- -0.0 and 0.0 are equal to DuckDB, and the first comes before the second in Iceberg. The text of either may stand
  for a file that holds both, so a zero is -0.0 below and 0.0 above. NaN is outside the bounds on both sides.
- uuids are compared as unsigned bytes by DuckDB and by Iceberg's specification. Older versions of Iceberg's Java
  library compare two signed longs (apache/iceberg#14216) and misjudge these bounds, as they do those that Iceberg's
  own writers take from Parquet.
"""

import struct

from mergus.iceberg import values

TRUNCATE_LENGTH = 16

_TEXTS = frozenset({"varchar", "json"})
_FLOATS = frozenset({"float32", "float64"})
_INTS = frozenset({"int8", "int16", "int32", "uint8", "uint16", "date"})
_LONGS = frozenset({"int64", "uint32"})

_LAST_CODE_POINT = 0x10FFFF
_BEFORE_SURROGATES = 0xD7FF
_AFTER_SURROGATES = 0xE000


def lower_bound(ducklake_type: str, text: str | None, *, retyped: bool) -> bytes | None:
    """The bound of a column of this type whose minimum in a file is `text`.

    `retyped` says that the column has had another type before: older files keep their texts, and the '1.1' of a
    single is not the double 1.1.
    """
    if text is None:
        return None
    if ducklake_type in _TEXTS:
        return _encoded(text[:TRUNCATE_LENGTH])
    return _exact(ducklake_type, text, retyped=retyped, zero=-0.0)


def upper_bound(ducklake_type: str, text: str | None, *, retyped: bool) -> bytes | None:
    """As `lower_bound`, of the maximum."""
    if text is None:
        return None
    if ducklake_type in _TEXTS:
        above = _text_above(text)
        return None if above is None else _encoded(above)
    return _exact(ducklake_type, text, retyped=retyped, zero=0.0)


def stats_text(ducklake_type: str, bound: bytes) -> str | None:
    """What DuckLake would have written for a file with this bound, lower or upper; None if it has no text.

    A string that was cut stays the bound that it was, and DuckDB does not take the bounds of strings for values.
    """
    if ducklake_type in _TEXTS:
        return _decoded(bound)
    if ducklake_type == "blob":
        return values.write_blob(bound)
    if ducklake_type == "uuid":
        return values.write_uuid(bound)
    if ducklake_type in _FLOATS:
        value = _unpack_float(ducklake_type, bound)
        if value is None:
            return None
        write = values.write_float32 if ducklake_type == "float32" else values.write_float64
        return write(value or 0.0)  # DuckDB knows one zero
    whole = values.counted(ducklake_type)
    count = _unpack(ducklake_type, bound)
    return None if whole is None or count is None else whole.write(count)


def _exact(ducklake_type: str, text: str, *, retyped: bool, zero: float) -> bytes | None:
    if ducklake_type == "uuid":
        return values.read_uuid(text)
    if ducklake_type == "float32":
        value = values.read_float32(text)
        return None if value is None else struct.pack("<f", value or zero)
    if ducklake_type == "float64":
        value = values.read_float64(text)
        if value is None or (retyped and values.read_float32(text) not in {None, value}):
            return None
        return struct.pack("<d", value or zero)
    whole = values.counted(ducklake_type)
    count = None if whole is None else whole.read(text)
    return None if count is None else _pack(ducklake_type, count)


def _pack(ducklake_type: str, value: int) -> bytes:
    if ducklake_type.startswith("decimal"):
        # the fewest bytes that hold the number and its sign
        return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)
    return value.to_bytes(_sizes(ducklake_type)[0], "little", signed=True)


def _unpack(ducklake_type: str, bound: bytes) -> int | None:
    if ducklake_type.startswith("decimal"):
        return int.from_bytes(bound, "big", signed=True) if 0 < len(bound) <= 16 else None
    return int.from_bytes(bound, "little", signed=True) if len(bound) in _sizes(ducklake_type) else None


def _sizes(ducklake_type: str) -> tuple[int, ...]:
    """How many bytes a bound of this type has; the first is what we write."""
    if ducklake_type == "boolean":
        return (1,)
    if ducklake_type in _INTS:
        return (4,)
    # an int column that was widened keeps the bounds of its older files
    return (8, 4) if ducklake_type in _LONGS else (8,)


def _unpack_float(ducklake_type: str, bound: bytes) -> float | None:
    if len(bound) == 4:
        return values.as_float32(bound)
    if len(bound) == 8 and ducklake_type == "float64":
        (value,) = struct.unpack("<d", bound)
        return value
    return None


def _encoded(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _decoded(bound: bytes) -> str | None:
    try:
        text = bound.decode()
    except UnicodeDecodeError:
        return None
    # Postgres has no text with a NUL in it
    return None if "\0" in text else text


def _text_above(text: str) -> str | None:
    """The text if it is short, or the least short one that is above everything that begins like it."""
    if len(text) <= TRUNCATE_LENGTH:
        return text
    for last in reversed(range(TRUNCATE_LENGTH)):
        code_point = ord(text[last])
        if code_point < _LAST_CODE_POINT:
            after = _AFTER_SURROGATES if code_point == _BEFORE_SURROGATES else code_point + 1
            return text[:last] + chr(after)
    return None
