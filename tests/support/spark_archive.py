"""An archive of Spark's classes, as a JVM has them after it has parsed and checked them.

A Spark process takes 13 seconds of processor time to start and to run its first query. With the archive and with one
compiler it takes 4. The archive holds for one installation of Spark: a JVM ignores it if its class path is another.
"""

import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pyspark
from pyspark.find_spark_home import _find_spark_home

# A process of minutes gains nothing from the second compiler and from a concurrent collector, and pays for them.
FEW_THREADS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def archive() -> Path:
    """The file of the archive, whether it exists or not."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.realpath(f"{home}/bin/java" if home else shutil.which("java") or "java")
    name = f"spark-{pyspark.__version__}-{zlib.crc32(java.encode()):08x}.jsa"
    return Path(sys.prefix) / "mergus-tests" / name


def java_options() -> str:
    """A JVM ignores an archive that does not exist."""
    return f"{FEW_THREADS} -XX:SharedArchiveFile={archive()}"


def use_archive() -> None:
    """Has every Spark process that this one starts, or that its children start, use the archive."""
    os.environ["SPARK_SUBMIT_OPTS"] = java_options()
    # of the small JVM that puts together the command for the other
    os.environ["SPARK_LAUNCHER_OPTS"] = FEW_THREADS


def start_writing() -> "subprocess.Popen[bytes]":
    """Writes the archive in a process of its own, which takes half a minute."""
    draft = archive().with_suffix(f".{os.getpid()}")
    draft.parent.mkdir(exist_ok=True)
    env = {**os.environ, "SPARK_SUBMIT_OPTS": f"{FEW_THREADS} -XX:ArchiveClassesAtExit={draft}"}
    # a file is complete only when the JVM has exited
    command = f'"{_find_spark_home()}/bin/spark-submit" "{__file__}" && mv "{draft}" "{archive()}"'
    with draft.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(["sh", "-c", command], env=env, stdout=log, stderr=log, start_new_session=True)


def _load_classes() -> None:
    """Uses what most jobs use, so that its classes are loaded."""
    from pyspark.sql import SparkSession

    options: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    spark = SparkSession.builder.master("local[1]").config(map=options).getOrCreate()  # pyright: ignore[reportAttributeAccessIssue]
    spark.range(100).selectExpr("id % 3 AS k").groupBy("k").count().collect()
    spark.createDataFrame([(1, "a")], "i INT, s STRING").toArrow()
    spark.stop()


if __name__ == "__main__":
    _load_classes()
