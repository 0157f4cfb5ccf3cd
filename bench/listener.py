"""From a DuckDB commit to Iceberg with a listener at work, and what the commit costs:  ./scripts/bench bench.listener

Parts of it, or less of each:  mergus backends run --throw-away -- python -m bench.listener --quick quiet busy commit

- quiet: one table, a commit after another with a pause between. *Visible* is from the moment when DuckDB's INSERT
  returned to the answer of the LoadTable that was sent then, which must list the new snapshot. *On storage* is from
  there until the metadata file that lists it was told on our channel, when the whole chain is there; nobody loads.
- busy: many tables, written by another process: by several sessions so many commits a second, and by one session all
  of them in one transaction.
- commit: DuckDB's INSERT on a plain lake, with the trigger, and with the trigger and a listener, each on a lake of its
  own, in turns. Ratios are those of medians in the same round.

Floors are in the same run: DuckDB's own INSERT, and LoadTable when nothing has changed.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import duckdb
import psycopg
from psycopg import sql
from tests.support import lakes, servers
from tests.support.lakes import TestLake
from tests.support.servers import Server

from mergus.annex.migrate import TRIGGERS
from mergus.annex.tables import made_channel
from mergus.config import Settings
from mergus.ducklake import session
from mergus.ducklake.changes import tables_named
from mergus.materialise.layout import metadata_as_of
from mergus.process import end_with_parent
from mergus.serve import environment

# what is inserted at once, and how many rows that is
KINDS = {"a row, inlined": 1, "100 rows, a file": 100}
WARM_UP = 5
PAUSE = 0.1
# of the commits, one of so many is looked up on storage
SAMPLED = 20
IDLE_SECONDS = 120.0
# in the order in which a table goes through them
STAGES = "read rows deletes manifests list metadata signs"

SESSIONS = 4
PER_SECOND = 20
TOGETHER_EVERY = 3.0

PLAIN = "plain lake"
LISTENED = "trigger and listener"

NEWEST = "SELECT max(snapshot_id) FROM ducklake_snapshot"
IS_IDLE = f"""
    SELECT leader IS NOT NULL AND done_id = ({NEWEST})
       AND coalesce((report->'tables'->>'waiting')::int + (report->'tables'->>'working')::int
                    + (report->'tables'->>'history')::int, 0) = 0
    FROM listener
