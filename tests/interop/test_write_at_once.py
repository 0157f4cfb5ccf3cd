"""Transactions of DuckDB's iceberg extension that change rows, columns and partitions at once: one commit each."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import duckdb
import pytest

from mergus.ducklake.session import identifier, literal, s3_secret, with_extensions
from tests.support import loads
from tests.support.commits import everything
from tests.support.lakes import Row
from tests.support.sharing import Sharing


@dataclass
class Client:
    """The extension, in a schema of its own. In queries `{s}` is the schema."""

    sharing: Sharing
    client: duckdb.DuckDBPyConnection
    catalog: str
    schema: str

    def run(self, *queries: str) -> list[Row]:
        """The answer of the last."""
        found: list[Row] = []
        for query in queries:
            found = self.client.execute(query.replace("{s}", f"{self.catalog}.{self.schema}")).fetchall()
        return found

    def commit(self, *queries: str) -> None:
        self.run("BEGIN", *queries, "COMMIT")

    def refuse(self, *queries: str) -> str:
        """A transaction that is not taken: its reason. Nothing of it is left."""
        before = everything(self.sharing.lake)
        with pytest.raises(duckdb.Error) as refused:
            self.commit(*queries)
        assert everything(self.sharing.lake) == before
        return str(refused.value)

    def agree(self, table: str = "t") -> list[int]:
        """The extension and PyIceberg read what DuckDB does, the latter at every snapshot. Gives the snapshots, by
        DuckLake's ids."""
        lake = self.sharing.lake
        with self.sharing.open() as db:
            listed = loads.assert_readable(lake, self.sharing.server, db, table, self.schema)
            theirs = loads.in_order(self.run(f"FROM {{s}}.{table}"))
            assert theirs == loads.in_order(db.execute(f"FROM {self.schema}.{table}").fetchall())
        return listed

    def ask_ducklake(self, query: str) -> list[Row]:
        with self.sharing.open() as db:
            return db.execute(query.replace("{s}", self.schema)).fetchall()


@pytest.fixture
def client(sharing: Sharing) -> Iterator[Client]:
    lake, schema = sharing.lake, f"s_{uuid4().hex[:8]}"
    found = with_extensions("httpfs", "avro", "iceberg")
    found.execute(s3_secret(lake.settings))
    options = f"TYPE iceberg, ENDPOINT {literal(sharing.server.uri)}, AUTHORIZATION_TYPE 'none'"
    found.execute(f"ATTACH {literal(lake.settings.prefix)} AS ice ({options})")
    found.execute(f"CREATE SCHEMA ice.{identifier(schema)}")
    with found:
        yield Client(sharing, found, "ice", schema)


def test_a_transaction_that_retypes_its_own_rows_to_an_unreadable_type_is_refused(client: Client) -> None:
    """Dates that a transaction inserts, and then makes timestamps: no Iceberg reader takes the one for the other, and
    the table could not be loaded any more."""
    client.run("CREATE TABLE {s}.t (x DATE)")
    reason = client.refuse(
        "INSERT INTO {s}.t VALUES ('2020-01-01')", "ALTER TABLE {s}.t ALTER x SET DATA TYPE TIMESTAMP"
    )
    assert "column x is stored as int32/date" in reason
    assert "write the rows after that" in reason
    assert client.agree() == []
    # the other way round the rows have the type that the table is left with
    client.commit(
        "ALTER TABLE {s}.t ALTER x SET DATA TYPE TIMESTAMP", "INSERT INTO {s}.t VALUES ('2020-01-01 01:02:03')"
    )
    assert len(client.agree()) == 1
    client.run("DROP TABLE {s}.t")


def test_one_transaction_inserts_rows_and_widens_their_column_types(client: Client) -> None:
    client.run("CREATE TABLE {s}.t (x INTEGER, y FLOAT)")
    client.commit(
        "INSERT INTO {s}.t VALUES (1, 0.1), (NULL, NULL)",
        "ALTER TABLE {s}.t ALTER x SET DATA TYPE BIGINT",
        "ALTER TABLE {s}.t ALTER y SET DATA TYPE DOUBLE",
    )
    client.agree()
    assert client.ask_ducklake("SELECT x FROM {s}.t WHERE x = 1") == [(1,)]


