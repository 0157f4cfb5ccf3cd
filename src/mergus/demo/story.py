"""`mergus demo`: what happens, and in which order.

A whole lakehouse is started in a directory of its own; DuckDB loads orders and goes on writing; a pipeline on Spark
follows it, run after run; then DuckDB stops, the pipeline catches up, and both engines are asked for everything.
"""

import time
from collections.abc import Callable
from contextlib import closing
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

from mergus.client import Address, Client
from mergus.config import Settings, load_settings
from mergus.demo import orders, report
from mergus.dev import forget_lakes, serving, stop_on_signals
from mergus.ducklake import session as lakes
from mergus.embedded.state import StateDir, free_port
from mergus.errors import SetupError
from mergus.pipeline.catalog_settings import CATALOG
from mergus.pipeline.job import Place, Run
from mergus.pipeline.session import spark_session
from mergus.pipeline.transform.definition import Pipeline, load
from mergus.pipeline.transform.job import transform
from mergus.pipeline.verify import Report, chosen, verify

SAME: Final = """
    SELECT country, count(*), sum(amount) FROM bronze.orders LEFT JOIN bronze.customers USING (customer_id)
    WHERE amount >= 0 GROUP BY country ORDER BY country
"""
GOLD: Final = "SELECT country, orders, revenue, returned FROM gold.by_country ORDER BY country"

Say = Callable[[str], None]


def demo(folder: Path, say: Say, *, size: int, runs: int, conf: dict[str, str]) -> report.Told | None:
    """None if it was stopped."""
    forget_lakes()
    with stop_on_signals(), StateDir.claim(folder) as state:
        settings = load_settings(host="127.0.0.1", port=free_port())
        say("a Postgres, an S3 store and a server are started")
        with serving(state, settings, lambda _: None, durable=False) as served:
            say(f"DuckDB writes {size:,} orders")
            orders.prepare(served.settings, size)
            where = Address(served.uri)
            spark = spark_session(where, app="mergus demo", conf=conf)
            place = Place(Client(where), spark, CATALOG)
            try:
                return _tell(place, served.settings, say, size, runs)
            finally:
                spark.stop()
    return None


def _tell(place: Place, settings: Settings, say: Say, size: int, runs: int) -> report.Told:
    with as_file(files("mergus.demo") / "sales.toml") as file:
        pipeline = load(file)
    start = time.monotonic()
    with orders.writing(settings, size) as writer:
        for number in range(1, runs + 1):
            say(f"run {number} of the pipeline, while DuckDB goes on writing ({writer.commits} commits so far)")
            _run(place, pipeline, say)
    say("DuckDB has stopped; one more run")
    _run(place, pipeline, say)
    seconds = time.monotonic() - start
    say("both engines are asked for every table, at its newest snapshots")
    checked = verify(place, settings, list(chosen(place.client, [])), Run("verify", lambda _: None), newest=3)
    gold, wanted = _gold(settings)
    is_same = [row[:3] for row in gold] == wanted
    return report.Told(
        title=f"Mergus: {size:,} orders and {writer.commits} more commits of DuckDB, followed by Spark",
        commits=[
            one for table in chosen(place.client, []) for one in report.commits_of(str(table), place.metadata(table))
        ],
        is_good=is_same and checked.count("equal") == len(checked.checked),
        gold=gold,
        gold_columns=["country", "orders", "revenue", "returned"],
        facts={
            "verify": _verdict(checked),
            "gold": "is what DuckDB's own SQL gives of bronze" if is_same else "IS NOT WHAT DUCKDB'S OWN SQL GIVES",
            "pipeline": f"{runs + 1} runs in {seconds:.0f} seconds",
        },
    )


def _run(place: Place, pipeline: Pipeline, say: Say) -> None:
    outcome = transform(place, pipeline, Run("transform", lambda text: say(f"  {text}")))
    if outcome.failed:
        raise SetupError(f"the pipeline failed: {outcome.failed}")


def _verdict(checked: Report) -> str:
    different = len(checked.checked) - checked.count("equal")
    if different:
        return f"{different} OF {len(checked.checked)} SNAPSHOTS ARE NOT THE SAME TO SPARK AND DUCKDB"
    return f"{len(checked.checked)} snapshots of all tables are the same, row for row, to Spark and DuckDB"


def _gold(settings: Settings) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    with closing(lakes.attach(settings, read_only=True)) as lake:
        return lake.execute(GOLD).fetchall(), lake.execute(SAME).fetchall()
