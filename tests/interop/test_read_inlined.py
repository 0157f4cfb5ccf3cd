"""Rows and deletes that DuckLake keeps in Postgres, read by every engine at every snapshot."""

from tests.support.readers import BIG, CLEANUP, CREATE, FLUSH, MERGE, Served

BY_TURNS = True


def test_h1_inlined_rows_are_seen_while_there_is_no_data_file(served: Served) -> None:
    story = served.story("h1").run(CREATE, "INSERT INTO t VALUES (1, 'a')")
    assert story.lake.sql("SELECT count(*) FROM ducklake_data_file WHERE table_id = %s", story.table_id()) == [(0,)]
    assert story.agree().now.values() == [(1, "a")]


def test_h2_updated_inlined_rows_are_read_once_and_deleted_ones_are_not_read(served: Served) -> None:
    story = served.story("h2").run(CREATE, "INSERT INTO t VALUES (1, 'a')", "UPDATE t SET s = 'b'", "DELETE FROM t")
    found = story.agree()
    assert [a.values() for a in found.at.values()] == [[(1, "a")], [(1, "b")], []]


def test_h3_an_inlined_delete_is_a_position_of_its_file_and_no_row_id(served: Served) -> None:
    story = served.story("h3").run(CREATE, BIG, "DELETE FROM t WHERE i = 3", BIG, "DELETE FROM t WHERE i = 3")
    found = story.agree()
    assert found.counts == [40, 39, 79, 78]
    assert 3 not in found.now.values("i")


def test_h4_inlined_rows_of_two_schema_versions_are_read_as_one_table(served: Served) -> None:
    story = served.story("h4").run(
        CREATE,
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 7",
        "INSERT INTO t(i, s) VALUES (2, 'b')",
        "INSERT INTO t VALUES (3, 'c', NULL)",
    )
    assert story.agree().now.values() == [(1, "a", 7), (2, "b", 7), (3, "c", None)]


def test_h9_every_snapshot_reads_the_same_rows_after_a_flush(served: Served) -> None:
    story = served.story("h9").run(CREATE, "INSERT INTO t VALUES (1, 'a')", "UPDATE t SET s = 'b'", FLUSH)
    found = story.agree()
    assert [a.values() for a in found.at.values()] == [[(1, "a")], [(1, "b")], [(1, "b")]]
    assert found.operations[-1] == "replace"


def test_many_small_commits_between_files_and_flushes_are_read_alike_by_all_engines(served: Served) -> None:
    """More than eight, so that files of inlined rows are merged on the way."""
    story = served.story("many").run(CREATE)
    for n in range(11):
        story.run(f"INSERT INTO t VALUES ({n}, 'row {n}')")
    story.run("DELETE FROM t WHERE i IN (2, 9)", "UPDATE t SET s = 'new' WHERE i = 5", BIG, FLUSH)
    story.run("INSERT INTO t VALUES (100, 'after')", "DELETE FROM t WHERE i = 7", "UPDATE t SET s = 'x2' WHERE i = 8")
    found = story.agree()
    assert found.counts == [*range(1, 12), 9, 9, 49, 49, 50, 48, 48]


def test_inlined_deletes_are_read_alike_before_and_after_their_flush(served: Served) -> None:
    story = served.story("flushed_deletes").run(
        *(CREATE, BIG, "DELETE FROM t WHERE i = 3", "DELETE FROM t WHERE i IN (4, 5)", FLUSH),
        *("DELETE FROM t WHERE i = 6", "DELETE FROM t WHERE i < 20", "DELETE FROM t WHERE i = 30", FLUSH, CLEANUP),
    )
    assert story.agree().counts == [40, 39, 37, 37, 36, 20, 19, 19]


def test_inlined_rows_beside_files_of_older_schemas_are_read_alike_before_and_after_a_flush(served: Served) -> None:
    story = served.story("shapes").run(
        *(CREATE, "INSERT INTO t VALUES (1, 'a')", BIG, "ALTER TABLE t ADD COLUMN n BIGINT"),
        *("INSERT INTO t VALUES (2, 'b', 5)", "ALTER TABLE t DROP COLUMN s", "INSERT INTO t VALUES (3, 6)"),
        *("ALTER TABLE t RENAME COLUMN n TO m", "UPDATE t SET m = 9 WHERE i = 1", FLUSH, "DELETE FROM t WHERE i = 3"),
    )
    found = story.agree()
    assert [name for name, _ in found.now.columns] == ["i", "m"]
    assert found.now.values().count((1, 9)) == 2


def test_rows_inlined_flushed_and_merged_repeatedly_are_read_alike_by_all_engines(served: Served) -> None:
    story = served.story("again").run(CREATE)
    for n in range(3):
        story.run(f"INSERT INTO t VALUES ({n}, 'a'), ({n + 10}, 'b')", f"UPDATE t SET s = 'u{n}' WHERE i = {n}", FLUSH)
    story.run(MERGE, CLEANUP, "DELETE FROM t WHERE i = 1")
    assert story.agree().now.values("i") == [0, 10, 11, 12, 2]


def test_inserts_above_the_inlining_limit_and_truncations_are_read_alike_by_all_engines(served: Served) -> None:
    story = served.story("emptied").run(
        *(CREATE, "INSERT INTO t SELECT range, 'in' FROM range(10)"),
        *("INSERT INTO t SELECT range, 'out' FROM range(11)", "DELETE FROM t", "INSERT INTO t VALUES (1, NULL)"),
        *("TRUNCATE t", "INSERT INTO t VALUES (NULL, '')"),
    )
    assert story.agree().counts == [10, 21, 0, 1, 0, 1]
