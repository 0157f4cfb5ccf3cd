"""Views under many hands at once: clients of several servers, and DuckDB sessions."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import duckdb
import pytest

from tests.support import servers, views
from tests.support.lakes import TestLake
from tests.support.servers import Server
from tests.support.views import commit, create, load, names, replace, wanted

WRITERS, ROUNDS = 4, 5


@pytest.fixture(scope="module")
def several(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("servers")
        started = [servers.server(lake.settings, folder, listener="off") for _ in range(2)]
        yield [stack.enter_context(server) for server in started]


def test_concurrent_replacements_of_a_view_are_all_in_its_history(several: list[Server], lake: TestLake) -> None:
    several[0].create("many")
    create(several[0], "many", "v", duckdb="SELECT 0 AS i", spark="SELECT 0 AS i")
    keep = [{"action": "set-properties", "updates": {"version.history.num-entries": "100"}}]
    views.answered(commit(several[0], "many", "v", keep))
    before = len(lake.snapshots())

    def write(writer: int) -> None:
        for round in range(ROUNDS):
            text = f"SELECT {writer * 100 + round + 1} AS i"
            updates = replace("many", duckdb=text, spark=text)
            views.answered(commit(several[writer % 2], "many", "v", updates))

    def read(reader: int) -> list[int]:
        """What a session sees is always some version, and never none."""
        with lake.duckdb() as session:
            return [session.execute("FROM many.v").fetchall()[0][0] for _ in range(20)]

    with ThreadPoolExecutor(WRITERS + 1) as pool:
        seen = pool.submit(read, 0)
        list(pool.map(write, range(WRITERS)))
        found = seen.result()
    written = {w * 100 + r + 1 for w in range(WRITERS) for r in range(ROUNDS)}
    assert set(found) <= {0, *written}
    shown = load(several[1], "many", "v")
    ids = [v["version-id"] for v in shown["versions"]]
    assert ids == list(range(1, len(written) + 2))
    assert [e["version-id"] for e in shown["version-log"]] == ids
    texts = {v["representations"][0]["sql"] for v in shown["versions"]}
    assert texts == {f"SELECT {n} AS i" for n in (0, *written)}
    assert len(lake.sound_snapshots()) - before == len(written)
    with lake.duckdb() as session:
        assert f"SELECT {session.execute('FROM many.v').fetchall()[0][0]} AS i" == views.texts(shown)["duckdb"]


def test_one_of_several_concurrent_creations_of_a_view_or_table_name_succeeds(
    several: list[Server], lake: TestLake
) -> None:
    """To a view for DuckDB, a view for Spark, a table of a client's or a view of DuckDB's, whoever is first."""
    several[0].create("race")
    with lake.duckdb() as session:
        session.execute("USE lake.race")
        for round in range(6):
            name = f"n{round}"

            def in_duckdb(name: str = name) -> str:
                try:
                    session.execute(f"CREATE VIEW {name} AS SELECT 1 AS i")
                except duckdb.Error:
                    return "taken"
                return "made"

            def by_client(number: int, name: str = name) -> str:
                server = several[number % 2]
                bodies = [wanted("race", name, duckdb="SELECT 2 AS i"), wanted("race", name, spark="SELECT 3 AS i")]
                if number < 2:
                    answer = server.http.post(views.url(server, "race"), json=bodies[number])
                else:
                    table = {"name": name, "schema": views.SCHEMA}
                    answer = server.http.post(f"{server.path('race')}/tables", json=table)
                assert answer.status_code in {200, 409}, answer.text
                return "made" if answer.status_code == 200 else "taken"

            with ThreadPoolExecutor(4) as pool:
                theirs = pool.submit(in_duckdb)
                ours = list(pool.map(by_client, range(3)))
                count = Counter([theirs.result(), *ours])
            live = lake.sql(
                "SELECT (SELECT count(*) FROM ducklake_view WHERE view_name = %s AND end_snapshot IS NULL) "
                "+ (SELECT count(*) FROM ducklake_table WHERE table_name = %s AND end_snapshot IS NULL)",
                name,
                name,
            )[0][0]
            # only a view that DuckDB cannot see may be hidden by one that DuckDB makes
            alone = lake.sql("SELECT count(*) FROM iceberg_view WHERE name = %s AND end_snapshot IS NULL", name)[0][0]
            assert live <= 1
            assert count["made"] == live + alone
            assert alone == 0 or ours.count("made") == 1
            assert names(several[0], "race").count(name) <= 1
    lake.sound_snapshots()
