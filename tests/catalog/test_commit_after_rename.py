"""A commit to a table that DuckDB has renamed since the server made its answer about it."""

import duckdb

from tests.support.lakes import TestLake
from tests.support.servers import Server
from tests.support.writers import Raw, rows


def test_a_table_that_was_loaded_and_then_renamed_by_duckdb_is_committed_to(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    """A rename has no word that names the table: the answer from before it is still right, and must not be too old."""
    db.execute("CREATE TABLE named(i INTEGER, s VARCHAR); INSERT INTO named VALUES (1, 'x')")
    Raw(lake, server, "named")
    db.execute("ALTER TABLE named RENAME TO renamed")
    raw = Raw(lake, server, "renamed")
    answer = raw.commit("append", add=[raw.data_file(rows(2))])
    assert answer.status_code == 200, answer.text
    assert db.execute("SELECT i FROM renamed ORDER BY i").fetchall() == [(1,), (2,)]
