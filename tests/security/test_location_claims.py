"""Places and files that are another table's, or were, or will be: by changes of a table that is there, in several steps
or in one, by promises, by races, and by directories that two tables have had (H22).

Each ends in a refusal that writes nothing, and what was the other's stays the other's.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import duckdb
import httpx
import pytest

from tests.support import elsewhere, servers, views
from tests.support.commits import (
    FIELDS,
    HandTable,
    create,
    described,
    everything,
    in_duckdb,
    new_snapshot_id,
    new_table,
    rows,
)
from tests.support.elsewhere import raw_table, warehouse
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, url
from tests.support.servers import Server, error_of

BAD = (400, "BadRequestException")


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options: dict[str, Any] = {"listener": "off", "allowed_locations": warehouse(lake)}
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), **options) as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


@pytest.fixture
def schema() -> str:
    return f"s_{uuid4().hex[:8]}"


@pytest.fixture
def place(lake: TestLake) -> str:
    """Allowed, and nobody's."""
    return f"{warehouse(lake)}/{uuid4().hex}"


def action(name: str, **more: Any) -> dict[str, Any]:
    return {"action": name, **more}


def refused(lake: TestLake, table: HandTable, *updates: dict[str, Any]) -> str:
    before = everything(lake)
    answer = table.send(updates)
    assert error_of(answer) == BAD, answer.text
    assert everything(lake) == before
    return answer.json()["error"]["message"]


def adding(table: HandTable, *paths: str) -> list[dict[str, Any]]:
    return table.append_updates([described(path, 1, 3, 100) for path in paths], new_snapshot_id())


# --- changing a table that is there


def test_a_commit_cannot_claim_the_location_of_another_table_and_add_its_files(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str, place: str
) -> None:
    victim, table = new_table(server, bucket, schema, "victim"), new_table(server, bucket, schema)
    victim.append(1)
    (theirs,) = [e.data_file.file_path for m in victim.manifests() for e in victim.entries(m)]
    for target in (victim.location, f"{victim.location}/data", f"{table.location}/../{victim.location[-36:]}"):
        for update in (
            action("set-location", location=target),
            action("set-properties", updates={"write.data.path": target}),
            action("set-properties", updates={"write.metadata.path": target}),
        ):
            refused(lake, table, update, *adding(table, theirs))
            refused(lake, table, *adding(table, theirs), update)
    # the same with a place that it may have
    made = [table.file(5, path=f"{place}/data/x.parquet")]
    table.commit(action("set-location", location=place), *table.append_updates(made, new_snapshot_id()))
    assert in_duckdb(lake, db, schema) == rows(5)


def test_a_table_cannot_reach_the_location_of_another_in_several_steps(
    server: Server, lake: TestLake, bucket: Bucket, schema: str, place: str
) -> None:
    """Each place that it had is no help in getting at the next."""
    victim = new_table(server, bucket, schema, "victim", location=f"{place}/victim")
    table = new_table(server, bucket, schema, location=f"{place}/table")
    table.commit(action("set-location", location=f"{place}/table/deeper"))
    table.commit(action("set-properties", updates={"write.data.path": f"{place}/data-of-table"}))
    for target in (place, victim.location, f"{victim.location}/x", f"{place}/table/../victim", f"{place}//victim"):
        refused(lake, table, action("set-location", location=target))
        refused(lake, table, action("set-properties", updates={"write.metadata.path": target}))
    # onto what it had, and away again: then it is nobody's, and not its own any more
    table.commit(action("set-location", location=f"{place}/table"))
    table.commit(action("remove-properties", removals=["write.data.path"]))
    heir = new_table(server, bucket, schema, "heir", location=f"{place}/data-of-table")
    heir.append(1)
    refused(lake, table, *adding(table, f"{heir.location}/x.parquet"))


@pytest.mark.parametrize("key", ["write.data.path", "write.metadata.path", "write.object-storage.path"])
def test_a_location_that_another_table_set_by_a_property_cannot_be_claimed(
    server: Server, lake: TestLake, bucket: Bucket, schema: str, place: str, key: str
) -> None:
    chosen = f"{place}/chosen"
    new_table(server, bucket, schema, "victim", properties={key: chosen})
    table = new_table(server, bucket, schema)
    refused(lake, table, *adding(table, f"{chosen}/x.parquet"))
    for target in (chosen, f"{chosen}/x", place):
        refused(lake, table, action("set-location", location=target))
        assert error_of(create(server, schema, "more", location=target)) == BAD