"""


@dataclass(frozen=True)
class Sizes:
    inserts: int
    tables: int
    # of KINDS that many tables are written with
    busy_kinds: int
    # of transactions that change all tables
    together: int
    rounds: int
    # of one round
    back_to_back: int
    paced: int


FULL = Sizes(inserts=200, tables=50, busy_kinds=2, together=4, rounds=10, back_to_back=30, paced=10)
QUICK = Sizes(inserts=20, tables=50, busy_kinds=1, together=1, rounds=3, back_to_back=10, paced=3)


@dataclass(frozen=True)
class Commit:
    table: str
    # when DuckDB had it, and how long that took
    at: float
    seconds: float


def make_tables(lake: TestLake, names: Sequence[str], rows: int) -> dict[str, int]:
    """With a commit each; their ids."""
    with lake.duckdb() as db:
        for name in names:
            db.execute(f"CREATE TABLE {name}(id BIGINT, customer VARCHAR, total DECIMAL(12,2), placed TIMESTAMP)")
            if rows > 1:
                db.execute(f"CALL lake.set_option('data_inlining_row_limit', 0, table_name => '{name}')")
    with lake.duckdb() as db:
        for name in names:
            insert(db, name, rows)
    found = lake.sql("SELECT table_name, table_id FROM ducklake_table WHERE table_name = ANY(%s)", list(names))
    ids = dict[str, int](found)  # pyright: ignore[reportArgumentType]
    files = lake.sql("SELECT DISTINCT table_id FROM ducklake_data_file WHERE table_id = ANY(%s)", list(ids.values()))
    assert len(files) == (len(names) if rows > 1 else 0), files
    return ids


def insert(db: duckdb.DuckDBPyConnection, table: str, rows: int) -> Commit:
    start = time.monotonic()
    db.execute(f"INSERT INTO {table} SELECT range, 'c', 1.5, TIMESTAMP '2026-01-01' FROM range({rows})")
    now = time.monotonic()
    return Commit(table, now, now - start)


def newest(lake: TestLake) -> int:
    return int(lake.sql(NEWEST)[0][0])


def wait_idle(lake: TestLake) -> None:
    """Until a listener has nothing to do, and has said so."""
    deadline = time.monotonic() + IDLE_SECONDS
    while lake.sql(IS_IDLE) != [(True,)]:
        assert time.monotonic() < deadline, lake.sql("SELECT * FROM listener")
        time.sleep(0.1)


def snapshot_ids(lake: TestLake, ids: dict[str, int], commits: Sequence[Commit], after: int) -> list[int]:
    """Of each commit. One session at a time writes to a table, so its commits are in the order of its snapshots."""
    query = "SELECT snapshot_id, changes_made FROM ducklake_snapshot_changes WHERE snapshot_id > %s ORDER BY 1"
    by_table: defaultdict[int, list[int]] = defaultdict(list)
    for snapshot_id, words in lake.sql(query, after):
        for table_id in tables_named(words):
            by_table[table_id].append(snapshot_id)
    assert sum(len(by_table[i]) for i in ids.values()) == len(commits)
    return [by_table[ids[commit.table]].pop(0) for commit in commits]


@contextmanager
def listener(settings: Settings, folder: Path) -> Iterator[None]:
    """A listener as a process of its own."""
    command = [sys.executable, "-m", "mergus", "listen", "--no-init"]
    env = {**os.environ, **environment(settings)}
    with (folder / "listener.log").open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, preexec_fn=end_with_parent)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@dataclass(frozen=True)
class Arrival:
    """A metadata file that came to storage, and the newest snapshot of the lake that it knows of."""

    at: float
    as_of: int
    location: str


class Watch:
    """Hears of metadata files of all tables while it is entered; says afterwards when each came."""

    def __init__(self, lake: TestLake) -> None:
        self._lake = lake
        self._channel = made_channel(lake.settings)
        self._notes: defaultdict[int, list[float]] = defaultdict(list)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._lake.sql("SELECT pg_notify(%s, 'stop')", self._channel)
        self._thread.join()

    def _listen(self) -> None:
        with psycopg.connect(self._lake.settings.dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            self._ready.set()
            for note in conn.notifies():
                if note.payload == "stop":
                    return
                self._notes[int(note.payload)].append(time.monotonic())

    def arrivals(self, table_id: int) -> list[Arrival]:
        """Every file is told once, in the order of their versions."""
        times = self._notes[table_id]
        query = "SELECT location FROM metadata_file WHERE table_id = %s ORDER BY version DESC LIMIT %s"
        locations = [row[0] for row in self._lake.sql(query, table_id, len(times))]
        assert len(locations) == len(times)
        return [Arrival(at, metadata_as_of(x), x) for at, x in zip(times, reversed(locations), strict=True)]


def on_storage(
    lake: TestLake, watch: Watch, ids: dict[str, int], commits: Sequence[Commit], snapshots: Sequence[int]
) -> list[float]:
    """Seconds from each commit to the first metadata file that lists it."""
    arrivals = {name: watch.arrivals(table_id) for name, table_id in ids.items()}
    seconds: list[float] = []
    for i, (commit, snapshot_id) in enumerate(zip(commits, snapshots, strict=True)):
        arrival = next(a for a in arrivals[commit.table] if a.as_of >= snapshot_id)
        seconds.append(arrival.at - commit.at)
        if i % SAMPLED == 0:
            check(lake, arrival.location, snapshot_id)
    return seconds


def check(lake: TestLake, location: str, snapshot_id: int) -> None:
    """That the object is there and leads to the snapshot's manifests."""
    with lake.duckdb() as db:
        ((text,),) = db.execute("SELECT content FROM read_text(?)", [location]).fetchall()
        listed = {s["snapshot-id"]: s["manifest-list"] for s in json.loads(text)["snapshots"]}
        assert db.execute("SELECT size FROM read_blob(?)", [listed[snapshot_id]]).fetchall(), location


def load(running: Server, table: str) -> tuple[float, int]:
    """When the answer was there, and the snapshot that it shows."""
    answer = running.http.get(f"{running.path('main')}/tables/{table}")
    now = time.monotonic()
    assert answer.status_code == 200, answer.text
    return now, answer.json()["metadata"]["current-snapshot-id"]


def stages(lake: TestLake) -> dict[str, tuple[int, float]]:
    """How often each was gone through since the listener leads, and for how many seconds."""
    ((report,),) = lake.sql("SELECT report FROM listener")
    return {name: (stage["times"], stage["seconds"]) for name, stage in (report or {}).get("stages", {}).items()}