def test_one_transaction_inserts_rows_and_drops_their_partition_column(client: Client) -> None:
    client.run("CREATE TABLE {s}.t (a INTEGER, b INTEGER, c INTEGER)", "ALTER TABLE {s}.t SET PARTITIONED BY (a, c)")
    client.commit(
        "INSERT INTO {s}.t VALUES (1, 2, 3), (4, 5, 6)",
        "ALTER TABLE {s}.t SET PARTITIONED BY (a)",
        "ALTER TABLE {s}.t DROP COLUMN c",
    )
    assert len(client.agree()) == 1
    assert client.run("FROM {s}.t ORDER BY a") == [(1, 2), (4, 5)]
    client.run("INSERT INTO {s}.t VALUES (7, 8)", "DELETE FROM {s}.t WHERE a = 1")
    client.agree()
    assert client.run("FROM {s}.t ORDER BY a") == [(4, 5), (7, 8)]


def test_rows_of_one_file_are_deleted_several_times_in_one_transaction(client: Client) -> None:
    """Each statement is a snapshot of its own, before and after which both engines read the same rows."""
    client.run("CREATE TABLE {s}.t (a INTEGER, b INTEGER)", "INSERT INTO {s}.t SELECT range, 0 FROM range(20)")
    client.run("DELETE FROM {s}.t WHERE a = 19")
    client.commit(
        "DELETE FROM {s}.t WHERE a = 1",
        "UPDATE {s}.t SET b = 100 WHERE a = 2",
        "UPDATE {s}.t SET b = b + 1 WHERE a IN (2, 3)",
        "DELETE FROM {s}.t WHERE a > 15",
    )
    snapshots = client.agree()
    assert len(snapshots) == 6
    counts = [client.ask_ducklake(f"SELECT count(*) FROM {{s}}.t AT (VERSION => {at})") for at in snapshots]
    assert counts == [[(n,)] for n in (20, 19, 18, 18, 18, 15)]
    assert client.run("FROM {s}.t WHERE b > 0 ORDER BY a") == [(2, 101), (3, 1)]
    client.run("DELETE FROM {s}.t WHERE a = 5")
    assert len(client.agree()) == 7
    # each data file has one delete file, which says since when each row is gone
    files = client.sharing.lake.sql(
        """SELECT count(*) FROM ducklake_delete_file d JOIN ducklake_table t USING (table_id)
           JOIN ducklake_schema s USING (schema_id) WHERE schema_name = %s AND d.end_snapshot IS NULL
           GROUP BY data_file_id""",
        client.schema,
    )
    assert {n for (n,) in files} == {1}


def test_one_transaction_deletes_rows_that_it_inserted(client: Client) -> None:
    client.run("CREATE TABLE {s}.t (a INTEGER, b INTEGER)")
    client.commit(
        "INSERT INTO {s}.t SELECT range, 0 FROM range(9)",
        "DELETE FROM {s}.t WHERE a = 1",
        "ALTER TABLE {s}.t ADD COLUMN c INTEGER",
        "INSERT INTO {s}.t VALUES (70, 7, 7)",
        "UPDATE {s}.t SET b = 5 WHERE a IN (2, 70)",
        "DELETE FROM {s}.t WHERE a IN (3, 70)",
    )
    assert len(client.agree()) == 5
    assert client.run("SELECT a FROM {s}.t ORDER BY a") == [(a,) for a in (0, 2, 4, 5, 6, 7, 8)]


def test_inlined_rows_and_rows_of_files_are_deleted_several_times_in_one_transaction(client: Client) -> None:
    client.run("CREATE TABLE {s}.t (a INTEGER, b INTEGER)")
    client.ask_ducklake("INSERT INTO lake.{s}.t SELECT range, 0 FROM range(100, 130)")
    client.ask_ducklake("INSERT INTO lake.{s}.t SELECT range, 0 FROM range(6)")
    client.ask_ducklake("DELETE FROM lake.{s}.t WHERE a IN (5, 129)")
    client.commit(
        "DELETE FROM {s}.t WHERE a IN (0, 100)",
        "UPDATE {s}.t SET b = 1 WHERE a IN (1, 101)",
        "DELETE FROM {s}.t WHERE a IN (1, 2, 101, 102)",
    )
    # the rows that DuckDB keeps in Postgres came with two snapshots, and those of the file with one
    assert len(client.agree()) == 6
    left = [*range(3, 5), *range(103, 129)]
    assert client.run("SELECT a FROM {s}.t ORDER BY a") == [(a,) for a in left]
    # nothing of the inlined rows is left, and nothing of a file
    client.commit("DELETE FROM {s}.t WHERE a < 4", "DELETE FROM {s}.t WHERE a < 110", "DELETE FROM {s}.t")
    client.agree()
    assert client.run("FROM {s}.t") == []
