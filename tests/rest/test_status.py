"""`/v1/{prefix}/admin/status` and `…/health`: numbers as DuckDB itself has them, before and after it mends them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pytest

from mergus.catalog.advice import advise_catalog
from mergus.ducklake.health import CatalogHealth
from tests.support import lakes, servers
from tests.support.lakes import TestLake
from tests.support.listeners import eventually, metrics, wait_until_caught_up
from tests.support.servers import Server, error_of

STATUS, HEALTH = "/v1/lake/admin/status", "/v1/lake/admin/health"
INLINING = "SET ducklake_default_data_inlining_row_limit = "


def path(name: str, namespace: str = "main", prefix: str = "lake") -> str:
    return f"/v1/{prefix}/admin/namespaces/{namespace}/tables/{name}/health"


def health(server: Server, name: str, namespace: str = "main") -> dict[str, Any]:
    answer = server.http.get(path(name, namespace))
    assert answer.status_code == 200, answer.text
    return answer.json()


def status(server: Server) -> dict[str, Any]:
    answer = server.http.get(STATUS)
    assert answer.status_code == 200, answer.text
    return answer.json()


def needy(server: Server) -> dict[str, list[str]]:
    """What each table that needs something needs, the worst first."""
    answer = server.http.get(HEALTH)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found.keys() == {"tables"}
    return {t["identifier"]["name"]: [a["action"] for a in t["advice"]] for t in found["tables"]}


def one(db: duckdb.DuckDBPyConnection, query: str) -> Any:
    row = db.execute(query).fetchone()
    assert row is not None
    return row[0] if len(row) == 1 else row


def assert_as_duckdb_has_it(found: dict[str, Any], db: duckdb.DuckDBPyConnection, name: str) -> None:
    """Files, bytes and rows of a table in `main`."""
    files, size, deletes, delete_size = one(
        db,
        "SELECT file_count, file_size_bytes, delete_file_count, delete_file_size_bytes "
        f"FROM ducklake_table_info('lake') WHERE table_name = '{name}'",
    )
    assert (found["data-files"], found["data-bytes"]) == (files, size)
    assert (found["delete-files"], found["delete-bytes"]) == (deletes, delete_size)
    listed = f"FROM ducklake_list_files('lake', '{name}')"
    assert found["data-files"] == one(db, f"SELECT count(*) {listed}")
    assert found["files-under-1-mib"] == one(db, f"SELECT count(*) FILTER (data_file_size_bytes < 1 << 20) {listed}")
    assert found["rows"] == one(db, f"SELECT sum(1 + 0 * i) FROM lake.{name}")


def run_advice(found: dict[str, Any], db: duckdb.DuckDBPyConnection, action: str) -> None:
    (call,) = [a["call"] for a in found["advice"] if a["action"] == action]
    db.execute(call)


def test_health_counts_small_files_until_they_are_merged(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE small(i INTEGER)")
    for _ in range(12):
        db.execute("INSERT INTO small SELECT * FROM range(40)")
    before = health(server, "small")
    assert_as_duckdb_has_it(before, db, "small")
    assert (before["data-files"], before["small-files"], before["files-under-1-mib"]) == (12, 12, 12)
    assert (before["mergeable-files"], before["merged-files"]) == (12, 1)
    assert before["target-file-size-bytes"] == 1 << 29
    assert [a["action"] for a in before["advice"]] == ["compact"]
    assert before["advice"][0]["reason"].startswith("12 small files can become 1")
    assert needy(server)["small"] == ["compact"]
    assert status(server)["tables-in-need"]["compact"] >= 1
    scheduled = status(server)["scheduled-for-deletion"]["files"]

    run_advice(before, db, "compact")
    after = health(server, "small")
    assert_as_duckdb_has_it(after, db, "small")
    assert (after["data-files"], after["mergeable-files"], after["advice"]) == (1, 0, [])
    assert after["rows"] == before["rows"]
    assert "small" not in needy(server)
    found = status(server)["scheduled-for-deletion"]
    assert found["files"] == scheduled + 12
    assert found["since"]


def test_health_counts_inlined_rows_until_they_are_flushed(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute(INLINING + "5000")
    db.execute("CREATE TABLE waiting(i INTEGER)")
    db.execute("INSERT INTO waiting SELECT * FROM range(1500)")
    db.execute("ALTER TABLE waiting ADD COLUMN j INTEGER")
    db.execute("INSERT INTO waiting SELECT i, i FROM range(1500, 1700) t(i)")
    db.execute("DELETE FROM waiting WHERE i < 100")
    db.execute("UPDATE waiting SET j = 7 WHERE i >= 1690")
    before = health(server, "waiting")
    assert before["rows"] == before["inlined-rows"] == one(db, "SELECT count(*) FROM lake.waiting") == 1600
    assert before["inlined-rows-ended"] == 110
    assert before["data-files"] == before["inlined-deletes"] == 0
    (advice,) = before["advice"]
    assert (advice["action"], advice["reason"]) == ("flush", "1,710 inlined rows waiting")
    assert advice["weight"] == 1.71
    assert status(server)["inlined-rows"] >= 1600

    run_advice(before, db, "flush")
    after = health(server, "waiting")
    assert_as_duckdb_has_it(after, db, "waiting")
    assert (after["inlined-rows"], after["inlined-rows-ended"], after["advice"]) == (0, 0, [])
    assert after["rows"] == 1600
    assert after["data-files"] >= 1


def test_health_counts_deleted_rows_until_they_are_rewritten(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE deleted(i INTEGER)")
    db.execute("INSERT INTO deleted SELECT * FROM range(40_000)")
    db.execute("INSERT INTO deleted SELECT * FROM range(40_000, 80_000) t(i)")
    db.execute("DELETE FROM deleted WHERE i < 15_000")
    db.execute("DELETE FROM deleted WHERE i BETWEEN 50_000 AND 50_004")  # so few are inlined
    before = health(server, "deleted")
    assert_as_duckdb_has_it(before, db, "deleted")
    assert (before["rows"], before["delete-files"], before["deleted-rows"]) == (64_995, 1, 15_000)
    assert before["inlined-deletes"] == 5
    assert before["deleted-rows-ratio"] == pytest.approx(15_000 / 80_000)
    # the two files are not merged as long as rows are deleted from them
    assert (before["small-files"], before["mergeable-files"]) == (2, 0)
    assert [(a["action"], a["reason"]) for a in before["advice"]] == [("rewrite", "38% of rows in 1 file are deleted")]

    run_advice(before, db, "rewrite")
    after = health(server, "deleted")
    assert_as_duckdb_has_it(after, db, "deleted")
    assert (after["rows"], after["delete-files"], after["deleted-rows-ratio"]) == (64_995, 0, 0)
    assert after["inlined-deletes"] == 5
    assert after["advice"] == []
    # time travel needs the one from before
    assert (after["historic-files"], after["historic-bytes"] > 0) == (1, True)

    db.execute("CALL ducklake_flush_inlined_data('lake', table_name => 'deleted')")
    flushed = health(server, "deleted")
    assert_as_duckdb_has_it(flushed, db, "deleted")
    assert (flushed["inlined-deletes"], flushed["deleted-rows"], flushed["rows"]) == (0, 5, 64_995)


def test_health_does_not_count_deletes_of_removed_files(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE truncated(i INTEGER); INSERT INTO truncated SELECT * FROM range(400)")
    db.execute("DELETE FROM truncated WHERE i < 200")
    db.execute("TRUNCATE truncated")
    # DuckLake ends the file, and not what deletes from it
    found = health(server, "truncated")
    assert found["rows"] == found["data-files"] == found["delete-files"] == found["deleted-rows"] == 0
    assert found["historic-files"] == 1
    # where a delete is inlined it keeps the file, without a row of it
    db.execute("INSERT INTO truncated SELECT * FROM range(400); DELETE FROM truncated WHERE i = 300")
    assert health(server, "truncated")["rows"] == 399
    db.execute("TRUNCATE truncated")
    found = health(server, "truncated")
    assert (found["rows"], found["data-files"]) == (
        0,
        one(db, "SELECT count(*) FROM ducklake_list_files('lake', 'truncated')"),
    )


def test_health_advises_a_merge_only_of_files_that_duckdb_would_merge(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    """Files of other partitions, or of other columns, stay apart."""
    db.execute("CREATE TABLE apart(i INTEGER, p INTEGER); ALTER TABLE apart SET PARTITIONED BY (p)")
    db.execute("INSERT INTO apart SELECT i, i % 12 FROM range(600) t(i)")
    found = health(server, "apart")
    assert (found["data-files"], found["small-files"], found["mergeable-files"]) == (12, 12, 0)
    assert found["advice"] == []
    db.execute("ALTER TABLE apart ADD COLUMN j INTEGER")
    db.execute("INSERT INTO apart SELECT i, i % 12, i FROM range(600) t(i)")
    found = health(server, "apart")
    assert (found["data-files"], found["mergeable-files"]) == (24, 0)
    db.execute("INSERT INTO apart SELECT i, i % 12, i FROM range(600) t(i)")
    found = health(server, "apart")
    assert (found["data-files"], found["mergeable-files"], found["merged-files"]) == (36, 24, 12)
    assert [a["action"] for a in found["advice"]] == ["compact"]
    run_advice(found, db, "compact")
    found = health(server, "apart")
    assert (found["data-files"], found["mergeable-files"], found["advice"]) == (24, 0, [])
    assert one(db, "SELECT count(*) FROM ducklake_list_files('lake', 'apart')") == 24


def test_health_does_not_advise_a_merge_if_auto_compact_is_off(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE mine(i INTEGER); CALL lake.set_option('auto_compact', false, table_name => 'mine')")
    for _ in range(12):
        db.execute("INSERT INTO mine SELECT * FROM range(40)")
    found = health(server, "mine")
    assert (found["mergeable-files"], found["auto-compact"], found["advice"]) == (12, False, [])
    # nor would it help
    db.execute("CALL ducklake_merge_adjacent_files('lake', 'mine', schema => 'main')")
    assert health(server, "mine")["data-files"] == 12


def test_health_uses_the_target_file_size_of_the_table(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA sized; CREATE TABLE sized.t(i INTEGER)")
    db.execute("INSERT INTO sized.t SELECT * FROM range(1000)")

    def target() -> tuple[int, int]:
        found = health(server, "t", "sized")
        return found["target-file-size-bytes"], found["small-files"]

    assert target() == (1 << 29, 1)
    try:
        db.execute("CALL lake.set_option('target_file_size', '300MB')")
        assert target() == (300_000_000, 1)
        db.execute("CALL lake.set_option('target_file_size', '1KB', schema => 'sized')")
        assert target() == (1000, 0)
        ((table_id,),) = lake.sql("SELECT table_id FROM ducklake_table WHERE table_name = 't' AND end_snapshot IS NULL")
        put = "INSERT INTO table_property VALUES (%s, 'write.target-file-size-bytes', %s)"
        lake.sql(put, table_id, "2000000")
        assert target() == (2_000_000, 1)
        db.execute("CALL lake.set_option('target_file_size', '3MB', schema => 'sized', table_name => 't')")
        assert target() == (3_000_000, 1)
        # what is no number is nobody's wish
        lake.sql("DELETE FROM ducklake_metadata WHERE key = 'target_file_size' AND scope = 'table'")
        for odd in ("large", "0", "-1", "1e9", "9" * 19, "9" * 5000, ""):
            lake.sql("UPDATE table_property SET value = %s WHERE key = 'write.target-file-size-bytes'", odd)
            assert target() == (1000, 0)
    finally:
        lake.sql("DELETE FROM ducklake_metadata WHERE key = 'target_file_size'")


def test_health_is_reported_for_tables_with_special_characters_in_their_names(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    schema, table = 'it\'s "a.b"', "o'dd; DROP TABLE x --\n\u00e9"
    inside, called = ('"' + name.replace('"', '""') + '"' for name in (schema, table))
    db.execute(INLINING + "5000")
    db.execute(f"CREATE SCHEMA {inside}; CREATE TABLE {inside}.{called}(i INTEGER)")
    db.execute(f"INSERT INTO {inside}.{called} SELECT * FROM range(2000)")
    found = health(server, quote(table, safe=""), quote(schema.replace(".", "\x1f"), safe=""))
    assert found["identifier"] == {"namespace": schema.split("."), "name": table}
    assert found["inlined-rows"] == 2000
    # the call that is advised names the very table
    run_advice(found, db, "flush")
    assert table not in needy(server)
    assert one(db, f"SELECT count(*) FROM {inside}.{called}") == 2000


def test_tables_in_need_are_listed_worst_first_and_paged(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute(INLINING + "50000")
    for name, rows in (("bad", 2000), ("worst", 9000), ("worse", 4000), ("fine", 900)):
        db.execute(f"CREATE TABLE {name}(i INTEGER); INSERT INTO {name} SELECT * FROM range({rows})")
    order = [name for name in needy(server) if name in {"bad", "worse", "worst", "fine"}]
    assert order == ["worst", "worse", "bad"]
    seen: list[str] = []
    token: str | None = ""
    while token is not None:
        answer = server.http.get(HEALTH, params={"pageToken": token, "pageSize": 1}).json()
        seen += [t["identifier"]["name"] for t in answer["tables"]]
        token = answer["next-page-token"]
    assert seen == list(needy(server))
    weights = [max(a["weight"] for a in t["advice"]) for t in server.http.get(HEALTH).json()["tables"]]
    assert weights == sorted(weights, reverse=True)


def test_the_status_of_the_lake_is_the_sum_over_all_tables(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA extra; CREATE TABLE extra.t(i INTEGER); CREATE VIEW extra.v AS SELECT 1 AS i")
    db.execute("INSERT INTO extra.t SELECT * FROM range(100); DELETE FROM extra.t WHERE i < 50")
    wait_until_caught_up(lake, 20)
    found = status(server)
    tables = db.execute(
        "SELECT table_schema, table_name FROM information_schema.tables "
        "WHERE table_catalog = 'lake' AND table_type = 'BASE TABLE'"
    ).fetchall()
    assert found["tables"] == len(tables)
    assert found["namespaces"] == len(lakes.schemas(db) - {"information_schema", "pg_catalog"})
    assert found["views"] == 1
    names = ('lake."{}"."{}"'.format(*(name.replace('"', '""') for name in table)) for table in tables)
    assert found["rows"] == sum(one(db, f"SELECT count(*) FROM {name}") for name in names)
    sums = one(db, "SELECT sum(file_count), sum(file_size_bytes) FROM ducklake_table_info('lake')")
    assert (found["data-files"], found["data-bytes"]) == sums
    # not of ducklake_table_info, which counts those of files that are gone
    listed = "SELECT count(delete_file) FROM ducklake_list_files('lake', ?, schema => ?)"
    assert found["delete-files"] == sum(db.execute(listed, [t, s]).fetchall()[0][0] for s, t in tables) > 0
    number, oldest, newest = one(db, "SELECT count(*), min(snapshot_id), max(snapshot_id) FROM lake.snapshots()")
    assert found["snapshots"]["number"] == number
    assert found["snapshots"]["oldest"]["snapshot-id"] == oldest
    assert found["snapshots"]["newest"]["snapshot-id"] == newest
    assert found["snapshots"]["newest"]["time"] >= found["snapshots"]["oldest"]["time"]
    assert found["ducklake"]["version"] == "1.0"
    assert found["server"]["version"]
    assert found["listener"].keys() == {"leader", "head", "done", "lag", "failing"}
    assert found["listener"]["lag"]["snapshots"] == 0
    assert found["advice"] == []


def test_the_status_of_an_empty_lake_is_zero(tmp_path: Path) -> None:
    with lakes.lake() as empty, servers.server(empty.settings, tmp_path) as server:
        found = status(server)
        assert (found["tables"], found["views"], found["namespaces"]) == (0, 0, 1)
        assert found["data-files"] == found["data-bytes"] == found["rows"] == found["deleted-rows-ratio"] == 0
        assert found["tables-in-need"] == {"flush": 0, "rewrite": 0, "compact": 0}
        assert needy(server) == {}
        assert error_of(server.http.get(path("none"))) == (404, "NoSuchTableException")


def test_health_at_a_past_warehouse_resolves_the_name_then_and_shows_current_numbers(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    """As with reports: a warehouse of the past says what a name means."""
    db.execute("CREATE TABLE once(i INTEGER); INSERT INTO once SELECT * FROM range(40)")
    then = one(db, "SELECT max(snapshot_id) FROM lake.snapshots()")
    db.execute("ALTER TABLE once RENAME TO later; INSERT INTO later SELECT * FROM range(40)")
    assert error_of(server.http.get(path("once"))) == (404, "NoSuchTableException")
    found = server.http.get(path("once", prefix=f"lake@{then}")).json()
    assert found["identifier"] == {"namespace": ["main"], "name": "later"}
    assert (found["data-files"], found["rows"]) == (2, 80)
    assert server.http.get(f"/v1/lake@{then}/admin/status").json()["tables"] == status(server)["tables"]
    db.execute("DROP TABLE later")
    assert error_of(server.http.get(path("once", prefix=f"lake@{then}"))) == (404, "NoSuchTableException")
    assert error_of(server.http.get("/v1/lake@99999999/admin/status")) == (404, "NoSuchWarehouseException")


def test_duckdb_executes_the_calls_that_the_catalog_is_advised(lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
    old = datetime(2026, 1, 2, tzinfo=UTC)
    advice = advise_catalog(CatalogHealth(1, 1, 0, 10**6, 0, 10**6, old, old, 10**6, old, "1.0", ""))
    assert [one.action for one in advice] == ["expire", "cleanup"]
    before = lake.snapshots()
    for one in advice:
        db.execute(one.call)
    # nothing here is as old
    assert lake.snapshots() == before


def test_metrics_contain_the_gauges_of_the_lake(server: Server) -> None:
    """`tests/catalog/test_lake_measured.py` has the numbers."""
    names = ("tables", "snapshots", "data_files", "data_bytes", "small_files", "inlined_rows", "scheduled_files")
    wanted = {f"mergus_lake_{name}" for name in (*names, "deleted_rows_ratio", "measured_timestamp_seconds")}
    eventually(lambda: {name for name, _ in metrics(server) if name.startswith("mergus_lake_")} == wanted, 20)
    reported = server.http.get("/v1/lake/admin/listener").json()["last-report"]["lake"]
    assert reported["snapshots"] == metrics(server)["mergus_lake_snapshots", ()] > 0
