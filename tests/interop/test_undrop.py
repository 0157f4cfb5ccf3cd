"""A table that was dropped and came back: DuckDB, attached and fresh, and PyIceberg agree about it at every snapshot,
and whatever either of them does to it afterwards loses nothing."""

from collections.abc import Iterator

import duckdb
import httpx
import pytest

from tests.support import loads
from tests.support.lakes import Row
from tests.support.sharing import Shared, Sharing

BY_TURNS = True
ROWS = "SELECT range, 'x' FROM range"


def undrop(sharing: Sharing, schema: str, name: str = "t", **more: str) -> httpx.Response:
    return sharing.server.http.post(f"/v1/lake/admin/namespaces/{schema}/undrop", json={"name": name, **more})


def bring_back(table: Shared, **more: str) -> int:
    answer = undrop(table.sharing, table.schema, table.name, **more)
    assert answer.status_code == 200, answer.text
    table.name = answer.json()["identifier"]["name"]
    return answer.json()["snapshot-id"]


def files_of(table: Shared, part: str) -> int:
    rows = table.sharing.lake.sql("SELECT path FROM ducklake_data_file WHERE table_id = %s", table.table_id())
    return sum(part in path for (path,) in rows)


def at_each(table: Shared) -> dict[int, list[Row]]:
    """What a fresh session reads at each snapshot that Iceberg lists, with row ids."""
    found = [int((s.summary or {})["ducklake.snapshot-id"] or 0) for s in table.iceberg().metadata.snapshots]
    query = "SELECT *, rowid FROM {t} AT (VERSION => %s) ORDER BY ALL"
    return {at: table.asked_afresh(query % at) for at in found}


def absent_at(table: Shared, *snapshots: int) -> None:
    with table.sharing.fresh() as (session, alias):
        for at in snapshots:
            with pytest.raises(duckdb.Error, match="does not exist"):
                session.execute(f"SELECT * FROM {alias}.{table.schema}.{table.name} AT (VERSION => {at})")


@pytest.fixture
def busy(sharing: Sharing) -> Iterator[Shared]:
    """Files, a delete file, inlined deletes, inlined rows of two versions, ended ones, and a file of Iceberg's."""
    with sharing.table(
        f"INSERT INTO t {ROWS}(40)",
        "DELETE FROM t WHERE i < 15",
        f"INSERT INTO t {ROWS}(100, 120)",
        "DELETE FROM t WHERE i IN (100, 101)",
        "INSERT INTO t VALUES (200, 'a'), (201, 'b'), (202, 'c')",
        "UPDATE t SET s = 'd' WHERE i = 201",
        "ALTER TABLE t ADD COLUMN n INTEGER",
        "INSERT INTO t VALUES (203, 'e', 7)",
        "DELETE FROM t WHERE i = 202",
        "COMMENT ON TABLE t IS 'busy'",
    ) as table:
        yield table


NUMBERS = [*range(15, 40), *range(102, 120), 200, 201, 203]


def test_an_undropped_table_has_its_rows_and_history_and_is_absent_between_drop_and_undrop(
    sharing: Sharing, busy: Shared
) -> None:
    before = busy.iceberg().metadata
    wanted = at_each(busy)
    table_id = busy.table_id()
    first = busy.head()
    busy.tell("DROP TABLE t", "CREATE TABLE other AS SELECT 1 AS i")
    dropped = busy.head() - 1
    again = bring_back(busy)
    assert busy.table_id() == table_id
    busy.shows(NUMBERS, gone=[3, 100, 202])
    after = busy.iceberg().metadata
    assert [s.snapshot_id for s in after.snapshots] == [s.snapshot_id for s in before.snapshots]
    assert (after.current_snapshot_id, after.table_uuid) == (before.current_snapshot_id, before.table_uuid)
    assert (after.schemas, after.properties) == (before.schemas, before.properties)
    assert after.properties["comment"] == "busy"
    assert at_each(busy) == wanted
    absent_at(busy, dropped, again - 1)
    assert busy.asked_afresh(f"SELECT count(*) FROM {{t}} AT (VERSION => {first})") == [(len(NUMBERS),)]
    assert busy.asked_afresh(f"SELECT count(*) FROM {{t}} AT (VERSION => {again})") == [(len(NUMBERS),)]


