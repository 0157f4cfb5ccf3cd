"""The Spark and the Iceberg that jobs run on: the one place that names them.

Iceberg's runtime is built for one minor version of Spark, and Spark loads it from Maven Central by its coordinates.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from mergus.errors import SetupError

SPARK: Final = "4.0.5"
ICEBERG: Final = "1.11.0"
# of Spark (minor) to the Scala that its published builds have
SCALA: Final = {"4.0": "2.13", "3.5": "2.12"}
DELTA: Final = {"4.0": "4.0.1", "3.5": "3.3.2"}


def minor(spark: str) -> str:
    return ".".join(spark.split(".")[:2])


def installed() -> str:
    """The Spark of this environment; the one that jobs are made for if there is none."""
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return SPARK


def packages(spark: str = SPARK) -> str:
    """What `spark.jars.packages` is for a version of Spark."""
    made_for = minor(spark)
    if made_for not in SCALA:
        raise SetupError(f"Spark {spark} is not supported: Iceberg {ICEBERG} is used with {', '.join(SCALA)}")
    runtime = f"org.apache.iceberg:iceberg-spark-runtime-{made_for}_{SCALA[made_for]}:{ICEBERG}"
    return f"{runtime},org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}"


def delta(spark: str = SPARK) -> str:
    """Delta's package for a version of Spark: what is imported from it is read with it."""
    made_for = minor(spark)
    if made_for not in DELTA:
        raise SetupError(f"Delta is not supported with Spark {spark}, only with {', '.join(DELTA)}")
    return f"io.delta:delta-spark_{SCALA[made_for]}:{DELTA[made_for]}"
