"""What becomes of a table's columns when records with other columns come: pure functions on Spark's types.

New columns are added, at any depth. A type is widened only where Iceberg allows it without a rewrite: int to bigint,
float to double, a decimal to more digits. Anything else is a clash, and the table keeps its type. Names are compared
without case, as both engines do.
"""

from dataclasses import dataclass, field
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from mergus.iceberg.schema_parse import MAX_NAME_BYTES, RESERVED
from mergus.pipeline.canonical import SPARK

SOURCE_FILE: Final = "_source_file"
INGESTED_AT: Final = "_ingested_at"
LINEAGE: Final = StructType([StructField(SOURCE_FILE, StringType()), StructField(INGESTED_AT, TimestampType())])
# of columns that frames have for a while
OURS: Final = "_mergus_"
PLAIN: Final = (
    BooleanType, IntegerType, LongType, FloatType, DoubleType, DecimalType, StringType, BinaryType, DateType,
    TimestampType, TimestampNTZType,
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A column added (`before` is None) or widened."""

    path: tuple[str, ...]
    type: DataType
    before: DataType | None = None

    def __str__(self) -> str:
        name = ".".join(self.path)
        if self.before is None:
            return f"add {name} {self.type.simpleString()}"
        return f"widen {name} from {self.before.simpleString()} to {self.type.simpleString()}"


@dataclass
class Fit:
    """The table's columns as they will be, how they become so, what does not go into them as it is typed (though its
    values may, one by one, where they are text), and what can be no column at all."""

    schema: StructType
    changes: list[Change] = field(default_factory=list[Change])
    clashes: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])


def fit(table: StructType, incoming: StructType) -> Fit:
    found = Fit(table)
    found.refused += filter(None, (_refused(one.name) for one in incoming.fields))
    found.schema = _struct((), table, incoming, found)
    return found


def stored(kind: DataType) -> DataType:
    """The type that Iceberg has for one of Spark's. ValueError if there is none."""
    match kind:
        case StructType():
            if not kind.fields or not all(f.name and "\0" not in f.name for f in kind.fields):
                raise ValueError("a struct has no fields, or one of them no name")
            return StructType([StructField(f.name, stored(f.dataType)) for f in kind.fields])
        case ArrayType():
            return ArrayType(stored(kind.elementType))
        case MapType():
            return MapType(stored(kind.keyType), stored(kind.valueType))
        case ByteType() | ShortType():
            return IntegerType()
        case CharType() | VarcharType():
            return StringType()
        case _ if isinstance(kind, PLAIN):
            return kind
        case _:
            raise ValueError(f"no column has type {kind.simpleString()}")


def shape(incoming: StructType, table: StructType) -> StructType:
    """The fields of what comes, under their own names, with the types of the table's: what a reader is asked for."""
    known = {f.name.lower(): f.dataType for f in table.fields}
    fields = [f for f in incoming.fields if f.name.lower() in known]
    return StructType([StructField(f.name, _shape(f.dataType, known[f.name.lower()])) for f in fields])


def _shape(incoming: DataType, table: DataType) -> DataType:
    match incoming, table:
        case StructType(), StructType():
            return shape(incoming, table)
        case ArrayType(), ArrayType():
            return ArrayType(_shape(incoming.elementType, table.elementType))
        case MapType(), MapType():
            return MapType(table.keyType, _shape(incoming.valueType, table.valueType))
        case _:
            return table