def test_two_tables_of_one_transaction_cannot_claim_overlapping_locations(
    server: Server, lake: TestLake, bucket: Bucket, schema: str, place: str
) -> None:
    one, two = (new_table(server, bucket, schema, name) for name in ("one", "two"))
    before = everything(lake)
    for first, second in ((place, place), (place, f"{place}/below"), (f"{place}/below/x", f"{place}/below")):
        changes = [
            {
                "identifier": {"namespace": [schema], "name": table.name},
                "requirements": [],
                "updates": [action("set-location", location=target)],
            }
            for table, target in ((one, first), (two, second))
        ]
        answer = server.http.post("/v1/lake/transactions/commit", json={"table-changes": changes})
        assert error_of(answer) == BAD, (first, second, answer.text)
    assert everything(lake) == before


def test_one_of_several_concurrent_claims_of_a_location_succeeds(
    server: Server, lake: TestLake, bucket: Bucket, schema: str, place: str
) -> None:
    tables = [new_table(server, bucket, schema, f"t{n}") for n in range(6)]
    start = threading.Barrier(len(tables))

    def take(table: HandTable) -> int:
        start.wait()
        with httpx.Client(base_url=server.uri, timeout=60) as client:
            body = {"requirements": [], "updates": [action("set-location", location=place)]}
            return client.post(table.url, json=body).status_code

    with ThreadPoolExecutor(len(tables)) as pool:
        assert sorted(pool.map(take, tables)) == [200] + [400] * (len(tables) - 1)
    assert lake.sql("SELECT count(*) FROM table_location WHERE location = %s", place) == [(1,)]


def test_a_table_at_a_location_that_is_no_longer_allowed_is_readable_but_not_extended(
    server: Server, lake: TestLake, bucket: Bucket, tmp_path_factory: pytest.TempPathFactory, schema: str, place: str
) -> None:
    """Settings count at every commit. What is there can still be read, and written where all tables have theirs."""
    table = new_table(server, bucket, schema, location=place)
    table.append(1)
    with servers.server(lake.settings, tmp_path_factory.mktemp("narrow"), listener="off") as narrow:
        later = HandTable(narrow, bucket, schema)
        later.load()
        refused(lake, later, *adding(later, f"{place}/data/x.parquet"))
        own = f"{lake.settings.data_path}".rstrip("/") + f"-iceberg/{later.state['table-uuid']}"
        later.state["location"] = own
        later.append(10)
    assert table.load()["location"] == place


# --- promises


def test_a_staged_table_whose_location_another_table_took_cannot_be_committed(
    server: Server, lake: TestLake, bucket: Bucket, schema: str, place: str
) -> None:
    assert server.create(schema).status_code == 200
    promised = create(server, schema, "late", location=place, stage_create=True)
    assert promised.status_code == 200
    state = promised.json()["metadata"]
    other = new_table(server, bucket, schema, "early", location=f"{place}/below")
    other.append(1)
    late = HandTable(server, bucket, schema, "late", state)
    before = everything(lake)
    answer = late.send(
        [
            action("assign-uuid", uuid=state["table-uuid"]),
            action("add-schema", schema=state["schemas"][0]),
            action("set-current-schema", **{"schema-id": -1}),
            action("add-spec", spec=state["partition-specs"][0]),
            action("set-default-spec", **{"spec-id": -1}),
            action("add-sort-order", **{"sort-order": state["sort-orders"][0]}),
            action("set-default-sort-order", **{"sort-order-id": -1}),
            action("set-location", location=place),
        ],
        [{"type": "assert-create"}],
    )
    assert error_of(answer) == BAD, answer.text
    assert everything(lake) == before


# --- files that were another's


