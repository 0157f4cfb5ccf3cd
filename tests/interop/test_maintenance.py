"""What the compaction endpoint and the expiry do, and what Spark would like to do: every engine reads at every snapshot
that lives what DuckDB reads there, before and after files are cleaned up."""

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.support import spark as sparks
from tests.support.readers import BIG, CLEANUP, CREATE, Served, Step, Story

pytestmark = pytest.mark.xdist_group("spark")


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


def test_after_each_step_of_a_compaction(served: Served) -> None:
    story = served.story("kept")
    small = ("INSERT INTO t VALUES (1000, 'in')", "DELETE FROM t WHERE i = 3", "UPDATE t SET s = 'y' WHERE i = 30")
    story.run(CREATE, BIG, BIG, *small, compact(story, steps=["flush"]), BIG)
    story.run("DELETE FROM t WHERE i < 20", compact(story, steps=["rewrite"]), BIG, *small)
    story.run(compact(story, steps=["merge"]), CLEANUP, *small, compact(story), BIG, compact(story), CLEANUP)
    found = story.agree()
    assert found.now.rows[(1000, "in")] == 3
    assert "replace" in found.operations


def test_snapshots_expire_and_those_that_are_left_are_as_they_were(served: Served) -> None:
    story = served.story("expired")
    story.run(CREATE, BIG, "DELETE FROM t WHERE i = 3", BIG, "UPDATE t SET s = 'y' WHERE i = 30", compact(story), BIG)
    before = story.agree()
    ask(served, "expire", **{"retain-last": 3})
    story.run(CLEANUP, "DELETE FROM t WHERE i = 5", compact(story), CLEANUP)
    found = story.agree()
    for at, rows in before.at.items():
        assert found.at.get(at, rows) == rows
    assert len(found.at) < len(before.at) + 1


def test_what_spark_would_delete_stays(served: Served) -> None:
    """Spark looks at `gc.enabled` and refuses by itself. Told otherwise it lets snapshots expire for the table, and its
    client deletes nothing: the catalog says so."""
    story = served.story("sparks").run(CREATE, BIG, "DELETE FROM t WHERE i < 10", BIG)
    spark, catalog = sparks.session(), served.warm.spark
    expire = (
        f"CALL {catalog}.system.expire_snapshots(table => 'sparks.t', older_than => TIMESTAMP '2100-01-01 00:00:00', "
        "retain_last => 1)"
    )
    orphans = (
        f"CALL {catalog}.system.remove_orphan_files(table => 'sparks.t', prefix_listing => true, "
        "older_than => TIMESTAMP '2026-01-01 00:00:00')"
    )
    for call in (expire, orphans, f"DROP TABLE {catalog}.sparks.t PURGE"):
        with pytest.raises((PySparkException, Py4JJavaError), match=r"GC is disabled|gc\.enabled"):
            spark.sql(call).collect()
    before = story.agree()
    spark.sql(f"ALTER TABLE {catalog}.sparks.t SET TBLPROPERTIES ('gc.enabled' = 'true')")
    spark.sql(expire).collect()
    spark.sql(orphans).collect()
    assert len(story.load()["snapshots"]) == 1
    # DuckDB reads at every snapshot of the lake what it read before
    for at, rows in before.at.items():
        assert story.oracle(at=at) == rows
    spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => 'sparks.t', options => map('rewrite-all', 'true'))")
    story.run("DELETE FROM t WHERE i = 20", compact(story), CLEANUP)
    story.agree(without=list(before.at)[:-1])
    for at, rows in before.at.items():
        assert story.oracle(at=at) == rows