@contextmanager
def staged(lake: TestLake, name: str) -> Iterator[None]:
    """Shows the mean of each stage afterwards."""
    wait_idle(lake)
    before = stages(lake)
    yield
    wait_idle(lake)
    means: list[str] = []
    for stage, (times, seconds) in sorted(stages(lake).items(), key=lambda x: STAGES.find(x[0])):
        times_before, seconds_before = before.get(stage, (0, 0.0))
        if times > times_before:
            mean = (seconds - seconds_before) / (times - times_before)
            means.append(f"{stage} {mean * 1000:.1f} ({times - times_before} ×)")
    print(f"{f'  stages of {name}, ms':<50}{', '.join(means)}", flush=True)


def show_head(title: str) -> None:
    print(f"\n{title:<50}{'n':>6}{'p50 ms':>9}{'p95 ms':>9}{'max ms':>9}", flush=True)


def show(name: str, seconds: Sequence[float]) -> None:
    ordered = [x * 1000 for x in sorted(seconds)]
    p50, p95 = (ordered[math.ceil(len(ordered) * share) - 1] for share in (0.5, 0.95))
    print(f"{f'  {name}':<50}{len(ordered):>6}{p50:>9.1f}{p95:>9.1f}{ordered[-1]:>9.1f}", flush=True)


def quiet(sizes: Sizes) -> None:
    with tempfile.TemporaryDirectory() as folder, lakes.lake() as lake:
        for number, (kind, rows) in enumerate(KINDS.items()):
            loaded = make_tables(lake, [f"loaded_{number}"], rows)
            left = make_tables(lake, [f"left_{number}"], rows)
            with servers.server(lake.settings, Path(folder)) as running:
                show_head(f"quiet, {kind}")
                quiet_visible(lake, running, loaded, rows, sizes.inserts)
                quiet_storage(lake, left, rows, sizes.inserts)


def quiet_visible(lake: TestLake, running: Server, ids: dict[str, int], rows: int, inserts: int) -> None:
    (table,) = ids
    commits: list[Commit] = []
    visible: list[float] = []
    bare: list[float] = []
    shown: list[int] = []
    with staged(lake, "visible"), lake.duckdb() as db:
        for _ in range(WARM_UP):
            insert(db, table, rows)
            load(running, table)
        wait_idle(lake)
        before = newest(lake)
        for _ in range(inserts):
            commits.append(insert(db, table, rows))
            now, snapshot_id = load(running, table)
            visible.append(now - commits[-1].at)
            shown.append(snapshot_id)
            time.sleep(PAUSE)
            start = time.monotonic()
            bare.append(load(running, table)[0] - start)
        show("DuckDB's INSERT", [c.seconds for c in commits])
        show("LoadTable, nothing changed", bare)
        show("visible", visible)
    assert shown == snapshot_ids(lake, ids, commits, before)


def quiet_storage(lake: TestLake, ids: dict[str, int], rows: int, inserts: int) -> None:
    (table,) = ids
    commits: list[Commit] = []
    with staged(lake, "on storage"), lake.duckdb() as db:
        for _ in range(WARM_UP):
            insert(db, table, rows)
        wait_idle(lake)
        before = newest(lake)
        with Watch(lake) as watch:
            for _ in range(inserts):
                commits.append(insert(db, table, rows))
                time.sleep(PAUSE)
            wait_idle(lake)
        seconds = on_storage(lake, watch, ids, commits, snapshot_ids(lake, ids, commits, before))
        show("DuckDB's INSERT, nobody loads", [c.seconds for c in commits])
        show("on storage", seconds)


