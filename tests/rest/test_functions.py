"""Functions: the macros of DuckDB sessions, listed; and why none can be loaded."""

import duckdb
import pytest

from tests.support.lakes import TestLake
from tests.support.servers import Server, error_of


def functions(server: Server, *levels: str, **params: str | int) -> list[list[str]]:
    answer = server.http.get(f"{server.path(*levels)}/functions", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["identifiers"]


def test_macros_are_listed_as_duckdb_makes_and_drops_them(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA listed")
    assert functions(server, "listed") == []
    db.execute("CREATE MACRO listed.one(a) AS a + 1; CREATE MACRO listed.all_of(n) AS TABLE SELECT * FROM range(n)")
    assert functions(server, "listed") == [["listed", "all_of"], ["listed", "one"]]
    db.execute("CREATE OR REPLACE MACRO listed.one(a, b) AS a + b")
    assert functions(server, "listed") == [["listed", "all_of"], ["listed", "one"]]
    db.execute("DROP MACRO listed.one")
    assert functions(server, "listed") == [["listed", "all_of"]]


def test_macros_that_share_a_name_are_listed_as_one_function(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA same; CREATE MACRO same.f(a) AS a + 1, (a, b) AS a + b")
    db.execute("CREATE MACRO same.f(n) AS TABLE SELECT * FROM range(n)")
    assert functions(server, "same") == [["same", "f"]]


def test_functions_of_nested_namespaces_are_listed(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute('CREATE SCHEMA "deep.er"; CREATE MACRO "deep.er"."a/b"(x) AS x')
    assert functions(server, "deep", "er") == [["deep", "er", "a/b"]]
    # there only as the parent
    assert functions(server, "deep") == []
    answer = server.http.get(f"{server.path('deep', 'er')}/functions/a%2Fb")
    assert error_of(answer) == (406, "UnsupportedOperationException")


def test_functions_of_a_missing_namespace_are_not_found(server: Server) -> None:
    for path in ("functions", "functions/f"):
        assert error_of(server.http.get(f"{server.path('nowhere')}/{path}")) == (404, "NoSuchNamespaceException")


@pytest.mark.parametrize("name", ["missing", "T", "t", "F", "a%00b"])
def test_a_missing_function_is_not_found(name: str, server: Server, db: duckdb.DuckDBPyConnection) -> None:
    """Tables are none, and names are as they were written."""
    db.execute("CREATE SCHEMA IF NOT EXISTS absent; CREATE TABLE IF NOT EXISTS absent.t(i INTEGER)")
    db.execute("CREATE OR REPLACE MACRO absent.f(a) AS a")
    answer = server.http.get(f"{server.path('absent')}/functions/{name}")
    assert error_of(answer) == (404, "NoSuchFunctionException")


def test_loading_a_function_is_refused_with_the_missing_parameter_types(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA why; CREATE MACRO why.f(a, b := 2) AS a + b")
    db.execute("CREATE MACRO why.t(first INTEGER, n) AS TABLE SELECT * FROM range(first, n)")
    for name, kind, parameters in (("f", "scalar", "a, b"), ("t", "table", "n")):
        answer = server.http.get(f"{server.path('why')}/functions/{name}")
        assert error_of(answer) == (406, "UnsupportedOperationException")
        message = answer.json()["error"]["message"]
        assert f"why.{name} is a {kind} macro" in message
        assert message.endswith(f"that of its result, nor those of its parameters {parameters}"), message


def test_loading_a_function_is_refused_for_the_missing_result_type(
    lake: TestLake, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA typed; CREATE MACRO typed.f(a INTEGER) AS a + 1")
    (columns,) = lake.sql(
        "SELECT array_agg(column_name::text) FROM information_schema.columns WHERE table_name LIKE 'ducklake_macro%%'"
        " AND column_name LIKE '%%type%%'"
    )
    # the kind of macro, of a parameter, of its default: none of the result
    assert sorted(columns[0]) == ["default_value_type", "parameter_type", "type"]
    answer = server.http.get(f"{server.path('typed')}/functions/f")
    assert error_of(answer) == (406, "UnsupportedOperationException")
    assert answer.json()["error"]["message"].endswith("does not know that of its result")
