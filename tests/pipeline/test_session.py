"""`mergus spark`: a session that reaches objects as the server says, and what it prints."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from mergus.client import Address
from mergus.errors import SetupError
from mergus.pipeline import session, versions
from tests.support import lakes, servers, vended
from tests.support.lakes import TestLake
from tests.support.servers import Server


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    with lakes.lake(**vended.settings()) as made:
        with made.duckdb() as db:
            db.execute("CREATE SCHEMA s; CREATE TABLE s.t(i INTEGER); INSERT INTO s.t SELECT range FROM range(100)")
        yield made


@pytest.fixture(scope="module")
def signing(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("signing")
    with servers.server(lake.settings, folder, sts_role_arn=None, remote_signing=True) as running:
        yield running


def spark(uri: str, *options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as a shell would: with the variables of this one."""
    command = [sys.executable, "-m", "mergus", "spark", "--uri", uri, *options]
    quiet = ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=1g"] if "--sql" in options else []
    return subprocess.run([*command, *quiet], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("how", ["keys", "vended", "signed"])
def test_a_spark_session_reads_objects_with_keys_vended_credentials_or_signed_requests(
    lake: TestLake, server: Server, signing: Server, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    uri = signing.uri if how == "signed" else server.uri
    if how != "keys":  # the suite has some
        vended.without_keys(monkeypatch)
    told = spark(uri, "--settings").stdout
    assert ("X-Iceberg-Access-Delegation vended-credentials,remote-signing" in told) == (how != "keys")
    new = {"keys": 1000, "vended": 2000, "signed": 3000}[how]
    done = spark(uri, "--sql", f"INSERT INTO lake.s.t SELECT {new} + i FROM lake.s.t WHERE i = 50")
    assert done.returncode == 0, done.stderr[-3000:]
    with lake.duckdb() as db:
        assert db.execute(f"SELECT count(*) FROM s.t WHERE i = {50 + new}").fetchall() == [(1,)]


def test_printed_spark_settings_contain_no_secrets(server: Server) -> None:
    told = spark(server.uri, "--settings", "--token", "hidden", "--conf", "a=b")
    assert (told.returncode, "a b" in told.stdout.splitlines()) == (0, True)
    assert "hidden" not in told.stdout + told.stderr
    with_them = session.settings(Address(server.uri, token="t0ken"))
    assert with_them["spark.sql.catalog.lake.token"] == "t0ken"
    without = session.settings(Address(server.uri, token="t0ken"), with_secrets=False)
    assert "t0ken" not in str(without)


def test_mergus_spark_reports_unsupported_versions_missing_servers_and_wrong_options(server: Server) -> None:
    wrong = spark(server.uri, "--settings", "--spark-version", "3.3.0")
    assert (wrong.returncode, "Spark 3.3.0 is not supported" in wrong.stderr) == (1, True)
    nobody = spark("http://127.0.0.1:1", "--settings")
    assert (nobody.returncode, "no answer" in nobody.stderr) == (1, True)
    bad = spark(server.uri, "--settings", "--conf", "nonsense")
    assert (bad.returncode, "is not KEY=VALUE" in bad.stderr) == (2, True)


@pytest.mark.parametrize(
    ("spark", "runtime", "iceberg"),
    [("3.5.9", "3.5_2.12", "1.12.0"), ("4.0.5", "4.0_2.13", "1.11.0"), ("4.1.0", "4.1_2.13", "1.12.0")],
)
def test_each_spark_version_gets_the_newest_iceberg_runtime_built_for_it(
    spark: str, runtime: str, iceberg: str
) -> None:
    assert versions.packages(spark).split(",") == [
        f"org.apache.iceberg:iceberg-spark-runtime-{runtime}:{iceberg}",
        f"org.apache.iceberg:iceberg-aws-bundle:{iceberg}",
    ]


def test_a_spark_that_iceberg_has_no_runtime_for_is_refused() -> None:
    for choose in (versions.packages, versions.delta):
        with pytest.raises(SetupError, match=r"Spark 2\.4\.8 is not supported; supported are Spark 3\.5, 4\.0, 4\.1"):
            choose("2.4.8")
