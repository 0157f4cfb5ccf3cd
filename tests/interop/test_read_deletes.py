"""Deleted rows, whatever says so, read by every engine at every snapshot."""

from collections import Counter

from tests.support.readers import BIG, CLEANUP, CREATE, FLUSH, MERGE, REWRITE, Answer, Served, Story


def delete_files(story: Story) -> list[tuple[object, ...]]:
    query = "SELECT begin_snapshot, end_snapshot, format, delete_count FROM ducklake_delete_file WHERE table_id = %s"
    return story.lake.sql(query, story.table_id())


def test_h5_ducklake_delete_files_are_read_although_their_field_ids_differ_from_icebergs(served: Served) -> None:
    story = served.story("h5", inlining=0).run(CREATE, BIG, "DELETE FROM t WHERE i < 5")
    assert [row[2] for row in delete_files(story)] == ["parquet"]
    assert story.agree().counts == [40, 35]


def test_h6_a_cumulative_delete_file_applies_only_the_deletes_up_to_the_snapshot_read(served: Served) -> None:
    story = served.story("h6", inlining=0).run(CREATE, BIG, "DELETE FROM t WHERE i = 3", "DELETE FROM t WHERE i = 4")
    assert len(delete_files(story)) == 1
    assert story.agree().counts == [40, 39, 38]


def test_h7_readers_do_not_need_a_delete_file_that_was_replaced_and_cleaned_up(served: Served) -> None:
    story = served.story("h7", inlining=0).run(CREATE, BIG, "DELETE FROM t WHERE i = 3")
    held = served.warm.pyiceberg.load_table(("h7", "t"))
    story.run("DELETE FROM t WHERE i = 4", CLEANUP)
    assert story.lake.sql("SELECT count(*) FROM ducklake_files_scheduled_for_deletion") == [(0,)]
    assert held.scan().to_arrow().num_rows == 39
    assert story.agree().counts == [40, 39, 38]


def test_h10_no_delete_file_is_left_on_a_data_file_that_is_gone(served: Served) -> None:
    story = served.story("h10", inlining=0).run(CREATE, BIG, "DELETE FROM t WHERE i < 20", "TRUNCATE t")
    assert [row[1] for row in delete_files(story)] == [None]
    assert story.agree().counts == [40, 20, 0]
    for clients in (served.warm, served.cold):
        assert clients.live_entries("h10", "t") == []


def test_h11_a_row_that_two_sources_delete_is_deleted_once_and_its_neighbours_stay(served: Served) -> None:
    """DuckDB itself shows 36 rows here (duckdb/ducklake#1084)."""
    story = served.story("h11").run(CREATE, BIG)
    other = story.lake.duckdb()
    other.execute("USE lake.h11; BEGIN; DELETE FROM t WHERE i < 15")
    story.run("DELETE FROM t WHERE i = 3")
    other.execute("COMMIT")
    other.close()
    story.run()
    assert story.oracle().rows.total() == 36
    before, one, both = story.changed_by()[0]
    truth = {before: range(40), one: [*range(3), *range(4, 40)], both: range(15, 40)}
    columns = (("i", "int"), ("s", "text"))
    found = story.agree(oracle=lambda at: Answer(columns, Counter((i, "x") for i in truth[at])))
    assert found.counts == [40, 39, 25]


def test_h12_two_delete_files_of_one_data_file_are_both_applied(served: Served) -> None:
    """DuckDB itself shows rows twice between the two once a flush has followed the rewrite (duckdb/ducklake#1406)."""
    story = served.story("h12").run(CREATE, BIG, "DELETE FROM t WHERE i < 15", "DELETE FROM t WHERE i = 20", REWRITE)
    truth = {at: story.oracle(at=at) for at in story.changed_by()[0]}
    story.run(FLUSH)
    truth |= {at: story.oracle() for at in story.changed_by()[0] if at not in truth}
    found = story.agree(oracle=truth.__getitem__)
    assert found.counts[:4] == [40, 25, 24, 24]


def test_several_deletes_of_one_transaction_are_read_by_all_engines(served: Served) -> None:
    transaction = "BEGIN; DELETE FROM t WHERE i = {}; DELETE FROM t WHERE i < {}; DELETE FROM t WHERE i = {}; COMMIT"
    for schema, inlining in (("several_inlined", None), ("several", 0)):
        story = served.story(schema, inlining=inlining).run(CREATE, BIG, transaction.format(30, 3, 31))
        story.run(transaction.format(25, 20, 26), CLEANUP)
        assert story.agree().counts == [40, 35, 16]


