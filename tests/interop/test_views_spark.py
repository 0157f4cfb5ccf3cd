"""Views in Spark SQL: made, read, replaced, altered, listed and dropped; and those of DuckDB's, of which Spark has the
rows that DuckDB has, or none."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.errors import AnalysisException

from mergus.ducklake.session import attach
from tests.support import spark as sparks
from tests.support import views
from tests.support.lakes import TestLake
from tests.support.servers import Server
from tests.support.view_queries import CERTAIN, ROWS, TABLES, UNCERTAIN, in_q, queries

Ask = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def ask(lake: TestLake, server: Server) -> Ask:
    """Spark SQL in the namespace s, where {c} is the catalog."""
    name = sparks.catalog(lake.settings, server.uri)

    def run(sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in sparks.session().sql(sql.format(c=name)).collect()]

    run("CREATE NAMESPACE {c}.s")
    run("CREATE TABLE {c}.s.t (id INT, name STRING) USING iceberg")
    run("INSERT INTO {c}.s.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    return run


def test_spark_creates_reads_and_replaces_a_view(ask: Ask, server: Server, db: duckdb.DuckDBPyConnection) -> None:
    ask("CREATE VIEW {c}.s.v (number COMMENT 'its id', name) COMMENT 'some' TBLPROPERTIES ('a' = '1') AS "
        "SELECT id, name FROM {c}.s.t WHERE id > 1")  # fmt: skip
    assert ask("SELECT number, name FROM {c}.s.v ORDER BY 1") == [(2, "b"), (3, "c")]
    made = views.load(server, "s", "v")
    assert made["properties"]["a"] == "1"
    assert made["properties"]["comment"] == "some"
    assert [(f["name"], f.get("doc")) for f in made["schemas"][0]["fields"]] == [("number", "its id"), ("name", None)]
    # rows that DuckDB adds are seen through it
    db.execute("INSERT INTO s.t VALUES (4, 'd')")
    ask("REFRESH TABLE {c}.s.t")
    assert ask("SELECT count(*) FROM {c}.s.v") == [(3,)]
    with pytest.raises(Exception, match="already exists"):
        ask("CREATE VIEW {c}.s.v AS SELECT 1 AS x")
    with pytest.raises(Exception, match=r"(?i)already exists"):
        ask("CREATE TABLE {c}.s.v (i INT) USING iceberg")
    ask("CREATE VIEW IF NOT EXISTS {c}.s.v AS SELECT 1 AS x")
    ask("CREATE OR REPLACE VIEW {c}.s.v AS SELECT max(id) AS top FROM {c}.s.t")
    assert ask("SELECT * FROM {c}.s.v") == [(4,)]
    replaced = views.load(server, "s", "v")
    assert replaced["view-uuid"] == made["view-uuid"]
    assert [v["version-id"] for v in replaced["versions"]] == [1, 2]
    ask("ALTER VIEW {c}.s.v SET TBLPROPERTIES ('k' = 'v', 'gone' = 'x')")
    ask("ALTER VIEW {c}.s.v UNSET TBLPROPERTIES ('gone')")
    assert ("k", "v") in ask("SHOW TBLPROPERTIES {c}.s.v")
    assert "gone" not in views.load(server, "s", "v")["properties"]
    assert [row[1] for row in ask("SHOW VIEWS IN {c}.s")] == ["v"]
    assert [row[1] for row in ask("SHOW TABLES IN {c}.s")] == ["t"]
    assert "max(id)" in ask("SHOW CREATE TABLE {c}.s.v")[0][0]
    assert [row[:2] for row in ask("DESCRIBE {c}.s.v")] == [("top", "int")]
    ask("ALTER VIEW {c}.s.v RENAME TO {c}.s.w")
    assert ask("SELECT * FROM {c}.s.w") == [(4,)]
    ask("DROP VIEW {c}.s.w")
    ask("DROP VIEW IF EXISTS {c}.s.w")
    assert views.names(server, "s") == []
    with pytest.raises(Exception, match=r"(?i)not found|cannot be found"):
        ask("SELECT * FROM {c}.s.w")


def test_a_view_with_both_dialects_is_read_by_spark_and_duckdb(
    ask: Ask, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    text = "SELECT id, name FROM s.t WHERE id < 3"
    fields = [{**f, "name": n} for f, n in zip(views.FIELDS, ("id", "name"), strict=True)]
    body = {**views.wanted("s", "both", duckdb=text, spark=text), "schema": {**views.SCHEMA, "fields": fields}}
    views.answered(server.http.post(views.url(server, "s"), json=body))
    assert ask("SELECT * FROM {c}.s.both ORDER BY id") == db.execute("FROM s.both ORDER BY id").fetchall()
    # Spark's text alone is replaced only by who says that DuckDB's may go
    with pytest.raises(Exception, match="loss of view dialects"):
        ask("CREATE OR REPLACE VIEW {c}.s.both AS SELECT 1 AS x")
    assert db.execute("SELECT count(*) FROM s.both").fetchall() == [(2,)]


def test_spark_reads_the_values_of_a_view_column_that_duckdb_quotes(ask: Ask, db: duckdb.DuckDBPyConnection) -> None:
    """DuckDB writes `"name"`, which is a text to Spark: every row would read `name`."""
    db.execute("CREATE VIEW s.plain AS SELECT id, name FROM t WHERE id = 1")
    assert ask("SELECT * FROM {c}.s.plain") == [(1, "a")]


def test_spark_refuses_a_view_that_has_no_certain_translation(ask: Ask, db: duckdb.DuckDBPyConnection) -> None:
    """It says why, and gives no rows whatever is asked; the view can be listed, described and dropped all the same."""
    db.execute("CREATE VIEW s.theirs AS SELECT id, upper(name) AS big FROM t")
    for query in ("SELECT *", "SELECT count(*)", "SELECT 1", "SELECT id"):
        with pytest.raises(AnalysisException, match=r"View s.theirs is written for DuckDB .* the function upper\(\)"):
            ask(f"{query} FROM {{c}}.s.theirs")
    assert "theirs" in [row[1] for row in ask("SHOW VIEWS IN {c}.s")]
    assert [row[:2] for row in ask("DESCRIBE {c}.s.theirs")] == [("id", "int"), ("big", "string")]
    ask("ALTER VIEW {c}.s.theirs SET TBLPROPERTIES ('k' = 'v')")
    with pytest.raises(Exception, match="loss of view dialects"):
        ask("CREATE OR REPLACE VIEW {c}.s.theirs AS SELECT 1 AS x")
    ask("DROP VIEW {c}.s.theirs")
    with pytest.raises(duckdb.CatalogException):
        db.execute("FROM s.theirs")


@dataclass(frozen=True)
class Both:
    """A DuckDB session and a Spark catalog on one lake."""

    db: duckdb.DuckDBPyConnection
    catalog: str

    def make(self, query: str, view: str = "q.v") -> None:
        self.db.execute(f"CREATE OR REPLACE VIEW {view} AS {query}")

    def agree(self, view: str = "q.v", catalog: str | None = None, db: duckdb.DuckDBPyConnection | None = None) -> None:
        db = db or self.db
        found = db.sql(f"FROM {view}")
        kinds = list(zip(found.columns, map(str, found.types), strict=True))
        items = ", ".join(shown(name, kind, '"', "epoch_us") for name, kind in kinds)
        theirs = db.execute(f"SELECT {items} FROM {view}").fetchall()
        items, place = ", ".join(shown(name, kind, "`", "unix_micros") for name, kind in kinds), view.replace('"', "")
        spark = sparks.session().sql(f"SELECT {items} FROM {catalog or self.catalog}.{place}")
        assert values(spark.collect()) == values(theirs), view


@pytest.fixture(scope="module")
def both(lake: TestLake, server: Server) -> Iterator[Both]:
    name = sparks.catalog(lake.settings, server.uri)
    with lake.duckdb() as session:
        for statement in (f"CREATE SCHEMA q; {TABLES}; {ROWS}").split(";\n"):
            session.execute(in_q(statement))
        yield Both(session, name)


def shown(name: str, kind: str, quote: str, instant: str) -> str:
    """Instants are compared as numbers: a session's time zone is no part of them."""
    quoted = f"{quote}{name.replace(quote, quote * 2)}{quote}"
    return f"{instant}({quoted})" if kind == "TIMESTAMP WITH TIME ZONE" else quoted


