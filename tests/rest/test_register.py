"""RegisterTable and UnregisterTable over HTTP: names, places, bad input, and tables of the lake's own."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import duckdb
import httpx
import pyarrow as pa
import pytest

from tests.support import loads, servers
from tests.support.commits import everything, in_duckdb, new_table, rows
from tests.support.elsewhere import RawElsewhere, raw_table, register, warehouse
from tests.support.keys import HEADER, new_key
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, get, load, url
from tests.support.servers import Server, error_of

BAD, UNSUPPORTED, EXISTS = "BadRequestException", "UnsupportedOperationException", "AlreadyExistsException"
FIELDS = [
    {"id": 1, "name": "i", "required": False, "type": "int"},
    {"id": 2, "name": "s", "required": False, "type": "string"},
]


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with servers.server(lake.settings, folder, listener="off", allowed_locations=warehouse(lake)) as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


@pytest.fixture
def schema(server: Server) -> str:
    name = f"s_{uuid4().hex[:8]}"
    assert server.create(name).status_code == 200
    return name


def place(lake: TestLake) -> str:
    return f"{warehouse(lake)}/{uuid4().hex}"


def content(*numbers: int) -> pa.Table:
    return pa.table({"i": pa.array(numbers, pa.int32()), "s": pa.array([f"x{n}" for n in numbers])})


@pytest.fixture
def raw(lake: TestLake, server: Server) -> RawElsewhere:
    """A table of two files and one deleted row."""
    made = raw_table(lake, server, place(lake), FIELDS)
    made.commit("append", add=[made.data_file(content(1, 2, 3)), made.data_file(content(4))])
    made.commit("delete", deletes=made.deletes(made.places(lambda row: row["i"] == 2)))
    return made


def unregister(server: Server, schema: str, table: str = "t", **more: Any) -> httpx.Response:
    return server.http.post(f"{url(server, table, schema)}/unregister", **more)


def test_registering_a_table_under_an_existing_name_is_refused(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, raw: RawElsewhere, schema: str
) -> None:
    db.execute(f"CREATE TABLE lake.{schema}.t (i INT)")
    db.execute(f"CREATE VIEW lake.{schema}.v AS SELECT 1 AS one")
    before = everything(lake)
    for name in ("t", "v", "T"):
        answer = register(server, schema, name, raw.metadata_location)
        assert error_of(answer) == (409, EXISTS)
    # only a table of just this name is replaced
    for name in ("v", "T"):
        assert error_of(register(server, schema, name, raw.metadata_location, overwrite=True)) == (409, EXISTS)
    missing = register(server, "nowhere", "t", raw.metadata_location)
    assert error_of(missing) == (404, "NoSuchNamespaceException")
    assert everything(lake) == before


@pytest.mark.parametrize(
    "body",
    [
        {"name": "t"},
        {"metadata-location": "s3://mergus/x.metadata.json"},
        {"name": "", "metadata-location": "s3://mergus/x.metadata.json"},
        {"name": 1, "metadata-location": "s3://mergus/x.metadata.json"},
        {"name": "t", "metadata-location": "s3://mergus/x.metadata.json", "overwrite": "yes"},
    ],
)
def test_a_malformed_register_request_is_refused(lake: TestLake, server: Server, schema: str, body: Any) -> None:
    before = everything(lake)
    assert error_of(server.http.post(f"{server.path(schema)}/register", json=body)) == (400, BAD)
    assert everything(lake) == before


def test_registering_reads_nothing_outside_the_allowed_locations(
    lake: TestLake, server: Server, bucket: Bucket, raw: RawElsewhere, schema: str
) -> None:
    text = bucket.get(raw.metadata_location)
    outside = warehouse(lake) + "-not/x.metadata.json"
    bucket.put(outside, text)
    other = new_table(server, bucket, schema, "other")
    inside = f"{other.location}/metadata/x.metadata.json"
    bucket.put(inside, text)
    before = everything(lake)
    wrong = [
        outside,
        inside,
        f"{warehouse(lake)}/../x.metadata.json",
        "https://example.com/x.metadata.json",
        "file:///etc/passwd",
        "s3://",
        "",
        "x",
        f"{warehouse(lake)}/nothing.metadata.json",
    ]
    for location in wrong:
        assert error_of(register(server, schema, "t", location)) == (400, BAD), location
    # nor where the metadata leads to
    for changes in (
        {"location": outside.rpartition("/")[0]},
        {"location": other.location},
        {"location": warehouse(lake).rpartition("/")[0]},
        {"properties": {"write.data.path": outside}},
    ):
        held = dict(raw.base)
        raw.save(**changes)
        assert error_of(register(server, schema, "t", raw.metadata_location)) == (400, BAD), changes
        raw.base = held
    assert everything(lake) == before


def test_registering_a_data_file_of_another_table_is_refused(
    lake: TestLake, server: Server, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    db.execute(f"CREATE TABLE lake.{schema}.theirs AS SELECT range::INT AS i, 'x' AS s FROM range(1000)")
    other = new_table(server, bucket, schema, "other")
    other.append(1)
    paths = [load(server, "theirs", schema), load(server, "other", schema)]
    assert all(paths)
    (duck,) = lake.sql(
        "SELECT (SELECT value FROM ducklake_metadata WHERE key = 'data_path') || s.path || t.path || f.path "
        "FROM ducklake_data_file f JOIN ducklake_table t USING (table_id) JOIN ducklake_schema s USING (schema_id) "
        "WHERE t.table_name = 'theirs' AND s.schema_name = %s",
        schema,
    )[0]
    (iced,) = lake.sql("SELECT path FROM ducklake_data_file WHERE path LIKE %s", f"{other.location}/%")[0]
    for path in (duck, iced, warehouse(lake) + "-not/x.parquet"):
        raw = raw_table(lake, server, place(lake), FIELDS)
        raw.commit("append", add=[replace(raw.data_file(content(1)), file_path=path)])
        before = everything(lake)
        assert error_of(register(server, schema, "t", raw.metadata_location)) == (400, BAD), path
        assert everything(lake) == before


Spoil = Callable[[RawElsewhere, Bucket], object]


def _json(change: Callable[[dict[str, Any]], object]) -> Spoil:
    def spoil(raw: RawElsewhere, bucket: Bucket) -> None:
        found = json.loads(bucket.get(raw.metadata_location))
        change(found)
        bucket.put(raw.metadata_location, json.dumps(found).encode())

    return spoil


def _bytes(made: bytes) -> Spoil:
    return lambda raw, bucket: bucket.put(raw.metadata_location, made)


def _snapshot(raw: RawElsewhere) -> dict[str, Any]:
    return raw.base["snapshots"][-1]


WRONG: dict[str, Spoil] = {
    "empty": _bytes(b""),
    "no JSON": _bytes(b"{"),
    "no object": _bytes(b"[]"),
    "other JSON": _bytes(b'{"format-version": 2}'),
    "cut": lambda raw, bucket: bucket.cut(raw.metadata_location),
    "cut gzip": _bytes(gzip.compress(b'{"format-version": 2}')[:-6]),
    "bomb": _bytes(gzip.compress(b" " * (80 * 1024 * 1024))),
    "large": _bytes(b" " * (65 * 1024 * 1024)),
    "no uuid": _json(lambda j: j.pop("table-uuid")),
    "bad uuid": _json(lambda j: j.update({"table-uuid": "../../x"})),
    "no schema": _json(lambda j: j.update({"current-schema-id": 7})),
    "no columns": _json(lambda j: j["schemas"][0].update(fields=[])),
    "no spec": _json(lambda j: j.update({"default-spec-id": 7})),
    "no order": _json(lambda j: j.update({"default-sort-order-id": 7})),
    "no snapshot": _json(lambda j: j.update({"current-snapshot-id": 7})),
    "other main": _json(lambda j: j["refs"]["main"].update({"snapshot-id": j["snapshots"][0]["snapshot-id"]})),
    "no manifest list": lambda raw, bucket: bucket.delete(_snapshot(raw)["manifest-list"]),
    "cut manifest list": lambda raw, bucket: bucket.cut(_snapshot(raw)["manifest-list"]),
    "no manifest": lambda raw, bucket: bucket.delete(raw.manifests()[0].manifest_path),
    "cut manifest": lambda raw, bucket: bucket.cut(raw.manifests()[0].manifest_path),
    "no data file": lambda raw, bucket: bucket.delete(raw.paths()[0]),
    "cut data file": lambda raw, bucket: bucket.cut(raw.paths()[0]),
    "no delete file": lambda raw, bucket: bucket.delete(raw.entries(1)[0].data_file.file_path),
    "cut delete file": lambda raw, bucket: bucket.cut(raw.entries(1)[0].data_file.file_path),
    "position that is not there": lambda raw, _: raw.commit(
        "delete", deletes=[raw.position_deletes([(raw.paths()[0], 99)])]
    ),
    "file twice": lambda raw, _: raw.commit(
        "append", add=[replace(raw.data_file(content(1)), file_path=raw.paths()[0])]
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_registering_unreadable_metadata_is_refused_and_writes_nothing(
    lake: TestLake, server: Server, bucket: Bucket, raw: RawElsewhere, schema: str, what: str
) -> None:
    WRONG[what](raw, bucket)
    before, root = everything(lake), f"{lake.settings.data_path}".rstrip("/") + "-iceberg/"
    held = bucket.below(root)
    answer = register(server, schema, "t", raw.metadata_location)
    assert error_of(answer)[0] in ({400, 406} if what == "no columns" else {400}), answer.text
    assert everything(lake) == before
    assert bucket.below(root) == held
    assert get(server, "t", schema).status_code == 404


NOT_HERE: dict[str, Spoil] = {
    "version 4": _json(lambda j: j.update({"format-version": 4})),
    "keys": _json(lambda j: j.update({"encryption-keys": [{"key-id": "k", "encrypted-key-metadata": "eA=="}]})),
    "a type": _json(lambda j: j["schemas"][0]["fields"][0].update(type="unknown")),
    "Avro": lambda raw, _: raw.commit("append", add=[replace(raw.data_file(content(9)), file_format="AVRO")]),
    "ORC": lambda raw, _: raw.commit("append", add=[replace(raw.data_file(content(9)), file_format="ORC")]),
}


@pytest.mark.parametrize("what", NOT_HERE)
def test_registering_what_ducklake_cannot_represent_is_refused_with_the_reason(
    lake: TestLake, server: Server, bucket: Bucket, raw: RawElsewhere, schema: str, what: str
) -> None:
    NOT_HERE[what](raw, bucket)
    before = everything(lake)
    answer = register(server, schema, "t", raw.metadata_location)
    assert error_of(answer)[0] in ({400, 406} if what == "a type" else {406}), answer.text
    assert everything(lake) == before


def test_gzipped_metadata_and_s3a_locations_are_registered(
    lake: TestLake, server: Server, bucket: Bucket, db: duckdb.DuckDBPyConnection, raw: RawElsewhere, schema: str
) -> None:
    packed = raw.metadata_location.replace(".metadata.json", ".gz.metadata.json")
    there = json.loads(bucket.get(raw.metadata_location))
    there["location"] = there["location"].replace("s3://", "s3a://")
    for snapshot in there["snapshots"]:
        snapshot["manifest-list"] = snapshot["manifest-list"].replace("s3://", "s3a://")
    bucket.put(packed, gzip.compress(json.dumps(there).encode()))
    answer = register(server, schema, "t", packed.replace("s3://", "s3a://"))
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["location"] == raw.base["location"]
    assert in_duckdb(lake, db, schema) == [(1, "x1"), (3, "x3"), (4, "x4")]


def test_registering_keeps_tags_and_renumbers_small_snapshot_ids(
    lake: TestLake, server: Server, raw: RawElsewhere, schema: str
) -> None:
    first, second = (s["snapshot-id"] for s in raw.base["snapshots"])
    raw.base["refs"] |= {
        "old": {"type": "tag", "snapshot-id": first},
        "now": {"type": "tag", "snapshot-id": second, "max-ref-age-ms": 5},
        "branch": {"type": "branch", "snapshot-id": first},
    }
    raw.base["refs"]["main"]["min-snapshots-to-keep"] = 3
    text = json.dumps(raw.base).replace(str(second), "12")
    raw.base = json.loads(text)
    raw.save()
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    shown, known = answer.json()["metadata"], 2**31 + 12
    assert shown["refs"] == {
        "main": {"type": "branch", "snapshot-id": known, "min-snapshots-to-keep": 3},
        "now": {"type": "tag", "snapshot-id": known, "max-ref-age-ms": 5},
        "old": {"type": "tag", "snapshot-id": first},
    }
    assert [s["snapshot-id"] for s in shown["snapshots"]] == [first, known]
    assert loads.rows(loads.catalog(lake.settings, server).load_table(f"{schema}.t").scan().to_arrow()) == [
        (1, "x1"),
        (3, "x3"),
        (4, "x4"),
    ]


def test_an_empty_table_can_be_registered_and_written_to(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    raw = raw_table(lake, server, place(lake), FIELDS)
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["snapshots"] == []
    db.execute(f"INSERT INTO lake.{schema}.t VALUES (1, 'a')")
    assert in_duckdb(lake, db, schema) == [(1, "a")]
    loads.assert_readable(lake, server, db, "t", schema)


def test_registering_with_overwrite_replaces_the_whole_table(
    lake: TestLake, server: Server, bucket: Bucket, db: duckdb.DuckDBPyConnection, raw: RawElsewhere, schema: str
) -> None:
    old = new_table(server, bucket, schema)
    old.append(50)
    at = lake.snapshots()[-1][0]
    assert in_duckdb(lake, db, schema) == rows(50)
    answer = register(server, schema, "t", raw.metadata_location, overwrite=True)
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["table-uuid"] == raw.base["table-uuid"]
    # the first of its two snapshots is the one that drops the other
    *_, words = lake.snapshots()[at + 1]
    assert lake.sound_snapshots()[-1][0] == at + 2
    assert words.startswith("dropped_table:")
    assert "created_table:" in words
    assert in_duckdb(lake, db, schema) == [(1, "x1"), (3, "x3"), (4, "x4")]
    assert db.execute(f"SELECT * FROM lake.{schema}.t AT (VERSION => {at}) ORDER BY i").fetchall() == rows(50)
    # and so is one that is not there
    fresh = raw_table(lake, server, place(lake), FIELDS)
    assert register(server, schema, "u", fresh.metadata_location, overwrite=True).status_code == 200
    # what one table has, another cannot have
    assert error_of(register(server, schema, "w", raw.metadata_location)) == (400, BAD)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["where it was", "in another schema"])
def test_registering_the_metadata_of_a_dropped_table_restores_it(
    lake: TestLake, server: Server, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str, elsewhere: bool
) -> None:
    """With rows that DuckLake keeps in Postgres, and rows that are deleted."""
    table = new_table(server, bucket, schema)
    table.append(1)
    table.append(4)
    db.execute(f"INSERT INTO lake.{schema}.t VALUES (100, 'inlined')")
    db.execute(f"DELETE FROM lake.{schema}.t WHERE i = 5")
    wanted = in_duckdb(lake, db, schema)
    shown = get(server, schema=schema).json()
    ids = db.execute(f"SELECT i, rowid FROM lake.{schema}.t ORDER BY i").fetchall()
    dropped = server.http.delete(url(server, "t", schema))
    assert dropped.status_code == 204
    gone_at = lake.snapshots()[-1][0]
    db.execute(f"CREATE TABLE lake.{schema}.t (other INT)")
    db.execute(f"DROP TABLE lake.{schema}.t")
    there, name = (f"{schema}_2", "again") if elsewhere else (schema, "t")
    if elsewhere:
        assert server.create(there).status_code == 200
    answer = register(server, there, name, shown["metadata-location"])
    assert answer.status_code == 200, answer.text
    found = answer.json()["metadata"]
    for key in ("table-uuid", "snapshots", "snapshot-log", "current-snapshot-id", "schemas", "properties", "location"):
        assert found[key] == shown["metadata"][key], key
    assert in_duckdb(lake, db, there, name) == wanted
    assert db.execute(f"SELECT i, rowid FROM lake.{there}.{name} ORDER BY i").fetchall() == ids

    def agree() -> None:
        if not elsewhere:
            loads.assert_readable(lake, server, db, name, there)
        # at older snapshots it has its older name to DuckDB
        read = loads.catalog(lake.settings, server).load_table(f"{there}.{name}").scan().to_arrow()
        assert loads.rows(read) == loads.in_order(db.execute(f"SELECT * FROM lake.{there}.{name}").fetchall())

    with pytest.raises(duckdb.Error):
        db.execute(f"SELECT * FROM lake.{schema}.t AT (VERSION => {gone_at})")
    agree()
    # it goes on
    db.execute(f"INSERT INTO lake.{there}.{name} VALUES (101, 'inlined')")
    db.execute(f"ALTER TABLE lake.{there}.{name} ADD COLUMN more INT")
    db.execute(f"INSERT INTO lake.{there}.{name} VALUES (102, 'inlined', 1)")
    theirs = loads.catalog(lake.settings, server).load_table(f"{there}.{name}")
    theirs.append(pa.table({"i": pa.array([200], pa.int32()), "s": pa.array(["p"])}))
    found_rows = db.execute(f"SELECT i FROM lake.{there}.{name} ORDER BY i").fetchall()
    assert found_rows == [*((i,) for i, *_ in wanted), (101,), (102,), (200,)]
    agree()
    session = lake.duckdb()
    session.execute("CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMP)")
    session.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    session.close()
    fresh = lake.duckdb()
    assert fresh.execute(f"SELECT i FROM lake.{there}.{name} ORDER BY i").fetchall() == found_rows
    fresh.close()
    agree()


def test_only_the_last_metadata_file_of_a_dropped_table_restores_it(
    lake: TestLake, server: Server, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    table = new_table(server, bucket, schema)
    table.append(1)
    older = get(server, schema=schema).json()["metadata-location"]
    before = everything(lake)
    # one that is there has its name already, and the answer says which, and what to do
    lives = register(server, schema, "u", older)
    assert error_of(lives) == (400, BAD)
    assert f"is of table {schema}.t, which is in the lake under that name" in lives.text
    assert f"Rename {schema}.t, or drop it without purging it and register it then" in lives.text
    same = register(server, schema, "t", older, overwrite=True)
    assert (same.status_code, same.json()["metadata-location"]) == (200, older)
    assert everything(lake) == before
    table.append(4)
    newer = get(server, schema=schema).json()["metadata-location"]
    assert error_of(register(server, schema, "t", older, overwrite=True)) == (400, BAD)
    # a session that does more to it in the very transaction that drops it
    db.execute("BEGIN")
    db.execute(f"DELETE FROM lake.{schema}.t WHERE i = 1")
    db.execute(f"DROP TABLE lake.{schema}.t")
    db.execute("COMMIT")
    words = lake.snapshots()[-1][4]
    before = everything(lake)
    assert error_of(register(server, schema, "t", older)) == (406, UNSUPPORTED)
    wrong = [
        newer.rpartition("/")[0] + "/v1.metadata.json",
        newer.replace("/metadata/", "/data/"),
        newer.rpartition("/")[0] + "/00009-9-" + "0" * 32 + ".metadata.json",
        newer.replace(newer.split("/")[-3], str(uuid4())),
    ]
    for location in wrong:
        assert error_of(register(server, schema, "t", location)) == (400, BAD), location
    assert everything(lake) == before
    answer = register(server, schema, "t", newer)
    if "deleted_from_table" in words or "inlined_delete" in words:
        assert error_of(answer) == (406, UNSUPPORTED)
    else:
        # DuckDB writes nothing of a table that it drops
        assert answer.status_code == 200
        assert in_duckdb(lake, db, schema) == [*rows(1), *rows(4)]


def test_a_partly_expired_dropped_table_cannot_be_registered_again(
    lake: TestLake, server: Server, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    """An older snapshot still has the table, and the last one, with a file that only it had, is gone."""
    table = new_table(server, bucket, schema)
    table.append(1)
    table.append(10)
    shown = get(server, schema=schema).json()["metadata-location"]
    assert server.http.delete(url(server, "t", schema)).status_code == 204
    last = lake.snapshots()[-1][0] - 1
    db.execute(f"CREATE TABLE lake.{schema}.newer (i INT)")
    db.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{last}])")
    before = everything(lake)
    answer = register(server, schema, "t", shown)
    assert error_of(answer) == (400, BAD)
    assert "expired" in answer.json()["error"]["message"]
    assert everything(lake) == before


def test_registering_files_scheduled_for_deletion_is_refused(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, raw: RawElsewhere, schema: str
) -> None:
    assert register(server, schema, "t", raw.metadata_location).status_code == 200
    assert server.http.delete(url(server, "t", schema)).status_code == 204
    db.execute(f"CREATE TABLE lake.{schema}.newer (i INT)")
    db.execute("CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMP)")
    before = everything(lake)
    refused = register(server, schema, "t", raw.metadata_location)
    assert error_of(refused) == (400, BAD)
    assert "about to be deleted" in refused.text
    assert everything(lake) == before


def test_a_purged_table_cannot_be_registered_again(lake: TestLake, server: Server, bucket: Bucket, schema: str) -> None:
    table = new_table(server, bucket, schema)
    table.append(1)
    shown = get(server, schema=schema).json()["metadata-location"]
    assert server.http.delete(url(server, "t", schema), params={"purgeRequested": "true"}).status_code == 204
    before = everything(lake)
    assert error_of(register(server, schema, "t", shown)) == (400, BAD)
    assert everything(lake) == before


def test_unregistering_a_table_returns_its_final_metadata_and_keeps_its_files(
    lake: TestLake, server: Server, bucket: Bucket, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    table = new_table(server, bucket, schema)
    table.append(1)
    # nobody has looked at it since
    db.execute(f"INSERT INTO lake.{schema}.t VALUES (100, 'x100')")
    wanted = in_duckdb(lake, db, schema)
    files = bucket.below(table.location + "/")
    answer = unregister(server, schema)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told.keys() == {"metadata-location", "metadata"}
    assert json.loads(bucket.get(told["metadata-location"])) == told["metadata"]
    assert len(told["metadata"]["snapshots"]) == 2
    assert lake.snapshots()[-1][4].startswith("dropped_table:")
    assert get(server, schema=schema).status_code == 404
    assert error_of(table.send([])) == (404, "NoSuchTableException")
    assert set(files) <= set(bucket.below(table.location + "/"))
    before = everything(lake)
    assert error_of(unregister(server, schema)) == (404, "NoSuchTableException")
    assert error_of(unregister(server, "nowhere")) == (404, "NoSuchTableException")
    assert everything(lake) == before
    assert register(server, schema, "t", told["metadata-location"]).status_code == 200
    assert in_duckdb(lake, db, schema) == wanted


def test_a_retried_register_request_replays_its_answer(
    lake: TestLake, server: Server, raw: RawElsewhere, schema: str
) -> None:
    body = {"name": "t", "metadata-location": raw.metadata_location}
    key = {HEADER: new_key()}
    first = server.http.post(f"{server.path(schema)}/register", json=body, headers=key)
    assert first.status_code == 200, first.text
    before = everything(lake)
    second = server.http.post(f"{server.path(schema)}/register", json=body, headers=key)
    assert (second.status_code, second.json()["metadata"]["table-uuid"]) == (200, raw.base["table-uuid"])
    key = {HEADER: new_key()}
    gone = unregister(server, schema, headers=key)
    assert gone.status_code == 200
    again = unregister(server, schema, headers=key)
    assert again.status_code == 200
    assert again.json() == gone.json()
    assert before != everything(lake)


def test_a_table_restored_while_the_listener_handles_its_drop_is_shown(
    lake: TestLake, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The listener finds that the table is gone. Who brings it back meanwhile does not get that for an answer."""
    with servers.server(lake.settings, tmp_path_factory.mktemp("listening"), listener=servers.LISTENER) as server:
        assert server.create("back_and_forth").status_code == 200
        tables = f"{server.path('back_and_forth')}/tables"
        for _ in range(30):
            made = server.http.post(tables, json={"name": "t", "schema": {"type": "struct", "fields": FIELDS}})
            assert made.status_code == 200, made.text
            gone = server.http.post(f"{tables}/t/unregister")
            back = register(server, "back_and_forth", "t", gone.json()["metadata-location"])
            assert back.status_code == 200, back.text
            assert server.http.delete(f"{tables}/t").status_code == 204
