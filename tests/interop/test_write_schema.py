"""Columns that others add, rename, retype and drop, and files that do not say which column is which."""

import io

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import BadRequestError
from pyiceberg.types import IntegerType, LongType, NestedField, StructType

from tests.support.formats import in_version
from tests.support.sharing import Shared, Sharing, done

FILE = "INSERT INTO t SELECT range, 'd' FROM range(40)"
INLINED = "INSERT INTO t VALUES (100, 'in')"
FLUSH = "CALL ducklake_flush_inlined_data('lake', schema_name => '{schema}', table_name => 't')"


def columns(t: Shared) -> list[tuple[str, str]]:
    """As the session that has read the table before has them."""
    return [(row[0], row[1]) for row in t.ask("DESCRIBE t")]


@in_version(3)
def test_h28_an_open_session_sees_a_new_column_at_once(sharing: Sharing) -> None:
    with sharing.table(FILE, INLINED) as t:
        with t.iceberg().update_schema() as update:
            update.add_column("n", LongType(), doc="a number")
        assert columns(t) == [("i", "INTEGER"), ("s", "VARCHAR"), ("n", "BIGINT")]
        assert t.ask("SELECT count(*), count(n) FROM t") == [(41, 0)]
        t.shows([*range(40), 100])
        with t.iceberg().update_schema() as update:
            update.rename_column("n", "m")
        assert columns(t) == [("i", "INTEGER"), ("s", "VARCHAR"), ("m", "BIGINT")]
        with t.iceberg().update_schema() as update:
            update.delete_column("m")
        assert columns(t) == [("i", "INTEGER"), ("s", "VARCHAR")]
        t.shows([*range(40), 100])


@in_version(2)
def test_h29_duckdb_inlines_rows_after_a_client_changed_the_columns(sharing: Sharing) -> None:
    with sharing.table(FILE, INLINED) as t:
        with t.iceberg().update_schema() as update:
            update.add_column("n", IntegerType())
        t.tell("INSERT INTO t VALUES (101, 'x', 7)")
        t.shows([*range(40), 100, 101])
        with t.iceberg().update_schema() as update:
            update.rename_column("n", "m")
        t.tell("INSERT INTO t VALUES (102, 'y', 8)")
        with t.iceberg().update_schema() as update:
            update.add_column("st", StructType(NestedField(1, "a", IntegerType(), required=False)))
        t.tell("INSERT INTO t VALUES (103, 'z', 9, {'a': 1})")
        with t.iceberg().update_schema() as update:
            update.add_column(("st", "b"), IntegerType())
        t.tell("INSERT INTO t VALUES (104, 'z', 10, {'a': 1, 'b': 2})")
        with t.iceberg().update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("s")
        t.tell("INSERT INTO t VALUES (105, 11, {'a': 1, 'b': 2})")
        wanted = [(100, None), (101, 7), (102, 8), (103, 9), (104, 10), (105, 11)]
        assert t.ask("SELECT i, m FROM t WHERE i >= 100 ORDER BY i") == wanted
        t.shows([*range(40), *range(100, 106)])
        t.tell(FLUSH)
        assert t.asked_afresh("SELECT i, m FROM {t} WHERE i >= 100 ORDER BY i") == wanted
        assert t.asked_afresh("SELECT i FROM {t} WHERE st.b = 2 ORDER BY i") == [(104,), (105,)]
        t.shows([*range(40), *range(100, 106)])
        t.tell("INSERT INTO t VALUES (106, 12, NULL)")
        t.shows([*range(40), *range(100, 107)])


def swapped(*numbers: int) -> pa.Table:
    """No field ids, and not the order of the table's columns."""
    return pa.table({"s": pa.array(["f"] * len(numbers)), "i": pa.array(numbers, pa.int32())})


def test_h38_an_added_file_without_field_ids_is_read_by_column_names(sharing: Sharing) -> None:
    with sharing.table(FILE) as t:
        raw = t.raw()
        if sharing.format_version < 3:
            sink = io.BytesIO()
            pq.write_table(swapped(1000, 1001), sink, store_schema=False)
            t.iceberg().add_files([raw.put(sink.getvalue())])
        else:
            mapping = '[{"field-id": 1, "names": ["i"]}, {"field-id": 2, "names": ["s"]}]'
            named = {"action": "set-properties", "updates": {"schema.name-mapping.default": mapping}}
            new = raw.data_file(swapped(1000, 1001), ids=False)
            done(raw.commit("append", add=[new], updates=[named]))
        t.shows([*range(40), 1000, 1001])
        assert t.asked_afresh("SELECT i, s FROM {t} WHERE s = 'f' ORDER BY i") == [(1000, "f"), (1001, "f")]
        t.tell("INSERT INTO t VALUES (1002, 'g')", "DELETE FROM t WHERE i = 1000")
        t.shows([*range(40), 1001, 1002], gone=[1000])
        with t.iceberg().update_schema() as update:
            update.rename_column("s", "r")
        assert t.asked_afresh("SELECT i, r FROM {t} WHERE i >= 1000 ORDER BY i") == [(1001, "f"), (1002, "g")]
        t.shows([*range(40), 1001, 1002], gone=[1000])


@in_version(3)
def test_h48_a_retyped_column_keeps_its_values_in_a_warm_session(sharing: Sharing) -> None:
    with sharing.table("INSERT INTO t VALUES (1, 'a'), (300, 'b')") as t:
        assert t.ask("SELECT i FROM t WHERE i > 0 ORDER BY i") == [(1,), (300,)]
        with t.iceberg().update_schema() as update:
            update.update_column("i", LongType())
        t.tell("INSERT INTO t VALUES (3, 'c')", "INSERT INTO t VALUES (4, 'd')")
        assert t.ask("SELECT i FROM t ORDER BY i") == [(1,), (3,), (4,), (300,)]
        t.shows([1, 3, 4, 300])
        t.tell("INSERT INTO t VALUES (5000000000, 'e')", FLUSH)
        t.shows([1, 3, 4, 300, 5000000000])


@in_version(2)
def test_h49_names_that_duckdb_cannot_inline_are_refused(sharing: Sharing) -> None:
    with sharing.table(INLINED) as t:
        before = t.head()
        for name in ("row_id", "begin_snapshot", "end_snapshot", "Row_Id", "ä" * 32):
            with pytest.raises(BadRequestError), t.iceberg().update_schema() as update:
                update.add_column(name, IntegerType())
            with pytest.raises(BadRequestError):
                sharing.catalog.create_table((t.schema, "u"), pa.schema([(name, pa.int32())]))
        assert t.head() == before
        with pytest.raises(duckdb.CatalogException):
            t.ask("SELECT * FROM u")
        t.tell("INSERT INTO t VALUES (101, 'x')")
        t.shows([100, 101])


@in_version(3)
def test_h49_a_name_of_63_bytes_is_inlined(sharing: Sharing) -> None:
    with sharing.table(INLINED) as t:
        name = "ä" * 31 + "x"
        with t.iceberg().update_schema() as update:
            update.add_column(name, IntegerType())
        t.tell("INSERT INTO t VALUES (101, 'x', 5)")
        assert t.ask(f'SELECT i, "{name}" FROM t ORDER BY i') == [(100, None), (101, 5)]
        t.shows([100, 101])
