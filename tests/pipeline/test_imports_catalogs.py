"""Tables of other catalogs: another server's, a Hive metastore's, Glue's; and the command, with its secrets."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import duckdb
import pytest
from click.testing import CliRunner, Result

from mergus.cli import main
from mergus.pipeline.imports.importing import Asked, import_tables
from mergus.pipeline.imports.secrets import Secrets
from mergus.pipeline.imports.sources import connect
from mergus.pipeline.job import Place, Run, Table
from mergus.pipeline.verify import verify
from tests.support import lakes, metastore, ministack, servers
from tests.support import spark as sparks
from tests.support.lakes import TestLake
from tests.support.loads import in_order
from tests.support.servers import Server

SECRET = "hush-hush-7c1f"


@pytest.fixture(scope="module")
def other() -> Iterator[TestLake]:
    """The lake of the other server."""
    with lakes.lake() as made:
        yield made


@pytest.fixture(scope="module")
def others(other: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(other.settings, tmp_path_factory.mktemp("others")) as running:
        yield running


@pytest.fixture(scope="module")
def server(lake: TestLake, other: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It allows what the other lake has."""
    allowed = f"{other.settings.data_path}".rstrip("/").rsplit("/", 1)[0]
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), allowed_locations=allowed) as running:
        yield running


def command(*arguments: str) -> tuple[Result, dict[str, dict[str, str]]]:
    """What it printed, and what its report says of each table."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "report.json")
        done = CliRunner().invoke(main, ["pipeline", "import", *arguments, "--report", str(file)])
        report = json.loads(file.read_text())
    return done, {one["source"]: one for one in report.get("tables", ())}


def assert_same(lake: TestLake, place: Place, *names: str) -> None:
    tables = [Table(tuple(name.split(".")[:-1]), name.split(".")[-1]) for name in names]
    report = verify(place, lake.of_writers, tables, Run("verify", lambda _: None), newest=None)
    assert {(str(one.table), one.state) for one in report.checked} == {(name, "equal") for name in names}


@pytest.mark.usefixtures("as_user")
def test_tables_of_another_rest_catalog_are_imported(
    lake: TestLake,
    place: Place,
    other: TestLake,
    others: Server,
    db: duckdb.DuckDBPyConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With rows that DuckLake keeps in Postgres there, and a table that Spark cannot read among them."""
    theirs = other.duckdb()
    theirs.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders(i BIGINT, s VARCHAR)")
    theirs.execute("INSERT INTO shop.orders SELECT range, 'x' || range FROM range(5000)")
    theirs.execute("INSERT INTO shop.orders VALUES (-1, 'inlined')")
    theirs.execute("DELETE FROM shop.orders WHERE i IN (3, 4)")
    theirs.execute("CREATE TABLE shop.times(w TIME); INSERT INTO shop.times VALUES ('12:00')")
    theirs.execute("CREATE SCHEMA empty")
    wanted = in_order(theirs.execute("SELECT * FROM shop.orders").fetchall())
    theirs.close()

    monkeypatch.setenv("MERGUS_SOURCE_TOKEN", SECRET)
    source = ("--from", "iceberg-rest", "--source", others.uri)
    done, told = command(*source, "shop", "--how", "copy", "--into", "copies")
    assert done.exit_code == 3, done.output
    assert (told["shop.orders"]["state"], told["shop.orders"]["rows"]) == ("copied", 4999)
    assert told["shop.times"]["state"] == "failed"
    assert "time" in told["shop.times"]["reason"]
    assert in_order(db.execute("SELECT * FROM lake.copies.orders").fetchall()) == wanted
    done, told = command(*source)
    assert done.exit_code == 3, done.output
    assert (told["shop.orders"]["state"], told["shop.orders"]["rows"]) == ("registered", 4999)
    assert in_order(db.execute("SELECT * FROM lake.shop.orders").fetchall()) == wanted
    assert_same(lake, place, "shop.orders", "copies.orders")
    done, told = command(*source, "shop.orders")
    assert (done.exit_code, told["shop.orders"]["state"]) == (0, "skipped")
    assert SECRET not in done.output
    done, told = command(*source, "shop.orders", "--into", "planned", "--plan")
    assert (done.exit_code, told["shop.orders"]["state"], told["shop.orders"]["how"]) == (0, "planned", "register")
    assert "planned" not in lakes.schemas(db)