def test_h22_a_new_table_in_the_directory_of_a_dropped_one_cannot_add_its_files(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    """The new table has the directory of the old one, and none of its files."""
    db.execute(f"CREATE SCHEMA {schema}")
    db.execute(f"CREATE TABLE {schema}.t AS SELECT range::INT AS i, 'secret' AS s FROM range(100)")
    theirs = ducks_file(lake, schema, "t")
    db.execute(f"DROP TABLE {schema}.t")
    db.execute(f"CREATE TABLE {schema}.t(i INTEGER, s VARCHAR)")
    assert bucket.has(theirs)
    table = HandTable(server, bucket, schema)
    table.load()
    assert "data path" in refused(lake, table, *adding(table, theirs))
    assert "data path" in refused(lake, table, *adding(table, theirs.rpartition("/")[0] + "/nobody.parquet"))
    refused(lake, table, action("set-location", location=theirs.rpartition("/")[0]))


def test_h22_a_new_table_in_the_directory_of_a_renamed_one_cannot_add_its_files(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    db.execute(f"CREATE SCHEMA {schema}")
    db.execute(f"CREATE TABLE {schema}.t AS SELECT range::INT AS i, 'secret' AS s FROM range(100)")
    db.execute(f"ALTER TABLE {schema}.t RENAME TO kept")
    db.execute(f"CREATE TABLE {schema}.t(i INTEGER, s VARCHAR)")
    table = HandTable(server, bucket, schema)
    table.load()
    refused(lake, table, *adding(table, ducks_file(lake, schema, "kept")))
    # nor by way of a table that is registered
    raw = raw_table(lake, server, f"{warehouse(lake)}/{uuid4().hex}", FIELDS)
    raw.commit("append", add=[described(ducks_file(lake, schema, "kept"), 0, 100, 1000)])
    before = everything(lake)
    assert error_of(elsewhere.register(server, schema, "r", raw.metadata_location)) == BAD
    assert everything(lake) == before


def ducks_file(lake: TestLake, schema: str, name: str) -> str:
    ((found,),) = lake.sql(
        "SELECT (SELECT value FROM ducklake_metadata WHERE key = 'data_path') || s.path || t.path || f.path "
        "FROM ducklake_data_file f JOIN ducklake_table t ON t.table_id = f.table_id AND t.table_name = %s "
        "JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.schema_name = %s",
        name,
        schema,
    )
    return found


@pytest.mark.parametrize("how", ["live", "dropped", "purged"])
def test_a_file_of_another_table_in_an_allowed_location_cannot_be_added(
    server: Server, lake: TestLake, bucket: Bucket, schema: str, place: str, how: str
) -> None:
    """Added from an allowed place that is no table's: what one has, or had, no other adopts until it is dropped."""
    victim, table = new_table(server, bucket, schema, "victim"), new_table(server, bucket, schema)
    shared = f"{place}/x.parquet"
    victim.commit(*victim.append_updates([victim.file(1, path=shared)], new_snapshot_id()))
    if how != "live":
        wanted = {"purgeRequested": str(how == "purged").lower()}
        assert server.http.delete(url(server, "victim", schema), params=wanted).status_code == 204
    if how == "dropped":
        table.commit(*adding(table, shared))
    else:
        told = refused(lake, table, *adding(table, shared))
        assert ("about to be deleted" if how == "purged" else "another table") in told
    raw = raw_table(lake, server, f"{place}/registered", FIELDS)
    raw.commit("append", add=[described(shared, 1, 3, bucket_size(bucket, shared))])
    before = everything(lake)
    assert error_of(elsewhere.register(server, schema, "r", raw.metadata_location)) == BAD
    assert everything(lake) == before


def bucket_size(bucket: Bucket, address: str) -> int:
    return len(bucket.get(address))


def test_files_that_mergus_wrote_cannot_be_added_by_clients(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    """Rows that DuckDB keeps in Postgres are shown as files in the table's own directory."""
    db.execute(f"CREATE SCHEMA {schema}")
    db.execute(f"CREATE TABLE {schema}.t(i INTEGER, s VARCHAR)")
    db.execute(f"INSERT INTO {schema}.t VALUES (1, 'x')")
    table = HandTable(server, bucket, schema)
    table.load()
    (held,) = [e.data_file.file_path for m in table.manifests() for e in table.entries(m)]
    db.execute(f"DELETE FROM {schema}.t")
    table.load()
    assert "only the server makes" in refused(lake, table, *adding(table, held))


def test_a_table_cannot_be_undropped_to_a_location_that_another_table_took(
    server: Server, lake: TestLake, bucket: Bucket, schema: str, place: str
) -> None:
    new_table(server, bucket, schema, "old", location=f"{place}/old")
    assert server.http.delete(url(server, "old", schema)).status_code == 204
    heir = new_table(server, bucket, schema, "heir", location=f"{place}/old/below")
    undrop = f"/v1/lake/admin/namespaces/{schema}/undrop"
    before = everything(lake)
    assert error_of(server.http.post(undrop, json={"name": "old"})) == BAD
    assert everything(lake) == before
    assert server.http.delete(url(server, heir.name, schema), params={"purgeRequested": "true"}).status_code == 204
    assert server.http.post(undrop, json={"name": "old"}).status_code == 200


def test_a_registered_view_cannot_claim_the_directory_of_a_table(
    server: Server, lake: TestLake, bucket: Bucket, schema: str, place: str
) -> None:
    """Who registers a view says what its uuid is, and with it which directory it has."""
    victim = new_table(server, bucket, schema, "victim")
    views.create(server, schema, "v", spark="SELECT 1 AS i, 's' AS s")
    stolen = {"view-uuid": victim.state["table-uuid"], "location": victim.location}
    address = f"{place}/x.metadata.json"
    bucket.put(address, httpx.Response(200, json={**views.load(server, schema, "v"), **stolen}).content)
    before = everything(lake)
    body = {"name": "w", "metadata-location": address}
    assert error_of(server.http.post(f"{server.path(schema)}/register-view", json=body)) == BAD
    assert everything(lake) == before
