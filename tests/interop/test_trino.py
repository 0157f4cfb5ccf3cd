"""Trino as users set it up, with keys that may do everything or with those that the server vends: what it writes DuckDB
reads and the other way round, its maintenance takes nothing away that DuckDB needs, and of DuckDB's views it has the
rows that DuckDB has, or none."""

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings

from mergus.ducklake.session import identifier
from tests.support import servers, trino, vended, views
from tests.support.lakes import TestLake
from tests.support.servers import Server
from tests.support.trino import Refused, Trino
from tests.support.view_queries import CERTAIN, NOT_IN_TRINO, ROWS, TABLES, UNCERTAIN, in_q, queries

Rows = list[tuple[Any, ...]]

INSTANT = "TIMESTAMP WITH TIME ZONE"


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = {"listener": servers.LISTENER, "trino_catalog": "lake", **vended.settings()}
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), **options) as running:
        yield running


@pytest.fixture(scope="module")
def engine(lake: TestLake, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trino]:
    with trino.running(lake.settings, server.uri, tmp_path_factory.mktemp("trino")) as running:
        yield running


class Both:
    """One table in both engines."""

    def __init__(self, engine: Trino, db: duckdb.DuckDBPyConnection, name: str) -> None:
        self.engine, self.db, self.name = engine, db, name

    def rows(self) -> Rows:
        """What both have now."""
        ours = self.db.execute(f"SELECT * FROM {self.name} ORDER BY ALL").fetchall()
        columns = ", ".join(str(i + 1) for i in range(len(self.db.description or ())))
        assert self.engine.query(f"SELECT * FROM {self.name} ORDER BY {columns}") == ours
        return ours

    def trino(self, sql: str) -> Rows:
        """Change it in Trino."""
        self.engine.query(sql.format(t=self.name))
        return self.rows()

    def duckdb(self, sql: str) -> Rows:
        """Change it in DuckDB."""
        self.db.execute(sql.format(t=self.name))
        return self.rows()

    def history(self) -> dict[int, Rows]:
        """What Trino has at every snapshot that it lists, the oldest first."""
        schema, _, table = self.name.rpartition(".")
        listed = self.engine.query(f'SELECT snapshot_id FROM {schema}."{table}$snapshots" ORDER BY committed_at')
        found: dict[int, Rows] = {}
        for (snapshot_id,) in listed:
            now = f"SELECT * FROM {self.name} FOR VERSION AS OF BIGINT '{snapshot_id}'"
            found[snapshot_id] = sorted(self.engine.query(now))
        return found

    def duckdb_history(self) -> dict[int, Rows]:
        """What DuckDB has at every snapshot of the lake that has the table."""
        found: dict[int, Rows] = {}
        for (version,) in self.db.execute("SELECT snapshot_id FROM snapshots() ORDER BY 1").fetchall():
            try:
                then = self.db.execute(f"SELECT * FROM {self.name} AT (VERSION => {version})").fetchall()
            except duckdb.CatalogException:
                continue
            found[version] = sorted(then)
        return found


def states(history: dict[int, Rows]) -> list[Rows]:
    """One after the other, without what changed nothing, and without the empty table of the beginning."""
    return [rows for rows, _ in groupby(history.values()) if rows]


def test_trino_lists_the_entries_of_files_that_duckdb_wrote(engine: Trino, db: duckdb.DuckDBPyConnection) -> None:
    """Trino reads the sort order of every data file there, and does not expect one that is missing."""
    db.execute("CREATE SCHEMA entered; CREATE TABLE entered.t AS SELECT range AS id FROM range(1000)")
    engine.query("INSERT INTO entered.t VALUES 1000")
    found = engine.query('SELECT data_file.sort_order_id FROM entered."t$entries"')
    assert found == [(0,), (0,)]


