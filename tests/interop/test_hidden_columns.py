"""A table with columns that Iceberg cannot hold, shown without them on request (`mergus.unsupported-columns=hide`).

Every engine reads DuckDB's rows over the other columns, and no client's commit takes a hidden value away."""

import asyncio
import json
from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pytest

from mergus.catalog import table_properties
from mergus.errors import BadRequest
from tests.support import loads
from tests.support.lakes import Row, TestLake
from tests.support.readers import FLUSH, MERGE, REWRITE, Agreed, Answer, Served, Story
from tests.support.servers import error_of
from tests.support.writers import Raw, rows

BY_TURNS = True

HIDE: dict[str, str | None] = {"mergus.unsupported-columns": "hide"}
TYPES = {
    "UINTEGER": "4294967295",
    "UBIGINT": "18446744073709551615",
    "HUGEINT": "-36893488147419103232",
    "UHUGEINT": "36893488147419103232",
    "INTERVAL": "INTERVAL 1 DAY",
    "TIMETZ": "'01:02:03+05'",
    "TIMESTAMP_MS": "'2020-01-01 00:00:00.123'",
}


def set_properties(lake: TestLake, schema: str, changes: dict[str, str | None], table: str = "t") -> None:
    asyncio.run(table_properties.change(lake.settings, schema, table, changes))


def agree(story: Story, hidden: str) -> Agreed:
    """At every snapshot, over the columns that are not hidden."""

    def over_the_others(at: int) -> Answer:
        columns = f"* EXCLUDE ({hidden})" if hidden else "*"
        return story.ask(f"SELECT {columns} FROM {{lake}}.t AT (VERSION => {at})")

    return story.agree(oracle=over_the_others)


def hidden_columns(story: Story) -> dict[str, str]:
    return json.loads(story.load()["properties"]["mergus.hidden-columns"])


def test_a_table_is_shown_without_its_columns_of_unsupported_types(served: Served) -> None:
    """In files and inlined, with deletes, flushed, merged and rewritten."""
    columns = ", ".join(f"odd{n} {kind}" for n, kind in enumerate(TYPES))
    odd = ", ".join(TYPES.values())
    story = served.story("hidden", tables=())
    story.run(f"CREATE TABLE t(i INTEGER, {columns}, l STRUCT(inner_ UBIGINT, x INTEGER)[], s VARCHAR)")
    refused = served.warm.server.http.get(f"{served.warm.server.path('hidden')}/tables/t")
    assert error_of(refused) == (406, "UnsupportedOperationException")
    assert "mergus.unsupported-columns=hide" in refused.json()["error"]["message"]
    set_properties(story.lake, "hidden", HIDE)
    story.tables = ("t",)
    values = f"range, {odd}, [{{'inner_': 1, 'x': 2}}], 'x'"
    story.run(
        f"INSERT INTO t SELECT {values} FROM range(3)",
        f"INSERT INTO t SELECT {values} FROM range(100, 140)",
        "INSERT INTO t(i) VALUES (200)",
        "DELETE FROM t WHERE i IN (1, 101)",
        f"INSERT INTO t SELECT {values} FROM range(300, 340)",
        FLUSH,
        MERGE,
        "UPDATE t SET s = 'y' WHERE i = 102",
        REWRITE,
    )
    hidden = [*(f"odd{n}" for n in range(len(TYPES))), "l"]
    found = agree(story, ", ".join(hidden))
    assert found.now.columns == (("i", "int"), ("s", "text"))
    assert list(hidden_columns(story)) == hidden
    assert hidden_columns(story)["odd0"] == "uint32"
    assert "mergus.unsupported-columns" not in story.load()["properties"]


def test_partitioning_and_sorting_are_shown_without_hidden_columns(served: Served) -> None:
    story = served.story("hidden_keys", tables=())
    story.run("CREATE TABLE t(i INTEGER, u UINTEGER, s VARCHAR)")
    set_properties(story.lake, "hidden_keys", HIDE)
    story.tables = ("t",)
    story.run(
        "ALTER TABLE t SET PARTITIONED BY (u, s)",
        "ALTER TABLE t SET SORTED BY (i, u)",
        "INSERT INTO t SELECT range, range % 2 + 4294967290, 'abc'[range % 3 + 1] FROM range(40)",
        "ALTER TABLE t SET PARTITIONED BY (u)",
        "INSERT INTO t SELECT range + 100, range % 2, 'z' FROM range(40)",
        "ALTER TABLE t SET SORTED BY (u, i)",
    )
    found = agree(story, "u")
    specs = {s["spec-id"]: [f["name"] for f in s["fields"]] for s in found.metadata["partition-specs"]}
    assert ["s"] in specs.values()
    assert specs[found.metadata["default-spec-id"]] == []
    assert found.metadata["default-sort-order-id"] == 0


