"""Changes of a table's rows, written by us and judged by DuckDB: a fresh session, and one that knows the table."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any
from uuid import uuid4

import duckdb
import pytest

from mergus.ducklake import columns, data_changes, files, mappings, stats
from mergus.ducklake.commit import Commit, CommitInfo, commit
from mergus.ducklake.connect import connection, open_pool
from mergus.ducklake.data_changes import DataChanges, NewDeletes, NewFile
from mergus.ducklake.files import ColumnStats
from mergus.errors import BadRequest, CommitFailed
from mergus.iceberg import bounds
from mergus.iceberg.manifest import DATA, DataFile
from mergus.iceberg.name_mapping import MappedField
from tests.ducklake.test_files import now, paths_of
from tests.support import lakes
from tests.support.lakes import TestLake

ROW_ID = 2147483540
BIG = "INSERT INTO {} SELECT range, 'x' || range FROM range(40)"
TYPES = {1: "int32", 2: "varchar"}

Rows = list[tuple[Any, ...]]


@dataclass
class Table:
    """A table t(i INTEGER, s VARCHAR) and two sessions on it: one of them for writing files and for DuckDB's own
    changes, one that only reads and has read before anything happens."""

    lake: TestLake
    name: str
    db: duckdb.DuckDBPyConnection
    warm: duckdb.DuckDBPyConnection
    types: dict[int, str]

    def sql(self, statement: str) -> Rows:
        return self.db.execute(statement.format(self.name)).fetchall()

    def file(self, query: str, *, field_ids: str = "{i: 1, s: 2}", folder: str | None = None, **about: Any) -> NewFile:
        """A Parquet file with what a query gives, and with the metrics that an Iceberg writer would tell."""
        directory = paths_of(self.lake, self.name)[1].directory if folder is None else folder
        path = f"{directory}{uuid4()}.parquet"
        options = f"FORMAT parquet{f', FIELD_IDS {field_ids}' if field_ids else ''}"
        self.db.execute(f"COPY ({query}) TO '{path}' ({options})")
        return self.described(path, query, **about)

    def described(self, path: str, query: str, **about: Any) -> NewFile:
        columns_of = self.db.execute(f"DESCRIBE {query}").fetchall()
        names = {i: columns_of[i - 1][0] for i in self.types}
        ((rows, *found),) = self.db.execute(
            "SELECT count(*), "
            + ", ".join(f"count({n}), CAST(min({n}) AS VARCHAR), CAST(max({n}) AS VARCHAR)" for n in names.values())
            + f" FROM ({query})"
        ).fetchall()
        low, high, nulls = {}, {}, {}
        for at, column_id in enumerate(names):
            count, smallest, largest = found[3 * at : 3 * at + 3]
            nulls[column_id] = rows - count
            if count:
                low[column_id] = bounds.lower_bound(self.types[column_id], smallest, retyped=False)
                high[column_id] = bounds.upper_bound(self.types[column_id], largest, retyped=False)
        size, footer = self.size(path), self.footer(path)
        sizes = dict.fromkeys(names, 10)
        counts: dict[int, Any] = dict.fromkeys(names, rows)
        told = DataFile(DATA, path, "PARQUET", (), rows, size, sizes, counts, nulls, None, low, high)
        return NewFile(path, rows, size, stats.column_stats(told, self.types), footer_size=footer, **about)

    def size(self, path: str) -> int:
        ((size,),) = self.db.execute(f"SELECT size FROM read_blob('{path}')").fetchall()
        return size

    def footer(self, path: str) -> int:
        ((content,),) = self.db.execute(f"SELECT content FROM read_blob('{path}')").fetchall()
        return int.from_bytes(content[-8:-4], "little")

    def write(self, changes: DataChanges | Callable[[Commit], DataChanges]) -> list[int]:
        table_id, paths = paths_of(self.lake, self.name)

        async def work(tx: Commit) -> list[int]:
            made = changes if isinstance(changes, DataChanges) else changes(tx)
            return await data_changes.write(tx, "public", table_id, paths, self.types, made)

        return self.commit(work)

    def commit(self, work: Callable[[Commit], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with open_pool(self.lake.settings) as pool, commit(pool, CommitInfo()) as tx:
                return await work(tx)

        return asyncio.run(run())

    def listed(self) -> list[files.DataFile]:
        table_id, paths = paths_of(self.lake, self.name)

        async def run() -> list[files.DataFile]:
            async with open_pool(self.lake.settings) as pool, connection(pool) as conn:
                return await files.read(conn, "public", table_id, paths, now(self.lake))

        return asyncio.run(run())

    def deletes(self, file: files.DataFile, new: Sequence[int]) -> Callable[[Commit], DataChanges]:
        """As the notes have it: old delete files, inlined deletes and new positions in one file."""
        return lambda tx: DataChanges(deletes=[self.new_deletes(tx, file, new)])

    def new_deletes(self, tx: Commit, file: files.DataFile, new: Sequence[int]) -> NewDeletes:
        table_id, paths = paths_of(self.lake, self.name)
        found = dict.fromkeys(new, tx.snapshot_id)
        if self.lake.sql("SELECT to_regclass(%s)", f"ducklake_inlined_delete_{table_id}") != [(None,)]:
            query = f"SELECT row_id, begin_snapshot FROM ducklake_inlined_delete_{table_id} WHERE file_id = %s"
            found |= dict(self.lake.sql(query, file.id))
        for old in file.delete_files:
            for _, position, *snapshot in self.db.execute(f"FROM read_parquet('{old.path}')").fetchall():
                found[position] = snapshot[0] if snapshot else old.begin_snapshot
        path = f"{paths.directory}{uuid4()}-delete.parquet"
        rows = ", ".join(f"('{file.path}', {p}::BIGINT, {found[p]}::BIGINT)" for p in sorted(found))
        ids = "{file_path: 2147483646, pos: 2147483645, _ducklake_internal_snapshot_id: 2147483539}"
        self.db.execute(
            f"COPY (SELECT * FROM (VALUES {rows}) AS v(file_path, pos, _ducklake_internal_snapshot_id)) "
            f"TO '{path}' (FORMAT parquet, FIELD_IDS {ids})"
        )
        first, last = min(found.values()), max(found.values())
        replaces = [d.id for d in file.delete_files]
        return NewDeletes(file.id, path, len(found), self.size(path), self.footer(path), first, last, replaces)

    def assert_is(self, expected: Sequence[int]) -> None:
        """That both sessions see these values of i, filtered and unfiltered, each row with an id of its own."""
        fresh = self.lake.duckdb()
        for session in (fresh, self.warm):
            assert_shows(session, self.name, expected)
        fresh.close()

    def at(self, snapshot_id: int) -> list[int]:
        fresh = self.lake.duckdb()
        ((found,),) = fresh.execute(
            f"SELECT list(i ORDER BY i) FROM {self.name} AT (VERSION => {snapshot_id})"
        ).fetchall()
        fresh.close()
        return found or []

    def row_ids(self) -> Rows:
        return self.sql("SELECT i, rowid FROM {} ORDER BY ALL")


def assert_shows(session: duckdb.DuckDBPyConnection, name: str, expected: Sequence[int]) -> None:
    def ask(query: str) -> Any:
        return session.execute(query.format(name)).fetchall()

    numbers = sorted(expected)
    # one transaction, which reads DuckLake's tables once
    session.begin()
    assert [i for (i,) in ask("SELECT i FROM {} ORDER BY i")] == numbers
    # from the catalog's counts, and from the files
    assert ask("SELECT count(*) FROM {}") == [(len(numbers),)]
    assert ask("SELECT coalesce(sum(1 + 0 * i), 0) FROM {}") == [(len(numbers),)]
    assert ask("SELECT count(DISTINCT rowid) FROM {}") == [(len(numbers),)]
    # from the table's bounds, if DuckDB believes them
    assert ask("SELECT min(i), max(i) FROM {}") == [(min(numbers, default=None), max(numbers, default=None))]
    some = set(numbers[:3] + numbers[-3:]) | {-1, 1234}
    for i in some:
        assert ask(f"SELECT count(*) FROM {{}} WHERE i = {i}") == [(Counter(numbers)[i],)]
        assert ask(f"SELECT count(*) FROM {{}} WHERE s = 'x{i}'") == [(Counter(numbers)[i],)]
        assert ask(f"SELECT count(*) FROM {{}} WHERE i >= {i}") == [(sum(n >= i for n in numbers),)]
        assert ask(f"SELECT count(*) FROM {{}} WHERE i < {i}") == [(sum(n < i for n in numbers),)]
    assert ask("SELECT count(changes) > 0 FROM lake.snapshots()") == [(True,)]
    session.commit()


@pytest.fixture
def table(lake: TestLake, db: duckdb.DuckDBPyConnection, request: pytest.FixtureRequest) -> Iterator[Table]:
    name = re.sub(r"\W", "_", request.node.name.removeprefix("test_"))
    db.execute(f"CREATE TABLE {name}(i INTEGER, s VARCHAR)")
    warm = lake.duckdb()
    warm.execute(f"SELECT count(*), min(i) FROM {name} WHERE i > 3")
    yield Table(lake, name, db, warm, TYPES)
    warm.close()


def some(first: int, count: int = 20) -> str:
    return f"SELECT CAST(range AS INTEGER) AS i, 'x' || range AS s FROM range({first}, {first + count})"


def test_appended_files_get_the_catalog_rows_that_duckdb_would_have_written(lake: TestLake, table: Table) -> None:
    db = table.db
    db.execute("CREATE TABLE theirs(i INTEGER, s VARCHAR)")
    db.execute(f"INSERT INTO theirs {some(100)}")
    db.execute(f"INSERT INTO theirs {some(50)}")
    table.write(DataChanges(added=[table.file(some(100))]))
    table.write(DataChanges(added=[table.file(some(50))]))
    for query in (
        "SELECT record_count, next_row_id FROM ducklake_table_stats WHERE table_id = %s",
        "SELECT column_id, contains_null, contains_nan, min_value, max_value, extra_stats "
        "FROM ducklake_table_column_stats WHERE table_id = %s ORDER BY 1",
        "SELECT begin_snapshot IS NULL, end_snapshot, file_order, path_is_relative, file_format, record_count, "
        "row_id_start, partition_id, encryption_key, mapping_id, partial_max "
        "FROM ducklake_data_file WHERE table_id = %s ORDER BY data_file_id",
        "SELECT column_id, value_count, null_count, min_value, max_value, contains_nan, extra_stats "
        "FROM ducklake_file_column_stats WHERE table_id = %s ORDER BY data_file_id, column_id",
    ):
        ours, theirs = (lake.sql(query, paths_of(lake, name)[0]) for name in (table.name, "theirs"))
        assert ours == theirs
    *_, mine = lake.snapshots()
    assert mine[4] == f"inserted_into_table:{paths_of(lake, table.name)[0]}"
    assert mine[3] == max(row[0] for row in lake.sql("SELECT data_file_id FROM ducklake_data_file")) + 1
    table.assert_is([*range(50, 70), *range(100, 120)])


def test_h26_an_append_widens_the_statistics_of_the_table(table: Table) -> None:
    table.sql(BIG)
    table.warm.execute(f"SELECT count(*) FROM {table.name} WHERE i = 1")
    table.write(DataChanges(added=[table.file(some(1000, 1))]))
    table.assert_is([*range(40), 1000])
    table.sql("INSERT INTO {} VALUES (3, 'x3')")
    table.assert_is([*range(40), 3, 1000])


def test_h26_duckdb_does_not_replace_unknown_bounds_after_an_insert(lake: TestLake, table: Table) -> None:
    table.sql(BIG)
    file = table.file(some(1000, 2))
    known = {2: file.stats[2]}
    table.write(DataChanges(added=[NewFile(file.path, 2, file.size_bytes, known, unknown=frozenset({1}))]))
    table.assert_is([*range(40), 1000, 1001])
    table.sql("INSERT INTO {} VALUES (3, 'x3')")
    table.sql("INSERT INTO {} SELECT range, 'x' || range FROM range(50, 70)")
    table.assert_is([*range(40), 3, *range(50, 70), 1000, 1001])
    table_id = paths_of(lake, table.name)[0]
    query = "SELECT column_id FROM ducklake_table_column_stats WHERE table_id = %s"
    assert lake.sql(query, table_id) == [(2,)]
    # computes the bounds anew from those of the files
    table.sql("DELETE FROM {} WHERE i < 30")
    table.sql("CALL ducklake_flush_inlined_data('lake', table_name => '{}')")
    table.sql("CALL ducklake_rewrite_data_files('lake', '{}', delete_threshold => 0)")
    table.sql("INSERT INTO {} VALUES (30, 'x30')")
    table.assert_is([*range(30, 40), 30, *range(50, 70), 1000, 1001])


def test_h26_duckdb_finds_rows_inserted_after_a_first_append_of_nulls(table: Table) -> None:
    nothing = table.file("SELECT NULL::INTEGER AS i, 'x' || range AS s FROM range(5)")
    table.write(DataChanges(added=[nothing]))
    assert table.sql("SELECT count(*), count(i) FROM {}") == [(5, 0)]
    table.sql("INSERT INTO {} VALUES (7, 'x7')")
    table.write(DataChanges(added=[table.file(some(1000, 3))]))
    table.sql("INSERT INTO {} VALUES (8, 'x8')")
    fresh = table.lake.duckdb()
    for session in (fresh, table.warm):
        for i in (7, 8, 1000, 1002):
            assert session.execute(f"SELECT s FROM {table.name} WHERE i = {i}").fetchall() == [(f"x{i}",)]
        assert session.execute(f"SELECT min(i), max(i), count(i), count(*) FROM {table.name}").fetchall() == [
            (7, 1002, 5, 10)
        ]
    fresh.close()


def test_h27_an_open_session_continues_the_row_ids_after_an_append(table: Table) -> None:
    table.sql(BIG)
    table.warm.execute(f"SELECT rowid FROM {table.name}").fetchall()
    table.write(DataChanges(added=[table.file(some(100, 5)), table.file(some(200, 5))]))
    table.warm.execute(f"INSERT INTO {table.name} VALUES (300, 'x300')")
    table.warm.execute(f"INSERT INTO {table.name} {some(400)}")
    table.assert_is([*range(40), *range(100, 105), *range(200, 205), 300, *range(400, 420)])
    ids = [row_id for _, row_id in table.row_ids()]
    assert ids == list(range(71))


def test_h30_a_delete_from_a_file_that_was_removed_meanwhile_is_refused(table: Table) -> None:
    table.sql(BIG)
    (file,) = table.listed()
    table.warm.execute(f"BEGIN; DELETE FROM {table.name} WHERE i = 3")
    table.write(DataChanges(added=[table.file(some(100))], ended=[file.id]))
    with pytest.raises(duckdb.Error, match="conflict"):
        table.warm.execute("COMMIT")
    table.assert_is(range(100, 120))
    table.lake.sound_snapshots()


def test_h31_an_insert_that_was_open_during_an_append_commits(table: Table) -> None:
    table.sql(BIG)
    table.warm.execute(f"BEGIN; INSERT INTO {table.name} {some(200)}")
    table.write(DataChanges(added=[table.file(some(100))]))
    table.warm.execute("COMMIT")
    table.assert_is([*range(40), *range(100, 120), *range(200, 220)])


@pytest.mark.parametrize("how", ["end", "rewrite", "delete"])
def test_h32_an_inlined_delete_on_a_file_that_changed_meanwhile_is_refused(table: Table, how: str) -> None:
    table.sql(BIG)
    (file,) = table.listed()
    table.warm.execute(f"BEGIN; DELETE FROM {table.name} WHERE i = 30")
    if how == "delete":
        table.write(table.deletes(file, [5]))
    else:
        again = table.file(some(0, 40) if how == "rewrite" else some(0, 39))
        table.write(DataChanges(added=[again], ended=[file.id], is_rewrite=how == "rewrite"))
    with pytest.raises(duckdb.Error, match="conflict"):
        table.warm.execute("COMMIT")
    table.assert_is({"end": range(39), "rewrite": range(40), "delete": [i for i in range(40) if i != 5]}[how])


def test_h32_a_commit_that_removes_rows_or_files_that_are_gone_already_is_refused(lake: TestLake, table: Table) -> None:
    table.sql(BIG)
    table.sql("INSERT INTO {} VALUES (50, 'x50')")
    (file,) = table.listed()
    new = table.file(some(100))
    inlined = (40, now(lake))
    table.sql("DELETE FROM {} WHERE i = 50")
    with pytest.raises(CommitFailed):
        table.write(DataChanges(added=[new], ended_rows=[inlined]))
    table.sql("TRUNCATE {}")
    before = lake.snapshots()
    for changes in (DataChanges(added=[new], ended=[file.id]), table.deletes(file, [3])):
        with pytest.raises(CommitFailed):
            table.write(changes)
    assert lake.snapshots() == before
    table.assert_is([])


def test_h32_a_commit_of_deletes_is_refused_if_another_delete_file_was_added_meanwhile(table: Table) -> None:
    table.sql("CALL lake.set_option('data_inlining_row_limit', 0, table_name => '{}')")
    table.sql(BIG)
    (file,) = table.listed()
    table.sql("DELETE FROM {} WHERE i < 15")
    with pytest.raises(CommitFailed, match="Other rows"):
        table.write(table.deletes(file, [30]))
    (file,) = table.listed()
    table.sql("DELETE FROM {} WHERE i < 20")
    with pytest.raises(CommitFailed, match="Other rows"):
        table.write(table.deletes(file, [30]))
    table.assert_is(range(20, 40))


def test_h33_h35_one_commit_deletes_rows_of_two_files_in_any_order(table: Table) -> None:
    table.sql(BIG)
    table.write(DataChanges(added=[table.file(some(100))]))
    one, two = table.listed()
    before = now(table.lake)
    table.write(
        lambda tx: DataChanges(deletes=[table.new_deletes(tx, one, [7, 3, 7]), table.new_deletes(tx, two, [0, 19])])
    )
    left = [i for i in [*range(40), *range(100, 120)] if i not in {3, 7, 100, 119}]
    table.assert_is(left)
    table.sql("DELETE FROM {} WHERE i IN (5, 105)")
    left = [i for i in left if i not in {5, 105}]
    table.assert_is(left)
    assert table.at(before) == [*range(40), *range(100, 120)]
    table.sql("CALL ducklake_flush_inlined_data('lake', table_name => '{}')")
    table.assert_is(left)
    table.sql("CALL ducklake_rewrite_data_files('lake', '{}', delete_threshold => 0)")
    table.assert_is(left)
    assert table.at(before + 1) == [i for i in [*range(40), *range(100, 120)] if i not in {3, 7, 100, 119}]


def test_h34_a_new_delete_file_takes_over_inlined_deletes(lake: TestLake, table: Table) -> None:
    table.sql(BIG)
    at = now(lake)
    table.sql("DELETE FROM {} WHERE i = 3")
    (file,) = table.listed()
    table.write(table.deletes(file, [4]))
    table.assert_is([i for i in range(40) if i not in {3, 4}])
    table_id = paths_of(lake, table.name)[0]
    assert lake.sql(f"SELECT FROM ducklake_inlined_delete_{table_id}") == []
    table.sql("DELETE FROM {} WHERE i IN (10, 11)")
    (file,) = table.listed()
    table.write(table.deletes(file, [39]))
    expected = [{*range(40)}, {*range(40)} - {3}]
    expected += [{*range(40)} - {3, 4}, {*range(40)} - {3, 4, 10, 11}, {*range(40)} - {3, 4, 10, 11, 39}]
    table.assert_is(sorted(expected[-1]))
    assert [{*table.at(at + n)} for n in range(5)] == expected
    scheduled = "SELECT path, path_is_relative FROM ducklake_files_scheduled_for_deletion"
    (old,) = file.delete_files
    assert (old.path.removeprefix(lake.settings.data_path or ""), True) in lake.sql(scheduled)
    table.sql("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    assert table.db.execute(f"SELECT count(*) FROM glob('{old.path}*')").fetchall() == [(0,)]
    assert [{*table.at(at + n)} for n in range(5)] == expected


def test_removing_a_data_file_removes_its_delete_files(lake: TestLake, table: Table) -> None:
    table.sql("CALL lake.set_option('data_inlining_row_limit', 0, table_name => '{}')")
    table.sql(BIG)
    table.sql("DELETE FROM {} WHERE i < 15")
    before = now(lake)
    (file,) = table.listed()
    table.write(DataChanges(ended=[file.id]))
    table_id = paths_of(lake, table.name)[0]
    query = "SELECT end_snapshot FROM {} WHERE table_id = %s"
    for rows in ("ducklake_data_file", "ducklake_delete_file"):
        assert lake.sql(query.format(rows), table_id) == [(before + 1,)]
    assert lake.snapshots()[-1][4] == f"deleted_from_table:{table_id},inlined_delete:{table_id}"
    table.assert_is([])
    assert table.at(before) == list(range(15, 40))


def test_h38_a_file_without_field_ids_is_read_by_its_names(lake: TestLake, table: Table) -> None:
    table.sql(BIG)
    # swapped, and under other names
    query = "SELECT 'x' || range AS text, CAST(range AS INTEGER) AS number FROM range(100, 120)"
    file = table.file(query, field_ids="")
    about = table.described(file.path, some(100))
    table_id, paths = paths_of(lake, table.name)

    async def add(tx: Commit, path: NewFile, names: tuple[str, str]) -> int:
        live = [c for c in (await columns.read(tx.conn, table_id)).columns if c.span.end is None]
        fields = (MappedField(2, (names[1],)), MappedField(1, (names[0],)))
        mapping_id = await mappings.add_mapping(tx, table_id, fields, live)
        new = NewFile(path.path, path.record_count, path.size_bytes, about.stats, mapping_id=mapping_id)
        await data_changes.write(tx, "public", table_id, paths, TYPES, DataChanges(added=[new]))
        return mapping_id

    first = table.commit(lambda tx: add(tx, file, ("number", "text")))
    table.assert_is([*range(40), *range(100, 120)])
    again = table.file(query.replace("100, 120", "200, 220"), field_ids="")
    about = table.described(again.path, some(200))
    assert table.commit(lambda tx: add(tx, again, ("number", "text"))) == first
    table.assert_is([*range(40), *range(100, 120), *range(200, 220)])
    other = table.file("SELECT 'x5' AS t, 5 AS i", field_ids="")
    about = table.described(other.path, some(5, 1))
    assert table.commit(lambda tx: add(tx, other, ("i", "t"))) != first
    table.assert_is([*range(40), 5, *range(100, 120), *range(200, 220)])


def test_h38_nested_columns_are_read_by_their_names(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE nested(l INTEGER[], m MAP(VARCHAR, INTEGER), st STRUCT(x INTEGER, y VARCHAR))")
    theirs = "SELECT {'why': 'b', 'ex': 7} AS st2, MAP {'k': 1} AS m2, [1, NULL, 3] AS l2"
    table = Table(lake, "nested", db, db, {})
    path = f"{paths_of(lake, 'nested')[1].directory}{uuid4()}.parquet"
    db.execute(f"COPY ({theirs}) TO '{path}'")
    ids = dict(
        lake.sql("SELECT column_name, column_id FROM ducklake_column WHERE table_id = %s", paths_of(lake, "nested")[0])
    )
    fields = (
        MappedField(ids["st"], ("st2",), (MappedField(ids["x"], ("ex",)), MappedField(ids["y"], ("why",)))),
        MappedField(ids["m"], ("m2",), (MappedField(ids["key"], ("key",)), MappedField(ids["value"], ("value",)))),
        MappedField(ids["l"], ("l2",), (MappedField(ids["element"], ("element",)),)),
    )
    table_id, paths = paths_of(lake, "nested")

    async def add(tx: Commit) -> None:
        live = [c for c in (await columns.read(tx.conn, table_id)).columns if c.span.end is None]
        new = NewFile(path, 1, table.size(path), {}, mapping_id=await mappings.add_mapping(tx, table_id, fields, live))
        await data_changes.write(tx, "public", table_id, paths, {}, DataChanges(added=[new]))

    table.commit(add)
    shown = [([1, None, 3], {"k": 1}, {"x": 7, "y": "b"})]
    assert db.execute("FROM nested").fetchall() == shown
    assert lake.duckdb().execute("FROM nested").fetchall() == shown


def test_a_mapped_field_with_two_names_is_refused(table: Table) -> None:
    async def add(tx: Commit) -> None:
        table_id = paths_of(table.lake, table.name)[0]
        live = (await columns.read(tx.conn, table_id)).columns
        await mappings.add_mapping(tx, table_id, (MappedField(1, ("a", "b")),), live)

    with pytest.raises(ValueError, match="one name"):
        table.commit(add)


def test_elements_of_lists_are_found_after_an_append(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    """DuckDB plans by the bounds of a list's elements, of which Iceberg tells nothing."""
    db.execute("CREATE TABLE lists(l INTEGER[])")
    db.execute("INSERT INTO lists SELECT [range] FROM range(40)")
    table = Table(lake, "lists", db, db, {})
    path = f"{paths_of(lake, 'lists')[1].directory}{uuid4()}.parquet"
    db.execute(
        f"COPY (SELECT [1000::INTEGER] AS l) TO '{path}' (FIELD_IDS {{l: {{__duckdb_field_id: 1, element: 2}}}})"
    )
    table.write(DataChanges(added=[NewFile(path, 1, table.size(path), {})]))
    for session in (lake.duckdb(), db):
        assert session.execute("SELECT count(*) FROM lists WHERE l[1] = 1000").fetchall() == [(1,)]
        assert session.execute("SELECT count(*) FROM lists WHERE l[1] = 30").fetchall() == [(1,)]


