"""DropTable and RenameTable over HTTP, and what DuckDB and PyIceberg find afterwards."""

from collections.abc import Iterator

import duckdb
import httpx
import pytest

from tests.support import loads, servers
from tests.support.commits import Json, create, everything, in_duckdb, new_table, rows
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, catalog, get, load, url
from tests.support.servers import Server, error_of

EXISTS, NO_TABLE, NO_NAMESPACE = "AlreadyExistsException", "NoSuchTableException", "NoSuchNamespaceException"


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), listener="off") as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


def drop(server: Server, schema: str, table: str = "t", *, purge: bool | str = False) -> httpx.Response:
    params = {"purgeRequested": str(purge).lower()} if purge else None
    return server.http.delete(url(server, table, schema), params=params)


def rename(server: Server, source: tuple[str, str], target: tuple[str, str]) -> httpx.Response:
    def named(parts: tuple[str, str]) -> Json:
        return {"namespace": [parts[0]], "name": parts[1]}

    body = {"source": named(source), "destination": named(target)}
    return server.http.post("/v1/lake/tables/rename", json=body)


def names(db: duckdb.DuckDBPyConnection, schema: str) -> list[str]:
    query = f"SELECT table_name FROM duckdb_tables() WHERE schema_name = '{schema}' ORDER BY 1"
    return [row[0] for row in db.execute(query).fetchall()]


def test_a_dropped_table_is_gone_but_its_past_snapshots_are_readable(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "dropped")
    table.append(1)
    at = lake.snapshots()[-1][0]
    assert in_duckdb(lake, db, "dropped") == rows(1)
    held = bucket.below(table.location + "/")
    answer = drop(server, "dropped")
    assert (answer.status_code, answer.content) == (204, b"")
    assert lake.sound_snapshots()[-1][4].startswith("dropped_table:")
    assert get(server, schema="dropped").status_code == 404
    assert names(db, "dropped") == []
    assert db.execute(f"SELECT * FROM dropped.t AT (VERSION => {at}) ORDER BY i").fetchall() == rows(1)
    assert lake.sql("SELECT count(*) FROM ducklake_files_scheduled_for_deletion") == [(0,)]
    assert bucket.below(table.location + "/") == held
    before = everything(lake)
    assert error_of(drop(server, "dropped")) == (404, NO_TABLE)
    assert error_of(drop(server, "nowhere")) == (404, NO_TABLE)
    assert error_of(drop(server, "dropped", purge="perhaps")) == (400, "BadRequestException")
    assert error_of(table.send([])) == (404, NO_TABLE)
    assert everything(lake) == before
    # its name is free
    again = new_table(server, bucket, "dropped")
    assert again.state["table-uuid"] != table.state["table-uuid"]
    again.append(50)
    assert in_duckdb(lake, db, "dropped") == rows(50)
    assert loads.rows(catalog(lake.settings, server).load_table("dropped.t").scan().to_arrow()) == rows(50)


