"""LoadTable when what it stands on fails: objects of ours lost or cut off, the store or Postgres down, clocks wrong.

What is promised. An object that a process must read again and cannot is made again from DuckLake's rows, with all that
was made of the table. A process that sees a table for the first time looks for the objects behind its newest snapshot,
and the lists of the others, so a restart repairs what nobody has to read. Other processes learn of it at the next
commit.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import duckdb
import fastavro
import pytest
from pydantic import SecretStr

from mergus.ducklake.session import literal, s3_secret, with_extensions
from mergus.embedded.postgres import Postgres
from mergus.embedded.seaweed import Seaweed
from mergus.embedded.state import StateDir
from mergus.setup import initialise
from mergus.storage.place import ensure_bucket
from tests.support import lakes, loads, servers
from tests.support.lakes import TestLake, quiet
from tests.support.loads import Bucket, Metadata, get, ids, load, url
from tests.support.servers import Server, error_of, wait_for


def records(content: bytes) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], list(fastavro.reader(BytesIO(content))))


@dataclass
class Behind:
    """The objects behind a table, by what they are."""

    bucket: Bucket
    location: str
    metadata: Metadata

    @property
    def lists(self) -> list[str]:
        return [s["manifest-list"] for s in self.metadata["snapshots"]]

    def manifests(self, kind: str) -> list[str]:
        paths = [str(m["manifest_path"]) for m in records(self.bucket.get(self.lists[-1]))]
        return [path for path in paths if path.rpartition("/")[2].startswith(kind)]

    def files(self, kind: str) -> list[str]:
        return [e["data_file"]["file_path"] for m in self.manifests(kind) for e in records(self.bucket.get(m))]


WHAT: dict[str, Callable[[Behind], str]] = {
    "metadata": lambda b: b.location,
    "list": lambda b: b.lists[-1],
    "older_list": lambda b: b.lists[0],
    "data_manifest": lambda b: b.manifests("files-data")[-1],
    "deletes_manifest": lambda b: b.manifests("files-deletes")[0],
    "rows_manifest": lambda b: b.manifests("rows-data")[0],
    "rows": lambda b: b.files("rows-data")[0],
    "deletes": lambda b: b.files("files-deletes")[0],
}
# half of an older list can be told only by reading it, which nobody does
CASES = [(what, how) for what in WHAT for how in ("lost", "cut") if (what, how) != ("older_list", "cut")]


@pytest.mark.parametrize(("format_version", "cases"), [(2, CASES), (3, [("rows", "lost"), ("deletes", "cut")])])
def test_lost_or_truncated_metadata_objects_are_written_again(
    format_version: int, cases: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Every case on a table of its own."""
    with lakes.lake(format_version=format_version) as lake, servers.server(lake.settings, tmp_path) as old:
        bucket, db = Bucket(lake.settings), lake.duckdb()
        for what, how in cases:
            schema = f"{what}_{how}"
            db.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t(i INTEGER)")
            db.execute(
                f"INSERT INTO {schema}.t SELECT range FROM range(40); INSERT INTO {schema}.t VALUES (100), (101)"
            )
            db.execute(f"DELETE FROM {schema}.t WHERE i IN (3, 5)")
            load(old, schema=schema)
            db.execute(f"DELETE FROM {schema}.t WHERE i = 100")
            answer = get(old, schema=schema).json()
            address = WHAT[what](Behind(bucket, answer["metadata-location"], answer["metadata"]))
            assert address.startswith(answer["metadata"]["location"])
            if how == "lost":
                bucket.delete(address)
            else:
                bucket.cut(address)
        with servers.server(lake.settings, tmp_path) as fresh:
            for what, how in cases:
                schema = f"{what}_{how}"
                listed = loads.assert_readable(lake, fresh, db, schema=schema)
                assert len(listed) == 4
                body = get(fresh, schema=schema).json()
                assert json.loads(bucket.get(body["metadata-location"])) == body["metadata"]
            for what, how in cases:
                # both go on from what was made again
                schema = f"{what}_{how}"
                db.execute(f"INSERT INTO {schema}.t VALUES (7)")
                for server in (old, fresh):
                    assert len(loads.assert_readable(lake, server, db, schema=schema, most=2)) == 5