def test_a_hidden_column_appears_once_it_has_a_type_that_iceberg_has(served: Served) -> None:
    """With the values that were inlined before; and one disappears that gets a type that Iceberg does not have."""
    story = served.story("uncovered", tables=())
    story.run("CREATE TABLE t(i INTEGER, u UINTEGER, v UTINYINT)")
    set_properties(story.lake, "uncovered", HIDE)
    story.tables = ("t",)
    story.run("INSERT INTO t VALUES (1, 4294967295, 7), (2, NULL, 8)")
    assert hidden_columns(story) == {"u": "uint32"}
    story.run("ALTER TABLE t ALTER u SET DATA TYPE BIGINT")
    assert "mergus.hidden-columns" not in story.load()["properties"]
    for clients in (served.warm, served.cold):
        assert clients.with_pyiceberg("uncovered", "t").values() == [(1, 4294967295, 7), (2, None, 8)]
    story.run("INSERT INTO t VALUES (3, 3, 3)", "ALTER TABLE t ALTER v SET DATA TYPE UINTEGER")
    assert hidden_columns(story) == {"v": "uint32"}
    story.run("INSERT INTO t VALUES (4, 4, 4294967295)", "ALTER TABLE t RENAME v TO w")
    for clients in (served.warm, served.cold):
        assert clients.with_pyiceberg("uncovered", "t").values() == [(1, 4294967295), (2, None), (3, 3), (4, 4)]
    story.run("ALTER TABLE t DROP COLUMN w", "INSERT INTO t VALUES (5, 5)")
    assert served.warm.with_spark("uncovered", "t").values("i") == [1, 2, 3, 4, 5]


def test_a_retyped_hidden_column_is_refused_while_old_files_would_be_misread(served: Served) -> None:
    story = served.story("uncovered_files", tables=())
    story.run("CREATE TABLE t(i INTEGER, u UINTEGER)", "INSERT INTO t SELECT range, 4294967295 FROM range(20)")
    set_properties(story.lake, "uncovered_files", HIDE)
    assert served.warm.with_pyiceberg("uncovered_files", "t").values("i")[:2] == [0, 1]
    story.run("ALTER TABLE t ALTER u SET DATA TYPE BIGINT")
    answer = served.warm.server.http.get(f"{served.warm.server.path('uncovered_files')}/tables/t")
    assert error_of(answer) == (406, "UnsupportedOperationException")
    assert "int32/uint32" in answer.json()["error"]["message"]


def test_a_table_with_unsupported_columns_is_refused_once_the_hide_property_is_removed(served: Served) -> None:
    story = served.story("unhidden", tables=())
    story.run("CREATE TABLE t(i INTEGER, u UINTEGER)", "INSERT INTO t VALUES (1, 1)")
    set_properties(story.lake, "unhidden", HIDE)
    assert served.warm.with_pyiceberg("unhidden", "t").values() == [1]
    set_properties(story.lake, "unhidden", {"mergus.unsupported-columns": None})
    answer = served.warm.server.http.get(f"{served.warm.server.path('unhidden')}/tables/t")
    assert error_of(answer) == (406, "UnsupportedOperationException")


def test_a_table_with_only_hidden_columns_is_refused(served: Served) -> None:
    story = served.story("all_hidden", tables=())
    story.run("CREATE TABLE t(u UINTEGER)")
    set_properties(story.lake, "all_hidden", HIDE)
    answer = served.warm.server.http.get(f"{served.warm.server.path('all_hidden')}/tables/t")
    assert error_of(answer) == (406, "UnsupportedOperationException")
    with pytest.raises(BadRequest, match="hide or refuse"):
        set_properties(story.lake, "all_hidden", {"mergus.unsupported-columns": "omit"})
    with pytest.raises(BadRequest, match="read-only"):
        set_properties(story.lake, "all_hidden", {"mergus.hidden-columns": "x"})


@pytest.fixture
def made(served: Served) -> Story:
    """A table t(i, s) with a hidden column u between them, one file of 20 rows and one inlined row."""
    schema = f"w_{uuid4().hex[:8]}"
    story = served.story(schema, tables=())
    story.run("CREATE TABLE t(i INTEGER, u UINTEGER, s VARCHAR)")
    set_properties(story.lake, schema, HIDE)
    story.tables = ("t",)
    story.run("INSERT INTO t SELECT range, range + 4000000000, 'x' FROM range(20)", "INSERT INTO t VALUES (90, 9, 'x')")
    return story


