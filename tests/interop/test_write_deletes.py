"""Rows that others delete: by position, by vector, by value, and with whole files."""

import pyarrow as pa
import pytest

from tests.support.sharing import Sharing, done
from tests.support.writers import rows

FILE = "INSERT INTO t SELECT range, 'd' FROM range(40)"
OTHER = "INSERT INTO t SELECT range, 'd' FROM range(100, 140)"
FLUSH = "CALL ducklake_flush_inlined_data('lake', schema_name => '{schema}', table_name => 't')"
ORPHANS = "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)"
BOTH = [*range(40), *range(100, 140)]


def without(numbers: list[int], *gone: int) -> list[int]:
    return [i for i in numbers if i not in gone]


def test_h33_one_delete_file_applies_to_several_data_files(sharing: Sharing) -> None:
    with sharing.table(FILE, OTHER, "INSERT INTO t VALUES (200, 'in'), (201, 'in')") as t:
        t.delete(3, 103, 104, 200)
        left = without([*BOTH, 201], 3, 103, 104)
        t.shows(left, gone=[3, 103, 104, 200])
        t.tell("DELETE FROM t WHERE i IN (5, 105, 201)", "INSERT INTO t VALUES (202, 'in')")
        t.shows(without([*left, 202], 5, 105, 201), gone=[3, 5, 103, 105, 200, 201])
        t.delete(6, 106, 202)
        t.shows(without(left, 5, 105, 201, 6, 106), gone=[6, 106, 202])


def test_h34_deletes_of_duckdb_and_of_clients_are_combined(sharing: Sharing) -> None:
    with sharing.table(FILE) as t:
        first = t.head()
        t.tell("DELETE FROM t WHERE i = 3")
        t.delete(4)
        t.shows(without(BOTH[:40], 3, 4), gone=[3, 4])
        t.tell("DELETE FROM t WHERE i = 5")
        # more than DuckDB inlines: a delete file of its own
        t.tell("DELETE FROM t WHERE i >= 20 AND i < 32")
        t.delete(6, 7)
        left = without(BOTH[:40], 3, 4, 5, 6, 7, *range(20, 32))
        t.shows(left, gone=[3, 4, 5, 6, 7, 20, 31])
        history = [40, 39, 38, 37, 25, 23]
        assert t.history(first) == history
        t.tell("DELETE FROM t WHERE i = 8", FLUSH)
        t.shows(without(left, 8), gone=[3, 4, 8, 31])
        assert t.history(first) == [*history, 22, 22]


def test_h34_a_stale_delete_of_a_client_is_refused_and_restores_no_row(sharing: Sharing) -> None:
    with sharing.table(FILE) as t:
        stale = t.raw()
        t.tell("DELETE FROM t WHERE i = 3")
        places = stale.places(lambda row: row["i"] == 4)
        assert stale.commit("delete", deletes=stale.deletes(places)).status_code == 409
        t.shows(without(BOTH[:40], 3), gone=[3])
        done(stale.refresh().commit("delete", deletes=stale.deletes(places)))
        t.shows(without(BOTH[:40], 3, 4), gone=[3, 4])


def test_h35_unsorted_and_duplicate_delete_positions_are_accepted(sharing: Sharing) -> None:
    if sharing.format_version >= 3:
        pytest.skip("version 3 has sets of positions only")
    with sharing.table(FILE, OTHER, "DELETE FROM t WHERE i = 9") as t:
        raw = t.raw()
        places = raw.places(lambda row: row["i"] in (38, 7, 21, 107, 9))
        shuffled = [*places[::-1], *places[1:3], places[0]]
        done(raw.commit("delete", deletes=[raw.position_deletes(shuffled)]))
        left = without(BOTH, 7, 9, 21, 38, 107)
        t.shows(left, gone=[7, 9, 21, 38, 107])
        # as DuckDB goes on with the file: its cursor stalls at a position that comes twice
        t.tell("DELETE FROM t WHERE i IN (8, 22, 39)")
        t.shows(without(left, 8, 22, 39), gone=[7, 8, 9, 21, 22, 38, 39])
        done(raw.refresh().commit("delete", deletes=[raw.position_deletes([*places, *places])]))
        t.shows(without(left, 8, 22, 39), gone=[7, 8, 9, 21, 22, 38, 39])
        t.tell(FLUSH)
        t.shows(without(left, 8, 22, 39), gone=[7, 8, 9, 21, 22, 38, 39])


def test_h36_an_equality_delete_applies_to_older_rows_only(sharing: Sharing) -> None:
    """What a streaming writer does for an upsert: the key is deleted and written again in one commit."""
    with sharing.table(FILE, "INSERT INTO t VALUES (200, 'in'), (201, NULL)", "DELETE FROM t WHERE i = 9") as t:
        first = t.head()
        raw = t.raw()
        gone = raw.equality_deletes(pa.table({"i": pa.array([3, 9, 200, 999], pa.int32())}))
        done(raw.commit("overwrite", add=[raw.data_file(rows(3, 200, text="new"))], deletes=[gone]))
        left = without([*BOTH[:40], 200, 201], 9)
        t.shows(left, gone=[9, 999])
        assert t.asked_afresh("SELECT i FROM {t} WHERE s = 'new' ORDER BY i") == [(3,), (200,)]
        by_text = raw.equality_deletes(pa.table({"s": pa.array([None, "new"], pa.string())}))
        done(raw.commit("delete", deletes=[by_text]))
        t.shows(without(left, 3, 200, 201), gone=[3, 200, 201])
        t.tell("INSERT INTO t VALUES (3, 'again')")
        t.shows(without(left, 200, 201), gone=[200, 201])
        assert t.history(first) == [41, 41, 38, 39]