def test_h39_row_counts_stay_exact_through_mixed_writes(table: Table) -> None:
    expected = Counter[int]()

    def check() -> None:
        table.assert_is(sorted(expected.elements()))

    table.sql(BIG)
    expected.update(range(40))
    table.write(DataChanges(added=[table.file(some(100))]))
    expected.update(range(100, 120))
    check()
    table.sql("UPDATE {} SET i = i + 1000, s = 'x' || (i + 1000) WHERE i IN (5, 105)")
    expected.subtract([5, 105])
    expected.update([1005, 1105])
    check()
    one, _ = table.listed()
    table.write(table.deletes(one, [0, 1]))
    expected.subtract([0, 1])
    check()
    table.sql("CALL ducklake_flush_inlined_data('lake', table_name => '{}')")
    check()
    table.write(DataChanges(added=[table.file(some(200)), table.file(some(300))]))
    expected.update([*range(200, 220), *range(300, 320)])
    check()
    times = {now(table.lake): sorted(expected.elements())}
    table.sql("CALL ducklake_merge_adjacent_files('lake', '{}')")
    check()
    for file in table.listed():
        table.write(table.deletes(file, [2]))
        before, expected = expected.total(), Counter(table.at(now(table.lake)))
        assert expected.total() in {before, before - 1}  # the third row may be deleted already
        check()
    table.sql("CALL ducklake_rewrite_data_files('lake', '{}', delete_threshold => 0)")
    check()
    file, *others = table.listed()
    table.write(DataChanges(added=[table.file(some(0, 2))], ended=[other.id for other in others]))
    expected = Counter(
        [0, 1, *(i for (i,) in table.db.execute(f"SELECT i FROM read_parquet('{file.path}')").fetchall())]
    )
    check()
    table.write(DataChanges(ended=[f.id for f in table.listed()]))
    expected.clear()
    check()
    for at, numbers in times.items():
        assert table.at(at) == numbers