@pytest.fixture
def written(made: Story) -> Iterator[Story]:
    """The same, and at the end every engine agrees with DuckDB."""
    yield made
    agree(made, "u")


def raw(story: Story) -> Raw:
    return Raw(story.lake, story.served.warm.server, "t", story.schema)


def in_duckdb(story: Story, query: str) -> list[Row]:
    with story.fresh() as lake:
        return story.db.execute(query.replace("{t}", f"{lake}.t")).fetchall()


def test_clients_append_and_delete_rows_and_keep_hidden_values(written: Story) -> None:
    client = raw(written)
    answer = client.commit("append", add=[client.data_file(rows(50, 51))])
    assert answer.status_code == 200, answer.text
    deleted = client.deletes(client.places(lambda row: row["i"] in {3, 50, 90}))
    answer = client.commit("delete", deletes=deleted)
    assert answer.status_code == 200, answer.text
    wanted = [(i, i + 4000000000) for i in range(20) if i != 3] + [(51, None)]
    assert in_duckdb(written, "SELECT i, u FROM {t} ORDER BY i") == wanted
    assert in_duckdb(written, "SELECT i FROM {t} WHERE u IS NULL") == [(51,)]
    assert in_duckdb(written, "SELECT max(u), count(u) FROM {t}") == [(4000000019, 19)]


def test_commits_that_rewrite_rows_of_a_table_with_hidden_columns_are_refused(written: Story) -> None:
    client = raw(written)
    for operation, changes in {
        "overwrite": {"remove": client.paths()[:1], "add": [client.data_file(rows(1))]},
        "replace": {"remove": client.paths(), "add": [client.data_file(rows(*range(20), 90))]},
        "delete": {
            "deletes": client.deletes(client.places(lambda row: row["i"] == 4)),
            "add": [client.data_file(rows(4, text="updated"))],
        },
    }.items():
        answer = client.commit(operation, **changes)
        assert error_of(answer) == (406, "UnsupportedOperationException"), operation
        message = answer.json()["error"]["message"]
        assert "u (uint32)" in message
        assert "merge-on-read" in message
    assert in_duckdb(written, "SELECT count(*), count(u) FROM {t}") == [(21, 21)]


