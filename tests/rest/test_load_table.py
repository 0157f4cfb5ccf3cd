"""LoadTable over HTTP: what an answer holds, in which forms it comes, and which requests are refused."""

import gzip
import json
from collections.abc import Iterator
from urllib.parse import quote

import duckdb
import httpx
import pytest

from mergus.ducklake.session import identifier
from tests.support import loads, servers
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, get, ids, load, url
from tests.support.servers import Server, error_of

GZIP = {"Accept-Encoding": "gzip"}
PLAIN = {"Accept-Encoding": "identity"}


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Makes nothing before it is asked for."""
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), listener="off") as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


def make(db: duckdb.DuckDBPyConnection, schema: str, commits: int = 3) -> list[int]:
    """A table `t` in a schema of its own; the snapshots that its commits made."""
    db.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t(i INTEGER, s VARCHAR)")
    made: list[int] = []
    for n in range(commits):
        db.execute(f"INSERT INTO {schema}.t VALUES ({n}, 'row {n}')")
        made.append(newest(db))
    return made


def newest(db: duckdb.DuckDBPyConnection) -> int:
    row = db.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone()
    assert row is not None
    return row[0]


def test_a_load_returns_the_metadata_and_the_location_of_the_same_metadata_file(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection, bucket: Bucket
) -> None:
    made = make(db, "whole")
    answer = get(server, schema="whole")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"metadata-location", "metadata", "config"}
    assert body["config"] == {}
    assert ids(body["metadata"]) == made
    assert body["metadata"]["current-snapshot-id"] == made[-1]
    assert body["metadata-location"].startswith(body["metadata"]["location"] + "/metadata/")
    assert json.loads(bucket.get(body["metadata-location"])) == body["metadata"]
    # a process that has not seen the table yet says the same
    assert loads.assert_readable(lake, server, db, schema="whole") == made


def test_each_metadata_file_lists_the_previous_ones(
    server: Server, db: duckdb.DuckDBPyConnection, bucket: Bucket
) -> None:
    make(db, "logged", commits=1)
    earlier: list[str] = []
    for n in range(4):
        body = get(server, schema="logged").json()
        assert [entry["metadata-file"] for entry in body["metadata"]["metadata-log"]] == earlier
        assert json.loads(bucket.get(body["metadata-location"])) == body["metadata"]
        earlier.append(body["metadata-location"])
        db.execute(f"INSERT INTO logged.t VALUES ({n}, 'x')")
    assert all(bucket.has(location) for location in earlier)


def test_snapshots_refs_returns_only_the_current_snapshot(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    made = make(db, "refs")
    assert ids(load(server, schema="refs", snapshots="refs")) == made[-1:]
    assert ids(load(server, schema="refs", snapshots="all")) == made
    assert ids(load(server, schema="refs")) == made


@pytest.mark.parametrize(
    "query", ["snapshots=some", "snapshots=", "snapshot-id=x", "snapshot-id=-1", f"snapshot-id={2**63}"]
)
def test_a_load_with_malformed_query_parameters_is_refused(
    query: str, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA IF NOT EXISTS bad; CREATE TABLE IF NOT EXISTS bad.t(i INTEGER)")
    answer = server.http.get(f"{url(server, schema='bad')}?{query}")
    assert error_of(answer) == (400, "BadRequestException")


def test_each_representation_of_a_load_has_its_own_etag(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    make(db, "tagged")
    where = url(server, schema="tagged")
    forms = [
        (f"{where}{query}", {**coding, **agent})
        for query in ("", "?snapshots=refs")
        for coding in (GZIP, PLAIN)
        for agent in ({}, {"User-Agent": "duckdb/v1.5.5"})
    ]
    tags: list[str] = []
    for address, headers in forms:
        answer = server.http.get(address, headers=headers)
        assert answer.status_code == 200
        tags.append(answer.headers["etag"])
    assert len(set(tags)) == len(forms)
    for (address, headers), own in zip(forms, tags, strict=True):
        for tag in tags:
            answer = server.http.get(address, headers={**headers, "If-None-Match": tag})
            assert answer.status_code == (304 if tag == own else 200)
            assert answer.headers["etag"] == own
            varies = set(answer.headers["vary"].split(", "))
            assert varies == {"Accept-Encoding", "Authorization", "User-Agent", "X-Iceberg-Access-Delegation"}
            if tag == own:
                assert answer.content == b""


def test_if_none_match_accepts_lists_and_weak_etags(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    make(db, "among", commits=1)
    where = url(server, schema="among")
    tag = server.http.get(where).headers["etag"]
    for sent, status in ((f'"x", {tag}', 304), (f"W/{tag}", 304), ('"x"', 200), (tag.strip('"'), 200)):
        assert server.http.get(where, headers={"If-None-Match": sent}).status_code == status
    db.execute("INSERT INTO among.t VALUES (9, 'new')")
    assert server.http.get(where, headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize(
    ("sent", "packed"),
    [("gzip", True), ("deflate, GZip;q=0.5", True), ("gzip;q=0", False), ("gzip; q=0.000", False), ("br", False)],
)
def test_a_load_is_gzipped_only_for_clients_that_accept_it(
    sent: str, packed: bool, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA IF NOT EXISTS packed")
    db.execute("CREATE TABLE IF NOT EXISTS packed.t(i INTEGER, j INTEGER, k INTEGER, l INTEGER)")
    with httpx.stream("GET", server.uri + url(server, schema="packed"), headers={"Accept-Encoding": sent}) as answer:
        content = b"".join(answer.iter_raw())
    assert (answer.headers.get("content-encoding") == "gzip") == packed
    assert int(answer.headers["content-length"]) == len(content)
    metadata = json.loads(gzip.decompress(content) if packed else content)["metadata"]
    assert metadata == load(server, schema="packed")


def test_a_cached_load_equals_an_uncached_one(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    """A query that is spelled in another way, or an order of tags, is not taken by the short way."""
    make(db, "ready")
    where = url(server, schema="ready")
    load(server, schema="ready")
    tag = server.http.get(where, headers=PLAIN).headers["etag"]
    for coding in (GZIP, PLAIN):
        for condition in ({}, {"If-None-Match": tag}):
            sent = {**coding, **condition, "X-Request-ID": "my-own.id_1"}
            short = server.http.get(where, headers=sent)
            long = server.http.get(f"{where}?snapshots=all&", headers=sent)
            assert short.headers["x-request-id"] == "my-own.id_1"
            assert (short.status_code, short.content) == (long.status_code, long.content)
            same = [{**answer.headers, "date": ""} for answer in (short, long)]
            assert same[0] == same[1]


def test_a_load_may_ask_for_a_past_snapshot_of_the_table(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    made = make(db, "pinned")
    for n, at in enumerate(made):
        metadata = load(server, schema="pinned", snapshot_id=at)
        assert metadata["current-snapshot-id"] == at == metadata["refs"]["main"]["snapshot-id"]
        assert ids(metadata) == made[: n + 1]
        assert [entry["snapshot-id"] for entry in metadata["snapshot-log"]] == made[: n + 1]
        assert ids(load(server, schema="pinned", snapshot_id=at, snapshots="refs")) == [at]
    db.execute("ALTER TABLE pinned.t ADD COLUMN j INTEGER; INSERT INTO pinned.t VALUES (8, 'x', 1)")
    then = load(server, schema="pinned", snapshot_id=made[0])
    (schema,) = [s for s in then["schemas"] if s["schema-id"] == then["current-schema-id"]]
    assert [f["name"] for f in schema["fields"]] == ["i", "s"]


def test_a_load_at_a_snapshot_of_another_table_shows_the_last_one_before_it(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    before = make(db, "nearest")
    make(db, "nearest_other", commits=1)
    between = newest(db)
    db.execute("INSERT INTO nearest.t VALUES (7, 'later')")
    assert ids(load(server, schema="nearest", snapshot_id=between)) == before


def test_a_load_at_an_unknown_expired_or_too_old_snapshot_is_not_found(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    (before,) = make(db, "gone_before", commits=1)
    made = make(db, "gone")
    db.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{made[1]}])")
    for at in (2**62, made[1], before):
        answer = get(server, schema="gone", snapshot_id=at)
        assert error_of(answer) == (404, "NoSuchSnapshotException")
        assert str(at) in answer.json()["error"]["message"]
    assert ids(load(server, schema="gone", snapshot_id=made[2])) == [made[0], made[2]]


@pytest.mark.parametrize(
    "name", ["a/b", "with space", "do.t", "ünï", 'q"uote', "%2F", "x\x1fy", "a+b", "?x=1", "#", "...", "emoji 🦆", "'"]
)
def test_tables_with_special_characters_in_their_names_are_loaded(
    name: str, server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA IF NOT EXISTS awkward")
    db.execute(f"CREATE TABLE awkward.{identifier(name)} AS SELECT 42 AS {identifier(name)}")
    for _ in range(2):
        metadata = load(server, name, "awkward")
        assert metadata["schemas"][-1]["fields"][0]["name"] == name
    found = loads.catalog(lake.settings, server).load_table(("awkward", name)).scan().to_arrow()
    assert found.to_pylist() == [{name: 42}]


def test_a_table_of_a_nested_namespace_is_loaded(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute('CREATE SCHEMA "one.two.three"; CREATE TABLE "one.two.three".t(i INTEGER)')
    assert load(server, schema="one.two.three")["schemas"][-1]["fields"][0]["name"] == "i"


@pytest.mark.parametrize("table", ["T", "v", "u", "a\0b"])
def test_loading_a_missing_table_is_not_found(table: str, server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA IF NOT EXISTS absent; CREATE TABLE IF NOT EXISTS absent.t(i INTEGER)")
    db.execute("CREATE VIEW IF NOT EXISTS absent.v AS SELECT 1 AS i")
    assert error_of(get(server, table, "absent")) == (404, "NoSuchTableException")
    assert error_of(get(server, table, "absent", snapshot_id=0)) == (404, "NoSuchTableException")


def test_loading_a_table_of_a_missing_namespace_or_warehouse_is_not_found(server: Server) -> None:
    assert error_of(get(server, schema="nowhere")) == (404, "NoSuchTableException")
    answer = server.http.get("/v1/other/namespaces/main/tables/t")
    assert error_of(answer) == (404, "NoSuchWarehouseException")


def test_a_head_request_does_not_materialise_the_table(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA asked; CREATE TABLE asked.t AS SELECT 1 AS i")
    answer = server.http.head(url(server, schema="asked"))
    assert (answer.status_code, answer.content) == (204, b"")
    query = """SELECT count(*) FROM chain JOIN ducklake_table USING (table_id)
               JOIN ducklake_schema USING (schema_id) WHERE schema_name = 'asked'"""
    assert lake.sql(query) == [(0,)]


def test_a_table_without_rows_is_loaded_without_a_current_snapshot(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA empty; CREATE TABLE empty.t(i INTEGER NOT NULL, s VARCHAR)")
    metadata = load(server, schema="empty")
    assert ids(metadata) == []
    assert "current-snapshot-id" not in metadata
    assert "main" not in metadata["refs"]
    loaded = loads.catalog(lake.settings, server).load_table("empty.t")
    assert loaded.current_snapshot() is None
    assert loaded.scan().to_arrow().num_rows == 0
    assert [f.name for f in loaded.schema().fields] == ["i", "s"]
    assert error_of(get(server, schema="empty", snapshot_id=newest(db))) == (404, "NoSuchSnapshotException")


def test_loading_a_table_with_an_unsupported_column_type_is_refused_with_its_name(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA odd; CREATE TABLE odd.fine(i INTEGER)")
    db.execute('CREATE TABLE odd.t(i INTEGER, "the interval" INTERVAL)')
    for _ in range(2):
        answer = get(server, schema="odd")
        assert error_of(answer) == (406, "UnsupportedOperationException")
        assert "the interval" in answer.json()["error"]["message"]
    listed = server.http.get(f"{server.path('odd')}/tables").json()["identifiers"]
    assert [x["name"] for x in listed] == ["fine", "t"]
    assert server.http.head(url(server, schema="odd")).status_code == 204
    load(server, "fine", "odd")
    db.execute('ALTER TABLE odd.t DROP COLUMN "the interval"')
    assert [f["name"] for f in load(server, schema="odd")["schemas"][-1]["fields"]] == ["i"]


def test_a_load_at_a_snapshot_that_iceberg_cannot_show_is_refused(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    (first,) = make(db, "once_odd", commits=1)
    db.execute("ALTER TABLE once_odd.t ADD COLUMN d INTERVAL; INSERT INTO once_odd.t VALUES (5, 'x', INTERVAL 1 DAY)")
    odd = newest(db)
    db.execute("ALTER TABLE once_odd.t DROP COLUMN d; INSERT INTO once_odd.t VALUES (6, 'y')")
    last = newest(db)
    # from the moment at which the column went, older rows are shown again
    assert ids(load(server, schema="once_odd")) == [first, odd + 1, last]
    assert ids(load(server, schema="once_odd", snapshot_id=odd + 1)) == [first, odd + 1]
    assert ids(load(server, schema="once_odd", snapshot_id=first)) == [first]
    assert error_of(get(server, schema="once_odd", snapshot_id=odd)) == (406, "UnsupportedOperationException")


def test_an_oversize_path_or_broken_text_gets_an_iceberg_error(server: Server) -> None:
    assert error_of(server.http.get(f"{server.path('main')}/tables/{quote('x' * 3000)}"))[0] == 404
    assert error_of(server.http.get(f"{server.path('main')}/tables/%ff"))[0] == 400
