"""What a table becomes by the columns that come, and which files make a batch."""

import pytest
from pyspark.sql.types import StructType

from mergus.errors import SetupError
from mergus.pipeline.ingest import ledger
from mergus.pipeline.ingest.evolution import columns, filled, fit, shape
from mergus.pipeline.ingest.hadoop import SourceFile
from mergus.pipeline.ingest.job import cut, sort_out
from mergus.pipeline.ingest.ledger import Known, batch_id
from mergus.pipeline.ingest.reading import Reading, format_of, is_of_the_file, parse
from mergus.pipeline.partitioning import partition
from tests.support import spark as sparks


def ddl(text: str) -> StructType:
    # it is Spark that parses this
    sparks.session()
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found


@pytest.mark.parametrize(
    ("table", "incoming", "changes", "becomes"),
    [
        ("a INT", "A TINYINT, b SMALLINT", ["add b int"], "a INT, b INT"),
        ("a INT", "a BIGINT", ["widen a from int to bigint"], "a BIGINT"),
        ("a BIGINT, d DOUBLE, e DOUBLE", "a INT, d FLOAT, e INT", [], "a BIGINT, d DOUBLE, e DOUBLE"),
        ("d DECIMAL(5, 2)", "d DECIMAL(9, 2)", ["widen d from decimal(5,2) to decimal(9,2)"], "d DECIMAL(9, 2)"),
        ("d DECIMAL(9, 4)", "d DECIMAL(5, 2)", [], "d DECIMAL(9, 4)"),
        (
            "s STRUCT<a: INT>, l ARRAY<STRUCT<a: INT>>, m MAP<STRING, FLOAT>",
            "s STRUCT<A: BIGINT, b: CHAR(3)>, l ARRAY<STRUCT<c: DATE>>, m MAP<STRING, DOUBLE>",
            ["widen s.a from int to bigint", "add s.b string", "add l.element.c date",
             "widen m.value from float to double"],
            "s STRUCT<a: BIGINT, b: STRING>, l ARRAY<STRUCT<a: INT, c: DATE>>, m MAP<STRING, DOUBLE>",
        ),
    ],
)  # fmt: skip
def test_new_columns_are_added_and_types_are_widened(
    table: str, incoming: str, changes: list[str], becomes: str
) -> None:
    found = fit(ddl(table), ddl(incoming))
    assert ([*map(str, found.changes)], found.clashes, found.refused) == (changes, [], [])
    assert found.schema == ddl(becomes)
    # and once it is so, nothing is left to do
    assert fit(found.schema, ddl(incoming)).changes == []


@pytest.mark.parametrize(
    ("table", "incoming", "why"),
    [
        ("a INT", "a STRING", "a is int in the table, and string here"),
        ("a INT", "a DOUBLE", "a is int in the table, and double here"),
        ("a BIGINT", "a FLOAT", "a is bigint in the table, and float here"),
        ("d DECIMAL(9, 4)", "d DECIMAL(9, 2)", "d is decimal(9,4) in the table, and decimal(9,2) here"),
        ("t TIMESTAMP", "t TIMESTAMP_NTZ", "t is timestamp in the table, and timestamp_ntz here"),
        ("s STRUCT<a: INT>", "s STRUCT<a: DATE>", "s.a is int in the table, and date here"),
        ("m MAP<STRING, INT>", "m MAP<INT, INT>", "m is map<string,int> in the table, and map<int,int> here"),
    ],
)
def test_a_type_clash_leaves_the_schema_unchanged(table: str, incoming: str, why: str) -> None:
    found = fit(ddl(table), ddl(incoming))
    assert (found.clashes, found.changes, found.schema) == ([why], [], ddl(table))


@pytest.mark.parametrize(
    "incoming",
    ["row_id INT", "_FILE STRING", "_source_file STRING", "_mergus_x INT", "i INTERVAL DAY", "v VOID", "s STRUCT<>"],
)
def test_reserved_names_and_unsupported_types_are_refused_as_columns(incoming: str) -> None:
    found = fit(ddl("a INT"), ddl(incoming))
    assert len(found.refused) == 1


