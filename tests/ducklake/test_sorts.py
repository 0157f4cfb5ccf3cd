"""Sort orders that DuckDB set, as Iceberg's."""

import asyncio

import duckdb
import pytest

from mergus.ducklake import columns, sorts
from mergus.ducklake.columns import Column, Columns, Span
from mergus.ducklake.connect import connection, open_pool
from mergus.ducklake.sorts import Key, Sort, Sorts
from mergus.iceberg.schema import Field, Schema, Struct
from mergus.iceberg.sort_order import UNSORTED, SortField, SortOrder
from tests.support.lakes import TestLake


def read(lake: TestLake, table: str) -> tuple[Sorts, Columns]:
    ((table_id,),) = lake.sql(
        "SELECT table_id FROM ducklake_table WHERE table_name = %s AND end_snapshot IS NULL", table
    )

    async def work() -> tuple[Sorts, Columns]:
        async with open_pool(lake.settings) as pool, connection(pool) as conn:
            return await sorts.read(conn, table_id), await columns.read(conn, table_id)

    return asyncio.run(work())


def now(lake: TestLake) -> int:
    return lake.snapshots()[-1][0]


def order_now(lake: TestLake, table: str) -> SortOrder:
    found, of_table = read(lake, table)
    orders = found.orders(of_table, of_table.schema_at(now(lake)))
    assert orders[0] == UNSORTED
    order = found.order_at(now(lake), orders)
    assert order in orders
    return order


@pytest.mark.parametrize(
    ("number", "clause", "expected"),
    [
        (1, "id", [SortField(1, "asc", "nulls-last")]),
        (2, "ID DESC NULLS FIRST", [SortField(1, "desc", "nulls-first")]),
        (3, '"A b", "q""t" DESC', [SortField(2, "asc", "nulls-last"), SortField(3, "desc", "nulls-last")]),
        (4, '"a.b"', [SortField(6, "asc", "nulls-last")]),
        (5, "id, id + 0, d", [SortField(1, "asc", "nulls-last")]),
        (6, "id, id DESC, größe", [SortField(1, "asc", "nulls-last"), SortField(8, "asc", "nulls-last")]),
        (7, 'lower("A b"), id', []),
        (8, '"A b" COLLATE NOCASE', []),
        (9, "st", []),
        (10, "1", []),
        (11, '"1"', [SortField(9, "asc", "nulls-last")]),
    ],
)
def test_plain_columns_up_to_the_first_expression_are_a_sort_order(
    number: int, clause: str, expected: list[SortField], lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table = f"sorted_{number}"
    db.execute(
        f'CREATE TABLE {table}(id INTEGER, "A b" VARCHAR, "q""t" INTEGER, st STRUCT(x INTEGER), "a.b" INTEGER, '
        'd DATE, größe INTEGER, "1" INTEGER)'
    )
    ids = dict(lake.sql("SELECT column_name, column_id FROM ducklake_column ORDER BY table_id"))
    assert (ids["id"], ids["A b"], ids['q"t'], ids["a.b"], ids["größe"], ids["1"]) == (1, 2, 3, 6, 8, 9)
    db.execute(f"ALTER TABLE {table} SET SORTED BY ({clause})")
    order = order_now(lake, table)
    assert list(order.fields) == expected
    ((sort_id,),) = lake.sql("SELECT max(sort_id) FROM ducklake_sort_info")
    assert order.order_id == (sort_id if expected else 0)


def test_a_sort_order_survives_a_column_rename_and_ends_with_reset_sorted_by(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE TABLE follows(a INTEGER, b INTEGER)")
    created = now(lake)
    db.execute("ALTER TABLE follows SET SORTED BY (a)")
    db.execute("ALTER TABLE follows RENAME a TO c")
    db.execute("ALTER TABLE follows RESET SORTED BY")
    db.execute("ALTER TABLE follows SET SORTED BY (b DESC)")
    found, of_table = read(lake, "follows")
    orders = found.orders(of_table, of_table.schema_at(now(lake)))
    ids = [order.order_id for order in orders]
    assert ids[0] == 0
    assert len(set(ids)) == len(ids) == 4
    in_force = [found.order_at(at, orders) for at in range(created, now(lake) + 1)]
    assert [[f.source_id for f in order.fields] for order in in_force] == [[], [1], [1], [], [2]]


def test_a_table_without_a_sort_lists_order_0_alone(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE as_it_comes(a INTEGER)")
    found, of_table = read(lake, "as_it_comes")
    assert found.orders(of_table, of_table.schema_at(now(lake))) == [UNSORTED]


def test_an_old_sort_order_is_cut_before_a_column_that_was_dropped_or_became_nested() -> None:
    """Java would look for it in vain."""
    had = Columns([Column(i, Span(1, None), name, "int32", True, None) for i, name in enumerate("abc", 1)])
    keys = tuple(Key(name, "duckdb", "ASC", "NULLS_LAST") for name in "abc")
    found = Sorts([Sort(9, Span(2, None), keys)])
    a, b, c = (Field(i, name, "int") for i, name in enumerate("abc", 1))
    assert [len(x.fields) for x in found.orders(had, Schema((a, b, c)))] == [0, 3]
    assert [len(x.fields) for x in found.orders(had, Schema((a, c)))] == [0, 1]
    assert [len(x.fields) for x in found.orders(had, Schema((a, Field(2, "b", Struct((c,))))))] == [0, 1]
    assert found.orders(had, Schema((b, c))) == [UNSORTED]


@pytest.mark.parametrize(
    "key",
    [
        Key("a", "spark", "ASC", "NULLS_LAST"),
        Key("a", "duckdb", "RANDOM", "NULLS_LAST"),
        Key("a", "duckdb", "ASC", "ORDER_DEFAULT"),
    ],
)
def test_a_sort_key_with_an_unknown_dialect_or_direction_is_not_shown(key: Key) -> None:
    had = Columns([Column(1, Span(1, None), "a", "int32", True, None)])
    found = Sorts([Sort(9, Span(2, None), (key,))])
    assert found.orders(had, Schema((Field(1, "a", "int"),))) == [UNSORTED]