@contextmanager
def writer(write: Callable[..., None], *args: object) -> Iterator[Iterator[Commit]]:
    """The commits of another process, as they are made."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_write, args=(write, there, *args), daemon=True)
    process.start()
    there.close()

    def commits() -> Iterator[Commit]:
        try:
            while True:
                yield here.recv()
        except EOFError:
            return

    yield commits()
    process.join()
    assert process.exitcode == 0


def _write(write: Callable[..., None], *args: object) -> None:
    # DuckDB draws progress bars when the machine is slow
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    write(*args)


def write_paced(out: Connection, settings: Settings, tables: Sequence[str], rows: int, inserts: int) -> None:
    """Each session has tables of its own, and its turns; one that is late does not hurry afterwards."""
    lock = threading.Lock()
    ready = threading.Barrier(SESSIONS)

    def one(number: int) -> None:
        own = itertools.cycle(tables[number::SESSIONS])
        with session.attach(settings) as db:
            db.execute(f"SELECT count(*) FROM {tables[number]}").fetchall()
            ready.wait()
            turn = time.monotonic() + number / PER_SECOND
            for _ in range(number, inserts, SESSIONS):
                time.sleep(max(0.0, turn - time.monotonic()))
                made = insert(db, next(own), rows)
                with lock:
                    out.send(made)
                turn = max(turn + SESSIONS / PER_SECOND, made.at)

    with ThreadPoolExecutor(SESSIONS) as threads:
        for done in [threads.submit(one, i) for i in range(SESSIONS)]:
            done.result()


def write_together(out: Connection, settings: Settings, tables: Sequence[str], rows: int, rounds: int) -> None:
    with session.attach(settings) as db:
        db.execute(f"SELECT count(*) FROM {tables[0]}").fetchall()
        for _ in range(rounds):
            start = time.monotonic()
            db.execute("BEGIN")
            for table in tables:
                insert(db, table, rows)
            db.execute("COMMIT")
            now = time.monotonic()
            out.send(Commit(tables[0], now, now - start))
            time.sleep(max(0.0, start + TOGETHER_EVERY - now))


def busy(sizes: Sizes) -> None:
    for kind, rows in itertools.islice(KINDS.items(), sizes.busy_kinds):
        with tempfile.TemporaryDirectory() as folder, lakes.lake() as lake:
            ids = make_tables(lake, [f"t{i}" for i in range(sizes.tables)], rows)
            with writer(write_paced, lake.settings, list(ids), rows, sizes.inserts) as made:
                floor = list(made)
            with servers.server(lake.settings, Path(folder)) as running:
                wait_idle(lake)
                show_head(f"busy, {kind}, {sizes.tables} tables at once")
                together_storage(lake, ids, rows, sizes.together)
                together_visible(lake, running, ids, rows, sizes.together)
                show_head(f"busy, {kind}, {PER_SECOND}/s on {sizes.tables} tables")
                show("DuckDB's INSERT, nobody listens", [c.seconds for c in floor])
                busy_visible(lake, running, ids, rows, sizes.inserts)
                busy_storage(lake, ids, rows, sizes.inserts)


def busy_storage(lake: TestLake, ids: dict[str, int], rows: int, inserts: int) -> None:
    before = newest(lake)
    with staged(lake, "on storage"):
        with Watch(lake) as watch:
            with writer(write_paced, lake.settings, list(ids), rows, inserts) as made:
                commits = list(made)
            wait_idle(lake)
        seconds = on_storage(lake, watch, ids, commits, snapshot_ids(lake, ids, commits, before))
        show("DuckDB's INSERT, nobody loads", [c.seconds for c in commits])
        show("on storage", seconds)


def busy_visible(lake: TestLake, running: Server, ids: dict[str, int], rows: int, inserts: int) -> None:
    before = newest(lake)
    commits: list[Commit] = []

    def loaded(commit: Commit) -> tuple[float, int]:
        now, snapshot_id = load(running, commit.table)
        return now - commit.at, snapshot_id

    with staged(lake, "visible"):
        with (
            writer(write_paced, lake.settings, list(ids), rows, inserts) as made,
            ThreadPoolExecutor(SESSIONS * 2) as threads,
        ):
            for _ in threads.map(lambda _: running.http.get("/healthz"), range(SESSIONS * 2)):
                pass
            started = []
            for commit in made:
                started.append(threads.submit(loaded, commit))
                commits.append(commit)
            answers = [x.result() for x in started]
        bare: list[float] = []
        wait_idle(lake)
        for table in itertools.islice(itertools.cycle(ids), inserts):
            start = time.monotonic()
            bare.append(load(running, table)[0] - start)
        show("DuckDB's INSERT", [c.seconds for c in commits])
        show("LoadTable, nothing changed", bare)
        show("visible", [seconds for seconds, _ in answers])
    wanted = snapshot_ids(lake, ids, commits, before)
    # a table's next commit may be there before the answer
    assert all(shown >= snapshot_id for (_, shown), snapshot_id in zip(answers, wanted, strict=True))


def together_storage(lake: TestLake, ids: dict[str, int], rows: int, rounds: int) -> None:
    before = newest(lake)
    with staged(lake, "on storage"):
        with Watch(lake) as watch:
            with writer(write_together, lake.settings, list(ids), rows, rounds) as made:
                commits = list(made)
            wait_idle(lake)
        each = [
            sorted(
                on_storage(lake, watch, ids, [Commit(table, commit.at, 0) for table in ids], [snapshot_id] * len(ids))
            )
            for snapshot_id, commit in enumerate(commits, before + 1)
        ]
        assert newest(lake) == before + rounds
        show("DuckDB's transaction", [c.seconds for c in commits])
        show("first on storage", [x[0] for x in each])
        show("median on storage", [statistics.median(x) for x in each])
        show("last on storage", [x[-1] for x in each])


def together_visible(lake: TestLake, running: Server, ids: dict[str, int], rows: int, rounds: int) -> None:
    """One of the tables is loaded, another each time, that nobody asked for before."""
    before = newest(lake)
    seconds: list[float] = []
    with staged(lake, "visible"), writer(write_together, lake.settings, list(ids), rows, rounds) as made:
        for i, (commit, table) in enumerate(zip(made, reversed(ids), strict=False), before + 1):
            now, snapshot_id = load(running, table)
            seconds.append(now - commit.at)
            assert snapshot_id == i
        show("visible, one of them", seconds)


def insertion(sizes: Sizes) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        made = {name: stack.enter_context(lakes.lake()) for name in (PLAIN, "trigger", LISTENED)}
        for trigger, _, _ in TRIGGERS:
            made[PLAIN].sql(f"DROP TRIGGER {trigger} ON ducklake_snapshot")
        for lake in made.values():
            for number, rows in enumerate(KINDS.values()):
                make_tables(lake, [f"t{number}"], rows)
        listened = made[LISTENED]
        stack.enter_context(listener(listened.settings, Path(folder)))
        sessions = {name: stack.enter_context(lake.duckdb()) for name, lake in made.items()}
        wait_idle(listened)
        for number, (kind, rows) in enumerate(KINDS.items()):
            for db in sessions.values():
                for _ in range(WARM_UP):
                    insert(db, f"t{number}", rows)
            wait_idle(listened)
            back_to_back(kind, sessions, listened, f"t{number}", rows, sizes)
            paced(kind, sessions, f"t{number}", rows, sizes)


Rounds = dict[str, list[list[float]]]


def back_to_back(
    kind: str,
    sessions: dict[str, duckdb.DuckDBPyConnection],
    listened: TestLake,
    table: str,
    rows: int,
    sizes: Sizes,
) -> None:
    """As fast as the session can, so the listener works at the same time; not while it is another's turn."""
    rounds: Rounds = {name: [] for name in sessions}
    for order in itertools.islice(itertools.cycle(itertools.permutations(sessions)), sizes.rounds):
        for name in order:
            rounds[name].append([insert(sessions[name], table, rows).seconds for _ in range(sizes.back_to_back)])
            if name == LISTENED:
                wait_idle(listened)
    show_commits(f"INSERT of {kind}, back to back", rounds)


