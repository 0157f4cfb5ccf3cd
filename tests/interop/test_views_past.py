"""Views as they were: through `lake@N`, every view is what it was when snapshot N was the newest, whoever made it, and
DuckDB's views are those that a DuckDB session finds that is attached at N, with the columns that they have there."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import duckdb
import pytest

from mergus.ducklake.session import attach, identifier
from tests.support import lakes, servers
from tests.support.lakes import TestLake
from tests.support.servers import Server
from tests.support.views import Json, commit, drop, rename, replace, texts, url, wanted

SCHEMAS = ("a", "b")
NAMES = ("v", "w", "x", "V")
ICEBERG = {"INTEGER": "int", "BIGINT": "long", "VARCHAR": "string"}

# By namespace and name: what a view is answered with, or the status if it cannot be shown.
Shown = dict[tuple[str, str], Json | int]


def shown(server: Server, point: str = "") -> Shown:
    """Every view there is."""
    found: Shown = {}
    for schema in SCHEMAS:
        path = f"/v1/lake{point}/namespaces/{schema}/views"
        listed = server.http.get(path)
        if listed.status_code == 404:
            continue
        for name in [one["name"] for one in listed.json()["identifiers"]]:
            answer = server.http.get(f"{path}/{name}")
            assert answer.status_code in {200, 406}, answer.text
            assert server.http.head(f"{path}/{name}").status_code == 204
            found[schema, name] = answer.json()["metadata"] if answer.status_code == 200 else 406
    return found


def columns(view: Json | int) -> list[tuple[str, str]] | None:
    """None if it cannot be shown."""
    if isinstance(view, int):
        return None
    current = next(v for v in view["versions"] if v["version-id"] == view["current-version-id"])
    schema = next(s for s in view["schemas"] if s["schema-id"] == current["schema-id"])
    return [(field["name"], field["type"]) for field in schema["fields"]]


def in_duckdb(lake: TestLake, at: int) -> dict[tuple[str, str], list[tuple[str, str]] | None]:
    """The views of a session that is attached at a snapshot, and their columns; None of one that it cannot read."""
    with then(lake, at) as session:
        query = "SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = 'lake' AND NOT internal"
        return {(s, n): described(session, s, n) for s, n in session.execute(query).fetchall() if s in SCHEMAS}


def described(session: duckdb.DuckDBPyConnection, schema: str, name: str) -> list[tuple[str, str]] | None:
    try:
        found = session.execute(f"DESCRIBE SELECT * FROM lake.{identifier(schema)}.{identifier(name)}").fetchall()
    except duckdb.Error:
        return None
    return [(name, ICEBERG[kind]) for name, kind, *_ in found]


@contextmanager
def then(lake: TestLake, at: int) -> Iterator[duckdb.DuckDBPyConnection]:
    session = attach(lake.settings, read_only=True, at=at)
    try:
        yield session
    finally:
        session.close()


def pick(random: Random, known: Shown) -> tuple[str, str]:
    """A view that is there, more often than not."""
    if known and random.random() < 0.7:
        return random.choice(sorted(known))
    return random.choice(SCHEMAS), random.choice(NAMES)


def by_client(server: Server, random: Random, step: int, known: Shown) -> None:
    """Whether it can be done depends on what there is."""
    schema, name = pick(random, known)
    other = random.choice(NAMES)
    match random.choice((0, 0, 0, 1, 1, 2, 3, 4, 5, 6)):
        case 0:
            server.http.post(url(server, schema), json=wanted(schema, name, spark="SELECT 1"))
        case 1:
            server.http.post(url(server, schema), json=wanted(schema, name, duckdb="SELECT 1 AS i, 's' AS s"))
        case 2:
            commit(server, schema, name, replace(schema, spark=f"SELECT {step}"))
        case 3:
            commit(server, schema, name, replace(schema, duckdb=f"SELECT {step} AS i, 's' AS s", spark="SELECT"))
        case 4:
            commit(server, schema, name, [{"action": "set-properties", "updates": {"step": str(step)}}])
        case 5:
            rename(server, (schema, name), (random.choice(SCHEMAS), other))
        case _:
            drop(server, schema, name)


def in_session(db: duckdb.DuckDBPyConnection, random: Random, step: int, known: Shown) -> None:
    schema, name = pick(random, known)
    other = random.choice(NAMES)
    statements = [
        f"CREATE VIEW {schema}.{name} AS SELECT * FROM {schema}.t",
        f"CREATE OR REPLACE VIEW {schema}.{name} AS SELECT {step}::BIGINT AS n, * FROM {schema}.t",
        f"ALTER VIEW {schema}.{name} RENAME TO {other}",
        f"COMMENT ON VIEW {schema}.{name} IS 'of step {step}'",
        f"DROP VIEW {schema}.{name}",
        f"CREATE TABLE {schema}.{name}(hides INTEGER)",
        f"DROP TABLE {schema}.{name}",
        f"ALTER TABLE {schema}.t ADD COLUMN c{step} VARCHAR",
        f"DROP TABLE {schema}.t",
        f"CREATE TABLE {schema}.t(i INTEGER, s VARCHAR)",
        f"CREATE OR REPLACE VIEW {schema}.{name} AS SELECT s, i FROM {schema}.t",
        f"DROP SCHEMA {schema} CASCADE" if step % 3 == 0 else f"CREATE VIEW {schema}.{other} AS SELECT {step} AS i",
    ]
    # of what is not there, or is there already
    with suppress(duckdb.CatalogException, duckdb.BinderException):
        db.execute(random.choice(statements))


@pytest.mark.parametrize("seed", range(2))
def test_every_view_at_a_past_snapshot_is_shown_as_it_was(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    with lakes.lake() as lake, servers.server(lake.settings, tmp_path) as server:
        was, known = dict[int, Shown](), Shown()
        db = lake.duckdb()
        db.execute("CREATE TABLE main.tick(i INTEGER)")
        for step in range(60):
            if random.random() < 0.5:
                for schema in SCHEMAS:
                    db.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                    db.execute(f"CREATE TABLE IF NOT EXISTS {schema}.t(i INTEGER, s VARCHAR)")
            if random.random() < 0.5:
                by_client(server, random, step, known)
            else:
                in_session(db, random, step, known)
            # of several states at one snapshot, the last counts
            known = was[lake.snapshots()[-1][0]] = shown(server)
            if random.random() < 0.7:
                db.execute(f"INSERT INTO main.tick VALUES ({step})")
        db.close()
        for at, before in was.items():
            found = shown(server, f"@{at}")
            assert found == before, at
            theirs = in_duckdb(lake, at)
            assert theirs.keys() <= found.keys()
            for view, wanted_columns in theirs.items():
                if is_duckdbs(found[view]):
                    assert columns(found[view]) == wanted_columns, (at, view)
    every = [view for views in was.values() for view in views.values()]
    alone = [view for view in every if not isinstance(view, int) and "duckdb" not in texts(view)]
    counts = (len(was), len(alone), sum(map(is_duckdbs, every)))
    assert min(counts) > 10, counts


def is_duckdbs(view: Json | int) -> bool:
    """One that a client made or changed has the columns that the client has seen."""
    if isinstance(view, int):
        return True
    return view["versions"][-1]["summary"] == {"engine-name": "duckdb"} and "step" not in view["properties"]
