"""A text for every value, the same from DuckDB and from Spark: what both worlds can be compared by.

Two engines agree on a value if and only if they agree on its text. It is written by type, of the Iceberg schema, in
each engine's own SQL: numbers in plain digits, floats by their bits (a minus zero is not a zero; one NaN is like
another), instants as microseconds since 1970, bytes in hexadecimal digits. Values inside of others are written in
brackets, with those of their own escaped, so that no two lists or structs have one text. A null has none.

From texts come checksums that do not depend on the order of rows: the sum of 60 bits of each one's MD5.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mergus.iceberg.schema import Field, List, Map, Schema, Struct, Type

ABSENT: Final = "'~'"
NAN: Final = "'NaN'"


class NotComparable(ValueError):
    """A type that one of the engines does not read, or that has no text."""


@dataclass(frozen=True)
class Dialect:
    """How an engine's SQL says it: templates of one expression, and functions where there are several."""

    identifier: Callable[[str], str]
    literal: Callable[[str], str]
    primitives: dict[str, str]
    member: Callable[[str, str], str]
    each: Callable[[str, str, str], str]
    joined: str
    entries: str
    in_order: str
    number: str

    def text(self, value: str, kind: Type, depth: int = 0) -> str:
        """An expression for the text of an expression's value."""
        match kind:
            case str():
                return self._primitive(value, kind)
            case Struct(fields):
                parts = " || ".join(self._inside(self.member(value, f.name), f.type, depth) for f in fields) or "''"
                return f"CASE WHEN {value} IS NOT NULL THEN {parts} END"
            case List(element):
                return self.joined.format(self._each(value, element.type, depth))
            case Map(key, item):
                entries = self.entries.format(value)
                pair = Struct((Field(0, "key", key.type), Field(0, "value", item.type)))
                return self.joined.format(self.in_order.format(self._each(entries, pair, depth)))

    def row(self, schema: Schema) -> str:
        """Of all columns at once."""
        parts = [self._inside(self.identifier(f.name), f.type, 0) for f in schema.fields]
        return " || ".join(parts) or "''"

    def checksum(self, text: str) -> str:
        return f"coalesce(sum({self.number.format(f'md5({text})')}), 0)"

    def _primitive(self, value: str, kind: str) -> str:
        name = kind.partition("(")[0].partition("[")[0]
        if name not in self.primitives:
            raise NotComparable(f"values of type {kind} cannot be compared")
        return self.primitives[name].format(value)

    def _inside(self, value: str, kind: Type, depth: int) -> str:
        """A text once: it grows with the depth of a type, and must not grow by powers."""
        escape = self.literal("\\")
        slashes = f"replace({self.text(value, kind, depth)}, {escape}, {escape} || {escape})"
        return f"coalesce('<' || replace({slashes}, '>', {escape} || '>') || '>', {ABSENT})"

    def _each(self, values: str, kind: Type, depth: int) -> str:
        name = f"e{depth}"
        return self.each(values, name, self._inside(name, kind, depth + 1))


def _double_quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _back_quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _duckdb_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _spark_literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


DUCKDB: Final = Dialect(
    identifier=_double_quoted,
    literal=_duckdb_literal,
    primitives={
        "boolean": "CAST({} AS VARCHAR)",
        "int": "CAST({} AS VARCHAR)",
        "long": "CAST({} AS VARCHAR)",
        "float": f"CASE WHEN isnan({{0}}) THEN {NAN} ELSE CAST(CAST(CAST({{0}} AS DOUBLE) AS BIT) AS VARCHAR) END",
        "double": f"CASE WHEN isnan({{0}}) THEN {NAN} ELSE CAST(CAST(CAST({{0}} AS DOUBLE) AS BIT) AS VARCHAR) END",
        "decimal": "CAST({} AS VARCHAR)",
        "date": "CAST(date_diff('day', DATE '1970-01-01', {}) AS VARCHAR)",
        "timestamp": "CAST(epoch_us({}) AS VARCHAR)",
        "timestamptz": "CAST(epoch_us({}) AS VARCHAR)",
        "string": "CAST({} AS VARCHAR)",
        "uuid": "CAST({} AS VARCHAR)",
        "binary": "hex({})",
        "fixed": "hex({})",
        "unknown": "CAST(NULL AS VARCHAR)",
    },
    member=lambda value, name: f"struct_extract({value}, {_duckdb_literal(name)})",
    each=lambda values, name, text: f"list_transform({values}, lambda {name}: {text})",
    joined="array_to_string({}, '')",
    entries="map_entries({})",
    in_order="list_sort({})",
    number="CAST('0x' || ({})[1:15] AS BIGINT)",
)

# Under which Spark writes them so: decimals in plain digits whatever their scale, local times as if in UTC.
CANONICAL: Final = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}

SPARK: Final = Dialect(
    identifier=_back_quoted,
    literal=_spark_literal,
    primitives={
        "boolean": "CAST({} AS STRING)",
        "int": "CAST({} AS STRING)",
        "long": "CAST({} AS STRING)",
        "float": f"CASE WHEN isnan({{0}}) THEN {NAN} WHEN {{0}} IS NOT NULL THEN lpad(bin(java_method("
        "'java.lang.Double', 'doubleToLongBits', CAST({0} AS DOUBLE))), 64, '0') END",
        "double": f"CASE WHEN isnan({{0}}) THEN {NAN} WHEN {{0}} IS NOT NULL THEN lpad(bin(java_method("
        "'java.lang.Double', 'doubleToLongBits', {0})), 64, '0') END",
        "decimal": "CAST({} AS STRING)",
        "date": "CAST(unix_date({}) AS STRING)",
        "timestamp": "CAST(unix_micros(CAST({} AS TIMESTAMP)) AS STRING)",
        "timestamptz": "CAST(unix_micros({}) AS STRING)",
        "string": "{}",
        "uuid": "lower({})",
        "binary": "hex({})",
        "fixed": "hex({})",
        "unknown": "CAST(NULL AS STRING)",
    },
    member=lambda value, name: f"{value}.{_back_quoted(name)}",
    each=lambda values, name, text: f"transform({values}, {name} -> {text})",
    joined="array_join({}, '')",
    entries="map_entries({})",
    in_order="array_sort({})",
    number="CAST(conv(substring({}, 1, 15), 16, 10) AS DECIMAL(20, 0))",
)
