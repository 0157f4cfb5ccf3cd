"""What came and what went between two snapshots, whoever committed, and whatever has become of the files."""

from collections import Counter
from typing import Any

import duckdb
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mergus.pipeline.job import Place, table
from mergus.pipeline.session import query
from mergus.pipeline.transform.changes import between

Row = tuple[Any, ...]


def current(place: Place, name: str) -> int:
    return place.metadata(table(name))["current-snapshot-id"]


def found(place: Place, name: str, start: int, end: int) -> tuple[Counter[Row], Counter[Row]]:
    with between(place, table(name), start, end) as changes:
        inserted = Counter(tuple(row) for row in changes.inserted.collect())
        deleted = Counter(tuple(row) for row in changes.deleted.collect()) if changes.deleted is not None else Counter()
        return inserted, deleted


def test_changes_contain_rows_of_appends_updates_deletes_and_merges(
    place: Place, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA story; CREATE TABLE story.t(i INTEGER, s VARCHAR)")
    db.execute("INSERT INTO story.t SELECT range, 'x' FROM range(100)")
    first = current(place, "story.t")
    db.execute("INSERT INTO story.t VALUES (1, 'x'), (1, 'x')")
    query(place.spark, f"INSERT INTO {place.sql_name(table('story.t'))} VALUES (500, 'spark')")
    second = current(place, "story.t")
    added = Counter({(1, "x"): 2, (500, "spark"): 1})
    assert found(place, "story.t", first, second) == (added, Counter())
    assert found(place, "story.t", second, second) == (Counter(), Counter())
    db.execute("DELETE FROM story.t WHERE i = 1; UPDATE story.t SET s = 'y' WHERE i = 2")
    third = current(place, "story.t")
    gone = Counter({(1, "x"): 3, (2, "x"): 1})
    assert found(place, "story.t", second, third) == (Counter({(2, "y"): 1}), gone)
    # files of all of them become one, and history is told anew
    db.execute("CALL ducklake_flush_inlined_data('lake'); CALL ducklake_merge_adjacent_files('lake')")
    fourth = current(place, "story.t")
    assert found(place, "story.t", third, fourth) == (Counter(), Counter())
    assert found(place, "story.t", first, second) == (added, Counter())
    assert found(place, "story.t", first, third) == (
        Counter({(500, "spark"): 1, (2, "y"): 1}),
        Counter({(1, "x"): 1, (2, "x"): 1}),
    )
    db.execute("DELETE FROM story.t")
    inserted, deleted = found(place, "story.t", fourth, current(place, "story.t"))
    assert (inserted.total(), deleted.total()) == (0, 100)


def test_changes_are_read_with_the_current_columns(place: Place, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA cols; CREATE TABLE cols.t(a INTEGER, m MAP(VARCHAR, DOUBLE))")
    db.execute("INSERT INTO cols.t VALUES (1, MAP {'k': 0.0, 'l': 1}), (2, NULL)")
    start = current(place, "cols.t")
    db.execute("ALTER TABLE cols.t RENAME a TO b; ALTER TABLE cols.t ADD COLUMN c INTEGER DEFAULT 7")
    db.execute(
        "UPDATE cols.t SET m = MAP {'l': 1, 'k': '-0.0'::DOUBLE} WHERE b = 1; INSERT INTO cols.t VALUES (3, NULL, 8)"
    )
    with between(place, table("cols.t"), start, current(place, "cols.t")) as changes:
        assert changes.inserted.columns == ["b", "m", "c"]
        assert sorted(row["b"] for row in changes.inserted.collect()) == [1, 3]
        assert changes.deleted is not None
        assert [(row["b"], row["c"]) for row in changes.deleted.collect()] == [(1, 7)]


DUCKDB = (
    "INSERT INTO {t} SELECT range, 'd' FROM range({n})",
    "INSERT INTO {t} SELECT i, s FROM {t} LIMIT {n}",
    "DELETE FROM {t} WHERE i % 4 = {n} % 4",
    "UPDATE {t} SET s = s || '+' WHERE i % 3 = {n} % 3",
    "CALL ducklake_flush_inlined_data('lake')",
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_rewrite_data_files('lake')",
)
SPARK = (
    "INSERT INTO {t} SELECT id, 's' FROM range({n})",
    "DELETE FROM {t} WHERE i % 5 = {n} % 5",
    "UPDATE {t} SET s = 'u' WHERE i = {n}",
)


@settings(max_examples=6, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_changes_between_snapshots_turn_the_old_state_into_the_new_one(
    place: Place, db: duckdb.DuckDBPyConnection, data: st.DataObject
) -> None:
    """The state before, with what came and without what went, is the state after."""
    name = f"t{id(data)}_{data.draw(st.integers(0, 2**31), label='name')}"
    db.execute(f"CREATE SCHEMA IF NOT EXISTS random; CREATE TABLE random.{name}(i INTEGER, s VARCHAR)")
    db.execute(f"INSERT INTO random.{name} SELECT range, 'o' FROM range(20)")
    of = table(f"random.{name}")
    states = [(current(place, str(of)), _rows(db, name))]
    for _ in range(3):
        for engine, text in data.draw(
            st.lists(
                st.one_of(*(st.tuples(st.just(e), st.sampled_from(s)) for e, s in (("d", DUCKDB), ("s", SPARK)))),
                min_size=1,
                max_size=4,
            ),
            label="commits",
        ):
            n = data.draw(st.integers(0, 12), label="n")
            if engine == "d":
                db.execute(text.format(t=f"random.{name}", n=n))
            else:
                query(place.spark, text.format(t=place.sql_name(of), n=n))
        states.append((current(place, str(of)), _rows(db, name)))
    for start, before in states:
        end, after = states[-1]
        inserted, deleted = found(place, str(of), start, end)
        assert (inserted, deleted) == (after - before, before - after)


def _rows(db: duckdb.DuckDBPyConnection, name: str) -> Counter[Row]:
    return Counter(db.execute(f"SELECT i, s FROM random.{name}").fetchall())