def test_statements_of_trino_leave_the_same_rows_in_duckdb(engine: Trino, db: duckdb.DuckDBPyConnection) -> None:
    engine.query("CREATE SCHEMA s")
    engine.query("CREATE TABLE s.t (id integer, name varchar) WITH (format = 'PARQUET')")
    both = Both(engine, db, "s.t")
    assert both.rows() == []
    assert both.trino("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'c')") == [(1, "a"), (2, "b"), (3, "c")]
    assert both.trino("UPDATE {t} SET name = 'B' WHERE id = 2") == [(1, "a"), (2, "B"), (3, "c")]
    assert both.duckdb("INSERT INTO {t} VALUES (4, 'd')") == [(1, "a"), (2, "B"), (3, "c"), (4, "d")]
    assert both.trino("DELETE FROM {t} WHERE id IN (1, 4)") == [(2, "B"), (3, "c")]
    merge = """MERGE INTO {t} t USING (VALUES (2, 'two'), (5, 'five')) AS s (id, name) ON t.id = s.id
               WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.name)"""
    assert both.trino(merge) == [(2, "two"), (3, "c"), (5, "five")]
    assert both.trino("ALTER TABLE {t} ADD COLUMN more bigint") == [
        (2, "two", None),
        (3, "c", None),
        (5, "five", None),
    ]
    both.trino("ALTER TABLE {t} RENAME COLUMN name TO called")
    assert both.trino("UPDATE {t} SET more = 7 WHERE called = 'c'") == [
        (2, "two", None),
        (3, "c", 7),
        (5, "five", None),
    ]
    assert both.trino("ALTER TABLE {t} DROP COLUMN more") == [(2, "two"), (3, "c"), (5, "five")]
    both.trino("ALTER TABLE {t} EXECUTE optimize")
    assert both.duckdb("DELETE FROM {t} WHERE id = 5") == [(2, "two"), (3, "c")]
    engine.query("ALTER TABLE s.t RENAME TO s.renamed")
    both = Both(engine, db, "s.renamed")
    assert both.rows() == [(2, "two"), (3, "c")]

    engine.query("CREATE TABLE s.made AS SELECT id, called FROM s.renamed")
    assert Both(engine, db, "s.made").rows() == [(2, "two"), (3, "c")]
    engine.query("CREATE OR REPLACE TABLE s.made AS SELECT 9 AS id")
    assert Both(engine, db, "s.made").rows() == [(9,)]
    engine.query("CREATE TABLE s.parts (id integer, day date) WITH (partitioning = ARRAY['day'])")
    engine.query("INSERT INTO s.parts VALUES (1, DATE '2026-01-01'), (2, DATE '2026-01-02')")
    assert db.execute("SELECT id FROM s.parts WHERE day = '2026-01-02'").fetchall() == [(2,)]
    assert engine.query("SELECT id FROM s.parts WHERE day = DATE '2026-01-02'") == [(2,)]

    engine.query("CREATE VIEW s.v AS SELECT id + 1 AS more FROM s.renamed")
    assert sorted(engine.query("SELECT * FROM s.v")) == [(3,), (4,)]
    engine.query("CREATE OR REPLACE VIEW s.v AS SELECT id FROM s.renamed WHERE id = 2")
    assert engine.query("SELECT * FROM s.v") == [(2,)]
    engine.query("DROP VIEW s.v")
    for name in ("renamed", "made", "parts"):
        engine.query(f"DROP TABLE s.{name}")
        with pytest.raises(duckdb.CatalogException):
            db.execute(f"SELECT * FROM s.{name}")
    engine.query("DROP SCHEMA s")


def test_trino_creates_a_table_again_after_dropping_it_and_its_schema(
    engine: Trino, db: duckdb.DuckDBPyConnection
) -> None:
    for turn in (1, 2):
        engine.query("CREATE SCHEMA again")
        engine.query(f"CREATE TABLE again.t AS SELECT {turn} AS turn")
        assert Both(engine, db, "again.t").rows() == [(turn,)]
        engine.query("DROP TABLE again.t")
        engine.query("DROP SCHEMA again")


