"""Listeners as processes of their own, who of them leads, and whether all is on storage before anyone has asked."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import duckdb
import fastavro
import httpx
from prometheus_client.parser import text_string_to_metric_families
from pyiceberg.table import StaticTable

from mergus.annex.leadership import IS_LED
from mergus.config import Settings
from mergus.ducklake.session import identifier
from tests.support import servers
from tests.support.lakes import TestLake
from tests.support.loads import Bucket, Metadata, in_order, rows, s3_properties
from tests.support.ports import free_port
from tests.support.servers import Server

_CHANGES_ROWS_OR_FILES = re.compile(
    r"\b(?:inserted_into_table|deleted_from_table|inlined_insert|inlined_delete|inline_flush|flushed_inlined|"
    r"merge_adjacent|compacted_table|rewrite_delete):(\d+)(?=,|$)"
)
# of a manifest's entries
_DELETED = 2
_READS_AT_ONCE = 8


def eventually(condition: Callable[[], object], seconds: float, what: Callable[[], object] = lambda: "") -> float:
    """Waits until it holds; for how long, in seconds. `what` is said if it never does."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, f"not within {seconds} s: {what()}"
        time.sleep(0.02)
    return time.monotonic() - began


def leads(uri: str) -> bool:
    """By its own word."""
    return samples(servers.get(f"{uri}/metrics", 10).text)["mergus_listener_leads", ()] == 1


@dataclass
class Listener:
    process: servers.Process
    log: Path
    uri: str

    @property
    def name(self) -> str:
        """As it calls itself when it leads."""
        return f"{socket.gethostname()}:{self.process.pid}"

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def leads(self) -> bool:
        return leads(self.uri)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> None:
        """As an operator does; whatever its state, it ends."""
        if self.process.poll() is None:
            self.process.terminate()
            # one that was not paused may be gone already
            with suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def wait_ready(self) -> None:
        eventually(lambda: self.process.poll() is not None or self._answers(), 60, lambda: self.said)
        assert self.process.poll() is None, self.said

    def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            return servers.get(f"{self.uri}/metrics", 10).status_code == 200
        return False


@contextmanager
def listener(settings: Settings, folder: Path, *, wait: bool = True, **changes: object) -> Iterator[Listener]:
    """`mergus listen`, with its metrics on a port of its own."""
    port = free_port()
    effective = settings.model_copy(update={"host": "127.0.0.1", **changes})
    log = folder / f"listener-{port}.log"
    process = servers.start(effective, log, "listen", "--no-init", "--port", str(port))
    running = Listener(process, log, f"http://127.0.0.1:{port}")
    try:
        if wait:
            running.wait_ready()
        yield running
    finally:
        running.stop()


@contextmanager
def two_listeners(
    lake: TestLake, folder: Path, of_the_first: Settings | None = None
) -> Iterator[tuple[Listener, Listener]]:
    """One that leads, and another that stands by."""
    with listener(of_the_first or lake.settings, folder) as first:
        eventually(lambda: leader(lake) == first.name, 20, lambda: first.said)
        with listener(lake.settings, folder) as second:
            eventually(lambda: sessions(lake) == 2, 20, lambda: second.said)
            assert [first.leads, second.leads] == [True, False]
            yield first, second


def leader(lake: TestLake) -> str | None:
    """`host:pid` of the process that leads and has said so; None if nobody holds the lock."""
    ((is_led, name),) = lake.sql(f"SELECT ({IS_LED}), leader FROM listener")
    return name if is_led else None


def lock_holders(lake: TestLake) -> list[int]:
    """Postgres's numbers of the sessions that lead: one, or none."""
    query = """SELECT a.pid FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
               WHERE a.application_name = 'mergus listener' AND a.datname = current_database()
                 AND l.locktype = 'advisory' AND l.granted"""
    return [pid for (pid,) in lake.sql(query)]


def sessions(lake: TestLake) -> int:
    """Of listeners, whether they lead or not."""
    query = """SELECT count(*) FROM pg_stat_activity
               WHERE application_name = 'mergus listener' AND datname = current_database()"""
    ((found,),) = lake.sql(query)
    return found


def done(lake: TestLake) -> int | None:
    ((found,),) = lake.sql("SELECT done_id FROM listener")
    return found


def head(lake: TestLake) -> int:
    ((newest,),) = lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")
    return newest


def is_done(lake: TestLake) -> bool:
    """Whether there is nothing left to do, but for tables that cannot be done."""
    query = """SELECT EXISTS (SELECT FROM listener l, catalog c, ducklake_snapshot s
                              WHERE (l.done_id, l.done_time, l.done_epoch) = (s.snapshot_id, s.snapshot_time, c.epoch)
                                AND s.snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot))"""
    return lake.sql(query) == [(True,)]


def caught_up(lake: TestLake) -> bool:
    return is_done(lake) and lake.sql("SELECT FROM listener_failure") == []


def how_far(lake: TestLake) -> str:
    """For whoever waits in vain."""
    said = lake.sql("SELECT done_id, done_epoch, leader, report FROM listener")
    failing = lake.sql("SELECT table_id, kind, message, attempts FROM listener_failure")
    return f"head {head(lake)}, listener {said}, failing {failing}"


