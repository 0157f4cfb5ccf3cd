"""What nobody needs any more goes when its grace is over, and nothing else does: PyIceberg reads at every snapshot that
lives what DuckDB reads, from a server that runs all along and from one that has just been started."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from mergus.materialise.layout import is_ours
from tests.maintenance.sweeping import LONG, Store, killed, swept
from tests.support import loads, servers
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, get, load
from tests.support.readers import CLEANUP
from tests.support.servers import Server

Objects = set[str]


@dataclass
class Kept:
    """A table of its own in a lake that the tests share, with a server that has seen it all along."""

    lake: TestLake
    server: Server
    # one that hears of the table when all is over
    fresh: Server
    db: duckdb.DuckDBPyConnection
    schema: str

    def tell(self, *statements: str) -> None:
        """Each is shown before the next."""
        for statement in statements:
            self.db.execute(statement.replace("{schema}", self.schema))
            load(self.server, schema=self.schema)

    @property
    def store(self) -> Store:
        return Store(Bucket(self.lake.settings), load(self.server, schema=self.schema)["location"])

    def update(self, *updates: dict[str, Any]) -> None:
        body = {"requirements": list[str](), "updates": updates}
        answer = self.server.http.post(f"{self.server.path(self.schema)}/tables/t", json=body)
        assert answer.status_code == 200, answer.text

    def garbage(self, kind: str = "list") -> Objects:
        query = """SELECT g.path FROM garbage g JOIN ducklake_table t USING (table_id)
                   JOIN ducklake_schema s USING (schema_id) WHERE s.schema_name = %s AND kind = %s"""
        return {path for (path,) in self.lake.sql(query, self.schema, kind)}

    def settled(self) -> None:
        """Older snapshots are made behind the answer, and signs are set there."""
        deadline = time.monotonic() + 20
        while True:
            metadata = load(self.server, schema=self.schema)
            hint = f"{metadata['location']}/metadata/version-hint.text"
            bucket = Bucket(self.lake.settings)
            versions = [n for n in self.names() if n.startswith("metadata/0")]
            if bucket.has(hint) and bucket.get(hint) == str(1 + max(int(n[9:14]) for n in versions)).encode():
                return
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def names(self) -> Objects:
        return self.store.names()

    def needed(self) -> Objects:
        """What a reader of any snapshot opens in the table's directory, as Iceberg's own library finds it."""
        table = loads.catalog(self.lake.settings, self.server).load_table((self.schema, "t"))
        paths: Objects = set()
        for snapshot in table.metadata.snapshots:
            paths.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                paths.add(manifest.manifest_path)
                paths |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io)}
        start = table.location() + "/"
        return {path.removeprefix(start) for path in paths if path.startswith(start)}

    def agrees(self, *, afresh: bool = True, most: int = 1000) -> list[int]:
        found = loads.assert_readable(self.lake, self.server, self.db, schema=self.schema, most=most)
        if afresh:
            assert loads.assert_readable(self.lake, self.fresh, self.db, schema=self.schema, most=most) == found
        return found

    def forget(self) -> None:
        """As a process does that finds objects damaged."""
        self.lake.sql("DELETE FROM chain; UPDATE catalog SET epoch = epoch + 1")


@pytest.fixture(scope="module")
def fleet(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Nobody makes anything before it is asked for."""
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        yield [stack.enter_context(servers.server(lake.settings, folder, listener="off")) for _ in range(3)]


@pytest.fixture
def kept(lake: TestLake, fleet: list[Server], request: pytest.FixtureRequest) -> Iterator[Kept]:
    """Of version 2, or of the one that a test asks for."""
    schema = f"s_{uuid4().hex[:8]}"
    with lake.duckdb() as db:
        db.execute(f"CREATE SCHEMA {schema}; USE lake.{schema}; CREATE TABLE t(i INTEGER, s VARCHAR)")
        made = Kept(lake, fleet[0], fleet[-1], db, schema)
        if getattr(request, "param", 2) == 3:
            made.update({"action": "upgrade-format-version", "format-version": 3})
        yield made


in_both_formats = pytest.mark.parametrize("kept", [2, 3], indirect=True)

MERGE = "CALL ducklake_merge_adjacent_files('lake', 't', schema => '{schema}')"
FLUSH = "CALL ducklake_flush_inlined_data('lake', schema_name => '{schema}', table_name => 't')"
STORY = (
    "INSERT INTO t SELECT range, 'x' FROM range(40)",
    "INSERT INTO t VALUES (100, 'a'), (101, 'b')",
    "DELETE FROM t WHERE i IN (3, 5)",
    "INSERT INTO t SELECT range + 200, 'y' FROM range(40)",
    "UPDATE t SET s = 'z' WHERE i IN (7, 100, 201)",
)
# files that DuckLake merges, so that all that was made of older snapshots is made again
MERGED = (
    "INSERT INTO t SELECT range + 300, 'm' FROM range(40)",
    "INSERT INTO t SELECT range + 400, 'n' FROM range(40)",
    FLUSH,
    MERGE,
    CLEANUP,
)
AFTER = ("DELETE FROM t WHERE i = 9", "INSERT INTO t VALUES (500, 'later')")


