"""The one place that builds a Spark session on the catalog.

Spark speaks to the server as any Iceberg client does. How it reaches objects is the server's to say (`/v1/config`):
keys of one's own if there are some in AWS_* variables, else those that the server vends for each table, else requests
that it signs. Secrets are given to the session, never printed: `settings` leaves them out unless asked.
"""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from mergus.client import Address, Client
from mergus.errors import SetupError
from mergus.extras import install_command
from mergus.pipeline import versions
from mergus.pipeline.catalog_settings import CATALOG, catalog_settings
from mergus.pipeline.java import check_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
DELEGATION: Final = "header.X-Iceberg-Access-Delegation"
CREDENTIALS: Final = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"
SIGN: Final = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/sign"


def delegates(client: Client) -> bool:
    """Whether sessions ask the server for access to objects: it offers some, and there are no keys of one's own."""
    own = any(name in os.environ for name in KEYS)
    return not own and (client.offers(CREDENTIALS) or client.offers(SIGN))


def settings(
    address: Address, *, catalog: str = CATALOG, spark: str = versions.SPARK, with_secrets: bool = True
) -> dict[str, str]:
    """The catalog's settings, with how this client proves who it is and how it reaches objects."""
    client = Client(address)
    start = f"spark.sql.catalog.{catalog}"
    found = catalog_settings(address.base, address.warehouse or client.prefix, catalog=catalog, spark=spark)
    if delegates(client):
        # the server takes the first that it can do
        found[f"{start}.{DELEGATION}"] = "vended-credentials,remote-signing"
    if with_secrets and address.token is not None:
        found[f"{start}.token"] = address.token
    elif with_secrets and address.credential is not None:
        found[f"{start}.credential"] = address.credential
        found[f"{start}.oauth2-server-uri"] = f"{address.base}/v1/oauth/tokens"
    return found


def spark_session(
    address: Address,
    *,
    master: str | None = None,
    app: str = "mergus",
    catalog: str = CATALOG,
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """The session of this process, with the catalog in it. `master` and what `conf` says go before anything of ours;
    under spark-submit both come from there. Timestamps are in UTC, as the other engine has them."""
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError:
        raise SetupError(f"Spark is not installed; install it with: {install_command('spark')}") from None
    active = SparkSession.getActiveSession()
    if active is None:
        check_java()
    ours = settings(address, catalog=catalog, spark=pyspark.__version__)
    if active is not None:
        if active.conf.get(f"spark.sql.catalog.{catalog}.uri", None) not in {None, address.base}:
            # a catalog that a session has loaded stays where it is, whatever its settings say later
            active = active.newSession()
        for key, value in ours.items():
            if key.startswith("spark.sql.catalog."):
                active.conf.set(key, value)
        return active
    builder = SparkSession.builder.appName(app)  # pyright: ignore[reportAttributeAccessIssue]
    if master is None and "SPARK_ENV_LOADED" not in os.environ:
        master = "local[*]"
    defaults = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": "false"}
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            # Spark's own 200 are made for clusters
            defaults["spark.sql.shuffle.partitions"] = str(4 * (os.cpu_count() or 1))
    for key, value in {**defaults, **ours, **(conf or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def query(spark: "SparkSession", text: str) -> "DataFrame":
    return spark.sql(text)  # pyright: ignore[reportUnknownMemberType]


def rows(spark: "SparkSession", text: str) -> list[tuple[Any, ...]]:
    """What a query gives, all of it."""
    return [tuple(row) for row in query(spark, text).collect()]


def jvm(spark: "SparkSession") -> Any:  # noqa: ANN401
    """The process that Spark runs in, for what of Iceberg's library SQL does not reach."""
    return cast(Any, spark)._jvm  # pyright: ignore[reportPrivateUsage]


def iceberg_table(spark: "SparkSession", sql_name: str) -> Any:  # noqa: ANN401
    """A table as Iceberg's library has it: with its FileIO, and whatever keys that needs."""
    session = cast(Any, spark)._jsparkSession  # pyright: ignore[reportPrivateUsage]
    return jvm(spark).org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, sql_name)


@contextmanager
def active(spark: "SparkSession") -> Generator[None]:
    """A session as this thread's own: Iceberg looks for catalogs there where a frame is read by a table's name."""
    java: Any = jvm(spark).org.apache.spark.sql.SparkSession
    before = java.getActiveSession()
    java.setActiveSession(cast(Any, spark)._jsparkSession)  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        if before.isDefined():
            java.setActiveSession(before.get())
        else:
            java.clearActiveSession()


def spark_errors() -> tuple[type[Exception], ...]:
    """What Spark raises: of its own, and of the JVM that it runs in."""
    from py4j.protocol import Py4JError  # pyright: ignore[reportMissingTypeStubs]
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def message(error: Exception) -> str:
    """One line of what Spark says, of the cause that is deepest: those above it only tell where it went through."""
    text = str(error)
    # of the JVM: its own words come after a line that says what was called
    thrown = [line for line in text.splitlines() if line.startswith(("Caused by: ", ": "))]
    first = (thrown[-1].partition(": ")[2] if thrown else text.strip().partition("\n")[0]).strip()
    return first or type(error).__name__


@contextmanager
def as_setup_errors() -> Generator[None]:
    """What Spark raises, as a message."""
    try:
        yield
    except spark_errors() as e:
        raise SetupError(message(e)) from None


@contextmanager
def conf(spark: "SparkSession", wanted: Mapping[str, str]) -> Generator[None]:
    """Settings of a session for a while."""
    before = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)
