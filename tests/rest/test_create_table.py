"""CreateTable over HTTP: what a client asks for is what every engine finds, and what cannot be is refused whole."""

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from mergus.ducklake.session import identifier
from tests.support import lakes, loads, servers
from tests.support.commits import FIELDS, HandTable, Json, create, everything, field_of, in_duckdb, new_table, rows
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, catalog, get, load
from tests.support.servers import Server, error_of

BAD, EXISTS, FAILED = "BadRequestException", "AlreadyExistsException", "CommitFailedException"
UNSUPPORTED = "UnsupportedOperationException"
IS_JSON = {"Content-Type": "application/json"}
ASSERT_CREATE = {"type": "assert-create"}


@pytest.fixture(scope="module")
def lake() -> Iterator[TestLake]:
    """With a place of its operator's beside the lake."""
    with lakes.lake(allowed_locations="s3://mergus/shared-by-all s3://mergus/more") as made:
        yield made


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), listener="off") as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


def of_staged(metadata: Json) -> list[Json]:
    """The commit that Java sends after a promise."""
    return [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": metadata["format-version"]},
        {"action": "add-schema", "schema": metadata["schemas"][0], "last-column-id": metadata["last-column-id"]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": metadata["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": metadata["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata["location"]},
        {"action": "set-properties", "updates": metadata["properties"]},
    ]


def test_a_created_table_is_seen_by_every_engine(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    before = len(lake.snapshots())
    table = new_table(server, bucket, "plain")
    # the namespace, and the table
    assert len(lake.sound_snapshots()) == before + 2
    assert lake.snapshots()[-1][4] == 'created_table:"plain"."t"'
    assert table.state["format-version"] == 2
    assert table.state["snapshots"] == []
    assert table.state["schemas"] == [{"type": "struct", "schema-id": 0, "fields": FIELDS}]
    assert load(server, schema="plain") == table.state
    assert catalog(lake.settings, server).load_table("plain.t").metadata.location == table.location
    assert in_duckdb(lake, db, "plain") == []
    db.execute("INSERT INTO plain.t VALUES (1, 'a')")
    assert in_duckdb(lake, db, "plain") == [(1, "a")]
    table.load()
    table.append(10)
    assert in_duckdb(lake, db, "plain") == [(1, "a"), *rows(10)]


def test_the_answer_to_create_table_has_the_etag_of_a_load(server: Server, bucket: Bucket) -> None:
    assert server.create("tagged").status_code == 200
    made = create(server, "tagged")
    loaded = get(server, schema="tagged")
    assert made.headers["etag"] == loaded.headers["etag"]
    assert made.json() == loaded.json()
    held = server.http.get(f"{server.path('tagged')}/tables/t", headers={"If-None-Match": made.headers["etag"]})
    assert held.status_code == 304


def test_create_table_assigns_field_ids_level_by_level(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    point = {"type": "struct", "fields": [field_of(90, "x"), field_of(40, "y", doc="up")]}
    tags = {"type": "map", "key-id": 7, "key": "string", "value-id": 3, "value": "long", "value-required": False}
    several = {"type": "list", "element-id": 0, "element": "double", "element-required": False}
    fields = [
        field_of(20, "id", "long", required=True, doc="the key"),
        field_of(10, "point", point),
        field_of(30, "tags", tags),
        field_of(99, "several", several),
    ]
    table = new_table(
        server,
        bucket,
        "nested",
        fields=fields,
        identifiers=[20],
        partition_spec={"fields": [{"source-id": 20, "field-id": 77, "name": "b", "transform": "bucket[4]"}]},
        write_order={
            "order-id": 9,
            "fields": [{"source-id": 20, "transform": "identity", "direction": "desc", "null-order": "nulls-last"}],
        },
    )
    (schema,) = table.state["schemas"]
    assert [(f["id"], f["name"]) for f in schema["fields"]] == [(1, "id"), (2, "point"), (3, "tags"), (4, "several")]
    assert [f["id"] for f in schema["fields"][1]["type"]["fields"]] == [5, 6]
    assert (schema["fields"][2]["type"]["key-id"], schema["fields"][2]["type"]["value-id"]) == (7, 8)
    assert schema["fields"][3]["type"]["element-id"] == 9
    assert schema["identifier-field-ids"] == [1]
    assert table.state["last-column-id"] == 9
    assert table.state["partition-specs"] == [
        {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "b", "transform": "bucket[4]"}]}
    ]
    assert table.state["default-spec-id"] == 0
    assert table.state["last-partition-id"] == 1000
    default = next(o for o in table.state["sort-orders"] if o["order-id"] == table.state["default-sort-order-id"])
    assert [(f["source-id"], f["direction"], f["null-order"]) for f in default["fields"]] == [(1, "desc", "nulls-last")]
    described = db.execute("DESCRIBE nested.t").fetchall()
    assert [(row[0], row[1], row[2]) for row in described] == [
        ("id", "BIGINT", "NO"),
        ("point", "STRUCT(x INTEGER, y INTEGER)", "YES"),
        ("tags", "MAP(VARCHAR, BIGINT)", "YES"),
        ("several", "DOUBLE[]", "YES"),
    ]
    comments = db.execute("SELECT comment FROM duckdb_columns() WHERE schema_name = 'nested' ORDER BY column_index")
    assert comments.fetchall()[0] == ("the key",)
    db.execute("INSERT INTO nested.t VALUES (1, {'x': 1, 'y': 2}, MAP {'a': 1}, [1.5])")
    found = catalog(lake.settings, server).load_table("nested.t").scan().to_arrow().to_pylist()
    assert found == [{"id": 1, "point": {"x": 1, "y": 2}, "tags": [("a", 1)], "several": [1.5]}]


