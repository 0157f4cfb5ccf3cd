"""Random commits of both engines between runs: what is built of changes is what is built anew, and what DuckDB's own
SQL gives."""

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mergus.pipeline.job import Place, Run, table
from mergus.pipeline.session import query
from mergus.pipeline.transform.definition import parse
from mergus.pipeline.transform.job import transform

PIPELINE = """
name = "random"

[[step]]
name = "silver"
output = "{s}.silver"
mode = "merge"
keys = ["id"]
inputs.a = {{ table = "{s}.a", changes = true }}
inputs.b = {{ table = "{s}.b", changes = true, keys = {{ id = "a_id" }} }}
sql = "SELECT a.id, max(a.v) AS v, count(b.a_id) AS n FROM a LEFT JOIN b ON a.id = b.a_id GROUP BY a.id"

[[step]]
name = "gold"
output = "{s}.gold"
mode = "merge"
keys = ["v"]
inputs.silver = {{ table = "{s}.silver", changes = true }}
sql = "SELECT v, count(*) AS ids, sum(n) AS n FROM silver GROUP BY v"
properties = {{ "write.merge.mode" = "merge-on-read" }}
"""
SILVER = "SELECT a.id, max(a.v), count(b.a_id) FROM {s}.a LEFT JOIN {s}.b ON a.id = b.a_id GROUP BY a.id"
GOLD = f"SELECT v, count(*), sum(n) FROM ({SILVER}) x(id, v, n) GROUP BY v"

DUCKDB = (
    "INSERT INTO {a} SELECT {n} + range, range % 4 FROM range({n})",
    "INSERT INTO {b} SELECT range % {n} FROM range(30)",
    "DELETE FROM {a} WHERE id % 4 = {n} % 4",
    "DELETE FROM {b} WHERE a_id = {n}",
    "UPDATE {a} SET v = (v + 1) % 4 WHERE id % 3 = {n} % 3",
    "UPDATE {a} SET v = NULL WHERE id = {n}",
    "UPDATE {a} SET id = id + 1 WHERE id = {n}",
    "CALL ducklake_flush_inlined_data('lake'); CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_rewrite_data_files('lake')",
)
SPARK = (
    "INSERT INTO {a} SELECT CAST(id AS INT), CAST(id % 4 AS INT) FROM range({n})",
    "DELETE FROM {b} WHERE a_id > {n}",
    "UPDATE {a} SET v = 2 WHERE id < {n}",
    "INSERT OVERWRITE {b} SELECT CAST(id % {n} AS INT) FROM range(12)",
)
COMMITS = st.one_of(
    st.tuples(st.just("duckdb"), st.sampled_from(DUCKDB), st.integers(1, 12)),
    st.tuples(st.just("spark"), st.sampled_from(SPARK), st.integers(1, 12)),
)


@settings(max_examples=3, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(COMMITS, min_size=1, max_size=3), min_size=3, max_size=3))
def test_incremental_runs_after_random_commits_equal_a_full_rebuild(
    place: Place, db: duckdb.DuckDBPyConnection, rounds: list[list[tuple[str, str, int]]]
) -> None:
    schema = f"r{len(list(place.client.namespaces()))}"
    db.execute(f"CREATE SCHEMA {schema}")
    db.execute(f"CREATE TABLE {schema}.a(id INTEGER, v INTEGER); CREATE TABLE {schema}.b(a_id INTEGER)")
    db.execute(f"INSERT INTO {schema}.a SELECT range, range % 4 FROM range(20)")
    pipeline = parse(PIPELINE.format(s=schema), "p.toml", Path())

    def run(**options: Any) -> dict[str, Counter[Any]]:
        outcome = transform(place, pipeline, Run("transform", lambda _: None), **options)
        assert outcome.failed == {}
        return {n: Counter(db.execute(f"SELECT * FROM {schema}.{n}").fetchall()) for n in ("silver", "gold")}

    built = run()
    for commits in rounds:
        for engine, text, n in commits:
            if engine == "duckdb":
                db.execute(text.format(a=f"{schema}.a", b=f"{schema}.b", n=n))
            else:
                names = {name: place.sql_name(table(f"{schema}.{name}")) for name in ("a", "b")}
                query(place.spark, text.format(**names, n=n))
        built = run()
        for name, wanted in (("silver", SILVER), ("gold", GOLD)):
            assert built[name] == Counter(db.execute(wanted.format(s=schema)).fetchall()), name
    assert run() == built  # nothing has changed
    assert run(rebuild=True) == built
