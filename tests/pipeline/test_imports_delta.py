"""Delta tables, in a Spark of their own: Delta has to be in a session from its beginning on."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from mergus.pipeline.job import Place, Run, Table
from mergus.pipeline.verify import verify
from mergus.serve import environment
from tests.support import lakes, servers
from tests.support.lakes import TestLake
from tests.support.servers import Server

# The first run of the command finds nothing, and leaves a session as the command makes it for Delta.
PROGRAM = """
import sys
from click.testing import CliRunner
from pyspark.sql import SparkSession
from mergus.cli import main

root, reports = sys.argv[1:]
local = [f"--conf={conf}" for conf in (
    "spark.driver.bindAddress=127.0.0.1", "spark.driver.host=127.0.0.1", "spark.ui.enabled=false",
    "spark.sql.shuffle.partitions=2", "spark.databricks.delta.snapshotPartitions=2",
    "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS",
)]

def run(name, *arguments):
    command = ["pipeline", "import", "--from", "delta", "--source", root, *arguments]
    done = CliRunner().invoke(main, [*command, "--report", f"{reports}/{name}.json", "--master", "local[2]", *local])
    print(name, done.exit_code, done.output, file=sys.stderr)

run("nothing")
spark = SparkSession.getActiveSession()
rows = spark.sql("SELECT id, 'x' || id AS s, timestamp_micros(id) AS t, id % 3 AS k FROM range(30)").coalesce(1)

def delta(name):
    return f"delta.`{root}/shop/{name}`"

rows.write.format("delta").save(f"{root}/shop/plain")
spark.sql(f"DELETE FROM {delta('plain')} WHERE id = 7")
rows.write.format("delta").partitionBy("k").save(f"{root}/shop/parts")
rows.write.format("delta").option("delta.enableDeletionVectors", "true").save(f"{root}/shop/vectors")
spark.sql(f"DELETE FROM {delta('vectors')} WHERE id IN (3, 4)")
spark.sql(f"INSERT INTO {delta('vectors')} VALUES (100, 'late', NULL, 0)")
rows.write.format("delta").save(f"{root}/shop/broken")
spark.sql(f"ALTER TABLE {delta('broken')} ADD COLUMN more INT")
import pathlib
for file in pathlib.Path(root, "shop/broken").glob("*.parquet"):
    file.unlink()
run("first", "--history", "all")
run("second")
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLake]:
    with lakes.lake(data_path=f"file://{tmp_path_factory.mktemp('lake')}/data/") as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("delta")


@pytest.fixture(scope="module")
def server(lake: TestLake, folder: Path) -> Iterator[Server]:
    with servers.server(lake.settings, folder, allowed_locations=f"file://{folder}/tables") as running:
        yield running


def test_delta_tables_are_imported_without_their_deleted_rows(
    lake: TestLake, server: Server, place: Place, folder: Path, db: duckdb.DuckDBPyConnection
) -> None:
    """Deleted rows stay deleted, be they in files that the log has let go, or in deletion vectors. What the files alone
    tell is taken in place, and the rest is copied, with its history."""
    (folder / "tables").mkdir()
    # the lake is on this disk: keys of a store would be used for it
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env |= {**environment(lake.of_writers), "MERGUS_URI": server.uri}
    command = [sys.executable, "-c", PROGRAM, str(folder / "tables"), str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((folder / f"{name}.json").read_text()) for name in ("first", "second"))
    told = {one["source"]: one for one in first["tables"]}
    assert {name: (one["state"], one.get("how"), one.get("rows")) for name, one in told.items()} == {
        "shop.plain": ("registered", "files", 29),
        "shop.parts": ("copied", "copy", 30),
        "shop.vectors": ("copied", "copy", 29),
        "shop.broken": ("failed", None, None),
    }, told
    assert "the values that it is partitioned by are in Delta's log" in told["shop.parts"]["reason"]
    assert "it uses deletionVectors of Delta's" in told["shop.vectors"]["reason"]
    assert "parquet" in told["shop.broken"]["reason"]
    assert first["state"] == "found"
    again = {one["source"]: one["state"] for one in second["tables"]}
    assert again == dict.fromkeys(("shop.plain", "shop.parts", "shop.vectors"), "skipped") | {"shop.broken": "failed"}

    whole = set(range(30))
    assert {row[0] for row in db.execute("SELECT id FROM lake.shop.plain").fetchall()} == whole - {7}
    assert {row[0] for row in db.execute("SELECT id FROM lake.shop.parts").fetchall()} == whole
    assert {row[0] for row in db.execute("SELECT id FROM lake.shop.vectors").fetchall()} == whole - {3, 4} | {100}
    assert db.execute("SELECT epoch_us(t), s FROM lake.shop.plain WHERE id = 9").fetchall() == [(9, "x9")]
    shown = place.metadata(Table(("shop",), "vectors"))["snapshots"]
    assert [one["summary"]["mergus.import"] for one in shown] == ["0", "1", "2"]
    at = shown[0]["summary"]["ducklake.snapshot-id"]
    assert db.execute(f"SELECT count(*) FROM lake.shop.vectors AT (VERSION => {at})").fetchall() == [(30,)]
    tables = [Table(("shop",), name) for name in ("plain", "parts", "vectors")]
    report = verify(place, lake.of_writers, tables, Run("verify", lambda _: None), newest=None)
    assert report.count("equal") == len(report.checked) == 5