def test_h43_a_file_path_that_is_in_the_table_already_is_refused(table: Table) -> None:
    file = table.file(some(0))
    outside = table.file(some(100), folder=f"{table.lake.settings.data_path}elsewhere/")
    table.write(DataChanges(added=[file, outside]))
    for again in (file, outside):
        with pytest.raises(BadRequest, match=again.path):
            table.write(DataChanges(added=[again]))
    other = table.file(some(200))
    with pytest.raises(BadRequest, match="twice"):
        table.write(DataChanges(added=[other, other]))
    listed = [f.path for f in table.listed()]
    assert listed == [file.path, outside.path]
    table_id = paths_of(table.lake, table.name)[0]
    query = "SELECT path_is_relative FROM ducklake_data_file WHERE table_id = %s ORDER BY data_file_id"
    assert table.lake.sql(query, table_id) == [(True,), (False,)]
    # an absolute path below the table's own directory is the same file
    spelled = (
        "UPDATE ducklake_data_file SET path = %s, path_is_relative = false WHERE table_id = %s AND path_is_relative"
    )
    table.lake.sql(spelled, file.path, table_id)
    with pytest.raises(BadRequest, match=file.path):
        table.write(DataChanges(added=[file]))
    table.assert_is([*range(20), *range(100, 120)])
    # gone, it may come again
    table.write(DataChanges(ended=[table.listed()[0].id]))
    table.write(DataChanges(added=[file]))
    table.assert_is([*range(20), *range(100, 120)])


