"""Examples of how to connect, ready to paste. They print no key or password, since output may end in a log: those are
in connection.env."""

import shlex
from pathlib import Path

from mergus.config import Settings
from mergus.pipeline import versions
from mergus.pipeline.catalog_settings import catalog_settings

PYICEBERG = """\
import os
from pyiceberg.catalog import load_catalog

lake = load_catalog("lake", type="rest", uri=os.environ["MERGUS_URI"], warehouse=os.environ["MERGUS_WAREHOUSE"])
print(lake.list_namespaces())
"""

DUCKDB = """\
import os, duckdb

env = {name: value.replace("'", "''") for name, value in os.environ.items()}
db = duckdb.connect(config={"extension_directory": os.environ["MERGUS_DUCKDB_EXTENSIONS"]})
for extension in ("httpfs", "postgres_scanner", "ducklake"):
    db.execute(f"LOAD {extension}")
"""

# REMOVE_FILES_ON_DELETE is about transactions that fail or are rolled back, and no server can turn it off for a client.
# With keys that delete nothing it hides why a commit failed, and a session that is closed in a transaction aborts its
# process; with keys that do, it deletes the files of a commit whose answer was lost.
DUCKDB_ICEBERG = '''\
import os, duckdb

env = {name: value.replace("'", "''") for name, value in os.environ.items()}
db = duckdb.connect(config={"extension_directory": os.environ["MERGUS_DUCKDB_EXTENSIONS"]})
for extension in ("httpfs", "avro", "iceberg"):
    db.execute(f"LOAD {extension}")
db.execute(f"""ATTACH '{env["MERGUS_WAREHOUSE"]}' AS lake (TYPE iceberg, ENDPOINT '{env["MERGUS_URI"]}',
    AUTHORIZATION_TYPE 'none', DEFAULT_SCHEMA 'main', REMOVE_FILES_ON_DELETE false)""")
print(db.sql("SELECT schema_name FROM information_schema.schemata WHERE catalog_name = 'lake'"))
'''


def pyiceberg() -> str:
    return PYICEBERG


def duckdb_iceberg() -> str:
    return DUCKDB_ICEBERG


def duckdb(settings: Settings) -> str:
    lines = [DUCKDB]
    if settings.s3_access_key_id:
        lines.append(f'db.execute(f"""CREATE SECRET ({", ".join(_secret(settings))})""")\n')
    schema = settings.metadata_schema.replace("'", "''")
    options = f" (METADATA_SCHEMA '{schema}')" if schema != "public" else ""
    lines.append(f"db.execute(f\"ATTACH 'ducklake:postgres:{{env['MERGUS_POSTGRES_DSN']}}' AS lake{options}\")\n")
    lines.append("print(db.sql(\"SELECT schema_name FROM information_schema.schemata WHERE catalog_name = 'lake'\"))\n")
    return "".join(lines)


def _secret(settings: Settings) -> list[str]:
    parts = [
        "TYPE s3",
        "KEY_ID '{env['AWS_ACCESS_KEY_ID']}'",
        "SECRET '{env['AWS_SECRET_ACCESS_KEY']}'",
        "REGION '{env['AWS_REGION']}'",
    ]
    if settings.s3_session_token:
        parts.append("SESSION_TOKEN '{env['AWS_SESSION_TOKEN']}'")
    if settings.s3_endpoint:
        parts.append("\n    ENDPOINT '{env['AWS_ENDPOINT_URL_S3'].split('://')[1]}'")
        parts.append(f"USE_SSL {str(settings.s3_endpoint.startswith('https')).lower()}")
    if settings.path_style:
        parts.append("URL_STYLE 'path'")
    return parts


def spark(settings: Settings, uri: str) -> str:
    conf = catalog_settings(uri, settings.prefix)
    options = [f"  --conf {shlex.quote(f'{key}={value}')}" for key, value in conf.items()]
    return " \\\n".join(["spark-sql", *options, "  -e 'SHOW NAMESPACES IN lake'"]) + "\n"


def guide(settings: Settings, uri: str, connection_file: Path) -> str:
    def block(text: str) -> str:
        return "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())

    return (
        f"In a shell, first:\n\n"
        f"{block(f'set -a; . {shlex.quote(str(connection_file))}; set +a')}\n"
        f"PyIceberg (python):\n\n{block(pyiceberg())}\n"
        f"DuckDB, straight to the lake (python):\n\n{block(duckdb(settings))}\n"
        f"DuckDB's iceberg extension, as a client of the catalog (python):\n\n{block(duckdb_iceberg())}\n"
        f"Spark {versions.minor(versions.SPARK)} (shell):\n\n{block(spark(settings, uri))}"
    )
