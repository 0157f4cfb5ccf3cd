"""Locations that clients choose below that of a namespace, as Trino does for every table and view; and what only
DuckLake names, which lies below no location that a client is told."""

from collections.abc import Iterator
from uuid import uuid4

import duckdb
import pytest

from tests.machine.raw_deletes import Deleting
from tests.maintenance.sweeping import LONG, swept, without_orphans
from tests.rest.test_create_table import of_staged
from tests.rest.test_drop_rename import drop
from tests.rest.test_undrop import undrop
from tests.support import servers, vended, views, writers
from tests.support.commits import HandTable, Json, create, everything, in_duckdb, new_table, rows
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, catalog, load, url
from tests.support.servers import Server, error_of
from tests.support.writers import Raw

BAD = (400, "BadRequestException")


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with servers.server(lake.settings, folder, listener="off", **vended.settings()) as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


@pytest.fixture
def schema(server: Server) -> str:
    name = f"s_{uuid4().hex[:8]}"
    assert server.create(name).status_code == 200
    return name


def home(server: Server, *levels: str) -> str:
    """The location of a namespace."""
    return server.http.get(server.path(*levels)).json()["properties"]["location"].rstrip("/")


def delete_rows(lake: TestLake, server: Server, schema: str, position: int = 0) -> None:
    """One row of each data file, by position."""
    deleting = Deleting(catalog(lake.settings, server).load_table(f"{schema}.t"))
    body = deleting.by_positions({listed.file.file_path: [position] for listed in deleting.data_files()})
    answer = server.http.post(url(server, schema=schema), json=body)
    assert answer.status_code == 200, answer.text


def staged(server: Server, bucket: Bucket, schema: str, location: str) -> HandTable:
    """As Trino makes a table: first a promise, then a commit."""
    promised = create(server, schema, stage_create=True, location=location)
    assert promised.status_code == 200, promised.text
    table = HandTable(server, bucket, schema, state=promised.json()["metadata"])
    assert table.location == location
    table.commit(*of_staged(table.state), requirements=[{"type": "assert-create"}])
    return table


@pytest.mark.parametrize("how", ["created", "staged"])
def test_duckdb_and_clients_write_to_a_table_located_below_its_namespace(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str, how: str
) -> None:
    location = f"{home(server, schema)}/t-{uuid4().hex}"
    if how == "created":
        table = new_table(server, bucket, schema, location=location)
    else:
        table = staged(server, bucket, schema, location)
    table.append(1)
    table.append(4)
    assert load(server, schema=schema)["location"] == location
    assert len([path for path in bucket.below(f"{location}/data/") if path.endswith(".parquet")]) == 2
    assert in_duckdb(lake, db, schema) == rows(1, 6)
    delete_rows(lake, server, schema)
    assert [row[0] for row in in_duckdb(lake, db, schema)] == [2, 3, 5, 6]
    db.execute(f"INSERT INTO {schema}.t VALUES (9, 'x')")
    found = catalog(lake.settings, server).load_table(f"{schema}.t").scan().to_arrow().to_pylist()
    assert sorted(row["i"] for row in found) == [2, 3, 5, 6, 9]


