"""Tables that no engine has made: rows in Postgres, written by commits of our own.

Data files are only named, and rows are inlined straight in Postgres. To show a table as Iceberg nobody opens an
ordinary data file, so a test that is about anything but rows needs neither a DuckDB session nor a file.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID, uuid4, uuid5

from psycopg import sql

from mergus.ducklake import alter, column_changes, data_changes, schemas, tables
from mergus.ducklake.changes import inlined_insert
from mergus.ducklake.commit import Commit, CommitInfo, commit
from mergus.ducklake.connect import Pool, connection
from mergus.ducklake.data_changes import DataChanges, NewFile
from mergus.ducklake.files import ColumnStats
from mergus.ducklake.tables import Table
from mergus.iceberg.schema import Field, Schema

SCHEMA = Schema((Field(1, "i", "int"), Field(2, "s", "string")))
LEAVES = {1: "int32", 2: "varchar"}
METADATA_SCHEMA = "public"
ROWS = 10


@asynccontextmanager
async def committed(pool: Pool) -> AsyncGenerator[Commit]:
    """One snapshot of the lake."""
    async with commit(pool, CommitInfo()) as tx:
        yield tx


async def create_table(pool: Pool, name: str, schema: Schema = SCHEMA, uuid: UUID | None = None) -> int:
    """In `main`, without rows; its id."""
    async with committed(pool) as tx:
        found = await schemas.find(tx.conn, "main")
        assert found is not None
        table_id = await tables.create(tx, found, name, uuid or uuid4())
        await alter.write_columns(tx, table_id, column_changes.created(schema), is_new=True)
    return table_id


async def read_table(pool: Pool, table_id: int) -> Table:
    async with connection(pool) as conn:
        found = await tables.read(conn, table_id)
    assert found is not None
    return found


def path_of(table: Table, name: str) -> str:
    """Called as DuckLake calls its files: into others one looks before they are shown."""
    return f"{table.paths.directory}ducklake-{uuid5(table.uuid, name)}.parquet"


def new_file(path: str, rows: int = ROWS) -> NewFile:
    """With statistics of both columns, of values from 0 on."""
    counted = ColumnStats(100, rows, 0, "0", str(rows - 1), None)
    return NewFile(path, rows, 1000, {1: counted, 2: counted})


async def append(pool: Pool, table_id: int, *names: str, rows: int = ROWS) -> list[int]:
    """A data file of each name, which nobody can read, in one snapshot; their ids."""
    table = await read_table(pool, table_id)
    files = [new_file(path_of(table, name), rows) for name in names]
    return await change(pool, table_id, DataChanges(added=files))


async def change(pool: Pool, table_id: int, changes: DataChanges) -> list[int]:
    table = await read_table(pool, table_id)
    async with committed(pool) as tx:
        return await data_changes.write(tx, METADATA_SCHEMA, table_id, table.paths, LEAVES, changes)


async def inline(pool: Pool, table_id: int, row_ids: Sequence[int]) -> int:
    """Rows (id, 's<id>') that are kept in Postgres; the snapshot that they begin at."""
    async with committed(pool) as tx:
        query = "SELECT max(schema_version) FROM ducklake_inlined_data_tables WHERE table_id = %s"
        row = await (await tx.conn.execute(query, (table_id,))).fetchone()
        assert row is not None
        name = sql.Identifier(METADATA_SCHEMA, f"ducklake_inlined_data_{table_id}_{row[0]}")
        insert = sql.SQL("INSERT INTO {} VALUES (%s, %s, NULL, %s, %s)").format(name)
        for row_id in row_ids:
            await tx.conn.execute(insert, (row_id, tx.snapshot_id, row_id, f"s{row_id}".encode()))
        tx.record(inlined_insert(table_id))
        return tx.snapshot_id


async def drop_table(pool: Pool, table_id: int) -> None:
    async with committed(pool) as tx:
        await tables.drop(tx, table_id)
