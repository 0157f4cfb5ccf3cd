"""Requests with an Idempotency-Key: done once, answered alike as often as they are sent."""

import gzip
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import httpx
import psycopg
import pytest
from psycopg import sql

from tests.support import commits, servers
from tests.support.commits import HandTable, in_duckdb, new_snapshot_id, new_table, rows
from tests.support.keys import HEADER, new_key
from tests.support.lakes import TestLake
from tests.support.listeners import eventually
from tests.support.loads import Bucket, load
from tests.support.servers import Server, error_of
from tests.support.waits import lock_waiters, wait_for_requests

Json = dict[str, Any]
AT_ONCE = 8
# An answer of a table is kept up to this size.
LARGEST_KEPT = 64 * 1024


@dataclass
class Mutation:
    """A request that changes the lake, and would be answered otherwise if it were done twice."""

    method: str
    path: str
    body: Json | None = None
    params: dict[str, str] = field(default_factory=dict[str, str])

    def send(self, server: Server, key: str | None = None, **headers: str) -> httpx.Response:
        given = {**headers, **({} if key is None else {HEADER: key})}
        return server.http.request(self.method, self.path, json=self.body, params=self.params, headers=given)


def the_table(server: Server, lake: TestLake, name: str) -> HandTable:
    return new_table(server, Bucket(lake.settings), name)


def create_namespace(server: Server, lake: TestLake, name: str) -> Mutation:
    return Mutation("POST", server.namespaces, {"namespace": [name], "properties": {"a": "1"}})


def drop_namespace(server: Server, lake: TestLake, name: str) -> Mutation:
    assert server.create(name).status_code == 200
    return Mutation("DELETE", server.path(name))


def update_properties(server: Server, lake: TestLake, name: str) -> Mutation:
    assert server.create(name, a="1", b="2").status_code == 200
    return Mutation("POST", f"{server.path(name)}/properties", {"removals": ["a"], "updates": {"c": "3"}})


def create_table(server: Server, lake: TestLake, name: str) -> Mutation:
    assert server.create(name).status_code == 200
    return Mutation("POST", f"{server.path(name)}/tables", {"name": "t", "schema": commits.SCHEMA})


def stage_table(server: Server, lake: TestLake, name: str) -> Mutation:
    made = create_table(server, lake, name)
    return Mutation(made.method, made.path, {**(made.body or {}), "stage-create": True})


def update_table(server: Server, lake: TestLake, name: str) -> Mutation:
    """Without a snapshot, which would be known again by itself (H43); a second such commit would fail."""
    table = the_table(server, lake, name)
    requirements = [{"type": "assert-current-schema-id", "current-schema-id": 0}]
    fields = [*commits.FIELDS, commits.field_of(3, "more")]
    schema = {"type": "struct", "schema-id": 1, "fields": fields}
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    return Mutation("POST", table.url, {"requirements": requirements, "updates": updates})


def append(server: Server, lake: TestLake, name: str) -> Mutation:
    table = the_table(server, lake, name)
    requirements = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}]
    updates = table.append_updates([table.file(1)], new_snapshot_id())
    return Mutation("POST", table.url, {"requirements": requirements, "updates": updates})


def drop_table(server: Server, lake: TestLake, name: str) -> Mutation:
    return Mutation("DELETE", the_table(server, lake, name).url, params={"purgeRequested": "false"})


def rename_table(server: Server, lake: TestLake, name: str) -> Mutation:
    the_table(server, lake, name)
    source, target = ({"namespace": [name], "name": table} for table in ("t", "u"))
    return Mutation("POST", "/v1/lake/tables/rename", {"source": source, "destination": target})


def commit_transaction(server: Server, lake: TestLake, name: str) -> Mutation:
    one = update_table(server, lake, name)
    change = {**(one.body or {}), "identifier": {"namespace": [name], "name": "t"}}
    return Mutation("POST", "/v1/lake/transactions/commit", {"table-changes": [change]})


MUTATIONS: list[tuple[Callable[[Server, TestLake, str], Mutation], int]] = [
    (create_namespace, 200),
    (drop_namespace, 204),
    (update_properties, 200),
    (create_table, 200),
    (stage_table, 200),
    (update_table, 200),
    (append, 200),
    (drop_table, 204),
    (rename_table, 204),
    (commit_transaction, 204),
]
every_mutation = pytest.mark.parametrize(("prepare", "status"), MUTATIONS, ids=lambda p: getattr(p, "__name__", None))


def new_name() -> str:
    return f"n{uuid4().hex[:12]}"