def filled(value: str, have: DataType | None, want: DataType, depth: int = 0) -> str:
    """An expression of one type as one of the table's, which has perhaps got fields or digits since."""
    match have, want:
        case None, _:
            return f"CAST(NULL AS {sql_type(want)})"
        case StructType(), StructType():
            known = {f.name.lower(): f for f in have.fields}
            parts: list[str] = []
            for one in want.fields:
                mine = known.get(one.name.lower())
                inner = value if mine is None else f"{value}.{SPARK.identifier(mine.name)}"
                part = filled(inner, mine and mine.dataType, one.dataType, depth)
                parts.append(f"{SPARK.literal(one.name)}, {part}")
            return f"IF({value} IS NULL, NULL, named_struct({', '.join(parts)}))"
        case ArrayType(), ArrayType():
            name = f"e{depth}"
            return f"transform({value}, {name} -> {filled(name, have.elementType, want.elementType, depth + 1)})"
        case MapType(), MapType():
            name = f"v{depth}"
            inner = filled(name, have.valueType, want.valueType, depth + 1)
            return f"transform_values({value}, (k{depth}, {name}) -> {inner})"
        case _ if have == want:
            return value
        case _:
            return f"CAST({value} AS {sql_type(want)})"


def sql_type(kind: DataType) -> str:
    match kind:
        case StructType():
            return f"STRUCT<{', '.join(f'{SPARK.identifier(f.name)}: {sql_type(f.dataType)}' for f in kind.fields)}>"
        case ArrayType():
            return f"ARRAY<{sql_type(kind.elementType)}>"
        case MapType():
            return f"MAP<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
        case _:
            return kind.simpleString()


def columns(schema: StructType) -> str:
    """For CREATE TABLE and ADD COLUMNS."""
    return ", ".join(f"{SPARK.identifier(f.name)} {sql_type(f.dataType)}" for f in schema.fields)


def _refused(name: str) -> str | None:
    lower = name.lower()
    if lower in RESERVED or not name or "\0" in name or len(name.encode()) > MAX_NAME_BYTES:
        return f"no column of the lake can have the name {name!r}"
    if lower.startswith(OURS) or lower in {SOURCE_FILE, INGESTED_AT}:
        return f"a column is called {name}, which is one that ingest writes itself"
    return None


def _struct(path: tuple[str, ...], table: StructType, incoming: StructType, found: Fit) -> StructType:
    fields = list(table.fields)
    place = {f.name.lower(): i for i, f in enumerate(fields)}
    for one in incoming.fields:
        at = (*path, one.name)
        try:
            kind = stored(one.dataType)
        except ValueError as e:
            found.refused.append(f"{'.'.join(at)}: {e}")
            continue
        i = place.get(one.name.lower())
        if i is None:
            fields.append(StructField(one.name, kind))
            found.changes.append(Change(at, kind))
        else:
            mine = fields[i]
            merged = _merged((*path, mine.name), mine.dataType, kind, found)
            fields[i] = StructField(mine.name, merged, mine.nullable)
    return StructType(fields)


def _merged(path: tuple[str, ...], have: DataType, new: DataType, found: Fit) -> DataType:
    match have, new:
        case StructType(), StructType():
            return _struct(path, have, new, found)
        case ArrayType(), ArrayType():
            return ArrayType(_merged((*path, "element"), have.elementType, new.elementType, found))
        case MapType(), MapType() if _goes_into(new.keyType, have.keyType):
            return MapType(have.keyType, _merged((*path, "value"), have.valueType, new.valueType, found))
        case _ if _goes_into(new, have):
            return have
        case _ if _widens(have, new):
            found.changes.append(Change(path, new, have))
            return new
        case _:
            name = ".".join(path)
            found.clashes.append(f"{name} is {have.simpleString()} in the table, and {new.simpleString()} here")
            return have


def _goes_into(new: DataType, have: DataType) -> bool:
    """Every value of the one is a value of the other, and Spark's Parquet reader makes it so."""
    match new, have:
        case IntegerType(), IntegerType() | LongType() | DoubleType():
            return True
        case FloatType(), FloatType() | DoubleType():
            return True
        case DecimalType(), DecimalType():
            more = have.scale - new.scale
            return more >= 0 and have.precision - new.precision >= more
        case _:
            return new == have


def _widens(have: DataType, new: DataType) -> bool:
    match have, new:
        case IntegerType(), LongType():
            return True
        case FloatType(), DoubleType():
            return True
        case DecimalType(), DecimalType():
            return have.scale == new.scale and new.precision > have.precision
        case _:
            return False
