"""Describing a view of DuckDB's never leads out of the lake, however its text gets there."""

import socket
import threading
from collections.abc import Iterator
from uuid import uuid4

import duckdb
import pytest

from tests.support.lakes import TestLake
from tests.support.servers import Server, error_of


@pytest.fixture
def knocks() -> Iterator[tuple[int, list[object]]]:
    """A port, and who came."""
    came: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        stopped = threading.Event()

        def wait() -> None:
            while not stopped.is_set():
                try:
                    connection, who = listening.accept()
                except TimeoutError:
                    continue
                came.append(who)
                connection.close()

        thread = threading.Thread(target=wait)
        thread.start()
        yield listening.getsockname()[1], came
        stopped.set()
        thread.join()


def forge(lake: TestLake, name: str, sql: str) -> None:
    """A view of any text: DuckDB would bind it first, and a writer of the lake's rows need not."""
    with lake.duckdb() as db:
        db.execute(f"CREATE VIEW {name} AS SELECT 1 AS x")
    lake.sql("UPDATE ducklake_view SET sql = %s WHERE view_name = %s AND end_snapshot IS NULL", sql, name)


def load(server: Server, name: str) -> tuple[int, str]:
    return error_of(server.http.get(f"{server.path('main')}/views/{name}"))


OUTSIDE = "postgres_scan('host=127.0.0.1 port={port} connect_timeout=1', 'public', 't')"


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT * FROM {OUTSIDE}",
        f"SELECT * FROM system.main.{OUTSIDE}",
        f"SELECT (SELECT count(*) FROM {OUTSIDE}) AS n",
        f"WITH a AS (SELECT * FROM {OUTSIDE}) SELECT * FROM a",
        "SELECT * FROM postgres_query('x', 'SELECT 1')",
        "SELECT * FROM query('SELECT * FROM secret')",
        "SELECT * FROM read_csv('http://127.0.0.1:{port}/x')",
        "SELECT * FROM __ducklake_metadata_lake.mergus.client",
        "SELECT * FROM __ducklake_metadata_lake.ducklake_snapshot",
        'SELECT * FROM "__DUCKLAKE_METADATA_lake".public.ducklake_snapshot',
    ],
)
@pytest.mark.parametrize("through", ["itself", "a view", "a view of a view"])
def test_a_view_that_reads_outside_the_lake_is_not_described(
    text: str, through: str, server: Server, lake: TestLake, knocks: tuple[int, list[object]]
) -> None:
    port, came = knocks
    name = f"v_{uuid4().hex[:8]}"
    forge(lake, name, text.replace("{port}", str(port)))
    for _ in range({"itself": 0, "a view": 1, "a view of a view": 2}[through]):
        forge(lake, f"{name}_o", f'SELECT * FROM main."{name.upper()}"')
        name = f"{name}_o"
    assert load(server, name) == (406, "UnsupportedOperationException")
    assert came == []


def test_a_view_that_reads_outside_the_lake_through_a_macro_is_not_described(
    server: Server, lake: TestLake, knocks: tuple[int, list[object]]
) -> None:
    port, came = knocks
    with lake.duckdb() as db:
        db.execute("CREATE MACRO leads(a) AS TABLE SELECT 1 AS x")
        db.execute("CREATE MACRO counts(a) AS 1")
    outside = OUTSIDE.replace("{port}", str(port))
    lake.sql(
        "UPDATE ducklake_macro_impl i SET sql = %s FROM ducklake_macro m WHERE m.macro_id = i.macro_id "
        "AND m.macro_name = 'leads'",
        f"SELECT * FROM {outside}",
    )
    lake.sql(
        "UPDATE ducklake_macro_impl i SET sql = %s FROM ducklake_macro m WHERE m.macro_id = i.macro_id "
        "AND m.macro_name = 'counts'",
        f"(SELECT count(*) FROM {outside})",
    )
    for name, text in {"by_leads": "SELECT * FROM leads(1)", "by_counts": "SELECT counts(1) AS n"}.items():
        forge(lake, name, text)
        assert load(server, name) == (406, "UnsupportedOperationException")
    assert came == []


def test_views_within_the_lake_are_described(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE seen(i INTEGER, s VARCHAR)")
    db.execute("CREATE MACRO twice(a) AS a * 2; CREATE MACRO several(n) AS TABLE SELECT * FROM range(n) AS r(x)")
    for name, text in {
        "plain": "SELECT i, upper(s) AS u FROM seen WHERE s LIKE 'x%'",
        "nested": "SELECT u, count(*) AS n FROM plain GROUP BY ALL",
        "made": "SELECT * FROM range(3) AS r(x), generate_series(1, 2) AS g(y), unnest([1, 2]) AS u(z)",
        "macros": "SELECT twice(x) AS d FROM several(3)",
        "told": "SELECT snapshot_id FROM ducklake_snapshots('lake')",
    }.items():
        db.execute(f"CREATE VIEW {name} AS {text}")
        answer = server.http.get(f"{server.path('main')}/views/{name}")
        assert answer.status_code == 200, answer.text