def test_spark_deletes_and_appends_but_does_not_update(written: Story) -> None:
    clients = written.served.warm
    name = f"{clients.spark}.{written.schema}.t"
    modes = ", ".join(f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update", "merge"))
    clients.ask_spark(f"ALTER TABLE {name} SET TBLPROPERTIES ({modes})")
    clients.ask_spark(f"DELETE FROM {name} WHERE i = 5")
    clients.ask_spark(f"INSERT INTO {name} VALUES (60, 'spark')")
    with pytest.raises(Exception, match="hidden columns"):
        clients.ask_spark(f"UPDATE {name} SET s = 'z' WHERE i = 6")
    clients.ask_spark(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'copy-on-write')")
    with pytest.raises(Exception, match="hidden columns"):
        clients.ask_spark(f"DELETE FROM {name} WHERE i = 7")
    assert in_duckdb(written, "SELECT i, u, s FROM {t} WHERE i IN (5, 6, 7, 60) ORDER BY i") == [
        (6, 4000000006, "x"),
        (7, 4000000007, "x"),
        (60, None, "spark"),
    ]


def test_a_column_with_the_name_of_a_hidden_column_is_refused(written: Story) -> None:
    clients = written.served.warm
    name = f"{clients.spark}.{written.schema}.t"
    for change in ("ADD COLUMN u BIGINT", "ADD COLUMN U BIGINT", "RENAME COLUMN s TO u"):
        with pytest.raises(Exception, match="hidden column u"):
            clients.ask_spark(f"ALTER TABLE {name} {change}")
    clients.ask_spark(f"ALTER TABLE {name} ADD COLUMN v BIGINT")
    clients.ask_spark(f"ALTER TABLE {name} RENAME COLUMN s TO text")
    clients.ask_spark(f"ALTER TABLE {name} DROP COLUMN text")
    written.run("INSERT INTO t VALUES (91, 91, 91)")
    assert in_duckdb(written, "SELECT * FROM {t} WHERE i > 80 ORDER BY i") == [(90, 9, None), (91, 91, 91)]
    last = max(f["id"] for f in written.load()["schemas"][-1]["fields"])
    assert last == 4
    again = raw(written)
    schema = next(s for s in again.base["schemas"] if s["schema-id"] == again.base["current-schema-id"])
    taken = {"id": 2, "name": "other", "type": "long", "required": False}
    update = {"action": "add-schema", "schema": {**schema, "fields": [*schema["fields"], taken]}, "last-column-id": 4}
    answer = again.send([update, {"action": "set-current-schema", "schema-id": -1}])
    assert answer.status_code == 400, answer.text


def test_appends_are_refused_if_a_hidden_column_is_required_or_its_defaults_differ(served: Served) -> None:
    story = served.story("needed", tables=())
    for kind in ("UINTEGER NOT NULL", "UINTEGER DEFAULT 7"):
        story.run(f"CREATE OR REPLACE TABLE t(i INTEGER, u {kind}, s VARCHAR)")
        if kind.endswith("7"):
            story.run("ALTER TABLE t ALTER u SET DEFAULT 9")
        set_properties(story.lake, "needed", HIDE)
        client = raw(story)
        answer = client.commit("append", add=[client.data_file(rows(1))])
        assert error_of(answer) == (406, "UnsupportedOperationException"), kind
        assert "hidden column u (uint32)" in answer.json()["error"]["message"]
    story.run("ALTER TABLE t ALTER u SET DEFAULT 7")
    client = raw(story)
    assert client.commit("append", add=[client.data_file(rows(1))]).status_code == 200
    story.run("INSERT INTO t(i) VALUES (2)")
    assert in_duckdb(story, "SELECT i, u FROM {t} ORDER BY i") == [(1, 7), (2, 7)]


def test_clients_do_not_unhide_columns(made: Story) -> None:
    client = raw(made)
    for update in (
        {"action": "set-properties", "updates": {"mergus.unsupported-columns": "refuse"}},
        {"action": "set-properties", "updates": {"mergus.hidden-columns": "{}"}},
    ):
        assert client.send([update], []).status_code == 400, update
    client.send([{"action": "remove-properties", "removals": ["mergus.unsupported-columns"]}], [])
    assert hidden_columns(made) == {"u": "uint32"}


def test_rollback_restores_hidden_values(made: Story) -> None:
    client = raw(made)
    before = client.current
    answer = client.commit("delete", deletes=client.deletes(client.places(lambda row: row["i"] in {3, 90})))
    assert answer.status_code == 200, answer.text
    ref = {"ref-name": "main", "type": "branch", "snapshot-id": before}
    answer = client.send([{"action": "set-snapshot-ref", **ref}])
    assert answer.status_code == 200, answer.text
    assert in_duckdb(made, "SELECT i, u FROM {t} WHERE i IN (3, 90) ORDER BY i") == [(3, 4000000003), (90, 9)]
    assert loads.load(client.server, "t", made.schema)["current-snapshot-id"] == before


def test_pyiceberg_appends_to_a_table_with_hidden_columns_but_cannot_overwrite(written: Story) -> None:
    if written.served.format_version == 2:
        table = written.served.warm.table(written.schema, "t")
        table.append(pa.table({"i": pa.array([70], pa.int32()), "s": ["p"]}))
        with pytest.raises(Exception, match="hidden columns"):
            table.refresh().overwrite(rows(1))
    assert in_duckdb(written, "SELECT count(*) FROM {t} WHERE u IS NULL") == [
        (1 if written.served.format_version == 2 else 0,)
    ]


@pytest.mark.parametrize("content", ["(i INT, v STRING) USING iceberg", "USING iceberg AS SELECT 1 AS i, 'v' AS v"])
def test_a_table_with_hidden_columns_is_not_replaced(written: Story, content: str) -> None:
    """Its rows would go with values that the client has never seen."""
    clients = written.served.warm
    name = f"{clients.spark}.{written.schema}.t"
    with pytest.raises(Exception, match=r"replaces its content would lose: u \(uint32\). Drop these columns"):
        clients.ask_spark(f"CREATE OR REPLACE TABLE {name} {content}")
    assert in_duckdb(written, "SELECT count(*), count(u) FROM {t}") == [(21, 21)]


def test_a_table_is_replaced_once_its_hidden_columns_are_dropped(made: Story) -> None:
    """As the message says. Clients send all properties of the table, those that they cannot set among them."""
    made.run("ALTER TABLE t DROP COLUMN u")
    clients = made.served.warm
    clients.ask_spark(
        f"CREATE OR REPLACE TABLE {clients.spark}.{made.schema}.t USING iceberg AS SELECT 1 AS i, 'v' AS v"
    )
    assert in_duckdb(made, "FROM {t}") == [(1, "v")]
    assert clients.table(made.schema, "t").scan().to_arrow().to_pylist() == [{"i": 1, "v": "v"}]
