"""One Spark session for the whole run (it takes 10 s and more to start), with a catalog for each lake."""

import os
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

from pyspark.sql import SparkSession

from mergus.config import Settings
from mergus.pipeline.catalog_settings import catalog_settings


@cache
def session() -> SparkSession:
    scratch = Path(mkdtemp(prefix="mergus-spark-", dir=os.environ.get("MERGUS_STATE_DIR")))
    # S3FileIO reads its keys here, as it would on a user's machine
    builder = SparkSession.builder.master("local[2]").appName("mergus tests")  # pyright: ignore[reportAttributeAccessIssue]
    conf = {
        **{k: v for k, v in catalog_settings("http://unused", "unused").items() if "catalog.lake" not in k},
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        # a session of minutes gains nothing from the second compiler, and pays for it
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


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