def test_create_table_stores_properties_and_the_comment(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "props", properties={"owner": "anna", "comment": "of ducks", "empty": ""})
    assert table.state["properties"].items() >= {"owner": "anna", "comment": "of ducks", "empty": ""}.items()
    comment = db.execute("SELECT comment FROM duckdb_tables() WHERE schema_name = 'props'").fetchall()
    assert comment == [("of ducks",)]
    assert lake.sql("SELECT count(*) FROM table_property WHERE key = 'comment'") == [(0,)]


@pytest.mark.parametrize("version", [2, 3])
def test_create_table_makes_tables_of_format_version_2_and_3(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection, version: int
) -> None:
    schema = f"version{version}"
    table = new_table(server, bucket, schema, properties={"format-version": str(version), "a": "b"})
    assert table.state["format-version"] == version
    assert "format-version" not in table.state["properties"]
    assert table.state.get("next-row-id") == (0 if version == 3 else None)
    assert in_duckdb(lake, db, schema) == []
    table.append(1)
    assert load(server, schema=schema)["format-version"] == version
    assert in_duckdb(lake, db, schema) == rows(1)


def test_a_table_requested_with_format_version_1_is_created_with_version_2(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    """Version 1 has no deletes, and DuckDB deletes rows; a catalog may upgrade."""
    table = new_table(server, bucket, "version1", properties={"format-version": "1"})
    assert table.state["format-version"] == 2
    assert "format-version" not in table.state["properties"]
    staged = create(server, "version1", "staged", properties={"format-version": "1"}, stage_create=True)
    assert staged.json()["metadata"]["format-version"] == 2
    table.append(1)
    db.execute("DELETE FROM version1.t WHERE i = 2")
    assert in_duckdb(lake, db, "version1") == [row for row in rows(1) if row[0] != 2]
    loads.assert_readable(lake, server, db, schema="version1")


def test_a_field_of_a_struct_cannot_identify_rows(server: Server, lake: TestLake, bucket: Bucket) -> None:
    """DuckDB keeps no NULL out of it, so it is shown as optional, and then Iceberg's own library would refuse to load a
    table that names it: the client is told instead of losing it without a word."""
    key = {"type": "struct", "fields": [field_of(2, "id", "long", required=True)]}
    fields = [field_of(1, "key", key, required=True), field_of(3, "v")]
    before = everything(lake)
    answer = create(server, "main", "wrongly", fields, identifiers=[2])
    assert error_of(answer) == (400, BAD)
    assert "Identifier field 3 (id) is inside of column key" in answer.text
    assert "make it a column of its own" in answer.text
    assert everything(lake) == before
    table = new_table(server, bucket, "identifying", fields=fields, identifiers=[])
    schema = {"type": "struct", "fields": table.state["schemas"][0]["fields"], "identifier-field-ids": [3]}
    schema["fields"][0]["type"]["fields"][0]["required"] = True
    before = everything(lake)
    added = table.send([{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}])
    assert error_of(added) == (400, BAD)
    assert "Identifier field 3 (id) is inside of column key" in added.text
    assert everything(lake) == before


def test_a_required_field_of_a_struct_is_shown_as_optional(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    """Whenever a client says so: when it makes the table, and later, with rows that lack the field."""
    point = {"type": "struct", "fields": [field_of(2, "x", required=True)]}
    table = new_table(server, bucket, "required", fields=[field_of(1, "p", point), field_of(3, "i")])

    def required_of() -> list[bool]:
        schemas = load(server, schema="required")
        (current,) = [s for s in schemas["schemas"] if s["schema-id"] == schemas["current-schema-id"]]
        return [f["required"] for f in current["fields"][0]["type"]["fields"]]

    assert required_of() == [False]
    db.execute("INSERT INTO required.t VALUES ({'x': 1}, 1), ({'x': NULL}, 2), (NULL, 3)")
    table.load()
    wider = {"type": "struct", "fields": [field_of(3, "x", required=True), field_of(4, "y", required=True)]}
    columns = {"type": "struct", "fields": [field_of(1, "p", wider), field_of(2, "i")]}
    table.commit({"action": "add-schema", "schema": columns}, {"action": "set-current-schema", "schema-id": -1})
    assert required_of() == [False, False]
    loads.assert_readable(lake, server, db, schema="required")


@pytest.mark.parametrize("version", ["4", "two", "", "2.0", "99999999999999999999", "²"])
def test_create_table_refuses_other_format_versions(server: Server, lake: TestLake, version: str) -> None:
    before = everything(lake)
    status, _ = error_of(create(server, "main", "wrongly", properties={"format-version": version}))
    assert status in {400, 406}
    assert everything(lake) == before


def test_a_column_type_of_version_3_needs_a_version_3_table(server: Server, lake: TestLake, bucket: Bucket) -> None:
    before = everything(lake)
    fields = [field_of(1, "i", "timestamp_ns")]
    assert error_of(create(server, "main", "wrongly", fields, properties={"format-version": "2"})) == (400, BAD)
    assert everything(lake) == before
    table = new_table(server, bucket, "nanos", fields=fields, properties={"format-version": "3"})
    assert table.state["schemas"][0]["fields"][0]["type"] == "timestamp_ns"


def test_create_table_accepts_an_allowed_location(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "placed", location="s3://mergus/shared-by-all/placed/t/")
    assert table.location == "s3://mergus/shared-by-all/placed/t"
    table.append(1)
    assert in_duckdb(lake, db, "placed") == rows(1)
    held = bucket.below(table.location + "/")
    assert any(path.endswith(".parquet") for path in held)
    (path,) = lake.sql("SELECT path, path_is_relative FROM ducklake_data_file ORDER BY data_file_id DESC LIMIT 1")
    assert path[0].startswith(table.location + "/data/")
    assert path[1] is False


def test_create_table_refuses_locations_that_are_not_allowed(server: Server, lake: TestLake, bucket: Bucket) -> None:
    other = new_table(server, bucket, "settled", location="s3://mergus/more/settled")
    data = lake.settings.data_path or ""
    lake_root = data.rstrip("/").rsplit("/", 1)[0]
    before = everything(lake)
    for location in (
        "s3://elsewhere/t",
        "s3://mergus/t",
        "s3://mergus/shared-by-all-and-more/t",
        "s3://mergus/shared-by-all/../t",
        "s3://mergus/shared-by-all//t",
        "s3://mergus",
        "s3a://mergus/shared-by-all/t",
        "file:///tmp/t",
        "/tmp/t",
        "t",
        "gs://mergus/shared-by-all/t",
        "s3://mergus/shared-by-all/\n",
        # another's, below it, above it; those of all
        "s3://mergus/more/settled",
        "s3://mergus/more/settled/below",
        "s3://mergus/more",
        data,
        lake_root,
        other.location.rsplit("/", 1)[0],
        lake.settings.iceberg_path or f"{lake_root}/data-iceberg",
        f"{lake_root}/data-iceberg/8b7c0a52-4b2c-4f54-9f0e-000000000000",
        data + "settled/t",
        "",
    ):
        answer = create(server, "main", "wrongly", location=location)
        assert error_of(answer) == (400, BAD), (location, answer.text)
        assert error_of(create(server, "main", "wrongly", location=location, stage_create=True)) == (400, BAD)
    for name in ("write.data.path", "write.metadata.path"):
        answer = create(server, "main", "wrongly", properties={name: "s3://mergus/more/settled/data"})
        assert error_of(answer) == (400, BAD)
    assert everything(lake) == before


def test_a_staged_table_exists_only_after_its_commit(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    assert server.create("staged").status_code == 200
    before = lake.snapshots()
    promised = create(server, "staged", stage_create=True, properties={"owner": "anna"})
    assert promised.status_code == 200
    assert "metadata-location" not in promised.json()
    metadata = promised.json()["metadata"]
    assert lake.snapshots() == before
    assert get(server, schema="staged").status_code == 404
    assert server.http.get(f"{server.path('staged')}/tables").json()["identifiers"] == []
    assert db.execute("SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'staged'").fetchall() == [(0,)]
    table = HandTable(server, bucket, "staged", state=metadata)
    made = new_table_with_data(table)
    assert made["table-uuid"] == metadata["table-uuid"]
    assert made["location"] == metadata["location"]
    assert made["properties"].items() >= {"owner": "anna"}.items()
    assert len(made["snapshots"]) == 1
    assert load(server, schema="staged") == made
    assert in_duckdb(lake, db, "staged") == rows(5)
    # kept for nobody any more
    assert lake.sql("SELECT count(*) FROM staged_table WHERE table_uuid = %s", metadata["table-uuid"]) == [(0,)]


def new_table_with_data(table: HandTable) -> Json:
    snapshot_id = 2**40 + 1
    updates = [*of_staged(table.state), *table.append_updates([table.file(5)], snapshot_id)]
    return table.commit(*updates, requirements=[ASSERT_CREATE])


def test_a_staged_commit_sent_twice_makes_one_table(server: Server, lake: TestLake, bucket: Bucket) -> None:
    assert server.create("staged2").status_code == 200
    metadata = create(server, "staged2", stage_create=True).json()["metadata"]
    table = HandTable(server, bucket, "staged2", state=metadata)
    first = table.send(of_staged(metadata), [ASSERT_CREATE])
    assert first.status_code == 200
    before = everything(lake)
    again = table.send(of_staged(metadata), [ASSERT_CREATE])
    assert again.status_code == 200
    assert again.json() == first.json()
    assert everything(lake) == before


def test_a_commit_cannot_create_a_table_that_was_not_staged(server: Server, lake: TestLake, bucket: Bucket) -> None:
    metadata = create(server, "main", "promised", stage_create=True).json()["metadata"]
    stranger = {**metadata, "table-uuid": "8b7c0a52-4b2c-4f54-9f0e-000000000000"}
    before = everything(lake)
    other = HandTable(server, bucket, "main", "promised", state=metadata)
    assert error_of(other.send(of_staged(stranger), [ASSERT_CREATE])) == (409, FAILED)
    assert error_of(other.send(of_staged(metadata)[1:], [ASSERT_CREATE])) == (400, BAD)
    # not without saying that it creates
    assert error_of(other.send(of_staged(metadata), [])) == (404, "NoSuchTableException")
    # nor under another name
    renamed = HandTable(server, bucket, "main", "another", state=metadata)
    assert error_of(renamed.send(of_staged(metadata), [ASSERT_CREATE])) == (409, FAILED)
    assert everything(lake) == before


def test_one_of_two_staged_tables_of_a_name_is_created(server: Server, lake: TestLake, bucket: Bucket) -> None:
    first = create(server, "main", "wanted", stage_create=True).json()["metadata"]
    second = create(server, "main", "Wanted", stage_create=True).json()["metadata"]
    HandTable(server, bucket, "main", "wanted", state=first).commit(*of_staged(first), requirements=[ASSERT_CREATE])
    before = everything(lake)
    late = HandTable(server, bucket, "main", "Wanted", state=second)
    assert error_of(late.send(of_staged(second), [ASSERT_CREATE])) == (409, FAILED)
    assert everything(lake) == before


def test_a_staged_table_expires(lake: TestLake, bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("hasty")
    with servers.server(lake.settings, folder, listener="off", staged_seconds=100) as hasty:

        def promise(name: str, seconds: int) -> dict[str, Any]:
            """So many seconds ago."""
            metadata = create(hasty, "main", name, stage_create=True).json()["metadata"]
            query = "UPDATE staged_table SET staged_at = now() - make_interval(secs => %s) WHERE table_uuid = %s"
            lake.sql(query, seconds, metadata["table-uuid"])
            return metadata

        in_time, metadata = promise("in_time", 40), promise("late", 101)
        before = everything(lake)
        late = HandTable(hasty, bucket, "main", "late", state=metadata)
        assert error_of(late.send(of_staged(metadata), [ASSERT_CREATE])) == (409, FAILED)
        assert everything(lake) == before
        # the next one clears it away
        create(hasty, "main", "later", stage_create=True)
        assert lake.sql("SELECT count(*) FROM staged_table WHERE table_uuid = %s", metadata["table-uuid"]) == [(0,)]
        table = HandTable(hasty, bucket, "main", "in_time", state=in_time)
        table.commit(*of_staged(in_time), requirements=[ASSERT_CREATE])


def test_create_table_refuses_names_of_existing_tables_and_views(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    new_table(server, bucket, "taken")
    db.execute("CREATE VIEW taken.v AS SELECT 1; CREATE TABLE taken.Ducks(i INTEGER)")
    before = everything(lake)
    for name in ("t", "T", "v", "V", "Ducks", "ducks"):
        assert error_of(create(server, "taken", name)) == (409, EXISTS), name
        assert error_of(create(server, "taken", name, stage_create=True)) == (409, EXISTS), name
    assert everything(lake) == before
    # other letters are other letters to DuckDB
    assert create(server, "taken", "tä").status_code == 200
    assert create(server, "taken", "tÄ").status_code == 200
    db.execute("INSERT INTO taken.\"tÄ\" VALUES (1, 'a')")
    assert in_duckdb(lake, db, "taken", "tä") == []
    assert in_duckdb(lake, db, "taken", "tÄ") == [(1, "a")]


def test_creating_a_table_in_a_missing_namespace_is_not_found(server: Server, lake: TestLake) -> None:
    before = everything(lake)
    assert error_of(create(server, "nowhere")) == (404, "NoSuchNamespaceException")
    assert error_of(create(server, "nowhere", stage_create=True)) == (404, "NoSuchNamespaceException")
    assert everything(lake) == before


NAMES = ["a b", "a.b", "ünï", "日本", "select", "a/b", "a%2Fb", 'q"uote', "it's", "x" * 200, "1", "t+u", "\u202e"]


def test_a_table_may_have_a_name_with_special_characters(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    assert server.create("names").status_code == 200
    for name in NAMES:
        answer = create(server, "names", name)
        assert answer.status_code == 200, answer.text
        HandTable(server, bucket, "names", name, answer.json()["metadata"]).append(1)
    theirs = catalog(lake.settings, server)
    with lake.duckdb() as fresh:
        for name in NAMES:
            quoted = f"names.{identifier(name)}"
            assert fresh.execute(f"SELECT i, s FROM {quoted} ORDER BY i").fetchall() == rows(1)
            db.execute(f"INSERT INTO {quoted} VALUES (9, 'from DuckDB')")
            found = theirs.load_table(("names", name)).scan().to_arrow()
            assert sorted(found["i"].to_pylist()) == [1, 2, 3, 9]


@pytest.mark.parametrize("name", ["row_id", "Begin_Snapshot", "end_snapshot", "_file", "_row_id", "x" * 64, ""])
def test_h49_create_table_refuses_reserved_column_names(server: Server, lake: TestLake, name: str) -> None:
    before = everything(lake)
    assert error_of(create(server, "main", "wrongly", [field_of(1, "i"), field_of(2, name)])) == (400, BAD)
    assert everything(lake) == before


@pytest.mark.parametrize("kind", ["fixed[16]", "unknown", "geography"])
def test_create_table_refuses_types_that_ducklake_lacks(server: Server, lake: TestLake, kind: str) -> None:
    before = everything(lake)
    properties = {"format-version": "3"}
    nested = {"type": "list", "element-id": 3, "element": kind, "element-required": False}
    for one in (kind, nested):
        answer = create(server, "main", "wrongly", [field_of(1, "i"), field_of(2, "f", one)], properties=properties)
        assert error_of(answer) == (406, UNSUPPORTED), answer.text
    assert everything(lake) == before


_GOOD: dict[str, Any] = {"name": "wrongly", "schema": {"type": "struct", "fields": FIELDS}}
_DEEP: Any = "int"
for _level in range(200):
    _DEEP = {"type": "list", "element-id": 1000 + _level, "element": _DEEP, "element-required": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"name": None},
        {"name": ""},
        {"name": 7},
        {"name": "a\0b"},
        {"name": "\ud800"},
        {"schema": None},
        {"schema": "int"},
        {"schema": {"type": "struct"}},
        {"schema": {"type": "list", "fields": FIELDS}},
        {"schema": {"type": "struct", "fields": [field_of(1, "i", "integer")]}},
        {"schema": {"type": "struct", "fields": [field_of(1, "i", "decimal(39, 2)")]}},
        {"schema": {"type": "struct", "fields": [field_of(1, "i"), field_of(1, "j")]}},
        {"schema": {"type": "struct", "fields": [field_of(1, "i"), field_of(2, "I")]}},
        {"schema": {"type": "struct", "fields": [field_of(1, "a\0b")]}},
        {"schema": {"type": "struct", "fields": [field_of(1, "a", doc="\0")]}},
        {"schema": {"type": "struct", "fields": [{"id": 1, "name": "i", "type": "int"}]}},
        {"schema": {"type": "struct", "fields": [field_of("1", "i")]}},  # pyright: ignore[reportArgumentType]
        {"schema": {"type": "struct", "fields": [field_of(1, "i", _DEEP)]}},
        {"schema": {"type": "struct", "fields": FIELDS, "identifier-field-ids": [1]}},
        {"schema": {"type": "struct", "fields": FIELDS, "identifier-field-ids": [9]}},
        {"partition-spec": {"fields": [{"source-id": 9, "name": "p", "transform": "identity"}]}},
        {"partition-spec": {"fields": [{"source-id": 1, "name": "p", "transform": "nonsense"}]}},
        {"partition-spec": {"fields": [{"source-id": 1, "name": "p", "transform": "day"}]}},
        {"partition-spec": {"fields": [{"source-id": 1, "name": "s", "transform": "bucket[2]"}]}},
        {"partition-spec": {"fields": [{"source-id": 1, "name": "p", "transform": "bucket[0]"}]}},
        {"partition-spec": {"fields": "no"}},
        {"partition-spec": []},
        {"write-order": {"order-id": 1, "fields": [{"source-id": 9, "transform": "identity"}]}},
        {"write-order": {"fields": 7}},
        {"stage-create": "yes"},
        {"properties": {"a": 1}},
        {"properties": {"a": None}},
        {"properties": {"a\0": "b"}},
        {"properties": {"mergus.secret": "b"}},
        {"properties": ["a"]},
        {"location": 7},
    ],
    ids=str,
)
def test_malformed_fields_of_create_table_are_bad_requests(
    server: Server, lake: TestLake, changes: dict[str, Any]
) -> None:
    before = everything(lake)
    body = {key: value for key, value in {**_GOOD, **changes}.items() if value is not None}
    # with every character as an escape, as JSON can spell more than UTF-8
    answer = server.http.post(f"{server.path('main')}/tables", content=json.dumps(body), headers=IS_JSON)
    assert error_of(answer) == (400, BAD), answer.text
    assert everything(lake) == before


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"t"', b"\xff\xfe", b'{"name": "t"'])
def test_a_body_of_create_table_that_is_no_json_object_is_a_bad_request(
    server: Server, lake: TestLake, body: bytes
) -> None:
    before = everything(lake)
    answer = server.http.post(f"{server.path('main')}/tables", content=body, headers=IS_JSON)
    assert error_of(answer) == (400, BAD)
    assert everything(lake) == before


def test_create_table_refuses_a_table_without_columns(server: Server, lake: TestLake) -> None:
    before = everything(lake)
    assert error_of(create(server, "main", "wrongly", [])) == (406, UNSUPPORTED)
    assert everything(lake) == before


def test_create_table_accepts_a_thousand_columns(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    fields = [field_of(i, f"c{i}", "long") for i in range(1, 1001)]
    table = new_table(server, bucket, "wide", fields=fields)
    assert [f["name"] for f in table.state["schemas"][0]["fields"]] == [f["name"] for f in fields]
    assert len(db.execute("DESCRIBE wide.t").fetchall()) == 1000
