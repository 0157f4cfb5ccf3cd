"""DuckDB and Iceberg's clients write at once, in processes of their own: nothing is lost, nothing is there twice.

By default for some seconds. For minutes, with Spark as well:

    MERGUS_TEST_LONG=1 ./scripts/test tests/concurrency/test_commits.py -s
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import duckdb

from mergus.process import end_with_parent
from mergus.serve import environment
from tests.support import lakes, loads, servers, spark
from tests.support.lakes import TestLake
from tests.support.servers import Server

LONG = "MERGUS_TEST_LONG" in os.environ
SECONDS = 240 if LONG else 25
TABLES = ("main.shared", "main.of_duckdb", "main.of_iceberg")
DUCKDB, ICEBERG = ("d1", "d2"), ("i1", "i2")
# PyIceberg takes every delete since it began for a conflict with its own: against sessions that never rest, it gets
# none through.
PAUSE = 0.3 if LONG else 0.0
# DuckDB's retries give up after some seconds; a writer that gets nothing done in all the time starves
LEAST_COMMITS = 20 if LONG else 2
Row = tuple[str, int, int]


class Process:
    def __init__(self, lake: TestLake, **order: object) -> None:
        env = {**os.environ, **environment(lake.settings)}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.concurrency.commit_writer", json.dumps(order)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=end_with_parent,
        )

    def wait_ready(self) -> None:
        assert self._line() == "ready"

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def outcome(self) -> dict[str, Any]:
        found = json.loads(self._line())
        self._process.wait(60)
        return found

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class SparkWriter(threading.Thread):
    """Appends and deletes from the shared table, as the others do, but not as often."""

    def __init__(self, lake: TestLake, server: Server) -> None:
        super().__init__()
        self.catalog = spark.catalog(lake.settings, server.uri)
        self.spark = spark.session()
        self.result: dict[str, Any] = {"name": "s", "rows": {TABLES[0]: {}}, "commits": 0, "retries": 0}
        self.result |= {"failure": None, "longest_seconds": 0.0, "given_up": 0, "conflicts": {}}

    def run(self) -> None:
        deadline = time.monotonic() + SECONDS
        known: dict[str, int] = self.result["rows"][TABLES[0]]
        number = 0
        table = f"{self.catalog}.{TABLES[0]}"
        while time.monotonic() < deadline:
            try:
                if number % 4 == 3:
                    self.spark.sql(f"DELETE FROM {table} WHERE who = 's' AND n = {number - 1}")
                    known.pop(str(number - 1), None)
                else:
                    self.spark.sql(f"INSERT INTO {table} VALUES ('s', {number}, 0)")
                    known[str(number)] = 0
                self.result["commits"] += 1
                number += 1
            except Exception as e:
                if "CommitFailed" not in str(e) and "ValidationException" not in str(e):
                    self.result["failure"] = str(e)[:2000]
                    return
                self.result["retries"] += 1


def acknowledged(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {table: [] for table in TABLES}
    for outcome in outcomes:
        for table, rows in outcome["rows"].items():
            found[table] += [(outcome["name"], int(n), v) for n, v in rows.items()]
    return {table: sorted(rows) for table, rows in found.items()}


def assert_content(db: duckdb.DuckDBPyConnection, wanted: Mapping[str, Sequence[Row]]) -> None:
    for table, rows in wanted.items():
        found = cast("list[Row]", db.execute(f"SELECT who, n, v FROM {table} ORDER BY ALL").fetchall())
        lost, extra = Counter(rows) - Counter(found), Counter(found) - Counter(rows)
        assert (sorted(lost), sorted(extra)) == ([], []), f"{table}: {len(lost)} lost, {len(extra)} too many"
        counted = db.execute(f"SELECT count(*), count(DISTINCT rowid), sum(1 + 0 * n) FROM {table}").fetchall()
        assert counted == [(len(rows),) * 3], table


def test_concurrent_duckdb_and_iceberg_writers_neither_lose_nor_duplicate_rows(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with (
        lakes.lake() as lake,
        servers.server(lake.settings, tmp_path) as first,
        servers.server(lake.settings, tmp_path, listener="off") as second,
    ):
        db = lake.duckdb()
        for table in TABLES:
            db.execute(f"CREATE TABLE {table}(who VARCHAR, n BIGINT, v INTEGER)")
        orders: list[dict[str, object]] = [
            {"kind": "duckdb", "name": name, "tables": TABLES[:2], "seconds": SECONDS, "seed": seed, "pause": PAUSE}
            for seed, name in enumerate(DUCKDB)
        ]
        orders += [
            {
                "kind": "iceberg",
                "name": name,
                "tables": [TABLES[0], TABLES[2]],
                "seconds": SECONDS,
                "seed": seed,
                "pause": 0,
                "uri": server.uri,
            }
            for (seed, name), server in zip(enumerate(ICEBERG, 10), (first, second), strict=True)
        ]
        processes = [Process(lake, **order) for order in orders]
        by_spark = SparkWriter(lake, first) if LONG else None
        for process in processes:
            process.wait_ready()
        before = len(lake.snapshots())
        for process in processes:
            process.go()
        if by_spark is not None:
            by_spark.start()
        outcomes = [process.outcome() for process in processes]
        if by_spark is not None:
            by_spark.join()
            outcomes.append(by_spark.result)

        report = [
            f"{o['name']}: {o['commits']} commits, {o['retries']} conflicts, {o['given_up']} times given up, "
            f"longest {o['longest_seconds']:.1f} s, {o['conflicts']}"
            for o in outcomes
        ]
        print(f"{sum(o['commits'] for o in outcomes) / SECONDS:.1f} commits/s", *report, sep="\n")
        record_property("commits", "; ".join(report))
        assert [o["failure"] for o in outcomes if o["failure"]] == []
        snapshots = lake.sound_snapshots()
        assert len(snapshots) - before >= sum(o["commits"] for o in outcomes) - 5
        for column in (1, 2, 3):
            assert [s[column] for s in snapshots] == sorted(s[column] for s in snapshots)
        wanted = acknowledged(outcomes)
        with lake.duckdb() as fresh:
            for session in (db, fresh):
                assert_content(session, wanted)
        for server in (first, second):
            catalog = loads.catalog(lake.settings, server)
            for table, rows in wanted.items():
                found = catalog.load_table(tuple(table.split("."))).scan().to_arrow()
                assert sorted(loads.rows(found)) == rows, table
        # nothing of it comes back when DuckLake tidies up
        db.execute("CALL ducklake_flush_inlined_data('lake')")
        db.execute("CALL ducklake_merge_adjacent_files('lake')")
        assert_content(db, wanted)
        assert min(o["commits"] for o in outcomes if o["name"] != "s") >= LEAST_COMMITS, report
        if LONG:
            assert sum(o["commits"] for o in outcomes) >= 500, report