def test_column_names_of_ingested_files_are_quoted_in_sql() -> None:
    nasty = StructType.fromJson(
        {"type": "struct", "fields": [{"name": "a`) --'", "type": "integer", "nullable": True, "metadata": {}}]}
    )
    assert columns(nasty) == "`a``) --'` int"
    assert filled("x", nasty, StructType([*nasty.fields, *ddl("b INT").fields])) == (
        "IF(x IS NULL, NULL, named_struct('a`) --\\'', x.`a``) --'`, 'b', CAST(NULL AS int)))"
    )


def test_a_reader_gets_the_schema_of_the_file_with_the_types_of_the_table() -> None:
    table = ddl("a BIGINT, s STRUCT<x: INT, y: INT>, other INT")
    assert shape(ddl("S STRUCT<Y: STRING>, a INT"), table) == ddl("S STRUCT<Y: INT>, a BIGINT")
    how = Reading("csv", (("header", "true"),), "file:/in", table)
    assert parse(how.json()) == how


def file(name: str, size: int = 1, modified: int = 0) -> SourceFile:
    return SourceFile(modified, name, size)


def test_batches_are_cut_by_files_and_bytes() -> None:
    files = [file("a", 5), file("b", 5), file("c", 1), file("d", 100), file("e", 1)]
    assert [[one.uri for one in batch] for batch in cut(files, 2, 10)] == [["a", "b"], ["c"], ["d"], ["e"]]
    assert list(cut([], 2, 10)) == []


def test_files_are_classified_as_new_known_or_changed() -> None:
    known = Known(3, {("in", 1, 0): ledger.IN, ("bad", 1, 0): ledger.QUARANTINED, ("gone", 1, 0): ledger.GONE})
    files = [file("in"), file("bad"), file("gone"), file("new")]
    assert sort_out(files, known, again=False) == ([file("gone"), file("new")], [], 2)
    assert sort_out(files, known, again=True) == ([file("bad"), file("gone"), file("new")], [], 1)
    later = file("in", modified=1)
    assert sort_out([later], known, again=False) == ([], [later], 0)


def test_the_id_of_a_batch_depends_on_its_plan_and_files_only() -> None:
    a, b = file("a"), file("b")
    assert batch_id("u", 1, [a, b]) == batch_id("u", 1, [b, a])
    assert len({batch_id("u", 1, [a]), batch_id("u", 2, [a]), batch_id("v", 1, [a]), batch_id("u", 1, [a, b])}) == 4


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("s3a://b/x.PARQUET", "parquet"), ("a/x.csv.gz", "csv"), ("x.jsonl", "json"), ("x.csv.txt", None), ("csv", None)],
)
def test_the_format_of_a_file_is_derived_from_its_name(name: str, wanted: str | None) -> None:
    assert format_of(name) == wanted


def test_an_error_of_the_store_is_distinguished_from_an_error_of_the_file() -> None:
    one = file("file:/Timeout%20Forbidden/AccessDenied.parquet")
    assert is_of_the_file("file:///Timeout Forbidden/AccessDenied.parquet is not a Parquet file", one)
    assert is_of_the_file("cannot read file:/Timeout%20Forbidden/AccessDenied.parquet", one)
    assert not is_of_the_file("java.net.SocketTimeoutException: Read timed out", one)
    assert not is_of_the_file("S3Exception: AccessDenied (Status Code: 403)", one)


def test_partition_expressions_are_quoted_and_checked() -> None:
    assert partition("a b`c") == "`a b``c`"
    assert partition("bucket(16, id)") == "bucket(16, `id`)"
    assert partition("Days( at )") == "days(`at`)"
    for wrong in ["days(a, b)", "bucket(id)", "days(4, a)", "drop(a)", "a) USING x --("]:
        with pytest.raises(SetupError, match="is no partitioning"):
            partition(wrong)
