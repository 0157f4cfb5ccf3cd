"""The same on a local disk, where a path has more than one spelling and a link leads elsewhere.

What is named and must not be looked at is a pipe that nobody writes to: who opens it waits for ever, and the request
with them.
"""

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest

from mergus.iceberg.manifest import ADDED, POSITION_DELETES, DataFile, Entry
from tests.support import elsewhere, lakes, servers, views
from tests.support.commits import (
    HandTable,
    create,
    described,
    everything,
    in_duckdb,
    new_snapshot_id,
    new_table,
    rows,
    shown,
)
from tests.support.lakes import TestLake
from tests.support.listeners import eventually
from tests.support.loads import Bucket
from tests.support.servers import Server, error_of

BAD = (400, "BadRequestException")
# as long as nobody waits for a pipe
SECONDS = 20


class Disk:
    """Files by their addresses."""

    def path(self, address: str) -> Path:
        return Path("/" + address.removeprefix("file:").lstrip("/"))

    def get(self, address: str) -> bytes:
        return self.path(address).read_bytes()

    def put(self, address: str, content: bytes) -> None:
        self.path(address).parent.mkdir(parents=True, exist_ok=True)
        self.path(address).write_bytes(content)


@dataclass
class Scene:
    folder: Path
    lake: TestLake
    server: Server
    own: HandTable
    victim: HandTable

    def pipe(self, directory: Path) -> str:
        """A path, seen from wherever it is, that nobody may open."""
        directory.mkdir(parents=True, exist_ok=True)
        name = f"{uuid4().hex}.metadata.json"
        os.mkfifo(directory / name)
        return name

    def linked(self, target: Path) -> str:
        """A directory of the table's own that leads elsewhere."""
        link = Disk().path(self.own.location) / f"link-{uuid4().hex}"
        link.symlink_to(target)
        return f"{self.own.location}/{link.name}"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder, disk = tmp_path_factory.mktemp("disk"), cast(Bucket, Disk())
    options: dict[str, Any] = {"listener": "off", "allowed_locations": f"file://{folder}/allowed"}
    with (
        lakes.lake(data_path=f"file://{folder}/lake/data/") as lake,
        servers.server(lake.settings, folder, **options) as server,
    ):
        server.http.timeout = httpx.Timeout(SECONDS)
        own, victim = new_table(server, disk, "mine"), new_table(server, disk, "theirs")
        own.append(1)
        victim.append(1)
        (folder / "outside").mkdir()
        (folder / "allowed").mkdir()
        yield Scene(folder, lake, server, own, victim)


def plain(address: str) -> str:
    return address.removeprefix("file://")


# Directories, each with a pipe in it.
Attack = Callable[[Scene], tuple[str, Path]]
ATTACKS: dict[str, Attack] = {
    "outside": lambda s: (f"file://{s.folder}/outside", s.folder / "outside"),
    "outside, with one slash": lambda s: (f"file:{s.folder}/outside", s.folder / "outside"),
    "outside, as a path": lambda s: (f"{s.folder}/outside", s.folder / "outside"),
    "another table": lambda s: (s.victim.location, Path(plain(s.victim.location))),
    "another table, as a path": lambda s: (plain(s.victim.location), Path(plain(s.victim.location))),
    "another table, with one slash": lambda s: (f"file:{plain(s.victim.location)}", Path(plain(s.victim.location))),
    "DuckLake's": lambda s: (f"file://{s.folder}/lake/data/mine/t", s.folder / "lake/data/mine/t"),
    "up": lambda s: (f"{s.own.location}/../{s.victim.location[-36:]}", Path(plain(s.victim.location))),
    "encoded dots": lambda s: (f"{s.own.location}/%2e%2e/x", Path(plain(s.own.location)) / "%2e%2e/x"),
    "a sibling": lambda s: (f"{s.own.location}2", Path(f"{plain(s.own.location)}2")),
    "a host": lambda s: (f"file://localhost{plain(s.own.location)}", Path(plain(s.own.location))),
    "two slashes": lambda s: (f"/{plain(s.own.location)}", Path(plain(s.own.location))),
    "a link to the outside": lambda s: (s.linked(s.folder / "outside"), s.folder / "outside"),
    "a link to another table": lambda s: (
        s.linked(Path(plain(s.victim.location))),
        Path(plain(s.victim.location)),
    ),
    "a link to a link": lambda s: (
        s.linked(Path(plain(s.linked(s.folder / "outside")))),
        s.folder / "outside",
    ),
    "a link that leads up": lambda s: (s.linked(Path("../..")), Path(plain(s.own.location)).parent.parent),
}

Send = Callable[[Scene, str], httpx.Response]


def with_manifest(s: Scene, entry: DataFile, path: str | None = None, content: Any = "data") -> httpx.Response:
    snapshot_id = new_snapshot_id()
    made = s.own.manifest([Entry(ADDED, None, None, None, entry)], snapshot_id, content=content)
    made = made if path is None else replace(made, manifest_path=path)
    address = s.own.list_of([*s.own.manifests(), made], snapshot_id)
    operation = "append" if content == "data" else "delete"
    return s.own.send(shown(s.own.snapshot_json(address, snapshot_id, operation)))