def wait_until_caught_up(lake: TestLake, seconds: float) -> float:
    return eventually(lambda: caught_up(lake), seconds, lambda: how_far(lake))


def status(server: Server) -> dict[str, Any]:
    """What its admin endpoint says."""
    answer = server.http.get("/v1/lake/admin/listener")
    assert answer.status_code == 200, answer.text
    return answer.json()


Sample = tuple[str, tuple[tuple[str, str], ...]]


def samples(exposition: str) -> dict[Sample, float]:
    """By name and labels, after making sure that no family and no series is there twice."""
    families = re.findall(r"^# TYPE (\S+)", exposition, re.MULTILINE)
    assert len(set(families)) == len(families), sorted(families)
    found = [
        ((s.name, tuple(sorted(s.labels.items()))), s.value)
        for family in text_string_to_metric_families(exposition)
        for s in family.samples
    ]
    assert len(dict(found)) == len(found), sorted(key for key, _ in found)
    return dict(found)


def metrics(server: Server) -> dict[Sample, float]:
    return samples(server.http.get("/metrics").text)


def mixture(tables: Sequence[str], commits: int) -> Iterator[str]:
    """Statements, each a commit, on one table after the other: rows that are inlined, files, updates and deletes of
    both. The tables have columns i and s."""
    for n in range(commits):
        table, first = tables[n % len(tables)], n * 1000
        few = f"INSERT INTO {table} VALUES ({first}, 'few'), ({first + 1}, 'two')"
        match n // len(tables) % 8:
            case 1 | 5:
                yield f"INSERT INTO {table} SELECT range, 'file' FROM range({first}, {first + 40})"
            case 3:
                yield f"DELETE FROM {table} WHERE i % 1000 = {n % 3}"
            case 6:
                yield f"UPDATE {table} SET s = 'changed {n}' WHERE i % 1000 IN (1, 2, 3)"
            case 7:
                yield f"DELETE FROM {table} WHERE i % 1000 > 12 AND i % 2 = {n % 2}"
            case _:
                yield few


@dataclass
class Burst:
    """Statements that are made by a DuckDB session of their own while the test does something else."""

    lake: TestLake
    statements: Sequence[str]
    # seconds between two
    pause: float = 0.0
    made: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator["Burst"]:
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(self._run)
            try:
                yield self
                work.result()
            finally:
                self._ended.set()

    def wait_for(self, made: int) -> None:
        eventually(lambda: self.made >= made, 60, lambda: f"{self.made} commits")

    def _run(self) -> None:
        with self.lake.duckdb() as db:
            for statement in self.statements:
                if self._ended.is_set():
                    return
                db.execute(statement)
                self.made += 1
                time.sleep(self.pause)


