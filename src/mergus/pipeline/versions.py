"""The versions of Spark that sessions and jobs run on, each with its packages: the one place that names them.

Iceberg publishes a runtime for each minor version of Spark, and not every release of Iceberg has one for every Spark:
1.12 has none for Spark 4.0. Spark loads the packages from Maven Central by their coordinates.
"""

from dataclasses import dataclass
from typing import Final

from mergus.errors import SetupError


@dataclass(frozen=True)
class Runtime:
    """The packages for one minor version of Spark; `spark` is the release that the tests run."""

    spark: str
    scala: str
    iceberg: str
    delta: str


# The Spark that jobs are made for, and that the extra `spark` installs.
SPARK: Final = "4.0.5"
RUNTIMES: Final = {
    "3.5": Runtime(spark="3.5.9", scala="2.12", iceberg="1.12.0", delta="io.delta:delta-spark_2.12:3.3.2"),
    "4.0": Runtime(spark=SPARK, scala="2.13", iceberg="1.11.0", delta="io.delta:delta-spark_2.13:4.0.1"),
    "4.1": Runtime(spark="4.1.4", scala="2.13", iceberg="1.12.0", delta="io.delta:delta-spark_4.1_2.13:4.4.0"),
}


def minor(spark: str) -> str:
    return ".".join(spark.split(".")[:2])


def installed() -> str:
    """The Spark that this process imports; the one that jobs are made for if there is none. Under spark-submit it is
    the cluster's, which no package of this environment names."""
    try:
        import pyspark
    except ImportError:
        return SPARK
    return pyspark.__version__


def runtime(spark: str = SPARK) -> Runtime:
    found = RUNTIMES.get(minor(spark))
    if found is None:
        raise SetupError(f"Spark {spark} is not supported; supported are Spark {', '.join(RUNTIMES)}")
    return found


def packages(spark: str = SPARK) -> str:
    """The value of `spark.jars.packages` for a version of Spark."""
    chosen = runtime(spark)
    name = f"iceberg-spark-runtime-{minor(spark)}_{chosen.scala}"
    return f"org.apache.iceberg:{name}:{chosen.iceberg},org.apache.iceberg:iceberg-aws-bundle:{chosen.iceberg}"


def delta(spark: str = SPARK) -> str:
    """Delta's package for a version of Spark: Delta tables are imported with it."""
    return runtime(spark).delta
