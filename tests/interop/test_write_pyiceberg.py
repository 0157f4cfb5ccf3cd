"""PyIceberg writes, DuckDB agrees and goes on; and the other way round. It cannot write tables of version 3."""

from collections.abc import Iterator
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import ValidationException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import DecimalType, IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from tests.support import lakes, readers
from tests.support.readers import Answer, Served, answer
from tests.support.stories import FLUSH, MERGE, REWRITE, Turns, turns

# the module's servers are asked by Spark, too

ROWS = pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string()), pa.field("p", pa.string())])
FORTY = "INSERT INTO {t} SELECT range + 100, 'big', 'a' FROM range(40)"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with lakes.lake() as lake, readers.served(lake, tmp_path_factory.mktemp("servers"), 2) as made:
        yield made


def rows(*found: tuple[Any, ...], schema: pa.Schema = ROWS) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in found], schema=schema)


def created(story: Turns, schema: pa.Schema = ROWS, **more: Any) -> Table:
    version = {"format-version": str(story.version)}
    return story.served.warm.pyiceberg.create_table((story.schema, story.table), schema, properties=version, **more)


def seen(story: Turns) -> Answer:
    """By PyIceberg, and by DuckDB."""
    return story.agree(answer(story.pyiceberg().scan().to_arrow()))


def told(story: Turns, *queries: str) -> Answer:
    """DuckDB's turns, which PyIceberg must see."""
    story.run_duckdb(*queries)
    return seen(story)


def agree_at_every_snapshot(story: Turns, *, at_least: int) -> None:
    for clients in (story.served.warm, story.served.cold):
        table = clients.table(story.schema, story.table)
        story.agree_with_pyiceberg_at_every_snapshot(table, at_least=at_least)


def test_pyiceberg_and_duckdb_change_rows_in_turn(served: Served) -> None:
    with turns(served, "pyiceberg_rows") as story:
        created(story)
        story.pyiceberg().append(rows((1, "a", "a"), (2, "b", "a"), (3, "c", "b")))
        seen(story)
        told(story, "INSERT INTO {t} VALUES (10, 'x', 'a'), (11, 'y', 'b')", FORTY)
        story.pyiceberg().delete("id IN (2, 11, 104)")
        assert seen(story).rows.total() == 42
        told(story, "DELETE FROM {t} WHERE id = 105", "UPDATE {t} SET name = 'by duckdb' WHERE id IN (1, 106)")
        done = story.pyiceberg().upsert(
            rows((1, "up", "a"), (10, "up", "a"), (106, "up", "a"), (50, "in", "c")), ["id"]
        )
        assert (done.rows_updated, done.rows_inserted) == (3, 1)
        assert {id for id, name in seen(story).values("id", "name") if name == "up"} == {1, 10, 106}
        told(story, FLUSH, "INSERT INTO {t} VALUES (12, 'inlined', 'b')", "DELETE FROM {t} WHERE id = 107")
        story.pyiceberg().overwrite(rows((3, "over", "b")), "id = 3 or id = 12")
        assert (3, "over", "b") in seen(story).values()
        with story.pyiceberg().transaction() as tx:
            tx.append(rows((60, "tx", "a")))
            tx.delete("id = 108")
            tx.append(rows((61, "tx", "a")))
            tx.set_properties({"mine": "yes"})
        after = seen(story)
        assert {60, 61} <= set(after.values("id"))
        assert 108 not in after.values("id")
        assert story.pyiceberg().properties["mine"] == "yes"
        told(story, MERGE, REWRITE, "INSERT INTO {t} VALUES (13, 'last', 'b')")
        story.pyiceberg().overwrite(rows((70, "all", "a")))
        assert seen(story).values("id") == [70]
        assert told(story, "INSERT INTO {t} VALUES (71, 'on', 'a')").values("id") == [70, 71]
        agree_at_every_snapshot(story, at_least=14)


def test_a_stale_pyiceberg_overwrite_is_refused_and_a_stale_append_is_applied(served: Served) -> None:
    """An append is put on top; a delete that was thought out without DuckDB's rows is not."""
    with turns(served, "pyiceberg_old") as story:
        created(story).append(rows((1, "a", "a"), (2, "b", "a")))
        old = story.pyiceberg()
        told(story, "DELETE FROM {t} WHERE id = 1", "INSERT INTO {t} VALUES (3, 'c', 'a')")
        with pytest.raises(ValidationException):
            old.overwrite(rows((2, "lost", "a")), "id = 2")
        assert seen(story).values("id", "name") == [(2, "b"), (3, "c")]