def essence(answer: httpx.Response) -> tuple[int, bytes, str | None, str | None]:
    headers = answer.headers
    return answer.status_code, answer.content, headers.get("content-type"), headers.get("etag")


def stored(lake: TestLake, key: str) -> list[tuple[Any, ...]]:
    return lake.sql("SELECT operation, status, body FROM request_key WHERE key = %s", key)


def content_of(lake: TestLake) -> dict[str, Any]:
    """All of the lake and of ours, but for the numbers of schemas, which they get whenever a table is shown."""
    return {k: v for k, v in commits.everything(lake).items() if not k.endswith(".table_schema")}


@contextmanager
def held_still(lake: TestLake) -> Iterator[None]:
    """Somebody else has the lock under which commits are made."""
    with psycopg.connect(lake.settings.dsn) as conn:
        conn.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(lake.settings.metadata_schema)))
        conn.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        yield
        conn.rollback()


# --- the same again


@every_mutation
def test_a_retry_with_the_same_key_replays_the_answer_and_changes_nothing(
    prepare: Callable[[Server, TestLake, str], Mutation], status: int, server: Server, lake: TestLake
) -> None:
    mutation, key = prepare(server, lake, new_name()), new_key()
    first = mutation.send(server, key)
    assert first.status_code == status, first.text
    before = content_of(lake)
    for again in (key, key.upper()):
        assert essence(mutation.send(server, again)) == essence(first)
    assert content_of(lake) == before


@every_mutation
def test_a_retry_without_the_key_gets_another_answer_unless_it_is_an_append(
    prepare: Callable[[Server, TestLake, str], Mutation], status: int, server: Server, lake: TestLake
) -> None:
    """Else the test before would show nothing. (An append is known by its snapshot: H43.)"""
    mutation = prepare(server, lake, new_name())
    first = mutation.send(server, new_key())
    assert first.status_code == status, first.text
    for key in (None, new_key()):
        again = mutation.send(server, key)
        assert (essence(again) == essence(first)) == (prepare is append)


def test_an_idempotency_key_is_known_to_every_process(server: Server, lake: TestLake, tmp_path: Path) -> None:
    mutation, key = update_properties(server, lake, new_name()), new_key()
    first = mutation.send(server, key)
    with servers.server(lake.settings, tmp_path, workers=2) as other:
        for _ in range(4):
            assert essence(mutation.send(other, key)) == essence(first)


def test_a_replayed_answer_does_not_change_with_later_changes(server: Server, lake: TestLake) -> None:
    name, key = new_name(), new_key()
    mutation = create_namespace(server, lake, name)
    first = mutation.send(server, key)
    assert server.http.delete(server.path(name)).status_code == 204
    assert essence(mutation.send(server, key)) == essence(first)
    assert server.http.head(server.path(name)).status_code == 404


def test_a_replayed_create_table_returns_the_table_after_its_drop(server: Server, lake: TestLake) -> None:
    name, key = new_name(), new_key()
    mutation = create_table(server, lake, name)
    first = mutation.send(server, key)
    assert server.http.delete(f"{mutation.path}/t").status_code == 204
    assert essence(mutation.send(server, key)) == essence(first)
    assert server.http.head(f"{mutation.path}/t").status_code == 404


def test_a_replay_is_sent_in_an_encoding_that_the_client_accepts(server: Server, lake: TestLake) -> None:
    mutation, key = append(server, lake, new_name()), new_key()
    packed = mutation.send(server, key, **{"Accept-Encoding": "gzip"})
    plain = mutation.send(server, key, **{"Accept-Encoding": "identity"})
    again = mutation.send(server, key, **{"Accept-Encoding": "gzip", "If-None-Match": packed.headers["etag"]})
    assert packed.status_code == plain.status_code == again.status_code == 200
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.headers["etag"] == again.headers["etag"] != plain.headers["etag"]
    assert packed.content == plain.content == again.content


def test_a_replayed_staged_creation_can_be_committed(server: Server, lake: TestLake) -> None:
    name, key = new_name(), new_key()
    mutation = stage_table(server, lake, name)
    promised = mutation.send(server, key).json()["metadata"]
    assert mutation.send(server, key).json()["metadata"] == promised
    body = {
        "requirements": [{"type": "assert-create"}],
        "updates": [
            {"action": "assign-uuid", "uuid": promised["table-uuid"]},
            {"action": "add-schema", "schema": promised["schemas"][0]},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": promised["partition-specs"][0]},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": promised["sort-orders"][0]},
            {"action": "set-default-sort-order", "sort-order-id": -1},
        ],
    }
    commit = Mutation("POST", f"{mutation.path}/t", body)
    own = new_key()
    first = commit.send(server, own)
    assert first.status_code == 200, first.text
    assert first.json()["metadata"]["table-uuid"] == promised["table-uuid"]
    assert essence(commit.send(server, own)) == essence(first)