def expire_all_but_the_last(kept: Kept) -> None:
    ids = loads.lake_ids(load(kept.server, schema=kept.schema))
    versions = ", ".join(map(str, ids[:-1]))
    kept.tell(f"CALL ducklake_expire_snapshots('lake', versions => [{versions}])", CLEANUP)


@in_both_formats
def test_objects_that_a_merge_replaced_are_swept_after_the_grace_and_history_stays(kept: Kept) -> None:
    kept.tell(*STORY, *MERGED)
    kept.settled()
    retired = kept.garbage()
    assert retired
    before = kept.names()
    assert swept(kept.lake, LONG).objects == 0
    assert kept.names() == before
    dry = swept(kept.lake, dry=True)
    assert set(dry.paths) >= retired
    assert kept.names() == before
    assert kept.garbage() == retired
    done = swept(kept.lake)
    gone = before - kept.names()
    assert {f"{kept.store.directory}/{name}" for name in gone} == {p for p in dry.paths if kept.store.directory in p}
    assert {p.rpartition("/")[2] for p in retired} <= {name.rpartition("/")[2] for name in gone}
    assert done.bytes > 0
    assert not done.more
    assert not kept.garbage()
    # all that is left of what chains lead to is what they lead to
    assert {n for n in kept.names() if is_ours(n) and not n.endswith((".json", ".text"))} == {
        n for n in kept.needed() if is_ours(n)
    }
    kept.agrees()
    kept.tell(*AFTER)
    kept.agrees(afresh=False)


def test_objects_of_expired_snapshots_are_swept_after_the_grace(kept: Kept) -> None:
    kept.tell(*STORY)
    before = kept.needed()
    expire_all_but_the_last(kept)
    swept(kept.lake, LONG)
    # found, and in its grace
    assert len(kept.garbage()) >= 4
    assert before <= kept.names()
    swept(kept.lake)
    assert not kept.garbage()
    assert len(kept.agrees()) == 1
    assert {n for n in kept.names() if is_ours(n) and not n.endswith((".json", ".text"))} == {
        n for n in kept.needed() if is_ours(n)
    }
    kept.tell(*AFTER)
    kept.agrees(afresh=False)


def test_all_objects_of_a_dropped_and_expired_table_are_swept(kept: Kept) -> None:
    kept.tell(*STORY)
    kept.settled()
    store = kept.store
    ((table_id,),) = kept.lake.sql(
        "SELECT table_id FROM ducklake_table t JOIN ducklake_schema s USING (schema_id) WHERE schema_name = %s",
        kept.schema,
    )
    kept.db.execute("DROP TABLE t")
    swept(kept.lake)
    # it can come back still, and its past can be read
    assert store.has("metadata/version-hint.text")
    kept.db.execute("USE lake.main")
    kept.db.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 HOUR)")
    swept(kept.lake, LONG)
    assert store.has("metadata/snap-")
    swept(kept.lake)
    assert store.names() == set()
    for name in ("chain", "metadata_file", "garbage", "table_schema", "table_property"):
        assert kept.lake.sql(f"SELECT FROM {name} WHERE table_id = %s", table_id) == [], name


def test_metadata_files_that_the_newest_one_does_not_list_are_swept(kept: Kept) -> None:
    kept.tell("INSERT INTO t VALUES (1, 'a')")
    for number in range(6):
        properties = {"write.metadata.previous-versions-max": "2", "n": str(number)}
        kept.update({"action": "set-properties", "updates": properties})
    kept.settled()
    swept(kept.lake)
    answer = get(kept.server, schema=kept.schema).json()
    log = [entry["metadata-file"] for entry in answer["metadata"]["metadata-log"]]
    assert len(log) == 2
    listed = {p.rpartition("/")[2] for p in (*log, answer["metadata-location"])}
    versions = [int(name[:5]) for name in listed]
    signs = {f"v{version + 1}.metadata.json" for version in versions} | {"version-hint.text"}
    there = {n.rpartition("/")[2] for n in kept.names() if n.endswith((".json", ".text"))}
    assert there == listed | signs
    kept.agrees()


def rows(*numbers: int) -> pa.Table:
    return pa.table({"i": pa.array(numbers, pa.int32()), "s": pa.array(["p"] * len(numbers))})


def test_metadata_left_by_client_commits_is_swept_and_data_files_are_kept(kept: Kept) -> None:
    kept.tell("INSERT INTO t SELECT range, 'x' FROM range(40)")
    table = loads.catalog(kept.lake.settings, kept.server).load_table((kept.schema, "t"))
    table.append(rows(1000, 1001))
    table.append(rows(1002))
    table.overwrite(rows(1003), "i = 1000")
    assert kept.agrees(afresh=False)
    left = {name for name in kept.names() if name.startswith("metadata/") and not is_ours(name)}
    assert len(left) >= 6
    data = {name for name in kept.names() if name.startswith("data/") and not is_ours(name)}
    assert swept(kept.lake, LONG).objects == 0
    swept(kept.lake)
    assert not left & kept.names()
    assert data <= kept.names()
    kept.agrees()


