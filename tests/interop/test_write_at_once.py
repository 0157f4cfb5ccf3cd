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


def test_rows_cannot_become_unreadable_by_a_type_that_comes_with_them(client: Client) -> None:
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


def test_rows_and_a_wider_type_come_together(client: Client) -> None:
    client.run("CREATE TABLE {s}.t (x INTEGER, y FLOAT)")
    client.commit(
        "INSERT INTO {s}.t VALUES (1, 0.1), (NULL, NULL)",
        "ALTER TABLE {s}.t ALTER x SET DATA TYPE BIGINT",
        "ALTER TABLE {s}.t ALTER y SET DATA TYPE DOUBLE",
    )
    client.agree()
    assert client.ask_ducklake("SELECT x FROM {s}.t WHERE x = 1") == [(1,)]


def test_a_column_goes_that_rows_of_the_same_transaction_are_partitioned_by(client: Client) -> None:
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
