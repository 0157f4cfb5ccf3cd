"""DuckLake's types as Iceberg's, where the same Parquet file means the same value to both.

What is not here cannot be shown truthfully: readers would misread the file (unsigned 32-bit integers), the file itself
has lost precision (128-bit integers are stored as doubles), or Iceberg has no such type (intervals).
"""

import re
from typing import Final

PRIMITIVES: Final = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "uint8": "int",
    "uint16": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "timestamp_us": "timestamp",
    "timestamp_s": "timestamp",
    "timestamp_ns": "timestamp_ns",
    "timestamptz": "timestamptz",
    "varchar": "string",
    "json": "string",
    "blob": "binary",
    "uuid": "uuid",
    "variant": "variant",
    "geometry": "geometry",
}

REFUSED: Final = {
    "uint32": "Parquet stores it as a signed 32-bit integer, which Iceberg readers misread above 2147483647",
    "uint64": "Iceberg has no unsigned 64-bit integer",
    "int128": "DuckDB stores it in Parquet as a double, which loses precision",
    "uint128": "DuckDB stores it in Parquet as a double, which loses precision",
    "timestamp_ms": "DuckDB stores it in Parquet as milliseconds, by which Spark loses rows as soon as it filters",
    "timetz": "Iceberg has no time with a time zone",
    "time_ns": "Iceberg has no time in nanoseconds",
    "interval": "Iceberg has no interval",
}

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def iceberg_primitive(ducklake_type: str) -> str | None:
    """The Iceberg primitive, or None where there is none."""
    if decimal := _DECIMAL.fullmatch(ducklake_type):
        return f"decimal({decimal[1]}, {decimal[2]})"
    return PRIMITIVES.get(ducklake_type)


def why_refused(ducklake_type: str) -> str:
    return REFUSED.get(ducklake_type, "Iceberg has no such type")
