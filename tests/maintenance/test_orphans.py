"""Objects that nothing names are found by listing, and go when they are old enough. What anything names stays, and so
does whatever lies beside the directories of this lake's tables."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest

from tests.maintenance.sweeping import LONG, killed, swept, without_orphans
from tests.support import loads, servers
from tests.support.commits import SCHEMA
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, get, load
from tests.support.servers import Server

HASH = "0123456789abcdef0123456789abcdef"
# as they are called that chains lead to, that tell of versions, and that clients leave
ORPHANS = (
    f"metadata/snap-7-{HASH}.avro",
    f"metadata/files-data-1-2-{HASH}.avro",
    f"metadata/rows-deletes-1-2-{HASH}.avro",
    f"metadata/00009-3-{HASH}.metadata.json",
    f"metadata/past-{HASH}.metadata.json",
    f"metadata/snap-99-0-{uuid4()}.avro",
    f"metadata/{uuid4()}-m0.avro",
    f"data/rows-1-2-{HASH}.parquet",
    f"data/deletes-{HASH}.parquet",
    f"data/ducklake-deletes-{uuid4()}.parquet",
    f"data/p=1/00000-0-{uuid4()}.parquet",
)


@dataclass
class Shown:
    lake: TestLake
    server: Server
    db: duckdb.DuckDBPyConnection
    schema: str

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.lake.settings)

    def plant(self, directory: str) -> set[str]:
        planted = {f"{directory}/{name}" for name in ORPHANS}
        for path in planted:
            self.bucket.put(path, b"nobody's")
        return planted

    def all(self) -> set[str]:
        return set(self.bucket.below(self.root))

    @property
    def root(self) -> str:
        return (self.lake.settings.data_path or "").rstrip("/") + "-iceberg/"


@pytest.fixture
def shown(lake: TestLake, server: Server) -> Iterator[Shown]:
    schema = f"s_{uuid4().hex[:8]}"
    with lake.duckdb() as db:
        db.execute(f"CREATE SCHEMA {schema}; USE lake.{schema}; CREATE TABLE t(i INTEGER, s VARCHAR)")
        db.execute("INSERT INTO t SELECT range, 'x' FROM range(40)")
        yield Shown(lake, server, db, schema)


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), listener="off") as running:
        yield running


def rows(*numbers: int) -> pa.Table:
    return pa.table({"i": pa.array(numbers, pa.int32()), "s": pa.array(["p"] * len(numbers))})


def test_orphans_are_deleted_and_referenced_objects_are_kept(shown: Shown) -> None:
    for statement in ("INSERT INTO t VALUES (100, 'a')", "DELETE FROM t WHERE i = 3", "DELETE FROM t WHERE i = 100"):
        shown.db.execute(statement)
        load(shown.server, schema=shown.schema)
    table = loads.catalog(shown.lake.settings, shown.server).load_table((shown.schema, "t"))
    table.append(rows(1000, 1001))
    table.overwrite(rows(1002), "i = 1000")
    table.delete("i = 5")
    swept(shown.lake)
    where = load(shown.server, schema=shown.schema)["location"]
    stats = f"{where}/metadata/of-a-snapshot.stats"
    shown.bucket.put(stats, b"counted")
    statistics = {
        "snapshot-id": table.refresh().metadata.snapshots[-1].snapshot_id,
        "statistics-path": stats,
        "file-size-in-bytes": 7,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": list[str](),
    }
    update = {"action": "set-statistics", "statistics": statistics}
    path = f"{shown.server.path(shown.schema)}/tables/t"
    answer = shown.server.http.post(path, json={"requirements": [], "updates": [update]})
    assert answer.status_code == 200, answer.text
    # what is in its grace stays whatever its age
    shown.db.execute("INSERT INTO t VALUES (7, 'later')")
    load(shown.server, schema=shown.schema)
    shown.lake.sql("DELETE FROM chain WHERE snapshot_id = (SELECT max(snapshot_id) FROM chain)")
    swept(shown.lake, LONG)
    before = shown.all()
    planted = shown.plant(where)
    assert without_orphans(shown.lake, LONG).objects == 0
    dry = without_orphans(shown.lake, dry=True)
    assert set(dry.paths) == planted
    assert shown.all() == before | planted
    done = without_orphans(shown.lake)
    assert (done.objects, done.bytes, done.more) == (len(planted), 8 * len(planted), False)
    assert shown.all() == before
    loads.assert_readable(shown.lake, shown.server, shown.db, schema=shown.schema)
    shown.db.execute("DELETE FROM t WHERE i = 7")
    loads.assert_readable(shown.lake, shown.server, shown.db, schema=shown.schema)


def test_objects_that_belong_to_no_table_of_this_lake_are_not_deleted_as_orphans(shown: Shown) -> None:
    load(shown.server, schema=shown.schema)
    view = {
        "name": "v",
        "schema": {"type": "struct", "schema-id": 0, "fields": SCHEMA["fields"]},
        "view-version": {
            "version-id": 1,
            "schema-id": 0,
            "timestamp-ms": 1,
            "summary": {},
            "default-namespace": [shown.schema],
            "representations": [{"type": "sql", "sql": "SELECT i, s FROM t", "dialect": "duckdb"}],
        },
        "properties": {},
    }
    answer = shown.server.http.post(f"{shown.server.path(shown.schema)}/views", json=view)
    assert answer.status_code == 200, answer.text
    file = answer.json()["metadata-location"]
    staged = {"name": "promised", "schema": {**SCHEMA, "schema-id": 0}, "stage-create": True}
    promised = shown.server.http.post(f"{shown.server.path(shown.schema)}/tables", json=staged).json()["metadata"]
    others = (
        shown.plant(promised["location"]) | shown.plant(f"{shown.root}{uuid4()}") | shown.plant(f"{shown.root}notes")
    )
    in_lake = (shown.lake.settings.data_path or "") + "main/stranger.parquet"
    shown.bucket.put(in_lake, b"DuckLake's affair")
    without_orphans(shown.lake)
    assert {file, *others} <= shown.all()
    assert shown.bucket.has(in_lake)
    # a promise that nobody came back for
    shown.lake.sql("DELETE FROM staged_table")
    without_orphans(shown.lake)
    assert not any(path.startswith(promised["location"]) for path in shown.all())
    assert get(shown.server, schema=shown.schema).status_code == 200


def test_orphans_of_a_removed_table_are_deleted_except_files_that_another_table_uses(shown: Shown) -> None:
    table = loads.catalog(shown.lake.settings, shown.server).load_table((shown.schema, "t"))
    table.append(rows(1000))
    where = load(shown.server, schema=shown.schema)["location"]
    data = f"{where}/data/"
    (file,) = [path for path in shown.all() if path.startswith(data) and path.endswith(".parquet")]
    shown.db.execute("CREATE TABLE other(i INTEGER, s VARCHAR)")
    shown.db.execute(f"CALL ducklake_add_data_files('lake', 'other', '{file}', schema => '{shown.schema}')")
    shown.db.execute("DROP TABLE t")
    shown.db.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 HOUR)")
    planted = shown.plant(where)
    swept(shown.lake)
    assert {path for path in shown.all() if path.startswith(where)} == planted | {file}
    killed(shown.lake, without_orphans, "sweep.deleted")
    without_orphans(shown.lake, most=1)
    while without_orphans(shown.lake).more:
        pass
    assert {path for path in shown.all() if path.startswith(where)} == {file}
    assert shown.db.execute("SELECT i FROM other").fetchall() == [(1000,)]
    loads.assert_readable(shown.lake, shown.server, shown.db, "other", shown.schema)
