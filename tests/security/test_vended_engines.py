"""Spark, PyIceberg and DuckDB's iceberg extension read and write with vended keys and nothing else.

None of these keys deletes anything: what engines clean up after themselves stays, and nothing fails for it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ValidationException

from mergus.ducklake.session import with_extensions
from mergus.embedded import snippets
from mergus.embedded.stack import connection_values
from mergus.embedded.state import StateDir
from tests.support import lakes, servers, spark, vended
from tests.support.lakes import TestLake
from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
ROWS = [(i,) for i in range(100)]


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    with lakes.lake(**vended.settings()) as made:
        with made.duckdb() as db:
            # `main` is a name that DuckDB keeps for itself in what it attaches
            db.execute("CREATE SCHEMA eng")
        yield made


@pytest.fixture
def table(lake: TestLake) -> str:
    """Made by DuckDB: rows in files, deletes in others, rows in Postgres."""
    name = f"t_{uuid4().hex[:8]}"
    with lake.duckdb() as db:
        db.execute(f"CREATE TABLE eng.{name} AS SELECT range AS i FROM range(120)")
        db.execute(f"DELETE FROM eng.{name} WHERE i BETWEEN 98 AND 119; INSERT INTO eng.{name} VALUES (98), (99)")
    return name


def rows(lake: TestLake, table: str) -> list[tuple[Any, ...]]:
    """What DuckDB reads."""
    with lake.duckdb() as db:
        return db.execute(f"SELECT i FROM eng.{table} ORDER BY i").fetchall()


def files(lake: TestLake, server: Server, table: str) -> set[str]:
    """All objects that are the table's."""
    answer = vended.load(server, table, "eng").json()
    ((data_path,),) = lake.sql("SELECT value FROM ducklake_metadata WHERE key = 'data_path'")
    own = vended.keys_below(lake.settings, answer["metadata"]["location"] + "/")
    return {*own, *vended.keys_below(lake.settings, f"{data_path}eng/{table}/")}


