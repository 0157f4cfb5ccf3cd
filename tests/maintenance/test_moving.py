"""Delete files that earlier versions put below the location that clients are told: they move, and nobody notices."""

from collections.abc import Iterator
from uuid import uuid4

import duckdb
import pytest

from mergus.setup import initialise
from tests.maintenance.sweeping import killed, swept
from tests.rest.test_chosen_places import delete_rows, only_ducklakes
from tests.support import servers
from tests.support.commits import HandTable, in_duckdb, new_table
from tests.support.lakes import TestLake
from tests.support.loads import Bucket
from tests.support.servers import Server


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), listener="off") as running:
        yield running


@pytest.fixture
def table(lake: TestLake, server: Server) -> HandTable:
    """Two data files with a delete file each, which are where an earlier version has put them."""
    bucket = Bucket(lake.settings)
    table = new_table(server, bucket, f"s_{uuid4().hex[:8]}")
    table.append(1)
    table.append(4)
    delete_rows(lake, server, table.schema)
    for path in only_ducklakes(lake, table.schema):
        old = f"{table.location}/data/{path.rpartition('/')[2]}"
        bucket.put(old, bucket.get(path))
        bucket.delete(path)
        lake.sql("UPDATE ducklake_delete_file SET path = %s WHERE path = %s RETURNING 1", old, path)
    return table


def are_outside(lake: TestLake, table: HandTable) -> bool:
    found = only_ducklakes(lake, table.schema)
    assert len(found) == 2
    assert all(table.bucket.has(path) for path in found)
    inside = [path.startswith(f"{table.location}/") for path in found]
    assert len(set(inside)) == 1
    return not inside[0]


def test_init_moves_old_delete_files_out_of_table_locations(
    lake: TestLake, table: HandTable, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("BEGIN")
    first = db.execute(f"SELECT i FROM {table.schema}.t ORDER BY 1").fetchall()
    assert not are_outside(lake, table)
    old, before = only_ducklakes(lake, table.schema), lake.snapshots()
    said: list[str] = []
    initialise(lake.settings, said.append)
    assert said == ["moved 2 delete files out of the locations of tables"]
    assert are_outside(lake, table)
    assert lake.snapshots() == before
    # a session that knows the old paths goes on with them
    assert all(map(table.bucket.has, old))
    assert db.execute(f"SELECT i FROM {table.schema}.t ORDER BY 1").fetchall() == first
    db.execute("COMMIT")
    for path in old:
        table.bucket.delete(path)
    assert [row[0] for row in in_duckdb(lake, db, table.schema)] == [2, 3, 5, 6]
    initialise(lake.settings, said.append)
    assert len(said) == 1
    delete_rows(lake, table.server, table.schema, 1)
    assert sorted(row[0] for row in in_duckdb(lake, db, table.schema)) == [3, 6]


@pytest.mark.parametrize("at", ["moving.copied", "moving.moved"])
def test_a_sweep_moves_old_delete_files_and_may_be_killed_meanwhile(
    lake: TestLake, table: HandTable, db: duckdb.DuckDBPyConnection, at: str
) -> None:
    killed(lake, swept, at)
    assert are_outside(lake, table) == (at == "moving.moved")
    assert [row[0] for row in in_duckdb(lake, db, table.schema)] == [2, 3, 5, 6]
    swept(lake)
    assert are_outside(lake, table)
    assert [row[0] for row in in_duckdb(lake, db, table.schema)] == [2, 3, 5, 6]


def test_a_missing_delete_file_is_not_moved_until_it_is_restored(lake: TestLake, table: HandTable) -> None:
    lost, other = only_ducklakes(lake, table.schema)
    content = table.bucket.get(lost)
    table.bucket.delete(lost)
    swept(lake)
    assert lost in only_ducklakes(lake, table.schema)
    assert other not in only_ducklakes(lake, table.schema)
    table.bucket.put(lost, content)
    swept(lake)
    assert are_outside(lake, table)