def test_h44_a_rewrite_keeps_row_ids(lake: TestLake, table: Table) -> None:
    table.sql(BIG)
    table.sql("INSERT INTO {} SELECT range, 'x' || range FROM range(50, 70)")
    table.sql("INSERT INTO {} VALUES (80, 'x80')")
    table.sql("DELETE FROM {} WHERE i IN (3, 4)")
    before, rows = now(lake), table.row_ids()
    left = [i for i, _ in rows]
    query = f"SELECT i, s, rowid AS _row_id FROM {table.name} ORDER BY rowid"
    new = table.file(query, field_ids=f"{{i: 1, s: 2, _row_id: {ROW_ID}}}", has_row_ids=True)
    ids = [f.id for f in table.listed()]
    table_id = paths_of(lake, table.name)[0]
    counters = "SELECT record_count, next_row_id FROM ducklake_table_stats WHERE table_id = %s"
    counted = lake.sql(counters, table_id)
    inlined = [(60, before - 1)]
    table.write(DataChanges(added=[new], ended=ids, ended_rows=inlined, is_rewrite=True))
    assert lake.sql(counters, table_id) == counted
    assert table.row_ids() == rows
    table.assert_is(left)
    table.sql("INSERT INTO {} VALUES (90, 'x90')")
    table.sql(f"INSERT INTO {{}} {some(100)}")
    table.assert_is([*left, 90, *range(100, 120)])
    assert table.at(before) == left
    table.sql("CALL ducklake_flush_inlined_data('lake', table_name => '{}')")
    table.sql("CALL ducklake_merge_adjacent_files('lake', '{}')")
    table.assert_is([*left, 90, *range(100, 120)])
    assert [row for row in table.row_ids() if row[0] < 90] == rows