def test_rows_inserted_and_deleted_in_one_transaction_are_read_alike_by_all_engines(served: Served) -> None:
    story = served.story("come_and_go").run(
        CREATE,
        f"BEGIN; {BIG}; DELETE FROM t WHERE i < 12; COMMIT",
        "BEGIN; INSERT INTO t VALUES (100, 'a'), (101, 'b'); DELETE FROM t WHERE i = 100; COMMIT",
        f"BEGIN; {BIG}; DELETE FROM t WHERE i IN (1, 20); UPDATE t SET s = 'y' WHERE i = 2; COMMIT",
        f"BEGIN; {BIG}; TRUNCATE t; INSERT INTO t VALUES (7, 'last'); COMMIT",
    )
    assert story.agree().now.values() == [(7, "last")]


def test_updates_of_rows_in_files_are_read_by_all_engines(served: Served) -> None:
    story = served.story("updates").run(
        *(CREATE, BIG, "UPDATE t SET s = 'few' WHERE i < 3", "UPDATE t SET s = 'many' WHERE i < 20"),
        *("UPDATE t SET i = i + 100 WHERE i = 1", "UPDATE t SET s = 'all'", FLUSH),
    )
    found = story.agree()
    assert found.counts == [40] * len(found.at)
    assert set(found.now.values("s")) == {"all"}


def test_deletes_of_all_rows_of_one_file_are_read_by_all_engines(served: Served) -> None:
    story = served.story("one_of_several", inlining=0).run(
        *(CREATE, BIG, "INSERT INTO t SELECT range + 100, 'y' FROM range(40)", "DELETE FROM t WHERE i = 105"),
        *("DELETE FROM t WHERE i >= 100", "DELETE FROM t WHERE i < 39", "DELETE FROM t"),
    )
    assert story.agree().counts == [40, 80, 79, 40, 1, 0]


def test_ducklake_deletion_vectors_are_read_by_all_engines(served: Served) -> None:
    """One for each file: DuckDB loses the history of one that it replaces (duckdb/ducklake#1072)."""
    story = served.story("vectors").run(CREATE)
    option = "CALL lake.set_option('write_deletion_vectors', true, schema => 'vectors', table_name => 't')"
    story.run(option)
    story.reattach()
    story.run(
        *(BIG, "INSERT INTO t SELECT range + 100, 'y' FROM range(40)", "DELETE FROM t WHERE i < 15"),
        *("DELETE FROM t WHERE i = 110", "DELETE FROM t WHERE i > 120", "INSERT INTO t VALUES (1, 'again')"),
    )
    assert [row[2] for row in delete_files(story)] == ["puffin", "puffin"]
    assert story.agree().counts == [40, 80, 65, 64, 45, 46]


def test_a_replaced_deletion_vector_brings_back_old_rows_in_all_engines_as_in_duckdb(served: Served) -> None:
    """DuckDB's older versions get the rows back that the vector before had deleted, and so do ours: those of a server
    that has shown them without, and of one that is asked for the first time."""
    story = served.story("vectors_replaced").run(CREATE)
    story.run("CALL lake.set_option('write_deletion_vectors', true, schema => 'vectors_replaced', table_name => 't')")
    story.reattach()
    story.run(*(BIG, "INSERT INTO t SELECT range + 100, 'y' FROM range(40)", "DELETE FROM t WHERE i < 15"))
    story.run("DELETE FROM t WHERE i BETWEEN 100 AND 114", "INSERT INTO t SELECT range + 200, 'z' FROM range(40)")
    assert story.agree().counts == [40, 80, 65, 50, 90]
    # the vector of the first file once more
    story.run("DELETE FROM t WHERE i < 30")
    assert story.agree().counts == [40, 80, 80, 65, 105, 75]
    story.run("DELETE FROM t WHERE i IN (30, 131)", "DELETE FROM t WHERE i BETWEEN 100 AND 135")
    assert story.agree().counts[:6] == [40, 80, 80, 80, 120, 90]


def test_deletes_after_merges_rewrites_and_flushes_are_read_by_all_engines(served: Served) -> None:
    story = served.story("after_all").run(CREATE)
    for n in range(3):
        story.run(f"INSERT INTO t SELECT range + {n * 100}, 'x' FROM range(20)")
    story.run(
        *(MERGE, "DELETE FROM t WHERE i IN (5, 105)", "DELETE FROM t WHERE i BETWEEN 200 AND 215", FLUSH, REWRITE),
        *("DELETE FROM t WHERE i = 6", "INSERT INTO t VALUES (1000, 'z')", FLUSH, MERGE, CLEANUP),
        "DELETE FROM t WHERE i IN (7, 1000)",
    )
    found = story.agree()
    assert found.counts[:3] == [20, 40, 60]
    assert found.now.rows.total() == 60 - 2 - 16 - 1 - 1
