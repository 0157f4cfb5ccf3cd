import math
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from mergus.iceberg import values
from mergus.iceberg.bounds import TRUNCATE_LENGTH, lower_bound, stats_text, upper_bound
from tests.support.lakes import TestLake

WITHOUT_BOUNDS = ["int128", "uint128", "uint64", "interval", "timetz", "time_ns", "variant", "geometry", "struct"]
WITHOUT_BOUNDS += ["list", "map", "unknown", ""]

# Text without what Postgres cannot hold; many of few and of the last characters.
texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0") | st.sampled_from("a\ud7ff\ue000\uffff\U0010ffff")
)


def bounds(ducklake_type: str, text: str | None, retyped: bool = False) -> tuple[bytes | None, bytes | None]:
    return lower_bound(ducklake_type, text, retyped=retyped), upper_bound(ducklake_type, text, retyped=retyped)


def test_a_missing_statistic_gives_no_bounds() -> None:
    for ducklake_type in ("int32", "varchar", "blob", "float64", "interval"):
        assert bounds(ducklake_type, None) == (None, None)


@pytest.mark.parametrize("ducklake_type", WITHOUT_BOUNDS)
def test_types_without_an_order_in_iceberg_have_no_bounds(ducklake_type: str) -> None:
    assert bounds(ducklake_type, "1") == (None, None)
    assert stats_text(ducklake_type, bytes(8)) is None


@given(texts)
def test_a_string_lies_between_its_bounds(text: str) -> None:
    lower, upper = bounds("varchar", text)
    assert lower is not None
    assert lower <= text.encode()
    assert len(lower.decode()) <= TRUNCATE_LENGTH
    if upper is None:
        assert text[:TRUNCATE_LENGTH] == "\U0010ffff" * TRUNCATE_LENGTH
    else:
        assert upper >= text.encode()
        assert len(upper.decode()) <= TRUNCATE_LENGTH


@given(texts, texts)
def test_strings_between_two_values_lie_between_the_truncated_bounds(one: str, other: str) -> None:
    low, high = sorted([one, other])
    lower, upper = lower_bound("varchar", low, retyped=False), upper_bound("varchar", high, retyped=False)
    assert lower is not None
    assert lower <= high.encode()
    assert upper is None or low.encode() <= upper


@pytest.mark.parametrize(
    ("text", "lower", "upper"),
    [
        ("", "", ""),
        ("a" * 16, "a" * 16, "a" * 16),
        ("a" * 17, "a" * 16, "a" * 15 + "b"),
        ("ü" * 17, "ü" * 16, "ü" * 15 + "ý"),
        ("a" * 15 + "\ud7ff!", "a" * 15 + "\ud7ff", "a" * 15 + "\ue000"),
        ("a" * 14 + "\U0010ffff" * 3, "a" * 14 + "\U0010ffff" * 2, "a" * 13 + "b"),
        ("\U0010ffff" * 17, "\U0010ffff" * 16, None),
        ("  x ", "  x ", "  x "),
        ("nan", "nan", "nan"),
    ],
)
def test_bounds_of_long_strings_are_truncated(text: str, lower: str, upper: str | None) -> None:
    assert bounds("varchar", text) == (lower.encode(), None if upper is None else upper.encode())
    assert bounds("json", text) == bounds("varchar", text)


def test_a_string_that_is_not_valid_unicode_has_no_bounds() -> None:
    assert bounds("varchar", "\ud800") == (None, None)
    assert bounds("varchar", "\ud800" * 17) == (None, None)


@pytest.mark.parametrize("text", ["AA00", r"\xAA\x00", "", "abc"])
def test_blobs_have_no_iceberg_bounds_but_their_bounds_have_a_ducklake_text(text: str) -> None:
    assert bounds("blob", text) == (None, None)
    assert stats_text("blob", b"\xaa\x00") == "AA00"


@pytest.mark.parametrize(("ducklake_type", "form"), [("float32", "<f"), ("float64", "<d")])
@pytest.mark.parametrize("text", ["0.0", "-0.0"])
def test_bounds_of_zero_include_both_signed_zeros(ducklake_type: str, form: str, text: str) -> None:
    assert bounds(ducklake_type, text) == (struct.pack(form, -0.0), struct.pack(form, 0.0))
    assert stats_text(ducklake_type, struct.pack(form, -0.0)) == "0.0"