def test_nested_and_recreated_namespaces_have_their_own_locations(
    server: Server, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    assert server.create(schema, "a/b 'c").status_code == 200
    db.execute(f'CREATE SCHEMA "{schema}.of duckdb"')
    found = [home(server, schema), home(server, schema, "a/b 'c"), home(server, schema, "of duckdb")]
    assert not any(a != b and (a + "/").startswith(b + "/") for a in found for b in found)
    assert all(" " not in place and place.count("/") == found[0].count("/") for place in found)
    assert server.http.delete(server.path(schema, "a/b 'c")).status_code == 204
    assert server.create(schema, "a/b 'c").status_code == 200
    assert home(server, schema, "a/b 'c") not in found


def test_a_location_that_a_table_may_not_have_is_refused_with_the_reason(
    server: Server, lake: TestLake, bucket: Bucket, schema: str
) -> None:
    ours, root = home(server, schema), home(server, schema).rpartition("/schemas/")[0]
    other = f"s_{uuid4().hex[:8]}"
    server.create(other)
    new_table(server, bucket, schema, "victim", location=f"{ours}/a/victim")
    viewed = {**views.wanted(schema, "v", duckdb="SELECT 1 AS i"), "location": f"{ours}/v"}
    assert server.http.post(views.url(server, schema), json=viewed).status_code == 200
    table = new_table(server, bucket, schema)
    before = everything(lake)
    reasons = {
        f"{ours}/a/victim": "another table",
        f"{ours}/a/victim/data": "another table",
        f"{ours}/a": "it holds other tables'",
        f"{ours}/v": "another table",
        f"{ours}/v/metadata": "another table",
        ours: "below the namespace's location",
        f"{root}/schemas": "below the namespace's location",
        f"{home(server, other)}/t": "below the namespace's location",
        f"{root}/{uuid4()}": f"choose one below the namespace's location {ours}",
        f"{root}/ducklake/{table.state['table-uuid']}": "below the namespace's location",
        f"{ours}/../{uuid4()}": "part",
    }
    for text, reason in reasons.items():
        for answer in (
            create(server, schema, "new", location=text),
            create(server, schema, "new", location=text, stage_create=True),
            create(server, schema, "new", properties={"write.data.path": text}),
            table.send([{"action": "set-location", "location": text}]),
            table.send([{"action": "set-properties", "updates": {"write.metadata.path": text}}]),
            server.http.post(
                views.url(server, schema), json={**views.wanted(schema, "w", duckdb="SELECT 1 AS i"), "location": text}
            ),
        ):
            assert error_of(answer) == BAD, (text, answer.text)
            assert reason in answer.json()["error"]["message"], (text, answer.text)
    assert everything(lake) == before
    # what is nobody's, and below its namespace
    table.commit({"action": "set-location", "location": f"{ours}/moved"})
    table.append(1)
    table.commit({"action": "set-properties", "updates": {"write.data.path": f"{ours}/data-of-t"}})


def test_files_outside_the_location_of_their_table_are_refused(
    server: Server, lake: TestLake, bucket: Bucket, schema: str
) -> None:
    table = new_table(server, bucket, schema, location=f"{home(server, schema)}/t")
    for place in (f"{home(server, schema)}/nobody", f"{home(server, schema)}"):
        file = table.file(1, path=f"{place}/x.parquet")
        assert error_of(table.send(table.append_updates([file], 2**40))) == BAD


def test_the_location_of_a_dropped_table_is_reserved_while_it_can_be_undropped(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    location = f"{home(server, schema)}/t"
    table = new_table(server, bucket, schema, location=location)
    table.append(1)
    assert drop(server, schema).status_code == 204
    assert error_of(create(server, schema, "heir", location=location)) == BAD
    undone = undrop(server, schema)
    assert undone.status_code == 200, undone.text
    assert in_duckdb(lake, db, schema) == rows(1)
    assert drop(server, schema, purge=True).status_code == 204
    heir = new_table(server, bucket, schema, "t", location=location)
    heir.append(7)
    assert in_duckdb(lake, db, schema) == rows(7)


def test_a_view_may_be_located_below_its_namespace(
    server: Server, db: duckdb.DuckDBPyConnection, bucket: Bucket, schema: str
) -> None:
    location = f"{home(server, schema)}/v-{uuid4().hex}"
    wanted = {**views.wanted(schema, "v", duckdb="SELECT 1 AS i"), "location": location}
    made = server.http.post(views.url(server, schema), json=wanted)
    assert made.status_code == 200, made.text
    shown = views.get(server, schema, "v").json()
    assert shown["metadata"]["location"] == location
    assert bucket.has(shown["metadata-location"])
    assert db.execute(f"SELECT * FROM {schema}.v").fetchall() == [(1,)]
    moved = f"{home(server, schema)}/v-{uuid4().hex}"
    answer = views.commit(server, schema, "v", [{"action": "set-location", "location": moved}])
    assert answer.status_code == 200, answer.text
    last = views.get(server, schema, "v").json()["metadata-location"]
    assert views.drop(server, schema, "v").status_code == 204
    body = {"name": "w", "metadata-location": last}
    again = server.http.post(f"{server.path(schema)}/register-view", json=body)
    assert again.status_code == 200, again.text
    assert views.load(server, schema, "w")["location"] == moved


def test_vended_keys_of_a_table_below_its_namespace_cover_its_own_location_only(
    server: Server, lake: TestLake, bucket: Bucket, schema: str
) -> None:
    ours = home(server, schema)
    table = new_table(server, bucket, schema, location=f"{ours}/t")
    other = new_table(server, bucket, schema, "other", location=f"{ours}/other")
    table.append(1)
    other.append(1)
    delete_rows(lake, server, schema)
    s3 = vended.client(vended.keys_of(vended.load(server, "t", schema)))
    bucket_name = table.location.removeprefix("s3://").partition("/")[0]

    def key(text: str) -> str:
        return text.removeprefix(f"s3://{bucket_name}/")

    s3.put_object(Bucket=bucket_name, Key=key(f"{table.location}/data/mine"), Body=b"x")
    s3.get_object(Bucket=bucket_name, Key=key(f"{table.location}/data/mine"))
    (deletes,) = only_ducklakes(lake, schema)
    for place in (f"{other.location}/x", f"{ours}/x", f"{ours}/t2/x", deletes, f"{deletes.rpartition('/')[0]}/x"):
        with pytest.raises(Exception, match=r"AccessDenied|403|Forbidden"):
            s3.put_object(Bucket=bucket_name, Key=key(place), Body=b"x")
    (theirs,) = bucket.below(f"{other.location}/data/")
    with pytest.raises(Exception, match=r"AccessDenied|403|Forbidden"):
        s3.get_object(Bucket=bucket_name, Key=key(theirs))


def only_ducklakes(lake: TestLake, schema: str) -> list[str]:
    """Delete files of DuckLake's, of a table `t`."""
    found = lake.sql(
        "SELECT d.path FROM ducklake_delete_file d JOIN ducklake_table t USING (table_id) "
        "JOIN ducklake_schema s USING (schema_id) "
        "WHERE schema_name = %s AND table_name = 't' AND NOT d.path_is_relative",
        schema,
    )
    return sorted({row[0] for row in found})


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("chosen", [False, True])
def test_files_that_only_ducklake_uses_lie_outside_the_locations_shown_to_clients(
    server: Server,
    lake: TestLake,
    bucket: Bucket,
    db: duckdb.DuckDBPyConnection,
    schema: str,
    version: int,
    chosen: bool,
) -> None:
    more: Json = {"properties": {"format-version": str(version)}}
    if chosen:
        more["location"] = f"{home(server, schema)}/t"
    table = new_table(server, bucket, schema, **more)
    table.append(1)
    table.append(4)
    delete_rows(lake, server, schema)
    found = only_ducklakes(lake, schema)
    assert len(found) == 2
    assert all(bucket.has(path) for path in found)
    told = [table.location, home(server, schema), home(server, "main")]
    assert not any(path.startswith(f"{place}/") for path in found for place in told)
    # as one does who removes orphans: all below the location that Iceberg's metadata does not name
    table.load()
    named = {table.snapshot(s["snapshot-id"])["manifest-list"] for s in table.state["snapshots"]}
    for snapshot in table.state["snapshots"]:
        manifests = table.manifests(snapshot["snapshot-id"])
        named |= {m.manifest_path for m in manifests}
        named |= {e.data_file.file_path for m in manifests for e in table.entries(m)}
    for path in bucket.below(f"{table.location}/"):
        if path not in named and not path.endswith((".metadata.json", "version-hint.text")):
            bucket.delete(path)
    assert [row[0] for row in in_duckdb(lake, db, schema)] == [2, 3, 5, 6]
    for (at,) in db.execute("SELECT snapshot_id FROM snapshots() ORDER BY 1 DESC LIMIT 3").fetchall():
        assert db.execute(f"SELECT count(*) FROM {schema}.t AT (VERSION => {at})").fetchone() is not None


def test_copies_with_row_ids_lie_outside_table_locations_and_clients_may_read_them(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    db.execute(f"CREATE TABLE {schema}.t (i INTEGER, s VARCHAR)")
    writer = Raw(lake, server, "t", schema)
    if writer.version < 3:
        assert writer.send([{"action": "upgrade-format-version", "format-version": 3}]).status_code == 200
        writer.refresh()
    assert writer.commit("append", add=[writer.data_file(writers.rows(*range(10)))]).status_code == 200
    (old,) = writer.paths()
    moved = writer.data_file(writers.rows(*range(11)), row_ids=[*range(10), None])
    answer = writer.commit("overwrite", add=[moved], remove=[old])
    assert answer.status_code == 200, answer.text
    (copy,) = writer.paths()
    assert "/ducklake/" in copy
    assert not copy.startswith(f"{writer.base['location']}/")
    kept = f"SELECT count(*) FILTER (rowid = i), count(DISTINCT rowid) FROM {schema}.t"
    assert db.execute(kept).fetchone() == (10, 11)
    s3 = vended.client(vended.keys_of(vended.load(server, "t", schema)))
    name, _, key = copy.removeprefix("s3://").partition("/")
    assert s3.get_object(Bucket=name, Key=key)["Body"].read() == bucket.get(copy)
    for forbidden in (key, f"{key}.more"):
        with pytest.raises(Exception, match=r"AccessDenied|403|Forbidden"):
            s3.put_object(Bucket=name, Key=forbidden, Body=b"x")


def test_sweeps_clean_up_locations_that_clients_chose(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    table = new_table(server, bucket, schema, location=f"{home(server, schema)}/t")
    table.append(1)
    table.append(4)
    delete_rows(lake, server, schema)
    theirs = {path for path in bucket.below(f"{table.location}/") if "/metadata/" in path}
    assert theirs
    swept(lake)
    assert not theirs & set(bucket.below(f"{table.location}/"))
    beside = only_ducklakes(lake, schema)[0].rpartition("/")[0]
    planted = [f"{table.location}/data/{uuid4()}.parquet", f"{beside}/ducklake-deletes-{uuid4()}.parquet"]
    strangers = [f"{home(server, schema)}/nobody/{uuid4()}.parquet"]
    for path in planted + strangers:
        bucket.put(path, b"nobody's")
    without_orphans(lake, LONG)
    assert all(map(bucket.has, planted))
    without_orphans(lake)
    assert not any(map(bucket.has, planted))
    assert all(map(bucket.has, strangers))
    assert [row[0] for row in in_duckdb(lake, db, schema)] == [2, 3, 5, 6]
    # of a table that is gone for good, too
    left = f"{table.location}/data/{uuid4()}.parquet"
    bucket.put(left, b"nobody's")
    assert drop(server, schema, purge=True).status_code == 204
    swept(lake)
    without_orphans(lake)
    assert not bucket.has(left)