def test_duckdb_and_iceberg_clients_write_to_an_undropped_table(sharing: Sharing, busy: Shared) -> None:
    busy.tell("DROP TABLE t")
    bring_back(busy)
    busy.tell("INSERT INTO t VALUES (300, 'f', 1)", "INSERT INTO t SELECT range, 'y', 2 FROM range(400, 420)")
    with sharing.fresh() as (session, alias):
        session.execute(f"INSERT INTO {alias}.{busy.schema}.t VALUES (301, 'g', 1)")
        session.execute(f"DELETE FROM {alias}.{busy.schema}.t WHERE i IN (20, 200, 405)")
    busy.delete(21, 203, 300)
    numbers = sorted({*NUMBERS, 301, *range(400, 420)} - {20, 200, 405, 21, 203})
    busy.shows(numbers, gone=[20, 21, 203, 300])
    busy.tell("DROP TABLE t")
    bring_back(busy)
    busy.shows(numbers, gone=[20, 21, 203, 300])


@pytest.mark.parametrize("expired", ["before", "all"])
def test_maintenance_of_an_undropped_table_loses_no_rows(sharing: Sharing, busy: Shared, expired: str) -> None:
    busy.tell("DROP TABLE t")
    dropped = busy.head()
    busy.tell("CREATE TABLE other AS SELECT 1 AS i", "DROP TABLE other")
    again = bring_back(busy)
    busy.tell("INSERT INTO t VALUES (300, 'f', 1)", "INSERT INTO t SELECT range, 'y', 2 FROM range(400, 420)")
    numbers = [*NUMBERS, 300, *range(400, 420)]
    last = again - 1 if expired == "before" else busy.head() - 1
    ids = [i for (i,) in sharing.lake.sql("SELECT snapshot_id FROM ducklake_snapshot") if 0 < i <= last]
    busy.tell(f"CALL ducklake_expire_snapshots('lake', versions => {ids})")
    assert dropped in ids
    for step in (
        "cleanup_old_files('lake', cleanup_all => true)",
        "delete_orphaned_files('lake', cleanup_all => true)",
    ):
        busy.tell(f"CALL ducklake_{step}")
        busy.shows(numbers, gone=[3, 100, 202])
    for step in (
        "flush_inlined_data('lake')",
        "merge_adjacent_files('lake')",
        "rewrite_data_files('lake', delete_threshold => 0.1)",
    ):
        busy.tell(f"CALL ducklake_{step}")
        busy.shows(numbers, gone=[3, 100, 202])
        busy.tell("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
        busy.shows(numbers, gone=[3, 100, 202])


def test_flush_and_merge_of_an_undropped_table_keep_its_history_before_the_drop(sharing: Sharing, busy: Shared) -> None:
    busy.tell("DROP TABLE t")
    dropped = busy.head()
    again = bring_back(busy)
    listed = busy.agrees()
    busy.tell("CALL ducklake_flush_inlined_data('lake')", "CALL ducklake_merge_adjacent_files('lake')")
    busy.tell("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    assert busy.agrees()[: len(listed)] == listed
    busy.shows(NUMBERS, gone=[3, 100, 202])
    absent_at(busy, dropped, again - 1)


def test_an_undropped_table_has_its_partitioning_sort_order_and_tags_again(sharing: Sharing) -> None:
    with sharing.table(columns="i INTEGER, s VARCHAR, d DATE") as table:
        table.tell("ALTER TABLE t SET PARTITIONED BY (s, year(d))", "ALTER TABLE t SET SORTED BY (i)")
        table.tell("INSERT INTO t SELECT range, 'x' || range % 2, DATE '2020-01-01' FROM range(40)")
        raw = table.iceberg()
        raw.manage_snapshots().create_tag(raw.metadata.current_snapshot_id or 0, "kept").commit()
        before = table.iceberg().metadata
        table.tell("DROP TABLE t")
        dropped = table.head()
        table.tell("CREATE TABLE other(i INTEGER)")
        again = bring_back(table)
        after = table.iceberg().metadata
        assert (after.partition_specs, after.default_spec_id) == (before.partition_specs, before.default_spec_id)
        assert (after.sort_orders, after.default_sort_order_id) == (before.sort_orders, before.default_sort_order_id)
        assert after.default_sort_order_id != 0
        assert after.default_spec_id != 0
        assert after.refs == before.refs
        assert "kept" in after.refs
        table.tell("INSERT INTO t SELECT range, 'x' || range % 2, DATE '2021-01-01' FROM range(40, 80)")
        assert files_of(table, "year=2021") == 2
        ids = list(range(1, again))
        for at in (dropped, again - 1):
            # a session that travels there finds a catalog that makes sense
            assert table.asked_afresh(f"SELECT count(*) FROM {{t}} AT (VERSION => {again})") == [(40,)]
            absent_at(table, at)
        table.tell(f"CALL ducklake_expire_snapshots('lake', versions => {ids})")
        table.tell("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
        table.tell("INSERT INTO t SELECT range, 'x' || range % 2, DATE '2022-01-01' FROM range(80, 120)")
        table.shows(range(120))
        assert files_of(table, "year=2022") == 2


def test_an_undropped_table_has_no_changes_of_the_transaction_that_dropped_it(sharing: Sharing) -> None:
    with sharing.table(f"INSERT INTO t {ROWS}(20)", "INSERT INTO t VALUES (50, 'in')") as table:
        table.tell("BEGIN", "ALTER TABLE t ADD COLUMN n INTEGER", "INSERT INTO t VALUES (60, 'x', 1)")
        table.tell("DELETE FROM t WHERE i < 5", "ALTER TABLE t RENAME COLUMN s TO u", "DROP TABLE t", "COMMIT")
        bring_back(table)
        table.shows([*range(20), 50], gone=[60])
        assert [c[0] for c in table.db.execute("SELECT * FROM t").description] == ["i", "s"]
        table.tell("INSERT INTO t VALUES (70, 'after')", "CALL ducklake_flush_inlined_data('lake')")
        table.shows([*range(20), 50, 70])


def test_a_transaction_open_during_drop_and_undrop_gets_a_conflict(sharing: Sharing) -> None:
    """Who has begun before does not write over the table that is back, nor does one take its name."""
    with sharing.table(f"INSERT INTO t {ROWS}(20)") as table, sharing.open() as other, sharing.open() as third:
        other.execute(f"USE lake.{table.schema}")
        third.execute(f"USE lake.{table.schema}")
        other.execute("BEGIN")
        other.execute("INSERT INTO t VALUES (99, 'lost')")
        table.tell("DROP TABLE t")
        third.execute("BEGIN")
        third.execute("CREATE TABLE t(i INTEGER)")
        bring_back(table)
        for session in (other, third):
            with pytest.raises(duckdb.Error, match="conflict"):
                session.execute("COMMIT")
        table.shows(range(20), gone=[99])


def test_a_table_of_a_dropped_schema_can_be_undropped_into_a_schema_of_the_same_name(
    sharing: Sharing, busy: Shared
) -> None:
    busy.tell("USE lake.main", "DROP SCHEMA {schema} CASCADE")
    assert undrop(sharing, busy.schema).status_code == 404
    busy.tell("CREATE SCHEMA {schema}", "USE lake.{schema}")
    again = bring_back(busy, **{"as": "back"})
    busy.shows(NUMBERS, gone=[3, 100, 202])
    busy.tell("INSERT INTO back VALUES (300, 'f', 1)", "INSERT INTO back SELECT range, 'y', 2 FROM range(400, 420)")
    busy.tell("CALL ducklake_flush_inlined_data('lake')")
    numbers = [*NUMBERS, 300, *range(400, 420)]
    busy.shows(numbers)
    ids = list(range(1, again))
    busy.tell(f"CALL ducklake_expire_snapshots('lake', versions => {ids})")
    busy.tell("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    busy.shows(numbers)


def test_a_replaced_table_can_be_undropped_by_its_last_name_under_another_name(sharing: Sharing) -> None:
    with sharing.table(f"INSERT INTO t {ROWS}(20)") as table:
        table.tell("ALTER TABLE t RENAME TO u", "CREATE OR REPLACE TABLE u AS SELECT range AS i FROM range(5)")
        assert undrop(sharing, table.schema, "u").status_code == 409
        assert undrop(sharing, table.schema, "t").status_code == 404
        table.name = "u"
        bring_back(table, **{"as": "t"})
        table.shows(range(20))
        assert loads.rows(sharing.catalog.load_table((table.schema, "u")).scan().to_arrow()) == [(i,) for i in range(5)]