def test_h22_a_purge_deletes_only_files_of_the_purged_table(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    """A table that is created again under its name shares DuckLake's directory with the one before."""
    db.execute("CREATE SCHEMA shared; CREATE TABLE shared.t(i INTEGER, s VARCHAR)")
    db.execute("INSERT INTO shared.t SELECT range, 'old' FROM range(40); DELETE FROM shared.t WHERE i < 20")
    db.execute("DROP TABLE shared.t; CREATE TABLE shared.t(i INTEGER, s VARCHAR)")
    db.execute("INSERT INTO shared.t SELECT range, 'mid' FROM range(40); INSERT INTO shared.t VALUES (1, 'inlined')")
    directory = (lake.settings.data_path or "") + "shared/t/"
    (old,) = lake.sql(
        "SELECT path FROM ducklake_data_file WHERE end_snapshot IS NOT NULL AND path LIKE '%%'"
        " AND table_id = (SELECT min(table_id) FROM ducklake_table t JOIN ducklake_schema s"
        " ON s.schema_id = t.schema_id WHERE schema_name = 'shared')"
    )
    assert load(server, schema="shared")["snapshots"]
    assert drop(server, "shared", purge=True).status_code == 204
    db.execute("CREATE TABLE shared.t(i INTEGER, s VARCHAR); INSERT INTO shared.t SELECT range, 'new' FROM range(40)")
    scheduled = lake.sql("SELECT path, path_is_relative FROM ducklake_files_scheduled_for_deletion")
    assert len(scheduled) == 1
    assert scheduled[0][0].startswith("shared/t/")
    assert scheduled[0][1] is True
    assert directory + old[0] in bucket.below(directory)
    db.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    left = bucket.below(directory)
    assert lake.settings.data_path is not None
    assert lake.settings.data_path + scheduled[0][0] not in left
    # the oldest is there for who travels in time, and the newest is whole
    assert directory + old[0] in left
    assert in_duckdb(lake, db, "shared") == rows(0, 40, "new")
    found = catalog(lake.settings, server).load_table("shared.t").scan().to_arrow()
    assert loads.rows(found) == loads.in_order(rows(0, 40, "new"))
    assert db.execute("SELECT snapshot_id, changes FROM lake.snapshots()").fetchall()


def test_a_purge_deletes_files_written_by_iceberg_clients(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "purged")
    table.append(1)
    kept = new_table(server, bucket, "unpurged")
    kept.append(1)
    data = [path for path in bucket.below(table.location + "/") if path.endswith(".parquet")]
    table_id = lake.sql("SELECT table_id FROM ducklake_table WHERE table_uuid = %s", table.state["table-uuid"])[0][0]
    assert drop(server, "purged", purge=True).status_code == 204
    for name in ("data_file", "column", "table", "table_stats", "file_column_stats", "schema_versions"):
        assert lake.sql(f"SELECT count(*) FROM ducklake_{name} WHERE table_id = {table_id}") == [(0,)], name
    scheduled = lake.sql("SELECT path, path_is_relative FROM ducklake_files_scheduled_for_deletion")
    assert (data[0], False) in scheduled
    db.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    assert not any(bucket.has(path) for path in data)
    assert in_duckdb(lake, db, "unpurged") == rows(1)


def test_a_table_is_renamed_within_and_across_namespaces(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "from")
    table.append(1)
    db.execute("INSERT INTO \"from\".t VALUES (9, 'inlined')")
    wanted = [*rows(1), (9, "inlined")]
    assert server.create("to").status_code == 200
    uuid = table.state["table-uuid"]
    here = ("from", "t")
    for there in (("from", "u"), ("to", "u"), ("to", "U"), ("from", "t")):
        before = len(lake.snapshots())
        answer = rename(server, here, there)
        assert (answer.status_code, answer.content) == (204, b""), answer.text
        assert len(lake.sound_snapshots()) == before + 1
        assert get(server, here[1], here[0]).status_code == 404
        found = load(server, there[1], there[0])
        assert (found["table-uuid"], found["location"]) == (uuid, table.location)
        assert in_duckdb(lake, db, *there) == wanted
        theirs = catalog(lake.settings, server).load_table(there)
        assert loads.rows(theirs.scan().to_arrow()) == loads.in_order(wanted)
        here = there
    # both sides go on
    db.execute("INSERT INTO \"from\".t SELECT range, 'duck' FROM range(100, 120)")
    table.load()
    table.append(200)
    assert in_duckdb(lake, db, "from") == [*wanted, *rows(100, 20, "duck"), *rows(200)]


def test_impossible_table_renames_are_refused(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    new_table(server, bucket, "here")
    assert create(server, "here", "other").status_code == 200
    db.execute("CREATE VIEW here.v AS SELECT 1; CREATE SCHEMA there; CREATE TABLE there.Taken(i INTEGER)")
    before = everything(lake)
    for target in (("here", "other"), ("here", "OTHER"), ("here", "v"), ("there", "taken"), ("here", "t")):
        assert error_of(rename(server, ("here", "t"), target)) == (409, EXISTS), target
    assert error_of(rename(server, ("here", "t"), ("nowhere", "t"))) == (404, NO_NAMESPACE)
    assert error_of(rename(server, ("here", "missing"), ("here", "u"))) == (404, NO_TABLE)
    assert error_of(rename(server, ("nowhere", "t"), ("here", "u"))) == (404, NO_TABLE)
    assert error_of(rename(server, ("here", "t"), ("here", ""))) == (400, "BadRequestException")
    assert error_of(rename(server, ("here", "t"), ("here", "a\0b"))) == (400, "BadRequestException")
    for body in ({}, {"source": {"namespace": ["here"], "name": "t"}}, {"source": 1, "destination": 2}, []):
        answer = server.http.post("/v1/lake/tables/rename", json=body)
        assert error_of(answer) == (400, "BadRequestException")
    assert everything(lake) == before


def test_a_setting_turns_purge_requests_into_drops(
    lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, schema = tmp_path_factory.mktemp("dropping"), "purge_is_drop"
    with servers.server(lake.settings, folder, listener="off", purge_requested="drop") as server:
        new_table(server, bucket, schema).append(1)
        at = lake.snapshots()[-1][0]
        assert drop(server, schema, purge=True).status_code == 204
        assert db.execute(f"SELECT count(*) FROM {schema}.t AT (VERSION => {at})").fetchone() == (3,)
        undone = server.http.post(f"/v1/lake/admin/namespaces/{schema}/undrop", json={"name": "t"})
        assert undone.status_code == 200, undone.text
        assert in_duckdb(lake, db, schema) == rows(1)