class TestPyIceberg:
    @pytest.fixture
    def catalog(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> Catalog:
        vended.without_keys(monkeypatch)
        return load_catalog("lake", type="rest", uri=server.uri, warehouse="lake")

    def test_pyiceberg_reads_and_writes_with_vended_keys(self, lake: TestLake, catalog: Catalog, table: str) -> None:
        loaded = catalog.load_table(("eng", table))
        assert sorted(loaded.scan().to_arrow()["i"].to_pylist()) == [i for (i,) in ROWS]
        loaded.append(pa.table({"i": pa.array([1000], pa.int64())}))
        loaded.delete("i < 10")
        assert sorted(loaded.scan().to_arrow()["i"].to_pylist()) == [*range(10, 100), 1000]
        assert rows(lake, table) == [(i,) for i in [*range(10, 100), 1000]]

    def test_pyiceberg_creates_tables_with_vended_keys(self, lake: TestLake, catalog: Catalog) -> None:
        name = f"made_{uuid4().hex[:8]}"
        made = catalog.create_table(("eng", name), pa.schema([pa.field("i", pa.int64())]))
        made.append(pa.table({"i": pa.array([1, 2], pa.int64())}))
        assert rows(lake, name) == [(1,), (2,)]
        with catalog.create_table_transaction(("eng", f"{name}_staged"), made.schema()) as staged:
            staged.append(pa.table({"i": pa.array([3], pa.int64())}))
        assert rows(lake, f"{name}_staged") == [(3,)]

    def test_a_failed_pyiceberg_commit_reports_the_conflict(self, lake: TestLake, catalog: Catalog, table: str) -> None:
        """Its own manifests stay, which it logs; what it raises is why."""
        loaded, other = catalog.load_table(("eng", table)), catalog.load_table(("eng", table))
        with pytest.raises(ValidationException, match="Added data files were found"), loaded.transaction() as changes:
            changes.delete("i = 3")
            other.delete("i = 4")
        assert rows(lake, table) == [row for row in ROWS if row != (4,)]

    def test_pyiceberg_cannot_read_without_vended_keys(
        self, server: Server, table: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So it was they that opened the files."""
        vended.without_keys(monkeypatch)
        asks_not = {"header.X-Iceberg-Access-Delegation": "none", "s3.connect-timeout": "2", "s3.request-timeout": "2"}
        catalog = load_catalog("lake", type="rest", uri=server.uri, warehouse="lake", **asks_not)
        with pytest.raises(OSError, match=r"(?i)denied|forbidden|credential|403"):
            catalog.load_table(("eng", table)).scan().to_arrow()


class TestDuckDB:
    @pytest.fixture
    def db(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[duckdb.DuckDBPyConnection]:
        vended.without_keys(monkeypatch)
        with with_extensions("httpfs", "avro", "iceberg") as made:
            made.execute(
                f"ATTACH 'lake' AS ice (TYPE iceberg, ENDPOINT '{server.uri}', AUTHORIZATION_TYPE 'none', "
                "REMOVE_FILES_ON_DELETE false)"
            )
            yield made

    def test_duckdb_reads_and_writes_with_vended_keys(
        self, lake: TestLake, db: duckdb.DuckDBPyConnection, table: str
    ) -> None:
        assert db.execute(f"SELECT i FROM ice.eng.{table} ORDER BY i").fetchall() == ROWS
        db.execute(f"INSERT INTO ice.eng.{table} VALUES (1000), (1001)")
        db.execute(f"DELETE FROM ice.eng.{table} WHERE i = 1000")
        # of a file of DuckLake's, too: that deletes are put beside it is the extension's own way
        db.execute(f"DELETE FROM ice.eng.{table} WHERE i < 3")
        assert db.execute(f"SELECT count(*) FROM ice.eng.{table}").fetchall() == [(98,)]
        assert rows(lake, table) == [*ROWS[3:], (1001,)]

    def test_duckdb_creates_tables_with_vended_keys(self, lake: TestLake, db: duckdb.DuckDBPyConnection) -> None:
        name = f"made_{uuid4().hex[:8]}"
        db.execute(f"CREATE TABLE ice.eng.{name} (i BIGINT)")
        db.execute(f"INSERT INTO ice.eng.{name} VALUES (1), (2)")
        assert rows(lake, name) == [(1,), (2,)]


class TestDuckDBAsPrinted:
    """A process of its own, with the text that `serve` prints and README has, and no keys but vended ones."""

    @pytest.fixture
    def run(
        self, lake: TestLake, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[str], subprocess.CompletedProcess[str]]:
        vended.without_keys(monkeypatch)
        values = connection_values(StateDir(tmp_path), lake.settings, server.uri, "")
        given = {name: value for name, value in values.items() if name.startswith("MERGUS_")}

        def run(code: str) -> subprocess.CompletedProcess[str]:
            text = f"{snippets.duckdb_iceberg()}\n{code}\nprint('the end')\n"
            return subprocess.run(
                [sys.executable, "-c", text],
                env={**os.environ, **given},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )

        return run

    @pytest.mark.parametrize("end", ["db.close()", "db.execute('ROLLBACK')", "del db", ""])
    def test_an_uncommitted_duckdb_transaction_does_not_crash_the_process(
        self, lake: TestLake, run: Callable[[str], subprocess.CompletedProcess[str]], table: str, end: str
    ) -> None:
        done = run(f"db.execute('BEGIN'); db.execute('INSERT INTO lake.eng.{table} VALUES (1000)'); {end}")
        assert (done.returncode, done.stdout.splitlines()[-1:], done.stderr) == (0, ["the end"], "")
        assert rows(lake, table) == ROWS

    def test_a_failed_duckdb_commit_reports_the_conflict(
        self, run: Callable[[str], subprocess.CompletedProcess[str]], table: str
    ) -> None:
        done = run(
            f"""
other = db.cursor()
db.execute("BEGIN")
db.execute("DELETE FROM lake.eng.{table} WHERE i = 3")
other.execute("DELETE FROM lake.eng.{table} WHERE i = 3")
try:
    db.execute("COMMIT")
except duckdb.Error as e:
    print(e)
"""
        )
        assert (done.returncode, done.stdout.splitlines()[-1:], done.stderr) == (0, ["the end"], "")
        assert "CommitFailedException" in done.stdout
        assert "Could not remove" not in done.stdout

    def test_readme_has_the_attach_options_that_serve_prints(self) -> None:
        def options(text: str) -> list[str]:
            (found,) = re.findall(r"\(TYPE iceberg,(.*?)\)", text, re.DOTALL)
            return [option.split()[0] for option in found.split(",")]

        assert options((ROOT / "README.md").read_text()) == options(snippets.duckdb_iceberg())


class TestSpark:
    """The session has the suite's keys in its environment. Catalogs that are given wrong ones do not look there."""

    @pytest.fixture
    def catalog(self, lake: TestLake, server: Server) -> str:
        return spark_catalog(lake, server, "vended-credentials")

    def test_spark_reads_and_writes_with_vended_keys(
        self, lake: TestLake, server: Server, catalog: str, table: str
    ) -> None:
        run, name = spark.session().sql, f"{catalog}.eng.{table}"
        assert [tuple(row) for row in run(f"SELECT i FROM {name} ORDER BY i").collect()] == ROWS
        run(f"INSERT INTO {name} VALUES (1000)")
        run(f"UPDATE {name} SET i = i + 5000 WHERE i < 5")
        run(f"DELETE FROM {name} WHERE i < 10")
        assert rows(lake, table) == [(i,) for i in [*range(10, 100), 1000, *range(5000, 5005)]]

    def test_spark_creates_tables_with_vended_keys(self, lake: TestLake, catalog: str) -> None:
        name = f"made_{uuid4().hex[:8]}"
        run = spark.session().sql
        run(f"CREATE TABLE {catalog}.eng.{name} USING iceberg AS SELECT id AS i FROM range(3)")
        run(f"CREATE OR REPLACE TABLE {catalog}.eng.{name} USING iceberg AS SELECT id AS i FROM range(4)")
        assert rows(lake, name) == [(0,), (1,), (2,), (3,)]

    def test_spark_procedures_succeed_although_vended_keys_cannot_delete_files(
        self, lake: TestLake, server: Server, catalog: str, table: str
    ) -> None:
        run, name = spark.session().sql, f"{catalog}.eng.{table}"
        run(f"INSERT INTO {name} VALUES (1000)")
        before, then = files(lake, server, table), lake.snapshots()[-1][0]
        run(f"CALL {catalog}.system.rewrite_manifests('eng.{table}')")
        run(f"CALL {catalog}.system.rewrite_data_files(table => 'eng.{table}', options => map('rewrite-all', 'true'))")
        assert before <= files(lake, server, table)
        run(f"DROP TABLE {name}")
        with lake.duckdb() as db:
            found = db.execute(f"SELECT count(*) FROM eng.{table} AT (VERSION => {then})").fetchall()
        assert found == [(101,)]

    def test_concurrent_spark_writers_retry_although_they_cannot_delete_their_files(
        self, lake: TestLake, catalog: str, table: str
    ) -> None:
        failed: list[Exception] = []

        def write(value: int) -> None:
            try:
                spark.session().sql(f"INSERT INTO {catalog}.eng.{table} VALUES ({value})")
            except Exception as e:
                failed.append(e)

        threads = [Thread(target=write, args=(1000 + n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert rows(lake, table) == [*ROWS, *((1000 + n,) for n in range(4))]


class TestSigned:
    """The same by requests that the server signs."""

    @pytest.fixture
    def signing(self, lake: TestLake, tmp_path: Path) -> Iterator[Server]:
        with servers.server(lake.settings, tmp_path, sts_role_arn=None, remote_signing=True) as running:
            yield running

    def test_spark_reads_and_writes_with_remote_signing(self, lake: TestLake, signing: Server, table: str) -> None:
        run = spark.session().sql
        name = f"{spark_catalog(lake, signing, 'remote-signing')}.eng.{table}"
        assert [tuple(row) for row in run(f"SELECT i FROM {name} ORDER BY i").collect()] == ROWS
        run(f"INSERT INTO {name} VALUES (1000)")
        run(f"DELETE FROM {name} WHERE i < 10")
        assert rows(lake, table) == [(i,) for i in [*range(10, 100), 1000]]


def spark_catalog(lake: TestLake, server: Server, delegation: str) -> str:
    """One with wrong keys."""
    name = spark.catalog(lake.settings, server.uri)
    conf = {
        "header.X-Iceberg-Access-Delegation": delegation,
        "s3.access-key-id": "nobody",
        "s3.secret-access-key": "nothing",
    }
    for key, value in conf.items():
        spark.session().conf.set(f"spark.sql.catalog.{name}.{key}", value)
    return name
