"""Every namespace operation through PyIceberg's REST catalog, each seen from an attached DuckDB session."""

import duckdb
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
)

from tests.support.lakes import TestLake, schemas
from tests.support.servers import Server


@pytest.fixture(scope="module")
def catalog(server: Server) -> RestCatalog:
    return RestCatalog("lake", uri=server.uri, warehouse="lake")


def test_a_namespace_created_by_pyiceberg_is_a_schema_in_duckdb(
    catalog: RestCatalog, db: duckdb.DuckDBPyConnection
) -> None:
    catalog.create_namespace("py_made", {"owner": "py"})
    assert "py_made" in schemas(db)
    assert ("py_made",) in catalog.list_namespaces()
    assert catalog.load_namespace_properties("py_made")["owner"] == "py"
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("py_made")
    catalog.create_namespace_if_not_exists("py_made")


def test_a_schema_created_or_dropped_by_duckdb_is_seen_by_pyiceberg(
    catalog: RestCatalog, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute("CREATE SCHEMA duck_made")
    assert catalog.namespace_exists("duck_made")
    assert ("duck_made",) in catalog.list_namespaces()
    db.execute("DROP SCHEMA duck_made")
    assert not catalog.namespace_exists("duck_made")
    with pytest.raises(NoSuchNamespaceError):
        catalog.load_namespace_properties("duck_made")


def test_pyiceberg_sets_and_removes_namespace_properties(catalog: RestCatalog) -> None:
    catalog.create_namespace("py_props", {"a": "1", "b": "2"})
    summary = catalog.update_namespace_properties("py_props", removals={"a", "zz"}, updates={"c": "3"})
    assert (summary.removed, summary.updated, summary.missing) == (["a"], ["c"], ["zz"])
    kept = catalog.load_namespace_properties("py_props")
    assert (kept.get("a"), kept["b"], kept["c"]) == (None, "2", "3")


def test_a_namespace_dropped_by_pyiceberg_is_gone_in_duckdb(
    catalog: RestCatalog, db: duckdb.DuckDBPyConnection
) -> None:
    catalog.create_namespace("py_drop")
    db.execute("CREATE TABLE py_drop.t(i INTEGER)")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("py_drop")
    db.execute("DROP TABLE py_drop.t")
    catalog.drop_namespace("py_drop")
    assert "py_drop" not in schemas(db)
    with pytest.raises(NoSuchNamespaceError):
        catalog.drop_namespace("py_drop")


def test_pyiceberg_creates_and_lists_nested_namespaces(catalog: RestCatalog, db: duckdb.DuckDBPyConnection) -> None:
    catalog.create_namespace(("py", "deep"))
    catalog.create_namespace(("py", "deep", "er"))
    assert {"py.deep", "py.deep.er"} <= schemas(db)
    assert catalog.list_namespaces("py") == [("py", "deep")]
    assert catalog.list_namespaces(("py", "deep")) == [("py", "deep", "er")]
    assert catalog.namespace_exists(("py", "deep", "er"))


@pytest.mark.parametrize("name", ["with space", "plus+sign", "a/b", "ünï", "per%cent", "q'uote", 'd"quote'])
def test_pyiceberg_and_duckdb_use_namespaces_with_special_characters(
    name: str, catalog: RestCatalog, db: duckdb.DuckDBPyConnection
) -> None:
    catalog.create_namespace((name,))
    assert name in schemas(db)
    assert catalog.namespace_exists((name,))
    catalog.update_namespace_properties((name,), updates={"k": name})
    assert catalog.load_namespace_properties((name,))["k"] == name
    catalog.drop_namespace((name,))
    assert name not in schemas(db)


def test_a_namespace_name_with_a_dot_is_refused_without_a_snapshot(catalog: RestCatalog, lake: TestLake) -> None:
    before = lake.snapshots()
    with pytest.raises(BadRequestError):
        catalog.create_namespace(("dotted.level",))
    assert lake.snapshots() == before


def test_pyiceberg_lists_all_namespaces_page_by_page(server: Server, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("BEGIN")
    for i in range(60):
        db.execute(f'CREATE SCHEMA "paged.p{i:02}"')
    db.execute("COMMIT")
    paged = RestCatalog("lake", uri=server.uri, warehouse="lake", **{"rest-page-size": "7"})
    assert paged.list_namespaces("paged") == [("paged", f"p{i:02}") for i in range(60)]


def test_an_unknown_warehouse_is_refused(server: Server) -> None:
    with pytest.raises(Exception, match="Warehouse does not exist: nowhere"):
        RestCatalog("lake", uri=server.uri, warehouse="nowhere")


def test_pyiceberg_lists_tables_created_by_duckdb(catalog: RestCatalog, db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE SCHEMA tabled; CREATE TABLE tabled.one(i INTEGER); CREATE TABLE tabled.two(i INTEGER)")
    assert catalog.list_tables("tabled") == [("tabled", "one"), ("tabled", "two")]
    assert catalog.table_exists("tabled.one")
    assert not catalog.table_exists("tabled.three")
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("nowhere")
