"""Schemas of tables that DuckDB made and altered, at every snapshot."""

import asyncio
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import duckdb
import pytest
from pyiceberg.conversions import from_json
from pyiceberg.schema import Schema as TheirSchema

from mergus.ducklake import columns
from mergus.ducklake.columns import Columns, Retype, Unrepresentable, default_json, promotes
from mergus.ducklake.connect import connection, open_pool
from mergus.ducklake.types import PRIMITIVES, REFUSED
from mergus.iceberg.schema import Field, List, Map, Schema, Struct, schema_json
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


def test_every_ducklake_type_with_an_iceberg_counterpart_is_mapped_to_it(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute(
        "CREATE TABLE all_types(bo BOOLEAN, i8 TINYINT, i16 SMALLINT, i32 INTEGER, i64 BIGINT, u8 UTINYINT, "
        "u16 USMALLINT, f FLOAT, d DOUBLE, de DECIMAL(10,2), da DATE, ti TIME, ts TIMESTAMP, tss TIMESTAMP_S, "
        "tz TIMESTAMPTZ, v VARCHAR, j JSON, bl BLOB, u UUID)"
    )
    schema = read(lake, "all_types").schema_at(now(lake))
    assert {f.name: f.type for f in schema.fields} == {
        **{"bo": "boolean", "i8": "int", "i16": "int", "i32": "int", "i64": "long", "u8": "int", "u16": "int"},
        **{"f": "float", "d": "double", "de": "decimal(10, 2)", "da": "date", "ti": "time", "ts": "timestamp"},
        **{"tss": "timestamp", "tz": "timestamptz", "v": "string", "j": "string"},
        **{"bl": "binary", "u": "uuid"},
    }
    assert [f.id for f in schema.fields] == list(range(1, 20))
    assert schema.format_version == 2


@pytest.mark.parametrize("kind", ["UINTEGER", "UBIGINT", "HUGEINT", "UHUGEINT", "TIMESTAMP_MS", "TIMETZ", "INTERVAL"])
def test_h21_a_type_that_iceberg_would_misrepresent_is_refused_with_the_column_name(
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


def test_h13_a_column_dropped_and_added_again_has_a_new_field_id(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
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


def defaults(lake: TestLake, table: str, at: int | None = None) -> dict[str, tuple[object, object]]:
    """(initial, write) by name."""
    schema = read(lake, table).schema_at(now(lake) if at is None else at)
    return {f.name: (f.initial_default, f.write_default) for f in schema.walk()}


# (type, literal, the value that DuckDB shows in rows from before)
ADDED = [
    ("BOOLEAN", "1", True),
    ("TINYINT", "-7", -7),
    ("INTEGER", "4.6", 5),
    ("BIGINT", "' 42 '", 42),
    ("UTINYINT", "200", 200),
    ("FLOAT", "0.1", 0.10000000149011612),
    ("DOUBLE", "1e300", 1e300),
    ("DOUBLE", "'-0.0'", -0.0),
    ("DECIMAL(10,2)", "1.555", Decimal("1.56")),
    ("DECIMAL(38,0)", "-1", Decimal(-1)),
    ("DATE", "'2020-1-2'", date(2020, 1, 2)),
    ("TIME", "'01:02:03.5'", time(1, 2, 3, 500_000)),
    ("TIMESTAMP", "'2020-01-02'", datetime(2020, 1, 2)),
    ("TIMESTAMP", "'1969-12-31 23:59:59.999999'", datetime(1969, 12, 31, 23, 59, 59, 999_999)),
    ("TIMESTAMP_S", "'2020-01-02 03:04:05'", datetime(2020, 1, 2, 3, 4, 5)),
    ("TIMESTAMPTZ", "'2020-01-02 03:04:05+02'", datetime(2020, 1, 2, 1, 4, 5, tzinfo=UTC)),
    ("VARCHAR", "'it''s é'", "it's é"),
    ("VARCHAR", "''", ""),
    ("VARCHAR", "'NULL'", "NULL"),
    ("JSON", "'{\"a\": 1}'", '{"a": 1}'),
    ("BLOB", "'a\\xAA\\x00\\x5C'", b"a\xaa\0\\"),
    ("UUID", "'7E0EB7AD-8c0d-4f3e-8b3f-0123456789ab'", UUID("7e0eb7ad-8c0d-4f3e-8b3f-0123456789ab")),
]


def test_h14_rows_from_before_a_column_have_its_initial_default_of_any_type(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    """The value that an Iceberg reader takes from our JSON is the one that DuckDB shows."""
    db.execute("CREATE TABLE young(k INTEGER)")
    db.execute("INSERT INTO young VALUES (1)")
    for number, (kind, literal, _) in enumerate(ADDED):
        db.execute(f"ALTER TABLE young ADD COLUMN c{number} {kind} DEFAULT {literal}")
    # DuckDB hands a time with a zone to Python only with another package
    columns = ", ".join(f"epoch_us(c{n})" if x[0] == "TIMESTAMPTZ" else f"c{n}" for n, x in enumerate(ADDED))
    shown = db.execute(f"SELECT {columns} FROM young").fetchone()
    assert shown is not None
    schema = read(lake, "young").schema_at(now(lake))
    assert schema.format_version == 3
    theirs = TheirSchema.model_validate(schema_json(schema, 0))
    for (kind, _, expected), value, ours, field in zip(ADDED, shown, schema.fields[1:], theirs.fields[1:], strict=True):
        assert ours.initial_default is not None
        assert from_json(field.field_type, ours.initial_default) == expected, kind
        if kind == "TIMESTAMPTZ":
            assert isinstance(expected, datetime)
            assert value == expected.timestamp() * 10**6
        else:
            assert value == expected, kind


def test_h14_an_initial_default_stays_while_the_write_default_moves(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE moves(i INTEGER, s VARCHAR)")
    db.execute("INSERT INTO moves VALUES (1, 'a')")
    found: list[tuple[object, object]] = []
    for statement in (
        "ADD COLUMN n INTEGER DEFAULT 7",
        "ALTER n SET DEFAULT 9",
        "ALTER n TYPE BIGINT",
        "ALTER n SET DEFAULT 'no number'",
        "ALTER n DROP DEFAULT",
        "RENAME COLUMN n TO m",
    ):
        db.execute(f"ALTER TABLE moves {statement}")
        found.append(list(defaults(lake, "moves").values())[-1])
    assert found == [(7, 7), (7, 9), (7, 9), (7, None), (7, None), (7, None)]
    assert db.execute("SELECT m FROM moves").fetchall() == [(7,)]


def test_a_column_created_with_its_table_has_only_a_write_default(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    """No file lacks it, so the table may be of version 2."""
    db.execute(
        "CREATE TABLE old(i INTEGER DEFAULT 42, s VARCHAR DEFAULT 'NULL', t TIMESTAMPTZ DEFAULT now(), n DOUBLE)"
    )
    db.execute("INSERT INTO old(n) SELECT range FROM range(20)")
    assert defaults(lake, "old") == {"i": (None, 42), "s": (None, None), "t": (None, None), "n": (None, None)}
    schema = read(lake, "old").schema_at(now(lake))
    assert schema.format_version == 2
    assert "write-default" not in schema_json(schema, 0, format_version=2)["fields"][0]


def test_an_old_column_that_an_added_file_lacks_has_its_initial_default(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE partly(k INTEGER, x INTEGER DEFAULT 42, y INTEGER DEFAULT 43)")
    before = now(lake)
    db.execute(f"COPY (SELECT 1::INTEGER AS k, 2::INTEGER AS y) TO '{tmp_path}/f.parquet'")
    db.execute(f"CALL ducklake_add_data_files('lake', 'partly', '{tmp_path}/f.parquet', allow_missing => true)")
    assert db.execute("FROM partly").fetchall() == [(1, 42, 2)]
    assert defaults(lake, "partly") == {"k": (None, None), "x": (42, 42), "y": (None, 43)}
    # the schema of before says the same: no reader is told two things
    assert defaults(lake, "partly", before)["x"] == (42, 42)


def test_a_column_added_after_an_insert_of_the_transaction_that_made_the_table_has_its_initial_default(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("BEGIN")
    db.execute("CREATE TABLE at_once(k INTEGER)")
    db.execute("INSERT INTO at_once SELECT range FROM range(20)")
    db.execute("ALTER TABLE at_once ADD COLUMN x INTEGER DEFAULT 7")
    db.execute("COMMIT")
    assert db.execute("SELECT DISTINCT x FROM at_once").fetchall() == [(7,)]
    assert defaults(lake, "at_once")["x"] == (7, 7)


def test_nested_fields_have_initial_and_write_defaults(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE deep(st STRUCT(a INTEGER), l STRUCT(a INTEGER)[])")
    db.execute("INSERT INTO deep VALUES ({'a': 1}, [{'a': 1}])")
    db.execute("ALTER TABLE deep ADD COLUMN st.x INTEGER DEFAULT 5")
    db.execute("ALTER TABLE deep ADD COLUMN l.element.y VARCHAR DEFAULT 'z'")
    assert db.execute("FROM deep").fetchall() == [({"a": 1, "x": 5}, [{"a": 1, "y": "z"}])]
    found = defaults(lake, "deep")
    assert (found["x"], found["y"], found["a"]) == ((5, 5), ("z", "z"), (None, None))


@pytest.mark.parametrize(
    ("name", "kind", "literal"),
    [
        ("not_a_number", "DOUBLE", "'nan'"),
        ("endless", "DATE", "'infinity'"),
        ("too_old", "DATE", "'0044-03-15 (BC)'"),
        ("too_large", "FLOAT", "'inf'"),
    ],
)
def test_an_initial_default_without_a_form_in_iceberg_is_refused_by_name(
    name: str, kind: str, literal: str, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute(f"CREATE TABLE {name}(k INTEGER)")
    db.execute(f"ALTER TABLE {name} ADD COLUMN x {kind} DEFAULT {literal}")
    with pytest.raises(Unrepresentable, match=r"column x of type \w+: Iceberg has no form for its default '"):
        read(lake, name).schema_at(now(lake))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *[("int32", "4.6"), ("int32", " 42 "), ("int8", "128"), ("boolean", "t"), ("date", "2020-1-2")],
        *[("timestamptz", "2020-01-02 03:04:05"), ("timestamp_s", "2020-01-02 03:04:05.5"), ("decimal(4,2)", "1.555")],
        *[("float64", "nan"), ("float32", "16777217"), ("uuid", "7E0EB7AD-8c0d-4f3e-8b3f-0123456789ab")],
        *[("blob", "\\xA"), ("blob", "é"), ("blob", "\\"), ("int128", "1"), ("variant", "1"), ("struct", "1")],
    ],
)
def test_a_default_text_that_is_not_certainly_one_value_is_not_shown(kind: str, text: str) -> None:
    assert default_json(kind, text) is None


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        *[("int8", "int16", True), ("uint8", "int32", True), ("int32", "int64", True), ("uint16", "int64", True)],
        *[("float32", "float64", True), ("varchar", "json", True), ("struct", "struct", True)],
        *[("timestamp_s", "timestamp", True), ("timestamp_ms", "timestamp", False)],
        *[("decimal(9,2)", "decimal(12,2)", True), ("decimal(9,2)", "decimal(12,3)", False)],
        *[("decimal(12,2)", "decimal(9,2)", False), ("int64", "int32", False), ("float64", "float32", False)],
        *[("uint32", "int64", False), ("int32", "float64", False), ("int32", "decimal(12,2)", False)],
        *[("date", "timestamp", False), ("timestamp", "timestamptz", False), ("timestamp", "timestamp_ns", False)],
        *[("boolean", "int32", False), ("int64", "int128", False), ("varchar", "variant", False)],
    ],
)
def test_a_retype_counts_as_a_promotion_if_iceberg_readers_can_promote_it(old: str, new: str, expected: bool) -> None:
    assert promotes(old, new) is expected


def test_retypes_that_iceberg_readers_cannot_follow_are_found(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE retyped(i INTEGER, d DATE, st STRUCT(a INTEGER, b INTEGER))")
    first = now(lake)
    for statement in ("i TYPE BIGINT", "d TYPE TIMESTAMP", "i TYPE DOUBLE"):
        db.execute(f"ALTER TABLE retyped ALTER {statement}")
    db.execute("ALTER TABLE retyped RENAME i TO j")
    found = read(lake, "retyped")
    assert found.retypes() == [
        Retype(2, first + 2, "d", "date", "timestamp"),
        Retype(1, first + 3, "i", "int64", "float64"),
    ]
    assert found.widens_integers()
    assert str(found.retypes()[0]) == f"column d was changed from date to timestamp at snapshot {first + 2}"


def test_a_file_is_affected_by_retypes_since_it_began_up_to_the_snapshot_that_is_read() -> None:
    retype = Retype(1, 5, "i", "int32", "float64")
    affected = {(at, begin): retype.affects(at, begin, rewritten=False) for at in (4, 5, 9) for begin in (3, 5, 6)}
    # one of the same snapshot may have been written first
    assert {k for k, v in affected.items() if v} == {(5, 3), (5, 5), (9, 3), (9, 5)}
    assert retype.affects(9, 7, rewritten=True)
    assert not retype.affects(4, 2, rewritten=True)


def test_a_rewritten_file_keeps_the_type_from_before_a_retype(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    """Which is why it is affected however late it begins: DuckLake rewrites with the schema of the source."""
    db.execute("CREATE TABLE rewritten(i INTEGER, j INTEGER)")
    db.execute("INSERT INTO rewritten SELECT range, range FROM range(100)")
    db.execute("ALTER TABLE rewritten ALTER i TYPE DOUBLE")
    retyped = now(lake)
    db.execute("DELETE FROM rewritten WHERE j < 99")
    db.execute("CALL ducklake_rewrite_data_files('lake', 'rewritten')")
    ((begin, row_id_start, path),) = lake.sql(
        "SELECT f.begin_snapshot, f.row_id_start, f.path FROM ducklake_data_file f "
        "JOIN ducklake_table t USING (table_id) WHERE table_name = 'rewritten' AND f.end_snapshot IS NULL"
    )
    file = f"{lake.settings.data_path}main/rewritten/{path}"
    kind = db.execute(f"SELECT type FROM parquet_schema('{file}') WHERE name = 'i'").fetchall()
    assert (begin > retyped, row_id_start, kind) == (True, None, [("INT32",)])
    (retype,) = read(lake, "rewritten").retypes()
    assert retype.affects(begin, begin, rewritten=row_id_start is None)


def test_a_column_with_the_dotted_name_of_a_struct_field_is_refused(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute('CREATE TABLE dotted("a.b" DOUBLE, a STRUCT(b DOUBLE))')
    with pytest.raises(Unrepresentable, match=r"column a\.b"):
        read(lake, "dotted").schema_at(now(lake))