@pytest.mark.parametrize("ducklake_type", ["float32", "float64"])
@pytest.mark.parametrize("text", ["nan", "-nan", "NaN", "", " 1.0", "infinity"])
def test_float_texts_that_are_nan_or_malformed_give_no_bounds(ducklake_type: str, text: str) -> None:
    assert bounds(ducklake_type, text) == (None, None)


def test_a_nan_bound_has_no_ducklake_text() -> None:
    assert stats_text("float32", struct.pack("<f", math.nan)) is None
    assert stats_text("float64", struct.pack("<d", math.nan)) is None


def test_a_double_column_that_was_a_float_has_bounds_only_for_exact_values() -> None:
    assert bounds("float64", "1.1") == (struct.pack("<d", 1.1),) * 2
    assert bounds("float64", "1.1", retyped=True) == (None, None)
    assert bounds("float64", "1.5", retyped=True) == (struct.pack("<d", 1.5),) * 2
    assert bounds("float64", "0.1234567890123", retyped=True) == (struct.pack("<d", 0.1234567890123),) * 2


def test_bounds_of_a_narrower_type_are_read_by_their_length() -> None:
    assert stats_text("int64", struct.pack("<i", -5)) == "-5"
    assert stats_text("float64", struct.pack("<f", 1.1)) == "1.100000023841858"
    assert stats_text("int32", struct.pack("<q", 5)) is None
    assert stats_text("float32", struct.pack("<d", 1.5)) is None


@given(st.binary(max_size=20))
def test_no_bytes_of_a_bound_raise_an_error(bound: bytes) -> None:
    every = [*values.COUNTED, "decimal(9,2)", "float32", "float64", "uuid", "varchar", "json", "blob", *WITHOUT_BOUNDS]
    for ducklake_type in every:
        text = stats_text(ducklake_type, bound)
        if text is None or ducklake_type == "blob":
            continue
        lower, upper = bounds(ducklake_type, text)
        if lower is None:
            assert ducklake_type == "float64"  # one of the few doubles that DuckDB shows wrongly
            continue
        if ducklake_type not in {"varchar", "json"}:
            assert stats_text(ducklake_type, lower) == stats_text(ducklake_type, upper or b"") == text


def test_a_string_bound_with_a_nul_or_invalid_utf8_has_no_ducklake_text() -> None:
    assert stats_text("varchar", b"a\0b") is None
    assert stats_text("varchar", b"\xff") is None


def test_a_timestamp_bound_finer_than_its_column_has_no_ducklake_text() -> None:
    assert stats_text("timestamp_ms", struct.pack("<q", 1_000)) == "1970-01-01 00:00:00.001"
    assert stats_text("timestamp_ms", struct.pack("<q", 1_001)) is None
    assert stats_text("timestamp_s", struct.pack("<q", 1_000)) is None


# --- against PyIceberg and DuckDB: columns of every type, with values of every kind


def _integer(low: int, high: int) -> Callable[[random.Random], str]:
    return lambda rng: str(rng.choice([rng.randint(low, high), rng.randint(max(low, -9), 9)]))


def _days(rng: random.Random) -> str:
    return f"(DATE '1970-01-01' + {rng.randint(-(10 ** rng.randint(0, 9)), 10 ** rng.randint(0, 9))}::INTEGER)"


def _micros(step: int) -> Callable[[random.Random], str]:
    return lambda rng: (
        f"make_timestamp({rng.randint(-(10 ** rng.randint(3, 18)), 10 ** rng.randint(3, 18)) // step * step})"
    )


def _bits(form: str, size: int) -> Callable[[random.Random], str]:
    def draw(rng: random.Random) -> str:
        (value,) = struct.unpack(form, rng.randbytes(size))
        return f"'{value!r}'" if rng.random() < 0.7 else f"'{rng.randint(-999, 999) / 10}'"

    return draw


