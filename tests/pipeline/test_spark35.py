"""Spark 3.5 reads what DuckDB wrote, and DuckDB reads what Spark 3.5 wrote, with the settings that `mergus spark` says.

It takes a minute on what is cached, and some hundred megabytes of pyspark and jars the first time.
"""

import json
import os
import subprocess
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from mergus.cli import main
from tests.support import spark35
from tests.support.loads import in_order

pytestmark = pytest.mark.xdist_group("spark")

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("mergus tests").getOrCreate()

def rows():
    return [list(row) for row in spark.sql("SELECT id, s, CAST(d AS STRING) FROM lake.s35.t").collect()]

told = {"version": spark.version, "read": rows()}
spark.sql("INSERT INTO lake.s35.t VALUES (5000, 'appended', CAST(1.5 AS DECIMAL(9, 2)))")
spark.sql("DELETE FROM lake.s35.t WHERE id BETWEEN 10 AND 19")
spark.sql("CREATE TEMPORARY VIEW news AS SELECT * FROM VALUES (20L, 'merged'), (6000L, 'inserted') AS v(id, s)")
spark.sql('''MERGE INTO lake.s35.t USING news ON t.id = news.id
    WHEN MATCHED THEN UPDATE SET s = news.s WHEN NOT MATCHED THEN INSERT (id, s, d) VALUES (news.id, news.s, NULL)''')
spark.sql("CREATE TABLE lake.s35.made USING iceberg AS SELECT id, s FROM lake.s35.t WHERE id > 4000")
told["written"] = rows()
with open(sys.argv[1], "w") as file:
    json.dump(told, file)
"""


@pytest.mark.usefixtures("as_user")
def test_both_ways(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    db.execute("CREATE SCHEMA s35; CREATE TABLE s35.t(id BIGINT, s VARCHAR, d DECIMAL(9, 2))")
    db.execute("INSERT INTO s35.t SELECT range, 'x' || range, range / 4 FROM range(2000)")
    db.execute("INSERT INTO s35.t VALUES (-1, 'kept in Postgres', 0.25), (-2, NULL, NULL)")
    db.execute("DELETE FROM s35.t WHERE id IN (3, -2) OR id BETWEEN 1000 AND 1099")
    db.execute("UPDATE s35.t SET s = 'changed' WHERE id = 4")

    def in_duckdb() -> list[tuple[object, ...]]:
        return in_order(db.execute("SELECT id, s, CAST(d AS VARCHAR) FROM lake.s35.t").fetchall())

    before = in_duckdb()
    assert len(before) == 2000 + 2 - 2 - 100
    settings = CliRunner().invoke(main, ["spark", "--settings", "--spark-version", spark35.VERSION])
    assert settings.exit_code == 0, settings.output
    assert "iceberg-spark-runtime-3.5_2.12:" in settings.output
    local = {
        "spark.master": "local[2]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(tmp_path),
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.system.home={tmp_path}",
    }
    defaults = settings.output + "".join(f"{key} {value}\n" for key, value in local.items())
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    env = {**os.environ, "SPARK_CONF_DIR": str(tmp_path), "PYTHONPATH": ""}
    told = tmp_path / "told.json"
    command = [str(spark35.python()), "-c", PROGRAM, str(told)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(told.read_text())
    assert found["version"] == spark35.VERSION
    assert in_order(map(tuple, found["read"])) == before
    after = in_duckdb()
    assert in_order(map(tuple, found["written"])) == after
    expected = [row for row in before if not 10 <= int(str(row[0])) <= 20]
    new = [(20, "merged", "5.00"), (5000, "appended", "1.50"), (6000, "inserted", None)]
    assert after == in_order([*expected, *new])
    assert in_order(db.execute("SELECT * FROM lake.s35.made").fetchall()) == [(5000, "appended"), (6000, "inserted")]
