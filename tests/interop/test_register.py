"""Tables that others have written are registered, and then both sides go on with them."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType, TimestampType

from tests.support import lakes, loads, servers
from tests.support.elsewhere import (
    Elsewhere,
    assert_shown,
    history,
    in_pyiceberg,
    raw_table,
    register,
    warehouse,
)
from tests.support.lakes import Row, TestLake
from tests.support.loads import Bucket, assert_readable, in_order, load
from tests.support.servers import Server
from tests.support.writers import Raw

FIELDS = [
    {"id": 1, "name": "i", "required": False, "type": "int"},
    {"id": 2, "name": "s", "required": False, "type": "string"},
]


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    allowed = warehouse(lake)
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), allowed_locations=allowed) as running:
        yield running


@pytest.fixture
def schema(server: Server) -> str:
    name = f"s_{uuid4().hex[:8]}"
    assert server.create(name).status_code == 200
    return name


@pytest.fixture
def foreign(lake: TestLake) -> Elsewhere:
    return Elsewhere(lake.settings, warehouse(lake))


def place(lake: TestLake) -> str:
    return f"{warehouse(lake)}/{uuid4().hex}"


def content(*numbers: int, text: str = "x") -> pa.Table:
    return pa.table({"i": pa.array(numbers, pa.int32()), "s": pa.array([f"{text}{n}" for n in numbers])})


def asked(lake: TestLake, db: duckdb.DuckDBPyConnection, query: str) -> list[Row]:
    """In a session that was there before, and in one that has seen nothing yet."""
    found = in_order(db.execute(query).fetchall())
    fresh = lake.duckdb()
    assert in_order(fresh.execute(query).fetchall()) == found
    fresh.close()
    return found


def row_ids(db: duckdb.DuckDBPyConnection, table: str) -> list[int]:
    return sorted(row[0] for row in db.execute(f"SELECT rowid FROM {table}").fetchall())


def test_duckdb_and_pyiceberg_read_and_write_a_registered_pyiceberg_table(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, foreign: Elsewhere, schema: str
) -> None:
    """Partitioned, with columns that came, went, got another name and type, and rows that were deleted. What was before
    that is not shown: its columns are not those of the table."""
    columns = Schema(
        NestedField(1, "i", IntegerType()),
        NestedField(2, "day", DateType()),
        NestedField(3, "gone", StringType()),
        NestedField(4, "at", TimestampType()),
        NestedField(5, "name", StringType()),
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform()))
    name = f"{schema}.t"
    made = foreign.create_table(name, columns, partition_spec=spec, sort_order=order, properties={"owner": "them"})

    def rows(*numbers: int, day: int, also: dict[str, pa.Array] | None = None) -> pa.Table:
        count = len(numbers)
        base = {
            "i": pa.array(numbers, pa.int32()),
            "day": pa.array([day] * count, pa.date32()),
            "gone": pa.array(["g"] * count),
            "at": pa.array([day * 86_400_000_000] * count, pa.timestamp("us")),
            "name": pa.array([f"n{n}" for n in numbers]),
        }
        return pa.table(base | (also or {}))

    made.append(rows(1, 2, 3, day=19_000))
    made.append(rows(4, 5, 6, day=19_001))
    with made.update_schema() as update:
        update.delete_column("gone")
        update.rename_column("name", "title")
        update.add_column("extra", StringType())
        update.update_column("i", LongType())
    with made.update_spec() as change:
        change.remove_field("day")
        change.add_field("extra", IdentityTransform())
    later = {"i": pa.array([7, 8]), "extra": pa.array(["e7", None]), "title": pa.array(["n7", "n8"])}
    made.append(rows(7, 8, day=19_002, also=later).drop_columns(["gone", "name"]))
    made.delete("i = 2")
    with made.update_schema() as update:
        update.add_column("last", StringType())
    with made.update_schema() as update:
        update.delete_column("last")
    wanted = loads.rows(made.scan().to_arrow())
    assert len(wanted) == 7
    first, second, *ids = history(lake, made.metadata_location)

    db.execute(f"SELECT count(*) FROM duckdb_tables() WHERE schema_name = '{schema}'")
    before = lake.snapshots()[-1][0]
    answer = register(server, schema, "t", made.metadata_location)
    assert answer.status_code == 200, answer.text
    shown = answer.json()["metadata"]
    assert lake.sound_snapshots()[-1][0] == before + len(ids) == before + 2
    snapshot = made.current_snapshot()
    assert snapshot is not None
    assert shown["current-snapshot-id"] == snapshot.snapshot_id
    assert [s["summary"]["mergus.registered-from"] for s in shown["snapshots"]] == [made.metadata_location] * 2
    oldest = shown["snapshots"][0]["summary"]
    assert oldest["mergus.earlier-snapshots-left-out"] == str(len([first, second]))
    assert oldest["mergus.earlier-snapshots-left-out-for"].startswith(f"Snapshot {second} has other columns")
    assert_shown(lake, server, db, schema, in_pyiceberg(lake, made.metadata_location, ids))
    assert (shown["table-uuid"], shown["location"]) == (str(made.metadata.table_uuid), made.location())
    assert shown["properties"]["owner"] == "them"
    assert shown["last-column-id"] == made.metadata.last_column_id
    current = next(s for s in shown["schemas"] if s["schema-id"] == shown["current-schema-id"])
    assert Schema.model_validate(current).fields == made.schema().fields
    specs = {s["spec-id"]: [(f["name"], f["field-id"]) for f in s["fields"]] for s in shown["partition-specs"]}
    assert specs == {s.spec_id: [(f.name, f.field_id) for f in s.fields] for s in made.specs().values()}
    assert shown["default-spec-id"] == made.spec().spec_id
    assert shown["default-sort-order-id"] == made.sort_order().order_id

    table = f"lake.{schema}.t"
    assert asked(lake, db, f"SELECT * FROM {table}") == wanted
    assert asked(lake, db, f"SELECT i FROM {table} WHERE i = 5") == [(5,)]
    assert asked(lake, db, f"SELECT i FROM {table} WHERE day = DATE '2022-01-08'") == [(1,), (3,)]
    assert asked(lake, db, f"SELECT count(*), max(i) FROM {table}") == [(7, 8)]
    assert loads.rows(loads.catalog(lake.settings, server).load_table(name).scan().to_arrow()) == wanted
    # nothing of it was copied
    assert {p for (p,) in lake.sql("SELECT path FROM ducklake_data_file WHERE NOT path_is_relative")} >= {
        task.file.file_path for task in made.scan().plan_files()
    }

    # DuckDB goes on, a column of its own has an id that no file has seen
    db.execute(f"INSERT INTO {table} BY NAME SELECT 9 AS i, 'duck' AS title")
    db.execute(f"DELETE FROM {table} WHERE i = 4")
    db.execute(f"UPDATE {table} SET title = 'changed' WHERE i = 1")
    db.execute(f"ALTER TABLE {table} ADD COLUMN mine VARCHAR")
    assert [r[0] for r in asked(lake, db, f"SELECT mine FROM {table}")] == [None] * 7
    # and so does PyIceberg
    theirs = loads.catalog(lake.settings, server).load_table(name)
    assert theirs.schema().find_field("mine").field_id > made.metadata.last_column_id
    also = {"i": pa.array([20]), "extra": pa.array(["e"])}
    theirs.append(rows(20, day=19_005, also=also).select(["i", "day", "at", "extra"]))
    theirs.delete("i = 3")
    assert [r[0] for r in asked(lake, db, f"SELECT i FROM {table} ORDER BY i")] == [1, 20, 5, 6, 7, 8, 9]
    ids = row_ids(db, table)
    assert len(set(ids)) == len(ids) == 7
    assert_readable(lake, server, db, "t", schema)


@pytest.mark.parametrize("version", [2, 3], ids=["v2", "v3"])
def test_deletes_of_a_registered_table_apply_to_older_files_only(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str, version: int
) -> None:
    raw = raw_table(lake, server, place(lake), FIELDS, version)
    raw.commit("append", add=[raw.data_file(content(1, 2, 3)), raw.data_file(content(4, 5, 6))])
    raw.commit("overwrite", deletes=raw.deletes(raw.places(lambda row: row["i"] in {2, 4})))
    # values: one that a younger file has as well, one that has been deleted before, one that nobody has
    raw.commit("delete", deletes=[raw.equality_deletes(content(1, 2, 77).select(["i"]))])
    raw.commit("append", add=[raw.data_file(content(1, 7, text="young"))])
    # of the same snapshot: the deletes are not about it
    young = raw.data_file(content(5, 8, text="same"))
    raw.commit("overwrite", add=[young], deletes=[raw.equality_deletes(content(5).select(["i"]))])
    raw.commit("overwrite", deletes=raw.deletes(raw.places(lambda row: row["s"] == "young7")))
    # one of which nothing is left
    raw.commit("append", add=[raw.data_file(content(30, 31))])
    raw.commit("overwrite", deletes=raw.deletes(raw.places(lambda row: row["i"] >= 30)))
    wanted = in_order([(3, "x3"), (6, "x6"), (1, "young1"), (5, "same5"), (8, "same8")])

    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    table = f"lake.{schema}.t"
    assert asked(lake, db, f"SELECT * FROM {table}") == wanted
    assert asked(lake, db, f"SELECT count(*) FROM {table}") == [(5,)]
    assert loads.rows(loads.catalog(lake.settings, server).load_table(f"{schema}.t").scan().to_arrow()) == wanted
    ids = row_ids(db, table)
    if version >= 3:
        assert load(server, "t", schema)["next-row-id"] == raw.base["next-row-id"]
        # as they were counted there: 1 2 3, 4 5 6, 1 7, 5 8
        assert ids == [2, 5, 6, 8, 9]
    assert len(set(ids)) == 5
    db.execute(f"INSERT INTO {table} VALUES (100, 'duck')")
    db.execute(f"DELETE FROM {table} WHERE i = 3")
    after = Raw(lake, server, "t", schema)
    served = after.commit("append", add=[after.data_file(content(200))])
    assert served.status_code == 200, served.text
    found = asked(lake, db, f"SELECT i FROM {table}")
    assert found == in_order([(6,), (1,), (5,), (8,), (100,), (200,)])
    assert len(set(row_ids(db, table))) == 6
    assert_readable(lake, server, db, "t", schema)


def test_files_without_field_ids_are_registered_only_with_a_name_mapping(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    raw = raw_table(lake, server, place(lake), FIELDS)
    raw.commit("append", add=[raw.data_file(content(1, 2), ids=False)])
    refused = register(server, schema, "t", raw.metadata_location)
    assert refused.status_code == 400
    assert "schema.name-mapping.default" in refused.json()["error"]["message"]
    names = '[{"field-id": 1, "names": ["i"]}, {"field-id": 2, "names": ["s"]}]'
    raw.save(properties={"schema.name-mapping.default": names})
    raw.commit("append", add=[raw.data_file(content(3))])
    raw.commit("overwrite", deletes=[raw.equality_deletes(content(1).select(["i"]))])
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    assert asked(lake, db, f"SELECT * FROM lake.{schema}.t") == [(2, "x2"), (3, "x3")]
    assert_readable(lake, server, db, "t", schema)


def test_an_expiry_keeps_files_that_a_table_registered_again_uses(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    """A file belongs to rows of two tables of DuckLake's, and one of them was dropped."""
    bucket = Bucket(lake.settings)
    raw = raw_table(lake, server, place(lake), FIELDS)
    raw.commit("append", add=[raw.data_file(content(1, 2, 3))])
    raw.commit("append", add=[raw.data_file(content(4))])
    assert register(server, schema, "t", raw.metadata_location).status_code == 200
    (shared, gone) = raw.paths()
    raw.commit("overwrite", add=[raw.data_file(content(5))], remove=[gone])
    again = register(server, schema, "t", raw.metadata_location, overwrite=True)
    assert again.status_code == 200, again.text
    assert again.json()["metadata"]["table-uuid"] == raw.base["table-uuid"]
    wanted = [(1, "x1"), (2, "x2"), (3, "x3"), (5, "x5")]
    assert asked(lake, db, f"SELECT * FROM lake.{schema}.t") == wanted
    session = lake.duckdb()
    session.execute("CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMP)")
    session.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    session.close()
    # what nobody needs is gone, and nothing else
    assert (bucket.has(shared), bucket.has(gone)) == (True, False)
    assert asked(lake, db, f"SELECT * FROM lake.{schema}.t") == wanted
    assert_readable(lake, server, db, "t", schema)
    # nor does anything stay for ever: the last one takes it along
    assert server.http.delete(loads.url(server, "t", schema)).status_code == 204
    session = lake.duckdb()
    session.execute("CREATE TABLE IF NOT EXISTS lake.main.newest (i INT)")
    session.execute("CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMP)")
    session.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    session.close()
    assert not bucket.has(shared)


