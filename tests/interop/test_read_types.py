"""Every type that both sides have, its extremes and its absence, inlined and in files; and those that are refused."""

import pytest

from tests.support import readers
from tests.support.readers import ALL, FLUSH, Served
from tests.support.servers import error_of

BY_TURNS = True


# Iceberg's Spark has no time of day.
NOT_SPARK = ALL - {"spark"}

VALUES = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128", "127", "0"],
    "SMALLINT": ["-32768", "32767"],
    "INTEGER": ["-2147483648", "2147483647"],
    "BIGINT": ["-9223372036854775808", "9223372036854775807"],
    "FLOAT": ["0.1", "-0.0", "3.4028235e38", "1e-45", "'nan'", "'inf'", "'-inf'"],
    "DOUBLE": ["0.1", "-0.0", "1.7976931348623157e308", "5e-324", "'nan'", "'inf'", "'-inf'"],
    "DECIMAL(4, 1)": ["-999.9", "999.9", "0.1"],
    "DECIMAL(9, 2)": ["-9999999.99", "9999999.99"],
    "DECIMAL(18, 6)": ["-999999999999.999999", "999999999999.999999"],
    "DECIMAL(38, 10)": ["-9999999999999999999999999999.9999999999", "0.0000000001"],
    "DATE": ["'0001-01-01'", "'9999-12-31'", "'1969-12-31'", "'2020-02-29'"],
    "TIMESTAMP": ["'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'", "'1969-12-31 23:59:59.999999'"],
    "TIMESTAMP_S": ["'1969-12-31 23:59:59'", "'2020-01-01 01:02:03'"],
    "TIMESTAMPTZ": ["'0001-01-01 00:00:00+00'", "'2020-06-01 12:00:00.000001+05:30'"],
    "VARCHAR": ["''", "'ünï ☃ 🦆'", "'a''b\"c\\d'", "'NULL'", "repeat('long ', 100)", "chr(10) || chr(9)"],
    "BLOB": ["''::BLOB", r"'\x00\xFF\x5C'::BLOB", "'plain'::BLOB"],
    "UUID": ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"],
    "JSON": ["""'{"a": [1, null]}'""", "'null'", "'1.50'"],
}
NESTED = {
    "INTEGER[]": ["[1, NULL, 3]", "[]"],
    "VARCHAR[][]": ["[['a', ''], NULL, []]", "[[NULL]]"],
    "STRUCT(a INTEGER, b VARCHAR)": ["{'a': 1, 'b': 'x'}", "{'a': NULL, 'b': NULL}"],
    "MAP(VARCHAR, INTEGER)": ["MAP {'k': 1, 'n': NULL}", "MAP {}"],
}
# A list or map of structs that is NULL is an empty one to PyIceberg (0.12), whoever wrote the file.
NESTED_IN_LISTS = {
    "MAP(INTEGER, STRUCT(x BIGINT[]))": ["MAP {1: {'x': [1, NULL]}}", "MAP {2: NULL}"],
    "STRUCT(d DECIMAL(10, 2), n STRUCT(t INTEGER[]))[]": ["[{'d': 1.5, 'n': {'t': [1]}}, NULL]"],
}
# DuckDB cannot read these back once they are inlined.
NESTED_IN_FILES = {
    "STRUCT(d DATE, t TIMESTAMP, z TIMESTAMPTZ, f DOUBLE, u UUID)": [
        "{'d': DATE '2020-01-01', 't': TIMESTAMP '2020-01-01 00:00:00', 'z': NULL, 'f': 'nan', 'u': uuid()}"
    ],
    "STRUCT(b BLOB, o BOOLEAN)": [r"{'b': '\xAA'::BLOB, 'o': true}"],
}


def create(types: dict[str, list[str]]) -> str:
    return f"CREATE TABLE t({', '.join(f'c{n} {kind}' for n, kind in enumerate(types))})"


def rows(types: dict[str, list[str]]) -> list[str]:
    """One of NULLs, and each value of each column at least once; shorter lists begin again."""
    most = max(map(len, types.values()))
    filled = [[values[i % len(values)] for values in types.values()] for i in range(most)]
    return [f"({', '.join(row)})" for row in [["NULL"] * len(types), *filled]]


def both_ways(types: dict[str, list[str]], *, inlined: bool = True) -> list[str]:
    """Inlined, in a file, and flushed from the one to the other."""
    statements = [create(types)]
    if inlined:
        statements.append(f"INSERT INTO t VALUES {', '.join(rows(types))}")
    in_file = rows(types) * 11
    statements += [f"INSERT INTO t VALUES {', '.join(in_file)}", "DELETE FROM t WHERE c0 IS NULL"]
    return [*statements, FLUSH, f"INSERT INTO t VALUES {rows(types)[1]}"] if inlined else statements