def test_a_rewrite_without_row_ids_assigns_new_ones(lake: TestLake, table: Table) -> None:
    table.sql(BIG)
    (file,) = table.listed()
    table.write(DataChanges(added=[table.file(some(0, 40))], ended=[file.id], is_rewrite=True))
    assert [row_id for _, row_id in table.row_ids()] == list(range(40, 80))
    table.sql("INSERT INTO {} VALUES (50, 'x50')")
    table.assert_is([*range(40), 50])


def test_deletes_then_a_rewrite_do_not_make_old_bounds_exact(table: Table) -> None:
    table.sql(BIG)
    (file,) = table.listed()
    table.write(table.deletes(file, [0, 39]))
    (file,) = table.listed()
    table.write(DataChanges(added=[table.file(some(1, 38))], ended=[file.id], is_rewrite=True))
    table.assert_is(range(1, 39))


@pytest.mark.parametrize("versions", [1, 2])
def test_h45_an_overwrite_removes_inlined_rows(lake: TestLake, table: Table, versions: int) -> None:
    table.sql("INSERT INTO {} VALUES (1, 'x1')")
    rows = [(0, now(lake))]
    if versions == 2:
        table.sql("ALTER TABLE {} ADD COLUMN n INTEGER")
        table.sql("INSERT INTO {} VALUES (2, 'x2', 7)")
        rows.append((1, now(lake)))
    before = now(lake)
    table.write(DataChanges(added=[table.file(some(100))], ended_rows=rows))
    table.assert_is(range(100, 120))
    assert table.at(before) == [1, 2][:versions]
    table_id = paths_of(lake, table.name)[0]
    assert lake.snapshots()[-1][4] == f"inserted_into_table:{table_id},inlined_delete:{table_id}"
    table.sql("CALL ducklake_flush_inlined_data('lake', table_name => '{}')")
    # not the session that has read the table: DuckDB 1.5.5 does not survive that an inlined table is dropped
    assert table.at(now(lake)) == list(range(100, 120))
    assert table.at(before) == [1, 2][:versions]


