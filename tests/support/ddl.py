"""DDL through our own rows beside DuckDB's: doing it, and all rows that tell what was done."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from mergus.ducklake import alter, columns, schemas, tables
from mergus.ducklake.column_changes import altered
from mergus.ducklake.commit import Commit, CommitInfo, commit
from mergus.ducklake.connect import open_pool
from mergus.iceberg.schema import Field, List, Map, Schema, Struct, Type
from tests.support.lakes import Row, TestLake

T = TypeVar("T")
Work = Callable[[Commit], Awaitable[T]]

ROWS = {
    "ducklake_table": "table_id, begin_snapshot, end_snapshot, schema_id, table_name, path_is_relative, "
    "replace(path, table_uuid::text, 'uuid')",
    # DuckDB writes of nested columns, and of renamed ones of a nested type, something else at each occasion
    "ducklake_column": "column_id, begin_snapshot, end_snapshot, table_id, column_order, column_name, column_type, "
    "initial_default, default_value, nulls_allowed OR parent_column IS NOT NULL, parent_column, "
    "CASE WHEN parent_column IS NULL AND column_type NOT IN ('struct', 'list', 'map') THEN default_value_type END, "
    "default_value_dialect",
    **dict.fromkeys(
        (
            *("ducklake_column_tag", "ducklake_tag", "ducklake_schema_versions", "ducklake_inlined_data_tables"),
            *("ducklake_partition_info", "ducklake_partition_column", "ducklake_sort_info", "ducklake_sort_expression"),
        ),
        "*",
    ),
    "ducklake_data_file": "table_id, begin_snapshot, end_snapshot, record_count, row_id_start, partition_id",
    "ducklake_delete_file": "table_id, begin_snapshot, end_snapshot, delete_count",
    "ducklake_table_stats": "table_id, record_count, next_row_id",
}
INLINED = """
    SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    WHERE c.relname ~ %s AND c.relkind = 'r' ORDER BY c.relname, a.attnum
"""


def in_commit(lake: TestLake, work: Work[T]) -> T:
    async def run() -> T:
        async with open_pool(lake.settings) as pool, commit(pool, CommitInfo()) as tx:
            return await work(tx)

    return asyncio.run(run())


def rows(lake: TestLake, table: int) -> dict[str, list[Row]]:
    """All that DDL writes about a table, and the newest snapshot; but for `next_file_id`, which we move with every
    change of a table and DuckDB does not."""
    found: dict[str, list[Row]] = {}
    for name, what in ROWS.items():
        of = "object_id" if name == "ducklake_tag" else "table_id"
        found[name] = sorted(lake.sql(f"SELECT {what} FROM {name} WHERE {of} = %s", table), key=repr)
    snapshot_id, version, catalog_id, _, changes = lake.snapshots()[-1]
    inlined = lake.sql(INLINED, f"^ducklake_inlined_data_{table}_[0-9]+$")
    return {**found, "snapshots": [(snapshot_id, version, catalog_id, changes)], "inlined": inlined}


def table_id(lake: TestLake, name: str) -> int:
    ((found,),) = lake.sql("SELECT table_id FROM ducklake_table WHERE table_name = %s AND end_snapshot IS NULL", name)
    return found


async def find_schema(tx: Commit, name: str = "main") -> schemas.Schema:
    found = await schemas.find(tx.conn, name)
    assert found is not None
    return found


async def find_table(tx: Commit, name: str, schema: str = "main") -> tables.Table:
    found = await tables.find(tx.conn, (await find_schema(tx, schema)).schema_id, name)
    assert found is not None
    table = await tables.read(tx.conn, found)
    assert table is not None
    return table


async def change_columns(tx: Commit, table: int, change: Callable[[Schema], Schema]) -> None:
    of_table = await columns.read(tx.conn, table)
    shown = of_table.schema_at(tx.head.snapshot_id)
    live = [column for column in of_table.columns if column.span.end is None]
    await alter.write_columns(tx, table, altered(live, shown, change(shown)), is_new=False)


def edited(schema: Schema, field_id: int, edit: Callable[[Field], Field | None]) -> Schema:
    """With one field, at whatever level, as `edit` makes it; None drops it."""

    def one(field: Field) -> Field | None:
        found = edit(field) if field.id == field_id else field
        return None if found is None else replace(found, type=kind(found.type))

    def kind(given: Type) -> Type:
        match given:
            case Struct(fields):
                return Struct(tuple(f for f in map(one, fields) if f is not None))
            case List(element):
                return List(one(element) or element)
            case Map(key, value):
                return Map(one(key) or key, one(value) or value)
            case _:
                return given

    return replace(schema, fields=tuple(f for f in map(one, schema.fields) if f is not None))


def grown(schema: Schema, field: Field, parent: int | None = None) -> Schema:
    """With a field more, in the struct of this id or at the top."""
    if parent is None:
        return replace(schema, fields=(*schema.fields, field))

    def into(struct: Field) -> Field:
        assert isinstance(struct.type, Struct)
        return replace(struct, type=Struct((*struct.type.fields, field)))

    return edited(schema, parent, into)
