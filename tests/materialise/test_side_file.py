"""Side files beside what DuckDB reads from the same rows, and beside the Parquet files that DuckLake writes of them."""

import asyncio
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mergus.ducklake import columns, inlined
from mergus.ducklake.connect import one_state, open_pool
from mergus.ducklake.inlined import Unreadable
from mergus.iceberg.bounds import lower_bound, upper_bound
from mergus.materialise import side_file
from mergus.materialise.side_file import SideFile
from tests.support.lakes import Row, TestLake

OWN_COLUMNS = 2


def now(lake: TestLake) -> int:
    return lake.snapshots()[-1][0]


def written(lake: TestLake, table: str, at: int | None = None, after: int = -1) -> SideFile:
    """The rows that came after `after` and are there at `at`."""
    snapshot_id = now(lake) if at is None else at
    ((table_id,),) = lake.sql("SELECT DISTINCT table_id FROM ducklake_table WHERE table_name = %s", table)

    async def work() -> SideFile:
        async with open_pool(lake.settings) as pool, one_state(pool) as conn:
            known = await columns.read(conn, table_id)
            there = await inlined.tables(conn, "public", table_id)
            batches = await inlined.read(conn, "public", known, there, after=after, upto=snapshot_id, at=snapshot_id)
            return side_file.write(batches, known, snapshot_id)

    return asyncio.run(work())


def rows_of(file: SideFile, tmp_path: Path) -> list[Row]:
    """Every value as text, which for one type tells any two values apart, in the order of the row ids."""
    path = tmp_path / "side.parquet"
    path.write_bytes(file.data)
    with duckdb.connect() as session:
        return session.execute(
            "SELECT COLUMNS(* EXCLUDE (_row_id, _last_updated_sequence_number))::VARCHAR "
            f"FROM read_parquet('{path}') ORDER BY _row_id"
        ).fetchall()


def rows_in_lake(db: duckdb.DuckDBPyConnection, table: str, at: int | None = None) -> list[Row]:
    version = "" if at is None else f"AT (VERSION => {at})"
    return db.execute(f"SELECT COLUMNS(*)::VARCHAR FROM {table} {version} ORDER BY rowid").fetchall()


def physical_schema(data: bytes) -> list[str]:
    return str(pq.ParquetFile(pa.BufferReader(data)).schema).splitlines()[1:]


def made_twice(db: duckdb.DuckDBPyConnection, lake: TestLake, table: str, types: str, *rows: str) -> bytes:
    """Once with its rows inlined; once, as `table`_files, in a Parquet file, which is returned."""
    for name, limit in ((table, 10), (f"{table}_files", 0)):
        db.execute(f"CREATE TABLE {name}({types})")
        db.execute(f"CALL lake.set_option('data_inlining_row_limit', {limit}, table_name => '{name}')")
        db.execute(f"INSERT INTO {name} VALUES {', '.join(rows)}")
    assert (
        lake.sql("SELECT 1 FROM ducklake_data_file f JOIN ducklake_table USING (table_id) WHERE table_name = %s", table)
        == []
    )
    (file,) = db.execute(f"SELECT data_file FROM ducklake_list_files('lake', '{table}_files')").fetchall()
    ((data,),) = db.execute(f"SELECT content FROM read_blob('{file[0]}')").fetchall()
    return data


def assert_as_in_files(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path, table: str, types: str, *rows: str
) -> SideFile:
    theirs = made_twice(db, lake, table, types, *rows)
    ours = written(lake, table)
    assert rows_of(ours, tmp_path) == rows_in_lake(db, f"{table}_files")
    schema = physical_schema(ours.data)
    own = [i for i, line in enumerate(schema) if "field_id=2147483540" in line or "field_id=2147483539" in line]
    assert len(own) == OWN_COLUMNS
    assert [line for i, line in enumerate(schema) if i not in own] == physical_schema(theirs)
    return ours


