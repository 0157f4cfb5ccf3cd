"""CREATE TABLE through our own rows: the rows that DuckDB writes, and a table that every DuckDB session can use."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import duckdb
import pytest

from mergus.ducklake import alter, partitions, tables
from mergus.ducklake.column_changes import created
from mergus.ducklake.commit import Commit, CommitInfo, commit
from mergus.ducklake.connect import open_pool
from mergus.ducklake.sort_expressions import by_column
from mergus.iceberg.schema import Field, List, Map, Schema, Struct, Type
from tests.support import lakes
from tests.support.ddl import find_schema, in_commit, rows, table_id
from tests.support.lakes import TestLake


async def create(tx: Commit, name: str, schema: Schema, namespace: str = "main") -> int:
    table = await tables.create(tx, await find_schema(tx, namespace), name, uuid4())
    await alter.write_columns(tx, table, created(schema), is_new=True)
    return table


def fields(*given: tuple[str, Type]) -> Schema:
    return Schema(tuple(Field(i, name, kind) for i, (name, kind) in enumerate(given, 1)))


@dataclass
class Case:
    theirs: str
    ours: Schema
    values: str


CASES = {
    "primitives": Case(
        "a BOOLEAN, b INTEGER, c BIGINT, d FLOAT, e DOUBLE, f DECIMAL(10,2), g DATE, h TIME, i TIMESTAMP, "
        "j TIMESTAMPTZ, k TIMESTAMP_NS, l VARCHAR, m BLOB, n UUID, o DECIMAL(38,0)",
        fields(
            *[("a", "boolean"), ("b", "int"), ("c", "long"), ("d", "float"), ("e", "double"), ("f", "decimal(10, 2)")],
            *[("g", "date"), ("h", "time"), ("i", "timestamp"), ("j", "timestamptz"), ("k", "timestamp_ns")],
            *[("l", "string"), ("m", "binary"), ("n", "uuid"), ("o", "decimal(38,0)")],
        ),
        "true, 1, 2, 3.5, 4.5, 5.25, '2020-01-02', '03:04:05', '2020-01-02 03:04:05', '2020-01-02 03:04:05+00', "
        "'2020-01-02 03:04:05.123456789', 'x', '\\xAA', '7e0eb7ad-8c0d-4f3e-8b3f-0123456789ab', 6",
    ),
    "variant": Case("a VARIANT, b INTEGER", fields(("a", "variant"), ("b", "int")), "'x'::VARIANT, 1"),
    "geometry": Case(
        "a INTEGER, b STRUCT(g GEOMETRY)",
        fields(("a", "int"), ("b", Struct((Field(3, "g", "geometry(OGC:CRS84)"),)))),
        "1, NULL",
    ),
    "required": Case(
        "a INTEGER NOT NULL, b STRUCT(c INTEGER) NOT NULL",
        Schema((Field(1, "a", "int", True), Field(2, "b", Struct((Field(3, "c", "int", True),)), True))),
        "1, {'c': 2}",
    ),
    # ids as DuckDB gives them, each column with all of its parts before the next one
    "nested": Case(
        "a STRUCT(b INTEGER, c STRUCT(d VARCHAR)[]), e MAP(VARCHAR, STRUCT(f DOUBLE)), g INTEGER[][]",
        Schema(
            (
                Field(
                    1,
                    "a",
                    Struct(
                        (
                            Field(2, "b", "int"),
                            Field(3, "c", List(Field(4, "item", Struct((Field(5, "d", "string"),))))),
                        )
                    ),
                ),
                Field(6, "e", Map(Field(7, "k", "string", True), Field(8, "v", Struct((Field(9, "f", "double"),))))),
                Field(10, "g", List(Field(11, "x", List(Field(12, "y", "int"))))),
            )
        ),
        "{'b': 1, 'c': [{'d': 'x'}]}, MAP {'k': {'f': 2.5}}, [[3], NULL]",
    ),
    "defaults": Case(
        "a INTEGER DEFAULT 42, b VARCHAR DEFAULT 'it''s', c DATE DEFAULT '2020-01-02', d BOOLEAN DEFAULT 'true', "
        "e BLOB DEFAULT '\\xAAb', f DECIMAL(4,2) DEFAULT '1.50'",
        Schema(
            (
                Field(1, "a", "int", initial_default=42, write_default=42),
                Field(2, "b", "string", initial_default="it's", write_default="it's"),
                Field(3, "c", "date", initial_default="2020-01-02", write_default="2020-01-02"),
                Field(4, "d", "boolean", initial_default=True, write_default=True),
                Field(5, "e", "binary", initial_default="aa62", write_default="aa62"),
                Field(6, "f", "decimal(4, 2)", initial_default="1.50", write_default="1.50"),
            )
        ),
        "DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT",
    ),
    "names": Case(
        '"Mixed" INTEGER, "Select" INTEGER, "a ""%b" INTEGER, "Größe" INTEGER, "9x" INTEGER, "a.b" INTEGER, '
        '"Year" DATE',
        fields(
            *[("Mixed", "int"), ("Select", "int"), ('a "%b', "int"), ("Größe", "int"), ("9x", "int"), ("a.b", "int")],
            ("Year", "date"),
        ),
        "1, 2, 3, 4, 5, 6, '2020-01-02'",
    ),
    "we,ird": Case("a INTEGER", fields(("a", "int")), "1"),
}


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[TestLake, TestLake]]:
    """Two lakes in which the same things happen: in the first by DuckDB alone, in the second by us."""
    with lakes.lake() as theirs, lakes.lake() as ours:
        yield theirs, ours


@pytest.mark.parametrize("name", CASES)
def test_create_table_writes_the_same_catalog_rows_as_duckdb(name: str, pair: tuple[TestLake, TestLake]) -> None:
    case, (theirs, ours) = CASES[name], pair
    with theirs.duckdb() as their_session, ours.duckdb() as our_session:
        their_session.execute(f'CREATE TABLE "{name}"({case.theirs})')
        made = in_commit(ours, lambda tx: create(tx, name, case.ours))
        assert rows(ours, made) == rows(theirs, made)
        found: list[list[object]] = []
        for session in (their_session, our_session):
            for count in (1, 20):
                session.execute(f'INSERT INTO "{name}" VALUES {", ".join([f"({case.values})"] * count)}')
            session.execute("CALL ducklake_flush_inlined_data('lake')")
            kinds = session.execute(f'DESCRIBE "{name}"').fetchall()
            values = session.execute(f'SELECT DISTINCT COLUMNS(*)::VARCHAR FROM "{name}"').fetchall()
            found.append([kinds, values, session.execute(f'SELECT count(*) FROM "{name}"').fetchall()])
        assert found[0] == found[1]
        assert rows(ours, made) == rows(theirs, made)


def test_one_commit_creates_a_table_with_partitioning_sort_order_and_comments(pair: tuple[TestLake, TestLake]) -> None:
    theirs, ours = pair
    with theirs.duckdb() as session:
        for statement in (
            *("BEGIN", "CREATE TABLE whole(a INTEGER, d DATE)", "ALTER TABLE whole SET PARTITIONED BY (a)"),
            *(
                "ALTER TABLE whole SET SORTED BY (d)",
                "COMMENT ON TABLE whole IS 'x'",
                "COMMENT ON COLUMN whole.a IS 'y'",
            ),
            "COMMIT",
        ):
            session.execute(statement)

    async def work(tx: Commit) -> int:
        made = await create(tx, "whole", Schema((Field(1, "a", "int", doc="y"), Field(2, "d", "date"))))
        await alter.set_partitioning(tx, made, [partitions.Key(1, "identity")])
        await alter.set_sort(tx, made, [by_column("d", "asc", "nulls-last")])
        await alter.set_comment(tx, made, "x")
        return made

    made = in_commit(ours, work)
    assert rows(ours, made) == rows(theirs, made)


def test_field_ids_may_be_numbered_level_by_level(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    """As Iceberg's own libraries number them."""
    inner = Struct((Field(4, "x", "int"), Field(5, "y", Struct((Field(7, "z", "int"),)))))
    schema = Schema((Field(1, "a", inner), Field(2, "b", List(Field(6, "element", "int"))), Field(3, "c", "int")))
    in_commit(lake, lambda tx: create(tx, "levels", schema))
    for count in (1, 20):
        db.execute(f"INSERT INTO levels SELECT {{'x': 1, 'y': {{'z': 2}}}}, [3], 4 FROM range({count})")
    db.execute("CALL ducklake_flush_inlined_data('lake')")
    db.execute("ALTER TABLE levels ADD COLUMN a.q INTEGER")
    for session in (db, lake.duckdb()):
        found = session.execute("SELECT DISTINCT * FROM levels").fetchall()
        assert found == [({"x": 1, "y": {"z": 2}, "q": None}, [3], 4)]