def test_primitive_types_are_read_by_all_engines(served: Served) -> None:
    found = served.story("plain").run(*both_ways(VALUES)).agree()
    kinds = [kind for _, kind in found.now.columns]
    assert kinds[:5] == ["bool", "int", "int", "int", "long"]


def test_small_unsigned_integers_are_read_by_pyiceberg_and_duckdb_but_not_by_spark(served: Served) -> None:
    """Spark (Iceberg 1.11) does not take them from a file with a dictionary, which DuckDB writes when values repeat,
    nor when it reads by rows: `Unsupported logical type: UINT_8`."""
    types = {"UTINYINT": ["0", "255"], "USMALLINT": ["0", "65535"]}
    found = served.story("unsigned").run(*both_ways(types)).agree(readers=NOT_SPARK)
    assert found.now.columns == (("c0", "int"), ("c1", "int"))
    with pytest.raises(Exception, match="UINT_8"):
        served.warm.with_spark("unsigned", "t")


def test_nested_types_are_read_alike_inlined_and_in_files(served: Served) -> None:
    served.story("nested").run(*both_ways(NESTED)).agree()
    served.story("nested_in_lists").run(*both_ways(NESTED_IN_LISTS)).agree(readers=ALL - {"pyiceberg"})
    served.story("nested_in_files").run(*both_ways(NESTED_IN_FILES, inlined=False)).agree()


def test_times_of_day_are_read_by_pyiceberg_and_duckdb(served: Served) -> None:
    types = {"TIME": ["'00:00:00'", "'23:59:59.999999'"]}
    served.story("time").run(*both_ways(types)).agree(readers=NOT_SPARK)


def test_a_nanosecond_timestamp_column_makes_a_table_format_version_3(served: Served) -> None:
    types = {"TIMESTAMP_NS": ["'1969-12-31 23:59:59.999999999'", "'2020-01-01 00:00:00.000000001'"]}
    found = served.story("nanoseconds").run(*both_ways(types)).agree(readers=NOT_SPARK)
    assert found.metadata["format-version"] == 3
    assert found.now.columns == (("c0", "timestamp_ns"),)


def test_infinite_timestamps_and_timestamps_bc_are_read_by_all_engines(served: Served) -> None:
    types = {
        "DATE": ["'infinity'", "'-infinity'", "'0044-03-15 (BC)'"],
        "TIMESTAMP": ["'infinity'", "'-infinity'", "'0044-03-15 (BC) 01:02:03'"],
        "TIMESTAMPTZ": ["'infinity'", "'-infinity'", "'0044-03-15 (BC) 01:02:03+00'"],
    }
    served.story("infinite").run(*both_ways(types)).agree()


def test_variants_are_read_by_engines_that_support_them(served: Served) -> None:
    story = served.story("variants").run("CREATE TABLE t(i INTEGER, v VARIANT)")
    story.run("INSERT INTO t SELECT range, {'a': range} FROM range(12)", "INSERT INTO t VALUES (100, NULL)")
    assert story.load()["format-version"] == 3
    query = "SELECT i, CAST(v AS VARCHAR) AS v FROM {} WHERE i < 100"
    wanted = story.ask(query.format("{lake}.t"))
    got = served.warm.ask_duckdb(query.format(f"{served.warm.duckdb}.variants.t"))
    assert readers.answer(got) == wanted
    query = f"SELECT i, variant_get(v, '$.a', 'int') AS a FROM {served.warm.spark}.variants.t WHERE i < 100"
    assert readers.answer(served.warm.ask_spark(query)).values() == sorted([(i, i) for i in range(12)], key=repr)


