"""Files that several rows of DuckLake's name: its expiry and cleanup take none that is needed still."""

from collections.abc import Iterator

import duckdb
import pytest

from tests.support import loads, servers
from tests.support.commits import in_duckdb, main_at, new_table, rows
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, url
from tests.support.servers import Server


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), listener="off") as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


def clean(lake: TestLake) -> None:
    with lake.duckdb() as session:
        session.execute("CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMP)")
        session.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")


def test_a_rolled_back_table_keeps_its_files_after_an_expiry(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    """Main is put back to files that had ended: they have two rows then, and the older one expires."""
    table = new_table(server, bucket, "back")
    # one of Iceberg's files, and one of DuckDB's, whose path is relative to the table's
    table.append(1)
    db.execute("INSERT INTO back.t SELECT range + 100, 'x' FROM range(50)")
    table.load()
    held, first = bucket.below(table.location + "/data/"), table.current
    wanted = in_duckdb(lake, db, "back")
    assert first is not None
    db.execute("DELETE FROM back.t")
    table.load()
    table.commit(main_at(first))
    assert in_duckdb(lake, db, "back") == wanted
    ducks = lake.sql(
        "SELECT path FROM ducklake_data_file WHERE path_is_relative AND table_id IN "
        "(SELECT table_id FROM ducklake_table WHERE table_name = 't') AND end_snapshot IS NULL"
    )
    assert len(ducks) == 1
    clean(lake)
    assert set(held) <= set(bucket.below(table.location + "/data/"))
    assert in_duckdb(lake, db, "back") == wanted
    loads.assert_readable(lake, server, db, "t", "back")


def test_a_purge_after_a_rollback_deletes_all_files(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "purged")
    first = table.append(1)
    (path,) = [p for p in bucket.below(table.location + "/data/") if p.endswith(".parquet")]
    db.execute("DELETE FROM purged.t")
    table.load()
    table.commit(main_at(first))
    assert in_duckdb(lake, db, "purged") == rows(1)
    assert lake.sql("SELECT count(*) FROM ducklake_data_file WHERE path = %s", path) == [(2,)]
    dropped = server.http.delete(url(server, "t", "purged"), params={"purgeRequested": "true"})
    assert dropped.status_code == 204
    clean(lake)
    assert not bucket.has(path)


def test_a_file_is_deleted_once_all_catalog_rows_that_name_it_expired(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "ended")
    first = table.append(1)
    (path,) = [p for p in bucket.below(table.location + "/data/") if p.endswith(".parquet")]
    db.execute("DELETE FROM ended.t")
    table.load()
    table.commit(main_at(first))
    assert lake.sql("SELECT count(*) FROM ducklake_data_file WHERE path = %s", path) == [(2,)]
    assert server.http.delete(url(server, "t", "ended")).status_code == 204
    clean(lake)
    assert not bucket.has(path)
