"""What Spark shows of a table beside its rows: metadata tables, and (version 3) where each row came from."""

from typing import Any

import pytest
from pyspark.errors import AnalysisException

from tests.support import readers
from tests.support.readers import BIG, CLEANUP, FLUSH, MERGE, REWRITE, Served, Story

BY_TURNS = True


@pytest.fixture(scope="module")
def told(served: Served) -> Story:
    """Two files, one with rows deleted, and inlined rows."""
    story = served.story("told", inlining=10).run(
        "CREATE TABLE t(i INTEGER, s VARCHAR)",
        "ALTER TABLE t SET PARTITIONED BY (s)",
        BIG,
        "INSERT INTO t SELECT range + 100, 'y' FROM range(40)",
        "DELETE FROM t WHERE i < 15",
        "INSERT INTO t VALUES (1000, 'in'), (1001, 'in')",
        "DELETE FROM t WHERE i = 1000",
    )
    story.agree()
    return story


def shown(served: Served, table: str, what: str = "*", where: str = "true") -> list[dict[str, Any]]:
    found = served.warm.ask_spark(f"SELECT {what} FROM {served.warm.spark}.told.t.{table} WHERE {where}")
    return found.to_pylist()


def test_spark_shows_snapshots_history_and_refs(served: Served, told: Story) -> None:
    own = told.changed_by()[0]
    snapshots = shown(served, "snapshots", "snapshot_id, parent_id, operation, summary")
    assert [(s["snapshot_id"], s["parent_id"]) for s in snapshots] == list(zip(own, [None, *own], strict=False))
    assert [s["operation"] for s in snapshots] == ["append", "append", "delete", "append", "delete"]
    history = shown(served, "history", "snapshot_id, is_current_ancestor")
    assert history == [{"snapshot_id": i, "is_current_ancestor": True} for i in own]
    assert shown(served, "refs", "name, type, snapshot_id") == [
        {"name": "main", "type": "BRANCH", "snapshot_id": own[-1]}
    ]


def test_spark_shows_the_files_of_ducklake_and_of_mergus(served: Served, told: Story) -> None:
    rows = told.lake.sql(
        "SELECT record_count, file_size_bytes FROM ducklake_data_file WHERE table_id = %s AND end_snapshot IS NULL",
        told.table_id(),
    )
    files = shown(served, "files", "content, record_count, file_size_in_bytes, file_path, partition, readable_metrics")
    lake = [f for f in files if f["content"] == 0 and "/told/t/" in f["file_path"]]
    assert sorted((f["record_count"], f["file_size_in_bytes"]) for f in lake) == sorted(rows)
    assert {f["partition"]["s"] for f in lake} == {"x", "y"}
    for file in lake:
        bounds = file["readable_metrics"]["i"]
        assert (bounds["value_count"], bounds["null_value_count"]) == (40, 0)
        assert (bounds["lower_bound"], bounds["upper_bound"]) in {(0, 39), (100, 139)}
    (inlined,) = [f for f in files if f["content"] == 0 and f not in lake]
    assert inlined["record_count"] == 2
    assert sorted(f["record_count"] for f in files if f["content"] == 1) == [1, 15]
    assert len(shown(served, "data_files")) == 3
    assert len(shown(served, "delete_files")) == 2
    # what hides a row is counted beside it
    assert sum(f["record_count"] * (1 if f["content"] == 0 else -1) for f in files) == told.oracle().rows.total()


def test_spark_shows_manifests_entries_and_partitions(served: Served, told: Story) -> None:
    manifests = shown(served, "manifests")
    assert sum(m["added_data_files_count"] + m["existing_data_files_count"] for m in manifests if not m["content"]) == 3
    entries = shown(served, "entries", "status, snapshot_id, sequence_number, data_file.content AS content")
    assert len([e for e in entries if e["status"] < 2]) == 5
    own = told.changed_by()[0]
    assert {e["sequence_number"] for e in entries if e["content"] == 0} == {own[0], own[1], own[3]}
    partitions = {p["partition"]["s"]: p for p in shown(served, "partitions")}
    assert (partitions["x"]["record_count"], partitions["x"]["position_delete_record_count"]) == (40, 15)
    assert (partitions["y"]["record_count"], partitions["y"]["file_count"]) == (40, 1)


def test_spark_shows_position_deletes(served: Served, told: Story) -> None:
    deletes = shown(served, "position_deletes", "pos, file_path")
    assert sorted(d["pos"] for d in deletes if "/told/t/" in d["file_path"]) == list(range(15))
    assert len(deletes) == 16


def test_spark_reads_every_other_metadata_table(served: Served, told: Story) -> None:
    for table in (
        "all_data_files",
        "all_delete_files",
        "all_files",
        "all_manifests",
        "all_entries",
        "metadata_log_entries",
    ):
        assert shown(served, table), table


def test_summaries_count_as_iceberg_does(served: Served, told: Story) -> None:
    summaries = [s["summary"] for s in told.load()["snapshots"]]
    assert [s["total-records"] for s in summaries] == ["40", "80", "80", "82", "82"]
    assert [s["total-position-deletes"] for s in summaries] == ["0", "0", "15", "15", "16"]
    assert [s["total-data-files"] for s in summaries] == ["1", "2", "2", "3", "3"]
    assert summaries[0]["added-records"] == "40"
    assert summaries[2]["added-position-deletes"] == "15"


def test_spark_shows_the_row_ids_of_ducklake_as_row_lineage(served: Served) -> None:
    """The id of a row and the snapshot that last wrote it, of inlined rows and in files of every kind."""
    story = served.story("lineage").run("CREATE TABLE t(i INTEGER, s VARCHAR)")
    if served.format_version < 3:
        with pytest.raises(AnalysisException, match="_row_id"):
            served.warm.ask_spark(f"SELECT _row_id FROM {served.warm.spark}.lineage.t")
        return
    story.run("INSERT INTO t VALUES (-1, 'in'), (-2, 'in')", BIG)
    lineage(served, story)
    story.run("INSERT INTO t VALUES (-3, 'in')", "UPDATE t SET s = 'u' WHERE i IN (-1, 5)", "DELETE FROM t WHERE i = 7")
    lineage(served, story)
    story.run(FLUSH)
    lineage(served, story)
    story.run("INSERT INTO t SELECT range + 100, 'y' FROM range(20)", BIG, MERGE, CLEANUP)
    lineage(served, story)
    story.run("UPDATE t SET s = 'many' WHERE i > 100", "INSERT INTO t VALUES (-4, 'in')", "DELETE FROM t WHERE i < 3")
    lineage(served, story)
    story.run(REWRITE, MERGE, "UPDATE t SET s = 'last' WHERE i = 30")
    lineage(served, story)


def lineage(served: Served, story: Story) -> None:
    wanted = story.ask("SELECT i, s, rowid AS r, snapshot_id AS l FROM {lake}.t")
    metadata = story.load()
    assert max(wanted.values("r")) < metadata["next-row-id"]
    columns = "i, s, _row_id AS r, _last_updated_sequence_number AS l"
    for clients in (served.warm, served.cold):
        if clients is served.cold:
            story.forget()
        got = [
            ("Spark", clients.ask_spark(f"SELECT {columns} FROM {clients.spark}.lineage.t")),
            ("DuckDB", clients.ask_duckdb(f"SELECT {columns} FROM {clients.duckdb}.lineage.t")),
        ]
        for name, found in got:
            assert (name, readers.difference(wanted, readers.answer(found))) == (name, None)
