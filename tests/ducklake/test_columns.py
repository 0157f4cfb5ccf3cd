"""Schemas of tables that DuckDB made and altered, at every snapshot."""

import asyncio

import duckdb
import pytest

from mergus.ducklake import columns
from mergus.ducklake.columns import Columns, Unrepresentable
from mergus.ducklake.connect import connection, open_pool
from mergus.ducklake.types import PRIMITIVES, REFUSED
from mergus.iceberg.schema import Field, List, Map, Schema, Struct
from tests.support.lakes import TestLake


def read(lake: TestLake, table: str) -> Columns:
    ((table_id,),) = lake.sql(
        "SELECT table_id FROM ducklake_table WHERE table_name = %s AND end_snapshot IS NULL", table
    )

    async def work() -> Columns:
        async with open_pool(lake.settings) as pool, connection(pool) as conn:
            return await columns.read(conn, table_id)

    return asyncio.run(work())


def now(lake: TestLake) -> int:
    return lake.snapshots()[-1][0]


def test_every_type_that_has_a_counterpart(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute(
        "CREATE TABLE all_types(bo BOOLEAN, i8 TINYINT, i16 SMALLINT, i32 INTEGER, i64 BIGINT, u8 UTINYINT, "
        "u16 USMALLINT, f FLOAT, d DOUBLE, de DECIMAL(10,2), da DATE, ti TIME, ts TIMESTAMP, tss TIMESTAMP_S, "
        "tsm TIMESTAMP_MS, tz TIMESTAMPTZ, v VARCHAR, j JSON, bl BLOB, u UUID)"
    )
    schema = read(lake, "all_types").schema_at(now(lake))
    assert {f.name: f.type for f in schema.fields} == {
        **{"bo": "boolean", "i8": "int", "i16": "int", "i32": "int", "i64": "long", "u8": "int", "u16": "int"},
        **{"f": "float", "d": "double", "de": "decimal(10, 2)", "da": "date", "ti": "time", "ts": "timestamp"},
        **{"tss": "timestamp", "tsm": "timestamp", "tz": "timestamptz", "v": "string", "j": "string"},
        **{"bl": "binary", "u": "uuid"},
    }
    assert [f.id for f in schema.fields] == list(range(1, 21))
    assert schema.format_version == 2


@pytest.mark.parametrize("kind", ["UINTEGER", "UBIGINT", "HUGEINT", "UHUGEINT", "TIMETZ", "INTERVAL"])
def test_h21_a_type_that_would_be_shown_wrong_is_refused_by_name(
    kind: str, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute(f"CREATE TABLE refused_{kind}(ok INTEGER, st STRUCT(inner_one {kind}))")
    with pytest.raises(Unrepresentable, match=r"column st\.inner_one of type \w+: .+"):
        read(lake, f"refused_{kind}").schema_at(now(lake))


def test_no_type_is_both_shown_and_refused() -> None:
    assert not PRIMITIVES.keys() & REFUSED.keys()


def test_nested_types_keep_their_ids_and_are_optional(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute(
        "CREATE TABLE nested(i INTEGER NOT NULL, l INTEGER[], s STRUCT(a INTEGER, b STRUCT(c VARCHAR)), "
        "m MAP(VARCHAR, STRUCT(x DATE)))"
    )
    assert read(lake, "nested").schema_at(now(lake)) == Schema(
        (
            Field(1, "i", "int", required=True),
            Field(2, "l", List(Field(3, "element", "int"))),
            Field(4, "s", Struct((Field(5, "a", "int"), Field(6, "b", Struct((Field(7, "c", "string"),)))))),
            Field(
                8,
                "m",
                Map(Field(9, "key", "string", required=True), Field(10, "value", Struct((Field(11, "x", "date"),)))),
            ),
        )
    )


def test_h15_a_nested_field_that_was_added_or_renamed_is_optional(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE grows(st STRUCT(a INTEGER))")
    db.execute("ALTER TABLE grows ADD COLUMN st.x INTEGER")
    db.execute("ALTER TABLE grows RENAME COLUMN st.a TO b")
    (field,) = read(lake, "grows").schema_at(now(lake)).fields
    assert {(f.name, f.required) for f in field.children} == {("b", False), ("x", False)}


def test_h13_a_column_dropped_and_added_again_is_another(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE again(i INTEGER, s VARCHAR)")
    first = now(lake)
    db.execute("ALTER TABLE again DROP COLUMN s")
    db.execute("ALTER TABLE again ADD COLUMN s INTEGER")
    db.execute("ALTER TABLE again RENAME COLUMN i TO j")
    found = read(lake, "again")
    assert [(f.id, f.name, f.type) for f in found.schema_at(now(lake)).fields] == [(1, "j", "int"), (3, "s", "int")]
    assert [[(f.id, f.name) for f in schema.fields] for _, schema in found.history()] == [
        [(1, "i"), (2, "s")],
        [(1, "i")],
        [(1, "i"), (3, "s")],
        [(1, "j"), (3, "s")],
    ]
    assert [begin for begin, _ in found.history()] == [first, first + 1, first + 2, first + 3]
    assert [begin for begin, _ in found.history(until=first + 1)] == [first, first + 1]


def test_the_history_follows_retypes_nullability_and_comments(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE evolves(i INTEGER, k INTEGER NOT NULL)")
    db.execute("INSERT INTO evolves VALUES (1, 1)")
    db.execute("ALTER TABLE evolves ALTER COLUMN i TYPE BIGINT")
    db.execute("ALTER TABLE evolves ALTER COLUMN k DROP NOT NULL")
    db.execute("COMMENT ON COLUMN evolves.i IS 'the number'")
    db.execute("COMMENT ON COLUMN evolves.i IS NULL")
    steps = [[(f.type, f.required, f.doc) for f in schema.fields] for _, schema in read(lake, "evolves").history()]
    assert steps == [
        [("int", False, None), ("int", True, None)],
        [("long", False, None), ("int", True, None)],
        [("long", False, None), ("int", False, None)],
        [("long", False, "the number"), ("int", False, None)],
        [("long", False, None), ("int", False, None)],
    ]


def test_at_every_snapshot_the_columns_are_those_that_duckdb_describes(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    first = now(lake) + 1
    for statement in (
        "CREATE TABLE walked(a INTEGER, b VARCHAR)",
        "ALTER TABLE walked ADD COLUMN c DOUBLE",
        "CREATE TABLE unrelated(x INTEGER)",
        "ALTER TABLE walked DROP COLUMN a",
        "INSERT INTO walked VALUES ('x', 1)",
        "ALTER TABLE walked RENAME COLUMN b TO bb",
    ):
        db.execute(statement)
    found = read(lake, "walked")
    for snapshot_id in range(first, now(lake) + 1):
        described = db.execute(f"DESCRIBE FROM walked AT (VERSION => {snapshot_id})").fetchall()
        assert [f.name for f in found.schema_at(snapshot_id).fields] == [row[0] for row in described]