def bounds_of_file(lake: TestLake, table: str) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """From what DuckLake knows of the only file, by the column's id."""
    query = """SELECT c.column_id, c.column_type, s.min_value, s.max_value FROM ducklake_file_column_stats s
               JOIN ducklake_column c USING (table_id, column_id) JOIN ducklake_table t USING (table_id)
               WHERE t.table_name = %s"""
    found = lake.sql(query, table)
    lower = {i: lower_bound(kind, text, retyped=False) for i, kind, text, _ in found}
    upper = {i: upper_bound(kind, text, retyped=False) for i, kind, _, text in found}
    return {i: b for i, b in lower.items() if b is not None}, {i: b for i, b in upper.items() if b is not None}


PRIMITIVES = {
    "boolean": ("BOOLEAN", "true", "false"),
    "int8": ("TINYINT", "-128", "127"),
    "int16": ("SMALLINT", "-32768", "32767"),
    "int32": ("INTEGER", "-2147483648", "2147483647"),
    "int64": ("BIGINT", "-9223372036854775808", "9223372036854775807"),
    "uint8": ("UTINYINT", "0", "255"),
    "uint16": ("USMALLINT", "0", "65535"),
    "float32": ("FLOAT", "'nan'", "'-0.0'::FLOAT", "'inf'", "'-inf'", "0.1", "3.4028235e38", "1e-45"),
    "float64": ("DOUBLE", "'nan'", "'-0.0'::DOUBLE", "'inf'", "'-inf'", "0.1", "1.7976931348623157e308", "5e-324"),
    "decimal_4": ("DECIMAL(4,1)", "-999.9", "0.1"),
    "decimal_9": ("DECIMAL(9,2)", "-9999999.99", "0.01"),
    "decimal_18": ("DECIMAL(18,0)", "999999999999999999", "-1"),
    "decimal_38": ("DECIMAL(38,10)", "9999999999999999999999999999.9999999999", "-0.0000000001"),
    "date": ("DATE", "'2020-02-29'", "'infinity'", "'-infinity'", "'0044-03-15 (BC)'", "'5881580-07-10'"),
    "time": ("TIME", "'00:00:00'", "'24:00:00'", "'23:59:59.999999'"),
    "timestamp": ("TIMESTAMP", "'2020-01-02 03:04:05.000006'", "'infinity'", "'0044-03-15 (BC) 01:02:03'"),
    "timestamp_s": ("TIMESTAMP_S", "'2020-01-02 03:04:05'", "'1969-12-31 23:59:59'"),
    "timestamp_ms": ("TIMESTAMP_MS", "'2020-01-02 03:04:05.006'", "'1969-12-31 23:59:59.999'"),
    "timestamp_ns": ("TIMESTAMP_NS", "'2020-01-02 03:04:05.000000006'", "'1969-12-31 23:59:59.999999999'"),
    "timestamptz": ("TIMESTAMPTZ", "'2020-01-02 03:04:05.6+05:30'", "'-infinity'", "'0044-03-15 (BC) 00:00:00+00'"),
    "varchar": ("VARCHAR", "''", "'it''s'", "'back\\slash'", "'a' || chr(0) || 'b'", "'日本 🦆'", "'NULL'", "' x\n'"),
    "json": ("JSON", "'{\"a\": [1,  null]}'", "'\"it''s\"'", "'null'"),
    "blob": ("BLOB", "''::BLOB", "'\\x00\\xFF\\x27\\x5C'::BLOB", "'CAST(''x'' AS VARCHAR)'::BLOB"),
    "uuid": ("UUID", "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
}


@pytest.mark.parametrize("kind", PRIMITIVES)
def test_primitive_values_are_written_as_in_ducklakes_own_files(
    kind: str, lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    declared, *values = PRIMITIVES[kind]
    table = f"only_{kind}"
    file = assert_as_in_files(lake, db, tmp_path, table, f"x {declared}", *(f"({v})" for v in [*values, "NULL"]))
    assert rows_of(file, tmp_path) == rows_in_lake(db, table)
    assert (file.value_counts, file.null_value_counts) == ({1: len(values) + 1}, {1: 1})
    assert file.nan_value_counts == ({1: 1} if "'nan'" in values else {})
    assert (file.lower_bounds, file.upper_bounds) == bounds_of_file(lake, f"{table}_files")


# In lists and maps any value may stand; in structs those that the extension does not lose.
NESTED = {
    "list": ("VARCHAR[]", "['a,b', 'it''s', 'back\\slash', '', NULL, 'NULL', 'a\"b', ' x ']", "[]", "[NULL]"),
    "list_of_blobs": ("BLOB[]", "['\\xAA\\x00a'::BLOB, ''::BLOB]"),
    "list_of_times": ("TIMESTAMPTZ[]", "['2020-01-02 03:04:05.6+05:30'::TIMESTAMPTZ, 'infinity'::TIMESTAMPTZ]"),
    "list_of_floats": ("DOUBLE[]", "['nan', 'inf', '-0.0'::DOUBLE, 1e300, 0.1]"),
    "list_of_lists": ("INTEGER[][]", "[[1, NULL], [], NULL]"),
    "list_of_structs": ("STRUCT(d DATE, v VARCHAR)[]", "[{'d': DATE '2020-01-01', 'v': 'it''s \\'}, NULL]"),
    "map": ("MAP(VARCHAR, INTEGER)", "MAP {'k=1, x': 1, '': 2, 'a''b\\c': NULL}", "MAP {}"),
    "map_of_structs": (
        "MAP(DATE, STRUCT(u UUID, t TIME, l VARCHAR[]))",
        "MAP {DATE '2020-01-01': {'u': '550e8400-e29b-41d4-a716-446655440000', 't': '01:02:03.5', 'l': ['x', NULL]}}",
    ),
    "struct": (
        'STRUCT(a INTEGER, "b c, {" VARCHAR, f DOUBLE, de DECIMAL(20, 5), j JSON)',
        "{'a': 1, 'b c, {': ' {x} [y] = \"z\", ', 'f': 1.5, 'de': 1234.5, 'j': '{\"a\": [1, \"x\"]}'}",
        "{'a': NULL, 'b c, {': 'NULL', 'f': NULL, 'de': NULL, 'j': NULL}",
        "{'a': NULL, 'b c, {': '', 'f': 1e300, 'de': -0.00001, 'j': 'null'}",
    ),
    "struct_of_nested": (
        "STRUCT(l VARCHAR[], m MAP(VARCHAR, DATE), s STRUCT(x INTEGER, v VARCHAR[][]))",
        "{'l': ['a,b', 'it''s', 'e\\f', NULL], 'm': MAP {'k=1': DATE '2020-01-01'}, 's': {'x': NULL, 'v': [['y']]}}",
        "{'l': [], 'm': MAP {}, 's': NULL}",
    ),
}


@pytest.mark.parametrize("kind", NESTED)
def test_nested_values_are_written_as_in_ducklakes_own_files(
    kind: str, lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    declared, *values = NESTED[kind]
    table = f"nested_{kind}"
    file = assert_as_in_files(lake, db, tmp_path, table, f"x {declared}", *(f"({v})" for v in [*values, "NULL"]))
    assert rows_of(file, tmp_path) == rows_in_lake(db, table)


# No session may read the inlined ones: it would be lost.
LOST = {
    "times": (
        "STRUCT(d DATE, t TIME, ts TIMESTAMP, tz TIMESTAMPTZ, n TIMESTAMP_NS, s STRUCT(d DATE))",
        "{'d': '2020-01-01', 't': '24:00:00', 'ts': '0044-03-15 (BC) 01:02:03', 'tz': '2020-01-02 03:04:05.6+05:30', "
        "'n': '2020-01-02 03:04:05.000000006', 's': {'d': 'infinity'}}",
        "{'d': NULL, 't': NULL, 'ts': NULL, 'tz': NULL, 'n': NULL, 's': {'d': NULL}}",
    ),
    "uuid": ("STRUCT(u UUID)", "{'u': '550e8400-e29b-41d4-a716-446655440000'}"),
    "floats": (
        "STRUCT(f FLOAT, g DOUBLE)",
        "{'f': 'nan'::FLOAT, 'g': '-0.0'::DOUBLE}",
        "{'f': '-inf'::FLOAT, 'g': 'inf'::DOUBLE}",
        "{'f': 0.1::FLOAT, 'g': 1e300}",
    ),
    "json": ("JSON[]", "['{\"a\": [1, 2]}'::JSON, '\"it''s\"'::JSON, NULL]"),
    "json_deeper": ("MAP(VARCHAR, STRUCT(j JSON))", "MAP {'k': {'j': '[\"x\"]'::JSON}}"),
}


@pytest.mark.parametrize("kind", LOST)
def test_inlined_nested_values_that_duckdb_cannot_read_back_are_written_as_inserted(
    kind: str, lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    declared, *values = LOST[kind]
    assert_as_in_files(lake, db, tmp_path, f"lost_{kind}", f"x {declared}", *(f"({v})" for v in [*values, "NULL"]))


def test_inlined_nested_values_that_ducklake_mangles_are_written_as_duckdb_reads_them(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE mangled(s STRUCT(v VARCHAR), b STRUCT(b BLOB), z STRUCT(v VARCHAR))")
    db.execute("INSERT INTO mangled VALUES ({'v': 'it''s a \\ '}, {'b': '\\xAA'::BLOB}, {'v': 'a' || chr(0)})")
    assert rows_of(written(lake, "mangled"), tmp_path) == rows_in_lake(db, "mangled")


@pytest.mark.parametrize(
    ("declared", "value"),
    [("STRUCT(a INTEGER, v VARCHAR)", "{'a': 1, 'v': 'end\\'}"), ('STRUCT("it\'s" INTEGER)', "{'it''s': 1}")],
)
def test_an_unreadable_inlined_value_is_refused_with_the_column_name(
    declared: str, value: str, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table = f"unreadable_{'v' if 'end' in value else 'name'}"
    db.execute(f"CREATE TABLE {table}(fine INTEGER, broken {declared})")
    db.execute(f"INSERT INTO {table} VALUES (1, {value})")
    with pytest.raises(Unreadable, match="broken") as refused:
        written(lake, table)
    assert refused.value.column == "broken"
    assert "end" not in str(refused.value)


def test_a_field_that_duckdb_cannot_give_an_id_is_refused(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE field_id(s STRUCT(__duckdb_field_id INTEGER))")
    db.execute("INSERT INTO field_id VALUES ({'__duckdb_field_id': 1})")
    with pytest.raises(Unreadable, match="__duckdb_field_id"):
        written(lake, "field_id")


def test_a_column_may_have_the_name_of_a_row_lineage_column(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute('CREATE TABLE namesake("_ROW_ID" VARCHAR, "a""b \'c" INTEGER)')
    db.execute("INSERT INTO namesake VALUES ('x', 7)")
    file = written(lake, "namesake")
    table = pq.read_table(pa.BufferReader(file.data))
    assert table.to_pydict() == {
        **{"_ROW_ID": ["x"], "a\"b 'c": [7], "_row_id_": [0], "_last_updated_sequence_number_": [now(lake)]}
    }
    assert side_file.read_keys(file.data) == [(0, now(lake))]


def test_inlined_zeros_keep_their_sign(lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    db.execute("CREATE TABLE zeros(d DOUBLE, f FLOAT, l DOUBLE[])")
    for zero in ("0.0", "-0.0"):
        db.execute(f"INSERT INTO zeros SELECT '{zero}', '{zero}', ['{zero}'::DOUBLE] FROM range(10)")
    rows = rows_in_lake(db, "zeros")
    assert {row[0] for row in rows} == {"0.0", "-0.0"}
    assert rows_of(written(lake, "zeros"), tmp_path) == rows


def test_h2_an_updated_inlined_row_keeps_its_row_id_and_gets_a_new_begin_snapshot(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE updated(i INTEGER, s VARCHAR)")
    db.execute("INSERT INTO updated VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    first = now(lake)
    db.execute("UPDATE updated SET s = 'new' WHERE i = 1")
    db.execute("DELETE FROM updated WHERE i = 2")
    file = written(lake, "updated")
    assert side_file.read_keys(file.data) == [(2, first), (0, first + 1)]
    assert (file.row_ids, file.begin_snapshots, file.record_count) == ([2, 0], [first, first + 1], 2)
    assert rows_of(file, tmp_path) == rows_in_lake(db, "updated") == [("1", "new"), ("3", "c")]
    assert side_file.read_keys(written(lake, "updated", first).data) == [(0, first), (1, first), (2, first)]
    assert side_file.read_keys(written(lake, "updated", after=first).data) == [(0, first + 1)]


def assert_as_duckdb_reads_at_every_snapshot(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path, table: str, first: int
) -> None:
    for at in range(first, now(lake) + 1):
        assert rows_of(written(lake, table, at), tmp_path) == rows_in_lake(db, table, at), at


def test_h4_inlined_rows_of_all_schema_versions_have_the_columns_of_the_snapshot(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE versions(i INTEGER, s VARCHAR, f FLOAT, gone DATE)")
    db.execute("INSERT INTO versions VALUES (1, 'a', 1.5, '2020-01-01'), (NULL, NULL, 'nan', NULL)")
    first = now(lake)
    for statement in (
        "ALTER TABLE versions ADD COLUMN n INTEGER DEFAULT 7",
        "INSERT INTO versions VALUES (2, 'b', 2.5, '2020-01-02', NULL)",
        "ALTER TABLE versions ALTER COLUMN n SET DEFAULT 9",
        "ALTER TABLE versions ALTER COLUMN i TYPE BIGINT",
        "ALTER TABLE versions ALTER COLUMN f TYPE DOUBLE",
        "INSERT INTO versions VALUES (9223372036854775807, 'c', 1e300, '2020-01-03', 8)",
        "ALTER TABLE versions RENAME COLUMN s TO t",
        "ALTER TABLE versions DROP COLUMN gone",
        "INSERT INTO versions VALUES (4, 'd', 4.5, DEFAULT)",
        "ALTER TABLE versions DROP COLUMN t",
        "ALTER TABLE versions ADD COLUMN t INTEGER",
        "UPDATE versions SET t = 5 WHERE i = 1",
        "BEGIN",
        "INSERT INTO versions VALUES (5, 5.5, 1, 6)",
        "ALTER TABLE versions ADD COLUMN late VARCHAR DEFAULT 'late'",
        "INSERT INTO versions VALUES (6, 6.5, 1, 7, NULL)",
        "COMMIT",
    ):
        db.execute(statement)
    assert_as_duckdb_reads_at_every_snapshot(lake, db, tmp_path, "versions", first)


def test_old_inlined_rows_get_the_defaults_of_columns_added_later(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE defaults(i INTEGER)")
    db.execute("INSERT INTO defaults VALUES (1)")
    first = now(lake)
    for i, column in enumerate(
        (
            *("BLOB DEFAULT '\\xAA'", "VARCHAR DEFAULT 'it''s'", "VARCHAR DEFAULT ''", "DATE DEFAULT '2020-01-01'"),
            *("DOUBLE DEFAULT 1.5", "UUID DEFAULT '550e8400-e29b-41d4-a716-446655440000'", "DECIMAL(10,2) DEFAULT 1.5"),
            *("BOOLEAN DEFAULT 'true'", "TIMESTAMPTZ DEFAULT '2020-01-01 00:00:00+02'", "JSON DEFAULT '{\"a\":1}'"),
            *("VARCHAR DEFAULT 'NULL'", "VARCHAR DEFAULT NULL", "TINYINT DEFAULT -5", "VARCHAR DEFAULT 'back\\slash'"),
            *("INTEGER[]", "STRUCT(a INTEGER)", "MAP(VARCHAR, DATE)"),
        )
    ):
        db.execute(f"ALTER TABLE defaults ADD COLUMN c{i} {column}")
    db.execute("ALTER TABLE defaults ADD COLUMN retyped FLOAT DEFAULT 0.1")
    db.execute("ALTER TABLE defaults ALTER COLUMN retyped TYPE DOUBLE")
    assert_as_duckdb_reads_at_every_snapshot(lake, db, tmp_path, "defaults", first)


def test_nested_fields_of_inlined_rows_are_matched_by_field_id(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute(
        "CREATE TABLE deep(st STRUCT(a INTEGER, b STRUCT(c VARCHAR)), ls STRUCT(a INTEGER)[], "
        "m MAP(VARCHAR, STRUCT(a FLOAT)), ll INTEGER[][])"
    )
    row = (
        "({{'a': 1, 'b': {{'c': '{0}'}}{1}}}, [{{'a': 1{2}}}, NULL], "
        "MAP {{'k': {{'a': 0.1{2}}}, 'n': NULL}}, [[1], NULL])"
    )
    others = "(NULL, NULL, NULL, NULL), (NULL, [], MAP {}, [])"
    db.execute(f"INSERT INTO deep VALUES {row.format('x', '', '')}, {others}")
    first = now(lake)
    for statement in (
        "ALTER TABLE deep ADD COLUMN st.x INTEGER DEFAULT 5",
        "ALTER TABLE deep ADD COLUMN ls.element.y VARCHAR",
        "ALTER TABLE deep ADD COLUMN m.value.y VARCHAR",
        "INSERT INTO deep VALUES " + row.format("y", ", 'x': NULL", ", 'y': 'z'"),
        "ALTER TABLE deep RENAME COLUMN st.a TO aa",
        "ALTER TABLE deep ADD COLUMN st.b.d VARCHAR",
        "ALTER TABLE deep ADD COLUMN st.a DATE",
        "ALTER TABLE deep DROP COLUMN st.b.c",
        "ALTER TABLE deep RENAME COLUMN ls.element.a TO b",
        "ALTER TABLE deep DROP COLUMN st.x",
    ):
        db.execute(statement)
    assert_as_duckdb_reads_at_every_snapshot(lake, db, tmp_path, "deep", first)


def test_a_column_of_a_type_that_cannot_be_inlined_is_left_out(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE TABLE left_out(i INTEGER, s STRUCT(a INTEGER))")
    db.execute("INSERT INTO left_out VALUES (1, {'a': 2})")
    db.execute("ALTER TABLE left_out ADD COLUMN g GEOMETRY")
    db.execute("ALTER TABLE left_out ADD COLUMN v VARIANT[]")
    db.execute("ALTER TABLE left_out ADD COLUMN s.v VARIANT")
    assert rows_of(written(lake, "left_out"), tmp_path) == [("1", "{'a': 2}")]


def test_h9_flushed_rows_are_not_written_to_a_rows_file(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE flushed(i INTEGER)")
    db.execute("INSERT INTO flushed VALUES (1)")
    first = now(lake)
    db.execute("CALL ducklake_flush_inlined_data('lake', table_name => 'flushed')")
    with pytest.raises(ValueError, match="no rows"):
        written(lake, "flushed", first)
    db.execute("INSERT INTO flushed VALUES (2)")
    assert written(lake, "flushed").row_ids == [1]


def test_equal_inlined_rows_are_written_as_equal_bytes(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE equal(i INTEGER, s VARCHAR, l INTEGER[])")
    for i in range(5):
        db.execute(f"INSERT INTO equal SELECT range, 'x' || range, [range] FROM range({i}, {i + 10})")
    one = written(lake, "equal")
    assert one.record_count == 50
    assert one == written(lake, "equal")


def test_value_counts_of_inlined_rows_are_by_field_id(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE counted(f FLOAT, s STRUCT(a INTEGER, b INTEGER), l INTEGER[])")
    db.execute("INSERT INTO counted VALUES ('nan', {'a': 1, 'b': NULL}, [1, 2]), (NULL, NULL, []), (1, NULL, NULL)")
    file = written(lake, "counted")
    assert file.value_counts == {1: 3, 3: 3, 4: 3}
    assert file.null_value_counts == {1: 1, 3: 2, 4: 3}
    assert file.nan_value_counts == {1: 1}
    assert file.column_sizes.keys() == {1, 3, 4, 6}
    assert all(size > 0 for size in file.column_sizes.values())
