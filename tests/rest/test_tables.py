"""Which tables there are: through HTTP, made by DuckDB sessions."""

from pathlib import Path

import duckdb
import pytest

from tests.support import lakes, servers
from tests.support.servers import Server, error_of


def names(server: Server, *levels: str, **params: str | int) -> list[str]:
    answer = server.http.get(f"{server.path(*levels)}/tables", params=params)
    assert answer.status_code == 200, answer.text
    found = answer.json()["identifiers"]
    assert all(x["namespace"] == list(levels) for x in found)
    return [x["name"] for x in found]


def test_tables_are_listed_as_duckdb_makes_renames_and_drops_them(
    server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA listed")
    assert names(server, "listed") == []
    db.execute("CREATE TABLE listed.b(i INTEGER); CREATE TABLE listed.a(i INTEGER)")
    db.execute("CREATE VIEW listed.v AS SELECT 1 AS i")
    assert names(server, "listed") == ["a", "b"]
    db.execute("ALTER TABLE listed.a RENAME TO z")
    assert names(server, "listed") == ["b", "z"]
    db.execute("DROP TABLE listed.b; CREATE TABLE listed.z2 AS SELECT 1 AS i; DROP TABLE listed.z")
    assert names(server, "listed") == ["z2"]


def test_a_head_request_tells_whether_a_table_exists(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA here; CREATE TABLE here.t(i INTEGER); CREATE VIEW here.v AS SELECT 1 AS i")
    where = f"{server.path('here')}/tables"
    assert server.http.head(f"{where}/t").status_code == 204
    for absent in ("T", "v", "u", "a%00b"):
        assert server.http.head(f"{where}/{absent}").status_code == 404
    assert server.http.head(f"{server.path('nowhere')}/tables/t").status_code == 404
    db.execute("DROP TABLE here.t")
    assert server.http.head(f"{where}/t").status_code == 404


def test_listing_tables_of_a_missing_namespace_is_not_found(server: Server) -> None:
    answer = server.http.get(f"{server.path('nowhere')}/tables")
    assert error_of(answer) == (404, "NoSuchNamespaceException")


def test_a_parent_without_a_schema_has_no_tables(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute('CREATE SCHEMA "only.below"; CREATE TABLE "only.below".t(i INTEGER)')
    assert names(server, "only") == []
    assert names(server, "only", "below") == ["t"]
    assert server.http.head(f"{server.path('only')}/tables/t").status_code == 404


@pytest.mark.parametrize("name", ["a/b", "with space", "do.t", "ünï", 'q"uote', "%2F", "x\x1fy"])
def test_tables_with_special_characters_in_their_names_are_listed(
    name: str, server: Server, db: duckdb.DuckDBPyConnection
) -> None:
    from urllib.parse import quote

    db.execute("CREATE SCHEMA IF NOT EXISTS awkward")
    quoted = name.replace('"', '""')
    db.execute(f'CREATE TABLE awkward."{quoted}"(i INTEGER)')
    assert name in names(server, "awkward")
    assert server.http.head(f"{server.path('awkward')}/tables/{quote(name, safe='')}").status_code == 204


def test_ten_thousand_tables_page_correctly(tmp_path: Path) -> None:
    """In a lake of its own: rows without columns, as these are, no DuckDB session could load."""
    with lakes.lake() as lake, servers.server(lake.settings, tmp_path) as running:
        running.create("crowded")
        lake.sql(
            "INSERT INTO ducklake_table SELECT 1000000 + i, gen_random_uuid(), 0, NULL, "
            "(SELECT schema_id FROM ducklake_schema WHERE schema_name = 'crowded'), 't' || lpad(i::text, 5, '0'), "
            "'x/', true FROM generate_series(0, 9999) AS i"
        )
        wanted = [f"t{i:05}" for i in range(10_000)]
        assert names(running, "crowded") == wanted
        seen: list[str] = []
        token = ""
        while token is not None:
            params = {"pageToken": token, "pageSize": 777}
            answer = running.http.get(f"{running.path('crowded')}/tables", params=params).json()
            seen += [x["name"] for x in answer["identifiers"]]
            token = answer["next-page-token"]
        assert seen == wanted


def test_a_page_token_of_another_namespace_or_listing_is_refused(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA one; CREATE TABLE one.a(i INTEGER); CREATE TABLE one.b(i INTEGER); CREATE SCHEMA two")
    url = f"{server.path('one')}/tables"
    token = server.http.get(url, params={"pageSize": 1}).json()["next-page-token"]
    assert server.http.get(url, params={"pageToken": token}).json()["identifiers"][0]["name"] == "b"
    for other in (f"{server.path('two')}/tables", server.namespaces):
        assert error_of(server.http.get(other, params={"pageToken": token})) == (400, "BadRequestException")