def test_trino_reads_and_writes_nested_schemas_and_names_with_capitals(
    engine: Trino, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute('CREATE SCHEMA "Above"')
    db.execute('CREATE SCHEMA "Above.Below"')
    db.execute('CREATE TABLE "Above.Below"."Told" AS SELECT 1 AS id')
    assert engine.query('SELECT * FROM "above.below".told') == [(1,)]
    engine.query('INSERT INTO "above.below".told VALUES 2')
    engine.query('CREATE TABLE "above.below".made AS SELECT * FROM "above.below".told')
    assert Both(engine, db, '"above.below".made').rows() == [(1,), (2,)]


def test_trino_reads_and_writes_with_vended_credentials(engine: Trino, db: duckdb.DuckDBPyConnection) -> None:
    keyless = engine.of("vended")
    keyless.query("CREATE SCHEMA keyless")
    keyless.query("CREATE TABLE keyless.t AS SELECT 1 AS id, 'a' AS name")
    both = Both(keyless, db, "keyless.t")
    assert both.trino("INSERT INTO {t} VALUES (2, 'b'), (3, 'c')") == [(1, "a"), (2, "b"), (3, "c")]
    assert both.trino("UPDATE {t} SET name = 'B' WHERE id = 2") == [(1, "a"), (2, "B"), (3, "c")]
    assert both.duckdb("INSERT INTO {t} VALUES (4, 'd')") == [(1, "a"), (2, "B"), (3, "c"), (4, "d")]
    assert both.trino("DELETE FROM {t} WHERE id IN (1, 4)") == [(2, "B"), (3, "c")]
    keyless.query("CREATE VIEW keyless.v AS SELECT max(id) AS most FROM keyless.t")
    assert keyless.query("SELECT * FROM keyless.v") == [(3,)]


@pytest.mark.parametrize("maker", ["duckdb", "trino"])
def test_trinos_remove_orphan_files_deletes_no_file_of_duckdb(
    engine: Trino, db: duckdb.DuckDBPyConnection, maker: str
) -> None:
    schema = f"orphans_{maker}"
    db.execute(f"CREATE SCHEMA {schema}")
    both = Both(engine, db, f"{schema}.t")
    if maker == "duckdb":
        db.execute(f"CREATE TABLE {schema}.t AS SELECT range::INTEGER AS id, 'x' || range AS name FROM range(1000)")
        both.duckdb("INSERT INTO {t} VALUES (-1, 'inlined')")
    else:
        engine.query(
            f"CREATE TABLE {schema}.t AS SELECT CAST(n AS integer) AS id, 'x' || CAST(n AS varchar) AS name "
            "FROM UNNEST(sequence(0, 999)) AS u (n)"
        )
    both.trino("INSERT INTO {t} VALUES (2000, 'a'), (2001, 'b')")
    both.trino("DELETE FROM {t} WHERE id % 10 = 3")
    both.trino("DELETE FROM {t} WHERE id = 2000 OR id = 4")
    both.duckdb("DELETE FROM {t} WHERE id = 5")
    both.trino("UPDATE {t} SET name = 'y' WHERE id < 20")
    now, listed, versions = both.rows(), both.history(), both.duckdb_history()
    assert states(listed) == states(versions)
    assert len(states(listed)) >= 5
    engine.set("lake.remove_orphan_files_min_retention", "0s")
    for _ in range(2):
        engine.query(f"ALTER TABLE {schema}.t EXECUTE remove_orphan_files(retention_threshold => '0s')")
        assert both.duckdb_history() == versions
        assert both.history() == listed
        assert both.rows() == now
    assert len(both.trino("DELETE FROM {t} WHERE id = 6")) == len(now) - 1
    assert len(both.duckdb("DELETE FROM {t} WHERE id = 7")) == len(now) - 2


class Views:
    """DuckDB's views in both engines."""

    def __init__(self, engine: Trino, db: duckdb.DuckDBPyConnection, server: Server) -> None:
        self.engine, self.db, self.server = engine, db, server

    def make(self, query: str, view: str = "q.v") -> None:
        self.db.execute(f"CREATE OR REPLACE VIEW {view} AS {query}")

    def dialects(self, schema: str = "q", view: str = "v") -> list[str]:
        loaded = views.load(self.server, schema, view)
        return [one["dialect"] for one in loaded["versions"][0]["representations"]]

    def agree(self, view: str = "q.v") -> None:
        found = self.db.sql(f"FROM {view}")
        kinds = [str(kind) for kind in found.types]
        # DuckDB's client has instants only with a module for time zones
        names = [identifier(name) for name in found.columns]
        items = [f"make_timestamp(epoch_us({n}))" if k == INSTANT else n for n, k in zip(names, kinds, strict=True)]
        rows = self.db.execute(f"SELECT {', '.join(items)} FROM {view}").fetchall()
        ours = [tuple(map(as_json, row, kinds)) for row in rows]
        assert sorted(self.engine.query(f"SELECT * FROM {view}"), key=repr) == sorted(ours, key=repr)

    def refuse(self, view: str = "q.v") -> None:
        for query in ("SELECT *", "SELECT count(*)", "SELECT 1"):
            with pytest.raises(Refused, match="Cannot read unsupported dialect 'spark' for view"):
                self.engine.query(f"{query} FROM {view}")


def as_json(value: Any, kind: str) -> Any:
    """A value of DuckDB's as Trino sends it."""
    match value:
        case float() if repr(value) in {"nan", "inf", "-inf"}:
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)]
        case datetime():
            return value.isoformat(" ", "microseconds") + (" UTC" if kind == INSTANT else "")
        case None | bool() | float() | list():
            return value
        case int() if kind != "HUGEINT":
            return value
        case _:
            return str(value)


@pytest.fixture(scope="module")
def both_views(lake: TestLake, engine: Trino, server: Server) -> Iterator[Views]:
    with lake.duckdb() as session:
        for statement in f"CREATE SCHEMA q; {TABLES}; {ROWS}".split(";\n"):
            session.execute(in_q(statement))
        yield Views(engine, session, server)