@pytest.mark.parametrize("listed", [True, False], ids=["manifest list", "manifests by name"])
def test_a_table_of_version_1_becomes_one_of_version_2(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, foreign: Elsewhere, schema: str, listed: bool
) -> None:
    """Such a table has no sequence numbers, may have no uuid, and may list the manifests of a snapshot itself."""
    columns = Schema(NestedField(1, "i", IntegerType()), NestedField(2, "s", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))
    made = foreign.create_table(f"{schema}.t", columns, partition_spec=spec, properties={"format-version": "1"})
    made.append(content(1, 2))
    made.append(content(3, 4))
    made.delete("i = 2")
    assert made.format_version == 1
    wanted = loads.rows(made.scan().to_arrow())
    bucket, location = Bucket(lake.settings), made.metadata_location
    if not listed:
        told = json.loads(bucket.get(location))
        for snapshot in told["snapshots"]:
            (found,) = [s for s in made.snapshots() if s.snapshot_id == snapshot["snapshot-id"]]
            snapshot["manifests"] = [m.manifest_path for m in found.manifests(made.io)]
            del snapshot["manifest-list"]
        for name in ("table-uuid", "schemas", "current-schema-id", "partition-specs", "sort-orders", "refs"):
            told.pop(name, None)
        assert {"schema", "partition-spec"} <= told.keys()
        location = f"{made.location()}/metadata/old.metadata.json"
        bucket.put(location, json.dumps(told).encode())
    answer = register(server, schema, "t", location)
    assert answer.status_code == 200, answer.text
    shown = answer.json()["metadata"]
    assert shown["format-version"] == 2
    assert (shown["table-uuid"] == str(made.metadata.table_uuid)) == listed
    table = f"lake.{schema}.t"
    assert asked(lake, db, f"SELECT * FROM {table}") == wanted
    assert asked(lake, db, f"SELECT i FROM {table} WHERE s = 'x3'") == [(3,)]
    db.execute(f"DELETE FROM {table} WHERE i = 3")
    db.execute(f"INSERT INTO {table} VALUES (5, 'x5')")
    theirs = loads.catalog(lake.settings, server).load_table(f"{schema}.t")
    theirs.append(content(6))
    theirs.overwrite(content(7), "i = 1")
    assert asked(lake, db, f"SELECT i FROM {table}") == [(4,), (5,), (6,), (7,)]
    assert_readable(lake, server, db, "t", schema)


