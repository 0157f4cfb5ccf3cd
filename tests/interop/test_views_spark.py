"""Views in Spark SQL: made, read, replaced, altered, listed and dropped; and what Spark says to those of DuckDB's."""

from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from pyspark.errors import AnalysisException

from tests.support import spark as sparks
from tests.support import views
from tests.support.lakes import TestLake
from tests.support.servers import Server

pytestmark = pytest.mark.xdist_group("spark")

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


def test_a_view_of_sparks(ask: Ask, server: Server, db: duckdb.DuckDBPyConnection) -> None:
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


def test_a_view_that_both_read(ask: Ask, server: Server, db: duckdb.DuckDBPyConnection) -> None:
    text = "SELECT id, name FROM s.t WHERE id < 3"
    fields = [{**f, "name": n} for f, n in zip(views.FIELDS, ("id", "name"), strict=True)]
    body = {**views.wanted("s", "both", duckdb=text, spark=text), "schema": {**views.SCHEMA, "fields": fields}}
    views.answered(server.http.post(views.url(server, "s"), json=body))
    assert ask("SELECT * FROM {c}.s.both ORDER BY id") == db.execute("FROM s.both ORDER BY id").fetchall()
    # Spark's text alone is replaced only by who says that DuckDB's may go
    with pytest.raises(Exception, match="loss of view dialects"):
        ask("CREATE OR REPLACE VIEW {c}.s.both AS SELECT 1 AS x")
    assert db.execute("SELECT count(*) FROM s.both").fetchall() == [(2,)]


def test_spark_refuses_the_words_of_duckdb(ask: Ask, db: duckdb.DuckDBPyConnection) -> None:
    """Iceberg's library takes another dialect where a view has no text in the one that it looks for: Spark refuses what
    it cannot parse, and reads what it can."""
    db.execute("CREATE VIEW s.theirs AS SELECT * EXCLUDE (name) FROM t")
    db.execute("CREATE VIEW s.plain AS SELECT id FROM t WHERE id = 1")
    assert [row[1] for row in ask("SHOW VIEWS IN {c}.s") if row[1] in {"plain", "theirs"}] == ["plain", "theirs"]
    with pytest.raises(AnalysisException, match=r"Invalid view name: .*theirs"):
        ask("SELECT * FROM {c}.s.theirs")
    assert ask("SELECT * FROM {c}.s.plain") == [(1,)]
    ask("DROP VIEW {c}.s.theirs")
    with pytest.raises(duckdb.CatalogException):
        db.execute("FROM s.theirs")


def test_spark_tells_why_a_view_cannot_be_shown(ask: Ask, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE VIEW s.pause AS SELECT INTERVAL 1 DAY AS pause")
    with pytest.raises(Exception, match="column pause of type INTERVAL: Iceberg has no such type"):
        ask("SELECT * FROM {c}.s.pause")
    db.execute("DROP VIEW s.pause")