def test_a_running_server_rewrites_a_lost_object_that_it_must_read_again(tmp_path: Path) -> None:
    """Rows that go from a file of ours: which, only the file can tell."""
    with lakes.lake() as lake, servers.server(lake.settings, tmp_path) as server:
        bucket, db = Bucket(lake.settings), lake.duckdb()
        for what, how in (("rows", "lost"), ("rows", "cut"), ("list", "lost"), ("metadata", "lost")):
            schema = f"{what}_{how}"
            db.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t(i INTEGER)")
            db.execute(f"INSERT INTO {schema}.t VALUES (1), (2), (3)")
            answer = get(server, schema=schema).json()
            address = WHAT[what](Behind(bucket, answer["metadata-location"], answer["metadata"]))
            (bucket.delete if how == "lost" else bucket.cut)(address)
            db.execute(f"DELETE FROM {schema}.t WHERE i = 2")
            after = get(server, schema=schema).json()
            assert json.loads(bucket.get(after["metadata-location"])) == after["metadata"]
            head = loads.catalog(lake.settings, server).load_table((schema, "t"))
            assert loads.rows(head.scan().to_arrow()) == [(1,), (3,)]


@contextmanager
def own_store(path: Path) -> Iterator[tuple[StateDir, dict[str, object]]]:
    """A store that can be stopped, and the settings that lead to it."""
    with StateDir.claim(path) as state:
        seaweed = Seaweed(state, None)
        try:
            seaweed.wait_ready()
            found: dict[str, object] = {
                "s3_endpoint": seaweed.endpoint,
                "s3_access_key_id": seaweed.access_key,
                "s3_secret_access_key": SecretStr(seaweed.secret_key),
            }
            ensure_bucket("mergus", lakes.backend_settings().model_copy(update=found))
            yield state, {**found, "_store": seaweed}
        finally:
            seaweed.child.stop()


def test_loads_that_need_the_store_fail_while_it_is_down_and_cached_ones_succeed(tmp_path: Path) -> None:
    with own_store(tmp_path / "state") as (state, found):
        seaweed = cast(Seaweed, found.pop("_store"))
        with lakes.lake(**found) as lake, servers.server(lake.settings, tmp_path) as server:
            db = lake.duckdb()
            db.execute("CREATE TABLE t(i INTEGER); INSERT INTO t VALUES (1); CREATE TABLE cold(i INTEGER)")
            before = get(server)
            assert before.status_code == 200
            seaweed.child.stop()
            again = get(server)
            assert (again.status_code, again.text) == (200, before.text)
            # an inlined row needs no store to be committed, but a file to be shown
            db.execute("INSERT INTO t VALUES (2); INSERT INTO cold VALUES (3)")
            for table in ("t", "cold"):
                began = time.monotonic()
                answer = get(server, table)
                assert error_of(answer) == (503, "ServiceUnavailableException")
                assert int(answer.headers["retry-after"]) > 0
                assert time.monotonic() - began < 15
            assert server.http.get("/healthz").status_code == 200
            assert error_of(get(server, "absent")) == (404, "NoSuchTableException")
            seaweed = Seaweed(state, None)
            try:
                seaweed.wait_ready()
                for table, wanted in (("t", [(1,), (2,)]), ("cold", [(3,)])):
                    wait_for(server, url(server, table), 200)
                    shown = loads.catalog(lake.settings, server).load_table(("main", table))
                    assert loads.rows(shown.scan().to_arrow()) == wanted
            finally:
                seaweed.child.stop()


def test_loads_get_503_while_postgres_is_down_and_succeed_after_its_restart(tmp_path: Path) -> None:
    with StateDir.claim(tmp_path / "state") as state:
        postgres = Postgres(state, None, durable=False)
        try:
            postgres.wait_ready()
            settings = lakes.settings_for(postgres.dsn()).model_copy(update={"pool_timeout": 1.0})
            initialise(settings, quiet)
            with servers.server(settings, tmp_path) as server:
                with TestLake(settings).duckdb() as db:
                    db.execute("CREATE TABLE t(i INTEGER); INSERT INTO t VALUES (1)")
                before = load(server)
                postgres.child.stop()
                # what was true a moment ago may not be any more
                for query in ("", "?snapshots=refs", "?snapshot-id=1"):
                    answer = server.http.get(url(server) + query)
                    assert error_of(answer) == (503, "ServiceUnavailableException")
                    assert int(answer.headers["retry-after"]) > 0
                postgres = Postgres(state, None, durable=False)
                postgres.wait_ready()
                assert wait_for(server, url(server), 200).json()["metadata"] == before
                with TestLake(settings).duckdb() as db:
                    db.execute("INSERT INTO t VALUES (2)")
                # what needs more than the watch needs the pool, which takes its time to come back
                wait_for(server, "/readyz", 200)
                assert len(load(server)["snapshots"]) == 2
        finally:
            postgres.child.stop()


