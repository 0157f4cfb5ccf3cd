"""Which columns have statistics, and what Spark is asked of each. Pure.

A column is asked in the form that Iceberg's files have it in: days, microseconds, bytes of a uuid. So figures come from
typed values, and a sketch hashes the bytes that the specification names whichever engine makes it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mergus.errors import SetupError
from mergus.iceberg.schema import Field, Schema, Struct
from mergus.pipeline.canonical import SPARK

# Of types that have an order. The session's time zone has to be UTC.
_STORED: Final = {
    **dict.fromkeys(("boolean", "int", "long", "float", "double", "decimal", "string", "binary", "fixed"), "{}"),
    "date": "unix_date({})",
    "timestamp": "unix_micros(CAST({} AS TIMESTAMP))",
    "timestamptz": "unix_micros({})",
    "uuid": "unhex(replace({}, '-', ''))",
}
# Iceberg's runtime for Spark opens no table that has one of these.
_UNREAD: Final = frozenset({"time", "timestamp_ns", "timestamptz_ns", "geometry", "geography"})


@dataclass(frozen=True)
class Column:
    """`path` are the names down to it; `stored` is None for a type of which only nulls are counted."""

    path: tuple[str, ...]
    field: Field

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def kind(self) -> str:
        """The primitive's name, with its parameters; "struct", "list" or "map"."""
        return self.field.type if isinstance(self.field.type, str) else type(self.field.type).__name__.lower()

    @property
    def has_order(self) -> bool:
        return _base(self.kind) in _STORED

    @property
    def is_float(self) -> bool:
        return self.kind in {"float", "double"}

    @property
    def is_long(self) -> bool:
        """Whether its values may be of any length."""
        return _base(self.kind) in {"string", "binary", "fixed"}

    @property
    def expression(self) -> str:
        value = ".".join(map(SPARK.identifier, self.path))
        return _STORED[_base(self.kind)].format(value) if self.has_order else value


def choose(schema: Schema, names: Sequence[str]) -> list[Column]:
    """By name, with dots before fields of structs; all of the table's own columns if none is named."""
    if not names:
        return [Column((field.name,), field) for field in schema.fields]
    known = {column.name: column for column in _below((), schema.fields)}
    if unknown := [name for name in names if name not in known]:
        raise SetupError(f"there is no column {unknown[0]}: there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def unread(schema: Schema) -> str | None:
    """The first type for which Spark opens no table."""
    kinds = (field.type for field in schema.walk() if isinstance(field.type, str))
    return next((kind for kind in kinds if _base(kind) in _UNREAD), None)


def _below(path: tuple[str, ...], fields: Iterable[Field]) -> Iterator[Column]:
    """Those within lists and maps have not one value for a row."""
    for field in fields:
        here = (*path, field.name)
        yield Column(here, field)
        if isinstance(field.type, Struct):
            yield from _below(here, field.type.fields)


def _base(kind: str) -> str:
    return kind.partition("(")[0].partition("[")[0]
