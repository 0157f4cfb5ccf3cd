"""DuckDB's iceberg extension writes through REST, and DuckDB's ducklake extension agrees and goes on."""

from collections.abc import Callable

import duckdb
import pytest

from tests.support.readers import Answer, Served
from tests.support.stories import FLUSH, REWRITE, Turns, turns

# the module's servers are asked by Spark, too


def writer(story: Turns) -> Callable[..., Answer]:
    """Turns of the extension, after which both agree. Here `{t}` is its own name of the table."""
    warm = story.served.warm

    def run(*queries: str) -> Answer:
        for query in queries:
            replaced = query.replace("{t}", f"{warm.duckdb}.{story.schema}.{story.table}")
            warm.ask_duckdb(replaced.replace("{s}", f"{warm.duckdb}.{story.schema}"))
        return story.agree(warm.with_duckdb(story.schema, story.table))

    return run


def agree_at_every_snapshot(story: Turns, *, at_least: int) -> None:
    """The extension through the server that it wrote through, PyIceberg through the other."""
    table = story.served.cold.table(story.schema, story.table)
    story.agree_with_pyiceberg_at_every_snapshot(table, at_least=at_least)
    found: dict[int, Answer] = {}
    for snapshot in table.snapshots():
        assert snapshot.summary is not None
        at = int(snapshot.summary["ducklake.snapshot-id"] or 0)
        found[at] = story.served.warm.with_duckdb(story.schema, story.table, snapshot.snapshot_id)
    story.agree_at(found)


def test_duckdbs_iceberg_extension_changes_rows_and_columns(served: Served) -> None:
    with turns(served, "changed") as story:
        run = writer(story)
        run("CREATE TABLE {t} (id INTEGER, name VARCHAR, d DATE)")
        run("INSERT INTO {t} VALUES (1, 'a', DATE '2020-01-01'), (2, 'b', NULL), (3, 'c', NULL)")
        story.run_duckdb("INSERT INTO {t} VALUES (10, 'x', NULL), (11, 'y', NULL)")
        # rows that are inlined, and rows of files
        assert run("UPDATE {t} SET name = 'u' WHERE id IN (1, 10)").values("id", "name")[0] == (1, "u")
        run("DELETE FROM {t} WHERE id IN (2, 11)")
        story.run_duckdb(
            "INSERT INTO {t} SELECT range + 100, 'big', NULL FROM range(40)", "DELETE FROM {t} WHERE id = 100"
        )
        run("DELETE FROM {t} WHERE id = 101")
        story.run_duckdb("UPDATE {t} SET name = 'by ducklake' WHERE id = 102", FLUSH, REWRITE)
        merged = run(
            """MERGE INTO {t} AS t USING (VALUES (3, 'm'), (103, 'm'), (55, 'new')) s(id, name) ON t.id = s.id
               WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.name, NULL)"""
        )
        assert merged.rows.total() == 3 + 40 - 2 + 1
        assert {id for id, name in merged.values("id", "name") if name in {"m", "new"}} == {3, 55, 103}
        run("ALTER TABLE {t} ADD COLUMN x INTEGER", "ALTER TABLE {t} RENAME COLUMN name TO nm")
        story.run_duckdb("INSERT INTO {t} VALUES (12, 'shape', NULL, 7)")
        run("ALTER TABLE {t} DROP COLUMN d", "ALTER TABLE {t} SET PARTITIONED BY (bucket(4, id))")
        last = run("INSERT INTO {t} SELECT range, 'z', 1 FROM range(200, 240)", "DELETE FROM {t} WHERE id = 201")
        assert last.rows.total() == 42 + 1 + 39
        assert {(12, "shape", 7), (200, "z", 1)} <= set(last.values("id", "nm", "x"))
        agree_at_every_snapshot(story, at_least=12)


def test_duckdbs_iceberg_extension_makes_and_drops_tables(served: Served) -> None:
    with turns(served, "made") as story:
        run = writer(story)
        filled = run("CREATE TABLE {t} AS SELECT range::INTEGER AS id, 'r' || range AS name FROM range(50)")
        assert filled.rows.total() == 50
        run("INSERT INTO {t} SELECT id + 50, name FROM {t} WHERE id < 5")
        parted = story.other("parted")
        run_parted = writer(parted)
        run_parted("CREATE TABLE {t} (id INTEGER, part VARCHAR) PARTITIONED BY (part)")
        run_parted("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, NULL)")
        parted.run_duckdb("INSERT INTO {t} SELECT range, 'a' FROM range(40)")
        assert run_parted("DELETE FROM {t} WHERE part = 'b'").rows.total() == 42
        assert parted.ask("SELECT count(*) FROM {t} WHERE part = 'a'") == [(41,)]
        agree_at_every_snapshot(parted, at_least=3)
        run("DROP TABLE {s}.parted")
        with pytest.raises(duckdb.CatalogException, match="parted"):
            parted.ask("FROM {t}")


def test_a_transaction_of_duckdbs_iceberg_extension_is_one_of_ducklake(served: Served) -> None:
    with turns(served, "at_once") as story:
        run, other = writer(story), writer(story.other("u"))
        run("CREATE TABLE {t} (id INTEGER)")
        other("CREATE TABLE {t} (id INTEGER)")
        before = story.lake.snapshots()[-1][0]
        client = served.warm
        for query in (
            "BEGIN",
            "INSERT INTO {s}.t VALUES (1)",
            "INSERT INTO {s}.t VALUES (2)",
            "INSERT INTO {s}.u VALUES (3)",
        ):
            client.ask_duckdb(query.replace("{s}", f"{client.duckdb}.{story.schema}"))
        assert story.ask("SELECT count(*) FROM {t}") == [(0,)]
        client.ask_duckdb("COMMIT")
        assert run().values("id") == [1, 2]
        assert other().values("id") == [3]
        changed = [row for row in story.lake.sound_snapshots() if row[0] > before]
        assert len(changed) <= 2
        at_once = story.ask(f"SELECT count(*) FROM lake.{story.schema}.u AT (VERSION => {changed[-1][0]})")
        assert at_once == [(1,)]