def iceberg_client(lake: TestLake) -> duckdb.DuckDBPyConnection:
    client = with_extensions("httpfs", "avro", "iceberg")
    client.execute(s3_secret(lake.settings))
    return client


def test_a_snapshot_with_a_timestamp_in_the_future_is_read_by_all_engines(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA ahead; CREATE TABLE ahead.t(i INTEGER)")
    db.execute("INSERT INTO ahead.t VALUES (1); INSERT INTO ahead.t VALUES (2)")
    load(server, schema="ahead")
    newest = ids(load(server, schema="ahead"))[-1]
    shift = "UPDATE ducklake_snapshot SET snapshot_time = now() + interval '5 seconds' WHERE snapshot_id = %s"
    lake.sql(shift, newest)
    ((true_ms,),) = lake.sql(
        "SELECT floor(extract(epoch FROM snapshot_time) * 1000)::bigint FROM ducklake_snapshot WHERE snapshot_id = %s",
        newest,
    )
    with iceberg_client(lake) as client:
        options = f"TYPE iceberg, ENDPOINT {literal(server.uri)}, AUTHORIZATION_TYPE 'none'"
        client.execute(f"ATTACH 'lake' AS ice ({options})")
        assert client.execute("SELECT i FROM ice.ahead.t ORDER BY i").fetchall() == [(1,), (2,)]
    body = get(server, schema="ahead").json()
    stored = json.loads(Bucket(lake.settings).get(body["metadata-location"]))
    loaded = loads.catalog(lake.settings, server).load_table("ahead.t")
    assert loads.rows(loaded.scan().to_arrow()) == [(1,), (2,)]
    current = loaded.current_snapshot()
    assert current is not None
    for metadata in (body["metadata"], stored):
        assert metadata["snapshots"][-1]["timestamp-ms"] == true_ms == current.timestamp_ms
        assert metadata["snapshot-log"][-1]["timestamp-ms"] == true_ms
        assert metadata["last-updated-ms"] >= true_ms


def test_iceberg_scan_reads_a_table_directory_without_a_catalog(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA directory; CREATE TABLE directory.t(i INTEGER)")
    with iceberg_client(lake) as client:
        for n in range(1, 4):
            db.execute(f"INSERT INTO directory.t VALUES ({n})")
            where = load(server, schema="directory")["location"]
            deadline = time.monotonic() + 10
            found: list[tuple[Any, ...]] = []
            while found != [(i,) for i in range(1, n + 1)]:
                assert time.monotonic() < deadline, found
                # it is written after the answer
                try:
                    found = client.execute(f"SELECT i FROM iceberg_scan({literal(where)}) ORDER BY i").fetchall()
                except duckdb.Error:
                    time.sleep(0.02)


def test_the_next_process_repairs_a_lost_or_wrong_version_hint(
    lake: TestLake, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    bucket = Bucket(lake.settings)
    db.execute(
        "CREATE SCHEMA signs; CREATE TABLE signs.lost AS SELECT 1 AS i; CREATE TABLE signs.astray AS SELECT 1 AS i"
    )
    hints: dict[str, str] = {}
    for turn in range(2):
        with servers.server(lake.settings, tmp_path) as server:
            for table in ("lost", "astray"):
                where = load(server, table, "signs")["location"]
                hints[table] = f"{where}/metadata/version-hint.text"
                deadline = time.monotonic() + 10
                while not bucket.has(hints[table]) or bucket.get(hints[table]) != b"1":
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                assert bucket.has(f"{where}/metadata/v1.metadata.json")
                assert not bucket.has(f"{where}/metadata/v2.metadata.json")
        if turn == 0:
            bucket.delete(hints["lost"])
            # as after a restore
            bucket.put(hints["astray"], b"2")
            bucket.put(hints["astray"].replace("version-hint.text", "v2.metadata.json"), b"{}")