def test_duckdb_prunes_files_by_the_partition_values_that_mergus_writes(lake: TestLake, table: Table) -> None:
    table.sql("ALTER TABLE {} SET PARTITIONED BY (i, s)")
    ((partition_id,),) = lake.sql(
        "SELECT partition_id FROM ducklake_partition_info WHERE table_id = %s", paths_of(lake, table.name)[0]
    )
    seven = table.file(
        "SELECT 7::INTEGER AS i, 'x7' AS s FROM range(5)", partition_id=partition_id, partition_values=["7", "x7"]
    )
    none = table.file(
        "SELECT 8::INTEGER AS i, NULL::VARCHAR AS s", partition_id=partition_id, partition_values=["8", None]
    )
    table.write(DataChanges(added=[seven, none]))
    table.sql("INSERT INTO {} SELECT 7, 'x7' FROM range(20)")
    assert [f.partition_values for f in table.listed()] == [["7", "x7"], ["8", None], ["7", "x7"]]
    assert table.sql("SELECT count(*) FROM {} WHERE i = 7") == [(25,)]
    assert table.sql("SELECT count(*) FROM {} WHERE s IS NULL") == [(1,)]
    table.sql("CALL ducklake_merge_adjacent_files('lake', '{}')")
    assert table.sql("SELECT i, s, count(*) FROM {} GROUP BY ALL ORDER BY ALL") == [(7, "x7", 25), (8, None, 1)]