@pytest.mark.usefixtures("as_user", "server")
def test_an_import_does_not_print_secrets_of_the_source_catalog(others: Server, tmp_path: Path) -> None:
    """Not even where a library repeats them, as Iceberg does with what should be a number."""
    file = tmp_path / "conf"
    file.write_text(f"# of the other catalog\ncredential=a:{SECRET}\ntoken-expires-in-ms={SECRET}\n")
    report = tmp_path / "report.json"
    address = others.uri.replace("//", f"//me:{SECRET}@")
    source = ("--from", "iceberg-rest", "--source", address, "--source-conf", f"uri={others.uri}")
    options = ("--source-conf-file", str(file), "--source-conf", f"token={SECRET}", "--report", str(report))
    done = CliRunner().invoke(main, ["pipeline", "import", *source, "shop", *options])
    assert done.exit_code == 1
    told = json.loads(report.read_text())
    assert told["state"] == "failed"
    assert told["error"].endswith('For input string: "***"')
    assert SECRET not in done.output + report.read_text() + str(done.exception)


def imported(place: Place, kind: str, uri: str | None, conf: dict[str, str], *names: str) -> dict[str, tuple[str, int]]:
    connector = connect(kind, place.spark, uri, conf)
    report = import_tables(place, Run("import", lambda _: None), connector, Asked(names), Secrets(conf))
    assert all(one.rows is not None for one in report.tables), [one.reason for one in report.tables]
    return {one.source: (one.state, one.rows or 0) for one in report.tables}


def write(catalog: str, conf: dict[str, str], namespace: str, location: str | None = None) -> None:
    """Two tables by another catalog of Spark's own."""
    session = sparks.session()
    session.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in conf.items():
        session.conf.set(f"spark.sql.catalog.{catalog}.{key}", value)
    # the metastore's database has no tables for locks
    unlocked = "TBLPROPERTIES ('engine.hive.lock-enabled' = 'false')"
    at = f" LOCATION '{location}'" if location else ""
    session.sql(f"CREATE NAMESPACE {catalog}.{namespace}{at}")
    session.sql(
        f"CREATE TABLE {catalog}.{namespace}.t USING iceberg PARTITIONED BY (bucket(2, id)) "
        f"{unlocked} AS SELECT id, 'x' || id AS s FROM range(20)"
    )
    session.sql(f"DELETE FROM {catalog}.{namespace}.t WHERE id = 3")
    session.sql(f"CREATE TABLE {catalog}.{namespace}.u (i INT) USING iceberg {unlocked}")


def test_tables_of_a_hive_metastore_are_imported(
    lake: TestLake, place: Place, tmp_path: Path, db: duckdb.DuckDBPyConnection
) -> None:
    with metastore.running(tmp_path) as uri:
        write(f"hive_{uuid4().hex[:8]}", {"type": "hive", "uri": uri}, "hived", f"file://{tmp_path}/hived")
        found = imported(place, "hive", uri, {}, "hived")
    assert found == {"hived.t": ("copied", 19), "hived.u": ("copied", 0)}
    assert db.execute("SELECT count(*), sum(id) FROM lake.hived.t").fetchall() == [(19, 187)]
    assert_same(lake, place, "hived.t")


def test_tables_of_a_glue_catalog_are_imported(
    lake: TestLake, place: Place, tmp_path: Path, db: duckdb.DuckDBPyConnection
) -> None:
    """An emulator's, with a store of its own, which our server knows nothing of. Glue's client has the keys of the
    environment, which are the suite's."""
    with ministack.running(tmp_path, 900, "s3,sts,iam,glue", "false") as given:
        keys = {
            "s3.access-key-id": given["s3_access_key_id"],
            "s3.secret-access-key": given["s3_secret_access_key"].get_secret_value(),
        }
        conf = {
            "glue.endpoint": given["s3_endpoint"],
            "s3.endpoint": given["s3_endpoint"],
            "s3.path-style-access": "true",
            "client.region": given["s3_region"],
            **keys,
        }
        warehouse = f"s3://{ministack.BUCKET}/glue"
        write(f"glue_{uuid4().hex[:8]}", {"type": "glue", "warehouse": warehouse, **conf}, "glued")
        found = imported(place, "glue", warehouse, conf, "glued")
    assert found == {"glued.t": ("copied", 19), "glued.u": ("copied", 0)}
    assert db.execute("SELECT count(*), sum(id) FROM lake.glued.t").fetchall() == [(19, 187)]
    assert_same(lake, place, "glued.t")
