"""What the compaction endpoint and the expiry do, and what Spark would like to do: every engine reads at every snapshot
that lives what DuckDB reads there, before and after files are cleaned up."""

import time
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.support import spark as sparks
from tests.support import vended
from tests.support.readers import BIG, CLEANUP, CREATE, Served, Step, Story
from tests.support.waits import make_jobs_due

BY_TURNS = True


def ask(served: Served, path: str, **body: Any) -> dict[str, Any]:
    http = served.warm.server.http
    answer = http.post(f"/v1/lake/admin/{path}", json={**body, "wait-seconds": 60}, timeout=90)
    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert (job["state"], job["error"]) == ("done", None)
    return job


def compact(story: Story, **body: Any) -> Step:
    def step(_: object) -> None:
        job = ask(story.served, f"namespaces/{story.schema}/tables/t/compact", **body)
        assert not any(key in table for table in job["tables"] for key in ("failed", "gave-way")), job

    return step


def test_all_engines_read_the_same_rows_after_each_step_of_a_compaction(served: Served) -> None:
    story = served.story("kept")
    small = ("INSERT INTO t VALUES (1000, 'in')", "DELETE FROM t WHERE i = 3", "UPDATE t SET s = 'y' WHERE i = 30")
    story.run(CREATE, BIG, BIG, *small, compact(story, steps=["flush"]), BIG)
    story.run("DELETE FROM t WHERE i < 20", compact(story, steps=["rewrite"]), BIG, *small)
    story.run(compact(story, steps=["merge"]), CLEANUP, *small, compact(story), BIG, compact(story), CLEANUP)
    found = story.agree()
    assert found.now.rows[(1000, "in")] == 3
    assert "replace" in found.operations


def test_remaining_snapshots_are_unchanged_after_an_expiry(served: Served) -> None:
    story = served.story("expired")
    story.run(CREATE, BIG, "DELETE FROM t WHERE i = 3", BIG, "UPDATE t SET s = 'y' WHERE i = 30", compact(story), BIG)
    before = story.agree()
    ask(served, "expire", **{"retain-last": 3})
    story.run(CLEANUP, "DELETE FROM t WHERE i = 5", compact(story), CLEANUP)
    found = story.agree()
    for at, rows in before.at.items():
        assert found.at.get(at, rows) == rows
    assert len(found.at) < len(before.at) + 1


FUTURE = "TIMESTAMP '2100-01-01 00:00:00'"


def objects(served: Served, *prefixes: str) -> set[str]:
    return {key for prefix in prefixes for key in vended.keys_below(served.lake.settings, prefix)}


def settle(served: Served) -> None:
    """What clients' calls have the server do is done, also what waits for its time."""
    deadline = time.monotonic() + 90
    while served.lake.sql("SELECT FROM job WHERE state IN ('waiting', 'running')"):
        make_jobs_due(served.lake)
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert served.lake.sql("SELECT error FROM job WHERE state = 'failed'") == []


def test_sparks_maintenance_procedures_work_and_harm_no_other_table(served: Served) -> None:
    """With default settings: nothing is said of `gc.enabled`."""
    story = served.story("sparks", tables=("t", "other"))
    story.run(
        f"{CREATE}; CREATE TABLE other AS SELECT range AS i FROM range(500)", BIG, "DELETE FROM t WHERE i < 10", BIG
    )
    story.run(compact(story), "DELETE FROM other WHERE i < 100", BIG, "UPDATE t SET s = 'x' WHERE i = 50")
    others = {at: story.oracle("other", at=at) for at in story.agree("other").at}
    before = story.agree()
    ((data,),) = served.lake.sql("SELECT value FROM ducklake_metadata WHERE key = 'data_path'")
    of_other = objects(served, f"{data}sparks/other/", story.load("other")["location"] + "/")
    spark, catalog = sparks.session(), served.warm.spark
    table = "table => 'sparks.t'"
    spark.sql(f"CALL {catalog}.system.rewrite_manifests({table})").collect()
    spark.sql(f"CALL {catalog}.system.expire_snapshots({table}, older_than => {FUTURE}, retain_last => 1)").collect()
    old = "older_than => TIMESTAMP '2026-01-01 00:00:00'"
    spark.sql(f"CALL {catalog}.system.remove_orphan_files({table}, {old}, prefix_listing => true)").collect()
    settle(served)
    (left,) = story.load()["snapshots"]
    now = int(left["summary"]["ducklake.snapshot-id"])
    lives = {row[0] for row in served.lake.sql("SELECT snapshot_id FROM ducklake_snapshot")}
    # snapshots have expired, and none in which another table changed
    assert len(before.at.keys() - lives) >= 2
    assert others.keys() <= lives
    for at, rows in others.items():
        assert story.oracle("other", at=at) == rows
    for at in before.at.keys() & lives:
        assert story.oracle(at=at) == before.at[at]
    assert of_other <= objects(served, f"{data}sparks/other/", story.load("other")["location"] + "/")
    story.run(CLEANUP, "DELETE FROM t WHERE i = 20", compact(story), BIG, CLEANUP)
    ask(served, "sweep", **{"grace-seconds": 0})
    story.agree(without=[at for at in lives if at < now])
    story.agree("other")
    spark.sql(f"DROP TABLE {catalog}.sparks.t PURGE")
    assert story.oracle("other") == others[max(others)]
    story.agree("other")


def test_sparks_maintenance_procedures_are_refused_if_gc_is_disabled(served: Served) -> None:
    served.story("kept_files").run(CREATE, BIG)
    spark, catalog = sparks.session(), served.warm.spark
    spark.sql(f"ALTER TABLE {catalog}.kept_files.t SET TBLPROPERTIES ('gc.enabled' = 'false')")
    for call in (
        f"CALL {catalog}.system.expire_snapshots(table => 'kept_files.t', older_than => {FUTURE})",
        f"CALL {catalog}.system.remove_orphan_files(table => 'kept_files.t', prefix_listing => true)",
        f"DROP TABLE {catalog}.kept_files.t PURGE",
    ):
        with pytest.raises((PySparkException, Py4JJavaError), match=r"GC is disabled|gc\.enabled"):
            spark.sql(call).collect()