def values(rows: Iterable[Iterable[Any]]) -> list[list[str]]:
    """In any order. A HUGEINT is a decimal elsewhere."""

    def text(value: object) -> str:
        is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
        return str(Decimal(value).normalize()) if is_number else repr(value)  # pyright: ignore[reportArgumentType]

    return sorted([text(value) for value in row] for row in rows)


@pytest.mark.parametrize("query", CERTAIN)
def test_spark_and_duckdb_return_the_same_rows_of_a_translatable_view(both: Both, query: str) -> None:
    both.make(in_q(query))
    both.agree()


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=queries())
def test_spark_and_duckdb_return_the_same_rows_of_any_generated_translatable_view(both: Both, query: str) -> None:
    both.make(in_q(query))
    both.agree()


@pytest.mark.parametrize("query", UNCERTAIN)
def test_spark_refuses_each_view_without_a_certain_translation(both: Both, query: str) -> None:
    both.make(in_q(query))
    with pytest.raises(AnalysisException, match=r"View q.v is written for DuckDB"):
        sparks.session().sql(f"SELECT count(*) FROM {both.catalog}.q.v").collect()


def test_spark_reads_views_of_views_and_views_across_nested_namespaces(both: Both) -> None:
    db = both.db
    db.execute('CREATE SCHEMA "deep.er"; CREATE TABLE "deep.er".own(id INTEGER, "Name" VARCHAR)')
    db.execute("""INSERT INTO "deep.er".own VALUES (1, 'one'), (3, 'three')""")
    text = 'SELECT own.id, t.name, own."Name" AS other FROM "deep.er".own JOIN q.t ON t.id = own.id'
    both.make(text, '"deep.er".first')
    both.make('SELECT other, id FROM "deep.er".FIRST WHERE id > 1', '"deep.er".second')
    both.make('SELECT * FROM "deep.er".second', "q.third")
    for view in ('"deep.er".first', '"deep.er".second', "q.third"):
        both.agree(view)
    # a view of one that is not certain has no rows, either
    both.make('SELECT lower("Name") AS small FROM "deep.er".own', '"deep.er".first')
    both.make('SELECT small FROM "deep.er".first', "q.third")
    with pytest.raises(AnalysisException, match=r"View deep.er.first is written for DuckDB"):
        sparks.session().sql(f"SELECT count(*) FROM {both.catalog}.q.third").collect()
    # a view with names of its own for columns
    db.execute('CREATE VIEW q.named("The Id", "select") AS SELECT id, "order" FROM q.u')
    both.agree("q.named")