def test_a_reader_of_older_metadata_can_read_it_within_the_grace(kept: Kept) -> None:
    kept.tell(*STORY)
    held = get(kept.server, schema=kept.schema).json()["metadata-location"]
    properties = loads.s3_properties(kept.lake.settings)

    def seen() -> list[list[tuple[Any, ...]]]:
        table = StaticTable.from_metadata(held, properties)
        return [loads.rows(table.scan(snapshot_id=s.snapshot_id).to_arrow()) for s in table.metadata.snapshots]

    before = seen()
    # without a cleanup of DuckLake's own files, which have a grace of their own
    kept.tell(*MERGED[:-1], *AFTER)
    assert kept.garbage()
    swept(kept.lake, LONG)
    assert seen() == before
    kept.agrees(afresh=False)


def test_a_killed_sweep_is_completed_by_the_next(kept: Kept) -> None:
    kept.tell(*STORY, *MERGED)
    kept.settled()
    found = swept(kept.lake, dry=True)
    lists = kept.garbage()
    # one kind of objects is gone when it dies the second time, the next one when it dies the third time
    for at, next_one in zip(("sweep.doomed", "sweep.deleted", "sweep.deleted"), AFTER * 2, strict=False):
        killed(kept.lake, swept, at)
        # servers write on, whatever the dead one held
        kept.tell(next_one)
        kept.agrees(afresh=False)
        assert lists <= kept.garbage()
    swept(kept.lake)
    assert not kept.garbage()
    bucket = Bucket(kept.lake.settings)
    assert found.objects == len(found.paths) > len(lists) > 0
    assert not any(map(bucket.has, found.paths))
    assert kept.lake.sql("SELECT FROM chain_turn WHERE sweeping") == []
    kept.agrees()


def test_a_sweep_deletes_at_most_its_limit_and_reports_that_more_is_left(kept: Kept) -> None:
    kept.tell(*STORY, *MERGED)
    kept.settled()
    wanted = swept(kept.lake, dry=True).objects
    assert wanted > 4
    found = [swept(kept.lake, most=2)]
    while found[-1].more:
        found.append(swept(kept.lake, most=2))
    assert [done.objects for done in found[:-1]] == [2] * (len(found) - 1)
    assert sum(done.objects for done in found) == wanted
    assert not kept.garbage()
    kept.agrees()


class CalledOff(Exception):
    pass


def test_a_cancelled_sweep_leaves_the_rest_to_the_next(kept: Kept) -> None:
    # what tables of other tests have left is not what is told of
    swept(kept.lake)
    kept.tell(*STORY, *MERGED)
    kept.settled()
    told: list[tuple[str, int]] = []

    async def progress(what: str, done: int) -> None:
        told.append((what, done))
        if what == "objects" and done:
            raise CalledOff

    before = kept.names()
    with pytest.raises(CalledOff):
        swept(kept.lake, progress=progress)
    assert ("tables", 0) in told
    gone = before - kept.names()
    assert gone
    assert kept.lake.sql("SELECT FROM chain_turn WHERE sweeping") == []
    kept.tell(*AFTER)
    assert swept(kept.lake).objects > 0
    assert not kept.garbage()
    kept.agrees()


def test_an_object_written_again_under_the_same_name_is_not_swept(kept: Kept) -> None:
    """Its row in the list of garbage notwithstanding."""
    kept.tell(*STORY)
    kept.forget()
    load(kept.server, schema=kept.schema)
    again = kept.garbage()
    live = {path for (path,) in kept.lake.sql("SELECT manifest_list FROM chain")}
    assert again & live
    swept(kept.lake)
    assert not kept.garbage()
    kept.agrees()


def test_sweeps_do_not_break_concurrent_writes_and_loads(kept: Kept, fleet: list[Server]) -> None:
    """Without any grace, so that all that happens between two sweeps is in question."""
    over = threading.Event()
    faults: list[str] = []
    other = fleet[1]

    def sweeping() -> None:
        while not over.is_set():
            try:
                swept(kept.lake)
            except Exception as e:
                faults.append(repr(e))
                return

    threads = [threading.Thread(target=sweeping) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(1, 7):
            kept.tell(f"INSERT INTO t SELECT range, 'x' FROM range({turn}, {turn + 30})", *STORY[1:3])
            if turn % 2 == 0:
                # each process makes all of it again, and much of it under the same names
                kept.forget()
            if turn % 3 == 0:
                kept.tell(*MERGED)
            load(other, schema=kept.schema)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not faults
    kept.tell("INSERT INTO t VALUES (-1, 'last')")
    loads.assert_readable(kept.lake, other, kept.db, schema=kept.schema, most=12)
    swept(kept.lake)
    kept.agrees(most=12)
