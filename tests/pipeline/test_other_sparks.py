"""Each supported Spark besides the suite's own reads what DuckDB wrote, and DuckDB reads what it wrote, in both format
versions, with the settings that `mergus spark` prints for it.

It takes a minute for each on what is cached, and some hundred megabytes of pyspark and jars the first time.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

from mergus.cli import main
from mergus.pipeline import versions
from mergus.pipeline.imports import delta
from tests.support import other_spark
from tests.support.loads import in_order
from tests.support.servers import Server

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("mergus tests").getOrCreate()

def rows(schema):
    return [list(row) for row in spark.sql(f"SELECT id, s, CAST(d AS STRING) FROM lake.{schema}.t").collect()]

def write(schema):
    spark.sql(f"INSERT INTO lake.{schema}.t VALUES (5000, 'appended', CAST(1.5 AS DECIMAL(9, 2)))")
    spark.sql(f"DELETE FROM lake.{schema}.t WHERE id BETWEEN 10 AND 19")
    spark.sql(f'''MERGE INTO lake.{schema}.t USING news ON t.id = news.id WHEN MATCHED THEN UPDATE SET s = news.s
        WHEN NOT MATCHED THEN INSERT (id, s, d) VALUES (news.id, news.s, NULL)''')
    spark.sql(f'''CREATE TABLE lake.{schema}.made USING iceberg TBLPROPERTIES ('format-version' = '{schema[-1]}')
        AS SELECT id, s FROM lake.{schema}.t WHERE id > 4000''')
    spark.sql(f"DROP TABLE lake.{schema}.purged PURGE")

spark.sql("CREATE TEMPORARY VIEW news AS SELECT * FROM VALUES (20L, 'merged'), (6000L, 'inserted') AS v(id, s)")
found = {"version": spark.version}
for schema in sys.argv[2:]:
    before = rows(schema)
    write(schema)
    found[schema] = {"read": before, "written": rows(schema)}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""

DELTA_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("mergus tests").getOrCreate()
table = f"delta.`{sys.argv[2]}`"
spark.sql(f"CREATE TABLE {table} (id BIGINT) USING delta TBLPROPERTIES (delta.enableDeletionVectors = true)")
spark.range(0, 100, 1, 1).write.format("delta").mode("append").save(sys.argv[2])
spark.sql(f"DELETE FROM {table} WHERE id < 10")
found = {
    "features": spark.sql(f"DESCRIBE DETAIL {table}").collect()[0].asDict()["tableFeatures"],
    "rows": sorted(row[0] for row in spark.read.format("delta").load(sys.argv[2]).collect()),
}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""


def prepare(db: duckdb.DuckDBPyConnection, schema: str) -> None:
    """A table of DuckDB's with rows in files and in Postgres, some of them deleted and changed."""
    db.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t(id BIGINT, s VARCHAR, d DECIMAL(9, 2))")
    db.execute(f"CREATE TABLE {schema}.purged AS SELECT range AS id FROM range(3)")
    version = f"mergus.format-version={schema[-1]}"
    modes = [f"write.{verb}.mode=merge-on-read" for verb in ("delete", "merge")]
    options = [word for setting in (version, *modes) for word in ("--set", setting)]
    done = CliRunner().invoke(main, ["properties", schema, "t", *options])
    assert done.exit_code == 0, done.output
    db.execute(f"INSERT INTO {schema}.t SELECT range, 'x' || range, range / 4 FROM range(2000)")
    db.execute(f"INSERT INTO {schema}.t VALUES (-1, 'kept in Postgres', 0.25), (-2, NULL, NULL)")
    db.execute(f"DELETE FROM {schema}.t WHERE id IN (3, -2) OR id BETWEEN 1000 AND 1099")
    db.execute(f"UPDATE {schema}.t SET s = 'changed' WHERE id = 4")


def run_spark(version: str, folder: Path, settings: str, program: str, *args: str) -> dict[str, Any]:
    """What a program says, in a Spark of this version with these lines of spark-defaults.conf."""
    local = {
        "spark.master": "local[2]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
    }
    defaults = settings + "".join(f"{key} {value}\n" for key, value in local.items())
    (folder / "spark-defaults.conf").write_text(defaults)
    env = {**os.environ, "SPARK_CONF_DIR": str(folder), "PYTHONPATH": ""}
    answer = folder / "answer.json"
    command = [str(other_spark.python(version)), "-c", program, str(answer), *args]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(answer.read_text())


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("version", other_spark.VERSIONS)
def test_each_supported_spark_version_and_duckdb_read_each_others_tables(
    server: Server, db: duckdb.DuckDBPyConnection, tmp_path: Path, version: str
) -> None:
    schemas = [f"s{versions.minor(version).replace('.', '')}_v{format_version}" for format_version in (2, 3)]

    def in_duckdb(schema: str) -> list[tuple[object, ...]]:
        return in_order(db.execute(f"SELECT id, s, CAST(d AS VARCHAR) FROM lake.{schema}.t").fetchall())

    for schema in schemas:
        prepare(db, schema)
    before = {schema: in_duckdb(schema) for schema in schemas}
    settings = CliRunner().invoke(main, ["spark", "--settings", "--spark-version", version])
    assert settings.exit_code == 0, settings.output
    found = run_spark(version, tmp_path, settings.output, PROGRAM, *schemas)
    assert found["version"] == version
    for schema in schemas:
        assert len(before[schema]) == 2000 + 2 - 2 - 100
        assert in_order(map(tuple, found[schema]["read"])) == before[schema]
        after = in_duckdb(schema)
        assert in_order(map(tuple, found[schema]["written"])) == after
        expected = [row for row in before[schema] if not 10 <= int(str(row[0])) <= 20]
        new = [(20, "merged", "5.00"), (5000, "appended", "1.50"), (6000, "inserted", None)]
        assert after == in_order([*expected, *new])
        made = db.execute(f"SELECT * FROM lake.{schema}.made").fetchall()
        assert in_order(made) == [(5000, "appended"), (6000, "inserted")]
        undone = server.http.post(f"/v1/lake/admin/namespaces/{schema}/undrop", json={"name": "purged"})
        assert undone.status_code == 404, undone.text
        for table in ("t", "made"):
            answer = server.http.get(f"/v1/lake/namespaces/{schema}/tables/{table}")
            assert answer.json()["metadata"]["format-version"] == int(schema[-1])


@pytest.mark.parametrize("version", other_spark.VERSIONS)
def test_each_supported_spark_version_reads_delta_tables_with_the_import_packages(tmp_path: Path, version: str) -> None:
    settings = "".join(f"{key} {value}\n" for key, value in delta.session_conf(version).items())
    found = run_spark(version, tmp_path, settings, DELTA_PROGRAM, str(tmp_path / "table"))
    assert delta.VECTORS in found["features"]
    assert found["rows"] == list(range(10, 100))
