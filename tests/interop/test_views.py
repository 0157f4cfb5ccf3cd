"""Views that PyIceberg and DuckDB make, and what the other finds."""

from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchViewError, RESTError, ViewAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyiceberg.view.metadata import ViewVersion

from tests.support import loads, views
from tests.support.lakes import TestLake
from tests.support.servers import Server, error_of
from tests.support.views import commit, create, get, load, names, rename, replace, texts

UNSUPPORTED = (406, "UnsupportedOperationException")


@pytest.fixture
def schema(server: Server, db: duckdb.DuckDBPyConnection) -> str:
    """With a table t of two rows."""
    name = f"s{uuid4().hex[:8]}"
    db.execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (i INTEGER, s VARCHAR)")
    db.execute(f"INSERT INTO {name}.t VALUES (1, 'a'), (2, 'b')")
    return name


@pytest.fixture(scope="module")
def catalog(lake: TestLake, server: Server) -> Catalog:
    return loads.catalog(lake.settings, server)


def version(schema: str, **dialects: str) -> ViewVersion:
    representations = [{"type": "sql", "sql": sql, "dialect": dialect} for dialect, sql in dialects.items()]
    told = {
        "version-id": 1,
        "schema-id": 1,
        "timestamp-ms": 1_700_000_000_000,
        "summary": {"engine-name": "pyiceberg"},
        "representations": representations,
        "default-namespace": [schema],
    }
    return ViewVersion.model_validate(told)


def test_every_duckdb_session_reads_a_view_created_by_pyiceberg(
    catalog: Catalog, lake: TestLake, schema: str, db: duckdb.DuckDBPyConnection
) -> None:
    columns = Schema(NestedField(1, "n", LongType(), required=False), NestedField(2, "s", StringType(), required=False))
    texts = {"duckdb": "SELECT i * 10 AS n, s FROM t", "spark": "SELECT i * 10 AS n, s FROM t"}
    made = catalog.create_view((schema, "v"), columns, version(schema, **texts), properties={"comment": "by ten"})
    assert catalog.view_exists((schema, "v"))
    assert catalog.list_views(schema) == [(schema, "v")]
    loaded = catalog.load_view((schema, "v"))
    assert loaded.metadata == made.metadata
    assert loaded.schema().as_struct() == columns.as_struct()
    with lake.duckdb() as fresh:
        for session in (db, fresh):
            assert session.execute(f"FROM {schema}.v ORDER BY n").fetchall() == [(10, "a"), (20, "b")]
        told = "SELECT comment FROM duckdb_views() WHERE view_name = 'v' AND schema_name = ?"
        assert fresh.execute(told, [schema]).fetchall() == [("by ten",)]
    with pytest.raises(ViewAlreadyExistsError):
        catalog.create_view((schema, "v"), columns, version(schema, **texts))
    # a view of a view, and rows that come later
    db.execute(f"CREATE VIEW {schema}.w AS SELECT sum(n) AS total FROM v; INSERT INTO {schema}.t VALUES (3, 'c')")
    assert db.execute(f"FROM {schema}.w").fetchall() == [(60,)]
    assert [str(f.field_type) for f in catalog.load_view((schema, "w")).schema().fields] == ["decimal(38, 0)"]
    catalog.drop_view((schema, "v"))
    with pytest.raises(NoSuchViewError):
        catalog.load_view((schema, "v"))
    with pytest.raises(duckdb.CatalogException):
        db.execute(f"FROM {schema}.v")


def test_pyiceberg_registers_a_view(
    catalog: Catalog, server: Server, schema: str, db: duckdb.DuckDBPyConnection
) -> None:
    create(server, schema, "v", duckdb="SELECT * FROM t", spark="SELECT 1")
    was = get(server, schema, "v").json()
    catalog.drop_view((schema, "v"))
    registered = catalog.register_view((schema, "again"), was["metadata-location"])
    assert str(registered.metadata.view_uuid) == was["metadata"]["view-uuid"]
    assert db.execute(f"FROM {schema}.again ORDER BY i").fetchall() == [(1, "a"), (2, "b")]


