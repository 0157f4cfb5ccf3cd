"""A Spark session with the settings that we print sees commits of DuckDB with its next query, however often it asks.

Iceberg's Spark catalog caches tables unless it is told otherwise, and keeps one until 30 s after its last use.
"""

import duckdb
import pytest
from click.testing import CliRunner

from mergus.cli import main
from mergus.embedded import snippets
from tests.support import documents
from tests.support import spark as sparks
from tests.support.lakes import TestLake
from tests.support.servers import Server


def settings_of_mergus_spark(server: Server) -> dict[str, str]:
    printed = CliRunner().invoke(main, ["spark", "--settings", "--uri", server.uri])
    assert printed.exit_code == 0, printed.output
    return documents.conf_lines(printed.output)


@pytest.mark.parametrize("source", ["README", "GUIDE", "scripts/serve", "mergus spark --settings"])
def test_a_spark_session_with_printed_settings_sees_every_duckdb_commit_at_once(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection, source: str
) -> None:
    match source:
        case "README":
            printed = documents.readme_spark_settings(server.uri, lake.settings.prefix)
        case "GUIDE":
            printed = documents.guide_spark_settings(server.uri, lake.settings.prefix)
        case "scripts/serve":
            printed = documents.conf_options(snippets.spark(lake.settings, server.uri))
        case _:
            printed = settings_of_mergus_spark(server)
    spark, catalog = sparks.session(), sparks.catalog_with(printed)
    for key in ("spark.jars.packages", "spark.sql.extensions"):
        assert spark.conf.get(key) == printed[key]
    schema = f"fresh_{catalog}"
    db.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t(i INTEGER)")
    for count in range(5):
        (found,) = spark.sql(f"SELECT count(*) FROM {catalog}.{schema}.t").collect()
        assert found[0] == count
        db.execute(f"INSERT INTO {schema}.t VALUES ({count})")