def test_one_commit_may_write_several_snapshots(lake: TestLake, table: Table) -> None:
    one, two = table.file(some(0)), table.file(some(100))
    table_id, paths = paths_of(lake, table.name)

    async def work(tx: Commit) -> None:
        (first,) = await data_changes.write(tx, "public", table_id, paths, TYPES, DataChanges(added=[one]))
        await tx.advance()
        await data_changes.write(tx, "public", table_id, paths, TYPES, DataChanges(added=[two], ended=[first]))

    before = now(lake)
    table.commit(work)
    table.assert_is(range(100, 120))
    assert [table.at(before + n) for n in range(3)] == [[], list(range(20)), list(range(100, 120))]


def test_empty_data_changes_make_no_snapshot(lake: TestLake, table: Table) -> None:
    before = lake.snapshots()
    assert DataChanges().is_empty
    assert table.write(DataChanges()) == []
    assert lake.snapshots() == before


@pytest.mark.integration
def test_one_commit_adds_100000_files() -> None:
    count, width = 100_000, 5
    with lakes.lake() as lake:
        db = lake.duckdb()
        db.execute("CREATE TABLE wide(" + ", ".join(f"c{n} INTEGER" for n in range(width)) + ")")
        table = Table(lake, "wide", db, db, {n + 1: "int32" for n in range(width)})
        directory = paths_of(lake, "wide")[1].directory

        def new(n: int) -> NewFile:
            text = str(n)
            known = {c: ColumnStats(10, 1, 0, text, text, None) for c in table.types}
            return NewFile(f"{directory}{n}.parquet", 1, 500, known)

        changes = DataChanges(added=[new(n) for n in range(count)])
        began = monotonic()
        ids = table.write(changes)
        took = monotonic() - began
        assert len(ids) == count
        assert took < 60, took
        assert db.execute("SELECT count(*), min(c0), max(c4) FROM wide").fetchall() == [(count, 0, count - 1)]
        table.write(DataChanges(ended=ids))
        assert db.execute("SELECT count(*) FROM wide").fetchall() == [(0,)]