def test_pyiceberg_lists_and_loads_a_duckdb_view(
    catalog: Catalog, lake: TestLake, schema: str, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute(f"CREATE VIEW {schema}.v AS SELECT i, upper(s) AS big, [i] AS l FROM t WHERE i > 1")
    assert catalog.list_views(schema) == [(schema, "v")]
    view = catalog.load_view((schema, "v"))
    fields = [(f.name, str(f.field_type), f.required) for f in view.schema().fields]
    assert fields == [("i", "int", False), ("big", "string", False), ("l", "list<int>", False)]
    (uuid,) = lake.sql("SELECT view_uuid FROM ducklake_view WHERE sql LIKE '%%upper%%' AND end_snapshot IS NULL")[0]
    assert str(view.metadata.view_uuid) == str(uuid)
    current = view.current_version()
    assert list(current.default_namespace) == [schema]
    shown = {text.root.dialect: text.root.sql for text in current.representations}
    assert list(shown) == ["spark", "duckdb"]
    # what is shown says the same
    db.execute(f"USE lake.{schema}")
    assert db.execute(shown["duckdb"]).fetchall() == db.execute(f"FROM {schema}.v").fetchall() == [(2, "B", [2])]
    assert catalog.load_view((schema, "v")).metadata == view.metadata


def test_the_columns_of_a_duckdb_view_follow_its_tables(
    server: Server, schema: str, db: duckdb.DuckDBPyConnection
) -> None:
    def columns() -> list[str]:
        return [f["name"] for f in load(server, schema, "v")["schemas"][0]["fields"]]

    db.execute(f"CREATE VIEW {schema}.v AS SELECT * FROM t")
    assert columns() == ["i", "s"]
    db.execute(f"ALTER TABLE {schema}.t ADD COLUMN more DATE")
    assert columns() == ["i", "s", "more"]
    db.execute(f"DROP TABLE {schema}.t")
    refused = get(server, schema, "v")
    assert error_of(refused) == UNSUPPORTED
    assert f"View {schema}.v cannot be shown" in refused.json()["error"]["message"]
    # it is still there, and can be got rid of
    assert names(server, schema) == ["v"]
    assert server.http.head(views.url(server, schema, "v")).status_code == 204
    assert rename(server, (schema, "v"), (schema, "w")).status_code == 204
    assert error_of(commit(server, schema, "w", [])) == UNSUPPORTED
    db.execute(f"CREATE TABLE {schema}.t (again BIGINT)")
    assert [f["name"] for f in load(server, schema, "w")["schemas"][0]["fields"]] == ["again"]
    assert views.drop(server, schema, "w").status_code == 204


def test_loading_a_duckdb_view_with_an_unsupported_type_is_refused(
    catalog: Catalog, schema: str, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute(f"CREATE VIEW {schema}.v AS SELECT INTERVAL 1 DAY AS pause")
    with pytest.raises(RESTError, match="column pause of type INTERVAL"):
        catalog.load_view((schema, "v"))
    assert catalog.list_views(schema) == [(schema, "v")]


def test_duckdb_replaces_renames_and_drops_a_view_created_by_a_client(
    server: Server, schema: str, db: duckdb.DuckDBPyConnection, lake: TestLake
) -> None:
    made = create(server, schema, "v", duckdb="SELECT i FROM t", spark="SELECT i FROM t")
    # not as DuckDB would write it
    text = f"select i,\n s from lake.{schema}.t -- all;"
    commit(server, schema, "v", replace(schema, duckdb=text, spark="SELECT i, s FROM t"))
    known = load(server, schema, "v")
    assert db.execute(f"FROM {schema}.v ORDER BY i").fetchall() == [(1, "a"), (2, "b")]
    db.execute(f"ALTER VIEW {schema}.v RENAME TO w")
    assert error_of(get(server, schema, "v")) == (404, "NoSuchViewException")
    assert load(server, schema, "w") == known
    assert names(server, schema) == ["w"]
    # its comment is a property
    db.execute(f"COMMENT ON VIEW {schema}.w IS 'told by DuckDB'")
    assert load(server, schema, "w") == {**known, "properties": {"comment": "told by DuckDB"}}
    commit(server, schema, "w", [{"action": "set-properties", "updates": {"comment": "by a client", "a": "b"}}])
    told = "SELECT comment FROM duckdb_views() WHERE schema_name = ? AND view_name = 'w'"
    assert db.execute(told, [schema]).fetchall() == [("by a client",)]
    commit(server, schema, "w", [{"action": "remove-properties", "removals": ["comment"]}])
    assert db.execute(told, [schema]).fetchall() == [(None,)]
    assert load(server, schema, "w") == {**known, "properties": {"a": "b"}}
    # one of DuckDB's own takes its place: another view
    db.execute(f"CREATE OR REPLACE VIEW {schema}.w AS SELECT 5 AS five")
    theirs = load(server, schema, "w")
    assert theirs["view-uuid"] != made["view-uuid"]
    assert (theirs["properties"], len(theirs["versions"])) == ({}, 1)
    assert texts(theirs) == {"spark": "SELECT 5 AS `five`", "duckdb": "SELECT 5 AS five"}
    db.execute(f"DROP VIEW {schema}.w")
    assert names(server, schema) == []
    # and of what was known of the first, nothing is left
    create(server, schema, "w", spark="SELECT 1")
    assert lake.sql(
        "SELECT count(*) FROM iceberg_view WHERE view_uuid = %s AND end_snapshot IS NULL", made["view-uuid"]
    ) == [(0,)]


def test_a_client_changes_a_duckdb_view(
    server: Server, schema: str, db: duckdb.DuckDBPyConnection, lake: TestLake
) -> None:
    db.execute(f"CREATE VIEW {schema}.v(a, b) AS SELECT i, s FROM lake.{schema}.t; COMMENT ON VIEW {schema}.v IS 'c'")
    shown = load(server, schema, "v")
    before = lake.snapshots()
    # more about it: DuckDB's row stays, with its aliases
    spark = replace(schema, duckdb=texts(shown)["duckdb"], spark="SELECT i AS a, s AS b FROM t")
    changed = views.answered(commit(server, schema, "v", spark))
    assert lake.snapshots() == before
    assert changed["view-uuid"] == shown["view-uuid"]
    assert changed["schemas"] == shown["schemas"]
    assert (list(texts(changed)), changed["properties"]) == (["duckdb", "spark"], {"comment": "c"})
    assert db.sql(f"FROM {schema}.v").columns == ["a", "b"]
    # another text for DuckDB: the comment goes with it
    other = replace(schema, duckdb="SELECT 7 AS a", spark="SELECT 7 AS a")
    assert views.answered(commit(server, schema, "v", other))["view-uuid"] == shown["view-uuid"]
    assert db.execute(f"FROM {schema}.v").fetchall() == [(7,)]
    comment = "SELECT comment FROM duckdb_views() WHERE schema_name = ? AND view_name = 'v'"
    assert db.execute(comment, [schema]).fetchall() == [("c",)]


def test_the_spark_text_of_a_duckdb_view_follows_its_tables_after_a_client_changed_properties(
    server: Server, schema: str, db: duckdb.DuckDBPyConnection
) -> None:
    """What a client says about a view of DuckDB's is kept; what we say to Spark in DuckDB's place is not."""
    db.execute(f'CREATE VIEW {schema}.v AS SELECT i, s AS "name" FROM t')
    before = load(server, schema, "v")
    assert texts(before)["spark"] == "SELECT `t`.`i` AS `i`, `t`.`s` AS `name` FROM `t` AS `t`"
    changed = views.answered(commit(server, schema, "v", [{"action": "set-properties", "updates": {"a": "b"}}]))
    assert changed == {**before, "properties": {"a": "b"}} == load(server, schema, "v")
    # a column that is another now is not that of the view that the client has seen
    db.execute(f"ALTER TABLE {schema}.t ALTER i TYPE BIGINT")
    assert "its columns are not those that a client has seen" in texts(load(server, schema, "v"))["spark"]
    db.execute(f"DROP TABLE {schema}.t")
    assert f"View {schema}.v is written for DuckDB" in texts(load(server, schema, "v"))["spark"]


def test_a_view_created_by_a_client_is_shown_with_its_own_dialects_only(server: Server, schema: str) -> None:
    for name, dialects in {"a": {"duckdb": "SELECT 1 AS i"}, "b": {"trino": "SELECT 1", "duckdb": "SELECT 2"}}.items():
        create(server, schema, name, **dialects)
        assert texts(load(server, schema, name)) == dialects


def test_views_read_a_table_written_by_pyiceberg(
    catalog: Catalog, server: Server, schema: str, db: duckdb.DuckDBPyConnection
) -> None:
    rows = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
    catalog.create_table((schema, "numbers"), rows.schema).append(rows)
    create(server, schema, "odd", duckdb="SELECT n FROM numbers WHERE n % 2 = 1")
    assert db.execute(f"FROM {schema}.odd ORDER BY n").fetchall() == [(1,), (3,)]
    # DuckDB's view on both engines' tables
    db.execute(f"CREATE VIEW {schema}.both AS SELECT n, s FROM numbers JOIN t ON n = i")
    assert db.execute(f"FROM {schema}.both ORDER BY n").fetchall() == [(1, "a"), (2, "b")]
    assert [f["type"] for f in load(server, schema, "both")["schemas"][0]["fields"]] == ["long", "string"]
