"""Locations that a client gives, wherever it can give one, and every way of leading out of what is its own: each is
refused, nothing is written, and the object that is named is never looked at.

The server's store is watched: whatever it asks for is seen (`tests/support/watched.py`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest

from mergus.iceberg.manifest import ADDED, EQUALITY_DELETES, POSITION_DELETES, DataFile, Entry
from tests.support import elsewhere, servers, views
from tests.support.commits import (
    FIELDS,
    HandTable,
    create,
    described,
    everything,
    new_snapshot_id,
    new_table,
    shown,
)
from tests.support.elsewhere import RawElsewhere, raw_table, warehouse
from tests.support.lakes import TestLake
from tests.support.loads import Bucket
from tests.support.servers import Server, error_of
from tests.support.watched import Requests, watched

BAD = (400, "BadRequestException")
PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


@dataclass
class Scene:
    lake: TestLake
    server: Server
    bucket: Bucket
    requests: Requests
    # of version 2, with a row; of version 3; one that an attacker wants to get at; one in an allowed place
    own: HandTable
    newer: HandTable
    victim: HandTable
    placed: HandTable

    @property
    def allowed(self) -> str:
        return warehouse(self.lake)

    @property
    def data_path(self) -> str:
        return f"{self.lake.settings.data_path}".rstrip("/")


@pytest.fixture(scope="module")
def scene(lake: TestLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    bucket = Bucket(lake.settings)
    with watched(lake.settings.s3_endpoint or "") as (requests, endpoint):
        options: dict[str, Any] = {"listener": "off", "allowed_locations": warehouse(lake), "s3_endpoint": endpoint}
        with servers.server(lake.settings, tmp_path_factory.mktemp("server"), **options) as server:
            own = new_table(server, bucket, "mine")
            own.append(1)
            newer = new_table(server, bucket, "mine", "newer", properties={"format-version": "3"})
            newer.append(1)
            victim = new_table(server, bucket, "theirs")
            victim.append(1)
            placed = new_table(server, bucket, "theirs", "placed", location=f"{warehouse(lake)}/placed")
            placed.append(1)
            with lake.duckdb() as db:
                db.execute("CREATE TABLE theirs.ducks AS SELECT range AS i FROM range(100)")
            views.create(server, "mine", "v", spark="SELECT 1 AS i, 's' AS s")
            yield Scene(lake, server, bucket, requests, own, newer, victim, placed)


# Each gives a directory, from the scene and from a place that the one who attacks may use.
Attack = Callable[[Scene, str], str]
ATTACKS: dict[str, Attack] = {
    "another table": lambda s, _: s.victim.location,
    "below another table": lambda s, _: f"{s.victim.location}/data",
    "another table, in an allowed place": lambda s, _: s.placed.location,
    "below another table, in an allowed place": lambda s, _: f"{s.placed.location}/data/x",
    "a table of nobody": lambda s, _: f"{s.data_path}-iceberg/{uuid4()}",
    "DuckLake's directory of another": lambda s, _: f"{s.data_path}/theirs/ducks",
    "DuckLake's directory of its own": lambda s, _: f"{s.data_path}/mine/t",
    "DuckLake's data path": lambda s, _: f"{s.data_path}/mine/nobody",
    "a sibling": lambda _, own: f"{own}2",
    "a sibling of what is allowed": lambda s, _: f"{s.allowed}-more/x",
    "a sibling of what all tables have": lambda s, _: f"{s.data_path}-iceberg-more/x",
    "the bucket": lambda _, __: "s3://mergus/x",
    "up": lambda s, own: f"{own}/../{s.victim.location.rpartition('/')[2]}",
    "up and down again": lambda _, own: f"{own}/x/../y",
    "here": lambda _, own: f"{own}/./x",
    "an empty part": lambda _, own: f"{own}//x",
    "encoded dots": lambda s, own: f"{own}/%2e%2e/{s.victim.location.rpartition('/')[2]}",
    "dots that are encoded twice": lambda _, own: f"{own}/%252e%252E/x",
    "encoded slashes": lambda _, own: f"{own}/..%2f..%2Fx",
    "an encoded slash for a slash": lambda _, own: "%2F".join(own.rsplit("/", 1)) + "/x",
    "backslashes": lambda _, own: f"{own}/..\\..\\x",
    "another bucket": lambda _, own: own.replace("s3://mergus/", "s3://mergus2/"),
    "a bucket with a user": lambda _, own: own.replace("s3://mergus/", "s3://mergus@evil/"),
    "a bucket with a port": lambda _, own: own.replace("s3://mergus/", "s3://mergus:80/"),
    "a bucket that looks the same": lambda _, own: own.replace("s3://mergus/", "s3://m\u0435rgus/"),
    "a scheme in capitals": lambda _, own: own.replace("s3://", "S3://"),
    "one slash": lambda _, own: own.replace("s3://", "s3:/"),
    "Google": lambda _, own: own.replace("s3://", "gs://"),
    "a web server": lambda _, __: "http://169.254.169.254/latest",
    "a disk": lambda _, __: "file:///etc",
    "a path": lambda _, __: "/etc",
    "relative": lambda _, __: "data",
    "dots that look the same": lambda _, own: f"{own}/\uff0e\uff0e/x",
    "a slash that looks the same": lambda _, own: f"{own}\uff0fx",
    "another slash": lambda _, own: f"{own}/\u2215x",
    "two dots in one": lambda _, own: f"{own}/\u2025/x",
    "letters that look the same": lambda _, own: own.replace("data-iceberg", "d\u0430ta-iceberg").replace(
        "else", "els\u0435"
    ),
    "the other direction": lambda _, own: f"{own}/\u202ex",
    "nothing wide": lambda _, own: f"{own}\u200b/x",
    "a control character": lambda _, own: f"{own}/\x01",
    "a line": lambda _, own: f"{own}/\n",
}
# What is above others can hold files, but cannot be a directory of one table's.
ABOVE: dict[str, Attack] = {
    "above a table": lambda s, _: s.allowed,
    "above all tables": lambda s, _: f"{s.data_path}-iceberg",
    "above the lake": lambda s, _: s.data_path.rpartition("/")[0],
    "the data path": lambda s, _: f"{s.data_path}/",
    "the whole bucket": lambda _, __: "s3://mergus",
    "nothing": lambda _, __: "",
}


def action(name: str, **more: Any) -> dict[str, Any]:
    return {"action": name, **more}


# --- what names directories

Send = Callable[[Scene, str], httpx.Response]


def creating(**more: Any) -> Send:
    return lambda s, place: create(s.server, "mine", f"n{uuid4().hex}", location=place, **more)


def created_with(key: str) -> Send:
    return lambda s, place: create(s.server, "mine", f"n{uuid4().hex}", properties={key: place})


def setting(key: str) -> Send:
    return lambda s, place: s.own.send([action("set-properties", updates={key: place})])


def new_view(**more: Any) -> dict[str, Any]:
    return {**views.wanted("mine", f"n{uuid4().hex}", spark="SELECT 1 AS i, 's' AS s"), **more}


def placed_view(s: Scene, place: str) -> httpx.Response:
    return s.server.http.post(views.url(s.server, "mine"), json=new_view(location=place))


def view_with_path(s: Scene, place: str) -> httpx.Response:
    return s.server.http.post(views.url(s.server, "mine"), json=new_view(properties={PATHS[1]: place}))


def registered_with(**paths: Callable[[str], Any]) -> Send:
    """A table of another catalog whose metadata file is in an allowed place, and leads elsewhere."""

    def send(s: Scene, place: str) -> httpx.Response:
        raw = raw_table(s.lake, s.server, f"{s.allowed}/{uuid4().hex}", FIELDS)
        raw.base |= {key: value(place) for key, value in paths.items()}
        address = raw.metadata_location
        s.bucket.put(address, orjson.dumps(raw.base))
        return elsewhere.register(s.server, "mine", f"n{uuid4().hex}", address)

    return send


def registered_view(s: Scene, place: str) -> httpx.Response:
    shown_view = views.load(s.server, "mine", "v")
    address = f"{s.allowed}/{uuid4().hex}/x.metadata.json"
    s.bucket.put(address, orjson.dumps({**shown_view, "view-uuid": str(uuid4()), "location": place}))
    body = {"name": f"n{uuid4().hex}", "metadata-location": address}
    return s.server.http.post(f"{s.server.path('mine')}/register-view", json=body)


DIRECTORIES: dict[str, Send] = {
    "create": creating(),
    "stage": creating(stage_create=True),
    **{f"create with {key}": created_with(key) for key in PATHS},
    "set-location": lambda s, place: s.own.send([action("set-location", location=place)]),
    **{f"set {key}": setting(key) for key in PATHS},
    "view": placed_view,
    "view with write.metadata.path": view_with_path,
    "move a view": lambda s, place: views.commit(s.server, "mine", "v", [action("set-location", location=place)]),
    "view path": lambda s, place: views.commit(
        s.server, "mine", "v", [action("set-properties", updates={PATHS[1]: place})]
    ),
    "register: location": registered_with(location=lambda place: place),
    "register: write.data.path": registered_with(properties=lambda place: {PATHS[0]: place}),
    "register a view: location": registered_view,
}


# --- what names files


def listed(s: Scene, place: str) -> httpx.Response:
    return s.own.send(shown(s.own.snapshot_json(place, new_snapshot_id())))


def with_manifest(table: HandTable, entry: DataFile, path: str | None = None, content: Any = "data") -> httpx.Response:
    """One more snapshot, with this entry in a manifest, which is said to be there."""
    snapshot_id = new_snapshot_id()
    made = table.manifest([Entry(ADDED, None, None, None, entry)], snapshot_id, content=content)
    made = made if path is None else replace(made, manifest_path=path)
    address = table.list_of([*table.manifests(), made], snapshot_id)
    operation = "append" if content == "data" else "delete"
    return table.send(shown(table.snapshot_json(address, snapshot_id, operation)))


def deleting(kind: int, ending: str, **more: Any) -> Send:
    def send(s: Scene, place: str) -> httpx.Response:
        table = s.newer if ending == "PUFFIN" else s.own
        return with_manifest(table, DataFile(kind, place, ending, (), 1, 100, **more), content="deletes")

    return send


def statistics(name: str, key: str) -> Send:
    def send(s: Scene, place: str) -> httpx.Response:
        content = {"snapshot-id": s.own.current, "statistics-path": place, "file-size-in-bytes": 100}
        content |= {"file-footer-size-in-bytes": 10, "blob-metadata": []} if key == "statistics" else {}
        return s.own.send([action(name, **{"snapshot-id": s.own.current, key: content})])

    return send


def registered(spoil: Callable[[RawElsewhere, str], object]) -> Send:
    def send(s: Scene, place: str) -> httpx.Response:
        raw = raw_table(s.lake, s.server, f"{s.allowed}/{uuid4().hex}", FIELDS)
        spoil(raw, place)
        return elsewhere.register(s.server, "mine", f"n{uuid4().hex}", raw.metadata_location)

    return send


def _file_of(raw: RawElsewhere, place: str) -> None:
    raw.commit("append", add=[described(place, 1, 3, 100)])


def _deletes_of(raw: RawElsewhere, place: str) -> None:
    raw.commit("delete", deletes=[DataFile(POSITION_DELETES, place, "PARQUET", (), 1, 100)])


def _list_of(raw: RawElsewhere, place: str) -> None:
    raw.commit("append", add=[described(f"{raw.base['location']}/x.parquet", 1, 3, 100)])
    raw.base["snapshots"][-1]["manifest-list"] = place
    raw.save()


def _manifest_of(raw: RawElsewhere, place: str) -> None:
    """Version 1 names manifests in the metadata file itself."""
    raw.base |= {"format-version": 1, "schema": raw.base["schemas"][0], "partition-spec": [], "current-snapshot-id": 7}
    raw.save(snapshots=[{"snapshot-id": 7, "timestamp-ms": 1, "manifests": [place]}])


def registering(s: Scene, place: str) -> httpx.Response:
    return elsewhere.register(s.server, "mine", f"n{uuid4().hex}", place)


def registering_view(s: Scene, place: str) -> httpx.Response:
    body = {"name": f"n{uuid4().hex}", "metadata-location": place}
    return s.server.http.post(f"{s.server.path('mine')}/register-view", json=body)


FILES: dict[str, tuple[str, Send]] = {
    "manifest list": ("avro", listed),
    "manifest": ("avro", lambda s, place: with_manifest(s.own, described(f"{s.own.location}/x", 1, 1, 9), place)),
    "data file": ("parquet", lambda s, place: with_manifest(s.own, described(place, 1, 3, 100))),
    "data file, version 3": ("parquet", lambda s, place: with_manifest(s.newer, described(place, 1, 3, 100))),
    "position deletes": ("parquet", deleting(POSITION_DELETES, "PARQUET")),
    "equality deletes": ("parquet", deleting(EQUALITY_DELETES, "PARQUET", equality_ids=[1])),
    "deletion vector": (
        "puffin",
        deleting(
            *(POSITION_DELETES, "PUFFIN"),
            **{"referenced_data_file": "s3://mergus/x", "content_offset": 4, "content_size_in_bytes": 50},
        ),
    ),
    "statistics": ("stats", statistics("set-statistics", "statistics")),
    "partition statistics": ("parquet", statistics("set-partition-statistics", "partition-statistics")),
    "register": ("metadata.json", registering),
    "register: manifest list": ("avro", registered(_list_of)),
    "register: manifest": ("avro", registered(_manifest_of)),
    "register: data file": ("parquet", registered(_file_of)),
    "register: deletes": ("parquet", registered(_deletes_of)),
    "register a view": ("metadata.json", registering_view),
}


@pytest.fixture
def watching(scene: Scene) -> Iterator[Callable[[], list[tuple[str, str]]]]:
    """Nothing in Postgres is another when the test is over, and nobody was answered with a fault of ours."""
    before, mark = everything(scene.lake), len(scene.requests)
    yield lambda: scene.requests.since(mark)
    after = everything(scene.lake)
    assert {name for name in before | after if before.get(name) != after.get(name)} == set()
    assert '"status":5' not in scene.server.log.read_text()


def may_use(scene: Scene, entry: str) -> str:
    """A directory in which the one who attacks could have used something."""
    return scene.allowed if "regist" in entry or "create" in entry else scene.own.location


@pytest.mark.parametrize("entry", DIRECTORIES)
def test_a_directory_outside_the_allowed_locations_is_refused_wherever_a_client_sends_it(
    scene: Scene, watching: Callable[[], list[tuple[str, str]]], entry: str
) -> None:
    for name, attack in {**ATTACKS, **ABOVE}.items():
        place = attack(scene, may_use(scene, entry))
        answer = DIRECTORIES[entry](scene, place)
        assert error_of(answer) == BAD, (name, place, answer.text)
    for _, path in watching():
        assert scene.victim.location.removeprefix("s3:/") not in path


@pytest.mark.parametrize("entry", FILES)
def test_a_file_outside_the_allowed_locations_is_refused_and_not_read(
    scene: Scene, watching: Callable[[], list[tuple[str, str]]], entry: str
) -> None:
    ending, send = FILES[entry]
    token = f"secret-{uuid4().hex}"
    for name, attack in ATTACKS.items():
        if (entry, name) == ("register a view", "a table of nobody"):
            # a view that was dropped had such a directory, and can be registered again
            continue
        place = f"{attack(scene, may_use(scene, entry))}/{token}.{ending}"
        answer = send(scene, place)
        assert error_of(answer) == BAD, (name, place, answer.text)
    # a directory, and the table itself
    for place in (f"{scene.own.location}/{token}.{ending}/", scene.victim.location, ""):
        answer = send(scene, place)
        assert error_of(answer) == BAD, (place, answer.text)
    assert [(method, path) for method, path in watching() if token in path and method != "PUT"] == []


def test_the_watched_store_records_every_read(scene: Scene) -> None:
    """Else nothing above would mean anything."""
    table, mark = new_table(scene.server, scene.bucket, "watched"), len(scene.requests)
    table.append(1)
    asked = {path for method, path in scene.requests.since(mark) if method == "GET"}
    address = table.snapshot()["manifest-list"]
    assert any(path.startswith(table.location.removeprefix("s3:/")) for path in asked), (address, asked)
    raw = raw_table(scene.lake, scene.server, f"{scene.allowed}/watched", FIELDS)
    assert elsewhere.register(scene.server, "watched", "r", raw.metadata_location).status_code == 200
    assert raw.metadata_location.removeprefix("s3:/") in {path for _, path in scene.requests.since(mark)}