class Proxy:
    """Between a process and what it connects to. It can be frozen, so that nothing passes and nobody is told, or shut,
    so that every connection breaks and none is taken."""

    def __init__(self, host: str, port: int, overhear: Callable[[bytes], None] = lambda _: None) -> None:
        self._target = (host, port)
        self._overhear = overhear
        self._gate = threading.Event()
        self._gate.set()
        self._sockets: set[socket.socket] = set()
        self._door: socket.socket | None = None
        self.port = free_port()
        self.open()

    def open(self) -> None:
        self._door = socket.create_server(("127.0.0.1", self.port), backlog=128)
        threading.Thread(target=self._accept, args=(self._door,), daemon=True).start()

    def shut(self) -> None:
        door, self._door = self._door, None
        for found in [*([door] if door else []), *self._sockets]:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
            found.close()
        self._sockets.clear()

    def freeze(self) -> None:
        self._gate.clear()

    def thaw(self) -> None:
        self._gate.set()

    def _accept(self, door: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = door.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._gate.wait()
        with suppress(OSError):
            far = socket.create_connection(self._target)
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets |= {near, far}
            for ends in ((near, far, self._overhear), (far, near, lambda _: None)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, overhear: Callable[[bytes], None]) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                overhear(data)
                self._gate.wait()
                other.sendall(data)
        self._gate.wait()
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self._sockets.discard(end)


@contextmanager
def proxy(url: str, overhear: Callable[[bytes], None] = lambda _: None) -> Iterator[tuple[Proxy, str]]:
    """To what a URL leads to; the URL that leads through it. What is sent there can be overheard."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    between = Proxy(parts.hostname, parts.port, overhear)
    user = f"{parts.username}:{parts.password}@" if parts.username else ""
    try:
        yield between, urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{between.port}"))
    finally:
        between.thaw()
        between.shut()


def assert_all_on_storage(
    lake: TestLake,
    bucket: Bucket,
    db: duckdb.DuckDBPyConnection,
    tables: Sequence[str] | None = None,
    *,
    most: int = 1000,
    signs: bool = True,
) -> dict[str, list[int]]:
    """Every live table (or these, as schema.name) as someone finds it who has the bucket and no server: the newest
    metadata file lists each snapshot of the table, all objects behind are there, and PyIceberg reads at each snapshot
    (or at so many, spread) what DuckDB reads. The listed snapshots by table.
    """
    query = """SELECT DISTINCT ON (t.table_id) schema_name || '.' || table_name, t.table_id, location, version
               FROM ducklake_table t JOIN ducklake_schema s USING (schema_id) LEFT JOIN metadata_file USING (table_id)
               WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL ORDER BY t.table_id, version DESC"""
    live = {name: found for name, *found in lake.sql(query)}
    snapshots = lake.snapshots()
    assert lake.settings.data_path is not None
    there = set(bucket.below(lake.settings.data_path))
    listed: dict[str, list[int]] = {}
    for name in live if tables is None else tables:
        table_id, location, version = live[name]
        assert location is not None, f"{name} is not on storage"
        metadata: Metadata = json.loads(bucket.get(location))
        listed[name] = [s["snapshot-id"] for s in metadata["snapshots"]]
        _check_listing(name, table_id, listed[name], metadata, snapshots)
        there |= set(bucket.below(metadata["location"]))
        _check_objects(lake, bucket, table_id, metadata, there)
        if signs:
            _check_signs(bucket, metadata, version, there)
        _check_rows(lake, db, name, location, most)
    return listed


def _check_listing(
    name: str, table_id: int, listed: list[int], metadata: Metadata, snapshots: Sequence[tuple[Any, ...]]
) -> None:
    """Every snapshot that changed the table by its own words, and no other but one that stands for others, after a gap,
    or that gave the table another shape."""
    own = {s[0] for s in snapshots if str(table_id) in _CHANGES_ROWS_OR_FILES.findall(s[4] or "")}
    altered = {s[0] for s in snapshots if f"altered_table:{table_id}" in (s[4] or "").split(",")}
    ids = [s[0] for s in snapshots]
    after_gap = {i for before, i in zip([-1, *ids], ids, strict=False) if before != i - 1}
    others = set(listed) - own - altered - after_gap
    assert own <= set(listed), f"{name} does not list {sorted(own - set(listed))}; it lists {listed}"
    assert not others, f"{name} lists {sorted(others)} as well"
    assert listed == sorted(set(listed))
    assert metadata.get("current-snapshot-id") == (listed[-1] if listed else None)


def _check_objects(lake: TestLake, bucket: Bucket, table_id: int, metadata: Metadata, there: set[str]) -> None:
    """All that the snapshots lead to, and the rows of `chain`, which may name another list that is as good."""
    lists = {s["snapshot-id"]: s["manifest-list"] for s in metadata["snapshots"]}
    query = "SELECT snapshot_id, manifest_list FROM chain WHERE table_id = %s AND format_version = %s"
    chains = dict(lake.sql(query, table_id, metadata["format-version"]))  # pyright: ignore[reportArgumentType,reportCallIssue]
    assert lists.keys() <= chains.keys()
    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:

        def within(paths: set[str]) -> Iterator[dict[str, Any]]:
            assert paths <= there, f"missing: {sorted(paths - there)}"
            for content in pool.map(bucket.get, sorted(paths)):
                yield from cast(Iterator[dict[str, Any]], fastavro.reader(BytesIO(content)))

        manifests = {str(m["manifest_path"]) for m in within({*lists.values(), *(chains[i] for i in lists)})}
        files = {str(e["data_file"]["file_path"]) for e in within(manifests) if e["status"] != _DELETED}
    assert files <= there, f"missing: {sorted(files - there)}"


def _check_signs(bucket: Bucket, metadata: Metadata, version: int, there: set[str]) -> None:
    """Who comes by the directory is led to the same, and finds nothing that looks newer."""
    folder = f"{metadata['location']}/metadata"
    hint = bucket.get(f"{folder}/version-hint.text").decode()
    assert hint == str(version + 1)
    signed: Metadata = json.loads(bucket.get(f"{folder}/v{hint}.metadata.json"))
    for key in ("table-uuid", "current-snapshot-id", "snapshots", "schemas", "current-schema-id"):
        assert signed.get(key) == metadata.get(key), key
    # readers go on from the hint to the next number that is there
    assert f"{folder}/v{version + 2}.metadata.json" not in there


def _check_rows(lake: TestLake, db: duckdb.DuckDBPyConnection, name: str, location: str, most: int) -> None:
    shown = StaticTable.from_metadata(location, s3_properties(lake.settings))
    full = ".".join(map(identifier, name.split(".", 1)))
    ids = [s.snapshot_id for s in shown.metadata.snapshots]
    for at in _spread(ids, most):
        wanted = in_order(db.execute(f"SELECT * FROM {full} AT (VERSION => {at})").fetchall())
        assert rows(shown.scan(snapshot_id=at).to_arrow()) == wanted, f"{name} at {at} of {ids}"
    assert rows(shown.scan().to_arrow()) == in_order(db.execute(f"SELECT * FROM {full}").fetchall()), name


def _spread(ids: Sequence[int], most: int) -> list[int]:
    """The first, the last and some between."""
    if len(ids) <= most:
        return list(ids)
    return sorted({ids[round(i * (len(ids) - 1) / (most - 1))] for i in range(most)})
