"""Views over HTTP: what is answered, what is refused, and that a refusal leaves nothing behind."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import duckdb
import httpx
import orjson
import pytest

from tests.support import loads, servers, views
from tests.support.commits import everything
from tests.support.keys import new_key
from tests.support.lakes import TestLake
from tests.support.loads import Bucket
from tests.support.servers import Server, error_of
from tests.support.views import (
    SCHEMA,
    Json,
    commit,
    create,
    drop,
    get,
    load,
    names,
    rename,
    replace,
    texts,
    version,
    wanted,
)

BAD, NO_VIEW, NO_NAMESPACE = "BadRequestException", "NoSuchViewException", "NoSuchNamespaceException"
EXISTS, UNSUPPORTED = "AlreadyExistsException", "UnsupportedOperationException"
SPARK = "SELECT 1 AS i, 'x' AS s"
ALLOW: Json = {"action": "set-properties", "updates": {"replace.drop-dialect.allowed": "true"}}


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), listener="off") as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


@pytest.fixture
def schema(server: Server) -> str:
    name = f"s{uuid4().hex[:8]}"
    assert server.create(name).status_code == 200
    return name


def post(server: Server, schema: str, body: Any) -> httpx.Response:
    return server.http.post(views.url(server, schema), json=body)


def register(server: Server, schema: str, view: str, location: str) -> httpx.Response:
    body = {"name": view, "metadata-location": location}
    return server.http.post(f"{server.path(schema)}/register-view", json=body)


def test_the_view_operations_are_announced(server: Server) -> None:
    offered = server.http.get("/v1/config").json()["endpoints"]
    n = "/v1/{prefix}/namespaces/{namespace}"
    for endpoint in (
        f"GET {n}/views",
        f"POST {n}/views",
        f"GET {n}/views/{{view}}",
        f"HEAD {n}/views/{{view}}",
        f"POST {n}/views/{{view}}",
        f"DELETE {n}/views/{{view}}",
        f"POST {n}/register-view",
        "POST /v1/{prefix}/views/rename",
    ):
        assert endpoint in offered


def test_a_view_without_a_duckdb_text_makes_no_snapshot(server: Server, lake: TestLake, schema: str) -> None:
    before = lake.snapshots()
    made = create(server, schema, "v", spark=SPARK)
    # nothing that DuckDB could read: nothing in the lake
    assert lake.snapshots() == before
    assert load(server, schema, "v") == made
    assert server.http.head(views.url(server, schema, "v")).status_code == 204
    assert names(server, schema) == ["v"]
    assert made["versions"][0]["summary"] == {"engine-name": "by hand"}
    assert made["schemas"] == [SCHEMA]
    answer = drop(server, schema, "v")
    assert (answer.status_code, answer.content) == (204, b"")
    assert error_of(get(server, schema, "v")) == (404, NO_VIEW)
    assert server.http.head(views.url(server, schema, "v")).status_code == 404
    assert error_of(drop(server, schema, "v")) == (404, NO_VIEW)
    assert names(server, schema) == []
    assert lake.sql("SELECT FROM iceberg_view WHERE view_uuid = %s", made["view-uuid"]) == []


def test_every_version_of_a_view_is_written_as_a_metadata_file(server: Server, schema: str, bucket: Bucket) -> None:
    create(server, schema, "v", spark=SPARK)
    first = get(server, schema, "v").json()
    second = commit(server, schema, "v", replace(schema, spark="SELECT 2")).json()
    assert first["metadata-location"] != second["metadata-location"]
    for answer in (first, second):
        assert answer["metadata-location"].startswith(answer["metadata"]["location"] + "/metadata/")
        assert orjson.loads(bucket.get(answer["metadata-location"])) == answer["metadata"]
    assert get(server, schema, "v").json() == second


def test_versions_of_a_view_and_its_version_log_are_kept(server: Server, schema: str) -> None:
    made = create(server, schema, "v", spark=SPARK)
    uuid = {"type": "assert-view-uuid", "uuid": made["view-uuid"]}
    answer = commit(server, schema, "v", replace(schema, spark="SELECT 2", trino="SELECT 3"), uuid)
    shown = views.answered(answer)
    assert load(server, schema, "v") == shown
    assert shown["view-uuid"] == made["view-uuid"]
    assert [v["version-id"] for v in shown["versions"]] == [1, 2]
    assert [e["version-id"] for e in shown["version-log"]] == [1, 2]
    assert texts(shown) == {"spark": "SELECT 2", "trino": "SELECT 3"}
    back = commit(server, schema, "v", [ALLOW, {"action": "set-current-view-version", "view-version-id": 1}])
    assert texts(views.answered(back)) == {"spark": SPARK}
    assert [e["version-id"] for e in load(server, schema, "v")["version-log"]] == [1, 2, 1]


def test_a_view_commit_without_changes_writes_nothing(server: Server, lake: TestLake, schema: str) -> None:
    made = create(server, schema, "v", duckdb="SELECT 1 AS i", spark=SPARK)
    before = everything(lake)
    same = [{"action": "assign-uuid", "uuid": made["view-uuid"]}, {"action": "set-properties", "updates": {}}]
    assert views.answered(commit(server, schema, "v", same)) == made
    assert views.answered(commit(server, schema, "v", [])) == made
    assert everything(lake) == before


def test_a_view_with_a_duckdb_text_is_a_ducklake_view(
    server: Server, lake: TestLake, schema: str, db: duckdb.DuckDBPyConnection
) -> None:
    db.execute(f"CREATE TABLE {schema}.t (i INTEGER, s VARCHAR)")
    db.execute(f"INSERT INTO {schema}.t VALUES (1, 'a'), (2, 'b')")
    head = lake.snapshots()[-1]
    made = create(server, schema, "v", spark=SPARK, DuckDB="SELECT * FROM t WHERE i > 1")
    now = lake.sound_snapshots()[-1]
    assert now == (head[0] + 1, head[1] + 1, head[2] + 1, head[3], f'created_view:"{schema}"."v"')
    row = lake.sql(
        "SELECT view_id, view_uuid::text, dialect, sql, column_aliases FROM ducklake_view WHERE view_name = 'v' "
        "AND schema_id = (SELECT schema_id FROM ducklake_schema WHERE schema_name = %s)",
        schema,
    )
    assert row == [(head[2], made["view-uuid"], "duckdb", "SELECT * FROM t WHERE i > 1", "")]
    assert db.execute(f"FROM {schema}.v").fetchall() == [(2, "b")]
    # another text: another row, and the same view
    changed = views.answered(commit(server, schema, "v", replace(schema, spark=SPARK, duckdb="SELECT 7 AS i")))
    assert changed["view-uuid"] == made["view-uuid"]
    after = lake.sound_snapshots()[-1]
    assert after == (now[0] + 1, now[1] + 1, now[2] + 1, now[3], f'dropped_view:{head[2]},created_view:"{schema}"."v"')
    assert db.execute(f"FROM {schema}.v").fetchall() == [(7,)]
    # another dialect or a property alone: the row stays
    commit(server, schema, "v", replace(schema, spark="SELECT 8", duckdb="SELECT 7 AS i"))
    commit(server, schema, "v", [{"action": "set-properties", "updates": {"a": "b"}}])
    assert lake.snapshots()[-1] == after
    # no text for DuckDB any more: no row
    alone = views.answered(commit(server, schema, "v", replace(schema, ALLOW, spark="SELECT 9")))
    assert alone["view-uuid"] == made["view-uuid"]
    assert lake.sound_snapshots()[-1][4] == f"dropped_view:{now[2]}"
    with pytest.raises(duckdb.CatalogException):
        db.execute(f"FROM {schema}.v")
    assert names(server, schema) == ["v"]
    # and again
    back = views.answered(commit(server, schema, "v", replace(schema, spark="SELECT 9", duckdb="SELECT 10 AS i")))
    assert back["view-uuid"] == made["view-uuid"]
    assert [v["version-id"] for v in back["versions"]] == [1, 2, 3, 4, 5]
    assert db.execute(f"FROM {schema}.v").fetchall() == [(10,)]
    assert drop(server, schema, "v").status_code == 204
    with pytest.raises(duckdb.CatalogException):
        db.execute(f"FROM {schema}.v")


def test_a_view_is_renamed_within_and_across_namespaces(
    server: Server, lake: TestLake, schema: str, db: duckdb.DuckDBPyConnection
) -> None:
    other = f"{schema}_o"
    server.create(other)
    db.execute(f"CREATE TABLE {schema}.t AS SELECT 5 AS i")
    made = {
        "mine": create(server, schema, "mine", spark=SPARK),
        "theirs": create(server, schema, "theirs", duckdb=f"SELECT * FROM {schema}.t"),
    }
    snapshot = get(server, schema, "mine").json()
    head = lake.snapshots()[-1]
    for name, before in made.items():
        assert rename(server, (schema, name), (schema, f"{name}2")).status_code == 204
        assert rename(server, (schema, f"{name}2"), (schema, f"{name.upper()}2")).status_code == 204
        assert rename(server, (schema, f"{name.upper()}2"), (other, name)).status_code == 204
        assert load(server, other, name) == before
        assert error_of(get(server, schema, name)) == (404, NO_VIEW)
    assert get(server, other, "mine").json() == snapshot
    assert (names(server, schema), names(server, other)) == ([], ["mine", "theirs"])
    assert [s[1:] for s in lake.sound_snapshots()[head[0] + 1 :]] == [
        (head[1] + 1, head[2], head[3], f'created_view:"{schema}"."theirs2"'),
        (head[1] + 2, head[2], head[3], f'created_view:"{schema}"."THEIRS2"'),
        (head[1] + 3, head[2], head[3], f'created_view:"{other}"."theirs"'),
    ]
    assert db.execute(f"FROM {other}.theirs").fetchall() == [(5,)]


def test_a_view_with_unqualified_names_cannot_be_moved_to_another_namespace(
    server: Server, lake: TestLake, schema: str
) -> None:
    other = f"{schema}_o"
    server.create(other)
    create(server, schema, "v", duckdb="WITH c AS (SELECT 1) SELECT * FROM t, c")
    before = everything(lake)
    refused = rename(server, (schema, "v"), (other, "v"))
    assert error_of(refused) == (406, UNSUPPORTED)
    assert "DuckDB would look for t there" in refused.json()["error"]["message"]
    body = wanted(other, "w", duckdb="SELECT * FROM t")
    assert error_of(post(server, schema, body)) == (406, UNSUPPORTED)
    assert everything(lake) == before
    assert post(server, schema, wanted(other, "w", duckdb=f"SELECT * FROM {other}.t")).status_code == 200


def test_tables_and_views_cannot_have_the_same_name(
    server: Server, lake: TestLake, schema: str, db: duckdb.DuckDBPyConnection
) -> None:
    other = f"{schema}_o"
    server.create(other)
    table = {"name": "t", "schema": SCHEMA}
    tables = f"{server.path(schema)}/tables"
    assert server.http.post(tables, json=table).status_code == 200
    create(server, schema, "v", spark=SPARK)
    create(server, schema, "d", duckdb="SELECT 1 AS i")
    create(server, other, "v", spark=SPARK)
    create(server, other, "d", duckdb="SELECT 1 AS i")
    assert server.http.post(f"{server.path(other)}/tables", json=table).status_code == 200
    before = everything(lake)

    def is_taken(response: httpx.Response, message: str) -> None:
        assert error_of(response) == (409, EXISTS)
        assert message in response.json()["error"]["message"]

    for name in ("v", "d", "V", "D"):
        kind = "View with same name" if name.islower() else "View"
        is_taken(
            server.http.post(tables, json={**table, "name": name}), f"{kind} already exists: {schema}.{name.lower()}"
        )
        is_taken(
            post(server, schema, wanted(schema, name, spark=SPARK)), f"View already exists: {schema}.{name.lower()}"
        )
        moved = {"source": {"namespace": [schema], "name": "t"}, "destination": {"namespace": [schema], "name": name}}
        is_taken(
            server.http.post("/v1/lake/tables/rename", json=moved), f"Cannot rename {schema}.t to {schema}.{name}. View"
        )
        is_taken(
            rename(server, (other, "v"), (schema, name)), f"Cannot rename {other}.v to {schema}.{name}. View already"
        )
        is_taken(
            rename(server, (other, "d"), (schema, name)), f"Cannot rename {other}.d to {schema}.{name}. View already"
        )
    is_taken(post(server, schema, wanted(schema, "t", spark=SPARK)), f"Table with same name already exists: {schema}.t")
    is_taken(post(server, schema, wanted(schema, "T", duckdb="SELECT 1")), f"Table already exists: {schema}.t")
    is_taken(
        rename(server, (schema, "v"), (schema, "t")), f"Cannot rename {schema}.v to {schema}.t. Table already exists"
    )
    is_taken(rename(server, (schema, "v"), (schema, "v")), "View already exists")
    # of the same name in another namespace
    moved = {"source": {"namespace": [schema], "name": "t"}, "destination": {"namespace": [other], "name": "t"}}
    is_taken(
        server.http.post("/v1/lake/tables/rename", json=moved), f"Cannot rename {schema}.t to {other}.t. Table already"
    )
    # a table is no view, and a view no table
    assert error_of(get(server, schema, "t")) == (404, NO_VIEW)
    assert error_of(drop(server, schema, "t")) == (404, NO_VIEW)
    assert error_of(commit(server, schema, "t", [])) == (404, NO_VIEW)
    assert error_of(rename(server, (schema, "t"), (schema, "u"))) == (404, NO_VIEW)
    assert error_of(loads.get(server, "v", schema)) == (404, "NoSuchTableException")
    assert error_of(loads.get(server, "d", schema)) == (404, "NoSuchTableException")
    assert everything(lake) == before
    with pytest.raises(duckdb.CatalogException, match="already exists"):
        db.execute(f"CREATE TABLE {schema}.d (i INTEGER)")


def test_a_table_created_by_duckdb_hides_a_view_of_the_same_name(
    server: Server, schema: str, db: duckdb.DuckDBPyConnection
) -> None:
    made = create(server, schema, "v", spark=SPARK)
    db.execute(f"CREATE TABLE {schema}.V (i INTEGER)")
    assert names(server, schema) == []
    assert error_of(get(server, schema, "v")) == (404, NO_VIEW)
    assert error_of(drop(server, schema, "v")) == (404, NO_VIEW)
    assert loads.load(server, "V", schema)["schemas"]
    assert error_of(post(server, schema, wanted(schema, "v", spark=SPARK))) == (409, EXISTS)
    db.execute(f"ALTER TABLE {schema}.V RENAME TO t")
    assert load(server, schema, "v") == made
    # and so does a view; ours comes back with the name, unless somebody has taken that for good meanwhile
    db.execute(f"CREATE VIEW {schema}.v AS SELECT 1 AS i")
    assert load(server, schema, "v")["view-uuid"] != made["view-uuid"]
    db.execute(f"DROP VIEW {schema}.v")
    assert load(server, schema, "v") == made
    db.execute(f"CREATE VIEW {schema}.v AS SELECT 1 AS i")
    taken = views.answered(commit(server, schema, "v", replace(schema, ALLOW, spark="SELECT 3")))
    assert load(server, schema, "v") == taken
    assert drop(server, schema, "v").status_code == 204
    assert error_of(get(server, schema, "v")) == (404, NO_VIEW)


def test_a_namespace_with_a_view_is_not_empty(server: Server, schema: str, db: duckdb.DuckDBPyConnection) -> None:
    for dialect in ("spark", "duckdb"):
        create(server, schema, "v", **{dialect: "SELECT 1 AS i"})
        refused = server.http.delete(server.path(schema))
        assert error_of(refused) == (409, "NamespaceNotEmptyException")
        assert "view v" in refused.json()["error"]["message"]
        drop(server, schema, "v")
    create(server, schema, "v", spark=SPARK)
    # a DuckDB session does not know of it; the next schema of that name is another
    db.execute(f"DROP SCHEMA {schema}")
    assert error_of(server.http.get(views.url(server, schema))) == (404, NO_NAMESPACE)
    assert error_of(get(server, schema, "v")) == (404, NO_VIEW)
    db.execute(f"CREATE SCHEMA {schema}")
    assert names(server, schema) == []
    create(server, schema, "v", spark="SELECT 5")
    assert drop(server, schema, "v").status_code == 204
    assert server.http.delete(server.path(schema)).status_code == 204


def test_views_are_listed_in_pages(server: Server, schema: str, db: duckdb.DuckDBPyConnection) -> None:
    wanted_names = ["B", "a", "b", "c", "ä"]
    for i, name in enumerate(("a", "c", "ä")):
        create(server, schema, name, **{("spark", "duckdb")[i % 2]: "SELECT 1 AS i"})
    db.execute(f'CREATE TABLE {schema}.t (i INTEGER); CREATE VIEW {schema}."B" AS SELECT 1 AS i')
    rename(server, (schema, "B"), (schema, "Bb"))
    rename(server, (schema, "Bb"), (schema, "B"))
    create(server, schema, "bb", spark=SPARK)
    rename(server, (schema, "bb"), (schema, "b1"))
    wanted_names[2] = "b1"
    assert names(server, schema) == wanted_names
    found: list[Json] = []
    token = ""
    while token is not None:
        answer = server.http.get(views.url(server, schema), params={"pageToken": token, "pageSize": 2}).json()
        assert len(answer["identifiers"]) <= 2
        found += answer["identifiers"]
        token = answer["next-page-token"]
    assert found == [{"namespace": [schema], "name": name} for name in wanted_names]
    assert error_of(server.http.get(views.url(server, schema), params={"pageToken": "x"})) == (400, BAD)
    assert error_of(server.http.get(views.url(server, "nowhere"))) == (404, NO_NAMESPACE)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": ""}, "needs a name"),
        ({"name": "a\0b"}, "NUL"),
        ({"name": 5}, "name"),
        ({"schema": None}, "schema"),
        (
            {"schema": {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "text", "required": True}]}},
            "Unknown type",
        ),
        ({"view-version": None}, "view-version"),
        ({"view-version": version("x")}, "needs a query"),
        ({"view-version": {**version("x", spark="SELECT 1"), "default-namespace": None}}, "default-namespace"),
        ({"view-version": {**version("x", spark="SELECT 1"), "representations": [{"type": "x"}]}}, "representation"),
        ({"view-version": version("x", spark="SELECT 1", SPARK="SELECT 2")}, "multiple queries for dialect spark"),
        ({"view-version": version("x", duckdb="SELECT (")}, "DuckDB cannot parse it"),
        ({"view-version": version("x", duckdb="SELECT 1; SELECT 2")}, "single SELECT"),
        ({"view-version": version("x", duckdb="DROP TABLE t")}, "single SELECT"),
        ({"view-version": version("x", duckdb="SELECT $1")}, "parameters"),
        ({"view-version": version("x", duckdb="-- nothing")}, "single SELECT"),
        ({"view-version": version("x", duckdb="SELECT " + "(" * 20000 + "1" + ")" * 20000)}, "DuckDB cannot parse it"),
        ({"view-version": version("x", duckdb="SELECT " + "1 + " * 900 + "1")}, "nested too deeply"),
        ({"location": "s3://elsewhere/v"}, "MERGUS_ALLOWED_LOCATIONS"),
        ({"location": "/etc"}, "MERGUS_ALLOWED_LOCATIONS"),
        ({"location": "http://x/y"}, "Not a location"),
        ({"location": ""}, "Not a location"),
        ({"properties": {"write.metadata.path": "s3://elsewhere/v"}}, "MERGUS_ALLOWED_LOCATIONS"),
        ({"properties": {"a": 1}}, "properties"),
        ({"properties": {"version.history.num-entries": "0"}}, "must be positive"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_create_view_request_is_refused(server: Server, lake: TestLake, change: Json, problem: str) -> None:
    server.create("refused")
    before = everything(lake)
    refused = post(server, "refused", {**wanted("refused", "v", spark=SPARK), **change})
    assert refused.status_code == 400, refused.text[:1000]
    assert error_of(refused)[1] in {BAD, "IllegalArgumentException"}
    assert problem in refused.json()["error"]["message"]
    assert everything(lake) == before
    assert error_of(post(server, "nowhere", wanted("nowhere", "v", spark=SPARK))) == (404, NO_NAMESPACE)


@pytest.mark.parametrize(
    ("updates", "status"),
    [
        ([{"action": "make-coffee"}], 400),
        ([{"action": "add-snapshot", "snapshot": {}}], 400),
        ([{"action": "set-current-view-version", "view-version-id": 9}], 400),
        ([{"action": "assign-uuid", "uuid": str(uuid4())}], 400),
        ([{"action": "upgrade-format-version", "format-version": 2}], 400),
        ([{"action": "set-location", "location": "s3://elsewhere/v"}], 400),
        ([{"action": "set-location", "location": "new-location"}], 400),
        ([{"action": "set-properties", "updates": {"write.metadata.path": "file:///etc"}}], 400),
        (replace("changed", trino="SELECT 1"), 400),
        (replace("changed", spark="SELECT 1", duckdb="SELECT"), 400),
        (replace("elsewhere", spark="SELECT 1", duckdb="FROM t"), 406),
        ({"action": "drop"}, 400),
    ],
)
def test_an_impossible_view_update_is_refused(server: Server, lake: TestLake, updates: Any, status: int) -> None:
    if server.create("changed").status_code == 200:
        create(server, "changed", "v", spark=SPARK)
    before = everything(lake)
    refused = commit(server, "changed", "v", updates)
    assert error_of(refused)[0] == status, refused.text
    assert everything(lake) == before


def test_a_view_commit_with_a_failed_requirement_is_refused(server: Server, lake: TestLake, schema: str) -> None:
    made = create(server, schema, "v", spark=SPARK)
    before = everything(lake)
    updates = replace(schema, spark="SELECT 2")
    stale = {"type": "assert-view-uuid", "uuid": str(uuid4())}
    assert error_of(commit(server, schema, "v", updates, stale)) == (409, "CommitFailedException")
    for wrong in ({"type": "assert-create"}, {"type": "assert-view-uuid"}, {"type": "x"}):
        assert error_of(commit(server, schema, "v", updates, wrong)) == (400, BAD)
    body = {"identifier": {"namespace": [schema], "name": "w"}, "requirements": [], "updates": updates}
    assert error_of(server.http.post(views.url(server, schema, "v"), json=body)) == (400, BAD)
    assert error_of(commit(server, schema, "nothing", updates)) == (404, NO_VIEW)
    assert error_of(commit(server, "nowhere", "v", updates)) == (404, NO_VIEW)
    assert everything(lake) == before
    held = {"type": "assert-view-uuid", "uuid": made["view-uuid"]}
    assert commit(server, schema, "v", updates, held).status_code == 200


def test_renaming_a_view_to_a_missing_namespace_is_refused(server: Server, lake: TestLake, schema: str) -> None:
    create(server, schema, "v", spark=SPARK)
    before = everything(lake)
    assert error_of(rename(server, (schema, "v"), ("nowhere", "v"))) == (404, NO_NAMESPACE)
    assert error_of(rename(server, (schema, "x"), (schema, "y"))) == (404, NO_VIEW)
    assert error_of(rename(server, ("nowhere", "v"), (schema, "y"))) == (404, NO_VIEW)
    assert error_of(rename(server, (schema, "v"), (schema, ""))) == (400, BAD)
    assert everything(lake) == before


def test_a_view_is_registered_from_its_metadata_file(
    server: Server, lake: TestLake, schema: str, bucket: Bucket
) -> None:
    create(server, schema, "v", duckdb="SELECT 1 AS i", spark=SPARK)
    commit(server, schema, "v", replace(schema, duckdb="SELECT 2 AS i", spark=SPARK))
    was = get(server, schema, "v").json()
    file = was["metadata-location"]
    # there is one view of a uuid
    before = everything(lake)
    assert error_of(register(server, schema, "w", file)) == (409, EXISTS)
    assert error_of(register(server, schema, "v", file)) == (409, EXISTS)
    assert error_of(register(server, "nowhere", "v", file)) == (404, NO_NAMESPACE)
    assert everything(lake) == before
    drop(server, schema, "v")
    answer = register(server, schema, "w", file)
    assert answer.status_code == 200, answer.text
    assert answer.json() == was
    assert get(server, schema, "w").json() == was
    with lake.duckdb() as session:
        assert session.execute(f"FROM {schema}.w").fetchall() == [(2,)]


def test_registering_a_view_reads_only_view_metadata_at_allowed_locations(
    server: Server, lake: TestLake, schema: str, bucket: Bucket
) -> None:
    made = create(server, schema, "v", spark=SPARK)
    server.http.post(f"{server.path(schema)}/tables", json={"name": "t", "schema": SCHEMA})
    of_table = loads.get(server, "t", schema).json()["metadata-location"]
    place = made["location"]
    stray = {"view-uuid": str(uuid4()), "location": "s3://elsewhere/v"}
    bucket.put(f"{place}/metadata/text.metadata.json", b"secret words")
    bucket.put(f"{place}/metadata/stray.metadata.json", orjson.dumps({**made, **stray}))
    bucket.put(f"{place}/metadata/zip.metadata.json", b"\x1f\x8bnothing")
    bucket.put(f"{place}/metadata/view.json", orjson.dumps(made))
    before = everything(lake)
    for location, status in (
        (of_table, 400),
        (f"{place}/metadata/text.metadata.json", 400),
        (f"{place}/metadata/stray.metadata.json", 400),
        (f"{place}/metadata/zip.metadata.json", 400),
        (f"{place}/metadata/view.json", 400),
        (f"{place}/metadata/none.metadata.json", 404),
        (f"{place}/../x.metadata.json", 400),
        ("s3://elsewhere/v.metadata.json", 400),
        ("file:///etc/v.metadata.json", 400),
        ("", 400),
    ):
        refused = register(server, schema, "w", location)
        assert error_of(refused)[0] == status, (location, refused.text)
        assert "secret" not in refused.text
    assert everything(lake) == before


def test_a_retried_view_creation_with_a_key_creates_it_once(server: Server, lake: TestLake, schema: str) -> None:
    key = {"Idempotency-Key": new_key()}
    body = wanted(schema, "v", duckdb="SELECT 1 AS i")
    answers = [server.http.post(views.url(server, schema), json=body, headers=key) for _ in range(2)]
    assert [a.status_code for a in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    key = {"Idempotency-Key": new_key()}
    gone = [server.http.delete(views.url(server, schema, "v"), headers=key) for _ in range(2)]
    assert [a.status_code for a in gone] == [204, 204]


def test_a_view_may_have_a_name_with_special_characters(server: Server, lake: TestLake, schema: str) -> None:
    for name in ("with space", "ü/%2F", 'q"uote', "a.b", "select"):
        made = create(server, schema, name, duckdb="SELECT 'it''s' AS s")
        assert load(server, schema, name) == made
        with lake.duckdb() as session:
            quoted = name.replace('"', '""')
            assert session.execute(f'FROM {schema}."{quoted}"').fetchall() == [("it's",)]
        assert drop(server, schema, name).status_code == 204