def test_h20_filters_lose_no_row_for_any_form_of_statistics(served: Served) -> None:
    """Texts of statistics differ between files and inlined rows, and some are no bounds at all.

    Nobody is asked whether a NaN is more than a number: to PyIceberg it is not, to DuckDB it is.
    """
    story = served.story("h20").run(
        "CREATE TABLE t(i INTEGER, b BOOLEAN, x BLOB, d DATE, ts TIMESTAMP, f DOUBLE, s VARCHAR, u UUID, "
        "e DECIMAL(9, 2))",
        "INSERT INTO t VALUES (1, true, '\\xAA\\x00'::BLOB, 'infinity', '-infinity', 'nan', 'a', NULL, -1.5)",
        "INSERT INTO t SELECT range, false, 'AA00'::BLOB, '0044-03-15 (BC)', 'infinity', 'nan', NULL, NULL, 0 "
        "FROM range(12)",
        "INSERT INTO t SELECT range + 100, range < 6, NULL, '2020-01-01', NULL, -0.0, repeat('z', 300), "
        "'f79c3e09-677c-4bbd-a479-3f349cb785e7', NULL FROM range(12)",
        "INSERT INTO t SELECT range + 200, true, ''::BLOB, '1969-12-31', '1969-12-31 23:59:59.999999', range - 6, "
        "chr(0) || 'nul', '00000000-0000-0000-0000-000000000001', range / 4 FROM range(12)",
        FLUSH,
    )
    story.agree()
    filters = [
        *(
            "b = true",
            "b = false",
            "b IS NULL",
            "f = 0.0",
            "f < 0.0",
            "f > 3.0 AND f < 99.0",
            "f IS NOT NULL",
            "s IS NULL",
            "s = 'a'",
        ),
        *("s > 'y'", "i > 205", "e = -1.50", "e > 1.00", "e IS NULL", "d < DATE '1970-01-01'", "d = DATE '2020-01-01'"),
        *("d > DATE '3000-01-01'", "ts < TIMESTAMP '1970-01-01 00:00:00'", "ts > TIMESTAMP '3000-01-01 00:00:00'"),
        *("u IS NOT NULL", "u = 'f79c3e09-677c-4bbd-a479-3f349cb785e7'", "x IS NULL"),
    ]
    every = story.ask("SELECT i, " + ", ".join(f"coalesce({f}, false) AS w{n}" for n, f in enumerate(filters))
                      + " FROM {lake}.t")  # fmt: skip
    for n, filter_ in enumerate(filters):
        wanted = sorted((row[0] for row in every.rows.elements() if row[n + 1] == "True"), key=repr)
        for clients in (served.warm, served.cold):
            found = clients.ask_duckdb(f"SELECT i FROM {clients.duckdb}.h20.t WHERE {filter_}")
            assert readers.answer(found).values("i") == wanted, f"DuckDB: {filter_}"
        plain = filter_.replace("DATE ", "").replace("TIMESTAMP ", "").replace(" 00:00:00'", "T00:00:00'")
        found = served.warm.table("h20", "t").scan(row_filter=plain, selected_fields=("i",)).to_arrow()
        assert readers.answer(found).values("i") == wanted, f"PyIceberg: {plain}"
        typed = filter_.replace("TIMESTAMP ", "TIMESTAMP_NTZ ").replace("f = 0.0", "f = 0.0D")
        found = served.warm.ask_spark(f"SELECT i FROM {served.warm.spark}.h20.t WHERE {typed}")
        assert readers.answer(found).values("i") == wanted, f"Spark: {typed}"


def test_filters_find_rows_of_a_column_that_is_null_as_often_as_not(served: Served) -> None:
    story = served.story("half_null", inlining=0).run(
        "CREATE TABLE t(i INTEGER, n INTEGER)",
        "INSERT INTO t SELECT range, CASE WHEN range % 2 = 0 THEN range END FROM range(20)",
    )
    story.agree()
    for clients in (served.warm, served.cold):
        found = clients.ask_duckdb(f"SELECT i FROM {clients.duckdb}.half_null.t WHERE n = 4")
        assert readers.answer(found).values("i") == [4]
        found = clients.table("half_null", "t").scan(row_filter="n = 4", selected_fields=("i",)).to_arrow()
        assert readers.answer(found).values("i") == [4]
        found = clients.ask_spark(f"SELECT i FROM {clients.spark}.half_null.t WHERE n = 4")
        assert readers.answer(found).values("i") == [4]


REFUSED = ["UINTEGER", "UBIGINT", "HUGEINT", "UHUGEINT", "INTERVAL", "TIMETZ", "TIME_NS", "TIMESTAMP_MS"]


@pytest.mark.parametrize("kind", REFUSED)
def test_h21_a_table_with_a_type_that_readers_would_misread_is_refused(served: Served, kind: str) -> None:
    name = f"h21_{kind.lower()}"
    # a column of nanoseconds of the day cannot be inlined in Postgres, and no such row can be written
    story = served.story(name, tables=("good",), inlining=0 if kind == "TIME_NS" else None)
    story.run("CREATE TABLE good(i INTEGER)", f"CREATE TABLE bad(i INTEGER, odd {kind}, l STRUCT(inner_ {kind})[])")
    story.run("INSERT INTO good VALUES (1)")
    server = served.warm.server
    answer = server.http.get(f"{server.path(name)}/tables/bad")
    assert error_of(answer) == (406, "UnsupportedOperationException")
    assert "column odd" in answer.json()["error"]["message"]
    listed = server.http.get(f"{server.path(name)}/tables").json()["identifiers"]
    assert {x["name"] for x in listed} == {"good", "bad"}
    assert served.warm.with_pyiceberg(name, "good").values() == [1]
    story.tables = ("good", "bad")
    story.run("ALTER TABLE bad DROP COLUMN odd; ALTER TABLE bad DROP COLUMN l", "INSERT INTO bad VALUES (2)")
    assert story.agree("bad").now.values() == [2]
