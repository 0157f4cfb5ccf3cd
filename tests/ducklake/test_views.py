"""Rows of views as DuckDB writes them, texts as its parser has them, columns as its binder finds them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import duckdb
import pytest

from mergus.ducklake import schemas, view_sql, views
from mergus.ducklake.columns import Unrepresentable
from mergus.ducklake.commit import Commit, CommitInfo, commit
from mergus.ducklake.connect import open_pool
from mergus.ducklake.schemas import Schema
from mergus.ducklake.view_columns import BrokenView, Describer, schema_of
from mergus.ducklake.views import View
from mergus.iceberg.schema import schema_json
from tests.support import lakes
from tests.support.lakes import TestLake

ROWS = """
    SELECT view_id, begin_snapshot, end_snapshot, schema_id, view_name, dialect, sql, column_aliases
    FROM ducklake_view ORDER BY view_id, begin_snapshot
"""
TAGS = "SELECT * FROM ducklake_tag ORDER BY 1, 2"
Step = Callable[[Commit, Schema], Awaitable[None]]


def do(lake: TestLake, *steps: Step) -> None:
    """Each in a commit of its own."""

    async def run() -> None:
        async with open_pool(lake.settings) as pool:
            for step in steps:
                async with commit(pool, CommitInfo()) as tx:
                    schema = await schemas.find(tx.conn, "s")
                    assert schema is not None
                    await step(tx, schema)

    asyncio.run(run())


async def found(tx: Commit, schema: Schema, name: str) -> View:
    view = await views.find(tx.conn, schema.schema_id, name)
    assert view is not None
    return view


@pytest.mark.integration
def test_changes_of_views_write_the_same_catalog_rows_as_duckdb() -> None:
    async def create(tx: Commit, schema: Schema) -> None:
        await views.create(tx, schema, 'v "q"', uuid4(), "SELECT 1 AS a", None)

    async def told(tx: Commit, schema: Schema) -> None:
        await views.create(tx, schema, "told", uuid4(), "SELECT 2 AS a", "why")

    async def comment(tx: Commit, schema: Schema) -> None:
        await views.set_comment(tx, await found(tx, schema, 'v "q"'), "one")

    async def again(tx: Commit, schema: Schema) -> None:
        await views.set_comment(tx, await found(tx, schema, 'v "q"'), None)

    async def rename(tx: Commit, schema: Schema) -> None:
        await views.rename(tx, await found(tx, schema, 'v "q"'), schema, "w")

    async def replace(tx: Commit, schema: Schema) -> None:
        was = await found(tx, schema, "told")
        await views.drop(tx, was)
        await views.create(tx, schema, "told", was.uuid, "SELECT 3 AS a", None)

    async def drop(tx: Commit, schema: Schema) -> None:
        await views.drop(tx, await found(tx, schema, "w"))

    with lakes.lake() as theirs, lakes.lake() as ours:
        session = theirs.duckdb()
        for statement in (
            "CREATE SCHEMA s",
            'CREATE VIEW s."v ""q""" AS SELECT 1 AS a',
            "BEGIN; CREATE VIEW s.told AS SELECT 2 AS a; COMMENT ON VIEW s.told IS 'why'; COMMIT",
            'COMMENT ON VIEW s."v ""q""" IS \'one\'',
            'COMMENT ON VIEW s."v ""q""" IS NULL',
            'ALTER VIEW s."v ""q""" RENAME TO w',
            "CREATE OR REPLACE VIEW s.told AS SELECT 3 AS a",
            "DROP VIEW s.w",
        ):
            session.execute(statement)
        ours.duckdb().execute("CREATE SCHEMA s")
        do(ours, create, told, comment, again, rename, replace, drop)
        assert ours.sound_snapshots() == theirs.snapshots()
        assert ours.sql(ROWS) == theirs.sql(ROWS)
        assert ours.sql(TAGS) == theirs.sql(TAGS)
        for lake in (theirs, ours):
            assert lake.duckdb().execute("FROM s.told").fetchall() == [(3,)]


def test_a_view_made_by_duckdb_is_shown_without_the_catalog_name(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA IF NOT EXISTS s; CREATE TABLE s.t (i INTEGER, j INTEGER); INSERT INTO s.t VALUES (1, 2)")
    db.execute('CREATE VIEW s.plain AS SELECT i FROM lake.s.t; CREATE VIEW s.named(a, "b ""q") AS FROM lake.s.t')
    shown: dict[str, str] = {}

    async def look(tx: Commit, schema: Schema) -> None:
        shown.update({name: (await found(tx, schema, name)).shown_sql for name in ("plain", "named")})

    do(lake, look)
    assert "DUCKLAKE" not in "".join(shown.values())
    for name, sql in shown.items():
        direct, through = db.sql(f"FROM s.{name}"), db.sql(sql)
        assert (through.columns, through.fetchall()) == (direct.columns, direct.fetchall())


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "select 1;",
        "FROM t",
        "VALUES (1, 2)",
        "WITH c AS (SELECT 1) SELECT * FROM c",
        "SELECT 1 UNION ALL SELECT 2",
        "SELECT 1 -- why",
        "SELECT * FROM {DUCKLAKE_CATALOG}.s.t",
        "SELECT '$1'",
    ],
)
def test_a_single_select_is_accepted_as_view_sql(sql: str) -> None:
    view_sql.check(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "",
        ";",
        "-- nothing",
        "SELECT (",
        "SELECT 1; SELECT 2",
        "DROP TABLE t",
        "INSERT INTO t VALUES (1)",
        "COPY t TO '/tmp/x'",
        "ATTACH 'x'",
        "SELECT ?",
        "SELECT $name",
        "PIVOT t ON j USING sum(i)",
        "EXPLAIN SELECT 1",
    ],
)
def test_anything_but_a_single_select_is_refused_as_view_sql(sql: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        view_sql.check(sql)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT * FROM t", ["t"]),
        ("SELECT * FROM s.t, lake.s.u, {DUCKLAKE_CATALOG}.s.w", []),
        ("WITH c AS (FROM t) SELECT * FROM C JOIN s.u ON true", ["t"]),
        ("SELECT (SELECT max(i) FROM a), * FROM (FROM b) WHERE EXISTS (FROM c) UNION ALL FROM d", ["a", "b", "c", "d"]),
        ("SELECT * FROM range(3)", []),
        ("SUMMARIZE t", ["t"]),
    ],
)
def test_unqualified_table_names_in_view_sql_are_found(sql: str, names: list[str]) -> None:
    assert view_sql.unqualified_names(sql) == names