def test_an_answer_too_large_to_store_is_rendered_again_on_replay(server: Server, lake: TestLake) -> None:
    """Iceberg has it so: it may show a newer state. When there is none to show, nothing is said to have failed."""
    table, key = the_table(server, lake, new_name()), new_key()
    update = {"action": "set-properties", "updates": {"large": "x" * LARGEST_KEPT}}
    mutation = Mutation("POST", table.url, {"requirements": [], "updates": [update]})
    first = mutation.send(server, key)
    assert first.status_code == 200, first.text
    assert stored(lake, key) == [("updateTable", 200, None)]
    assert essence(mutation.send(server, key)) == essence(first)
    table.commit({"action": "set-properties", "updates": {"newer": "yes"}})
    replayed = mutation.send(server, key)
    assert replayed.status_code == 200
    properties = replayed.json()["metadata"]["properties"]
    assert properties["newer"] == "yes"
    assert len(properties["large"]) == LARGEST_KEPT
    assert server.http.delete(table.url).status_code == 204
    assert error_of(mutation.send(server, key)) == (500, "CommitStateUnknownException")


# --- something else


def test_an_idempotency_key_with_another_payload_is_refused(server: Server, lake: TestLake) -> None:
    name, key = new_name(), new_key()
    assert create_namespace(server, lake, name).send(server, key).status_code == 200
    before = content_of(lake)
    for body in ({"namespace": [new_name()]}, {"namespace": [name], "properties": {"a": "2"}}):
        refused = Mutation("POST", server.namespaces, body).send(server, key)
        assert error_of(refused) == (409, "ConflictException")
        assert "another payload" in refused.json()["error"]["message"]
    assert content_of(lake) == before


def test_an_idempotency_key_with_another_path_or_query_is_refused(server: Server, lake: TestLake) -> None:
    drop, other, key = drop_table(server, lake, new_name()), drop_table(server, lake, new_name()), new_key()
    assert drop.send(server, key).status_code == 204
    with_purge = Mutation(drop.method, drop.path, params={"purgeRequested": "true"})
    for refused in (other.send(server, key), with_purge.send(server, key)):
        assert error_of(refused) == (409, "ConflictException")
        assert "another payload" in refused.json()["error"]["message"]
    assert server.http.head(other.path).status_code == 204


def test_an_idempotency_key_with_another_operation_is_refused(server: Server, lake: TestLake) -> None:
    drop, key = drop_namespace(server, lake, new_name()), new_key()
    assert create_namespace(server, lake, new_name()).send(server, key).status_code == 200
    refused = drop.send(server, key)
    assert error_of(refused) == (409, "ConflictException")
    assert "another operation" in refused.json()["error"]["message"]
    assert server.http.head(drop.path).status_code == 204


def test_an_idempotency_key_of_another_principal_is_refused(server: Server, lake: TestLake) -> None:
    """Everybody is the same to this server; so the row is made somebody else's."""
    mutation, key = create_namespace(server, lake, new_name()), new_key()
    assert mutation.send(server, key).status_code == 200
    lake.sql("UPDATE request_key SET principal = 'somebody' WHERE key = %s", key)
    refused = mutation.send(server, key)
    assert error_of(refused) == (409, "ConflictException")
    assert "another principal" in refused.json()["error"]["message"]


# --- refusals and failures


def test_a_replayed_refusal_stays_a_refusal(server: Server, lake: TestLake) -> None:
    name, key = new_name(), new_key()
    assert server.create(name).status_code == 200
    drop = Mutation("DELETE", f"{server.path(name)}/tables/t")
    first = drop.send(server, key)
    assert error_of(first) == (404, "NoSuchTableException")
    the_table(server, lake, name)
    assert essence(drop.send(server, key)) == essence(first)
    assert server.http.head(drop.path).status_code == 204
    assert drop.send(server, new_key()).status_code == 204