def test_files_from_before_the_table_had_buckets_lose_no_rows(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    raw = raw_table(lake, server, place(lake), FIELDS)
    raw.commit("append", add=[raw.data_file(content(1, 2, 3))])
    buckets = {"source-id": 1, "field-id": 1000, "name": "b", "transform": "bucket[4]"}
    specs = [*raw.base["partition-specs"], {"spec-id": 1, "fields": [buckets]}]
    raw.save(**{"partition-specs": specs, "default-spec-id": 1, "last-partition-id": 1000})
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    shown = answer.json()["metadata"]
    assert shown["default-spec-id"] == 1
    assert [f["transform"] for s in shown["partition-specs"] if s["spec-id"] == 1 for f in s["fields"]] == ["bucket[4]"]
    for number in (1, 2, 3):
        assert asked(lake, db, f"SELECT i FROM lake.{schema}.t WHERE i = {number}") == [(number,)]
    db.execute(f"INSERT INTO lake.{schema}.t SELECT range + 10, 'd' FROM range(20)")
    assert asked(lake, db, f"SELECT i FROM lake.{schema}.t WHERE i = 15") == [(15,)]
    assert_readable(lake, server, db, "t", schema)


def test_field_ids_of_columns_dropped_before_a_registration_are_not_reused(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    """Files still have them, under ids that a new column must not get: neither by DuckDB nor by Iceberg."""
    wide = [*FIELDS, {"id": 3, "name": "secret", "required": False, "type": "string"}]
    raw = raw_table(lake, server, place(lake), wide)
    table = content(1, 2).append_column("secret", pa.array(["no", "no"]))
    raw.commit("append", add=[raw.data_file(table)])
    raw.save(schemas=[{"type": "struct", "schema-id": 0, "fields": FIELDS}])
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["last-column-id"] == 3
    # as after long use
    db.execute("CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMP)")
    db.execute(f"ALTER TABLE lake.{schema}.t ADD COLUMN mine VARCHAR")
    theirs = loads.catalog(lake.settings, server).load_table(f"{schema}.t")
    with theirs.update_schema() as update:
        update.add_column("theirs", StringType())
    assert asked(lake, db, f"SELECT * FROM lake.{schema}.t") == [(1, "x1", None, None), (2, "x2", None, None)]
    assert_readable(lake, server, db, "t", schema)


def test_initial_defaults_of_a_registered_table_are_kept(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    raw = raw_table(lake, server, place(lake), FIELDS, 3)
    raw.commit("append", add=[raw.data_file(content(1, 2))])
    added = {"id": 3, "name": "d", "required": False, "type": "int", "initial-default": 7, "write-default": 8}
    raw.save(schemas=[{"type": "struct", "schema-id": 0, "fields": [*FIELDS, added]}], **{"last-column-id": 3})
    raw.commit("append", add=[raw.data_file(content(3).append_column("d", pa.array([9], pa.int32())))])
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    table = f"lake.{schema}.t"
    assert asked(lake, db, f"SELECT i, d FROM {table}") == [(1, 7), (2, 7), (3, 9)]
    assert asked(lake, db, f"SELECT i FROM {table} WHERE d = 7") == [(1,), (2,)]
    db.execute(f"INSERT INTO {table} (i) VALUES (4)")
    assert asked(lake, db, f"SELECT i, d FROM {table} WHERE d = 8") == [(4, 8)]
    read = loads.catalog(lake.settings, server).load_table(f"{schema}.t").scan(selected_fields=("i", "d"))
    assert loads.rows(read.to_arrow()) == [(1, 7), (2, 7), (3, 9), (4, 8)]


def test_a_table_served_by_another_lake_can_be_registered(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str, tmp_path: Path
) -> None:
    """Its metadata is like anybody's: rows that are inlined there are in files, and merged files have ids in them."""
    with lakes.lake(data_path=f"{warehouse(lake)}/{uuid4().hex}/data/") as other:
        session = other.duckdb()
        session.execute("CREATE TABLE lake.main.t (i INTEGER, s VARCHAR)")
        session.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
        for first in (0, 10, 20):
            session.execute(f"INSERT INTO lake.main.t SELECT range + {first}, 'x' FROM range(10)")
        session.execute("CALL ducklake_merge_adjacent_files('lake')")
        session.execute("DELETE FROM lake.main.t WHERE i IN (3, 13)")
        session.execute("INSERT INTO lake.main.t SELECT range + 100, 'y' FROM range(5)")
        session.execute("CALL lake.set_option('data_inlining_row_limit', 10)")
        session.execute("INSERT INTO lake.main.t VALUES (200, 'inlined')")
        with servers.server(other.settings, tmp_path) as theirs:
            location = loads.get(theirs).json()["metadata-location"]
        answer = register(server, schema, "t", location)
        assert answer.status_code == 200, answer.text
        table = f"lake.{schema}.t"
        wanted = in_order(session.execute("SELECT * FROM lake.main.t").fetchall())
        session.close()
        assert asked(lake, db, f"SELECT * FROM {table}") == wanted
        assert len(set(row_ids(db, table))) == len(wanted) == 34
        db.execute(f"DELETE FROM {table} WHERE i IN (5, 101, 200)")
        db.execute(f"INSERT INTO {table} VALUES (300, 'z')")
        assert len(set(row_ids(db, table))) == 32
        assert_readable(lake, server, db, "t", schema)
