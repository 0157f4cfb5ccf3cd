"""Texts of DuckDB's views for Spark and Trino: what is translated gives the same rows in DuckDB itself, with every
column of the same type; what is not certain is refused, and why. tests/interop/test_views_spark.py and test_trino.py
ask the engines."""

from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import given, settings

from mergus.catalog.view_dialects import parse_view
from mergus.ducklake.view_kinds import INT, Columns, Uncertain, kind_of
from mergus.ducklake.view_sql import canonical
from mergus.ducklake.view_translate import MOST_CHARACTERS, Relation, Tree, parse, translate, written
from mergus.ducklake.view_trino import write_for_trino
from tests.support.formats import LONG
from tests.support.lakes import one_thread
from tests.support.view_queries import CERTAIN, NOT_IN_TRINO, ROWS, TABLES, UNCERTAIN, queries

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def db() -> Iterator[duckdb.DuckDBPyConnection]:
    with one_thread(duckdb.connect()) as session:
        session.execute(f"CREATE SCHEMA s; {TABLES}; {ROWS}")
        yield session


def columns(db: duckdb.DuckDBPyConnection, query: str) -> Columns:
    found = db.sql(query)
    return tuple(zip(found.columns, map(kind_of, found.types), strict=True))


def view_of(db: duckdb.DuckDBPyConnection, query: str) -> str:
    """Its text as DuckDB keeps it."""
    db.execute(f"CREATE OR REPLACE VIEW s.v AS {query}")
    ((text,),) = db.execute("SELECT sql FROM duckdb_views() WHERE view_name = 'v'").fetchall()
    return text[text.index(" AS ") + 4 :].strip().rstrip(";")


def texts(db: duckdb.DuckDBPyConnection, query: str) -> dict[str, str]:
    """By dialect."""
    result = translated(db, query)
    return {dialect: written(result, dialect, lambda schema, name: [schema, name]) for dialect in ("spark", "duckdb")}


def translated(db: duckdb.DuckDBPyConnection, query: str) -> Tree:
    text = view_of(db, query)
    relations = {}
    for name in ("t", "u"):
        relations["s", name] = relations["", name] = Relation("s", name, columns(db, f"FROM s.{name}"))
    tree, _ = parse_view(text)
    return translate(tree, relations, columns(db, "FROM s.v"))


def rows(db: duckdb.DuckDBPyConnection, query: str) -> list[tuple[str, ...]]:
    # a HUGEINT has the same text as the decimal that it is elsewhere
    return sorted(tuple(map(str, row)) for row in db.execute(f"SELECT COLUMNS(*)::VARCHAR FROM ({query})").fetchall())


def agrees(db: duckdb.DuckDBPyConnection, query: str) -> None:
    same = texts(db, query)["duckdb"]
    assert columns(db, same) == columns(db, "FROM s.v")
    assert rows(db, same) == rows(db, "FROM s.v")


@pytest.mark.parametrize("query", CERTAIN)
def test_a_translated_query_returns_the_same_rows_and_columns_in_duckdb(
    db: duckdb.DuckDBPyConnection, query: str
) -> None:
    agrees(db, query)


@settings(max_examples=1000 if LONG else 300)
@given(query=queries())
def test_any_generated_translatable_query_returns_the_same_rows_in_duckdb(
    db: duckdb.DuckDBPyConnection, query: str
) -> None:
    agrees(db, query)


@pytest.mark.parametrize(("query", "reason"), UNCERTAIN.items())
def test_a_query_without_a_certain_translation_is_refused_with_the_reason(
    db: duckdb.DuckDBPyConnection, query: str, reason: str
) -> None:
    with pytest.raises(Uncertain, match=reason):
        texts(db, query)


def test_the_spark_text_uses_the_quoting_and_syntax_of_spark(db: duckdb.DuckDBPyConnection) -> None:
    def spark(query: str) -> str:
        return texts(db, query)["spark"]

    assert spark("SELECT id, name FROM s.t") == ("SELECT `t`.`id` AS `id`, `t`.`name` AS `name` FROM `s`.`t` AS `t`")
    assert spark(r"SELECT 'a\n''b' AS x") == r"SELECT 'a\\n\'b' AS `x`"
    assert spark('SELECT "Mixed ""Case" AS "a`b" FROM s.u') == (
        'SELECT `u`.`Mixed "Case` AS `a``b` FROM `s`.`u` AS `u`'
    )
    assert spark("SELECT id FROM s.t ORDER BY d DESC, p LIMIT 3").endswith(
        "ORDER BY `t`.`d` DESC, `t`.`p` ASC NULLS LAST LIMIT 3"
    )
    # a column is not cast where the number can be
    assert "`t`.`p` > CAST(1 AS DECIMAL(10, 2))" in spark("SELECT id FROM s.t WHERE p > 1")


