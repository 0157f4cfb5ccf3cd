"""The server dies between a change and its answer: the client sends the request again, with the same key."""

from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

from mergus.faults import VARIABLE
from tests.support import commits, servers
from tests.support.commits import in_duckdb, new_snapshot_id, new_table, rows
from tests.support.keys import HEADER, new_key
from tests.support.lakes import TestLake
from tests.support.loads import Bucket
from tests.support.servers import Server

Json = dict[str, Any]
# where the process dies, and whether the change is there then
POINTS = {
    "commit.locked": False,
    "commit.sealed": False,
    "commit.committed": True,
    "commit.answered": True,
    "commit.kept": True,
}


def send_and_die(lake: TestLake, folder: Path, point: str, method: str, path: str, body: Json | None, key: str) -> None:
    """To a server that kills itself at the point."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, point)
        with servers.server(lake.settings, folder) as doomed:
            with pytest.raises(httpx.TransportError):
                doomed.http.request(method, path, json=body, headers={HEADER: key})
            assert doomed.process.wait(10) == -9


@pytest.mark.parametrize(("point", "is_made"), POINTS.items(), ids=POINTS)
def test_a_commit_with_a_key_is_applied_once_wherever_the_server_is_killed(
    point: str,
    is_made: bool,
    server: Server,
    lake: TestLake,
    db: duckdb.DuckDBPyConnection,
    tmp_path: Path,
) -> None:
    name, key = point.replace(".", "_"), new_key()
    table = new_table(server, Bucket(lake.settings), name)
    assert in_duckdb(lake, db, name) == []
    snapshot_id = new_snapshot_id()
    body = {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}],
        "updates": table.append_updates([table.file(1)], snapshot_id),
    }
    before = len(lake.sound_snapshots())
    send_and_die(lake, tmp_path, point, "POST", table.url, body, key)
    assert len(lake.sound_snapshots()) - before == is_made
    assert len(lake.sql("SELECT FROM request_key WHERE key = %s", key)) == is_made
    assert in_duckdb(lake, db, name) == (rows(1) if is_made else [])

    answers = [server.http.post(table.url, json=body, headers={HEADER: key}) for _ in range(2)]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert [s["snapshot-id"] for s in answer.json()["metadata"]["snapshots"]] == [snapshot_id]
    assert answers[0].content == answers[1].content
    assert answers[0].headers["etag"] == answers[1].headers["etag"]
    assert len(lake.sound_snapshots()) - before == 1
    # and the table goes on
    table.load()
    table.append(10)
    assert in_duckdb(lake, db, name) == [*rows(1), *rows(10)]


@pytest.mark.parametrize(
    ("operation", "point"),
    [
        ("create_namespace", "commit.committed"),
        ("drop_namespace", "commit.committed"),
        ("update_properties", "commit.sealed"),
        ("update_properties", "commit.committed"),
        ("create_table", "commit.committed"),
        ("drop_table", "commit.committed"),
        ("rename_table", "commit.committed"),
        ("transact", "commit.committed"),
    ],
)
def test_a_retry_after_a_kill_applies_a_change_once_and_gets_the_original_answer(
    operation: str, point: str, server: Server, lake: TestLake, tmp_path: Path
) -> None:
    name, key = f"{operation}_{point[7:]}", new_key()
    if operation != "create_namespace":
        assert server.create(name, a="1").status_code == 200
    if operation in {"drop_table", "rename_table", "transact"}:
        assert commits.create(server, name).status_code == 200
    source, target = ({"namespace": [name], "name": table} for table in ("t", "u"))
    change: Json = {
        "identifier": source,
        "requirements": [{"type": "assert-current-schema-id", "current-schema-id": 0}],
        "updates": [
            {
                "action": "add-schema",
                "schema": {**commits.SCHEMA, "fields": [*commits.FIELDS, commits.field_of(3, "x")]},
            },
            {"action": "set-current-schema", "schema-id": -1},
        ],
    }
    method, path, body, status = {
        "create_namespace": ("POST", server.namespaces, {"namespace": [name]}, 200),
        "drop_namespace": ("DELETE", server.path(name), None, 204),
        "update_properties": ("POST", f"{server.path(name)}/properties", {"removals": ["a", "b"]}, 200),
        "create_table": ("POST", f"{server.path(name)}/tables", {"name": "t", "schema": commits.SCHEMA}, 200),
        "drop_table": ("DELETE", f"{server.path(name)}/tables/t", None, 204),
        "rename_table": ("POST", "/v1/lake/tables/rename", {"source": source, "destination": target}, 204),
        "transact": ("POST", "/v1/lake/transactions/commit", {"table-changes": [change]}, 204),
    }[operation]
    before = len(lake.sound_snapshots())
    send_and_die(lake, tmp_path, point, method, path, body, key)
    is_made = point == "commit.committed"
    assert len(lake.sound_snapshots()) - before == (is_made and operation != "update_properties")

    first, second = (server.http.request(method, path, json=body, headers={HEADER: key}) for _ in range(2))
    assert first.status_code == status, first.text
    assert (first.status_code, first.content) == (second.status_code, second.content)
    assert len(lake.sound_snapshots()) - before == (operation != "update_properties")
    match operation:
        case "create_namespace":
            assert first.json()["namespace"] == [name]
        case "update_properties":
            assert first.json() == {"updated": [], "removed": ["a"], "missing": ["b"]}
        case "create_table":
            assert [f["name"] for f in first.json()["metadata"]["schemas"][0]["fields"]] == ["i", "s"]
        case _:
            assert first.content == b""
    # without the key it is refused, or has nothing to do: it has been done
    again = server.http.request(method, path, json=body)
    if operation == "update_properties":
        assert again.json() == {"updated": [], "removed": [], "missing": ["a", "b"]}
    else:
        assert again.status_code in {404, 409}, again.text