def test_pyiceberg_overwrites_partitions_and_changes_the_partition_spec(served: Served) -> None:
    with turns(served, "pyiceberg_parts") as story:
        made = created(story)
        with made.update_spec() as spec:
            spec.add_identity("p")
        story.pyiceberg().append(rows((1, "a", "a"), (2, "b", "b"), (3, "c", None)))
        told(story, "INSERT INTO {t} VALUES (4, 'inlined', 'a'), (5, 'inlined', 'b')", FORTY)
        story.pyiceberg().dynamic_partition_overwrite(rows((6, "new", "a"), (7, "new", "c")))
        assert seen(story).values("id") == [2, 3, 5, 6, 7]
        # PyIceberg has this transform only to read with
        with story.pyiceberg().update_spec() as spec:
            spec.remove_field("p")
            spec.add_field("name", TruncateTransform(2), "tr")
        told(story, FORTY, "DELETE FROM {t} WHERE id IN (2, 100)", "INSERT INTO {t} VALUES (14, 'abe', 'a')")
        for condition in ("name = 'big'", "name = 'abe'", "id = 101", "name = 'new'", "p = 'b'", "p is null"):
            found = answer(story.pyiceberg().scan(condition).to_arrow()).values("id")
            wanted = story.ask(f"SELECT id FROM (FROM {{t}} OFFSET 0) WHERE {condition}")
            assert wanted, condition
            assert sorted(found) == sorted(row[0] for row in wanted), condition
        with story.pyiceberg().update_spec() as spec:
            spec.remove_field("tr")
            spec.add_identity("name")
        story.pyiceberg().append(rows((8, "abc", "a"), (9, None, "a")))
        assert seen(story).rows.total() == 4 + 39 + 1 + 2
        with story.pyiceberg().update_sort_order() as order:
            order.desc("id", IdentityTransform(), NullOrder.NULLS_LAST).asc(
                "name", IdentityTransform(), NullOrder.NULLS_FIRST
            )
        assert [f.direction for f in story.pyiceberg().sort_order().fields] == [SortDirection.DESC, SortDirection.ASC]
        told(story, FLUSH)
        agree_at_every_snapshot(story, at_least=8)


def test_pyiceberg_adds_renames_retypes_and_moves_columns(served: Served) -> None:
    with turns(served, "pyiceberg_columns") as story:
        schema = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string())])
        created(story, schema).append(rows((1, "a"), schema=schema))
        told(story, "INSERT INTO {t} VALUES (2, 'b')")
        with story.pyiceberg().update_schema() as change:
            change.add_column("n", IntegerType(), doc="told")
            change.add_column("st", StructType(NestedField(1, "x", IntegerType()), NestedField(2, "y", StringType())))
            change.add_column("l", ListType(1, StringType()))
            change.add_column("m", MapType(1, StringType(), 2, DecimalType(9, 2)))
        seen(story)
        filled = "INSERT INTO {t} VALUES (3, 'c', 3, {'x': 3, 'y': 'y'}, ['l'], MAP {'k': 3.25})"
        told(story, filled)
        with story.pyiceberg().update_schema() as change:
            change.add_column(("st", "z"), IntegerType())
            change.rename_column("name", "nm")
            change.update_column("id", LongType())
            change.update_column("n", LongType())
            change.make_column_optional("id")
            change.move_first("n")
            change.move_after("name", "n")
        moved = seen(story)
        assert [name for name, _ in moved.columns][:3] == ["n", "nm", "id"]
        told(
            story,
            "INSERT INTO {t} (id, n, st, l) VALUES (NULL, 5000000000, {'x': 4, 'y': 'y', 'z': 4}, ['l', NULL])",
        )
        with story.pyiceberg().update_schema(allow_incompatible_changes=True) as change:
            change.delete_column("m")
            change.delete_column(("st", "y"))
            change.delete_column("nm")
        with story.pyiceberg().update_schema() as change:
            change.add_column("nm", IntegerType())
        told(
            story, "INSERT INTO {t} (id, nm) SELECT range + 100, 1 FROM range(40)", "UPDATE {t} SET nm = 2 WHERE id = 1"
        )
        new = pa.schema([pa.field("id", pa.int64()), pa.field("nm", pa.int32())])
        story.pyiceberg().append(rows((7, 7), schema=new))
        story.pyiceberg().delete("id = 2")
        last = dict(seen(story).values("id", "nm"))
        assert {n: last[n] for n in (1, 3, 7, 100)} == {1: 2, 3: None, 7: 7, 100: 1}
        agree_at_every_snapshot(story, at_least=6)