def statistics(s: Scene, place: str) -> httpx.Response:
    content = {"snapshot-id": s.own.current, "statistics-path": place, "file-size-in-bytes": 100}
    content |= {"file-footer-size-in-bytes": 10, "blob-metadata": []}
    return s.own.send([{"action": "set-statistics", "snapshot-id": s.own.current, "statistics": content}])


def registering_view(s: Scene, place: str) -> httpx.Response:
    body = {"name": f"n{uuid4().hex}", "metadata-location": place}
    return s.server.http.post(f"{s.server.path('mine')}/register-view", json=body)


FILES: dict[str, Send] = {
    "manifest list": lambda s, place: s.own.send(shown(s.own.snapshot_json(place, new_snapshot_id()))),
    "manifest": lambda s, place: with_manifest(s, described(f"{s.own.location}/x", 1, 1, 9), place),
    "data file": lambda s, place: with_manifest(s, described(place, 1, 3, 100)),
    "deletes": lambda s, place: with_manifest(
        s, DataFile(POSITION_DELETES, place, "PARQUET", (), 1, 0), content="deletes"
    ),
    "statistics": statistics,
    "register": lambda s, place: elsewhere.register(s.server, "mine", f"n{uuid4().hex}", place),
    "register a view": registering_view,
}
DIRECTORIES: dict[str, Send] = {
    "create": lambda s, place: create(s.server, "mine", f"n{uuid4().hex}", location=place),
    "set-location": lambda s, place: s.own.send([{"action": "set-location", "location": place}]),
    "write.data.path": lambda s, place: s.own.send(
        [{"action": "set-properties", "updates": {"write.data.path": place}}]
    ),
    "view": lambda s, place: s.server.http.post(
        views.url(s.server, "mine"),
        json={**views.wanted("mine", f"n{uuid4().hex}", spark="SELECT 1 AS i, 's' AS s"), "location": place},
    ),
}


@pytest.fixture
def unchanged(scene: Scene) -> Iterator[None]:
    before = everything(scene.lake)
    yield
    assert everything(scene.lake) == before
    assert '"status":5' not in scene.server.log.read_text()


@pytest.mark.parametrize("entry", FILES)
@pytest.mark.usefixtures("unchanged")
def test_a_file_reached_through_a_link_or_another_spelling_is_refused_and_not_opened(scene: Scene, entry: str) -> None:
    for name, attack in ATTACKS.items():
        place, directory = attack(scene)
        answer = FILES[entry](scene, f"{place}/{scene.pipe(directory)}")
        assert error_of(answer) == BAD, (name, place, answer.text)
    # a link for the file itself, and one in an allowed place
    for folder in (Path(plain(scene.own.location)), scene.folder / "allowed"):
        link = folder / f"{uuid4().hex}.metadata.json"
        link.symlink_to(scene.folder / "outside" / scene.pipe(scene.folder / "outside"))
        answer = FILES[entry](scene, f"file://{link}")
        assert error_of(answer) == BAD, (link, answer.text)


@pytest.mark.parametrize("entry", DIRECTORIES)
@pytest.mark.usefixtures("unchanged")
def test_a_directory_reached_through_a_link_or_another_spelling_is_refused(scene: Scene, entry: str) -> None:
    for name, attack in ATTACKS.items():
        place, _ = attack(scene)
        answer = DIRECTORIES[entry](scene, place)
        assert error_of(answer) == BAD, (name, place, answer.text)


def test_every_spelling_of_a_path_within_the_table_location_is_accepted(scene: Scene) -> None:
    """And a link within it is no way out."""
    server, lake = scene.server, scene.lake
    table = new_table(server, cast(Bucket, Disk()), "spelled")
    (Path(plain(table.location)) / "data").mkdir(parents=True, exist_ok=True)
    (Path(plain(table.location)) / "here").symlink_to("data")
    for n, start in enumerate((table.location, f"file:{plain(table.location)}", plain(table.location))):
        made = table.file(10 * n, path=f"{start}/here/{n}.parquet")
        table.commit(*table.append_updates([made], new_snapshot_id()))
        # once is enough, however it is spelled
        again = [replace(made, file_path=f"file:{plain(table.location)}/here/{n}.parquet")]
        answer = table.send(table.append_updates(again, new_snapshot_id()))
        assert error_of(answer) == BAD, (start, answer.text)
    with lake.duckdb() as db:
        assert in_duckdb(lake, db, "spelled") == [*rows(0), *rows(10), *rows(20)]


def test_opening_a_named_pipe_blocks_the_request(scene: Scene) -> None:
    """Else nothing above would mean anything."""
    directory = Path(plain(scene.own.location)) / "metadata"
    place = f"file://{directory}/{scene.pipe(directory)}"
    body = {"requirements": [], "updates": shown(scene.own.snapshot_json(place, new_snapshot_id()))}

    def is_waited_at() -> bool:
        """It can be opened like this while another has it open, or wants to. Then whoever waits is let go."""
        try:
            os.close(os.open(plain(place), os.O_WRONLY | os.O_NONBLOCK))
        except OSError as e:
            if e.errno != errno.ENXIO:
                raise
            return False
        return True

    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(scene.server.http.post, scene.own.url, json=body)
        eventually(is_waited_at, 20)
        assert request.result(20).status_code == 400
