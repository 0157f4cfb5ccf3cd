"""Spark, PyIceberg and DuckDB's iceberg extension as clients that are known: by OAuth2 of the server's own or by an
OIDC issuer, and with vended keys and nothing else. Each writes what it may, and is kept from what it may not."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError
from pyspark.errors import PySparkException

from mergus.ducklake.session import with_extensions
from tests.support import access, lakes, oidc_issuer, spark, vended
from tests.support.access import SECRET, TOKENS, Guarded
from tests.support.lakes import TestLake
from tests.support.oidc_issuer import AUDIENCE, TOKEN, Issuer


@dataclass
class Known:
    """One kind of token, and who gets one of these."""

    guarded: Guarded
    issuer: Issuer
    kind: str

    @property
    def token_uri(self) -> str:
        return self.guarded.server.uri + TOKENS if self.kind == "oauth2" else self.issuer.url + TOKEN

    @property
    def lake(self) -> TestLake:
        return self.guarded.lake

    def client(self, *grants: str) -> str:
        """The name of a new one, with these grants."""
        name = f"engine-{uuid4().hex[:8]}"
        if self.kind == "oauth2":
            self.guarded.client(name, *grants)
        else:
            self.issuer.clients[name] = SECRET
            for text in grants:
                self.guarded.grant(f"user:{name}", text)
        return name

    def pyiceberg(self, name: str) -> Catalog:
        conf = {"credential": f"{name}:{SECRET}", "oauth2-server-uri": self.token_uri, "scope": "catalog"}
        return load_catalog("lake", type="rest", uri=self.guarded.server.uri, warehouse="lake", **conf)

    def spark(self, name: str) -> str:
        catalog = spark.catalog(self.lake.settings, self.guarded.server.uri)
        conf = {
            "rest.auth.type": "oauth2",
            "credential": f"{name}:{SECRET}",
            "oauth2-server-uri": self.token_uri,
            "scope": "catalog",
            "header.X-Iceberg-Access-Delegation": "vended-credentials",
            # which keep it from those of the environment
            "s3.access-key-id": "nobody",
            "s3.secret-access-key": "nothing",
        }
        for key, value in conf.items():
            spark.session().conf.set(f"spark.sql.catalog.{catalog}.{key}", value)
        return catalog

    def duckdb(self, name: str) -> duckdb.DuckDBPyConnection:
        db = with_extensions("httpfs", "avro", "iceberg")
        db.execute(
            f"CREATE SECRET known (TYPE iceberg, CLIENT_ID '{name}', CLIENT_SECRET '{SECRET}', "
            f"OAUTH2_SERVER_URI '{self.token_uri}', OAUTH2_SCOPE 'catalog')"
        )
        db.execute(f"ATTACH 'lake' AS ice (TYPE iceberg, ENDPOINT '{self.guarded.server.uri}', SECRET known)")
        return db


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with oidc_issuer.issuer() as found:
        yield found


@pytest.fixture(scope="module")
def guarded(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    oidc = {"auth": "oauth2 oidc", "oidc_issuer": issuer.url, "oidc_audience": AUDIENCE}
    with lakes.lake(**vended.settings()) as lake:
        with lake.duckdb() as db:
            db.execute("CREATE SCHEMA sales; CREATE SCHEMA secret")
            db.execute("CREATE TABLE secret.t AS SELECT range AS i FROM range(30)")
        with access.guarded(lake, tmp_path_factory.mktemp("servers"), **oidc) as found:
            yield found


@pytest.fixture(params=["oauth2", "oidc"])
def known(guarded: Guarded, issuer: Issuer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Known:
    vended.without_keys(monkeypatch)
    return Known(guarded, issuer, request.param)


@pytest.fixture
def table(guarded: Guarded) -> str:
    """Rows in a file, of which some are deleted, and others in Postgres."""
    name = f"t_{uuid4().hex[:8]}"
    with guarded.lake.duckdb() as db:
        db.execute(f"CREATE TABLE sales.{name} AS SELECT range AS i FROM range(50)")
        db.execute(f"DELETE FROM sales.{name} WHERE i >= 20; INSERT INTO sales.{name} VALUES (20)")
    return name


def rows(lake: TestLake, table: str) -> list[int]:
    """What DuckDB reads."""
    with lake.duckdb() as db:
        return [i for (i,) in db.execute(f"SELECT i FROM sales.{table} ORDER BY i").fetchall()]


def numbers(*values: int) -> pa.Table:
    return pa.table({"i": pa.array(values, pa.int64())})


def test_pyiceberg_reads_and_writes_as_an_authenticated_client_within_its_grants(known: Known, table: str) -> None:
    writer = known.pyiceberg(known.client("ns:sales:rw"))
    assert writer.list_namespaces() == [("sales",)]
    loaded = writer.load_table(("sales", table))
    assert sorted(loaded.scan().to_arrow()["i"].to_pylist()) == list(range(21))
    # the issuer takes another key while its clients are at work
    known.issuer.rotate()
    loaded.append(numbers(100))
    loaded.delete("i < 5")
    assert rows(known.lake, table) == [*range(5, 21), 100]
    made = writer.create_table(("sales", f"{table}_made"), numbers().schema)
    made.append(numbers(1, 2))
    assert rows(known.lake, f"{table}_made") == [1, 2]

    reader = known.pyiceberg(known.client(f"table:sales.{table}:r"))
    assert reader.list_tables("sales") == [("sales", table)]
    seen = reader.load_table(("sales", table))
    assert len(seen.scan().to_arrow()) == 17
    with pytest.raises((ForbiddenError, OSError)):
        seen.append(numbers(7))
    with pytest.raises(NoSuchTableError):
        reader.load_table("secret.t")
    assert rows(known.lake, table) == [*range(5, 21), 100]


def test_duckdbs_iceberg_extension_reads_and_writes_as_an_authenticated_client_within_its_grants(
    known: Known, table: str
) -> None:
    with known.duckdb(known.client("ns:sales:rw")) as db:
        assert db.execute(f"SELECT i FROM ice.sales.{table} ORDER BY i").fetchall() == [(i,) for i in range(21)]
        db.execute(f"INSERT INTO ice.sales.{table} VALUES (100)")
        assert rows(known.lake, table) == [*range(21), 100]
    with known.duckdb(known.client(f"table:sales.{table}:r")) as db:
        assert db.execute(f"SELECT count(*) FROM ice.sales.{table}").fetchall() == [(22,)]
        with pytest.raises(duckdb.Error):
            db.execute(f"INSERT INTO ice.sales.{table} VALUES (7)")
        with pytest.raises(duckdb.Error, match=r"(?i)does not exist|not found"):
            db.execute("SELECT * FROM ice.secret.t")
    assert rows(known.lake, table) == [*range(21), 100]


def test_spark_reads_and_writes_as_an_authenticated_client_within_its_grants(known: Known, table: str) -> None:
    run = spark.session().sql
    catalog = known.spark(known.client("ns:sales:rw"))
    name = f"{catalog}.sales.{table}"
    assert [row[0] for row in run(f"SELECT i FROM {name} ORDER BY i").collect()] == list(range(21))
    known.issuer.rotate(keep=True)
    run(f"INSERT INTO {name} VALUES (100)")
    run(f"DELETE FROM {name} WHERE i < 5")
    assert rows(known.lake, table) == [*range(5, 21), 100]
    reader = known.spark(known.client(f"table:sales.{table}:r"))
    assert [row[0] for row in run(f"SHOW NAMESPACES IN {reader}").collect()] == ["sales"]
    assert run(f"SELECT count(*) FROM {reader}.sales.{table}").collect()[0][0] == 17
    with pytest.raises(Exception, match=r"(?i)forbidden|may not|denied|403"):
        run(f"INSERT INTO {reader}.sales.{table} VALUES (7)")
    with pytest.raises(PySparkException, match=r"TABLE_OR_VIEW_NOT_FOUND"):
        run(f"SELECT * FROM {reader}.secret.t").collect()
    assert rows(known.lake, table) == [*range(5, 21), 100]


def test_grants_to_a_role_of_the_issuer_apply_to_its_members(guarded: Guarded, issuer: Issuer, table: str) -> None:
    name = f"engine-{uuid4().hex[:8]}"
    guarded.grant(f"role:{name}-analysts", f"table:sales.{table}:r")
    token = issuer.token(sub=name, roles=[f"{name}-analysts", "other"])
    caller = guarded.with_token(token)
    path = f"{caller.path('sales')}/tables/{table}"
    assert caller.http.get(path).status_code == 200
    assert guarded.with_token(issuer.token(sub=name, roles=[])).http.get(path).status_code == 404
    # a scope narrows it
    narrowed = issuer.token(sub=name, roles=[f"{name}-analysts"], scope="ns:other:r openid")
    assert guarded.with_token(narrowed).http.get(path).status_code == 404
    # a client of that name is somebody else
    guarded.client(name)
    assert guarded.with_token(guarded.token(name)).http.get(path).status_code == 404