def _string(rng: random.Random) -> str:
    text = "".join(rng.choice("ab'ü日\ud7ff\ue000\uffff\U0010ffff") for _ in range(rng.choice([0, 3, 16, 17, 300])))
    return "'" + text.replace("'", "''") + "'"


def _blob(rng: random.Random) -> str:
    raw = rng.randbytes(rng.choice([0, 2, 16, 17, 300])) if rng.random() < 0.6 else b"\xff" * 17
    return f"from_hex('{raw.hex()}')"


@dataclass(frozen=True)
class Column:
    """A type: how to draw literals, and what SQL expression and function give a value as Iceberg's."""

    sql_type: str
    ducklake_type: str
    iceberg_type: PrimitiveType
    draw: Callable[[random.Random], str]
    extremes: Sequence[str]
    raw: str = "{}"
    value: Callable[[Any], Any] = lambda x: x


def _instant(sql: str, ducklake: str, step: int, low: str, high: str) -> Column:
    return Column(sql, ducklake, TimestampType(), _micros(step), [low, high], "epoch_us({}::TIMESTAMP)")


FIRST, LAST = "'290309-12-22 (BC) 00:00:00'", "'294247-01-10 04:00:54.775806'"
COLUMNS = [
    Column("BOOLEAN", "boolean", BooleanType(), lambda rng: rng.choice(["true", "false"]), ["true", "false"]),
    Column("TINYINT", "int8", IntegerType(), _integer(-128, 127), ["-128", "127"]),
    Column("SMALLINT", "int16", IntegerType(), _integer(-(2**15), 2**15 - 1), ["-32768", "32767"]),
    Column("INTEGER", "int32", IntegerType(), _integer(-(2**31), 2**31 - 1), [str(-(2**31)), str(2**31 - 1)]),
    Column("BIGINT", "int64", LongType(), _integer(-(2**63), 2**63 - 1), [str(-(2**63)), str(2**63 - 1)]),
    Column("UTINYINT", "uint8", IntegerType(), _integer(0, 255), ["0", "255"]),
    Column("USMALLINT", "uint16", IntegerType(), _integer(0, 65535), ["0", "65535"]),
    Column("UINTEGER", "uint32", LongType(), _integer(0, 2**32 - 1), ["0", str(2**32 - 1)]),
    Column("FLOAT", "float32", FloatType(), _bits("<f", 4), ["'-inf'", "'inf'", "'nan'", "'-0.0'", "0.0", "'1e-45'"]),
    Column(
        "DOUBLE", "float64", DoubleType(), _bits("<d", 8), ["'-inf'", "'inf'", "'nan'", "'-0.0'", "0.0", "'5e-324'"]
    ),
    *(
        Column(
            f"DECIMAL({p},{s})",
            f"decimal({p},{s})",
            DecimalType(p, s),
            lambda rng, p=p, s=s: (
                f"'{Decimal(rng.randint(1 - 10**p, 10**p - 1)).scaleb(-s):f}'" if p < 28 else "'-1.5'"
            ),
            [f"'{sign}{'9' * (p - s)}.{'9' * s}'" for sign in ("", "-")],
            "({})::VARCHAR",
            Decimal,
        )
        for p, s in [(4, 1), (9, 0), (18, 18), (38, 5)]
    ),
    Column(
        "DATE",
        "date",
        DateType(),
        _days,
        ["'5877642-06-25 (BC)'", "'5881580-07-10'", "'0044-03-15 (BC)'", "'0001-12-31 (BC)'"],
        "{} - DATE '1970-01-01'",
    ),
    Column(
        "TIME",
        "time",
        TimeType(),
        lambda rng: f"'{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:00.{rng.randint(0, 999999):06}'::TIME",
        ["'00:00:00'", "'23:59:59.999999'"],
        "epoch_us({})",
    ),
    _instant("TIMESTAMP", "timestamp", 1, FIRST, LAST),
    _instant("TIMESTAMP_S", "timestamp_s", 1_000_000, FIRST, "'294247-01-10 04:00:54'"),
    _instant("TIMESTAMP_MS", "timestamp_ms", 1_000, FIRST, "'294247-01-10 04:00:54.775'"),
    Column(
        "TIMESTAMP_NS",
        "timestamp_ns",
        TimestampNanoType(),
        lambda rng: f"make_timestamp_ns({rng.randint(-(10**18), 10**18)})",
        ["'1677-09-22 00:00:00'", "'2262-04-11 23:47:16.854775806'"],
        "epoch_ns({})",
    ),
    Column(
        "TIMESTAMPTZ",
        "timestamptz",
        TimestamptzType(),
        lambda rng: f"make_timestamptz({rng.randint(-(10**15), 10**16)})",
        [FIRST[:-1] + "+00'", LAST[:-1] + "+00'"],
        "epoch_us({})",
    ),
    Column("VARCHAR", "varchar", StringType(), _string, ["''", "chr(1114111)", "repeat(chr(1114111), 20)"]),
    Column(
        "JSON", "json", StringType(), lambda rng: f"'[{rng.randint(0, 10**20)}]'", ["'{}'", "'null'"], "{}::VARCHAR"
    ),
    Column("BLOB", "blob", BinaryType(), _blob, ["'AA00'::BLOB", "''::BLOB", r"'\xFF'::BLOB"]),
    Column(
        "UUID",
        "uuid",
        UUIDType(),
        lambda rng: f"'{UUID(int=rng.getrandbits(128))}'::UUID",
        [f"'{UUID(int=n)}'" for n in (0, 2**127 - 1, 2**127, 2**128 - 1)],
        "{}::VARCHAR",
        lambda text: UUID(text).bytes,
    ),
]