@pytest.mark.parametrize("query", [query for query in CERTAIN if query not in NOT_IN_TRINO])
def test_the_trino_text_returns_the_same_rows_and_columns_in_duckdb(db: duckdb.DuckDBPyConnection, query: str) -> None:
    """DuckDB reads it, too."""
    same = write_for_trino(translated(db, query), "memory")
    assert columns(db, same) == columns(db, "FROM s.v")
    assert rows(db, same) == rows(db, "FROM s.v")


@pytest.mark.parametrize(
    "query",
    [
        *NOT_IN_TRINO,
        "SELECT id FROM s.t WHERE x IN (1, 2)",
        "SELECT id FROM s.t WHERE x BETWEEN p AND 2",
        "SELECT CASE WHEN coalesce(x, 0) = 1 THEN 1 ELSE 2 END AS c FROM s.t",
        "SELECT CASE x WHEN 1 THEN 1 ELSE 2 END AS c FROM s.t",
        "SELECT t.id FROM s.t JOIN s.t AS o ON t.x = o.x",
        "SELECT id FROM (SELECT id, x FROM s.t ORDER BY x LIMIT 2) AS v",
        "SELECT id FROM s.t WHERE CAST(id AS DOUBLE) < p",
    ],
)
def test_a_query_that_compares_values_that_may_be_nan_has_no_trino_text(
    db: duckdb.DuckDBPyConnection, query: str
) -> None:
    tree = translated(db, query)
    with pytest.raises(Uncertain, match="NaN"):
        write_for_trino(tree, "memory")


@pytest.mark.parametrize(
    ("schema", "name", "reason"),
    [
        ("s", "t$history", "a part of a table"),
        ("s", "t@1", "a part of a table"),
        ("s", "Ä", "other letters"),
        ("ä", "t", "other letters"),
        ("System", "t", "Trino's own"),
        ("information_schema", "tables", "Trino's own"),
    ],
)
def test_a_table_name_that_trino_would_resolve_otherwise_has_no_trino_text(schema: str, name: str, reason: str) -> None:
    relations = {("s", "t"): Relation(schema, name, (("x", INT),))}
    tree = translate(parse("SELECT x FROM s.t"), relations, (("x", INT),))
    with pytest.raises(Uncertain, match=reason):
        write_for_trino(tree, "lake")


def test_the_trino_text_uses_the_quoting_and_syntax_of_trino(db: duckdb.DuckDBPyConnection) -> None:
    def trino(query: str) -> str:
        return write_for_trino(translated(db, query), 'la"ke')

    assert trino("SELECT id, name FROM s.t") == (
        'SELECT "t"."id" AS "id", "t"."name" AS "name" FROM "la""ke"."s"."t" AS "t"'
    )
    assert trino(r"SELECT 'a\n''b' AS x") == r"SELECT 'a\n''b' AS " + '"x"'
    assert trino('SELECT "Mixed ""Case" AS "a`b" FROM s.u') == (
        'SELECT "u"."Mixed ""Case" AS "a`b" FROM "la""ke"."s"."u" AS "u"'
    )
    assert trino("SELECT id FROM s.t ORDER BY d DESC, p NULLS FIRST LIMIT 3").endswith(
        'ORDER BY "t"."d" DESC, "t"."p" ASC NULLS FIRST LIMIT 3'
    )
    assert "CAST('2024-01-01 10:00:00.123456' AS TIMESTAMP(6))" in trino(
        "SELECT id FROM s.t WHERE ts > '2024-01-01 10:00:00.123456'"
    )


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT {'CASE WHEN true THEN ' * 300}1{' END' * 300} AS x",
        f"SELECT {' + '.join(['1.5'] * 3000)} AS x",
        f"SELECT 1 AS x WHERE {' AND '.join(['(1 = 1)'] * 1400)}",
        "SELECT 'x" + "x" * MOST_CHARACTERS + "' AS x",
        "SELECT 1 AS x FROM",
        "SELECT 1 AS x; SELECT 2",
    ],
)
def test_a_query_that_is_too_large_or_too_deep_is_not_translated(text: str) -> None:
    for read in (parse, lambda sql: parse_view(sql)[0]):
        with pytest.raises(Uncertain):
            translate(read(text), {}, (("x", INT),))


def test_canonical_sql_is_refused_if_duckdb_would_parse_it_differently() -> None:
    assert canonical("select a from t where x or y and not z = 1") == ("SELECT a FROM t WHERE (x OR (y AND (z != 1)))")
    # written as 1000.0, which is a decimal
    with pytest.raises(ValueError, match="other words"):
        canonical("SELECT 1e3 AS x")
