"""The history of a registered table: at every snapshot each engine reads what the other catalog's readers do."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType, StructType

from tests.support import loads, servers
from tests.support.elsewhere import (
    Elsewhere,
    RawElsewhere,
    assert_shown,
    history,
    in_duckdb,
    in_pyiceberg,
    raw_table,
    register,
    warehouse,
)
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, assert_readable, in_order, load
from tests.support.servers import Server
from tests.support.writers import Raw

FIELDS = [
    {"id": 1, "name": "i", "required": False, "type": "int"},
    {"id": 2, "name": "s", "required": False, "type": "string"},
]
LEFT_OUT, LEFT_OUT_FOR = "mergus.earlier-snapshots-left-out", "mergus.earlier-snapshots-left-out-for"


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
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


def place(lake: TestLake) -> str:
    return f"{warehouse(lake)}/{uuid4().hex}"


def content(*numbers: int, text: str = "x") -> pa.Table:
    return pa.table({"i": pa.array(numbers, pa.int32()), "s": pa.array([f"{text}{n}" for n in numbers])})


def delete(raw: RawElsewhere, wanted: Callable[[dict[str, Any]], bool], operation: str = "delete") -> None:
    """Each vector in a file of its own: PyIceberg 0.12 applies all that it finds in one."""
    places = raw.places(wanted)
    paths = sorted({path for path, _ in places})
    if raw.version < 3:
        raw.commit(operation, deletes=raw.deletes(places))
    else:
        raw.commit(operation, deletes=[v for path in paths for v in raw.vectors([p for p in places if p[0] == path])])


def snapshot_of(raw: RawElsewhere, snapshot_id: int) -> dict[str, Any]:
    (found,) = [s for s in raw.base["snapshots"] if s["snapshot-id"] == snapshot_id]
    return found


def row_ids(db: duckdb.DuckDBPyConnection, schema: str, summaries: list[dict[str, Any]]) -> dict[Any, set[int]]:
    """Of each row, at all these snapshots."""
    found: dict[Any, set[int]] = {}
    for summary in summaries:
        query = f"SELECT i, s, rowid FROM lake.{schema}.t AT (VERSION => {summary['ducklake.snapshot-id']})"
        at = db.execute(query).fetchall()
        assert len({row_id for *_, row_id in at}) == len(at)
        for i, s, row_id in at:
            found.setdefault((i, s), set()).add(row_id)
    return found


@pytest.mark.parametrize("version", [2, 3], ids=["v2", "v3"])
def test_every_snapshot_of_a_registered_table_is_read_as_before(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str, version: int
) -> None:
    """Files come and go, rows of one are deleted again and again, until it is empty; another is written anew."""
    raw = raw_table(lake, server, place(lake), FIELDS, version)
    raw.commit("append", add=[raw.data_file(content(1, 2, 3, 4, 5, 6)), raw.data_file(content(10, 11, 12))])
    delete(raw, lambda row: row["i"] == 2)
    raw.commit("append", add=[raw.data_file(content(20, 21))])
    delete(raw, lambda row: row["i"] in {4, 10})
    tagged = raw.current
    # nothing is different but for the id
    raw.commit("append")
    delete(raw, lambda row: row["i"] in {1, 21})
    # one file goes, another takes its place
    raw.commit("overwrite", add=[raw.data_file(content(30, 31, 32))], remove=[raw.paths()[1]])
    # of one file nothing is left, of another less
    delete(raw, lambda row: row["i"] in {3, 5, 6, 31})
    # the same rows in another file
    raw.commit("replace", add=[raw.data_file(content(30, 32))], remove=[raw.paths()[-1]])
    raw.commit("append", add=[raw.data_file(content(40))])
    assert raw.current is not None
    raw.base["refs"] |= {
        "old": {"type": "tag", "snapshot-id": tagged, "max-ref-age-ms": 10**12},
        "now": {"type": "tag", "snapshot-id": raw.current},
    }
    raw.save()
    ids = history(lake, raw.metadata_location)
    wanted = in_pyiceberg(lake, raw.metadata_location, ids)
    assert len({str(found) for found in wanted.values()}) == 8

    before = lake.snapshots()[-1][0]
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    assert lake.sound_snapshots()[-1][0] == before + len(ids) == before + 10
    summaries = assert_shown(lake, server, db, schema, wanted)
    for summary, snapshot in zip(summaries, raw.base["snapshots"], strict=True):
        assert summary["operation"] == snapshot["summary"]["operation"]
        assert summary["mergus.registered-from"] == raw.metadata_location
        assert summary["mergus.registered-timestamp-ms"] == str(snapshot["timestamp-ms"])
        assert not {LEFT_OUT, LEFT_OUT_FOR} & summary.keys()
    refs = load(server, "t", schema)["refs"]
    assert (refs["old"]["snapshot-id"], refs["old"]["max-ref-age-ms"]) == (tagged, 10**12)
    assert refs["now"]["snapshot-id"] == refs["main"]["snapshot-id"] == raw.current
    loaded = loads.catalog(lake.settings, server).load_table(f"{schema}.t")
    assert tagged is not None
    assert loads.rows(loaded.scan().use_ref("old").to_arrow()) == wanted[tagged]

    # one delete file of a data file, however many snapshots have deleted from it
    counts = "SELECT count(*), count(DISTINCT data_file_id) FROM ducklake_delete_file"
    ours = "WHERE table_id = (SELECT max(table_id) FROM ducklake_table)"
    assert lake.sql(f"{counts} {ours}") == [(4, 4)]
    words = {at: words for at, *_, words in lake.snapshots()}
    assert "deleted_from_table" in words[before + 2]
    found = row_ids(db, schema, summaries)
    if version >= 3:
        # those that its writers gave; PyIceberg reads none
        firsts = {1: 0, 10: 6, 20: 9, 40: 16}
        assert {i: min(ids) for (i, _), ids in found.items() if i in firsts} == firsts
        assert load(server, "t", schema)["next-row-id"] == raw.base["next-row-id"] == 17
    moved = {30, 32}
    assert {i for (i, _), ids in found.items() if len(ids) > 1} == moved

    # and both go on
    table = f"lake.{schema}.t"
    db.execute(f"DELETE FROM {table} WHERE i = 11 OR i = 12 OR i = 20")
    db.execute(f"INSERT INTO {table} VALUES (100, 'duck')")
    db.execute(f"UPDATE {table} SET s = 'changed' WHERE i = 30")
    after = Raw(lake, server, "t", schema)
    served = after.commit("append", add=[after.data_file(content(200))])
    assert served.status_code == 200, served.text
    served = after.commit("delete", deletes=after.deletes(after.places(lambda row: row["i"] == 32)[-1:]))
    assert served.status_code == 200, served.text
    now = in_order(db.execute(f"SELECT * FROM {table}").fetchall())
    assert now == in_order([(30, "changed"), (40, "x40"), (100, "duck"), (200, "x200")])
    assert_shown(lake, server, db, schema, wanted)
    db.execute("CALL ducklake_flush_inlined_data('lake')")
    db.execute("CALL ducklake_merge_adjacent_files('lake')")
    assert_shown(lake, server, db, schema, wanted)
    assert_readable(lake, server, db, "t", schema)


def test_equality_deletes_of_a_registered_table_apply_from_their_own_snapshot_on(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    raw = raw_table(lake, server, place(lake), FIELDS)
    raw.commit("append", add=[raw.data_file(content(1, 2, 3)), raw.data_file(content(4, 5, 6))])
    raw.commit("delete", deletes=[raw.equality_deletes(content(2, 77).select(["i"]))])
    young = raw.data_file(content(1, 2, 5, text="young"))
    raw.commit("overwrite", add=[young], deletes=[raw.equality_deletes(content(1, 5).select(["i"]))])
    # by position and by value, of the same file
    delete(raw, lambda row: row["i"] == 6)
    raw.commit("delete", deletes=[raw.equality_deletes(content(2, 4).select(["i"]))])
    # what was deleted is written anew without it, and the deletes go
    old = [e.data_file.file_path for e in raw.entries(1)]
    files = raw.paths()
    raw.commit("replace", add=[raw.data_file(content(3))], remove=files[:2], remove_deletes=old[:2])
    ids = history(lake, raw.metadata_location)
    wanted = in_duckdb(lake, raw.metadata_location, ids)
    assert [len(found) for found in wanted.values()] == [6, 5, 6, 5, 3, 3]
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    assert_shown(lake, server, db, schema, wanted)
    db.execute(f"DELETE FROM lake.{schema}.t WHERE i = 3")
    assert_shown(lake, server, db, schema, wanted)
    assert_readable(lake, server, db, "t", schema)


@pytest.mark.parametrize("version", ["1", "2"], ids=["v1", "v2"])
def test_the_history_of_a_registered_pyiceberg_table_is_kept(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str, version: str
) -> None:
    columns = Schema(NestedField(1, "i", IntegerType()), NestedField(2, "s", StringType()))
    elsewhere = Elsewhere(lake.settings, warehouse(lake))
    made = elsewhere.create_table(f"{schema}.t", columns, properties={"format-version": version})
    made.append(content(1, 2, 3))
    made.append(content(4, 5))
    made.delete("i = 2")
    made.overwrite(content(6, 7), "i >= 4")
    made.manage_snapshots().create_tag(made.snapshots()[1].snapshot_id, "second").commit()
    made.append(content(8))
    ids = history(lake, made.metadata_location)
    wanted = in_pyiceberg(lake, made.metadata_location, ids)
    assert len(wanted) == 6
    answer = register(server, schema, "t", made.metadata_location)
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["refs"]["second"]["snapshot-id"] == ids[1]
    assert_shown(lake, server, db, schema, wanted)
    theirs = loads.catalog(lake.settings, server).load_table(f"{schema}.t")
    theirs.overwrite(content(9), "i = 1")
    db.execute(f"DELETE FROM lake.{schema}.t WHERE i = 8")
    assert [i for i, _ in in_order(db.execute(f"SELECT * FROM lake.{schema}.t").fetchall())] == [3, 6, 7, 9]
    assert_shown(lake, server, db, schema, wanted)
    assert_readable(lake, server, db, "t", schema)


def test_columns_added_during_a_registered_history_appear_at_their_snapshot(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    """Those that old rows have NULL for, at the end of a row; and the last of them after the last snapshot."""
    columns = Schema(NestedField(1, "i", IntegerType()), NestedField(2, "s", StringType()))
    elsewhere = Elsewhere(lake.settings, warehouse(lake))
    made = elsewhere.create_table(f"{schema}.t", columns)
    made.append(content(1, 2, 3))
    made.append(content(4))
    with made.update_schema() as update:
        update.add_column("more", StringType(), doc="what for")
    made.append(content(5, 6).append_column("more", pa.array(["m5", None])))
    made.delete("i = 2")
    with made.update_schema() as update:
        update.add_column("n", StructType(NestedField(10, "x", IntegerType()), NestedField(11, "y", StringType())))
        update.add_column("last", IntegerType())
    nested = pa.array([{"x": 1, "y": "a"}], pa.struct([("x", pa.int32()), ("y", pa.string())]))
    full = content(7).append_column("more", pa.array(["m7"])).append_column("n", nested)
    made.append(full.append_column("last", pa.array([70], pa.int32())))
    made.delete("i = 1")
    with made.update_schema() as update:
        update.add_column("unused", StringType())
    ids = history(lake, made.metadata_location)
    wanted = in_pyiceberg(lake, made.metadata_location, ids)
    assert [len(found[0]) for found in wanted.values()] == [2, 2, 3, 3, 5, 5]
    now = loads.rows(made.scan().to_arrow())
    before = lake.snapshots()[-1][0]
    answer = register(server, schema, "t", made.metadata_location)
    assert answer.status_code == 200, answer.text
    # and one for each time that columns came
    assert lake.sound_snapshots()[-1][0] == before + len(ids) + 3
    shown = answer.json()["metadata"]
    schemas = {s["schema-id"]: [f["name"] for f in s["fields"]] for s in shown["schemas"]}
    assert [len(schemas[s["schema-id"]]) for s in shown["snapshots"]] == [2, 2, 3, 3, 5, 5]
    assert schemas[shown["current-schema-id"]] == ["i", "s", "more", "n", "last", "unused"]
    assert_shown(lake, server, db, schema, wanted)
    table = f"lake.{schema}.t"
    assert in_order(db.execute(f"SELECT * FROM {table}").fetchall()) == now
    lacking = db.execute(f"SELECT i FROM {table} WHERE more IS NULL AND last IS NULL ORDER BY i").fetchall()
    assert lacking == [(3,), (4,), (6,)]
    db.execute(f"INSERT INTO {table} BY NAME SELECT 8 AS i, 80 AS last, 'u' AS unused")
    db.execute(f"DELETE FROM {table} WHERE i = 3")
    db.execute(f"ALTER TABLE {table} ADD COLUMN mine VARCHAR")
    theirs = loads.catalog(lake.settings, server).load_table(f"{schema}.t")
    theirs.append(content(9))
    theirs.delete("i = 4")
    assert [i for (i,) in in_order(db.execute(f"SELECT i FROM {table}").fetchall())] == [5, 6, 7, 8, 9]
    assert_shown(lake, server, db, schema, wanted)
    assert_readable(lake, server, db, "t", schema)


def test_rolled_back_and_branch_snapshots_of_a_registered_table_are_left_out(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    raw = raw_table(lake, server, place(lake), FIELDS)
    raw.commit("append", add=[raw.data_file(content(1, 2))])
    base = raw.current
    raw.commit("append", add=[raw.data_file(content(3))])
    delete(raw, lambda row: row["i"] == 1)
    astray = raw.current
    raw.save(**{"current-snapshot-id": base})
    delete(raw, lambda row: row["i"] == 2)
    raw.commit("append", add=[raw.data_file(content(4))])
    raw.base["refs"] |= {
        "branch": {"type": "branch", "snapshot-id": astray},
        "tag": {"type": "tag", "snapshot-id": astray},
        "base": {"type": "tag", "snapshot-id": base},
    }
    raw.save()
    ids = history(lake, raw.metadata_location)
    wanted = in_pyiceberg(lake, raw.metadata_location, ids)
    assert [len(found) for found in wanted.values()] == [2, 1, 2]
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    first, *_ = assert_shown(lake, server, db, schema, wanted)
    assert first[LEFT_OUT] == "2"
    assert LEFT_OUT_FOR not in first
    assert answer.json()["metadata"]["refs"].keys() == {"main", "base"}


def _again(raw: RawElsewhere) -> None:
    """A file goes and comes again."""
    (entry, *_) = raw.entries()
    raw.commit("delete", remove=[entry.data_file.file_path])
    raw.commit("append", add=[entry.data_file])


def _undeleted(raw: RawElsewhere) -> None:
    delete(raw, lambda row: row["i"] == 1)
    raw.commit("overwrite", remove_deletes=[e.data_file.file_path for e in raw.entries(1)])


def _added_column(raw: RawElsewhere) -> None:
    more = {"id": 3, "name": "d", "required": False, "type": "int", "initial-default": 7}
    schemas = [*raw.base["schemas"], {"type": "struct", "schema-id": 1, "fields": [*FIELDS, more]}]
    raw.save(**{"schemas": schemas, "current-schema-id": 1, "last-column-id": 3})


def _renamed_column(raw: RawElsewhere) -> None:
    fields = [FIELDS[0], {**FIELDS[1], "name": "t"}]
    schemas = [*raw.base["schemas"], {"type": "struct", "schema-id": 1, "fields": fields}]
    raw.save(**{"schemas": schemas, "current-schema-id": 1})


def _with_text(raw: RawElsewhere, name: str) -> pa.Table:
    return content(50, 51).rename_columns(["i", name])


# what ends the line, which comes after one snapshot, and how many of the snapshots before the last ones go
ENDS: dict[str, tuple[int, Callable[[RawElsewhere], object], int, str]] = {
    "a file that comes again": (2, _again, 1, "two that differ"),
    "rows that come back": (2, _undeleted, 2, "come back"),
    "a column with a default": (3, _added_column, 1, "other columns"),
    "a column of another name": (2, _renamed_column, 1, "other columns"),
}


@pytest.mark.parametrize("what", ENDS)
def test_snapshots_that_ducklake_cannot_represent_are_left_out_of_a_registered_history(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str, what: str
) -> None:
    version, happens, left_out, reason = ENDS[what]
    raw = raw_table(lake, server, place(lake), FIELDS, version)
    raw.commit("append", add=[raw.data_file(content(1, 2, 3))])
    happens(raw)
    name = raw.iceberg_schema().fields[1].name
    raw.commit("append", add=[raw.data_file(_with_text(raw, name))])
    delete(raw, lambda row: row["i"] in {2, 50})
    ids = history(lake, raw.metadata_location)
    wanted = in_pyiceberg(lake, raw.metadata_location, ids[left_out:])
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    first, *others = assert_shown(lake, server, db, schema, wanted)
    assert first[LEFT_OUT] == str(left_out)
    assert reason in first[LEFT_OUT_FOR]
    assert others
    assert not any({LEFT_OUT, LEFT_OUT_FOR} & summary.keys() for summary in others)
    db.execute(f"DELETE FROM lake.{schema}.t WHERE i = 3")
    assert_shown(lake, server, db, schema, wanted)
    assert_readable(lake, server, db, "t", schema)


MISSING: dict[str, Callable[[RawElsewhere, dict[str, Any]], str]] = {
    "manifest list": lambda _, snapshot: snapshot["manifest-list"],
    "manifest": lambda raw, _: raw.manifests()[0].manifest_path,
    "data file": lambda raw, _: raw.paths()[0],
    "delete file": lambda raw, _: raw.entries(1)[0].data_file.file_path,
}


@pytest.mark.parametrize("how", ["gone", "cut"])
@pytest.mark.parametrize("what", MISSING)
def test_a_missing_or_truncated_file_ends_the_registered_history(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, bucket: Bucket, schema: str, what: str, how: str
) -> None:
    """As after an expiry that this metadata file does not know of yet."""
    raw = raw_table(lake, server, place(lake), FIELDS)
    raw.commit("append", add=[raw.data_file(content(1, 2, 3))])
    delete(raw, lambda row: row["i"] == 1)
    assert raw.current is not None
    lost = MISSING[what](raw, snapshot_of(raw, raw.current))
    old = [e.data_file.file_path for e in raw.entries(1)]
    raw.commit("replace", add=[raw.data_file(content(2, 3))], remove=raw.paths(), remove_deletes=old)
    raw.commit("append", add=[raw.data_file(content(4))])
    ids = history(lake, raw.metadata_location)
    wanted = in_pyiceberg(lake, raw.metadata_location, ids[2:])
    bucket.delete(lost) if how == "gone" else bucket.cut(lost)
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    first, _ = assert_shown(lake, server, db, schema, wanted)
    assert first[LEFT_OUT] == "2"
    assert lost in first[LEFT_OUT_FOR]
    assert_readable(lake, server, db, "t", schema)


def test_a_registered_history_may_begin_after_an_expired_snapshot(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, bucket: Bucket, schema: str
) -> None:
    raw = raw_table(lake, server, place(lake), FIELDS)
    for number in (1, 2, 3):
        raw.commit("append", add=[raw.data_file(content(number))])
    ids = history(lake, raw.metadata_location)
    wanted = in_pyiceberg(lake, raw.metadata_location, ids[1:])
    bucket.delete(snapshot_of(raw, ids[0])["manifest-list"])
    raw.save(snapshots=raw.base["snapshots"][1:])
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    first, _ = assert_shown(lake, server, db, schema, wanted)
    assert not {LEFT_OUT, LEFT_OUT_FOR} & first.keys()


def test_a_registered_table_upgraded_to_version_3_has_row_ids_in_its_whole_history(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    """Its older lists give their manifests no ids, and newer ones do."""
    raw = raw_table(lake, server, place(lake), FIELDS)
    raw.commit("append", add=[raw.data_file(content(1, 2))])
    raw.commit("append", add=[raw.data_file(content(3))])
    raw.save(**{"format-version": 3, "next-row-id": 3})
    raw.commit("append", add=[raw.data_file(content(4, 5))])
    assert [file.first_row_id for file in raw.manifests()] == [0, 2, 3]
    ids = history(lake, raw.metadata_location)
    wanted = in_pyiceberg(lake, raw.metadata_location, ids)
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    summaries = assert_shown(lake, server, db, schema, wanted)
    assert row_ids(db, schema, summaries) == {(i, f"x{i}"): {i - 1} for i in range(1, 6)}
    assert load(server, "t", schema)["next-row-id"] == raw.base["next-row-id"] == 5


def test_snapshots_with_too_many_files_are_left_out_of_a_registered_history(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, schema: str
) -> None:
    """They are not even there."""
    raw = raw_table(lake, server, place(lake), FIELDS)
    file = raw.data_file(content(1, 2))
    raw.commit("append", add=[file])
    many = [replace(file, file_path=f"{raw.base['location']}/data/{number}.parquet") for number in range(10_001)]
    raw.commit("append", add=many)
    # all of them go again
    first, second = raw.base["snapshots"]
    third = {**first, "snapshot-id": 2**40, "parent-snapshot-id": second["snapshot-id"], "sequence-number": 3}
    raw.save(**{"snapshots": [first, second, third], "current-snapshot-id": 2**40, "last-sequence-number": 3})
    raw.commit("append", add=[raw.data_file(content(3))])
    ids = history(lake, raw.metadata_location)
    wanted = in_pyiceberg(lake, raw.metadata_location, ids[2:])
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    oldest, _ = assert_shown(lake, server, db, schema, wanted)
    assert (oldest[LEFT_OUT], oldest[LEFT_OUT_FOR][:15]) == ("2", "More than 10000")


def test_older_snapshots_above_the_limit_of_a_commit_are_left_out_of_a_registered_history(
    lake: TestLake, server: Server, schema: str
) -> None:
    """A commit holds up all other writers for as long as it takes."""
    raw = raw_table(lake, server, place(lake), FIELDS)
    raw.commit("append", add=[raw.data_file(content(1, 2))])
    (first,) = raw.base["snapshots"]
    many = [first]
    for number in range(1, 1003):
        parent = many[-1]["snapshot-id"]
        many.append({**first, "snapshot-id": 2**40 + number, "parent-snapshot-id": parent})
    raw.base["refs"] = {"main": {"type": "branch", "snapshot-id": 2**40 + 1002}}
    raw.save(**{"snapshots": many, "current-snapshot-id": 2**40 + 1002})
    before = lake.snapshots()[-1][0]
    answer = register(server, schema, "t", raw.metadata_location)
    assert answer.status_code == 200, answer.text
    assert lake.sound_snapshots()[-1][0] == before + 1000
    told = "SELECT commit_extra_info FROM ducklake_snapshot_changes WHERE snapshot_id = %s"
    oldest = json.loads(lake.sql(told, before + 1)[0][0])["iceberg"]
    (said,) = oldest.values()
    assert said["snapshot-id"] == 2**40 + 3
    assert (said["summary"][LEFT_OUT], said["summary"][LEFT_OUT_FOR][:14]) == ("3", "More than 1000")