def paced(kind: str, sessions: dict[str, duckdb.DuckDBPyConnection], table: str, rows: int, sizes: Sizes) -> None:
    """In turns with a pause after each, so the listener has nothing to do by the next."""
    orders = itertools.cycle(itertools.permutations(sessions))
    rounds: Rounds = {name: [] for name in sessions}
    for _ in range(sizes.rounds):
        for times in rounds.values():
            times.append([])
        for order in itertools.islice(orders, sizes.paced):
            for name in order:
                rounds[name][-1].append(insert(sessions[name], table, rows).seconds)
                time.sleep(PAUSE)
    show_commits(f"INSERT of {kind}, paced", rounds)


def show_commits(title: str, rounds: Rounds) -> None:
    print(f"\n{title:<50}{'n':>6}{'p50 ms':>9}{'p95 ms':>9}{'of plain':>10}{'quartiles':>14}", flush=True)
    floors = [statistics.median(times) for times in rounds[PLAIN]]
    for name, found in rounds.items():
        ordered = sorted(itertools.chain(*found))
        p95 = ordered[math.ceil(len(ordered) * 0.95) - 1] * 1000
        ratios = [statistics.median(times) / floor for times, floor in zip(found, floors, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        figures = f"{len(ordered):>6}{statistics.median(ordered) * 1000:>9.2f}{p95:>9.2f}{middle:>10.3f}"
        print(f"{f'  {name}':<50}{figures}{f'{low:.3f}–{high:.3f}':>14}", flush=True)


def main() -> None:
    parts = {"quiet": quiet, "busy": busy, "commit": insertion}
    parser = argparse.ArgumentParser(prog="python -m bench.listener")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; all if none is named")
    parser.add_argument("--inserts", type=int, help="of each series of latencies")
    parser.add_argument("--tables", type=int, help="that change at once")
    parser.add_argument("--quick", action="store_true", help="a minute instead of six")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(parts):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    sizes = QUICK if given.quick else FULL
    sizes = Sizes(**{**vars(sizes), **{k: v for k in ("inserts", "tables") if (v := getattr(given, k)) is not None}})
    for name, part in parts.items():
        if not given.parts or name in given.parts:
            part(sizes)


if __name__ == "__main__":
    main()
