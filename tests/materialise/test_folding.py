"""Delete files of DuckLake's shape, put into a real lake and read by DuckDB at every version."""

import asyncio
import io
from collections.abc import Iterable
from uuid import uuid4

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from mergus.ducklake import files
from mergus.ducklake.connect import connection, open_pool
from mergus.ducklake.file_deletes import dated_inlined_deletes
from mergus.ducklake.files import DataFile
from mergus.ducklake.paths import TablePaths
from mergus.iceberg import position_deletes
from mergus.materialise import folding
from mergus.materialise.deletes import DatedPositions
from mergus.materialise.folding import Folded, render
from mergus.storage.location import Location
from mergus.storage.objects import Objects
from tests.ducklake.test_files import now, paths_of
from tests.support.lakes import TestLake

ROWS = 40
positions = st.integers(0, 60)


@given(
    st.lists(st.tuples(positions, st.integers(1, 9)), max_size=30),
    st.sets(positions, min_size=1, max_size=30),
)
def test_a_folded_delete_file_has_each_position_once_with_its_oldest_snapshot(
    before: list[tuple[int, int]], new: set[int]
) -> None:
    dated = DatedPositions([p for p, _ in before], [s for _, s in before])
    folded = render("s3://b/x.parquet", dated, BitMap64(new), 10)
    expected = {p: min([s for q, s in before if q == p], default=10) for p in {*new, *(p for p, _ in before)}}
    found = position_deletes.read(folded.data)
    assert found.positions == sorted(expected)
    assert set(found.file_paths) == {"s3://b/x.parquet"}
    assert found.snapshot_ids == ([expected[p] for p in sorted(expected)] if before else None)
    assert (folded.count, folded.begin) == (len(expected), min(expected.values()))
    assert folded.partial_max == (max(expected.values()) if before else None)
    assert folded.data[-4:] == b"PAR1"
    assert folded.footer_size == int.from_bytes(folded.data[-8:-4], "little")


def test_a_delete_file_without_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="Nothing is deleted"):
        render("s3://b/x.parquet", None, BitMap64(), 10)


class Deleting:
    """Commits position deletes on the one file of a table, by the raw SQL of N§3.5."""

    def __init__(self, lake: TestLake, db: duckdb.DuckDBPyConnection, table: str) -> None:
        self.lake, self.db, self.table = lake, db, table
        self.objects = Objects(lake.settings)
        db.execute(f"CREATE TABLE {table}(i INTEGER)")
        db.execute(f"INSERT INTO {table} SELECT range FROM range({ROWS})")
        self.table_id, self.paths = paths_of(lake, table)
        self.first = now(lake)
        # what DuckDB showed at each version while it was the newest
        self.history: dict[int, list[int]] = {}
        self.note()

    def note(self) -> None:
        self.history[now(self.lake)] = self.shown()

    def shown(self, at: int | None = None) -> list[int]:
        version = "" if at is None else f" AT (VERSION => {at})"
        # not count(*) and no filter, which statistics answer
        row = self.db.execute(f"SELECT list(i ORDER BY i) FROM {self.table}{version}").fetchone()
        assert row is not None
        return row[0] or []

    def delete(self, where: str) -> None:
        self.db.execute(f"DELETE FROM {self.table} WHERE {where}")
        self.note()

    def limit(self, rows: int) -> None:
        self.db.execute(f"CALL lake.set_option('data_inlining_row_limit', {rows}, table_name => '{self.table}')")

    def file(self) -> tuple[DataFile, list[tuple[int, int]]]:
        async def work(paths: TablePaths) -> tuple[DataFile, list[tuple[int, int]]]:
            async with open_pool(self.lake.settings) as pool, connection(pool) as conn:
                (file,) = await files.read(conn, "public", self.table_id, paths, now(self.lake))
                inlined = await dated_inlined_deletes(conn, "public", self.table_id, [file.id])
                return file, inlined.get(file.id, [])

        return asyncio.run(work(self.paths))

    def fold(self, new: Iterable[int]) -> Folded:
        """One commit of ours."""
        file, inlined = self.file()
        snapshot_id = now(self.lake) + 1
        before = asyncio.run(folding.dated(self.objects, file, inlined))
        folded = render(file.path, before, BitMap64(new), snapshot_id)
        name = f"{uuid4()}-delete.parquet"
        place = Location.parse(self.paths.directory) / name
        asyncio.run(self.objects.put(place, folded.data))
        self._commit(snapshot_id, file, bool(inlined), name, folded)
        self.note()
        return folded

    def _commit(self, snapshot_id: int, file: DataFile, inlined: bool, name: str, folded: Folded) -> None:
        ((version, next_catalog, next_file),) = self.lake.sql(
            "SELECT schema_version, next_catalog_id, next_file_id FROM ducklake_snapshot WHERE snapshot_id = %s",
            snapshot_id - 1,
        )
        for old in file.delete_files:
            self.lake.sql("DELETE FROM ducklake_delete_file WHERE delete_file_id = %s", old.id)
        if inlined:
            self.lake.sql(f"DELETE FROM ducklake_inlined_delete_{self.table_id} WHERE file_id = %s", file.id)
        self.lake.sql(
            "INSERT INTO ducklake_delete_file VALUES (%s, %s, %s, NULL, %s, %s, true, 'parquet', %s, %s, %s, NULL, %s)",
            *(next_file, self.table_id, folded.begin, file.id, name, folded.count, len(folded.data)),
            *(folded.footer_size, folded.partial_max),
        )
        self.lake.sql(
            "INSERT INTO ducklake_snapshot VALUES (%s, now(), %s, %s, %s)",
            *(snapshot_id, version, next_catalog, next_file + 1),
        )
        changes = f"deleted_from_table:{self.table_id},inlined_delete:{self.table_id}"
        self.lake.sql("INSERT INTO ducklake_snapshot_changes VALUES (%s, %s)", snapshot_id, changes)

    def assert_history_stands(self) -> None:
        """In this session and in one that has seen nothing."""
        for session in (self.db, self.lake.duckdb()):
            self.db = session
            for at, rows in self.history.items():
                assert self.shown(at) == rows, at


