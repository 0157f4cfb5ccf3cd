"""What only data files themselves can tell: files that were added by name, files from before a retype, NaNs.

Whatever is served is read by every engine as DuckDB reads it; whatever is not is refused by name.
"""

import asyncio
import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID, uuid4

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mergus.annex.file_facts import Part, columns_text, parse_columns
from mergus.iceberg.name_mapping import MappedField
from mergus.iceberg.schema import Field, Schema
from mergus.materialise.suspects import RESERVED_IDS, judge
from mergus.storage.location import Location
from mergus.storage.objects import Objects
from tests.support import lakes, readers
from tests.support.readers import MERGE, REWRITE, Served, Story, answer
from tests.support.servers import error_of

pytestmark = pytest.mark.integration

VECTORISED = "read.parquet.vectorization.enabled"
ROWS = 20


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with lakes.lake() as lake, readers.served(lake, tmp_path_factory.mktemp("servers"), 2, "off") as made:
        yield made


class Adds:
    """Puts Parquet files beside the lake and adds them to table t."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.root = str(story.lake.settings.data_path).removesuffix("data/") + f"added/{story.schema}"

    def select(self, query: str, options: str = "", copy: str = "") -> str:
        """As DuckDB writes it."""
        place = f"{self.root}/{uuid4().hex}.parquet"
        self.story.db.execute(f"COPY ({query}) TO '{place}' (FORMAT parquet{copy})")
        return self.add(place, options)

    def arrow(self, table: pa.Table, options: str = "", **how: Any) -> str:
        """As pyarrow writes it."""
        place, data = f"{self.root}/{uuid4().hex}.parquet", io.BytesIO()
        pq.write_table(table, data, **how)
        asyncio.run(Objects(self.story.lake.settings).put(Location.parse(place), data.getvalue()))
        return self.add(place, options)

    def add(self, place: str, options: str = "") -> str:
        schema = f", schema => '{self.story.schema}'"
        self.story.db.execute(f"CALL ducklake_add_data_files('lake', 't', '{place}'{schema}{options})")
        return place


def refusal(story: Story) -> str:
    """What both servers say, in the same words."""
    said: set[str] = set()
    for clients in (story.served.warm, story.served.cold):
        got = clients.server.http.get(f"{clients.server.path(story.schema)}/tables/t")
        assert error_of(got) == (406, "UnsupportedOperationException")
        said.add(got.json()["error"]["message"])
    (message,) = said
    return message


def facts(story: Story, kind: str) -> list[tuple[Any, ...]]:
    query = """SELECT f.data_file_id, f.fact FROM file_fact f JOIN ducklake_data_file d USING (data_file_id)
               WHERE f.kind = %s AND d.table_id = %s ORDER BY 1"""
    return story.lake.sql(query, kind, story.table_id())


def listed(story: Story) -> list[int]:
    return [s["snapshot-id"] for s in story.load()["snapshots"]]


def test_the_footers_of_a_plain_table_are_not_read(served: Served) -> None:
    story = served.story("ordinary", inlining=0).run(
        "CREATE TABLE t(i INTEGER, d DOUBLE)", "INSERT INTO t SELECT range, range FROM range(20)"
    )
    assert facts(story, "columns") == facts(story, "nans") == []
    assert VECTORISED not in story.load()["properties"]


def test_files_added_in_another_order_and_case_are_read_by_their_names(served: Served) -> None:
    story = served.story("swapped").run(
        "CREATE TABLE t(i INTEGER, s VARCHAR, st STRUCT(a INTEGER, b DOUBLE), l INTEGER[], m MAP(VARCHAR, INTEGER))",
        "INSERT INTO t SELECT range, 'own', {'a': 1, 'b': 2}, [3], MAP {'k': 4} FROM range(20)",
    )
    adds = Adds(story)
    nested = "MAP {'q': 5::INTEGER} AS m, [6::INTEGER, NULL] AS l, {'b': 7::DOUBLE, 'a': 8::INTEGER} AS st"
    adds.select(f"SELECT {nested}, 'added' AS s, range::INTEGER AS i FROM range(20)")
    adds.select(f'SELECT \'Added\' AS "S", range::INTEGER AS "I", {nested} FROM range(20)')
    found = story.agree()
    assert found.counts == [20, 40, 60]
    assert len(facts(story, "columns")) == 2


@pytest.mark.parametrize("scheme", ["s3a", "s3n"])
def test_a_file_added_with_an_s3a_or_s3n_path_is_shown_with_an_s3_path(served: Served, scheme: str) -> None:
    story = served.story(f"scheme_{scheme}").run(
        "CREATE TABLE t(i INTEGER, s VARCHAR)", "INSERT INTO t VALUES (1, 'own')"
    )
    adds = Adds(story)
    place = adds.select("SELECT range::INTEGER AS i, 'added' AS s FROM range(20)")
    story.run("DELETE FROM t WHERE s = 'added'")
    adds.add(place.replace("s3://", f"{scheme}://"))
    assert story.agree().counts[-1] == 21
    # a client knows it by the place that it was shown
    table = served.warm.pyiceberg.load_table((story.schema, "t"))
    assert {task.file.file_path for task in table.scan("s == 'added'").plan_files()} >= {place}
    table.delete("i >= 15 AND s = 'added'")
    story.run("DELETE FROM t WHERE i = 3 AND s = 'added'")
    assert story.agree().counts[-1] == 15


@pytest.mark.parametrize(
    ("spelling", "reason"),
    [
        ("relative", "relative to the directory in which each DuckDB session runs"),
        ("dots", "its path has empty, '.' or '..' parts"),
        ("http", "not every Iceberg reader reads from http://"),
    ],
)
def test_a_file_path_that_readers_resolve_differently_is_refused_with_a_remedy(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str, reason: str
) -> None:
    story = served.story(f"spelled_{spelling}").run("CREATE TABLE t(i INTEGER)", "INSERT INTO t VALUES (1)")
    local = tmp_path / "x.parquet"
    story.db.execute(f"COPY (SELECT 2::INTEGER AS i) TO '{local}' (FORMAT parquet)")
    monkeypatch.chdir(tmp_path)
    with http_server(tmp_path) as root:
        place = {
            "relative": "x.parquet",
            "dots": f"{tmp_path}/../{tmp_path.name}/x.parquet",
            "http": f"{root}/x.parquet",
        }
        before = listed(story)
        Adds(story).add(place[spelling])
        assert story.db.execute("SELECT count(*) FROM t").fetchall() == [(2,)]
        said = refusal(story)
        assert reason in said
        assert place[spelling] in said
        assert "add it again by its full path" in said
        # as it says
        story.db.execute("DELETE FROM t WHERE i = 2")
        story.db.execute(REWRITE.replace("{schema}", story.schema))
        Adds(story).select("SELECT 2::INTEGER AS i")
    # those that have the file as it was first added
    assert story.agree(without=story.changed_by()[0][1:3]).counts[-1] == 2
    assert set(before) <= set(listed(story))


def test_a_file_without_field_ids_and_name_mapping_is_refused_until_it_is_rewritten(
    served: Served,
) -> None:
    """As lakes of earlier versions have them: some readers would find NULLs in it, and others fail."""
    story = served.story("nameless", inlining=0).run(
        "CREATE TABLE t(i INTEGER, s VARCHAR)", "INSERT INTO t SELECT range, 'own' FROM range(20)"
    )
    first = listed(story)
    place = Adds(story).select("SELECT range::INTEGER AS i, 'added' AS s FROM range(20)")
    story.lake.sql("UPDATE ducklake_data_file SET mapping_id = NULL WHERE path = %s RETURNING 1", place)
    story.lake.sql("DELETE FROM ducklake_column_mapping WHERE table_id = %s RETURNING 1", story.table_id())
    assert story.db.execute("SELECT count(*), count(i) FROM t").fetchall() == [(40, 40)]
    said = refusal(story)
    assert f"file {place}: it has no field ids" in said
    assert "Write its rows anew in DuckDB" in said
    story.run(MERGE)
    assert story.agree().counts[-1] == 40
    assert set(listed(story)) >= set(first)


@contextmanager
def http_server(directory: Path) -> Iterator[str]:
    """Files over HTTP, by ranges as DuckDB asks for them."""
    handler = partial(RangeHandler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class RangeHandler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        data = Path(self.translate_path(self.path)).read_bytes()
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, format: str, *args: Any) -> None:
        """Not needed."""


ARROW_ROWS = pa.table(
    {
        "b": pa.array([True, None] * 10),
        "i8": pa.array([-128, 127] * 10, pa.int8()),
        "i": pa.array([-(2**31), 2**31 - 1] * 10, pa.int32()),
        "n": pa.array([-(2**31), 2**31 - 1] * 10, pa.int32()),
        "d": pa.array([0.5, None] * 10, pa.float32()),
        "day": pa.array([date(2020, 2, 29), date(1969, 12, 31)] * 10),
        "ts": pa.array([datetime(2020, 2, 29, 1, 2, 3, 4), None] * 10, pa.timestamp("us")),
        "tz": pa.array([datetime(2020, 2, 29, tzinfo=UTC), None] * 10, pa.timestamp("us", tz="UTC")),
        "d9": pa.array([Decimal("-1234567.89"), Decimal("0.01")] * 10, pa.decimal128(9, 2)),
        "d18": pa.array([Decimal("-123456789012.345"), None] * 10, pa.decimal128(15, 3)),
        "d38": pa.array([Decimal("-12345678901234567890.12345"), None] * 10, pa.decimal128(30, 5)),
        "s": pa.array(["ä", None] * 10, pa.large_string()),
        "x": pa.array([b"\x00\xff", None] * 10),
        "u": pa.array([UUID(int=7).bytes, UUID(int=2**127).bytes] * 10, pa.uuid()),
        "l": pa.array([[1, None], None] * 10, pa.list_(pa.int32())),
    }
)
ARROW_TABLE = """CREATE TABLE t(b BOOLEAN, i8 INTEGER, i INTEGER, n BIGINT, d DOUBLE, day DATE,
    ts TIMESTAMP, tz TIMESTAMPTZ, d9 DECIMAL(9, 2), d18 DECIMAL(18, 3), d38 DECIMAL(38, 5), s VARCHAR,
    x BLOB, u UUID, l INTEGER[])"""


@pytest.mark.parametrize("integers", [False, True], ids=["decimals-fixed", "decimals-as-integers"])
def test_added_files_of_pyarrow_are_read_and_filtered_by_all_engines(served: Served, integers: bool) -> None:
    story = served.story(f"arrow_{integers}".lower()).run(ARROW_TABLE)
    Adds(story).arrow(ARROW_ROWS, store_decimal_as_integer=integers)
    story.agree()
    # pyarrow does not annotate its 32-bit integers, which is all that Spark minds
    assert VECTORISED not in story.load()["properties"]
    filters = {
        **{"b": "b = true", "i8": "i8 = -128", "i": "i = -2147483648", "n": "n = -2147483648"},
        **{"d": "d = 0.5", "s": "s = 'ä'"},
        **{"d9": "d9 = -1234567.89", "d18": "d18 = -123456789012.345", "d38": "d38 = -12345678901234567890.12345"},
        **{"day": "day = '2020-02-29'", "ts": "ts = '2020-02-29T01:02:03.000004'"},
    }
    check_filters(story, filters)


def check_filters(story: Story, filters: dict[str, str]) -> None:
    """Each finds ten rows of the twenty."""
    warm = story.served.warm
    table = warm.pyiceberg.load_table((story.schema, "t"))
    for name, text in filters.items():
        sql = text.replace("'2020-02-29'", "DATE '2020-02-29'").replace("'2020-02-29T", "TIMESTAMP_NTZ '2020-02-29T")
        counted = warm.ask_spark(f"SELECT i FROM {warm.spark}.{story.schema}.t WHERE {sql}").num_rows
        duckdb = warm.ask_duckdb(f"SELECT i FROM {warm.duckdb}.{story.schema}.t WHERE {text}").num_rows
        assert (name, counted, duckdb, table.scan(text).to_arrow().num_rows) == (name, 10, 10, 10)


def test_added_files_of_duckdb_disable_vectorised_reads_in_spark_and_are_read_by_all(served: Served) -> None:
    story = served.story("duckdb_written").run("CREATE TABLE t(i INTEGER, n BIGINT, m BIGINT, o BIGINT, j JSON)")
    values = "(range % 2)::SMALLINT AS i, -(range % 2)::INTEGER AS n, (range % 2)::TINYINT AS m"
    Adds(story).select(f"SELECT {values}, (range % 2)::BIGINT AS o, '[1]'::JSON AS j FROM range(20)")
    story.agree()
    assert story.load()["properties"][VECTORISED] == "false"
    check_filters(story, {"i": "i = 1", "n": "n = -1", "m": "m = 1", "o": "o = 0"})


def test_a_file_with_the_field_ids_of_the_table_may_have_additional_columns(served: Served) -> None:
    story = served.story("right_ids").run("CREATE TABLE t(a INTEGER, b INTEGER)")
    adds = Adds(story)
    adds.select("SELECT 2 AS b, 1 AS a FROM range(20)", copy=", FIELD_IDS {a: 1, b: 2}")
    extra = ", ignore_extra_columns => true"
    adds.select("SELECT 2 AS b, 3 AS z, 1 AS a FROM range(20)", extra, ", FIELD_IDS {a: 1, b: 2, z: 77}")
    assert set(story.agree().now.values()) == {(1, 2)}


REFUSED: dict[str, tuple[str, Callable[[Adds], str], str]] = {
    "swapped field ids": (
        "a INTEGER, b INTEGER",
        lambda adds: adds.select("SELECT 1 AS a, 2 AS b FROM range(20)", copy=", FIELD_IDS {a: 2, b: 1}"),
        "column a has field id 2 there, and 1 in the table",
    ),
    "field ids in a struct": (
        "a STRUCT(x INTEGER, y INTEGER)",
        lambda adds: adds.select(
            "SELECT {'x': 1, 'y': 2} AS a FROM range(20)",
            copy=", FIELD_IDS {a: {__duckdb_field_id: 1, x: 3, y: 2}}",
        ),
        "column a.x has field id 3 there, and 2 in the table",
    ),
    "some field ids": (
        "a INTEGER, b INTEGER",
        lambda adds: adds.select("SELECT 1 AS a, 2 AS b FROM range(20)", copy=", FIELD_IDS {a: 1}"),
        "column b has field id None there, and 2 in the table",
    ),
    "uint32": (
        "a BIGINT",
        lambda adds: adds.select("SELECT range::UINTEGER AS a FROM range(20)"),
        "column a is stored as int32/uint32, which not every Iceberg reader reads as long",
    ),
    "uint16": (
        "a INTEGER",
        lambda adds: adds.select("SELECT range::USMALLINT AS a FROM range(20)"),
        "column a is stored as int32/uint16, which not every Iceberg reader reads as int",
    ),
    "nanoseconds": (
        "a TIMESTAMP",
        lambda adds: adds.select("SELECT TIMESTAMP_NS '2020-02-29 01:02:03.123456789' AS a FROM range(20)"),
        "column a is stored as int64/timestamp_ns, which not every Iceberg reader reads as timestamp",
    ),
    "milliseconds": (
        "a TIMESTAMP",
        lambda adds: adds.select("SELECT TIMESTAMP_MS '2020-02-29 01:02:03' AS a FROM range(20)"),
        "column a is stored as int64/timestamp_ms",
    ),
    "int96": (
        "a TIMESTAMP",
        lambda adds: adds.arrow(
            pa.table({"a": pa.array([0] * ROWS, pa.timestamp("us"))}), use_deprecated_int96_timestamps=True
        ),
        "column a is stored as int96",
    ),
    "another scale": (
        "a DECIMAL(10, 2)",
        lambda adds: adds.select("SELECT 1.5::DECIMAL(9, 1) AS a FROM range(20)"),
        "column a is stored as int32/decimal(9, 1), which not every Iceberg reader reads as decimal(10, 2)",
    ),
    "in a list": (
        "a BIGINT[]",
        lambda adds: adds.select("SELECT [range::UINTEGER] AS a FROM range(20)"),
        "column a.element is stored as int32/uint32",
    ),
    "another column that PyIceberg knows no type for": (
        "a INTEGER",
        lambda adds: adds.select("SELECT 1 AS a, 2::UBIGINT AS z FROM range(20)", ", ignore_extra_columns => true"),
        "column z is not the table's, and is stored as int64/uint64",
    ),
    "a column whose field id is another's": (
        "a INTEGER, b INTEGER",
        lambda adds: adds.select(
            "SELECT 1 AS a, 2 AS z FROM range(20)",
            ", ignore_extra_columns => true, allow_missing => true",
            ", FIELD_IDS {a: 1, z: 2}",
        ),
        "column z is not the table's, and its field id does not tell",
    ),
    "NULL under NOT NULL": (
        "a INTEGER NOT NULL",
        lambda adds: adds.select("SELECT NULL::INTEGER AS a FROM range(20)"),
        "column a is NOT NULL, and the file may have NULLs",
    ),
    "without a column that is NOT NULL": (
        "a INTEGER NOT NULL, b INTEGER",
        lambda adds: adds.select("SELECT 1 AS b FROM range(20)", ", allow_missing => true"),
        "column a is NOT NULL, and the file does not have it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_readers_would_misread_is_refused_with_its_path(served: Served, case: str) -> None:
    columns, add, why = REFUSED[case]
    story = served.story("refused_" + "".join(c if c.isalnum() else "_" for c in case))
    story.run(f"CREATE TABLE t({columns})")
    place = add(Adds(story))
    message = refusal(story)
    assert f"file {place}: " in message
    assert why in message
    # it may go again, and then only its snapshot is not there
    story.run("DELETE FROM t")
    (bad,) = [i for i in story.changed_by()[0] if i not in listed(story)]
    assert story.agree(without=[bad]).counts == [0]


IGNORE = ", ignore_extra_columns => true, allow_missing => true"


def test_additional_columns_of_added_files_are_ignored_by_all_engines(served: Served) -> None:
    """On every level, and whatever is in them; and a column that gets such a name later has no value of theirs."""
    story = served.story("ignored").run("CREATE TABLE t(i INTEGER, st STRUCT(a INTEGER, b VARCHAR))")
    adds = Adds(story)
    nested = "{'z': range, 'a': range::INTEGER, 'b': 'b'} AS st"
    more = "[{'k': 1, 'v': 2}] AS l, MAP {'k': [1.5]} AS m, range AS z"
    adds.select(f"SELECT range::INTEGER AS i, {nested}, {more} FROM range(20)", IGNORE)
    adds.select(f"SELECT range::INTEGER + 100 AS i, {nested}, 'text' AS z FROM range(20)", IGNORE)
    story.run("INSERT INTO t SELECT range, NULL FROM range(200, 220)", "DELETE FROM t WHERE i = 3")
    assert story.agree().counts == [20, 40, 60, 59]
    story.run(
        "ALTER TABLE t ADD COLUMN z BIGINT",
        "ALTER TABLE t ADD COLUMN st.z BIGINT",
        "INSERT INTO t SELECT range, {'a': 1, 'b': 'x', 'z': 2}, 3 FROM range(300, 320)",
    )
    found = story.agree()
    assert {z for _, _, z in found.now.values()} == {None, 3}
    warm = story.served.warm
    counted = warm.ask_spark(f"SELECT i FROM {warm.spark}.ignored.t WHERE z = 5").num_rows
    assert (counted, warm.table("ignored", "t").scan("z = 5").to_arrow().num_rows) == (0, 0)


def test_an_ignored_column_is_refused_once_its_name_is_a_column_in_another_file(served: Served) -> None:
    """By the one name mapping of the table it would be that column."""
    story = served.story("ignored_no_more").run("CREATE TABLE t(i INTEGER)")
    adds = Adds(story)
    place = adds.select("SELECT range::INTEGER AS i, range AS z FROM range(20)", IGNORE)
    story.run("ALTER TABLE t ADD COLUMN z BIGINT")
    adds.select("SELECT range::INTEGER AS i, range AS z FROM range(20)")
    assert f"file {place}: column z is not the table's, and is in another file" in refusal(story)
    assert "INSERT INTO ... SELECT" in refusal(story)


def test_files_from_before_and_after_a_rename_are_read_by_both_names(served: Served) -> None:
    story = served.story("both_names").run("CREATE TABLE t(a INTEGER, b VARCHAR)")
    adds = Adds(story)
    adds.select("SELECT 'x' AS b, range::INTEGER AS a FROM range(20)")
    story.run("ALTER TABLE t RENAME a TO c")
    adds.select("SELECT 'y' AS b, range::INTEGER AS c FROM range(20)")
    assert story.agree().counts == [20, 40]


def test_merging_an_added_file_makes_it_readable_by_all_engines(served: Served) -> None:
    story = served.story("merged").run("CREATE TABLE t(a BIGINT)")
    adds = Adds(story)
    for _ in range(2):
        adds.select("SELECT range::UINTEGER AS a FROM range(20)")
    assert "int32/uint32" in refusal(story)
    story.run(MERGE)
    # what the merge took away cannot be shown, and what it made shows every snapshot
    assert story.agree().counts == [20, 40, 40]


def test_a_table_with_a_missing_file_is_not_served_until_the_file_exists(served: Served) -> None:
    story = served.story("missing").run("CREATE TABLE t(a INTEGER)")
    place = Adds(story).select("SELECT 1 AS a FROM range(20)")
    objects = Objects(story.lake.settings)
    data = asyncio.run(objects.get(Location.parse(place)))
    assert data is not None
    asyncio.run(objects.delete(Location.parse(place)))
    assert f"file {place}: it is missing" in refusal(story)
    assert facts(story, "columns") == []
    asyncio.run(objects.put(Location.parse(place), data))
    assert story.agree().counts == [20]


def test_rows_of_a_file_with_unreadable_types_are_shown_after_reinserting_them(served: Served) -> None:
    """As the refusal says."""
    story = served.story("anew", inlining=0, tables=()).run("CREATE TABLE t(a BIGINT)")
    place = Adds(story).select("SELECT range::UINTEGER AS a FROM range(20)")
    message = refusal(story)
    assert f"file {place}: column a is stored as int32/uint32" in message
    assert "Delete its rows in DuckDB and insert them again, in one transaction" in message
    story.run(
        "CREATE TEMP TABLE kept AS FROM t",
        "BEGIN",
        "DELETE FROM t",
        "INSERT INTO t FROM kept",
        "COMMIT",
        "DROP TABLE kept",
    )
    story.tables = ("t",)
    assert story.agree(without=story.changed_by()[0][:1]).counts == [20]


def test_a_retype_is_refused_while_a_file_has_the_old_type(served: Served) -> None:
    story = served.story("retyped", inlining=0, tables=())
    story.run("CREATE TABLE t(i INTEGER)", "INSERT INTO t SELECT range FROM range(20)")
    story.run("ALTER TABLE t ALTER i TYPE DOUBLE", "INSERT INTO t SELECT range + 0.5 FROM range(20)")
    assert "column i is stored as int32/int32, which not every Iceberg reader reads as double" in refusal(story)
    (mixed,) = story.changed_by()[0][-1:]
    # one that DuckLake rewrites begins anew, and keeps the type
    story.run("DELETE FROM t WHERE i < 5", REWRITE)
    assert "column i is stored as int32/int32" in refusal(story)
    inserted, *_ = story.changed_by()[0]
    # the user's own way out
    story.run("DELETE FROM t", "INSERT INTO t SELECT range + 0.5 FROM range(20)")
    good = [inserted, *story.changed_by()[0][-2:]]
    assert listed(story) == good
    assert mixed not in good
    found = story.agree(without=[i for i in story.changed_by()[0] if i not in good])
    assert found.counts == [20, 0, 20]


def test_a_retype_is_served_if_no_file_has_the_old_type(served: Served) -> None:
    story = served.story("retyped_exactly", inlining=0)
    story.run("CREATE TABLE t(i INTEGER, l INTEGER[])")
    # of the very snapshot of the retype, but written after it
    story.db.execute("BEGIN")
    story.db.execute("ALTER TABLE t ALTER i TYPE DOUBLE")
    story.db.execute("ALTER TABLE t ALTER l TYPE DOUBLE[]")
    story.db.execute("INSERT INTO t SELECT range, [range] FROM range(20)")
    story.db.execute("COMMIT")
    story.run("DELETE FROM t WHERE i < 5", REWRITE)
    assert story.agree().counts == [20, 15, 15]
    assert len(facts(story, "columns")) == 2


def test_a_retype_of_a_list_element_is_refused_while_a_file_has_the_old_type(served: Served) -> None:
    story = served.story("retyped_element", inlining=0, tables=())
    story.run("CREATE TABLE t(l INTEGER[])", "INSERT INTO t SELECT [range] FROM range(20)")
    story.run("ALTER TABLE t ALTER l TYPE DOUBLE[]")
    assert "column element is stored as int32/int32" in refusal(story)


def test_rows_are_shown_after_an_unsupported_column_is_dropped(served: Served) -> None:
    """The rows came with a snapshot that is left out: that of the drop shows them."""
    story = served.story("dropped", inlining=0, tables=())
    story.run("CREATE TABLE t(i INTEGER, u UINTEGER)", "INSERT INTO t SELECT range, range FROM range(20)")
    story.run("ALTER TABLE t DROP COLUMN u")
    assert story.agree(without=story.changed_by()[0]).counts == [20]
    story.run("INSERT INTO t SELECT range FROM range(20)")
    assert story.agree(without=story.changed_by()[0][:1]).counts == [20, 40]


def nan_counts(story: Story, temper: str = "warm") -> dict[str, list[int | None]]:
    clients = story.served.warm if temper == "warm" else story.served.cold
    files = clients.pyiceberg.load_table((story.schema, "t")).inspect.files().to_pylist()
    names = files[0]["readable_metrics"].keys()
    return {name: sorted((f["readable_metrics"][name]["nan_value_count"] for f in files), key=str) for name in names}


NANS = "CASE WHEN range % 3 = 0 THEN 'NaN'::DOUBLE WHEN range % 3 = 1 THEN NULL ELSE range END"


def test_nan_counts_of_a_file_are_computed_once_for_all_processes(served: Served) -> None:
    story = served.story("nans", inlining=0).run(
        'CREATE TABLE t(i INTEGER, d DOUBLE, f FLOAT, st STRUCT(x DOUBLE, y INTEGER), "a.b" DOUBLE)',
        f"INSERT INTO t SELECT range, {NANS}, range, CASE WHEN range < 6 THEN {{'x': {NANS}, 'y': 1}} END, {NANS} "
        "FROM range(20)",
        f"INSERT INTO t SELECT range, {NANS}, 'NaN', NULL, NULL FROM range(100)",
    )
    found = nan_counts(story)
    assert found["d"] == [34, 7]
    assert found["f"] == [0, 100]
    assert found["a.b"] == [0, 7]
    assert found["i"] == [None, None]
    for (path, relative), expected in zip(story.lake.sql(PATHS, story.table_id()), (7, 34), strict=True):
        assert relative
        assert in_file(story, path) == expected
    counted = {i: orjson.loads(text) for i, text in facts(story, "nans")}
    assert [sorted(c.values()) for c in counted.values()] == [[2, 7, 7], [34, 100]]
    # what another process shows is what was written down, and not what it would have found
    for file_id in counted:
        story.lake.sql("UPDATE file_fact SET fact = replace(fact, ':7', ':6') WHERE data_file_id = %s", file_id)
    story.forget()
    assert nan_counts(story, "cold")["d"] == [34, 6]


PATHS = "SELECT path, path_is_relative FROM ducklake_data_file WHERE table_id = %s ORDER BY data_file_id"


def in_file(story: Story, path: str) -> int:
    place = f"{story.lake.settings.data_path}{story.schema}/t/{path}"
    column = pq.read_table(Objects(story.lake.settings).open(Location.parse(place)), columns=["d"]).column("d")
    return sum(value is not None and math.isnan(value) for value in column.to_pylist())


def test_nans_of_added_files_are_counted_by_column_name(served: Served) -> None:
    story = served.story("nans_added").run("CREATE TABLE t(i INTEGER, d DOUBLE, st STRUCT(x FLOAT))")
    Adds(story).select(f"SELECT {{'x': {NANS}::FLOAT}} AS st, {NANS} AS d, range::INTEGER AS i FROM range(20)")
    story.agree()
    assert nan_counts(story)["d"] == [7]
    ((_, text),) = facts(story, "nans")
    assert sorted(orjson.loads(text).values()) == [7, 7]


def test_nans_of_a_merged_file_are_counted_over_all_its_rows(served: Served) -> None:
    story = served.story("nans_merged", inlining=0).run(
        "CREATE TABLE t(d DOUBLE)",
        f"INSERT INTO t SELECT {NANS} FROM range(20)",
        f"INSERT INTO t SELECT {NANS} FROM range(20)",
        MERGE,
    )
    story.agree()
    assert nan_counts(story)["d"] == [14]


def test_cached_footer_facts_are_used_only_for_the_same_object(served: Served) -> None:
    story = served.story("believed").run("CREATE TABLE t(a INTEGER)")
    place = Adds(story).select("SELECT 1 AS a FROM range(20)")
    assert story.agree().counts == [20]
    ((file_id, text),) = facts(story, "columns")
    assert parse_columns(text) == (Part("a", None, "int32/int32", nulls=False),)
    # another process believes what is written down
    wrong = columns_text([Part("a", None, "int32/uint32", nulls=False)])
    story.lake.sql("UPDATE file_fact SET fact = %s WHERE data_file_id = %s", wrong, file_id)
    # without a listener: one would look at the table by itself, and remember
    with readers.served(story.lake, story.served.warm.server.log.parent, 2, "off") as fresh:
        got = fresh.warm.server.http.get(f"{fresh.warm.server.path(story.schema)}/tables/t")
        assert error_of(got) == (406, "UnsupportedOperationException")
        # but not of another file that once had the id
        story.lake.sql("UPDATE file_fact SET path = 's3://other/file' WHERE data_file_id = %s", file_id)
        assert story.load(server=fresh.cold.server)["snapshots"]
    assert story.lake.sql("SELECT path, fact FROM file_fact WHERE data_file_id = %s", file_id) == [(place, text)]


def test_a_filter_on_an_added_file_finds_its_rows_in_spark(served: Served) -> None:
    story = served.story("filtered").run("CREATE TABLE t(i INTEGER, s VARCHAR)")
    Adds(story).select("SELECT 'x' || range AS s, range::INTEGER AS i FROM range(20)")
    warm = story.served.warm
    found = answer(warm.ask_spark(f"SELECT i FROM {warm.spark}.{story.schema}.t WHERE s = 'x7'"))
    assert found.values() == [7]


SCHEMA = Schema((Field(1, "a", "int"), Field(2, "b", "long")))
OWN = (MappedField(1, ("a",)), MappedField(2, ("b",)))


def test_an_additional_column_of_a_file_may_not_have_a_reserved_field_id() -> None:
    columns = [Part("a", 1, "int32", nulls=True), Part("b", 2, "int64", nulls=True)]
    ids = frozenset({1, 2})
    assert judge([*columns, Part("z", 9, "int96", nulls=True)], SCHEMA, OWN, frozenset(), ids).misfit is None
    reserved = Part("z", RESERVED_IDS, "int64", nulls=True)
    assert judge([*columns, reserved], SCHEMA, OWN, frozenset(), ids).misfit is not None
    assert judge([columns[0], columns[0]], SCHEMA, OWN, frozenset(), ids).misfit == "column a is there twice"


def test_only_retyped_columns_of_ducklakes_own_files_are_checked() -> None:
    columns = [Part("a", 1, "double", nulls=True), Part("b", 2, "int32/int16", nulls=True)]
    ids = frozenset({1, 2})
    assert judge(columns, SCHEMA, None, frozenset({2}), ids).slowly
    assert judge(columns, SCHEMA, None, frozenset({1}), ids).misfit is not None
    assert judge(columns, SCHEMA, None, frozenset({9}), ids).misfit is None