def test_h38_files_without_field_ids_added_by_pyiceberg_are_read_by_name(served: Served) -> None:
    """Two columns of one type, in another order than the table's, and one that the file does not have."""
    with turns(served, "pyiceberg_files") as story:
        schema = pa.schema([pa.field(n, pa.string()) for n in ("a", "b", "c")] + [pa.field("id", pa.int32())])
        table = created(story, schema)
        table.append(rows(("a1", "b1", "c1", 1), schema=schema))
        told(story, "INSERT INTO {t} VALUES ('a2', 'b2', 'c2', 2)")
        swapped = pa.table({"b": ["b3", "b4"], "id": pa.array([3, 4], pa.int32()), "a": ["a3", "a4"]})
        file = f"{table.location()}/data/swapped.parquet"
        assert isinstance(table.io, PyArrowFileIO)
        with table.io.new_output(file).create() as sink:
            pq.write_table(swapped, sink)
        story.pyiceberg().add_files([file])
        added = {("a3", "b3", None, 3), ("a4", "b4", None, 4)}
        assert added <= set(seen(story).values())
        with pytest.raises(ValueError, match="already referenced"):
            story.pyiceberg().add_files([file])
        # DuckDB goes on: with the file, and with columns that have other names than the file's
        told(story, "UPDATE {t} SET a = 'u' WHERE id = 3", "INSERT INTO {t} VALUES ('a5', 'b5', 'c5', 5)")
        told(story, "ALTER TABLE {t} RENAME COLUMN b TO bb", "DELETE FROM {t} WHERE id = 2")
        last = told(story, FLUSH, "INSERT INTO {t} SELECT 'a', 'b', 'c', range + 100 FROM range(40)")
        assert {("a4", "b4", None, 4), ("u", "b3", None, 3)} <= set(last.values())
        agree_at_every_snapshot(story, at_least=6)


def test_pyiceberg_tags_snapshots_adds_statistics_and_expires_snapshots(served: Served) -> None:
    with turns(served, "pyiceberg_refs") as story:
        created(story).append(rows((1, "a", "a")))
        told(story, "INSERT INTO {t} VALUES (2, 'b', 'a')")
        story.pyiceberg().append(rows((3, "c", "a")))
        first, second, third = [s.snapshot_id for s in story.pyiceberg().snapshots()]
        story.pyiceberg().manage_snapshots().create_tag(second, "two").create_tag(first, "one").commit()
        by_name = story.pyiceberg().snapshot_by_name("two")
        assert by_name is not None
        assert answer(story.pyiceberg().scan(snapshot_id=by_name.snapshot_id).to_arrow()).values("id") == [1, 2]
        story.pyiceberg().manage_snapshots().remove_tag("one").commit()
        assert set(story.pyiceberg().refs()) == {"main", "two"}

        blob = {"type": "apache-datasketches-theta-v1", "snapshot-id": third, "sequence-number": 1, "fields": [1]}
        statistics = StatisticsFile.model_validate(
            {
                "snapshot-id": third,
                "statistics-path": f"{story.pyiceberg().location()}/metadata/statistics.puffin",
                "file-size-in-bytes": 10,
                "file-footer-size-in-bytes": 5,
                "blob-metadata": [{**blob, "properties": {"ndv": "3"}}],
            }
        )
        with story.pyiceberg().update_statistics() as update:
            update.set_statistics(statistics)
        assert story.pyiceberg().metadata.statistics == [statistics]
        told(story, "INSERT INTO {t} VALUES (4, 'd', 'a')")
        assert story.pyiceberg().metadata.statistics == [statistics]
        with story.pyiceberg().update_statistics() as update:
            update.remove_statistics(third)
        assert story.pyiceberg().metadata.statistics == []

        # the tagged one and the newest stay, and DuckDB keeps its own history
        story.pyiceberg().maintenance.expire_snapshots().by_ids([first, third]).commit()
        left = [s.snapshot_id for s in story.pyiceberg().snapshots()]
        assert len(left) == 2
        assert second in left
        story.pyiceberg().append(rows((5, "e", "a")))
        assert seen(story).values("id") == [1, 2, 3, 4, 5]
        agree_at_every_snapshot(story, at_least=3)


def test_pyiceberg_creates_renames_and_drops_a_table(served: Served) -> None:
    """One that is staged is seen by nobody before it is committed."""
    catalog = served.warm.pyiceberg
    with turns(served, "pyiceberg_made") as story:
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("day", pa.date32())])
        properties = {"format-version": str(story.version)}
        with catalog.create_table_transaction((story.schema, "t"), schema, properties=properties) as tx:
            with tx.update_spec() as spec:
                spec.add_identity("day")
            tx.append(rows((1, date(1969, 12, 31)), (2, date(2020, 2, 29)), (3, None), schema=schema))
            assert not catalog.table_exists((story.schema, "t"))
            assert story.ask("SELECT count(*) FROM duckdb_tables() WHERE schema_name = '{s}'") == [(0,)]
        assert seen(story).values("id") == [1, 2, 3]
        told(story, "INSERT INTO {t} VALUES (4, DATE '1970-01-02')")
        story.pyiceberg().delete("day < '1970-01-01'")
        assert seen(story).values("id") == [2, 3, 4]
        catalog.rename_table((story.schema, "t"), (story.schema, "renamed"))
        renamed = story.other("renamed")
        told(renamed, "INSERT INTO {t} SELECT range + 100, NULL FROM range(40)")
        renamed.pyiceberg().append(rows((5, None), schema=schema))
        assert seen(renamed).rows.total() == 44
        catalog.drop_table((story.schema, "renamed"))
        assert story.ask("SELECT count(*) FROM duckdb_tables() WHERE schema_name = '{s}'") == [(0,)]