def types(sql: str) -> list[Any]:
    with duckdb.connect() as session:
        found = session.sql(sql)
        return [f["type"] for f in schema_json(schema_of(found.columns, list(found.types)), 0)["fields"]]


def test_result_columns_of_a_view_have_iceberg_types() -> None:
    assert types(
        """SELECT true, 1::TINYINT, 1::UINTEGER, 1::UBIGINT, sum(1), 1.5::DECIMAL(5, 2), 1::FLOAT, 1::DOUBLE, 'x',
                  'x'::BLOB, DATE '2020-01-01', TIME '01:00', TIMESTAMP '2020-01-01', TIMESTAMP_MS '2020-01-01',
                  TIMESTAMP_NS '2020-01-01', TIMESTAMPTZ '2020-01-01', uuid(), 'a'::ENUM('a', 'b'), NULL"""
    ) == [
        *("boolean", "int", "long", "decimal(20, 0)", "decimal(38, 0)", "decimal(5, 2)", "float", "double", "string"),
        *("binary", "date", "time", "timestamp", "timestamp", "timestamp_ns", "timestamptz", "uuid", "string", "int"),
    ]


def test_nested_result_types_of_a_view_have_field_ids() -> None:
    (found,) = types("SELECT {'a': [1], 'b': MAP {'x': 2::BIGINT}} AS n")
    assert found == {
        "type": "struct",
        "fields": [
            {
                "id": 2,
                "name": "a",
                "required": False,
                "type": {"type": "list", "element-id": 4, "element-required": False, "element": "int"},
            },
            {
                "id": 3,
                "name": "b",
                "required": False,
                "type": {
                    "type": "map",
                    "key-id": 5,
                    "key": "string",
                    "value-id": 6,
                    "value-required": False,
                    "value": "long",
                },
            },
        ],
    }


@pytest.mark.parametrize("value", ["INTERVAL 1 DAY", "1::UHUGEINT", "'1'::BIT", "[INTERVAL 1 DAY]", "{'a': 1::BIT}"])
def test_a_result_column_without_an_iceberg_type_is_refused_with_its_name(value: str) -> None:
    with pytest.raises(Unrepresentable, match="column x"):
        types(f"SELECT {value} AS x")


def test_describing_a_view_reads_nothing_outside_the_lake(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA IF NOT EXISTS d; CREATE TABLE d.t (i INTEGER, s VARCHAR)")
    db.execute("CREATE VIEW d.good AS SELECT sum(i) AS n, s FROM t GROUP BY ALL")
    db.execute("CREATE VIEW d.hosts AS SELECT * FROM read_text('/etc/hosts')")
    db.execute("CREATE VIEW d.fails AS SELECT error('ran') AS x")
    describer = Describer(lake.settings)
    good = describer.describe("d", "good")
    assert [(f.name, f.type) for f in good.schema.fields] == [("n", "decimal(38, 0)"), ("s", "string")]
    with pytest.raises(BrokenView, match="disabled by configuration"):
        describer.describe("d", "hosts")
    assert [f.name for f in describer.describe("d", "fails").schema.fields] == ["x"]
    # nor then
    then = lake.snapshots()[-1][0]
    with pytest.raises(BrokenView, match="disabled by configuration"):
        describer.describe("d", "hosts", then)
    assert [f.name for f in describer.describe("d", "fails", then).schema.fields] == ["x"]
    with pytest.raises(BrokenView, match="does not exist"):
        describer.describe("d", "nothing")
    # what the session keeps open holds nobody up
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
    db.close()
    assert lake.sql(waiting) == [(0,)]
    # it looks again, and at what is there now
    other = lake.duckdb()
    other.execute("CREATE OR REPLACE VIEW d.good AS SELECT 1 AS a")
    assert [f.name for f in describer.describe("d", "good").schema.fields] == ["a"]
    assert describer.describe("d", "good", then) == good
    # its connections are cut, and it opens others
    lake.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    assert [f.name for f in describer.describe("d", "good").schema.fields] == ["a"]
    describer.close()
