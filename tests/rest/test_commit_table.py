"""Commits over HTTP: every requirement and every update, and what it is to Iceberg's clients and to DuckDB."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import duckdb
import pytest

from mergus.iceberg.manifest import ADDED, DATA, POSITION_DELETES, Entry, PartitionField
from tests.support import loads, servers
from tests.support.commits import (
    FIELDS,
    HandTable,
    Json,
    everything,
    field_of,
    in_duckdb,
    main_at,
    new_snapshot_id,
    new_table,
    rows,
    shown,
)
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, catalog, get, ids, load
from tests.support.servers import Server, error_of
from tests.support.writers import Raw
from tests.support.writers import rows as written

BAD, FAILED, UNSUPPORTED = "BadRequestException", "CommitFailedException", "UnsupportedOperationException"


@pytest.fixture(scope="module")
def server(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.server(lake.settings, tmp_path_factory.mktemp("server"), listener="off") as running:
        yield running


@pytest.fixture(scope="module")
def bucket(lake: TestLake) -> Bucket:
    return Bucket(lake.settings)


def action(name: str, **parts: Any) -> Json:
    return {"action": name, **{key.replace("_", "-"): value for key, value in parts.items()}}


def set_properties(**properties: str) -> Json:
    return action("set-properties", updates=properties)


def columns(db: duckdb.DuckDBPyConnection, schema: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in db.execute(f"DESCRIBE {schema}.t").fetchall()]


def add_schema(*fields: Json, schema_id: int = 1, identifiers: tuple[int, ...] = ()) -> list[Json]:
    schema: Json = {"type": "struct", "schema-id": schema_id, "fields": list(fields)}
    if identifiers:
        schema["identifier-field-ids"] = list(identifiers)
    return [action("add-schema", schema=schema), action("set-current-schema", schema_id=-1)]


# --- requirements


@pytest.fixture(scope="module")
def held(server: Server, bucket: Bucket) -> HandTable:
    """A table with something of everything: a snapshot, a tag, a spec, a sort order."""
    table = new_table(server, bucket, "held")
    snapshot_id = table.append(1)
    table.commit(
        action("add-spec", spec={"fields": [{"source-id": 1, "name": "b", "transform": "bucket[4]"}]}),
        action("set-default-spec", spec_id=-1),
        action(
            "add-sort-order",
            sort_order={
                "order-id": 1,
                "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
            },
        ),
        action("set-default-sort-order", sort_order_id=-1),
        action("set-snapshot-ref", ref_name="kept", type="tag", snapshot_id=snapshot_id),
    )
    return table


def requirements(state: Json) -> dict[str, tuple[Json, list[Json]]]:
    """One that holds, and those that do not."""
    main, spec = state["current-snapshot-id"], state["default-spec-id"]
    order, schema = state["default-sort-order-id"], state["current-schema-id"]
    ref: Json = {"type": "assert-ref-snapshot-id"}
    return {
        "table-uuid": (
            {"type": "assert-table-uuid", "uuid": state["table-uuid"].upper()},
            [{"type": "assert-table-uuid", "uuid": "8b7c0a52-4b2c-4f54-9f0e-000000000000"}],
        ),
        "ref-snapshot-id": (
            {**ref, "ref": "main", "snapshot-id": main},
            [{**ref, "ref": "main", "snapshot-id": main + 1}, {**ref, "ref": "main", "snapshot-id": None}],
        ),
        "ref of a tag": (
            {**ref, "ref": "kept", "snapshot-id": main},
            [{**ref, "ref": "kept", "snapshot-id": 1}, {**ref, "ref": "kept", "snapshot-id": None}],
        ),
        "ref that is not there": (
            {**ref, "ref": "other", "snapshot-id": None},
            [{**ref, "ref": "other", "snapshot-id": main}],
        ),
        "last-assigned-field-id": (
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2},
            [{"type": "assert-last-assigned-field-id", "last-assigned-field-id": n} for n in (1, 3)],
        ),
        "current-schema-id": (
            {"type": "assert-current-schema-id", "current-schema-id": schema},
            [{"type": "assert-current-schema-id", "current-schema-id": schema + 1}],
        ),
        "last-assigned-partition-id": (
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1000},
            [{"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999}],
        ),
        "default-spec-id": (
            {"type": "assert-default-spec-id", "default-spec-id": spec},
            [{"type": "assert-default-spec-id", "default-spec-id": spec + 1}],
        ),
        "default-sort-order-id": (
            {"type": "assert-default-sort-order-id", "default-sort-order-id": order},
            [{"type": "assert-default-sort-order-id", "default-sort-order-id": order + 1}],
        ),
        "create": ({"type": "assert-table-uuid", "uuid": state["table-uuid"]}, [{"type": "assert-create"}]),
    }


def test_a_commit_is_applied_only_if_all_its_requirements_hold(held: HandTable, lake: TestLake) -> None:
    every = requirements(held.load())
    for name, (holds, fail) in every.items():
        for wrong in fail:
            before = everything(lake)
            # the others hold, and it is one that fails: nothing is done
            others = [good for good, _ in every.values()]
            for asked in ([wrong], [*others, wrong]):
                answer = held.send([set_properties(wrong=name)], asked)
                assert error_of(answer) == (409, FAILED), (name, answer.text)
            assert everything(lake) == before, name
        held.commit(set_properties(**{f"holds.{name}": "yes"}), requirements=[holds])
        assert held.load()["properties"][f"holds.{name}"] == "yes"


def test_a_requirement_of_main_fails_after_a_commit_of_duckdb(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "overtaken")
    table.append(1)
    asked = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": table.current}
    updates = table.append_updates([table.file(10)], new_snapshot_id())
    overwrite = [{**u, "snapshot": {**u["snapshot"], "summary": {"operation": "overwrite"}}} for u in updates[:1]]
    overwrite += updates[1:]
    db.execute("INSERT INTO overtaken.t VALUES (7, 'seven')")
    before = everything(lake)
    assert error_of(table.send(overwrite, [asked])) == (409, FAILED)
    # even one that does not ask: its snapshot follows another
    assert error_of(table.send(overwrite)) == (409, FAILED)
    assert error_of(table.send(updates)) == (409, FAILED)
    # an append to a table that looks different by now
    db.execute("ALTER TABLE overtaken.t ADD COLUMN later INTEGER; INSERT INTO overtaken.t VALUES (8, 'eight', 8)")
    table.load()
    altered = everything(lake)
    assert error_of(table.send(updates, [asked])) == (409, FAILED)
    assert everything(lake) == altered
    assert before != altered


def test_an_append_is_applied_on_top_of_later_commits(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    """A client would only send it again; against a session that commits all the time, for ever."""
    table = new_table(server, bucket, "moved")
    table.append(1)
    asked = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": table.current}
    snapshot_id = new_snapshot_id()
    updates = table.append_updates([table.file(10)], snapshot_id)
    db.execute("INSERT INTO moved.t VALUES (7, 'seven'); DELETE FROM moved.t WHERE i = 1")
    answer = table.send(updates, [asked])
    assert answer.status_code == 200, answer.text
    metadata = answer.json()["metadata"]
    newest = metadata["snapshots"][-1]
    assert (metadata["current-snapshot-id"], newest["snapshot-id"]) == (snapshot_id, snapshot_id)
    # its parent is what it follows
    assert newest["parent-snapshot-id"] == metadata["snapshots"][-2]["snapshot-id"] != asked["snapshot-id"]
    assert in_duckdb(lake, db, "moved") == [*[row for row in rows(1) if row[0] != 1], (7, "seven"), *rows(10)]
    # sent again, it is there already
    assert table.send(updates, [asked]).status_code == 200
    assert in_duckdb(lake, db, "moved") == [*[row for row in rows(1) if row[0] != 1], (7, "seven"), *rows(10)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "assert-nothing"},
        {"type": "assert-view-uuid", "uuid": "8b7c0a52-4b2c-4f54-9f0e-000000000000"},
        {"type": 7},
        {},
        {"type": "assert-table-uuid"},
        {"type": "assert-table-uuid", "uuid": "nonsense"},
        {"type": "assert-ref-snapshot-id", "snapshot-id": 1},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": "1"},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2**31},
        {"type": "assert-current-schema-id", "current-schema-id": True},
        {"type": "assert-default-spec-id", "default-spec-id": 1.5},
        "assert-create",
        None,
    ],
    ids=str,
)
def test_malformed_requirements_are_bad_requests(held: HandTable, lake: TestLake, wrong: Any) -> None:
    before = everything(lake)
    assert error_of(held.send([set_properties(a="b")], [wrong])) == (400, BAD)
    assert everything(lake) == before


# --- updates that are refused


@pytest.mark.parametrize(
    ("update", "refused"),
    [
        (action("do-something"), (400, BAD)),
        (action("add-view-version"), (400, BAD)),
        ({}, (400, BAD)),
        ("set-properties", (400, BAD)),
        (None, (400, BAD)),
        (action("add-encryption-key", encryption_key={"key-id": "a", "encrypted-key-metadata": "b"}), 406),
        (action("remove-encryption-key", key_id="a"), 406),
        (action("set-snapshot-ref", ref_name="side", type="branch", snapshot_id=0), (400, BAD)),
        (action("set-snapshot-ref", ref_name="side", type="twig", snapshot_id=1), (400, BAD)),
        (action("set-snapshot-ref", ref_name="main", type="branch", snapshot_id=17), (400, BAD)),
        (action("set-snapshot-ref", ref_name="main", type="tag", snapshot_id=17), (400, BAD)),
        (action("set-current-schema", schema_id=77), (400, BAD)),
        (action("set-current-schema", schema_id=-1), (400, BAD)),
        (action("set-default-spec", spec_id=77), (400, BAD)),
        (action("set-default-spec", spec_id=-1), (400, BAD)),
        (action("set-default-sort-order", sort_order_id=77), (400, BAD)),
        (action("set-default-sort-order", sort_order_id=-1), (400, BAD)),
        (action("assign-uuid", uuid="8b7c0a52-4b2c-4f54-9f0e-000000000000"), (400, BAD)),
        (action("upgrade-format-version", format_version=1), (400, BAD)),
        (action("upgrade-format-version", format_version=4), 406),
        (action("set-properties", updates={"a": 1}), (400, BAD)),
        (action("set-properties", updates={"a": "\0"}), (400, BAD)),
        (action("set-properties", updates={"format-version": "3"}), (400, BAD)),
        (action("set-properties", updates={"mergus.x": "3"}), (400, BAD)),
        (action("set-properties", updates={"write.data.path": "s3://elsewhere/x"}), (400, BAD)),
        (action("remove-properties", removals="a"), (400, BAD)),
        (action("set-location", location="s3://elsewhere/t"), (400, BAD)),
        (action("set-location", location=""), (400, BAD)),
        (action("remove-snapshots", snapshot_ids="1"), (400, BAD)),
        (action("set-statistics", statistics={"snapshot-id": 1}), (400, BAD)),
        (action("add-spec", spec={"fields": [{"source-id": 99, "name": "x", "transform": "identity"}]}), (400, BAD)),
        (action("add-spec", spec={"fields": [{"source-id": 1, "name": "x", "transform": "day"}]}), (400, BAD)),
        (action("add-sort-order", sort_order={"order-id": 0, "fields": []}), None),
        (action("add-snapshot", snapshot={}), (400, BAD)),
    ],
    ids=str,
)
def test_unsupported_and_malformed_updates_are_refused_without_any_change(
    held: HandTable, lake: TestLake, update: Any, refused: Any
) -> None:
    before = everything(lake)
    # beside one that is fine
    answer = held.send([set_properties(never="seen"), update] if refused else [update])
    if refused:
        assert error_of(answer) == ((406, UNSUPPORTED) if refused == 406 else refused), answer.text
    else:
        assert answer.status_code == 200, answer.text
    assert everything(lake) == before


def test_commits_to_branches_are_refused(held: HandTable, lake: TestLake) -> None:
    held.load()
    before = everything(lake)
    side = action("set-snapshot-ref", ref_name="side", type="branch", snapshot_id=held.current)
    assert error_of(held.send([side])) == (406, UNSUPPORTED)
    # a snapshot that main never shows
    snapshot_id = new_snapshot_id()
    add, _ = held.append_updates([], snapshot_id)
    assert error_of(held.send([add])) == (406, UNSUPPORTED)
    assert everything(lake) == before


def test_a_commit_body_that_names_another_table_is_refused(held: HandTable, lake: TestLake) -> None:
    before = everything(lake)
    other = {"namespace": ["held"], "name": "u"}
    assert error_of(held.send([set_properties(a="b")], identifier=other)) == (400, BAD)
    assert everything(lake) == before
    named = held.send([set_properties(named="yes")], identifier={"namespace": ["held"], "name": "t"})
    assert named.status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"updates": []}', b'{"requirements": [], "updates": 7}', b"\xff"]
)
def test_a_malformed_commit_body_is_a_bad_request(held: HandTable, lake: TestLake, body: bytes) -> None:
    before = everything(lake)
    answer = held.server.http.post(held.url, content=body, headers={"Content-Type": "application/json"})
    assert error_of(answer) == (400, BAD)
    assert everything(lake) == before


def test_a_commit_to_a_missing_table_is_not_found(server: Server, bucket: Bucket, lake: TestLake) -> None:
    before = everything(lake)
    for schema, name in (("held", "u"), ("nowhere", "t"), ("held", "T")):
        stranger = HandTable(server, bucket, schema, name)
        assert error_of(stranger.send([set_properties(a="b")])) == (404, "NoSuchTableException")
    assert everything(lake) == before


def test_a_commit_without_changes_writes_nothing(held: HandTable, lake: TestLake) -> None:
    state, before = held.load(), everything(lake)
    answer = held.send([])
    assert answer.status_code == 200
    assert answer.json()["metadata"] == state
    # nor does one that says what is so already
    same = [
        action("assign-uuid", uuid=state["table-uuid"]),
        action("upgrade-format-version", format_version=2),
        action("set-location", location=state["location"] + "/"),
        action("add-schema", schema=state["schemas"][-1]),
        action("set-current-schema", schema_id=-1),
        action("remove-properties", removals=["never-there"]),
        action("remove-snapshot-ref", ref_name="never-there"),
        action("remove-snapshots", snapshot_ids=[4711]),
        action("remove-schemas", schema_ids=[4711]),
        action("remove-partition-specs", spec_ids=[4711]),
        action("remove-statistics", snapshot_id=4711),
        action("remove-partition-statistics", snapshot_id=4711),
    ]
    answer = held.send(same)
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"] == state
    assert everything(lake) == before


# --- updates and what becomes of them


def test_the_answer_to_a_commit_equals_the_next_load(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "answers")
    snapshot_id = new_snapshot_id()
    answer = table.send(table.append_updates([table.file(1)], snapshot_id))
    assert answer.status_code == 200, answer.text
    made = answer.json()["metadata"]
    assert made["current-snapshot-id"] == snapshot_id == made["refs"]["main"]["snapshot-id"]
    assert ids(made) == [snapshot_id]
    assert made["snapshots"][0]["summary"]["operation"] == "append"
    loaded = get(server, schema="answers")
    assert loaded.headers["etag"] == answer.headers["etag"]
    assert loaded.json() == answer.json()
    unchanged = server.http.get(table.url, headers={"If-None-Match": answer.headers["etag"]})
    assert unchanged.status_code == 304
    # a commit is not asked what it has
    again = server.http.post(
        table.url, json={"requirements": [], "updates": []}, headers={"If-None-Match": answer.headers["etag"]}
    )
    assert again.status_code == 200
    # a snapshot of DuckLake's, told to be the client's
    assert lake.sound_snapshots()[-1][4].startswith("inserted_into_table:")
    assert in_duckdb(lake, db, "answers") == rows(1)


@pytest.mark.parametrize("version", [2, 3])
def test_append_overwrite_delete_and_replace_commits_are_seen_by_duckdb(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection, version: int
) -> None:
    schema = f"operations{version}"
    table = new_table(server, bucket, schema, properties={"format-version": str(version)})
    table.append(1, tag="a")
    assert in_duckdb(lake, db, schema) == rows(1, tag="a")
    table.append(10, tag="b")
    files = {e.data_file.file_path: e.data_file for m in table.manifests() for e in table.entries(m)}
    first, second = sorted(files.values(), key=lambda file: (file.lower_bounds or {})[2])
    history = {table.current: [*rows(1, tag="a"), *rows(10, tag="b")]}

    def change(operation: str, *gone: str, also: Any = ()) -> None:
        snapshot_id = new_snapshot_id()
        listed = table.list_of(table.without(*gone, snapshot_id=snapshot_id, also=also), snapshot_id)
        added = sum(f.record_count for f in also)
        table.commit(*shown(table.snapshot_json(listed, snapshot_id, operation, rows=added)))
        assert table.current == snapshot_id
        assert table.snapshot()["summary"]["operation"] == operation

    change("overwrite", first.file_path, also=[table.file(20, tag="c")])
    history[table.current] = [*rows(10, tag="b"), *rows(20, tag="c")]
    assert in_duckdb(lake, db, schema) == history[table.current]
    change("delete", second.file_path)
    history[table.current] = rows(20, tag="c")
    assert in_duckdb(lake, db, schema) == history[table.current]
    (third,) = (e.data_file for m in table.manifests() for e in table.entries(m) if e.status != 2)
    before = db.execute(f"SELECT rowid, i FROM {schema}.t").fetchall()
    if version == 2:
        # one file into two; version 3 takes row ids along, which is Spark's test
        change("replace", third.file_path, also=[table.file(20, 1, tag="c"), table.file(21, 2, tag="c")])
        history[table.current] = rows(20, tag="c")
        assert in_duckdb(lake, db, schema) == history[table.current]
        assert len(db.execute(f"SELECT DISTINCT rowid FROM {schema}.t").fetchall()) == len(before)
    theirs = catalog(lake.settings, server).load_table((schema, "t"))
    for snapshot_id, wanted in history.items():
        assert loads.rows(theirs.scan(snapshot_id=snapshot_id).to_arrow()) == loads.in_order(wanted)
    # the other side goes on
    db.execute(f"INSERT INTO {schema}.t VALUES (99, 'duck')")
    table.load()
    table.append(100)
    assert in_duckdb(lake, db, schema) == [*rows(20, tag="c"), (99, "duck"), *rows(100)]


def test_one_commit_may_add_several_snapshots(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    """As PyIceberg sends an overwrite: one that deletes, and one that appends on top of it."""
    table = new_table(server, bucket, "several")
    table.append(1)
    (old,) = (e.data_file for m in table.manifests() for e in table.entries(m))
    first, second = new_snapshot_id(), new_snapshot_id()
    without = table.without(old.file_path, snapshot_id=first)
    deletes = table.snapshot_json(table.list_of(without, first), first, "delete")
    added = replace(table.added([table.file(50)], second), sequence_number=deletes["sequence-number"] + 1)
    appends = table.snapshot_json(table.list_of([*without, added], second), second)
    appends |= {"parent-snapshot-id": first, "sequence-number": deletes["sequence-number"] + 1}
    before = len(lake.snapshots())
    made = table.commit(
        action("add-snapshot", snapshot=deletes),
        main_at(first),
        action("add-snapshot", snapshot=appends),
        main_at(second),
    )
    assert ids(made)[-2:] == [first, second]
    assert made["snapshots"][-1]["parent-snapshot-id"] == first
    assert len(lake.sound_snapshots()) == before + 2
    assert in_duckdb(lake, db, "several") == rows(50)
    theirs = catalog(lake.settings, server).load_table("several.t")
    assert theirs.scan(snapshot_id=first).to_arrow().num_rows == 0
    assert loads.rows(theirs.scan(snapshot_id=second).to_arrow()) == rows(50)


def test_properties_and_the_comment_are_shared_by_clients_and_duckdb(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "props")

    def comment() -> list[Any]:
        with lake.duckdb() as fresh:
            sessions = (db, fresh)
            query = "SELECT comment FROM duckdb_tables() WHERE schema_name = 'props'"
            one, other = (session.execute(query).fetchall() for session in sessions)
        assert one == other
        return one

    before = len(lake.snapshots())
    table.commit(set_properties(owner="anna", a="1"), set_properties(a="2"))
    # nothing that DuckLake knows of
    assert len(lake.snapshots()) == before
    assert table.state["properties"].items() >= {"owner": "anna", "a": "2"}.items()
    assert load(server, schema="props") == table.state
    table.commit(set_properties(comment="from Iceberg"), action("remove-properties", removals=["owner"]))
    assert "owner" not in load(server, schema="props")["properties"]
    assert comment() == [("from Iceberg",)]
    db.execute("COMMENT ON TABLE props.t IS 'from DuckDB'")
    assert table.load()["properties"]["comment"] == "from DuckDB"
    table.commit(action("remove-properties", removals=["comment"]))
    assert "comment" not in table.load()["properties"]
    assert comment() == [(None,)]


def test_schema_changes_of_a_commit_are_seen_by_duckdb(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "evolves")
    table.append(1)
    assert columns(db, "evolves") == [("i", "INTEGER"), ("s", "VARCHAR")]
    wider = [field_of(1, "i", "long", doc="wide"), FIELDS[1], field_of(3, "d", "date")]
    table.commit(*add_schema(*wider))
    assert table.state["schemas"][-1]["fields"] == wider
    assert table.state["last-column-id"] == 3
    assert columns(db, "evolves") == [("i", "BIGINT"), ("s", "VARCHAR"), ("d", "DATE")]
    comments = db.execute("SELECT comment FROM duckdb_columns() WHERE schema_name = 'evolves' ORDER BY column_index")
    assert comments.fetchall() == [("wide",), (None,), (None,)]
    db.execute("INSERT INTO evolves.t VALUES (3000000000, 'big', DATE '2020-02-02')")
    table.load()
    # renamed, reordered, and one is gone
    after = [field_of(3, "day", "date"), wider[0]]
    table.commit(*add_schema(*after, schema_id=2))
    assert load(server, schema="evolves")["schemas"][-1]["fields"] == after
    assert columns(db, "evolves") == [("i", "BIGINT"), ("day", "DATE")]
    found = catalog(lake.settings, server).load_table("evolves.t").scan().to_arrow()
    assert found.column_names == ["day", "i"]
    assert sorted(found["i"].to_pylist()) == [1, 2, 3, 3000000000]
    wanted = [(1, None), (2, None), (3, None)]
    assert db.execute("SELECT i, day FROM evolves.t ORDER BY i").fetchall()[:3] == wanted
    # as it was: schemas of old are known by their ids
    kept = {s["schema-id"] for s in table.state["schemas"]}
    assert len(kept) == 3
    oldest = table.state["schemas"][0]["schema-id"]
    middle = next(s["schema-id"] for s in table.state["schemas"] if s["fields"] == wider)
    table.commit(action("set-current-schema", schema_id=middle))
    assert columns(db, "evolves") == [("i", "BIGINT"), ("s", "VARCHAR"), ("d", "DATE")]
    assert db.execute("SELECT i, s FROM evolves.t ORDER BY i").fetchall() == [*rows(1), (3000000000, "big")]
    assert table.state["current-schema-id"] == middle
    assert oldest in {s["schema-id"] for s in table.state["schemas"]}


def test_remove_schemas_removes_former_schemas_only(server: Server, bucket: Bucket, lake: TestLake) -> None:
    table = new_table(server, bucket, "forgets")
    first = table.state["current-schema-id"]
    table.commit(*add_schema(*FIELDS, field_of(3, "j")))
    assert {s["schema-id"] for s in table.state["schemas"]} == {first, table.state["current-schema-id"]}
    before = everything(lake)
    current = table.state["current-schema-id"]
    assert error_of(table.send([action("remove-schemas", schema_ids=[current])])) == (400, BAD)
    assert everything(lake) == before
    table.commit(action("remove-schemas", schema_ids=[first]))
    assert {s["schema-id"] for s in load(server, schema="forgets")["schemas"]} == {current}
    # the rows that come are of those that are left
    table.load()
    table.append(1)
    assert {s["schema-id"] for s in load(server, schema="forgets")["schemas"]} == {current}


def test_identifier_fields_are_stored_until_their_column_becomes_optional(
    server: Server, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "identified", fields=[field_of(1, "i", required=True), FIELDS[1]])
    table.commit(*add_schema(field_of(1, "i", required=True), FIELDS[1], identifiers=(1,)))
    assert load(server, schema="identified")["schemas"][-1]["identifier-field-ids"] == [1]
    db.execute("ALTER TABLE identified.t ALTER i DROP NOT NULL")
    # what may be NULL identifies nothing
    assert "identifier-field-ids" not in load(server, schema="identified")["schemas"][-1]


def test_a_commit_adds_partition_specs_and_sets_the_default(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "specs")
    table.append(1)
    plain = table.state["default-spec-id"]
    fields = [
        {"source-id": 1, "name": "i_same", "transform": "identity"},
        {"source-id": 2, "name": "s_trunc", "transform": "truncate[1]"},
    ]
    table.commit(
        action("add-spec", spec={"fields": fields}),
        action("set-default-spec", spec_id=-1),
        requirements=[{"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999}],
    )
    spec = next(s for s in table.state["partition-specs"] if s["spec-id"] == table.state["default-spec-id"])
    assert spec["spec-id"] != plain
    assert [{k: v for k, v in f.items() if k != "field-id"} for f in spec["fields"]] == fields
    assert [f["field-id"] for f in spec["fields"]] == [1000, 1001]
    assert table.state["last-partition-id"] == 1001
    # DuckLake has of it what it can express
    live = lake.sql(
        "SELECT column_id, transform FROM ducklake_partition_column c JOIN ducklake_partition_info i "
        "ON i.partition_id = c.partition_id WHERE end_snapshot IS NULL AND i.table_id = "
        "(SELECT table_id FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id "
        "WHERE schema_name = 'specs')"
    )
    assert live == [(1, "identity")]
    file = replace(table.file(10, 1), partition=(10, "x"))
    types = [PartitionField("i_same", 1000, "int"), PartitionField("s_trunc", 1001, "string")]
    snapshot_id = new_snapshot_id()
    table.commit(*table.append_updates([file], snapshot_id, spec=spec["fields"], types=types))
    assert in_duckdb(lake, db, "specs") == [*rows(1), *rows(10, 1)]
    db.execute("INSERT INTO specs.t SELECT range, 'y' FROM range(100, 140)")
    table.load()
    listed = {m.partition_spec_id for m in table.manifests()}
    assert {plain, spec["spec-id"]} <= listed
    (entry,) = (e for m in table.manifests() for e in table.entries(m) if e.data_file.file_path == file.file_path)
    assert entry.data_file.partition == (10, "x")
    found = catalog(lake.settings, server).load_table("specs.t")
    assert found.scan(row_filter="i = 110").to_arrow().num_rows == 1
    # back to none, and one that no file has any more cannot be seen
    table.commit(action("set-default-spec", spec_id=plain))
    assert table.load()["default-spec-id"] == plain
    before = everything(lake)
    assert error_of(table.send([action("remove-partition-specs", spec_ids=[plain])])) == (400, BAD)
    assert everything(lake) == before
    assert in_duckdb(lake, db, "specs") == [*rows(1), *rows(10, 1), *rows(100, 40, "y")]


def test_remove_partition_specs_removes_an_unused_spec(server: Server, bucket: Bucket) -> None:
    table = new_table(server, bucket, "unspecific")
    fields = [{"source-id": 1, "name": "b", "transform": "bucket[4]"}]
    table.commit(action("add-spec", spec={"fields": fields}), action("set-default-spec", spec_id=-1))
    bucketed = table.state["default-spec-id"]
    table.commit(action("add-spec", spec={"fields": []}), action("set-default-spec", spec_id=-1))
    plain = table.state["default-spec-id"]
    assert [s["spec-id"] for s in table.state["partition-specs"]] == sorted([plain, bucketed])
    table.commit(action("remove-partition-specs", spec_ids=[bucketed]))
    assert load(server, schema="unspecific")["partition-specs"] == [{"spec-id": plain, "fields": []}]
    assert table.load()["last-partition-id"] >= 1000


def test_a_commit_adds_sort_orders_and_sets_the_default(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "sorted")
    by_i = {"source-id": 1, "transform": "identity", "direction": "desc", "null-order": "nulls-last"}
    by_s = {"source-id": 2, "transform": "truncate[2]", "direction": "asc", "null-order": "nulls-first"}
    table.commit(
        action("add-sort-order", sort_order={"order-id": 7, "fields": [by_i, by_s]}),
        action("set-default-sort-order", sort_order_id=-1),
    )
    default = table.load()["default-sort-order-id"]
    order = next(o for o in table.state["sort-orders"] if o["order-id"] == default)
    assert order["fields"] == [by_i, by_s]
    query = (
        "SELECT expression, sort_direction, null_order FROM ducklake_sort_expression e JOIN ducklake_sort_info i "
        "ON i.sort_id = e.sort_id WHERE end_snapshot IS NULL AND i.table_id = "
        "(SELECT max(table_id) FROM ducklake_table WHERE table_uuid = %s)"
    )
    live = lake.sql(query, table.state["table-uuid"])
    assert [(e.strip('"'), d, n) for e, d, n in live] == [("i", "DESC", "NULLS_LAST")]
    db.execute("INSERT INTO sorted.t SELECT range, 'x' FROM range(40)")
    assert in_duckdb(lake, db, "sorted") == rows(0, 40)
    table.load()
    table.commit(action("set-default-sort-order", sort_order_id=0))
    assert table.load()["default-sort-order-id"] == 0
    assert lake.sql(query, table.state["table-uuid"]) == []


def orders_of_files(table: HandTable) -> dict[int, set[int | None]]:
    """The sort orders that manifests name, by the content of files."""
    found: dict[int, set[int | None]] = {}
    for file in table.manifests():
        for entry in table.entries(file):
            found.setdefault(entry.data_file.content, set()).add(entry.data_file.sort_order_id)
    return found


@pytest.mark.parametrize("version", [2, 3])
def test_files_keep_the_sort_order_that_their_writer_wrote_them_in(
    server: Server, bucket: Bucket, db: duckdb.DuckDBPyConnection, version: int
) -> None:
    """Those of DuckDB, and of clients that say nothing, are in none: that is 0. Iceberg allows none for deletes."""
    schema = f"ordered_{version}"
    table = new_table(server, bucket, schema, properties={"format-version": str(version)})
    by_i = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    by_s = {**by_i, "source-id": 2}
    table.append(1)
    db.execute(f"INSERT INTO {schema}.t VALUES (10, 'inlined')")
    db.execute(f"INSERT INTO {schema}.t SELECT range, 'file' FROM range(100, 140)")
    table.load()
    assert orders_of_files(table) == {DATA: {0}}
    table.commit(action("add-sort-order", sort_order={"order-id": 5, "fields": [by_i]}))
    ordered = replace(table.file(20), sort_order_id=5)
    table.commit(*table.append_updates([ordered], new_snapshot_id()))
    # the same number for another order, in the commit that adds it: the table calls it by another
    other = replace(table.file(30), sort_order_id=5)
    table.commit(
        action("add-sort-order", sort_order={"order-id": 5, "fields": [by_s]}),
        *table.append_updates([other], new_snapshot_id()),
    )
    number = next(o["order-id"] for o in table.state["sort-orders"] if o["fields"] == [by_s])
    assert number not in {0, 5}
    db.execute(f"DELETE FROM {schema}.t WHERE i IN (1, 20, 31, 100)")
    main = table.load()["current-snapshot-id"]
    assert orders_of_files(table) == {DATA: {0, 5, number}, POSITION_DELETES: {None}}
    # a snapshot that comes back has its files as they were
    first = table.state["snapshots"][0]["snapshot-id"]
    table.commit(main_at(first))
    table.commit(main_at(main))
    table.load()
    assert orders_of_files(table)[DATA] == {0, 5, number}


def test_set_location_accepts_only_allowed_locations_and_is_shown_by_loads(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "moves")
    table.append(1)
    was = table.location
    other = new_table(server, bucket, "stays")
    before = everything(lake)
    for wrong in (other.location, was.rsplit("/", 1)[0], lake.settings.data_path, "s3://elsewhere/x", "nonsense"):
        assert error_of(table.send([action("set-location", location=wrong)])) == (400, BAD), wrong
    assert everything(lake) == before
    table.commit(action("set-location", location=was + "/new/"))
    assert table.location == was + "/new"
    assert load(server, schema="moves")["location"] == was + "/new"
    table.append(10)
    assert any(path.startswith(was + "/new/data/") for path in bucket.below(was + "/new/"))
    assert in_duckdb(lake, db, "moves") == [*rows(1), *rows(10)]
    table.commit(action("set-location", location=was))
    assert load(server, schema="moves")["location"] == was
    assert loads.rows(catalog(lake.settings, server).load_table("moves.t").scan().to_arrow()) == loads.in_order(
        [*rows(1), *rows(10)]
    )


def test_a_commit_sets_statistics_files_that_loads_return(server: Server, bucket: Bucket, lake: TestLake) -> None:
    table = new_table(server, bucket, "counted")
    first, second = table.append(1), table.append(10)
    blob = {
        "type": "apache-datasketches-theta-v1",
        "snapshot-id": first,
        "sequence-number": 1,
        "fields": [1],
        "properties": {"ndv": "3"},
    }
    of_table = {
        "snapshot-id": first,
        "statistics-path": table.path("metadata", "stats"),
        "file-size-in-bytes": 413,
        "file-footer-size-in-bytes": 42,
        "blob-metadata": [blob],
    }
    of_partitions = {
        "snapshot-id": second,
        "statistics-path": table.path("metadata", "parquet"),
        "file-size-in-bytes": 43,
    }
    before = len(lake.snapshots())
    table.commit(
        action("set-statistics", snapshot_id=first, statistics=of_table),
        action("set-partition-statistics", partition_statistics=of_partitions),
    )
    assert len(lake.snapshots()) == before
    assert table.load()["statistics"] == [of_table]
    assert table.state["partition-statistics"] == [of_partitions]
    table.append(20)
    assert table.load()["statistics"] == [of_table]
    unknown = {**of_table, "snapshot-id": 4711}
    assert error_of(table.send([action("set-statistics", statistics=unknown)])) == (400, BAD)
    table.commit(action("remove-statistics", snapshot_id=first))
    assert table.load().get("statistics", []) == []
    assert table.state["partition-statistics"] == [of_partitions]
    table.commit(action("remove-partition-statistics", snapshot_id=second))
    assert table.load().get("partition-statistics", []) == []


def test_a_commit_sets_and_removes_tags(
    server: Server, bucket: Bucket, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "tags")
    first = table.append(1)
    second = table.append(10)
    tag = {"type": "tag", "snapshot-id": first, "max-ref-age-ms": 10_000_000_000}
    before = len(lake.snapshots())
    table.commit(action("set-snapshot-ref", ref_name="v1", **tag))
    assert len(lake.snapshots()) == before
    assert table.load()["refs"]["v1"] == tag
    assert table.state["refs"]["main"]["snapshot-id"] == second
    # with the snapshot that it is of
    third = new_snapshot_id()
    updates = table.append_updates([table.file(20)], third)
    table.commit(*updates, action("set-snapshot-ref", ref_name="v3", type="tag", snapshot_id=third))
    assert table.load()["refs"]["v3"]["snapshot-id"] == third
    theirs = catalog(lake.settings, server).load_table("tags.t")
    named = theirs.snapshot_by_name("v1")
    assert named is not None
    assert loads.rows(theirs.scan(snapshot_id=named.snapshot_id).to_arrow()) == rows(1)
    table.commit(action("set-snapshot-ref", ref_name="v1", type="tag", snapshot_id=second))
    assert table.load()["refs"]["v1"] == {"type": "tag", "snapshot-id": second}
    state = everything(lake)
    as_branch = action("set-snapshot-ref", ref_name="v1", type="branch", snapshot_id=first)
    assert error_of(table.send([as_branch])) == (400, BAD)
    assert everything(lake) == state
    table.commit(action("remove-snapshot-ref", ref_name="v1"))
    assert set(table.load()["refs"]) == {"main", "v3"}
    db.execute("INSERT INTO tags.t VALUES (1, 'x')")
    assert table.load()["refs"]["v3"]["snapshot-id"] == third


def test_a_commit_sets_the_retention_of_main(server: Server, bucket: Bucket) -> None:
    table = new_table(server, bucket, "retained")
    first = table.append(1)
    wanted = {"max-snapshot-age-ms": 1000, "min-snapshots-to-keep": 3, "max-ref-age-ms": 9}
    table.commit(main_at(first, **wanted))
    assert table.load()["refs"]["main"].items() >= wanted.items()


def test_a_commit_rolls_main_back_to_an_older_snapshot(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "rolled")
    first = table.append(1, tag="a")
    table.append(10, tag="b")
    # rows go from a file of the first, and small ones come
    db.execute("DELETE FROM rolled.t WHERE i = 1; INSERT INTO rolled.t VALUES (77, 'small')")
    table.load()
    at_last, head = table.state["current-snapshot-id"], lake.snapshots()[-1][0]
    last = [(2, "a"), (3, "a"), *rows(10, tag="b"), (77, "small")]
    assert in_duckdb(lake, db, "rolled") == last
    kept = ids(table.state)
    table.commit(main_at(first))
    assert table.state["current-snapshot-id"] == first
    # what was main in between is known still, and no snapshot is added
    assert ids(table.state) == kept
    assert table.state["snapshot-log"][-1]["snapshot-id"] == first
    assert load(server, schema="rolled") == table.state
    assert in_duckdb(lake, db, "rolled") == rows(1, tag="a")
    theirs = catalog(lake.settings, server).load_table("rolled.t")
    assert loads.rows(theirs.scan().to_arrow()) == rows(1, tag="a")
    assert loads.rows(theirs.scan(snapshot_id=at_last).to_arrow()) == loads.in_order(last)
    travelled = db.execute(f"SELECT * FROM rolled.t AT (VERSION => {head}) ORDER BY i").fetchall()
    assert travelled == last
    # both go on from there
    table.append(20, tag="c")
    assert table.snapshot()["parent-snapshot-id"] == first
    assert in_duckdb(lake, db, "rolled") == [*rows(1, tag="a"), *rows(20, tag="c")]
    db.execute("INSERT INTO rolled.t VALUES (88, 'd')")
    table.load()
    wanted = [*rows(1, tag="a"), *rows(20, tag="c"), (88, "d")]
    assert in_duckdb(lake, db, "rolled") == wanted
    assert loads.rows(catalog(lake.settings, server).load_table("rolled.t").scan().to_arrow()) == loads.in_order(wanted)
    # forwards, to what lay after
    table.commit(main_at(at_last))
    assert in_duckdb(lake, db, "rolled") == last


def test_removing_the_main_ref_empties_the_table(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "emptied")
    first = table.append(1)
    db.execute("INSERT INTO emptied.t VALUES (5, 'small')")
    table.load()
    table.commit(action("remove-snapshot-ref", ref_name="main"))
    assert "current-snapshot-id" not in table.state or table.state["current-snapshot-id"] in (None, -1)
    assert first in ids(table.state)
    assert in_duckdb(lake, db, "emptied") == []
    table.load()
    table.append(30)
    assert in_duckdb(lake, db, "emptied") == rows(30)


def test_remove_snapshots_removes_older_snapshots_with_their_tags_but_not_the_current_one(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "expires")
    first = table.append(1)
    at_first = lake.snapshots()[-1][0]
    second, third = table.append(10), table.append(20)
    table.commit(action("set-snapshot-ref", ref_name="old", type="tag", snapshot_id=second))
    before = everything(lake)
    assert error_of(table.send([action("remove-snapshots", snapshot_ids=[third])])) == (400, BAD)
    assert everything(lake) == before
    table.commit(action("remove-snapshots", snapshot_ids=[first, second]))
    assert ids(load(server, schema="expires")) == [third]
    assert set(table.state["refs"]) == {"main"}
    assert db.execute(f"SELECT * FROM expires.t AT (VERSION => {at_first}) ORDER BY i").fetchall() == rows(1)
    wanted = [*rows(1), *rows(10), *rows(20)]
    assert in_duckdb(lake, db, "expires") == wanted
    assert loads.rows(catalog(lake.settings, server).load_table("expires.t").scan().to_arrow()) == loads.in_order(
        wanted
    )
    # a server that has not seen the table says the same
    table.append(30)
    assert ids(table.load()) == [third, table.current]


def test_a_table_is_upgraded_to_format_version_3_and_never_downgraded(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "upgraded")
    first = table.append(1)
    table.commit(action("upgrade-format-version", format_version=3))
    assert table.version == 3
    assert table.state["next-row-id"] == 3
    assert load(server, schema="upgraded") == table.state
    before = everything(lake)
    down = action("upgrade-format-version", format_version=2)
    assert error_of(table.send([down])) == (400, BAD)
    # a snapshot of version 3 says where its rows begin
    bare = [
        u if "snapshot" not in u else {**u, "snapshot": dict(u["snapshot"])} for u in table.append_updates([], 2**40)
    ]
    del bare[0]["snapshot"]["first-row-id"]
    assert error_of(table.send(bare)) == (400, BAD)
    assert everything(lake) == before
    table.append(10)
    assert table.state["next-row-id"] == 6
    assert in_duckdb(lake, db, "upgraded") == [*rows(1), *rows(10)]
    assert first in ids(table.state)


def test_h43_a_commit_sent_twice_is_applied_once(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "twice")
    table.append(1)
    asked = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": table.current}]
    updates = table.append_updates([table.file(10)], new_snapshot_id())
    first = table.send(updates, asked)
    assert first.status_code == 200
    before = everything(lake)
    second = table.send(updates, asked)
    assert second.status_code == 200
    assert second.json() == first.json()
    assert everything(lake) == before
    assert in_duckdb(lake, db, "twice") == [*rows(1), *rows(10)]
    # and after others have committed
    table.load()
    table.append(20)
    db.execute("INSERT INTO twice.t VALUES (99, 'x')")
    before = everything(lake)
    assert table.send(updates, asked).status_code == 200
    assert everything(lake) == before
    assert in_duckdb(lake, db, "twice") == [*rows(1), *rows(10), *rows(20), (99, "x")]
    # the same files under another snapshot are others' files
    table.load()
    again = [
        {**u, "snapshot": {**u["snapshot"], "snapshot-id": 2**41}} if "snapshot" in u else {**u, "snapshot-id": 2**41}
        for u in updates
    ]
    before = everything(lake)
    assert error_of(table.send(again))[0] in {400, 409}
    assert everything(lake) == before


def test_a_snapshot_id_in_the_range_of_ducklake_is_refused(server: Server, lake: TestLake, bucket: Bucket) -> None:
    table = new_table(server, bucket, "small")
    updates = table.append_updates([table.file(1)], 17)
    before = everything(lake)
    assert error_of(table.send(updates)) == (400, BAD)
    assert everything(lake) == before


def test_h46_snapshot_timestamps_never_decrease(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    """Whatever a client thinks that the time is."""
    table = new_table(server, bucket, "timely")
    for timestamp in (0, int(time.time() * 1000) + 10**9):
        snapshot_id = new_snapshot_id()
        add, main = table.append_updates([table.file(1)], snapshot_id)
        add["snapshot"]["timestamp-ms"] = timestamp
        table.commit(add, main)
    table.append(50)
    times = [s["timestamp-ms"] for s in table.state["snapshots"]]
    assert times == sorted(times)
    assert abs(times[-1] / 1000 - time.time()) < 600
    stored = lake.sql("SELECT snapshot_time FROM ducklake_snapshot ORDER BY snapshot_id")
    assert stored == sorted(stored)


def test_an_append_does_not_read_its_data_files(server: Server, lake: TestLake, bucket: Bucket) -> None:
    """An append does not open its files: what it says of them is believed."""
    table = new_table(server, bucket, "absent")
    file = table.file(1)
    bucket.delete(file.file_path)
    table.commit(*table.append_updates([file], new_snapshot_id()))
    assert lake.sql("SELECT record_count FROM ducklake_data_file WHERE path = %s", file.file_path) == [(3,)]


def test_an_empty_append_is_a_snapshot(
    server: Server, lake: TestLake, bucket: Bucket, db: duckdb.DuckDBPyConnection
) -> None:
    table = new_table(server, bucket, "nothing")
    snapshot_id = new_snapshot_id()
    listed = table.list_of([], snapshot_id)
    table.commit(*shown(table.snapshot_json(listed, snapshot_id)))
    assert table.load()["current-snapshot-id"] == snapshot_id
    assert in_duckdb(lake, db, "nothing") == []
    # and one with a manifest of nothing
    other = new_snapshot_id()
    empty = table.manifest([], other)
    table.commit(*shown(table.snapshot_json(table.list_of([empty], other), other)))
    assert ids(table.load()) == [snapshot_id, other]
    entry = Entry(ADDED, None, None, None, table.file(1))
    third = new_snapshot_id()
    table.commit(*shown(table.snapshot_json(table.list_of([table.manifest([entry], third)], third), third)))
    assert in_duckdb(lake, db, "nothing") == rows(1)


def test_a_commit_after_a_rollback_builds_on_the_state_after_a_flush(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    """The snapshot was first shown with files of inlined rows; a flush has put the rows elsewhere since."""
    db.execute("CREATE SCHEMA put_back; CREATE TABLE put_back.t(i INTEGER, s VARCHAR)")
    db.execute("INSERT INTO put_back.t VALUES (1, 'w'), (2, 'w')")
    raw = Raw(lake, server, "t", "put_back")
    first = raw.base["current-snapshot-id"]
    db.execute("INSERT INTO put_back.t VALUES (3, 'w')")
    raw.refresh()
    db.execute("CALL ducklake_flush_inlined_data('lake', schema_name => 'put_back', table_name => 't')")
    back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": first}
    url = f"{server.path('put_back')}/tables/t"
    assert server.http.post(url, json={"requirements": [], "updates": [back]}).status_code == 200
    assert db.execute("SELECT i FROM put_back.t ORDER BY i").fetchall() == [(1,), (2,)]
    assert raw.refresh().base["current-snapshot-id"] == first
    answer = raw.commit("overwrite", remove=raw.paths(), add=[raw.data_file(written(2))])
    assert answer.status_code == 200, answer.text
    assert db.execute("SELECT i FROM put_back.t").fetchall() == [(2,)]
    assert db.execute("SELECT count(*), count(DISTINCT rowid) FROM put_back.t").fetchall() == [(1, 1)]
