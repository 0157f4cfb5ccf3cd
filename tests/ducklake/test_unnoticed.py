"""A DuckDB session does not notice that a lake is Mergus's, too: what DuckLake's own functions tell of its history is
what they tell on a lake without `mergus init`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mergus.ducklake import session
from mergus.setup import initialise
from tests.support import lakes
from tests.support.lakes import plain_lake, quiet

pytestmark = pytest.mark.integration

FLUSH = "CALL ducklake_flush_inlined_data('lake')"
MERGE = "CALL ducklake_merge_adjacent_files('lake')"
REWRITE = "CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)"
MANY = "INSERT INTO t SELECT range + {0}, 'row ' || range FROM range(100)"

STORIES = {
    "a merge after an expiry, and columns that come and go": [
        MANY.format(0),
        MANY.format(100),
        "CALL ducklake_expire_snapshots('lake', versions => [1, 2])",
        MERGE,
        MANY.format(200),
        "ALTER TABLE t ADD COLUMN j INTEGER",
        "INSERT INTO t SELECT range, 'x', range FROM range(50)",
        "ALTER TABLE t DROP COLUMN s",
        "INSERT INTO t SELECT range, range FROM range(50)",
        MERGE,
    ],
    "a row that is deleted in Postgres, then merged, flushed and rewritten": [
        MANY.format(0),
        "DELETE FROM t WHERE i = 25",
        MANY.format(100),
        MANY.format(200),
        MERGE,
        FLUSH,
        REWRITE,
    ],
    "inserts and deletes in turns, and a rewrite": [
        MANY.format(0),
        "DELETE FROM t WHERE i < 50",
        MANY.format(100),
        "DELETE FROM t WHERE i = 120",
        FLUSH,
        MANY.format(200),
        "DELETE FROM t WHERE i > 200 AND i < 250",
        REWRITE,
    ],
    "three deletes, two rewrites": [
        MANY.format(0),
        "DELETE FROM t WHERE i < 20",
        "DELETE FROM t WHERE i > 80",
        REWRITE,
        "DELETE FROM t WHERE i = 50",
        FLUSH,
        REWRITE,
    ],
    "small inserts that are flushed and merged, then updated": [
        "INSERT INTO t VALUES (1, 'a')",
        FLUSH,
        "INSERT INTO t VALUES (2, 'b'), (NULL, 'c')",
        FLUSH,
        MERGE,
        "UPDATE t SET i = i + 100 WHERE i < 3",
        "DELETE FROM t WHERE i IS NULL",
    ],
}


def history(dsn: str, data_path: Path, story: Sequence[str], *, with_mergus: bool) -> dict[str, list[Any]]:
    settings = plain_lake(dsn, data_path=f"{data_path}/data/")
    if with_mergus:
        initialise(settings, quiet)
    with session.attach(settings) as db:
        db.execute("CREATE TABLE t (i INTEGER, s VARCHAR)")
        for statement in story:
            db.execute(statement)
        told = {"snapshots": db.execute("SELECT snapshot_id, schema_version, changes FROM snapshots()").fetchall()}
        ids = [row[0] for row in told["snapshots"] if row[0] > 0]
        for function in ("table_changes", "table_insertions", "table_deletions"):
            call = "SELECT snapshot_id, rowid, * FROM ducklake_{}('lake', 'main', 't', {}, {}) ORDER BY ALL"
            for start, end in [(ids[0], ids[-1]), *((i, i) for i in ids)]:
                told[f"{function} {start} to {end}"] = db.execute(call.format(function, start, end)).fetchall()
        return told


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_snapshots_table_changes_and_table_insertions_are_the_same_with_and_without_mergus_init(
    tmp_path: Path, story: list[str]
) -> None:
    with lakes.database() as theirs, lakes.database() as ours:
        plain = history(theirs, tmp_path / "plain", story, with_mergus=False)
        adopted = history(ours, tmp_path / "adopted", story, with_mergus=True)
    assert len(plain["snapshots"]) > len(story) // 2
    assert adopted == plain