def schema_of(data: bytes) -> list[tuple[str, str, int, int]]:
    """Name, type, field id, and whether it is optional (1) or required (0)."""
    file = pq.ParquetFile(io.BytesIO(data))
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in file.schema_arrow]
    columns = [file.schema.column(i) for i in range(len(file.schema))]
    return [(c.name, c.physical_type, i, c.max_definition_level) for c, i in zip(columns, ids, strict=True)]


def test_a_folded_delete_file_has_the_columns_that_ducklake_writes(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table = Deleting(lake, db, "columns_are_ducklakes")
    table.limit(0)
    for name, where, before in (("first", "i < 5", None), ("second", "i < 9", DatedPositions([1], [1]))):
        table.delete(where)
        theirs = asyncio.run(table.objects.get(Location.parse(table.file()[0].delete_files[0].path)))
        assert theirs is not None
        assert schema_of(render("x", before, BitMap64([3]), 7).data) == schema_of(theirs), name


def test_the_first_delete_file_of_a_data_file_keeps_history(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    table = Deleting(lake, db, "first_deletes")
    folded = table.fold([0, 7, 39])
    assert (folded.begin, folded.partial_max) == (now(lake), None)
    assert table.shown() == [i for i in range(ROWS) if i not in {0, 7, 39}]
    table.assert_history_stands()


def test_h34_inlined_deletes_are_folded_into_a_new_delete_file(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    table = Deleting(lake, db, "inlined_folded")
    table.delete("i = 3")
    table.delete("i = 5")
    folded = table.fold([4])
    assert folded.count == 3
    assert (folded.begin, folded.partial_max) == (now(lake) - 2, now(lake))
    assert len(table.shown()) == ROWS - 3
    table.assert_history_stands()


def test_h06_repeated_deletes_are_folded_and_keep_history(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    table = Deleting(lake, db, "on_top")
    table.fold([1, 2])
    table.delete("i = 3")  # inlined
    table.fold([2, 3, 4])
    table.limit(0)
    table.db = lake.duckdb()
    table.delete("i BETWEEN 10 AND 15")  # a file of DuckDB's in place of ours
    table.limit(10)
    table.db = lake.duckdb()
    table.delete("i = 20")
    table.fold([30, 31])
    table.delete("i = 33")
    assert len(table.shown()) == ROWS - 14
    table.assert_history_stands()
    table.db.execute(f"CALL ducklake_flush_inlined_data('lake', table_name => '{table.table}')")
    table.assert_history_stands()


def test_a_ducklake_deletion_vector_is_folded_into_a_new_delete_file(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table = Deleting(lake, db, "vector_folded")
    table.limit(0)
    db.execute("CALL lake.set_option('write_deletion_vectors', true, table_name => 'vector_folded')")
    table.db = lake.duckdb()
    table.delete("i < 12")
    assert [f.format for f in table.file()[0].delete_files] == ["puffin"]
    folded = table.fold([11, 12])
    assert (folded.count, folded.begin, folded.partial_max) == (13, now(lake) - 1, now(lake))
    table.assert_history_stands()


def test_h11_a_position_deleted_inline_and_in_a_file_is_folded_once(
    lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table = Deleting(lake, db, "two_places")
    other = lake.duckdb()
    other.execute(f"BEGIN; DELETE FROM {table.table} WHERE i < 15")
    table.db.execute(f"DELETE FROM {table.table} WHERE i = 3")
    other.execute("COMMIT")
    file, inlined = table.file()
    assert (len(file.delete_files), len(inlined)) == (1, 1)
    table.fold([20])
    # what DuckDB shows wrongly without us
    assert table.shown() == [i for i in range(15, ROWS) if i != 20]
    assert len(lake.duckdb().execute(f"FROM {table.table}").fetchall()) == ROWS - 16