@pytest.mark.parametrize("query", [query for query in CERTAIN if query not in NOT_IN_TRINO])
def test_a_duckdb_view_has_the_same_rows_in_trino(both_views: Views, query: str) -> None:
    both_views.make(in_q(query))
    assert both_views.dialects() == ["spark", "trino", "duckdb"]
    both_views.agree()


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=queries())
def test_any_translatable_duckdb_view_has_the_same_rows_in_trino_or_is_refused(both_views: Views, query: str) -> None:
    both_views.make(in_q(query))
    if "trino" in both_views.dialects():
        both_views.agree()
    else:
        both_views.refuse()


@pytest.mark.parametrize("query", [*NOT_IN_TRINO, *list(UNCERTAIN)[:5]])
def test_trino_refuses_a_duckdb_view_without_a_certain_translation(both_views: Views, query: str) -> None:
    both_views.make(in_q(query))
    assert both_views.dialects() == ["spark", "duckdb"]
    both_views.refuse()


def test_microseconds_and_like_patterns_in_duckdb_views_have_the_same_result_in_trino(both_views: Views) -> None:
    db = both_views.db
    db.execute("CREATE TABLE q.times(ts TIMESTAMP, name VARCHAR)")
    db.execute(
        "INSERT INTO q.times VALUES ('2024-01-01 10:00:00.123456', E'a\\nb'), ('2024-01-01 10:00:00.123', '🦆b')"
    )
    both_views.make("SELECT name, ts FROM q.times WHERE ts > '2024-01-01 10:00:00.123455'")
    assert db.execute("SELECT count(*) FROM q.v").fetchall() == [(1,)]
    both_views.agree()
    both_views.make(
        "SELECT TIMESTAMP '2024-01-01 10:00:00.123456' AS ts, name LIKE '_b' AS one, name LIKE 'a_b' AS other, "
        "length(name) AS n FROM q.times"
    )
    both_views.agree()


def test_duckdb_views_in_nested_schemas_and_with_capitals_are_read_by_trino(both_views: Views) -> None:
    db = both_views.db
    db.execute(
        'CREATE SCHEMA "Deep"; CREATE SCHEMA "Deep.Er"; CREATE TABLE "Deep.Er"."Own"(id INTEGER, "Name" VARCHAR)'
    )
    db.execute("""INSERT INTO "Deep.Er"."Own" VALUES (1, 'one'), (3, 'three')""")
    text = 'SELECT own.id, t.name, own."Name" AS "Other" FROM "deep.er".own JOIN q.t ON t.id = own.id'
    both_views.make(text, '"Deep.Er"."First"')
    both_views.make('SELECT other, id FROM "deep.er".FIRST WHERE id > 1', "q.second")
    both_views.agree('"Deep.Er"."First"')
    both_views.agree("q.second")
    assert both_views.engine.query('SELECT "other", ID FROM lake.q.second') == [("three", 3)]
    # a view of one that is not certain has no rows, either
    both_views.make('SELECT lower("Name") AS other, id FROM "Deep.Er"."Own"', '"Deep.Er"."First"')
    with pytest.raises(Refused, match="Cannot read unsupported dialect"):
        both_views.engine.query("SELECT count(*) FROM q.second")


def test_duckdb_views_with_names_that_trino_resolves_otherwise_are_refused(both_views: Views) -> None:
    db = both_views.db
    for name in ("t$history", "t$more", "t@1", "Ärger", "ärger"):
        db.execute(f'CREATE TABLE q."{name}" AS SELECT 1 AS id')
        both_views.make(f'SELECT id FROM q."{name}"')
        both_views.refuse()
    db.execute('CREATE TABLE q.own AS SELECT 1 AS id, 2 AS "$path"')
    both_views.make('SELECT id, "$path" AS p FROM q.own')
    both_views.refuse()
    db.execute('CREATE TABLE q."表" AS SELECT 1 AS "Größe"')
    both_views.make('SELECT * FROM q."表"')
    both_views.agree()


def test_a_view_at_a_past_snapshot_has_no_trino_text(both_views: Views, lake: TestLake) -> None:
    """The catalog that the text names has the tables as they are now."""
    both_views.make("SELECT id FROM q.t", "q.then")
    at = lake.snapshots()[-1][0]
    assert both_views.dialects(view="then") == ["spark", "trino", "duckdb"]
    then = both_views.server.http.get(f"/v1/lake@{at}/namespaces/q/views/then").json()["metadata"]
    assert [one["dialect"] for one in then["versions"][0]["representations"]] == ["spark", "duckdb"]
