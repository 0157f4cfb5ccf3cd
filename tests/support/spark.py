"""One Spark process for the whole run, with a session for each process of the suite and a catalog for each lake.

A JVM takes ten seconds to start and minutes to become fast. So the process that distributes tests to others launches
one (`launch`), and all of them connect to it; tests that run without distribution launch their own.
"""

import os
import subprocess
import time
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from uuid import uuid4

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from mergus.config import Settings
from mergus.pipeline.catalog_settings import catalog_settings

# the file in which the Spark process that all share says where it listens, and with which secret
VARIABLE = "MERGUS_TEST_SPARK"
STARTUP_SECONDS = 120


def launch() -> "subprocess.Popen[bytes]":
    """Starts the Spark process that the processes of this run share. It ends when its standard input is closed."""
    where = Path(mkdtemp(prefix="mergus-spark-", dir=os.environ.get("MERGUS_STATE_DIR")))
    os.environ[VARIABLE] = str(where / "connection")
    options = [f"--conf={key}={value}" for key, value in _conf(where).items()]
    command = [f"{_find_spark_home()}/bin/spark-submit", *options, "pyspark-shell"]
    env = {**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": os.environ[VARIABLE]}
    with (where / "log").open("wb") as log:
        return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)


@cache
def session() -> SparkSession:
    """The Spark session of this process."""
    if VARIABLE in os.environ:
        _find_shared(Path(os.environ[VARIABLE]))
        conf = None
    else:
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(_conf(Path(mkdtemp(prefix="mergus-spark-", dir=os.environ.get("MERGUS_STATE_DIR")))).items()))
    gateway: Any = launch_gateway(conf)
    # a process that a test starts is to have a Spark of its own
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        os.environ.pop(name, None)
    # the first process makes the context, the others find it
    java = gateway.jvm.JavaSparkContext.fromSparkContext(gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
    context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))
    context.setLogLevel("ERROR")
    shared = gateway.jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
    return SparkSession(context, shared.newSession())


def _find_shared(connection: Path) -> None:
    """Tells PySpark, in its own variables, which process to connect to."""
    deadline = time.monotonic() + STARTUP_SECONDS
    while not connection.is_file():
        assert time.monotonic() < deadline, (connection.parent / "log").read_text()
        time.sleep(0.1)
    with connection.open("rb") as file:
        os.environ["PYSPARK_GATEWAY_PORT"] = str(read_int(file))
        os.environ["PYSPARK_GATEWAY_SECRET"] = str(UTF8Deserializer().loads(file))


def _conf(scratch: Path) -> dict[str, str]:
    return {
        # S3FileIO reads its keys from the environment, as it would on a user's machine
        **{k: v for k, v in catalog_settings("http://unused", "unused").items() if "catalog.lake" not in k},
        "spark.master": "local[2]",
        "spark.app.name": "mergus tests",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        # a query of a few rows gains nothing from code that is compiled for it
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }


def catalog(settings: Settings, uri: str) -> str:
    """A Spark catalog on a server; its name."""
    return catalog_with(catalog_settings(uri, settings.prefix))


def catalog_with(settings: dict[str, str]) -> str:
    """A Spark catalog with what these settings say of the catalog `lake`; its name."""
    spark = session()
    name = f"lake_{uuid4().hex[:8]}"
    for key, value in settings.items():
        if key.startswith("spark.sql.catalog.lake"):
            spark.conf.set(key.replace("catalog.lake", f"catalog.{name}"), value)
    return name