def test_spark_refuses_a_view_that_calls_a_function_shadowed_by_a_macro(both: Both) -> None:
    both.make("SELECT length(name) AS n FROM q.t", "q.measured")
    both.agree("q.measured")
    both.db.execute("CREATE MACRO q.length(s) AS 7")
    try:
        with pytest.raises(AnalysisException, match=r"the lake has a macro length\(\)"):
            sparks.session().sql(f"SELECT count(*) FROM {both.catalog}.q.measured").collect()
    finally:
        both.db.execute("DROP MACRO q.length")


def test_spark_reads_views_at_a_past_snapshot_as_duckdb_does(both: Both, lake: TestLake, server: Server) -> None:
    both.db.execute("CREATE TABLE q.past(id INTEGER, name VARCHAR)")
    both.make('SELECT *, name AS "order" FROM q.past', "q.then")
    both.db.execute("INSERT INTO q.past VALUES (1, 'a'), (2, NULL)")
    at = lake.snapshots()[-1][0]
    both.db.execute("ALTER TABLE q.past RENAME name TO other; ALTER TABLE q.past ADD COLUMN more INTEGER")
    both.make('SELECT more, other AS "order" FROM q.past', "q.then")
    both.db.execute("INSERT INTO q.past VALUES (3, 'c', 5)")
    both.agree("q.then")
    name = sparks.catalog(lake.settings, server.uri)
    sparks.session().conf.set(f"spark.sql.catalog.{name}.warehouse", f"{lake.settings.prefix}@{at}")
    with attach(lake.settings, read_only=True, at=at) as then:
        assert then.sql("FROM q.then").columns == ["id", "name", "order"]
        both.agree("q.then", name, then)


def test_spark_reports_the_unsupported_column_type_of_a_view(ask: Ask, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE VIEW s.pause AS SELECT INTERVAL 1 DAY AS pause")
    with pytest.raises(Exception, match="column pause of type INTERVAL: Iceberg has no such type"):
        ask("SELECT * FROM {c}.s.pause")
    db.execute("DROP VIEW s.pause")