def _fill(db: duckdb.DuckDBPyConnection, table: str, rows: list[list[str]], inlined: bool) -> None:
    db.execute(f"CREATE TABLE {table} ({', '.join(f'c{i} {c.sql_type}' for i, c in enumerate(COLUMNS))})")
    db.execute(f"CALL lake.set_option('data_inlining_row_limit', {1000 if inlined else 0}, table_name => '{table}')")
    cast = [", ".join(f"CAST({v} AS {c.sql_type})" for v, c in zip(row, COLUMNS, strict=True)) for row in rows]
    db.execute(f"INSERT INTO {table} VALUES {', '.join(f'({row})' for row in cast)}")


def _rows(kind: str) -> list[list[str]]:
    if kind == "extreme":
        return [[c.extremes[i % len(c.extremes)] for c in COLUMNS] for i in range(6)]
    rng = random.Random(kind)
    return [[c.draw(rng) for c in COLUMNS] for _ in range(1 if "single" in kind else 12)]


@pytest.mark.parametrize("inlined", [False, True], ids=["file", "inlined"])
@pytest.mark.parametrize("kind", ["extreme", "single 1", "single 2", "single 3", "many 1", "many 2", "many 3"])
def test_bounds_contain_every_value_that_duckdb_stored(
    lake: TestLake, db: duckdb.DuckDBPyConnection, kind: str, inlined: bool
) -> None:
    table = f"{kind.replace(' ', '_')}_{'inlined' if inlined else 'file'}"
    db.execute("USE lake.main")
    db.execute("SET TimeZone = 'America/New_York'")
    _fill(db, table, _rows(kind), inlined)
    stats = lake.sql(
        "SELECT column_type, s.min_value, s.max_value FROM ducklake_table t JOIN ducklake_column c USING (table_id) "
        f"JOIN ducklake_{'table' if inlined else 'file'}_column_stats s USING (table_id, column_id) "
        "WHERE table_name = %s ORDER BY column_order",
        table,
    )
    assert [row[0] for row in stats] == [c.ducklake_type for c in COLUMNS]
    stored = db.execute(
        f"SELECT {', '.join(c.raw.format(f'c{i}') for i, c in enumerate(COLUMNS))} FROM {table}"
    ).fetchall()
    for i, (column, (ducklake_type, least, most)) in enumerate(zip(COLUMNS, stats, strict=True)):
        here = [column.value(row[i]) for row in stored]
        if ducklake_type in {"float32", "float64"}:
            here = [value for value in here if not math.isnan(value)]
        lower = lower_bound(ducklake_type, least, retyped=False)
        upper = upper_bound(ducklake_type, most, retyped=False)
        if ducklake_type == "blob":
            assert (lower, upper) == (None, None)
            if not inlined and most is not None and len(most) < 512:
                assert (stats_text("blob", min(here)), stats_text("blob", max(here))) == (least, most)
            continue
        cut = ducklake_type in {"varchar", "json"}
        # what DuckLake's text says it says exactly: nothing is lost but NaN and the like
        assert (lower is None) == (least in {None, "nan"}), (ducklake_type, least)
        assert cut or (upper is None) == (most in {None, "nan"}), (ducklake_type, most)
        for text, bound, extreme in ((least, lower, min), (most, upper, max)):
            if bound is None or not here:
                continue
            value = from_bytes(column.iceberg_type, bound)
            order = (lambda x: x.encode()) if isinstance(value, str) else (lambda x: x)
            known = extreme(here, key=order)
            assert extreme([value, known], key=order) == value, (ducklake_type, text)
            if not cut:
                assert value == known, (ducklake_type, text)
                if value:  # DuckDB has one zero, Iceberg two
                    assert to_bytes(column.iceberg_type, known) == bound
            # the bytes that an Iceberg writer has for the same value give DuckLake's own text back
            written = to_bytes(column.iceberg_type, known)
            file_text = least if extreme is min else most
            # DuckLake cuts, too, at 256 bytes
            if not inlined and len(file_text.encode()) < 250 and ducklake_type != "float32":
                assert stats_text(ducklake_type, written) == ("0.0" if file_text == "-0.0" else file_text)