@pytest.mark.parametrize("kind", ["AlreadyExistsException", "CommitFailedException", "BadRequestException"])
def test_refusals_of_every_kind_are_replayed_for_their_key(kind: str, server: Server, lake: TestLake) -> None:
    table, key = the_table(server, lake, new_name()), new_key()
    mutation = {
        "AlreadyExistsException": Mutation("POST", server.namespaces, {"namespace": [table.schema]}),
        "CommitFailedException": Mutation(
            "POST", table.url, {"requirements": [{"type": "assert-table-uuid", "uuid": str(uuid4())}], "updates": []}
        ),
        "BadRequestException": Mutation(
            "POST", table.url, {"requirements": [], "updates": [{"action": "set-current-schema", "schema-id": 77}]}
        ),
    }[kind]
    first = mutation.send(server, key)
    assert error_of(first)[1] == kind
    assert [row[1] for row in stored(lake, key)] == [first.status_code]
    # whatever becomes of the table
    assert server.http.delete(table.url).status_code == 204
    assert server.http.delete(server.path(table.schema)).status_code == 204
    assert essence(mutation.send(server, key)) == essence(first)


def test_a_server_failure_is_not_stored_and_the_key_can_be_retried(
    server: Server, lake: TestLake, tmp_path: Path
) -> None:
    mutation, key = update_properties(server, lake, new_name()), new_key()
    with servers.server(lake.settings, tmp_path, lock_timeout=0.5) as impatient:
        with held_still(lake):
            failed = mutation.send(impatient, key)
            assert error_of(failed) == (503, "ServiceUnavailableException")
            assert int(failed.headers["retry-after"]) > 0
        assert stored(lake, key) == []
        done = mutation.send(impatient, key)
    assert done.status_code == 200
    assert done.json() == {"updated": ["c"], "removed": ["a"], "missing": []}
    assert essence(mutation.send(server, key)) == essence(done)


# --- keys that are none


@pytest.mark.parametrize(
    "key",
    [
        "",
        "x",
        "0",
        "017f22e2-79b0-4cc3-98c4-dc0c0c07398f",
        "017f22e2-79b0-7cc3-18c4-dc0c0c07398f",
        "017f22e279b07cc398c4dc0c0c07398f",
        "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398f0",
    ],
    ids=["empty", "letter", "digit", "version 4", "other variant", "no dashes", "braces", "no digit", "too long"],
)
def test_a_malformed_idempotency_key_is_refused_without_any_change(key: str, server: Server, lake: TestLake) -> None:
    name = new_name()
    answer = create_namespace(server, lake, name).send(server, key)
    assert error_of(answer) == (400, "BadRequestException")
    assert "UUID of version 7" in answer.json()["error"]["message"]
    assert server.http.head(server.path(name)).status_code == 404


def test_a_request_with_two_idempotency_keys_is_refused(server: Server, lake: TestLake) -> None:
    name = new_name()
    headers = [(HEADER, new_key()), (HEADER, new_key())]
    answer = server.http.post(server.namespaces, json={"namespace": [name]}, headers=headers)
    assert error_of(answer) == (400, "BadRequestException")
    assert server.http.head(server.path(name)).status_code == 404


def test_an_idempotency_key_is_ignored_by_requests_that_change_nothing(server: Server, lake: TestLake) -> None:
    key = new_key()
    for given in (key, "nonsense"):
        assert server.http.get(server.namespaces, headers={HEADER: given}).status_code == 200
        assert server.http.post("/v1/lake/nothing", headers={HEADER: given}, json={}).status_code == 404
        assert server.http.put(server.namespaces, headers={HEADER: given}, json={}).status_code == 405
    elsewhere = Mutation("POST", "/v1/other/namespaces", {"namespace": ["x"]})
    assert error_of(elsewhere.send(server, key))[0] == 404
    malformed = Mutation("POST", server.namespaces, {"namespace": 7})
    assert error_of(malformed.send(server, key))[0] == 400
    assert stored(lake, key) == []
    assert create_namespace(server, lake, new_name()).send(server, key).status_code == 200


def test_a_body_over_the_limit_does_not_store_its_idempotency_key(lake: TestLake, tmp_path: Path) -> None:
    key = new_key()
    with servers.server(lake.settings, tmp_path, max_body_bytes=2048) as small:
        large = Mutation("POST", small.namespaces, {"namespace": ["x"], "properties": {"a": "x" * 4096}})
        assert error_of(large.send(small, key))[0] == 413

        def chunks() -> Iterator[bytes]:
            yield b"{" + b" " * 4096

        assert error_of(small.http.post(small.namespaces, content=chunks(), headers={HEADER: key}))[0] == 413
        assert stored(lake, key) == []


# --- time


def test_the_config_states_the_lifetime_of_idempotency_keys(server: Server, lake: TestLake, tmp_path: Path) -> None:
    assert server.http.get("/v1/config").json()["idempotency-key-lifetime"] == "PT86400S"
    with servers.server(lake.settings, tmp_path, idempotency_seconds=90) as other:
        assert other.http.get("/v1/config").json()["idempotency-key-lifetime"] == "PT90S"


