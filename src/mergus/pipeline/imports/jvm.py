"""What PySpark has no Python for: Iceberg's own catalogs and Hadoop's file systems, which live in Spark's JVM."""

from typing import TYPE_CHECKING, Any

from mergus.client import Levels
from mergus.pipeline.job import Table
from mergus.pipeline.session import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def hadoop_conf(spark: "SparkSession") -> Any:  # noqa: ANN401
    return spark.sparkContext._jsc.hadoopConfiguration()  # pyright: ignore


def iceberg_catalog(spark: "SparkSession", name: str) -> Any:  # noqa: ANN401
    """Iceberg's own, behind a catalog of Spark's."""
    session: Any = spark._jsparkSession  # pyright: ignore[reportPrivateUsage]
    return session.sessionState().catalogManager().catalog(name).icebergCatalog()


def activate(spark: "SparkSession") -> None:
    """In a thread of ours. Settings are looked up in the thread's session, and a new thread has none: catalogs are not
    found then, and Delta's rules do not hold."""
    jvm(spark).org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)  # pyright: ignore[reportPrivateUsage]


def namespace(spark: "SparkSession", levels: Levels) -> Any:  # noqa: ANN401
    gateway: Any = spark.sparkContext._gateway  # pyright: ignore
    array = gateway.new_array(gateway.jvm.java.lang.String, len(levels))
    for index, level in enumerate(levels):
        array[index] = level
    return jvm(spark).org.apache.iceberg.catalog.Namespace.of(array)


def identifier(spark: "SparkSession", table: Table) -> Any:  # noqa: ANN401
    found = namespace(spark, table.namespace)
    return jvm(spark).org.apache.iceberg.catalog.TableIdentifier.of(found, table.name)


def clone(spark: "SparkSession") -> "SparkSession":
    """A session with settings of its own, which begin as this one's are: those of one table do not reach another that
    is imported at the same time."""
    return type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())  # pyright: ignore


def separately(rows: "DataFrame") -> "DataFrame":
    """The same rows, of a query that is planned by itself wherever they are used."""
    frame: Any = rows._jdf  # pyright: ignore[reportPrivateUsage]
    session: Any = rows.sparkSession._jsparkSession  # pyright: ignore[reportPrivateUsage]
    return type(rows)(session.createDataFrame(frame.javaRDD(), frame.schema()), rows.sparkSession)