def test_the_doc_of_a_nested_field_does_not_break_the_table_in_duckdb(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    schema = Schema((Field(1, "a", Struct((Field(2, "x", "int", doc="of DuckDB's columns none has it"),))),))
    in_commit(lake, lambda tx: create(tx, "documented", schema))
    db.execute("INSERT INTO documented VALUES ({'x': 1})")
    db.execute("ALTER TABLE documented ADD COLUMN n INTEGER")
    assert db.execute("FROM documented").fetchall() == [({"x": 1}, None)]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [("CREATE TABLE {}(i INTEGER)", "table {}"), ("CREATE VIEW {} AS SELECT 1", "view {}")],
)
def test_h40_a_name_clash_with_a_table_or_view_is_found_in_any_case(
    statement: str, expected: str, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    name = f"Clash_{statement.split()[1]}_ü"
    db.execute(statement.format(f'"{name}"'))

    async def clash(tx: Commit, wanted: str, namespace: str = "main") -> str | None:
        return await tables.find_clash(tx.conn, (await find_schema(tx, namespace)).schema_id, wanted)

    assert in_commit(lake, lambda tx: clash(tx, name)) == expected.format(name)
    assert in_commit(lake, lambda tx: clash(tx, name.swapcase().replace("Ü", "ü"))) == expected.format(name)
    # other letters are no matter of case to DuckDB
    assert in_commit(lake, lambda tx: clash(tx, name.replace("ü", "Ü"))) is None
    db.execute(f'CREATE SCHEMA "of_{name}"')
    assert in_commit(lake, lambda tx: clash(tx, name, f"of_{name}")) is None
    db.execute(f'DROP {statement.split()[1]} "{name}"')
    assert in_commit(lake, lambda tx: clash(tx, name)) is None


def test_h40_one_of_two_concurrent_creations_of_a_table_name_succeeds(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("BEGIN")
    db.execute("CREATE TABLE race(i INTEGER)")
    in_commit(lake, lambda tx: create(tx, "race", fields(("i", "int"))))
    with pytest.raises(duckdb.TransactionException, match="conflict"):
        db.execute("COMMIT")
    live = lake.sql("SELECT count(*) FROM ducklake_table WHERE table_name = 'race' AND end_snapshot IS NULL")
    assert live == [(1,)]

    async def second() -> str | None:
        async with open_pool(lake.settings) as pool, commit(pool, CommitInfo()) as tx:
            return await tables.find_clash(tx.conn, (await find_schema(tx)).schema_id, "RACE")

    assert asyncio.run(second()) == "table race"
    db.execute("INSERT INTO race VALUES (1)")
    assert db.execute("FROM race").fetchall() == [(1,)]
    assert table_id(lake, "race")
