"""Jobs on a cluster: spark-submit, with executors in processes of their own, and settings from a file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pyspark

import mergus
from mergus.serve import environment
from tests.support import spark_archive
from tests.support.lakes import TestLake
from tests.support.servers import Server

SUBMIT = Path(pyspark.__file__).parent / "bin/spark-submit"
MAIN = Path(mergus.__file__).with_name("__main__.py")
# of Spark itself: a master, a worker and an executor as there are on a cluster, on this machine
CLUSTER = "local-cluster[1,1,1024]"
PIPELINE = """
name = "far"

[[step]]
name = "sums"
output = "far.sums"
mode = "merge"
keys = ["k"]
inputs.t = { table = "far.t", changes = true }
sql = "SELECT i % 3 AS k, count(*) AS n FROM t GROUP BY 1"
"""


def test_a_job_runs_on_the_cluster_of_spark_submit(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    db.execute("CREATE SCHEMA far; CREATE TABLE far.t AS SELECT range AS i, range % 3 AS k FROM range(100)")
    env = {**os.environ, **environment(lake.of_writers), "MERGUS_URI": server.uri, "PYSPARK_PYTHON": sys.executable}
    told = subprocess.run(
        [sys.executable, "-m", "mergus", "spark", "--settings"], env=env, capture_output=True, text=True, check=True
    )
    (tmp_path / "lake.conf").write_text(told.stdout + "spark.driver.bindAddress 127.0.0.1\nspark.ui.enabled false\n")
    (tmp_path / "p.toml").write_text(PIPELINE)
    options = ["--master", CLUSTER, "--properties-file", str(tmp_path / "lake.conf")]
    options += ["--conf", "spark.driver.host=127.0.0.1"]
    options += ["--conf", f"spark.executor.extraJavaOptions={spark_archive.java_options()}"]
    job = [str(MAIN), "pipeline", "transform", str(tmp_path / "p.toml"), "--report", str(tmp_path / "report.json")]
    done = subprocess.run(
        [str(SUBMIT), *options, *job], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert json.loads((tmp_path / "report.json").read_text())["steps"][0]["rows"]["total"] == 3
    assert db.execute("SELECT k, n FROM far.sums ORDER BY k").fetchall() == [(0, 34), (1, 33), (2, 33)]