def test_h36_an_equality_delete_of_a_partition_applies_to_files_and_inlined_rows(sharing: Sharing) -> None:
    """Rows in Postgres are listed without their partition."""
    files = "INSERT INTO t SELECT range, if(range % 2 = 0, 'a', 'b') FROM range(40)"
    inlined = "INSERT INTO t VALUES (200, 'a'), (201, 'b'), (4, 'a')"
    with sharing.table("ALTER TABLE t SET PARTITIONED BY (s)", files, inlined) as t:
        raw = t.raw()
        by_number = raw.equality_deletes(pa.table({"i": pa.array([3, 4, 200], pa.int32())}), ("a",))
        refused = raw.commit("delete", deletes=[by_number])
        assert (refused.status_code, refused.json()["error"]["type"]) == (406, "UnsupportedOperationException")
        t.shows([*range(40), 4, 200, 201])
        keys = {"i": pa.array([3, 4, 200, 201], pa.int32()), "s": pa.array(["a"] * 4)}
        done(raw.commit("delete", deletes=[raw.equality_deletes(pa.table(keys), ("a",))]))
        left = without([*range(40), 201], 4)
        t.shows(left, gone=[4, 200])
        # what is in files has its partition
        t.tell("CALL ducklake_flush_inlined_data('lake', schema_name => '{schema}', table_name => 't')")
        by_number = raw.refresh().equality_deletes(pa.table({"i": pa.array([5, 6, 201], pa.int32())}), ("a",))
        done(raw.commit("delete", deletes=[by_number]))
        t.shows(without(left, 6), gone=[6])


def test_h42_ducklakes_orphan_cleanup_deletes_no_file_that_is_read(sharing: Sharing) -> None:
    with sharing.table(FILE, "INSERT INTO t VALUES (200, 'in')", "DELETE FROM t WHERE i = 9") as t:
        t.append(300, 301)
        t.delete(4, 200, 301)
        t.tell("INSERT INTO t VALUES (201, 'in')")
        left = without([*BOTH[:40], 201, 300], 4, 9)
        t.shows(left, gone=[4, 9, 200, 301])
        stale = t.raw()
        t.tell(ORPHANS)
        t.shows(left, gone=[4, 9, 200, 301])
        # and what a client has seen before it can still be built on
        done(stale.commit("append", add=[stale.data_file(rows(400))]))
        t.shows([*left, 400], gone=[4, 9, 200, 301])
        t.tell("CHECKPOINT lake")
        t.shows([*left, 400], gone=[4, 9, 200, 301])


def test_h44_a_compaction_keeps_row_ids_and_history(sharing: Sharing) -> None:
    """Of files in which DuckLake has put row ids and snapshot ids."""
    with sharing.table("INSERT INTO t VALUES (1, 'a')") as t:
        first = t.head()
        t.tell("INSERT INTO t VALUES (2, 'b')", "UPDATE t SET s = 'c' WHERE i = 1", FLUSH)
        t.tell("INSERT INTO t VALUES (3, 'd')", FLUSH, "DELETE FROM t WHERE i = 2")
        ids = t.row_ids()
        history = t.history(first)
        raw = t.raw()
        texts = dict(t.ask("SELECT i, s FROM t"))
        live = sorted(texts)
        content = pa.table({"i": pa.array(live, pa.int32()), "s": pa.array([texts[i] for i in live])})
        kept = [ids[i] for i in live] if sharing.format_version >= 3 else None
        deletes = [e.data_file.file_path for e in raw.entries(content=1)]
        new = raw.data_file(content, row_ids=kept)
        done(raw.commit("replace", remove=raw.paths(), add=[new], remove_deletes=deletes))
        t.shows([1, 3], gone=[2])
        assert t.asked_afresh("SELECT i, s FROM {t} ORDER BY i") == [(1, "c"), (3, "d")]
        assert t.history(first) == [*history, 2]
        if sharing.format_version >= 3:
            assert t.row_ids() == ids
        t.tell("INSERT INTO t VALUES (4, 'e')", "DELETE FROM t WHERE i = 1")
        t.shows([3, 4], gone=[1, 2])
        assert t.history(first) == [*history, 2, 3, 2]


def test_h45_an_overwrite_removes_inlined_rows(sharing: Sharing) -> None:
    with sharing.table("INSERT INTO t VALUES (1, 'a')", FILE.replace("range,", "range + 10,")) as t:
        first = t.head()
        t.overwrite(100, 101)
        t.shows([100, 101], gone=[1, 10])
        t.tell("INSERT INTO t VALUES (2, 'b'), (3, 'c')")
        t.shows([2, 3, 100, 101])
        t.delete(2)
        t.shows([3, 100, 101], gone=[2])
        t.tell(FLUSH)
        t.shows([3, 100, 101], gone=[1, 2])
        # PyIceberg deletes and appends in two snapshots of one commit
        between = [0] if sharing.format_version < 3 else []
        assert t.history(first) == [41, *between, 2, 4, 3, 3]
