"""What the catalog costs a job on Spark:  ./scripts/bench bench.pipeline [--rows N] [--times N]

Ingest and transform of so many rows, beside plain Spark, which writes what the same query gives as Parquet without any
catalog: same session, same disk (the lake's data is in a local directory), same codec. Runs take turns, and medians are
compared. The share of the catalog is the time that the server was at work on requests of a run, of that run's time.
"""

import argparse
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tests.support import lakes, servers

from mergus.client import Address, Client
from mergus.pipeline.ingest import job as ingesting
from mergus.pipeline.ingest.decision import Manner
from mergus.pipeline.job import Place, Run, table
from mergus.pipeline.session import CATALOG, query, spark_session
from mergus.pipeline.transform.definition import parse
from mergus.pipeline.transform.job import transform

COLUMNS = """id, id % 100000 AS customer, CAST(id % 977 AS INT) AS kind,
             CAST(id * 7 % 1000003 AS DECIMAL(12, 2)) AS amount,
             timestamp_micros(1700000000000000 + id * 1000) AS at, concat('note ', id % 5003) AS note"""
APPEND = "SELECT id, customer, kind, amount * 2 AS twice, CAST(at AS DATE) AS day, upper(note) AS note FROM orders"
GROUP = "SELECT customer, count(*) AS orders, sum(amount) AS amount, max(at) AS newest FROM orders GROUP BY customer"
STEP = """
name = "bench"

[[step]]
name = "{name}"
output = "bench.{name}"
mode = "{mode}"
{keys}
inputs.orders = {{ table = "bench.orders", changes = true }}
sql = "{sql}"
"""


class Bench:
    def __init__(self, place: Place, uri: Any, folder: Path, rows: int) -> None:
        self.place, self.server, self.folder, self.rows = place, uri, folder, rows
        self.spark = place.spark

    def busy(self) -> float:
        """Seconds that the server has been at work on requests."""
        found = re.findall(r"^mergus_request_seconds_sum\{[^}]*\} (\S+)$", self.server.http.get("/metrics").text, re.M)
        return sum(map(float, found))

    def source(self) -> Path:
        path = self.folder / "source"
        query(self.spark, f"SELECT {COLUMNS} FROM range({self.rows})").repartition(8).write.parquet(str(path))
        return path

    def plain(self, sql: str) -> Callable[[], None]:
        """What the query gives, as Parquet."""

        def run() -> None:
            target = self.folder / "plain"
            query(self.spark, sql).write.mode("overwrite").parquet(str(target))
            shutil.rmtree(target)

        return run

    def drop(self, name: str) -> None:
        for each in (name, f"{name}_files", f"{name}_quarantine"):
            query(self.spark, f"DROP TABLE IF EXISTS {self.place.sql_name(table(each))}")

    def ingest(self, source: Path) -> Callable[[], None]:
        def run() -> None:
            into = table("bench.ingested")
            wanted = ingesting.Wanted(
                into,
                into.beside("ingested_quarantine"),
                Manner("parquet", (), evolve=True),
                (),
                1000,
                4 << 30,
                again=False,
            )
            told = Run("ingest", lambda _: None)
            files = ingesting.listing(self.place, [str(source)], wanted.manner, told)
            ingesting.ingest(self.place, wanted, files, told, ingesting.Report())

        return run

    def transform(self, name: str, mode: str, sql: str, keys: str = "") -> Callable[[], None]:
        pipeline = parse(STEP.format(name=name, mode=mode, sql=sql, keys=keys), "p.toml", Path())

        def run() -> None:
            outcome = transform(self.place, pipeline, Run("transform", lambda _: None))
            assert not outcome.failed, outcome.failed

        return run

    def compare(
        self, title: str, floor: Callable[[], None], ours: Callable[[], None], after: Callable[[], None], times: int
    ) -> None:
        floor()
        ours()
        after()
        floors: list[float] = []
        taken: list[float] = []
        shares: list[float] = []
        for _ in range(times):
            floors.append(seconds(floor))
            before = self.busy()
            taken.append(seconds(ours))
            shares.append((self.busy() - before) / taken[-1])
            after()
        ratio = median(taken) / median(floors)
        print(
            f"| {title} | {median(floors):.1f} | {median(taken):.1f} | {ratio:.2f} | {100 * median(shares):.1f} % |",
            flush=True,
        )


def seconds(work: Callable[[], None]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            lakes.lake(data_path=f"file://{folder}/lake/") as lake,
            servers.server(lake.settings, folder) as server,
        ):
            where = Address(server.uri)
            conf = {"spark.sql.parquet.compression.codec": "zstd", "spark.driver.memory": "6g", "spark.local.dir": name}
            spark = spark_session(where, conf=conf)
            bench = Bench(Place(Client(where), spark, CATALOG), server, folder, given.rows)
            source = bench.source()
            print(f"{given.rows:,} rows; seconds, medians of {given.times}\n")
            print("| job | plain Spark | ours | ratio | catalog |\n| --- | --- | --- | --- | --- |")
            query(spark, f"CREATE NAMESPACE {CATALOG}.bench")
            from_files = f"SELECT * FROM parquet.`{source}`"
            # with the two columns that every ingested row has
            with_source = f"SELECT *, _metadata.file_path AS source, current_timestamp() AS now FROM parquet.`{source}`"
            bench.compare(
                "ingest Parquet",
                bench.plain(with_source),
                bench.ingest(source),
                lambda: bench.drop("bench.ingested"),
                given.times,
            )
            query(spark, f"CREATE TABLE {CATALOG}.bench.orders AS {from_files}")
            query(spark, f"SELECT * FROM {CATALOG}.bench.orders").createOrReplaceTempView("orders")
            for title, step, mode, sql, keys in (
                ("transform, row by row", "rows", "append", APPEND, ""),
                ("transform, by key", "groups", "merge", GROUP, 'keys = ["customer"]'),
            ):
                bench.compare(
                    title,
                    bench.plain(sql.replace("FROM orders", f"FROM parquet.`{source}`")),
                    bench.transform(step, mode, sql, keys),
                    lambda step=step: bench.drop(f"bench.{step}"),
                    given.times,
                )
            spark.stop()


if __name__ == "__main__":
    main()