def test_files_written_before_a_float_became_a_double_have_no_wrong_bounds(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE lake.main.single (x FLOAT)")
    db.execute("INSERT INTO lake.main.single SELECT 1.1 FROM range(20)")
    db.execute("ALTER TABLE lake.main.single ALTER x TYPE DOUBLE")
    stats = lake.sql(
        "SELECT column_type, s.max_value FROM ducklake_table t JOIN ducklake_column c USING (table_id) "
        "JOIN ducklake_file_column_stats s USING (table_id, column_id) "
        "WHERE table_name = 'single' AND c.end_snapshot IS NULL"
    )
    assert stats == [("float64", "1.1")]
    assert db.execute("SELECT list(x)[1] > 1.1::DOUBLE FROM lake.main.single").fetchall() == [(True,)]
    assert upper_bound("float64", "1.1", retyped=True) is None


def test_duckdb_finds_rows_by_the_statistics_texts_that_mergus_writes(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    """It skips a file whose statistic it cannot parse, so a text that it reads otherwise would lose the row."""
    db.execute("USE lake.main")
    db.execute("SET TimeZone = 'America/New_York'")
    _fill(db, "found", _rows("single found"), inlined=False)
    ours = {}
    for i, column in enumerate(COLUMNS):
        ((raw,),) = db.execute(f"SELECT {column.raw.format(f'c{i}')} FROM found").fetchall()
        text = stats_text(column.ducklake_type, to_bytes(column.iceberg_type, column.value(raw)))
        assert text is not None
        ours[f"c{i}"] = text
    for name, text in ours.items():
        lake.sql(
            "UPDATE ducklake_file_column_stats s SET min_value = %s, max_value = %s FROM ducklake_column c, "
            "ducklake_table t WHERE t.table_id = s.table_id AND c.table_id = s.table_id AND c.column_id = s.column_id "
            "AND table_name = 'found' AND column_name = %s",
            text,
            text,
            name,
        )
    found = ", ".join(f"(SELECT count(*) FROM found WHERE {n} = (SELECT {n} FROM found))" for n in ours)
    row = _rows("single found")[0]
    literal = [f"c{i} = CAST({v} AS {c.sql_type})" for i, (v, c) in enumerate(zip(row, COLUMNS, strict=True))]
    by_literal = ", ".join(f"(SELECT count(*) FROM found WHERE {one})" for one in literal)
    assert set(db.execute(f"SELECT {found}, {by_literal}").fetchall()[0]) == {1}