def test_an_expired_idempotency_key_can_be_used_again(server: Server, lake: TestLake) -> None:
    mutation, key = update_properties(server, lake, new_name()), new_key()
    first = mutation.send(server, key)
    age(lake, key, 86_400 - 60)
    assert essence(mutation.send(server, key)) == essence(first)
    age(lake, key, 86_400 + 60)
    again = mutation.send(server, key)
    assert again.json() == {"updated": ["c"], "removed": [], "missing": ["a"]}
    assert essence(mutation.send(server, key)) == essence(again)


def test_expired_idempotency_keys_are_deleted(server: Server, lake: TestLake) -> None:
    old = [new_key() for _ in range(30)]
    kept = new_key()
    for key in (*old, kept):
        Mutation("DELETE", server.path(new_name())).send(server, key)
    for key in old:
        age(lake, key, 86_400 + 60)
    for _ in range(2):
        create_namespace(server, lake, new_name()).send(server, new_key())
    assert [key for key in old if stored(lake, key)] == []
    assert stored(lake, kept)


def age(lake: TestLake, key: str, seconds: int) -> None:
    lake.sql("UPDATE request_key SET made_at = now() - make_interval(secs => %s) WHERE key = %s", seconds, key)


# --- at once


@every_mutation
def test_concurrent_requests_with_one_key_make_one_change_and_get_one_answer(
    prepare: Callable[[Server, TestLake, str], Mutation], status: int, server: Server, lake: TestLake
) -> None:
    mutation, key = prepare(server, lake, new_name()), new_key()
    before = len(lake.sound_snapshots())
    together = threading.Barrier(AT_ONCE)

    def send(_: int) -> httpx.Response:
        with servers.client(server.uri) as http:
            together.wait(10)
            return mutation.send(Server(server.uri, server.process, server.log, http), key)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(send, range(AT_ONCE)))
    assert [a.status_code for a in answers] == [status] * AT_ONCE, [a.text for a in answers]
    assert len({essence(a) for a in answers}) == 1
    assert len(lake.sound_snapshots()) - before == (prepare not in (update_properties, stage_table))
    assert len(stored(lake, key)) == 1


def test_concurrent_identical_appends_are_applied_once(
    server: Server, lake: TestLake, db: duckdb.DuckDBPyConnection
) -> None:
    """As DuckDB sees it, with and without a key."""
    name = new_name()
    mutation, key = append(server, lake, name), new_key()
    assert in_duckdb(lake, db, name) == []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(lambda i: mutation.send(server, key if i % 2 else None), range(AT_ONCE)))
    assert [a.status_code for a in answers] == [200] * AT_ONCE, [a.text for a in answers]
    assert len(load(server, schema=name)["snapshots"]) == 1
    assert in_duckdb(lake, db, name) == rows(1)


def test_a_retry_waits_for_the_request_in_progress_with_its_key(server: Server, lake: TestLake) -> None:
    mutation, key = update_properties(server, lake, new_name()), new_key()
    with ThreadPoolExecutor(2) as threads:
        with held_still(lake):
            under_way = [threads.submit(mutation.send, server, key) for _ in range(2)]
            wait_for_requests(server, 2)
            eventually(lambda: lock_waiters(lake, "ducklake_snapshot"), 10)
            assert not any(f.done() for f in under_way)
        first, second = (f.result(20) for f in under_way)
    assert first.json() == {"updated": ["c"], "removed": ["a"], "missing": []}
    assert essence(first) == essence(second)


def test_concurrent_requests_with_different_keys_do_not_block_each_other(server: Server, lake: TestLake) -> None:
    """More than there are connections to Postgres."""
    mutations = [create_namespace(server, lake, new_name()) for _ in range(40)]
    with ThreadPoolExecutor(40) as threads:
        answers = list(threads.map(lambda m: m.send(server, new_key()), mutations))
    assert [a.status_code for a in answers] == [200] * 40


def test_the_stored_answer_of_a_key_is_uncompressed_json(server: Server, lake: TestLake) -> None:
    mutation, key = append(server, lake, new_name()), new_key()
    answer = mutation.send(server, key, **{"Accept-Encoding": "gzip"})
    ((operation, status, body),) = stored(lake, key)
    assert (operation, status) == ("updateTable", 200)
    assert body == answer.content
    with pytest.raises(gzip.BadGzipFile):
        gzip.decompress(body)
