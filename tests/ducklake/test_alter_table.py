"""ALTER TABLE through our own rows: the rows that DuckDB writes, and a table that DuckDB sessions go on using."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import duckdb
import pytest

from mergus.ducklake import alter, partitions, tables
from mergus.ducklake.commit import Commit
from mergus.ducklake.inlined_tables import UNWRITABLE
from mergus.ducklake.sort_expressions import by_column
from mergus.errors import Unsupported
from mergus.iceberg.schema import Field, List, Schema, Struct
from tests.support import lakes
from tests.support.ddl import change_columns, edited, find_schema, find_table, grown, in_commit, rows, table_id
from tests.support.lakes import TestLake

# ids: i 1, Mixed 2, f 3, de 4, st 5 (a 6, b 7 (c 8)), l 9 (element 10), m 11 (key 12, value 13 (v 14)), t 15, d 16
CREATE = """
    CREATE TABLE {}(i INTEGER NOT NULL, "Mixed" VARCHAR, f FLOAT, de DECIMAL(9,2),
                    st STRUCT(a INTEGER, b STRUCT(c VARCHAR)), l INTEGER[], m MAP(VARCHAR, STRUCT(v DOUBLE)),
                    t TINYINT, d DATE DEFAULT '2020-01-02')
"""
VALUES = "(1, 'x', 1.5, 2.25, {'a': 3, 'b': {'c': 'y'}}, [4, NULL], MAP {'k': {'v': 5.5}}, 6, '2021-02-03')"
EDIT = Callable[[Schema], Schema]
Ours = Callable[[Commit, int], Awaitable[object]]


def columns(*edits: EDIT) -> Ours:
    def change(schema: Schema) -> Schema:
        for edit in edits:
            schema = edit(schema)
        return schema

    return lambda tx, table: change_columns(tx, table, change)


def to(field_id: int, **changes: object) -> EDIT:
    return lambda schema: edited(schema, field_id, lambda f: replace(f, **changes))  # pyright: ignore[reportArgumentType]


def without(field_id: int) -> EDIT:
    return lambda schema: edited(schema, field_id, lambda _: None)


def plus(field: Field, parent: int | None = None) -> EDIT:
    return partial(grown, field=field, parent=parent)


def partitioned(*keys: tuple[int, str]) -> Ours:
    return lambda tx, table: alter.set_partitioning(tx, table, [partitions.Key(*key) for key in keys])


def sorted_by(*names: str) -> Ours:
    return lambda tx, table: alter.set_sort(tx, table, [by_column(name, "desc", "nulls-first") for name in names])


def comment(text: str | None) -> Ours:
    return lambda tx, table: alter.set_comment(tx, table, text)


async def renamed(tx: Commit, table: int) -> None:
    found = await tables.read(tx.conn, table)
    assert found is not None
    await tables.rename(tx, found, await find_schema(tx), f"{found.name}_new")


@dataclass
class Case:
    """What DuckDB is told, after what it was told before, and what we are told instead."""

    theirs: str
    ours: Ours
    before: tuple[str, ...] = ()


CASES = {
    "add": Case("ADD COLUMN n BIGINT", columns(plus(Field(17, "n", "long")))),
    "add_default": Case(
        "ADD COLUMN n INTEGER DEFAULT 7",
        columns(plus(Field(17, "n", "int", initial_default=7, write_default=7))),
    ),
    "add_text_default": Case(
        "ADD COLUMN n TIMESTAMP DEFAULT '2020-01-02 03:04:05.5'",
        columns(plus(Field(17, "n", "timestamp", False, None, *["2020-01-02T03:04:05.500000"] * 2))),
    ),
    "add_keyword": Case('ADD COLUMN "Select" VARCHAR', columns(plus(Field(17, "Select", "string")))),
    "add_odd_name": Case('ADD COLUMN "a ""%b" VARCHAR', columns(plus(Field(17, 'a "%b', "string")))),
    "add_struct": Case(
        "ADD COLUMN n STRUCT(p INTEGER, q INTEGER[])",
        columns(
            plus(
                Field(
                    17,
                    "n",
                    Struct((Field(18, "p", "int"), Field(19, "q", List(Field(20, "element", "int", required=True))))),
                )
            )
        ),
    ),
    "drop": Case('DROP COLUMN "Mixed"', columns(without(2))),
    "drop_struct": Case("DROP COLUMN st", columns(without(5))),
    "drop_map": Case("DROP COLUMN m", columns(without(11))),
    "drop_commented": Case(
        "DROP COLUMN f", columns(without(3)), before=("COMMENT ON COLUMN {}.f IS 'stays behind, as DuckDB leaves it'",)
    ),
    "rename": Case("RENAME i TO j", columns(to(1, name="j"))),
    "rename_keyword": Case('RENAME i TO "User"', columns(to(1, name="User"))),
    "rename_struct": Case("RENAME st TO st2", columns(to(5, name="st2"))),
    "rename_case": Case('RENAME "Mixed" TO "MIXED"', columns(to(2, name="MIXED"))),
    "retype": Case("ALTER i TYPE BIGINT", columns(to(1, type="long"))),
    "retype_tiny": Case("ALTER t TYPE BIGINT", columns(to(15, type="long"))),
    "retype_float": Case("ALTER f TYPE DOUBLE", columns(to(3, type="double"))),
    "retype_decimal": Case("ALTER de TYPE DECIMAL(20,2)", columns(to(4, type="decimal(20, 2)"))),
    "nulls": Case("ALTER i DROP NOT NULL", columns(to(1, required=False))),
    "no_nulls": Case('ALTER "Mixed" SET NOT NULL', columns(to(2, required=True))),
    "default": Case("ALTER i SET DEFAULT 9", columns(to(1, write_default=9))),
    "no_default": Case("ALTER d DROP DEFAULT", columns(to(16, write_default=None))),
    "add_nested": Case("ADD COLUMN st.n INTEGER", columns(plus(Field(17, "n", "int"), 5))),
    "add_deep": Case(
        "ADD COLUMN st.b.n INTEGER DEFAULT 7",
        columns(plus(Field(17, "n", "int", initial_default=7, write_default=7), 7)),
    ),
    "add_in_map": Case("ADD COLUMN m.value.n INTEGER", columns(plus(Field(17, "n", "int"), 13))),
    "drop_nested": Case("DROP COLUMN st.b", columns(without(7))),
    "rename_nested": Case("RENAME st.a TO a2", columns(to(6, name="a2"))),
    "retype_nested": Case("ALTER st TYPE STRUCT(a BIGINT, b STRUCT(c VARCHAR))", columns(to(6, type="long"))),
    "retype_element": Case("ALTER l TYPE BIGINT[]", columns(to(10, type="long"))),
    "partition": Case(
        "SET PARTITIONED BY (i, year(d), bucket(4, i))", partitioned((1, "identity"), (16, "year"), (1, "bucket(4)"))
    ),
    "repartition": Case(
        "SET PARTITIONED BY (d)", partitioned((16, "identity")), before=("ALTER TABLE {} SET PARTITIONED BY (i)",)
    ),
    "unpartition": Case("RESET PARTITIONED BY", partitioned(), before=("ALTER TABLE {} SET PARTITIONED BY (i)",)),
    "sort": Case('SET SORTED BY ("Mixed" DESC NULLS FIRST, i DESC NULLS FIRST)', sorted_by("Mixed", "i")),
    "resort": Case("SET SORTED BY (t DESC NULLS FIRST)", sorted_by("t"), before=("ALTER TABLE {} SET SORTED BY (i)",)),
    "unsort": Case("RESET SORTED BY", sorted_by(), before=("ALTER TABLE {} SET SORTED BY (i)",)),
    "rename_sorted": Case(
        'RENAME i TO "J 2"',
        columns(to(1, name="J 2")),
        # nothing of strings: DuckDB's flush takes them for blobs in an expression
        before=("ALTER TABLE {} SET SORTED BY (abs(t), I DESC, i + t, CASE WHEN i > 2 THEN i ELSE t END)",),
    ),
    "rename_table": Case("RENAME TO {}_new", renamed),
}


@dataclass
class Side:
    """A lake, with a session that has been open all the time and another that alters its tables."""

    lake: TestLake
    warm: duckdb.DuckDBPyConnection
    other: duckdb.DuckDBPyConnection


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Side, Side]]:
    """Two lakes in which the same things happen: in the first by DuckDB alone, in the second by us."""
    with lakes.lake() as theirs, lakes.lake() as ours:
        sides = [Side(lake, lake.duckdb(), lake.duckdb()) for lake in (theirs, ours)]
        yield sides[0], sides[1]
        for side in sides:
            side.warm.close()
            side.other.close()


def content(db: duckdb.DuckDBPyConnection, table: str) -> tuple[list[str], list[str]]:
    """Names, and rows in an order that the lake has no part in."""
    found = db.execute(f"FROM {table}")
    return [d[0] for d in found.description or []], sorted(map(repr, found.fetchall()))


@pytest.mark.parametrize("name", CASES)
def test_h28_h29_alter_table_writes_the_same_rows_as_duckdb_and_open_sessions_continue(
    name: str, pair: tuple[Side, Side]
) -> None:
    case, table = CASES[name], f"t_{name}"
    after = f"{table}_new" if name == "rename_table" else table
    for side in pair:
        side.warm.execute(CREATE.format(table))
        side.warm.execute(f"INSERT INTO {table} VALUES {VALUES}")
        side.warm.execute(f"INSERT INTO {table} SELECT x.* FROM {table} x, range(20)")
        for statement in case.before:
            side.warm.execute(statement.format(table))
        assert len(content(side.warm, table)[1]) == 21
    theirs, ours = pair
    theirs.other.execute(f"ALTER TABLE {table} {case.theirs.format(table)}")
    found = table_id(ours.lake, table)
    in_commit(ours.lake, lambda tx: case.ours(tx, found))
    assert rows(ours.lake, found) == rows(theirs.lake, found)
    assert content(ours.warm, after) == content(theirs.other, after)
    for statement, count in (
        (f"INSERT INTO {after} SELECT * FROM {after} LIMIT 1", 22),
        (f"INSERT INTO {after} SELECT x.* FROM {after} x, range(3)", 88),
        (f"CALL ducklake_flush_inlined_data('lake', table_name => '{after}')", 88),
    ):
        for side in pair:
            side.warm.execute(statement)
        seen = content(ours.warm, after)
        assert len(seen[1]) == count
        assert seen == content(theirs.warm, after)
    assert rows(ours.lake, found) == rows(theirs.lake, found)
    with ours.lake.duckdb() as fresh:
        assert content(fresh, after) == content(ours.warm, after)


@pytest.mark.parametrize("texts", [["one"], ["one", "two"], ["one", None]])
def test_comments_are_written_in_the_rows_that_duckdb_writes(texts: list[str | None], pair: tuple[Side, Side]) -> None:
    table = f"commented_{len(texts)}_{texts[-1]}"
    theirs, ours = pair
    for side in pair:
        side.warm.execute(CREATE.format(table))
    found = table_id(ours.lake, table)
    for text in texts:
        literal = "NULL" if text is None else f"'{text}'"
        theirs.other.execute(f"COMMENT ON TABLE {table} IS {literal}")
        theirs.other.execute(f"COMMENT ON COLUMN {table}.i IS {literal}")
        in_commit(ours.lake, lambda tx: comment(text)(tx, found))  # noqa: B023
        in_commit(ours.lake, lambda tx: columns(to(1, doc=text))(tx, found))  # noqa: B023
        query = f"SELECT comment FROM duckdb_tables() WHERE table_name = '{table}'"
        assert ours.warm.execute(query).fetchall() == [(text,)]
    assert rows(ours.lake, found) == rows(theirs.lake, found)


def test_dropping_a_table_ends_all_its_catalog_rows_as_duckdb_does(pair: tuple[Side, Side]) -> None:
    theirs, ours = pair
    for side in pair:
        for statement in (
            CREATE.format("gone"),
            "ALTER TABLE gone SET PARTITIONED BY (i)",
            "ALTER TABLE gone SET SORTED BY (i)",
            "COMMENT ON TABLE gone IS 'x'",
            "COMMENT ON COLUMN gone.i IS 'y'",
            f"INSERT INTO gone VALUES {VALUES}",
            "INSERT INTO gone SELECT x.* REPLACE ((range % 2)::INTEGER AS i) FROM gone x, range(40)",
            "DELETE FROM gone WHERE i = 1",
            "CALL ducklake_flush_inlined_data('lake', table_name => 'gone')",
            f"INSERT INTO gone VALUES {VALUES}",
        ):
            side.warm.execute(statement)
    theirs.other.execute("DROP TABLE gone")
    found = table_id(ours.lake, "gone")
    in_commit(ours.lake, lambda tx: tables.drop(tx, found))
    assert rows(ours.lake, found) == rows(theirs.lake, found)
    for side in pair:
        with pytest.raises(duckdb.CatalogException):
            side.warm.execute("FROM gone")
        # and the name is free
        side.warm.execute("CREATE TABLE gone(i INTEGER)")
    assert rows(ours.lake, found) == rows(theirs.lake, found)


def test_h48_a_session_with_cached_bounds_finds_all_rows_after_a_retype(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE warm(i INTEGER)")
    db.execute("INSERT INTO warm SELECT 1 UNION ALL SELECT 300")
    db.execute("FROM warm WHERE i > 2").fetchall()
    in_commit(lake, lambda tx: columns(to(1, type="long"))(tx, table_id(lake, "warm")))
    for value in (3, 4, 5_000_000_000):
        db.execute(f"INSERT INTO warm VALUES ({value})")
    for session in (db, lake.duckdb()):
        assert session.execute("FROM warm ORDER BY i").fetchall() == [(1,), (3,), (4,), (300,), (5_000_000_000,)]
        assert session.execute("FROM warm WHERE i = 300").fetchall() == [(300,)]


def test_several_changes_of_one_commit_make_one_schema_version(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute(CREATE.format("several"))
    db.execute(f"INSERT INTO several VALUES {VALUES}")
    table = table_id(lake, "several")

    async def work(tx: Commit) -> None:
        await partitioned((1, "identity"))(tx, table)
        await sorted_by("j")(tx, table)
        await columns(to(1, name="j"), without(2), plus(Field(17, "n", "int")))(tx, table)
        await comment("at once")(tx, table)

    before = lake.snapshots()[-1]
    in_commit(lake, work)
    made = lake.snapshots()[-1]
    assert made[0] == before[0] + 1
    assert made[4] == f"altered_table:{table}"
    versions = lake.sql("SELECT * FROM ducklake_schema_versions WHERE begin_snapshot = %s", made[0])
    assert versions == [(made[0], made[1], table)]
    name = f"ducklake_inlined_data_{table}_{made[1]}"
    inlined = lake.sql("SELECT * FROM ducklake_inlined_data_tables WHERE table_id = %s ORDER BY 3", table)
    assert inlined[1:] == [(table, name, made[1])]
    db.execute("INSERT INTO several BY NAME SELECT 2 AS j, 3 AS n")
    db.execute("CALL ducklake_flush_inlined_data('lake')")
    assert db.execute("SELECT j, n, d FROM several ORDER BY j").fetchall()[1][:2] == (2, 3)
    assert lake.sql("SELECT count(*) FROM ducklake_sort_info WHERE table_id = %s", table) == [(1,)]


def test_h29_rows_are_flushed_into_the_partitions_of_the_new_partitioning(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE parted(a INTEGER, b INTEGER)")
    db.execute("ALTER TABLE parted SET PARTITIONED BY (a)")
    table = table_id(lake, "parted")
    made = in_commit(lake, lambda tx: alter.set_partitioning(tx, table, [partitions.Key(2, "identity")]))
    db.execute("INSERT INTO parted VALUES (1, 2)")
    db.execute("CALL ducklake_flush_inlined_data('lake')")
    files = lake.sql("SELECT partition_id, path FROM ducklake_data_file WHERE table_id = %s", table)
    assert [(i, path.split("/")[0]) for i, path in files] == [(made, "b=2")]


def test_a_schema_that_differs_only_in_column_order_makes_no_snapshot(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    """An order of columns that differs is nothing to DuckLake, either."""
    db.execute(CREATE.format("same"))
    before = lake.snapshots()
    flipped: EDIT = lambda schema: replace(schema, fields=schema.fields[::-1])  # noqa: E731
    in_commit(lake, lambda tx: columns(flipped)(tx, table_id(lake, "same")))
    assert lake.snapshots() == before


@pytest.mark.parametrize(
    ("what", "by"), [("PARTITIONED BY (bucket(4, i))", "partitions"), ("SORTED BY (t + I)", "sorts")]
)
def test_a_column_that_is_sorted_or_partitioned_by_is_not_dropped(
    what: str, by: str, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute(CREATE.format(by))
    db.execute(f"ALTER TABLE {by} SET {what}")
    table, before = table_id(lake, by), lake.snapshots()
    with pytest.raises(Unsupported, match=f"Column i cannot be dropped: DuckLake {by} the table by it"):
        in_commit(lake, lambda tx: columns(without(1))(tx, table))
    assert lake.snapshots() == before

    async def reset_first(tx: Commit) -> None:
        await (partitioned if by == "partitions" else sorted_by)()(tx, table)
        await columns(without(1))(tx, table)

    in_commit(lake, reset_first)
    db.execute(f"INSERT INTO {by}(t) SELECT range FROM range(20)")
    assert db.execute(f"SELECT sum(t) FROM {by}").fetchall() == [(190,)]


def test_renaming_a_column_keeps_a_sort_order_that_does_not_use_it(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    """DuckDB leaves it alone, too, but draws an id for a new one that it does not write."""
    db.execute(CREATE.format("stays"))
    db.execute("ALTER TABLE stays SET SORTED BY (i, lower(\"Mixed\"), 'f')")
    table = table_id(lake, "stays")
    before = rows(lake, table)
    in_commit(lake, lambda tx: columns(to(3, name="lower"))(tx, table))
    after = rows(lake, table)
    assert [after[name] for name in after if "sort" in name] == [before[name] for name in before if "sort" in name]
    assert after["snapshots"][0][2] == before["snapshots"][0][2]


def test_a_table_moves_to_another_schema_and_its_files_stay(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA elsewhere")
    db.execute("CREATE TABLE moves(i INTEGER)")
    db.execute("INSERT INTO moves SELECT range FROM range(20)")
    db.execute("INSERT INTO moves VALUES (20)")

    async def move(tx: Commit) -> None:
        await tables.rename(tx, await find_table(tx, "moves"), await find_schema(tx, "elsewhere"), "moved")

    in_commit(lake, move)
    assert lake.snapshots()[-1][4] == 'created_table:"elsewhere"."moved"'
    db.execute("INSERT INTO elsewhere.moved SELECT range FROM range(21, 61)")
    db.execute("INSERT INTO elsewhere.moved VALUES (61)")
    db.execute("DELETE FROM elsewhere.moved WHERE i IN (3, 41)")
    db.execute("CALL ducklake_flush_inlined_data('lake')")
    for session in (db, lake.duckdb()):
        assert session.execute("FROM elsewhere.moved ORDER BY i").fetchall() == [
            (i,) for i in range(62) if i not in {3, 41}
        ]
    with pytest.raises(duckdb.CatalogException):
        db.execute("FROM moves")
    ((path, relative),) = lake.sql("SELECT path, path_is_relative FROM ducklake_table WHERE table_name = 'moved'")
    assert (path, relative) == (f"{lake.settings.data_path}main/moves/", False)


def test_h49_rows_of_a_table_with_a_name_that_cannot_be_inlined_go_to_files(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    for number, name in enumerate(("row_id", "Begin_Snapshot", "n" * 64, "ü" * 32)):
        table = f"reserved_{number}"
        db.execute(f"CREATE TABLE {table}(i INTEGER)")
        in_commit(lake, lambda tx: columns(plus(Field(2, name, "int")))(tx, table_id(lake, table)))  # noqa: B023
        db.execute(f"INSERT INTO {table} VALUES (1, 2)")
        assert db.execute(f"FROM {table}").fetchall() == [(1, 2)]
        in_commit(lake, lambda tx: columns(to(2, name="fine"))(tx, table_id(lake, table)))  # noqa: B023
        db.execute(f"INSERT INTO {table} VALUES (3, 4)")
        assert sorted(db.execute(f"FROM {table}").fetchall()) == [(1, 2), (3, 4)]
        counts = lake.sql("SELECT record_count FROM ducklake_data_file WHERE table_id = %s", table_id(lake, table))
        assert counts == [(1,)]


def test_names_that_duckdb_cannot_write_for_postgres_are_refused(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    """And no other: all that Postgres reserves and DuckDB does not quote, and Postgres's own columns."""
    bare = [row[0] for row in db.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()]
    reserved = lake.sql("SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T') AND word <> ALL (%s)", bare)
    system = lake.sql("SELECT attname FROM pg_attribute WHERE attrelid = 'ducklake_snapshot'::regclass AND attnum < 0")
    assert {row[0] for row in reserved + system} <= UNWRITABLE
    db.execute("CREATE TABLE refuses(i INTEGER)")
    for name in ("ctid", "Current_Date"):
        with pytest.raises(Unsupported, match=f"Column {name}: "):
            in_commit(lake, lambda tx: columns(plus(Field(2, name, "int")))(tx, table_id(lake, "refuses")))  # noqa: B023


def test_no_inlined_data_table_is_created_if_inlining_is_off(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    with lakes.lake() as off:
        with off.duckdb() as setting:
            setting.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
        with off.duckdb() as session:
            session.execute("CREATE TABLE plain(i INTEGER)")
            in_commit(off, lambda tx: columns(plus(Field(2, "ctid", "int")))(tx, table_id(off, "plain")))
            assert off.sql("SELECT FROM ducklake_inlined_data_tables") == []
            session.execute("INSERT INTO plain VALUES (1, 2)")
            assert session.execute("FROM plain").fetchall() == [(1, 2)]
    db.execute("CREATE TABLE kept(i INTEGER)")
    db.execute("INSERT INTO kept VALUES (1)")
    db.execute("CALL lake.set_option('data_inlining_row_limit', 0, table_name => 'kept')")
    in_commit(lake, lambda tx: columns(plus(Field(2, "n", "int")))(tx, table_id(lake, "kept")))
    # the session has not heard of the option
    db.execute("INSERT INTO kept VALUES (3, 4)")
    assert sorted(db.execute("FROM kept").fetchall()) == [(1, None), (3, 4)]
