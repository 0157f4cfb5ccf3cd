"""Inlined rows as they are in Postgres, of tables that DuckDB made, altered and flushed."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import duckdb
import pytest

from mergus.ducklake import columns, inlined
from mergus.ducklake.columns import Columns
from mergus.ducklake.connect import Conn, one_state, open_pool
from mergus.ducklake.inlined import Batch, InlinedTable, Live, Unreadable
from mergus.errors import TableGone
from tests.support import lakes
from tests.support.lakes import TestLake

T = TypeVar("T")


def ask(lake: TestLake, table: str, question: Callable[[Conn, str, Columns, list[InlinedTable]], Awaitable[T]]) -> T:
    """About one state of the lake."""
    ((table_id,),) = lake.sql("SELECT DISTINCT table_id FROM ducklake_table WHERE table_name = %s", table)
    schema = lake.settings.metadata_schema

    async def work() -> T:
        async with open_pool(lake.settings) as pool, one_state(pool) as conn:
            there = await inlined.tables(conn, schema, table_id)
            return await question(conn, schema, await columns.read(conn, table_id), there)

    return asyncio.run(work())


def read(lake: TestLake, table: str, at: int | None = None, after: int = -1, upto: int | None = None) -> list[Batch]:
    snapshot_id = now(lake) if at is None else at
    last = snapshot_id if upto is None else upto
    return ask(lake, table, lambda *it: inlined.read(*it, after=after, upto=last, at=snapshot_id))


def tables(lake: TestLake, table: str) -> list[InlinedTable]:
    async def there(_: Conn, __: str, ___: Columns, found: list[InlinedTable]) -> list[InlinedTable]:
        return found

    return ask(lake, table, there)


def now(lake: TestLake) -> int:
    return lake.snapshots()[-1][0]


def keys(batches: list[Batch]) -> list[tuple[int, int]]:
    return [key for batch in batches for key in zip(batch.row_ids, batch.begin_snapshots, strict=True)]


def test_a_table_without_inlined_rows_has_no_batches(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE no_rows(i INTEGER)")
    db.execute("INSERT INTO no_rows SELECT range FROM range(40)")
    assert len(tables(lake, "no_rows")) == 1
    assert read(lake, "no_rows") == []
    assert ask(
        lake, "no_rows", lambda conn, schema, _, there: inlined.live_begins(conn, schema, there, at=10**6)
    ) == Live(0, None, None)


def test_inlined_values_are_read_as_postgres_stores_them(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute(
        "CREATE TABLE raw(bo BOOLEAN, i8 TINYINT, u32 UINTEGER, i128 HUGEINT, f FLOAT, d DOUBLE, de DECIMAL(10,2), "
        "da DATE, ti TIME, tz TIMESTAMPTZ, v VARCHAR, j JSON, bl BLOB, u UUID, l INTEGER[], iv INTERVAL)"
    )
    db.execute(
        "INSERT INTO raw VALUES (true, -1, 4294967295, 1, 0.1, 0.1, 1.5, '2020-01-01', '24:00:00', "
        "'2020-01-01 00:00:00+02', 'é', '{}', '\\x00', '550e8400-e29b-41d4-a716-446655440000', [1, NULL], '1 day')"
    )
    (batch,) = read(lake, "raw")
    assert [c.id for c in batch.columns][:14] == list(range(1, 15))
    (row,) = zip(*batch.values, strict=True)
    assert row == (
        *(True, -1, 4294967295, "1", 0.10000000149011612, 0.1, "1.50", "2020-01-01", "24:00:00"),
        *("2019-12-31 22:00:00+00", "é".encode(), b"{}", b"\0", "550e8400-e29b-41d4-a716-446655440000"),
        *("[1, NULL]", "1 day"),
    )


def test_h1_h2_inlined_rows_are_visible_from_their_begin_to_their_end_snapshot(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE spans(i INTEGER, s VARCHAR)")
    db.execute("INSERT INTO spans VALUES (1, 'a'), (2, 'b')")
    first = now(lake)
    assert lake.sql(
        "SELECT count(*) FROM ducklake_data_file f JOIN ducklake_table USING (table_id) WHERE table_name = 'spans'"
    ) == [(0,)]
    db.execute("UPDATE spans SET s = 'new' WHERE i = 1")
    db.execute("INSERT INTO spans VALUES (3, 'c')")
    db.execute("DELETE FROM spans WHERE i = 2")
    assert [sorted(keys(read(lake, "spans", at))) for at in range(first - 1, first + 4)] == [
        [],
        [(0, first), (1, first)],
        [(0, first + 1), (1, first)],
        [(0, first + 1), (1, first), (2, first + 2)],
        [(0, first + 1), (2, first + 2)],
    ]
    # in order, and only those of some snapshots
    assert keys(read(lake, "spans", first + 2)) == [(1, first), (0, first + 1), (2, first + 2)]
    assert keys(read(lake, "spans", first + 2, after=first)) == [(0, first + 1), (2, first + 2)]
    assert keys(read(lake, "spans", first + 2, after=first, upto=first + 1)) == [(0, first + 1)]
    assert keys(read(lake, "spans", first + 3, upto=first)) == []

    def ended(after: int, upto: int) -> list[tuple[int, int]]:
        return ask(lake, "spans", lambda c, s, _, t: inlined.ended(c, s, t, after=after, upto=upto))

    assert [ended(at - 1, at) for at in range(first, first + 4)] == [[], [(0, first)], [], [(1, first)]]
    assert ended(first, first + 3) == [(0, first), (1, first)]

    def live(at: int) -> Live:
        return ask(lake, "spans", lambda c, s, _, t: inlined.live_begins(c, s, t, at=at))

    assert live(first) == Live(2, first, first)
    assert live(first + 3) == Live(2, first + 1, first + 2)


def test_h4_inlined_rows_are_read_from_the_schema_version_of_their_insert(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute('CREATE TABLE versions("Mixed Case" INTEGER, "CamelCase" VARCHAR)')
    db.execute("INSERT INTO versions VALUES (1, 'a')")
    first = now(lake)
    db.execute("ALTER TABLE versions ADD COLUMN n INTEGER DEFAULT 7")
    db.execute("INSERT INTO versions VALUES (2, 'b', 8)")
    db.execute('ALTER TABLE versions RENAME COLUMN "CamelCase" TO "Été"')
    db.execute('ALTER TABLE versions DROP COLUMN "Mixed Case"')
    db.execute("INSERT INTO versions VALUES ('c', 9)")
    assert len(tables(lake, "versions")) == 4
    batches = read(lake, "versions")
    assert [[(c.id, c.name) for c in batch.columns] for batch in batches] == [
        [(1, "Mixed Case"), (2, "CamelCase")],
        [(1, "Mixed Case"), (2, "CamelCase"), (3, "n")],
        [(2, "Été"), (3, "n")],
    ]
    assert [batch.values for batch in batches] == [[[1], [b"a"]], [[2], [b"b"], [8]], [[b"c"], [9]]]
    assert keys(batches) == [(0, first), (1, first + 2), (2, first + 5)]
    everything = ask(lake, "versions", lambda c, s, _, t: inlined.live_begins(c, s, t, at=now(lake)))
    assert everything == Live(3, first, first + 5)


@pytest.mark.integration
def test_an_inlined_table_created_after_schema_changes_has_the_columns_of_that_time() -> None:
    """A fresh DuckDB session shows the default instead of x."""
    with lakes.lake() as lake:
        with lake.duckdb() as db:
            db.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
        with lake.duckdb() as db:
            db.execute("CREATE TABLE late(i INTEGER)")
            db.execute("ALTER TABLE late ADD COLUMN s VARCHAR DEFAULT 'default'")
            db.execute("ALTER TABLE late RENAME COLUMN i TO k")
            assert tables(lake, "late") == []
            db.execute("CALL lake.set_option('data_inlining_row_limit', 10)")
        with lake.duckdb() as db:
            db.execute("INSERT INTO late VALUES (1, 'x')")
        ((version,),) = lake.sql("SELECT schema_version FROM ducklake_inlined_data_tables")
        assert lake.sql("SELECT 1 FROM ducklake_schema_versions WHERE schema_version = %s", version) == []
        (batch,) = read(lake, "late")
        assert ([c.name for c in batch.columns], batch.values) == (["k", "s"], [[1], [b"x"]])
        with lake.duckdb() as db:
            db.execute("ALTER TABLE late ADD COLUMN z INTEGER")
            db.execute("INSERT INTO late VALUES (2, 'y', 3)")
        assert [[c.name for c in batch.columns] for batch in read(lake, "late")] == [["k", "s"], ["k", "s", "z"]]


def test_inlined_rows_whose_columns_do_not_match_their_table_are_refused(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE unknown(i INTEGER)")
    db.execute("ALTER TABLE unknown ADD COLUMN s VARCHAR")
    db.execute("INSERT INTO unknown VALUES (1, 'x')")

    def misplaced(tables: list[InlinedTable]) -> list[InlinedTable]:
        return [replace(table, since=tables[0].since) for table in tables]

    with pytest.raises(Unreadable, match="ducklake_inlined_data"):
        ask(lake, "unknown", lambda c, s, k, t: inlined.read(c, s, k, misplaced(t), after=-1, upto=10**6, at=10**6))


def test_h9_flushed_rows_are_no_longer_inlined(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE flushed(i INTEGER)")
    db.execute("INSERT INTO flushed VALUES (1)")
    first = now(lake)
    db.execute("ALTER TABLE flushed ADD COLUMN s VARCHAR")
    db.execute("INSERT INTO flushed VALUES (2, 'x')")
    db.execute("CALL ducklake_flush_inlined_data('lake', table_name => 'flushed')")
    assert [read(lake, "flushed", at) for at in range(first, now(lake) + 1)] == [[]] * 4
    assert len(tables(lake, "flushed")) == 1


def test_a_read_of_inlined_rows_is_consistent_during_a_concurrent_flush(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE kept(i INTEGER)")
    db.execute("INSERT INTO kept VALUES (1)")

    async def question(conn: Conn, schema: str, known: Columns, there: list[InlinedTable]) -> list[Batch]:
        db.execute("CALL ducklake_flush_inlined_data('lake', table_name => 'kept')")
        return await inlined.read(conn, schema, known, there, after=-1, upto=10**6, at=10**6)

    assert [batch.values for batch in ask(lake, "kept", question)] == [[[1]]]
    assert read(lake, "kept") == []


@pytest.mark.parametrize("asked", ["read", "ended", "keys"])
def test_reading_an_inlined_table_that_a_flush_has_dropped_raises_table_gone(
    asked: str, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table = f"dropped_{asked}"
    db.execute(f"CREATE TABLE {table}(i INTEGER)")
    db.execute(f"INSERT INTO {table} VALUES (1)")
    db.execute(f"ALTER TABLE {table} ADD COLUMN s VARCHAR")

    async def question(conn: Conn, schema: str, known: Columns, there: list[InlinedTable]) -> object:
        db.execute(f"CALL ducklake_flush_inlined_data('lake', table_name => '{table}')")
        assert lake.sql("SELECT to_regclass(%s)", there[0].name) == [(None,)]
        match asked:
            case "read":
                return await inlined.read(conn, schema, known, there, after=-1, upto=10**6, at=10**6)
            case "ended":
                return await inlined.ended(conn, schema, there, after=-1, upto=10**6)
            case _:
                return await inlined.keys(conn, schema, there, after=-1, upto=10**6, at=10**6)

    with pytest.raises(TableGone):
        ask(lake, table, question)


def test_h49_a_column_name_too_long_for_postgres_is_not_inlined(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute(f"CREATE TABLE long_name(i INTEGER, {'x' * 64} INTEGER)")
    db.execute("INSERT INTO long_name VALUES (1, 2)")
    assert tables(lake, "long_name") == []
    assert read(lake, "long_name") == []
    assert db.execute("SELECT count(*) FROM ducklake_list_files('lake', 'long_name')").fetchall() == [(1,)]


@pytest.mark.integration
def test_inlined_rows_are_read_from_any_metadata_schema() -> None:
    with lakes.lake(metadata_schema="Else where") as lake, lake.duckdb() as db:
        db.execute("CREATE TABLE t(i INTEGER)")
        db.execute("INSERT INTO t VALUES (1)")
        (batch,) = read(lake, "t")
        assert batch.values == [[1]]
        assert ask(lake, "t", lambda c, s, _, t: inlined.live_begins(c, s, t, at=now(lake))).count == 1
