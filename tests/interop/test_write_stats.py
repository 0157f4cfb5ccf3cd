"""What the catalog says of a table after others have written it: bounds, counts, row ids and its own counters."""

from tests.support.formats import in_version
from tests.support.sharing import Sharing, done
from tests.support.writers import rows

TEN = "INSERT INTO t SELECT range, 'd' FROM range(40)"


@in_version(2)
def test_h26_duckdb_finds_an_appended_value_outside_the_former_bounds(sharing: Sharing) -> None:
    with sharing.table(TEN) as t:
        t.append(1000, -5)
        t.shows([*range(40), 1000, -5])
        # the next insert merges its own bounds into those that we left
        t.tell("INSERT INTO t VALUES (3, 'x')")
        t.shows([*range(40), 1000, -5, 3])
        t.tell("INSERT INTO t SELECT 5, 'x' FROM range(20)")
        t.shows([*range(40), 1000, -5, 3, *[5] * 20])


@in_version(3)
def test_h26_duckdb_finds_rows_of_a_table_whose_first_rows_a_client_wrote(sharing: Sharing) -> None:
    with sharing.table() as t:
        t.append(1000)
        t.shows([1000], gone=[3])
        t.tell("INSERT INTO t VALUES (3, 'x')")
        t.shows([3, 1000])


@in_version(2)
def test_h26_duckdb_finds_rows_of_a_file_without_statistics(sharing: Sharing) -> None:
    with sharing.table(TEN) as t:
        raw = t.raw()
        assert raw.commit("append", add=[raw.data_file(rows(1000), stats=False)]).status_code == 200
        t.shows([*range(40), 1000])
        # bounds that are unknown must not be seeded by the rows that come next
        t.tell("INSERT INTO t VALUES (3, 'x')", "INSERT INTO t VALUES (4, 'x')")
        t.shows([*range(40), 1000, 3, 4])


@in_version(3)
def test_h27_an_open_session_does_not_reuse_row_ids_after_an_append(sharing: Sharing) -> None:
    with sharing.table(TEN) as t:
        t.append(*range(100, 110))
        t.tell("INSERT INTO t VALUES (200, 'x'), (201, 'y')")
        t.shows([*range(40), *range(100, 110), 200, 201])
        t.append(300)
        t.tell("INSERT INTO t SELECT range, 'z' FROM range(400, 420)")
        t.shows([*range(40), *range(100, 110), 200, 201, 300, *range(400, 420)])


def test_h37_a_row_written_without_a_row_id_gets_one(sharing: Sharing) -> None:
    """A writer that moves rows puts their ids into the file, and NULL for those that are new."""
    with sharing.table(TEN) as t:
        before = t.row_ids()
        raw = t.raw()
        if sharing.format_version < 3:
            moved = raw.data_file(rows(*range(40), 77))
        else:
            moved = raw.data_file(rows(*range(40), 77), row_ids=[*(before[i] for i in range(40)), None])
        done(raw.commit("overwrite", remove=raw.paths(), add=[moved]))
        t.shows([*range(40), 77])
        if sharing.format_version >= 3:
            after = t.row_ids()
            assert {i: after[i] for i in range(40)} == before
        t.tell("INSERT INTO t VALUES (78, 'x')")
        t.shows([*range(40), 77, 78])
        # an insert alone, by a writer of row deltas
        added = raw.data_file(rows(80, 81), row_ids=[None, None] if sharing.format_version >= 3 else None)
        done(raw.refresh().commit("append", add=[added]))
        t.shows([*range(40), 77, 78, 80, 81])


def test_h37_rows_without_row_ids_deleted_by_the_same_commit_are_gone(sharing: Sharing) -> None:
    """The file that the deletes are about is another than the one that has the ids."""
    with sharing.table(TEN) as t:
        raw = t.raw()
        added = raw.data_file(rows(80, 81, 82), row_ids=[None] * 3 if sharing.format_version >= 3 else None)
        gone = raw.deletes([(added.file_path, 1), (raw.paths()[0], 0)])
        done(raw.commit("overwrite", add=[added], deletes=gone))
        t.shows([*range(1, 40), 80, 82], gone=[0, 81])


def test_h39_counts_are_exact_after_every_kind_of_write(sharing: Sharing) -> None:
    with sharing.table(TEN, "INSERT INTO t VALUES (50, 'in')", "DELETE FROM t WHERE i = 3") as t:
        left = {*range(40), 50} - {3}
        t.shows(left, gone=[3])
        t.append(60, 61, 62)
        left |= {60, 61, 62}
        t.shows(left, gone=[3])
        t.delete(4, 50, 61)
        left -= {4, 50, 61}
        t.shows(left, gone=[3, 4, 50, 61])
        t.tell("DELETE FROM t WHERE i = 5", "INSERT INTO t VALUES (70, 'in')")
        left = left - {5} | {70}
        t.shows(left, gone=[3, 4, 5])
        # nothing is left of a file
        t.delete(60, 62)
        left -= {60, 62}
        t.shows(left, gone=[60, 61, 62])
        t.tell("CALL ducklake_flush_inlined_data('lake', schema_name => '{schema}', table_name => 't')")
        t.shows(left, gone=[3, 4, 5])
        t.overwrite(90)
        t.shows([90], gone=[1, 70])
        t.tell("INSERT INTO t VALUES (91, 'in')")
        t.shows([90, 91])


def test_h18_a_file_without_a_bucket_value_is_refused_in_a_table_partitioned_by_bucket(sharing: Sharing) -> None:
    """DuckDB skips a file that has no bucket when it looks for a value, so its rows would be lost to filters."""
    inlined = "INSERT INTO t VALUES (40, 'in')"
    with sharing.table("ALTER TABLE t SET PARTITIONED BY (bucket(4, i))", TEN, inlined) as t:
        raw = t.raw()
        (default,) = [s for s in raw.base["partition-specs"] if s["spec-id"] == raw.base["default-spec-id"]]
        assert [f["transform"] for f in default["fields"]] == ["bucket[4]"]
        # the one that rows in Postgres are listed under
        (raw.base["default-spec-id"],) = [s["spec-id"] for s in raw.base["partition-specs"] if not s["fields"]]
        refused = raw.commit("append", add=[raw.data_file(rows(50))])
        assert (refused.status_code, refused.json()["error"]["type"]) == (406, "UnsupportedOperationException")
        assert "bucket" in refused.json()["error"]["message"]
        t.shows(range(41))
