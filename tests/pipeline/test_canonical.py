"""DuckDB and Spark write one text for one value, and two for two."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergus.iceberg.schema import Field, List, Map, Schema, Struct, Type
from mergus.pipeline.canonical import CANONICAL, DUCKDB, SPARK, Dialect, NotComparable
from mergus.pipeline.session import conf
from tests.support import readers
from tests.support import spark as sparks

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Spark's calendar begins with the year 1, and Python's, too
DAYS = st.dates(date(1, 1, 2), date(9999, 12, 30))
MICROS = st.integers(-(62 * 10**15), 25 * 10**16)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)

PRIMITIVES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "decimal(9, 2)": (pa.decimal128(9, 2), st.decimals(-9999999, 9999999, places=2)),
    "decimal(38, 18)": (pa.decimal128(38, 18), st.decimals(-(10**19), 10**19, places=18)),
    "date": (pa.date32(), DAYS),
    "timestamp": (pa.timestamp("us"), MICROS.map(lambda n: EPOCH.replace(tzinfo=None) + timedelta(microseconds=n))),
    "timestamptz": (pa.timestamp("us", tz="UTC"), MICROS.map(lambda n: EPOCH + timedelta(microseconds=n))),
    "string": (pa.string(), TEXTS | st.sampled_from(["", "~", "<>", "\\", ">", "\\>", "'"])),
    "binary": (pa.binary(), st.binary(max_size=6)),
}


def arrow(kind: Type) -> pa.DataType:
    match kind:
        case str():
            return PRIMITIVES[kind][0]
        case Struct(fields):
            return pa.struct([pa.field(f.name, arrow(f.type)) for f in fields])
        case List(element):
            return pa.list_(arrow(element.type))
        case Map(key, value):
            return pa.map_(arrow(key.type), arrow(value.type))


def values(kind: Type) -> st.SearchStrategy[Any]:
    match kind:
        case str():
            return PRIMITIVES[kind][1]
        case Struct(fields):
            return st.fixed_dictionaries({f.name: st.none() | values(f.type) for f in fields})
        case List(element):
            return st.lists(st.none() | values(element.type), max_size=3)
        case Map(key, value):
            pairs = st.dictionaries(values(key.type), st.none() | values(value.type), max_size=3)
            return pairs.map(lambda found: list(found.items()))


def nested(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    # keys of floats: one NaN is another key than the next to Python
    keys = st.sampled_from(["int", "string", "date", "boolean"])
    fields = st.lists(st.tuples(st.sampled_from(["a", "b c", "d'e", 'f"g', "h`i"]), inner), min_size=1, max_size=3)
    return st.one_of(
        inner.map(lambda kind: List(Field(0, "element", kind))),
        st.tuples(keys, inner).map(lambda pair: Map(Field(0, "key", pair[0]), Field(0, "value", pair[1]))),
        fields.map(lambda found: Struct(tuple(Field(0, n, kind) for n, kind in dict(found).items()))),
    )


TYPES = st.recursive(st.sampled_from(sorted(PRIMITIVES)), nested, max_leaves=4)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Type, list[Any]]:
    kind = draw(TYPES)
    return kind, draw(st.lists(st.none() | values(kind), min_size=1, max_size=8))


def texts(dialect: Dialect, kind: Type, found: Sequence[Any]) -> list[str | None]:
    """In the order of the values, by a number beside each."""
    column = pa.array(found, arrow(kind))
    table = pa.table({"n": pa.array(range(len(found))), "the column": column})
    text = dialect.text(dialect.identifier("the column"), kind)
    if dialect is DUCKDB:
        with duckdb.connect() as db:
            db.register("compared", table)
            return [row[0] for row in db.execute(f"SELECT {text} FROM compared ORDER BY n").fetchall()]
    spark = sparks.session()
    with conf(spark, CANONICAL):
        spark.createDataFrame(table).createOrReplaceTempView("compared")
        return [row[0] for row in spark.sql(f"SELECT {text} FROM compared ORDER BY n").collect()]


@pytest.mark.integration
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(columns())
def test_duckdb_and_spark_write_the_same_canonical_text_of_a_value(column: tuple[Type, list[Any]]) -> None:
    kind, found = column
    assert texts(DUCKDB, kind, found) == texts(SPARK, kind, found)


@settings(max_examples=200)
@given(columns())
def test_different_values_have_different_canonical_texts(column: tuple[Type, list[Any]]) -> None:
    kind, found = column
    seen: dict[str, Any] = {}
    for value, text in zip(found, texts(DUCKDB, kind, found), strict=True):
        assert (text is None) == (value is None)
        if text is not None:
            # entries of a map have no order
            compared = readers.value(pa.scalar(value, arrow(kind)))
            assert seen.setdefault(text, compared) == compared


def test_a_type_that_spark_cannot_read_is_reported_as_not_comparable() -> None:
    with pytest.raises(NotComparable, match="timestamp_ns"):
        SPARK.row(Schema((Field(1, "t", "timestamp_ns"),)))


def test_the_canonical_sql_grows_linearly_with_nesting_depth() -> None:
    kind: Type = "string"
    lengths: list[int] = []
    for _ in range(12):
        kind = Struct((Field(0, "a", kind),))
        lengths.append(len(DUCKDB.text("c", kind)))
    assert lengths[-1] - lengths[-2] < 3 * (lengths[1] - lengths[0])


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("decimal(38, 18)", Decimal("0.000000000000000001"), "0.000000000000000001"),
        ("double", -0.0, "1" + "0" * 63),
        ("date", date(1969, 12, 31), "-1"),
        ("binary", b"\x00\xff", "00FF"),
        (List(Field(0, "element", "string")), ["a>", None], "<a\\>>~"),
        (Map(Field(0, "key", "string"), Field(0, "value", "int")), [("b", 1), ("a", None)], "<<a\\>~><<b\\><1\\>>"),
    ],
)
def test_values_have_the_expected_canonical_text(kind: Type, value: object, text: str) -> None:
    assert texts(DUCKDB, kind, [value]) == [text]
