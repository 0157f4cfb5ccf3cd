"""Another Spark than the suite's: in an environment of its own, made once in the user's cache directory."""

from pathlib import Path

from mergus.pipeline.versions import RUNTIMES, SPARK
from tests.support.ministack import install_package

VERSIONS = [runtime.spark for runtime in RUNTIMES.values() if runtime.spark != SPARK]


def python(version: str) -> Path:
    """The interpreter of the environment that has this pyspark; installed first if it is not there."""
    return install_package("pyspark", version) / "bin/python"
