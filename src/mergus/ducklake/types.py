"""DuckLake's types as Iceberg's, where the same Parquet file means the same value to both.

What is not here cannot be shown truthfully: readers would misread the file (unsigned 32-bit integers), the file itself
has lost precision (128-bit integers are stored as doubles), or Iceberg has no such type (intervals).

The other way a new column gets the one DuckLake type of which the Iceberg type is the exact counterpart, if there is
one: what DuckDB may write into it, every Iceberg reader must be able to take.
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

STORED: Final = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "timestamp_ns": "timestamp_ns",
    "string": "varchar",
    "binary": "blob",
    "uuid": "uuid",
    "variant": "variant",
    # without a coordinate system it is in this one
    "geometry": "geometry",
    "geometry(OGC:CRS84)": "geometry",
}

NOT_STORED: Final = {
    "fixed": "DuckLake has no binary of a fixed length, and DuckDB would write values of others",
    "timestamptz_ns": "DuckLake has no timestamp with a time zone in nanoseconds",
    "geography": "DuckLake has no geography",
    "geometry": "DuckLake does not keep the coordinate system of a geometry",
    "decimal": "DuckDB has decimals of up to 38 digits, and none that is finer than its digits",
    "unknown": "DuckLake has no column without a type",
}

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def iceberg_primitive(ducklake_type: str) -> str | None:
    """The Iceberg primitive, or None where there is none."""
    if decimal := _DECIMAL.fullmatch(ducklake_type):
        return f"decimal({decimal[1]}, {decimal[2]})"
    return PRIMITIVES.get(ducklake_type)


def why_refused(ducklake_type: str) -> str:
    return REFUSED.get(ducklake_type, "Iceberg has no such type")


def ducklake_type(primitive: str) -> str | None:
    """What a new column of this Iceberg primitive is in DuckLake, or None where it cannot be kept."""
    if decimal := _DECIMAL.fullmatch(primitive):
        precision, scale = int(decimal[1]), int(decimal[2])
        return f"decimal({precision},{scale})" if 0 < precision <= 38 and scale <= precision else None
    return STORED.get(primitive)


def why_not_stored(primitive: str) -> str:
    return NOT_STORED.get(re.split(r"[(\[]", primitive)[0], "DuckLake has no such type")
