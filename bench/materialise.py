"""What it costs to show a table, and to show one more commit on it:  ./scripts/bench bench.materialise

Rows of tables with many files are written straight into Postgres: nothing of what is measured opens a data file. The
floor is what DuckDB itself needs for the same commit. Requests and bytes are those to the object store.
"""

import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psutil
from tests.support import lakes, servers
from tests.support.lakes import TestLake
from tests.support.servers import Server

COLUMNS = 10

MANY_FILES = """
    INSERT INTO ducklake_data_file
    SELECT {first} + i, {table_id}, {begin}, NULL, NULL, 'made-' || i || '.parquet', true, 'parquet', 1000, 50000, 500,
           i * 1000, NULL, NULL, NULL, NULL
    FROM generate_series(0, {count} - 1) AS i
"""
MANY_STATS = """
    INSERT INTO ducklake_file_column_stats
    SELECT {first} + i, {table_id}, c, 4000, 1000, 0, (i * 1000)::text, (i * 1000 + 999)::text, NULL, NULL
    FROM generate_series(0, {count} - 1) AS i, generate_series(1, {columns}) AS c
"""


@dataclass(frozen=True)
class Cost:
    seconds: float
    puts: int
    gets: int
    kilobytes: float

    def __str__(self) -> str:
        return f"{self.seconds * 1000:>10.0f}{self.puts:>6}{self.gets:>6}{self.kilobytes:>10.1f}"


def metric(running: Server, name: str, method: str) -> float:
    text = running.http.get("/metrics").text
    found = re.search(rf'^{name}{{method="{method}"}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def load(running: Server, table: str) -> Cost:
    def meters() -> tuple[float, ...]:
        names = [("mergus_object_requests_total", m) for m in ("put", "get")]
        names += [("mergus_object_bytes_total", m) for m in ("put", "get")]
        return tuple(metric(running, *name) for name in names)

    before = meters()
    start = time.perf_counter()
    answer = running.http.get(f"{running.path('main')}/tables/{table}")
    seconds = time.perf_counter() - start
    assert answer.status_code == 200, answer.text
    puts, gets, sent, got = (after - earlier for after, earlier in zip(meters(), before, strict=True))
    return Cost(seconds, int(puts), int(gets), (sent + got) / 1000)


def columns() -> str:
    return ", ".join(f"c{i} BIGINT" for i in range(COLUMNS))


def commit(db: duckdb.DuckDBPyConnection, table: str) -> float:
    start = time.perf_counter()
    values = ", ".join("range" for _ in range(COLUMNS))
    db.execute(f"INSERT INTO {table} SELECT {values} FROM range(100)")
    return time.perf_counter() - start


def one_more(running: Server, db: duckdb.DuckDBPyConnection, table: str) -> tuple[Cost, float]:
    """The cheapest of a few: the machine is noisy."""
    costs: list[Cost] = []
    floors: list[float] = []
    for _ in range(5):
        floors.append(commit(db, table))
        costs.append(load(running, table))
    return min(costs, key=lambda c: c.seconds), min(floors)


def with_files(lake: TestLake, db: duckdb.DuckDBPyConnection, count: int) -> str:
    table = f"files_{count}"
    db.execute(f"CREATE TABLE {table}({columns()})")
    commit(db, table)
    ((table_id, begin),) = lake.sql(
        "SELECT table_id, max(snapshot_id) FROM ducklake_table, ducklake_snapshot WHERE table_name = %s GROUP BY 1",
        table,
    )
    ((first,),) = lake.sql("SELECT next_file_id FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1")
    values = {"first": first, "table_id": table_id, "begin": begin, "count": count, "columns": COLUMNS}
    lake.sql(MANY_FILES.format(**values))
    lake.sql(MANY_STATS.format(**values))
    lake.sql(f"UPDATE ducklake_snapshot SET next_file_id = {first + count} WHERE snapshot_id = {begin}")
    return table


def with_snapshots(db: duckdb.DuckDBPyConnection, count: int) -> str:
    table = f"snapshots_{count}"
    db.execute(f"CREATE TABLE {table}({columns()})")
    for _ in range(count):
        commit(db, table)
    return table


def report(name: str, first: Cost, more: Cost, floor: float, memory: float) -> None:
    print(f"{name:<18}{first}{more}{floor * 1000:>10.0f}{more.seconds / floor:>8.2f}{memory:>8.0f}", flush=True)


def main() -> None:
    head = f"{'ms':>10}{'puts':>6}{'gets':>6}{'KB':>10}"
    print(f"{'table':<18}{head}{head}{'DuckDB ms':>10}{'ratio':>8}{'MB':>8}")
    with tempfile.TemporaryDirectory() as folder, lakes.lake() as lake:
        db = lake.duckdb()
        db.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
        db.close()
        db = lake.duckdb()
        tables = [(f"{n:,} files", with_files(lake, db, n)) for n in (10, 100, 1_000, 10_000)]
        tables += [(f"{n:,} snapshots", with_snapshots(db, n)) for n in (10, 100, 1_000)]
        for name, table in tables:
            # what a load does, it does itself
            options = {"log_level": "WARNING", "history_patience": 600, "listener": "off"}
            with servers.server(lake.settings, Path(folder), **options) as running:
                first = load(running, table)
                more, floor = one_more(running, db, table)
                memory = psutil.Process(running.process.pid).memory_info().rss / 1e6
                report(name, first, more, floor, memory)
        db.close()


if __name__ == "__main__":
    main()
