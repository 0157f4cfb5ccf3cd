"""What an Iceberg commit costs:  ./scripts/bench bench.commits [--quick]

Appends of files that nobody wrote, sent as a client would send them: a manifest and a manifest list on storage, then
the commit. Data files are never opened for an append, so nothing of what is measured is missing. The floor is DuckDB's
own INSERT of a row in the same run. Stages are the server's own account: planned before the lock, while the lock is
held, and until the table can be shown again.
"""

import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from uuid import uuid4

from tests.support import lakes, servers
from tests.support.lakes import TestLake
from tests.support.servers import Server
from tests.support.writers import Raw

from bench.materialise import columns, with_files
from mergus.iceberg.manifest import DATA, DataFile

COLUMNS = 10
STAGES = ("planned", "locked", "shown")


def made_up(raw: Raw, count: int) -> list[DataFile]:
    values = dict.fromkeys(range(1, COLUMNS + 1), 1000)
    low, high = ({i: n.to_bytes(8, "little") for i in values} for n in (1, 999))
    one = DataFile(
        content=DATA,
        file_path="",
        file_format="PARQUET",
        partition=(),
        record_count=1000,
        file_size_in_bytes=50_000,
        column_sizes=dict.fromkeys(values, 4000),
        value_counts=values,
        null_value_counts=dict.fromkeys(values, 0),
        lower_bounds=low,
        upper_bounds=high,
    )
    return [replace(one, file_path=f"{raw.base['location']}/data/{uuid4()}.parquet") for _ in range(count)]


def append(raw: Raw, count: int = 1) -> int:
    """How often it had to be tried."""
    for tries in range(1, 200):
        answer = raw.commit("append", add=made_up(raw, count))
        if answer.status_code == 200:
            raw.base = answer.json()["metadata"]
            return tries
        assert answer.status_code == 409, answer.text
        raw.refresh()
    raise AssertionError("never committed")


def stages(running: Server) -> dict[str, tuple[float, float]]:
    """Seconds and times of each."""
    text = running.http.get("/metrics").text

    def meter(name: str, stage: str) -> float:
        found = re.search(rf'^mergus_commit_stage_seconds_{name}{{stage="{stage}"}} (\S+)$', text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    return {stage: (meter("sum", stage), meter("count", stage)) for stage in STAGES}


def means(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> list[float]:
    """Milliseconds of each stage."""
    deltas = [(after[s][0] - before[s][0], after[s][1] - before[s][1]) for s in STAGES]
    return [seconds * 1000 / times if times else 0.0 for seconds, times in deltas]


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    found: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        found.append((time.perf_counter() - start) * 1000)
    return sorted(found)


def p95(times: Sequence[float]) -> float:
    return times[int(len(times) * 0.95)]


def one_by_one(lake: TestLake, running: Server, sizes: Sequence[int], rounds: int) -> None:
    print(f"{'files':>8}{'INSERT':>9}{'p50':>8}{'p95':>8}{'ratio':>7}{'planned':>9}{'locked':>8}{'shown':>8}")
    db = lake.duckdb()
    db.execute(f"CREATE TABLE floor ({columns()})")
    for size in sizes:
        table = with_files(lake, db, size)
        raw = Raw(lake, running, table)
        append(raw)
        before = stages(running)
        floor = timed(lambda: db.execute(f"INSERT INTO floor VALUES ({', '.join(['1'] * COLUMNS)})"), rounds)
        ours = timed(lambda raw=raw: append(raw), rounds)
        spent = means(before, stages(running))
        ratio = median(ours) / median(floor)
        print(
            f"{size:>8}{median(floor):>9.1f}{median(ours):>8.1f}{p95(ours):>8.1f}{ratio:>7.1f}"
            f"{spent[0]:>9.1f}{spent[1]:>8.1f}{spent[2]:>8.1f}"
        )


def at_once(lake: TestLake, running: Server, tables: int, seconds: float) -> None:
    """Four appenders, each with its own idea of the table until it is told otherwise."""
    db = lake.duckdb()
    names = [f"w{tables}_{n}" for n in range(tables)]
    for name in names:
        db.execute(f"CREATE TABLE {name} ({columns()})")
    until = time.monotonic() + seconds

    def work(n: int) -> tuple[int, int]:
        raw = Raw(lake, running, names[n % tables])
        commits = tries = 0
        while time.monotonic() < until:
            tries += append(raw)
            commits += 1
        return commits, tries

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(work, range(4)))
    commits, tries = (sum(column) for column in zip(*done, strict=True))
    print(f"4 appenders, {tables} table(s): {commits / seconds:.1f} commits/s, {tries / commits:.2f} tries each")


def many(lake: TestLake, running: Server, count: int) -> None:
    db = lake.duckdb()
    db.execute(f"CREATE TABLE many ({columns()})")
    raw = Raw(lake, running, "many")
    before = stages(running)
    (took,) = timed(lambda: append(raw, count), 1)
    spent = means(before, stages(running))
    print(f"{count} files in one commit: {took / 1000:.1f} s (ms planned, locked, shown: {[round(s) for s in spent]})")


def main() -> None:
    quick = "--quick" in sys.argv
    with (
        tempfile.TemporaryDirectory() as folder,
        lakes.lake() as lake,
        servers.server(lake.settings, Path(folder), listener="off") as running,
    ):
        one_by_one(lake, running, (10, 1000) if quick else (10, 1000, 10_000), 20 if quick else 100)
        for tables in (1, 4):
            at_once(lake, running, tables, 5 if quick else 20)
        many(lake, running, 1000 if quick else 10_000)


if __name__ == "__main__":
    main()
